"""Settings of the plug-in: the link's, and what only vLLM has. From `--additional-config` or the environment."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from engine.link.messages import MAX_K, NO_DRAFT, Label
from engine.link.settings import LinkSettings, SettingsError, load

KEY = "adaptive_k"
_GIVEN = "--additional-config"  # where settings that are not from the environment come from

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MAX_K)]
_Words = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class DrafterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter beside the configured one: n-gram lookup, or a draft `model` (a folder or a hub name).

    `name` on the wire is by default the model's or the method's; `num_speculative_tokens`, its largest K, that of the
    configured drafter. `prompt_lookup_max` and `prompt_lookup_min`: longest and shortest n-gram, by vLLM's defaults (5
    and 5; one alone: both that).
    """

    name: Label | None = None
    method: Literal["draft_model", "ngram"] = "draft_model"
    model: str | None = None
    num_speculative_tokens: _Tokens | None = None
    prompt_lookup_max: _Words | None = None
    prompt_lookup_min: _Words | None = None

    def __post_init__(self) -> None:
        if self.method == "ngram" and self.model is not None:
            raise ValueError(f"model is {self.model!r} with method 'ngram', which has none")
        if self.method == "draft_model":
            if not self.model:
                raise ValueError("model is missing; method 'draft_model' needs a folder or a hub name")
            if self.prompt_lookup_max is not None or self.prompt_lookup_min is not None:
                raise ValueError("prompt_lookup_max and prompt_lookup_min belong to method 'ngram'")
        least, most = self.ngrams
        if least > most:
            raise ValueError(f"prompt_lookup_min is {least}; prompt_lookup_max is {most}, which is the most allowed")

    @property
    def ngrams(self) -> tuple[int, int]:
        """Shortest and longest n-gram.

        >>> DrafterSettings(method="ngram", prompt_lookup_max=3).ngrams, DrafterSettings(method="ngram").ngrams
        ((3, 3), (5, 5))
        """
        one = self.prompt_lookup_max or self.prompt_lookup_min or 5
        return self.prompt_lookup_min or one, self.prompt_lookup_max or one


class VllmSettings(LinkSettings, frozen=True, kw_only=True):
    """`off`: leave vLLM as it is. `draft`: the drafter's name on the wire, by default its model's or its method's.
    `k_values`: the K to choose from, 0 and 1 to the configured number by default; on a GPU name those whose graphs were
    captured. Without `static_draft` and `static_k` the static choice is what the operator configured; `static_k` alone
    is one of the configured drafter's. `drafters`: more than the configured one (as JSON in the environment).

    A request's domain is its `vllm_xargs.domain`; else what `request_id` (a regular expression with one group) finds in
    its id, which holds the `X-Request-Id` header under `--enable-request-id-headers`; else, with `lora`, the name of
    its LoRA; else, with `classify`, what the classifier makes of its first `classify_tokens` prompt tokens.
    """

    off: bool = False
    draft: Label | None = None
    drafters: tuple[DrafterSettings, ...] = ()
    k_values: list[Annotated[int, msgspec.Meta(ge=0, le=MAX_K)]] | None = None
    request_id: str | None = None
    lora: bool = True
    classify: bool = True
    classify_tokens: Annotated[int, msgspec.Meta(ge=1, le=8192)] = 512

    def __post_init__(self) -> None:
        if self.draft == NO_DRAFT:
            raise ValueError(f"draft is {NO_DRAFT!r}, the name of not speculating; allowed: any other")
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
    engine.link.settings.SettingsError: pol is not a setting (--additional-config); did you mean pool?
    """
    given = additional.get(KEY, {}) if isinstance(additional, Mapping) else {}
    if isinstance(additional, Mapping) and KEY not in additional:
        _mistaken(additional)
    if not isinstance(given, Mapping):
        raise SettingsError(f"{KEY} is {given!r}; allowed: a table of settings")
    described = given.get("drafters", env.get("AKC_DRAFTERS"))
    env = {name: value for name, value in env.items() if name != "AKC_DRAFTERS"}
    settings = load(VllmSettings, env=env, flags={**given, "drafters": _drafters(described)}, source=_GIVEN)
    if ranks > 1:
        name = f"{settings.engine_id[:56]}-dp{rank}"
        settings = msgspec.structs.replace(settings, engine=name)
    return settings


def _mistaken(additional: Mapping[str, Any]) -> None:
    """Raise `SettingsError` where the table is there under another name, or its settings stand outside of it: an engine
    that joined some default pool instead would go unnoticed. Keys of other plug-ins are theirs.

    >>> _mistaken({"adaptive-k": {"pool": "a"}})
    Traceback (most recent call last):
    engine.link.settings.SettingsError: --additional-config has 'adaptive-k'; did you mean 'adaptive_k'?
    >>> _mistaken({"pool": "a", "other": 1})
    Traceback (most recent call last):
    engine.link.settings.SettingsError: --additional-config has 'pool'; settings belong into its table 'adaptive_k'
    """
    ours = {field.name for field in msgspec.structs.fields(VllmSettings)}
    for name in map(str, additional):
        if re.sub(r"[^a-z]", "", name.lower()) == KEY.replace("_", ""):
            raise SettingsError(f"--additional-config has {name!r}; did you mean {KEY!r}?")
        if name in ours:
            raise SettingsError(f"--additional-config has {name!r}; settings belong into its table {KEY!r}")


def _drafters(described: Any) -> tuple[DrafterSettings, ...] | None:
    """The further drafters from a list of tables, or from JSON that holds one."""
    if described is None:
        return None
    if isinstance(described, str):
        try:
            described = json.loads(described)
        except ValueError as error:
            raise SettingsError(f"drafters is {described!r}, no JSON: {error}") from None
    if not isinstance(described, list) or not all(isinstance(one, Mapping) for one in described):
        raise SettingsError(f"drafters is {described!r}; allowed: a list of tables, one a drafter")
    made = []
    for at, one in enumerate(described):
        try:
            made.append(load(DrafterSettings, env={}, flags=one, source=_GIVEN))
        except SettingsError as error:
            raise SettingsError(f"drafters[{at}]: {str(error).removeprefix('DrafterSettings: ')}") from None
    return tuple(made)
