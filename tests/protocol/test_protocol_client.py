"""In which rounds a device answers for a model, and that it remembers each before it answers."""

import gc
from dataclasses import replace
from fractions import Fraction
from types import FunctionType, ModuleType

import lenient
import numpy as np
import pytest
from flat_configs import changed_round
from lenient import no_query_needed  # noqa: F401
from round_parties import (
    MODEL,
    POLICY,
    Device,
    Point,
    RoundParties,
    assert_fails,
    make_config,
    make_params,
)

from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.labels import Label
from deltafl.protocol.levels import Levels
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce, Ask
from deltafl.protocol.participations import limits_of
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.server import RoundServer
from deltafl.protocol.states import RoundState
from deltafl.secagg import Enrolment, LedgerError, MemoryLedger, Refusal
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.labels import digest
from deltafl.secagg.messages import SessionOpen
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ClientState

CONFIG = make_config(max_queries=2)
OTHER_MODEL = b"another model..."
THETAS = (Fraction(1, 2), Fraction(1, 3))
VICTIM = 17
ACTIVE = lenient.trusting(POLICY)
ONCE = replace(POLICY, max_rounds_per_model=1)

signed_or_not = pytest.mark.parametrize("signed", [False, True])
in_one_round = pytest.mark.parametrize(
    ("policy", "signed"),
    [(ONCE, False), (ONCE, True), (ACTIVE, True)],
    ids=["once", "once, signed", "active"],
)
"""Devices that answer for a model in one round; an active server's is signed."""


def entry(model) -> bytes:
    return digest(Label.MODEL, model)


def round_entry(config, model, number) -> bytes:
    """What is remembered of the n-th round over a model, counted from 0."""
    settings = digest(Label.AGAIN, replace(config, round_index=0).canonical())
    return digest(Label.AGAIN, entry(model), settings, number)


def announcement(levels, models, signed=False) -> bytes:
    params = make_params(
        levels.common,
        slots=levels.slots(),
        context=levels.context(models),
        threshold=levels.common.cohort_size // 2 + 1,
        signed=signed,
    )
    session = session_wire.encode(SessionOpen(params), params)
    return wire.encode(Announce(levels, models, session))


def machine_with(ledger, policy=POLICY) -> RoundClient:
    return RoundClient(VICTIM, policy, SeededRandomness(b"r" * 32), ledger=ledger)


def ledger_after(point, **others):
    """What the device remembers when it stands at the point of a round."""
    parties = RoundParties(CONFIG, **others)
    parties.bring(point)
    return parties.enrolment.ledger(VICTIM)


def task_of(parties) -> LocalWork:
    """The task that the device under test was given last."""
    measures = parties.machine.state is RoundState.MEASURING
    return LocalWork.MEASURE_LOSS if measures else LocalWork.TRAIN


# --- a second round -----------------------------------------------------------------------------

ROUNDS = {
    "the same": CONFIG,
    "another number": replace(CONFIG, round_index=4),
    "another level": replace(CONFIG, theta=Fraction(1, 3)),
    "a warm start": replace(CONFIG, warm_start=700),
    "another method": make_config(method="bracketed", max_queries=2),
    "no query": replace(CONFIG, theta=Fraction(1)),
    "a larger cohort": replace(CONFIG, cohort_size=4),
    "a larger tail": replace(CONFIG, min_tail=1),
    "more queries": changed_round(CONFIG, max_queries=3),
    "another clip": changed_round(CONFIG, update_clip=2.0),
}
SAME = ("the same", "another number")
OTHERS = [name for name in ROUNDS if name not in SAME]


@in_one_round
@pytest.mark.parametrize("config", ROUNDS.values(), ids=ROUNDS)
def test_a_second_round_over_a_model_is_refused_whatever_else_it_is(config, policy, signed):
    ledger = ledger_after(Point(4), signed=signed, policy=policy)  # it has answered a query
    for model in (MODEL, OTHER_MODEL):
        machine = machine_with(ledger, policy)
        data = announcement(Levels((config,)), model, signed)
        if model == MODEL:
            assert_fails(machine, data, Refusal.MODEL_REPEATED, "answered for this model before$")
        else:
            assert machine.receive(data) is LocalWork.MEASURE_LOSS


@signed_or_not
@pytest.mark.parametrize("name", ROUNDS)
def test_a_second_round_with_the_same_settings_is_taken_part_in_and_others_are_refused(
    name, signed
):
    ledger = ledger_after(Point(4), signed=signed)
    machine = machine_with(ledger)
    data = announcement(Levels((ROUNDS[name],)), MODEL, signed)
    if name in SAME:
        assert machine.receive(data) is LocalWork.MEASURE_LOSS
    else:
        assert_fails(machine, data, Refusal.MODEL_REPEATED, "before with other settings")


@in_one_round
def test_a_model_that_was_answered_for_in_the_only_round_stays_so(policy, signed):
    """The device then expects another server, or answers in more rounds: it knows no settings."""
    for first, then, told in (
        (policy, POLICY, "with other settings"),
        (POLICY, policy, "for this model before$"),
        (POLICY, POLICY, None),
    ):
        machine = machine_with(ledger_after(Point(4), signed=signed, policy=first), then)
        data = announcement(Levels((ROUNDS["another number"],)), MODEL, signed)
        if told:
            assert_fails(machine, data, Refusal.MODEL_REPEATED, told)
        else:
            assert machine.receive(data) is LocalWork.MEASURE_LOSS


@in_one_round
@pytest.mark.parametrize("place", [0, 1])
def test_a_session_in_which_one_level_was_answered_before_is_refused(place, policy, signed):
    assert_one_level_is_known(place, policy, signed, is_refused=True)


@signed_or_not
@pytest.mark.parametrize("place", [0, 1])
def test_a_session_may_have_a_level_that_was_answered_before_with_the_same_settings(place, signed):
    """The round before was at the first of the two levels."""
    assert_one_level_is_known(place, POLICY, signed, is_refused=place == 1)


def assert_one_level_is_known(place, policy, signed, *, is_refused):
    levels = Levels.at(CONFIG, THETAS)
    ledger = ledger_after(Point(4), signed=signed, policy=policy)
    models = [OTHER_MODEL, b"the third model."]
    new = announcement(levels, b"".join(models), signed)
    assert machine_with(ledger, policy).receive(new) is LocalWork.MEASURE_LOSS
    models[place] = MODEL
    data, machine = announcement(levels, b"".join(models), signed), machine_with(ledger, policy)
    if is_refused:
        assert_fails(machine, data, Refusal.MODEL_REPEATED)
    else:
        assert machine.receive(data) is LocalWork.MEASURE_LOSS


@signed_or_not
def test_a_device_without_a_ledger_remembers_nothing_and_each_device_only_its_own(signed):
    ledger = ledger_after(Point(4), signed=signed)
    assert ledger.knows(entry(MODEL))
    data = announcement(Levels((CONFIG,)), MODEL)
    for other in (None, MemoryLedger()):
        assert machine_with(other).receive(data) is LocalWork.MEASURE_LOSS


# --- when it is remembered ----------------------------------------------------------------------


@signed_or_not
def test_a_model_is_used_up_by_the_first_answer_and_not_before(signed):
    for point in (Point(1, task_done=False), Point(1), Point(2), Point(3)):
        ledger = ledger_after(point, signed=signed)
        assert not ledger.knows(entry(MODEL))
        machine = machine_with(ledger)  # the round ended in set-up; another may begin
        assert machine.receive(announcement(Levels((CONFIG,)), MODEL)) is LocalWork.MEASURE_LOSS
    assert ledger_after(Point(4), signed=signed).knows(entry(MODEL))


def test_without_a_query_the_update_is_the_first_answer():
    parties = RoundParties(replace(CONFIG, theta=Fraction(1)))
    data = parties.bring(Point(3))
    ledger = parties.enrolment.ledger(VICTIM)
    assert not ledger.knows(entry(MODEL))
    assert parties.machine.receive(data) is LocalWork.TRAIN
    assert ledger.knows(entry(MODEL))


class Watched(MemoryLedger):
    """A ledger that says what it was asked to admit, and in which state the session was."""

    def __init__(self, *entries, accepts=True):
        super().__init__()
        super().admit(entries)
        self.seen, self.machine, self.accepts = [], None, accepts

    def admit(self, entries):
        self.seen += [(each, self.machine._session.state) for each in entries]
        return self.accepts and super().admit(entries)


def watched(config, *entries, policy=POLICY, accepts=True):
    parties = RoundParties(config, policy=policy)
    ledger = Watched(*entries, accepts=accepts)
    parties.machine._ledger = parties.machine._session._ledger = ledger
    ledger.machine = parties.machine
    return parties, ledger


POLICIES = {"once": ONCE, "again": POLICY, "counted": replace(POLICY, max_participations=9)}
policies = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def remembered_of(config, policy, number):
    """What is admitted of the n-th round over the model, in order."""
    entries = [] if number else [entry(MODEL)]
    if policy is not ONCE:
        entries.append(round_entry(config, MODEL, number))
    return entries + [limit.entry(number) for limit in limits_of(policy, None)]


@policies
@pytest.mark.parametrize("theta", [Fraction(1, 2), Fraction(1)])
def test_it_is_remembered_before_a_vector_is_masked_and_only_once(theta, policy):
    config = replace(CONFIG, theta=theta)
    known = []
    for number in range(1 if policy is ONCE else 3):
        parties, ledger = watched(config, *known, policy=policy)
        assert parties.play().aborted is None
        wanted = remembered_of(config, policy, number)
        assert ledger.seen == [(each, ClientState.OPENED) for each in wanted]
        known += wanted


@pytest.mark.parametrize(
    ("policy", "number"),
    [
        (ONCE, 0),
        *((POLICIES[name], number) for name in ("again", "counted") for number in (0, 1, 2)),
    ],
)
def test_what_cannot_be_remembered_is_not_said(policy, number):
    """Neither in the first round over a model, nor in another."""
    known = [each for before in range(number) for each in remembered_of(CONFIG, policy, before)]
    parties, ledger = watched(CONFIG, *known, policy=policy, accepts=False)
    data = parties.bring(Point(3))
    assert isinstance(wire.decode(data).question, Query)
    assert_fails(parties.machine, data, Refusal.MODEL_REPEATED, "another round")
    assert [each for each, _ in ledger.seen] == remembered_of(CONFIG, policy, number)
    assert parties.machine._session.state is ClientState.FAILED


class Failing(MemoryLedger):
    """A ledger whose file cannot be used while it `fails` at what it is asked for."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def admit(self, entries):
        if "admit" in self.fails:
            raise LedgerError("no space left on device")
        return super().admit(entries)

    def knows(self, entry):
        if "knows" in self.fails:
            raise LedgerError("no space left on device")
        return super().knows(entry)


@pytest.mark.parametrize(
    ("fails", "point", "config", "signed"),
    [
        ({"knows"}, Point(0), CONFIG, False),
        ({"knows"}, Point(1, task_done=False), CONFIG, True),
        ({"admit"}, Point(3), CONFIG, False),
        ({"admit"}, Point(3), CONFIG, True),
        ({"admit"}, Point(3), replace(CONFIG, theta=Fraction(1)), False),
    ],
    ids=["announcement", "losses", "query", "signed query", "update"],
)
def test_a_device_whose_ledger_fails_says_nothing_and_ends_the_round(fails, point, config, signed):
    parties = RoundParties(config, signed=signed)
    ledger = Failing(())
    parties.machine._ledger = parties.machine._session._ledger = ledger
    data = parties.bring(point)
    ledger.fails = fails
    with pytest.raises(LedgerError, match="no space"):
        parties.answer(VICTIM, data) if point.task_done else parties.do(VICTIM, task_of(parties))
    assert parties.machine.state is RoundState.FAILED
    assert parties.machine._session.state is ClientState.FAILED
    ledger.fails = ()
    assert not ledger.knows(entry(MODEL))
    again = machine_with(ledger).receive(announcement(Levels((config,)), MODEL))
    assert again is LocalWork.MEASURE_LOSS


@signed_or_not
def test_a_device_whose_ledger_fails_in_another_round_says_nothing_either(signed):
    config = replace(CONFIG, round_index=9)
    parties = RoundParties(config, signed=signed)
    parties.machine._ledger = parties.machine._session._ledger = ledger = Failing(())
    assert ledger.admit(remembered_of(CONFIG, POLICY, 0))
    data = parties.bring(Point(3))
    ledger.fails = {"admit"}
    with pytest.raises(LedgerError, match="no space"):
        parties.answer(VICTIM, data)
    assert parties.machine.state is RoundState.FAILED
    assert not ledger.knows(round_entry(CONFIG, MODEL, 1))
    ledger.fails = ()
    data = announcement(Levels((config,)), MODEL)
    assert machine_with(ledger).receive(data) is LocalWork.MEASURE_LOSS


@pytest.mark.parametrize("question", [Query("mm", (2**20,)), Query("bracketed", (5,))])
def test_a_query_that_is_refused_does_not_use_the_model_up(question):
    parties = RoundParties(CONFIG)
    honest = parties.until_asked()
    assert_fails(
        parties.machine, wire.encode(replace(honest, question=question)), Refusal.MALFORMED
    )
    assert not parties.enrolment.ledger(VICTIM).knows(entry(MODEL))


def test_after_an_update_that_does_not_fit_another_can_be_supplied():
    parties = RoundParties(replace(CONFIG, theta=Fraction(1)))
    parties.bring(Point(4, task_done=False))
    with pytest.raises(EncodingError, match="update"):
        parties.machine.supply_update(np.zeros(3, dtype=np.float32))
    assert isinstance(parties.do(VICTIM, LocalWork.TRAIN), bytes)


# --- two rounds at once -------------------------------------------------------------------------


def two_rounds(first=CONFIG, second=None, models=(MODEL, MODEL), signed=False, policy=POLICY):
    """Two rounds of the same devices, which have joined both and answered in neither."""
    enrolment = Enrolment(SeededRandomness(bytes(32)))
    second = replace(first, round_index=first.round_index + 1) if second is None else second
    rounds = [
        RoundParties(
            config, seed=seed, signed=signed, model=model, enrolment=enrolment, policy=policy
        )
        for seed, (config, model) in enumerate(zip((first, second), models, strict=True))
    ]
    for parties in rounds:
        parties.until_asked()
    return rounds


@in_one_round
def test_of_two_rounds_begun_at_once_one_is_answered(policy, signed):
    for models in ((MODEL, MODEL), (MODEL, OTHER_MODEL)):
        one, other = two_rounds(models=models, signed=signed, policy=policy)
        assert isinstance(one.answer(VICTIM, one.pending[VICTIM]), bytes)
        data = other.pending[VICTIM]
        if models[0] == models[1]:
            assert_fails(other.machine, data, Refusal.MODEL_REPEATED, "has begun")
        else:
            assert isinstance(other.answer(VICTIM, data), bytes)
        assert one.exchange({c: d for c, d in one.pending.items() if c != VICTIM}) is not None


@signed_or_not
def test_of_two_rounds_begun_at_once_with_the_same_settings_so_many_are_answered(signed):
    """Each is counted by itself, whichever was announced first."""
    for most in (2, 1):
        policy = replace(POLICY, max_rounds_per_model=most)
        one, other = two_rounds(signed=signed, policy=policy)
        assert isinstance(other.answer(VICTIM, other.pending[VICTIM]), bytes)
        data = one.pending[VICTIM]
        if most == 1:
            assert_fails(one.machine, data, Refusal.MODEL_REPEATED, "has begun")
            continue
        ledger = one.enrolment.ledger(VICTIM)
        assert not ledger.knows(round_entry(CONFIG, MODEL, 1))
        assert isinstance(one.answer(VICTIM, data), bytes)
        assert ledger.knows(round_entry(CONFIG, MODEL, 1))


@signed_or_not
@pytest.mark.parametrize("name", OTHERS)
def test_of_two_rounds_begun_at_once_with_other_settings_one_is_answered(name, signed):
    second = replace(ROUNDS[name], round_index=9)
    one, other = two_rounds(second=second, signed=signed)
    assert isinstance(one.answer(VICTIM, one.pending[VICTIM]), bytes)
    assert_fails(other.clients[VICTIM], other.pending[VICTIM], Refusal.MODEL_REPEATED, "has begun")


@pytest.mark.parametrize(
    ("policy", "signed"), [(ONCE, False), (ONCE, True), (ACTIVE, True), (POLICY, True)]
)
def test_of_two_sessions_of_one_round_begun_at_once_one_is_answered(policy, signed):
    """Also by a device that answers in more rounds, if it has signed for the first."""
    one, other = two_rounds(second=CONFIG, signed=signed, policy=policy)
    assert one.params.context == other.params.context
    assert isinstance(one.answer(VICTIM, one.pending[VICTIM]), bytes)
    reason = Refusal.SESSION_REPEATED if signed else Refusal.MODEL_REPEATED
    assert_fails(other.machine, other.pending[VICTIM], reason)
    assert other.machine._session.state is ClientState.FAILED


@pytest.mark.usefixtures("no_query_needed")
@pytest.mark.parametrize(
    ("config", "work"),
    [
        (replace(CONFIG, theta=Fraction(1)), LocalWork.TRAIN),
        (changed_round(CONFIG, max_queries=0, warm_start=2048), LocalWork.TRAIN),
    ],
)
def test_of_two_updates_asked_for_at_once_one_is_given(config, work):
    one, other = two_rounds(config, policy=ONCE)
    assert one.machine.receive(one.pending[VICTIM]) is work
    assert_fails(other.machine, other.pending[VICTIM], Refusal.MODEL_REPEATED, "has begun")
    assert isinstance(one.do(VICTIM, work), bytes)


# --- several levels -----------------------------------------------------------------------------


def test_each_level_uses_up_its_own_model_when_its_turn_comes():
    levels, models = Levels.at(CONFIG, THETAS), (MODEL, OTHER_MODEL)
    for repeated in (False, True):
        joined = b"".join(models)
        params = make_params(levels.common, slots=levels.slots(), context=levels.context(joined))
        parties = RoundParties(CONFIG)  # its devices play another round: of two levels
        ledger = parties.enrolment.ledger(VICTIM)
        parties.server = RoundServer(levels, joined, params, parties.devices)
        do, remembered = parties.do, []

        def answer(client, reply, parties=parties, do=do):
            device = parties.devices[client]
            if reply is LocalWork.MEASURE_LOSS:
                return parties.clients[client].supply_losses([device.loss] * 2, device.weight)
            return do(client, reply)

        parties.do = answer
        outgoing = parties.server.start()
        while outgoing:
            envelope = wire.decode(outgoing[VICTIM])
            is_last = parties.machine.level == 1 and isinstance(envelope, Ask)
            if is_last and repeated:
                assert ledger.admit([entry(OTHER_MODEL)])  # in another round, meanwhile
                assert_fails(parties.machine, outgoing[VICTIM], Refusal.MODEL_REPEATED)
                break
            outgoing = parties.exchange(outgoing)
            remembered.append([ledger.knows(entry(model)) for model in models])
        if not repeated:
            assert [outcome.aborted for outcome in parties.server.outcomes] == [None] * 2
            steps = list(dict.fromkeys(map(tuple, remembered)))
            assert steps == [(False, False), (True, False), (True, True)]


def printed_by(root):
    """What is printed of every object that belongs to another, down from a machine."""
    stack, seen, texts = [root], {}, []
    while stack:
        thing = stack.pop()
        if id(thing) in seen or isinstance(thing, type | ModuleType | FunctionType | int | bytes):
            continue
        seen[id(thing)] = thing  # kept, so that no id is used again
        if type(thing).__module__.startswith("deltafl."):
            texts.append(repr(thing))
        stack.extend(gc.get_referents(thing))
    return texts


@pytest.mark.parametrize("hides", [True, False])
@pytest.mark.parametrize("proved", [True, False])
def test_nothing_that_a_device_holds_prints_its_loss_or_weight(monkeypatch, proved, hides):
    """One line in a log would be enough. The control prints all that a device knows of itself."""
    config = make_config(
        grid=LossGrid(resolution_bits=16, bound=8),
        max_weight=10**9,
        max_queries=3,
        method="bracketed",
        verified=proved,
        proved=proved,
    )
    parties = RoundParties(config)
    known = Device(5.1234, 123_456_789, parties.devices[VICTIM].update)
    parties.devices[parties.victim] = known
    if not hides:
        monkeypatch.setattr(DeviceRound, "__repr__", lambda own: f"{own.tick} {own.weight}")
    parties.until_asked(2)
    machine = parties.machine
    secret = {str(config.search.grid.tick(known.loss)[0]), str(known.weight)}
    if proved:
        secret |= {str(blinding) for blinding in machine._voter.blindings}
    found = {part for text in printed_by(machine) for part in secret if part in text}
    assert (found == set()) == hides
    assert len(printed_by(machine)) > 20
