"""The tokens file over time: made once however many start at once, and what cannot be used changes nothing."""

import logging
import os
import threading
from pathlib import Path

import pytest

from controller.app import create_app
from controller.settings import ControllerSettings
from controller.tokens import TokenError, Tokens, create

A, B = "a" * 16, "b" * 16


def write(file: Path, content: bytes) -> None:
    """Other content, at a later time however quick the test is."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    file.write_bytes(content)
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


@pytest.mark.parametrize(
    "content", [b"", b"# nobody yet\n", b"ana admin short\n", b"ana king aaaaaaaaaaaaaaaa\n", b"ana admin \xff"]
)
def test_a_file_that_becomes_unusable_leaves_the_tokens_in_force_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    file = tmp_path / "tokens"
    write(file, f"ana admin {A}\n".encode())
    tokens = Tokens(file)
    write(file, content)
    with caplog.at_level(logging.ERROR, "controller"):
        for _ in range(5):
            found = tokens.holder(A)
            assert found is not None
            assert found.name == "ana"
    assert len([r for r in caplog.records if "tokens stay as they were" in r.message]) == 1
    write(file, f"bob read {B}\n".encode())
    assert tokens.holder(A) is None
    assert tokens.holder(B) is not None


def test_a_file_that_is_away_for_a_while_is_told_once_and_read_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    write(file, f"ana admin {A}\n".encode())
    tokens = Tokens(file)
    file.unlink()
    with caplog.at_level(logging.ERROR, "controller"):
        assert all(tokens.holder(A) for _ in range(3))
    assert len(caplog.records) == 1
    write(file, f"bob read {B}\n".encode())
    assert tokens.holder(B) is not None


def test_one_token_on_two_lines_is_refused_without_being_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whose it is, and with which role, would hang on the order of the lines."""
    file = tmp_path / "tokens"
    write(file, f"# us\nana admin {A}\n\nbob read {A}\n".encode())
    with pytest.raises(TokenError, match=r"tokens, lines 2 and 4: the same token on both") as refused:
        Tokens(file)
    assert A not in str(refused.value)
    write(file, f"ana admin {A}\nana admin {B}\n".encode())  # one name with two: a rotation
    tokens = Tokens(file)
    write(file, f"ana admin {A}\nbob read {B}\nbob read {B}\n".encode())
    with caplog.at_level(logging.ERROR, "controller"):
        assert tokens.holder(B) == ("ana", "admin", B)  # as before
    assert "lines 2 and 3" in caplog.text
    assert B not in caplog.text


@pytest.mark.parametrize("content", ["", "# nobody yet\n"])
def test_a_file_without_tokens_is_refused_at_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(content)
    with pytest.raises(TokenError, match="holds no token; needed: a line NAME ROLE TOKEN"):
        create_app(ControllerSettings(tokens_file=str(file)))


def test_whoever_comes_second_takes_the_file_of_the_first(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    assert create(file)
    text = file.read_text()
    assert not create(file)
    assert file.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_controllers_that_start_at_once_have_the_same_token(tmp_path: Path) -> None:
    for number in range(20):
        file = tmp_path / str(number) / "tokens"
        made: list[str] = []
        failed: list[Exception] = []
        barrier = threading.Barrier(6)

        def begin(
            file: Path = file,
            made: list[str] = made,
            failed: list[Exception] = failed,
            barrier: threading.Barrier = barrier,
        ) -> None:
            barrier.wait(30)
            try:
                create_app(ControllerSettings(tokens_file=str(file)))
                made.append(file.read_text())
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=begin) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert failed == []
        assert (len(made), len({*made})) == (6, 1)


def test_a_folder_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        TokenError, match=r"tokens_file '.*/file/tokens' is not there and cannot be made: .*File exists"
    ):
        create_app(ControllerSettings(tokens_file=str(tmp_path / "file" / "tokens")))
