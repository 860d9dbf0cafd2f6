"""What `--scheduler-cls` names: the scheduler that fits vLLM's version and configuration, or vLLM's own.

Nothing of vLLM is imported before it is asked for a scheduler, and nothing that its own does not need before its
version has been found to be one that we know.
"""

import logging
from typing import Any

from engine.vllm.versions import problem

_log = logging.getLogger("vllm.adaptive_k")


class AdaptiveScheduler:
    """Makes the scheduler; is none itself."""

    def __new__(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        """A scheduler."""
        asynchronous = bool(vllm_config.scheduler_config.async_scheduling)
        stock = _stock(asynchronous)
        ours, why = _ours(asynchronous, stock)
        if ours is None:
            _log.error(
                "adaptive_k: disabled, %s; vLLM serves as without it. Supported versions: docs/reference/vllm.md", why
            )
            return stock(vllm_config, *args, **kwargs)
        return ours(vllm_config, *args, **kwargs)


def _stock(asynchronous: bool) -> type[Any]:
    if asynchronous:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        return AsyncScheduler  # type: ignore[no-any-return]  # vLLM has no types here
    from vllm.v1.core.sched.scheduler import Scheduler

    return Scheduler  # type: ignore[no-any-return]  # vLLM has no types here


def _ours(asynchronous: bool, stock: type[Any]) -> tuple[type[Any] | None, str | None]:
    """Our scheduler class, or None and why not."""
    try:
        from vllm.version import __version__

        why = problem(__version__, stock)
        if why is not None:
            return None, why
        from engine.vllm.scheduler import AsyncAdaptiveScheduler, SyncAdaptiveScheduler
    except Exception as error:
        return None, f"{error!r} when it was looked at"
    return (AsyncAdaptiveScheduler if asynchronous else SyncAdaptiveScheduler), None
