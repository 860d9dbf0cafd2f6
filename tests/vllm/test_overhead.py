"""The benchmark of the hooks measures hooks that work: it says so itself where one failed."""

import pytest

pytestmark = pytest.mark.vllm


def test_the_hooks_are_measured_while_none_of_them_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.bench.on_vllm import overhead

    monkeypatch.setattr(overhead, "ROUNDS", 1)
    monkeypatch.setattr(overhead, "STEPS", 3)
    overhead.main()
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table] == ["rows", "1", "16", "128"]
