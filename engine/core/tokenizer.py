"""Text to tokens and back: the folder's own tokenizer and chat template, and text that streams in whole characters."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as RustTokenizer

from engine.core.config import ModelError, as_ids, read_json

_TOKENIZER = "tokenizer.json"
_REPLACEMENT = "\ufffd"  # what decoding puts where bytes are not (yet) a character


class ChatError(ValueError):
    """Messages that the model's chat template rejects; the message is the template's own."""


class Tokenizer:
    """The tokenizer of a Hugging Face folder. Raises `ModelError` when `tokenizer.json` is missing or unreadable.

    `stop_ids`: end-of-sequence ids that `generation_config.json` and `config.json` name.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / _TOKENIZER
        if not file.is_file():
            raise ModelError(f"{folder} has no {_TOKENIZER}")
        try:
            self._rust = RustTokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{file} cannot be read: {error}") from error
        self._settings = _optional(folder / "tokenizer_config.json")
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            found.update(as_ids(_optional(folder / name).get("eos_token_id")))
        self.stop_ids = frozenset(found)
        self._template = self._compile(folder)

    def _compile(self, folder: Path) -> jinja2.Template | None:
        source = self._settings.get("chat_template")
        if (folder / "chat_template.jinja").is_file():
            source = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        if isinstance(source, list):  # several named templates
            source = next((t["template"] for t in source if t.get("name") == "default"), None)
        if source is None:
            return None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _reject
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template of {folder} cannot be read: {error}") from error

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text; `special`: with the tokens a model expects around a plain prompt (its first one)."""
        return list(self._rust.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids."""
        return str(self._rust.decode(list(ids), skip_special_tokens=skip_special))

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer.

        Raises `ModelError` for a model without a chat template and `ChatError` for messages that it does not accept.
        """
        return self.encode(self.chat_text(messages), special=False)

    def chat_text(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as the text that `chat` encodes."""
        if self._template is None:
            raise ModelError("this model has no chat template; use a plain prompt")
        special = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            token = self._settings.get(name)
            special[name] = token.get("content") if isinstance(token, dict) else token
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **special)
        except (jinja2.TemplateError, TypeError) as error:
            raise ChatError(f"the chat template does not accept these messages: {error}") from error

    def vocabulary(self) -> dict[str, int]:
        """Every token's text and id, added tokens included."""
        return dict(self._rust.get_vocab(with_added_tokens=True))


class Detokenizer:
    """Turns a stream of tokens into a stream of text, never giving out half a character.

    A token may end inside a character (an emoji takes several tokens); its text then waits for the rest. Decoding
    starts a few tokens back, because what a token looks like can depend on the one before it.
    """

    _PATIENCE = 16  # a character has at most 4 bytes; longer broken tails are not going to heal
    _CONTEXT = 4

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()) -> None:
        self._decode = tokenizer.decode
        self._ids = list(prompt[-self._CONTEXT :])
        self._fresh = len(self._ids)
        # Characters of the window's text that are out already; the output completes what the prompt left open.
        self._shown = len(self._decode(self._ids).rstrip(_REPLACEMENT)) if self._ids else 0

    def push(self, token: int) -> str:
        """The text that is certain now and was not before."""
        self._ids.append(token)
        text = self._decode(self._ids)
        if text.endswith(_REPLACEMENT) and len(self._ids) - self._fresh < self._PATIENCE:
            return self._show(text.rstrip(_REPLACEMENT))
        delta = self._show(text)
        self._ids = self._ids[self._fresh :]
        self._fresh = len(self._ids)
        self._shown = len(self._decode(self._ids))
        return delta

    def finish(self) -> str:
        """What is left when no more tokens come: broken bytes show as replacement characters."""
        return self._show(self._decode(self._ids)) if len(self._ids) > self._fresh else ""

    def _show(self, text: str) -> str:
        delta = text[self._shown :]
        self._shown = max(self._shown, len(text))
        return delta


class StopStrings:
    """Watches streamed text for stop strings, holding back what may be the beginning of one.

    >>> stops = StopStrings(["END"])
    >>> stops.push("a E"), stops.push("N"), stops.push("D b"), stops.found
    ('a ', '', '', True)
    >>> stops = StopStrings(["END"])
    >>> stops.push("EN"), stops.push("o"), stops.finish()
    ('', 'ENo', '')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Text that can be given out now; nothing more once `found`."""
        if self.found or not self._stops:
            return "" if self.found else text
        self._held += text
        at = min((i for i in (self._held.find(s) for s in self._stops) if i >= 0), default=-1)
        if at >= 0:
            self.found = True
            out, self._held = self._held[:at], ""
            return out
        keep = max(self._overlap(s) for s in self._stops)
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out

    def finish(self) -> str:
        """What was held back, now that no more text comes."""
        out, self._held = self._held, ""
        return out

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(stop[:n])), 0)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _reject(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Not jinja's own filter: that one escapes <, > and & for HTML, and a prompt is not HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)
