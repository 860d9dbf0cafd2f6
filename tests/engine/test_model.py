"""The decoder against `transformers` on the same random weights, whatever the batch's shape."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.core.cache import KVCache
from engine.core.layout import Layout, Segment
from engine.core.linear import Linear, can_pack, packing_pays
from engine.core.model import Decoder
from tests.engine.conftest import VOCABULARY, write_llama, write_qwen2

CPU = torch.device("cpu")

SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases": {"kind": "llama", "attention_bias": True, "mlp_bias": True},
    "llama untied, no grouping": {"kind": "llama", "tie_word_embeddings": False, "num_key_value_heads": 6},
    "llama in shards, wide heads": {"kind": "llama", "head_dim": 16, "shard": "40KB"},
    "llama with another rope theta": {"kind": "llama", "rope_theta": 500.0, "rms_norm_eps": 1e-3},
    "qwen2": {"kind": "qwen2"},
    "qwen2 tied, one key head": {"kind": "qwen2", "tie_word_embeddings": True, "num_key_value_heads": 1},
}


def load(folder: Path, dtype: torch.dtype = torch.float32, packed: bool | None = None) -> Decoder:
    return Decoder(folder, dtype=dtype, device=CPU, max_len=128, packed=packed)


@torch.inference_mode()
def logits(model: Decoder, rows: list[list[int]], chunks: list[list[int]]) -> list[torch.Tensor]:
    """Feed each row in pieces of the sizes `chunks[r]`, all rows side by side; logits of every position."""
    cache = model.cache(len(rows))
    places = [cache.acquire() for _ in rows]
    pieces: list[list[torch.Tensor]] = [[] for _ in rows]
    for i in range(max(len(c) for c in chunks)):
        members = [r for r in range(len(rows)) if i < len(chunks[r])]
        segments = [Segment(places[r].slot, places[r].length, chunks[r][i]) for r in members]
        layout = model.layout(segments, cache)
        flat = [t for r, s in zip(members, segments, strict=True) for t in rows[r][s.start : s.start + s.size]]
        out = model.logits(model.forward(torch.tensor(flat), layout, cache))
        for r, s, offset in zip(members, segments, layout.offsets, strict=True):
            pieces[r].append(out[offset : offset + s.size])
            places[r].length += s.size
    return [torch.cat(p) for p in pieces]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_those_of_transformers(shape: str, packed: bool, tmp_path: Path) -> None:
    if packed and not can_pack(CPU, torch.float32):
        pytest.skip("no packed kernels on this CPU")
    changes = dict(SHAPES[shape])
    write = write_qwen2 if changes.pop("kind", "llama") == "qwen2" else write_llama
    folder = write(tmp_path / "model", **changes)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(3)
    rows = [torch.randint(VOCABULARY, (n,)).tolist() for n in (23, 40, 7)]
    found = logits(load(folder, packed=packed), rows, [[23], [8, 1, 30, 1], [2, 5]])
    for row, own in zip(rows, found, strict=True):
        with torch.inference_mode():
            expected = reference(torch.tensor([row])).logits[0]
        # Sums of 48 to 80 float32 products in another order: about 1e-6 of values around 10.
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-4)


def test_float64_agrees_to_the_last_digits_however_the_rows_are_fed(llama: Path) -> None:
    model = load(llama, torch.float64)
    torch.manual_seed(4)
    rows = [torch.randint(VOCABULARY, (n,)).tolist() for n in (30, 12)]
    whole = logits(model, rows, [[30], [12]])
    pieces = logits(model, rows, [[1] * 30, [3, 1, 8]])
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_bfloat16_stays_within_its_own_rounding(llama: Path) -> None:
    row = [[5, 6, 7, 8, 9, 10, 11, 12]]
    exact = logits(load(llama, torch.float64), row, [[8]])[0]
    found = logits(load(llama, torch.bfloat16), row, [[3, 1, 4]])[0]
    # bfloat16 has 8 bits: 2^-8 relative per rounding, a few dozen roundings deep, on logits of a few units.
    assert float((found.double() - exact).abs().max()) < 0.05 * float(exact.abs().max())
    float32 = logits(load(llama), row, [[8]])[0]
    assert float((float32.double() - exact).abs().max()) < 1e-4


def test_a_rolled_back_row_forgets_what_it_had_read(llama: Path) -> None:
    model = load(llama)
    with torch.inference_mode():
        cache = model.cache(1)
        row = cache.acquire()
        for start, tokens in ((0, [5, 6, 7, 8, 9]), (3, [10, 11])):  # positions 3 and 4 are replaced
            row.length = start
            layout = model.layout([Segment(0, row.length, len(tokens))], cache)
            out = model.logits(model.forward(torch.tensor(tokens), layout, cache))
    fresh = logits(model, [[5, 6, 7, 10, 11]], [[5]])[0]
    torch.testing.assert_close(out, fresh[3:], rtol=1e-5, atol=1e-5)


def test_leaving_rows_are_replaced_by_the_last_one(llama: Path) -> None:
    model = load(llama)
    tokens = [[5, 6, 7], [8, 9, 10, 11], [12, 13]]
    with torch.inference_mode():
        cache = model.cache(3)
        rows = [cache.acquire() for _ in tokens]
        segments = [Segment(i, 0, len(t)) for i, t in enumerate(tokens)]
        model.forward(torch.tensor([t for row in tokens for t in row]), model.layout(segments, cache), cache)
        for row, t in zip(rows, tokens, strict=True):
            row.length = len(t)
        cache.release(rows[0])
        assert [r.slot for r in rows[1:]] == [1, 0]
        assert cache.tokens == 6
        layout = model.layout([Segment(0, 2, 1), Segment(1, 4, 1)], cache)
        out = model.logits(model.forward(torch.tensor([14, 15]), layout, cache))
    expected = logits(model, [[12, 13, 14], [8, 9, 10, 11, 15]], [[3], [5]])
    torch.testing.assert_close(out, torch.stack([e[-1] for e in expected]), rtol=1e-5, atol=1e-5)


def _cache(slots: int = 6, max_len: int = 2000) -> KVCache:
    return KVCache(1, slots, 1, 4, max_len, torch.float32, CPU)


def test_neighbouring_rows_of_like_length_share_a_run_and_others_do_not() -> None:
    segments = [Segment(0, 100, 1), Segment(1, 120, 1), Segment(2, 1500, 1), Segment(4, 1510, 1), Segment(5, 1500, 200)]
    runs = Layout(segments, _cache(), 1, torch.float32).runs
    assert [(r.first, r.last) for r in runs] == [(0, 2), (2, 3), (4, 5), (5, 6)]


def test_no_mask_where_every_row_sees_everything() -> None:
    runs = Layout([Segment(0, 10, 1), Segment(1, 10, 1)], _cache(), 3, torch.float32).runs
    assert [(r.mask, r.pad, r.unpad) for r in runs] == [(None, None, None)]


@pytest.mark.parametrize(
    "segments",
    [[Segment(1, 0, 1), Segment(0, 0, 1)], [Segment(6, 0, 1)], [Segment(0, 1999, 2)], [Segment(0, 0, 0)]],
)
def test_segments_out_of_order_or_out_of_room_are_refused(segments: list[Segment]) -> None:
    with pytest.raises(ValueError, match="Segment"):
        Layout(segments, _cache(), 1, torch.float32)


def test_a_full_cache_and_a_foreign_row_are_refused() -> None:
    cache = _cache(slots=1)
    row = cache.acquire()
    with pytest.raises(RuntimeError, match="all 1 cache slots"):
        cache.acquire()
    cache.release(row)
    with pytest.raises(ValueError, match="not held"):
        cache.release(row)


def test_the_quicker_kernel_is_chosen_by_the_clock() -> None:
    weight = torch.ones(256, 256)
    if not can_pack(CPU, weight.dtype):
        pytest.skip("no packed kernels on this CPU")
    # Per token count: three timings of the plain kernel, then three of the packed one.
    for plain, packed, expected in ((2.0, 1.0, True), (1.0, 2.0, False)):
        ticks = iter([t for _ in range(3) for step in (plain, packed) for _ in range(3) for t in (0.0, step)])
        assert packing_pays(weight, clock=ticks.__next__) is expected
    assert not packing_pays(weight.double())


def test_both_kernels_compute_the_same() -> None:
    if not can_pack(CPU, torch.float32):
        pytest.skip("no packed kernels on this CPU")
    torch.manual_seed(0)
    weight, bias, x, other = torch.randn(24, 16), torch.randn(24), torch.randn(5, 16), torch.randn(5, 24)
    plain, packed = Linear(weight, bias), Linear(weight, bias, packed=True)
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), plain(x))
        torch.testing.assert_close(packed.plus(x, other), plain.plus(x, other))
