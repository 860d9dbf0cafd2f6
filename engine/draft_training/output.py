"""The parts of the target the head borrows: the embedding of tokens, the final norm, and embedding rows as outputs."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional as F


class TargetOutput:
    """Embedding and final norm of a folder with tied embeddings, in float32."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        if not config["tie_word_embeddings"]:
            raise ValueError(f"{folder} has an output head of its own; only tied embeddings are known")
        with safe_open(folder / "model.safetensors", "pt") as weights:
            self.embedding: Tensor = weights.get_tensor("model.embed_tokens.weight").float()
            self.norm: Tensor = weights.get_tensor("model.norm.weight").float()
            self.last_layer: dict[str, Tensor] = {}
            prefix = f"model.layers.{config['num_hidden_layers'] - 1}."
            for name in weights.keys():  # noqa: SIM118  (not a dict)
                if name.startswith(prefix):
                    self.last_layer[name.removeprefix(prefix)] = weights.get_tensor(name).float()
        self.config: dict[str, Any] = config
        self.eps: float = config["rms_norm_eps"]

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings (..., d) of token ids (...)."""
        return F.embedding(ids, self.embedding)

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Scores (..., vocabulary) of hidden states before the final norm, of all embedding rows or those given."""
        normed = F.rms_norm(hidden, (hidden.shape[-1],), self.norm, self.eps)
        return F.linear(normed, self.embedding if rows is None else rows)


def most_frequent(counts: Tensor, size: int, always: tuple[int, ...]) -> Tensor:
    """The `size` most frequent token ids and those of `always`, ascending; ties go to the smaller id.

    >>> most_frequent(torch.tensor([5.0, 0.0, 9.0, 5.0]), size=2, always=(1,)).tolist()
    [1, 2]
    """
    counts = counts.clone()
    counts[list(always)] = torch.inf
    return torch.sort(torch.sort(counts, descending=True, stable=True).indices[:size]).values
