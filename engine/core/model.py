"""A Llama- or Qwen2-type decoder: one forward pass over a ragged batch, layers written for few tokens at a time."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.core.cache import KVCache
from engine.core.config import ModelConfig
from engine.core.folder import Weights
from engine.core.layout import Layout, Run, Segment
from engine.core.linear import Linear, packing_pays


class RMSNorm:
    """x / rms(x) x weight over the last axis (Zhang & Sennrich 2019)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self._shape = (weight.shape[0],)
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, width] to the same shape."""
        return F.rms_norm(x, self._shape, self.weight, self._eps)


class Rotation:
    """Rotary position embedding (Su et al. 2021) as a table of unit complex numbers, one row a position.

    Expects the two coordinates of a pair side by side: `interleaved` puts the rows of a projection in that order.
    Scores do not change when queries and keys are permuted alike.
    """

    def __init__(self, head_dim: int, theta: float, positions: int, device: torch.device) -> None:
        # float32 throughout, as the reference implementation has it: at position 1000 another order of rounding
        # already shows in the sixth digit of a logit.
        powers = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * (1.0 / theta**powers)
        self._table = torch.complex(angles.cos(), angles.sin())[:, None, :]

    def at(self, positions: Tensor) -> Tensor:
        """Rows of the table for [tokens] positions: [tokens, 1, head_dim / 2], complex."""
        return self._table.index_select(0, positions)

    @staticmethod
    def interleaved(weight: Tensor, heads: int) -> Tensor:
        """Reorder outputs (i, i + half) of every head to (2 i, 2 i + 1); weight [heads x head_dim, ...]."""
        split = weight.view(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        return split.transpose(1, 2).reshape(weight.shape)

    @staticmethod
    def turn(x: Tensor, by: Tensor) -> Tensor:
        """Rotate x [tokens, heads, head_dim] (in place for float32)."""
        pairs = x.view(*x.shape[:-1], -1, 2)
        if x.dtype == torch.float32:
            torch.view_as_complex(pairs).mul_(by)
            return x
        wide = torch.view_as_complex(pairs.to(torch.float32 if x.dtype != torch.float64 else torch.float64))
        return torch.view_as_real(wide * by).to(x.dtype).flatten(-2)


class DecoderLayer:
    """Attention and gated MLP with a residual each. `prefix` names the layer's tensors, up to and with the dot."""

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        *,
        packed: bool | None = None,
    ) -> None:
        c = self._config = config
        d, f = c.hidden_size, c.intermediate_size

        def get(name: str, *shape: int) -> Tensor:
            return weights.get(prefix + name, shape, dtype)

        def bias(name: str, size: int, *, present: bool) -> Tensor | None:
            return get(name, size) if present else None

        def qkv(kind: str, *shape: int) -> Tensor:
            q = get(f"self_attn.q_proj.{kind}", c.q_size, *shape)
            k = get(f"self_attn.k_proj.{kind}", c.kv_size, *shape)
            v = get(f"self_attn.v_proj.{kind}", c.kv_size, *shape)
            return torch.cat([Rotation.interleaved(q, c.heads), Rotation.interleaved(k, c.kv_heads), v])

        def gate_up(kind: str, *shape: int) -> Tensor:
            return torch.cat([get(f"mlp.{name}_proj.{kind}", f, *shape) for name in ("gate", "up")])

        wide = gate_up("weight", d).to(device)
        self.packed = packing_pays(wide) if packed is None else packed

        def linear(weight: Tensor, offset: Tensor | None) -> Linear:
            return Linear(weight.to(device), None if offset is None else offset.to(device), packed=self.packed)

        self._norm_in = RMSNorm(get("input_layernorm.weight", d).to(device), c.norm_eps)
        self._norm_mlp = RMSNorm(get("post_attention_layernorm.weight", d).to(device), c.norm_eps)
        self._qkv = linear(qkv("weight", d), qkv("bias") if c.qkv_bias else None)
        out_bias = bias("self_attn.o_proj.bias", d, present=c.out_bias)
        self._out = linear(get("self_attn.o_proj.weight", d, c.q_size), out_bias)
        self._gate_up = linear(wide, gate_up("bias") if c.mlp_bias else None)
        self._down = linear(get("mlp.down_proj.weight", d, f), bias("mlp.down_proj.bias", d, present=c.mlp_bias))
        self.memory_bytes = sum(m.memory_bytes for m in (self._qkv, self._out, self._gate_up, self._down))

    def __call__(self, x: Tensor, cached: Tensor, layout: Layout, turns: Tensor) -> Tensor:
        """x [tokens, hidden] to the same; writes keys and values into `cached` (one layer of a `KVCache`)."""
        c = self._config
        qkv = self._qkv(self._norm_in(x)).view(x.shape[0], -1, c.head_dim)
        turned = c.heads + c.kv_heads
        rotated = Rotation.turn(qkv[:, :turned], turns)
        if rotated.dtype == torch.float32:  # turned in place
            keys_values = qkv[:, c.heads :]
        else:
            keys_values = torch.cat([rotated[:, c.heads :], qkv[:, turned:]], dim=1)
        cached.view(-1, c.head_dim).index_copy_(0, layout.write, keys_values.reshape(-1, c.head_dim))
        queries = rotated[:, : c.heads]
        parts = [_attend(queries, cached, run, c) for run in layout.runs]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        x = self._out.plus(attended, x)
        gate, up = self._gate_up(self._norm_mlp(x)).chunk(2, dim=-1)
        return self._down.plus(F.silu(gate).mul_(up), x)


def _attend(queries: Tensor, cached: Tensor, run: Run, c: ModelConfig) -> Tensor:
    """Attention of one run: [tokens, heads, head_dim] to [tokens of the run, heads x head_dim].

    The query heads that share a key head are stacked along the query axis, so keys and values are read once and never
    repeated in memory.
    """
    q = queries[run.begin : run.end]
    if run.pad is not None:
        q = q.index_select(0, run.pad)
    rows, group = run.last - run.first, c.heads // c.kv_heads
    q = q.reshape(rows, run.queries, c.kv_heads, group, c.head_dim).permute(0, 2, 3, 1, 4)
    q = q.reshape(rows, c.kv_heads, group * run.queries, c.head_dim)
    held = cached[run.first : run.last, :, : run.length]
    out = F.scaled_dot_product_attention(q, held[:, : c.kv_heads], held[:, c.kv_heads :], run.mask)
    out = out.view(rows, c.kv_heads, group, run.queries, c.head_dim).permute(0, 3, 1, 2, 4)
    out = out.reshape(rows * run.queries, c.heads * c.head_dim)
    return out if run.unpad is None else out.index_select(0, run.unpad)


class Decoder:
    """A whole decoder, loaded from a Hugging Face folder. Raises `ModelError` for folders it cannot run.

    `max_len`: positions per request, at most the model's own. `packed`: the CPU kernel; None measures.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_len: int,
        packed: bool | None = None,
    ) -> None:
        c = self.config = ModelConfig.from_folder(folder)
        self.dtype = dtype
        self.device = device
        self.max_len = min(max_len, c.max_position)
        weights = Weights(folder)
        self.embedding = weights.get("model.embed_tokens.weight", (c.vocab_size, c.hidden_size), dtype).to(device)
        self.layers: list[DecoderLayer] = []
        for i in range(c.layers):
            layer = DecoderLayer(weights, f"model.layers.{i}.", c, dtype, device, packed=packed)
            packed = layer.packed
            self.layers.append(layer)
        self.packed = bool(packed)
        self.norm = RMSNorm(weights.get("model.norm.weight", (c.hidden_size,), dtype).to(device), c.norm_eps)
        head = self.embedding
        if not c.tied:
            head = weights.get("lm_head.weight", (c.vocab_size, c.hidden_size), dtype).to(device)
        self.head = Linear(head, packed=self.packed)
        self.rotation = Rotation(c.head_dim, c.rope_theta, self.max_len, device)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the weights."""
        table = self.embedding.numel() * self.embedding.element_size()
        copies = 1 if self.config.tied and not self.packed else 2
        return sum(layer.memory_bytes for layer in self.layers) + copies * table

    def cache(self, slots: int) -> KVCache:
        """An empty cache for `slots` requests."""
        c = self.config
        return KVCache(c.layers, slots, c.kv_heads, c.head_dim, self.max_len, self.dtype, self.device)

    def layout(self, segments: Sequence[Segment], cache: KVCache) -> Layout:
        """The indices that `forward` needs for these segments."""
        return Layout(segments, cache, self.config.heads // self.config.kv_heads, self.dtype)

    def forward(self, ids: Tensor, layout: Layout, cache: KVCache) -> Tensor:
        """Token ids [tokens] to the last hidden state before the final norm, [tokens, hidden]; fills the cache."""
        turns = self.rotation.at(layout.positions)
        x = F.embedding(ids, self.embedding)
        for layer, cached in zip(self.layers, cache.layers, strict=True):
            x = layer(x, cached, layout, turns)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [positions, hidden] before the final norm to logits [positions, vocabulary]."""
        return self.head(self.norm(hidden))
