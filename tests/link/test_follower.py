"""Following a policy: which versions count, what is refused and why, and a server that comes and goes."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from engine.link import LinkSettings
from engine.link.follower import Follower, Judge
from engine.link.messages import Keys, Policy, encode

if TYPE_CHECKING:
    from tests.link.conftest import Server

NOW = 1_700_000_000.0
MakePolicy = Callable[..., Policy]
Eventually = Callable[[Callable[[], object]], None]


class Taken:
    """What a judge has handed on."""

    def __init__(self) -> None:
        self.policies: list[Policy | None] = []

    def __call__(self, policy: Policy | None, now: float) -> None:
        if policy is not None and policy.mode == "canary":
            raise ValueError("cell x contradicts itself")
        self.policies.append(policy)


@pytest.fixture
def taken() -> Taken:
    return Taken()


@pytest.fixture
def judge(taken: Taken) -> Judge:
    return Judge("p", taken)


def test_versions_are_ordered_by_epoch_then_number_and_never_go_back(
    judge: Judge, taken: Taken, make_policy: MakePolicy
) -> None:
    versions = [(5, 1), (5, 2), (5, 1), (4, 99), (6, 0), (5, 3)]
    verdicts = [judge.judge(encode(make_policy({}, version=v)), NOW) for v in versions]
    assert verdicts == ["applied", "applied", "older", "older", "applied", "older"]
    assert [p.version for p in taken.policies if p] == [(5, 1), (5, 2), (6, 0)]
    assert "(5, 3) is older than (6, 0)" in judge.why


def test_the_same_version_again_changes_nothing_unless_it_lives_longer(
    judge: Judge, taken: Taken, make_policy: MakePolicy
) -> None:
    judge.judge(encode(make_policy({}, expires=NOW + 100)), NOW)
    assert judge.judge(encode(make_policy({}, expires=NOW + 100)), NOW) == "same"
    assert judge.judge(encode(make_policy({}, expires=NOW + 50)), NOW) == "same"
    assert judge.judge(encode(make_policy({}, expires=NOW + 200)), NOW) == "prolonged"
    assert len(taken.policies) == 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "unreadable, static choice in force: Input data was truncated"),
        (b'{"pool":"p"}', "missing required field `version`"),
        (b"\xff\xfe", "unreadable"),
    ],
)
def test_an_unreadable_policy_means_the_static_choice(
    judge: Judge, taken: Taken, make_policy: MakePolicy, data: bytes, why: str
) -> None:
    good = encode(make_policy({}))
    judge.judge(good, NOW)
    assert judge.judge(data, NOW) == "unreadable"
    assert taken.policies[-1] is None
    assert why in judge.why
    assert judge.judge(good, NOW) == "applied"  # the same version, readable again
    assert judge.counts == {"applied": 2, "unreadable": 1}


def test_a_policy_of_another_pool_or_a_newer_wire_or_that_contradicts_itself_is_unreadable(
    judge: Judge, make_policy: MakePolicy
) -> None:
    assert judge.judge(encode(make_policy({})).replace(b'"pool":"p"', b'"pool":"q"'), NOW) == "unreadable"
    assert "it is for pool 'q', this engine belongs to 'p'" in judge.why
    assert judge.judge(encode(make_policy({})).replace(b'"v":1', b'"v":2'), NOW) == "unreadable"
    assert "wire version is 2, this engine reads up to 1" in judge.why
    assert judge.judge(encode(make_policy({}, mode="canary")), NOW) == "unreadable"
    assert "version (1, 1) contradicts itself" in judge.why


def test_an_expired_policy_means_the_static_choice(judge: Judge, taken: Taken, make_policy: MakePolicy) -> None:
    assert judge.judge(encode(make_policy({}, version=(1, 2), expires=NOW + 1)), NOW + 2) == "expired"
    assert taken.policies == [None]
    assert judge.judge(encode(make_policy({}, version=(1, 1))), NOW + 2) == "older"


def test_one_bad_write_with_a_huge_epoch_does_not_lock_the_engine_out(judge: Judge, make_policy: MakePolicy) -> None:
    tomorrow = int((NOW + 86_400 * 2) * 1000)
    assert judge.judge(encode(make_policy({}, version=(tomorrow, 1))), NOW) == "future"
    assert judge.judge(encode(make_policy({}, version=(int(NOW * 1000), 1))), NOW) == "applied"


def test_a_missing_key_leaves_the_policy_in_force(judge: Judge, taken: Taken, make_policy: MakePolicy) -> None:
    assert judge.judge(None, NOW) == "absent"
    judge.judge(encode(make_policy({})), NOW)
    assert judge.judge(None, NOW) == "absent"
    assert len(taken.policies) == 1
    assert "stays until it expires" in judge.why


def test_a_policy_that_expires_unrenewed_is_told_once_and_not_said_to_stay(
    judge: Judge, make_policy: MakePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    judge.judge(encode(make_policy({}, version=(5, 1), expires=NOW + 60)), NOW)
    judge.expire(NOW + 59)
    assert caplog.text == ""
    judge.expire(NOW + 60)
    judge.expire(NOW + 61)
    assert caplog.text.count("version (5, 1) has expired, static choice in force") == 1
    assert judge.judge(None, NOW + 62) == "absent"
    assert judge.why == "the key holds no policy"


@pytest.fixture
def live_policy(make_policy: MakePolicy) -> MakePolicy:
    import time

    def make(n: int) -> Policy:
        return make_policy({}, version=(1, n), issued=time.time(), expires=time.time() + 600)

    return make


def test_a_hint_is_followed_at_once_and_a_lost_one_at_the_next_poll(
    server: "Server", taken: Taken, judge: Judge, live_policy: MakePolicy, eventually: Eventually
) -> None:
    follower = Follower(LinkSettings(redis_url=server.url, pool="p", poll_interval=60), judge)
    follower.start()
    eventually(lambda: follower.reads == 1)
    server.publish(live_policy(1))
    eventually(lambda: judge.newest == (1, 1))  # the poll is a minute away: this was the hint
    assert follower.hints == 1
    assert follower.close(5)
    quick = Follower(LinkSettings(redis_url=server.url, pool="p", poll_interval=0.05), judge)
    quick.start()
    with server.client() as client:
        client.set(Keys("p").policy, encode(live_policy(2)))  # no hint
    eventually(lambda: judge.newest == (1, 2))
    assert quick.hints == 0
    assert quick.close(5)


def test_it_starts_without_a_server_and_survives_its_restart(
    down_server: "Server",
    judge: Judge,
    live_policy: MakePolicy,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    follower = Follower(LinkSettings(redis_url=down_server.url, pool="p", poll_interval=0.1, timeout=1), judge)
    follower.start()
    eventually(lambda: follower.why)
    assert "ConnectionError" in str(follower.why)
    assert "no policy yet, so the static choice is in force" in caplog.text
    down_server.start()
    eventually(lambda: follower.connected)
    down_server.publish(live_policy(1))
    eventually(lambda: judge.newest == (1, 1))
    down_server.kill()
    eventually(lambda: not follower.connected)
    assert "the policy in force stays until it expires" in caplog.text
    down_server.start()
    eventually(lambda: follower.connected)
    down_server.publish(live_policy(2))
    eventually(lambda: judge.newest == (1, 2))
    assert follower.close(5)


def test_the_log_tells_that_a_policy_came_into_force_and_not_every_next_one(
    judge: Judge, make_policy: MakePolicy, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="engine.link.follower"):
        for n in (1, 2, 3):
            judge.judge(encode(make_policy({}, version=(5, n))), NOW)
        judge.judge(b"{", NOW)
        judge.judge(encode(make_policy({}, version=(5, 4))), NOW)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]
