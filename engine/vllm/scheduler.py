"""vLLM's scheduler with our hooks: the only module that touches vLLM. It is imported once its version has been checked
(`entry`), since what it imports from vLLM may not be there in another.

Whatever goes wrong in a hook, the scheduler behaves as stock from then on: the error is logged once, serving goes on.
"""

import contextlib
import itertools
import logging
import os
import platform
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.version import __version__

from engine.link import Link
from engine.link.messages import MAX_K
from engine.link.settings import SettingsError
from engine.vllm.bridge import Bridge
from engine.vllm.drafter import Drafter, by_batch, configured, describe, further, reach
from engine.vllm.labels import Labels
from engine.vllm.settings import VllmSettings, settings_of
from engine.vllm.several import Force, in_force, obstacle

_log = logging.getLogger("vllm.adaptive_k")


def _hardware(config: VllmConfig) -> str:
    """What step times depend on besides the model: engines of one pool must agree on it."""
    try:
        name = str(current_platform.get_device_name())
    except Exception:
        name = str(config.device_config.device_type)
    parallel, kind = config.parallel_config, str(config.model_config.dtype).removeprefix("torch.")
    devices = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    return f"{devices} x {name}, {platform.machine()}, {kind}"


def _log_with_vllm() -> None:
    """Let the link's messages come out where and as vLLM's do: it hides what is not its own below a warning."""
    link, theirs = logging.getLogger("engine.link"), logging.getLogger("vllm")
    if theirs.handlers and not link.handlers:
        link.handlers, link.propagate = list(theirs.handlers), False
        link.setLevel(theirs.level)


def _others(config: VllmConfig, settings: VllmSettings, drafter: Drafter | None, cache: Any) -> Force:
    """The drafters that the worker has in force beside the configured one."""
    if not settings.drafters:
        return Force([], [], [], [])
    why = obstacle(config)
    others = further(settings, drafter or Drafter("none", "other", MAX_K))
    layers = [name for group in getattr(cache, "kv_cache_groups", ()) for name in group.layer_names]
    force = in_force(others, layers, why, asynchronous=bool(config.scheduler_config.async_scheduling))
    for line in force.lines:
        _log.error("adaptive_k: drafter %s", line)
    return force


def _detokeniser(config: VllmConfig) -> Any:
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(config.model_config)

    def text(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens)))

    return text


def _bridge(config: VllmConfig, cache: Any = None) -> Bridge | None:
    """The bridge of this engine, None where the plug-in is switched off. Raises for settings nobody can use."""
    parallel = config.parallel_config
    # Independent ranks are told that they are alone, and keep their index.
    rank = parallel.data_parallel_index
    settings = settings_of(config.additional_config, os.environ, rank, max(parallel.data_parallel_size, rank + 1))
    if settings.off:
        _log.info("adaptive_k: switched off; vLLM's own scheduler is in force")
        return None
    drafter = configured(config, __version__, settings.draft)
    table = getattr(config.speculative_config, "num_speculative_tokens_per_batch_size", None)
    force = _others(config, settings, drafter, cache)
    described = describe(
        drafter,
        settings,
        others=force.others,
        absent=force.absent,
        software=f"vllm {__version__}",
        target=os.path.basename(str(config.model_config.model).rstrip("/")) or "model",
        hardware=_hardware(config),
        max_batch=config.scheduler_config.max_num_seqs,
        prepared=[k for _, _, k in table] if table else None,
    )
    static = described.static
    settings = msgspec.structs.replace(settings, static_draft=static.draft, static_k=static.k)
    _log_with_vllm()
    link = Link.connect(settings, described)
    labels = Labels(settings, lambda: _detokeniser(config))
    _log.info(
        "adaptive_k: pool %s, engine %s, drafter %s, K of %s; without a policy K = %d",
        settings.pool, settings.engine_id, ", ".join(one.name for one in described.drafts) or "none",
        described.k_values, described.static.k, extra={"pool": settings.pool, "engine": settings.engine_id},
    )  # fmt: skip
    looked_up = by_batch(table) if table else None
    return Bridge(link, labels, drafter, table=looked_up, others=force.others, places=force.places, reach=reach(config))


class _Hooks:
    """The hooks, over either of vLLM's schedulers."""

    _akc: Bridge | None = None
    akc_errors = 0  # hooks that failed: 0, or 1, after which none is called any more

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._start()

    def _start(self) -> None:
        try:
            cache = getattr(self, "kv_cache_config", None)
            self._akc = _bridge(self.vllm_config, cache)  # type: ignore[attr-defined]  # the scheduler's
        except Exception as error:
            self._give_up("start", error)

    def _give_up(self, hook: str, error: Exception) -> None:
        self.akc_errors += 1
        bridge, self._akc = self._akc, None
        if isinstance(error, SettingsError):
            _log.error("adaptive_k: disabled, vLLM's own scheduling is in force: %s", error)
            return  # nothing has been started yet
        _log.error(
            "adaptive_k: %r in %s; vLLM's own scheduling is in force until this engine restarts. Check the settings in "
            "--additional-config '{\"adaptive_k\": {...}}' and report this if they are fine.",
            error, hook, exc_info=error,
        )  # fmt: skip
        if bridge is not None:
            try:
                bridge.abandon()
            except Exception:
                _log.debug("adaptive_k: while giving up", exc_info=True)

    @contextlib.contextmanager
    def _ours(self, hook: str) -> Iterator[Bridge | None]:
        """The bridge, None where there is none any more; an error inside is the last one."""
        try:
            yield self._akc
        except Exception as error:
            self._give_up(hook, error)

    def add_request(self, request: Request) -> None:
        """Meet a new request."""
        super().add_request(request)  # type: ignore[misc]  # the scheduler's
        with self._ours("add_request") as bridge:
            # A streaming session's next input, or its end, comes as a request of the same id, which is not kept.
            if bridge is not None and self.requests.get(request.request_id) is request:  # type: ignore[attr-defined]  # the scheduler's
                bridge.came(request)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        result = super()._free_request(request, *args, **kwargs)  # type: ignore[misc]  # the scheduler's
        with self._ours("_free_request") as bridge:
            if bridge is not None:
                bridge.ended(request.request_id)
        return result

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Let the requests that may come up have their drafters before vLLM looks for cached blocks."""
        with self._ours("schedule") as bridge:
            if bridge is not None:
                self._choose(bridge)
        return super().schedule(*args, **kwargs)  # type: ignore[misc]  # the scheduler's

    def _choose(self, bridge: Bridge) -> None:
        running = len(self.running)  # type: ignore[attr-defined]  # the scheduler's
        next_ones = itertools.islice(self.waiting, max(0, self.max_num_running_reqs - running))  # type: ignore[attr-defined]  # the scheduler's
        for request_id, salt in bridge.choose(next_ones, running).items():
            request = self.requests[request_id]  # type: ignore[attr-defined]  # the scheduler's
            before = request.cache_salt, request.block_hashes
            try:
                request.cache_salt, request.block_hashes = salt, []
                request.update_block_hashes()
            except Exception:
                request.cache_salt, request.block_hashes = before
                raise

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)  # type: ignore[misc]  # the scheduler's
        with self._ours("_update_after_schedule") as bridge:
            if bridge is not None:
                waiting = len(self.waiting)  # type: ignore[attr-defined]  # the scheduler's
                self._apply(scheduler_output, *bridge.scheduled(scheduler_output, waiting))

    def _apply(self, scheduler_output: SchedulerOutput, planned: int, ks: dict[str, int]) -> None:
        """Set the K of the drafting; rows are cut when their drafts come in."""
        drafter = self._akc.drafter if self._akc else None
        if drafter is not None and not drafter.steady:
            scheduler_output.num_spec_tokens_to_schedule = planned

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """Cut every request's drafts to its K."""
        cut: dict[str, int] = {}
        with self._ours("update_draft_token_ids") as bridge:
            if bridge is not None:
                drafts = zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True)
                cut = bridge.offered({request_id: len(tokens) for request_id, tokens in drafts})
        super().update_draft_token_ids(draft_token_ids)  # type: ignore[misc]  # the scheduler's
        with self._ours("update_draft_token_ids") as bridge:
            if bridge is not None:
                bridge.validated(self._cut(cut))

    def _cut(self, cut: dict[str, int]) -> dict[str, int]:
        """Cut drafts to the given lengths; returns what is left of each."""
        left = {}
        for request_id, k in cut.items():
            request = self.requests.get(request_id)  # type: ignore[attr-defined]  # the scheduler's
            if request is not None:
                if len(request.spec_token_ids) > k:
                    request.spec_token_ids = request.spec_token_ids[:k]
                left[request_id] = len(request.spec_token_ids)
        return left

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        """Report a step that has come back."""
        sampled: dict[str, int] = {}
        before: dict[str, int] = {}
        with self._ours("update_from_output") as bridge:
            if bridge is not None:
                index, tokens = model_runner_output.req_id_to_index, model_runner_output.sampled_token_ids
                if tokens:
                    # Counted now: a stop takes tokens off these lists.
                    sampled = {request_id: len(tokens[at]) for request_id, at in index.items()}
                before = bridge.outputs(scheduler_output)
        result = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]  # the scheduler's
        with self._ours("update_from_output") as bridge:
            if bridge is not None:
                busy = bool(self.running) or len(self.waiting) > 0  # type: ignore[attr-defined]  # the scheduler's
                bridge.completed(scheduler_output, sampled, before, busy=busy)
        return result

    def set_pause_state(self, pause_state: Any) -> None:
        """Leave pauses out of step times: requests run on, and no step is made."""
        super().set_pause_state(pause_state)  # type: ignore[misc]  # the scheduler's
        with self._ours("set_pause_state") as bridge:
            if bridge is not None:
                bridge.interrupted()

    def shutdown(self) -> None:
        """Send the last frame."""
        with self._ours("shutdown") as bridge:
            if bridge is not None:
                bridge.close()
        super().shutdown()  # type: ignore[misc]  # the scheduler's


class SyncAdaptiveScheduler(_Hooks, Scheduler):
    """Drafts come back to the scheduler after every step."""


class AsyncAdaptiveScheduler(_Hooks, AsyncScheduler):
    """The next step is scheduled before this one's drafts exist: rows hold places for them."""

    def _apply(self, scheduler_output: SchedulerOutput, planned: int, ks: dict[str, int]) -> None:
        # Lists of their own: vLLM's is shared by all requests. All are made before one is set, since a row with more
        # places than the drafter makes tokens is beyond what vLLM can serve.
        rows = [self.requests[request_id] for request_id in scheduler_output.num_scheduled_tokens]
        places = [(row, [-1] * ks.get(row.request_id, 0)) for row in rows if not row.is_prefill_chunk]
        super()._apply(scheduler_output, planned, ks)
        for request, place in places:
            request.spec_token_ids = place
