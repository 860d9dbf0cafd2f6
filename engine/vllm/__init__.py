"""The vLLM plug-in: `vllm serve MODEL --speculative-config '{...}' --scheduler-cls engine.vllm.AdaptiveScheduler`.

vLLM's scheduler sees every request and every step, so a subclass of it is all that is needed: it sets the K of each
request and of the drafter, and reports what came of it. `entry` looks whether vLLM's version is one we know;
`scheduler` holds the hooks and imports vLLM; `bridge` turns what the hooks see into the link's words and knows nothing
of vLLM.
"""

from typing import Any

__all__ = ["AdaptiveScheduler"]


def __getattr__(name: str) -> Any:
    # vLLM must be importable only where it runs: the controller and the torch engine live without it.
    if name == "AdaptiveScheduler":
        from engine.vllm.entry import AdaptiveScheduler

        return AdaptiveScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
