"""A file that says "still at work": its age is what a container's health check looks at.

`python -m engine.heartbeat PATH SECONDS` exits 0 when the file is at most so old, else 1 with the reason on stderr.
"""

import os
import sys
import tempfile
import time
from pathlib import Path


class Heartbeat:
    """Writes `path` at every `beat`. Raises `OSError` at once when it cannot be written there, as does a later `beat`.

    >>> folder = tempfile.TemporaryDirectory()
    >>> heart = Heartbeat(Path(folder.name) / "alive")
    >>> heart.path.exists()  # nothing has been done yet
    False
    >>> heart.beat(), heart.beat(), heart.path.read_text()
    (None, None, '2')
    >>> folder.cleanup()
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.beats = 0
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        self._fresh("").unlink()  # the question is only whether a file can be made there

    def beat(self) -> None:
        """One more piece of work is done. The file holds their number; whoever reads it finds it whole."""
        self.beats += 1
        os.replace(self._fresh(str(self.beats)), self.path)

    def _fresh(self, text: str) -> Path:
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return Path(name)


def main(path: str, seconds: str) -> int:
    """0 when the file `path` was written at most `seconds` ago, else 1."""
    try:
        age = time.time() - Path(path).stat().st_mtime
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    if age > float(seconds):
        print(f"{path} is {age:.0f} s old; allowed: {seconds}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
