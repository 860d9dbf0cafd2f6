"""A llama.cpp GGUF file as a Hugging Face folder: weights, config, tokenizer.

Covers what SmolLM2's file holds: architecture `llama`, a `gpt2` vocabulary with the `smollm` pre-tokenizer, any tensor
type the `gguf` library can dequantise. Anything else raises `FetchError` naming it.

Weights are stored in bfloat16, the type the model was trained and published in: half the size of float32 and the same
numbers for every reader. What the rounding adds (relative 2^-9) is small beside the 4-bit blocks' own error.
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.models.progress import Progress
from engine.models.wheels import FetchError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from gguf import GGUFReader
    from tokenizers import Tokenizer

    Matrix = npt.NDArray[np.float32]

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3  # token type of special tokens


def hub_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor.

    >>> hub_name("blk.3.ffn_down.weight")
    'model.layers.3.mlp.down_proj.weight'
    """
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in _INSIDE:
        raise FetchError(f"the GGUF file has a tensor {name!r}; known are {', '.join([*_OUTSIDE, *_INSIDE])}")
    return f"model.layers.{match[1]}.{_INSIDE[match[2]]}.weight"


def unpermute(weight: "Matrix", heads: int) -> "Matrix":
    """Rows of q or k (heads * size, d) in the order of rotary halves, from llama.cpp's order of rotary pairs.

    llama.cpp rotates rows (2i, 2i+1) of a head together, Hugging Face rows (i, i + size/2).

    >>> import numpy as np
    >>> unpermute(np.arange(4, dtype=np.float32)[:, None], heads=1).ravel().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    rows, width = weight.shape
    half = rows // heads // 2
    return weight.reshape(heads, half, 2, width).swapaxes(1, 2).reshape(rows, width)


def convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write `folder` (new) from the file `gguf`. Not atomic: the caller gives it its final name when it is whole."""
    from gguf import GGUFReader

    reader = GGUFReader(str(gguf))
    config = _config(reader)
    folder.mkdir()
    _write_weights(reader, config, folder / "model.safetensors", progress)
    with progress.stage("write the tokenizer", 1):
        build_tokenizer(reader).save(str(folder / "tokenizer.json"))
        for name, content in (
            ("config.json", config),
            ("tokenizer_config.json", _tokenizer_config(reader)),
            ("generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}),
        ):
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (folder / name).write_text(text, "utf-8")


def _field(reader: "GGUFReader", key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise FetchError(f"the GGUF file has no field {key!r}")
    return field.contents()


def _config(reader: "GGUFReader") -> dict[str, Any]:
    architecture = _field(reader, "general.architecture")
    if architecture != "llama":
        raise FetchError(f"the GGUF file's architecture is {architecture!r}; only 'llama' is known")
    scaling = reader.get_field("llama.rope.scaling.type")
    if scaling is not None and scaling.contents() != "none":
        raise FetchError(f"the GGUF file's rope scaling is {scaling.contents()!r}; only none is known")
    hidden, heads = _field(reader, "llama.embedding_length"), _field(reader, "llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(_field(reader, "tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": _field(reader, "llama.context_length"),
        # float32 in the file: seven digits are what was written
        "rms_norm_eps": float(f"{_field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(f"{_field(reader, 'llama.rope.freq_base'):.6g}"),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }


def _write_weights(reader: "GGUFReader", config: dict[str, Any], path: Path, progress: Progress) -> None:
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    with progress.stage("convert the weights", len(reader.tensors)) as advance:
        for done, tensor in enumerate(reader.tensors, 1):
            weight = dequantize(tensor.data, tensor.tensor_type)
            kind = tensor.name.split(".")[-2]
            if kind in heads:
                weight = unpermute(weight, heads[kind])
            weights[hub_name(tensor.name)] = torch.from_numpy(weight.copy()).to(torch.bfloat16)
            advance(done)
        save_file(weights, path, metadata={"format": "pt"})
        path.chmod(0o644)  # safetensors makes it readable by its owner only


def build_tokenizer(reader: "GGUFReader") -> "Tokenizer":
    """The tokenizer of the file's vocabulary: digits one by one, then byte-level BPE; control tokens are special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, split = _field(reader, "tokenizer.ggml.model"), _field(reader, "tokenizer.ggml.pre")
    if (kind, split) != ("gpt2", "smollm"):
        raise FetchError(f"the GGUF file's tokenizer is {kind!r} with {split!r}; only 'gpt2' with 'smollm' is known")
    tokens, types = _field(reader, "tokenizer.ggml.tokens"), _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _tokenizer_config(reader: "GGUFReader") -> dict[str, Any]:
    tokens = _field(reader, "tokenizer.ggml.tokens")

    def token(role: str) -> str:
        return str(tokens[_field(reader, f"tokenizer.ggml.{role}_token_id")])

    return {
        # not GPT2Tokenizer: that class would build its own splitting, without the digits
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "model_max_length": _field(reader, "llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": _field(reader, "tokenizer.chat_template"),
    }
