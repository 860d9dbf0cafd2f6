"""A local Hugging Face folder: its configuration and the tokens of its vocabulary."""

import json
from pathlib import Path
from typing import Any, NamedTuple

_CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


class FolderError(ValueError):
    """A folder that cannot be vetted; the message names the file and what is needed."""


class ModelFolder(NamedTuple):
    """`vocabulary`: token -> id, added tokens included. `size`: rows of the embedding, often padded beyond it."""

    path: Path
    config: dict[str, Any]
    vocabulary: dict[str, int]
    size: int

    @property
    def context(self) -> int | None:
        """Tokens of the longest sequence that the configuration names, None where it names none."""
        named = (self.config.get(key) for key in _CONTEXT)
        return next((length for length in named if isinstance(length, int) and length > 0), None)


def read_folder(path: Path) -> ModelFolder:
    """Read `config.json` and `tokenizer.json`. Raises `FolderError`."""
    config = _object(path / "config.json", "a model folder has one")
    config = config.get("text_config") or config  # multimodal models keep the language model's there
    size = config.get("vocab_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise FolderError(f"{path / 'config.json'}: vocab_size is {size!r}; needed: a whole number of 1 or more")
    vocabulary = _vocabulary(_object(path / "tokenizer.json", "save the tokenizer in its fast form there"), path)
    beyond = max(vocabulary.values(), default=0)
    if beyond >= size:
        raise FolderError(
            f"{path}: token {beyond} is beyond vocab_size {size}; tokenizer and model do not belong together"
        )
    return ModelFolder(path, config, vocabulary, size)


def _vocabulary(tokenizer: dict[str, Any], path: Path) -> dict[str, int]:
    model = tokenizer.get("model") or {}
    entries = model.get("vocab")
    if isinstance(entries, list):  # unigram: [token, score] in the order of their ids
        found = {str(entry[0]): at for at, entry in enumerate(entries)}
    elif isinstance(entries, dict):
        found = {str(token): int(at) for token, at in entries.items()}
    else:
        raise FolderError(f"{path / 'tokenizer.json'} has no vocabulary; needed: model.vocab")
    for token in tokenizer.get("added_tokens") or ():
        found[str(token["content"])] = int(token["id"])
    return found


def _object(file: Path, hint: str) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{file} is not there; {hint}") from None
    except OSError as error:
        raise FolderError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FolderError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise FolderError(f"{file} holds a {type(data).__name__}; needed: an object")
    return data
