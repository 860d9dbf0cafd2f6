"""Where and in which number format to compute."""

import torch

from engine.core.config import ModelError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    """`auto` is the GPU when there is one. Raises `ModelError` for a device that is not there.

    >>> resolve_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N") from None
    if device.type not in {"cpu", "cuda"} or (device.type == "cuda" and not torch.cuda.is_available()):
        raise ModelError(f"device is {name!r}; this machine offers cpu{' and cuda' * torch.cuda.is_available()}")
    return device


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for bf16 products; emulated ones lose more than the halved memory gains."""
    if device.type != "cpu":
        return True
    ask = getattr(torch.cpu, "get_capabilities", dict)  # older versions of torch cannot tell
    return any(has is True and "bf16" in name for name, has in ask().items())


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the device multiplies it natively, else float32. Raises `ModelError`.

    >>> resolve_dtype("float32", torch.device("cpu"))
    torch.float32
    """
    if name == "auto":
        return torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    if name not in _DTYPES:
        raise ModelError(f"dtype is {name!r}; allowed are auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
