"""An EAGLE-style head: one decoder layer that continues the target's own hidden states (Li et al. 2024).

The entry at position t is made of the embedding of token t + 1 and the target's hidden state at t before its final
norm; the head's output there guesses token t + 2. Past the last token the head goes on with its own output in place
of the target's state. Its logits are reduced to the tokens that matter, rows of the target's own embedding.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.core.cache import CacheRow, KVCache
from engine.core.config import ModelConfig, ModelError, read_json
from engine.core.drafts.decoder import CATCH_UP_CHUNK
from engine.core.drafts.draft import Ask, Picks, Proposal, backlog
from engine.core.folder import Weights
from engine.core.layout import Layout, Segment
from engine.core.linear import Linear
from engine.core.model import Decoder, DecoderLayer, RMSNorm

MODEL_TYPE = "akc-eagle"


class EagleState:
    """A request's cache row, and the target's hidden states that have not entered it yet.

    `row.length`: entries made from true hidden states. `known`: positions whose hidden state has been handed over.
    """

    __slots__ = ("known", "pending", "row")

    def __init__(self, row: CacheRow) -> None:
        self.row = row
        self.pending: deque[Tensor] = deque()
        self.known = 0

    def take(self, count: int) -> list[Tensor]:
        """The next `count` pending states, as few pieces."""
        pieces = []
        while count:
            piece = self.pending.popleft()
            if len(piece) > count:
                self.pending.appendleft(piece[count:])
                piece = piece[:count]
            pieces.append(piece)
            count -= len(piece)
        return pieces


class EagleDraft:
    """The draft of kind `eagle`. Steps at K = 0 cost nothing: states wait until a proposal takes them in one pass."""

    kind: Literal["eagle"] = "eagle"
    needs_hidden = True

    def __init__(self, folder: Path, target: Decoder, *, slots: int) -> None:
        settings = read_json(folder / "config.json")
        c = self._config = _config(settings, target.config)
        dtype, device = target.dtype, target.device
        weights = Weights(folder)
        self._target = target
        self._layer = DecoderLayer(weights, "layer.", c, dtype, device, packed=target.packed)
        d = c.hidden_size
        self._norm_token = RMSNorm(weights.get("embed_norm.weight", (d,), dtype).to(device), c.norm_eps)
        self._norm_hidden = RMSNorm(weights.get("hidden_norm.weight", (d,), dtype).to(device), c.norm_eps)
        self._mix = Linear(weights.get("fc.weight", (d, 2 * d), dtype).to(device), packed=target.packed)
        size = int(settings["output_size"])
        self._support = weights.get("output_token_ids", (size,), torch.long).to(device)
        if int(self._support.min()) < 0 or int(self._support.max()) >= target.config.vocab_size:
            raise ModelError(
                f"output_token_ids of {folder} leave the target's vocabulary of {target.config.vocab_size}"
            )
        self._head = Linear(target.embedding.index_select(0, self._support), packed=target.packed)
        self._cache = KVCache(1, slots, c.kv_heads, c.head_dim, target.max_len, dtype, device)
        self.max_len = target.max_len
        parts = (self._layer, self._mix, self._head, self._cache)
        self.memory_bytes = sum(part.memory_bytes for part in parts)

    def admit(self) -> EagleState:
        """An empty cache row."""
        return EagleState(self._cache.acquire())

    def observe(self, state: EagleState, hidden: Tensor) -> None:
        """Keep the target's states until they are needed, or rolled back."""
        # A copy: a view would keep the states of the whole batch's pass, prompts included, for as long as this request.
        state.pending.append(hidden.clone())
        state.known += len(hidden)

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """k tokens a row in as many passes as the largest k."""
        order = sorted(range(len(asks)), key=lambda i: asks[i].state.row.slot)
        picks = Picks(asks, self._target.device)
        read = backlog(_missing(ask) for ask in asks)
        passes = 0
        while behind := [i for i in order if _missing(asks[i]) > CATCH_UP_CHUNK]:
            self._sync(asks, behind)
            passes += 1
        states = self._sync(asks, order)
        picked = picks.add(0, order, self._logits(states))
        width = max(ask.k for ask in asks)
        for step in range(1, width):
            kept = [n for n, i in enumerate(order) if asks[i].k > step]
            if len(kept) < len(order):
                at = torch.tensor(kept, device=states.device)
                picked, states = picked[at], states[at]
            order = [order[n] for n in kept]
            # Entries made from the head's own output are guesses: written past the row's length, overwritten later.
            segments = [Segment(r.slot, r.length + step - 1, 1) for r in (asks[i].state.row for i in order)]
            states = self._forward(self._support[picked], states, self._layout(segments))
            picked = picks.add(step, order, self._logits(states))
        return picks.proposal(passes + width, self._support, read)

    def _sync(self, asks: Sequence[Ask], order: Sequence[int]) -> Tensor:
        """Make entries from pending hidden states, a chunk a row; the head's output at each row's last one."""
        segments: list[Segment] = []
        tokens: list[int] = []
        pieces: list[Tensor] = []
        for i in order:
            state: EagleState = asks[i].state
            start, count = state.row.length, min(_missing(asks[i]), CATCH_UP_CHUNK)
            segments.append(Segment(state.row.slot, start, count))
            tokens.extend(asks[i].tokens[start + 1 : start + count + 1])
            pieces.extend(state.take(count))
            state.row.length += count
        layout = self._layout(segments)
        device = self._target.device
        out = self._forward(torch.tensor(tokens, device=device), torch.cat(pieces), layout)
        if layout.tokens == len(segments):
            return out
        ends = [offset + s.size - 1 for offset, s in zip(layout.offsets, segments, strict=True)]
        return out.index_select(0, torch.tensor(ends, device=device))

    def _layout(self, segments: Sequence[Segment]) -> Layout:
        return Layout(segments, self._cache, self._config.heads // self._config.kv_heads, self._target.dtype)

    def _forward(self, tokens: Tensor, states: Tensor, layout: Layout) -> Tensor:
        embedded = self._norm_token(F.embedding(tokens, self._target.embedding))
        x = self._mix(torch.cat([embedded, self._norm_hidden(states)], dim=-1))
        turns = self._target.rotation.at(layout.positions)
        return self._layer(x, self._cache.layers[0], layout, turns)

    def _logits(self, states: Tensor) -> Tensor:
        return self._head(self._target.norm(states))

    def rollback(self, state: EagleState, length: int) -> None:
        """Drop the hidden states of positions from `length` on."""
        while state.known > length:
            piece = state.pending.pop()
            keep = max(0, len(piece) - (state.known - length))
            state.known -= len(piece) - keep
            if keep:
                state.pending.append(piece[:keep])

    def release(self, state: EagleState) -> None:
        """Give the cache row back."""
        self._cache.release(state.row)


def _missing(ask: Ask) -> int:
    # Entry t needs token t + 1: a sequence of n tokens has n - 1 of them.
    return len(ask.tokens) - 1 - int(ask.state.row.length)


def _config(settings: dict[str, Any], target: ModelConfig) -> ModelConfig:
    """The shape of the head's layer, which is the target's. Raises `ModelError` where `config.json` says otherwise."""
    needed = {
        "model_type": MODEL_TYPE,
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "intermediate_size": target.intermediate_size,
        "num_attention_heads": target.heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_dim,
        "rope_theta": target.rope_theta,
        "rms_norm_eps": target.norm_eps,
    }
    for key, value in needed.items():
        if settings.get(key) != value:
            raise ModelError(f"{key} of the eagle draft is {settings.get(key)!r}; this target needs {value!r}")
    if not isinstance(settings.get("output_size"), int):
        raise ModelError(f"output_size of the eagle draft is {settings.get('output_size')!r}; needed is a number")
    # A Llama layer without biases, whatever the target is.
    return replace(target, qkv_bias=False, out_bias=False, mlp_bias=False)
