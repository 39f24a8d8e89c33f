"""What a run's settings say that its server must announce, against what it announced."""

from collections.abc import Iterator
from dataclasses import fields, replace

from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.secagg import SessionParams
from deltafl.secagg.errors import SecAggError
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.inspect.audit.views import SessionView
from deltafl.sim.run.algorithms import sessions_of
from deltafl.sim.settings.config import REMOTE, RunConfig

SHOWN = 120
"""Characters of a value that a sentence quotes."""


def departures(
    config: RunConfig, number: int, session: SessionView, wanted: Levels | None
) -> Iterator[str]:
    """Say where a session is not what the settings lead to.

    Args:
        config: The run's settings.
        number: The round, counted from 1.
        session: The session.
        wanted: What must have been announced; None where that is not known.
    """
    announced = session.levels
    if announced is None:
        return
    if wanted is not None and announced != wanted:
        yield _levels_differ(announced, wanted)
        announced = _alike(announced, wanted)
    yield from _params_differ(config, number, session, announced)


def _levels_differ(announced: Levels, wanted: Levels) -> str:
    said, meant = (", ".join(str(one.theta) for one in each.rounds) for each in (announced, wanted))
    if said != meant:
        return f"θ = {said} was announced, and the run's settings say {meant}"
    named = next(
        differing
        for one, other in zip(announced.rounds, wanted.rounds, strict=True)
        if (differing := differences(one, other))
    )
    return f"other settings were announced than the run's: {named}"


def _alike(announced: Levels, wanted: Levels) -> Levels:
    """The levels from which the session's other parameters follow."""
    return wanted if wanted.common.cohort_size == announced.common.cohort_size else announced


def _params_differ(
    config: RunConfig, number: int, session: SessionView, levels: Levels
) -> Iterator[str]:
    """The parameters of the session, each by itself."""
    models = session.announce.models if session.announce is not None else b""
    seed = Seeds(config.experiment.seed).digest(Purpose.GRAPH, round_index=number - 1)
    if config.federation.devices == REMOTE:
        seed = session.params.graph_seed  # drawn at random, once the cohort was
    sessions = sessions_of(config)
    try:
        wanted = sessions.params_of_levels(levels, models, seed)
    except (ProtocolError, SecAggError) as error:
        yield f"with the run's settings there is no session of such a cohort: {error}"
        return
    if not models or levels != session.levels:  # the context is a digest of both
        wanted = replace(wanted, context=session.params.context)
    if named := differences(session.params, wanted):
        yield f"the session has other parameters than the run's settings lead to: {named}"


def differences(first: RoundConfig | SessionParams, second: RoundConfig | SessionParams) -> str:
    """The fields in which two values of one class differ, each as it is and as it should be."""
    names = []
    for field in fields(first):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.compare and one != other:
            names.append(f"{field.name} = {_shown(one)}, not {_shown(other)}")
    return "; ".join(names)


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
