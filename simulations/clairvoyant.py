"""What somebody would play who knows every curve and price: the best joint choice of a batch, by expected reward.

A choice gives every domain of the batch a draft and a K. With n rows by domain, its goodput is

    N / D,  N = sum_d n_d E_d(draft, K),  D = target(rows + sum_d n_d K_d) + sum_j passes_j max K on j + drafted tokens

where E is the mean over the domain's requests of 1 + survival(1) + ... + survival(K) (the mean of the survivals, not
the survival of the mean curve: requests differ), and target(.) is the roofline. Few domains: every choice is tried.
Many: given caps on K for one draft or two, and a price of a verified token (0 below the roofline's bend, its slope
above, something between at it), the maximisation of N - goodput * D falls apart by domain, inside Dinkelbach's
iteration (Dinkelbach 1967, On nonlinear fractional programming); from the best of these N / D climbs by one domain or
two at a time. That is exact but for rare batches at the roofline's bend, where it misses less than 1%.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from simulations.luck import Array
from simulations.policy import Bools, Ints
from simulations.timeline import Phase, Timeline

_LIMIT = 20_000  # choices that are tried one by one
_ROUNDS = 6
_PRICES = tuple(i / 8 for i in range(9))  # of a verified token, in slopes of the roofline
_PAIRED = 12  # domains up to which pairs are moved together
_BETTER = 1.0 + 1e-12


class Best(NamedTuple):
    """Draft and K of every domain [D] (NO_DRAFT, 0 where it has no rows), expected seconds and tokens/s."""

    draft: Ints
    k: Ints
    seconds: float
    goodput: float


class _Problem:
    """One composition in one phase: n [C] rows of the C domains that are there, and A arms."""

    def __init__(self, timeline: Timeline, phase: Phase, domains: Ints, n: Array) -> None:
        self.phase, self.n = phase, n
        self.arms = timeline.arms(phase)
        self.draft: Ints = np.array([j for j, _ in self.arms], dtype=np.intp)
        self.k: Ints = np.array([k for _, k in self.arms], dtype=np.intp)
        self.rows = float(n.sum())
        self.earned: Array = n[:, None] * phase.mean_tokens[domains][:, self.draft, self.k]  # [C, A]
        per_token = np.where(self.k > 0, phase.token_seconds[self.draft], 0.0)
        self.drafting: Array = n[:, None] * per_token * self.k
        self.verified: Array = n[:, None] * self.k
        # Depth of every arm on every draft [A, J]: what it asks of the drafting passes.
        self.depth: Array = np.where(self.draft[:, None] == np.arange(len(timeline.drafts)), self.k[:, None], 0.0)

    def seconds(self, verified: Array, drafting: Array, passing: Array) -> Array:
        p = self.phase
        return np.maximum(p.memory, p.per_token * (self.rows + verified)) + p.overhead + drafting + passing

    def values(self, choices: Ints) -> Array:
        """Goodput of choices [N, C] of arms."""
        at = np.arange(len(self.n))
        passing = self.depth[choices].max(axis=1) @ self.phase.pass_seconds
        earned, verified, drafting = (x[at, choices].sum(axis=1) for x in (self.earned, self.verified, self.drafting))
        return np.asarray(earned / self.seconds(verified, drafting, passing))

    def value(self, choice: Ints) -> tuple[float, float]:
        """(goodput, seconds) of a choice [C] of arms."""
        at = np.arange(len(self.n))
        passing = self.depth[choice].max(axis=0) @ self.phase.pass_seconds
        seconds = self.seconds(self.verified[at, choice].sum(), self.drafting[at, choice].sum(), passing)
        return float(self.earned[at, choice].sum() / seconds), float(seconds)


def enumerated(problem: _Problem) -> Ints:
    """The best choice [C], by trying all."""
    c, a = problem.earned.shape

    def spread(by_arm: Array) -> Array:
        """Sums over domains of a value by arm [C, A], for every choice."""
        total = np.zeros((1,) * c)
        for d in range(c):
            total = total + by_arm[d].reshape([a if i == d else 1 for i in range(c)])
        return total

    passing = np.zeros((1,) * c)
    for j, price in enumerate(problem.phase.pass_seconds.tolist()):
        if price:
            deepest = np.zeros((1,) * c)
            for d in range(c):
                deepest = np.maximum(deepest, problem.depth[:, j].reshape([a if i == d else 1 for i in range(c)]))
            passing = passing + price * deepest
    seconds = problem.seconds(spread(problem.verified), spread(problem.drafting), passing)
    value = spread(problem.earned) / seconds
    return np.array(np.unravel_index(int(value.argmax()), value.shape), dtype=np.intp)


def climbed(problem: _Problem) -> Ints:
    """A choice [C] that no domain can improve alone, from the best of several starts."""
    apart = problem.earned / problem.seconds(
        np.asarray(problem.k * problem.rows, dtype=np.float64),
        problem.drafting / problem.n[:, None] * problem.rows,
        problem.depth @ problem.phase.pass_seconds,
    )
    starts = [_separable(problem), apart.argmax(axis=1)]
    ends = [_ascend(problem, start) for start in starts]
    return max(ends, key=lambda choice: problem.value(choice)[0])


def _separable(problem: _Problem) -> Ints:
    """The best choice over all prices of a verified token, with at most two drafts, each with a cap on K."""
    usable = _caps(problem)[:, None, :]
    choice = np.zeros(len(problem.n), dtype=np.intp)
    ratio, _ = problem.value(choice)
    for _ in range(_ROUNDS):
        candidates = []
        for price in _PRICES:
            per_token = price * problem.phase.per_token
            net = problem.earned - ratio * (problem.drafting + per_token * problem.verified)
            candidates.append(np.where(usable, net, -np.inf).argmax(axis=2))
        every = np.concatenate(candidates)
        values = problem.values(every)
        best = int(values.argmax())
        if values[best] <= ratio * _BETTER:
            break
        choice, ratio = every[best], float(values[best])
    return choice


def _caps(problem: _Problem) -> Bools:
    """Which arms are within the caps [N, A]: every cap on every draft, alone and with every cap on a second one."""
    alone = [(problem.draft == j) & (problem.k <= k) for j, k in problem.arms[1:]]
    none = problem.k == 0
    pairs = [one | other for one, other in combinations(alone, 2)]
    return np.array([none, *(none | within for within in (*alone, *pairs))])


def _ascend(problem: _Problem, start: Ints) -> Ints:
    """Move one domain at a time, and two at once where no single move helps, until nothing does."""
    choice = start.copy()
    domains = range(len(choice))
    alone = [np.array([c]) for c in domains]
    pairs = [np.array(pair) for pair in combinations(domains, 2)] if len(choice) <= _PAIRED else []
    while any(_move(problem, choice, some) for some in alone) or any(_move(problem, choice, two) for two in pairs):
        pass
    return choice


def _move(problem: _Problem, choice: Ints, some: Ints) -> bool:
    """Bring one domain or two to their best arms, the others' given; in place. Whether that changed anything."""
    others = np.delete(np.arange(len(choice)), some)
    rest, p = choice[others], problem
    first, last = some[0], some[-1]
    if len(some) == 1:
        added = [array[first] for array in (p.earned, p.verified, p.drafting)]
        depth = p.depth
    else:
        added = [np.add.outer(array[first], array[last]).ravel() for array in (p.earned, p.verified, p.drafting)]
        depth = np.maximum(p.depth[:, None], p.depth).reshape(-1, p.depth.shape[1])
    earned, verified, drafting = (
        more + array[others, rest].sum() for more, array in zip(added, (p.earned, p.verified, p.drafting), strict=True)
    )
    passing = np.maximum(depth, p.depth[rest].max(axis=0, initial=0.0)) @ p.phase.pass_seconds
    value = earned / p.seconds(verified, drafting, passing)
    best, arms = int(value.argmax()), len(p.arms)
    present = choice[first] if len(some) == 1 else choice[first] * arms + choice[last]
    if value[best] <= value[present] * _BETTER:
        return False
    choice[some] = [best] if len(some) == 1 else divmod(best, arms)
    return True


class Clairvoyant:
    """Answers by composition and phase, each worked out once."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._known: dict[tuple[int, bytes], Best] = {}

    def best(self, phase: int, rows: Ints) -> Best:
        """The best choice for `rows` [D] of each domain in the phase of that index; at least one row."""
        key = (phase, rows.tobytes())
        best = self._known.get(key)
        if best is None:
            best = self._known[key] = self._work_out(self.timeline.phases[phase], rows)
        return best

    def _work_out(self, phase: Phase, rows: Ints) -> Best:
        domains = np.flatnonzero(rows)
        problem = _Problem(self.timeline, phase, domains, rows[domains].astype(np.float64))
        few = len(problem.arms) ** len(domains) <= _LIMIT
        choice = enumerated(problem) if few else climbed(problem)
        goodput, seconds = problem.value(choice)
        draft = np.full(len(rows), -1, dtype=np.intp)
        k = np.zeros(len(rows), dtype=np.intp)
        draft[domains], k[domains] = problem.draft[choice], problem.k[choice]
        return Best(draft, k, seconds, goodput)
