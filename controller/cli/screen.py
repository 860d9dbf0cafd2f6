"""Pools and domains as tables for a terminal."""

import time
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controller.api.domains import DomainSummary
from controller.api.pools import PoolSummary
from controller.view import Domain, Interval, Measured


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
    """
    draft, k = found.against
    fixed = "no speculation" if draft == "none" else f"{draft} at K = {k}"
    gain = "no interval yet"
    if found.ratio is not None and found.low is not None and found.high is not None:
        gain = f"{found.ratio:.2f}x {fixed} ({found.low:.2f}-{found.high:.2f})"
    until = time.strftime("till %Y-%m-%d %H:%M UTC", time.gmtime(found.until))
    cost = f", {found.share:.0%} of the time at {fixed}" if found.running else ""
    verb = "measuring" if found.running else "measured by switching"
    return (
        f"{verb}: {gain}, {found.pairs} of {found.planned} pairs of {found.window_seconds:.0f} s windows, {until}{cost}"
    )


def pool_table(summary: PoolSummary, domains: list[DomainSummary], now: float) -> RenderableType:
    """One pool: whether speculation pays, what is chosen for each domain at the load it is served at."""
    if summary.time is None or summary.traffic is None or summary.frames is None:
        return Text(f"{summary.pool}: {summary.problem or summary.role}")
    traffic = summary.traffic
    speed = "-" if traffic.tokens_per_busy_second is None else f"{traffic.tokens_per_busy_second:.0f} tokens/s"
    head = Text.assemble(
        (summary.pool, "bold"), f"  {summary.mode}  {speed}  ",
        (f"{ratio(traffic.speedup)} plain decoding", "bold"),
        f"  {summary.engines} engines, {summary.running} running, {summary.waiting} waiting, "
        f"frames {summary.frames.lag_seconds:.1f} s behind",
    )  # fmt: skip
    lines: list[RenderableType] = [head]
    if summary.measured_gain is not None:
        lines.append(Text(measured_line(summary.measured_gain)))
    if summary.problem:
        lines.append(Text(summary.problem, style="red"))
    elif summary.catching_up:
        lines.append(Text("catching up with frames of the past", style="yellow"))
    elif summary.stale:
        last = summary.last_frame
        age = "no frame yet" if last is None else f"the last frame came {now - last:.0f} s ago"
        lines.append(Text(f"stale: {age}", style="yellow"))
    table = Table(box=None, pad_edge=False)
    for name, right in (
        ("domain", False), ("regime", False), ("draft", False), ("K", True), ("load", True), ("probability", True),
        ("speedup", True), ("tokens/s a request", True), ("accepted a step", True),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left")
    for one in domains:
        choice = one.now
        recent = one.recent
        table.add_row(
            one.domain, one.regime,
            *(("-", "-", "-", "-", "-") if choice is None else (
                choice.draft, str(choice.k), str(choice.load), f"{choice.probability:.0%}", ratio(choice.speedup)
            )),
            "-" if recent.tokens_per_second is None else f"{recent.tokens_per_second:.1f}",
            "-" if recent.accepted_per_step is None else f"{recent.accepted_per_step:.2f}",
        )  # fmt: skip
    lines.append(table)
    return Group(*lines)


def domain_tables(domain: Domain) -> Iterator[RenderableType]:
    """One domain and regime: the reason at every load, acceptance by position, the arms at the load served most."""
    yield Text(f"{domain.domain}, {domain.regime}: {domain.tokens:,} tokens in {domain.row_steps:,} row-steps", "bold")
    for choice in domain.choices:
        mark = " (most of it now)" if choice.load == domain.main_load else ""
        yield Text(f"  load {choice.load}{mark}: {choice.reason}")
    if domain.measured is not None:
        yield Text(f"  measured by switching (akc status says against what): {ratio(domain.measured)}")
    for curve in domain.curves:
        table = Table(box=None, pad_edge=False, title=f"{curve.draft}, worth {curve.effective_n:.0f} observations",
                      title_justify="left")  # fmt: skip
        for name in ("position", "kept", "90% interval", "survival", "seen", "accepted"):
            table.add_column(name, justify="right")
        for p in curve.positions:
            a = p.acceptance
            table.add_row(str(p.position), f"{a.value:.3f}", f"{a.low:.3f}-{a.high:.3f}", f"{p.survival:.3f}",
                          f"{p.seen:,}", f"{p.accepted:,}")  # fmt: skip
        yield table
    main = next((choice for choice in domain.choices if choice.load == domain.main_load), None)
    if main is not None:
        table = Table(box=None, pad_edge=False, title=f"arms at load {main.load}", title_justify="left")
        for name in ("draft", "K", "tokens/s of the batch", "speedup", "played with", "best with", "played so far"):
            table.add_column(name, justify="left" if name == "draft" else "right")
        for arm in main.arms:
            table.add_row(arm.draft, str(arm.k), f"{arm.batch_goodput:.0f}", ratio(arm.speedup),
                          f"{arm.probability:.0%}", f"{arm.best:.0%}", f"{arm.played:.0%}")  # fmt: skip
        yield table
