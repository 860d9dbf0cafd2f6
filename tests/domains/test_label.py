"""Labels: what is let in, what is refused, and which source wins."""

import unicodedata

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.domains import LabelError, clean_label, domain_of
from engine.link.messages import AcceptanceCell, Frame, decode_frame, encode


def test_body_wins_over_header_and_header_over_the_classifier() -> None:
    text = "def f(x):\n    return x\n"
    headers = {"x-akc-domain": "legal"}
    assert domain_of("Medical", headers, text) == ("medical", "body")
    assert domain_of(None, headers, text) == ("legal", "header")
    assert domain_of(None, {}, text) == ("code", "classifier")


def test_case_and_outer_space_do_not_make_a_new_domain() -> None:
    assert clean_label("\u00a0 SQL ") == clean_label("sql") == "sql"


def test_utf8_header_bytes_that_arrived_as_latin1_are_read_as_meant() -> None:
    assert domain_of(None, {"x-akc-domain": "übung".encode().decode("latin-1")}, "") == ("übung", "header")


@pytest.mark.parametrize(
    "label", ["", "   ", "a" * 65, "a" * 100_000, "a\x00b", "a\nb", "\ud800", "a\u202eb", "a\x85b"]
)
def test_unusable_labels_are_refused_with_a_reason(label: str) -> None:
    with pytest.raises(LabelError, match="allowed"):
        clean_label(label)


def test_a_bad_label_is_refused_even_where_another_source_would_do() -> None:
    with pytest.raises(LabelError):
        domain_of("", {"x-akc-domain": "code"}, "hello")


@given(st.binary(max_size=80))
def test_random_bytes_as_a_label_are_either_refused_or_fit_for_the_wire(data: bytes) -> None:
    for label in (data.decode("latin-1"), data.decode("utf-8", "surrogateescape")):
        try:
            clean = clean_label(label)
        except LabelError:
            continue
        assert clean_label(clean) == clean
        assert unicodedata.is_normalized("NFC", clean)
        cell = AcceptanceCell(clean, "greedy", "ngram", "policy", [], [])
        assert decode_frame(encode(Frame("e", "i", 0, 0.0, 0.0, acceptance=[cell]))).acceptance[0].domain == clean


@given(st.text(max_size=70))
def test_any_text_as_a_label_is_either_refused_or_fit_for_the_wire(label: str) -> None:
    try:
        clean = clean_label(label)
    except LabelError:
        return
    msgspec.json.encode(clean)
    assert 1 <= len(clean) <= 64
