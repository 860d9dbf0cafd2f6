"""Recorded steps of a real engine as columns: read from trace lines, kept as parquet.

One entry per row of a completed step: a request decodes one row in each of its steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.link.trace import TraceLine

FORMAT = b"1"
_KEY = b"akc.recording"
_NAMES = ("domain", "regime", "draft")
Names = NDArray[np.str_]
Numbers = NDArray[np.int64]


class RecordingError(ValueError):
    """A recording that cannot be used; the message says which file, and what is wrong with it."""


@dataclass(frozen=True)
class Recording:
    """Columns over N rows, a request's rows together and in order.

    `request`: number of the request. `prompt`: requests with equal numbers were asked the same; each its own where
    nobody knows. `step`: rows of one step of one engine share it. `batch`: decode rows of the step; `prefill`: prompt
    tokens read in it. `position`: tokens the request had decoded before. `drafted`, `accepted`, `seen`, `emitted`,
    `limited`: as in `RowOutcome`. `seconds`: of the whole step.
    """

    request: Numbers
    prompt: Numbers
    domain: Names
    regime: Names
    draft: Names
    step: Numbers
    batch: Numbers
    prefill: Numbers
    position: Numbers
    drafted: Numbers
    accepted: Numbers
    seen: Numbers
    emitted: Numbers
    limited: NDArray[np.bool_]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.request)

    def where(self, rows: NDArray[np.bool_]) -> "Recording":
        """Only these rows."""
        return Recording(*(getattr(self, field.name)[rows] for field in fields(self)))


COLUMNS = tuple(field.name for field in fields(Recording))


def from_folder(folder: Path, *, paired: bool = False) -> Recording:
    """All `*.jsonl` of a folder that `akc engine --trace` wrote.

    `paired`: within a domain every (draft, K) was given the same prompts in the same order, so that the n-th request of
    each shares its prompt. Raises `RecordingError`.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise RecordingError(f"{folder} holds no *.jsonl; `akc engine --trace {folder}` writes them")
    decoder = msgspec.json.Decoder(TraceLine)
    lines = []
    for path in paths:
        for number, text in enumerate(path.read_bytes().splitlines(), 1):
            try:
                lines.append(decoder.decode(text))
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                raise RecordingError(f"{path}, line {number}: {error}") from None
    return from_lines(lines, paired=paired)


def from_lines(lines: Iterable[TraceLine], *, paired: bool = False) -> Recording:
    """Columns of trace lines. Raises `RecordingError` for lines without batch sizes, and where there is no step."""
    kept = [line for line in lines if line.step]
    if not kept:
        raise RecordingError("the trace has no step; requests are written when they end")
    for line in kept:
        if len(line.batch) != len(line.step) or min(line.batch) < 1:
            raise RecordingError(f"request {line.request} of engine {line.engine}: batch sizes are missing")
        if len(line.prefill) != len(line.step):
            raise RecordingError(f"request {line.request} of engine {line.engine}: prompt tokens by step are missing")
    sizes = [len(line.step) for line in kept]

    def spread(values: Sequence[Any]) -> NDArray[Any]:
        return np.repeat(np.array(values), sizes)

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([np.asarray(getattr(line, name)) for line in kept])

    engines = {line.incarnation: number for number, line in enumerate(kept)}
    _, step = np.unique(
        np.stack([spread([engines[line.incarnation] for line in kept]), joined("step")]), axis=1, return_inverse=True
    )
    position = np.concatenate([np.cumsum([0, *line.emitted[:-1]]) for line in kept])
    columns = {
        "request": spread(range(len(kept))),
        "prompt": spread(_prompts(kept) if paired else range(len(kept))),
        **{name: spread([getattr(line, name) for line in kept]) for name in _NAMES},
        "draft": np.concatenate([line.switched or [line.draft] * len(line.step) for line in kept]),
        "step": step.reshape(-1),
        "position": position,
        **{name: joined(name) for name in ("batch", "prefill", "drafted", "accepted", "seen", "emitted", "limited")},
        "seconds": joined("seconds").astype(np.float64),
    }
    return Recording(**columns)


def _prompts(lines: Sequence[TraceLine]) -> list[int]:
    """The n-th request of every (domain, regime, draft, K) shares a number with the n-th of the others."""
    taken: dict[tuple[str, str, str, int], int] = {}
    numbers: dict[tuple[str, str, int], int] = {}
    found = [0] * len(lines)
    for at in sorted(range(len(lines)), key=lambda i: (lines[i].incarnation, lines[i].step[0], lines[i].request)):
        line = lines[at]
        arm = (line.domain, line.regime, line.draft, max(line.k))
        nth = taken[arm] = taken.get(arm, -1) + 1
        found[at] = numbers.setdefault((line.domain, line.regime, nth), len(numbers))
    return found


def write(recording: Recording, path: Path) -> None:
    """Keep it as parquet. Raises `RecordingError` when pyarrow or the disk is missing."""
    pa, parquet = _arrow()
    small = {"limited": pa.bool_(), "seconds": pa.float32(), **dict.fromkeys(_NAMES, pa.string())}
    arrays = {name: pa.array(getattr(recording, name), small.get(name, pa.int32())) for name in COLUMNS}
    table = pa.table(arrays).replace_schema_metadata({_KEY: FORMAT})
    try:
        parquet.write_table(table, path, compression="zstd", compression_level=19)
    except OSError as error:
        raise RecordingError(f"{path} cannot be written: {error.strerror or error}") from error


def read(path: Path) -> Recording:
    """A recording that `write` has kept. Raises `RecordingError`."""
    pa, parquet = _arrow()
    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise RecordingError(f"{path} cannot be read as parquet: {error}") from error
    written = (table.schema.metadata or {}).get(_KEY)
    missing = [name for name in COLUMNS if name not in table.column_names]
    if written != FORMAT or missing:
        raise RecordingError(f"{path} is no recording of format {FORMAT.decode()}: {written=}, {missing=}")
    if not table.num_rows:
        raise RecordingError(f"{path} has no step")
    columns = {}
    for name in COLUMNS:
        values = np.array(table.column(name).to_pylist())
        columns[name] = values.astype(np.float64 if name == "seconds" else values.dtype)
    return Recording(**columns)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise RecordingError("recordings need the package pyarrow: pip install pyarrow") from None
    return pa, parquet
