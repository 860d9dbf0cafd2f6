"""Drafts: what guesses ahead of the target. All kinds answer the same few calls, so requests of one batch may differ.

`NgramDraft` looks the continuation up in the request's own text, `DecoderDraft` asks a smaller decoder,
`EagleDraft` a one-layer head on the target's hidden states. `load_draft` makes one from a setting.
"""

from engine.core.drafts.decoder import DecoderDraft
from engine.core.drafts.draft import Ask, Draft, Proposal
from engine.core.drafts.eagle import EagleDraft
from engine.core.drafts.loading import load_draft
from engine.core.drafts.ngram import NgramDraft

__all__ = ["Ask", "DecoderDraft", "Draft", "EagleDraft", "NgramDraft", "Proposal", "load_draft"]
