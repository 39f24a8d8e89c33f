"""What a run's events say of the privacy that is spent, against its settings."""

from collections.abc import Iterator

from deltafl.fl.read.exact import shortened
from deltafl.sim.inspect.audit.check import RoundOver
from deltafl.sim.inspect.audit.events import same
from deltafl.sim.record.events import Event
from deltafl.sim.run.accounting import SPENT, account_of
from deltafl.sim.settings.config import REMOTE, RunConfig


def split(event: Event, config: RunConfig | None) -> tuple[Event, Event]:
    """What an event says of the privacy that is spent, where a run says so; and all else."""
    named = SPENT if config is not None and config.dp.noise else ()
    others = {key: value for key, value in event.items() if key not in named}
    return {key: event.get(key) for key in named}, others


def spends_otherwise(
    over: RoundOver, told: Event, config: RunConfig | None, population: int | None
) -> Iterator[str]:
    """Say where an event tells of another ε than follows from the settings and the round's number.

    Args:
        over: The round.
        told: What its event says of it.
        config: The run's settings.
        population: Devices that cohorts are drawn from; None if that is not known.
    """
    announced = [one.config for one in over.view.sessions.values() if one.config is not None]
    if not told or not announced or config is None:
        return
    size, is_remote = config.federation.cohort_size, config.federation.devices == REMOTE
    # devices on machines of their own may be in every round, however many there are
    known = size if is_remote else population
    if known is None or known < size:
        return  # of the second, `Draws` says so
    account = account_of(config, known, announced[0].update_length)
    due = {} if account is None else account.after(over.view.number).event
    for key, value in due.items():
        if not same(told.get(key), value):
            said = f"{key} is {shortened(told.get(key))} in the run's events"
            yield f"{said}, but {value!r} by its settings"
