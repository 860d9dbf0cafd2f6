"""What smaller K would have brought on recorded steps: tokens from the recorded text, prices from the recorded seconds.

A step drafted at K with n tokens accepted would have accepted exactly min(n, K') at K' <= K: the first K' draft tokens
and their judgement are the same. Its *next* step starts elsewhere, though, so a request is walked anew over its text.
Lossless decoding gives the same text whatever K is (greedy), or text of the same distribution (sampled). Along it every
recorded step says of each token whether the draft agreed: n ones, a zero where it was rejected, and nothing about the
token that the target added after a full acceptance. A walk at K' reads these: leading ones from where it is, up to K'.

* Exact where the draft's guess depends on the text alone (a draft model without sampling). Under lossless sampling too:
  given the text, agreement at a token has probability min(1, q / p), wherever the step began.
* Unknown tokens count as agreed with the acceptance seen at position K, the last of a row of accepted ones.
* Biased where a guess gets worse with its distance from the step's beginning (EAGLE-style heads, n-gram matches): the
  walk reads agreement from deep inside a recorded step at places where a step at K' would begin anew. Then smaller K is
  undervalued. `checks` measures this on requests that really ran at K'.

Prices are means of recorded seconds by (draft, batch, K), over steps without prompt tokens and without clamped rows,
whose rows all had one draft and K; between recorded K they are interpolated. Intervals: bootstrap over prompts (else
requests), 95%.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.link.messages import NO_DRAFT
from simulations.luck import Array
from simulations.recording import Recording, RecordingError

Group = tuple[str, str, str]  # domain, regime, draft
ALL = "all"


class Estimate(NamedTuple):
    """A number with its 95% bootstrap interval."""

    value: float
    low: float
    high: float


class Replayed(NamedTuple):
    """A draft at K in one domain: `tokens` of a step, tokens per row-second, and that over plain and recorded K.

    `real`: the K that was recorded, nothing about it is counterfactual.
    """

    domain: str
    regime: str
    draft: str
    k: int
    requests: int
    tokens: float
    goodput: float
    over_plain: Estimate
    over_recorded: Estimate
    real: bool


class Check(NamedTuple):
    """Predicted / observed at a K that other requests really ran at, held out of the prediction with their seconds."""

    domain: str
    regime: str
    draft: str
    k: int
    requests: int
    tokens: Estimate
    goodput: Estimate | None


def expected_steps(agreement: Array, length: NDArray[np.int64], k: int) -> Array:
    """Expected steps [R] at K = k over texts of `length` [R] tokens, given P(the draft agrees with token t) [R, T].

    Backwards: V(t) = 1 + sum_{i<k} (a_t ... a_{t+i-1}) (1 - a_{t+i}) V(t + i + 1) + (a_t ... a_{t+k-1}) V(t + k + 1).

    >>> text = np.array([[1.0, 1.0, 1.0, 0.0, 1.0, 1.0]])
    >>> [expected_steps(text, np.array([6]), k).tolist() for k in (0, 1, 3)]  # 6 x 1; 2 + 2 + 2; 4 + 2
    [[6.0], [3.0], [2.0]]
    """
    rows, size = agreement.shape
    left = np.zeros((rows, size + k + 2))
    agreement = np.concatenate([agreement, np.zeros((rows, k + 1))], axis=1)
    for t in range(size - 1, -1, -1):
        alive, after = np.ones(rows), np.zeros(rows)
        for i in range(k):
            agreed = alive * agreement[:, t + i]
            after += (alive - agreed) * left[:, t + i + 1]
            alive = agreed
        left[:, t] = np.where(t < length, 1.0 + after + alive * left[:, t + k + 1], 0.0)
    return left[:, 0]


class _Walks(NamedTuple):
    """Requests of a group that ran at one K: prompt, tokens, steps [R], agreement [R, T], share of batch sizes [R]."""

    prompt: NDArray[np.int64]
    length: NDArray[np.int64]
    agreement: Array
    steps: NDArray[np.int64]
    batches: dict[int, Array]


class Replay:
    """A recording ready to be asked. `draws`: bootstrap resamples, drawn with `rng`. Raises `RecordingError`."""

    def __init__(self, recording: Recording, rng: np.random.Generator, draws: int = 1000) -> None:
        self.recording = recording
        prompts, self._prompt = np.unique(recording.prompt, return_inverse=True)
        luck = rng.multinomial(len(prompts), np.full(len(prompts), 1.0 / len(prompts)), size=draws)
        # The first "resample" is the sample itself.
        self._weights: Array = np.concatenate([np.ones((1, len(prompts))), luck])
        self._seconds = self._cells()
        self._runs = self._by_run()
        if not self._runs:
            raise RecordingError("no request was drafted for at one K throughout; nothing can be replayed")

    def results(self) -> list[Replayed]:
        """Every group at every K up to the largest that was recorded, then all domains together; K without a price are
        left out."""
        found = []
        for draft, groups in self._drafts().items():
            for parts in (*([group] for group in groups), *([groups] if len(groups) > 1 else [])):
                found += self._replayed(draft, parts)
        return found

    def checks(self) -> list[Check]:
        """Every smaller K that requests of a group really ran at, against its prediction from the largest one."""
        found = []
        for group in self._runs:
            ran = self._runs[group]
            k_max = max(ran)
            for k in sorted(ran)[:-1]:
                real, walks = ran[k], ran[k_max]
                tokens = _ratio(self._sum(real, real.length), self._sum(real, real.steps))
                guess = _ratio(self._sum(walks, walks.length), self._sum(walks, self._steps(walks, k)))
                seconds = self._cost(walks, group[2], k, without=k)
                paid = self._cost(real, group[2], k, steps=real.steps)
                goodput = None
                if seconds is not None and paid is not None:
                    predicted = _ratio(self._sum(walks, walks.length), seconds)
                    goodput = _estimate(_ratio(predicted, _ratio(self._sum(real, real.length), paid)))
                found.append(Check(*group, k, len(real.length), _estimate(_ratio(guess, tokens)), goodput))
        return found

    def _drafts(self) -> dict[str, list[Group]]:
        drafts: dict[str, list[Group]] = {}
        for group in self._runs:
            drafts.setdefault(group[2], []).append(group)
        return drafts

    def _replayed(self, draft: str, groups: list[Group]) -> list[Replayed]:
        k_max = min(max(self._runs[group]) for group in groups)
        walks = [self._runs[group][k_max] for group in groups if k_max in self._runs[group]]
        if len(walks) < len(groups):
            return []  # domains that were recorded at different K have no common row
        tokens = np.sum([self._sum(w, w.length) for w in walks], axis=0)
        goodput: dict[int, Array] = {}
        steps: dict[int, Array] = {}
        for k in range(k_max + 1):
            costs = [self._cost(w, draft, k) for w in walks]
            priced = [cost for cost in costs if cost is not None]
            if len(priced) == len(costs):
                goodput[k] = _ratio(tokens, np.sum(priced, axis=0))
                steps[k] = np.sum([self._sum(w, self._steps(w, k)) for w in walks], axis=0)
        domains, regimes = {group[0] for group in groups}, {group[1] for group in groups}
        domain = domains.pop() if len(domains) == 1 else ALL
        regime = regimes.pop() if len(regimes) == 1 else ALL
        nothing = np.full(len(self._weights), np.nan)
        return [
            Replayed(
                domain,
                regime,
                draft,
                k,
                sum(len(w.length) for w in walks),
                float(tokens[0] / steps[k][0]),
                float(rate[0]),
                _estimate(_ratio(rate, goodput.get(0, nothing))),
                _estimate(_ratio(rate, goodput.get(k_max, nothing))),
                k == k_max,
            )
            for k, rate in goodput.items()
        ]

    def _sum(self, walks: _Walks, values: Array | NDArray[np.int64]) -> Array:
        """Sum over requests of a value of each [R], in every resample [B]."""
        return np.asarray(self._weights @ np.bincount(walks.prompt, values, minlength=self._weights.shape[1]))

    def _steps(self, walks: _Walks, k: int) -> Array:
        return expected_steps(walks.agreement, walks.length, k)

    def _cost(
        self,
        walks: _Walks,
        draft: str,
        k: int,
        *,
        steps: NDArray[np.int64] | None = None,
        without: int | None = None,
    ) -> Array | None:
        """Row-seconds [B] of all requests at K; None where no batch size has a price."""
        prices = {b: price for b in walks.batches if (price := self._price(draft, b, k, without)) is not None}
        if not prices:
            return None
        needed = self._steps(walks, k) if steps is None else steps
        priced = np.sum([walks.batches[b] for b in prices], axis=0)
        known = priced > 0
        total = np.zeros(len(self._weights))
        for b, price in prices.items():
            # A request that never ran at a priced batch size is charged like the others on average.
            share = np.where(known, walks.batches[b] / np.where(known, priced, 1.0), 0.0)
            share = np.where(known, share, share[known].mean() if known.any() else 0.0)
            total += self._sum(walks, needed * share) * price
        return total

    def _price(self, draft: str, batch: int, k: int, without: int | None) -> Array | None:
        """Seconds [B] of a step; between recorded K on a straight line."""
        cells = {0: self._seconds.get((NO_DRAFT, batch, 0))}
        cells.update({q: v for (name, b, q), v in self._seconds.items() if name == draft and b == batch})
        found = {q: v for q, v in cells.items() if v is not None and q != without}
        if k in found:
            return found[k]
        below, above = [q for q in found if q < k], [q for q in found if q > k]
        if not below or not above:
            return None
        low, high = max(below), min(above)
        part = (k - low) / (high - low)
        return (1.0 - part) * found[low] + part * found[high]

    def _cells(self) -> dict[tuple[str, int, int], Array]:
        """Mean seconds in every resample [B] by (draft, batch, K) of steps with one draft and K, and no prompt."""
        r = self.recording
        _, step = np.unique(r.step, return_inverse=True)
        top = np.zeros(step.max() + 1, dtype=np.int64)
        np.maximum.at(top, step, r.drafted)
        names, number = np.unique(np.where(top[step] == 0, NO_DRAFT, r.draft), return_inverse=True)
        low, high = np.full(len(top), len(names)), np.full(len(top), -1)
        np.minimum.at(low, step, number)
        np.maximum.at(high, step, number)
        odd = np.zeros(len(top), dtype=bool)
        np.logical_or.at(odd, step, (r.drafted < top[step]) | r.limited | (r.prefill > 0))
        pure = ((low == high) & ~odd)[step]
        prompts, cells = self._weights.shape[1], {}
        for key in np.unique(np.stack([number, r.batch, top[step]])[:, pure], axis=1).T.tolist():
            rows = pure & (number == key[0]) & (r.batch == key[1]) & (top[step] == key[2])
            count = self._weights @ np.bincount(self._prompt[rows], minlength=prompts)
            seconds = self._weights @ np.bincount(self._prompt[rows], r.seconds[rows], minlength=prompts)
            # A resample without such a step keeps the sample's price.
            mean = np.where(count > 0, seconds / np.maximum(count, 1.0), seconds[0] / count[0])
            cells[str(names[key[0]]), key[1], key[2]] = mean
        return cells

    def _by_run(self) -> dict[Group, dict[int, _Walks]]:
        """Requests by group and by the one K that all their unclamped steps had."""
        r = self.recording
        starts = np.flatnonzero(np.concatenate([[True], np.diff(r.request) != 0]))
        ends = np.append(starts[1:], len(r))
        found: dict[Group, dict[int, list[slice]]] = {}
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            rows = slice(start, end)
            free = r.drafted[rows][~r.limited[rows]]
            if r.draft[start] != NO_DRAFT and len(free) and free[0] > 0 and (free == free[0]).all():
                group = (str(r.domain[start]), str(r.regime[start]), str(r.draft[start]))
                found.setdefault(group, {}).setdefault(int(free[0]), []).append(rows)
        return {g: {k: self._walks(k, runs) for k, runs in by_k.items()} for g, by_k in sorted(found.items())}

    def _walks(self, k: int, runs: list[slice]) -> _Walks:
        r = self.recording
        length = np.array([r.emitted[rows].sum() for rows in runs])
        unknown = _last_acceptance(k, np.concatenate([r.seen[rows] for rows in runs]), runs, r)
        agreement = np.zeros((len(runs), int(length.max())))
        batches: dict[int, Array] = {}
        for at, rows in enumerate(runs):
            agreement[at] = _agreed(r, rows, unknown, agreement.shape[1])
            sizes, counts = np.unique(r.batch[rows], return_counts=True)
            for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
                batches.setdefault(size, np.zeros(len(runs)))[at] = count / counts.sum()
        steps = np.array([rows.stop - rows.start for rows in runs])
        prompt = np.array([self._prompt[rows.start] for rows in runs])
        return _Walks(prompt, length, agreement, steps, batches)


def _agreed(r: Recording, rows: slice, unknown: float, size: int) -> Array:
    """P(the draft agrees) of every token of a request: 1, 0, or `unknown` where no step judged it."""
    agreed = np.zeros(size)
    total = int(r.emitted[rows].sum())
    for t, n, seen in zip(r.position[rows].tolist(), r.accepted[rows].tolist(), r.seen[rows].tolist(), strict=True):
        agreed[t : t + n] = 1.0
        if seen == n and t + n < total:
            agreed[t + n] = unknown
    return agreed


def _last_acceptance(k: int, seen: NDArray[np.int64], runs: list[slice], r: Recording) -> float:
    """Acceptance at position K given that all before were kept, over all rows that judged it; .5 where none did."""
    accepted = np.concatenate([r.accepted[rows] for rows in runs])
    judged = int((seen >= k).sum())
    return float((accepted >= k).sum() / judged) if judged else 0.5


def _ratio(over: Array, under: Array) -> Array:
    """Quotients [B]; nan where a resample has no request of the kind."""
    return np.asarray(np.divide(over, under, out=np.full(len(over), np.nan), where=under > 0))


def _estimate(values: Array) -> Estimate:
    """The first value, and the 2.5% and 97.5% quantiles of the others."""
    drawn = values[1:][np.isfinite(values[1:])]
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    return Estimate(float(values[0]), float(low), float(high))
