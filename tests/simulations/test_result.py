"""The numbers of a run and of a comparison, on logs small enough to work out by hand."""

import json
from io import StringIO
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from simulations.comparison import Comparison, compare, spread
from simulations.log import Log
from simulations.play import Run, play
from simulations.report import show, write
from simulations.result import Summary, pooled, recovery, summarise, within, worst_window
from simulations.rivals.fixed import fixed, plain
from simulations.scenario import AcceptanceChange, Alternating, Constant, Domain, Draft, Noise, Scenario, Target
from simulations.timeline import Timeline

SCENARIO = Scenario(
    name="r",
    steps=1200,
    k_values=(0, 1, 2),
    target=Target(memory_seconds=0.020),
    drafts={"a": Draft(seconds_per_pass=0.004)},
    domains={
        "x": Domain(acceptance={"a": (0.9,)}, output=30),
        "y": Domain(acceptance={"a": (0.1,)}, output=30),
    },
    load=(Constant(batch=1),),
    noise=Noise(sigma=0.0),
)


def summary(scenario: Scenario, draft: int, k: int, name: str = "p", seed: int = 0) -> Summary:
    timeline = Timeline(scenario)
    return summarise(timeline, play(timeline, fixed(draft, k), seed), name, seed)


def test_share_and_regret_of_a_fixed_arm_are_those_worked_out_by_hand() -> None:
    """x: plain 50/s, K = 1: 1.9 / 24 ms = 79.17/s, K = 2: 2.71 / 28 ms = 96.79/s, the best. y: plain 50/s is the best,
    K = 2: 1.11 / 28 ms = 39.64/s. At 300 steps of each under K = 2 only y loses: 300 * (28 ms - 1.11 * 20 ms)."""
    s = summary(SCENARIO, 0, 2)
    assert s.regret[300] == pytest.approx(300 * (0.028 - 1.11 * 0.020))
    assert s.shares[300] == pytest.approx((2.71 + 1.11) / (2.71 + 0.028 / 0.020))
    assert s.domains["x"].shares[300] == pytest.approx(1.0)
    assert s.domains["y"].shares[300] == pytest.approx(1.11 / 1.4)
    assert s.domains["y"].later == pytest.approx(1.11 / 1.4)
    assert (s.shares[3000], s.regret[3000]) == (None, None)
    p = summary(SCENARIO, -1, 0)
    # Plain decoding loses on x: every token takes 20 ms instead of 28 / 2.71 ms.
    assert p.regret[300] == pytest.approx(300 * (0.020 - 0.028 / 2.71))
    assert (p.worst_window, p.first_window, p.speedup) == pytest.approx((1.0, 1.0, 1.0))
    assert p.goodput == pytest.approx(50.0)


def test_what_was_played_is_told_by_domain() -> None:
    s = summary(SCENARIO, 0, 2)
    assert s.domains["x"].top == msgspec.convert({"draft": "a", "k": 2, "share": 1.0}, type(s.domains["x"].top))
    assert set(s.domains["x"].depth) <= {2.0, None}
    p = summary(SCENARIO, -1, 0).domains["y"].top
    assert p is not None
    assert (p.draft, p.k) == ("none", 0)
    assert s.switches == 0
    assert s.decided is None


def test_due_of_a_shared_step_is_what_the_clairvoyant_gives_each_domain() -> None:
    scenario = msgspec.structs.replace(SCENARIO, load=(Constant(batch=6),))
    timeline = Timeline(scenario)
    log = play(timeline, fixed(0, 1), 0).logs[0]
    step = next(at for at in range(1200) if log.rows[at].tolist() == [3, 3])
    # Best for three rows of each: x at K = 2, y at K = 0, in 28 ms: 3 * 2.71 + 3 tokens. Played: K = 1, 24 ms.
    # (y at K = 2 would add 3 * .11 tokens for nothing, since x's passes are paid: the passes are shared.)
    assert log.expected[step] == pytest.approx(0.024)
    assert log.due[step] == pytest.approx(np.array([3 * 2.71, 3 * 1.11]) * 24 / 28)
    assert log.earned[step] == pytest.approx(np.array([3 * 1.9, 3 * 1.1]))


def test_windows_slide_and_the_first_begins_at_step_0() -> None:
    earned, usual = np.array([1.0, 3.0, 1.0, 1.0, 5.0]), np.full(5, 2.0)
    assert worst_window(earned, usual, window=2) == (0.5, 1.0)
    assert worst_window(earned, usual, window=50) == (1.1, 1.1)


def test_the_first_steps_of_every_domain_count_whatever_else_ran() -> None:
    rows = np.array([[1, 0], [0, 2], [3, 1], [1, 1]], dtype=np.int32)
    assert within(rows, 1).tolist() == [[True, False], [False, True], [False, False], [False, False]]


def test_engines_are_interleaved_step_by_step() -> None:
    timeline = Timeline(msgspec.structs.replace(SCENARIO, steps=2))
    logs = [Log(timeline), Log(timeline)]
    for e, log in enumerate(logs):
        log.earned[:] = [[10 * e + 0, 0], [10 * e + 1, 0]]
    assert pooled(logs).earned[:, 0].tolist() == [0, 10, 1, 11]


def test_recovery_counts_steps_until_the_moving_share_is_back() -> None:
    due = np.ones(400)
    earned = np.concatenate([np.full(150, 0.5), np.full(250, 1.0)])
    # The last 100 steps hold n good ones: (n + (100 - n) / 2) / 100 > .97 needs n > 94: 95 of them, at step 245.
    assert recovery(earned, due) == 245
    assert recovery(earned[:200], due[:200]) is None
    assert recovery(due[:50], due[:50]) is None


def test_changes_are_followed_up() -> None:
    event = AcceptanceChange(step=600, draft="a", domain="y", acceptance=(0.9,))
    s = summary(msgspec.structs.replace(SCENARIO, events=(event,)), 0, 2)
    assert [(r.step, r.domain, r.draft, r.steps) for r in s.recoveries] == [(600, "y", "a", 100)]
    seen = s.recoveries[0]
    assert (seen.in_use, seen.abrupt, seen.improved) == (True, True, True)
    # Outputs are alike and K = 2 gives y 1.11 tokens a step against 2.71: of 1,200 steps most are y's.
    assert 200 < seen.watched < s.domains["y"].steps - 300
    p = summary(msgspec.structs.replace(SCENARIO, events=(event,)), -1, 0)
    assert [(r.steps, r.in_use) for r in p.recoveries] == [(None, False)]
    worse = msgspec.structs.replace(event, acceptance=(0.05,))
    assert not summary(msgspec.structs.replace(SCENARIO, events=(worse,)), 0, 2).recoveries[0].improved
    slow = msgspec.structs.replace(event, over=100)
    assert not summary(msgspec.structs.replace(SCENARIO, events=(slow,)), 0, 2).recoveries[0].abrupt


def test_only_honest_engines_count() -> None:
    scenario = msgspec.structs.replace(SCENARIO, engines=2, hostile=1, steps=200)
    timeline = Timeline(scenario)
    run = play(timeline, fixed(0, 2), 0)
    before = summarise(timeline, run, "p", 0)
    run.logs[1].earned[:] = 0.0
    assert summarise(timeline, run, "p", 0) == before


def test_goodput_by_load_and_its_best() -> None:
    scenario = msgspec.structs.replace(
        SCENARIO, load=(Alternating(batches=(1, 4)),), domains={"x": SCENARIO.domains["x"]}
    )
    loads = summary(scenario, 0, 1).loads
    assert sorted(loads) == [1, 4]
    assert loads[4].goodput == pytest.approx(4 * 1.9 / 0.024)
    assert loads[4].best == pytest.approx(4 * 2.71 / 0.028)
    assert loads[4].plain == pytest.approx(4 / 0.020)
    assert loads[1].steps == 600


class Alternate:
    """K = 1 for 200 steps, then K = 2, and so on: five switches in 1,200 steps."""

    name = "alternate"
    switches = 0

    def __init__(self) -> None:
        self.step = 0

    def choose(self, view):  # type: ignore[no-untyped-def]
        from simulations.policy import Choice

        self.step += 1
        k = 1 + (self.step // 200) % 2
        return Choice(np.zeros(1, dtype=np.intp), np.array([k]))

    def observe(self, outcome) -> None:  # type: ignore[no-untyped-def]
        self.switches = self.step // 200


def test_switches_are_changes_of_the_most_played_arm() -> None:
    scenario = msgspec.structs.replace(SCENARIO, domains={"x": SCENARIO.domains["x"]})
    timeline = Timeline(scenario)
    run = play(timeline, lambda pool, rng: Alternate(), 0)
    assert run.logs[0].switches.sum() == 5
    s = summarise(timeline, run, "alternate", 0)
    # All five come after the first fifth (240 steps): the change at 200 shows when the window to step 255 has passed.
    assert s.switches == pytest.approx(5 / 0.96)
    assert s.decided == pytest.approx(5 / 0.96)


def test_intervals_hold_the_mean_and_shrink_with_seeds() -> None:
    x = np.random.default_rng(1).normal(10.0, 1.0, size=100)
    s = spread(x)
    assert s.low < s.mean < s.high
    # 95% of a mean of 100: 2 * 1.96 * 0.1, the sample's sd being near 1.
    assert s.high - s.low == pytest.approx(2 * 1.96 * x.std() / 10, rel=0.1)
    assert spread([1.0, 2.0], high_is_good=False).worst == 2.0


@pytest.fixture(scope="module")
def table() -> Comparison:
    names = [("ours", 0, 1), ("plain", -1, 0), ("fixed:a:1", 0, 1), ("fixed:a:2", 0, 2)]
    summaries = [summary(SCENARIO, draft, k, name, seed) for name, draft, k in names for seed in range(2)]
    return compare("r", summaries, {"ours": "ours"})


def test_a_comparison_has_a_row_a_policy_and_one_for_the_best_fixed_arm(table: Comparison) -> None:
    by_name = {row.policy: row for row in table.rows}
    best = max(("fixed:a:1", "fixed:a:2"), key=lambda n: np.mean([s.share for s in table.summaries if s.policy == n]))
    assert set(by_name) == {"ours", "plain", f"best fixed (a K={best[-1]})"}
    assert by_name["ours"].seeds == 2
    assert by_name["ours"].kind == "ours"
    assert table.rows[0].share.median >= table.rows[-1].share.median
    assert by_name["plain"].domains["x"].top == ("none", 0)


def test_tables_and_json_show_it(table: Comparison, tmp_path: Path) -> None:
    console = Console(width=100, record=True, file=StringIO())
    show(table, console)
    text = console.export_text()
    assert "r: medians over 2 seeds" in text
    assert "best fixed" in text
    write([table], tmp_path / "deep" / "r.json")
    data = json.loads((tmp_path / "deep" / "r.json").read_bytes())
    assert data[0]["scenario"] == "r"
    assert data[0]["summaries"][0]["shares"]["300"] == pytest.approx(table.summaries[0].shares[300])
    assert msgspec.json.decode((tmp_path / "deep" / "r.json").read_bytes(), type=list[Comparison]) == [table]


def test_pictures_are_drawn(table: Comparison, tmp_path: Path) -> None:
    from simulations.plots import draw

    paths = draw(table, tmp_path / "plots")
    assert [path.name for path in paths] == ["r-regret.svg", "r-depth.svg", "r-share.svg"]
    assert all(path.read_text().lstrip().startswith("<?xml") for path in paths)


def test_goodput_against_load_is_drawn_where_the_load_varies(tmp_path: Path) -> None:
    from simulations.plots import draw

    scenario = msgspec.structs.replace(SCENARIO, load=(Alternating(batches=(1, 4)),), steps=100)
    paths = draw(compare("r", [summary(scenario, 0, 1, "ours")], {"ours": "ours"}), tmp_path)
    assert paths[-1].name == "r-load.svg"


def test_a_run_keeps_its_policy() -> None:
    timeline = Timeline(msgspec.structs.replace(SCENARIO, steps=10))
    told: list[int] = []
    run: Run = play(timeline, plain, 0, progress=told.append)
    assert run.policy.name == "plain"
    assert told == list(range(1, 11))


def test_shares_by_number_of_rows_are_those_of_the_second_half() -> None:
    """x alone, K = 1 throughout: 1.9 / 24 ms of the best 2.71 / 28 ms, at 1 and 4 rows alike (verification is free).
    The 7 rows of the first half do not count."""
    load = (Constant(batch=7, steps=600), Alternating(batches=(1, 4)))
    s = summary(msgspec.structs.replace(SCENARIO, load=load, domains={"x": SCENARIO.domains["x"]}), 0, 1)
    assert s.batches == pytest.approx({1: 1.9 / 24 * 28 / 2.71, 4: 1.9 / 24 * 28 / 2.71})
