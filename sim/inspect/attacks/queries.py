"""Attacks with the queries of a search: what sums say of answers, and what two sums say of one.

A server asks one query in two rounds over one model, the second time without one of the devices.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.fl.objectives import PLAIN, LocalObjective
from deltafl.protocol.configuration import binding
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import LostSearch
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Enrolment, Refusal, Stage, Step, ring
from deltafl.secagg.errors import present
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Left, Loot, attack, presuppose
from deltafl.sim.inspect.attacks.evil_server import EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_round import (
    MODEL,
    POLICY,
    UPDATE_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.own_session import new_enrolment

_PIVOTS: Final = 63
_CONFIG: Final = replace(
    UPDATE_ROUND,
    theta=UPDATE_ROUND.theta / 2,
    method="histogram",
    num_pivots=_PIVOTS,
    search=replace(UPDATE_ROUND.search, max_queries=2),
    update_length=4,
)
_QUERY: Final = Query("histogram", tuple(range(0, _PIVOTS * 16, 16)))
_RING_BITS: Final = _CONFIG.search_layout.ring_bits
_LOST: Final = 1
"""Position of the device that the second sum lacks."""


def _server(
    network: RoundDevices, question: Query = _QUERY, *, without: int | None = None
) -> EvilServer:
    """A server that has set a session up, and asks one question.

    Args:
        network: The devices.
        question: The question.
        without: Position of the device that is left out; None for none.
    """
    network.questions = dict.fromkeys(network.devices, question)
    bound = binding(network.params.context, question)
    ids = [client for p, client in enumerate(sorted(network.devices)) if p != without]
    evil = EvilServer(network.params, ids, network.carry, binding_of=lambda _: bound)
    evil.set_up()
    return evil


def _sum(evil: EvilServer, slot: int = 0, survivors: Survivors | None = None) -> Vector:
    """Open a tolerant slot, and unmask the sum over the survivors, everybody by default.

    Raises:
        PeerError: every device refuses to answer.
    """
    evil.open_slot(slot)
    if not evil.opened[slot]:
        raise evil.refusals[min(evil.refusals)]
    survivors = survivors or evil.everyone
    evil.unmask(slot, survivors)
    total: Vector = evil.sum_over(slot, survivors).astype(np.uint64)
    return total


class _Searches:
    """Asks devices one query in two sessions, the second time without one of them.

    Args:
        policy: What the devices insist on.
        enrolment: Their identities and what these remember; new ones where not given.
    """

    def __init__(self, policy: RoundPolicy = POLICY, enrolment: Enrolment | None = None) -> None:
        self._devices = make_devices(_CONFIG)
        self._policy, self._enrolment = policy, enrolment or new_enrolment()

    def session(self, index: int, without: int | None = None, model: bytes = MODEL) -> EvilServer:
        """A session that is set up, of a round with an index."""
        network = RoundDevices(
            replace(_CONFIG, round_index=index),
            self._devices,
            model=model,
            policy=self._policy,
            signed=True,
            enrolment=self._enrolment,
        )
        return _server(network, without=without)

    def loot(self, first: EvilServer, second: EvilServer | Callable[[], EvilServer]) -> Loot:
        """The difference of two sums, and the answer of the device that the second lacks."""
        sums = [_sum(first)]
        other = second if isinstance(second, EvilServer) else second()
        sums.append(_sum(other))
        taken = sums[0] - sums[1]
        ring.reduce(taken, _RING_BITS)
        device = sorted(self._devices.items())[_LOST][1]
        return Loot(
            taken,
            device.measured(_CONFIG).answer(_QUERY),
            _RING_BITS,
            (*first.refusals.values(), *other.refusals.values()),
            note=f"truth: loss {device.loss}, weight {device.weight}; the answer holds, for each "
            "of 63 losses, the weight that lies below, and then the same for the count",
        )


_ANSWER: Final = (
    "that device's answer, as the difference of the sums: its weight and where its loss lies"
)


def _two_rounds(*, at_once: bool, defended: bool) -> Loot:
    most = 1 if defended else 2
    searches = _Searches(policy=replace(POLICY, max_rounds_per_model=most))
    first = searches.session(1)
    if at_once:
        return searches.loot(first, searches.session(2, without=_LOST))
    return searches.loot(first, lambda: searches.session(2, without=_LOST))


@attack(
    13,
    "announces one model under two round indices, the second time without one of the devices",
    gain=_ANSWER,
    defence="a device that expects an active server answers for each model in only one round, and "
    "remembers it",
    spec="12.13",
    end=Refusal.MODEL_REPEATED,
    saying="answered for this model before",
)
def one_model_in_two_rounds(defended: bool) -> Loot:
    """There are two contexts. Without the defence, devices believe that the first round was lost.

    So do those that expect a curious server, up to `max_rounds_per_model` rounds.
    """
    return _two_rounds(at_once=False, defended=defended)


@attack(
    13,
    "repeats a round that was lost, without one of its devices",
    gain=_ANSWER,
    defence="a round that is repeated goes on with the sums of the lost one, and searches no more",
    spec="12.13",
    end=Left.NOTHING,
)
def lost_round_begun_anew(defended: bool) -> Loot:
    """All follow the protocol, and devices believe that the server does.

    Without the defence, the server searches anew.
    """
    devices, enrolment, lost = make_devices(_CONFIG), new_enrolment(), list[LostSearch]()
    victim = sorted(devices)[_LOST]
    too_few = dict.fromkeys(sorted(devices)[-2:], Step(Stage.MASK, _CONFIG.update_slot))
    asked = []
    for number, gone in enumerate((too_few, {victim: Step(Stage.ADVERTISE)})):
        network = RoundDevices(
            replace(_CONFIG, round_index=number),
            devices,
            policy=replace(POLICY, max_rounds_per_model=2),
            threshold=4,
            enrolment=enrolment,
            number=number,
        )
        outcome, learnt = with_an_honest_server(network, gone=gone, lost=lost)
        presuppose((outcome.update is None) == (number == 0), "the first round is lost")
        asked.append([one.vector.astype(np.uint64) for one in learnt if one.slot == 0])
        lost = [outcome.lost] if defended and outcome.lost is not None else []
    (first,), again = asked
    taken = first - again[0] if again else 0 * first
    ring.reduce(taken, _RING_BITS)
    query = present(_CONFIG.start_search().query)
    return Loot(taken, devices[victim].measured(_CONFIG).answer(query), _RING_BITS)


class _LastSeen:
    """A ledger that keeps only the entries that it has seen last, admitted or only asked about."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._seen: dict[bytes, bool] = {}  # whether it was admitted; the oldest first

    def admit(self, entries: Sequence[bytes]) -> bool:
        """Whether all are new, as far as it still knows."""
        if any(map(self.knows, entries)):
            return False
        for entry in entries:
            self._see(entry, is_admitted=True)
        return True

    def knows(self, entry: bytes) -> bool:
        """Whether it still knows the entry."""
        is_admitted = self._seen.get(entry, False)
        self._see(entry, is_admitted=is_admitted)
        return is_admitted

    def _see(self, entry: bytes, *, is_admitted: bool) -> None:
        self._seen.pop(entry, None)
        self._seen[entry] = is_admitted
        while len(self._seen) > self._capacity:
            del self._seen[next(iter(self._seen))]


_CAPACITY: Final = 5
_ANNOUNCED: Final = 2 * _CAPACITY


class _WithLedgers(Enrolment):
    """Identities with ledgers of a kind, each with room for a few entries."""

    def __init__(self, kind: Callable[[int], Ledger]) -> None:
        super().__init__(SeededRandomness(bytes(32)))
        self._kept = defaultdict[ClientId, Ledger](lambda: kind(_CAPACITY))

    def ledger(self, client_id: ClientId) -> Ledger:
        """The ledger of a device."""
        return self._kept[client_id]


@attack(
    13,
    "announces rounds of which it asks nothing, until the devices forget that they have answered "
    "for a model, and announces that model again without one of the devices",
    gain=_ANSWER,
    defence="a device's ledger holds only what it has answered, and forgets nothing: a full one "
    "admits nothing more",
    spec="12.13",
    end=Refusal.MODEL_REPEATED,
    saying="answered for this model before",
)
def announced_until_forgotten(defended: bool) -> Loot:
    """There are twice as many announcements as a ledger has room for, and the devices join them.

    Without the defence, ledgers hold what was announced too, and the oldest entries make room.
    """
    searches = _Searches(enrolment=_WithLedgers(MemoryLedger if defended else _LastSeen))

    def again() -> EvilServer:
        for number in range(_ANNOUNCED):
            searches.session(2 + number, model=b"model %d" % number)
        return searches.session(100, without=_LOST)

    return searches.loot(searches.session(1), again)


@attack(
    13,
    "announces one model under two round indices before any device has answered for it",
    gain=_ANSWER,
    defence="a device looks into its memory again before its first answer leaves",
    spec="12.13",
    end=Refusal.MODEL_REPEATED,
    saying="another round over this model has begun",
)
def one_model_in_two_rounds_at_once(defended: bool) -> Loot:
    """When the second round is announced, the devices have not answered in the first one."""
    return _two_rounds(at_once=True, defended=defended)


@attack(
    13,
    "announces a model in two rounds, the second time with one bit changed and without one of the "
    "devices",
    gain="that device's answer, as the difference of the sums: its weight and where its loss lies",
    defence="none: devices remember models byte for byte, and every step of training changes the "
    "model",
    spec="12.13",
)
def almost_one_model_in_two_rounds(_defended: bool) -> Loot:
    """The change is too small to change a loss by a tick."""
    searches = _Searches()
    almost = bytes([MODEL[0] ^ 1]) + MODEL[1:]
    return searches.loot(
        searches.session(1), lambda: searches.session(1, without=_LOST, model=almost)
    )


_PIVOT: Final = 16 * 40
"""A pivot with three of five devices above it."""
_IN_TAIL: Final = 3
"""Position of one of them."""


@attack(
    13,
    "declares a device dropped out between the search and the update",
    gain="whether the device is in the tail, and its weight if so",
    defence="none for the update, because otherwise one device could cost everybody the round; "
    "slots of queries are whole",
    spec="12.3",
)
def lost_after_the_search(_defended: bool) -> Loot:
    """The search tells how much is in the tail, and the update how much without the device."""
    devices = make_devices(_CONFIG)
    network = RoundDevices(_CONFIG, devices, signed=True)
    evil = _server(network)
    below = _CONFIG.search_layout.decode(_sum(evil))
    threshold = Threshold(2 * _PIVOT, 0)
    network.questions = dict.fromkeys(devices, threshold)
    evil.binding_of = lambda _: binding(network.params.context, threshold)
    left = evil.everyone - {_IN_TAIL}
    tail = _CONFIG.update_layout.decode(_sum(evil, _CONFIG.update_slot, left))
    place = _QUERY.pivots.index(_PIVOT)
    taken = [
        int(below[whole][0] - below[f"{whole}_below"][place] - tail[whole][0])
        for whole in ("count", "weight")
    ]
    device = devices[sorted(devices)[_IN_TAIL]]
    return Loot(
        np.array(taken, dtype=np.uint64),
        np.array([1, device.weight], dtype=np.uint64),
        _RING_BITS,
        tuple(evil.refusals.values()),
        note="the number of devices that the tail lacks, and their weight",
    )


@attack(
    14,
    "reads the sums of one honest histogram query over five devices",
    gain="every device's weight, and its loss to within a bucket, without names",
    defence="larger cohorts, `bracketed`, and the settings of the search (deltafl audit leakage "
    "measures them)",
    spec="12.4",
)
def search_in_a_small_cohort(_defended: bool) -> Loot:
    """There is at most one device between two pivots, so that each rank is a device."""
    devices = make_devices(_CONFIG)
    evil = _server(RoundDevices(_CONFIG, devices, signed=True))
    sums = _CONFIG.search_layout.decode(_sum(evil))
    weights = np.diff(sums["weight_below"], append=sums["weight"])
    found = [(_QUERY.pivots[i], weights[i]) for i in np.flatnonzero(weights)]
    truth = [
        (
            max(pivot for pivot in _QUERY.pivots if pivot <= device.measured(_CONFIG).tick),
            device.weight,
        )
        for device in devices.values()
    ]
    return Loot(
        np.array(found, dtype=np.uint64).ravel(),
        np.array(sorted(truth), dtype=np.uint64).ravel(),
        _RING_BITS,
        tuple(evil.refusals.values()),
        note="for every device, the lower end of its bucket, in ticks of 1/256 nat, and its weight",
    )


@dataclass
class _Reporting:
    """A device of Algorithm 2.

    Attributes:
        id: Its id.
        device: What it answers with.
        reported: What it has told the server, in the order of its answers.
    """

    id: ClientId
    device: Device
    reported: list[float] = field(default_factory=list)

    @property
    def weight(self) -> int:
        return self.device.weight

    def loss(self, model: npt.NDArray[np.float32]) -> float:
        del model
        self.reported.append(self.device.loss)
        return self.device.loss

    def update(
        self, model: npt.NDArray[np.float32], objective: LocalObjective = PLAIN
    ) -> npt.NDArray[np.float32]:
        del model, objective
        return self.device.update


@attack(
    15,
    "reads the losses that devices report in the published Δ-FL (Algorithm 2)",
    gain="every device's loss and weight, by name",
    defence="Algorithm 3: devices mask their answers to queries, and the server gets sums only",
    spec="12.4",
    end=Left.NOISE,
)
def losses_in_clear(defended: bool) -> Loot:
    """The comparison is by the devices' answers to a query, which follow from their losses."""
    devices = make_devices(_CONFIG)
    evil = _server(RoundDevices(_CONFIG, devices))
    evil.open_slot(0)
    taken = [evil.inputs[0][position].astype(np.uint64) for position in sorted(evil.inputs[0])]
    if not defended:
        told = _told_by_algorithm_2(devices)
        taken = [one.measured(_CONFIG).answer(_QUERY) for one in told]
    wanted = [device.measured(_CONFIG).answer(_QUERY) for device in devices.values()]
    note = "masked words, but no losses" if defended else "losses and weights"
    return Loot(
        np.concatenate(taken), np.concatenate(wanted), _RING_BITS, note=f"the server is told {note}"
    )


def _told_by_algorithm_2(devices: Mapping[ClientId, Device]) -> list[Device]:
    """What a server of Algorithm 2 is told of each device, in a round of its own."""
    from deltafl.fl.strategies.base import TrainingState  # with it comes torch, which takes seconds
    from deltafl.fl.strategies.delta_fl import DeltaFL
    from deltafl.sim.cohort.simulated import SimulatedCohort
    from deltafl.sim.cohort.work import device_objects

    reporting = [_Reporting(client, device) for client, device in devices.items()]
    model = np.zeros(_CONFIG.update_length, np.float32)
    cohort = SimulatedCohort(device_objects(reporting))
    DeltaFL(Fraction(1, 2)).apply(TrainingState(model), cohort)
    return [replace(one.device, loss=one.reported[0], weight=one.weight) for one in reporting]
