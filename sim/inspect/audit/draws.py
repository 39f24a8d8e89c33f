"""Which devices a run's seed draws for a round."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from deltafl.sim.cohort.sampling import sample_cohort
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.inspect.audit.check import RoundOver
from deltafl.sim.settings.config import RunConfig


@dataclass(slots=True, eq=False)
class Draws:
    """Follows the cohorts of a run.

    A device is drawn for a model only until it has answered for it. Whether a round has changed the
    model is not always in the record. So after a round that may not have, two cohorts can be drawn.

    Attributes:
        config: The run's settings.
        population: Devices that cohorts are drawn from; None if that is not known, and then only
            their number is compared.
    """

    config: RunConfig
    population: int | None
    _answered: set[int] = field(default_factory=set)
    _is_open: bool = True  # whether nobody may have answered yet

    def departures(self, over: RoundOver) -> Iterator[str]:
        """Say where the cohort of a round is none that may be drawn."""
        sessions = list(over.view.sessions.values())
        invited = {seen.record.peer for one in sessions for seen in one.announcements}
        if len(sessions) == 1 and invited and len(sessions[0].announcements) == len(invited):
            yield from self._sizes(over.view.number, len(invited))
            yield from self._drawn(over.view.number, tuple(sorted(invited)))
        self._note(over)

    def _sizes(self, number: int, size: int) -> Iterator[str]:
        """A cohort is smaller than the settings say only if devices that may be asked ran out."""
        wanted = self.config.federation.cohort_size
        if size > wanted or (size < wanted and not self._answered):
            yield f"round {number} invites {size} devices, and the run's settings say {wanted}"

    def _drawn(self, number: int, invited: tuple[int, ...]) -> Iterator[str]:
        population, size = self.population, self.config.federation.cohort_size
        if population is None:
            return
        if population < size:
            yield f"cohorts of {size} cannot be drawn from the {population} devices evaluated"
            return
        excluded = [frozenset[int]()] if self._is_open else []
        excluded += [frozenset(self._answered)] if self._answered else []
        seeds = Seeds(self.config.experiment.seed)
        if not any(
            invited
            == sample_cohort(
                seeds.generator(Purpose.COHORT, round_index=number - 1), population, size, without
            )
            for without in excluded
        ):
            yield f"round {number} invites other devices than the run's seed draws"

    def _note(self, over: RoundOver) -> None:
        """Who has answered for the model that the server has now, as far as the record says."""
        asked = {
            seen.record.peer
            for session in over.view.sessions.values()
            for slot in session.slots.values()
            for seen in slot.opened
        }
        ended = [one.outcome for one in over.played]
        changes = [
            outcome is not None and outcome.update is not None and outcome.kept_weight > 0
            for outcome in ended
        ]
        self._answered |= asked
        self._is_open = not asked and self._is_open
        if changes and all(changes):
            is_known = all(one.is_exact for one in over.played)
            moved = all(
                bool(o.update.any()) for o in ended if o is not None and o.update is not None
            )
            if is_known and moved:
                self._answered = set()
            self._is_open = True
