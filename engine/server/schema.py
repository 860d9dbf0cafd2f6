"""Bodies of the OpenAI-compatible endpoints: requests as they come in, checked; answers as they go out.

Fields that OpenAI knows and this engine cannot honour are declared and refused by name, not ignored: a client that
asks for log probabilities must not think it got them. Fields nobody knows are ignored, as other servers do.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from engine.link.messages import MAX_K, Label
from engine.server.errors import invalid

Text = Annotated[str, Meta(max_length=4_000_000)]
StopString = Annotated[str, Meta(min_length=1, max_length=256)]


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """One text part of a message; other kinds of parts are not accepted."""

    text: Text


class ChatMessage(msgspec.Struct):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(msgspec.Struct):
    """What a stream carries besides text."""

    include_usage: bool = False


class Extras(msgspec.Struct):
    """`vllm_xargs`: `domain` labels the request; `akc_draft` with `akc_k` pin it to one draft and K for a test."""

    domain: str | None = None
    akc_draft: Label | None = None
    akc_k: Annotated[int, Meta(ge=0, le=MAX_K)] | None = None


class _Refused(msgspec.Struct, kw_only=True):
    # Declared with the values that mean "not used"; anything else is refused in `check`.
    n: int | None = None
    best_of: int | None = None
    logprobs: bool | int | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    echo: bool | None = None
    suffix: str | None = None


class Sampling(_Refused, kw_only=True):
    """What both endpoints share. `top_k` (0 or -1: off) and `ignore_eos` are extensions that other servers have too."""

    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    metadata: dict[str, Any] | None = None
    vllm_xargs: Extras | None = None

    def check(self) -> None:
        """Raise a 400 for what this engine does not do."""
        for name in ("n", "best_of"):
            if getattr(self, name) not in (None, 1):
                raise invalid(f"{name} is {getattr(self, name)}; this engine gives one answer per request", name)
        if self.logprobs is not None and self.logprobs is not False:  # 0 asks for those of the chosen tokens
            raise invalid("logprobs is not supported by this engine; leave it out", "logprobs")
        for name in ("top_logprobs", "tools", "functions", "logit_bias", "echo", "suffix"):
            if getattr(self, name):
                raise invalid(f"{name} is not supported by this engine; leave it out", name)
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(self, name) not in (None, 0):
                raise invalid(f"{name} is {getattr(self, name)}; this engine supports 0 only", name)
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise invalid("response_format is not supported beyond {'type': 'text'}", "response_format")
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options is only allowed when stream is true", "stream_options")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def label(self) -> str | None:
        """The domain label of the body, `metadata.domain` before `vllm_xargs.domain`. Raises a 400 for a non-string."""
        label = (self.metadata or {}).get("domain")
        if label is None:
            return None if self.vllm_xargs is None else self.vllm_xargs.domain
        if not isinstance(label, str):
            raise invalid(
                f"metadata.domain is of type {type(label).__name__}; a domain label is a string", "metadata.domain"
            )
        return label

    @property
    def limit(self) -> int | None:
        """The most tokens to generate, if the client says."""
        return self.max_tokens


class ChatRequest(Sampling, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=2048)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None

    @property
    def limit(self) -> int | None:
        """`max_completion_tokens`, or its older name `max_tokens`."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def user_text(self) -> str:
        """What the user wrote, the text the domain classifier reads."""
        return "\n".join(message.text for message in self.messages if message.role == "user")


TokenId = Annotated[int, Meta(ge=0)]


class CompletionRequest(Sampling, kw_only=True):
    """`POST /v1/completions`: one prompt, as text or as token ids."""

    prompt: Text | list[TokenId | Text | list[TokenId]]

    def one_prompt(self) -> tuple[str | None, list[int] | None]:
        """The prompt as text or as token ids; the other is None. Raises a 400 for none, several, or a mixture."""
        if isinstance(self.prompt, str):
            return self.prompt, None
        items = self.prompt
        ids = [item for item in items if isinstance(item, int)]
        if ids and len(ids) == len(items):
            return None, ids
        if len(items) != 1:
            raise invalid(f"prompt holds {len(items)} prompts; this engine takes one per request", "prompt")
        only = items[0]
        return (only, None) if isinstance(only, str) else (None, list(only) if isinstance(only, list) else [only])


class Usage(msgspec.Struct):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


FinishReason = Literal["stop", "length"]


class Facts(msgspec.Struct):
    """`akc`, on request: what speculation did for this answer.

    `origin`: `policy`, `request` (K follows the request's own evidence) or `pin`. `drafted`, `accepted`: draft tokens
    verified and kept. `tokens`, `row_seconds`: emitted by decode steps, and the
    seconds of those steps. `source`: where the domain came from.
    """

    domain: str
    source: str
    draft: str
    origin: str
    regime: str
    steps: int
    drafted: int
    accepted: int
    tokens: int
    row_seconds: float


class Message(msgspec.Struct):
    """The assistant's turn."""

    content: str
    role: str = "assistant"


class Delta(msgspec.Struct, omit_defaults=True):
    """A piece of it."""

    role: str | None = None
    content: str | None = None


class Choice(msgspec.Struct, kw_only=True):
    """The one choice of an answer or chunk, with the field its endpoint uses."""

    index: int = 0
    message: Message | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    text: str | UnsetType = UNSET
    logprobs: None = None
    finish_reason: FinishReason | None = None


class Answer(msgspec.Struct, kw_only=True):
    """An answer, or one chunk of it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    akc: Facts | UnsetType = UNSET
