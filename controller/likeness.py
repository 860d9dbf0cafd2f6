"""Whether the engines of one pool are alike. What one engine shows is decided for all of them, so they have to be.

Three things must agree: the target, the hardware (compared as text: it names all that step times depend on besides the
model) and the kind of every draft that two engines call by the same name. Everything else may differ, so that a pool
can be changed engine by engine: drafts that only some have loaded, the K they have prepared, their largest batches,
their static choices, their software.
"""

from collections.abc import Iterable

from engine.link.messages import EngineDescription

SHOWN = 80  # characters of a value in a message; the wire does not bound it


def differences(one: EngineDescription, other: EngineDescription) -> list[str]:
    """What must agree and does not, with the value of `one` before that of `other`.

    >>> from engine.link.messages import DraftInfo, StaticChoice
    >>> def engine(hardware, *drafts, max_batch=4):
    ...     return EngineDescription("s", "t", hardware, list(drafts), [2], StaticChoice(), max_batch)
    >>> small, head = DraftInfo("small", "model", 4), DraftInfo("small", "eagle", 4)
    >>> differences(engine("cpu", small), engine("gpu", head))
    ["hardware 'cpu' against 'gpu'", "draft 'small' of kind 'model' against 'eagle'"]
    >>> differences(engine("cpu", small), engine("cpu", DraftInfo("ngram", "ngram", 8), max_batch=9))
    []
    """
    found = [
        f"{name} {_shown(mine)} against {_shown(theirs)}"
        for name, mine, theirs in (
            ("target", one.target, other.target),
            ("hardware", one.hardware, other.hardware),
        )
        if mine != theirs
    ]
    kinds = {draft.name: draft.kind for draft in other.drafts}
    return found + [
        f"draft {draft.name!r} of kind {draft.kind!r} against {kinds[draft.name]!r}"
        for draft in one.drafts
        if kinds.get(draft.name, draft.kind) != draft.kind
    ]


def disagreement(engines: Iterable[tuple[str, EngineDescription]]) -> str | None:
    """One sentence about the engines (name, description) that are not like the first, or None when all are alike.

    The first of them is shown with its values and those of the pool's first engine, the rest are counted.
    """
    listed = list(engines)
    unlike = [(name, found) for name, about in listed[1:] if (found := differences(about, listed[0][1]))]
    if not unlike:
        return None
    first, (name, found) = listed[0][0], unlike[0]
    more = f" (engines that differ from {first!r}: {len(unlike)})" if len(unlike) > 1 else ""
    return f"engine {name!r} is not like engine {first!r}: {', '.join(found)}{more}; give it a pool of its own"


def _shown(value: str) -> str:
    return repr(value if len(value) <= SHOWN else value[: SHOWN - 1] + "…")
