import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.models.gguf_folder import convert, hub_name, unpermute
from engine.models.progress import Progress
from engine.models.wheels import FetchError

from .conftest import llama_cpp_rows

QUIET = Progress(shown=False)


def test_unpermuting_inverts_the_pairing_of_rotary_rows() -> None:
    rows = np.arange(3 * 8, dtype=np.float32)[:, None] * np.ones((1, 5), np.float32)
    np.testing.assert_array_equal(unpermute(rows[llama_cpp_rows(3, 8)], heads=3), rows)


def test_the_config_holds_the_files_numbers(tiny_gguf: Path, tmp_path: Path) -> None:
    convert(tiny_gguf, tmp_path / "folder", QUIET)
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert (config["rope_theta"], config["rms_norm_eps"], config["vocab_size"]) == (5000.0, 1e-5, 263)
    assert config["tie_word_embeddings"] is True


def test_the_tokenizer_merges_splits_digits_and_keeps_special_tokens_whole(tiny_gguf: Path, tmp_path: Path) -> None:
    convert(tiny_gguf, tmp_path / "folder", QUIET)
    tokenizer = Tokenizer.from_file(str(tmp_path / "folder" / "tokenizer.json"))
    assert tokenizer.encode("he the 12<|im_end|>").tokens == ["he", "Ġthe", "Ġ", "1", "2", "<|im_end|>"]


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0.ffn_gate_inp.weight"])
def test_an_unknown_tensor_is_named(name: str) -> None:
    with pytest.raises(FetchError, match=name):
        hub_name(name)


def _file(path: Path, architecture: str, fields: dict[str, str]) -> Path:
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in fields.items():
        writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_another_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="architecture is 'mamba'; only 'llama'"):
        convert(_file(tmp_path / "a.gguf", "mamba", {}), tmp_path / "folder", QUIET)


def test_rope_scaling_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="rope scaling is 'yarn'"):
        convert(_file(tmp_path / "a.gguf", "llama", {"llama.rope.scaling.type": "yarn"}), tmp_path / "folder", QUIET)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"no field 'llama.embedding_length'"):
        convert(_file(tmp_path / "a.gguf", "llama", {}), tmp_path / "folder", QUIET)
    assert not (tmp_path / "folder").exists()
