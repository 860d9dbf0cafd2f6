"""Tiny decoders with random weights, written as Hugging Face folders by `transformers`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from engine.draft_training.export import save_head
from engine.draft_training.head import EagleHead, HeadConfig

TEXT = ["the quick brown fox jumps over the lazy dog, and the dog sleeps", "def add(a, b): return a + b", "0123456789"]
TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('unknown role ' + m.role) }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 320
STOP = 2  # <|im_end|>


def write_tokenizer(folder: Path) -> None:
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    rust.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    rust.save(str(folder / "tokenizer.json"))
    settings = {"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "bos_token": {"content": "<|im_start|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP}))


def _settings(changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "eos_token_id": STOP,
        "initializer_range": 0.2,  # large enough for varied outputs
        **changes,
    }


def write_llama(folder: Path, seed: int = 0, shard: str = "5GB", **changes: Any) -> Path:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**_settings({"tie_word_embeddings": True, **changes})))
    model.save_pretrained(folder, max_shard_size=shard)
    write_tokenizer(folder)
    return folder


def write_qwen2(folder: Path, seed: int = 0, shard: str = "5GB", **changes: Any) -> Path:
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(Qwen2Config(**_settings({"tie_word_embeddings": False, **changes})))
    with torch.no_grad():
        for layer in model.model.layers:  # biases start at zero; the test would not see them
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                part.bias.normal_(std=0.3)
    model.save_pretrained(folder, max_shard_size=shard)
    write_tokenizer(folder)
    return folder


def write_eagle(folder: Path, seed: int = 5, **changes: Any) -> Path:
    """A random head for the tiny llama."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCABULARY,
        "output_size": 100,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        **changes,
    }
    config = HeadConfig(**sizes)
    save_head(EagleHead(config, torch.randperm(VOCABULARY)[: config.output_size].sort().values), folder)
    return folder


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller decoder with the same tokenizer, a padded vocabulary of another size, and little context."""
    folder = tmp_path_factory.mktemp("draft")
    return write_llama(folder, seed=1, num_hidden_layers=1, vocab_size=VOCABULARY - 8, max_position_embeddings=96)


@pytest.fixture(scope="session")
def self_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's own weights as a draft: everything greedy is accepted."""
    return write_llama(tmp_path_factory.mktemp("self"))


@pytest.fixture(scope="session")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eagle(tmp_path_factory.mktemp("eagle"))


@pytest.fixture(scope="session")
def sources(draft_folder: Path, self_draft: Path, eagle: Path) -> dict[str, str | Path]:
    """A draft of every kind, by the names in `batches.DRAFTS`."""
    return {"ngram": "ngram", "small": draft_folder, "self": self_draft, "eagle": eagle}


@pytest.fixture
def make_llama(tmp_path: Path) -> Callable[..., Path]:
    return lambda **changes: write_llama(tmp_path / "made", **changes)
