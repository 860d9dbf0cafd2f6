"""What a folder must have, and what the error says when it has not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.core import Engine, ModelConfig, ModelError
from engine.core.device import resolve_device, resolve_dtype
from engine.core.folder import Weights
from engine.core.model import Decoder

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def test_both_spellings_of_rope_theta_and_dtype_are_read() -> None:
    old = ModelConfig.from_json({**LLAMA, "rope_theta": 5e5, "torch_dtype": "bfloat16", "rope_scaling": None})
    new = ModelConfig.from_json(
        {**LLAMA, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "dtype": "bfloat16"}
    )
    assert old == new
    assert (old.rope_theta, old.dtype, old.head_dim, old.q_size, old.kv_size) == (5e5, "bfloat16", 8, 32, 16)


def test_qwen2_has_biases_on_its_inner_projections_only() -> None:
    config = ModelConfig.from_json({**LLAMA, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, False, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
            r"model_type is 'gpt2' .*GPT2LMHeadModel.*llama",
        ),
        ({"architectures": ["LlamaForSequenceClassification"]}, r"LlamaForSequenceClassification.*LlamaForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, r"rope scaling is 'llama3'; supported is 'default'"),
        ({"rope_scaling": {"type": "linear"}}, r"rope scaling is 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"rope scaling is 'yarn'"),
        ({"use_sliding_window": True}, r"use_sliding_window is True; supported is False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, r"layer_types has sliding_attention"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config is {'bits': 4}; supported is None"),
        ({"hidden_act": "gelu"}, r"hidden_act is 'gelu'; supported is 'silu'"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor is 0.5"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads is 3; it must divide num_attention_heads, which is 4"),
        ({"head_dim": 7}, r"head_dim is 7"),
        ({"vocab_size": None}, r"vocab_size is None; config.json must give a whole number"),
        ({"hidden_size": "32"}, r"hidden_size is '32'"),
        ({"num_hidden_layers": 0}, r"layers is 0; it must be at least 1"),
        ({"rms_norm_eps": 0}, r"rms_norm_eps 0.0; both must be above 0"),
        ({"max_position_embeddings": 1}, r"max_position_embeddings is 1"),
    ],
)
def test_what_cannot_run_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ModelConfig.from_json({**LLAMA, **change})


def test_a_folder_without_its_parts_is_named(tmp_path: Path, make_llama: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match=r"nowhere.config\.json cannot be read: No such file"):
        ModelConfig.from_folder(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="is not a folder"):
        Weights(tmp_path / "nowhere")
    folder = make_llama()
    (folder / "model.safetensors").rename(folder / "weights.bin")
    with pytest.raises(ModelError, match=r"neither model.safetensors nor model.safetensors.index.json; it has config"):
        Weights(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="holds a list; needed is an object"):
        ModelConfig.from_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is not valid JSON"):
        ModelConfig.from_folder(folder)


def test_broken_weights_are_named(make_llama: Callable[..., Path]) -> None:
    folder = make_llama(shard="40KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    weights = Weights(folder)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(48,\); config.json asks for \(7,\)"):
        weights.get("model.norm.weight", (7,), torch.float32)
    with pytest.raises(ModelError, match=r"no tensor 'lm_head\.weight'"):
        weights.get("lm_head.weight", (1,), torch.float32)
    index = folder / "model.safetensors.index.json"
    whole = index.read_text()
    index.write_text(whole.replace(shards[1].name, shards[0].name))
    with pytest.raises(ModelError, match=rf"{shards[0].name} has no tensor"):
        Decoder(folder, dtype=torch.float32, device=torch.device("cpu"), max_len=8)
    index.write_text("{}")
    with pytest.raises(ModelError, match="has no weight_map"):
        Weights(folder)
    index.write_text(whole)
    shards[0].write_bytes(b"broken")
    with pytest.raises(ModelError, match=rf"{shards[0].name} cannot be read"):
        Decoder(folder, dtype=torch.float32, device=torch.device("cpu"), max_len=8)
    shards[0].unlink()
    with pytest.raises(ModelError, match=rf"{shards[0].name} cannot be read"):
        Decoder(folder, dtype=torch.float32, device=torch.device("cpu"), max_len=8)


def test_settings_of_the_engine_are_checked(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="max_batch is 0; it must be at least 1"):
        Engine(llama, max_batch=0)
    with pytest.raises(ModelError, match="a draft cannot be called 'none'"):
        Engine(llama, {"none": "ngram"})
    with pytest.raises(ModelError, match="dtype is 'int3'; allowed are auto, float32"):
        Engine(llama, dtype="int3")
    with pytest.raises(ModelError, match="device is 'tpu:x'"):
        Engine(llama, device="tpu:x")
    with pytest.raises(ModelError, match="device is 'meta'; this machine offers cpu"):
        resolve_device("meta")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ModelError, match="model_type is 'mamba'"):
        Engine(llama, {"m": tmp_path})


def test_auto_takes_bfloat16_only_where_the_cpu_multiplies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for offers, expected in (
        ({"avx2": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda offers=offers: offers, raising=False)
        assert resolve_dtype("auto", cpu) == expected
