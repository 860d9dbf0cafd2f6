"""Which drafters take another K at every step, and how many passes are booked for those that do not.

Read from vLLM 0.31 and 0.32: who asserts its K, and who is not told of it, is said at each case.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.vllm.drafter import configured

METHODS = {  # all that `speculative_config.method` can be once vLLM has read it
    "ngram": False, "draft_model": False, "eagle": False, "eagle3": False, "mtp": False,
    "ngram_gpu": True, "suffix": True, "medusa": True, "extract_hidden_states": True,  # assert K == configured
    "custom_class": True, "mlp_speculator": True,  # are not told
    "dflash": True, "dspark": True,  # draft a whole block
}  # fmt: skip


def engine(method: str, ranks: int = 1, **speculative: Any) -> Any:
    given = {"method": method, "model": "/models/d", "num_speculative_tokens": 4, "parallel_drafting": False}
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**{**given, **speculative}),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
    )


@pytest.mark.parametrize(("method", "steady"), METHODS.items())
def test_only_proposers_that_take_any_k_are_given_one(method: str, steady: bool) -> None:
    drafter = configured(engine(method), None)
    assert drafter is not None
    assert drafter.steady is steady


@pytest.mark.parametrize("method", ["draft_model", "eagle", "eagle3", "mtp"])
def test_a_block_drafted_in_one_pass_has_one_size(method: str) -> None:
    """PARD, P-EAGLE: the proposer lays out rows x configured K places and cuts them by the step's K."""
    drafter = configured(engine(method, parallel_drafting=True), None)
    assert drafter is not None
    assert drafter.steady
    assert [drafter.passes(k) for k in (0, 1, 4)] == [0, 1, 1]


def test_ranks_that_meet_in_every_pass_keep_their_number_of_passes() -> None:
    model, lookup = configured(engine("draft_model", ranks=2), None), configured(engine("ngram", ranks=2), None)
    assert model is not None
    assert lookup is not None
    assert (model.steady, lookup.steady) == (True, False)
    assert [model.passes(k) for k in (0, 1, 4)] == [0, 4, 4]


def test_without_a_speculative_configuration_there_is_no_drafter() -> None:
    assert configured(SimpleNamespace(speculative_config=None), None) is None
