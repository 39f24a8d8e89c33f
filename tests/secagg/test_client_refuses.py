"""A lying server: what a device refuses, under which name, and what it keeps afterwards."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import BINDING, POLICY, Parties, make_ids, make_params, reachable_secrets
from refusing import IDS, OTHERS, VICTIM, lie, refuse

from deltafl.secagg import Client, DevicePolicy, PeerError, Refusal, keys, links, shamir, wire
from deltafl.secagg.messages import (
    ConsistencyCheck,
    OpenSlot,
    SessionOpen,
    ShareDelivery,
    UnmaskRequest,
)
from deltafl.secagg.states import ClientState

PARAMS = make_params(6, threshold=3)
SPARSE = make_params(9, degree=4, threshold=3)


def test_a_device_in_session_holds_secrets_and_an_honest_one_sheds_those_it_used():
    # The control of every "holds no secrets" below.
    held = {
        ClientState.IDLE: set(),
        ClientState.ADVERTISED: {"private key"},
        ClientState.SHARED: {"private key", "bytes drawn", "shares"},
        ClientState.LINKED: {"link keys", "bytes drawn", "shares"},
    }
    for state, expected in held.items():
        parties = Parties(PARAMS)
        parties.advance(state)
        machine, randomness = parties.clients[VICTIM], parties.randomness[VICTIM]
        assert reachable_secrets(machine, randomness) == expected


def used(parties, slot):
    """Whether a device still has: its links' keys of a slot, and its seed and shares of it."""
    secrets = parties.clients[VICTIM]._phase.secrets
    keys = parties.randomness[VICTIM].link_keys[slot :: len(PARAMS.slots)]
    assert len(keys) == len(OTHERS)
    kept = [key for of in secrets.pairs.values() for key in of.values()]
    return [key in kept for key in keys], slot in secrets.seeds, slot in secrets.shares


def test_what_a_slot_needs_is_erased_once_it_is_used():
    """Keys and the seed with the vector, the shares with the answer to their request."""
    everything, nothing = [True] * 5, [False] * 5
    steps = [
        (ClientState.OPENED, (everything, True, True)),
        (ClientState.MASKED, (nothing, False, True)),
        (ClientState.CONFIRMED, (nothing, False, True)),
        (ClientState.READY, (nothing, False, False)),
    ]
    for state, expected in steps:
        parties = Parties(PARAMS)
        parties.advance(state)
        assert used(parties, 0) == expected
        assert used(parties, 1) == (everything, True, True)


def test_what_a_skipped_slot_would_have_needed_is_erased_with_it():
    parties = Parties(PARAMS)
    parties.exchange(parties.advance(ClientState.SHARED))
    parties.clients[VICTIM].receive(parties.server.open_slot(1, BINDING)[VICTIM])
    assert used(parties, 0) == ([False] * 5, False, False)
    assert used(parties, 1) == ([True] * 5, True, True)


# The opening message.


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"min_cohort": 5}, "min_cohort=4 is below the device's min_cohort=5"),
        ({"min_threshold": 4}, "threshold=3 is below min_threshold=4"),
        ({"min_threshold_share": 0.51}, "threshold / holders=0.5 is below the device's 0.51"),
        ({"colluding_rate": 0.5}, "min_cohort without colluding devices=1 is below the device's 2"),
        ({"max_degree": 4}, "degree=5 is above the device's 4"),
        ({"max_cohort": 5}, "number of invited devices=6 is above the device's 5"),
        ({"max_slots": 1}, "number of slots=2 is above the device's 1"),
        ({"max_length": 3}, "vector length=4 is above the device's 3"),
        ({"max_ring_bits": 39}, "ring bits=40 is above the device's 39"),
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
    verified = (3, 19, True, True)
    params = make_params(6, threshold=4, slots=(verified, (9, 40)), signed=True)
    replace(POLICY, max_verified_length=3).check(params)
    with pytest.raises(PeerError, match="length of a verified slot=3 is above the device's 2"):
        replace(POLICY, max_verified_length=2).check(params)


def test_policy_counts_work_as_it_is_done():
    """Whole slots are not shared, and a sparse graph has few neighbours."""
    verified = (3, 19, True, True)
    params = make_params(6, threshold=4, slots=((4, 16), verified), signed=True)
    elements = 5 * (4 + 3)
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
        colluding_rate=2 / 6,
        min_cohort=4,
        min_threshold=3,
        min_threshold_share=0.5,
        max_cohort=6,
        max_degree=5,
        max_slots=2,
        max_length=4,
        max_ring_bits=40,
        max_sharing_work=648,
        max_mask_elements=35,
    )
    parties = Parties(params, policy=limits)
    assert parties.deliver(parties.server.start()).keys() == set(parties.ids)


def test_policy_counts_the_complete_graph_however_it_is_written():
    # A degree above the devices there are must not make t / h look smaller or larger.
    limits = replace(POLICY, min_threshold_share=0.5, max_degree=5)
    limits.check(make_params(6, degree=1000, threshold=3))
    with pytest.raises(PeerError, match=r"threshold / holders=0\.333333 is below"):
        limits.check(make_params(6, degree=1000, threshold=2))


def test_policy_counts_the_neighbours_of_a_sparse_graph():
    limits = replace(POLICY, min_threshold_share=0.75)
    limits.check(make_params(9, degree=4, threshold=3))
    with pytest.raises(PeerError, match=r"threshold / holders=0\.5 is below"):
        limits.check(make_params(9, degree=4, threshold=2, min_cohort=3))


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
        ClientState.LINKED,
        ClientState.OPENED,
        ClientState.MASKED,
        ClientState.CONFIRMED,
    ],
)
@pytest.mark.parametrize("data", [b"", b"\x93\x01\x02", b"\xff" * 100, bytes(2 << 20)])
def test_malformed_messages_later(state, data):
    parties = Parties(PARAMS)
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


def test_other_ids_far_away_cannot_be_seen_by_one_device():
    # Its boxes and masks are bound to the roster: see the tests of sessions.
    victim = make_ids(9)[0]

    def change(parties, message):
        own = parties.position(victim)
        far = next(p for p in range(9) if p != own and p not in message.keys)
        roster = message.roster.copy()
        roster[far] += 1
        return replace(message, roster=roster)

    parties, data = at_roster(change, params=SPARSE, victim=victim)
    parties.clients[victim].receive(data)
    assert parties.clients[victim].state is ClientState.SHARED


def key_lie(parties, message, key):
    position = parties.position(OTHERS[0])
    advertised = replace(message.keys[position], key=key)
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


@pytest.mark.parametrize("name", LOW_ORDER)
def test_a_key_of_low_order(name):
    point = LOW_ORDER[name].to_bytes(32, "little")

    def change(parties, message):
        return key_lie(parties, message, parties.key(OTHERS[0])[:-32] + point)

    refuse(*at_roster(change), Refusal.BAD_KEY, match="not an X-Wing key")


def test_a_key_whose_coefficients_are_not_reduced():
    def change(parties, message):
        return key_lie(parties, message, b"\xff" * 3 + parties.key(OTHERS[0])[3:])

    refuse(*at_roster(change), Refusal.BAD_KEY, match="not an X-Wing key")


@pytest.mark.parametrize("whose", [VICTIM, OTHERS[1]])
def test_a_key_under_a_second_name(whose):
    """Its own, or a peer's."""

    def change(parties, message):
        return key_lie(parties, message, parties.key(whose))

    refuse(*at_roster(change), Refusal.BAD_KEY, match="a key named twice")


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
    return replace(parties.decode(data), members=members)


def check(parties, data, members):
    return ConsistencyCheck(0, members)


STATES = {
    delivery: ClientState.SHARED,
    opening: ClientState.LINKED,
    check: ClientState.MASKED,
}
"""Messages that carry a set of devices, and the state in which a device takes them."""


@pytest.mark.parametrize(
    ("make", "members", "reason"), [lies for make in STATES for lies in set_lies(make)]
)
def test_lies_about_who_is_there(make, members, reason):
    params = make_params(6, threshold=3, min_cohort=4)
    parties = Parties(params)
    pending = parties.advance(STATES[make])
    data = parties.encode(make(parties, pending[VICTIM], members(parties)))
    refuse(parties, data, reason)


def without_neighbours(make, num_gone):
    """A sparse session in which a device is told that so many of its four neighbours are lost."""
    parties = Parties(SPARSE)
    victim = parties.ids[4]
    pending = parties.advance(STATES[make])
    members = np.ones(9, dtype=np.bool_)
    members[sorted(parties.clients[victim]._phase.cohort.neighbours)[:num_gone]] = False
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
    params = make_params(6, threshold=3, min_cohort=3)
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


def test_shares_of_its_neighbours_alone_on_a_sparse_graph():
    parties = Parties(SPARSE)
    pending = parties.advance(ClientState.CONFIRMED)
    victim = parties.ids[4]
    near = sorted(parties.clients[victim]._phase.cohort.neighbours)
    reply = parties.clients[victim].receive(pending[victim])
    assert parties.decode(reply).positions.tolist() == near
    assert parties.position(victim) not in near


def test_no_share_of_those_who_were_not_in_the_slot():
    parties = Parties(PARAMS)
    pending = parties.advance(ClientState.LINKED)
    chosen = IDS[:5]
    members = parties.members(chosen)
    machine = parties.clients[VICTIM]
    parties.answer(VICTIM, parties.encode(opening(parties, pending[VICTIM], members)))
    machine.receive(parties.encode(ConsistencyCheck(0, members)))
    signatures = {parties.position(c): parties.sign_survivors(c, members) for c in chosen}
    reply = machine.receive(parties.encode(UnmaskRequest(0, members, signatures)))
    assert parties.decode(reply).positions.tolist() == np.flatnonzero(members).tolist()


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
        (ClientState.MASKED, lambda p: UnmaskRequest(0, p.members(IDS), {})),  # before it is signed
        (ClientState.OPENED, lambda p: OpenSlot(1, p.members(IDS))),  # before it is masked
        (ClientState.OPENED, lambda p: UnmaskRequest(0, p.members(IDS), {})),  # before it is masked
        (ClientState.LINKED, lambda p: UnmaskRequest(0, p.members(IDS), {})),  # before it is open
    ],
)
def test_out_of_order(state, message):
    parties = Parties(PARAMS)
    parties.advance(state)
    refuse(parties, parties.encode(message(parties)), Refusal.OUT_OF_ORDER)


@pytest.mark.parametrize("fewer", [False, True])
def test_a_tolerant_slot_is_not_given_up_for_the_next(fewer):
    """It is unmasked, or the session is over: then nothing is ever said about it again."""
    parties = Parties(PARAMS)
    parties.advance(ClientState.MASKED)
    left = parties.members([VICTIM, *OTHERS[:4]] if fewer else IDS)
    refuse(parties, parties.encode(OpenSlot(1, left)), Refusal.OUT_OF_ORDER)


@pytest.mark.parametrize(
    ("late", "num_left", "reason"),
    [
        (ConsistencyCheck, 5, Refusal.OUT_OF_ORDER),
        (OpenSlot, 5, Refusal.SLOT_REUSED),
        (UnmaskRequest, 5, Refusal.BOTH_SHARE_KINDS),
        (UnmaskRequest, 6, Refusal.BOTH_SHARE_KINDS),
    ],
)
def test_nothing_more_is_said_about_a_whole_slot(late, num_left, reason):
    """Its vector is in, and a second sum over fewer devices would show who is missing from it."""
    parties = Parties(make_params(6, slots=((4, 16, True), (4, 16))))
    parties.deliver(parties.advance(ClientState.LINKED))
    machine = parties.clients[VICTIM]
    assert (machine.state, machine.slot) == (ClientState.READY, 0)
    left = [VICTIM, *OTHERS[: num_left - 1]]
    more = ({},) if late is UnmaskRequest else ()
    refuse(parties, parties.encode(late(0, parties.members(left), *more)), reason)


# What is no lie.


def test_the_next_slot_may_be_opened_when_a_whole_one_came_to_nothing():
    """The server of a whole slot in which somebody is missing goes on with the next one."""
    parties = Parties(make_params(6, slots=((4, 16, True), (4, 16))))
    parties.deliver(parties.advance(ClientState.LINKED))
    machine = parties.clients[VICTIM]
    left = parties.members([VICTIM, *OTHERS[:4]])
    machine.receive(parties.encode(OpenSlot(1, left)))
    assert (machine.state, machine.slot, machine.num_members) == (ClientState.OPENED, 1, 5)


@pytest.mark.parametrize("state", [s for s in ClientState if s not in ("idle", "failed")])
def test_messages_of_other_sessions_are_ignored(state):
    parties = Parties(PARAMS)
    parties.advance(state)
    machine = parties.clients[VICTIM]
    heard = 0
    for pending in Parties(make_params(6, threshold=3, context=b"\1" * 32)).steps():
        if VICTIM in pending:
            assert machine.receive(pending[VICTIM]) is None
            heard += 1
    assert heard == 9
    assert machine.receive(b"\x93\x01\x01\xc4\x10" + bytes(16) + b"\xff") is None
    assert machine.state is state


def test_duplicates_are_ignored_and_answered_once():
    parties = Parties(PARAMS)
    machine = parties.clients[VICTIM]
    said = []
    for pending in parties.steps():
        for earlier in said:
            state = machine.state
            assert machine.receive(earlier) is None
            assert machine.state is state
        if VICTIM in pending:
            said.append(pending[VICTIM])
    assert len(said) == 9
    assert parties.server.drops == {}


HALF = b"h" * 32


def limbs_in_box(*, first=0, count=36):
    """The content of a box of two slots, one limb of which is `first`."""
    return HALF + np.array([first] + [1] * (count - 1), dtype="<u4").tobytes()


UNREAD = ("does not open", "zeros", "limb outside the field", "largest limb", "for another key")
READ = ("honest", "largest limb of the field")


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
        case "for another key":
            return seal(limbs_in_box(), keys.recipient(HALF).public)
        case "largest limb of the field":
            return seal(limbs_in_box(first=shamir.PRIME - 1))
        case "honest":
            return box


@pytest.mark.parametrize("name", [*UNREAD, *READ])
def test_a_box_that_cannot_be_read_costs_its_link_only(name):
    """Its sender is missing from the receipt, and nobody else."""
    sender = OTHERS[0]

    def change(parties, message):
        position, own = parties.position(sender), parties.position(VICTIM)
        cohort = parties.clients[sender]._phase.cohort
        info = links.info(cohort.session_id, cohort.end(position), cohort.end(own))

        def seal(content, key=None):
            return keys.seal(content, key or parties.key(VICTIM), info)

        box = changed_box(name, message.boxes[position], seal)
        assert len(box) == len(message.boxes[position])
        return replace(message, boxes={**message.boxes, position: box})

    parties, data = at_delivery(change)
    unread = {parties.position(sender)} if name in UNREAD else set()
    receipt = parties.decode(parties.clients[VICTIM].receive(data))
    everybody = {parties.position(other) for other in OTHERS}
    assert set(receipt.links) == everybody - unread
    assert parties.clients[VICTIM].state is ClientState.LINKED


def test_a_device_that_can_read_no_box_says_so_and_is_alone():
    def change(parties, message):
        return replace(message, boxes={p: bytes(len(b)) for p, b in message.boxes.items()})

    parties, data = at_delivery(change)
    assert parties.decode(parties.clients[VICTIM].receive(data)).links == {}
    refuse(
        parties,
        parties.encode(OpenSlot(0, parties.members(IDS))),
        Refusal.COHORT_TOO_SMALL,
        match="1 devices are left",
    )


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
    machine = Client(1, DevicePolicy(), Parties(PARAMS).enrolment.credentials(1))
    with pytest.raises(PeerError, match="min_cohort=2 is below the device's min_cohort=5"):
        machine.receive(wire.encode(SessionOpen(params), params))


def test_every_secret_is_drawn_for_itself():
    """Were a seed that of two slots, to unmask the one would unmask half of the other."""
    parties = Parties(PARAMS, ids=IDS)
    parties.advance(ClientState.SHARED)
    drawn = [data for data in parties.randomness[VICTIM].given if len(data) == 32]
    # Its key; a seed and a recovery key for each slot; half of the link with each neighbour.
    assert len(drawn) == len(set(drawn)) == 1 + 2 * len(PARAMS.slots) + len(OTHERS)


@pytest.mark.parametrize("state", list(ClientState)[1:-1])
def test_secrets_do_not_show_in_representations(state):
    parties = Parties(PARAMS)
    parties.advance(state)
    machine, randomness = parties.clients[VICTIM], parties.randomness[VICTIM]
    shown = repr(machine._phase)
    secrets = [data for data in randomness.given if len(data) == 32] + randomness.link_keys
    assert secrets
    for secret in secrets:
        assert repr(secret) not in shown
