"""What a simulation computes once: the same bytes, whoever asks for what, and when."""

import random
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import BINDING, POLICY, make_ids, make_inputs, make_params, plain_sum, sealed_once

from deltafl.secagg import (
    Client,
    ClientId,
    DecodeError,
    Enrolment,
    PeerError,
    Refusal,
    Server,
    SessionAborted,
    SlotSpec,
    keys,
    links,
    prg,
    wire,
)
from deltafl.secagg.identity import identity
from deltafl.secagg.masks import PairSecret, SlotContext
from deltafl.secagg.messages import ConsistencyCheck, OpenSlot
from deltafl.secagg.openings import Opening
from deltafl.secagg.prg import add_masks
from deltafl.secagg.primitives import PLAIN, Primitives, pairwise_with
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.signing import Signer
from deltafl.secagg.states import ClientState
from deltafl.sim.cohort import shared as simulation
from deltafl.sim.cohort.shared import SharedResults


@pytest.fixture(autouse=True, scope="module")
def sealing_nothing_twice():
    """Boxes are the same for the same contents, so that sessions can be compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "seal", sealed_once)
        yield


SAME = replace(PLAIN, seal=sealed_once)
"""What parties compute with that share nothing."""

OWN, OTHER = (keys.recipient(bytes([i]) * 32) for i in (1, 2))


# --- boxes ----------------------------------------------------------------------------------------


@given(content=st.binary(max_size=80), info=st.binary(max_size=40))
@settings(max_examples=20)
def test_a_shared_box_opens_as_a_plain_one(content, info):
    boxes = simulation.SharedBoxes()
    box = boxes.seal(content, OWN.public, info)
    assert OWN.open(box, info) == content
    for _ in range(2):  # what is known, and what is tried
        assert boxes.open(OWN, box, info) == content
    assert boxes._sealed == {}


def test_a_shared_box_opens_for_its_owner_under_its_own_info_only():
    for key, info, changed in ((OTHER, b"info", 0), (OWN, b"other", 0), (OWN, b"info", 1)):
        boxes = simulation.SharedBoxes()
        box = boxes.seal(b"content", OWN.public, b"info")
        told = box[:-1] + bytes([box[-1] ^ changed])
        assert boxes.open(key, told, info) is None
    assert boxes.open(OWN, box, b"info") == b"content"


def test_what_is_known_of_a_box_is_what_is_given():
    """Control of the above: a box whose content is known is not opened."""
    boxes = simulation.SharedBoxes()
    box = boxes.seal(b"content", OWN.public, b"info")
    boxes._sealed[box] = OWN.public, b"info", b"planted"
    assert boxes.open(OWN, box, b"info") == b"planted"


def test_a_link_is_derived_once_for_both_ends_and_then_forgotten(monkeypatch):
    derived = []
    honest = links.link
    monkeypatch.setattr(links, "link", lambda *said: derived.append(said) or honest(*said))
    results = SharedResults()
    low, high = (
        links.End(i, bytes([i]) * 32, key.public, bytes([i]) * 32, bytes([i]) * 32)
        for i, key in ((1, OWN), (2, OTHER))
    )
    first, second = (results.apply(links.link, b"s" * 32, low, high, 2) for _ in range(2))
    assert first == second == honest(b"s" * 32, low, high, 2)
    assert len(derived) == 1
    assert results._links == {}
    other = results.apply(links.link, b"t" * 32, low, high, 2)
    assert other != first
    assert len(derived) == 2


# --- sessions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """What goes wrong in a slot.

    Attributes:
        gone: Devices whose vectors are lost.
        bindings: What some devices are shown instead of what all are.
        members: The device that is missing from what some devices are told of who takes part.
        order: In which order the devices work, as a seed.
    """

    gone: frozenset = frozenset()
    bindings: dict = field(default_factory=dict)
    members: dict = field(default_factory=dict)
    order: int = 0


FIRST_GONE = {1: Trouble(gone=frozenset([min(make_ids(9))]))}
"""A session whose first device vanishes in the second slot."""


def play(params, primitives, seed, troubles=FIRST_GONE):
    """Every message of a session in which things go wrong in some slots, and its sums."""
    played = Played(params, primitives, seed)
    outgoing = played.server.start()
    for _ in range(3):
        outgoing = played.exchange(outgoing, Trouble())
    try:
        for slot in filter(played.server.can_sum, range(len(params.slots))):
            played.sums.append(played.slot(slot, troubles.get(slot, Trouble())))
    except SessionAborted as aborted:
        played.sums.append(str(aborted))
    return played.messages, played.sums


class Played:
    """A session whose parties compute with some primitives.

    Attributes:
        messages: To whom, what, and the answer or the name of the refusal.
        sums: Vector, contributors and proof of each slot; None where there is no sum.
    """

    def __init__(self, params, primitives, seed):
        self.params, self.ids = params, make_ids(params.num_invited)
        self.inputs = make_inputs(params, self.ids, seed)
        self.messages, self.sums = [], []
        randomness = SeededRandomness(seed.to_bytes(32, "little"))
        enrolment = Enrolment(SeededRandomness(bytes(32)))
        self.server = Server(params, self.ids, enrolment, primitives)
        self.clients = {
            i: Client(ClientId(i), POLICY, enrolment.credentials(i), randomness, primitives)
            for i in sorted(self.ids)
        }

    def slot(self, slot, trouble):
        """Take the sum of a slot, and prove it to the devices."""
        outgoing = self.server.open_slot(slot, BINDING)
        while outgoing:
            outgoing = self.exchange(outgoing, trouble)
        if not self.server.has_sum:
            return None
        taken = self.server.take_sum()
        if taken.opening is not None:
            self.tell(dict.fromkeys(taken.remaining, taken.opening), trouble)
        return taken.vector.tolist(), taken.contributors, taken.opening

    def exchange(self, outgoing, trouble):
        for client, reply in self.tell(outgoing, trouble):
            if isinstance(reply, bytes) and client not in trouble.gone:
                self.server.receive(client, reply)
        return self.server.close_round()

    def tell(self, outgoing, trouble):
        """Give the devices their messages; who answers, and what."""
        asked = sorted(c for c in outgoing if self.clients[c].state is not ClientState.FAILED)
        random.Random(trouble.order).shuffle(asked)  # noqa: S311 the order is no secret
        told = [(client, self.shown(client, outgoing[client], trouble)) for client in asked]
        answers = [(client, self.answer(client, data, trouble)) for client, data in told]
        self.messages += zip(told, answers, strict=True)
        return answers

    def answer(self, client, data, trouble):
        machine = self.clients[client]
        try:
            reply = machine.receive(data)
        except PeerError as refused:
            return refused.reason
        if machine.state is ClientState.OPENED:
            binding = trouble.bindings.get(client, BINDING)
            reply = machine.contribute(self.inputs[client][machine.slot], binding)
        return reply

    def shown(self, client, data, trouble):
        """What a device is told of who takes part, perhaps without one of them."""
        absent, message = trouble.members.get(client), wire.decode(data, self.params)
        if absent is None or not isinstance(message, OpenSlot | ConsistencyCheck):
            return data
        name = "members" if isinstance(message, OpenSlot) else "survivors"
        members = getattr(message, name).copy()
        members[sorted(self.ids).index(absent)] = False
        return wire.encode(replace(message, **{name: members}), self.params)


@pytest.mark.parametrize("degree", [None, 6])
def test_every_byte_of_a_session_is_the_same(degree):
    params = make_params(9, degree=degree, slots=((4, 16), (300, 40), (3, 64)))
    for seed in range(3):
        assert play(params, simulation.simulated(), seed) == play(params, SAME, seed)


LENGTHS = st.sampled_from([(4, 32), (8, 64), (256, 32), (257, 32), (300, 40), (128, 64), (129, 64)])
"""Vectors whose masks are their seeds, are short, or are long, on either side of the borders."""


@st.composite
def troubled_sessions(draw):
    num_invited = draw(st.integers(4, 7))
    degree = draw(st.sampled_from([None, None, 4]))
    complete = degree is None or degree >= num_invited - 1
    kinds = st.lists(st.tuples(LENGTHS, st.booleans()), min_size=1, max_size=3)
    slots = [
        (*length, whole, whole and complete and draw(st.booleans()))
        for length, whole in draw(kinds)
    ]
    params = make_params(num_invited, degree=degree, threshold=2, slots=slots, min_cohort=2)
    devices = st.sampled_from(make_ids(num_invited))
    troubles = st.builds(
        Trouble,
        st.frozensets(devices, max_size=2),
        st.dictionaries(devices, st.sampled_from([b"another", b"a third"]), max_size=3),
        st.dictionaries(devices, devices, max_size=2),
        st.integers(0, 2**16),
    )
    # In half of the slots, nothing goes wrong.
    chosen = {slot: draw(troubles) for slot in range(len(slots)) if draw(st.booleans())}
    return params, chosen, draw(st.integers(0, 2**32))


@pytest.mark.slow
def test_every_byte_of_a_troubled_session_is_the_same():
    """Devices vanish, are shown other values and other members, and work in any order."""
    seen = set()

    @settings(max_examples=120)
    @given(
        drawn=troubled_sessions(),
        kept=st.sampled_from([None, None, 0, 1000, 3000]),
        share_up_to=st.sampled_from([prg.MAX_BYTES, prg.MAX_BYTES, 0, 2000]),
    )
    def check(drawn, kept, share_up_to):
        params, troubles, seed = drawn
        with pytest.MonkeyPatch.context() as patch:
            if kept is not None:  # too little memory for all that could be shared
                patch.setattr(simulation, "_KEPT_BYTES", kept)
            primitives = simulation.simulated(share_up_to=share_up_to)
            messages, sums = play(params, primitives, seed, troubles)
        assert (messages, sums) == play(params, SAME, seed, troubles)
        seen.update([("kept", kept), ("shared", share_up_to)])
        for slot, result in enumerate(sums):
            whole = params.slots[slot].whole
            if isinstance(result, tuple):
                inputs = make_inputs(params, make_ids(params.num_invited), seed)
                right = result[0] == plain_sum(params, slot, inputs, result[1])
                seen.add(("sum", whole, right, result[2] is not None))
        seen.update(answer for _, (_, answer) in messages if isinstance(answer, Refusal))

    check()
    # Otherwise all sessions could have ended before masks were added.
    for whole in (False, True):
        assert {("sum", whole, True, False), ("sum", whole, False, False)} <= seen
    assert ("sum", True, True, True) in seen
    assert {Refusal.COHORT_GREW, Refusal.NOT_AGREED, Refusal.INCONSISTENT_SURVIVORS} & seen
    assert {("kept", kept) for kept in (None, 0, 1000, 3000)} <= seen
    assert {("shared", most) for most in (0, 2000, prg.MAX_BYTES)} <= seen


LONG, SHORT = (300, 40), (8, 64)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("length", "bits"), [LONG, SHORT])
@pytest.mark.parametrize("what", ["bindings", "members"])
def test_devices_that_are_shown_different_things_share_nothing(whole, length, bits, what):
    """One of six: what the others made is not its own, and what it made not theirs."""
    params = make_params(6, slots=((length, bits, whole),), min_cohort=3)
    odd, absent = make_ids(6)[:2]
    shown = {"bindings": {odd: b"another"}} if what == "bindings" else {"members": {odd: absent}}
    for order in range(4):
        troubles = {0: Trouble(**shown, order=order)}
        messages, sums = play(params, simulation.simulated(), 0, troubles)
        assert (messages, sums) == play(params, SAME, 0, troubles)
        inputs = make_inputs(params, make_ids(6), 0)
        if isinstance(sums[0], tuple):
            assert sums[0][0] != plain_sum(params, 0, inputs, sums[0][1])
        else:
            assert sums[0] is None or isinstance(sums[0], str)


def blind_to(what):
    """Masks that are shared though what devices were shown differs."""

    class Blind(NamedTuple):
        peer: int
        secret: bytes
        info: bytes

        def key(self):
            return keys.expand(self.secret, self.info)

    def add_pairwise(shared, total, position, pairs):
        honest(shared, total, position, [Blind(p.peer, p.secret, what) for p in pairs])

    honest = simulation.SharedMasks.add_pairwise
    return add_pairwise


def test_masks_that_are_shared_by_their_secret_alone_would_be_seen(monkeypatch):
    params = make_params(6, slots=((*SHORT, True),))
    plain = play(params, SAME, 0, {})
    assert play(params, simulation.simulated(), 0, {}) == plain
    monkeypatch.setattr(simulation.SharedMasks, "add_pairwise", blind_to(b"one for all"))
    assert play(params, simulation.simulated(), 0, {}) != plain


class Streams:
    """Counts the masks that are made."""

    def __init__(self, monkeypatch):
        self.made = 0
        stretch, both = prg.stretch, prg.add_both_signs

        def counted_stretch(seed, size):
            self.made += 1
            return stretch(seed, size)

        def counted_both(total, masks):
            self.made += len(masks)
            both(total, masks)

        monkeypatch.setattr(simulation.prg, "stretch", counted_stretch)
        monkeypatch.setattr(simulation.prg, "add_both_signs", counted_both)


@pytest.mark.parametrize(("length", "bits"), [LONG, SHORT])
@pytest.mark.parametrize(("kept", "pairs"), [(1 << 28, 15), (0, 30)])
def test_each_mask_is_made_once_while_there_is_memory(length, bits, kept, pairs, monkeypatch):
    """Fifteen pairs of six devices; without memory, both ends of each make it."""
    params = make_params(6, slots=((length, bits, True),))
    plain = play(params, SAME, 0, {})
    monkeypatch.setattr(simulation, "_KEPT_BYTES", kept)
    streams = Streams(monkeypatch)
    assert play(params, simulation.simulated(), 0, {}) == plain
    assert streams.made == pairs


@pytest.mark.parametrize(("share_up_to", "pairs"), [(2399, 0), (2400, 15)])
def test_longer_vectors_than_are_shared_are_masked_by_each_end(share_up_to, pairs, monkeypatch):
    params = make_params(6, slots=((300, 40, True),))
    plain = play(params, SAME, 0, {})
    streams = Streams(monkeypatch)
    assert play(params, simulation.simulated(share_up_to=share_up_to), 0, {}) == plain
    assert streams.made == pairs


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_memory_for_some_of_the_sums_is_never_exceeded(room, monkeypatch):
    params = make_params(8, slots=((300, 40, True),))
    total_bytes = 300 * 8
    plain = play(params, SAME, 0, {})
    monkeypatch.setattr(simulation, "_KEPT_BYTES", room * total_bytes)
    waiting = []
    honest = simulation.SharedMasks._sum_for

    def watched(shared, total, pair):
        found = honest(shared, total, pair)
        waiting.append(len(shared._waiting))
        return found

    monkeypatch.setattr(simulation.SharedMasks, "_sum_for", watched)
    assert play(params, simulation.simulated(), 0, {}) == plain
    assert max(waiting) == room


def test_what_waits_for_a_slot_is_forgotten_in_the_next():
    """A device that never came to ask leaves nothing for another slot."""
    masks = simulation.SharedMasks()
    secret, pair = bytes(32), b"k" * 64

    def add(position, peer, slot):
        total = np.zeros(300, dtype=np.uint64)
        masks.add_pairwise(total, position, [PairSecret(peer, secret, slot + pair)])
        return total

    first = add(0, 1, b"slot 0")
    assert masks._waiting.keys() == {1}
    add(2, 3, b"slot 1")
    assert masks._waiting.keys() == {3}
    assert np.array_equal(add(1, 0, b"slot 0"), np.uint64(0) - first)


@pytest.mark.parametrize("length", [2, 300])
def test_a_mask_is_forgotten_once_both_ends_have_it(length):
    masks = simulation.SharedMasks()
    kept = []
    for position, peer in ((0, 1), (1, 0), (2, 0)):  # 0 did not ask for a mask with 2, nor will it
        first, second = sorted((position, peer))
        pair = PairSecret(peer, bytes([first, second]) * 16, b"slot" + b"k" * 64)
        masks.add_pairwise(np.zeros(length, dtype=np.uint64), position, [pair])
        kept.append(len(masks._short) + len(masks._waiting))
    assert kept == ([1, 0, 1] if length == 2 else [1, 0, 0])


@pytest.mark.parametrize("length", [2, 300])
def test_a_device_that_asks_for_less_than_was_made_gets_no_more(length):
    """Others thought that it had them for peers; it has one peer of the three."""
    masks = simulation.SharedMasks()

    def pair(peer, own):
        low, high = sorted((peer, own))
        return PairSecret(peer, bytes([low, high]) * 16, b"slot" + b"k" * 64)

    for own in (1, 2, 3):
        masks.add_pairwise(np.zeros(length, dtype=np.uint64), own, [pair(0, own)])
    total, expected = np.zeros(length, dtype=np.uint64), np.zeros(length, dtype=np.uint64)
    masks.add_pairwise(total, 0, [pair(2, 0)])
    prg.add_masks(expected, [pair(2, 0).key()], [])
    assert np.array_equal(total, expected)


def examined(monkeypatch):
    """How often a sum is examined from now on."""
    asked = []
    honest = simulation.examine
    monkeypatch.setattr(simulation, "examine", lambda o: asked.append(o) or honest(o))
    return asked


def test_a_proof_is_examined_once_for_all_devices(monkeypatch):
    params = make_params(5, slots=((4, 24, True, True), (2, 24, True, True)))
    plain = play(params, SAME, 0, {})
    asked = examined(monkeypatch)
    assert play(params, simulation.simulated(), 0, {}) == plain
    assert [opening.spec.length for opening in asked] == [4, 2]


def test_what_was_found_of_one_sum_is_not_believed_of_another(monkeypatch):
    asked = examined(monkeypatch)
    shared = simulation.simulated()
    spec = SlotSpec("sum", 1, 24, whole=True, verified=True)
    context = SlotContext(b"s" * 32, b"slot")
    signer = Signer(identity(bytes(32)).public, bytes(32))

    def opening(**changes):
        packed = bytes(spec.packed_size)
        return replace(Opening(context, spec, packed, (signer,), (bytes(96),)), **changes)

    reason, _ = shared.examine(opening())
    assert reason is Refusal.BAD_SIGNATURE
    assert shared.examine(opening())[0] is reason  # equal, and not the very same
    assert len(asked) == 1
    nobody = {"signers": (), "committed": ()}
    assert shared.examine(opening(**nobody)) is None  # of nobody, nothing is the sum
    assert shared.examine(opening(**nobody)) is None
    assert len(asked) == 2
    one = bytes([1]) + bytes(spec.packed_size - 1)
    assert shared.examine(opening(**nobody, packed=one))[0] is Refusal.BAD_OPENING
    assert shared.examine(opening())[0] is Refusal.BAD_SIGNATURE
    assert len(asked) == 4
    assert shared.examine.cache_info().currsize == 1


def test_other_links_would_be_seen(monkeypatch):
    params = make_params(9)
    plain = play(params, SAME, 0)
    honest = links.link

    def link(session_id, low, high, num_slots):
        return honest(session_id, low, low, num_slots)

    monkeypatch.setattr(links, "link", link)
    assert play(params, simulation.simulated(), 0)[0] != plain[0]


class Counted:
    """`add_masks`, with its calls counted."""

    def __init__(self):
        self.calls = []

    def __call__(self, total, added, subtracted):
        self.calls.append((len(total), len(added), len(subtracted)))
        add_masks(total, added, subtracted)


def alone(add_masks):
    return Primitives(seal=sealed_once, add_masks=add_masks, add_pairwise=pairwise_with(add_masks))


def sharing_short_ones(add_masks):
    return simulation.simulated(add_masks, share_up_to=0)


@pytest.mark.parametrize(("make", "shares"), [(alone, False), (sharing_short_ones, True)])
def test_masks_are_added_by_what_the_parties_were_given(make, shares):
    params = make_params(6, slots=((4, 16), (300, 40), (3, 40, True)))
    counted = Counted()
    assert play(params, make(counted), 1) == play(params, SAME, 1)
    # The first slot: six devices with a self mask and five with others each, and the server, who
    # takes six off. The second, after which one is gone: its five masks with the others have to
    # come off as well. The third is whole, so nothing is unmasked. Short masks may be shared.
    calls = [(length, a + s) for length, a, s in counted.calls]
    first = [(4, 1)] * 6 if shares else [(4, 1), (4, 5)] * 6
    second = [(300, 1), (300, 5)] * 6 + [(300, 5 + 5)]
    assert calls == [*first, (4, 6), *second, *([] if shares else [(3, 4)] * 5)]


def test_masks_that_are_left_out_would_be_seen():
    params = make_params(6, slots=((4, 16), (300, 40)))

    def forgetful(total, added, subtracted):
        add_masks(total, added[1:], subtracted)

    messages, sums = play(params, alone(forgetful), 1)
    plain_messages, plain_sums = play(params, SAME, 1)
    assert messages != plain_messages
    assert not np.array_equal(sums[1][0], plain_sums[1][0])


@given(calls=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 15)), max_size=60))
@settings(max_examples=60)
def test_results_are_those_of_the_functions_in_any_order(calls):
    functions = (lambda data: data + b"!", len)
    arguments = [bytes([i // 2] * 2) for i in range(16)]  # each twice, as two objects or one
    results = SharedResults()
    for which, index in calls:
        expected = functions[which](arguments[index])
        assert results.apply(functions[which], arguments[index]) == expected
        assert len(results._kept) <= simulation._REMEMBERED


def test_a_result_comes_back_for_the_very_argument_only():
    asked = []
    record = asked.append
    results = SharedResults()
    argument = bytes(1000)
    equal = bytes(bytearray(argument))
    for given_ in (argument, argument, equal, argument, equal):
        results.apply(record, given_)
    assert [one is argument for one in asked] == [True, False]


def test_arguments_live_as_long_as_their_results():
    # Else another object in the place of one that is gone would be taken for it.
    results = SharedResults()
    for i in range(1000):
        assert results.apply(bytes.hex, i.to_bytes(2000)) == i.to_bytes(2000).hex()


def test_what_was_refused_once_is_refused_again():
    results, asked = SharedResults(), []

    def refuse(data):
        asked.append(data)
        raise DecodeError("refused")

    for _ in range(2):
        with pytest.raises(DecodeError, match="refused"):
            results.apply(refuse, b"a")
    assert len(asked) == 2


def test_devices_that_are_shown_different_openings_do_not_share_what_they_read():
    primitives = simulation.simulated()
    for params in [make_params(num_invited=3), make_params(num_invited=4)] * 2:
        ids = make_ids(params.num_invited)
        devices = Enrolment(SeededRandomness(bytes(32)))
        for i in ids:
            client = Client(i, POLICY, devices.credentials(i), primitives=primitives)
            client.receive(Server(params, ids, devices).start()[i])
            assert client.params == params
