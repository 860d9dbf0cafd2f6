"""Settings of the engine process: what to load, where to listen, and the link's own."""

from typing import Annotated, Literal

from msgspec import Meta

from engine.link.logs import LogFormat
from engine.link.messages import MAX_K
from engine.link.settings import LinkSettings

SMOLLM2 = "smollm2"


class EngineSettings(LinkSettings, frozen=True, kw_only=True):
    """Everything `akc engine` can be told; the link's settings come with it.

    `target`: a local Hugging Face folder, or `smollm2` (fetched at first use). `drafts`: `ngram`, NAME=FOLDER of a
    decoder or an EAGLE-style head, or just its path, with a slash in it (named after its last part); empty means ngram,
    and for `smollm2` its own `eagle` head too. `k_values`: what the controller may choose from. `offline`: no Redis at
    all, only the static choice. `max_batch`: requests decoded
    together; `max_len`: tokens of prompt and answer per request, at most the model's own limit; `max_queue`: requests
    that may wait before clients get 429. `max_tokens`: for requests that do not say. `drain`: seconds that running
    answers get to finish on shutdown. `served_name`: the model's name to clients (not set: the target's own). `pins`:
    let clients hold a request to a draft and K (`akc_draft`, `akc_k`).
    """

    target: Annotated[str, Meta(min_length=1)] = SMOLLM2
    drafts: tuple[Annotated[str, Meta(pattern=r"^(ngram|[A-Za-z0-9_.-]{1,64}=.+|[^=]*/[^=]*)$")], ...] = ()
    k_values: tuple[Annotated[int, Meta(ge=0, le=MAX_K)], ...] = (0, 1, 2, 3, 4, 5, 6, 8)
    offline: bool = False
    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    max_batch: Annotated[int, Meta(ge=1, le=512)] = 8
    max_len: Annotated[int, Meta(ge=16)] = 2048
    max_queue: Annotated[int, Meta(ge=0, le=100_000)] = 64
    max_tokens: Annotated[int, Meta(ge=1)] = 256
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    threads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    drain: Annotated[float, Meta(ge=0, le=600)] = 10.0
    pins: bool = True
    served_name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    log_format: LogFormat = "text"
