"""A lying server: what a device refuses, under which name, and what it keeps afterwards."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import BINDING, POLICY, Parties, make_ids, make_params, reachable_secrets
from refusing import IDS, OTHERS, VICTIM, lie, refuse

from deltafl.secagg import Client, DevicePolicy, PeerError, Refusal, keys, shamir, wire
from deltafl.secagg.messages import (
    ConsistencyCheck,
    OpenSlot,
    SessionOpen,
    ShareDelivery,
    ShareReceipt,
    UnmaskRequest,
)
from deltafl.secagg.params import verified_ring_bits
from deltafl.secagg.states import ClientState

PARAMS = make_params(6, threshold=3)
SIGNED = make_params(6, threshold=3, signed=True)
SPARSE = make_params(9, degree=4, threshold=3)


def test_a_device_in_session_holds_secrets_and_an_honest_one_sheds_those_it_used():
    # The control of every "holds no secrets" below.
    parties = Parties(PARAMS)
    machine, randomness = parties.clients[VICTIM], parties.randomness[VICTIM]
    assert reachable_secrets(machine, randomness) == set()
    parties.exchange(parties.advance(ClientState.SHARED))
    mask_secret, seed = randomness.given[1], randomness.given[3]
    assert reachable_secrets(machine, randomness) == {"bytes drawn", "private key", "shares"}
    assert {mask_secret, seed} <= {*machine._seeds, *(p.secret for p in machine._mask_keys)}
    parties.deliver(parties.server.open_slot(0, BINDING))
    assert machine._seeds[0] is None
    assert machine._mask_keys[0] is None


# The opening message.


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_cohort": 5}, "min_cohort=4 is below the device's min_cohort=5"),
        ({"colluding_rate": 2 / 6}, "threshold without colluding devices=1 is below"),
        ({"colluding_rate": 0.5}, "min_cohort without colluding devices=1 is below the device's 2"),
        ({"max_degree": 4}, "degree=5 is above the device's 4"),
        ({"max_cohort": 5}, "number of invited devices=6 is above the device's 5"),
        ({"max_slots": 1}, "number of slots=2 is above the device's 1"),
        ({"max_length": 3}, "vector length=4 is above the device's 3"),
        # 18 limbs for each of two slots, for six holders, each of a polynomial of three terms
        (
            {"max_sharing_work": 647},
            "multiplications to share secrets=648 is above the device's 647",
        ),
        # five neighbours, and slots of four and three elements
        ({"max_mask_elements": 34}, "elements of masks=35 is above the device's 34"),
    ],
)
def test_policy(limits, message):
    params = make_params(6, threshold=3, min_cohort=4)
    parties = Parties(params, policy=replace(POLICY, **limits))
    with pytest.raises(PeerError, match=message):
        replace(POLICY, **limits).check(params)
    refuse(parties, parties.server.start()[VICTIM], Refusal.POLICY)


def test_policy_bounds_the_elements_that_need_a_generator_each():
    verified = (3, verified_ring_bits(6), True, True)
    params = make_params(6, threshold=4, slots=(verified, (9, 40)), signed=True)
    replace(POLICY, max_verified_length=3).check(params)
    with pytest.raises(PeerError, match="length of a verified slot=3 is above the device's 2"):
        replace(POLICY, max_verified_length=2).check(params)


def test_policy_counts_work_as_it_is_done():
    """Whole slots are not shared, blindings are masked, and a sparse graph has few neighbours."""
    verified = (3, verified_ring_bits(6), True, True)
    params = make_params(6, threshold=4, slots=((4, 16), verified), signed=True)
    elements = 5 * (4 + params.slots[1].wire_length)
    just = replace(POLICY, max_sharing_work=18 * 6 * 4, max_mask_elements=elements)
    just.check(params)
    for name in ("max_sharing_work", "max_mask_elements"):
        with pytest.raises(PeerError, match=f"is above the device's {getattr(just, name) - 1}"):
            replace(just, **{name: getattr(just, name) - 1}).check(params)
    sparse = replace(POLICY, max_sharing_work=18 * 2 * 4 * 3, max_mask_elements=4 * 7)
    sparse.check(make_params(9, degree=4, threshold=3))
    # However large a degree is written, there are no more neighbours than devices.
    replace(POLICY, max_mask_elements=35).check(make_params(6, degree=1000, threshold=3))


def test_the_default_policy_bounds_what_sizes_leave_open():
    """Each size is within its bound: a roster that takes minutes, a slot that takes hours."""
    many_secrets = make_params(4097, threshold=2049, slots=((1, 8),) * 256)
    long_masks = make_params(4097, threshold=2049, slots=((1 << 26, 64),))
    for params, what in ((many_secrets, "multiplications"), (long_masks, "elements of masks")):
        with pytest.raises(PeerError, match=what):
            DevicePolicy().check(params)
    DevicePolicy().check(make_params(1025, threshold=513, slots=((1, 8),) * 256))
    DevicePolicy().check(make_params(1000, threshold=501, slots=((1, 8), (1 << 22, 40))))


def test_a_sparse_device_in_session_holds_its_neighbours_shares_until_it_is_closed():
    parties = Parties(SPARSE)
    parties.advance(ClientState.MASKED)
    machine, randomness = parties.clients[parties.ids[0]], parties.randomness[parties.ids[0]]
    assert "shares" in reachable_secrets(machine, randomness)
    machine.close()
    assert reachable_secrets(machine, randomness) == set()


def test_policy_is_met_exactly():
    params = make_params(6, threshold=3, min_cohort=4)
    limits = DevicePolicy(
        colluding_rate=1 / 6,
        min_cohort=4,
        max_cohort=6,
        max_degree=5,
        max_slots=2,
        max_length=4,
        max_sharing_work=648,
        max_mask_elements=35,
    )
    parties = Parties(params, policy=limits)
    assert parties.deliver(parties.server.start()).keys() == set(parties.ids)


def test_policy_counts_the_complete_graph_however_it_is_written():
    limits = replace(POLICY, colluding_rate=1 / 6, max_degree=5)
    limits.check(make_params(6, degree=1000, threshold=3))
    with pytest.raises(PeerError, match=r"threshold without colluding devices=1 is below"):
        limits.check(make_params(6, degree=1000, threshold=2, min_cohort=3))


@settings(max_examples=100)
@given(data=st.binary(max_size=80))
def test_malformed_opening(data):
    parties = Parties(PARAMS)
    refuse(parties, data, Refusal.MALFORMED)


def test_parameters_under_a_wrong_tag():
    other = make_params(6, threshold=3, context=b"\1" * 32)
    refuse(Parties(PARAMS), wire.encode(SessionOpen(other), PARAMS), Refusal.MALFORMED)


@pytest.mark.parametrize(
    "state",
    [
        ClientState.ADVERTISED,
        ClientState.SHARED,
        ClientState.READY,
        ClientState.OPENED,
        ClientState.MASKED,
        ClientState.CONFIRMED,
    ],
)
@pytest.mark.parametrize("data", [b"", b"\x93\x01\x02", b"\xff" * 100, bytes(2 << 20)])
def test_malformed_messages_later(state, data):
    parties = Parties(SIGNED if state is ClientState.CONFIRMED else PARAMS)
    parties.advance(state)
    refuse(parties, data, Refusal.MALFORMED)


# The roster.


def at_roster(change, params=PARAMS, **options):
    return lie(ClientState.ADVERTISED, change, params=params, **options)


def test_roster_without_the_device():
    def change(parties, message):
        left = np.array([i for i in message.roster.tolist() if i != VICTIM], dtype=np.uint32)
        return replace(message, roster=left)

    refuse(*at_roster(change), Refusal.NOT_IN_ROSTER)


def test_roster_below_the_smallest_cohort():
    def change(parties, message):
        left = [VICTIM, *OTHERS[:2]]
        return replace(message, roster=np.array(sorted(left), dtype=np.uint32))

    params = make_params(6, threshold=3, min_cohort=4)
    refuse(*at_roster(change, params=params), Refusal.COHORT_TOO_SMALL)


def test_device_named_as_its_own_peer():
    def change(parties, message):
        some = next(iter(message.keys.values()))
        return replace(message, keys={**message.keys, parties.position(VICTIM): some})

    refuse(*at_roster(change), Refusal.NAMED_AS_ITS_OWN_PEER)


@pytest.mark.parametrize("position", [6, 2**32 - 1])
def test_neighbour_that_does_not_exist(position):
    def change(parties, message):
        named = dict(message.keys)
        named[position] = named.pop(parties.position(OTHERS[0]))
        return replace(message, keys=named)

    refuse(*at_roster(change), Refusal.UNKNOWN_NEIGHBOUR)


def test_neighbour_that_the_graph_does_not_give():
    victim = make_ids(9)[0]

    def change(parties, message):
        own = parties.position(victim)
        stranger = next(p for p in range(9) if p != own and p not in message.keys)
        some = next(iter(message.keys.values()))
        return replace(message, keys={**message.keys, stranger: some})

    parties, data = at_roster(change, params=SPARSE, victim=victim)
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR, victim)


def test_missing_neighbour():
    def change(parties, message):
        return replace(message, keys=dict(list(message.keys.items())[1:]))

    refuse(*at_roster(change), Refusal.MISSING_NEIGHBOUR)


def test_other_ids_in_the_roster_cannot_be_seen_by_one_device():
    # Its masks are bound to the roster: see the tests of binding.
    def change(parties, message):
        roster = [*message.roster.tolist()[:-1], 1000]
        assert VICTIM in roster
        return replace(message, roster=np.array(roster, dtype=np.uint32))

    parties, data = at_roster(change)
    parties.clients[VICTIM].receive(data)
    assert parties.clients[VICTIM].state is ClientState.SHARED


def key_lie(parties, message, field, key):
    position = parties.position(OTHERS[0])
    advertised = message.keys[position]
    if field == "sealing":
        advertised = replace(advertised, sealing_key=key)
    else:
        advertised = replace(advertised, mask_keys=(advertised.mask_keys[0], key))
    return replace(message, keys={**message.keys, position: advertised})


PRIME = 2**255 - 19
LOW_ORDER = {
    "zero": 0,
    "zero with its high bit": 1 << 255,
    "zero not canonical": PRIME,
    "one": 1,
    "one not canonical": PRIME + 1,
    "minus one": PRIME - 1,
    "minus one with its high bit": PRIME - 1 | 1 << 255,
}


@pytest.mark.parametrize("field", ["sealing", "mask"])
@pytest.mark.parametrize("name", LOW_ORDER)
def test_low_order_key(field, name):
    key = LOW_ORDER[name].to_bytes(32, "little")
    refuse(*at_roster(lambda p, m: key_lie(p, m, field, key)), Refusal.BAD_KEY)


@pytest.mark.parametrize("field", ["sealing", "mask"])
@pytest.mark.parametrize("drawn", [0, 1, 2])
def test_its_own_key_under_another_name(field, drawn):
    def change(parties, message):
        own = keys.key_pair(parties.randomness[VICTIM].given[drawn]).public
        return key_lie(parties, message, field, own)

    refuse(*at_roster(change), Refusal.BAD_KEY)


@pytest.mark.parametrize("field", ["sealing", "mask"])
@pytest.mark.parametrize("drawn", [0, 1, 2])
@pytest.mark.parametrize("whose", [0, 1])
def test_a_peers_key_under_a_second_name(field, drawn, whose):
    # Added for one and subtracted for the other, such a key's mask would cancel.
    def change(parties, message):
        key = keys.key_pair(parties.randomness[OTHERS[whose]].given[drawn]).public
        return key_lie(parties, message, field, key)

    parties, data = at_roster(change)
    same_place = whose == 0 and drawn == (0 if field == "sealing" else 2)
    if same_place:
        parties.clients[VICTIM].receive(data)
        assert parties.clients[VICTIM].state is ClientState.SHARED
    else:
        refuse(parties, data, Refusal.BAD_KEY)


@pytest.mark.parametrize("field", ["sealing", "mask"])
def test_a_peers_key_in_another_encoding(field):
    """The same key to X25519, which ignores the highest bit."""

    def change(parties, message):
        key = bytearray(keys.key_pair(parties.randomness[OTHERS[1]].given[1]).public)
        key[-1] |= 0x80
        return key_lie(parties, message, field, bytes(key))

    refuse(*at_roster(change), Refusal.BAD_KEY)


# The delivery of shares.


def at_delivery(change, params=PARAMS, **options):
    return lie(ClientState.SHARED, change, params=params, **options)


def box_of(message):
    return next(iter(message.boxes.values()))


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (sorted(IDS).index(VICTIM), Refusal.NAMED_AS_ITS_OWN_PEER),
        (6, Refusal.UNKNOWN_NEIGHBOUR),
    ],
)
def test_box_from_nobody(position, reason):
    def change(parties, message):
        return replace(message, boxes={**message.boxes, position: box_of(message)})

    refuse(*at_delivery(change), reason)


def test_box_of_a_member_is_missing():
    def change(parties, message):
        return replace(message, boxes=dict(list(message.boxes.items())[1:]))

    refuse(*at_delivery(change), Refusal.MISSING_NEIGHBOUR)


def test_box_of_a_device_that_has_left():
    def change(parties, message):
        return replace(message, members=parties.members(parties.ids[:5]))

    refuse(*at_delivery(change), Refusal.UNKNOWN_NEIGHBOUR)


def set_lies(make):
    """Every lie about a set of devices, for each message that carries one."""
    return [
        pytest.param(make, members, reason, id=f"{make.__name__}: {reason.name.lower()}")
        for members, reason in (
            (lambda p: p.members(OTHERS), Refusal.DEVICE_LEFT_OUT),
            (lambda p: p.members([VICTIM, *OTHERS[:2]]), Refusal.COHORT_TOO_SMALL),
            (lambda p: p.members(p.ids)[:5], Refusal.MALFORMED),
        )
    ]


def delivery(parties, data, members):
    message = parties.decode(data)
    boxes = {p: b for p, b in message.boxes.items() if p < len(members) and members[p]}
    return ShareDelivery(members, boxes)


def opening(parties, data, members):
    return OpenSlot(0, members)


def request(parties, data, members):
    return UnmaskRequest(0, members)


def check(parties, data, members):
    return ConsistencyCheck(0, members)


STATES = {
    delivery: ClientState.SHARED,
    opening: ClientState.READY,
    request: ClientState.MASKED,
    check: ClientState.MASKED,
}
"""Messages that carry a set of devices, and the state in which a device takes them."""


@pytest.mark.parametrize(
    ("make", "members", "reason"), [lies for make in STATES for lies in set_lies(make)]
)
def test_lies_about_who_is_there(make, members, reason):
    params = make_params(6, threshold=3, min_cohort=4, signed=make is check)
    parties = Parties(params)
    pending = parties.advance(STATES[make])
    data = parties.encode(make(parties, pending[VICTIM], members(parties)))
    refuse(parties, data, reason)


def without_neighbours(make, num_gone):
    """A sparse session in which a device is told that so many of its four neighbours are lost."""
    parties = Parties(replace(SPARSE, signed=make is check))
    victim = parties.ids[4]
    pending = parties.advance(STATES[make])
    members = np.ones(9, dtype=np.bool_)
    members[sorted(parties.clients[victim]._cohort.neighbours)[:num_gone]] = False
    assert members.sum() >= SPARSE.min_cohort
    return parties, victim, parties.encode(make(parties, pending[victim], members))


@pytest.mark.parametrize("make", STATES)
def test_too_few_neighbours(make):
    # The cohort stays large, but two of its neighbours are fewer than t. The device itself, which
    # keeps no share of its own on a sparse graph, does not count.
    parties, victim, data = without_neighbours(make, 2)
    refuse(parties, data, Refusal.TOO_FEW_NEIGHBOURS, victim, "2 who hold its shares are left")


@pytest.mark.parametrize("make", STATES)
def test_just_enough_neighbours(make):
    parties, victim, data = without_neighbours(make, 1)
    parties.clients[victim].receive(data)
    assert parties.clients[victim].state is not ClientState.FAILED


@pytest.mark.parametrize("make", STATES)
@pytest.mark.parametrize("num_left", [2, 3])
def test_any_t_devices_and_itself_among_them_are_enough_on_a_complete_graph(make, num_left):
    params = make_params(6, threshold=3, min_cohort=3, signed=make is check)
    parties = Parties(params)
    pending = parties.advance(STATES[make])
    members = parties.members([VICTIM, *OTHERS[: num_left - 1]])
    data = parties.encode(make(parties, pending[VICTIM], members))
    if num_left < params.threshold:
        refuse(parties, data, Refusal.COHORT_TOO_SMALL)
    else:
        parties.clients[VICTIM].receive(data)
        assert parties.clients[VICTIM].state is not ClientState.FAILED


# Slots and survivors.


def test_cohort_that_grows_at_the_opening():
    parties = Parties(PARAMS)
    pending = parties.advance(ClientState.SHARED)
    left = parties.members(parties.ids[:5])
    shrunk = delivery(parties, pending[VICTIM], left)
    parties.clients[VICTIM].receive(parties.encode(shrunk))
    data = parties.encode(OpenSlot(0, parties.members(parties.ids)))
    refuse(parties, data, Refusal.COHORT_GREW)


def test_cohort_that_grows_at_the_unmasking():
    parties = Parties(PARAMS)
    parties.deliver(parties.advance(ClientState.SHARED))
    few, others = parties.members(IDS[:4]), parties.members(IDS[1:5])
    parties.answer(VICTIM, parties.encode(OpenSlot(0, few)))
    refuse(parties, parties.encode(UnmaskRequest(0, others)), Refusal.COHORT_GREW)


def test_cohort_that_grows_between_slots():
    parties = Parties(PARAMS)
    parties.advance(ClientState.MASKED)
    machine = parties.clients[VICTIM]
    assert machine.receive(parties.encode(UnmaskRequest(0, parties.members(IDS[:5]))))
    data = parties.encode(OpenSlot(1, parties.members(IDS)))
    refuse(parties, data, Refusal.COHORT_GREW)


def test_both_share_kinds():
    # First everybody survived, then one did not: the key of one whose seed was given away.
    parties = Parties(PARAMS)
    pending = parties.advance(ClientState.MASKED)
    machine = parties.clients[VICTIM]
    revealed = parties.decode(machine.receive(pending[VICTIM]))
    assert revealed.kinds.tolist() == [0] * 6
    second = parties.encode(UnmaskRequest(0, parties.members(IDS[:5])))
    refuse(parties, second, Refusal.BOTH_SHARE_KINDS)


def test_one_share_kind_for_each_peer():
    parties = Parties(PARAMS)
    parties.advance(ClientState.MASKED)
    survivors = parties.members(IDS[:4])
    reply = parties.clients[VICTIM].receive(parties.encode(UnmaskRequest(0, survivors)))
    revealed = parties.decode(reply)
    assert revealed.positions.tolist() == list(range(6))
    assert revealed.kinds.tolist() == [0 if survived else 1 for survived in survivors]


def test_shares_of_its_neighbours_alone_on_a_sparse_graph():
    parties = Parties(SPARSE)
    parties.advance(ClientState.MASKED)
    victim = parties.ids[4]
    near = sorted(parties.clients[victim]._cohort.neighbours)
    survivors = np.ones(9, dtype=np.bool_)
    reply = parties.clients[victim].receive(parties.encode(UnmaskRequest(0, survivors)))
    assert parties.decode(reply).positions.tolist() == near
    assert parties.position(victim) not in near


def test_no_share_of_those_who_were_not_in_the_slot():
    parties = Parties(PARAMS)
    parties.deliver(parties.advance(ClientState.SHARED))
    members = parties.members(IDS[:5])
    parties.answer(VICTIM, parties.encode(OpenSlot(0, members)))
    reply = parties.clients[VICTIM].receive(parties.encode(UnmaskRequest(0, members)))
    revealed = parties.decode(reply)
    assert revealed.positions.tolist() == np.flatnonzero(members).tolist()


@pytest.mark.parametrize("reused", [0, 1])
def test_slot_reused(reused):
    parties = Parties(make_params(6, threshold=3, slots=((2, 8),) * 3))
    parties.exchange(parties.advance(ClientState.SHARED))
    parties.run_slot(1)
    data = parties.encode(OpenSlot(reused, parties.members(IDS[:5])))
    refuse(parties, data, Refusal.SLOT_REUSED)


@pytest.mark.parametrize("state", [ClientState.OPENED, ClientState.MASKED])
def test_slot_reopened_while_it_is_open(state):
    parties = Parties(PARAMS)
    parties.advance(state)
    data = parties.encode(OpenSlot(0, parties.members(IDS[:5])))
    refuse(parties, data, Refusal.SLOT_REUSED)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (ClientState.MASKED, lambda p: UnmaskRequest(1, p.members(IDS))),  # not the open slot
        (ClientState.OPENED, lambda p: OpenSlot(1, p.members(IDS))),  # before it is masked
        (ClientState.OPENED, lambda p: UnmaskRequest(0, p.members(IDS))),  # before it is masked
        (ClientState.READY, lambda p: UnmaskRequest(0, p.members(IDS))),  # before it is open
    ],
)
def test_out_of_order(state, message):
    parties = Parties(PARAMS)
    parties.advance(state)
    refuse(parties, parties.encode(message(parties)), Refusal.OUT_OF_ORDER)


@pytest.mark.parametrize("params", [PARAMS, SIGNED])
@pytest.mark.parametrize("fewer", [False, True])
def test_a_tolerant_slot_is_not_given_up_for_the_next(params, fewer):
    """It is unmasked, or the session is over: then nothing is ever said about it again."""
    parties = Parties(params)
    parties.advance(ClientState.MASKED)
    left = parties.members([VICTIM, *OTHERS[:4]] if fewer else IDS)
    refuse(parties, parties.encode(OpenSlot(1, left)), Refusal.OUT_OF_ORDER)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("late", "num_left", "reason"),
    [
        (ConsistencyCheck, 5, Refusal.OUT_OF_ORDER),
        (OpenSlot, 5, Refusal.SLOT_REUSED),
        (UnmaskRequest, 5, Refusal.BOTH_SHARE_KINDS),
        (UnmaskRequest, 6, Refusal.BOTH_SHARE_KINDS),
    ],
)
def test_nothing_more_is_said_about_a_whole_slot(signed, late, num_left, reason):
    """Its vector is in, and a second sum over fewer devices would show who is missing from it."""
    parties = Parties(make_params(6, slots=((4, 16, True), (4, 16)), signed=signed))
    parties.deliver(parties.advance(ClientState.LISTED if signed else ClientState.READY))
    machine = parties.clients[VICTIM]
    assert (machine.state, machine.slot) == (ClientState.READY, 0)
    left = [VICTIM, *OTHERS[: num_left - 1]]
    refuse(parties, parties.encode(late(0, parties.members(left))), reason)


# What is no lie.


@pytest.mark.parametrize("signed", [False, True])
def test_the_next_slot_may_be_opened_when_a_whole_one_came_to_nothing(signed):
    """The server of a whole slot in which somebody is missing goes on with the next one."""
    parties = Parties(make_params(6, slots=((4, 16, True), (4, 16)), signed=signed))
    parties.deliver(parties.advance(ClientState.LISTED if signed else ClientState.READY))
    machine = parties.clients[VICTIM]
    left = parties.members([VICTIM, *OTHERS[:4]])
    machine.receive(parties.encode(OpenSlot(1, left)))
    assert (machine.state, machine.slot, machine.num_members) == (ClientState.OPENED, 1, 5)


@pytest.mark.parametrize("state", [s for s in ClientState if s not in ("idle", "failed")])
def test_messages_of_other_sessions_are_ignored(state):
    signed = state in (ClientState.CONFIRMED, ClientState.LISTED)
    whole = make_params(6, threshold=3, slots=((4, 16, True),), signed=True)
    parties = Parties(whole if state is ClientState.LISTED else SIGNED if signed else PARAMS)
    parties.advance(state)
    machine = parties.clients[VICTIM]
    heard = 0
    for other_signed in (False, True):
        other = Parties(make_params(6, threshold=3, context=b"\1" * 32, signed=other_signed))
        for pending in other.steps():
            if VICTIM in pending:
                assert machine.receive(pending[VICTIM]) is None
                heard += 1
    assert heard == 7 + 9
    assert machine.receive(b"\x93\x01\x01\xc4\x10" + bytes(16) + b"\xff") is None
    assert machine.state is state


@pytest.mark.parametrize(("params", "num_said"), [(PARAMS, 7), (SIGNED, 9)])
def test_duplicates_are_ignored_and_answered_once(params, num_said):
    parties = Parties(params)
    machine = parties.clients[VICTIM]
    said = []
    for pending in parties.steps():
        for earlier in said:
            state = machine.state
            assert machine.receive(earlier) is None
            assert machine.state is state
        if VICTIM in pending:
            said.append(pending[VICTIM])
    assert len(said) == num_said
    assert parties.server.drops == {}


def limbs_in_box(*, first=0, count=36):
    """The content of a box of two slots, one limb of which is `first`."""
    return np.array([first] + [1] * (count - 1), dtype="<u4").tobytes()


NO_SHARES = ("does not open", "zeros", "limb outside the field", "largest limb")
SHARES = ("honest", "largest limb of the field")


def changed_box(name, box, seal):
    match name:
        case "does not open":
            return box[:-1] + bytes([box[-1] ^ 1])
        case "zeros":
            return bytes(len(box))
        case "limb outside the field":
            return seal(limbs_in_box(first=shamir.PRIME))
        case "largest limb":
            return seal(limbs_in_box(first=2**32 - 1))
        case "largest limb of the field":
            return seal(limbs_in_box(first=shamir.PRIME - 1))
        case "honest":
            return box


@pytest.mark.parametrize("params", [PARAMS, SIGNED])
@pytest.mark.parametrize("name", [*NO_SHARES, *SHARES])
def test_a_box_without_shares_is_named_in_the_receipt_and_costs_only_its_shares(params, name):
    sender = OTHERS[0]

    def change(parties, message):
        position, own = parties.position(sender), parties.position(VICTIM)
        channel = parties.clients[sender]._cohort.neighbours[own].channel

        def seal(content):
            return channel.seal(content, parties.randomness[sender])

        box = changed_box(name, message.boxes[position], seal)
        assert len(box) == len(message.boxes[position])
        return replace(message, boxes={**message.boxes, position: box})

    parties, data = at_delivery(change, params=params)
    refused = (parties.position(sender),) if name in NO_SHARES else ()
    receipt = parties.decode(parties.clients[VICTIM].receive(data))
    assert receipt == ShareReceipt(refused)
    assert parties.clients[VICTIM].state is ClientState.READY
    if not params.signed:
        everybody = parties.members(IDS)
        parties.answer(VICTIM, parties.encode(OpenSlot(0, everybody)))
        reply = parties.clients[VICTIM].receive(parties.encode(UnmaskRequest(0, everybody)))
        assert set(range(6)) - set(parties.decode(reply).positions.tolist()) == set(refused)


def test_all_boxes_without_shares_are_named_in_order():
    def change(parties, message):
        junk = dict(list(message.boxes.items())[-3:])
        return replace(
            message, boxes={**message.boxes, **{p: bytes(len(b)) for p, b in junk.items()}}
        )

    parties, data = at_delivery(change)
    receipt = parties.decode(parties.clients[VICTIM].receive(data))
    others = sorted(parties.position(other) for other in OTHERS)
    assert receipt.refused == tuple(others[-3:])


def test_where_no_box_opens_nobody_is_there():
    def change(parties, message):
        return replace(message, boxes={p: bytes(len(b)) for p, b in message.boxes.items()})

    refuse(*at_delivery(change), Refusal.COHORT_TOO_SMALL, match="1 devices are left")


def test_closing_ends_the_session():
    parties = Parties(PARAMS)
    parties.advance(ClientState.OPENED)
    machine = parties.clients[VICTIM]
    assert machine.num_members == len(parties.ids)
    machine.close()
    assert (machine.state, machine.num_members) == (ClientState.FAILED, 0)
    assert reachable_secrets(machine, parties.randomness[VICTIM]) == set()


def test_default_policy_refuses_a_session_of_three():
    params = make_params(3, threshold=2)
    machine = Client(1, DevicePolicy())
    with pytest.raises(PeerError, match="min_cohort=2 is below the device's min_cohort=5"):
        machine.receive(wire.encode(SessionOpen(params), params))


def test_every_key_and_every_seed_is_drawn_for_itself():
    """Were a seed that of two slots, to unmask the one would unmask half of the other."""
    parties = Parties(PARAMS, ids=IDS)
    parties.advance(ClientState.SHARED)
    drawn = [data for data in parties.randomness[VICTIM].given if len(data) == 32]
    assert len(drawn) == len(set(drawn)) == 1 + 2 * len(PARAMS.slots)


def test_secrets_do_not_show_in_representations():
    parties = Parties(PARAMS)
    parties.deliver(parties.advance(ClientState.SHARED))
    machine, randomness = parties.clients[VICTIM], parties.randomness[VICTIM]
    shown = repr(
        [machine._sealing, machine._mask_keys, machine._cohort.neighbours, machine._cohort]
    )
    for secret in randomness.given[:3]:
        assert repr(secret) not in shown
