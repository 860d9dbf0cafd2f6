"""What `akc` says where a part that it needs is not installed."""

import subprocess
import sys


def test_a_command_whose_package_is_missing_names_it_and_the_extras() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None; sys.argv = ['akc', 'traffic']; import controller.cli as c; c.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("akc needs the package 'httpx'")
    assert "[engine]" in done.stderr
