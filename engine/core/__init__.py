"""The torch engine: decodes requests in one continuous batch, each with its own draft and K, and reports what happened.

`Engine` is the way in. Behind it: `scheduler` decides, `runner` owns the tensors, `model` is the decoder, `drafts`
guess ahead, `speculation` and `sampling` hold the mathematics that keeps the target's distribution exact.
"""

from engine.core.config import ModelConfig, ModelError
from engine.core.engine import Engine
from engine.core.request import Delta, FinishReason, Request, RequestError, SamplingParams
from engine.core.tokenizer import ChatError, Detokenizer, Tokenizer

__all__ = [
    "ChatError",
    "Delta",
    "Detokenizer",
    "Engine",
    "FinishReason",
    "ModelConfig",
    "ModelError",
    "Request",
    "RequestError",
    "SamplingParams",
    "Tokenizer",
]
