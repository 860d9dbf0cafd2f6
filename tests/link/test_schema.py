"""The schema files: never older than the code, and true of what goes over the wire."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.link import schema


def test_the_committed_schema_files_are_what_the_types_say() -> None:
    assert schema.stale(schema.FOLDER) == [], "run: python -m engine.link.schema"


def test_check_fails_on_a_stale_file_and_writing_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert schema.main(["--check", str(tmp_path)]) == 1
    assert "frame.json is stale" in capsys.readouterr().out
    assert schema.main([str(tmp_path)]) == 0
    assert schema.main(["--check", str(tmp_path)]) == 0
    (tmp_path / "policy.json").write_text("{}")
    assert schema.main(["--check", str(tmp_path)]) == 1


def test_the_module_runs_as_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "engine.link.schema", "--check"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_link_needs_neither_numpy_nor_torch_nor_vllm() -> None:
    code = "import sys, engine.link; print(sorted({'numpy', 'torch', 'vllm', 'controller'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
