"""The devices of a run that is played again: they answer as the record says.

What the engine announces to them must be what it announced. Who falls silent in a simulation
follows from its settings, and from what devices refuse: the plan of drop-outs is drawn from the
seed, and a device holds to its policy.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Final

import numpy as np

from deltafl.fl.cohort import Cohort, SecureRoundResult
from deltafl.fl.vectors import Vector
from deltafl.protocol.levels import Levels
from deltafl.secagg.states import Stage, Step
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec
from deltafl.sim.cohort.masked import as_bytes
from deltafl.sim.cohort.sampling import Indices, lost_outcomes
from deltafl.sim.cohort.seeds import Purpose, Seeds
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.rounds_again import Kept
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.run.algorithms import dropouts_of, sessions_of
from deltafl.sim.run.drawing import Measured
from deltafl.sim.run.engine import Stop
from deltafl.sim.run.simulated import SimulatedDevices
from deltafl.sim.settings.config import REMOTE, RunConfig

_MANY: Final = 1 << 40  # devices on a list that nobody has
_SHOWN: Final = 60  # characters of a value
_ROUNDING: Final = 5e-5  # by which processors differ, of a number and of 1
_NOWHERE: Final = Evidence()
_FALSE: Final = "record.disagrees"


def _differences(said: object, due: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Where two values differ: the path, and what each has there; of an array, the first place."""
    parts: dict[str, tuple[object, object]] = {}
    if is_dataclass(said) and type(said) is type(due):
        names = [one.name for one in fields(said) if one.init]
        parts = {f".{name}": (getattr(said, name), getattr(due, name)) for name in names}
    elif isinstance(said, Mapping) and isinstance(due, Mapping):
        keys = sorted({*said, *due}, key=str)
        parts = {f".{key}": (said.get(key), due.get(key)) for key in keys}
    elif isinstance(said, list | tuple) and isinstance(due, list | tuple) and len(said) == len(due):
        parts = {f"[{n}]": both for n, both in enumerate(zip(said, due, strict=True))}
    elif not isinstance(said, np.ndarray) or not isinstance(due, np.ndarray):
        if said != due or type(said) is not type(due):
            yield path, said, due
    elif (said.dtype, said.shape) != (due.dtype, due.shape):
        yield path, said, due
    elif said.tobytes() != due.tobytes():
        octets = (one.reshape(-1, 1).view(np.uint8) for one in (said, due))
        at = int(np.not_equal(*octets).any(axis=1).argmax())
        yield f"{path}[{at}]", said.flat[at], due.flat[at]
    for name, (one, other) in parts.items():
        yield from _differences(one, other, f"{path}{name}")


def _says(path: str, said: object, due: object) -> str:
    """A difference as a sentence."""
    shown = (repr(one.item() if isinstance(one, np.generic) else one) for one in (said, due))
    one, other = (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…" for text in shown)
    return f"it says {path} = {one}, and it is {other}"


def is_near(said: object, due: object) -> bool:
    """Whether two numbers, or vectors of one shape, differ as much as processors do."""
    if not isinstance(said, float | np.ndarray) or not isinstance(due, float | np.ndarray):
        return False
    return np.shape(said) == np.shape(due) and np.allclose(said, due, _ROUNDING, _ROUNDING)


@dataclass(slots=True, eq=False)
class ReplayedDevices:
    """All devices of a run; a `Population`, and its `drawing.Devices`.

    Attributes:
        config: The settings of the run.
        kept: What its rounds came to, by number.
        number: How many train; None if they are those that the record has, and others.
        measuring: Evaluates models; None if the data are not here.
        departures: What the engine does otherwise than the record says: the rule that is broken,
            a sentence, and where.
        rounds: How many rounds the engine has played.
        untold: Rounds in which all that were left fell silent at once, as devices do that refuse.
    """

    config: RunConfig
    kept: Mapping[int, Kept]
    number: int | None = None
    measuring: SimulatedDevices | None = None
    departures: list[tuple[str, str, Evidence]] = field(default_factory=list)
    rounds: int = 0
    untold: set[int] = field(default_factory=set)
    clock: CpuClock = field(default_factory=CpuClock)
    attackers: None = None
    to_lose_fewer: str = ""
    _next: int = 1

    @property
    def is_remote(self) -> bool:
        """Whether devices are machines of their own."""
        return self.config.federation.devices == REMOTE

    @property
    def num_devices(self) -> int:
        """How many train, or how many ids the record needs."""
        if self.number is not None:
            return self.number
        return 1 + max((max(one.cohort, default=0) for one in self.kept.values()), default=0)

    def spec(self, config: RunConfig) -> ModelSpec:
        """Nobody asks for it: the engine is given the first model."""
        return ModelSpec(config.model.name, (), 0)

    def begin(self, *_: object, **__: object) -> None:
        """Nothing is gone on with."""

    def forget(self) -> None:
        """Nothing was asked for."""

    def keeps(self, *_: object, **__: object) -> bool:
        """No: what the record has begun anew is played as it says."""
        return False

    def of_run(self, *_: object, **__: object) -> "ReplayedDevices":
        """The devices of the run; see `Population`."""
        return self

    def num_others(self, without: AbstractSet[int], only: AbstractSet[int] | None = None) -> int:
        """How many there are; where nobody knows, enough unless the record repeats a round."""
        there = self.present(0, without, only)
        is_known = only is not None or self.number is not None
        return len(there) if is_known or without & set(self._invited) else _MANY

    def present(
        self, size: int, without: AbstractSet[int], only: AbstractSet[int] | None = None
    ) -> Indices:
        """All that there are; where nobody knows, those that the record has invited."""
        del size
        there = {*range(self.number)} if self.number is not None else {*(only or self._invited)}
        return np.array(sorted((there if only is None else there & only) - without), np.int64)

    @property
    def _invited(self) -> tuple[int, ...]:
        kept = self.kept.get(self._next)
        return () if kept is None else kept.cohort

    def cohort(self, ids: Sequence[int], round_index: int, *_: object, **__: object) -> "_Cohort":
        """Some of them, which must be those that the record has invited."""
        kept = self.kept.get(round_index + 1)
        if kept is None:
            raise Stop
        self._next = round_index + 2
        if tuple(ids) != kept.cohort:
            detail = f"round {round_index + 1} was begun with other devices than a run draws"
            self.depart(_FALSE, detail, kept.place)
        return _Cohort(ids, partial(self._answer, kept, round_index))

    def evaluate(self, models: Sequence[Vector], round_number: int) -> Sequence[Measured] | None:
        """Measure models, if the data are here."""
        return None if self.measuring is None else self.measuring.evaluate(models, round_number)

    def _answer(
        self, kept: Kept, index: int, levels: Levels, models: Sequence[Vector]
    ) -> SecureRoundResult:
        """What a round came to, compared with what the engine announces in it."""
        outcomes = tuple(outcome() for outcome in kept.outcomes)
        if not outcomes and not kept.is_interrupted:
            raise Stop
        self.rounds += 1
        self._announced(kept, index, levels, models)
        for device, step in self.unfounded(kept, index, len(levels.slots())):
            where = f"{step.stage.name.lower()} of slot {step.slot}"
            detail = f"device {device} did not answer ({where}), and by the settings it does"
            self.depart("answers.vanished", detail, kept.place)
        if not outcomes:
            return SecureRoundResult(lost_outcomes(levels, kept.slots, INTERRUPTED), None)
        return SecureRoundResult(outcomes, kept.received / len(kept.cohort))

    def _announced(self, kept: Kept, index: int, levels: Levels, models: Sequence[Vector]) -> None:
        """Compare what a round announced with what follows from settings and sums."""
        if kept.params is None:
            return
        shown, seed = kept.models(), kept.params.graph_seed
        if not self.is_remote:
            seed = Seeds(self.config.experiment.seed).digest(Purpose.GRAPH, round_index=index)
        params = sessions_of(self.config).params_of_levels(levels, shown, seed)
        one, other = (np.frombuffer(each, "<f4") for each in (shown, as_bytes(models)))
        path, place = f"rounds[{index + 1}]", kept.place
        self._compare(f"{path}.models", one, other, place, "model.unfounded")
        self._compare(f"{path}.levels", kept.levels, levels, place)
        self._compare(f"{path}.session", kept.params, params, place)

    def _compare(
        self, path: str, said: object, due: object, place: Evidence = _NOWHERE, rule: str = _FALSE
    ) -> None:
        """Note where two values differ; of an evaluation, the first place alone."""
        found = list(_differences(said, due, path))
        if isinstance(said, Evaluation):
            are_near = all(is_near(one, other) for _, one, other in found)
            found, rule = found[:1], "run.rounding" if are_near else rule
        for one in found:
            self.depart(rule, _says(*one), place)

    def depart(self, rule: str, detail: str, place: Evidence = _NOWHERE) -> None:
        """Note what the record says otherwise."""
        self.departures.append((rule, detail, place))

    def unfounded(self, kept: Kept, index: int, num_slots: int) -> Iterator[tuple[int, Step]]:
        """Devices whose silence follows neither from the plan nor from a refusal, and since when.

        What they refuse is known from the truth. Without it, all refuse at once: all are told the
        same, and have one policy. None refuses an announcement: a run does not begin by settings
        that its devices refuse. Of machines, nobody knows why they are silent.

        Args:
            kept: What the round came to.
            index: The round, counted from 0.
            num_slots: Of its session.
        """
        if self.is_remote:
            return
        plan = dropouts_of(self.config)(index, list(kept.cohort), num_slots)
        for device, step in kept.silent.items():
            if device in plan and not plan[device].answers(step):
                continue
            gone = {one for one, since in kept.silent.items() if since.order <= step.order}
            at_once = step.stage is not Stage.ADVERTISE and gone == set(kept.cohort)
            if kept.refused is None and at_once:
                self.untold.add(index + 1)
            elif device not in (kept.refused or ()):
                yield device, step


@dataclass(frozen=True, slots=True, eq=False)
class _Cohort(Cohort):
    """The devices of a round, which answer at once."""

    ids: Sequence[int]
    answer: Callable[[Levels, Sequence[Vector]], SecureRoundResult]

    @property
    def weights(self) -> Mapping[int, int]:
        """1 for each device: what they weigh is in the sums."""
        return dict.fromkeys(self.ids, 1)

    def secure_round(
        self, levels: Levels, models: Sequence[Vector], *_: object, **__: object
    ) -> SecureRoundResult:
        """What the round came to; see `Cohort`."""
        return self.answer(levels, models)
