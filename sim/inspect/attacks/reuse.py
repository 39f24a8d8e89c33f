"""Attacks on masks that are used twice and on sums that differ by one device."""

from deltafl.secagg import Client, ClientId, Refusal, SessionParams, ring, validation
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import OpenSlot
from deltafl.secagg.openings import Prove
from deltafl.secagg.params import SessionId
from deltafl.secagg.randomness import Randomness, SeededRandomness
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer
from deltafl.sim.inspect.attacks.own_session import ONE_SLOT, RING_BITS, Devices, make_params
from deltafl.sim.inspect.attacks.replaced import replaced

_context_of = SlotContext.of


class _Forgetful(Client):
    """A device that forgets which slots it has used."""

    def _open(self, message: OpenSlot) -> None:
        self._slot = -1
        super()._open(message)

    def contribute(self, vector: Vector, binding: bytes, prove: Prove | None = None) -> bytes:
        secrets = list(self._mask_keys), list(self._seeds)
        masked = super().contribute(vector, binding, prove)
        self._mask_keys, self._seeds = secrets
        return masked


def _repeating(client: ClientId) -> Randomness:
    """Randomness that gives the same bytes at every draw of the same size."""
    drawn = SeededRandomness(client.to_bytes(32, "big"))(1 << 12)
    return lambda size: drawn[:size]


def difference(after: Vector, before: Vector) -> Vector:
    """The words of one vector minus those of another, in the ring of the slots."""
    words = after - before
    ring.reduce(words, RING_BITS)
    return words


def _set_up(devices: Devices) -> EvilServer:
    evil = EvilServer(devices.params, devices.roster, devices.answer)
    evil.set_up()
    return evil


_DIFFERENCE = "the difference of a device's two vectors; if it knows one of them, also the other"


@attack(
    "slot-reuse",
    6,
    "opens a slot again for another question",
    power=Power.SERVER,
    gain=_DIFFERENCE,
    defence="a device uses a slot once and then deletes its secrets",
    spec="9.3",
    end=Refusal.SLOT_REUSED,
)
def slot_reuse(defended: bool) -> Loot:
    """The first time, all devices send zeros, and the attacker knows this."""
    params = make_params(5, 3)
    devices = Devices(params, client_type=Client if defended else _Forgetful)
    wanted = devices.vector(0)
    devices.silence()
    evil = EvilServer(params, devices.roster, devices.answer, [Colluder(devices.roster[4])])
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, evil.everyone)
    first = evil.sum_over(0, {0})
    devices.inputs[devices.roster[0]][0] = wanted
    # A repetition would be ignored. Of the masks, only that of the colluder is another one.
    evil.open_slot(0, evil.everyone - {4})
    taken = difference(evil.sum_over(0, {0}), first)
    return Loot(taken, wanted, refusals=tuple(evil.refusals.values()))


@attack(
    "one-key-for-two-slots",
    6,
    "compares two slots of devices whose random numbers repeat",
    power=Power.SERVER,
    gain=_DIFFERENCE,
    defence="the key of every mask depends on slot and label (and a key for two slots is refused)",
    spec="5.2",
    end=Left.NOISE,
)
def one_key_for_two_slots(defended: bool) -> Loot:
    """The check of keys is the first line of defence, and is switched off in both runs."""

    def of_first(params: SessionParams, session: SessionId, _: int, binding: bytes) -> SlotContext:
        return _context_of(params, session, 0, binding)

    with (
        replaced(validation, "check_keys", lambda *_: None, unless=False),
        replaced(SlotContext, "of", staticmethod(of_first), unless=defended),
    ):
        params = make_params(5, 3, slots=ONE_SLOT * 2)
        devices = Devices(params)
        for client, machine in devices.clients.items():
            machine._randomness = _repeating(client)
        devices.silence()
        evil = _set_up(devices)
        for slot in range(2):
            evil.open_slot(slot)
            evil.unmask(slot, evil.everyone)
        repeat = [len({*told.mask_keys}) == 1 for told in evil.keys.values()]
        presuppose(all(repeat), "the devices' random numbers repeat")
        taken = difference(evil.inputs[1][0], evil.inputs[0][0])
        return Loot(taken, devices.vector(0, 1))


def _two_sessions(second: SessionParams, *, defended: bool) -> Loot:
    """Two sessions of the same devices, whose random numbers are the same in both."""

    def of_none(params: SessionParams, _: SessionId, slot: int, binding: bytes) -> SlotContext:
        return _context_of(params, SessionId(bytes(32)), slot, binding)

    with replaced(SlotContext, "of", staticmethod(of_none), unless=defended):
        silent, devices = Devices(make_params(5, 3)), Devices(second)
        silent.silence()
        first, other = _set_up(silent), _set_up(devices)
        presuppose(first.keys == other.keys, "the devices' random numbers repeat")
        for evil in (first, other):
            evil.open_slot(0)
        return Loot(difference(other.inputs[0][0], first.inputs[0][0]), devices.vector(0))


@attack(
    "one-key-for-two-rounds",
    6,
    "compares two rounds of devices whose random numbers repeat",
    power=Power.SERVER,
    gain=_DIFFERENCE,
    defence="the key of every mask depends on the session's id, and the id on the round's digest",
    spec="3.3",
    end=Left.NOISE,
)
def one_key_for_two_rounds(defended: bool) -> Loot:
    """Devices and keys are the same, but the context is different."""
    return _two_sessions(make_params(5, 3, context=b"next".ljust(32)), defended=defended)


@attack(
    "one-key-for-two-sessions",
    6,
    "compares two sessions of one round, of devices whose random numbers repeat",
    power=Power.SERVER,
    gain=_DIFFERENCE,
    defence="the key of every mask depends on the session's id, and the id on the session's own "
    "seed",
    spec="3.3",
    end=Left.NOISE,
)
def one_key_for_two_sessions(defended: bool) -> Loot:
    """Devices, keys and context are the same, but the graph seed is different."""
    return _two_sessions(make_params(5, 3, graph_seed=b"new".ljust(32)), defended=defended)


@attack(
    "retry-without-one-device",
    13,
    "sums a slot again without one of the devices",
    power=Power.SERVER,
    gain="that device's vector, as the difference of the sums",
    defence="a slot is never retried",
    spec="9.3",
    end=Refusal.SLOT_REUSED,
)
def retry_without_one_device(defended: bool) -> Loot:
    """Both sums meet min_cohort."""
    params = make_params(6, 3)
    devices = Devices(params, client_type=Client if defended else _Forgetful)
    evil = _set_up(devices)
    sums = []
    for cohort in (evil.everyone, evil.everyone - {0}):
        evil.open_slot(0, cohort)
        evil.unmask(0, cohort)
        sums.append(evil.sum_over(0, cohort))
    refusals = tuple(evil.refusals.values())
    return Loot(difference(*sums), devices.vector(0), refusals=refusals)


@attack(
    "abort-and-retry",
    20,
    "declares a device dropped out, aborts, and declares it a survivor in the retry",
    power=Power.SERVER,
    gain="both secrets of the device, one from each attempt, and so its vector",
    defence="a retry is a new session with new keys and seeds",
    spec="9.12",
    end=Left.NOISE,
)
def abort_and_retry(defended: bool) -> Loot:
    """Without the defence, devices keep their keys and seeds for the retry."""
    devices = Devices(make_params(5, 3))
    aborted = _set_up(devices)
    aborted.open_slot(0)
    aborted.unmask(0, aborted.everyone - {0})
    retried = make_params(5, 3, graph_seed=b"new".ljust(32))
    again = Devices(retried, seed=int(defended))
    again.inputs = devices.inputs
    retry = _set_up(again)
    retry.open_slot(0)
    retry.unmask(0, retry.everyone)
    kept = [again.mask_keys == aborted.keys[p].mask_keys for p, again in retry.keys.items()]
    presuppose(kept == [not defended] * len(kept), "a retry has fresh keys, or all are kept")
    retry.secrets |= aborted.secrets | retry.secrets
    return Loot(retry.sum_over(0, {0}), devices.vector(0))
