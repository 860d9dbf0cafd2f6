"""The serving engines' state machines, against sequences worked out by hand."""

import numpy as np
import pytest

from simulations.policy import DraftFacts, Outcome, Policy, PoolFacts, View
from simulations.rivals import measured_table
from simulations.rivals.hf_heuristic import hf_heuristic
from simulations.rivals.sglang_adaptive import SLOTS, Slot, sglang_adaptive
from simulations.rivals.tensorrt import Gate, GateConfig, tensorrt
from simulations.rivals.vllm_dynamic import lookup, vllm_dynamic

POOL = PoolFacts(("code",), (DraftFacts("small", "model", 8, 1e9),), tuple(range(9)), (0, 5), 600, 2)
RNG = np.random.default_rng(0)


def step(policy: Policy, rows: int, accepted: float, engine: int = 0, finished: bool = False) -> int:
    """A step of `rows` old rows with draft 0, a share `accepted` of K kept; returns the (common) K."""
    view = View(
        engine, 0, 0.0, np.zeros(rows, np.intp), np.zeros(rows, np.intp), np.arange(rows),
        np.zeros(rows, dtype=np.bool_), np.ones(1, dtype=np.bool_),
    )  # fmt: skip
    k = policy.choose(view).k
    kept = np.round(k * accepted).astype(np.intp)
    policy.observe(Outcome(view, view.draft, k, kept, np.full(rows, finished), 1.0, 0, 0))
    assert len(set(k.tolist())) == 1
    return int(k[0])


def test_sglang_slot_rises_after_warm_up_and_falls_with_the_average() -> None:
    slot = Slot(SLOTS[1].steps, initial=5, down=SLOTS[1].down)
    assert (slot.k, slot.average) == (5, 4.0)
    for _ in range(14):
        slot.update(5.0)
        assert slot.k == 5  # 10 steps of warm-up, then the fifth step decides
    slot.update(5.0)
    assert slot.average == pytest.approx(5 - 0.8**15)  # 4.965 > 5 - 0.5
    assert slot.k == 7
    ks = []
    for _ in range(15):
        slot.update(0.0)
        ks.append(slot.k)
    # 4.965 x .8^5 = 1.627 <= 4.25 and <= 2.25 but > 0.25: two values down at once.
    # x .8^5 = 0.533: above 0.25, not above 2.5: stays. x .8^5 = 0.175 <= 0.25: down to 1.
    assert ks == [7] * 4 + [3] * 5 + [3] * 5 + [1]


def test_sglang_slot_at_zero_probes_and_returns() -> None:
    slot = Slot(SLOTS[8].steps, initial=0)
    assert (slot.k, slot.average) == (0, -1.0)
    for _ in range(15):
        slot.update(0.0)
    assert (slot.k, slot.average) == (1, 0.0)  # probe; the average starts at K - 1
    for _ in range(5):
        slot.update(0.2)
    assert slot.average == pytest.approx(0.2 * (1 - 0.8**5))  # 0.134 <= 0.5: drafting is given up again
    assert slot.k == 0
    for _ in range(5):
        slot.update(0.0)
    assert slot.k == 1  # and tried again 5 steps later
    for _ in range(5):
        slot.update(1.0)
    assert slot.average == pytest.approx(1 - (1 - 0.134464) * 0.8**5, abs=1e-6)  # 0.716 > 1 - 0.5
    assert slot.k == 3


def test_sglang_slots_are_chosen_by_batch_size_and_kept_per_engine() -> None:
    policy = sglang_adaptive()(POOL, RNG)
    # static K = 5 is in the first slot only; the others start in the middle of their lists
    assert [step(policy, rows, 1.0) for rows in (1, 7, 8, 31, 32, 63, 64, 512)] == [5, 5, 1, 1, 1, 1, 0, 0]
    for _ in range(14):
        step(policy, 4, 1.0)
    assert step(policy, 4, 1.0) == 7  # with two steps above it is the slot's 17th
    assert step(policy, 4, 1.0, engine=1) == 5


def test_hf_moves_each_request_by_its_own_success_and_forgets_it() -> None:
    policy = hf_heuristic()(POOL, RNG)
    on = np.ones(1, dtype=np.bool_)

    def play(requests: list[int], kept: list[int], finished: list[bool]) -> list[int]:
        n = len(requests)
        zeros = np.zeros(n, np.intp)
        view = View(0, 0, 0.0, zeros, zeros, np.array(requests), np.zeros(n, dtype=np.bool_), on)
        k = policy.choose(view).k
        policy.observe(Outcome(view, zeros, k, np.array(kept), np.array(finished), 1.0, 0, 0))
        return [int(x) for x in k]

    assert play([9, 4], [5, 2], [False, False]) == [5, 5]
    assert play([4, 9, 6], [0, 7, 5], [False, False, False]) == [4, 7, 5]
    assert play([4, 9, 6], [0, 8, 7], [False, False, True]) == [3, 8, 7]  # 9 would be 9: held to the largest K
    assert play([4, 9, 6], [0, 7, 0], [False, False, False]) == [2, 8, 5]  # request 6 is a new one
    assert play([4, 9], [0, 6], [False, False]) == [1, 7]
    assert play([4, 9], [1, 6], [False, False]) == [1, 6]  # never below 1
    assert play([4, 9], [0, 0], [False, False]) == [3, 8]


def test_tensorrt_schedule_and_gate() -> None:
    policy = tensorrt(gate=GateConfig(3, 0.5))(POOL, RNG)
    assert policy.name == "tensorrt-gate"
    assert step(policy, 4, 1.0) == 4  # rate 1
    assert step(policy, 5, 0.5) == 2  # rate 1/2
    assert step(policy, 33, 0.0) == 0  # nothing drafted, nothing recorded
    assert step(policy, 8, 0.0) == 2  # rate 0: mean of three is 1/2, not below
    assert step(policy, 9, 0.0) == 1  # rate 0: mean of 1/2, 0, 0 is 1/6
    assert [step(policy, rows, 1.0) for rows in (1, 4, 8)] == [0, 0, 0]  # for good
    assert step(policy, 1, 1.0, engine=1) == 4  # on that engine


def test_the_gate_waits_for_a_full_window() -> None:
    gate = Gate(GateConfig(3, 0.3))
    assert [gate.record(r) for r in (0.1, 0.2, 0.5, 0.3, 0.0, 1.0)] == [True, True, False, False, False, False]


def test_vllm_table_covers_gaps_and_everything_above() -> None:
    policy = vllm_dynamic()(POOL, RNG)
    assert [step(policy, rows, 1.0) for rows in (1, 64, 65, 128, 129, 512, 600)] == [3, 3, 1, 1, 0, 0, 0]
    assert lookup([(1, 2, 8), (5, 6, 2)], 8).tolist() == [0, 8, 8, 8, 8, 2, 2, 2, 2]
    with pytest.raises(ValueError, match="must start at batch size 1"):
        lookup([(2, 4, 1)], 8)
    with pytest.raises(ValueError, match="ascend without overlap"):
        lookup([(1, 4, 1), (4, 8, 0)], 8)


def test_vllm_table_from_a_sweep_prefers_the_smaller_k_among_equals_and_merges() -> None:
    goodput = np.array([[1.0, 2.0, 2.0], [4.0, 5.0, 4.5], [9.0, 8.0, 7.0]])
    assert measured_table([1, 4, 16], [0, 2, 4], goodput) == [(1, 15, 2), (16, 16, 0)]
    with pytest.raises(ValueError, match=r"expected \(2, 3\)"):
        measured_table([1, 4], [0, 2, 4], goodput)
