"""Schema numbers of saved state: the same is read, an older one brought up to date, a newer one refused.

Every part of a checkpoint that is encoded by itself has a number of its own. It grows when older code would misread
what newer code writes; a field more, with a default, needs none. Pure.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Migration = Callable[[dict[str, Any]], dict[str, Any]]


class CheckpointError(ValueError):
    """A checkpoint that this version cannot read and must not overwrite."""


class _Numbered(msgspec.Struct):
    schema: int


def migrate(
    fields: dict[str, Any], found: int, what: str, schema: int, migrations: Mapping[int, Migration]
) -> dict[str, Any]:
    """`fields` of layout `found` as layout `schema`. `migrations[n]` makes n + 1 of n.

    Raises `CheckpointError` for a newer layout, and ValueError for one that no migration leads on from.

    >>> migrations = {1: lambda old: {"name": old["title"]}, 2: lambda old: {**old, "size": 0}}
    >>> migrate({"title": "a"}, 1, "the box", 3, migrations)
    {'name': 'a', 'size': 0}
    >>> migrate({}, 4, "the box", 3, migrations)
    Traceback (most recent call last):
    controller.learner.schema.CheckpointError: the box has schema 4; this version reads up to 3
    """
    if found > schema:
        raise CheckpointError(f"{what} has schema {found}; this version reads up to {schema}")
    for number in range(found, schema):
        if number not in migrations:
            raise ValueError(f"{what} has schema {found}, and nothing leads from {number} on to {schema}")
        fields = migrations[number](fields)
    return fields


def current(data: bytes, what: str, schema: int, migrations: Mapping[int, Migration]) -> bytes:
    """msgpack with a field `schema`, as layout `schema`; the very bytes where they are of that already.

    Raises as `migrate` does, and `msgspec.MsgspecError` for what has no such field.

    >>> new = current(msgspec.msgpack.encode({"schema": 1, "a": 2}), "the box", 2, {1: lambda old: {"b": old["a"]}})
    >>> msgspec.msgpack.decode(new)
    {'b': 2, 'schema': 2}
    """
    found = msgspec.msgpack.decode(data, type=_Numbered).schema
    if found == schema:
        return data
    fields = migrate(msgspec.msgpack.decode(data, type=dict[str, Any]), found, what, schema, migrations)
    return msgspec.msgpack.encode({**fields, "schema": schema})
