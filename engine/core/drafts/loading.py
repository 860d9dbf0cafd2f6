"""From a setting to a draft: `ngram`, or a folder whose `config.json` says what is in it."""

from pathlib import Path

from engine.core.config import read_json
from engine.core.drafts.decoder import DecoderDraft
from engine.core.drafts.draft import Draft
from engine.core.drafts.eagle import MODEL_TYPE, EagleDraft
from engine.core.drafts.ngram import NgramDraft
from engine.core.model import Decoder

NGRAM = "ngram"


def load_draft(source: str | Path, target: Decoder, folder: Path, *, slots: int) -> Draft:
    """The draft that `source` names: `ngram`, or the folder of a decoder or of an eagle head.

    `target` was loaded from `folder`; `slots` requests may use the draft at a time. Raises `ModelError`.
    """
    if source == NGRAM:
        return NgramDraft(target.device, target.max_len)
    path = Path(source).expanduser()
    if read_json(path / "config.json").get("model_type") == MODEL_TYPE:
        return EagleDraft(path, target, slots=slots)
    return DecoderDraft.load(
        path,
        folder,
        slots=slots,
        max_len=target.max_len,
        vocabulary=target.config.vocab_size,
        dtype=target.dtype,
        device=target.device,
    )
