"""Rounds with proved votes: whose answer is not valid is dropped by name, before it is added."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from flat_configs import changed_round
from round_parties import (
    POLICY,
    RoundParties,
    comparable,
    make_config,
    make_devices,
    make_params,
)

from deltafl.protocol import wire
from deltafl.protocol.client import RoundClient
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce
from deltafl.protocol.quantile.ballots import Voter
from deltafl.protocol.quantile.search import Ended
from deltafl.protocol.server import RoundServer
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import DecodeError, Fault, openings, pedersen
from deltafl.secagg import wire as session_wire
from deltafl.secagg.messages import MaskedInput
from deltafl.secagg.randomness import SeededRandomness

CONFIG = make_config(
    cohort_size=5, max_weight=6, max_queries=12, method="bracketed", verified=True, proved=True
)
HISTOGRAM = changed_round(CONFIG, method="histogram", num_pivots=3)
EVERY = {"bracketed": CONFIG, "histogram": HISTOGRAM}


def lying(parties, change, *, from_query=1):
    """The victim answers a query with something else, and commits to that."""
    machine = parties.machine
    honest, queries = machine._mask, 0

    def mask(vector, prove=None):
        nonlocal queries
        queries += prove is not None
        if prove is not None and queries >= from_query:
            vector = change(vector.copy())
        return honest(vector, prove)

    machine._mask = mask
    return parties


def replacing(change):
    """Another message instead of the victim's masked input."""

    def tampered(parties):
        honest = parties.machine._mask

        def mask(vector, prove=None):
            reply = honest(vector, prove)
            if prove is None:
                return reply
            return parties.encode(change(parties.decode(reply)))

        parties.machine._mask = mask
        return parties

    return tampered


def changed_packed(message):
    packed = bytearray(message.packed)
    packed[0] ^= 1
    return replace(message, packed=bytes(packed))


class Parties(RoundParties):
    def decode(self, data):
        return session_wire.decode(data, self.params)

    def encode(self, message):
        return session_wire.encode(message, self.params)

    def sums(self):
        """Play the round; each sum that the server learns, by slot, with who is in it."""
        found, outgoing = {}, self._logged(self.server.start())
        while outgoing:
            outgoing = self.exchange(outgoing)
            if self.server.revealed is not None:
                found[self.server.revealed.slot] = self.server.revealed
        return found


def answers(parties, query, devices):
    """The sum of some devices' honest answers."""
    config = parties.config
    total = sum(parties.devices[i].measured(config).answer(query) for i in devices)
    return (total & np.uint64(2**config.search_layout.ring_bits - 1)).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", list(EVERY))
@pytest.mark.parametrize("weighting", list(Weighting))
def test_honest_devices_get_the_same_outcome(name, weighting):
    proved = changed_round(EVERY[name], weighting=weighting, min_search_cohort=3)
    plain = changed_round(proved, proved=False)
    found, expected = (RoundParties(config).play() for config in (proved, plain))
    assert comparable(found) == comparable(expected)
    assert found.search.certified
    assert not found.drops


def test_devices_of_weight_zero_are_let_in():
    devices = make_devices(CONFIG)
    first = min(devices)
    devices[first] = replace(devices[first], weight=0)
    outcome = RoundParties(CONFIG, devices=devices).play()
    assert outcome.search.certified
    assert not outcome.drops


def twice(vector):
    return vector * np.uint64(2)


def one_more_vote(vector):
    vector[1] += np.uint64(1)
    return vector


def heavier_below(vector):
    size = (len(vector) - 2) // 2
    vector[2 : 2 + size] += np.uint64(1)
    return vector


def falling(vector):
    """Below the first pivot, and not below the last."""
    size = (len(vector) - 2) // 2
    vector[2:] = 0
    vector[2], vector[2 + size] = vector[0], 1
    return vector


def negative(vector):
    return -vector & np.uint64(2**CONFIG.search_layout.ring_bits - 1)


LIES = {
    "twice": twice,
    "one more vote": one_more_vote,
    "heavier below": heavier_below,
    "negative": negative,
    "falling": falling,
}


@pytest.mark.parametrize("lie", list(LIES))
@pytest.mark.parametrize("name", list(EVERY))
def test_a_liar_is_dropped_and_the_sum_of_the_others_is_right(name, lie):
    if (name, lie) == ("bracketed", "falling"):
        return  # one pivot cannot fall
    parties = lying(Parties(EVERY[name]), LIES[lie])
    query = parties.config.start_search().query
    found = parties.sums()
    [outcome] = parties.server.outcomes
    assert outcome.drops[parties.victim].fault is Fault.BAD_PROOF
    assert list(outcome.drops) == [parties.victim]
    others = sorted(set(parties.devices) - {parties.victim})
    assert list(found[0].contributors) == others
    assert found[0].vector.tolist() == answers(parties, query, others)
    assert outcome.search.certified
    assert outcome.update is not None
    for client in others:
        assert parties.clients[client].state.value == "updated"


@pytest.mark.parametrize("lie", ["one more vote", "negative"])
def test_without_proofs_the_same_lie_is_summed(lie):
    """The control."""
    parties = lying(Parties(changed_round(CONFIG, proved=False)), LIES[lie])
    honest_mask = parties.machine._mask

    def mask(vector, prove=None):
        first = parties.machine._session.slot == 0
        return honest_mask(LIES[lie](vector.copy()) if first else vector, prove)

    parties.machine._mask = mask
    query = parties.config.start_search().query
    found = parties.sums()
    assert list(found[0].contributors) == sorted(parties.devices)
    assert found[0].vector.tolist() != answers(parties, query, parties.devices)


def test_another_weight_in_a_later_query_ends_the_search_and_drops_the_liar():
    def lighter(vector):
        is_below = vector[2] > 0
        vector[0] = 1
        vector[2] = int(is_below)
        return vector

    devices = make_devices(CONFIG)
    victim = max(devices)
    devices[victim] = replace(devices[victim], weight=5)
    parties = lying(Parties(CONFIG, devices=devices), lighter, from_query=2)
    found = parties.sums()
    [outcome] = parties.server.outcomes
    assert outcome.drops[parties.victim].fault is Fault.BAD_PROOF
    assert outcome.search.ended is Ended.SHRANK
    assert outcome.search.num_queries == 1
    assert [slot for slot in found if slot < CONFIG.update_slot] == [0]
    assert outcome.update is not None


def without_proof(message):
    return replace(message, proof=bytes(len(message.proof)))


def other_scalar(message):
    return replace(message, proof=message.proof[:-1] + bytes([message.proof[-1] ^ 1]))


@pytest.mark.parametrize("change", [without_proof, other_scalar])
def test_a_proof_that_does_not_hold_drops_its_device(change):
    parties = replacing(change)(Parties(CONFIG))
    outcome = parties.play()
    assert outcome.drops[parties.victim].fault is Fault.BAD_PROOF
    assert outcome.search.certified


@pytest.mark.parametrize("more", [-1, 1, 32])
def test_a_proof_of_another_size_is_malformed(more):
    def resized(message):
        return replace(message, proof=(message.proof + bytes(32))[: len(message.proof) + more])

    parties = replacing(resized)(Parties(CONFIG))
    assert parties.play().drops[parties.victim].fault is Fault.MALFORMED


def test_the_input_of_another_device_is_refused():
    """Its commitment is signed by the other; with a signature of one's own, the proof is not."""
    parties = Parties(CONFIG)
    other = min(parties.devices)
    taken = []
    honest_others = parties.clients[other]._mask

    def note(vector, prove=None):
        reply = honest_others(vector, prove)
        if prove is not None and not taken:
            taken.append(parties.decode(reply))
        return reply

    parties.clients[other]._mask = note

    def copied(message):
        if message.slot != 0:
            return message
        signer = parties.enrolment.credentials(parties.victim).identity
        session = parties.machine._session
        point = taken[0].committed[:32]
        context = parties.server._session._open.context
        statement = openings.statement(context, point, session._phase.cohort.own.key)
        return replace(message, committed=point + signer.sign(statement), proof=taken[0].proof)

    outcome = replacing(copied)(parties).play()
    assert outcome.drops[parties.victim].fault is Fault.BAD_PROOF


def test_who_masks_another_answer_than_was_proved_spoils_the_sum():
    """As without proofs: the sum opens to nothing, and nobody can tell who it was."""
    outcome = replacing(changed_packed)(Parties(CONFIG)).play()
    assert "committed to another answer than it sent" in outcome.aborted
    assert not outcome.drops


def test_a_sum_that_cannot_be_proved_is_known_all_the_same():
    """The server has learnt it, so no other round asks for it over other devices."""
    parties = Parties(CONFIG)
    outcome = replacing(changed_packed)(parties).play()
    assert parties.server.revealed.slot == 0
    assert outcome.lost is None


@pytest.mark.slow
def test_levels_have_one_weight():
    """A device commits to its weight once in a session, and votes with it at every level."""
    parties = levels_of(CONFIG)
    parties.play()
    assert len(parties.server.outcomes) == 2
    assert all(one.search.certified for one in parties.server.outcomes)
    sent = [parties.decode(data) for data in parties.sent]
    sizes = [spec.proof_size for spec in parties.params.slots]
    starts = [0, CONFIG.update_slot + 1]
    assert [i for i, size in enumerate(sizes) if size == max(sizes)] == starts
    size = 32 * (CONFIG.update.max_weight - 1).bit_length()  # the commitments to parts
    by_level = [
        {m.proof[:size] for m in sent if isinstance(m, MaskedInput) and m.slot == start}
        for start in starts
    ]
    assert len(by_level[0]) == 5
    assert by_level[0] == by_level[1]


def levels_of(config):
    """A round of two levels."""
    parties = Parties(config)
    levels = Levels.at(config, [Fraction(4, 5), Fraction(1, 2)])
    models = bytes(range(16)) + bytes(range(1, 17))
    parties.params = make_params(
        config, models, slots=levels.slots(), context=levels.context(models)
    )
    parties.server = RoundServer(
        levels, models, parties.params, parties.devices, directory=parties.enrolment
    )
    for client in parties.devices:
        machine = RoundClient(
            client,
            POLICY,
            parties.enrolment.credentials(client),
            SeededRandomness(bytes([7, client]) * 16),
        )
        supply = machine.supply_losses
        machine.supply_loss = lambda loss, weight, supply=supply: supply([loss, loss], weight)
        parties.clients[client] = machine
    return parties


def test_the_blindings_of_the_weight_are_drawn_before_that_of_the_answer():
    """In this order two implementations with one seed answer with the same bytes."""
    parties, drawn = Parties(CONFIG), []
    query, machine = parties.until_asked().question, parties.machine
    honest = machine._randomness

    def recorded(size):
        drawn.append(honest(size))
        return drawn[-1]

    machine._randomness = machine._session._randomness = recorded
    answer = parties.decode(parties.answer(parties.victim, parties.pending[parties.victim]))
    numbers = [int.from_bytes(data, "little") % pedersen.ORDER for data in drawn]
    voter = machine._voter
    again = Voter.drawn(CONFIG.search_config, voter.weight, lambda _: drawn[0])
    assert voter.blindings == again.blindings
    vector = parties.devices[parties.victim].measured(CONFIG).answer(query).tolist()
    committed = [pedersen.commit(vector, number) for number in numbers]
    assert committed.index(answer.committed[:32]) == 1


def test_a_session_without_proofs_says_nothing_of_them():
    plain = changed_round(CONFIG, proved=False)
    assert plain.search.assurance == 1
    assert [spec.assurance for spec in plain.slots()][:2] == [1, 1]
    parties = RoundParties(plain)
    parties.play()
    inputs = [
        message
        for message in (session_wire.decode(data, parties.params) for data in parties.sent)
        if isinstance(message, MaskedInput)
    ]
    assert all(message.proof == b"" for message in inputs)


def test_the_announcement_says_so():
    configs = [CONFIG, changed_round(CONFIG, proved=False)]
    data, without = (wire.encode(Announce(Levels((c,)), b"model", b"session")) for c in configs)
    assert wire.decode(data).levels == Levels((CONFIG,))
    assert wire.decode(data).levels.common.search.proved
    assert not wire.decode(without).levels.common.search.proved
    (place,) = (i for i, (one, other) in enumerate(zip(data, without, strict=True)) if one != other)
    with pytest.raises(DecodeError):
        wire.decode(data[:place] + b"\x03" + data[place + 1 :])
