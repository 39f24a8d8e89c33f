"""Attacks on whole slots, whose masks nobody ever helps to remove.

A vector of a whole slot has no self mask. What hides it is the masks that it shares with all other
members of the slot, and these cancel only if every member gives its vector over the same list.
"""

from dataclasses import replace

from deltafl.secagg import Client, DevicePolicy, Refusal, keys, prg, signing
from deltafl.secagg.errors import present
from deltafl.secagg.graph import Members
from deltafl.secagg.keys import KeyPair, PublicKey
from deltafl.secagg.masks import Link, PairSecret, SlotContext, subtracts
from deltafl.secagg.messages import OpenSlot, ShareKind
from deltafl.secagg.params import SessionId, SessionParams
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.attacks.attack import Harm, Left, Loot, Power, attack, presuppose
from deltafl.sim.inspect.attacks.evil_server import Colluder, EvilServer, Lists
from deltafl.sim.inspect.attacks.own_session import (
    ACTIVE_POLICY,
    LENGTH,
    ONE_SLOT,
    POLICY,
    RING_BITS,
    Devices,
    make_params,
    new_enrolment,
)
from deltafl.sim.inspect.attacks.replaced import replaced
from deltafl.sim.inspect.attacks.reuse import difference
from deltafl.sim.inspect.attacks.sessions import accept_any_list

_WHOLE = (LENGTH, RING_BITS, True)
_WHOLE_AND_TOLERANT = (_WHOLE, *ONE_SLOT)
_NUM_DEVICES, _NUM_COLLUDING = 6, 2
_QUORUM = 5
"""The smallest threshold with 2t > n + c."""

_members, _between = signing.members, Link.between


def _session(
    threshold: int = _QUORUM,
    *,
    signed: bool = True,
    policy: DevicePolicy = POLICY,
    client_type: type[Client] = Client,
) -> tuple[Devices, EvilServer]:
    """A session whose first slot is whole, set up; of six devices the last two collude."""
    params = make_params(_NUM_DEVICES, threshold, slots=_WHOLE_AND_TOLERANT, signed=signed)
    devices = Devices(params, policy=policy, client_type=client_type)
    colluders = [
        Colluder(client, devices.enrolment.credentials_for(client, params))
        for client in devices.roster[-_NUM_COLLUDING:]
    ]
    evil = EvilServer(params, devices.roster, devices.answer, colluders)
    evil.set_up()
    return devices, evil


def _halves(evil: EvilServer) -> Lists:
    """Each half of the honest devices is told of itself and of the colluders."""
    colluding = evil.everyone - frozenset(evil.honest)
    middle = len(evil.honest) // 2
    halves = evil.honest[:middle], evil.honest[middle:]
    return {p: colluding.union(half) for half in halves for p in half}


def _of_first(devices: Devices, evil: EvilServer, lists: Lists) -> Loot:
    """The sum over the honest devices of the first list, as the server computes it."""
    some = sorted(lists[0] & set(evil.honest))
    wanted: Vector = sum((devices.vector(p) for p in some[1:]), devices.vector(some[0]))
    if not evil.opened[0]:
        raise evil.refusals[min(evil.refusals)]
    return Loot(evil.sum_over(0, some), wanted, refusals=tuple(evil.refusals.values()))


_SPLIT = "tells one half of the devices that a whole slot is summed over them and its own devices"
_HALF = "the sum over each half, with half as many honest devices as there are"


@attack(
    "split-cohort",
    1,
    f"{_SPLIT}, the other half that it is over the others, and has its own devices sign both lists",
    power=Power.SERVER,
    gain=_HALF,
    defence="a threshold with 2t > n + c, and lists of at least t devices: two complete lists "
    "would share an honest device",
    spec="9.4",
    end=Refusal.COHORT_TOO_SMALL,
    saying="4 devices are left",
)
def split_cohort(defended: bool) -> Loot:
    """Two of six devices collude. Four are enough or, with the defence, five."""
    devices, evil = _session(_QUORUM if defended else _QUORUM - 1)
    lists = _halves(evil)
    evil.open_slot(0, lists)
    return _of_first(devices, evil, lists)


@attack(
    "split-cohort-unsigned",
    1,
    f"{_SPLIT}, and the other half that it is over the others, without any signatures",
    power=Power.SERVER,
    gain=_HALF,
    defence="devices that expect an active server insist on signed sessions",
    spec="3.7",
    end=Refusal.POLICY,
    saying="not signed",
)
def split_cohort_unsigned(defended: bool) -> Loot:
    """The same attack in a session in which devices agree to the first list that they are told."""
    policy = replace(ACTIVE_POLICY, min_cohort=2) if defended else POLICY
    devices, evil = _session(_QUORUM - 1, signed=False, policy=policy)
    lists = _halves(evil)
    evil.open_slot(0, lists)
    return _of_first(devices, evil, lists)


class _Careless(Client):
    """A device that checks the signatures of the list that it signed, and follows another."""

    def _agree(self, message: OpenSlot) -> None:
        super()._agree(replace(message, members=present(self._listed).survivors))
        accept_any_list(self, message)


@attack(
    "another-list-for-a-whole-slot",
    1,
    "lets all devices sign one list for a whole slot, and opens the slot over another",
    power=Power.SERVER,
    gain="the sum of a device and of its own, and so the device's vector",
    defence="a device takes part only over the list that it signed",
    spec="9.7",
    end=Refusal.INCONSISTENT_SURVIVORS,
    saying="not the list that was signed",
)
def another_list_for_a_whole_slot(defended: bool) -> Loot:
    """All sign that the slot is over everyone. It is opened over one device and the colluders."""
    devices, evil = _session(client_type=Client if defended else _Careless)
    signed = dict.fromkeys(evil.honest, evil.everyone)
    evil.confirm(0, signed)
    lists = {0: (evil.everyone - set(evil.honest)) | {0}}
    evil.open_slot(0, lists, signed)
    return _of_first(devices, evil, lists)


@attack(
    "whole-slot-without-a-list",
    1,
    "opens a whole slot over one device and its own, a list that nobody was asked to sign",
    power=Power.SERVER,
    gain="the device's vector",
    defence="a device takes part in a whole slot only over a list that t devices have agreed on",
    spec="9.7",
    end=Refusal.NOT_AGREED,
    saying="no list of devices was signed",
)
def whole_slot_without_a_list(defended: bool) -> Loot:
    """Without the defence, devices accept any list."""
    with replaced(Client, "_agree", accept_any_list, unless=defended):
        devices, evil = _session()
        lists = {0: (evil.everyone - set(evil.honest)) | {0}}
        evil.open_slot(0, lists, {})
        return _of_first(devices, evil, lists)


_ALONE = "a device's answer over a list that nobody else agreed to in this session"


def _answered_alone(evil: EvilServer, slot: int) -> Harm:
    """Open a slot to the first device alone, with whatever signatures there are on its list."""
    lists = {0: evil.everyone}
    evil.confirm(slot, lists)
    evil.open_slot(slot, lists, lists)
    if evil.refusals:
        raise evil.refusals[0]
    return Harm(0 in evil.inputs[slot], note="the others have signed nothing for this slot")


def _members_of_any_slot(session_id: SessionId, _: int, members: Members, key: PublicKey) -> bytes:
    """What devices sign, if it does not name the slot."""
    return _members(session_id, 0, members, key)


@attack(
    "list-of-another-slot",
    1,
    "shows the signatures of a list for one whole slot as those of a list for another",
    power=Power.SERVER,
    gain=_ALONE,
    defence="a signature of a list of members names the slot",
    spec="6.4",
    end=Refusal.BAD_SIGNATURE,
    saying="the list of devices",
)
def list_of_another_slot(defended: bool) -> Harm:
    """There are two whole slots. All devices but one sign a list for the first."""
    with replaced(signing, "members", _members_of_any_slot, unless=defended):
        devices = Devices(make_params(5, 3, slots=(_WHOLE, *_WHOLE_AND_TOLERANT), signed=True))
        evil = EvilServer(devices.params, devices.roster, devices.answer)
        evil.set_up()
        evil.confirm(0, dict.fromkeys(evil.everyone - {0}, evil.everyone))
        evil.signatures[1, evil.everyone] |= evil.signatures[0, evil.everyone]
        return _answered_alone(evil, 1)


def _members_of_any_session(_: SessionId, slot: int, members: Members, key: PublicKey) -> bytes:
    """What devices sign, if it names neither the session nor its keys."""
    del key
    return _members(SessionId(bytes(32)), slot, members, PublicKey(bytes(32)))


@attack(
    "list-of-another-session",
    1,
    "shows the signatures of a list from an earlier session with the same parameters and roster",
    power=Power.SERVER,
    gain=_ALONE,
    defence="a signature of a list of members names the session and the signer's key for it",
    spec="6.4",
    end=Refusal.BAD_SIGNATURE,
    saying="the list of devices",
)
def list_of_another_session(defended: bool) -> Harm:
    """In both runs, devices remember nothing. Their identities are the same in both sessions."""
    params = make_params(5, 3, slots=_WHOLE_AND_TOLERANT, signed=True)
    with replaced(signing, "members", _members_of_any_session, unless=defended):
        past, devices = (Devices(params, seed=s, enrolment=new_enrolment()) for s in (1, 0))
        earlier, evil = (EvilServer(params, d.roster, d.answer) for d in (past, devices))
        earlier.set_up()
        earlier.confirm(0, dict.fromkeys(earlier.everyone, earlier.everyone))
        evil.set_up()
        evil.signatures[0, evil.everyone] |= earlier.signatures[0, evil.everyone]
        return _answered_alone(evil, 0)


class _Forgetful(Client):
    """A device that forgets which slots it has used."""

    def _open(self, message: OpenSlot) -> None:
        self._slot = -1
        super()._open(message)

    def receive(self, data: bytes) -> bytes | None:
        """Take a message even if it is the same as one before."""
        self._seen.clear()
        return super().receive(data)


@attack(
    "second-question-in-a-whole-slot",
    6,
    "opens a whole slot again for another question",
    power=Power.SERVER,
    gain="the difference of a device's two vectors; if it knows one of them, also the other",
    defence="a device uses a slot once",
    spec="9.3",
    end=Refusal.SLOT_REUSED,
)
def second_question_in_a_whole_slot(defended: bool) -> Loot:
    """The first time, the device sends zeros, and the attacker knows this.

    In both runs, masks are not bound to the question.
    """
    devices, evil = _session(client_type=Client if defended else _Forgetful)
    wanted = devices.vector(0)
    devices.silence()
    evil.open_slot(0)
    first = evil.inputs[0][0]
    devices.inputs[devices.roster[0]][0] = wanted
    evil.open_slot(0, evil.everyone, {})
    taken = difference(evil.inputs[0][0], first)
    return Loot(taken, wanted, refusals=tuple(evil.refusals.values()))


class _OneKey(Client):
    """A device whose masks of a whole slot come from its keys for a tolerant one."""

    def _mask(self, total: Vector, context: SlotContext) -> None:
        if not self._accepted.slots[self._slot].whole:
            super()._mask(total, context)
            return
        keys_of = {
            p: self._neighbours[p].mask_keys[0] for p in self._neighbours_among(self._cohort)
        }
        info = context.whole_slot_info(self._cohort)
        pairs = _pairs(present(self._mask_keys[0]), keys_of, context, info)
        self._primitives.add_pairwise(total, self._placed.position, pairs)


def _pairs(
    own: KeyPair, others: dict[int, PublicKey], context: SlotContext, info: bytes
) -> list[PairSecret]:
    """What the masks of a whole slot come from, if it is the keys of a tolerant one."""
    pairs = context.pair_secrets(own, list(others), list(others.values()))
    return [pair._replace(info=info) for pair in pairs]


@attack(
    "lost-after-a-whole-slot",
    5,
    "declares a device dropped out of a tolerant slot, rebuilds its key for that slot, and turns "
    "to the whole slot before it",
    power=Power.SERVER,
    gain="the device's vector of the whole slot, which has no self mask",
    defence="masks of whole slots come from keys that nobody holds shares of",
    spec="5.7",
    end=Left.NOISE,
)
def lost_after_a_whole_slot(defended: bool) -> Loot:
    """Without the defence, the masks of the whole slot come from the keys of the tolerant one."""
    params = make_params(5, 3, slots=_WHOLE_AND_TOLERANT)
    devices = Devices(params, client_type=Client if defended else _OneKey)
    evil = EvilServer(params, devices.roster, devices.answer)
    evil.set_up()
    evil.open_slot(0)
    evil.open_slot(1)
    evil.unmask(1, evil.everyone - {0})
    own = keys.key_pair(evil.secrets[1, ShareKind.KEY, 0])
    others = {p: told.mask_keys[0] for p, told in evil.keys.items() if p}
    context, taken = evil.context(0, 0), evil.inputs[0][0].copy()
    everyone = evil.members(evil.everyone)
    for pair in _pairs(own, others, context, context.whole_slot_info(everyone)):
        prg.add_mask(taken, pair.key(), negative=not subtracts(0, pair.peer))
    return Loot(taken, devices.vector(0))


def _between_in_any_session(
    own: KeyPair, peer: int, theirs: PublicKey, session_id: SessionId
) -> Link:
    """The link to a neighbour, if it does not depend on the session."""
    del session_id
    return _between(own, peer, theirs, SessionId(bytes(32)))


@attack(
    "one-sealing-key-for-two-sessions",
    6,
    "compares the same whole slot of two sessions, of devices whose random numbers repeat",
    power=Power.SERVER,
    gain="the difference of a device's two vectors; if it knows one of them, also the other",
    defence="what two devices derive masks of whole slots from depends on the session's id",
    spec="5.7",
    end=Left.NOISE,
)
def one_sealing_key_for_two_sessions(defended: bool) -> Loot:
    """Devices, keys and question are the same, but the graph seed is different."""

    def params(seed: bytes) -> SessionParams:
        return make_params(5, 3, slots=_WHOLE_AND_TOLERANT, graph_seed=seed.ljust(32))

    with replaced(Link, "between", staticmethod(_between_in_any_session), unless=defended):
        silent, devices = Devices(params(b"old")), Devices(params(b"new"))
        silent.silence()
        first, other = (EvilServer(d.params, d.roster, d.answer) for d in (silent, devices))
        for evil in (first, other):
            evil.set_up()
            evil.open_slot(0)
        presuppose(first.keys == other.keys, "the devices' random numbers repeat")
        return Loot(difference(other.inputs[0][0], first.inputs[0][0]), devices.vector(0))
