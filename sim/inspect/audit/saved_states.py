"""From which of its rounds a run can have gone on after an interruption.

A run keeps the states after the last two rounds that it saved. The round that it last ended may not
be saved yet. So an interrupted run goes on from one of the last three states, and whatever it says
beyond that, it lost more than an interruption can cost.
"""

from typing import Final, Generic, TypeVar

State = TypeVar("State")

_MOST: Final = 3


class SavedStates(Generic[State]):
    """The last states, by the number of rounds before each.

    Args:
        first: The state before the first round.
    """

    def __init__(self, first: State) -> None:
        self._states = {0: first}

    def save(self, num_rounds: int, state: State) -> None:
        """Note the state after a round that has ended."""
        self._states[num_rounds] = state
        for old in sorted(self._states)[:-_MOST]:
            del self._states[old]

    def go_back(self, kept: int, begun: int) -> State | None:
        """The state that a run goes on from; None if it can have no such state any more.

        Args:
            kept: How many rounds it says that it has kept.
            begun: How many it had begun. Those that are not kept are lost.
        """
        if kept not in self._states:
            return None
        state = self._states[kept]
        self._states = {number: old for number, old in self._states.items() if number <= kept}
        self.save(begun, state)
        return state

    @property
    def numbers(self) -> tuple[int, ...]:
        """How many rounds there were before each of the states, ascending."""
        return tuple(sorted(self._states))
