"""What a class must say to be a rival."""

from abc import ABC, abstractmethod

from simulations.policy import Choice, Outcome, View


class Rival(ABC):
    """A `Policy` whose two methods cannot be forgotten: a subclass that lacks one cannot be made.

    `simulations.policy.Policy` is what the simulation asks for and what a policy of one's own may follow by shape
    alone; the rivals of this package derive, so that a method left out fails when it is made and not mid-run.
    """

    name: str

    @abstractmethod
    def choose(self, view: View) -> Choice:
        """Draft of new rows and K of all rows."""

    @abstractmethod
    def observe(self, outcome: Outcome) -> None:
        """Learn from a step, or say that nothing is learned."""
