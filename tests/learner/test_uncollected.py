"""The collector comes back."""

import gc

import pytest

from controller.learner.uncollected import uncollected


def test_collection_goes_on_after_an_error() -> None:
    def fail() -> None:
        with uncollected():
            assert not gc.isenabled()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert gc.isenabled()


def test_who_had_turned_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
