"""From logits to the distribution that a request samples from, and from a uniform number to a token. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# A nucleus rarely needs more than the first of these many candidates; sorting all 49k of them takes 3 ms a row.
_NUCLEUS_WIDTHS = (128, 2048)
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Filters:
    """How each of R rows samples: temperature >= 0 (0: greedy), top_k >= 0 (0: all), 0 < top_p <= 1."""

    temperature: Sequence[float]
    top_k: Sequence[int]
    top_p: Sequence[float]

    def rows(self, index: Sequence[int]) -> "Filters":
        """The filters of rows `index`, in that order, repeats allowed."""
        return Filters(
            [self.temperature[i] for i in index], [self.top_k[i] for i in index], [self.top_p[i] for i in index]
        )


def distribution(logits: Tensor, filters: Filters) -> Tensor:
    """Probabilities [R, V] of logits [R, V]: temperature, then top-k, then top-p (Holtzman et al. 2020).

    Temperature 0 is the limit, all mass on the largest logit (the first of equals). Top-p keeps the smallest set of
    most probable tokens whose mass reaches p; tokens tied with its last one stay. In the floating type of `logits`,
    half precision in float32.

    >>> distribution(torch.tensor([[2.0, 1.0, 0.0]]), Filters([0.0], [0], [1.0]))
    tensor([[1., 0., 0.]])
    >>> logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> distribution(logits, Filters([1.0], [2], [1.0]))
    tensor([[0.6250, 0.3750, 0.0000]])
    >>> distribution(logits, Filters([1.0], [0], [0.5]))
    tensor([[1., 0., 0.]])
    """
    if logits.dtype in {torch.float16, torch.bfloat16}:
        logits = logits.float()
    warm = [t > 0 for t in filters.temperature]
    if not any(warm):
        return one_hot(best(logits), logits)
    scale = [t if t > 0 else 1.0 for t in filters.temperature]
    if any(s != 1.0 for s in scale):
        logits = logits / _column(scale, logits)
    size = logits.shape[-1]
    if any(0 < k < size for k in filters.top_k):
        logits = _top_k(logits, [k if 0 < k < size else size for k in filters.top_k])
    p = logits.softmax(-1)
    if any(share < 1 for share in filters.top_p):
        p = _top_p(p, filters.top_p)
    if not all(warm):
        cold = _column([not w for w in warm], logits, torch.bool)
        p = torch.where(cold, one_hot(best(logits), logits), p)
    return p


def _top_k(logits: Tensor, counts: Sequence[int]) -> Tensor:
    limited = [k for k in counts if k < logits.shape[-1]]
    ranked = logits.topk(max(limited), dim=-1).values
    at = torch.tensor([min(k, ranked.shape[-1]) - 1 for k in counts], device=logits.device)
    lowest = ranked.gather(-1, at[:, None])
    lowest = torch.where(_column([k == logits.shape[-1] for k in counts], logits, torch.bool), -torch.inf, lowest)
    return logits.masked_fill(logits < lowest, -torch.inf)


def _top_p(p: Tensor, shares: Sequence[float]) -> Tensor:
    share = _column(shares, p)
    for width in (*_NUCLEUS_WIDTHS, p.shape[-1]):
        ranked = p.topk(min(width, p.shape[-1]), dim=-1).values
        reached = ranked.cumsum(-1) >= share
        # Asking is a read-back from the device; only a CPU gets by with a part of the ranking.
        if ranked.shape[-1] == p.shape[-1] or bool((reached[:, -1] | (share[:, 0] >= 1)).all()):
            break
    at = torch.where(reached.any(-1), reached.int().argmax(-1), ranked.shape[-1] - 1)
    lowest = torch.where(share >= 1, torch.zeros_like(share), ranked.gather(-1, at[:, None]))
    p = p.masked_fill(p < lowest, 0)
    return p / p.sum(-1, keepdim=True)


def best(logits: Tensor) -> Tensor:
    """Index of the largest entry of each row, [R, V] to [R]; the first of equals.

    >>> best(torch.tensor([[1.0, 3.0, 3.0]]))
    tensor([1])
    """
    rows, size = logits.shape
    if logits.device.type != "cpu" or size % _BLOCK or size < 4 * _BLOCK:
        return logits.argmax(-1)
    # On a CPU argmax runs at a fifth of amax's speed: find the best block first, then the place within it.
    blocks = logits.view(rows, -1, _BLOCK)
    block = blocks.amax(-1).argmax(-1)
    inside = blocks[torch.arange(rows), block].argmax(-1)
    return block * _BLOCK + inside


def one_hot(tokens: Tensor, like: Tensor) -> Tensor:
    """All mass on one token a row: [R] to [R, V], V and the floating type of `like`."""
    return F.one_hot(tokens, like.shape[-1]).to(like.dtype)


def draw(p: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens [R] at quantiles `uniforms` [R] in [0, 1) of distributions [R, V] (not necessarily normalised).

    Never a token of probability 0, whatever the rounding.

    >>> draw(torch.tensor([[0.5, 0.0, 0.5]]).repeat(3, 1), torch.tensor([0.0, 0.49, 0.5]))
    tensor([0, 0, 2])
    """
    reach = p.cumsum(-1)
    total = reach[:, -1:]
    quantile = uniforms.to(p.dtype)[:, None] * total
    index = torch.searchsorted(reach, quantile, right=True)
    # u x total may round up to total, which nothing exceeds: take the last token that has mass.
    last = torch.searchsorted(reach, total.contiguous())
    return torch.minimum(index, last)[:, 0]


def _column(values: Sequence[float] | Sequence[bool], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.tensor(values, dtype=dtype or like.dtype, device=like.device)[:, None]
