"""A search is over one cohort: whoever is missing from a later query, from that there is no sum.

The server's machine gives the slot up by itself. The masks see to it that it does: they cancel over
all devices that were agreed on, and devices answer for no others, because a sum over one device
fewer would reveal that device's answer. Vectors that are not missed: those of the first query,
which sets the cohort, and of the update. Where a round says how many devices a search needs, those
of the first query are missed too, and devices answer no query over fewer.
"""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from flat_configs import changed_round
from round_parties import Point, RoundParties, assert_fails, make_config

from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork
from deltafl.protocol.messages import Ask, Relay
from deltafl.protocol.quantile.search import Ended, Query
from deltafl.protocol.round import Round
from deltafl.protocol.selection import Threshold
from deltafl.protocol.states import RoundState
from deltafl.secagg import (
    Client,
    PeerError,
    Refusal,
    Server,
    SessionAborted,
    SlotSum,
    Stage,
    Step,
)
from deltafl.secagg import wire as session_wire
from deltafl.secagg.messages import ConsistencyCheck, OpenSlot, UnmaskRequest

CONFIG = make_config(cohort_size=5, max_queries=6)
IDS = (3, 10, 17, 24, 31)
ABSENT = 3
EVERYBODY = np.ones(5, dtype=np.bool_)
OTHERS = np.arange(5) > 0  # without the absent device
ALL_PASS, NONE_PASS = Threshold(0, 0), Threshold(2**63 - 1, 0)


def to_question(slot: int, *, least: int = 0) -> Point:
    """Before the question of a slot; all earlier ones were answered, and unmasked if tolerant."""
    if slot == 0:
        return Point(4 if least else 3)
    return Point(3 + slot + (1 if least else 2))


def at(point, *, least=0, **changes):
    """A round in which the victim stands at the point, and the envelope that it is to get."""
    config = changed_round(CONFIG, min_search_cohort=least, **changes)
    parties = RoundParties(config)
    assert tuple(parties.devices) == IDS
    return parties, wire.decode(parties.bring(point))


def asked(slot, *, least=0):
    """A round in which the victim is to get the question of a slot."""
    parties, honest = at(to_question(slot, least=least), least=least)
    assert isinstance(honest.question, Query)
    assert session_wire.decode(honest.session, parties.params).slot == slot
    return parties, honest


def edited(parties, envelope, **changes) -> bytes:
    """The envelope with some fields of its session's message changed."""
    message = replace(session_wire.decode(envelope.session, parties.params), **changes)
    session = session_wire.encode(message, parties.params)
    return wire.encode(replace(envelope, session=session))


def assert_refused(machine, data, detail, reason=Refusal.NOT_AGREED):
    assert_fails(machine, data, reason, detail)


def lose(parties, outgoing):
    """Let all but the absent device answer, and close the round trip."""
    return parties.collect({c: parties.answer(c, d) for c, d in outgoing.items() if c != ABSENT})


# --- devices ------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0, 4])
@pytest.mark.parametrize("slot", [1, 2])
def test_a_later_query_over_fewer_devices_is_refused(slot, least):
    parties, honest = asked(slot, least=least)
    data = edited(parties, honest, members=OTHERS)
    assert_refused(parties.machine, data, "not the devices of the last list")


@pytest.mark.parametrize("least", [0, 4])
@pytest.mark.parametrize("slot", [1, 2])
def test_a_later_query_over_the_same_devices_is_answered(slot, least):
    parties, honest = asked(slot, least=least)
    data = edited(parties, honest, members=EVERYBODY)
    assert isinstance(parties.machine.receive(data), bytes)


def test_the_first_query_may_be_over_fewer_devices_than_sent_shares():
    parties, honest = asked(0)
    assert isinstance(parties.machine.receive(edited(parties, honest, members=OTHERS)), bytes)


def test_the_first_list_of_whole_queries_may_be_over_fewer_devices_than_sent_shares():
    parties, honest = asked(0, least=4)
    assert isinstance(parties.machine.receive(edited(parties, honest, members=OTHERS)), bytes)


@pytest.mark.parametrize("threshold", [ALL_PASS, NONE_PASS])
def test_the_update_may_be_over_fewer_devices_than_the_search(threshold):
    parties, honest = asked(2)
    update = replace(honest, question=threshold)
    data = edited(parties, update, slot=CONFIG.update_slot, members=OTHERS)
    reply = parties.machine.receive(data)
    assert reply is (LocalWork.TRAIN if threshold is ALL_PASS else LocalWork.WAIT)


def test_the_cohort_of_the_search_is_those_whose_first_answer_arrived():
    parties, _ = asked(0)
    outgoing = lose(parties, parties.pending)
    while not isinstance(wire.decode(outgoing[parties.victim]), Ask):
        outgoing = parties.exchange(outgoing)
    honest = wire.decode(outgoing[parties.victim])
    opened = session_wire.decode(honest.session, parties.params)
    assert (opened.slot, opened.members.tolist()) == (1, OTHERS.tolist())
    still_fewer = OTHERS & (np.arange(5) != 1)
    data = edited(parties, honest, members=still_fewer)
    assert_refused(parties.machine, data, "not the devices of the last list")
    for client in (10, 17, 24):
        assert isinstance(parties.answer(client, outgoing[client]), bytes)


@pytest.mark.slow
@pytest.mark.parametrize(("least", "slot"), [(0, 1), (0, 2), (4, 0), (4, 1)])
def test_a_whole_query_is_never_unmasked(least, slot):
    """Its masks cancel by themselves, and the server gets nothing else about it."""
    refused = {Refusal.OUT_OF_ORDER, Refusal.BOTH_SHARE_KINDS, Refusal.INCONSISTENT_SURVIVORS}
    kinds = (ConsistencyCheck, UnmaskRequest)
    for kind, of_slot, survivors in product(
        kinds, (slot, slot + 1, CONFIG.update_slot), (OTHERS, EVERYBODY)
    ):
        parties, honest = asked(slot, least=least)
        assert isinstance(parties.machine.receive(wire.encode(honest)), bytes)
        data = session_wire.encode(kind(of_slot, survivors), parties.params)
        if data in [wire.decode(taken).session for taken in parties.taken]:
            assert parties.machine.receive(wire.encode(Relay(data))) is None  # a repetition
            continue
        with pytest.raises(PeerError) as refusal:
            parties.machine.receive(wire.encode(Relay(data)))
        assert refusal.value.reason in refused


def test_a_first_query_that_is_tolerant_is_unmasked_over_those_who_answered():
    parties, honest = at(Point(4))
    message = session_wire.decode(honest.session, parties.params)
    assert isinstance(message, ConsistencyCheck)
    data = edited(parties, honest, survivors=OTHERS)
    assert isinstance(parties.machine.receive(data), bytes)


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_query_over_fewer_devices_than_a_search_needs_is_refused(slot):
    """Before it, or in a signed session the list that the devices are to sign, is shortened."""
    for least in (5, 4):
        if slot == 0:
            parties, _ = at(Point(3), least=least)
            outgoing = {
                c: edited(parties, wire.decode(data), survivors=OTHERS)
                for c, data in parties.pending.items()
                if c != ABSENT
            }
            signatures = signatures_of(parties, outgoing)
            opened = OpenSlot(0, OTHERS, signatures)
            session = session_wire.encode(opened, parties.params)
            data = wire.encode(Ask(parties.server._rounds.question, session))
        else:
            parties, honest = asked(slot, least=least)
            data = edited(parties, honest, members=OTHERS)
        if slot:
            assert_refused(parties.machine, data, "not the devices of the last list")
        elif least == 5:
            detail = "a query over 4 devices, fewer than 5"
            assert_refused(parties.machine, data, detail, Refusal.COHORT_TOO_SMALL)
        else:
            assert isinstance(parties.machine.receive(data), bytes)


def signatures_of(parties, checks):
    """What devices sign of the lists that they are shown, for the victim: t of them."""
    signatures = {}
    for client, data in checks.items():
        reply = parties.answer(client, data)
        signature = session_wire.decode(reply, parties.params).signature
        signatures[IDS.index(client)] = signature
    return dict(list(signatures.items())[-parties.params.threshold :])


def test_leaving_out_the_first_slot_does_not_help():
    parties, honest = asked(0, least=5)
    data = edited(parties, honest, slot=1, members=OTHERS)
    assert_refused(parties.machine, data, "fewer than 5", Refusal.COHORT_TOO_SMALL)


def test_leaving_out_the_slot_that_was_listed_is_refused():
    parties, honest = asked(0, least=4)
    data = edited(parties, honest, slot=1)
    assert_refused(parties.machine, data, "no list of devices was signed")


def test_a_whole_query_over_other_devices_than_were_listed_is_refused():
    parties, honest = asked(0, least=4)
    data = edited(parties, honest, members=OTHERS)
    assert_refused(
        parties.machine, data, "not the list that was signed", Refusal.INCONSISTENT_SURVIVORS
    )


def test_a_whole_query_that_too_few_have_signed_is_refused():
    for missing in (0, 1):
        parties, honest = asked(0, least=4)
        message = session_wire.decode(honest.session, parties.params)
        signatures = dict(list(message.signatures.items())[missing:])
        data = edited(parties, honest, signatures=signatures)
        if missing:
            reason = Refusal.TOO_FEW_SIGNATURES
            assert_refused(parties.machine, data, "1, fewer than t = 2", reason)
        else:
            assert isinstance(parties.machine.receive(data), bytes)


def test_the_update_may_be_over_fewer_devices_than_a_search_needs():
    parties, _ = at(Point(3), least=5)
    opened = OpenSlot(CONFIG.update_slot, OTHERS)
    session = session_wire.encode(opened, parties.params)
    assert parties.machine.receive(wire.encode(Ask(ALL_PASS, session))) is LocalWork.TRAIN


@pytest.mark.parametrize("least", [0, 4])
def test_the_update_is_unmasked_over_those_who_are_left(least):
    parties, _ = asked(0, least=least)
    outgoing = parties.pending
    while not isinstance(getattr(wire.decode(outgoing[parties.victim]), "question", 0), Threshold):
        outgoing = parties.exchange(outgoing)
    honest = lose(parties, outgoing)[parties.victim]
    message = session_wire.decode(wire.decode(honest).session, parties.params)
    assert (message.slot, message.survivors.tolist()) == (CONFIG.update_slot, OTHERS.tolist())
    assert isinstance(parties.machine.receive(honest), bytes)


@pytest.mark.parametrize("question", [None, ALL_PASS])
def test_after_a_slot_without_a_sum_a_device_answers_the_threshold_only(question):
    parties, honest = asked(1)
    assert isinstance(parties.machine.receive(wire.encode(honest)), bytes)
    # The absent device did not answer: there is no sum, and the next slot is opened.
    following = replace(honest, question=question or honest.question)
    slot = CONFIG.update_slot if question else 2
    data = edited(parties, following, slot=slot, members=OTHERS)
    if question:
        assert parties.machine.receive(data) is LocalWork.TRAIN
    else:
        assert_refused(parties.machine, data, "not the devices of the last list")


def test_no_relay_opens_a_slot_before_its_question_comes():
    """Else the query would find no more devices before it than in it."""
    parties, honest = asked(1)
    with pytest.raises(PeerError, match="opened without a question") as refused:
        parties.machine.receive(wire.encode(Relay(honest.session)))
    assert refused.value.reason is Refusal.OUT_OF_ORDER
    assert parties.machine.state is RoundState.FAILED


@pytest.mark.parametrize("checked", [True, False])
def test_who_vanishes_between_two_queries_is_their_difference_but_for_the_devices(
    checked, monkeypatch
):
    """The server asks one question again and again, and goes on when a device has vanished."""
    sums = []

    def ask_again(round_, revealed):
        sums.append(revealed.vector.astype(np.uint64))
        round_._num_sums += 1

    def go_on(round_):
        round_._num_sums += 1

    def agree_anew(client, message):
        client._formed.shrink(message.members)
        client._agreed = message.members

    monkeypatch.setattr(Round, "take", ask_again)
    monkeypatch.setattr(Round, "lose", go_on)
    monkeypatch.setattr(Server, "can_sum", lambda *_: True)
    if not checked:
        monkeypatch.setattr(Client, "_agree", agree_anew)
    parties, _ = asked(1)
    question = parties.server._rounds.question
    parties.pending = parties.exchange(parties.pending)  # a sum over all five
    parties.server._session._agreed = None  # the server is to list anew who is left
    outgoing = lose(parties, parties.pending)
    parties.server._session._agreed = None
    if checked:
        with pytest.raises(PeerError) as refused:
            parties.exchange(outgoing)
        assert refused.value.reason is Refusal.NOT_AGREED
        return
    parties.exchange(outgoing)
    all_five, other_four = sums[-2:]
    absent = parties.devices[ABSENT].measured(CONFIG)
    difference = (all_five - other_four) & np.uint64(2**CONFIG.search_layout.ring_bits - 1)
    np.testing.assert_array_equal(difference, absent.answer(question))


# --- the server ---------------------------------------------------------------------------------


def test_a_slot_without_a_sum_is_followed_by_the_threshold():
    parties, _ = asked(1)
    outgoing = lose(parties, parties.pending)
    assert set(outgoing) == set(IDS) - {ABSENT}
    envelopes = {wire.decode(data) for data in outgoing.values()}
    assert {type(envelope.question) for envelope in envelopes} == {Threshold}
    opened = session_wire.decode(envelopes.pop().session, parties.params)
    assert (opened.slot, opened.members.tolist()) == (CONFIG.update_slot, OTHERS.tolist())
    outcome = parties.play(outgoing)
    assert outcome.search.ended is Ended.SHRANK
    assert (outcome.search.num_queries, outcome.secure_sums) == (1, 2)
    assert outcome.drops[ABSENT].step == Step(Stage.MASK, 1)
    assert outcome.aborted is None
    assert outcome.kept_devices > 0


def test_an_answer_that_comes_after_its_slot_was_given_up_changes_nothing():
    late, silent = (asked(1)[0] for _ in range(2))
    question = late.pending[ABSENT]
    outcomes = []
    for parties in (late, silent):
        outgoing = lose(parties, parties.pending)
        if parties is late:
            parties.server.receive(ABSENT, parties.answer(ABSENT, question))
        outcomes.append(parties.play(outgoing))
    one, other = outcomes
    assert one.search == other.search
    assert one.drops == other.drops
    np.testing.assert_array_equal(one.update, other.update)


def test_a_round_that_loses_its_first_answer_goes_on_without_a_search():
    round_ = Round(replace(CONFIG, warm_start=100))
    round_.lose()
    assert isinstance(round_.question, Threshold)
    assert round_.slot == CONFIG.update_slot
    found = round_.outcome({}).search
    assert (found.ended, found.certified, found.num_queries) == (Ended.SHRANK, False, 0)


def test_where_too_few_are_left_before_the_first_query_the_server_asks_for_updates():
    for least, question in ((4, Query), (5, Threshold)):
        parties, _ = at(Point(2), least=least)
        outgoing = lose(parties, parties.pending)  # no receipt comes from the absent device
        if question is Query:
            outgoing = parties.exchange(outgoing)  # which lists the devices that are left
        envelopes = [wire.decode(data) for data in outgoing.values()]
        assert {type(envelope.question) for envelope in envelopes} == {question}
        if question is Threshold:
            assert envelopes[0].question == ALL_PASS
            outcome = parties.play(outgoing)
            assert outcome.search.ended is Ended.TOO_FEW
            assert (outcome.kept_devices, outcome.secure_sums) == (4, 1)


def test_too_few_are_noticed_before_the_first_question_only():
    round_ = Round(changed_round(CONFIG, min_search_cohort=4, warm_start=100))
    for enough in (5, 4):
        round_.assemble(enough)
        round_.check_opened(range(enough))
        assert isinstance(round_.question, Query)
    with pytest.raises(SessionAborted, match=r"3 devices are left.*min_search_cohort is 4"):
        round_.check_opened(range(3))
    round_.assemble(3)
    assert round_.question == ALL_PASS
    assert round_.slot == CONFIG.update_slot
    round_.check_opened(range(3))  # the update may be over fewer
    found = round_.outcome({}).search
    assert (found.ended, found.certified, found.num_queries) == (Ended.TOO_FEW, False, 0)
    assert found.passes(0)


def test_a_round_that_loses_an_answer_keeps_what_it_found_before():
    devices = [RoundParties(CONFIG).devices[i].measured(CONFIG) for i in IDS]

    def take(round_):
        total = sum(device.answer(round_.question) for device in devices)
        total &= np.uint64(2**CONFIG.search_layout.ring_bits - 1)
        round_.take(SlotSum(round_.slot, total, IDS, IDS))

    lost, full = Round(CONFIG), Round(CONFIG)
    for round_ in (lost, full):
        take(round_)
        take(round_)
    assert lost.question == full.question
    assert isinstance(lost.question, Query)
    assert lost.slot == 2
    lost.lose()
    found = lost.outcome({}).search
    assert (found.ended, found.num_queries) == (Ended.SHRANK, 2)
    assert lost.outcome({}).secure_sums == 2
    assert lost.question == found.threshold
    while isinstance(full.question, Query):
        take(full)
    assert full.outcome({}).search.ended is not Ended.SHRANK
