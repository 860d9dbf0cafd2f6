"""TurboSpec (SmartSpec): K with the largest predicted goodput, from an acceptance rate and a linear model of step time.

Source: Liu et al. 2024, TurboSpec: Closed-loop Speculation Control System for Optimizing LLM Serving Goodput
(arXiv:2406.14066: goodput = generated tokens / execution time; expected tokens of a request (1 - a^(k+1)) / (1 - a);
step time linear in KV tokens and batched tokens; k chosen before every step) and the authors' code,
LiuXiaoxuanPKU/vllm, `vllm/v1/spec_decode/auto_tuner.py` (acceptance starts at 0.8 and is averaged over 10,000 steps;
time also has a term for the batch size and one for speculation being on; 200 steps between refreshes). The paper fits
the time offline; here it is fitted to served steps, after every K was played twice.
"""

import numpy as np
from numpy.typing import NDArray

from simulations.policy import Ints, Maker, Outcome, PoolFacts, View
from simulations.rivals.one_draft import OneDraft

Real = NDArray[np.float64]
ACCEPTANCE = 0.8
WINDOW = 10_000
REFRESH = 200
PROFILE = 2  # steps at each K before the first prediction
FEATURES = 6
RIDGE = 1e-9  # of the largest diagonal element: only decides between fits that explain the steps equally well


def expected_tokens(acceptance: float, k: Ints | int) -> Real:
    """Tokens a request gains in a step, (1 - a^(k+1)) / (1 - a): TurboSpec's expected length; k + 1 at a = 1.

    >>> expected_tokens(0.5, np.array([0, 1, 2])).tolist(), float(expected_tokens(1.0, 3))
    ([1.0, 1.5, 1.75], 4.0)
    """
    depth = np.asarray(k, dtype=np.float64) + 1
    return np.asarray(depth if acceptance >= 1 else (1 - acceptance**depth) / (1 - acceptance))


def features(kv: float, tokens: Ints | float, rows: float, passes: Ints | float) -> Real:
    """What step time is linear in, [..., FEATURES]: KV tokens, batched tokens, rows, speculation on, passes, 1."""
    t, p = np.broadcast_arrays(np.asarray(tokens, dtype=np.float64), np.asarray(passes, dtype=np.float64))
    one = np.ones_like(t)
    return np.stack([kv * one, t, rows * one, (p > 0) * one, p, one], axis=-1)


class Profile:
    """Least squares on relative errors: steps of 1 and of 512 rows count alike, and a pause hardly counts."""

    def __init__(self) -> None:
        self.gram = np.zeros((FEATURES, FEATURES))
        self.moment = np.zeros(FEATURES)

    def add(self, x: Real, seconds: float) -> None:
        """Take in a step, x [FEATURES]."""
        scaled = x / seconds
        self.gram += np.outer(scaled, scaled)
        self.moment += scaled

    def seconds(self, x: Real) -> Real:
        """Predicted seconds, [...], for x [..., FEATURES]; positive. Features are scaled alike before the ridge."""
        scale = np.sqrt(np.maximum(np.diag(self.gram), 1e-300))
        gram = self.gram / np.outer(scale, scale)
        weights = np.linalg.solve(gram + RIDGE * np.eye(FEATURES), self.moment / scale) / scale
        return np.asarray(np.maximum(x @ weights, 1e-9))


class Engine:
    """What one engine knows: its acceptance, its step times, and how many steps it has seen."""

    def __init__(self) -> None:
        self.acceptance = ACCEPTANCE
        self.samples = 0
        self.steps = 0
        self.kv = 0.0
        self.profile = Profile()

    def accept(self, rate: float) -> None:
        """Mean of the rates so far; of about the last WINDOW steps once there are as many."""
        self.samples = min(self.samples + 1, WINDOW)
        self.acceptance += (rate - self.acceptance) / self.samples


class TurboSpec(OneDraft):
    """One K for the batch, before every step."""

    def __init__(self, pool: PoolFacts, draft: int | None) -> None:
        super().__init__("turbospec", pool, draft)
        self.engines: dict[int, Engine] = {}

    def length(self, view: View, drafting: int) -> int:
        """The K of the largest predicted goodput; first every K in turn."""
        rungs, rows = self.rungs, len(view.domain)
        engine = self.engines.setdefault(view.engine, Engine())
        if engine.steps < PROFILE * len(rungs):
            return int(rungs[engine.steps % len(rungs)])
        tokens = drafting * expected_tokens(engine.acceptance, rungs) + (rows - drafting)
        passes = rungs if drafting else np.zeros_like(rungs)
        seconds = engine.profile.seconds(features(engine.kv, rows + drafting * rungs, rows, passes))
        k = int(rungs[np.argmax(tokens / seconds)])
        stale = k == 0 and len(rungs) > 1 and engine.steps % REFRESH == 0
        return int(rungs[1]) if stale else k

    def observe(self, outcome: Outcome) -> None:
        """The step's time, and the share of examined drafts that were accepted."""
        rows, k, accepted = len(outcome.k), outcome.k, outcome.accepted
        engine = self.engines.setdefault(outcome.view.engine, Engine())
        if not rows:
            return
        engine.steps += 1
        engine.kv = float(outcome.kv)
        batched = float(rows + k.sum() + outcome.prefill)
        engine.profile.add(features(engine.kv, batched, rows, float(k.max())), max(outcome.seconds, 1e-9))
        drafted = k > 0
        if drafted.any():
            examined = accepted[drafted] + (accepted[drafted] < k[drafted])
            engine.accept(float(accepted[drafted].sum() / examined.sum()))


def turbospec(draft: int | None = None) -> Maker:
    """One configured draft."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> TurboSpec:
        return TurboSpec(pool, draft)

    return make
