"""What `akc` says where a part that it needs is not installed."""

import subprocess
import sys
from importlib.metadata import version


def test_a_command_whose_package_is_missing_names_it_and_the_extras() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None; sys.argv = ['akc', 'traffic']; import controller.cli as c; c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("akc needs the package 'httpx'")
    assert "[engine]" in done.stderr


def test_the_version_is_told_where_not_even_the_command_line_s_own_package_is() -> None:
    code = (
        "import sys; sys.modules['typer'] = None; sys.argv = ['akc', {!r}]; import controller.cli as c; c.main()"
    ).format
    done = subprocess.run([sys.executable, "-c", code("--version")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, version("adaptive-k-controller")), done.stderr
    other = subprocess.run([sys.executable, "-c", code("status")], capture_output=True, text=True, check=False)
    assert (other.returncode, "needs the package 'typer'" in other.stderr) == (2, True)
