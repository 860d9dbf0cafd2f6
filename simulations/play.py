"""One policy through one scenario with one seed."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simulations.clairvoyant import Clairvoyant
from simulations.log import Log
from simulations.policy import Maker, Policy
from simulations.timeline import Timeline
from simulations.world import Engine


class Run(NamedTuple):
    """`logs`: by engine, hostile ones last. `decided`: switches that the policy itself counted after the first fifth of
    the run, None where it keeps no count."""

    policy: Policy
    logs: list[Log]
    decided: int | None


def play(
    timeline: Timeline,
    make: Maker,
    seed: int,
    clairvoyant: Clairvoyant | None = None,
    progress: Callable[[int], None] | None = None,
) -> Run:
    """Let the policy that `make` makes run all steps of all engines, which take turns.

    The world's luck depends on the seed alone; the policy has a generator of its own. A `clairvoyant` of the same
    timeline saves working out its answers again; `progress` is told the steps done, every hundredth of the run.
    """
    clairvoyant = clairvoyant or Clairvoyant(timeline)
    scenario = timeline.scenario
    engines = [Engine(timeline, clairvoyant, seed, number) for number in range(scenario.engines)]
    policy = make(timeline.facts, np.random.default_rng([seed, 1]))
    warm, told, before = scenario.steps // 5, max(1, scenario.steps // 100), 0
    for step in range(scenario.steps):
        if step == warm:
            before = getattr(policy, "switches", 0)
        for engine in engines:
            view = engine.view()
            policy.observe(engine.settle(view, policy.choose(view)))
        if progress is not None and (step + 1) % told == 0:
            progress(step + 1)
    after = getattr(policy, "switches", None)
    return Run(policy, [engine.log for engine in engines], None if after is None else after - before)
