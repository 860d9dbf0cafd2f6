"""Linear layers of a decoder: fused projections, and on CPUs the kernel that is quickest for a few tokens at a time.

Verifying K + 1 tokens must cost little more than decoding one, or speculation cannot pay. `F.linear` in float32 reads
the weights row by row and loses up to a factor of three between 1 and 4 tokens; oneDNN's kernels on weights packed in
blocks stay flat up to about ten. Which one wins depends on the CPU and the format, so it is measured at load.
"""

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_PACK_FOR_TOKENS = 8  # oneDNN chooses its block layout for this many rows; 8 was good from 1 to 256
_TRIAL_TOKENS = (1, 4, 8)
_TRIAL_ROUNDS = 3
_TRIAL_WEIGHTS = 1 << 16  # smaller matrices stay in the cache, where it does not matter


class Linear:
    """y = x Wᵀ + b for x of shape [tokens, inputs]; `packed` selects oneDNN's blocked weights.

    >>> layer = Linear(torch.tensor([[1.0, 2.0]]), torch.tensor([0.5]))
    >>> layer(torch.tensor([[3.0, 4.0]]))
    tensor([[11.5000]])
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, packed: bool = False) -> None:
        self.shape = (weight.shape[0], weight.shape[1])
        self.memory_bytes = weight.numel() * weight.element_size()
        self._bias = bias
        self._packed = packed
        if packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_FOR_TOKENS)
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, inputs] to [tokens, outputs]."""
        if self._packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return y
        return F.linear(x, self._weight, self._bias)

    def plus(self, x: Tensor, other: Tensor) -> Tensor:
        """`self(x) + other` in one pass where the kernel can do so."""
        if self._packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, "add")
            return y
        return F.linear(x, self._weight, self._bias).add_(other)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN's packed kernels exist here for this number format."""
    if device.type != "cpu" or not torch._C._has_mkldnn or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


@torch.inference_mode()
def packing_pays(weight: Tensor, clock: Callable[[], float] = time.perf_counter) -> bool:
    """Time both kernels on (a copy of) `weight` at 1, 4 and 8 tokens; true if the packed one is quicker in all.

    The copies are made large enough to come from memory, not from the cache: that is where a decoder's weights are.
    """
    if weight.numel() < _TRIAL_WEIGHTS or not can_pack(weight.device, weight.dtype):
        return False
    copies = max(2, min(16, (96 << 20) // max(1, weight.numel() * weight.element_size())))
    plain = [Linear(weight.clone()) for _ in range(copies)]
    packed = [Linear(weight, packed=True) for _ in range(copies)]
    xs = [torch.ones(n, weight.shape[1], dtype=weight.dtype) for n in _TRIAL_TOKENS]
    best = {False: 0.0, True: 0.0}
    for x in xs:
        for kind, layers in ((False, plain), (True, packed)):
            trials = []
            for _ in range(_TRIAL_ROUNDS):
                start = clock()
                for layer in layers:
                    layer(x)
                trials.append(clock() - start)
            best[kind] += min(trials)
    return best[True] < best[False]
