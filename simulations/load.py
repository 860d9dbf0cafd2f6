"""Scenarios from TOML files, checked key by key; the shipped ones are found by name."""

import difflib
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from engine.link.settings import allowed
from simulations.scenario import Scenario, ScenarioError

SHIPPED = Path(__file__).parent / "scenarios"


def shipped() -> list[str]:
    """Names of the scenarios that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(name: str | Path) -> Scenario:
    """The scenario in a file, or the shipped one of that name. Raises `ScenarioError`.

    >>> load("three-domains").ks
    (0, 1, 2, 3, 4, 5, 6, 7, 8)
    """
    path = Path(name)
    if not path.exists():
        if path.suffix or len(path.parts) > 1:
            raise ScenarioError(f"scenario file {str(name)!r} does not exist")
        path = SHIPPED / f"{name}.toml"
        if not path.exists():
            raise ScenarioError(
                f"scenario {str(name)!r} is neither a file nor shipped; shipped: {', '.join(shipped())}"
            )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"scenario file {str(path)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"scenario file {str(path)!r} is not valid TOML: {error}") from error
    try:
        return parse({"name": path.stem, **data})
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None


def parse(data: Mapping[str, Any]) -> Scenario:
    """A scenario from plain values. Raises `ScenarioError`.

    >>> parse({"name": "x", "steps": 0})
    Traceback (most recent call last):
    simulations.scenario.ScenarioError: steps is 0; allowed: whole number from 1 to 10000000
    """
    scenario: Scenario = _struct("", data, Scenario)
    return scenario


def _struct(key: str, value: Any, cls: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ScenarioError(f"{key} is {value!r}; allowed: a table with {_fields(cls)}")
    hints = get_type_hints(cls, include_extras=True)
    tag = cls.__struct_config__.tag_field
    values = {}
    for name, given in value.items():
        if name == tag:
            continue
        inner = f"{key}.{name}" if key else name
        if name not in hints:
            close = difflib.get_close_matches(name, hints, n=1)
            raise ScenarioError(
                f"{inner} is no key; " + (f"did you mean {close[0]}?" if close else f"allowed: {_fields(cls)}")
            )
        values[name] = _convert(inner, given, hints[name])
    for field in msgspec.structs.fields(cls):
        if field.required and field.name not in values:
            raise ScenarioError(
                f"{key + '.' if key else ''}{field.name} is missing; needed: {_words(hints[field.name])}"
            )
    return cls(**values)


def _convert(key: str, value: Any, hint: Any) -> Any:
    bare = _bare(hint)
    origin, arguments = get_origin(bare), get_args(bare)
    if origin in (Union, types.UnionType):
        return _union(key, value, hint, [a for a in arguments if a is not type(None)])
    if _is_struct(bare):
        return _struct(key, value, bare)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise ScenarioError(f"{key} is {value!r}; allowed: a table of tables by name")
        return {_leaf(f"{key}.{k}", k, arguments[0]): _convert(f"{key}.{k}", v, arguments[1]) for k, v in value.items()}
    if origin is tuple and isinstance(value, list):
        _counted(key, value, hint)
        made = tuple(_convert(f"{key}[{at}]", item, arguments[0]) for at, item in enumerate(value))
        return made if _has_structs(arguments[0]) and made else _leaf(key, value, hint)
    return _leaf(key, value, hint)


def _counted(key: str, value: list[Any], hint: Any) -> None:
    """Refuse a list that is too short or too long: the type's own words would name its members only."""
    for meta in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
        if len(value) < (meta.min_length or 0):
            raise ScenarioError(f"{key} is empty; needed is one at least")
        if meta.max_length is not None and len(value) > meta.max_length:
            raise ScenarioError(f"{key} has {len(value)} members; allowed: at most {meta.max_length}")


def _union(key: str, value: Any, hint: Any, members: list[Any]) -> Any:
    structs = [_bare(m) for m in members if _is_struct(_bare(m))]
    if not structs or not isinstance(value, Mapping):
        others = [m for m in members if not _is_struct(_bare(m))]
        if len(others) == 1:
            try:
                return _convert(key, value, others[0])
            except ScenarioError:
                if not structs or isinstance(value, list):
                    raise
        raise ScenarioError(f"{key} is {value!r}; allowed: {_words(hint)}")
    if len(structs) == 1:
        return _struct(key, value, structs[0])
    tags = {str(cls.__struct_config__.tag): cls for cls in structs}
    kind = value.get("kind")
    if kind not in tags:
        raise ScenarioError(f"{key}.kind is {kind!r}; allowed: {', '.join(map(repr, tags))}")
    return _struct(key, value, tags[kind])


def _leaf(key: str, value: Any, hint: Any) -> Any:
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        raise ScenarioError(f"{key} is {value!r}; allowed: {_words(hint)}") from None


def _words(hint: Any) -> str:
    """What a key admits, in words."""
    bare = _bare(hint)
    origin, arguments = get_origin(bare), get_args(bare)
    if origin in (Union, types.UnionType):
        return ", or ".join(_words(a) for a in arguments if a is not type(None))
    if _is_struct(bare):
        return f"a table with {_fields(bare)}"
    if origin is Mapping:
        return "a table of tables by name"
    if origin is tuple:
        return f"list of {_words(arguments[0])}"
    return allowed(hint)


def _fields(cls: Any) -> str:
    tag = cls.__struct_config__.tag
    own = ", ".join(field.name for field in msgspec.structs.fields(cls))
    return f"kind = {tag!r}, {own}" if tag else own


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


def _has_structs(hint: Any) -> bool:
    bare = _bare(hint)
    return _is_struct(bare) or any(_is_struct(_bare(a)) for a in get_args(bare))
