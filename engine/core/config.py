"""Shape of a decoder, read from the `config.json` of a Hugging Face folder and checked before any weight is read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_SUPPORTED = f"supported are {', '.join(f'{kind} ({name})' for kind, name in ARCHITECTURES.items())}"


class ModelError(ValueError):
    """A model folder that this engine cannot run; the message names the file or key, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama- or Qwen2-type decoder. Sizes are counts; `rope_theta` and `norm_eps` are positive.

    `stop_ids` are the end-of-sequence ids that the config names. Raises `ModelError` for sizes that do not fit.

    >>> ModelConfig("llama", 100, 64, 128, 2, 4, 3, 16, 512)
    Traceback (most recent call last):
    engine.core.config.ModelError: num_key_value_heads is 3; it must divide num_attention_heads, which is 4
    """

    kind: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    tied: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    stop_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for key in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim"):
            if getattr(self, key) < 1:
                raise ModelError(f"{key} is {getattr(self, key)}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise ModelError(
                f"num_key_value_heads is {self.kv_heads}; it must divide num_attention_heads, which is {self.heads}"
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary embedding needs an even number")
        if self.max_position < 2:
            raise ModelError(f"max_position_embeddings is {self.max_position}; it must be at least 2")
        if self.rope_theta <= 0 or self.norm_eps <= 0:
            raise ModelError(f"rope_theta is {self.rope_theta} and rms_norm_eps {self.norm_eps}; both must be above 0")

    @property
    def q_size(self) -> int:
        """Width of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `folder/config.json`. Raises `ModelError`."""
        return cls.from_json(read_json(folder / "config.json"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """Translate a `config.json`. Raises `ModelError` naming what is missing or not supported."""
        kind = data.get("model_type")
        if kind not in ARCHITECTURES:
            raise ModelError(f"model_type is {kind!r} (architectures {data.get('architectures')}); {_SUPPORTED}")
        named = data.get("architectures") or [ARCHITECTURES[kind]]
        if ARCHITECTURES[kind] not in named:
            raise ModelError(f"architectures is {named}; {_SUPPORTED}")
        _check_variants(data)
        heads = _need(data, "num_attention_heads")
        hidden = _need(data, "hidden_size")
        attention_bias = bool(data.get("attention_bias", False))
        return cls(
            kind=kind,
            vocab_size=_need(data, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_need(data, "intermediate_size"),
            layers=_need(data, "num_hidden_layers"),
            heads=heads,
            kv_heads=data.get("num_key_value_heads") or heads,
            head_dim=data.get("head_dim") or hidden // max(1, heads),
            max_position=data.get("max_position_embeddings", 2048),
            rope_theta=float(_rope(data).get("rope_theta") or data.get("rope_theta") or 10000.0),
            norm_eps=float(data.get("rms_norm_eps", 1e-6)),
            tied=bool(data.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2" or attention_bias,
            out_bias=kind == "llama" and attention_bias,
            mlp_bias=bool(data.get("mlp_bias", False)),
            stop_ids=as_ids(data.get("eos_token_id")),
            dtype=str(data.get("dtype") or data.get("torch_dtype") or "float32"),
        )


def as_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """A field that holds no id, one id or several.

    >>> as_ids(None), as_ids(2), as_ids([2, 7])
    ((), (2,), (2, 7))
    """
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `ModelError` naming the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}; a Hugging Face model folder has it") from error
    except ValueError as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ModelError(f"{path} holds a {type(data).__name__}; needed is an object")
    return data


def _need(data: Mapping[str, Any], key: str) -> int:
    value = data.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ModelError(f"{key} is {value!r}; config.json must give a whole number")
    return value


def _rope(data: Mapping[str, Any]) -> Mapping[str, Any]:
    # transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling.
    return data.get("rope_parameters") or data.get("rope_scaling") or {}


def _check_variants(data: Mapping[str, Any]) -> None:
    rope = _rope(data)
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    if rope_type != "default":
        raise ModelError(f"rope scaling is {rope_type!r}; supported is 'default' (none)")
    for key, allowed in (
        ("use_sliding_window", (None, False)),
        ("quantization_config", (None,)),
        ("hidden_act", (None, "silu")),
        ("partial_rotary_factor", (None, 1, 1.0)),
    ):
        if data.get(key) not in allowed:
            raise ModelError(f"{key} is {data[key]!r}; supported is {allowed[-1]!r}")
    other = sorted(set(data.get("layer_types") or ()) - {"full_attention"})
    if other:
        raise ModelError(f"layer_types has {', '.join(other)}; supported is full_attention")
