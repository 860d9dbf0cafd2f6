"""Speculative sampling: which draft tokens to keep, and the token that follows them. Pure functions on probabilities.

Leviathan, Kalman & Matias 2023 (algorithm 1) and Chen et al. 2023 (algorithm 2): a draft token x, drawn from q, is
kept with probability min(1, p(x) / q(x)); the first one that is not is replaced by a draw from the normalised positive
part of p - q; after the last one kept a further token comes from p. The output then follows p exactly, whatever q is.

Rows are ragged: row r has ks[r] draft tokens, 0 included, in arrays padded to K. Nothing here reads a value back to
the host, and randomness comes in as uniform numbers, so that every branch can be enumerated.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class DraftDistribution(NamedTuple):
    """Where R rows of draft tokens were drawn from.

    `chance` [R, K]: probability q(token) of each token drawn. `values` [R, K, S]: probabilities of the S tokens that
    could be drawn. `support`: their ids, [S] or [R, K, S]; None: the first S ids of the target's vocabulary.
    """

    chance: Tensor
    values: Tensor
    support: Tensor | None = None


def certain(tokens: Tensor, dtype: torch.dtype) -> DraftDistribution:
    """The distribution of a draft that does not sample (n-gram): all mass on each of `tokens` [R, K]."""
    ones = torch.ones(tokens.shape, dtype=dtype, device=tokens.device)
    return DraftDistribution(ones, ones[..., None], tokens[..., None])


class Verdict(NamedTuple):
    """`kept` [R]: leading draft tokens to keep. `following` [R, V]: the distribution of the token after them."""

    kept: Tensor
    following: Tensor


def acceptance(p: Tensor, q: Tensor) -> Tensor:
    """Probability of keeping a token that the target gives probability p and the draft q: min(1, p / q).

    q = 0 cannot have been drawn; such a token (padding) is never kept.

    >>> acceptance(torch.tensor([0.2, 0.9, 0.0, 0.5]), torch.tensor([0.8, 0.3, 0.5, 0.0]))
    tensor([0.2500, 1.0000, 0.0000, 0.0000])
    """
    return torch.where(q > 0, p / q, torch.zeros_like(p)).clamp(max=1)


def leading(keep: Tensor, ks: Tensor) -> Tensor:
    """How many of the first ks[r] entries of each row are true before the first false one: [R, K], [R] to [R].

    >>> leading(torch.tensor([[True, True, False], [True, True, True]]), torch.tensor([3, 2]))
    tensor([2, 2])
    """
    inside = torch.arange(keep.shape[1], device=keep.device) < ks[:, None]
    return (keep & inside).cumprod(1).sum(1)


def residual(p: Tensor, values: Tensor, support: Tensor | None) -> Tensor:
    """The normalised positive part of p - q: what the target still owes after a draw from q was rejected.

    p [R, V]; q as `values` [R, S] on `support` ([S] or [R, S] ids, None: the first S). Where nothing is left, p is the
    draft's own distribution and a rejection has probability 0; p is returned.

    >>> residual(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.75, 0.25]]), None)
    tensor([[0., 1., 0.]])
    """
    rest = p.clone()
    if support is None:
        rest[:, : values.shape[1]] -= values
    else:
        rest.scatter_add_(1, support.expand_as(values), -values)
    rest.clamp_(min=0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total, p)


def verify(
    target: Tensor, first: Tensor, tokens: Tensor, ks: Tensor, draft: DraftDistribution, uniforms: Tensor
) -> Verdict:
    """Judge the draft tokens of R rows against the target.

    target [M, V]: its distributions at all positions, flat; row r's are first[r] .. first[r] + ks[r], the last of
    them after all its draft tokens. tokens [R, K], ks [R], uniforms [R, K] in [0, 1).

    >>> p = torch.tensor([[0.5, 0.5], [0.1, 0.9]])
    >>> tokens = torch.tensor([[0]])
    >>> row = torch.tensor([0]), tokens, torch.tensor([1]), certain(tokens, p.dtype)
    >>> verify(p, *row, torch.tensor([[0.4]]))
    Verdict(kept=tensor([1]), following=tensor([[0.1000, 0.9000]]))
    >>> verify(p, *row, torch.tensor([[0.6]]))
    Verdict(kept=tensor([0]), following=tensor([[0., 1.]]))
    """
    width = tokens.shape[1]
    if not width:
        return Verdict(torch.zeros_like(ks), target[first])
    steps = torch.arange(width, device=ks.device)
    at = first[:, None] + torch.minimum(steps, ks[:, None])
    kept = leading(uniforms < acceptance(target[at, tokens], draft.chance), ks)
    p = target[first + kept]
    rows = torch.arange(len(ks), device=ks.device)
    place = kept.clamp(max=width - 1)
    support = draft.support
    if support is not None and support.dim() == 3:
        support = support[rows, place]
    rest = residual(p, draft.values[rows, place], support)
    return Verdict(kept, torch.where((kept < ks)[:, None], rest, p))


def verify_greedy(choices: Tensor, first: Tensor, tokens: Tensor, ks: Tensor) -> tuple[Tensor, Tensor]:
    """The same in the limit of temperature 0: keep what equals the target's choice, then take its choice.

    choices [M]: the target's best token at all positions. Returns kept [R] and the token that follows [R].

    >>> choices = torch.tensor([5, 6, 7])
    >>> verify_greedy(choices, torch.tensor([0]), torch.tensor([[5, 9]]), torch.tensor([2]))
    (tensor([1]), tensor([6]))
    """
    width = tokens.shape[1]
    at = first[:, None] + torch.minimum(torch.arange(width, device=ks.device), ks[:, None])
    kept = leading(tokens == choices[at], ks)
    return kept, choices[first + kept]
