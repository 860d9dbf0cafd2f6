"""Profile ha, really brought up: Redis's primary is killed, comes back, and everything is taken down and up again."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.compose.stack import ROOT, Stack

pytestmark = pytest.mark.slow
CONTROLLERS = ("http://127.0.0.1:18082", "http://127.0.0.1:18083")
POOL = "virtual-published-72b"
STACK = Stack(
    "akc-test-ha",
    COMPOSE_PROFILES="ha",
    AKC_CONTROLLER_PORT="18082",
    AKC_CONTROLLER_2_PORT="18083",
    AKC_REDIS_PORT="18380",
    **dict(re.findall(r"^# (AKC_REDIS_(?:SCHEME|ADDRESS))=(.+)$", (ROOT / ".env").read_text(), re.MULTILINE)),
)
SERVERS = ("redis", "redis-replica", "sentinel", "sentinel-2", "sentinel-3", "controller", "controller-2")
compose, until = STACK.compose, STACK.until


@pytest.fixture(scope="module")
def stack() -> Iterator[None]:
    with STACK.up("--wait", "--wait-timeout", "300", *SERVERS, "simulated"):
        yield


def replication(service: str) -> dict[str, str]:
    """What a Redis says of its part; empty where it does not answer."""
    asked = (
        "redis-cli",
        "-e",
        "--user",
        "sentinel",
        "--pass",
        "adaptive-k",
        "--no-auth-warning",
        "info",
        "replication",
    )
    lines = STACK.execute(service, *asked).stdout.splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def follows(service: str, primary: str) -> bool:
    told = replication(service)
    return (told.get("role"), told.get("master_host"), told.get("master_link_status")) == ("slave", primary, "up")


def primary(sentinel: str = "sentinel") -> str:
    asked = ("redis-cli", "-p", "26379", "sentinel", "get-master-addr-by-name", "akc")
    return (STACK.execute(sentinel, *asked).stdout.splitlines() or [""])[0]


def leaders() -> list[str]:
    """Controllers that lead the pool."""

    def role(url: str) -> Any:
        try:
            return httpx.get(f"{url}/healthz", timeout=5).json()["pools"].get(POOL)
        except httpx.TransportError:
            return None

    return [url for url in CONTROLLERS if role(url) == "leading"]


def learned() -> int:
    """Tokens of decode steps that the leading controller has counted; 0 without one."""
    for url in leaders():
        rows = httpx.get(f"{url}/v1/pools/{POOL}/domains", timeout=5)
        return sum(row["tokens"] for row in rows.json()) if rows.status_code == 200 else 0
    return 0


def test_one_controller_leads_and_the_replica_has_what_the_primary_has(stack: None) -> None:
    until(lambda: learned() > 0, "a leader counts", 60)
    assert len(leaders()) == 1
    assert {primary(name) for name in ("sentinel", "sentinel-2", "sentinel-3")} == {"redis"}
    assert follows("redis-replica", "redis")


def test_the_primary_killed_costs_no_count_and_takes_the_other_ones_place_as_its_replica(stack: None) -> None:
    before = learned()
    assert before > 0
    compose("kill", "--signal", "SIGKILL", "redis")
    until(lambda: primary() == "redis-replica", "the Sentinels agree on the replica", 60)
    until(lambda: learned() > before, "a controller leads again, from the same counts on", 90)
    assert replication("redis-replica")["role"] == "master"
    compose("up", "--detach", "--no-deps", "redis")
    until(lambda: follows("redis", "redis-replica"), "the old primary replicates the new one", 60)
    until(lambda: replication("redis-replica").get("connected_slaves") == "1", "the new primary knows its replica", 30)


def test_down_and_up_keep_roles_and_counts(stack: None) -> None:
    compose("stop", "simulated")  # so that nothing is counted any more
    settled: list[int] = []

    def still() -> bool:
        settled.append(learned())
        return len(settled) > 6 and len(set(settled[-6:])) == 1 and settled[-1] > 0

    until(still, "counts settle", 60)
    compose("down")
    compose("up", "--detach", "--wait", "--wait-timeout", "120", *SERVERS)
    until(
        lambda: {primary(s) for s in ("sentinel", "sentinel-2", "sentinel-3")} == {"redis-replica"}, "same primary", 60
    )
    until(lambda: follows("redis", "redis-replica"), "redis is still the replica", 60)
    until(lambda: learned() > 0, "a controller leads", 60)
    assert learned() == settled[-1]


def test_a_failover_back_leaves_both_in_step(stack: None) -> None:
    before = learned()
    done = STACK.execute("sentinel", "redis-cli", "-e", "-p", "26379", "sentinel", "failover", "akc")
    assert done.returncode == 0, done.stdout + done.stderr
    until(lambda: primary() == "redis" and follows("redis-replica", "redis"), "roles swapped", 60)
    until(lambda: learned() > 0, "a controller leads", 90)
    assert learned() == before


def test_the_health_check_of_a_sentinel_fails_without_a_quorum(stack: None) -> None:
    check = ("redis-cli", "-e", "-p", "26379", "sentinel", "ckquorum", "akc")
    assert STACK.execute("sentinel", *check).returncode == 0
    compose("stop", "sentinel-2", "sentinel-3")
    until(lambda: STACK.execute("sentinel", *check).returncode != 0, "no quorum", 30)
