"""Both sides of Algorithm 3 on one page, over sums that a trusted party computes.

    server      asks for the next sum of the search, until η is found, then announces η and δ
    devices     answer a query with what their loss says of it; after η, those with F_k ≥ η − δ
                train and contribute n_k·Δ_k and n_k, and the others contribute zeros
    server      w ← w + Σ n_k·Δ_k / Σ n_k

`IdealRounds.play` is that loop, `_Devices` the devices' side, and `deltafl.protocol.round` says
what the server concludes from each sum. Rounds of the real protocol (`masked.py`) lose the same
devices and have the same outcome, bit for bit. Refusals are the same in all cases but one: here a
device is asked for its update only when it is summed, so one of a wrong shape of a device that
drops out earlier, or in a session that is given up, is neither met nor noted. Source: "Device
Heterogeneity in Federated Learning: A Superquantile Approach", Algorithm 3 and appendix B.1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deltafl.fl.cohort import SecureRoundResult
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.levels import LevelRounds, Levels
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import LostSearch, limited_to
from deltafl.protocol.selection import Threshold
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import ClientId, IdealSession, PeerError, Refusal, SessionAborted
from deltafl.secagg.ring import Vector
from deltafl.secagg.states import Stage, Step, Vanish, Vanishing
from deltafl.sim.cohort.masked import NoiseSource, system_noise
from deltafl.sim.cohort.work import CohortWork


@dataclass(frozen=True, slots=True)
class IdealRounds:
    """Rounds by the ideal functionality.

    Attributes:
        sessions: How sessions are set up.
        noise: Source of each device's noise.
    """

    sessions: Sessions
    noise: NoiseSource = system_noise

    def play(
        self,
        levels: Levels,
        work: CohortWork,
        *,
        graph_seed: bytes,
        vanishing: Vanishing,
        lost: Sequence[LostSearch] = (),
    ) -> SecureRoundResult:
        """Play a round; see `deltafl.sim.cohort.simulated.SecureRounds`."""
        each = [model.astype("<f4").tobytes() for model in work.models]
        params = self.sessions.params_of_levels(levels, b"".join(each), graph_seed)
        ids = [ClientId(device) for device in work.weights]
        barred = frozenset(ids) - limited_to(lost, ids)
        absent = dict.fromkeys(barred, Vanish(Step(Stage.ADVERTISE)))
        session = IdealSession(params, ids, {**vanishing, **absent})
        if len(set(each)) != len(each):
            raise PeerError(Refusal.POLICY, "two levels have the same model")
        rounds, devices = (
            LevelRounds(levels, keeps_cohort=self.sessions.policy.expects_active, lost=lost),
            _Devices(levels, work, self.noise),
        )
        try:
            session.set_up()
            while rounds.question is not None:
                rounds.assemble(len(session.remaining))
                if not session.can_sum(rounds.slot):
                    rounds.lose()
                rounds.check_opened(session.open_slot(rounds.slot))
                contributors = session.collect(rounds.slot, rounds.check_tail)
                if contributors is None:
                    if isinstance(rounds.question, Query):
                        devices.answer_in_vain(session.remaining, rounds.level, rounds.question)
                    rounds.lose()
                else:
                    devices.measure(contributors, rounds.level)
                    vectors = devices.contributions(contributors, rounds.level, rounds.question)
                    rounds.take(session.add_up(rounds.slot, vectors))
        except SessionAborted as error:
            return SecureRoundResult(rounds.outcomes(session.drops, str(error)), None)
        return SecureRoundResult(rounds.outcomes(session.drops), None)


class _Devices:
    """The devices' side, without messages."""

    def __init__(self, levels: Levels, work: CohortWork, noise: NoiseSource) -> None:
        self._levels = levels
        self._work = work
        # one source for each device of a session, as in the real protocol
        self._noise = {ClientId(device): noise(ClientId(device)) for device in work.weights}
        self._measured: dict[tuple[ClientId, int], DeviceRound] = {}

    def measure(self, ids: Sequence[ClientId], level: int) -> None:
        """Let the devices that have not measured their losses do so."""
        config = self._levels.rounds[level]
        new = [client for client in ids if (client, level) not in self._measured]
        for client in new:
            self._work.begin_losses(client, (level,))
        for client in new:
            loss = self._work.loss(client, level)
            weight = self._work.weight(client)
            self._measured[client, level] = DeviceRound.measured(config, loss, weight)

    def answer_in_vain(self, ids: Sequence[ClientId], level: int, question: Query) -> None:
        """Let devices answer a query without a sum, which uses up their noise of it."""
        if self._levels.common.noise is not None:
            self.measure(ids, level)
            for _ in self.contributions(ids, level, question):
                pass

    def contributions(
        self, ids: Sequence[ClientId], level: int, question: Query | Threshold
    ) -> Iterator[Vector]:
        """The devices' vectors, in order; all train before the first is waited for."""
        own = [self._measured[client, level] for client in ids]
        if isinstance(question, Query):
            for client, device in zip(ids, own, strict=True):
                yield device.answer(question, self._noise[client])
            return
        passing = [device.passes(question) for device in own]
        for client, passes in zip(ids, passing, strict=True):
            if passes:
                self._work.begin_update(client, level)
        for client, device, passes in zip(ids, own, passing, strict=True):
            update = self._work.update(client, level) if passes else None
            yield device.contribution(update, self._noise[client])
