"""Several drafters in one engine: what scheduler and worker agree on without a word between them.

Both read the same settings. Which drafters the worker has in force the scheduler learns from the KV cache it is given:
the layers of each draft model stand there under a prefix that only our proposer uses.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from engine.vllm.drafter import Drafter

PREFIX = "akc_draft_"


def prefix(place: int) -> str:
    """The prefix of a draft model's layers; the configured one has place 0, the others follow in the settings' order.

    >>> prefix(2)
    'akc_draft_2'
    """
    return f"{PREFIX}{place}"


def obstacle(config: Any) -> str | None:
    """Why an engine with this `VllmConfig` can have one drafter only, None where it can have several."""
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None or str(speculative.method) != "draft_model":
        method = speculative.method if speculative is not None else "none"
        return f"--speculative-config has method {method}; several drafters need draft_model there"
    tried = ("data_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size")
    whys = {
        "model runner V2 makes its drafter elsewhere; set VLLM_USE_V2_MODEL_RUNNER=0": config.use_v2_model_runner,
        "parallel_drafting is on; its drafts have one K": speculative.parallel_drafting,
        "draft_sample_method is probabilistic, and n-gram lookup has no probabilities; needed: greedy": (
            speculative.draft_sample_method == "probabilistic"
        ),
        "the target is multimodal; several drafters read text only": config.model_config.is_multimodal_model,
        "a KV connector is configured, whose blocks no draft model has read here": config.kv_transfer_config,
        **{
            f"{name} is not 1; several drafters were not tried with more": getattr(parallel, name) > 1 for name in tried
        },
    }
    return next((why for why, so in whys.items() if so), None)


class Force(NamedTuple):
    """Drafters in force beside the configured one, their places; the names of the others, and what is to be said."""

    others: list[Drafter]
    places: list[int]
    absent: list[str]
    lines: list[str]


def in_force(
    others: Sequence[Drafter], layers: Iterable[str], why_not: str | None, *, asynchronous: bool = False
) -> Force:
    """Which of the configured drafters are in force, by the names of the layers in the KV cache.

    >>> small, ngram = Drafter("small", "model", 4), Drafter("ngram", "ngram", 4)
    >>> in_force([small, ngram], ["model.layers.0", "akc_draft_0.layers.0", "akc_draft_1.layers.0"], None).places
    [1, 2]
    >>> in_force([small], ["model.layers.0", "akc_draft_0.layers.0"], None).lines
    ['not in force: small (the worker could not take it; its log says why)']
    """
    loaded = {name.split(".", 1)[0] for name in layers if name.startswith(PREFIX)}
    force = Force([], [], [], [])
    for place, one in enumerate(others, start=1):
        why = why_not
        if why is None and prefix(0) not in loaded:
            why = (
                "the worker has vLLM's own proposer; is adaptive-k-controller installed there, and does VLLM_PLUGINS, "
                "if set, name adaptive_k?"
            )
        elif why is None and one.cached and prefix(place) not in loaded:
            why = "the worker could not take it; its log says why"
        elif why is None and one.kind == "ngram" and asynchronous:
            why = "it reads the text on the host, which asynchronous scheduling runs ahead of: --no-async-scheduling"
        if why is None:
            force.others.append(one)
            force.places.append(place)
        else:
            force.absent.append(one.name)
            force.lines.append(f"not in force: {one.name} ({why})")
    return force
