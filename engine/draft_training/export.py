"""The head as a folder: config.json and model.safetensors in float16, norms included."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.draft_training.head import EagleHead, HeadConfig


def save_head(head: EagleHead, folder: Path) -> None:
    """Write config.json and model.safetensors into `folder`. Raises `ValueError` where float16 cannot hold a weight."""
    tensors = {}
    for name, tensor in head.state_dict().items():
        stored = tensor if name == "output_token_ids" else tensor.to(torch.float16)
        if not torch.isfinite(stored).all():
            raise ValueError(f"{name} has weights up to {tensor.abs().max():g}; float16 ends at 65504")
        tensors[name] = stored.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    config = {**head.config.as_dict(), "torch_dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def load_head(folder: Path) -> EagleHead:
    """The head of a folder, in float32. Raises `ValueError` if the folder holds another kind of model."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if config.get("model_type") != "akc-eagle":
        raise ValueError(f"{folder} holds {config.get('model_type')!r}; only 'akc-eagle' is a head")
    del config["torch_dtype"]
    tensors = load_file(folder / "model.safetensors")
    head = EagleHead(HeadConfig(**config), tensors["output_token_ids"])
    head.load_state_dict({name: t if name == "output_token_ids" else t.float() for name, t in tensors.items()})
    return head
