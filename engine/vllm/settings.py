"""Settings of the plug-in: the link's, and what only vLLM has. From `--additional-config` or the environment."""

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from engine.link.messages import MAX_K, Label
from engine.link.settings import LinkSettings, SettingsError, load

KEY = "adaptive_k"


class VllmSettings(LinkSettings, frozen=True, kw_only=True):
    """`off`: leave vLLM as it is. `draft`: the drafter's name on the wire, by default its model's or its method's.
    `k_values`: the K to choose from, 0 and 1 to the configured number by default; on a GPU name those whose graphs were
    captured. Without `static_draft` and `static_k` the static choice is what the operator configured.

    A request's domain is its `vllm_xargs.domain`; else what `request_id` (a regular expression with one group) finds in
    its id, which holds the `X-Request-Id` header under `--enable-request-id-headers`; else, with `lora`, the name of
    its LoRA; else, with `classify`, what the classifier makes of its first `classify_tokens` prompt tokens.
    """

    off: bool = False
    draft: Label | None = None
    k_values: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]] | None = None
    request_id: str | None = None
    lora: bool = True
    classify: bool = True
    classify_tokens: Annotated[int, msgspec.Meta(ge=1, le=8192)] = 512

    def __post_init__(self) -> None:
        if self.request_id is not None:
            try:
                groups = re.compile(self.request_id).groups
            except re.error as error:
                raise ValueError(f"request_id is {self.request_id!r}, no regular expression: {error}") from None
            if groups != 1:
                raise ValueError(f"request_id is {self.request_id!r} with {groups} groups; allowed is 1")


def settings_of(additional: Any, env: Mapping[str, str], rank: int = 0, ranks: int = 1) -> VllmSettings:
    """Settings from `--additional-config`'s table `adaptive_k` and the environment (`AKC_...`), for one data parallel
    rank of several, which are engines of their own. Raises `SettingsError`.

    >>> settings_of({"adaptive_k": {"pool": "a", "engine": "e"}}, {}, rank=1, ranks=2).engine
    'e-dp1'
    >>> settings_of({"adaptive_k": {"pol": "a"}}, {})
    Traceback (most recent call last):
    engine.link.settings.SettingsError: pol is not a setting (flag); did you mean pool?
    """
    given = additional.get(KEY, {}) if isinstance(additional, Mapping) else {}
    if not isinstance(given, Mapping):
        raise SettingsError(f"{KEY} is {given!r}; allowed: a table of settings")
    settings = load(VllmSettings, env=env, flags=given)
    if ranks > 1:
        name = f"{settings.engine_id[:56]}-dp{rank}"
        settings = msgspec.structs.replace(settings, engine=name)
    return settings
