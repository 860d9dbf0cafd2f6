"""Log lines as JSON: what they hold, what they are about, and that the link's own say it to whoever formats them."""

import json
import logging
from collections.abc import Callable, Iterator
from io import StringIO

import pytest

from engine.link import LinkSettings
from engine.link.follower import Judge
from engine.link.link import Link
from engine.link.logs import JsonFormatter, Told, configure, uvicorn_log
from engine.link.messages import EngineDescription, Policy, encode
from engine.link.ticket import RowOutcome, StepOutcome

NOW = 1_700_000_000.0


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, object]]]]:
    """What loggers below `engine.link` have logged, as JSON lines of an engine `outer`."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter({"engine": "outer", "pool": "all", "policy_version": None}))
    logger = logging.getLogger("engine.link")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_what_a_line_is_about_comes_from_the_call_the_logger_or_the_process(
    lines: Callable[[], list[dict[str, object]]],
) -> None:
    plain = logging.getLogger("engine.link.test")
    versions = [(1, 2)]
    told = Told(plain, pool="p", policy_version=lambda: versions[-1])
    plain.info("one")
    told.info("two %d", 2)
    versions.append((1, 3))
    told.info("three", extra={"pool": "q"})
    one, two, three = lines()
    assert (one["pool"], one["engine"]) == ("all", "outer")
    assert "policy_version" not in one
    assert (two["message"], two["pool"], two["engine"], two["policy_version"]) == ("two 2", "p", "outer", [1, 2])
    assert (three["pool"], three["policy_version"]) == ("q", [1, 3])


def test_a_line_stays_one_line_whatever_is_in_it(lines: Callable[[], list[dict[str, object]]]) -> None:
    log = logging.getLogger("engine.link.test")
    try:
        int("first\nsecond")
    except ValueError:
        log.exception("label %s", "a\nb\ud800 ü")
    (line,) = lines()
    assert line["message"] == "label a\nb\ud800 ü"
    assert line["level"] == "error"
    assert str(line["exception"]).count("\n") > 1
    assert str(line["exception"]).endswith("with base 10: 'first\\nsecond'")


def test_the_link_says_which_pool_engine_and_policy_its_lines_are_about(
    describe: EngineDescription, make_policy: Callable[..., Policy], lines: Callable[[], list[dict[str, object]]]
) -> None:
    link = Link(LinkSettings(pool="p", engine="e"), describe)
    assert link.judge.judge(encode(make_policy({}, version=(7, 1))), NOW) == "applied"
    ticket = link.admit("code", "greedy", 1)
    link.record(StepOutcome(-1.0, [RowOutcome(ticket, 0, 0, 0, 1)], 1))  # impossible
    applied, refused = lines()
    assert (applied["pool"], applied["engine"], applied["policy_version"]) == ("p", "e", [7, 1])
    assert (refused["level"], refused["pool"], refused["engine"]) == ("warning", "p", "e")
    assert "step left out" in str(refused["message"])


def test_a_judge_alone_knows_its_pool(
    make_policy: Callable[..., Policy], lines: Callable[[], list[dict[str, object]]]
) -> None:
    Judge("p", lambda policy, now: None).judge(b"not json", NOW)
    (line,) = lines()
    assert (line["pool"], line["level"]) == ("p", "warning")
    assert "policy_version" not in line


def test_uvicorn_keeps_its_own_format_in_text_and_goes_with_ours_in_json() -> None:
    assert uvicorn_log("text") == {}
    assert uvicorn_log("json") == {"log_config": None}


def test_a_log_that_is_set_up_already_stays(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(logging.getLogger().handlers)
    assert before  # pytest's
    configure("info", "json")
    assert logging.getLogger().handlers == before
