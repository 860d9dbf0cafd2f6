"""The answer of a table by batch size, held while the batch only flickers across a boundary of the table.

A prefill that joins 4 decoding rows, or a request that ends while the next one is being read, moves the batch over a
boundary and back within a few steps. If K follows each time, shapes of the step change every few steps: reported with
a collapse of throughput (vllm issue 49548).
"""

from collections.abc import Callable

STEPS = 16  # consecutive steps that a batch must stay outside before it moves the answer
FAR = 2.0  # a batch so many times larger or smaller than the last one inside moves it at once


class Held:
    """`look_up` maps a batch size (1 or more) to the table's answer there.

    >>> held = Held(lambda batch: 2 if batch <= 4 else 0)
    >>> [held(batch) for batch in (4, 5, 4, 5, 5, 4)]
    [2, 2, 2, 2, 2, 2]
    >>> [held(5) for _ in range(16)][-2:], held(1)
    ([2, 0], 2)
    """

    def __init__(self, look_up: Callable[[int], int]) -> None:
        self._look_up = look_up
        self._batch = 0  # the last one inside; 0: none yet
        self._answer = 0
        self._outside = 0

    def __call__(self, batch: int) -> int:
        """The answer for this step, `batch` decode rows; call it once a step."""
        answer = self._look_up(batch)
        if answer != self._answer or not self._batch:
            self._outside += 1
            near = self._batch and self._batch <= FAR * batch and batch <= FAR * self._batch
            if near and self._outside < STEPS:
                return self._answer
            self._answer = answer
        self._batch = batch
        self._outside = 0
        return self._answer
