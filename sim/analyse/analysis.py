"""Ask devices one question about their tables, and learn nothing but secure sums."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.quantile.bracketed import Bracketed
from deltafl.protocol.quantile.search import Query
from deltafl.secagg import ClientId, SecAggError, SessionParams
from deltafl.secagg.params import DIGEST_SIZE
from deltafl.secagg.randomness import system_randomness
from deltafl.secagg.ring import Vector, reduce, zeros
from deltafl.secagg.session import Observer
from deltafl.secagg.stages import Vanishing
from deltafl.sim.analyse.asking import About, Asking
from deltafl.sim.analyse.deduction import Answer, Deduction, Taken
from deltafl.sim.analyse.plan import Guard, Plan, What, binding_of, told
from deltafl.sim.analyse.question import Part, Question, Sum, Values
from deltafl.sim.analyse.recording import NoRecording, Recording
from deltafl.sim.analyse.session import AnalysisSession
from deltafl.sim.errors import UserError

__all__ = ["Answer", "Guard", "analyse_tables"]


def analyse_tables(
    tables: Mapping[int, Values],
    question: Question,
    guard: Guard | None = None,
    *,
    vanishing: Vanishing | None = None,
    observer: Observer | None = None,
    out: Path | None = None,
    about: About | None = None,
) -> Answer:
    """Ask the devices, in a session with real keys, masks and messages.

    First, one secure sum counts the devices that have anything to contribute; if they are too few,
    nothing more is asked.

    Args:
        tables: for each device, its values of the column, finite, in the order of its rows; empty
            if it has none.
        question: what is asked.
        guard: the fewest devices, and the threat.
        vanishing: which devices vanish, and when.
        observer: watches the session.
        out: a folder for the record of what the server sees; None keeps none.
        about: whose values these are, for the record.

    Raises:
        UserError: too few devices, or no session with so many of them withstands the threat, or the
            range, the cap or the noise are too large for sums that fit; or the folder has a record
            already.
    """
    guard = guard or Guard()
    if len(tables) < guard.min_cohort:
        raise UserError(
            f"{len(tables)} devices are fewer than --min-cohort {guard.min_cohort}: a sum over few "
            "says much of each"
        )
    try:
        plan = Plan(question, guard, len(tables))
        asking = Asking(question, guard, about or About(), system_randomness(DIGEST_SIZE))
        params = plan.params(system_randomness(DIGEST_SIZE), asking.context)
        recording = NoRecording(observer) if out is None else Recording(out, asking, observer)
        with recording:
            return _Devices(tables, plan, params, vanishing or {}, recording).answer()
    except (SecAggError, ConfigurationError) as error:
        raise UserError(f"the {question.statistic} cannot be found: {error}") from error


class _Devices:
    """The devices of an analysis, and what each tells."""

    def __init__(
        self,
        tables: Mapping[int, Values],
        plan: Plan,
        params: SessionParams,
        vanishing: Vanishing,
        recording: NoRecording,
    ) -> None:
        self._plan, self._recording = plan, recording
        self._parts = {ClientId(i): plan.question.of_device(rows) for i, rows in tables.items()}
        recording.begin(self._parts)
        self._session = AnalysisSession(
            params, list(self._parts), plan.policy, vanishing, recording.observer
        )

    def answer(self) -> Answer:
        """What the server makes of the sums."""
        answer = Deduction(self._plan, self._taken).answer()
        self._recording.answered(answer)
        return answer

    def _taken(self, slot: int, what: What) -> Taken | None:
        answers = self._ranks(what) if isinstance(what, Query) else self._numbers(slot, what)
        asked = told(what)

        def answer(device: ClientId) -> Vector:
            return answers(self._parts[device])

        def tell() -> None:
            self._recording.asked(slot, asked)

        taken = self._session.sum(slot, answer, binding_of(asked), tell)
        return None if taken is None else Taken(taken.vector, len(taken.contributors))

    def _numbers(self, slot: int, sums: Sequence[Sum]) -> Callable[[Part], Vector]:
        layout = self._plan.layouts[slot]

        def contribution(part: Part) -> Vector:
            return layout.encode({one.name: self._told(one, part) for one in sums})[0]

        return contribution

    def _told(self, one: Sum, part: Part) -> Values:
        """A device's numbers, with its share of the noise."""
        numbers = one.of(part).astype(np.float64)
        noise = self._plan.noise(one)
        if noise is None:
            return numbers
        share = noise.share(one.size, self._plan.bound(noise, one), system_randomness)
        return numbers + share / (1 << noise.resolution_bits)

    def _ranks(self, query: Query) -> Callable[[Part], Vector]:
        config, method = self._plan.search, Bracketed()
        if config is None:
            raise RuntimeError("there is no search: this is a bug")
        layout = method.layout(config)

        def answer(part: Part) -> Vector:
            """The sum of what devices with one value each would answer."""
            total = zeros(layout.length, layout.ring_bits)
            ticks, counts = np.unique(self._plan.question.ticks(part.values), return_counts=True)
            for tick, number in zip(ticks.tolist(), counts.tolist(), strict=True):
                one = layout.encode(method.contribution(config, query, tick, 1))[0]
                np.add(total, one * one.dtype.type(number), out=total)
            reduce(total, layout.ring_bits)
            return total

        return answer
