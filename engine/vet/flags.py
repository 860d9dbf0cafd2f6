"""vLLM's removed speculative flags, in today's form.

`--speculative-model`, `--num-speculative-tokens` and `--speculative-max-model-len` are gone; many guides still show
them, mostly under `python3 -m vllm.entrypoints.openai.api_server`.
"""

import json
import re
import shlex
from typing import Any, NamedTuple

_OLD: dict[str, tuple[str, type]] = {
    "--speculative-model": ("model", str),
    "--num-speculative-tokens": ("num_speculative_tokens", int),
    "--speculative-max-model-len": ("max_model_len", int),
    "--speculative-draft-tensor-parallel-size": ("draft_tensor_parallel_size", int),
    "--speculative-model-quantization": ("quantization", str),
    "--ngram-prompt-lookup-max": ("prompt_lookup_max", int),
    "--ngram-prompt-lookup-min": ("prompt_lookup_min", int),
    "--speculative-disable-by-batch-size": ("", int),
}
# Removed without a successor: whether they take a value, and what to know.
_GONE: dict[str, tuple[bool, str]] = {
    "--use-v2-block-manager": (False, "is gone; there is one block manager"),
    "--spec-decoding-acceptance-method": (True, "is gone; see rejection_sample_method in --speculative-config"),
    "--typical-acceptance-sampler-posterior-threshold": (True, "is gone, with typical acceptance"),
    "--typical-acceptance-sampler-posterior-alpha": (True, "is gone, with typical acceptance"),
    "--speculative-disable-mqa-scorer": (False, "is gone; there is one scorer"),
    "--disable-logprobs-during-spec-decoding": (False, "is gone; logprobs come with drafts, too"),
}
_SERVER = "vllm.entrypoints.openai.api_server"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_INTERPRETER = re.compile(r"(.*/)?python[\d.]*")


class FlagsError(ValueError):
    """A command line that cannot be translated."""


class Translated(NamedTuple):
    """Today's command, the models it names, and remarks on what has no counterpart."""

    command: str
    target: str | None
    draft: str | None
    remarks: list[str]


def translate(line: str, heterogeneous: bool = False) -> Translated:
    """Translate a command line with removed flags; all others stay as they are. Raises `FlagsError`.

    >>> print(translate("vllm serve T --speculative-model D --num-speculative-tokens 5 --port 8000").command)
    vllm serve T --port 8000 --speculative-config '{"method": "draft_model", "model": "D", "num_speculative_tokens": 5}'
    >>> translate("vllm serve T --num-speculative-tokens five")
    Traceback (most recent call last):
    engine.vet.flags.FlagsError: --num-speculative-tokens is 'five'; needed: a whole number
    """
    try:
        words = shlex.split(line.replace("\\\n", " "))
    except ValueError as error:
        raise FlagsError(f"the command line cannot be read: {error}") from None
    given, rest, remarks = _sorted_out(words)
    if not given:
        raise FlagsError("no removed flag in it; --speculative-model and --num-speculative-tokens are looked for")
    leading, rest = _split(rest)
    command, target = _serve(rest)
    # A quoted `NAME=value` would be the name of a command.
    before = [f"{one[1]}={shlex.quote(one[2])}" if (one := _ASSIGNMENT.fullmatch(word)) else shlex.quote(word)
              for word in leading]  # fmt: skip
    draft = given.get("model")
    if draft == "[ngram]" or (draft is None and "prompt_lookup_max" in given):
        given = {"method": "ngram", **{key: value for key, value in given.items() if key != "model"}}
        draft = None
    elif draft is None:
        raise FlagsError("--num-speculative-tokens without --speculative-model: there is no draft in it")
    else:
        given = {"method": "draft_model", **given}
    if "num_speculative_tokens" not in given:
        remarks.append("--num-speculative-tokens was not given: 5 is put in")
        given["num_speculative_tokens"] = 5
    if "max_model_len" in given:
        remarks.append(
            f"max_model_len {given['max_model_len']} is kept: model runner V1 drafts for nobody in a step where any "
            "sequence comes within num_speculative_tokens of it; leave it out unless the draft's own is as short"
        )
    if heterogeneous and draft is not None:
        given["use_heterogeneous_vocab"] = True
    full = [*before, *map(shlex.quote, [*command, "--speculative-config", json.dumps(given)])]
    return Translated(" ".join(full), target, draft, remarks)


def _sorted_out(words: list[str]) -> tuple[dict[str, Any], list[str], list[str]]:
    """What the removed flags say, in today's keys; all other words; remarks."""
    given: dict[str, Any] = {}
    rest: list[str] = []
    remarks: list[str] = []
    left = iter(words)
    for whole in left:
        word, _, value = whole.partition("=")
        word = word.replace("_", "-") if word.startswith("--") else word
        if word in _GONE:
            valued, why = _GONE[word]
            value = value or (next(left, "") if valued else "")
            remarks.append(f"{word} {value}".rstrip() + f" {why}")
            continue
        if word not in _OLD:
            rest.append(whole)
            continue
        value = value or next(left, "")
        key, kind = _OLD[word]
        try:
            converted = kind(value)
        except ValueError:
            raise FlagsError(f"{word} is {value!r}; needed: a whole number") from None
        if not value:
            raise FlagsError(f"{word} has no value")
        if key:
            given[key] = converted
        else:
            remarks.append(
                f"{word} {value}: today a table, num_speculative_tokens_per_batch_size; with our plug-in none"
            )
    return given, rest, remarks


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before vLLM's own command (assignments, `nohup`, ...), and today's form of that command.

    >>> _split(["A=1", "python3", "-m", "vllm.entrypoints.openai.api_server", "--port", "1"])
    (['A=1'], ['vllm', 'serve', '--port', '1'])
    """
    if _SERVER in words:
        at = words.index(_SERVER)
        interpreters = [n for n, word in enumerate(words[:at]) if _INTERPRETER.fullmatch(word)]
        return words[: interpreters[-1] if interpreters else max(at - 1, 0)], ["vllm", "serve", *words[at + 1 :]]
    at = next((n for n in range(len(words) - 1) if words[n : n + 2] == ["vllm", "serve"]), 0)
    return words[:at], words[at:]


def _serve(words: list[str]) -> tuple[list[str], str | None]:
    """Today's `vllm serve MODEL ...`, and the model."""
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--model":
            model = value or (words[at + 1] if at + 1 < len(words) else None)
            left = words[:at] + words[at + (1 if value else 2) :]
            if left[:2] == ["vllm", "serve"] and model is not None:
                left.insert(2, model)
            return left, model
    model = words[2] if words[:2] == ["vllm", "serve"] and len(words) > 2 and not words[2].startswith("-") else None
    return words, model
