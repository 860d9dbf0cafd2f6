"""The reference says what the code does."""

import pytest

from controller.api.reference import DOCUMENT, filled, written


def test_the_endpoints_in_the_document_are_those_of_the_app() -> None:
    text = DOCUMENT.read_text()
    assert written(text) == text, "make reference"


def test_a_document_without_the_place_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no '<!-- endpoints:"):
        filled("# HTTP API", {"endpoints": "| a |"})
