"""What a policy sees, decides and learns in a simulated pool: the two-method interface of ours and of every rival.

Rows are requests being decoded, one array entry each. K may change from step to step; the draft is drawn when a request
is admitted, and may change later where the pool `switches`: the newcomer then reads what it missed, in the same step.
Domains, drafts and loads are indices into `Names`.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]

NO_DRAFT = -1


class DraftFacts(NamedTuple):
    """What an operator knows of a loaded draft. `kind`: model, eagle or ngram. `memory`: bytes it occupies."""

    name: str
    kind: str
    max_k: int
    memory: float


class PoolFacts(NamedTuple):
    """What a policy is told before the first step.

    `ks`: allowed values of K, ascending, 0 among them. `static`: the operator's (draft index, K), (NO_DRAFT, 0) for
    plain decoding. `max_batch`: the largest number of rows. `engines`: how many engines share the policy. `switches`:
    whether a request's draft may change after its admission.
    """

    domains: tuple[str, ...]
    drafts: tuple[DraftFacts, ...]
    ks: tuple[int, ...]
    static: tuple[int, int]
    max_batch: int
    engines: int
    switches: bool = False


class View(NamedTuple):
    """One engine's rows before a step; arrays are [rows].

    `domain`: the request's label, which may be wrong (index; len(domains) stands for `other`). `draft`: the request's
    draft, NO_DRAFT where it has none; undefined where `new`. `request`: a number that stays with the request. `time`:
    seconds since the start. `available`: drafts loaded now, [drafts].
    """

    engine: int
    step: int
    time: float
    domain: Ints
    draft: Ints
    request: Ints
    new: Bools
    available: Bools


class Choice(NamedTuple):
    """`draft` [rows]: obeyed where the row is new, or everywhere where the pool switches. `k` [rows]: tokens to draft,
    held to 0 where there is no draft.

    `evaluated` [drafts]: drafts that are judged besides, for the policy's information, on what the target verified: one
    pass over the largest K + 1 tokens of every row that did not draft with it. The cost is added to the step, and
    `Outcome.would_accept` tells what they would have got.
    """

    draft: Ints
    k: Ints
    evaluated: Bools | None = None


class Outcome(NamedTuple):
    """What the step showed. `accepted` [rows] of `k` [rows] (as run, after clamps); `seconds` of the whole step.

    `finished` [rows]: the request ended with this step. `prefill`: prompt tokens processed in the step; `kv`: resident
    KV tokens. `would_accept` [drafts, rows]: accepted tokens of the evaluated drafts at the batch's largest K,
    -1 where not evaluated.
    """

    view: View
    draft: Ints
    k: Ints
    accepted: Ints
    finished: Bools
    seconds: float
    prefill: int
    kv: int
    would_accept: Ints | None = None


class Policy(Protocol):
    """A way to choose draft and K. `choose` is called before every step of every engine, `observe` after it."""

    name: str

    def choose(self, view: View) -> Choice:
        """Draft of new rows and K of all rows."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a step."""


class Maker(Protocol):
    """Makes a policy for a pool; the generator is the policy's own luck."""

    def __call__(self, pool: PoolFacts, rng: np.random.Generator) -> Policy:
        """A fresh policy."""
