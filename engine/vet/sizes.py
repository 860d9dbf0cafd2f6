"""Parameters and bytes of a decoder, from its configuration alone: what a decoding pass has to read."""

from collections.abc import Mapping
from typing import Any

_BITS = {"awq": 4, "gptq": 4, "awq_marlin": 4, "gptq_marlin": 4, "fp8": 8, "bitsandbytes": 8, "compressed-tensors": 8}


def parameters(config: Mapping[str, Any]) -> float | None:
    """Parameters of a Llama-like decoder (attention with grouped keys and values, gated feed-forward, experts), without
    norms and biases, which are below a thousandth. None where the configuration names its sizes otherwise.

    Qwen2.5-0.5B: 24 layers of 896, 14 heads of 64 with 2 of keys, feed-forward 4864, 151936 tied rows: 0.49e9.

    >>> small = dict(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
    ...     intermediate_size=4864, vocab_size=151936, tie_word_embeddings=True)
    >>> round(parameters(small) / 1e9, 3)
    0.494
    """
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"
    if not all(isinstance(config.get(name), int) for name in names):
        return None
    hidden, layers, heads, wide, vocabulary = (int(config[name]) for name in names)
    keys = int(config.get("num_key_value_heads") or heads)
    size = int(config.get("head_dim") or hidden // heads)
    attention = 2 * hidden * size * (heads + keys)
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 1)
    wide = int(config.get("moe_intermediate_size") or wide) if experts > 1 else wide
    feed_forward = 3 * hidden * wide * experts
    tied = bool(config.get("tie_word_embeddings"))
    return float(layers * (attention + feed_forward) + vocabulary * hidden * (1 if tied else 2))


def read_bytes(config: Mapping[str, Any]) -> float | None:
    """Bytes that one decoding pass reads: of all layers as stored, and of the output matrix (the embedding is looked
    up). Of experts only those that a token takes. Embedding and output stay in 16 bits under quantisation.

    >>> 2 * 1000 == read_bytes(dict(hidden_size=10, num_hidden_layers=0, num_attention_heads=1, intermediate_size=1,
    ...     vocab_size=100))
    True
    """
    total = parameters(config)
    if total is None:
        return None
    output = float(config["vocab_size"] * config["hidden_size"])
    layers = total - output * (1 if config.get("tie_word_embeddings") else 2)
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 1)
    if experts > 1:
        active = int(config.get("num_experts_per_tok") or 1)
        wide = int(config.get("moe_intermediate_size") or config["intermediate_size"])
        held = 3.0 * config["hidden_size"] * wide * config["num_hidden_layers"]
        layers -= held * (experts - active)
    quantised = config.get("quantization_config") or {}
    bits = quantised.get("bits") or _BITS.get(str(quantised.get("quant_method")), 16) if quantised else 16
    return layers * float(bits) / 8.0 + 2.0 * output
