"""The normal equations of the cost model: where every coefficient stands, and the sums of products of their columns.

A block a load: the law, then the load's shared and prefill effects. Behind the blocks the own effects, which hang from
one block each; then the curve of verification, which is tied to everything. So stands the precision in `chain`.
"""

import numpy as np

from controller.learner import verification
from controller.learner.chain import Bordered, Chain
from controller.learner.config import PoolSpec
from controller.learner.discount import Array, Index
from controller.learner.steps import SHARED, Sums

EffectKey = tuple[str, tuple[str, ...], int, int]  # kind, drafts, load, passes or prefill bucket
Rows = tuple[Index, Index, Index]  # of a group: block, own effect, columns in the block


class Layout:
    """Where every effect stands: shared and prefill effects in their load's block behind the law, own ones behind all
    blocks. Rows of all groups in turn: block, own [rows], columns [rows, columns] by group."""

    def __init__(self, groups: list[Sums], spec: PoolSpec) -> None:
        p, order = 1 + SHARED + 2 * len(spec.drafts), {draft.name: j for j, draft in enumerate(spec.drafts)}
        sizes = spec.loads
        local: list[dict[tuple[str, int], int]] = [{} for _ in sizes]
        own: dict[EffectKey, int] = {}
        self.own_load: list[int] = []
        self.rows: list[Rows] = []  # by group: block, own, columns
        laws: dict[tuple[str, ...], list[int]] = {}
        for group in groups:
            block, mine, columns = [], [], []
            for drafts, batch, passes, prefill in group.keys:
                load = spec.load_index(batch)
                law = laws.get(drafts)
                if law is None:
                    features = [4 + 2 * order[name] + part for name in drafts for part in (0, 1)]
                    law = laws[drafts] = [0, 1, 2, 3, *features]
                here = local[load]
                shared = here.setdefault(("shared", passes), p + len(here))
                extra = here.setdefault(("prefill", prefill), p + len(here)) if prefill else -1
                key = ("own", drafts, sizes[load], passes)
                at = own.get(key)
                if at is None:
                    at = own[key] = len(own)
                    self.own_load.append(load)
                block.append(load)
                mine.append(at)
                columns.append([*law, shared, extra])
            self.rows.append((np.array(block), np.array(mine), np.array(columns)))
        self.width = p + max(map(len, local))
        behind = len(local) * self.width
        self.effects: dict[EffectKey, int] = {
            (kind, (), sizes[load], level): load * self.width + at
            for load, here in enumerate(local)
            for (kind, level), at in here.items()
        }
        self.effects |= {key: behind + at for key, at in own.items()}


class Equations:
    """Precision and right-hand side, of the prior of the curve and what was added."""

    def __init__(self, layout: Layout, count: int, knots: Array, core: Array, core_rhs: Array) -> None:
        """count: blocks; knots [g]; core [g, g], core_rhs [g]: prior of the curve."""
        m, g, owns = layout.width, len(knots), len(layout.own_load)
        self._width, self._knots = m, knots
        self._own_load = np.array(layout.own_load, dtype=np.intp)
        # One column more than a block has: it takes what rows without prefill have in place of that effect.
        self._blocks, self._rhs = np.zeros((count, m + 1, m + 1)), np.zeros((count, m + 1))
        self._cross, self._own, self._own_rhs = np.zeros((owns, m + 1)), np.zeros(owns), np.zeros(owns)
        self._border, self._own_border = np.zeros((count, m + 1, g)), np.zeros((owns, g))
        self._core, self._core_rhs = core, core_rhs

    def add(self, group: Sums, rows: Rows, weight: Array) -> None:
        """Add a group's rows; weight [rows]: precision of one step."""
        block, mine, places = rows
        m, g = self._width, len(self._knots)
        columns = np.where(places < 0, m, places)
        # One row's features: those of the law, then a 1 for the shared and for the prefill effect.
        n = group.n
        x = np.column_stack([n, group.x, n, n]) * weight[:, None]
        y = np.column_stack([group.seconds, group.xy, group.seconds, group.seconds]) * weight[:, None]
        d = group.x.shape[1] + 1
        square = np.empty((len(n), d + 2, d + 2))
        square[:, 1:d, 1:d] = weight[:, None, None] * group.xx
        for ones in (0, d, d + 1):
            square[:, ones] = square[:, :, ones] = x
        at = block[:, None] * (m + 1) + columns
        _add(self._blocks, at[:, :, None] * (m + 1) + columns[:, None, :], square)
        _add(self._rhs, at, y)
        _add(self._cross, mine[:, None] * (m + 1) + columns, x)
        _add(self._own, mine, x[:, 0])
        _add(self._own_rhs, mine, y[:, 0])
        knot, along, square_along, y_along = verification.design(self._knots, group, square, y)
        _add(self._border, at[:, :, None] * g + knot[:, None, :], along)
        _add(self._own_border, mine[:, None] * g + knot, along[:, 0])
        _add(self._core, knot[:, :, None] * g + knot[:, None, :], square_along)
        _add(self._core_rhs, knot, y_along)

    def gaussian(
        self, diagonal: Array, walk: Array, own: Array, first: Array
    ) -> tuple[Bordered, tuple[Array, Array, Array]]:
        """The factored precision and the right-hand sides (blocks, own effects, curve), with the rest of the prior:
        diagonal [blocks, m] and own [O]: precision; walk: see `Chain`; first [p]: right-hand side of the first law."""
        m = self._width
        blocks, rhs = self._blocks[:, :m, :m].copy(), self._rhs[:, :m].copy()
        blocks[:, np.arange(m), np.arange(m)] += diagonal
        rhs[0, : len(first)] += first
        chain = Chain(blocks, walk, self._cross[:, :m], self._own + own, self._own_load)
        solved = Bordered(chain, self._border[:, :m], self._own_border, self._core)
        return solved, (rhs, self._own_rhs, self._core_rhs)


def _add(table: Array, at: Index, values: Array) -> None:
    """Add values to a table's flat places; places may repeat. Much faster than np.add.at."""
    table += np.bincount(at.ravel(), values.ravel(), table.size).reshape(table.shape)
