"""What a device refuses of a server that lies: each lie, its name, and that the round is over."""

from dataclasses import replace
from fractions import Fraction

import lenient
import numpy as np
import pytest
from lenient import no_query_needed  # noqa: F401
from round_parties import MODEL, POLICY, Point, RoundParties, assert_fails, make_config, make_params

from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.protocol.server import RoundServer
from deltafl.protocol.states import RoundState
from deltafl.secagg import (
    Adversary,
    Enrolment,
    Fault,
    PeerError,
    Refusal,
    Stage,
    UsageError,
)
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.messages import SessionOpen
from deltafl.secagg.randomness import SeededRandomness

CONFIG = make_config()
TOP_PIVOT = CONFIG.search.grid.top_pivot
ALL_PASS, NONE_PASS = Threshold(0, 0), Threshold(2**63 - 1, 0)
TO_DELIVERY, TO_QUERY, TO_THRESHOLD, TO_UNMASK = Point(2), Point(3), Point(5), Point(6)


def announcement(config=CONFIG, model=MODEL, params=None) -> bytes:
    params = params or make_params(config, model)
    session = session_wire.encode(SessionOpen(params), params)
    return wire.encode(Announce(Levels((config,)), model, session))


def device(policy=None, **knows) -> RoundClient:
    usual = RoundPolicy(**lenient.ROUNDS, min_cohort=3)
    return RoundClient(3, policy or usual, **knows)


def assert_refused(machine, data, reason, detail):
    assert_fails(machine, data, reason, detail)
    with pytest.raises(UsageError, match="ended"):
        machine.receive(data)


def at(point, **kwargs):
    """A round in which the victim stands at the point, and the envelope that it is to get."""
    parties = RoundParties(**kwargs)
    return parties, wire.decode(parties.bring(point))


# --- announcements ------------------------------------------------------------------------------


def test_an_honest_announcement_is_accepted():
    machine = device()
    assert machine.receive(announcement()) is LocalWork.MEASURE_LOSS
    assert machine.model == MODEL


OTHER_CONFIGS = {
    "round_index": 4,
    "cohort_size": 4,
    "theta": Fraction(1, 10),
    "method": "bracketed",
    "max_queries": 2,
    "grid": replace(CONFIG.search.grid, bound=9),
    "max_weight": 501,
    "update_length": 5,
    "update_clip": 4.5,
    "update_resolution_bits": 13,
    "warm_start": 700,
    "verified": True,
}


@pytest.mark.parametrize("name", OTHER_CONFIGS)
def test_a_session_bound_to_another_configuration_is_refused(name):
    other = make_config(**{name: OTHER_CONFIGS[name]})
    data = announcement(CONFIG, MODEL, make_params(other))
    assert_refused(device(), data, Refusal.MALFORMED, "not bound to this model and round")


def test_a_session_bound_to_another_model_is_refused():
    data = announcement(CONFIG, MODEL, make_params(CONFIG, b"another model"))
    assert_refused(device(), data, Refusal.MALFORMED, "not bound to this model and round")


def test_a_session_with_another_graph_seed_than_the_device_expects_is_refused():
    expecting = device(graph_seed=bytes(32))
    assert expecting.receive(announcement()) is LocalWork.MEASURE_LOSS
    refusing = device(graph_seed=b"\1" * 32)
    assert_refused(refusing, announcement(), Refusal.MALFORMED, "not the one that was expected")


SLOTS = CONFIG.slots()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_invited": 4},
        {"slots": SLOTS[:1]},
        {"slots": (*SLOTS, SLOTS[-1])},
        {"slots": SLOTS[::-1]},
        {"slots": (SLOTS[0], SLOTS[0])},
        {"slots": (SLOTS[0], replace(SLOTS[1], length=SLOTS[1].length + 1))},
        {"slots": (SLOTS[0], replace(SLOTS[1], ring_bits=SLOTS[1].ring_bits + 1))},
        {"slots": (replace(SLOTS[0], label="update"), SLOTS[1])},
        {"slots": (replace(SLOTS[0], whole=True), SLOTS[1])},
        {"slots": (SLOTS[0], replace(SLOTS[1], whole=True))},
    ],
)
def test_a_session_with_other_slots_or_devices_is_refused_although_its_context_fits(changes):
    data = announcement(params=make_params(CONFIG, **changes))
    assert_refused(device(), data, Refusal.MALFORMED, "not those of this round")


@pytest.mark.parametrize("session", [b"", b"session", b"\x93\x02\x22\xc4\x00"])
def test_an_announcement_without_a_session_is_refused(session):
    data = wire.encode(Announce(Levels((CONFIG,)), MODEL, session))
    assert_refused(device(), data, Refusal.MALFORMED, "msgpack|integer|string")


def test_the_longest_update_of_a_slot_is_accepted_and_a_longer_one_refused():
    longest = make_config(update_length=2**28 - 4)
    machine = device(replace(POLICY, max_length=2**28))
    assert machine.receive(announcement(longest)) is LocalWork.MEASURE_LOSS
    longer = announcement(longest).replace(
        (2**28 - 4).to_bytes(4, "big"), (2**28 - 3).to_bytes(4, "big"), 1
    )
    assert_refused(device(), longer, Refusal.MALFORMED, "lower update_length")


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (RoundPolicy(**lenient.ROUNDS, min_cohort=4), "min_cohort=3"),
        (RoundPolicy(**lenient.ROUNDS, min_cohort=3, colluding_rate=0.34), "without colluding"),
        (RoundPolicy(**lenient.ROUNDS, min_cohort=3, max_slots=1), "slots=2"),
        (RoundPolicy(**lenient.ROUNDS, min_cohort=3, max_length=7), "vector length=8"),
    ],
)
def test_a_session_below_the_policy_is_refused_before_a_byte_is_sent(policy, named):
    machine = device(policy)
    with pytest.raises(PeerError, match=named) as refused:
        machine.receive(announcement())
    assert refused.value.reason is Refusal.POLICY
    assert machine.state is RoundState.FAILED


def test_the_server_refuses_a_session_that_is_not_its_round():
    devices = (3, 10, 17)
    RoundServer(Levels((CONFIG,)), MODEL, make_params(CONFIG), devices)
    for params, named in (
        (make_params(CONFIG, b"another model"), "context"),
        (make_params(CONFIG, slots=SLOTS[::-1]), "slots"),
        (make_params(CONFIG, num_invited=4), "num_invited=4"),
    ):
        with pytest.raises(UsageError, match=named):
            RoundServer(Levels((CONFIG,)), MODEL, params, range(params.num_invited))


# --- questions ----------------------------------------------------------------------------------

QUERIES = {
    "another method": Query("bracketed", (5,)),
    "unknown method": Query("median", (5,)),
    "no pivot": Query("mm", ()),
    "two pivots": Query("mm", (5, 6)),
    "pivot above the grid": Query("mm", (TOP_PIVOT + 1,)),
    "pivot far above the grid": Query("mm", (2**64 - 1,)),
}


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_query_that_is_none_of_the_round_is_refused(query):
    parties, honest = at(TO_QUERY)
    data = wire.encode(replace(honest, question=query))
    assert_refused(parties.machine, data, Refusal.MALFORMED, "pivots")


@pytest.mark.parametrize("pivot", [0, 1, TOP_PIVOT])
def test_any_pivot_of_the_grid_is_answered(pivot):
    parties, honest = at(TO_QUERY)
    reply = parties.machine.receive(wire.encode(replace(honest, question=Query("mm", (pivot,)))))
    assert isinstance(reply, bytes)


@pytest.mark.parametrize("pivots", [(5, 4, 6), (5, 6), (5, 6, 7, 8), (0, 1, TOP_PIVOT + 1)])
def test_pivots_out_of_order_or_number_or_grid_are_refused(pivots):
    config = make_config(method="histogram", num_pivots=3)
    parties, honest = at(TO_QUERY, config=config)
    assert len(honest.question.pivots) == 3
    data = wire.encode(replace(honest, question=Query("histogram", pivots)))
    assert_refused(parties.machine, data, Refusal.MALFORMED, "pivots")


@pytest.mark.parametrize("threshold", [ALL_PASS, NONE_PASS])
def test_a_threshold_in_a_query_slot_is_refused(threshold):
    parties, honest = at(TO_QUERY)
    data = wire.encode(replace(honest, question=threshold))
    assert_refused(parties.machine, data, Refusal.OUT_OF_ORDER, "Threshold in slot 0")


@pytest.mark.parametrize(
    "config", [make_config(theta=Fraction(1)), make_config(min_search_cohort=4)]
)
def test_a_round_that_keeps_everybody_from_the_start_has_one_threshold(config):
    for threshold in (ALL_PASS, NONE_PASS, Threshold(1, 1)):
        parties, honest = at(TO_QUERY, config=config)
        data = wire.encode(replace(honest, question=threshold))
        if threshold is ALL_PASS:
            assert parties.machine.receive(data) is LocalWork.TRAIN
            assert parties.machine.tail is None
        else:
            assert_refused(parties.machine, data, Refusal.NOT_FOLLOWING, "where the sums give")


def test_a_query_in_the_update_slot_is_refused():
    parties, honest = at(TO_THRESHOLD)
    data = wire.encode(replace(honest, question=Query("mm", (5,))))
    assert_refused(parties.machine, data, Refusal.OUT_OF_ORDER, "Query in slot 1")


@pytest.mark.parametrize("first", [ALL_PASS, NONE_PASS])
@pytest.mark.parametrize("second", [ALL_PASS, NONE_PASS, Threshold(1, 1), Query("mm", (5,))])
@pytest.mark.parametrize("trained", [True, False])
def test_nothing_is_asked_after_the_threshold(first, second, trained):
    parties, honest = at(TO_THRESHOLD)
    reply = parties.machine.receive(wire.encode(replace(honest, question=first)))
    assert reply is (LocalWork.TRAIN if first is ALL_PASS else LocalWork.WAIT)
    if trained:
        parties.do(parties.victim, reply)
    data = wire.encode(replace(honest, question=second))
    if second == first:
        assert parties.machine.receive(data) is None  # a repetition
        return
    assert_refused(parties.machine, data, Refusal.OUT_OF_ORDER, type(second).__name__)


def test_a_device_that_fails_the_filter_never_says_so_by_asking_to_train():
    sizes = set()
    for threshold in (ALL_PASS, NONE_PASS):
        parties, honest = at(TO_THRESHOLD)
        reply = parties.answer(parties.victim, wire.encode(replace(honest, question=threshold)))
        sizes.add(len(reply))
        assert parties.machine.state is RoundState.UPDATED
    assert len(sizes) == 1


# --- one slot, one answer -----------------------------------------------------------------------


@pytest.mark.parametrize("unmasked", [False, True])
@pytest.mark.parametrize(
    "other", [Query("mm", (7,)), Query("mm", (901,)), ALL_PASS, Query("bracketed", (5,))]
)
def test_a_slot_opened_again_with_another_question_is_not_answered_again(other, unmasked):
    parties, honest = at(TO_QUERY)
    asked = replace(honest, question=Query("mm", (900,)))
    replies = {c: parties.answer(c, d) for c, d in parties.pending.items() if c != parties.victim}
    replies[parties.victim] = parties.answer(parties.victim, wire.encode(asked))
    assert isinstance(replies[parties.victim], bytes)
    if unmasked:
        outgoing = parties.collect(replies)
        assert isinstance(parties.machine.receive(outgoing[parties.victim]), bytes)
    # The session's own bytes are the same, so that it takes them for a repetition.
    again = wire.encode(Ask(other, asked.session))
    assert_refused(parties.machine, again, Refusal.OUT_OF_ORDER, "opens no slot")


@pytest.mark.parametrize("question", [Query("mm", (5,)), ALL_PASS])
def test_a_question_that_brings_shares_instead_of_a_slot_is_refused(question):
    parties, honest = at(TO_DELIVERY)
    data = wire.encode(Ask(question, honest.session))
    assert_refused(parties.machine, data, Refusal.OUT_OF_ORDER, "opens no slot")


def test_a_question_before_the_shares_is_refused():
    parties, _ = at(TO_DELIVERY)
    others, asked = at(TO_QUERY)
    assert others.params == parties.params
    data = wire.encode(asked)
    assert_refused(parties.machine, data, Refusal.OUT_OF_ORDER, "in state shared")


@pytest.mark.parametrize("point", [TO_QUERY, TO_THRESHOLD])
def test_a_slot_that_is_opened_without_a_question_is_refused(point):
    parties, honest = at(point)
    relayed = wire.encode(Relay(honest.session))
    assert_refused(parties.machine, relayed, Refusal.OUT_OF_ORDER, "opened without a question")


def test_a_repeated_question_gets_no_second_answer():
    parties, honest = at(TO_QUERY)
    data = wire.encode(honest)
    assert isinstance(parties.machine.receive(data), bytes)
    assert parties.machine.receive(data) is None
    assert parties.machine.state is RoundState.SEARCHING


@pytest.mark.parametrize("session", ["nothing", "an old one"])
def test_a_question_that_opens_no_slot_is_refused(session):
    parties, honest = at(TO_THRESHOLD)
    sessions = {
        "nothing": b"",
        "an old one": wire.decode(parties.taken[3]).session,
    }
    data = wire.encode(Ask(ALL_PASS, sessions[session]))
    assert honest.session != sessions[session]
    reason = Refusal.MALFORMED if session == "nothing" else Refusal.OUT_OF_ORDER
    assert_refused(parties.machine, data, reason, "msgpack|opens no slot")


def test_a_question_of_another_session_is_ignored():
    parties, honest = at(TO_THRESHOLD)
    other = make_params(CONFIG, graph_seed=b"\1" * 32)
    delayed = Ask(ALL_PASS, session_wire.encode(SessionOpen(other), other))
    remembered = len(parties.machine._seen)
    assert parties.machine.receive(wire.encode(delayed)) is None
    assert len(parties.machine._seen) == remembered  # or others would fill the device's memory
    assert parties.machine.receive(wire.encode(honest)) is not None


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_slot_of_the_past_is_not_opened_again_for_other_devices(slot):
    config = make_config(max_queries=2)
    parties, params = RoundParties(config), make_params(config)
    parties.play()
    assert parties.machine.state is RoundState.UPDATED
    opened = session_wire.decode(wire.decode(parties.taken[3]).session, params)
    again = replace(opened, slot=slot, members=np.array([True, False, True]))
    data = wire.encode(Relay(session_wire.encode(again, params)))
    assert_refused(parties.machine, data, Refusal.SLOT_REUSED, f"slot {slot} after slot 2")


def test_the_sessions_refusal_ends_the_round():
    parties, honest = at(TO_UNMASK)
    request = session_wire.decode(honest.session, make_params(CONFIG))
    left_out = replace(request, survivors=np.array([True, True, False]))
    data = wire.encode(Relay(session_wire.encode(left_out, make_params(CONFIG))))
    assert_refused(parties.machine, data, Refusal.DEVICE_LEFT_OUT, "position 2")


# --- signed sessions ----------------------------------------------------------------------------

SIGNED = make_params(CONFIG, signed=True)
TO_CHECK, TO_SIGNED_UNMASK = Point(7), Point(8)  # of the update


def test_a_device_without_an_identity_refuses_a_signed_session():
    machine = device()
    assert machine.receive(announcement(params=SIGNED)) is LocalWork.MEASURE_LOSS
    with pytest.raises(PeerError, match="the device has no identity") as refused:
        machine.supply_loss(1.0, 5)
    assert refused.value.reason is Refusal.POLICY
    assert machine.state is RoundState.FAILED


def test_a_device_that_insists_on_signatures_refuses_a_session_without():
    machine = device(replace(POLICY, adversary=Adversary.ACTIVE))
    with pytest.raises(PeerError, match="not signed") as refused:
        machine.receive(announcement(make_config(theta=Fraction(1))))
    assert refused.value.reason is Refusal.POLICY


@pytest.mark.parametrize(
    ("config", "policy", "accepted"),
    [
        (CONFIG, {}, False),
        (make_config(verified=True), {}, True),
        (CONFIG, {"adversary": Adversary.CURIOUS}, True),
        (make_config(theta=Fraction(1)), {}, True),  # no query is asked
        (make_config(max_queries=0), {}, False),
        (make_config(min_search_cohort=4), {}, True),
        (make_config(min_search_cohort=3), {}, False),
    ],
)
def test_a_device_that_assumes_an_active_server_answers_only_what_it_can_check(
    config, policy, accepted
):
    machine = device(replace(POLICY, **{"adversary": Adversary.ACTIVE, **policy}))
    data = announcement(config, params=make_params(config, signed=True))
    if accepted:
        assert machine.receive(data) is LocalWork.MEASURE_LOSS
    else:
        assert_refused(machine, data, Refusal.POLICY, "the search is not verified")


def test_a_signed_round_needs_a_directory():
    with pytest.raises(UsageError, match="directory"):
        RoundServer(Levels((CONFIG,)), MODEL, SIGNED, (3, 10, 17))


def relayed(envelope, **changes) -> bytes:
    """A message of the signed session with some of its fields changed, in its envelope."""
    message = replace(session_wire.decode(envelope.session, SIGNED), **changes)
    return wire.encode(Relay(session_wire.encode(message, SIGNED)))


def test_a_second_list_of_survivors_ends_the_round():
    parties, check = at(TO_CHECK, config=make_config(cohort_size=4), signed=True)
    params = parties.params
    message = session_wire.decode(check.session, params)
    assert isinstance(parties.machine.receive(wire.encode(check)), bytes)
    fewer = replace(message, survivors=np.array([False, True, True, True]))
    data = wire.encode(Relay(session_wire.encode(fewer, params)))
    assert_refused(parties.machine, data, Refusal.INCONSISTENT_SURVIVORS, "confirmed")


def test_too_few_signatures_end_the_round():
    parties, request = at(TO_SIGNED_UNMASK, signed=True)
    signatures = dict(session_wire.decode(request.session, SIGNED).signatures)
    assert len(signatures) == SIGNED.threshold
    signatures.popitem()
    data = relayed(request, signatures=signatures)
    assert_refused(parties.machine, data, Refusal.TOO_FEW_SIGNATURES, "1, fewer than t = 2")


def test_the_signatures_as_they_came_are_enough():
    parties, request = at(TO_SIGNED_UNMASK, signed=True)
    assert isinstance(parties.machine.receive(relayed(request)), bytes)


def test_signatures_of_a_query_do_not_unmask_the_update():
    parties, request = at(TO_SIGNED_UNMASK, signed=True)
    earlier = session_wire.decode(wire.decode(parties.taken[5]).session, SIGNED)
    data = relayed(request, signatures=earlier.signatures)
    assert_refused(parties.machine, data, Refusal.BAD_SIGNATURE, "the list of devices")


@pytest.mark.usefixtures("no_query_needed")
def test_who_was_shown_another_question_signs_what_others_do_not():
    parties = RoundParties(make_config(cohort_size=4, max_queries=0), signed=True)
    parties.bring(Point(3))

    def tamper(client, data):
        envelope = wire.decode(data)
        if client == parties.victim:
            return wire.encode(replace(envelope, question=NONE_PASS))
        return data

    checks = parties.exchange(parties.pending, tamper)
    outcome = parties.play(checks)
    assert parties.server.outcomes == (outcome,)
    drop = outcome.drops[parties.victim]
    assert (drop.fault, drop.step.stage) == (Fault.BAD_SIGNATURE, Stage.CONFIRM)
    # The others unmask the sum without it; its own mask binds it to the other question.
    assert outcome.update is None
    assert "some device did not encode by this layout" in outcome.aborted


# --- one session for a round --------------------------------------------------------------------


def announced_twice(first, second, *, signed=True):
    """A device that is to join a round's second session, and has answered in the first meanwhile.

    Args:
        first: The first round's configuration.
        second: Changes of the second round's session, with `config` for another configuration.
    """
    enrolment = Enrolment(SeededRandomness(bytes(32)))
    config = second.pop("config", first)
    params, ledger = make_params(config, signed=signed, **second), enrolment.ledger(3)
    machine = RoundClient(
        3, POLICY, credentials=enrolment.credentials_for(3, params), ledger=ledger
    )
    assert machine.receive(announcement(config, params=params)) is LocalWork.MEASURE_LOSS
    assert ledger.admit([make_params(first, signed=signed).context])
    return machine


ANOTHER_SESSION = [{}, {"graph_seed": b"\1" * 32}, {"threshold": 3}]


@pytest.mark.parametrize("changes", ANOTHER_SESSION)
def test_a_device_with_an_identity_is_in_one_session_of_a_round(changes):
    machine = announced_twice(CONFIG, dict(changes))
    with pytest.raises(PeerError, match="took part in one of the same context") as refused:
        machine.supply_loss(1.0, 5)
    assert refused.value.reason is Refusal.SESSION_REPEATED
    assert machine.state is RoundState.FAILED


def test_a_round_that_the_server_numbers_differently_is_another_session():
    """Until one of the two has been answered; see `test_protocol_client.py`."""
    machine = announced_twice(CONFIG, {"config": make_config(round_index=4)})
    assert isinstance(machine.supply_loss(1.0, 5), bytes)


@pytest.mark.parametrize("changes", ANOTHER_SESSION)
def test_without_an_identity_a_device_forgets_the_sessions_that_it_joined(changes):
    machine = announced_twice(CONFIG, dict(changes), signed=False)
    assert isinstance(machine.supply_loss(1.0, 5), bytes)


def test_a_weight_that_cannot_be_encoded_does_not_use_up_the_round():
    parties = RoundParties(signed=True)
    parties.bring(Point(1, task_done=False))
    with pytest.raises(EncodingError):
        parties.machine.supply_loss(1.0, -5)
    assert isinstance(parties.machine.supply_loss(1.0, 5), bytes)
