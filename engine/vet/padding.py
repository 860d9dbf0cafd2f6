"""A copy of a draft whose embedding and output have as many rows as the target's, the new ones zero.

vLLM compares the numbers of rows of target and draft. Models of one family share a tokenizer but are padded to
different sizes (Qwen2.5: 152064 rows at 72B, 151936 at .5B). A row that no token has is never looked up; its logit is
0, and the target rejects it in the rare step in which it wins. A safetensors file is 8 bytes of header length, a JSON
header, then the tensors' bytes, so rows can be added without reading the tensors.
"""

import json
import shutil
import struct
from pathlib import Path
from typing import Any, BinaryIO

from engine.vet.folder import FolderError

_PADDED = ("embed_tokens.weight", "lm_head.weight", "wte.weight")
_CHUNK = 1 << 24


def pad_to(draft: Path, out: Path, rows: int) -> list[str]:
    """Write a padded copy of the folder `draft` to `out`; returns the names of the padded tensors. Raises `FolderError`
    where `out` exists, the draft has no safetensors, or it has more rows than asked for.
    """
    if out.exists():
        raise FolderError(f"{out} exists; needed: a folder to be made")
    if not any(draft.glob("*.safetensors")):
        raise FolderError(f"{draft} has no .safetensors; convert its weights first")
    partial = out.with_name(out.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        padded = _write(draft, partial, rows)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return padded


def _write(draft: Path, partial: Path, rows: int) -> list[str]:
    padded: list[str] = []
    for file in draft.iterdir():
        if file.suffix == ".safetensors":
            padded += _pad_file(file, partial / file.name, rows)
        elif file.is_file() and file.name != "config.json":
            shutil.copy2(file, partial / file.name)
    if not padded:
        raise FolderError(f"{draft}: no tensor is named {' or '.join(_PADDED)}")
    config = json.loads((draft / "config.json").read_text(encoding="utf-8"))
    config.get("text_config", config)["vocab_size"] = rows
    (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return padded


def _pad_file(source: Path, target: Path, rows: int) -> list[str]:
    with source.open("rb") as reader, target.open("wb") as writer:
        size = struct.unpack("<Q", reader.read(8))[0]
        header: dict[str, Any] = json.loads(reader.read(size))
        start = 8 + size
        meta = header.pop("__metadata__", None)
        names = sorted(header, key=lambda name: header[name]["data_offsets"][0])
        new: dict[str, Any] = {} if meta is None else {"__metadata__": meta}
        padded, at = [], 0
        for name in names:
            entry = header[name]
            first, last = entry["data_offsets"]
            length, shape = last - first, list(entry["shape"])
            if name.endswith(_PADDED):
                if shape[0] > rows:
                    raise FolderError(f"{source}: {name} has {shape[0]} rows; the target has only {rows}")
                length = length // shape[0] * rows
                shape[0] = rows
                padded.append(name)
            new[name] = {"dtype": entry["dtype"], "shape": shape, "data_offsets": [at, at + length]}
            at += length
        text = json.dumps(new).encode()
        text += b" " * (-len(text) % 8)
        writer.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            first, last = header[name]["data_offsets"]
            reader.seek(start + first)
            _copy(reader, writer, last - first)
            wanted = new[name]["data_offsets"]
            _zeros(writer, wanted[1] - wanted[0] - (last - first))
    return padded


def _copy(reader: BinaryIO, writer: BinaryIO, length: int) -> None:
    while length:
        part = reader.read(min(length, _CHUNK))
        if not part:
            raise FolderError("a .safetensors file ends before its header says so")
        writer.write(part)
        length -= len(part)


def _zeros(writer: BinaryIO, length: int) -> None:
    while length:
        n = min(length, _CHUNK)
        writer.write(bytes(n))
        length -= n
