"""The proof: every path through the production functions, enumerated, sums to the target's own distribution."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.core.sampling import Filters, best, distribution
from engine.core.speculation import DraftDistribution, acceptance, certain, verify, verify_greedy

TOLERANCE = 1e-12
Context = tuple[int, ...]


class Toy:
    """A random language model: logits that depend on the whole context, in float64."""

    def __init__(self, vocabulary: int, seed: int, filters: Filters, forbidden: Sequence[int] = ()) -> None:
        self.vocabulary = vocabulary
        self._seed = seed
        self._filters = filters
        self._forbidden = list(forbidden)

    def logits(self, context: Context) -> Tensor:
        code = self._seed
        for token in context:
            code = code * 31 + token + 1
        generator = torch.Generator().manual_seed(code)
        logits = 2 * torch.randn(1, self.vocabulary, dtype=torch.float64, generator=generator)
        logits[:, self._forbidden] = -torch.inf
        return logits

    def next(self, context: Context) -> Tensor:
        """[1, vocabulary]"""
        return distribution(self.logits(context), self._filters)


def joint(model: Toy, length: int) -> dict[Context, float]:
    """Probability of every output of `length` tokens, by the chain rule."""
    paths: dict[Context, float] = {(): 1.0}
    for _ in range(length):
        paths = {(*c, t): p * float(q) for c, p in paths.items() for t, q in enumerate(model.next(c)[0].tolist()) if q}
    return paths


def proposals(draft: Toy, support: Tensor | None, k: int) -> list[tuple[Context, float, DraftDistribution]]:
    """Every block of k draft tokens with its probability and the distributions it was drawn from."""
    blocks = []
    for local in itertools.product(range(draft.vocabulary), repeat=k):
        ids = local if support is None else tuple(support[list(local)].tolist())
        rows = [draft.next(ids[:i])[0] for i in range(k)]
        values = torch.cat([row[None] for row in rows] or [torch.empty(0, draft.vocabulary, dtype=torch.float64)])
        chance = values[torch.arange(k), list(local)]
        if float(chance.prod()) > 0:
            source = DraftDistribution(chance[None], values[None], support)
            blocks.append((ids, float(chance.prod()), source))
    return blocks


def speculated(target: Toy, blocks: Sequence[tuple[Context, float, DraftDistribution]], k: int) -> dict[Context, float]:
    """Distribution of the first k + 1 tokens when each block is judged by `verify`, over all outcomes of its uniforms.

    A step that emits fewer tokens is continued with the target's own distribution, which is what later steps have to
    produce by the same argument.
    """
    total: dict[Context, float] = {}
    for ids, weight, source in blocks:
        p = torch.cat([target.next(ids[:i]) for i in range(k + 1)])
        chances = acceptance(p[torch.arange(k), list(ids)], source.chance[0]).tolist()
        for outcome in range(k + 1):  # tokens kept
            probability = weight
            uniforms = []
            for i, chance in enumerate(chances):
                keep = i < outcome
                if i <= outcome:
                    probability *= chance if keep else 1 - chance
                # A uniform inside the branch: below the chance to keep, in [chance, 1) to reject.
                uniforms.append(chance / 2 if keep else (1 + chance) / 2)
            if probability == 0:
                continue
            verdict = verify(
                p,
                torch.tensor([0]),
                torch.tensor([ids], dtype=torch.long).view(1, k),
                torch.tensor([k]),
                source,
                torch.tensor([uniforms], dtype=torch.float64).view(1, k),
            )
            assert int(verdict.kept) == outcome
            paths = {(*ids[:outcome], t): probability * q for t, q in enumerate(verdict.following[0].tolist()) if q}
            while len(next(iter(paths))) < k + 1:
                paths = {
                    (*c, t): w * q for c, w in paths.items() for t, q in enumerate(target.next(c)[0].tolist()) if q
                }
            for context, w in paths.items():
                total[context] = total.get(context, 0.0) + w
    return total


def assert_equal(found: dict[Context, float], expected: dict[Context, float]) -> None:
    assert abs(sum(expected.values()) - 1) < TOLERANCE
    for context in found.keys() | expected.keys():
        assert abs(found.get(context, 0.0) - expected.get(context, 0.0)) < TOLERANCE, context


def filters(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Filters:
    return Filters([temperature], [top_k], [top_p])


SETTINGS = {
    "plain": filters(),
    "cool": filters(0.6),
    "hot": filters(1.7),
    "top-k": filters(1.0, top_k=2),
    "top-p": filters(0.9, top_p=0.75),
    "both": filters(1.2, top_k=3, top_p=0.9),
    "greedy": filters(0.0),
}


@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_sampling_draft_leaves_the_target_distribution_unchanged(setting: str, k: int) -> None:
    target, draft = (Toy(4, seed, SETTINGS[setting]) for seed in (1, 2))
    assert_equal(speculated(target, proposals(draft, None, k), k), joint(target, k + 1))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_draft_that_is_zero_where_the_target_is_not(k: int) -> None:
    target, draft = Toy(4, 3, filters()), Toy(4, 4, filters(), forbidden=[0, 2])
    assert_equal(speculated(target, proposals(draft, None, k), k), joint(target, k + 1))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_target_that_is_zero_where_the_draft_is_not(k: int) -> None:
    target, draft = Toy(4, 3, filters(), forbidden=[1, 3]), Toy(4, 4, filters())
    assert_equal(speculated(target, proposals(draft, None, k), k), joint(target, k + 1))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_draft_identical_to_the_target_is_always_kept(k: int) -> None:
    target = Toy(4, 5, filters(0.8))
    blocks = proposals(target, None, k)
    assert_equal(speculated(target, blocks, k), joint(target, k + 1))
    for ids, _, source in blocks:
        p = torch.cat([target.next(ids[:i]) for i in range(k)])
        assert acceptance(p[torch.arange(k), list(ids)], source.chance[0]).tolist() == [1.0] * k


@pytest.mark.parametrize("setting", ["plain", "top-p", "greedy"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_certain_draft_leaves_the_target_distribution_unchanged(setting: str, k: int) -> None:
    # n-gram: one block, whatever it is. Every block of three tokens is tried, so likely and unlikely ones are.
    target = Toy(3, 6, SETTINGS[setting])
    for ids in itertools.product(range(3), repeat=k):
        source = certain(torch.tensor([ids]), torch.float64)
        assert_equal(speculated(target, [(ids, 1.0, source)], k), joint(target, k + 1))


@pytest.mark.parametrize("setting", ["plain", "cool", "top-p"])
@pytest.mark.parametrize("k", [1, 2])
def test_a_draft_with_a_reduced_vocabulary(setting: str, k: int) -> None:
    target, draft = Toy(5, 7, SETTINGS[setting]), Toy(3, 8, SETTINGS[setting])
    support = torch.tensor([4, 0, 2])
    assert_equal(speculated(target, proposals(draft, support, k), k), joint(target, k + 1))


@pytest.mark.parametrize("k", [1, 2])
def test_a_draft_with_a_shorter_vocabulary(k: int) -> None:
    # Padded sizes of one tokenizer: the draft knows the first ids only.
    target, draft = Toy(5, 9, filters()), Toy(3, 10, filters())
    assert_equal(speculated(target, proposals(draft, None, k), k), joint(target, k + 1))


def test_another_temperature_of_the_draft_is_harmless() -> None:
    target, draft = Toy(4, 11, filters(1.3)), Toy(4, 12, filters(0.4))
    assert_equal(speculated(target, proposals(draft, None, 2), 2), joint(target, 3))


def test_ragged_rows_are_judged_as_each_row_alone() -> None:
    # Four rows, K = 2, 0, 3, 1, padded to 3, against the same rows one by one; random uniforms, fixed seed.
    torch.manual_seed(0)
    ks = [2, 0, 3, 1]
    for _ in range(50):
        target = torch.rand(sum(ks) + 4, 5, dtype=torch.float64).softmax(-1)
        values = torch.rand(4, 3, 5, dtype=torch.float64).softmax(-1)
        tokens = torch.randint(5, (4, 3))
        source = DraftDistribution(values.gather(2, tokens[..., None])[..., 0], values)
        uniforms = torch.rand(4, 3, dtype=torch.float64)
        first = torch.tensor([0, 3, 4, 8])
        together = verify(target, first, tokens, torch.tensor(ks), source, uniforms)
        for r, k in enumerate(ks):
            alone = verify(
                target[first[r] : first[r] + k + 1],
                torch.tensor([0]),
                tokens[r : r + 1, :k],
                torch.tensor([k]),
                DraftDistribution(source.chance[r : r + 1, :k], values[r : r + 1, :k]),
                uniforms[r : r + 1, :k],
            )
            assert int(together.kept[r]) == int(alone.kept)
            assert torch.equal(together.following[r], alone.following[0])


def test_the_greedy_shortcut_is_the_limit_of_the_general_rule() -> None:
    torch.manual_seed(1)
    for _ in range(50):
        logits = torch.randn(7, 3, dtype=torch.float64)
        tokens, ks, first = torch.randint(3, (2, 3)), torch.tensor([3, 2]), torch.tensor([0, 4])
        p = distribution(logits, Filters([0.0] * 7, [0] * 7, [1.0] * 7))
        verdict = verify(p, first, tokens, ks, certain(tokens, p.dtype), torch.rand(2, 3, dtype=torch.float64))
        kept, following = verify_greedy(best(logits), first, tokens, ks)
        assert torch.equal(verdict.kept, kept)
        assert torch.equal(verdict.following.argmax(-1), following)
        assert torch.equal(verdict.following.max(-1).values, torch.ones(2, dtype=torch.float64))
