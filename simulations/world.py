"""The simulated pool: engines that decode batches of requests as a policy says, with known acceptance and prices.

Continuous batching: before a step requests join until the batch has the rows that the load asks for; when it asks for
fewer, the newest ones wait and are the first to come back. A row at K = 0 costs nothing for drafting: what keeping an
idle draft in step would cost is not part of this model. A draft that takes over a running request reads the tokens it
missed in one pass, at its prices, in the first step that it drafts for; an n-gram draft has nothing to read.
"""

import numpy as np

from simulations.batch import (
    AGE,
    CONTEXT,
    DOMAIN,
    DRAFT,
    KIND,
    KV,
    LEFT,
    NUMBER,
    PROMPT,
    READ,
    Batch,
    Rows,
    joined,
    luck_of,
    nobody,
)
from simulations.clairvoyant import Clairvoyant
from simulations.log import Log
from simulations.luck import Array, key, normals, uniforms, wandering
from simulations.policy import NO_DRAFT, Bools, Choice, Ints, Outcome, View
from simulations.requests import Requests
from simulations.timeline import Phase, Timeline


class ChoiceError(ValueError):
    """A policy answered with arrays of another shape or of values that mean nothing."""


class Engine:
    """One engine: its rows, its clock, its luck, its log."""

    def __init__(self, timeline: Timeline, clairvoyant: Clairvoyant, seed: int, number: int) -> None:
        scenario = timeline.scenario
        self.timeline, self.clairvoyant, self.number = timeline, clairvoyant, number
        self.hostile = number >= scenario.engines - scenario.hostile
        self.requests = Requests(timeline, seed, number)
        self.log = Log(timeline)
        self.time = 0.0
        self.step = 0
        self.running: Rows = nobody()
        self.waiting: Rows = nobody()
        self.batch: Batch | None = None  # of the running rows; None when they, their drafts or the phase have changed
        self.new: Bools = np.zeros(0, dtype=bool)
        self.index = 0  # of the phase
        own, steps = key(seed, number, 2), np.arange(scenario.steps, dtype=np.uint64)
        noise = scenario.noise
        sigma = float(np.sqrt(np.log1p(noise.sigma**2)))
        self.noise: Array = np.exp(sigma * normals(own, steps) - sigma**2 / 2)
        paused = uniforms(key(seed, number, 3), steps) < noise.pause_rate
        self.pauses: Array = np.where(paused, noise.pause_seconds, 0.0)
        self.speed: Array = np.exp(noise.wander * wandering(normals(key(seed, number, 4), steps), noise.wander_steps))
        self.per_prompt_token = noise.prefill_seconds_per_token
        ks = np.array(timeline.ks, dtype=np.intp)
        self.prepared: Ints = ks[np.searchsorted(ks, np.arange(timeline.positions + 1), side="right") - 1]
        self.limits = self._limits()
        self.reads: Bools = np.array([d.kind != "ngram" for d in scenario.drafts.values()])
        self.read: dict[int, Ints] = {}  # requests whose draft was switched -> tokens each draft has read

    @property
    def phase(self) -> Phase:
        """The world as it is now."""
        return self.timeline.phases[self.index]

    def _limits(self) -> Ints:
        """Largest K by draft, 0 for those not loaded; the last one is that of NO_DRAFT."""
        return np.append(self.timeline.limits * self.phase.available, 0)

    def view(self) -> View:
        """Bring the batch to the load's size, and show it."""
        phases = self.timeline.phases
        while self.index + 1 < len(phases) and phases[self.index + 1].begins <= self.step:
            self.index += 1
            self.limits = self._limits()
            self.batch = None
        self._resize(int(self.timeline.rows[self.step]))
        rows = self.running
        return View(
            self.number,
            self.step,
            self.time,
            rows[CONTEXT].astype(np.intp),
            rows[DRAFT].astype(np.intp),
            rows[NUMBER].astype(np.intp),
            self.new,
            self.phase.available,
        )

    def _resize(self, wanted: int) -> None:
        have = self.running.shape[1]
        self.new = np.zeros(wanted, dtype=bool)
        if have == wanted:
            return
        self.batch = None
        if have > wanted:
            self.waiting = np.concatenate([self.running[:, wanted:], self.waiting], axis=1)
            self.running = self.running[:, :wanted]
            return
        back = min(wanted - have, self.waiting.shape[1])
        parts = [self.running, self.waiting[:, :back]]
        self.waiting = self.waiting[:, back:]
        if have + back < wanted:
            parts.append(joined(self.requests.take(wanted - have - back, self.phase)))
            self.new[have + back :] = True
        self.running = np.concatenate(parts, axis=1)

    def settle(self, view: View, choice: Choice) -> Outcome:
        """Run one step as chosen."""
        rows, phase, n = self.running, self.phase, self.running.shape[1]
        prefill = self._admit(choice)
        if self.timeline.scenario.draft_switching:
            self._switch(choice)
        batch = self.batch
        if batch is None:
            batch = self.batch = Batch(rows, phase, self.index, self.clairvoyant)
        k = self._k(choice, batch.draft)
        top = int(k.max())
        drafted, passes = self._work(batch.draft, k)
        accepted = batch.accepted(k, top)
        would, judging = None, 0.0
        if choice.evaluated is not None:
            would, judging = self._evaluate(choice.evaluated, np.where(k > 0, batch.draft, NO_DRAFT), top)
        caught_up, behind = self._catch_up(batch.draft, k) if self.read else (0, 0.0)
        expected = phase.seconds(n, drafted, passes) + judging + behind
        seconds = expected * float(self.noise[self.step]) + prefill * self.per_prompt_token
        prefill += caught_up
        seconds = (seconds + float(self.pauses[self.step])) * float(self.speed[self.step])
        emitted = np.minimum(accepted + 1, rows[LEFT])
        kv = int(rows[KV].sum())
        rows[LEFT] -= emitted
        rows[KV] += emitted
        rows[AGE] += 1
        finished = rows[LEFT] <= 0
        self._book(batch, k, expected, int(emitted.sum()), seconds)
        self.time += seconds
        self.step += 1
        if finished.any():
            for number in rows[NUMBER, finished].tolist() if self.read else ():
                self.read.pop(number, None)
            self.running, self.batch = rows[:, ~finished], None
        reported = k if self.hostile else accepted
        return Outcome(view, batch.draft, k, reported, finished, seconds, prefill, kv, would)

    def _admit(self, choice: Choice) -> int:
        """Give new rows the draft asked for, if it is there; returns their prompt tokens."""
        n, drafts = self.running.shape[1], len(self.limits) - 1
        asked = np.asarray(choice.draft)
        if asked.shape != (n,) or np.asarray(choice.k).shape != (n,):
            shapes = f"draft {asked.shape}, k {np.asarray(choice.k).shape}"
            raise ChoiceError(f"step {self.step}: a batch of {n} rows was answered with {shapes}; needed: ({n},) each")
        if not self.new.any():
            return 0
        wanted = asked[self.new]
        if wanted.min() < NO_DRAFT or wanted.max() >= drafts:
            raise ChoiceError(f"step {self.step}: draft {wanted.tolist()}; allowed: -1 (none) to {drafts - 1}")
        there = (wanted != NO_DRAFT) & self.phase.available[wanted]
        self.running[DRAFT, self.new] = np.where(there, wanted, NO_DRAFT)
        return int(self.running[PROMPT, self.new].sum())

    def _switch(self, choice: Choice) -> None:
        """Give running rows another draft where one is asked for."""
        rows, wanted = self.running, np.asarray(choice.draft)
        moved = np.flatnonzero((wanted != rows[DRAFT]) & ~self.new)
        for at in moved.tolist():
            draft, old = int(wanted[at]), int(rows[DRAFT, at])
            if not NO_DRAFT <= draft < len(self.reads):
                limit = len(self.reads) - 1
                raise ChoiceError(f"step {self.step}: draft {draft}; allowed: -1 (none) to {limit}")
            if draft != NO_DRAFT and not self.phase.available[draft]:
                continue
            read = self.read.setdefault(int(rows[NUMBER, at]), np.zeros(len(self.reads), dtype=np.intp))
            if old != NO_DRAFT and not rows[READ, at]:
                read[old] = rows[KV, at]
            rows[DRAFT, at] = draft
            rows[READ, at] = 1 + read[draft] if draft != NO_DRAFT and self.reads[draft] else 0
            self.batch = None

    def _catch_up(self, draft: Ints, k: Ints) -> tuple[int, float]:
        """Tokens that drafts read in this step because they missed them, and what that costs."""
        rows = self.running
        behind = (rows[READ] > 0) & (k > 0)
        if not behind.any():
            return 0, 0.0
        missed = rows[KV, behind] - (rows[READ, behind] - 1)
        tokens = np.bincount(draft[behind], missed, minlength=len(self.reads))
        rows[READ, behind] = 0
        return int(tokens.sum()), self.phase.reading(tokens)

    def _k(self, choice: Choice, draft: Ints) -> Ints:
        """K as run: what the draft and the engine are prepared for, 0 without a draft."""
        k = np.asarray(choice.k)
        if k.min() < 0:
            raise ChoiceError(f"step {self.step}: K is {int(k.min())}; allowed: 0 or more")
        return self.prepared[np.minimum(k, self.limits[draft])]

    def _work(self, draft: Ints, k: Ints) -> tuple[Array, Array]:
        """Draft tokens and drafting passes by draft [J]."""
        work = np.zeros((2, len(self.limits)))  # the last column takes in NO_DRAFT, whose K is 0
        if len(k) == 1:
            work[:, draft[0]] = k[0]
        else:
            np.add.at(work[0], draft, k)
            np.maximum.at(work[1], draft, k)
        return work[0, :-1], work[1, :-1]

    def _evaluate(self, evaluated: Bools, drafting: Ints, top: int) -> tuple[Ints, float]:
        """What the evaluated drafts would get [J, n], and the seconds of judging them.

        `drafting` [n]: the draft each row drafted with. A draft is judged on the verified tokens in one pass over
        depth + 1 of them a row, like a short prompt, by itself: the target verifies nothing more.
        """
        rows, phase, n, drafts = self.running, self.phase, self.running.shape[1], len(self.limits) - 1
        would = np.full((drafts, n), -1, dtype=np.intp)
        read = np.zeros(drafts)
        for j in np.flatnonzero(np.asarray(evaluated) & phase.available).tolist():
            depth = min(top, int(self.timeline.limits[j]))
            if not depth:
                continue
            read[j] = (drafting != j).sum() * (depth + 1)
            luck = luck_of(rows, np.full(n, j, dtype=np.intp), drafts, 1, depth)[:, 0]
            kept = luck < phase.acceptance[rows[DOMAIN], j, rows[KIND], :depth]
            would[j] = np.logical_and.accumulate(kept, axis=1).sum(axis=1)
        return would, phase.reading(read)

    def _book(self, batch: Batch, k: Ints, expected: float, tokens: int, seconds: float) -> None:
        """Log what the step brings in expectation, beside what the clairvoyant would get from the same rows."""
        due = batch.ideal * (expected / batch.ideal_seconds)
        self.log.add(self.step, batch.counts, batch.earned(k), due, expected, batch.plain)
        self.log.realised(self.step, tokens, seconds)
        self.log.arms(self.step, batch.counts, batch.domain, np.where(k > 0, batch.draft, NO_DRAFT), k)
