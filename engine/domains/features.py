"""What the classifier sees of a prompt: a few dozen shares and rates, each of which has a name one can argue with.

Everything is counted by the C loops of `str`, `bytes` and `re`; the only Python loops are over words and over lines.
"""

import math
import re
import string
from collections import Counter

from engine.domains.lexicon import GROUPS, WORDS

MAX_CHARACTERS = 2000

# Words are what lies between these, apostrophes dropped (don't -> dont); much faster than a regular expression.
_TO_SPACE = str.maketrans(dict.fromkeys(string.punctuation + string.digits, " ") | {"'": None, "’": None})
_NUMBERS = str.maketrans({chr(c): " " for c in range(128) if not chr(c).isdigit()})
_LATEX = re.compile(r"\\[a-zA-Z]+|\$[^$\n]{1,60}\$|\\[()\[\]]")
_QUANTITY_QUESTIONS = ("how many ", "how much ", "how far ", "how long ", "how old ", "what is the total", "in total?")
_ARITHMETIC = re.compile(r"[\dx-z)]\s?[-+*/^=×÷<>≤≥]\s?[\dx-z(]")

_MONEY = ("$", "€", "£", "¥", " dollar", " cents")
_ARITHMETIC_MARKS = b"+*/^=<>-\xc3\xe2"  # the last two begin the non-ASCII signs of _ARITHMETIC
_DIGITS = b"0123456789"
_CODE_MARKS = b"{}[];=<>_#\\|&@`~"
_BRACKETS = b"()"
_UPPER = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROLS = bytes(c for c in range(32) if c not in b"\t\n\r") + b"\x7f"
_OPERATORS = ("==", "!=", "->", "=>", "::", "+=", "&&", "();")
_LINE_ENDS = (";", "{", "}", ":", "):", ");", ",", "[", "(", "\\")
_COMMENTS = ("#", "//", "/*", "*", '"""', "'''", ">>>", "<!--", "--", "<")
_ENGLISH = ("th", "ing ", "ed ", "wh", "ck", "ght", "ly ", "ould", "sh", "ew")
_FENCES = ("```", "`")

NAMES: tuple[str, ...] = (
    *(f"share of {name}" for name in GROUPS),
    "share of known words",
    "share of digits",
    "numbers per word",
    "share of code punctuation",
    "share of brackets",
    "underscores per word",
    "calls per word",
    "operators per word",
    "code fences",
    "indented lines",
    "lines that end as code does",
    "comment or prompt lines",
    "LaTeX per word",
    "arithmetic per word",
    "money per word",
    "quantity questions",
    "question marks per sentence",
    "exclamation marks per sentence",
    "share of capitals",
    "word length",
    "share of non-ASCII",
    "share of control characters",
    "words per line",
    "log of words",
    "English spellings per word",
)


def excerpt(text: str) -> str:
    """At most `MAX_CHARACTERS` of the text, half from its head and half from its tail: where requests are stated.

    >>> len(excerpt("a" * 5000))
    2001
    """
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return text[:half] + "\n" + text[-half:]


def features(text: str) -> list[float]:
    """The values of `NAMES` for this text; all finite, none negative. Shares of rare things are square roots, so that
    the first occurrence counts most.

    >>> by_name = dict(zip(NAMES, features("How many apples are left?"), strict=True))
    >>> by_name["quantity questions"], by_name["share of digits"], round(by_name["share of quantities"], 3)
    (1.0, 0.0, 0.577)
    """
    text = excerpt(text)
    lower = text.lower()
    words = lower.translate(_TO_SPACE).split()
    count = len(words)
    per_word = 1.0 / (count + 1)
    found = Counter(map(WORDS.get, words))
    groups = [found[group] for group in range(len(GROUPS))]
    known = count - found[None]
    data = text.encode("utf-8", "replace")
    size = len(data)
    per_byte = 1.0 / (size + 1)
    root = math.sqrt

    def share(characters: bytes) -> float:
        return root((size - len(data.translate(None, characters))) * per_byte)

    digits = share(_DIGITS)
    lines = [line for line in text.split("\n") if line and not line.isspace()]
    indented = ends = comments = 0
    for line in lines:
        stripped = line.strip()
        indented += line[0] in " \t"
        ends += stripped.endswith(_LINE_ENDS)
        comments += stripped.startswith(_COMMENTS)
    per_line = 1.0 / (len(lines) + 1)
    calls = text.count("(") - text.count(" (") - text.count("\n(")
    sentences = text.count(".") + text.count("?") + text.count("!") + 1
    return [
        *(root(n * per_word) for n in groups[:-2]),
        groups[-2] * per_word,
        root(groups[-1] * per_word),
        known * per_word,
        digits,
        root(len(text.translate(_NUMBERS).split()) * per_word) if digits else 0.0,
        share(_CODE_MARKS),
        share(_BRACKETS),
        root(text.count("_") * per_word),
        root(calls * per_word),
        root(sum([text.count(operator) for operator in _OPERATORS]) * per_word),
        float(_FENCES[0] in text) + float(_FENCES[1] in text),
        indented * per_line,
        ends * per_line,
        comments * per_line,
        root(len(_LATEX.findall(text)) * per_word) if "\\" in text or "$" in text else 0.0,
        root(len(_ARITHMETIC.findall(lower)) * per_word) if share(_ARITHMETIC_MARKS) else 0.0,
        root(sum([text.count(sign) for sign in _MONEY]) * per_word) if digits else 0.0,
        float(sum([lower.count(question) for question in _QUANTITY_QUESTIONS])),
        text.count("?") / sentences,
        text.count("!") / sentences,
        share(_UPPER),
        len("".join(words)) * per_word,
        (size - len(text)) * per_byte,
        share(_CONTROLS),
        root(count * per_line),
        math.log1p(count),
        sum([lower.count(part) for part in _ENGLISH]) * per_word,
    ]
