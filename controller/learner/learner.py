"""The learner: evidence in, decisions out. Pure: time and random generators are arguments; no input, no output."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controller.learner import cost, curves, state
from controller.learner.acceptance import AcceptanceEvidence, Counts
from controller.learner.account import Account
from controller.learner.config import LearnerConfig, PoolSpec
from controller.learner.curves import expected_tokens
from controller.learner.decision import (
    Decision,
    LoadTable,
    Stay,
    decide_load,
    draws_of_tokens,
    ladder,
    policy_cells,
)
from controller.learner.discount import Array
from controller.learner.estimates import (
    Estimates,
    achieved_rows,
    cost_rows,
    curve_points,
    design_effects,
    prefill_shares,
    static_yield,
    step_prices,
)
from controller.learner.evidence import REGIMES, Context, Contexts, Delta
from controller.learner.gate import Gate, nonadaptive_share
from controller.learner.outlook import outlook, rows_at
from controller.learner.prices import Prices, Single, prices_at
from controller.learner.standing import Basis, Standing
from controller.learner.steps import StepEvidence, Sums
from controller.learner.uncollected import uncollected
from controller.learner.whatif import Imagined, bucket_index, everywhere, expected, shares
from controller.learner.worth import DraftWorth, gains
from engine.link.messages import ProbePlan

LATELY = 60.0
MAX_ENGINES = 64  # engines whose evidence is kept apart; the one silent for longest is folded into the retired
# A draft that ran fewer steps in the pool, or in a context, has at least that share of the context's requests.
_TRIED, _FIRST = 4.0, 0.25
# In a context that share grows with the steps of other drafts there, so that bad luck does not last.
_TRIED_HERE, _FIRST_HERE, _PATIENCE = 4.0, 0.1, 500.0
# Afterwards every draft keeps this share of all requests, by at most _REVISITED of those that explore, so that one that
# improves is found: about seven steps in 3,000.
_REVISIT, _REVISITED = 0.0025, 0.02
_HOLD = 24.0  # steps of an engine for which batches draw their drafts at one quantile
_GOLDEN = 0.6180339887498949
_YOUNG = 200.0  # drafted row-steps up to which a context's most probable arm may change at any decision
_NEW_LOAD = 150.0  # and steps at a load up to which it may change there
_HINDSIGHT = 100.0  # steps: half-life of what is charged to a gate anew when it turns out worse than it was thought
_PLAIN_SURE = 0.01  # relative sd of the plain price below which probes become rare


class Learner:
    """Learns a pool's acceptance and costs and decides draft and K for every (domain, regime, load bucket).

    >>> from engine.link.messages import DraftInfo
    >>> learner = Learner(LearnerConfig(), PoolSpec((DraftInfo("ngram", "ngram", 4),), (0, 2, 4), max_batch=2))
    >>> decision = learner.decide(now=0.0, rng=np.random.default_rng(0))
    >>> [(cell.domain, cell.regime, cell.load) for cell in decision.cells]
    [('other', 'greedy', 1), ('other', 'sampled', 1), ('other', 'greedy', 2), ('other', 'sampled', 2)]
    """

    def __init__(self, config: LearnerConfig, spec: PoolSpec) -> None:
        self.config, self.spec = config, spec
        lives = (config.fast_half_life, config.slow_half_life)
        self.contexts = Contexts(config.max_domains)
        self.acceptance = AcceptanceEvidence(spec.positions, *lives)
        self.steps = StepEvidence(*lives, config.engine_share)
        self.account = Account(spec.loads, *lives)
        self.gate = Gate(config.budget_steps, config.epsilon, config.margin)
        self.engines: dict[str, float] = {}  # name -> newest evidence
        self.rejected: dict[str, int] = {"acceptance": 0, "moments": 0, "cost": 0, "account": 0}
        self.effect_sd: dict[str, float] = {kind: bounds[0] for kind, bounds in cost.EFFECT_SD.items()}
        arms = 1 + len(spec.drafts) * (len(spec.ks) - 1)
        self.played: Array = np.zeros((0, len(spec.loads), arms))
        self.probability: Array = np.zeros((0, len(spec.loads), arms))  # of the last decision
        self.recent: Array = np.zeros((0, len(spec.loads), arms))  # batch steps played, of the last _HINDSIGHT or so
        self.exploring: Array = np.ones(0)  # share of requests that explore, by context
        self.stay = Stay(np.zeros((0, len(spec.loads)), dtype=np.intp), np.zeros((0, len(spec.loads))))
        self.quantiles: Array = np.zeros(len(spec.loads))
        self.held: Array = np.zeros(len(spec.loads))  # steps they have stood
        self.started = False
        self.ordered: frozenset[Context] = frozenset()  # follow an order and not the last decision
        self.changed = 0  # abrupt changes of acceptance found
        self._standing: dict[int, Standing] = {}  # by load's index; not part of the dumped state
        self._drafts = frozenset(draft.name for draft in spec.drafts)

    def observe(self, delta: Delta) -> None:
        """Take in what one engine counted in one interval. Inconsistent cells are left out and counted in `rejected`.

        Raises ValueError for a time that is not finite.
        """
        if not np.isfinite(delta.time):
            raise ValueError(f"evidence of engine {delta.engine!r} is dated {delta.time}; a time is a finite number")
        if delta.engine not in self.engines and len(self.engines) >= MAX_ENGINES:
            silent = min(self.engines, key=self.engines.__getitem__)
            del self.engines[silent]
            self.acceptance.retire(silent)
            self.steps.retire(silent)
        self.engines[delta.engine] = max(delta.time, self.engines.get(delta.engine, -np.inf))
        rejected = self.rejected
        rejected["acceptance"] += self.acceptance.observe(
            delta.engine, delta.time, delta.acceptance, self.contexts, self._drafts
        )
        rejected["moments"] += self.acceptance.observe_moments(delta.time, delta.moments, self.contexts)
        rejected["cost"] += self.steps.observe(delta.engine, delta.time, delta.cost)
        slow = self.speed(delta.engine)
        rejected["account"] += self.account.observe(delta.time, delta.account, self.contexts, slow)

    def decide(
        self, now: float, rng: np.random.Generator, afresh: bool = False, ordered: Collection[Context] = ()
    ) -> Decision:
        """Decide every context and load as of `now` (seconds). Books the exploration since the last decision.

        Idle loads keep their last decision while it holds (see `standing`), unless all is to be decided `afresh`, as
        the first decision after `load` is. `ordered`: contexts that will follow an operator's order instead: what they
        play teaches like everything else, and is neither charged to their gates nor booked as played by the policy.
        """
        config, spec = self.config, self.spec
        self._grow()
        contexts = len(self.contexts)
        counts, belief = self._curves(now)
        if self._adapt(now, counts):
            counts, belief = self._curves(now)
        _, prices = self._costs(now)
        cost_draws = prices.sample(rng, config.draws)
        tokens = draws_of_tokens(belief, spec, rng, config.draws)
        mix = self.account.mix(now, contexts)
        prepared = np.array([[k <= d.max_k for k in spec.ks] for d in spec.drafts], dtype=bool)
        prepared = prepared.reshape(len(spec.drafts), len(spec.ks))
        playable = prepared & ladder(prices.deepest, spec.ks)
        least = self._introductions(counts, prices)
        young = counts.seen[:, :, 0].sum(axis=1) < _YOUNG
        steps = self.account.take_pending(contexts)
        batches = steps.sum(axis=0) / prices.loads.rows
        observations = np.concatenate([counts.seen[:, :, 0].ravel(), prices.loads.steps])
        same = playable.tobytes() + self.gate.shut.tobytes() + least.round(1).tobytes()
        loads = range(len(spec.loads) if spec.drafts and len(spec.ks) > 1 else 0)
        # Whoever is held at plain by the gate does not share its passes with the others.
        free = [~(self.gate.shut & (self.stay.top[:, at] <= 0)) for at in loads]
        basis = [Basis(observations, mix[at], same + free[at].tobytes()) for at in loads]
        standing = {} if afresh else {at: one for at, one in self._standing.items() if not steps[:, at].any()}
        fresh = [at for at in loads if at not in standing or not standing[at].basis.holds(basis[at])]

        def anew(at: int) -> Standing:
            drawn = prices_at(cost_draws, at, spec.ks)
            return self._decided(at, basis[at], drawn, tokens, prices.loads, playable, free[at], least, young, now)

        done = [anew(at) if at in fresh else standing[at] for at in loads]
        tables, plain_sd = [one.table for one in done], [one.plain_sd for one in done]
        before, self.ordered = self.ordered, frozenset(ordered)
        if tables and steps.any():
            self._book(steps, prices.loads.rows, np.stack([t.shortfall for t in tables], axis=1), before)
        top = np.stack([t.top for t in tables], axis=1) if tables else self.stay.top
        since = np.stack([t.since for t in tables], axis=1) if tables else self.stay.since
        switches = int(((top != self.stay.top) & (self.stay.top >= 0)).sum())
        self.stay = Stay(top, since)
        evidence = counts.seen[:, :, 0].sum(axis=1) if spec.drafts else np.zeros(contexts)
        if tables:
            self.probability = np.stack([t.probability for t in tables], axis=1)
            self.exploring = nonadaptive_share(evidence, config.nonadaptive)
        if tables:
            with uncollected():
                cells = policy_cells(
                    [tables[at] for at in fresh],
                    self.contexts.names,
                    spec,
                    belief,
                    self.exploring,
                    self._quantiles(batches, rng)[fresh],
                )
            for nth, at in enumerate(fresh):
                self._standing[at] = done[at]._replace(cells=cells[nth * contexts : (nth + 1) * contexts])
        return Decision(
            cells=[cell for at in range(len(tables)) for cell in self._standing[at].cells],
            probe=self._probe(tables, prices, plain_sd),
            allowance=self._allowance(tables, prices.loads.rows),
            switches=switches,
            contexts=list(self.contexts.names),
            spec=spec,
            tables=tables,
            played=self.played.copy(),
            worth=self._worth([one.gain for one in done], mix, prices.loads.steps),
            belief=belief,
            mix=mix,
            rows=prices.loads.rows,
        )

    def speed(self, engine: str) -> float:
        """How many times the usual seconds the engine's steps take now."""
        return self.steps.speeds.factor(engine)

    def speeds(self) -> list[float]:
        """The same of the engines that have reported within LATELY seconds of the newest evidence; [1] without any."""
        newest = max(self.engines.values(), default=0.0)
        return [self.speed(name) for name, last in self.engines.items() if newest - last <= LATELY] or [1.0]

    @property
    def drafts(self) -> set[str]:
        """Names of the drafts there are, and of those that something was learned of."""
        return {name for _, _, name in self.acceptance.rows} | self._drafts

    def forget(self, domain: str | None, draft: str | None) -> None:
        """Learn anew: acceptance of a draft in a domain, of all drafts in it (`draft` None), or of a draft everywhere
        and the prices of its steps (`domain` None). The contexts concerned get their full exploration budget."""
        self._grow()
        contexts = [c for c, (name, _) in enumerate(self.contexts.names) if domain is None or name == domain]
        drafts = self.drafts if draft is None else {draft}
        self.acceptance.forget({(c, name) for c in contexts for name in drafts})
        if domain is None and draft is not None:
            self.steps.forget(draft)
        for c in contexts:
            self.gate.refill(c)
            self.recent[c] = 0.0
        self._standing.clear()

    def _introductions(self, counts: Counts, prices: cost.CostPosterior) -> Array:
        """The least share of every draft in every context [contexts, drafts], for those hardly tried yet."""
        here = np.minimum(_FIRST_HERE + counts.seen[:, :, 0].sum(axis=1, keepdims=True) / _PATIENCE, 0.5)
        least = np.where(counts.seen[:, :, 0] < _TRIED_HERE, here, 0.0)
        least = np.where(prices.tried < _TRIED, _FIRST, least)
        return np.where(self.gate.shut[:, None], 0.0, least)

    def _book(self, steps: Array, rows: Array, shortfall: Array, ordered: frozenset[Context] = frozenset()) -> None:
        """Open or close gates by what was played since the last decision, judged by what is known now.

        steps: row-steps [contexts, loads], rows: of a batch [loads], shortfall [contexts, loads, arms]. What was played
        lately is judged anew until it fades: a prior that hopes would charge too little.
        Steps of contexts that were `ordered` what to play are left out. What a context had explored before an order
        came is settled as it looks then: what is learned under an order must not change the bill.
        """
        names = self.contexts.names
        steps = np.where([[name in ordered] for name in names], 0.0, steps)
        followed, batches = self._followed(), steps / rows
        new = batches[..., None] * followed
        # Fades with every step of the context: what was played at a load that was left is not judged for ever by what
        # its neighbours teach about it.
        left = 0.5 ** (batches.sum(axis=1) / _HINDSIGHT)[:, None, None]
        settled = (self.recent * (1.0 - left) * shortfall).sum(axis=(1, 2))
        self.recent = self.recent * left + new
        held = np.array([name in ordered or name in self.ordered for name in names])
        if held.any():
            settled += np.where(held, (self.recent * shortfall).sum(axis=(1, 2)), 0.0)
            self.recent[held] = 0.0
        self.gate.charge(batches.sum(axis=1), settled, (self.recent * shortfall).sum(axis=(1, 2)))
        self.played = np.where(held[:, None, None], 1.0, 0.999) * self.played + steps[..., None] * followed

    def _followed(self) -> Array:
        """What requests played by the last decision [contexts, loads, arms]: its probabilities where they are
        non-adaptive, the most probable arm elsewhere."""
        best = np.arange(self.probability.shape[2]) == self.stay.top[..., None]
        share = self.exploring[:, None, None]
        return np.asarray(share * self.probability + (1.0 - share) * best, dtype=np.float64)

    def _decided(
        self,
        at: int,
        basis: Basis,
        drawn: Prices,
        tokens: Single,
        loads: cost.Loads,
        playable: NDArray[np.bool_],
        free: NDArray[np.bool_],
        least: Array,
        young: NDArray[np.bool_],
        now: float,
    ) -> Standing:
        """A fresh decision about one load (`at` is its index), without its cells."""
        rows = float(loads.rows[at])
        seen = outlook(
            drawn, self.spec.loads[at], rows, basis.mix, tokens, self.spec.ks, playable & free[:, None, None]
        )
        share = np.minimum(_REVISIT / self.exploring, _REVISITED)[:, None]
        revisit = np.where(self.gate.shut[:, None], 0.0, np.broadcast_to(share, least.shape))
        core = rows_at(rows, basis.mix)[1]
        config = self.config
        if config.max_tpot_p95:
            # Prices are those of the usual speed; the bound is on the clock of the slowest engine.
            config = replace(config, max_tpot_p95=config.max_tpot_p95 / max(self.speeds()))
        table = decide_load(
            at,
            self.spec,
            config,
            seen,
            self.gate,
            playable,
            least,
            revisit,
            core,
            self.stay,
            young | (loads.steps[at] < _NEW_LOAD),
            now,
        )
        return Standing(basis, table, float(drawn.plain.std() / drawn.plain.mean()), seen.gain_mean, [])

    def estimates(self, now: float) -> Estimates:
        """What is believed as of `now`, in rows for people. Changes nothing; draws come from a generator of its own."""
        rng = np.random.default_rng(0)
        counts, belief = self._curves(now)
        groups, prices = self._costs(now, remember=False)
        names, loads = self.contexts.names, self.spec.loads
        plain, plain_sd, static = step_prices(prices, rng)
        prefill, deff = prefill_shares(prices), design_effects(counts, names)
        earned = self.account.earned(now, len(names), ("adaptive", "probe"))
        apart = np.array([deff[name] for name in names])
        return Estimates(
            curve_points(belief, counts, names, self.spec, rng),
            cost_rows(groups, prices, rng),
            achieved_rows(earned, names, prices, plain, plain_sd, prefill, apart),
            dict(zip(loads, zip(plain.tolist(), plain_sd.tolist(), strict=True), strict=True)),
            prices.noise,
            {} if static is None else dict(zip(loads, static.tolist(), strict=True)),
            static_yield(belief, names, self.spec),
            dict(zip(loads, prefill.tolist(), strict=True)),
            dict(zip(loads, prices.loads.rows.tolist(), strict=True)),
            deff,
        )

    def imagine(self, now: float, load: int, mix: Mapping[str, float] | None = None) -> Imagined:
        """What every arm would bring at a batch of `load` rows, of the present mix of domains there or of another (any
        positive scale). Changes nothing. Raises ValueError for a load or a domain that the pool does not have."""
        at = bucket_index(load, self.spec)
        rng = np.random.default_rng(0)
        self._grow()
        _, belief = self._curves(now)
        _, prices = self._costs(now, remember=False)
        here = self.account.mix(now, len(self.contexts))[at]
        here = here if mix is None else shares(mix, here, self.contexts.names)
        sampled = prices.sample(rng, self.config.draws)
        prepared = np.array([[k <= d.max_k for k in self.spec.ks] for d in self.spec.drafts], dtype=bool)
        prepared = np.broadcast_to(prepared.reshape(-1, len(self.spec.ks)), (len(self.contexts), *prepared.shape))
        acceptance = belief.draws(rng, self.config.draws)
        drawn, tokens = prices_at(sampled, at, self.spec.ks), expected_tokens(acceptance, self.spec.ks)
        rows = float(prices.loads.rows[at])
        seen = outlook(drawn, self.spec.loads[at], rows, here, tokens, self.spec.ks, prepared)
        names = self.contexts.names
        shown = {name: float(share) for name, share in zip(names, here, strict=True) if share > 0}
        arms = expected(seen, names, self.spec, self.stay.top[:, at], here)
        if self.spec.run_ks != self.spec.ks:
            drawn, tokens = (
                prices_at(sampled, at, self.spec.run_ks),
                expected_tokens(acceptance, self.spec.run_ks),
            )
        fixed = everywhere(drawn, self.spec.loads[at], rows, here, tokens, self.spec, self.stay.top[:, at])
        return Imagined(self.spec.loads[at], rows, shown, arms, fixed)

    def dump(self) -> bytes:
        """The whole state, for `load`."""
        return state.dump(self)

    @classmethod
    def load(cls, data: bytes, config: LearnerConfig, spec: PoolSpec) -> "Learner":
        """A learner that goes on exactly where the dumped one was.

        With another `spec` the evidence on drafts and costs stays, by name; what was tied to the old arms starts anew.
        Raises ValueError for data of an unknown schema.
        """
        learner = cls(config, spec)
        state.restore(learner, data)
        return learner

    def _grow(self) -> None:
        """Room for contexts that appeared since the last decision."""
        contexts = len(self.contexts)
        self.gate.grow(contexts)
        more = contexts - len(self.played)
        if more:
            new = np.zeros((more, *self.played.shape[1:]))
            self.played = np.concatenate([self.played, new])
            self.probability = np.concatenate([self.probability, new])
            self.exploring = np.concatenate([self.exploring, np.ones(more)])
            self.recent = np.concatenate([self.recent, new])
            shape = (more, self.stay.top.shape[1])
            top = np.concatenate([self.stay.top, np.full(shape, -1, dtype=np.intp)])
            self.stay = Stay(top, np.concatenate([self.stay.since, np.zeros(shape)]))

    def _curves(self, now: float) -> tuple[Counts, curves.Curves]:
        names = [draft.name for draft in self.spec.drafts]
        counts = self.acceptance.gather(now, len(self.contexts), names, self.config.engine_share, self.config.memory)
        regimes = np.array([REGIMES.index(regime) for _, regime in self.contexts.names], dtype=np.intp)
        return counts, curves.fit(counts.effective_seen, counts.effective_accepted, regimes)

    def _adapt(self, now: float, counts: Counts) -> bool:
        """Forget what abrupt changes have made untrue; whether there were any."""
        drafts = [draft.name for draft in self.spec.drafts]
        effect = {(c, d): float(counts.deff[c, j, 0]) for c in range(len(counts.deff)) for j, d in enumerate(drafts)}
        changed = self.acceptance.adapt(now, effect)
        self.changed += len(changed)
        return bool(changed)

    def _costs(self, now: float, remember: bool = True) -> tuple[list[Sums], cost.CostPosterior]:
        groups = self.steps.gather(now, self.config.memory)
        posterior = cost.fit(groups, self.spec, self.effect_sd)
        if remember:
            self.effect_sd = posterior.effect_sd
            # Without any step the model is one of steps of a second: its slopes would judge the first real ones.
            self.steps.noise, self.steps.slopes = posterior.noise, posterior.slopes() if groups else {}
        return groups, posterior

    def _quantiles(self, batches: Array, rng: np.random.Generator) -> Array:
        """The quantiles at which the loads' drafts are drawn [loads]; batches [loads]: steps since the last decision.

        Each holds for _HOLD steps of every engine, then moves by the golden ratio: a low-discrepancy sequence leaves no
        draft waiting long for its share.
        """
        start = rng.random(len(batches))
        if not self.started:
            self.quantiles, self.started = start, True
        self.held += batches
        over = self.held >= _HOLD * max(len(self.engines), 1)
        self.quantiles = np.where(over, (self.quantiles + _GOLDEN) % 1.0, self.quantiles)
        self.held = np.where(over, 0.0, self.held)
        return self.quantiles

    def _worth(self, gain: list[Array], mix: Array, served: Array) -> list[DraftWorth]:
        """What every draft is worth at the loads served so far."""
        if not gain or not served.any():
            return []
        values = gains(np.stack(gain), mix, served).tolist()
        return [DraftWorth(d.name, d.memory_bytes, g) for d, g in zip(self.spec.drafts, values, strict=True)]

    @staticmethod
    def _probe(tables: list[LoadTable], prices: cost.CostPosterior, plain_sd: list[float]) -> ProbePlan:
        """Plain probes where speculation rules: 0.4% of steps while the plain price is unsure, 0.1% later.

        plain_sd: relative sd of the plain price, by load. What leaves the choice in no doubt is sure enough: a price
        whose sd is a tenth of the least gain of the arms in use.
        """
        ruled = [at for at, t in enumerate(tables) if prices.loads.steps[at] > 0 and (t.top > 0).any()]
        if not ruled:
            return ProbePlan()

        def gained(table: LoadTable) -> float:
            return float(np.take_along_axis(table.gain, table.top[:, None], axis=1)[table.top > 0].min()) - 1.0

        unsure = any(plain_sd[at] > max(_PLAIN_SURE, 0.1 * gained(tables[at])) for at in ruled)
        return ProbePlan(every=1000 if unsure else 4000, steps=4)

    def _allowance(self, tables: list[LoadTable], rows: Array) -> int:
        """Row-steps an engine may explore under one version: what open reserves can pay for."""
        if not tables:
            return 0
        held = np.array([name in self.ordered for name in self.contexts.names])
        total = 0.0
        for t, n in zip(tables, rows, strict=True):
            best = np.take_along_axis(t.gain, t.top[:, None], axis=1)
            aside = np.where(np.arange(t.gain.shape[1]) == t.top[:, None], 0.0, t.probability)
            explored = aside.sum(axis=1)
            loss = (aside * np.maximum(1.0 - t.gain / best, 0.0)).sum(axis=1) / np.maximum(explored, 1e-9)
            left = np.minimum(np.maximum(self.gate.reserve, 0.0), max(self.gate.pool_reserve, 0.0))
            left[held] = 0.0
            total += float((left * n / np.maximum(loss, 0.01) * (explored > 0)).sum())
        return int(min(total / max(len(self.engines), 1) / len(tables), 1_000_000))
