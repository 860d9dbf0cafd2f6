"""What reaches the learner: differences of the wire's cells over one interval, and the order it gives to names."""

from collections.abc import Sequence

import msgspec

from engine.link.messages import OTHER, AcceptanceCell, AccountCell, CostCell, MomentCell, Regime

REGIMES: tuple[Regime, Regime] = ("greedy", "sampled")
FEEDING = ("policy", "probe")  # origins whose steps feed the domain's curve

Context = tuple[str, str]  # (domain, regime)


class Delta(msgspec.Struct):
    """What one engine counted between two of its frames. Cells are the wire's, holding differences.

    `time`: wall clock seconds at the middle of the interval, by the controller's clock.
    """

    engine: str
    time: float
    acceptance: list[AcceptanceCell] = []
    moments: list[MomentCell] = []
    cost: list[CostCell] = []
    account: list[AccountCell] = []


class Contexts:
    """Names of (domain, regime), in order of appearance, with a limit; what comes later is `other`.

    `other` itself is always there, in both regimes: it answers for domains nobody has seen yet.

    >>> contexts = Contexts(max_domains=1)
    >>> contexts.index("code", "greedy"), contexts.index("poetry", "sampled")
    (2, 1)
    >>> contexts.names
    [('other', 'greedy'), ('other', 'sampled'), ('code', 'greedy')]
    """

    def __init__(self, max_domains: int, names: Sequence[Context] = ()) -> None:
        self.max_domains = max_domains
        self.names: list[Context] = []
        self._index: dict[Context, int] = {}
        self._domains: set[str] = set()
        for name in ((OTHER, REGIMES[0]), (OTHER, REGIMES[1]), *names):
            if name not in self._index:
                self._append(name)

    def _append(self, name: Context) -> int:
        self._index[name] = len(self.names)
        self.names.append(name)
        self._domains.add(name[0])
        return len(self.names) - 1

    def index(self, domain: str, regime: str) -> int:
        """Index of the context, new ones appended until `max_domains` domains besides `other` are known."""
        found = self._index.get((domain, regime))
        if found is not None:
            return found
        if domain not in self._domains and len(self._domains) > self.max_domains:
            return self.index(OTHER, regime)
        return self._append((domain, regime))

    def __len__(self) -> int:
        return len(self.names)
