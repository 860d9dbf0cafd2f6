"""Labels: the operator's or client's own word for a request's domain, checked before anything else sees it.

A label becomes part of counters, JSON on the wire and metric names, so what is let in is narrow: 1 to 64 visible
characters. Case and outer spaces do not matter: `Code` and ` code ` are one domain.
"""

import unicodedata
from collections.abc import Mapping
from typing import Literal

from engine.domains.classifier import classify

HEADER = "x-akc-domain"
MAX_LENGTH = 64

Source = Literal["body", "header", "classifier"]

# Unicode categories that no label may hold: controls, invisible format marks, surrogates, private and unassigned
# code points, line and paragraph separators.
_REFUSED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


class LabelError(ValueError):
    """A domain label that cannot be used; the message says what was wrong with it and what is allowed."""


def clean_label(label: str) -> str:
    """The label in its canonical form: NFC, lower case, no outer spaces. Raises `LabelError` for anything else.

    >>> clean_label("  Code ")
    'code'
    >>> clean_label("a\\tb")
    Traceback (most recent call last):
    engine.domains.label.LabelError: domain label 'a\\tb' has U+0009 at index 1; allowed are visible characters
    """
    if len(label) > 4 * MAX_LENGTH:  # before any work on it; normalising never shrinks text fourfold in practice
        raise LabelError(f"domain label has {len(label)} characters; 1 to {MAX_LENGTH} are allowed")
    clean = unicodedata.normalize("NFC", label).strip().lower()
    for index, character in enumerate(clean):
        if unicodedata.category(character) in _REFUSED:
            code = f"U+{ord(character):04X} at index {index}"
            raise LabelError(f"domain label {clean!a} has {code}; allowed are visible characters")
    if not 1 <= len(clean) <= MAX_LENGTH:
        raise LabelError(f"domain label has {len(clean)} characters; 1 to {MAX_LENGTH} are allowed")
    return clean


def _header_text(value: str) -> str:
    # HTTP libraries hand header bytes over as latin-1; clients that send non-ASCII labels mean UTF-8.
    try:
        return value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value


def domain_of(label: str | None, headers: Mapping[str, str], text: str) -> tuple[str, Source]:
    """The domain of a request and where it came from: the body's label, the `X-AKC-Domain` header, or the classifier.

    `headers` is looked up by the lower-case name. Raises `LabelError` when the label that wins is unusable: a client
    that labels its traffic must hear of a typo rather than be served under a guess.

    >>> domain_of("Math", {}, "")
    ('math', 'body')
    >>> domain_of(None, {"x-akc-domain": "code"}, "Hello, how are you today?")
    ('code', 'header')
    >>> domain_of(None, {}, "")
    ('other', 'classifier')
    """
    if label is not None:
        return clean_label(label), "body"
    header = headers.get(HEADER)
    if header is not None:
        return clean_label(_header_text(header)), "header"
    return classify(text).domain, "classifier"
