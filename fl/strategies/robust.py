"""What a robust aggregation is: how it steps in clear, and what it makes of a private round.

Both must come to the same, up to the rounding of sums: the devices' part is in `deltafl.protocol`,
and the clear twin calls the same functions.
"""

from collections.abc import Sequence
from typing import Protocol

from deltafl.fl.strategies.base import Memory, TrainingState
from deltafl.fl.vectors import Vector
from deltafl.protocol.configuration import UpdateParams
from deltafl.protocol.round import RoundOutcome


class Robust(Protocol):
    """How the updates of a round become one step that few liars hardly move."""

    @property
    def sums(self) -> int:
        """How many sums of the updates a round has."""

    def step(
        self, state: TrainingState, contributions: Sequence[tuple[int, Vector]]
    ) -> tuple[Vector, Memory]:
        """The next model, and what to remember, from updates in clear.

        Args:
            state: before the round.
            contributions: weight n_k > 0 and Δ_k of every device that takes part.

        Raises:
            ValueError: there are none.
        """

    def params(self, update: UpdateParams, state: TrainingState) -> UpdateParams:
        """How the next private round sums updates.

        Args:
            update: how it sums them without a robust aggregation.
            state: before the round.
        """

    def remembered(self, update: UpdateParams, outcome: RoundOutcome) -> Memory:
        """What to remember of a private round.

        Args:
            update: how it has summed updates, by `params`.
            outcome: what the server has learnt.
        """
