"""Settings of a process: one frozen struct from defaults < TOML file < environment < flags, checked key by key."""

import difflib
import os
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import inspect

from engine.link.address import PATTERN
from engine.link.messages import MAX_K, NO_DRAFT, Label, PoolName, Share, StaticChoice

T = TypeVar("T", bound=msgspec.Struct)


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the key, where its value came from, and what is allowed."""


def load(
    cls: type[T],
    *,
    file: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] = os.environ,
    prefix: str = "AKC_",
    flags: Mapping[str, Any] | None = None,
    source: str = "argument",
) -> T:
    """A `cls` from its defaults, overridden by a TOML file, then by the environment, then by flags.

    Environment: `<prefix><KEY>` in capitals (`AKC_REDIS_URL`), inner keys of a table after two underscores
    (`AKC_LEARNER__DISCOUNT`), lists separated by commas; a field's `Meta(extra={"env": NAME})` names a second variable
    that counts when the first is not set. Flags: a mapping of keys to values, `None` meaning "not given"; inner keys
    after a dot or as a mapping; `source`: what errors call the place they come from. Raises `SettingsError`.

    >>> load(LinkSettings, env={"AKC_STATIC_K": "4"}, flags={"pool": "demo"}).static_k
    4
    >>> load(LinkSettings, env={"AKC_STATIC_K": "99"})
    Traceback (most recent call last):
    engine.link.settings.SettingsError: static_k is '99' (variable AKC_STATIC_K); allowed: whole number from 0 to 32
    """
    from_file: Mapping[str, Any] = {}
    if file is not None:
        try:
            from_file = tomllib.loads(Path(file).read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError(f"settings file {os.fspath(file)!r} cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"settings file {os.fspath(file)!r} is not valid TOML: {error}") from error
    names = (f"file {os.fspath(file)}" if file else "", source)
    return _build(cls, "", names, from_file, env, prefix, _nested(flags or {}))


def _build(
    cls: type[T],
    path: str,
    sources: tuple[str, str],
    from_file: Mapping[str, Any],
    env: Mapping[str, str],
    prefix: str,
    flags: Mapping[str, Any],
) -> T:
    names = [f.name for f in msgspec.structs.fields(cls)]
    file_name, flag_name = sources
    _known(names, from_file, path, file_name)
    _known(names, flags, path, flag_name)
    hints = get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    for name in names:
        key, hint = path + name, hints[name]
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            inner_file, inner_flags = from_file.get(name, {}), flags.get(name, {})
            for inner, source in ((inner_file, file_name), (inner_flags, flag_name)):
                if not isinstance(inner, Mapping):
                    raise SettingsError(f"{key} is {inner!r} ({source}); allowed: a table of settings")
            values[name] = _build(hint, f"{key}.", sources, inner_file, env, f"{prefix}{name.upper()}__", inner_flags)
            continue
        variable = next((v for v in _variables(prefix, name, hint) if v in env), None)
        if flags.get(name) is not None:
            values[name] = _convert(key, flags[name], hint, flag_name)
        elif variable is not None:
            values[name] = _convert(key, env[variable], hint, f"variable {variable}")
        elif name in from_file:
            values[name] = _convert(key, from_file[name], hint, file_name)
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:  # a required key, or the struct's own __post_init__
        raise SettingsError(f"{path.rstrip('.') or cls.__name__}: {error}") from error


def _nested(flags: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flags.items():
        if value is None:
            continue
        *tables, last = key.split(".")
        level = nested
        for table in tables:
            level = level.setdefault(table, {})
        level[last] = value
    return nested


def _known(names: list[str], given: Mapping[str, Any], path: str, source: str) -> None:
    for key in given:
        if key not in names:
            close = difflib.get_close_matches(key, names, n=1)
            hint = f"did you mean {path}{close[0]}?" if close else f"allowed: {', '.join(names)}"
            raise SettingsError(f"{path}{key} is not a setting ({source}); {hint}")


def _variables(prefix: str, name: str, hint: Any) -> list[str]:
    metas = [m.extra for m in getattr(hint, "__metadata__", ()) if isinstance(m, msgspec.Meta) and m.extra]
    extra = [meta["env"] for meta in metas if "env" in meta]
    return [prefix + name.upper(), *extra]


def _convert(key: str, value: Any, hint: Any, source: str) -> Any:
    kind = inspect.type_info(hint)
    given = value
    if isinstance(value, str) and _is_list(kind):
        given = [part.strip() for part in value.split(",") if part.strip()]
    try:
        return msgspec.convert(given, hint, strict=False, dec_hook=_path)
    except (msgspec.ValidationError, TypeError):
        raise SettingsError(f"{key} is {masked(value)!r} ({source}); allowed: {allowed(hint)}") from None


def _path(kind: type, value: Any) -> Any:
    if issubclass(kind, Path) and isinstance(value, str):
        return Path(value).expanduser()
    raise TypeError(f"cannot make {kind.__name__} of {value!r}")


def _is_list(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return _is_list(kind.type)
    if isinstance(kind, inspect.UnionType):
        return any(_is_list(t) for t in kind.types)
    return isinstance(kind, _LISTS)


_SECRET = re.compile(r"([?&][^=&]*password[^=&]*=)[^&#]*", re.IGNORECASE)


def masked(value: Any) -> Any:
    """A URL with its passwords hidden, in its login and in its query, anything else as it is; for logs and errors.

    >>> masked("redis://user:secret@host:6379/0")
    'redis://user:***@host:6379/0'
    >>> masked("redis+sentinel://host/0?service=akc&sentinel_password=secret")
    'redis+sentinel://host/0?service=akc&sentinel_password=***'
    """
    if not isinstance(value, str) or "://" not in value:
        return value
    value = _SECRET.sub(r"\1***", value)
    if "@" in value:
        scheme, netloc, path, query, fragment = urlsplit(value)
        login, _, host = netloc.rpartition("@")
        if ":" in login:
            return urlunsplit((scheme, f"{login.split(':', 1)[0]}:***@{host}", path, query, fragment))
    return value


def allowed(hint: Any) -> str:
    """What a field's type admits, in words.

    >>> allowed(Annotated[float, msgspec.Meta(gt=0, le=60)]), allowed(bool | None)
    ('number above 0, at most 60', 'true or false, or not set')
    """
    return _words(inspect.type_info(hint))


def _words(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.UnionType):
        words = [_words(t) for t in kind.types if not isinstance(t, inspect.NoneType)]
        return ", or ".join([*words, "not set"] if len(words) < len(kind.types) else words)
    for cls, words_of in _WORDS.items():
        if isinstance(kind, cls):
            return words_of(kind)
    return type(kind).__name__.removesuffix("Type").lower()


def _text(kind: Any) -> str:
    size = f" of {kind.min_length or 0} to {kind.max_length} characters" if kind.max_length else ""
    return f"text{size}" + (f" matching {kind.pattern}" if kind.pattern else "")


def _range(kind: Any) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge} to {kind.le}"
    bounds = ((kind.ge, "at least"), (kind.gt, "above"), (kind.le, "at most"), (kind.lt, "below"))
    words = ", ".join(f"{word} {bound}" for bound, word in bounds if bound is not None)
    return f" {words}" if words else ""


_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
_WORDS: dict[type | tuple[type, ...], Callable[[Any], str]] = {
    inspect.Metadata: lambda kind: (kind.extra or {}).get("allowed") or _words(kind.type),
    inspect.IntType: lambda kind: "whole number" + _range(kind),
    inspect.FloatType: lambda kind: "number" + _range(kind),
    inspect.BoolType: lambda kind: "true or false",
    inspect.LiteralType: lambda kind: " or ".join(repr(v) for v in kind.values),
    inspect.StrType: _text,
    _LISTS: lambda kind: f"list of {_words(kind.item_type)}",
    inspect.CustomType: lambda kind: "path of a file or folder" if issubclass(kind.cls, Path) else kind.cls.__name__,
}


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's side of the link needs to know.

    `redis_url`, `pool`, `engine`: where to report and as whom (the engine's id is host and process if not set).
    `static_draft`, `static_k`: the operator's choice where there is no policy. `nonadaptive`: overrides the policy's
    share of requests that explore and whose K never follows their own evidence. Intervals and timeouts in seconds;
    reports of an engine's first steps come sooner (`engine.link.pace`). `trace_dir`: write one JSON line per request
    there.
    """

    redis_url: Annotated[str, msgspec.Meta(pattern=PATTERN, extra={"env": "REDIS_URL"})] = "redis://127.0.0.1:6379/0"
    pool: PoolName = "default"
    engine: Label | None = None
    static_draft: Label = NO_DRAFT
    static_k: Annotated[int, msgspec.Meta(ge=0, le=MAX_K)] = 0
    nonadaptive: Share | None = None
    breaker: bool = True
    report_interval: Annotated[float, msgspec.Meta(ge=0.02, le=60)] = 1.0
    poll_interval: Annotated[float, msgspec.Meta(ge=0.02, le=60)] = 2.0
    timeout: Annotated[float, msgspec.Meta(gt=0, le=60)] = 2.0
    full_every: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 30
    stream_length: Annotated[int, msgspec.Meta(ge=100, le=10_000_000)] = 20_000
    pending_steps: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
    key_cap: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 192
    cost_cap: Annotated[int, msgspec.Meta(ge=2, le=4096)] = 1024
    trace_dir: Path | None = None
    trace_buffer: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
    seed: int | None = None

    @property
    def static(self) -> StaticChoice:
        """The operator's choice; K is 0 without a draft."""
        return StaticChoice(self.static_draft, 0 if self.static_draft == NO_DRAFT else self.static_k)

    @property
    def engine_id(self) -> str:
        """The engine's name on the wire."""
        return self.engine or f"{socket.gethostname()[:48]}-{os.getpid()}"
