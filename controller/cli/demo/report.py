"""What the demo found, as tables for a person and as JSON for a script."""

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from controller.cli.demo.trial import ADAPTIVE, PLAIN, Arm, BlockResult
from controller.cli.demo.verdict import Ratio, goodput, paired_ratio


@dataclass
class Report:
    """`sweep`: every arm on the first half of the prompts. `scored`: on the second half, adaptive, plain and the arm
    that was best in all on the first half (`best`). `alone`: by domain, batches of that domain only, on the second
    half: adaptive and the domain's own best arm of the first half (`own`). In a mixed batch a row is charged for the
    others' draft tokens too, so what suits a domain shows only where it is alone."""

    seed: int
    policy: dict[str, Any]
    sweep: dict[Arm, list[BlockResult]]
    scored: dict[Arm, list[BlockResult]]
    best: Arm
    own: dict[str, Arm]
    alone: dict[str, dict[Arm, list[BlockResult]]]
    domains: list[dict[str, Any]] = field(default_factory=list)

    @property
    def cpu(self) -> str:
        """The processor's name."""
        from engine.server.serve import processor  # it loads torch: not before everything has been measured

        return processor()

    def overall(self, arm: Arm) -> Ratio:
        """Adaptive over `arm` on the second half, all rows by the seconds they were charged."""
        return paired_ratio([b.block for b in self.scored[ADAPTIVE]], [b.block for b in self.scored[arm]])

    def by_domain(self, domain: str, arm: Arm) -> Ratio:
        """Adaptive over `arm` in batches of one domain, prompt by prompt, by the seconds they were charged."""
        ours, theirs = ([row for b in self.alone[domain][a] for row in b.rows] for a in (ADAPTIVE, arm))
        return paired_ratio(ours, theirs)

    def likely_k(self, draft: str, load: int) -> dict[str, int]:
        """Most probable K of each domain on one draft, greedy, at the load bucket nearest below `load`."""
        found: dict[str, tuple[int, int]] = {}
        for cell in self.policy["cells"]:
            if cell["regime"] != "greedy" or cell["load"] > load:
                continue
            for choice in cell["drafts"]:
                if choice["draft"] == draft and cell["load"] >= found.get(cell["domain"], (0, 0))[0]:
                    found[cell["domain"]] = (cell["load"], max(choice["k"], key=lambda pair: pair[1])[0])
        return {domain: k for domain, (_, k) in found.items()}

    def as_json(self) -> dict[str, Any]:
        """Everything measured, by arm."""

        def arms(results: dict[Arm, list[BlockResult]]) -> dict[str, Any]:
            return {
                str(arm): {
                    "tokens_per_second": goodput([b.block for b in blocks]),
                    "blocks": [[b.block.tokens, b.block.seconds] for b in blocks],
                    "domains": {d: goodput([b.domains[d] for b in blocks]) for d in blocks[0].domains},
                    "tokens_per_step": {
                        d: sum(b.domains[d].tokens for b in blocks) / sum(b.steps[d] for b in blocks)
                        for d in blocks[0].domains
                    },
                    "played": _played(blocks),
                }
                for arm, blocks in results.items()
            }

        drafts = sorted({arm.draft for arm in self.sweep if arm.draft not in (None, "none")})
        return {
            "seed": self.seed,
            "cpu": self.cpu,
            "sweep": arms(self.sweep),
            "scored": arms(self.scored),
            "alone": {d: arms(results) for d, results in self.alone.items()},
            "best_fixed": str(self.best),
            "best_by_domain": {d: str(arm) for d, arm in self.own.items()},
            "over_plain": vars(self.overall(PLAIN)),
            "over_best_fixed": vars(self.overall(self.best)),
            "share_of_own_best": {d: vars(self.by_domain(d, arm)) for d, arm in self.own.items()},
            "likely_k": {draft: self.likely_k(draft, 3) for draft in drafts if draft},
            "choices": self.domains,
        }


def _played(blocks: list[BlockResult]) -> dict[str, dict[str, dict[str, float]]]:
    """Steps and drafted tokens a step by domain and by the draft of most of a request's steps."""
    sums: dict[str, dict[str, list[int]]] = {}
    for block in blocks:
        for (domain, draft), counts in block.played.items():
            one = sums.setdefault(domain, {}).setdefault(draft, [0, 0])
            one[:] = [a + b for a, b in zip(one, counts, strict=True)]
    return {
        domain: {draft: {"steps": n, "drafted_per_step": round(k / n, 3)} for draft, (n, k) in drafts.items() if n}
        for domain, drafts in sums.items()
    }


def print_report(report: Report, console: Console) -> None:
    """The comparison, in tables."""
    sweep = Table(title="Every fixed choice on the first half of the prompts, tokens/s", title_justify="left")
    for name in ("arm", "all", *report.own):
        sweep.add_column(name, justify="left" if name == "arm" else "right")
    for arm, blocks in report.sweep.items():
        own = (f"{goodput([b.domains[d] for b in blocks]):.1f}" for d in report.own)
        sweep.add_row(str(arm), f"{goodput([b.block for b in blocks]):.1f}", *own)
    console.print(sweep)
    verdict = Table(title="Adaptive K on the second half, interleaved, paired 95% intervals", title_justify="left")
    for name in ("against", "goodput ratio"):
        verdict.add_column(name)
    verdict.add_row("plain decoding", str(report.overall(PLAIN)))
    verdict.add_row(f"best single fixed choice ({report.best})", str(report.overall(report.best)))
    for domain, arm in report.own.items():
        verdict.add_row(f"{domain} alone: its own best fixed choice ({arm})", str(report.by_domain(domain, arm)))
    console.print(verdict)
    for draft in sorted({arm.draft for arm in report.sweep if arm.draft not in (None, "none")} - {None}, key=str):
        likely = ", ".join(f"{d} {k}" for d, k in sorted(report.likely_k(str(draft), 3).items()) if d in report.own)
        console.print(f"most probable K on {draft}: {likely}")
    console.print(f"processor: {report.cpu}; seed {report.seed}")
