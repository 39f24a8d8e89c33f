"""Which devices a run's seed draws for a round."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from deltafl.sim.cohort.sampling import dealt, drawn_of, others
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.inspect.audit.check import RoundOver
from deltafl.sim.inspect.audit.saved_states import SavedStates
from deltafl.sim.settings.config import REMOTE, RunConfig

_NOBODY: Final = (frozenset[int](),)
_MOST: Final = 8
"""Sets of devices that may have answered; it would take as many rounds that change nothing."""


@dataclass(slots=True, eq=False)
class Draws:
    """Follows the cohorts of a run.

    A device is drawn for a model only until it has answered for it. Whether a round has changed the
    model is not always in the record. So after a round that may not have, several cohorts can be
    drawn.

    Attributes:
        config: The run's settings.
        population: Devices that cohorts are drawn from; None if that is not known, and then only
            their number is compared.
    """

    config: RunConfig
    population: int | None
    _answered: tuple[frozenset[int], ...] = _NOBODY  # those who may have, one of these
    _saved: SavedStates[tuple[frozenset[int], ...]] = field(
        default_factory=lambda: SavedStates(_NOBODY)
    )
    _cohorts: dict[int, frozenset[int]] = field(default_factory=dict)

    def departures(self, over: RoundOver) -> Iterator[str]:
        """Say where the cohort of a round is none that may be drawn."""
        sessions = list(over.view.sessions.values())
        invited = {seen.record.peer for one in sessions for seen in one.announcements}
        is_plain = len(sessions) == 1 and len(sessions[0].announcements) == len(invited)
        cohort = over.view.cohort if over.view.cohort is not None else tuple(sorted(invited))
        if cohort and (is_plain or not sessions):
            yield from self._sizes(over.view.number, len(cohort))
            yield from self._drawn(over.view.number, cohort)
        self._cohorts[over.view.number] = frozenset(cohort)
        self._note(over)

    def go_back(self, kept: int) -> None:
        """Any device of the rounds that were lost after this one may have answered in them."""
        last = max(self._cohorts, default=0)
        before = self._saved.go_back(kept, last)
        lost = frozenset[int]().union(
            *(self._cohorts.get(n, ()) for n in range(kept + 1, last + 1))
        )
        self._answered = tuple({one | lost: None for one in before or self._answered})
        self._saved.save(last, self._answered)

    def _sizes(self, number: int, size: int) -> Iterator[str]:
        """A cohort is smaller than the settings say only if devices that may be asked ran out.

        On machines, these are as many as were on the list then, which the record does not say.
        """
        federation = self.config.federation
        wanted, is_listed = federation.cohort_size, federation.devices == REMOTE
        if size > wanted or (size < wanted and self._answered == _NOBODY and not is_listed):
            yield f"round {number} invites {size} devices, and the run's settings say {wanted}"

    def _drawn(self, number: int, invited: tuple[int, ...]) -> Iterator[str]:
        population, size = self.population, self.config.federation.cohort_size
        if population is None:
            return
        if population < size:
            yield f"cohorts of {size} cannot be drawn from the {population} devices evaluated"
            return
        is_drawn = any(
            invited == self._cohort(number - 1, population, size, without)
            for without in self._answered
        )
        if not is_drawn and not self._is_repeated(number, frozenset(invited), population):
            yield f"round {number} invites other devices than the run's seed draws"

    def _is_repeated(self, number: int, invited: frozenset[int], population: int) -> bool:
        """Whether a round may be the one before once more, for want of devices that are new."""
        size = self.config.federation.cohort_size
        return invited == self._cohorts.get(number - 1) and any(
            population - len(without) < size for without in self._answered
        )

    def _cohort(
        self, index: int, population: int, size: int, without: frozenset[int]
    ) -> tuple[int, ...]:
        """The cohort of a round, dealt where sums have noise and else drawn."""
        seeds = Seeds(self.config.experiment.seed)
        if self.config.dp.noise:
            due = dealt(seeds.shuffle_of_population, population, size, index)
            return tuple(device for device in due.tolist() if device not in without)
        generator = seeds.generator(Purpose.COHORT, round_index=index)
        return drawn_of(generator, others(population, without), size)

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
            outcome is not None
            and outcome.update is not None
            and (outcome.kept_weight > 0 or bool(self.config.dp.noise))
            for outcome in ended
        ]
        answered = [one | asked for one in self._answered]
        if changes and all(changes):
            is_known = all(one.is_exact for one in over.played)
            moved = all(
                bool(o.update.any()) for o in ended if o is not None and o.update is not None
            )
            answered = [frozenset(), *([] if is_known and moved else answered)]
        self._answered = tuple(dict.fromkeys(answered))[:_MOST]
        number = over.view.number
        if not over.view.breaks_off:
            self._saved.save(number, self._answered)
        for old in [old for old in self._cohorts if old < number - _MOST]:
            del self._cohorts[old]
