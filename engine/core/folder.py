"""Weights of a Hugging Face folder: one safetensors file, or several behind an index; read one tensor at a time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.core.config import ModelError, read_json

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class Weights:
    """The tensors of a folder by name, memory-mapped until asked for.

    Raises `ModelError` when the folder has no safetensors, a shard is missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ModelError(f"{folder} is not a folder; needed is a Hugging Face model folder")
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._where: Mapping[str, str] = self._index()

    def _index(self) -> Mapping[str, str]:
        if (self.folder / _SINGLE).is_file():
            return dict.fromkeys(self._open(_SINGLE).keys(), _SINGLE)
        if not (self.folder / _INDEX).is_file():
            found = sorted(p.name for p in self.folder.iterdir())
            raise ModelError(
                f"{self.folder} has neither {_SINGLE} nor {_INDEX}; it has {', '.join(found) or 'nothing'}"
            )
        where = read_json(self.folder / _INDEX).get("weight_map")
        if not isinstance(where, dict):
            raise ModelError(f"{self.folder / _INDEX} has no weight_map")
        return where

    def _open(self, name: str) -> Any:
        if name not in self._files:
            try:
                self._files[name] = safe_open(self.folder / name, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{self.folder / name} cannot be read: {error}") from error
        return self._files[name]

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def get(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor `name` as `dtype`. Raises `ModelError` when it is missing or its shape is not `shape`."""
        if name not in self._where:
            raise ModelError(f"{self.folder} has no tensor {name!r}")
        try:
            tensor: Tensor = self._open(self._where[name]).get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{self.folder / self._where[name]} has no tensor {name!r}: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{name} has shape {tuple(tensor.shape)}; config.json asks for {shape}")
        return tensor.to(dtype)
