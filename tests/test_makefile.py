"""The Makefile tells people of every target, and CI cleans up after itself whatever fails."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = {"beside", "unit-first", "unit-rest", "slow-first", "slow-rest"}  # what other targets call


def test_help_names_every_target_that_people_may_call() -> None:
    (listed,) = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    told = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    named = re.findall(r"^make ([\w, -]+?) {2,}", told.stdout, re.MULTILINE)
    assert set(", ".join(named).split(", ")) == set(listed.split()) - PARTS


def test_ci_takes_its_docker_engine_down_where_even_starting_it_fails(tmp_path: Path) -> None:
    script = (ROOT / ".ci" / "run").read_text()
    head, _, stage = script.partition('stage "compose stack"')
    tool = tmp_path / "tool"
    tool.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/calls\ntest "$1" != up\n')
    tool.chmod(0o755)
    assert "set -euo pipefail" in head
    stage = re.sub(r"^docker_tool=.*$", f"docker_tool={tool}", stage, count=1, flags=re.MULTILINE)
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", stage], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode != 0
    assert (tmp_path / "calls").read_text().split() == ["up", "down"]
