"""The learner's bars, measured: `make bench-learner`, or `python -m tests.bench.bench_learner --seeds 20 --jobs -1`.

Shipped scenarios and, seed by seed, unseen variants of them, with all safeguards on; then the decision's timings.
docs/benchmarks.md says how to read what it prints. A long run is best kept: `--json FILE` saves every run as it is
done, `--resume` plays what the file lacks, `--from-json FILE` prints the tables again, `--docs FILE` puts them into a
document.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from simulations.rivals import LEARNING
from simulations.sweep import OURS
from tests.bench import bench_learner_micro
from tests.bench.bars import lines, timing_lines
from tests.bench.plays import Measured, Timed, by_play, measured, plays, read, tasks, write
from tests.bench.table import place, table

KINDS = {"both": (False, True), "shipped": (False,), "unseen": (True,)}


def report(done: Sequence[Measured], timed: Timed | None) -> str:
    """The tables, with how many seeds they are from."""
    shipped, unseen = by_play(done, unseen=False), by_play(done, unseen=True)
    said = []
    for kind, runs in (("shipped", shipped), ("unseen", unseen)):
        counts = [len(by_policy[OURS]) for by_policy in runs.values() if OURS in by_policy]
        if counts:
            seeds = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
            rivals = [min(map(len, of)) for b in runs.values() if (of := [b[r] for r in LEARNING if r in b])]
            compared = f", {min(rivals)} or more for regret" if rivals else ""
            said.append(f"{kind}: {len(counts)} scenarios, {seeds} seeds{compared}")
    text = f"Medians over seeds ({'; '.join(said)}).\n\n{table(lines(shipped), lines(unseen))}"
    timings = timing_lines(timed)
    if timings:
        text += "\n\n| timing | asked | measured | met |\n| --- | --- | --- | --- |\n"
        text += "\n".join(f"| {t.what} | {t.asked} | {t.measured} | {'yes' if t.met else '**no**'} |" for t in timings)
    return text


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=20, help="of our policy [20]")
    parser.add_argument("--rival-seeds", type=int, help="of the learning rivals; 0: none [as --seeds]")
    parser.add_argument("--jobs", type=int, default=-1, help="processes; -1: one a core [-1]")
    parser.add_argument("--kind", choices=KINDS, default="both", help="shipped scenarios, unseen variants, both [both]")
    parser.add_argument("--scenarios", help="by commas, only these [all]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save every run here as it is done, a line a run")
    parser.add_argument("--resume", action="store_true", help="keep what --json FILE holds, play the rest")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="play nothing, print what the file holds")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="put the tables between the markers of this document")
    given = parser.parse_args(arguments)
    known = plays()
    given.names = known if given.scenarios is None else [name.strip() for name in given.scenarios.split(",")]
    for name in given.names:
        if name not in known:
            parser.error(f"--scenarios: {name!r} is unknown; allowed: {', '.join(known)}")
    if given.json is not None and given.json.exists() and not given.resume:
        parser.error(f"--json: {given.json} exists; add --resume to go on with it, or name another file")
    if given.resume and given.json is None:
        parser.error("--resume needs --json FILE")
    for path in (given.from_json, given.docs):
        if path is not None and not path.exists():
            parser.error(f"{path} does not exist")
    given.rival_seeds = given.seeds if given.rival_seeds is None else given.rival_seeds
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    given = options(arguments)
    done: list[Measured] = []
    timed: Timed | None = None
    source = given.from_json or (given.json if given.resume and given.json.exists() else None)
    if source is not None:
        try:
            done, timed = read(source)
        except ValueError as error:
            sys.exit(f"bench_learner: {error}")
    if given.from_json is None:
        work = tasks(given.names, given.seeds, given.rival_seeds, KINDS[given.kind], done)
        for at, one in enumerate(measured(work, given.jobs), 1):
            done.append(one)
            if given.json is not None:
                write(given.json, one)
            what = f"{one.play}{' (unseen)' if one.unseen else ''}, seed {one.seed}"
            print(f"[{at}/{len(work)}] {what}: {one.seconds:.1f} s", file=sys.stderr, flush=True)
        timed = bench_learner_micro.bars()
        if given.json is not None:
            write(given.json, timed)
    text = report(done, timed)
    print(text)
    if given.docs is not None:
        place(given.docs, text)
    if given.from_json is None:
        print()
        bench_learner_micro.main()


if __name__ == "__main__":
    main()
