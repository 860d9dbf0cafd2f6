"""The hooks over a vLLM of a few lines: other versions, faults at every place, and what vLLM's own still does."""

import importlib
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.link import StaticLink
from engine.vllm.bridge import Bridge
from engine.vllm.drafter import drafter_of
from engine.vllm.entry import AdaptiveScheduler
from engine.vllm.labels import Labels
from engine.vllm.settings import VllmSettings
from tests.vllm import stub


@pytest.mark.parametrize(
    ("version", "changed", "why"),
    [
        ("0.28.0", {"outputs": "", "output": "", "request": "", "config": ""}, "vLLM 0.28.0 is not among the versions"),
        ("0.32.0", {"outputs": "class ModelRunnerOutput: ..."}, "cannot import name 'DraftTokenIds'"),
        ("0.32.0", {"version": ""}, "cannot import name '__version__'"),
        ("0.32.0", {"scheduler": stub.SCHEDULER.replace("def shutdown", "def stop")}, "Scheduler.shutdown of vLLM"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_vllm_that_lacks_something_serves_by_itself_and_says_so_in_one_line(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    asynchronous: bool,
    version: str,
    changed: dict[str, str],
    why: str,
) -> None:
    with stub.installed(tmp_path, version, changed):
        made = AdaptiveScheduler(vllm_config=stub.config(asynchronous=asynchronous))
    assert type(made).__name__ == ("AsyncScheduler" if asynchronous else "Scheduler")
    (record,) = caplog.records
    assert why in record.message
    assert "\n" not in record.message
    assert record.exc_info is None


def test_settings_nobody_can_use_are_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stub.installed(tmp_path):
        made = AdaptiveScheduler(stub.config(settings={"static_k": 20}))
    assert made._akc is None
    (record,) = caplog.records
    assert record.message.endswith("static_k is 20; allowed: 0 to 4, the largest K of ngram")
    assert record.exc_info is None


class Closing(StaticLink):
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def scheduler(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with stub.installed(tmp_path):
        module = importlib.import_module("engine.vllm.scheduler")
        labels = Labels(VllmSettings(classify=False), lambda: pytest.fail("nobody asked for a tokenizer"))
        bridge = Bridge(Closing("ngram", 2), labels, drafter_of("ngram", None, 4))
        monkeypatch.setattr(module, "_bridge", lambda config, cache: bridge)
        yield AdaptiveScheduler(stub.config(asynchronous=request.param))


def step(scheduler: Any) -> Any:
    """One step: schedule, run, draft."""
    scheduled = scheduler.schedule()
    names = list(scheduled.num_scheduled_tokens)
    at = {name: nth for nth, name in enumerate(names)}
    scheduler.update_from_output(scheduled, SimpleNamespace(req_id_to_index=at, sampled_token_ids=[[5]] * len(names)))
    if "Async" not in type(scheduler).__name__:
        scheduler.update_draft_token_ids(SimpleNamespace(req_ids=names, draft_token_ids=[[7] * 4 for _ in names]))
    return scheduled


def test_rows_and_the_drafter_get_the_k_of_the_link(scheduler: Any) -> None:
    scheduler.add_request(stub.request("a"))
    assert step(scheduler).num_spec_tokens_to_schedule == 2
    assert len(step(scheduler).scheduled_spec_decode_tokens["a"]) == 2
    assert scheduler.akc_errors == 0


def failing(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a fault, on purpose")


PLACES = ["came", "interrupted", "choose", "scheduled", "outputs", "completed", "ended", "close"]


@pytest.mark.parametrize("place", [*PLACES, "offered", "validated", "_apply"])
def test_whatever_fails_vllm_s_own_scheduler_goes_on(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    """`offered` and `validated` are no part of asynchronous scheduling."""
    asynchronous = "Async" in type(scheduler).__name__
    link = scheduler._akc.link
    where = scheduler if place == "_apply" else scheduler._akc
    monkeypatch.setattr(where, place, failing)
    request = stub.request("a")
    scheduler.add_request(request)
    for _ in range(3):
        last = step(scheduler)
        scheduler.set_pause_state(2)
    scheduler._free_request(request)
    scheduler.shutdown()
    unreached = asynchronous and place in ("offered", "validated")
    assert scheduler.akc_errors == int(not unreached)
    assert (scheduler._akc is None) is not unreached
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * (not unreached)
    assert scheduler.did.count("update_from_output") == scheduler.did.count("_update_after_schedule") == 3
    assert scheduler.did.count("set_pause_state") == 3
    assert scheduler.did[-2:] == ["_free_request", "shutdown"]
    assert request.num_output_tokens == 3
    if place not in ("ended", "close") and not unreached:
        # vLLM's own K again, for the drafter and for the row.
        assert last.num_spec_tokens_to_schedule == len(last.scheduled_spec_decode_tokens["a"]) == 4
    if place != "close":
        assert link.closed or not unreached  # by a thread of its own, where it failed


def test_a_fault_while_blocks_are_salted_leaves_them_as_they_were(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler._akc, "choose", lambda next_ones, running: {"a": "small/"})
    request = stub.request("a")
    before = request.block_hashes
    scheduler.add_request(request)
    request.update_block_hashes = failing
    step(scheduler)
    assert scheduler.akc_errors == 1
    assert (request.cache_salt, request.block_hashes) == (None, before)
