"""How often a young pool reports and decides.

The first steps teach most and cost most: after 4 of them a better arm is often known, and 36 more would pass until the
next report a second later. So intervals start at a tenth and grow with the steps.
"""

YOUNG_STEPS = 160.0  # steps of an engine up to which the intervals grow
LEAST = 0.1  # of the usual interval


def pace(steps: float, usual: float) -> float:
    """The interval after so many steps of an engine, in the unit of `usual`.

    >>> [pace(steps, 1.0) for steps in (0, 40, 160, 9000)]
    [0.1, 0.25, 1.0, 1.0]
    """
    return usual * min(1.0, max(LEAST, steps / YOUNG_STEPS))
