"""Which drafters take another K at every step, and how many passes are booked for those that do not.

Read from vLLM 0.31 and 0.32: who asserts its K, and who is not told of it, is said at each case.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.link import StaticLink
from engine.vllm.bridge import Bridge
from engine.vllm.drafter import configured, reach
from engine.vllm.labels import Labels
from engine.vllm.settings import VllmSettings

METHODS = {  # all that `speculative_config.method` can be once vLLM has read it
    "ngram": False, "draft_model": False, "eagle": False, "eagle3": False, "mtp": False,
    "ngram_gpu": True, "suffix": True, "medusa": True, "extract_hidden_states": True,  # assert K == configured
    "custom_class": True, "mlp_speculator": True,  # are not told
    "dflash": True, "dspark": True,  # draft a whole block
}  # fmt: skip


def engine(method: str, ranks: int = 1, v2: bool = False, modules: int = 1, **speculative: Any) -> Any:
    given: dict[str, Any] = {
        "method": method, "model": "/models/d", "num_speculative_tokens": 4, "parallel_drafting": False,
        "use_multi_module_mtp": lambda: modules > 1, "use_gemma4_mtp": lambda: False,
    }  # fmt: skip
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**{**given, **speculative}),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
        use_v2_model_runner=v2,
    )


@pytest.mark.parametrize(("method", "steady"), METHODS.items())
def test_only_proposers_that_take_any_k_are_given_one(method: str, steady: bool) -> None:
    drafter = configured(engine(method), "0.32.0")
    assert drafter is not None
    assert drafter.steady is steady


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "mtp"])
def test_a_block_drafted_in_one_pass_has_one_size(method: str) -> None:
    """PARD, P-EAGLE: the proposer lays out rows x configured K places and cuts them by the step's K."""
    drafter = configured(engine(method, parallel_drafting=True), "0.32.0")
    assert drafter is not None
    assert drafter.steady
    assert [drafter.passes(k) for k in (0, 1, 4)] == [0, 1, 1]


def test_ranks_that_meet_in_every_pass_keep_their_number_of_passes() -> None:
    model, lookup = configured(engine("draft_model", ranks=2), "0.32.0"), configured(engine("ngram", ranks=2), "0.32.0")
    assert model is not None
    assert lookup is not None
    assert (model.steady, lookup.steady) == (True, False)
    assert [model.passes(k) for k in (0, 1, 4)] == [0, 4, 4]


def test_without_a_speculative_configuration_there_is_no_drafter() -> None:
    assert configured(SimpleNamespace(speculative_config=None), "0.32.0") is None


@pytest.mark.parametrize(
    ("method", "version", "modules", "constant"),
    [
        ("draft_model", "0.32.0", 1, True),  # standalone_ar/speculator.py: `num_speculative_tokens` is not read
        ("ngram", "0.32.0", 1, True),  # ngram/speculator.py
        ("mtp", "0.32.0", 3, True),  # multi_module_mtp/speculator.py
        ("mtp", "0.32.0", 1, False), ("eagle", "0.32.0", 1, False), ("eagle3", "0.32.1+cpu", 1, False),
        ("eagle", "0.31.0", 1, True), ("draft_model", "0.31.0", 1, True),  # 0.31's runner hands no K on
    ],
)  # fmt: skip
def test_model_runner_v2_makes_all_passes_and_only_its_rows_are_cut(
    method: str, version: str, modules: int, constant: bool
) -> None:
    drafter = configured(engine(method, v2=True, modules=modules), version)
    assert drafter is not None
    assert (drafter.steady, drafter.constant) == (False, constant)
    assert [drafter.passes(k) for k in (0, 1, 4)] == ([0, 4, 4] if constant else [0, 1, 4])
    on_v1 = configured(engine(method, modules=modules), version)
    assert on_v1 is not None
    assert on_v1.constant is False


def test_constant_passes_are_booked_with_the_tokens_that_were_asked_for() -> None:
    drafter = configured(engine("draft_model", v2=True), "0.32.0")
    link = StaticLink("d", 2)
    bridge = Bridge(link, Labels(VllmSettings(classify=False), lambda: pytest.fail("no tokenizer")), drafter)
    request: Any = SimpleNamespace(
        request_id="a", prompt_token_ids=[1] * 8, lora_request=None, cache_salt=None, num_computed_tokens=8,
        sampling_params=SimpleNamespace(temperature=0.0, extra_args=None), is_prefill_chunk=False,
    )  # fmt: skip
    bridge.came(request)
    step: Any = SimpleNamespace(
        num_scheduled_tokens={"a": 8}, scheduled_spec_decode_tokens={}, num_invalid_spec_tokens=None,
        scheduled_new_reqs=[SimpleNamespace(req_id="a")],
        scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set()),
    )  # fmt: skip
    assert bridge.scheduled(step, waiting=0) == (2, {"a": 2})
    assert bridge._steps[-1].drafted == {"d": (2, 4)}


@pytest.mark.parametrize(
    ("method", "own", "expected"),
    [("draft_model", 64, 60), ("dflash", 64, 59), ("ngram", 256, 252), ("suffix", None, 252)],
)
def test_how_long_a_sequence_leaves_drafts_to_anybody(method: str, own: int | None, expected: int) -> None:
    """`max_seq_len + K (+ 1 for dflash) <= effective_drafter_max_model_len` on V1."""
    draft = None if own is None else SimpleNamespace(max_model_len=own)
    config = engine(method, draft_model_config=draft)
    config.model_config = SimpleNamespace(max_model_len=256)
    assert reach(config) == expected
    config.use_v2_model_runner = True
    assert reach(config) is None
