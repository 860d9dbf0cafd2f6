"""What the learner's bars are measured on: which scenarios, which policies, one seed at a time; and the file that keeps
what was measured, a line a run, so that nothing is lost when a long benchmark is stopped."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from simulations.clairvoyant import Clairvoyant
from simulations.load import load, shipped
from simulations.result import Summary
from simulations.rivals import LEARNING
from simulations.scenario import AcceptanceChange, Falling, Scenario, cut
from simulations.sweep import OURS, Job, run
from simulations.timeline import Timeline
from simulations.variants import variant

HONEST = "one-liar (none lies)"
SHORT = {
    f"{name} ({steps} steps)": (name, steps) for name in ("all-drafts-bad", "expensive-draft") for steps in (3000,)
}
LATER = {"draft-retrained": 6000}  # steps put in before the last event: 3,000 of each domain lie between the events
BREAKS = "three-domains (draft breaks)"
_APART = frozenset({HONEST, BREAKS, *SHORT})  # made of a scenario for a bar of their own; rivals do not play them

Runs = Mapping[str, Mapping[str, Sequence[Summary]]]  # play -> policy -> by seed


class Task(NamedTuple):
    """One play with one seed. `unseen`: the scenario's variant of that seed."""

    play: str
    unseen: bool
    seed: int
    policies: tuple[str, ...]


class Measured(msgspec.Struct, frozen=True, tag="run"):
    """A task done; summaries without the curves that are drawn."""

    play: str
    unseen: bool
    seed: int
    seconds: float
    summaries: list[Summary]


class Timed(msgspec.Struct, frozen=True, tag="timing"):
    """A decision of 32 domains x 8 drafts x K 0..16 x 10 loads: milliseconds in full and after one domain's news;
    microseconds of a decoded frame with 24 acceptance and 32 cost cells. Medians."""

    full_ms: float
    one_domain_ms: float
    frame_us: float


def plays() -> list[str]:
    """Every shipped scenario, and what is made of some for a bar of their own."""
    return [*shipped(), HONEST, BREAKS, *SHORT]


def scenario(task: Task) -> Scenario:
    """What a task plays."""
    name, steps = SHORT.get(task.play, (task.play, None))
    made = load({HONEST: "one-liar", BREAKS: "three-domains"}.get(name, name))
    if task.unseen:
        made = variant(made, task.seed)
    if task.play == HONEST:
        made = msgspec.structs.replace(made, hostile=0)
    if task.play == BREAKS:
        made = broken(made)
    if later := LATER.get(task.play):
        *first, last = made.events
        moved = msgspec.structs.replace(last, step=last.step + later)
        made = msgspec.structs.replace(made, steps=made.steps + later, events=(*first, moved))
    if steps is not None:
        made = cut(made, steps)
    return made


def broken(made: Scenario) -> Scenario:
    """Half way the first domain's best draft becomes useless there (first .15, decay .9), and stays as it is elsewhere.
    A policy that does well has it in use."""
    timeline = Timeline(made)
    domain, rows = timeline.domains[0], np.zeros(len(timeline.domains), dtype=np.intp)
    rows[0] = int(timeline.rows.min())
    draft = timeline.drafts[Clairvoyant(timeline).best(0, rows).draft[0]]
    curve = Falling(first=0.15, decay=0.9)
    event = AcceptanceChange(step=made.steps // 2, draft=draft, domain=domain, acceptance=curve)
    return msgspec.structs.replace(made, events=(event,))


def tasks(
    names: Sequence[str], seeds: int, rival_seeds: int, kinds: Sequence[bool], done: Iterable[Measured]
) -> list[Task]:
    """What is left to play, seed by seed, so that a run that is stopped has all scenarios alike."""
    known: dict[tuple[str, bool, int], set[str]] = defaultdict(set)
    for one in done:
        known[one.play, one.unseen, one.seed].update(summary.policy for summary in one.summaries)
    found = []
    for seed in range(max(seeds, rival_seeds)):
        for unseen in kinds:
            for play in names:
                rivals = sorted(LEARNING) if seed < rival_seeds and play not in _APART else []
                wanted = [*([OURS] if seed < seeds or rivals else []), *rivals]
                left = tuple(policy for policy in wanted if policy not in known[play, unseen, seed])
                if left:
                    found.append(Task(play, unseen, seed, left))
    return found


def measure(task: Task) -> Measured:
    """Play a task."""
    began = time.perf_counter()
    summaries = run(Job(scenario(task), task.seed, task.policies))
    return Measured(task.play, task.unseen, task.seed, time.perf_counter() - began, [_slim(one) for one in summaries])


def _slim(summary: Summary) -> Summary:
    domains = {name: msgspec.structs.replace(d, depth=[]) for name, d in summary.domains.items()}
    return msgspec.structs.replace(summary, lost=[], domains=domains)


def measured(work: Sequence[Task], jobs: int) -> Iterator[Measured]:
    """Every task as it is done, over so many processes (-1: one a core)."""
    if jobs == 1:
        yield from map(measure, work)
        return
    import joblib  # type: ignore[import-untyped]

    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    yield from parallel(joblib.delayed(measure)(task) for task in work)


def write(path: Path, line: Measured | Timed) -> None:
    """Add a line to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(line) + b"\n")


def read(path: Path) -> tuple[list[Measured], Timed | None]:
    """What the file holds; of several timings the last one. A last line that was cut off is left out.

    Raises `ValueError` where a line is none of ours.
    """
    decoder = msgspec.json.Decoder(Measured | Timed)
    done: list[Measured] = []
    timed = None
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    for at, line in enumerate(whole.splitlines(), 1):
        try:
            one = decoder.decode(line)
        except msgspec.DecodeError as error:
            message = f"{path}, line {at} was not written by this version ({error}); name another file"
            raise ValueError(message) from None
        if isinstance(one, Measured):
            done.append(one)
        else:
            timed = one
    return done, timed


def by_play(done: Iterable[Measured], unseen: bool) -> Runs:
    """The summaries of the shipped scenarios or of the unseen ones, seeds ascending."""
    found: dict[str, dict[str, list[Summary]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(done, key=lambda m: m.seed):
        if one.unseen == unseen:
            for summary in one.summaries:
                found[one.play][summary.policy].append(summary)
    return found
