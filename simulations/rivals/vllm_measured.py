"""vLLM's table in the best form that an operator could give it: measured on this very scenario before it is served.

An operator who sweeps every draft, K and batch size on representative traffic can have this table, so it is a rival,
and one that does not learn; here it is handed the scenario's averages, events to come included, without measuring
errors. vLLM runs one draft, so the sweep also picks that: the one whose table gains most over plain decoding at the
batch sizes that occur.
"""

from typing import NamedTuple

import numpy as np

from simulations.luck import Array
from simulations.policy import Ints, Maker, Policy, PoolFacts
from simulations.rivals.one_draft import ladder
from simulations.rivals.vllm_dynamic import Table, measured_table, vllm_dynamic
from simulations.timeline import Phase, Timeline

MEASURED = "vllm-dynamic (measured)"


class Sweep(NamedTuple):
    """One draft at every batch size that occurs [B] and every K it can run [K], summed over the scenario's steps.

    `tokens` and `seconds` [B, K]; `usual` [B, K]: tokens that plain decoding would give in those seconds.
    """

    batches: Ints
    ks: Ints
    tokens: Array
    seconds: Array
    usual: Array


def tokens_per_row(weights: Array, tokens: Array) -> Array:
    """Mean tokens of a row and step in traffic that keeps to one K, [...]: the harmonic mean over kinds of requests.

    `weights` [N]: tokens that each kind asks for in all; `tokens` [N, ...]: what it gets in a step. Kinds that get more
    are sooner done, and so have fewer rows in the batch than their weight.

    >>> tokens_per_row(np.array([3.0, 1.0]), np.array([[1.0, 3.0], [1.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    return np.asarray(weights.sum() / np.tensordot(weights, 1 / tokens, axes=1))


def swept(timeline: Timeline, draft: int) -> Sweep:
    """What an offline sweep of one draft on this scenario would show, free of luck and noise."""
    ks = ladder(timeline.facts, draft)
    batches = np.unique(timeline.rows)
    steps = np.arange(len(timeline.rows))
    phase_of = np.searchsorted(timeline.begins, steps, side="right") - 1
    totals = np.zeros((3, len(batches), len(ks)))
    for index, phase in enumerate(timeline.phases):
        there = np.bincount(np.searchsorted(batches, timeline.rows[phase_of == index]), minlength=len(batches))
        gained = _gained(timeline, phase, draft)[ks]
        for b in np.flatnonzero(there).tolist():
            rows = int(batches[b])
            seconds = np.array([_seconds(phase, rows, draft, k) for k in ks.tolist()])
            one = np.stack([rows * gained, seconds, rows * seconds / phase.plain(rows)])
            totals[:, b] += there[b] * one
    return Sweep(batches, ks, *totals)


def best_table(timeline: Timeline) -> tuple[int, Table]:
    """(draft, its table) of the largest gain over plain decoding; the first draft among equals."""
    best: tuple[float, int, Table] | None = None
    for draft in range(len(timeline.drafts)):
        sweep = swept(timeline, draft)
        goodput = sweep.tokens / sweep.seconds
        at = np.arange(len(sweep.batches)), goodput.argmax(axis=1)
        gain = float(sweep.tokens[at].sum() / sweep.usual[at].sum())
        if best is None or gain > best[0]:
            best = gain, draft, measured_table(sweep.batches.tolist(), sweep.ks.tolist(), goodput)
    assert best is not None, "a scenario has a draft"
    return best[1], best[2]


def vllm_measured(timeline: Timeline) -> Maker:
    """The table of this scenario, measured when the policy is made."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> Policy:
        draft, table = best_table(timeline)
        return vllm_dynamic(draft, table, MEASURED)(pool, rng)

    return make


def _gained(timeline: Timeline, phase: Phase, draft: int) -> Array:
    """Tokens of a row and step by K, [P + 1]; 1 where the draft is not loaded."""
    tokens = phase.tokens[:, draft]  # [D, kinds, P + 1]
    if not phase.available[draft]:
        return np.ones(tokens.shape[-1])
    asked = np.diff(phase.reach, prepend=0.0) * [domain.output for domain in timeline.scenario.domains.values()]
    kinds = tokens.shape[1]
    return tokens_per_row(np.repeat(asked / kinds, kinds), tokens.reshape(-1, tokens.shape[-1]))


def _seconds(phase: Phase, rows: int, draft: int, k: int) -> float:
    """Expected seconds of a step in which every row drafts k tokens, if the draft is loaded."""
    passes = np.zeros(len(phase.pass_seconds))
    passes[draft] = k * phase.available[draft]
    return phase.seconds(rows, rows * passes, passes)
