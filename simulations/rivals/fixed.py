"""No control at all: one draft and one K for everybody, the operator's static setting, and no speculation.

The static setting is what every engine offers first: `num_speculative_tokens` (vLLM), `speculative_num_steps` (SGLang),
`max_draft_len` (TensorRT-LLM).
"""

import numpy as np

from simulations.policy import NO_DRAFT, Maker, Outcome, PoolFacts, View
from simulations.rivals.one_draft import OneDraft


class Fixed(OneDraft):
    """Draft and K that never change."""

    def __init__(self, name: str, pool: PoolFacts, draft: int, k: int) -> None:
        super().__init__("fixed", pool, draft)
        self.name = name
        self.k = k

    def length(self, view: View, drafting: int) -> int:
        """The same K for every row."""
        return self.k

    def observe(self, outcome: Outcome) -> None:
        """Nothing is learned."""


def fixed(draft: int, k: int) -> Maker:
    """Always (draft index, K); named `fixed:DRAFT:K`. Raises ValueError where the pool has no such draft or K."""

    def make(pool: PoolFacts, rng: np.random.Generator) -> Fixed:
        if k and not 0 <= draft < len(pool.drafts):
            raise ValueError(f"fixed: draft {draft} is not one of the pool's {len(pool.drafts)} drafts")
        if k not in pool.ks:
            raise ValueError(f"fixed: K = {k} is not one of the allowed values {list(pool.ks)}")
        if not k:
            return Fixed("fixed:none:0", pool, NO_DRAFT, 0)
        return Fixed(f"fixed:{pool.drafts[draft].name}:{k}", pool, draft, k)

    return make


def plain(pool: PoolFacts, rng: np.random.Generator) -> Fixed:
    """No speculation."""
    return Fixed("plain", pool, NO_DRAFT, 0)


def static(pool: PoolFacts, rng: np.random.Generator) -> Fixed:
    """What the operator configured."""
    return Fixed("static", pool, *pool.static)
