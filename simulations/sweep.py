"""Many runs: policies x seeds x scenarios, in this process or wherever joblib's backend reaches."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from simulations.clairvoyant import Clairvoyant
from simulations.comparison import Comparison, Kind, compare
from simulations.load import shipped
from simulations.ours import ours
from simulations.play import play
from simulations.policy import Maker, PoolFacts
from simulations.result import Summary, summarise
from simulations.rivals import MEASURED, ONE_WAY, RIVALS, every_fixed, on_every_draft, vllm_measured
from simulations.scenario import Scenario
from simulations.timeline import Timeline

Told = Callable[[str, int], None]
OURS = "ours"
BACKENDS = ("loky", "dask", "multiprocessing", "threading")


class SweepError(ValueError):
    """Runs that cannot be started; the message says what to do."""


class Job(NamedTuple):
    """One scenario and seed; all its policies share the clairvoyant's answers."""

    scenario: Scenario
    seed: int
    policies: tuple[str, ...]


def makers(timeline: Timeline) -> dict[str, Maker]:
    """Every policy by name: ours, the rivals, every fixed arm, every one-draft method on every draft."""
    pool = timeline.facts
    return {OURS: ours, **RIVALS, MEASURED: vllm_measured(timeline), **every_fixed(pool), **on_every_draft(pool)}


def chosen(wanted: Sequence[str], pool: PoolFacts) -> list[str]:
    """Names of the policies to play, ours first. Groups: `all` (every rival and every fixed arm), `rivals`, `fixed`,
    `drafts` (every one-draft method on every draft), `none`. Raises `SweepError` for a name that is unknown."""
    rivals, fixed, drafts = [*RIVALS, MEASURED], list(every_fixed(pool)), list(on_every_draft(pool))
    groups = {"all": [*rivals, *fixed], "rivals": rivals, "fixed": fixed, "drafts": drafts, "none": []}
    known = {OURS, *rivals, *fixed, *drafts}
    names: dict[str, None] = {OURS: None}
    for name in wanted:
        if name not in groups and name not in known:
            raise SweepError(
                f"rival {name!r} is unknown; allowed: {', '.join((*groups, *rivals))}, fixed:DRAFT:K, METHOD@DRAFT"
            )
        names.update(dict.fromkeys(groups.get(name, [name])))
    return list(names)


def kinds(names: Sequence[str]) -> dict[str, Kind]:
    """What each policy counts as. One-way switches and settings that know the best draft are yardsticks, not rivals."""
    found: dict[str, Kind] = {}
    for name in names:
        yardstick = name in ONE_WAY or "@" in name or name.startswith("fixed:")
        found[name] = "ours" if name == OURS else "yardstick" if yardstick else "rival"
    return found


def run(job: Job, told: Told | None = None) -> list[Summary]:
    """Play every policy of a job."""
    timeline = Timeline(job.scenario)
    clairvoyant = Clairvoyant(timeline)
    known = makers(timeline)
    summaries = []
    for name in job.policies:
        summaries.append(summarise(timeline, play(timeline, known[name], job.seed, clairvoyant), name, job.seed))
        if told is not None:
            told(name, 1)
    return summaries


def sweep(
    scenarios: Sequence[Scenario],
    rivals: Sequence[str],
    seeds: int,
    *,
    jobs: int = 1,
    backend: str = "loky",
    told: Told | None = None,
) -> list[Comparison]:
    """Compare policies on every scenario over seeds 0..seeds - 1. `told`: (what, policies played since).

    Raises `SweepError` for an unknown rival, no processes, or a backend that is not there.
    """
    if jobs == 0:
        raise SweepError("--jobs is 0; allowed: a number of processes, or -1 for one a core")
    if not scenarios:
        raise SweepError(f"no scenario given; shipped are: {', '.join(shipped())}")
    given = [scenario.name for scenario in scenarios]
    if len(set(given)) < len(given):
        raise SweepError(f"scenarios {', '.join(given)}: a name is given twice")
    work = []
    names: dict[str, list[str]] = {}
    for scenario in scenarios:
        names[scenario.name] = chosen(rivals, Timeline(scenario).facts)
        work += [Job(scenario, seed, tuple(names[scenario.name])) for seed in range(seeds)]
    if jobs == 1 and backend == "loky":
        results = [run(job, told) for job in work]
    else:
        results = _parallel(work, jobs, backend, told)
    summaries = [summary for result in results for summary in result]
    return [compare(scenario.name, summaries, kinds(names[scenario.name])) for scenario in scenarios]


def _parallel(work: list[Job], jobs: int, backend: str, told: Told | None) -> list[list[Summary]]:
    """Spread the jobs out. With `dask` they go to the cluster of the environment's client, or to a local one."""
    try:
        import joblib  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise SweepError("several jobs need the package joblib: pip install joblib") from None
    if backend not in BACKENDS:
        raise SweepError(f"backend {backend!r} is unknown; allowed: {', '.join(BACKENDS)}")
    results = []
    # A cluster's size is its own: there all workers take part, whatever --jobs says.
    everyone = -1 if backend == "dask" else jobs
    with _client(backend, jobs), joblib.parallel_config(backend=backend, n_jobs=everyone):
        for result in joblib.Parallel(return_as="generator")(joblib.delayed(run)(job) for job in work):
            results.append(result)
            if told is not None:
                told(f"{result[0].scenario} seed {result[0].seed}", len(result))
    return results


@contextmanager
def _client(backend: str, jobs: int) -> Iterator[None]:
    """For `dask` a client: the one that is there, else one of DASK_SCHEDULER_ADDRESS, else of a cluster on this machine
    with a worker process a job. What was opened here is closed at the end; other backends need none."""
    if backend != "dask":
        yield
        return
    try:
        import dask  # type: ignore[import-not-found]
        from distributed import Client, get_client  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        message = f"--backend dask needs the package {error.name}: pip install 'dask[distributed]'"
        raise SweepError(message) from None
    try:
        get_client()
    except ValueError:
        pass
    else:
        yield
        return
    address = dask.config.get("scheduler-address", None)
    try:
        if address is not None:
            client = Client(address)
        else:
            workers = jobs if jobs > 0 else os.cpu_count()
            client = Client(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    except OSError as error:
        raise SweepError(f"--backend dask: no scheduler answers at {address or 'this machine'}: {error}") from None
    with client:
        yield
