"""What a run's settings say that its server must announce, against what it announced."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from deltafl.fl.strategies.base import RoundReport
from deltafl.fl.strategies.masked import MaskedMeanReport
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.errors import ProtocolError
from deltafl.protocol.levels import Levels
from deltafl.secagg import SessionParams
from deltafl.secagg.errors import SecAggError
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.inspect.audit.views import SessionView
from deltafl.sim.net.frames import TASK_SIZE, Task
from deltafl.sim.run.algorithms import sessions_of, weighing_of
from deltafl.sim.settings.config import REMOTE, RunConfig
from deltafl.sim.settings.config_io import to_toml

SHOWN = 120
"""Characters of a value that a sentence quotes."""


def departures(
    config: RunConfig,
    number: int,
    session: SessionView,
    wanted: Sequence[Levels],
    reports: Sequence[RoundReport],
) -> Iterator[str]:
    """Say where a session is not what the settings lead to.

    Args:
        config: The run's settings.
        number: The round, counted from 1.
        session: The session.
        wanted: What may have been announced; nothing where that is not known.
        reports: What the round may have come to; likewise.
    """
    announced = session.levels
    if announced is None:
        return
    if wanted and announced not in wanted:
        yield _levels_differ(announced, wanted[0])
        announced = _alike(announced, wanted[0])
    seeds = _graph_seeds(config, number, reports)
    yield from _params_differ(config, seeds, session, announced)


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


def _graph_seeds(config: RunConfig, number: int, reports: Sequence[RoundReport]) -> set[bytes]:
    """Which graph seeds the session may have; none where that is not known.

    A federation's binds the session to the unit of weights, which follows from the last round.
    """
    if config.federation.devices != REMOTE:
        return {Seeds(config.experiment.seed).digest(Purpose.GRAPH, round_index=number - 1)}
    units = {0}
    if weighing_of(config, number - 1, 0, 1) is not None:
        units = {one.weight_unit_log2 for one in reports if isinstance(one, MaskedMeanReport)}
    settings = to_toml(config).encode()
    return {Task(bytes(TASK_SIZE), number - 1, unit, settings).graph_seed for unit in units}


def _params_differ(
    config: RunConfig, seeds: set[bytes], session: SessionView, levels: Levels
) -> Iterator[str]:
    """The parameters of the session, each by itself."""
    models = session.announce.models if session.announce is not None else b""
    own = session.params.graph_seed
    seed = own if not seeds or own in seeds else min(seeds)
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
