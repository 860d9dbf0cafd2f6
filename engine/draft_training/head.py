"""The EAGLE-style head: one decoder layer that carries the target's last hidden state one token further.

Reference implementation for training and for tests; the engine has its own, incremental one. After Li et al. 2024,
"EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", with the target's final norm and embedding rows
as the output, and the unrolled training of "EAGLE-3" (Li et al. 2025).

Alignment. Index j holds the target's hidden state h[j] (before its final norm) of token x[j], and the embedding of
x[j+1]. Its output g[j] stands for h[j+1]: it predicts token x[j+2]. At depth d > 1 the hidden state at index j is
g[j-1] of depth d - 1. The rotary position of index j is j.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Sizes of the head; all but `output_size` are the target's own."""

    vocab_size: int
    output_size: int
    hidden_size: int = 576
    intermediate_size: int = 1536
    num_attention_heads: int = 9
    num_key_value_heads: int = 3
    head_dim: int = 64
    rope_theta: float = 100_000.0
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 8192
    model_type: str = "akc-eagle"

    @classmethod
    def of(cls, target: Mapping[str, Any], output_size: int) -> "HeadConfig":
        """A head for a target with this config.json."""
        sizes = {name: target[name] for name in cls.__dataclass_fields__ if name in target and name != "model_type"}
        return cls(**{**sizes, "output_size": output_size})

    def as_dict(self) -> dict[str, Any]:
        """What config.json holds."""
        return asdict(self)


class Attended(NamedTuple):
    """Keys and values of one depth, (batch, kv heads, indices, head size) each."""

    key: Tensor
    value: Tensor


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotate(x: Tensor, theta: float) -> Tensor:
    """Rotary embedding of (..., indices, head size) at positions 0, 1, ...; halves, not pairs."""
    count, size = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angle = torch.arange(count, dtype=torch.float32)[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Attention(nn.Module):
    """Grouped-query attention over the true indices of depth 1 and the chain of deeper ones."""

    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.config = c
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)

    def forward(self, x: Tensor, earlier: Sequence[Attended]) -> tuple[Tensor, Attended]:
        """`x` (batch, n, d) at depth `len(earlier) + 1`; `earlier` the keys and values of the depths before.

        Index j at depth D sees depth 1 up to index j - (D - 1), then index j - (D - d) of each depth d from 2 to D:
        just what a draft chain that starts at index j - (D - 1) has in its cache.
        """
        c = self.config
        batch, n, _ = x.shape
        groups = c.num_attention_heads // c.num_key_value_heads
        query = rotate(self.q_proj(x).view(batch, n, -1, c.head_dim).transpose(1, 2), c.rope_theta)
        key = rotate(self.k_proj(x).view(batch, n, -1, c.head_dim).transpose(1, 2), c.rope_theta)
        value = self.v_proj(x).view(batch, n, -1, c.head_dim).transpose(1, 2)
        mine = Attended(key, value)
        depths = [*earlier, mine]
        back = len(depths) - 1
        query = query.reshape(batch, c.num_key_value_heads, groups, n, c.head_dim) * c.head_dim**-0.5
        scores = query @ depths[0].key[:, :, None].transpose(-1, -2)
        hidden = torch.ones(n, n, dtype=torch.bool).triu(1 - back)
        chain = [_shift(depth.key, back - d) for d, depth in enumerate(depths[1:], 1)]
        logits = [scores.masked_fill(hidden, -torch.inf)]
        logits += [(query * k[:, :, None]).sum(-1, keepdim=True) for k in chain]
        weight = torch.cat(logits, -1).softmax(-1)
        mixed = weight[..., :n] @ depths[0].value[:, :, None]
        for d, depth in enumerate(depths[1:], 1):
            mixed = mixed + weight[..., n + d - 1 : n + d] * _shift(depth.value, back - d)[:, :, None]
        mixed = mixed.reshape(batch, c.num_attention_heads, n, c.head_dim).transpose(1, 2).reshape(batch, n, -1)
        return self.o_proj(mixed), mine


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """A Llama decoder layer."""

    def __init__(self, c: HeadConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c)

    def forward(self, x: Tensor, earlier: Sequence[Attended]) -> tuple[Tensor, Attended]:
        """Same shape as `x`, and this depth's keys and values."""
        mixed, mine = self.self_attn(self.input_layernorm(x), earlier)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), mine


class EagleHead(nn.Module):
    """The trained part. The target's final norm and embedding, which turn outputs into logits, stay with the target."""

    output_token_ids: Tensor

    def __init__(self, config: HeadConfig, output_token_ids: Tensor) -> None:
        super().__init__()
        self.config = config
        self.embed_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layer = Layer(config)
        self.register_buffer("output_token_ids", output_token_ids.to(torch.int32))

    def mix(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The layer's input from embeddings of x[j+1] and hidden states h[j], (batch, n, d) each."""
        out: Tensor = self.fc(torch.cat((self.embed_norm(embedded), self.hidden_norm(hidden)), -1))
        return out

    def forward(self, embedded: Tensor, hidden: Tensor, depths: int = 1) -> list[Tensor]:
        """Outputs g of each depth, (batch, n, d) each; at depth D the first D - 1 indices mean nothing.

        `embedded[:, j]` is the embedding of x[j+1], `hidden[:, j]` the target's h[j].
        """
        outputs: list[Tensor] = []
        seen: list[Attended] = []
        for _ in range(depths):
            out, mine = self.layer(self.mix(embedded, hidden), seen)
            seen.append(mine)
            outputs.append(out)
            hidden = torch.cat((hidden[:, :1], out[:, :-1]), 1)
        return outputs


def _shift(x: Tensor, by: int) -> Tensor:
    """Move (..., indices, size) `by` indices later, zeros in front."""
    return F.pad(x, (0, 0, by, 0))[..., : x.shape[-2], :] if by else x
