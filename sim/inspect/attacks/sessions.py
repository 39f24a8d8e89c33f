"""Attacks with messages of other sessions, and with two sums of which one lacks a device."""

from dataclasses import replace

from deltafl.protocol import wire as envelopes
from deltafl.protocol.client import RoundClient
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.messages import Relay
from deltafl.secagg import Client, ClientId, Enrolment, Refusal, SlotSpec, UsageError, signing, wire
from deltafl.secagg.graph import Members
from deltafl.secagg.keys import PublicKey
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
from deltafl.sim.inspect.attacks.attack import Loot, Power, attack
from deltafl.sim.inspect.attacks.evil_server import EvilServer, Survivors
from deltafl.sim.inspect.attacks.own_round import RoundDevices
from deltafl.sim.inspect.attacks.own_session import (
    ACTIVE_POLICY,
    Devices,
    make_params,
    new_enrolment,
)
from deltafl.sim.inspect.attacks.replaced import replaced
from deltafl.sim.inspect.attacks.searches import LOST, Searches

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
    saying="the survivors",
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

    def answer(client: ClientId, data: bytes) -> bytes | None:
        """Devices 4 and 5 are not asked: their keys are old, and their other messages invented."""
        if client not in said:
            return devices.answer(client, data)
        match devices.decode(data):
            case SessionOpen():
                return devices.encode(said[client])
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


def _all_optional(config: RoundConfig) -> tuple[SlotSpec, ...]:
    """The slots of a round, none of which is whole."""
    return tuple(replace(slot, whole=False) for slot in _slots(config))


@attack(
    "query-again-without-one-device",
    13,
    "asks one query twice, and declares a device dropped out the second time",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="all devices or none take part in queries after the first",
    spec="12.3",
    end=Refusal.NOT_WHOLE,
    saying="slot 1 is for all",
)
def query_again_without_one_device(defended: bool) -> Loot:
    """Differencing across iterations, with a drop-out that the server invents."""
    with replaced(RoundConfig, "slots", _all_optional, unless=defended):
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


class _Obliging(RoundClient):
    """A device that answers queries over fewer devices than before."""

    def _check_search(self, question: object, members: int) -> None:
        pass


@attack(
    "query-again-over-fewer",
    13,
    "asks one query twice, and opens the second slot without one device",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="a device refuses queries over fewer devices than were left after the query before",
    spec="12.8",
    end=Refusal.NOT_WHOLE,
    saying="fewer devices than the one before",
)
def query_again_over_fewer(defended: bool) -> Loot:
    """For the devices that it was opened with, the second slot is whole."""
    return _over_fewer(Searches(RoundClient if defended else _Obliging))


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
    """When the query comes, the cohort has already shrunk."""
    return _over_fewer(Searches(RoundClient if defended else _Forwarding, _OpeningFirst))


@attack(
    "one-round-in-two-sessions",
    13,
    "announces one round in two sessions, and keeps the second from one device",
    power=Power.SERVER,
    gain=_ANSWER,
    defence="a device takes part in only one session per context, and remembers it",
    spec="9.5",
    end=Refusal.SESSION_REPEATED,
)
def one_round_in_two_sessions(defended: bool) -> Loot:
    """Both sums meet min_cohort."""
    searches = Searches()
    for without in (None, LOST):
        evil = searches.session(without=without, remembering=defended)
        searches.ask(evil, 0, evil.everyone, evil.everyone)
    return searches.loot()
