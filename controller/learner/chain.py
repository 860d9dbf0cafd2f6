"""A Gaussian whose precision is a chain of blocks, with single variables hanging from them, solved block by block; and
one with some variables more that are tied to all of that.

Blocks l = 0..L-1 of m variables; of neighbours only the first p variables are tied, variable by variable, with
precision w_l (a random walk). Every hanging variable o is tied to one block, by a row of `cross`, and to nothing else:

    precision = [ own   cross ]        the hanging ones drop out first (`own` is diagonal), then the blocks in turn:
                [ cross'  A   ]        P_0 = A_0 - ..,  P_l = A_l - .. - W (P_(l-1)^-1)_pp W

Solving backwards gives the mean, draws (with the root of each P_l^-1 on white noise) and the marginal variances (Rue
and Held, Gaussian Markov Random Fields, section 2.4). All of it costs L m^3 + (hanging) m^2, where inverting the whole
precision costs the cube of all variables: at 10 loads and 8 drafts a twentieth of the time.
"""

import numpy as np

from controller.learner.discount import Array, Index

_LOST = 1e-12  # relative: what is smaller has drowned in the rounding of what was taken off


def _root(left: Array, whole: Array) -> Array:
    """A root of the inverse of the precision `left` [m, m], what is left of one with the diagonal `whole` [m].

    Scaled by Jacobi: coefficients of KV tokens and of intercepts differ by ten orders of magnitude. Sums that no honest
    step gives (steps of a microsecond beside steps of minutes) can round it to one that is not positive; directions of
    which nothing is left are then as good as unknown, and the decision goes on.
    """
    jacobi = 1.0 / np.sqrt(np.maximum(np.diag(left), _LOST * whole))
    scaled = left * jacobi[:, None] * jacobi
    try:
        root = np.linalg.inv(np.linalg.cholesky(scaled + _LOST * np.eye(len(scaled)))).T
    except np.linalg.LinAlgError:
        size, direction = np.linalg.eigh((scaled + scaled.T) / 2.0)
        root = direction / np.sqrt(np.maximum(size, _LOST * size[-1]))
    return np.asarray(jacobi[:, None] * root, dtype=np.float64)


class Chain:
    """The factored precision. Vectors of all variables hold the blocks' in turn, then the hanging ones.

    >>> chain = Chain(np.array([[[3.0]], [[2.0]]]), np.array([[1.0]]), np.zeros((0, 1)), np.zeros(0), np.zeros(0, int))
    >>> solved = chain.solve(np.array([[[1.0]], [[3.0]]]), np.zeros((0, 1)))    # [[3, -1], [-1, 2]]^-1 (1, 3)
    >>> solved.ravel().round(6).tolist()
    [1.0, 2.0]
    >>> chain.variance().round(6).tolist()    # the inverse is [[2, 1], [1, 3]] / 5
    [0.4, 0.6]
    """

    def __init__(self, blocks: Array, walk: Array, cross: Array, own: Array, load: Index) -> None:
        """blocks [L, m, m]: A's diagonal, the ties of the walk in it; walk [L - 1, p]; cross [O, m]; own [O]; load [O]:
        the block a hanging variable is tied to."""
        self.width = blocks.shape[1]
        self._walk, self._own = walk, own
        self._hang = [np.flatnonzero(load == at) for at in range(len(blocks))]
        self._pull = cross / own[:, None]  # what a block's variables take off a hanging one
        self._roots: list[Array] = []  # P^-1 = root root'
        p = walk.shape[1]
        for at, block in enumerate(blocks):
            here = self._hang[at]
            left = block - cross[here].T @ self._pull[here]
            if at:
                above = self._roots[-1][:p] * walk[at - 1][:, None]
                left[:p, :p] -= above @ above.T
            self._roots.append(_root(left, np.diag(block)))

    def solve(self, rhs: Array, own_rhs: Array) -> Array:
        """precision^-1 (rhs, own_rhs); rhs [L, m, n], own_rhs [O, n]."""
        p, rising = self._walk.shape[1], np.zeros((self._walk.shape[1], rhs.shape[2]))
        reduced = []
        for at, right in enumerate(rhs):
            here = self._hang[at]
            left = right - self._pull[here].T @ own_rhs[here]
            left[:p] += rising
            reduced.append(self._roots[at].T @ left)
            if at < len(self._walk):
                rising = self._walk[at][:, None] * (self._roots[at][:p] @ reduced[-1])
        return self._back(np.concatenate(reduced), own_rhs / self._own[:, None])

    def coloured(self, white: Array) -> Array:
        """Independent standard normals [variables, n] made draws of this Gaussian around 0."""
        blocks = len(self._roots) * self.width
        return self._back(white[:blocks], white[blocks:] / np.sqrt(self._own)[:, None])

    def _back(self, white: Array, free: Array) -> Array:
        """From the last block down: x_l = root (white + root' W x_(l+1)); then the hanging ones: free - pull x."""
        m, p = self.width, self._walk.shape[1]
        found = np.empty((len(white) + len(free), white.shape[1]))
        hanging = found[len(white) :]
        for at in reversed(range(len(self._roots))):
            root, here = self._roots[at], self._hang[at]
            mine = white[at * m : (at + 1) * m]
            if at < len(self._walk):
                mine = mine + root[:p].T @ (self._walk[at][:, None] * found[(at + 1) * m : (at + 1) * m + p])
            block = found[at * m : (at + 1) * m] = root @ mine
            hanging[here] = free[here] - self._pull[here] @ block
        return found

    def variance(self) -> Array:
        """Marginal variances of all variables."""
        p, found = self._walk.shape[1], np.empty(len(self._roots) * self.width + len(self._own))
        hanging = found[len(self._roots) * self.width :]
        next_one = np.zeros((p, p))
        for at in reversed(range(len(self._roots))):
            root, here = self._roots[at], self._hang[at]
            covariance = root @ root.T
            if at < len(self._walk):
                gain = root @ (root[:p].T * self._walk[at])
                covariance += gain @ next_one @ gain.T
            next_one = covariance[:p, :p]
            found[at * self.width : (at + 1) * self.width] = np.diag(covariance)
            pull = self._pull[here]
            hanging[here] = 1.0 / self._own[here] + np.einsum("om,om->o", pull @ covariance, pull)
        return found


class Bordered:
    """A chain and some variables more that are tied to all of it and to each other: [[chain, border], [border', core]].

    >>> chain = Chain(np.array([[[3.0]], [[2.0]]]), np.array([[1.0]]), np.zeros((0, 1)), np.zeros(0), np.zeros(0, int))
    >>> both = Bordered(chain, np.array([[[1.0]], [[0.0]]]), np.zeros((0, 1)), np.array([[2.0]]))
    >>> both.mean(np.array([[1.0], [0.0]]), np.zeros(0), np.array([2.0])).round(6).tolist()    # the last: the border's
    [0.0, 0.0, 1.0]
    >>> both.variance().round(6).tolist()    # [[3, -1, 1], [-1, 2, 0], [1, 0, 2]]^-1 has (4, 5, 5) / 8 on its diagonal
    [0.5, 0.625, 0.625]
    """

    def __init__(self, chain: Chain, border: Array, own_border: Array, core: Array) -> None:
        """border [L, m, g], own_border [O, g], core [g, g]: precision."""
        self.chain = chain
        self._follow = chain.solve(border, own_border)  # what the chain gives way when a variable of the border moves
        flat = np.concatenate([border.reshape(-1, border.shape[2]), own_border])
        self._root = _root(core - flat.T @ self._follow, np.diag(core))

    def mean(self, rhs: Array, own_rhs: Array, border_rhs: Array) -> Array:
        """precision^-1 (rhs, own_rhs, border_rhs); rhs [L, m], own_rhs [O], border_rhs [g]."""
        chain = self.chain.solve(rhs[..., None], own_rhs[:, None])[:, 0]
        right = border_rhs - self._follow.T @ np.concatenate([rhs.ravel(), own_rhs])
        border = self._root @ (self._root.T @ right)
        return np.concatenate([chain - self._follow @ border, border])

    def coloured(self, white: Array) -> Array:
        """Independent standard normals [variables, n] made draws of this Gaussian around 0."""
        inside = len(self._follow)
        border = self._root @ white[inside:]
        return np.concatenate([self.chain.coloured(white[:inside]) - self._follow @ border, border])

    def variance(self) -> Array:
        """Marginal variances of all variables."""
        more = ((self._follow @ self._root) ** 2).sum(axis=1)
        return np.concatenate([self.chain.variance() + more, (self._root**2).sum(axis=1)])
