"""Published ways to choose a draft and K, one a file, each behind `choose` and `observe` with its published defaults.

`RIVALS` is what a simulation plays, in a fixed order, and `vllm_measured(timeline)`, which is tuned to the scenario
beforehand; `fixed(draft, k)` and `on_every_draft(pool)` make the yardsticks that know in hindsight what to configure.
`Rival` is what their classes derive from. docs/explanation/rivals.md says what each does and what had to be decided.
"""

from collections.abc import Callable

from simulations.policy import Maker, PoolFacts
from simulations.rivals.fixed import fixed, plain, static
from simulations.rivals.gaussian_ts import gaussian_ts, gaussian_ts_scaled
from simulations.rivals.hedgespec import hedgespec
from simulations.rivals.hf_heuristic import hf_heuristic
from simulations.rivals.rival import Rival
from simulations.rivals.sglang_adaptive import sglang_adaptive
from simulations.rivals.tensorrt import GATE, tensorrt
from simulations.rivals.turbospec import turbospec
from simulations.rivals.ucb1 import ucb1
from simulations.rivals.ucbspec import ucbspec, ucbspec_released
from simulations.rivals.vllm_dynamic import measured_table, vllm_dynamic
from simulations.rivals.vllm_measured import MEASURED, vllm_measured


def tensorrt_gate(draft: int | None = None) -> Maker:
    """TensorRT-LLM's schedule with its one-way switch."""
    return tensorrt(draft, gate=GATE)


ONE_DRAFT: dict[str, Callable[[int | None], Maker]] = {
    "vllm-dynamic": vllm_dynamic,
    "sglang-adaptive": sglang_adaptive,
    "tensorrt": tensorrt,
    "tensorrt-gate": tensorrt_gate,
    "hf-heuristic": hf_heuristic,
    "turbospec": turbospec,
}

RIVALS: dict[str, Maker] = {
    "plain": plain,
    "static": static,
    **{name: make(None) for name, make in ONE_DRAFT.items()},
    "ucbspec": ucbspec(),
    "ucbspec-released": ucbspec_released(),
    "ucb1": ucb1(),
    "gaussian-ts": gaussian_ts(),
    "gaussian-ts-scaled": gaussian_ts_scaled(),
    "hedgespec": hedgespec(),
}

ONE_WAY = frozenset({"tensorrt-gate"})
TOLD = frozenset({MEASURED})  # given the scenario's averages before the first step; they do not learn
LEARNING = frozenset(
    {
        "sglang-adaptive", "hf-heuristic", "turbospec", "ucbspec", "ucbspec-released", "ucb1", "gaussian-ts",
        "gaussian-ts-scaled", "hedgespec",
    }
)  # fmt: skip
ONE_ARM_PER_K = frozenset({"ucbspec", "ucbspec-released", "ucb1", "gaussian-ts", "gaussian-ts-scaled"})


def on_every_draft(pool: PoolFacts) -> dict[str, Maker]:
    """Each one-draft method on each draft, named `method@draft`: the best of them is a yardstick, not a rival."""
    return {f"{name}@{d.name}": make(j) for name, make in ONE_DRAFT.items() for j, d in enumerate(pool.drafts)}


def every_fixed(pool: PoolFacts) -> dict[str, Maker]:
    """Every (draft, K) with K > 0 that can run, named `fixed:DRAFT:K`."""
    return {
        f"fixed:{d.name}:{k}": fixed(j, k)
        for j, d in enumerate(pool.drafts)
        for k in sorted(pool.ks)
        if 0 < k <= d.max_k
    }


__all__ = [
    "LEARNING",
    "MEASURED",
    "ONE_ARM_PER_K",
    "ONE_DRAFT",
    "ONE_WAY",
    "RIVALS",
    "TOLD",
    "Rival",
    "every_fixed",
    "fixed",
    "measured_table",
    "on_every_draft",
    "vllm_dynamic",
    "vllm_measured",
]
