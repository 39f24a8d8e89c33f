"""Attacks with messages of other sessions, and with two sums of which one lacks a device."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from deltafl.protocol import wire as envelopes
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.messages import Relay
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.round import LostSearch
from deltafl.secagg import (
    Client,
    ClientId,
    Enrolment,
    Refusal,
    SlotSpec,
    SlotSum,
    Stage,
    Step,
    UsageError,
    ring,
    signing,
    wire,
)
from deltafl.secagg.graph import Members
from deltafl.secagg.keys import PublicKey
from deltafl.secagg.ledger import Ledger, MemoryLedger
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import (
    MaskedInput,
    Message,
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    ShareKeys,
    ShareKind,
    ShareReceipt,
)
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.evil_server import EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_round import (
    POLICY,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.attacks.own_session import (
    ACTIVE_POLICY,
    Devices,
    make_params,
    new_enrolment,
)
from deltafl.sim.inspect.attacks.replaced import replaced
from deltafl.sim.inspect.attacks.searches import CONFIG, LOST, Searches

_survivors, _slots = signing.survivors, RoundConfig.slots


def _survivors_of_any_session(context: SlotContext, members: Members, _: PublicKey) -> bytes:
    """What devices sign if a session has no keys of its own."""
    return _survivors(context, members, PublicKey(bytes(32)))


def _opened(devices: Devices) -> EvilServer:
    """A server whose first slot is open."""
    evil = EvilServer(devices.params, devices.roster, devices.answer)
    evil.set_up()
    evil.open_slot(0)
    return evil


def _over(devices: Devices, evil: EvilServer, first: int, *others: int) -> Loot:
    """What the server learns from some devices' masked vectors, and the sum of their vectors."""
    wanted: Vector = sum((devices.vector(p) for p in others), devices.vector(first))
    refusals = tuple(evil.refusals.values())
    return Loot(evil.sum_over(0, {first, *others}), wanted, refusals=refusals)


def _old_signatures(*, remembering: bool) -> Loot:
    """Devices 0 and 4 sign the lists of others in two sessions; the third is the one attacked."""
    params = make_params(5, 3, signed=True)
    # Every device is told of two losses; 1, 2 and 3 are lost to three devices each.
    one, two, three = (frozenset({0, lost, 4}) for lost in (1, 2, 3))
    lists: list[dict[int, Survivors]] = [{0: one, 4: one}, {0: two, 4: three}]
    enrolment: Enrolment = new_enrolment()
    signatures = []
    for seed, to_sign in enumerate(lists, start=1):
        past = Devices(params, policy=ACTIVE_POLICY, seed=seed, enrolment=enrolment)
        evil = _opened(past)
        evil.confirm(0, to_sign)
        signatures.append(evil.signatures)
        enrolment = enrolment if remembering else new_enrolment()
    devices = Devices(params, policy=ACTIVE_POLICY, enrolment=enrolment)
    evil = _opened(devices)
    for session in signatures:
        for of, signed in session.items():
            evil.signatures[of] |= signed
    evil.unmask(0, {0: three, 1: one, 2: two, 3: three, 4: two})
    return _over(devices, evil, 0, 4)


@attack(
    "signatures-of-earlier-sessions",
    1,
    "shows what devices signed in earlier sessions with the same parameters and roster",
    power=Power.SERVER,
    gain="a sum over fewer devices than `min_cohort`",
    defence="a signature names the signer's sealing key for the session",
    spec="6.4",
    end=Refusal.BAD_SIGNATURE,
    saying="the list of devices",
)
def signatures_of_earlier_sessions(defended: bool) -> Loot:
    """In both runs, devices remember nothing."""
    with replaced(signing, "survivors", _survivors_of_any_session, unless=defended):
        return _old_signatures(remembering=False)


@attack(
    "signatures-that-name-no-session",
    1,
    "shows what devices signed in earlier sessions, if signatures did not name the session's keys",
    power=Power.SERVER,
    gain="a sum over fewer devices than `min_cohort`",
    defence="a device takes part in only one session per context, and remembers it",
    spec="9.5",
    end=Refusal.SESSION_REPEATED,
)
def signatures_that_name_no_session(defended: bool) -> Loot:
    """The first line of defence is switched off in both runs."""
    with replaced(signing, "survivors", _survivors_of_any_session, unless=False):
        return _old_signatures(remembering=defended)


class _Credulous(Client):
    """A device that counts neighbours whose boxes it could not open."""

    def _shrink_cohort(self, members: Members) -> None:
        heard, self._heard = self._heard, None
        try:
            super()._shrink_cohort(members)
        finally:
            self._heard = heard


@attack(
    "keys-of-absent-devices",
    4,
    "shows keys of absent devices from earlier sessions, in which it was given their mask keys",
    power=Power.SERVER,
    gain="a sum over fewer devices than `min_cohort`",
    defence="a device counts a neighbour only once its box has opened, and boxes are made for "
    "the keys of this session",
    spec="9.4",
    end=Refusal.COHORT_TOO_SMALL,
    saying="4 devices are left",
)
def keys_of_absent_devices(defended: bool) -> Loot:
    """Four devices are there. Two more are passed off as present, for a sum over six."""
    params = make_params(6, 4, min_cohort=5, signed=True)
    client_type = Client if defended else _Credulous
    said: dict[ClientId, Message] = {}
    secrets = {}
    for seed, lost in enumerate((4, 5), start=1):
        earlier = _opened(Devices(params, policy=ACTIVE_POLICY, seed=seed))
        earlier.unmask(0, earlier.everyone - {lost})
        said[earlier.roster[lost]] = earlier.keys[lost]
        secrets[0, ShareKind.KEY, lost] = earlier.secrets[0, ShareKind.KEY, lost]
    devices = Devices(params, policy=ACTIVE_POLICY, client_type=client_type)

    def answer(device: ClientId, data: bytes) -> bytes | None:
        """Devices 4 and 5 are not asked: their keys are old, and their other messages invented."""
        if device not in said:
            return devices.answer(device, data)
        match devices.decode(data):
            case SessionOpen():
                return devices.encode(said[device])
            case RosterMessage() as message:
                box = bytes(wire.box_size(params))
                return devices.encode(ShareKeys((bytes(32),), dict.fromkeys(message.keys, box)))
            case ShareDelivery():
                return devices.encode(ShareReceipt(()))
            case OpenSlot():
                return devices.encode(MaskedInput(0, bytes(4 * params.slots[0].length)))
            case message:
                raise UsageError(f"{type(message).__name__} to an absent device")

    evil = EvilServer(params, devices.roster, answer)
    evil.set_up()
    evil.open_slot(0)
    evil.unmask(0, dict.fromkeys(range(4), evil.everyone))
    evil.secrets |= secrets
    return _over(devices, evil, *range(4))


_ANSWER = "that device's answer, as the difference of the sums: its weight and where its loss lies"


def _all_tolerant(config: RoundConfig) -> tuple[SlotSpec, ...]:
    """The slots of a round, none of which is whole."""
    return tuple(replace(slot, whole=False) for slot in _slots(config))


@attack(
    "query-again-without-one-device",
    13,
    "asks one query twice, and leaves one device's answer out the second time",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="slots of queries after the first are whole: without a device, nobody can take off "
    "the masks that the others share with it",
    spec="12.3",
    end=Left.NOISE,
)
def query_again_without_one_device(defended: bool) -> Loot:
    """Differencing across iterations, with a drop-out that the server invents.

    Without the defence, the second slot is tolerant too, and devices help to unmask it.
    """
    with replaced(RoundConfig, "slots", _all_tolerant, unless=defended):
        searches = Searches()
        evil = searches.session()
        searches.ask(evil, 0, evil.everyone, evil.everyone)
        searches.ask(evil, 1, evil.everyone, evil.everyone - {LOST})
        return searches.loot()


def _over_fewer(searches: Searches) -> Loot:
    evil = searches.session()
    for slot, cohort in enumerate((evil.everyone, evil.everyone - {LOST})):
        searches.ask(evil, slot, cohort, cohort)
    return searches.loot()


def accept_any_list(device: Client, message: OpenSlot) -> None:
    """Take part in a whole slot over whatever devices."""
    device._members = device._agreed = message.members


@attack(
    "query-again-over-fewer",
    13,
    "asks one query twice, and opens the second slot without one device",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="a device takes part in a whole slot only with exactly the devices that were agreed "
    "on last",
    spec="9.7",
    end=Refusal.NOT_AGREED,
    saying="not the devices of the last list",
)
def query_again_over_fewer(defended: bool) -> Loot:
    """After the first query, the devices have agreed on everyone."""
    with replaced(Client, "_agree", accept_any_list, unless=defended):
        return _over_fewer(Searches())


class _Forwarding(RoundClient):
    """A device that accepts the opening of a slot without its question."""

    def _relay(self, session: bytes) -> bytes | None:
        return self._session.receive(session)


class _OpeningFirst(RoundDevices):
    """Relays the opening of a slot before it asks the question that belongs to it."""

    def carry(self, client: ClientId, data: bytes) -> bytes | None:
        if isinstance(wire.decode(data, self.params), OpenSlot):
            self.answer(client, envelopes.encode(Relay(data)))
        return super().carry(client, data)


@attack(
    "query-again-relayed",
    13,
    "asks one query twice, the second time over fewer devices, and relays the opening before the "
    "query",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="a slot can only be opened together with its question",
    spec="12.8",
    end=Refusal.OUT_OF_ORDER,
    saying="without a question",
)
def query_again_relayed(defended: bool) -> Loot:
    """When the query comes, the cohort has already shrunk.

    In both runs, devices take part in whole slots over whatever devices.
    """
    with replaced(Client, "_agree", accept_any_list, unless=False):
        return _over_fewer(Searches(RoundClient if defended else _Forwarding, _OpeningFirst))


@attack(
    "one-round-in-two-sessions",
    13,
    "announces one round in two sessions at once, and keeps the second from one device",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="a device takes part in only one session per context, and remembers it",
    spec="9.5",
    end=Refusal.SESSION_REPEATED,
)
def one_round_in_two_sessions(defended: bool) -> Loot:
    """Both sums meet min_cohort. Nobody has answered when the second session is announced."""
    searches = Searches()
    sessions = [searches.session(without=p, remembering=defended) for p in (None, LOST)]
    for evil in sessions:
        searches.ask(evil, 0, evil.everyone, evil.everyone)
    return searches.loot()


def _two_rounds(*, at_once: bool, defended: bool) -> Loot:
    most = 1 if defended else 2
    searches = Searches(policy=replace(POLICY, max_rounds_per_model=most))
    configs = {None: replace(CONFIG, round_index=1), LOST: replace(CONFIG, round_index=2)}
    sessions = (searches.session(config, without=lost) for lost, config in configs.items())
    for evil in list(sessions) if at_once else sessions:
        searches.ask(evil, 0, evil.everyone, evil.everyone)
    return searches.loot()


@attack(
    "one-model-in-two-rounds",
    13,
    "announces one model under two round indices, the second time without one of the devices",
    power=Power.SERVER,
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
    "lost-round-begun-anew",
    13,
    "repeats a round that was lost, without one of its devices",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="a round that is repeated goes on with the sums of the lost one, and searches no more",
    spec="12.13",
    end=Left.NOTHING,
)
def lost_round_begun_anew(defended: bool) -> Loot:
    """All follow the protocol, and devices believe that the server does.

    Without the defence, the server searches anew.
    """
    devices, enrolment, lost = make_devices(CONFIG), new_enrolment(), list[LostSearch]()
    victim = sorted(devices)[LOST]
    too_few = dict.fromkeys(sorted(devices)[-2:], Step(Stage.MASK, CONFIG.update_slot))
    asked = []
    for number, gone in enumerate((too_few, {victim: Step(Stage.ADVERTISE)})):
        config, learnt = replace(CONFIG, round_index=number), list[SlotSum]()
        network = RoundDevices(
            config,
            devices,
            policy=replace(POLICY, max_rounds_per_model=2),
            threshold=4,
            enrolment=enrolment,
            number=number,
        )
        outcome = with_an_honest_server(network, learnt=learnt, gone=gone, lost=lost)
        presuppose((outcome.update is None) == (number == 0), "the first round is lost")
        asked.append([one.vector.astype(np.uint64) for one in learnt if one.slot == 0])
        lost = [outcome.lost] if defended and outcome.lost is not None else []
    (first,), again = asked
    taken = first - again[0] if again else 0 * first
    ring.reduce(taken, CONFIG.search_layout.ring_bits)
    answer = devices[victim].measured(CONFIG).answer(Query(CONFIG.method, _first_pivots()))
    return Loot(taken, answer, CONFIG.search_layout.ring_bits)


def _first_pivots() -> tuple[int, ...]:
    query = CONFIG.start_search().query
    return () if query is None else query.pivots


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


@attack(
    "announced-until-forgotten",
    13,
    "announces rounds of which it asks nothing, until the devices forget that they have answered "
    "for a model, and announces that model again without one of the devices",
    power=Power.SERVER,
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
    kind: Callable[[int], Ledger] = MemoryLedger if defended else _LastSeen
    ledgers = defaultdict[ClientId, Ledger](lambda: kind(_CAPACITY))
    device: Callable[..., RoundClient] = RoundClient

    def made(number: ClientId, *arguments: object, **more: object) -> RoundClient:
        return device(number, *arguments, **more | {"ledger": ledgers[number]})

    searches = Searches(made)
    first = searches.session(replace(CONFIG, round_index=1))
    searches.ask(first, 0, first.everyone, first.everyone)
    for number in range(_ANNOUNCED):
        searches.session(replace(CONFIG, round_index=2 + number), model=b"model %d" % number)
    again = searches.session(replace(CONFIG, round_index=100), without=LOST)
    searches.ask(again, 0, again.everyone, again.everyone)
    return searches.loot()


@attack(
    "one-model-in-two-rounds-at-once",
    13,
    "announces one model under two round indices before any device has answered for it",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="a device looks into its memory again before its first answer leaves",
    spec="12.13",
    end=Refusal.MODEL_REPEATED,
    saying="another round over this model has begun",
)
def one_model_in_two_rounds_at_once(defended: bool) -> Loot:
    """When the second round is announced, the devices have not answered in the first one."""
    return _two_rounds(at_once=True, defended=defended)
