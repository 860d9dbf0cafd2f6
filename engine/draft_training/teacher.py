"""The target as a writer: batched decoding on the CPU that hands out the hidden states it computes anyway.

A plain float32 Llama decoder with one cache slot per row. Training only; the engine's decoder does more.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F


class Teacher:
    """SmolLM2 (or another small Llama folder with tied embeddings) with `slots` rows of `room` tokens."""

    def __init__(self, folder: Path, slots: int, room: int) -> None:
        self.config = json.loads((folder / "config.json").read_text("utf-8"))
        weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.embedding = weights["model.embed_tokens.weight"]
        self.norm = weights["model.norm.weight"]
        self.eps: float = self.config["rms_norm_eps"]
        self._layers = [_Layer(weights, f"model.layers.{i}.") for i in range(self.config["num_hidden_layers"])]
        self._head = _pack(self.embedding)
        self._heads: int = self.config["num_attention_heads"]
        self._kv_heads: int = self.config["num_key_value_heads"]
        self._size: int = self.config["head_dim"]
        shape = (len(self._layers), 2, slots, self._kv_heads, room, self._size)
        self._cache = torch.zeros(shape)
        frequency = self.config["rope_theta"] ** (-torch.arange(0, self._size, 2) / self._size)
        angle = torch.arange(room)[:, None] * frequency
        self._cos, self._sin = angle.cos(), angle.sin()

    def prefill(self, slot: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Read a whole prompt, `ids` (n,), into an empty slot.

        Returns what the last layer takes in and what it gives out (before the final norm), (n, d) each.
        """
        n = len(ids)
        x, last = F.embedding(ids, self.embedding), torch.empty(0)
        cos, sin = self._cos[:n, None], self._sin[:n, None]
        for number, layer in enumerate(self._layers):
            last = x
            query, key, value = self._project(layer, x, cos, sin)
            self._cache[number, 0, slot, :, :n] = key.transpose(0, 1)
            self._cache[number, 1, slot, :, :n] = value.transpose(0, 1)
            mixed = F.scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                key.transpose(0, 1)[None],
                value.transpose(0, 1)[None],
                is_causal=True,
                enable_gqa=True,
            )
            x = layer.finish(x, mixed[0].transpose(0, 1).reshape(n, -1), self.eps)
        return last, x

    def decode(self, ids: Tensor, positions: Tensor) -> Tensor:
        """One token per slot, `ids` and `positions` (slots,); the hidden states before the final norm, (slots, d)."""
        slots, end = len(ids), int(positions.max()) + 1
        rows = torch.arange(slots)
        x = F.embedding(ids, self.embedding)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        hidden = (torch.arange(end)[None] > positions[:, None])[:, None, None]
        for number, layer in enumerate(self._layers):
            query, key, value = self._project(layer, x, cos, sin)
            keys, values = self._cache[number]
            keys[rows, :, positions] = key
            values[rows, :, positions] = value
            grouped = query.view(slots, self._kv_heads, -1, self._size) * self._size**-0.5
            scores = grouped @ keys[:slots, :, :end].transpose(-1, -2)
            mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values[:slots, :, :end]
            x = layer.finish(x, mixed.reshape(slots, -1), self.eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all tokens, (n, vocabulary), from hidden states (n, d) before the final norm."""
        return _linear(F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.eps), self._head)

    def _project(self, layer: "_Layer", x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = F.rms_norm(x, x.shape[-1:], layer.input_norm, self.eps)
        joined = _linear(normed, layer.qkv).view(len(x), -1, self._size)
        query, key, value = torch.split(joined, [self._heads, self._kv_heads, self._kv_heads], 1)
        return _rotate(query, cos, sin), _rotate(key, cos, sin), value


class _Layer:
    def __init__(self, weights: dict[str, Tensor], prefix: str) -> None:
        def stack(*names: str) -> Tensor:
            return _pack(torch.cat([weights[f"{prefix}{name}.weight"] for name in names]))

        self.input_norm = weights[f"{prefix}input_layernorm.weight"]
        self.post_norm = weights[f"{prefix}post_attention_layernorm.weight"]
        self.qkv = stack("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.out = stack("self_attn.o_proj")
        self.gate_up = stack("mlp.gate_proj", "mlp.up_proj")
        self.down = stack("mlp.down_proj")

    def finish(self, x: Tensor, mixed: Tensor, eps: float) -> Tensor:
        x = x + _linear(mixed, self.out)
        gate, up = _linear(F.rms_norm(x, x.shape[-1:], self.post_norm, eps), self.gate_up).chunk(2, -1)
        return x + _linear(F.silu(gate) * up, self.down)


def _pack(weight: Tensor) -> Tensor:
    """Reordered for oneDNN, which here is about twice as fast as a plain float32 product."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types here
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 128)
    return packed


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    if not weight.is_mkldnn:
        return F.linear(x, weight)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, None, "none", [], "")
    return out


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
