"""TensorRT-LLM: a schedule from batch size to draft length, and a gate that turns speculation off for good.

Source: NVIDIA/TensorRT-LLM main, `tensorrt_llm/llmapi/llm_args.py` (`draft_len_schedule`: a key is the largest batch
size its length is used for, above the last key 0; the example is the documented one) and
`tensorrt_llm/_torch/speculative/speculation_gate.py` with `_update_batch_acceptance_rate` of `py_executor.py` (accepted
drafts / drafted tokens of a step, mean over the last N steps that drafted; below the threshold speculation never comes
back). Both are off unless configured. Neither has a default, so the gate's numbers are those of NVIDIA's own test
configurations (window 8, threshold 0.5).
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from simulations.policy import Maker, Outcome, PoolFacts, View
from simulations.rivals.one_draft import OneDraft

SCHEDULE: Mapping[int, int] = {4: 4, 8: 2, 32: 1}


class GateConfig(NamedTuple):
    """`window`: steps that are averaged. `threshold`: share of drafted tokens that must be accepted, 0..1."""

    window: int
    threshold: float


GATE = GateConfig(8, 0.5)


def scheduled(schedule: Mapping[int, int], rows: int) -> int:
    """Draft length for a batch: that of the smallest key that is at least `rows`, 0 above the last.

    >>> [scheduled(SCHEDULE, rows) for rows in (1, 4, 5, 8, 9, 32, 33)]
    [4, 4, 2, 2, 1, 1, 0]
    """
    return next((length for key, length in sorted(schedule.items()) if rows <= key), 0)


class Gate:
    """Open until the mean of the last `window` acceptance rates falls below `threshold`; then shut for ever.

    >>> gate = Gate(GateConfig(2, 0.5))
    >>> [gate.record(rate) for rate in (0.1, 0.9, 0.05, 1.0)]
    [True, True, False, False]
    """

    def __init__(self, config: GateConfig) -> None:
        self.threshold = config.threshold
        self.rates: deque[float] = deque(maxlen=config.window)
        self.open = True

    def record(self, rate: float) -> bool:
        """Take in one step's acceptance rate, 0..1; says whether speculation may go on."""
        if self.open:
            self.rates.append(rate)
            full = len(self.rates) == self.rates.maxlen
            self.open = not (full and sum(self.rates) / len(self.rates) < self.threshold)
        return self.open


class TensorRt(OneDraft):
    """The schedule, with or without the gate; every engine has its own gate."""

    def __init__(
        self, name: str, pool: PoolFacts, draft: int | None, schedule: Mapping[int, int], gate: GateConfig | None
    ) -> None:
        super().__init__(name, pool, draft)
        self.schedule, self.config = schedule, gate
        self.gates: dict[int, Gate] = {}

    def length(self, view: View, drafting: int) -> int:
        """The schedule's length, or 0 once the engine's gate has shut."""
        gate = self.gates.get(view.engine)
        return 0 if gate is not None and not gate.open else scheduled(self.schedule, len(view.domain))

    def observe(self, outcome: Outcome) -> None:
        """The step's acceptance rate, if it drafted."""
        drafted = int(outcome.k.sum())
        if self.config is None or not drafted:
            return
        gate = self.gates.setdefault(outcome.view.engine, Gate(self.config))
        gate.record(float(outcome.accepted[outcome.k > 0].sum()) / drafted)


def tensorrt(draft: int | None = None, schedule: Mapping[int, int] = SCHEDULE, gate: GateConfig | None = None) -> Maker:
    """One configured draft; named `tensorrt-gate` with a gate, which is a one-way switch and so a yardstick."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> TensorRt:
        return TensorRt("tensorrt" if gate is None else "tensorrt-gate", pool, draft, schedule, gate)

    return make
