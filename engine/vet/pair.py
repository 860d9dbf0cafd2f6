"""Whether two models can work as target and draft in vLLM, and with which `--speculative-config`."""

import json
from typing import Any, Literal, NamedTuple

from engine.vet.folder import ModelFolder
from engine.vet.sizes import read_bytes

Kind = Literal["same", "padded", "different", "renumbered", "unusable"]

# Exit status of `akc vet`, by verdict: 0 works as it is, 3 with a change, 4 poorly, 5 not at all.
EXITS: dict[Kind, int] = {"same": 0, "padded": 3, "different": 4, "renumbered": 4, "unusable": 5}

# Text whose tokens a draft of another vocabulary has to know, in words of the three domains.
SAMPLE = (
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n    return total / 3",
    "A train leaves at 9:15 and travels 180 km at 72 km/h. It stops twice for 5 minutes. When does it arrive?",
    "Thanks for asking! I'd go for the small cafe near the river; they bake their own bread every morning.",
)


class Verdict(NamedTuple):
    """`shared`: share of the target's tokens that the draft knows as the same string (at any id); `covered`: of the
    sample text's tokens; `ratio`: bytes that a pass of the draft reads, over the target's. `config`: what fits for
    `--speculative-config`, None where nothing does. `context`: what is to be said of the draft's longest sequence.
    """

    kind: Kind
    sentence: str
    shared: float
    covered: float
    ratio: float | None
    config: dict[str, Any] | None
    context: str | None = None

    @property
    def exit(self) -> int:
        """Exit status."""
        return EXITS[self.kind]

    def asdict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "exit": self.exit}


def vet(target: ModelFolder, draft: ModelFolder, *, k: int = 5) -> Verdict:
    """Compare two folders; `k`: tokens for the suggested configuration."""
    shared = len(target.vocabulary.keys() & draft.vocabulary.keys()) / max(len(target.vocabulary), 1)
    same_ids = target.vocabulary == draft.vocabulary
    ratio = _ratio(target, draft)
    covered = 1.0 if same_ids else _covered(target, draft)
    kind, sentence = _compare(target, draft, same_ids=same_ids, shared=shared, covered=covered, ratio=ratio)
    config: dict[str, Any] | None = None
    if kind != "unusable":
        config = {"method": "draft_model", "model": str(draft.path), "num_speculative_tokens": k}
        if kind != "same":
            config["use_heterogeneous_vocab"] = True
    return Verdict(kind, sentence, shared, covered, ratio, config, _context(target, draft))


def _context(target: ModelFolder, draft: ModelFolder) -> str | None:
    if target.context is None or draft.context is None or draft.context >= target.context:
        return None
    return (
        f"the draft's longest sequence is {draft.context} tokens, the target's {target.context}: model runner V1 "
        f"drafts for nobody in a step where any sequence comes within K of {draft.context} (V2 does not look)"
    )


def _compare(
    target: ModelFolder, draft: ModelFolder, *, same_ids: bool, shared: float, covered: float, ratio: float | None
) -> tuple[Kind, str]:
    if ratio is not None and ratio >= 1.0:
        return "unusable", f"a pass of the draft reads {ratio:.2f} times what the target reads: it cannot be faster"
    if same_ids and target.size == draft.size:
        return "same", f"same vocabulary, {target.size} rows each: vLLM takes the pair as it is"
    if same_ids:
        return "padded", (
            f"same tokenizer, padded to {target.size} and {draft.size} rows: vLLM refuses the pair as it is. Set "
            "use_heterogeneous_vocab (greedy drafts only), or pad the draft: --pad-to FOLDER"
        )
    if not shared:
        return "unusable", "the vocabularies have no token in common"
    same_strings = target.vocabulary.keys() == draft.vocabulary.keys()
    what = (
        f"{shared:.0%} of the target's tokens and {covered:.0%} of those in sample text are in the draft's vocabulary"
    )
    if same_strings or target.size == draft.size:
        moved = sum(draft.vocabulary.get(token) != at for token, at in target.vocabulary.items())
        return "renumbered", (
            f"both have {target.size} and {draft.size} rows, but {moved} ids mean other strings: without "
            f"use_heterogeneous_vocab the draft's tokens would be nonsense to the target. {what}"
        )
    return "different", f"different vocabularies, use_heterogeneous_vocab (greedy drafts only) is needed: {what}"


def _ratio(target: ModelFolder, draft: ModelFolder) -> float | None:
    most, least = read_bytes(target.config), read_bytes(draft.config)
    return least / most if most and least else None


def _covered(target: ModelFolder, draft: ModelFolder) -> float:
    """Share of the sample text's tokens, as the target cuts it, that the draft's vocabulary has."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target.path / "tokenizer.json"))
    tokens = [token for text in SAMPLE for token in tokenizer.encode(text, add_special_tokens=False).tokens]
    return sum(token in draft.vocabulary for token in tokens) / max(len(tokens), 1)


def as_flag(config: dict[str, Any]) -> str:
    """The value of `--speculative-config`.

    >>> as_flag({"model": "d", "num_speculative_tokens": 5})
    '{"model": "d", "num_speculative_tokens": 5}'
    """
    return json.dumps(config)
