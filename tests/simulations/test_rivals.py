"""What holds for every rival, whatever its method."""

from collections.abc import Iterator

import numpy as np
import pytest

from simulations.policy import NO_DRAFT, Choice, DraftFacts, Maker, Outcome, Policy, PoolFacts, View
from simulations.rivals import (
    LEARNING,
    ONE_ARM_PER_K,
    ONE_DRAFT,
    ONE_WAY,
    RIVALS,
    TOLD,
    Rival,
    every_fixed,
    fixed,
    on_every_draft,
)
from simulations.rivals.bandit import Bandit, Optimist
from simulations.rivals.one_draft import OneDraft

POOL = PoolFacts(
    domains=("code", "chat"),
    drafts=(
        DraftFacts("small", "model", 8, 1e9),
        DraftFacts("large", "eagle", 4, 2e9),
        DraftFacts("lookup", "ngram", 2, 0.0),
    ),
    ks=(0, 1, 2, 3, 4, 6, 8),
    static=(0, 4),
    max_batch=64,
    engines=2,
)
OTHER = len(POOL.domains)
ACCEPTANCE = np.array([0.8, 0.6, 0.3])
PASS = np.array([0.05, 0.1, 0.0])


class Pool:
    """Two engines with rows that come and go; acceptance by draft only, seconds linear in tokens and passes."""

    def __init__(self, policy: Policy, seed: int = 0) -> None:
        self.policy = policy
        self.luck = np.random.default_rng(seed)
        self.rows = {e: (np.zeros(0, np.intp),) * 3 for e in range(2)}  # request, domain, draft
        self.step = self.requests = 0
        self.available = np.ones(3, dtype=np.bool_)

    def play(self, engine: int, rows: int) -> tuple[View, Choice, Outcome]:
        request, domain, draft = (x[:rows] for x in self.rows[engine])
        fresh = rows - len(request)
        new = np.arange(rows) >= rows - fresh
        request = np.concatenate([request, self.requests + np.arange(fresh)])
        self.requests += fresh
        domain = np.concatenate([domain, self.luck.integers(0, OTHER + 1, fresh)]).astype(np.intp)
        draft = np.concatenate([draft, np.full(fresh, 77)]).astype(np.intp)  # undefined where new
        view = View(engine, self.step, 0.1 * self.step, domain, draft, request, new, self.available.copy())
        choice = self.policy.choose(view)
        draft = np.where(new, choice.draft, draft)
        uniforms = self.luck.random((rows, 8))
        runs = np.cumprod(uniforms[:, :, None] < ACCEPTANCE, axis=1).sum(axis=1)  # [rows, drafts]
        k = np.where(draft == NO_DRAFT, 0, choice.k)
        accepted = np.minimum(np.where(k > 0, runs[np.arange(rows), np.maximum(draft, 0)], 0), k)
        longest, would, spent = int(k.max(initial=0)), None, 0.0
        if choice.evaluated is not None:
            would = np.where(choice.evaluated[:, None], np.minimum(runs.T, longest), -1)
            spent = float(PASS[choice.evaluated].sum())  # one pass over the verified tokens
        passes = {j: int(k[draft == j].max(initial=0)) for j in range(3)}
        seconds = 1 + 0.01 * float((k + 1).sum()) + sum(PASS[j] * n for j, n in passes.items()) + spent
        finished = self.luck.random(rows) < 0.05
        outcome = Outcome(
            view._replace(draft=draft), draft, k, accepted, finished, seconds * self.luck.lognormal(0, 0.02), 0,
            50 * rows, would,
        )  # fmt: skip
        self.policy.observe(outcome)
        self.rows[engine] = (request[~finished], domain[~finished], draft[~finished])
        self.step += 1
        return view, choice, outcome


def makers() -> dict[str, Maker]:
    return {**RIVALS, **on_every_draft(POOL), **every_fixed(POOL)}


def story(policy: Policy, seed: int = 0) -> Iterator[tuple[View, Choice, Outcome]]:
    """Batches grow and shrink, fall to nothing, and the first draft leaves and comes back."""
    pool = Pool(policy, seed)
    for t, rows in enumerate([0, 1, 1, 5, 20, 64, 64, 30, 3, 0, 2, 9] * 12):
        pool.available[0] = not 40 <= t < 80
        pool.available[1] = t < 100
        yield pool.play(t % 2, rows)


@pytest.mark.parametrize("name", makers())
def test_choices_are_legal_whatever_comes(name: str) -> None:
    policy = makers()[name](POOL, np.random.default_rng(1))
    assert policy.name == name
    limits = np.array([*(d.max_k for d in POOL.drafts), 0])
    for view, choice, outcome in story(policy):
        rows = len(view.domain)
        assert choice.draft.shape == choice.k.shape == (rows,)
        assert choice.draft.dtype == choice.k.dtype == np.intp
        draft = outcome.draft
        assert ((draft == NO_DRAFT) | ((draft >= 0) & (draft < 3))).all()
        assert view.available[draft[view.new & (draft != NO_DRAFT)]].all()
        assert (choice.draft[~view.new] == view.draft[~view.new]).all()
        assert np.isin(choice.k, POOL.ks).all()
        assert (choice.k <= limits[draft]).all()
        assert (choice.k[draft == NO_DRAFT] == 0).all()
        assert (choice.k[~np.append(view.available, False)[draft]] == 0).all()
        if choice.evaluated is not None:
            assert choice.evaluated.shape == (3,)
            assert not (choice.evaluated & ~view.available).any()


@pytest.mark.parametrize("name", RIVALS)
def test_the_same_seed_gives_the_same_choices(name: str) -> None:
    first, second = (
        [(c.draft.tolist(), c.k.tolist()) for _, c, _ in story(RIVALS[name](POOL, np.random.default_rng(5)))]
        for _ in range(2)
    )
    assert first == second


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("drafts", [(), POOL.drafts[:1]])
def test_pools_with_no_draft_or_one(name: str, drafts: tuple[DraftFacts, ...]) -> None:
    facts = POOL._replace(drafts=drafts, static=(0, 4) if drafts else (NO_DRAFT, 0))
    policy = RIVALS[name](facts, np.random.default_rng(0))
    n = 6
    for step in range(30):
        view = View(
            0, step, float(step), np.zeros(n, np.intp), np.full(n, len(drafts) - 1), np.arange(n),
            np.full(n, step == 0), np.ones(len(drafts), dtype=np.bool_),
        )  # fmt: skip
        choice = policy.choose(view)
        draft = choice.draft if step == 0 else view.draft
        view = view._replace(draft=draft)
        assert (draft < len(drafts)).all()
        assert drafts or not choice.k.any()
        policy.observe(Outcome(view, draft, choice.k, choice.k // 2, np.zeros(n, dtype=np.bool_), 1.0, 0, 10))


def test_the_order_of_rivals_is_fixed_and_the_groups_name_rivals() -> None:
    assert list(RIVALS) == [
        "plain", "static", "vllm-dynamic", "sglang-adaptive", "tensorrt", "tensorrt-gate", "hf-heuristic", "turbospec",
        "ucbspec", "ucbspec-released", "ucb1", "gaussian-ts", "gaussian-ts-scaled", "hedgespec",
    ]  # fmt: skip
    assert RIVALS.keys() >= LEARNING | ONE_WAY | ONE_ARM_PER_K | ONE_DRAFT.keys()
    assert not TOLD & RIVALS.keys()  # those are made for a scenario, not for a pool
    assert not TOLD & LEARNING
    assert len(every_fixed(POOL)) == 6 + 4 + 2  # K = 1, 2, 3, 4, 6, 8; 1, 2, 3, 4; 1, 2


@pytest.mark.parametrize("name", makers())
def test_every_rival_derives_from_the_base(name: str) -> None:
    assert isinstance(makers()[name](POOL, np.random.default_rng(1)), Rival)


def test_a_rival_that_forgets_a_method_cannot_be_made() -> None:
    class Deaf(Rival):
        def choose(self, view: View) -> Choice:
            return Choice(view.draft, view.draft)

    class Idle(Rival):
        def observe(self, outcome: Outcome) -> None: ...

    class Unread(OneDraft):
        def length(self, view: View, drafting: int) -> int:
            return 1

    with pytest.raises(TypeError, match=r"abstract method '?observe"):
        Deaf()  # type: ignore[abstract]  # that is the point
    with pytest.raises(TypeError, match=r"abstract method '?choose"):
        Idle()  # type: ignore[abstract]  # that is the point
    with pytest.raises(TypeError, match=r"abstract method '?observe"):
        Unread("unread", POOL)  # type: ignore[abstract]  # that is the point
    for unfinished in (Rival, OneDraft, Bandit, Optimist):
        assert unfinished.__abstractmethods__


def test_fixed_says_what_is_wrong() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="draft 3 is not one of the pool's 3 drafts"):
        fixed(3, 4)(POOL, rng)
    with pytest.raises(ValueError, match="K = 5 is not one of the allowed values"):
        fixed(0, 5)(POOL, rng)
    assert fixed(NO_DRAFT, 0)(POOL, rng).name == "fixed:none:0"


@pytest.mark.parametrize("name", ["ucbspec-released", "gaussian-ts-scaled", "turbospec", "sglang-adaptive"])
def test_a_good_draft_at_batch_1_ends_with_drafting(name: str) -> None:
    """Draft 0 gains 1 + .8 + .64 + ... tokens for 6% of a step each: every K of 2 and more is far better than none."""
    facts = POOL._replace(drafts=POOL.drafts[:1], domains=("code",))
    policy = RIVALS[name](facts, np.random.default_rng(3))
    luck = np.random.default_rng(4)
    played: list[int] = []
    draft = np.array([0])
    for step in range(800):
        new = np.array([step % 40 == 0])
        view = View(0, step, float(step), np.array([0]), draft, np.array([step // 40]), new, np.ones(1, dtype=np.bool_))
        choice = policy.choose(view)
        draft = np.where(new, choice.draft, draft)
        accepted = np.minimum(np.cumprod(luck.random(8) < 0.8).sum(), choice.k)
        seconds = float(1 + 0.06 * choice.k[0]) * luck.lognormal(0, 0.02)
        policy.observe(
            Outcome(view._replace(draft=draft), draft, choice.k, accepted, np.array([step % 40 == 39]), seconds, 0, 100)
        )
        played.append(int(choice.k[0]))
    assert np.median(played[400:]) >= 2
