"""A small model of an engine's counters for tests: it counts, and makes frames as the wire describes them."""

import random
from typing import Any

from engine.link.messages import (
    AcceptanceCell,
    AccountCell,
    CostCell,
    DraftInfo,
    EngineDescription,
    Frame,
    MomentCell,
    Regime,
    StaticChoice,
    Variant,
    Version,
)

KINDS = ("acceptance", "moments", "cost", "account")


def description(target: str = "smol", drafts: tuple[str, ...] = ("ngram",), max_batch: int = 4) -> EngineDescription:
    return EngineDescription(
        software="test",
        target=target,
        hardware="cpu",
        drafts=[DraftInfo(name, "ngram", 4) for name in drafts],
        k_values=[0, 2, 4],
        static=StaticChoice(drafts[0], 2),
        max_batch=max_batch,
    )


class CountingEngine:
    """Counts steps of one row at K = 2 on its one draft per domain; `frame` reports what changed since the last frame,
    or everything."""

    variant: Variant = "adaptive"  # what its requests follow

    def __init__(self, name: str = "e", incarnation: str = "i", started: float = 1_000.0, draft: str = "ngram") -> None:
        self.name, self.incarnation, self.started, self.draft = name, incarnation, started, draft
        self.describe = description(drafts=(draft,))
        self.seq = 0
        self.time = 0.0
        self.cells: dict[str, dict[Any, Any]] = {kind: {} for kind in KINDS}
        self._reported: dict[str, dict[Any, Any]] = {kind: {} for kind in KINDS}

    def step(self, domain: str, accepted: int, seconds: float = 0.05, regime: Regime = "greedy") -> None:
        """One step of one request at K = 2 that kept `accepted` (0..2) draft tokens."""
        seen = [1, int(accepted >= 1)]
        kept = [int(accepted >= 1), int(accepted >= 2)]
        old = self.cells["acceptance"].get(domain) or AcceptanceCell(
            domain, regime, self.draft, "policy", [0, 0], [0, 0], [0, 0]
        )
        self.cells["acceptance"][domain] = AcceptanceCell(
            domain,
            regime,
            self.draft,
            "policy",
            _sum(old.seen, seen),
            _sum(old.accepted, kept),
            _sum(old.drafted, [1, 1]),
        )
        s, a = sum(seen), sum(kept)
        m = self.cells["moments"].get(domain) or MomentCell(
            domain, regime, self.draft, 0, [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], 0, 0, 0, 0, 0
        )
        self.cells["moments"][domain] = MomentCell(
            domain, regime, self.draft, m.segments + 1, _sum(m.s, seen), _sum(m.a, kept), _sum(m.ss, seen),
            _sum(m.sa, kept), _sum(m.aa, kept), m.total_s + s, m.total_a + a, m.total_ss + s * s,
            m.total_sa + s * a, m.total_aa + a * a,
        )  # fmt: skip
        x = [3.0, 0.0, 64.0, 2.0, 2.0]
        xx = [x[i] * x[j] for i in range(5) for j in range(i, 5)]
        c = self.cells["cost"].get("all") or CostCell(
            [self.draft], 1, 2, 0, 0, 0.0, 0.0, [0.0] * 5, [0.0] * 15, [0.0] * 5
        )
        hist = {**c.hist, "151": c.hist.get("151", 0) + 1}
        self.cells["cost"]["all"] = CostCell(
            [self.draft], 1, 2, 0, c.count + 1, c.seconds + seconds, c.seconds_sq + seconds**2, _sum(c.sx, x),
            _sum(c.sxx, xx), _sum(c.sxy, [v * seconds for v in x]), hist,
        )  # fmt: skip
        b = self.cells["account"].get(domain) or AccountCell(domain, regime, 1, self.variant, 0, 0, 0.0)
        self.cells["account"][domain] = AccountCell(
            domain, regime, 1, self.variant, b.row_steps + 1, b.tokens + accepted + 1, b.row_seconds + seconds
        )
        self.time += seconds

    def frame(self, *, full: bool = False, final: bool = False, applied: Version | None = None) -> Frame:
        """The next frame. A full one carries every cell and the description."""
        self.seq += 1
        full = full or final
        cells: dict[str, Any] = {
            kind: [cell for key, cell in self.cells[kind].items() if full or self._reported[kind].get(key) != cell]
            for kind in KINDS
        }
        self._reported = {kind: dict(self.cells[kind]) for kind in KINDS}
        return Frame(
            self.name,
            self.incarnation,
            self.seq,
            self.time,
            self.started + self.time,
            full=full,
            describe=self.describe if full else None,
            applied=applied,
            running=1,
            steps=self.cells["cost"]["all"].count if self.cells["cost"] else 0,
            final=final,
            **cells,
        )

    def totals(self) -> dict[str, tuple[list[int], list[int]]]:
        """Seen and accepted by domain."""
        return {domain: (cell.seen, cell.accepted) for domain, cell in self.cells["acceptance"].items()}

    def run(self, steps: int, rng: random.Random, domains: tuple[str, ...] = ("code", "chat")) -> None:
        """Some steps with random domains and luck."""
        for _ in range(steps):
            self.step(rng.choice(domains), rng.choice((0, 1, 2)))


def _sum(left: list[Any], right: list[Any]) -> list[Any]:
    return [x + y for x, y in zip(left, right, strict=True)]
