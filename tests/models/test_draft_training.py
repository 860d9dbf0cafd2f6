import json
import math
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.draft_training.export import load_head, save_head
from engine.draft_training.features import Sequence, load_shard, write
from engine.draft_training.head import EagleHead, HeadConfig, rotate
from engine.draft_training.measure import POSITIONS, acceptance, table
from engine.draft_training.output import TargetOutput, most_frequent
from engine.draft_training.teacher import Teacher
from engine.draft_training.train import Batch, batches, collate, fit, initial_head, unrolled_loss

COMMITTED = Path(__file__).parents[2] / "engine" / "data" / "smollm2-eagle"
SMALL = HeadConfig(
    vocab_size=11,
    output_size=5,
    hidden_size=12,
    intermediate_size=20,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    rope_theta=100.0,
)
IDS = torch.tensor([1, 2, 4, 7, 9])


@pytest.fixture
def head() -> EagleHead:
    torch.manual_seed(3)
    made = EagleHead(SMALL, IDS)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.4)
    return made


def _turn(vector: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of one head vector by complex multiplication."""
    half = len(vector) // 2
    z = torch.complex(vector[:half], vector[half:])
    angle = position * theta ** (-torch.arange(half) * 2 / len(vector))
    z = z * torch.polar(torch.ones(half), angle)
    return torch.cat((z.real, z.imag))


def _index(
    head: EagleHead, embedded: Tensor, hidden: Tensor, position: int, cache: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """One index with an explicit cache of (kv heads, size) keys and values, appended to; the way an engine does it."""
    c, layer = head.config, head.layer

    def rms(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + c.rms_norm_eps).sqrt() * weight

    u = head.fc.weight @ torch.cat((rms(embedded, head.embed_norm.weight), rms(hidden, head.hidden_norm.weight)))
    x = rms(u, layer.input_layernorm.weight)
    attention = layer.self_attn
    query = (attention.q_proj.weight @ x).view(c.num_attention_heads, c.head_dim)
    key = (attention.k_proj.weight @ x).view(c.num_key_value_heads, c.head_dim)
    value = (attention.v_proj.weight @ x).view(c.num_key_value_heads, c.head_dim)
    cache.append((torch.stack([_turn(k, position, c.rope_theta) for k in key]), value))
    mixed = []
    for number in range(c.num_attention_heads):
        kv = number // (c.num_attention_heads // c.num_key_value_heads)
        turned = _turn(query[number], position, c.rope_theta)
        weight = torch.stack([turned @ k[kv] / math.sqrt(c.head_dim) for k, _ in cache]).softmax(0)
        mixed.append(torch.stack([w * v[kv] for w, (_, v) in zip(weight, cache, strict=True)]).sum(0))
    x = u + attention.o_proj.weight @ torch.cat(mixed)
    y = rms(x, layer.post_attention_layernorm.weight)
    return x + layer.mlp.down_proj.weight @ (F.silu(layer.mlp.gate_proj.weight @ y) * (layer.mlp.up_proj.weight @ y))


@torch.no_grad()
def test_the_unrolled_depths_are_what_a_chain_with_a_cache_computes(head: EagleHead) -> None:
    n, depths = 7, 4
    embedded, hidden = torch.randn(n, 12), torch.randn(n, 12)
    outputs = head(embedded[None], hidden[None], depths)
    for start in range(n - depths + 1):
        cache: list[tuple[Tensor, Tensor]] = []
        for j in range(start):
            _index(head, embedded[j], hidden[j], j, cache)
        carried = hidden[start]
        for depth in range(depths):
            carried = _index(head, embedded[start + depth], carried, start + depth, cache)
            torch.testing.assert_close(outputs[depth][0, start + depth], carried, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_an_output_depends_on_nothing_later_than_its_own_index(head: EagleHead) -> None:
    embedded, hidden = torch.randn(1, 6, 12), torch.randn(1, 6, 12)
    before = head(embedded, hidden)[0]
    embedded[0, 3], hidden[0, 4] = 1.0, 1.0
    after = head(embedded, hidden)[0]
    assert torch.equal(before[0, :3], after[0, :3])
    assert not torch.allclose(before[0, 3], after[0, 3])


def test_rotation_keeps_lengths_and_leaves_position_zero_alone() -> None:
    x = torch.randn(2, 5, 8)
    turned = rotate(x, 10_000.0)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, 0], x[:, 0])


@pytest.fixture
def target(tmp_path: Path) -> TargetOutput:
    return _target(_folder(tmp_path))


def _folder(path: Path, layers: int = 2) -> Path:
    """A random target of the small sizes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=11,
            hidden_size=12,
            intermediate_size=20,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            rope_parameters={"rope_type": "default", "rope_theta": 100.0},
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            initializer_range=0.5,
        )
    )
    model.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    config.update(rope_theta=100.0)
    (path / "config.json").write_text(json.dumps(config))
    return path


def _target(folder: Path) -> TargetOutput:
    return TargetOutput(folder)


def test_the_teachers_batched_hidden_states_are_transformers_own(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    folder = _folder(tmp_path)
    teacher = Teacher(folder, slots=3, room=20)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    asked = [
        Sequence("code", greedy, [3, 1, 4, 1, 5][:size], size) for greedy, size in ((True, 5), (False, 2), (True, 3))
    ]
    generator = torch.Generator().manual_seed(0)
    for one in write(teacher, iter(asked), slots=2, longest=6, end=99, generator=generator):
        assert len(one.ids) - one.prompt == 6
        with torch.no_grad():
            out = model(torch.tensor([one.ids]), output_hidden_states=True)
        hidden = torch.cat(one.hidden).float()
        normed = F.rms_norm(hidden, (12,), teacher.norm, teacher.eps)
        # stored in bfloat16: 8 bits
        torch.testing.assert_close(normed, out.hidden_states[-1][0, : len(hidden)], rtol=2e-2, atol=2e-2)
        if one.greedy:
            assert one.ids[one.prompt :] == out.logits[0, one.prompt - 1 : -1].argmax(-1).tolist()


def test_an_answer_ends_at_the_end_token(tmp_path: Path) -> None:
    teacher = Teacher(_folder(tmp_path), slots=1, room=40)
    free = next(write(teacher, iter([Sequence("code", True, [3, 1], 2)]), 1, 8, 99, torch.Generator())).ids
    end = free[4]
    stopped = next(write(teacher, iter([Sequence("code", True, [3, 1], 2)]), 1, 8, end, torch.Generator())).ids
    assert stopped == free[: free.index(end, 2) + 1]


def test_training_from_the_targets_last_layer_learns_the_targets_own_text(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "target")
    target, teacher = _target(folder), Teacher(folder, slots=4, room=40)
    asked = (Sequence("code", False, [1 + i % 9, 1 + i // 9], 2) for i in range(40))
    sequences = []
    for one in write(teacher, asked, slots=4, longest=20, end=99, generator=torch.Generator().manual_seed(0)):
        hidden = torch.cat(one.hidden)
        ids = torch.tensor(one.ids[: len(hidden)])
        sequences.append({"ids": ids, "hidden": hidden, "about": torch.tensor([one.prompt, 0, 0])})
    torch.manual_seed(0)
    head = initial_head(folder, target, sequences, 11)
    assert head.config.hidden_size == 12
    torch.testing.assert_close(head.layer.mlp.up_proj.weight, target.last_layer["mlp.up_proj.weight"])
    everything = collate(sequences, Random(0))
    rows = target.embedding[head.output_token_ids.long()]
    before = [float(loss.detach()) for loss in unrolled_loss(head, everything, target, rows)]
    fit(head, sequences, target, epochs=12, tokens=200, rate=1e-2, out=tmp_path / "head")
    after = [float(loss.detach()) for loss in unrolled_loss(head, everything, target, rows)]
    least = float(_entropy(target, everything, rows))  # no head can do better than the target's own entropy
    assert all(least < new < old for old, new in zip(before, after, strict=True))
    assert after[0] - least < 0.75 * (before[0] - least)
    assert load_head(tmp_path / "head").config == head.config


@torch.no_grad()
def _entropy(target: TargetOutput, batch: Batch, rows: Tensor) -> Tensor:
    p = target.logits(batch.hidden[:, 1:][batch.learn], rows).log_softmax(-1)
    return -(p.exp() * p).sum(-1).mean()


@torch.no_grad()
def test_the_loss_compares_index_j_with_the_target_after_the_next_token(head: EagleHead, target: TargetOutput) -> None:
    ids, hidden = torch.tensor([[3, 1, 4, 1]]), torch.randn(1, 4, 12)
    learn = torch.tensor([[False, True, True]])
    losses = unrolled_loss(head, Batch(ids, hidden, learn), target, target.embedding[IDS])
    outputs = head(target.embed(ids[:, 1:]), hidden[:, :-1], 2)
    for depth, indices in ((0, (1, 2)), (1, (1, 2))):
        total = 0.0
        for j in indices:
            wanted = target.logits(hidden[0, j + 1])[IDS].softmax(-1)
            guess = target.logits(outputs[depth][0, j])[IDS].softmax(-1)
            total -= float((wanted * guess.log()).sum())
        assert float(losses[depth]) == pytest.approx(total / len(indices), rel=1e-5)


def _features(size: int, prompt: int, greedy: int = 1, width: int = 12) -> dict[str, Tensor]:
    return {
        "ids": torch.arange(size) % 11,
        "hidden": torch.randn(size, width),
        "about": torch.tensor([prompt, 0, greedy]),
    }


def test_batches_hold_every_sequence_once_and_about_the_wished_tokens() -> None:
    sequences = [_features(size, 2) for size in range(4, 40)]
    made = list(batches(sequences, 100, Random(0)))
    assert sum(len(batch.ids) for batch in made) == len(sequences)
    assert all(batch.ids.numel() <= 130 for batch in made)


def test_the_whole_answer_and_a_part_of_the_prompt_is_learnt() -> None:
    batch = collate([_features(2000, 1600), _features(10, 4)], Random(0))
    assert batch.learn[0, 1598:].all()  # the target's distribution after x[1599] is that of the answer's first token
    assert batch.learn[0, :1598].float().mean() == pytest.approx(0.25, abs=0.04)
    assert batch.learn[1, 2:9].all()
    assert not batch.learn[1, 9:].any()


@torch.no_grad()
def test_a_head_that_knows_the_hidden_states_is_always_accepted_where_it_may_speak(target: TargetOutput) -> None:
    class Oracle(EagleHead):
        truth: Tensor

        def forward(self, embedded: Tensor, hidden: Tensor, depths: int = 1) -> list[Tensor]:
            return [self.truth] * depths

    everything = Oracle(HeadConfig(**{**SMALL.as_dict(), "output_size": 11}), torch.arange(11))
    for greedy in (0, 1):
        one = _features(20, 6, greedy)
        everything.truth = one["hidden"][None, 1:]
        reach, kept = acceptance(everything, target, one)
        torch.testing.assert_close(kept, reach)
        assert reach.tolist() == pytest.approx([20 - 1 - POSITIONS - 4] * POSITIONS)


@torch.no_grad()
def test_the_table_shows_positions_never_reached_as_such(head: EagleHead, target: TargetOutput) -> None:
    torch.manual_seed(5)
    one = _features(7 + POSITIONS, 6)  # a single start, whose first guess is wrong
    assert acceptance(head, target, one)[1][0] == 0
    assert table(head, target, [one]).splitlines()[2] == "| code | greedy | 0.00 | - | - | - | - | 0.00 |"


def test_the_most_frequent_tokens_come_in_order() -> None:
    assert most_frequent(torch.tensor([0.0, 7.0, 3.0, 9.0]), 3, (0,)).tolist() == [0, 1, 3]


def test_an_exported_head_comes_back_to_float16_precision(head: EagleHead, tmp_path: Path) -> None:
    save_head(head, tmp_path)
    back = load_head(tmp_path)
    assert back.config == head.config
    assert back.output_token_ids.tolist() == IDS.tolist()
    for name, weight in head.named_parameters():
        assert torch.equal(back.get_parameter(name), weight.detach().half().float()), name


def test_a_weight_beyond_float16_is_refused_by_name(head: EagleHead, tmp_path: Path) -> None:
    with torch.no_grad():
        head.fc.weight[0, 0] = 1e6
    with pytest.raises(ValueError, match=r"fc.weight has weights up to 1e\+06"):
        save_head(head, tmp_path)


def test_another_kind_of_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="holds 'llama'; only 'akc-eagle'"):
        load_head(tmp_path)


def test_a_shard_comes_back(tmp_path: Path, head: EagleHead) -> None:
    from engine.draft_training.features import _save_shard

    hidden = torch.randn(6, 12).to(torch.bfloat16)
    _save_shard(
        tmp_path / "s.safetensors", [Sequence("math", False, [1, 2, 3, 4, 5, 6, 7], 4, [hidden[:4], hidden[4:]])]
    )
    (one,) = load_shard(tmp_path / "s.safetensors")
    assert one["ids"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert torch.equal(one["hidden"], hidden)
    assert one["about"].tolist() == [4, 1, 0]


def test_the_committed_draft_is_small_and_fits_smollm2() -> None:
    assert (COMMITTED / "model.safetensors").stat().st_size < 10_000_000
    head = load_head(COMMITTED)
    ids = head.output_token_ids.tolist()
    assert ids == sorted(set(ids))
    assert 2 in ids  # <|im_end|>, or no answer could end inside a draft
    assert len(ids) == head.config.output_size
    assert max(ids) < head.config.vocab_size == 49_152
    assert sum(parameter.numel() for parameter in head.parameters()) == 4_204_800
