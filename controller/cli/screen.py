"""Pools and domains as tables for a terminal."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.api.domains import DomainSummary, LoadChoice
from controller.api.steer import OrdersView
from controller.api.whatif import Answer, ExpectedArm
from controller.view import Domain, Engine, Interval, Measured

if TYPE_CHECKING:
    from controller.cli.following import Snapshot

STALE_SECONDS = 15.0
MOST_ENGINES = 12  # a terminal has only so many lines
SLOW = 1.2  # times the usual seconds of a step from which on that is told
_LEFT = frozenset({"domain", "regime", "draft", "engine", "breaker"})


def ratio(value: Interval | None) -> str:
    """A speedup with its interval.

    >>> ratio(Interval(1.523, 1.47, 1.57)), ratio(None)
    ('1.52x (1.47-1.57)', '-')
    """
    return "-" if value is None else f"{value.value:.2f}x ({value.low:.2f}-{value.high:.2f})"


def measured_line(found: Measured) -> str:
    """The measured gain in one line.

    >>> done = Measured(1.42, 1.37, 1.47, 19, 20, 30.0, 0.5, ("ngram", 2), 0.0, 1200.0, False, 500.0, 510.0)
    >>> measured_line(done)
    'measured by switching: 1.42x ngram at K = 2 (1.37-1.47), 19 of 20 pairs of 30 s windows, till 1970-01-01 00:20 UTC'

    One that runs is marked: its interval holds at the planned end, not at every look before.
    """
    draft, k = found.against
    fixed = "no speculation" if draft == "none" else f"{draft} at K = {k}"
    gain = "no interval yet"
    if found.ratio is not None and found.low is not None and found.high is not None:
        gain = f"{found.ratio:.2f}x {fixed} ({found.low:.2f}-{found.high:.2f}){' so far' if found.running else ''}"
    until = time.strftime("till %Y-%m-%d %H:%M UTC", time.gmtime(found.until))
    cost = f", {found.share:.0%} of the time at {fixed}" if found.running else ""
    verb = "measuring" if found.running else "measured by switching"
    return (
        f"{verb}: {gain}, {found.pairs} of {found.planned} pairs of {found.window_seconds:.0f} s windows, {until}{cost}"
    )


def number(value: float | None, form: str = ".1f") -> str:
    """A number, or a dash where nothing is known.

    >>> number(12.34), number(0.125, ".1%"), number(None)
    ('12.3', '12.5%', '-')
    """
    return "-" if value is None else format(value, form)


def seconds(value: float | None, digits: int = 1) -> str:
    """Seconds, or a dash.

    >>> seconds(0.25), seconds(3.0, 0), seconds(None)
    ('0.2 s', '3 s', '-')
    """
    return "-" if value is None else f"{value:.{digits}f} s"


def _ms(value: float | None) -> float | None:
    return None if value is None else 1000.0 * value


def pool_table(seen: "Snapshot", now: float, lost: str | None = None) -> RenderableType:
    """One pool as it was seen: whether speculation pays, what is wrong, what is chosen for each domain at the load it
    is served at, its engines. `now`: Unix seconds; `lost`: why nothing newer comes."""
    summary = seen.summary
    away = f"{lost}; trying again. What you see is {now - seen.taken:.0f} s old" if lost else None
    if summary.time is None or summary.traffic is None or summary.frames is None:
        standby = "stands by: another replica leads this pool, and only that one has its figures; name it with --url"
        here = standby if summary.role == "standby" else f"{summary.role}, no frame has been read yet; do engines run?"
        return Text(f"{summary.pool}: {away or summary.problem or here}")
    traffic = summary.traffic
    head = Text.assemble(
        (summary.pool, "bold"), "  ", (f"{ratio(traffic.speedup)} plain decoding", "bold green" if pays(traffic.speedup)
        else "bold"), f"  {number(traffic.tokens_per_busy_second, '.0f')} tokens/s",
    )  # fmt: skip
    lines: list[RenderableType] = [head, Text(
        f"mode {summary.mode}, exploring {number(summary.explored, '.1%')}, "
        f"policy {'-' if summary.policy_version is None else summary.policy_version[1]}, "
        f"decided {now - summary.time:.0f} s ago, "
        f"frames {summary.frames.lag_seconds:.1f} s behind, {summary.running} running, {summary.waiting} waiting"
    )]  # fmt: skip
    if summary.note is not None:
        lines.append(Text(summary.note, "yellow"))
    if summary.measured_gain is not None:
        lines.append(Text(measured_line(summary.measured_gain)))
    last = summary.last_frame
    if away:
        lines.append(Text(away, "red"))
    if summary.problem:
        lines.append(Text(summary.problem, "red"))
    if summary.catching_up:
        lines.append(Text("catching up with frames of the past: what you see is old", "yellow"))
    elif away:
        pass  # whether its engines run, nobody can tell
    elif summary.stale:
        age = "no frame yet" if last is None else f"the last frame came {now - last:.0f} s ago; do its engines run?"
        lines.append(Text(f"stale: {age}", "yellow"))
    elif now - seen.taken > STALE_SECONDS:
        silent = f"the controller has told nothing new for {now - seen.taken:.0f} s; its frames may still come"
        lines.append(Text(f"stale: {silent}", "yellow"))
    return Group(*lines, _choices(seen.domains), _engines(seen.engines, now))


def pays(speedup: Interval | None) -> bool:
    """Whether it is sure that speculation is worth its price.

    >>> pays(Interval(1.2, 1.1, 1.3)), pays(Interval(1.2, 0.9, 1.5)), pays(None)
    (True, False, False)
    """
    return speedup is not None and speedup.low > 1.0


class _Table:
    """A table whose cells and title are text, never Rich's markup: labels, drafts and engines name themselves."""

    def __init__(self, *columns: str, title: str | None = None) -> None:
        named = None if title is None else Text(title, "italic")
        self._table = Table(box=None, pad_edge=False, header_style="dim", title=named, title_justify="left")
        for name in columns:
            self._table.add_column(name, justify="left" if name in _LEFT else "right")

    def add_row(self, *cells: str | Text) -> None:
        """A row more."""
        self._table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def __rich__(self) -> RenderableType:
        return self._table


def played(choice: LoadChoice) -> str:
    """The draft in force, with what holds it and what would be chosen where that is another arm.

    >>> from controller.view import Wanted
    >>> played(LoadChoice(1, "none", 0, 1.0, None, "pin", Wanted("ngram", 4, Interval(1.5, 1.4, 1.6))))
    'none (pin; would choose ngram K = 4)'
    """
    wanted = choice.would_choose
    if choice.held is None or wanted is None:
        return choice.draft
    same = (wanted.draft, wanted.k) == (choice.draft, choice.k)
    return f"{choice.draft} ({choice.held}{'' if same else f'; would choose {wanted.draft} K = {wanted.k}'})"


def _choices(domains: list[DomainSummary]) -> _Table:
    table = _Table("domain", "regime", "draft", "K", "load", "probability", "speedup", "tokens/s a request",
                   "accepted a step")  # fmt: skip
    for one in domains:
        choice = one.now
        table.add_row(
            one.domain, one.regime,
            *(("-", "-", "-", "-", "-") if choice is None else (
                played(choice), str(choice.k), str(choice.load), f"{choice.probability:.0%}", ratio(choice.speedup)
            )),
            number(one.recent.tokens_per_second), number(one.recent.accepted_per_step, ".2f"),
        )  # fmt: skip
    return table


def _engines(engines: list[Engine], now: float) -> _Table:
    table = _Table(
        "engine", "breaker", "policy", "policy age", "running", "waiting", "steps", "step p50/p95", "lag", "seen"
    )
    for one in engines[:MOST_ENGINES]:
        table.add_row(
            one.engine, Text(one.breaker, "" if one.breaker == "closed" else "red"),
            "static" if one.applied is None else str(one.applied[1]), seconds(one.policy_age, 0),
            str(one.running), str(one.waiting),
            f"{one.steps:,}", f"{number(_ms(one.step_p50), '.0f')}/{number(_ms(one.step_p95), '.0f')} ms{slow(one)}",
            seconds(one.lag_seconds), f"{max(0.0, now - one.last_seen):.0f} s ago",
        )  # fmt: skip
    if len(engines) > MOST_ENGINES:
        table.add_row(f"and {len(engines) - MOST_ENGINES} more")
    return table


def pinned(orders: OrdersView) -> list[str]:
    """Pins and retired drafts, a line each."""
    lines = []
    for one in orders.pins:
        until = "" if one.until is None else time.strftime(" until %Y-%m-%d %H:%M:%S UTC", time.gmtime(one.until))
        regime = "" if one.regime is None else f" ({one.regime})"
        lines.append(f"  {one.domain}{regime} pinned to {one.draft} at K = {one.k}{until}, by {one.by}")
    if orders.retired:
        lines.append(f"  retired drafts: {', '.join(orders.retired)}")
    return lines


def slow(engine: Engine) -> str:
    """What stands behind the step times of an engine that takes markedly longer than usual for all of them."""
    much = engine.slowness is not None and engine.slowness >= SLOW
    return f", {engine.slowness:.1f}x usual" if much else ""


def domain_tables(domain: Domain) -> Iterator[RenderableType]:
    """One domain and regime: the reason at every load, acceptance by position, the arms at the load served most."""
    yield Text(f"{domain.domain}, {domain.regime}: {domain.tokens:,} tokens in {domain.row_steps:,} row-steps", "bold")
    for choice in domain.choices:
        mark = " (most of it now)" if choice.load == domain.main_load else ""
        yield Text(f"  load {choice.load}{mark}: {choice.reason}")
    if domain.measured is not None:
        yield Text(
            f"  measured by switching (against what, and whether it still runs: akc status): {ratio(domain.measured)}"
        )
    for curve in domain.curves:
        sd = curve.spread.sd
        differ = "how much requests differ is not known yet" if sd is None else f"requests differ by {sd:.2f} (sd)"
        worth = f"{curve.spread.observed:,.0f} steps lately, worth {curve.effective_n:,.0f} independent ones"
        table = _Table("position", "kept", "90% interval", "survival", "90% interval", "seen", "accepted",
                       title=f"{curve.draft}: {worth}; {differ}")  # fmt: skip
        for p in curve.positions:
            a, s = p.acceptance, p.survival
            table.add_row(str(p.position), f"{a.value:.3f}", f"{a.low:.3f}-{a.high:.3f}", f"{s.value:.3f}",
                          f"{s.low:.3f}-{s.high:.3f}", f"{p.seen:,}", f"{p.accepted:,}")  # fmt: skip
        yield table
    main = next((choice for choice in domain.choices if choice.load == domain.main_load), None)
    if main is not None:
        table = _Table("draft", "K", "tokens/s of the batch", "speedup", "played with", "best with", "played so far",
                       title=f"arms at load {main.load}")  # fmt: skip
        for arm in main.arms:
            table.add_row(arm.draft, str(arm.k), f"{arm.batch_goodput:.0f}",
                          f"{ratio(arm.speedup)}{'' if arm.identified else ' not identified'}",
                          f"{arm.probability:.0%}", f"{arm.best:.0%}", f"{arm.played:.0%}")  # fmt: skip
        yield table


def answer_table(answer: Answer, arms: Sequence[ExpectedArm]) -> Iterator[RenderableType]:
    """What arms of one domain would bring, best first."""
    mix = ", ".join(f"{domain} {share:.0%}" for domain, share in sorted(answer.mix.items()))
    yield Text(f"{arms[0].domain} at load {answer.load}, {answer.rows:.1f} rows a step; mix: {mix}", "bold")
    table = _Table("regime", "draft", "K", "tokens/s of the batch", "speedup", "gives up", "now")
    for arm in arms:
        lost = f"{arm.loss.value:.1%} ({arm.loss.low:.1%}-{arm.loss.high:.1%})"
        table.add_row(arm.regime, arm.draft, str(arm.k), f"{arm.goodput:.0f}", ratio(arm.speedup), lost,
                      "played" if arm.chosen else "would choose" if arm.would_choose else "")  # fmt: skip
    yield table
