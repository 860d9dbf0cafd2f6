"""A policy made ready for one engine: checked, narrowed to its drafts and K values, indexed for look-up in a step."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from engine.link.messages import NO_DRAFT, OTHER, DraftChoice, Policy, PolicyCell

SUM_TOLERANCE = 1e-3  # probabilities pass through JSON and may be rounded by who wrote them
PRIOR_STRENGTH = 20.0  # Beta counts that the domain's curve is worth against a request's own steps


class Choice:
    """One draft of one cell. `ks` ascending with cumulative probabilities `reach`; `best_k` is the most probable K.

    `priced` holds (K, step seconds) for K the engine can run and whose positions have a posterior; `alpha`, `beta` are
    the posterior with its strength capped. `prior_k` maximises expected tokens per second before any own evidence.
    """

    __slots__ = ("alpha", "best_k", "beta", "draft", "ks", "p", "priced", "prior_k", "probability", "reach")

    def __init__(self, choice: DraftChoice, p: float, prepared: Sequence[int], max_k: int) -> None:
        self.draft = choice.draft
        self.p = p
        self.probability: dict[int, float] = {}
        for k, share in choice.k:
            self.probability[_held(k, prepared, max_k)] = self.probability.get(_held(k, prepared, max_k), 0.0) + share
        total = sum(self.probability.values())
        self.ks = sorted(self.probability)
        self.probability = {k: self.probability[k] / total for k in self.ks}
        self.reach = list(accumulate(self.probability.values()))
        self.best_k = max(self.ks, key=lambda k: (self.probability[k], -k))
        self.alpha, self.beta = _capped(choice.alpha, choice.beta)
        self.priced = [
            (k, seconds)
            for k, seconds in sorted(choice.seconds)
            if k in prepared and k <= min(max_k, len(self.alpha)) and seconds > 0
        ]
        self.prior_k = best_k(values(self, (), ())) if self.priced else self.best_k

    def at(self, u: float) -> int:
        """K at quantile u in [0, 1), arms ordered by K."""
        return self.ks[min(bisect_right(self.reach, u), len(self.ks) - 1)]


def values(choice: Choice, accepted: Sequence[float], missed: Sequence[float]) -> list[tuple[int, float]]:
    """(K, expected tokens per second) for each priced K, the posterior sharpened by own counts per position.

    Tokens of a step with K draft tokens: 1 + sum over i <= K of survival(i), survival being the running product of
    (alpha + accepted) / (alpha + beta + accepted + missed).
    """
    result: list[tuple[int, float]] = []
    tokens, survival, position = 1.0, 1.0, 0
    alpha, beta = choice.alpha, choice.beta
    for k, seconds in choice.priced:
        while position < k:
            hit, miss = alpha[position], beta[position]
            if position < len(accepted):
                hit += accepted[position]
                miss += missed[position]
            survival *= hit / (hit + miss)
            tokens += survival
            position += 1
        result.append((k, tokens / seconds))
    return result


def best_k(priced: Iterable[tuple[int, float]]) -> int:
    """The K of highest value, the smallest among equals."""
    return max(priced, key=lambda pair: (pair[1], -pair[0]))[0]


class Cell:
    """The answer for one (domain, regime, load bucket), drafts that this engine lacks left out."""

    __slots__ = ("_ordered", "best", "choices", "nonadaptive", "quantile", "reach")

    def __init__(self, cell: PolicyCell, choices: list[Choice]) -> None:
        self._ordered = choices
        self.choices = {c.draft: c for c in choices}
        self.reach = list(accumulate(c.p for c in choices))
        self.best = max(choices, key=lambda c: c.p * c.probability[c.best_k])
        self.nonadaptive = cell.nonadaptive
        self.quantile = cell.draw

    def arm(self, u: float) -> tuple[Choice, int]:
        """Draft and K at quantile u in [0, 1) of the cell's arms, ordered by draft, then K.

        The rest of u within the draft's share, scaled to [0, 1), is the quantile of K: one uniform draws both.
        """
        at = self._at(u)
        choice = self._ordered[at]
        low = self.reach[at] - choice.p
        return choice, choice.at(min(max((u - low) / choice.p, 0.0), 1.0) if choice.p > 0 else u)

    def draw(self, u: float) -> Choice:
        """The draft at quantile u in [0, 1), or at the cell's own quantile where the version holds one for all."""
        return self._ordered[self._at(u if self.quantile is None else self.quantile)]

    def _at(self, u: float) -> int:
        """Place of the draft at quantile u."""
        at = min(bisect_right(self.reach, u), len(self._ordered) - 1)
        # A quantile of 1, or what rounding left above the last share, must not fall on a draft that has none.
        while at and self._ordered[at].p <= 0:
            at -= 1
        return at


class Table:
    """A policy as one engine can obey it.

    `drafts` maps each loaded draft to its largest K; `k_values` are the K the engine has prepared. A K that it has not
    is replaced by the next smaller one; a draft that it has not is left out and the others' shares are scaled up.
    Raises `ValueError` naming the cell when the policy contradicts itself. `narrowed`: what of it this engine cannot
    carry out, a clause each.
    """

    def __init__(self, policy: Policy, drafts: Mapping[str, int], k_values: Iterable[int]) -> None:
        self.policy = policy
        prepared = sorted({0, *k_values})
        limits = {**drafts, NO_DRAFT: 0}
        self.narrowed = _narrowed(policy.cells, limits, prepared)
        self._cells: dict[tuple[str, str], list[tuple[int, Cell]]] = {}
        for cell in policy.cells:
            _check(cell)
            loaded = [c for c in cell.drafts if c.draft in limits]
            share = sum(c.p for c in loaded)
            if share <= 0:
                continue
            choices = [Choice(c, c.p / share, prepared, limits[c.draft]) for c in loaded]
            self._cells.setdefault((cell.domain, cell.regime), []).append((cell.load, Cell(cell, choices)))
        for cells in self._cells.values():
            cells.sort(key=lambda pair: pair[0])

    def cell(self, domain: str, regime: str, load: int) -> Cell | None:
        """The domain's cell at this load bucket or the nearest lower one that has one; else that of domain `other`."""
        for name in (domain, OTHER):
            found = None
            for bucket, cell in self._cells.get((name, regime), ()):
                if bucket > load:
                    break
                found = cell
            if found is not None:
                return found
        return None

    def choice(self, domain: str, regime: str, load: int, draft: str) -> tuple[Cell, Choice] | None:
        """The same for a request whose draft is given: the first of those cells that knows the draft."""
        for name in (domain, OTHER):
            cell = self.cell(name, regime, load)
            if cell is not None and draft in cell.choices:
                return cell, cell.choices[draft]
        return None


def _narrowed(cells: Iterable[PolicyCell], limits: Mapping[str, int], prepared: Sequence[int]) -> list[str]:
    """What cells ask for that an engine has not, in words.

    >>> from engine.link.messages import DraftChoice
    >>> asked = [DraftChoice("a", 0.5, [(6, 0.5), (4, 0.5)]), DraftChoice("b", 0.5, [(2, 1.0)])]
    >>> _narrowed([PolicyCell("code", "greedy", 1, asked)], {"a": 8}, [0, 2, 4])
    ["draft 'b' is not loaded here and left out", "for K = 6 of 'a' this engine runs 4"]
    """
    absent: set[str] = set()
    replaced: dict[tuple[str, int], int] = {}
    for cell in cells:
        for choice in cell.drafts:
            if choice.p <= 0:
                continue
            if choice.draft not in limits:
                absent.add(choice.draft)
                continue
            for k, share in choice.k:
                held = _held(k, prepared, limits[choice.draft])
                if share > 0 and held != k:
                    replaced[choice.draft, k] = held
    said = [f"draft {draft!r} is not loaded here and left out" for draft in sorted(absent)]
    return said + [f"for K = {k} of {draft!r} this engine runs {held}" for (draft, k), held in sorted(replaced.items())]


def _held(k: int, prepared: Sequence[int], max_k: int) -> int:
    return prepared[bisect_right(prepared, min(k, max_k)) - 1]


def _capped(alpha: Sequence[float], beta: Sequence[float]) -> tuple[list[float], list[float]]:
    scales = [min(1.0, PRIOR_STRENGTH / (a + b)) for a, b in zip(alpha, beta, strict=True)]
    return [a * s for a, s in zip(alpha, scales, strict=True)], [b * s for b, s in zip(beta, scales, strict=True)]


def _check(cell: PolicyCell) -> None:
    name = f"policy cell {cell.domain}/{cell.regime} at load {cell.load}"
    if not cell.drafts or abs(sum(c.p for c in cell.drafts) - 1) > SUM_TOLERANCE:
        raise ValueError(f"{name}: probabilities of the drafts sum to {sum(c.p for c in cell.drafts):g}, needed is 1")
    if len({c.draft for c in cell.drafts}) < len(cell.drafts):
        raise ValueError(f"{name}: a draft is named twice in {[c.draft for c in cell.drafts]}")
    for choice in cell.drafts:
        if not choice.k or abs(sum(p for _, p in choice.k) - 1) > SUM_TOLERANCE:
            total = sum(p for _, p in choice.k)
            raise ValueError(f"{name}: probabilities of K for {choice.draft!r} sum to {total:g}, needed is 1")
        if len(choice.alpha) != len(choice.beta):
            raise ValueError(
                f"{name}: {choice.draft!r} has {len(choice.alpha)} alpha and {len(choice.beta)} beta; needed: as many"
            )
        if any(not 0 < value < float("inf") for value in (*choice.alpha, *choice.beta)):
            raise ValueError(f"{name}: alpha and beta of {choice.draft!r} are to be positive and finite")
