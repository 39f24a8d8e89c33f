"""What is signed, and what a wrong signature costs: its sender, and nobody else."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from malicious_clients import MaliciousClients, at_step, be_somebody_else, index_of, sign_badly
from parties import BINDING, Parties, make_ids, make_params, plain_sum

from deltafl.secagg import (
    Fault,
    FirstUse,
    Server,
    SessionAborted,
    Stage,
    Step,
    labels,
    signing,
)
from deltafl.secagg.identity import identity, verify
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.messages import Credential
from deltafl.secagg.params import SlotSpec
from deltafl.secagg.states import ServerState

COMPLETE = make_params(7, threshold=3, slots=((4, 13), (3, 40)))
SPARSE = make_params(10, degree=6, threshold=3, slots=((4, 13), (3, 40)))
both = pytest.mark.parametrize("params", [COMPLETE, SPARSE], ids=["complete", "sparse"])

# The statements.

KEYS = [bytes([i]) * 32 for i in range(4)]


def advertisement(**changes):
    fields = {
        "params": COMPLETE,
        "client": 3,
        "key": KEYS[0],
    }
    return signing.advertisement(**(fields | changes))


def context(params=COMPLETE, session_id=bytes(32), slot=0, binding=b"binding"):
    return SlotContext.of(params, session_id, slot, binding)


def survivors(members=(True, True, False, True), key=KEYS[0], **changes):
    return signing.survivors(context(**changes), np.array(members), key)


def test_every_part_of_an_advertisement_is_signed():
    statements = [
        advertisement(),
        advertisement(params=replace(COMPLETE, context=b"\1" * 32)),
        advertisement(params=replace(COMPLETE, threshold=2)),
        advertisement(client=4),
        advertisement(key=KEYS[3]),
    ]
    assert len(set(statements)) == len(statements)
    assert advertisement() == statements[0]


def test_every_part_of_the_survivors_is_signed():
    renamed = replace(COMPLETE, slots=(SlotSpec("another", 4, 13), COMPLETE.slots[1]))
    whole = replace(COMPLETE, slots=(SlotSpec("slot 0", 4, 13, whole=True), COMPLETE.slots[1]))
    statements = [
        survivors(),
        survivors((True, True, True, True)),
        survivors((True, True, False, True, False)),
        survivors((True, True, False)),
        survivors(session_id=b"\1" * 32),
        survivors(slot=1),
        survivors(binding=b"another"),
        survivors(params=renamed),
        survivors(params=whole),
        survivors(key=KEYS[1]),
    ]
    assert len(set(statements)) == len(statements)
    assert survivors() == statements[0]


@given(
    first=st.lists(st.booleans(), min_size=1, max_size=20),
    second=st.lists(st.booleans(), min_size=1, max_size=20),
    keys=st.tuples(*[st.sampled_from(KEYS)] * 2),
)
def test_two_lists_of_survivors_are_never_one_statement(first, second, keys):
    same = survivors(first, keys[0]) == survivors(second, keys[1])
    assert same == ((first, keys[0]) == (second, keys[1]))


def test_keys_and_survivors_are_never_one_statement():
    # Whoever signs one must not have signed the other.
    key = identity(bytes(32))
    signature = key.sign(advertisement())
    assert verify(key.public, advertisement(), signature)
    assert not verify(key.public, survivors(), signature)


def test_a_statement_begins_with_its_label():
    assert advertisement().startswith(labels.pack(Label.ADVERTISEMENT))
    assert survivors().startswith(labels.pack(Label.SURVIVORS))


# Sessions.


def check_dropped(parties, attacker, fault, stage):
    """The attacker left at the stage of slot 0, and the others' sums are whole."""
    sums = parties.finish()
    assert parties.faults == {attacker: fault}
    assert parties.server.drops[attacker].step == Step(stage)
    others = tuple(client for client in parties.roster if client != attacker)
    counted = [tuple(parties.roster) if stage > Stage.MASK else others, others]
    assert [result.contributors for result in sums] == counted
    assert [result.remaining for result in sums] == [others, others]


@both
@pytest.mark.parametrize("attacker", [0, 4])
@pytest.mark.parametrize("stage", [Stage.ADVERTISE, Stage.CONFIRM])
def test_a_wrong_signature_drops_its_sender(params, stage, attacker):
    attacker = make_ids(params.num_invited)[attacker]
    parties = MaliciousClients(params, {(attacker, stage): sign_badly})
    check_dropped(parties, attacker, Fault.BAD_SIGNATURE, stage)


@both
def test_an_identity_that_the_directory_does_not_know_drops_its_sender(params):
    attacker = make_ids(params.num_invited)[2]
    parties = MaliciousClients(params, {(attacker, Stage.ADVERTISE): be_somebody_else})
    check_dropped(parties, attacker, Fault.UNKNOWN_IDENTITY, Stage.ADVERTISE)


def test_a_server_does_not_learn_an_identity_whose_signature_is_wrong():
    directory, parties = FirstUse(), Parties(COMPLETE)
    parties.server = Server(COMPLETE, parties.ids, directory)
    honest, attacker = parties.ids[:2]
    said = parties.deliver(parties.server.start())
    stranger = Credential(identity(b"\1" * 32).public, bytes(64))
    forged = replace(parties.decode(said[attacker]), credential=stranger)
    parties.server.receive(attacker, parties.encode(forged))
    parties.server.receive(honest, said[honest])
    assert {client: drop.fault for client, drop in parties.server.drops.items()} == {
        attacker: Fault.BAD_SIGNATURE
    }
    assert directory.pinned().keys.keys() == {honest}


def signed_by(other, *, in_the_name_of_its_own=False):
    def change(parties, client, message):
        signer = parties.enrolment.credentials(other).identity
        named = signer
        if in_the_name_of_its_own:
            named = parties.enrolment.credentials(client).identity
        statement = signing.advertisement(parties.params, client, message.key)
        return replace(message, credential=Credential(named.public, signer.sign(statement)))

    return change


@pytest.mark.parametrize(
    ("own_name", "fault"), [(False, Fault.UNKNOWN_IDENTITY), (True, Fault.BAD_SIGNATURE)]
)
def test_the_signature_of_another_device_does_not_do(own_name, fault):
    attacker, other = make_ids(7)[2:4]
    change = signed_by(other, in_the_name_of_its_own=own_name)
    parties = MaliciousClients(COMPLETE, {(attacker, Stage.ADVERTISE): change})
    check_dropped(parties, attacker, fault, Stage.ADVERTISE)


def test_the_keys_of_another_session_do_not_do():
    attacker = make_ids(7)[2]
    earlier = MaliciousClients(replace(COMPLETE, context=b"\1" * 32), {})
    said = earlier.decode(earlier.answer(attacker, earlier.server.start()[attacker]))
    parties = MaliciousClients(COMPLETE, {(attacker, Stage.ADVERTISE): lambda *_: said})
    check_dropped(parties, attacker, Fault.BAD_SIGNATURE, Stage.ADVERTISE)


@pytest.mark.parametrize(
    "fields",
    [{"survivors": 2}, {"slot": 1}, {"binding": b"another"}, {"key of": make_ids(7)[3]}],
)
def test_a_signature_of_something_else_drops_its_sender(fields):
    attacker = make_ids(7)[2]

    def change(parties, client, message):
        slot, binding = fields.get("slot", parties.server._slot), fields.get("binding", BINDING)
        list_of = np.ones(7, dtype=np.bool_)
        if "survivors" in fields:
            list_of[fields["survivors"]] = False
        signed = SlotContext.of(parties.params, parties.session_id(), slot, binding)
        signer = parties.enrolment.credentials(client).identity
        key = parties.key(fields.get("key of", client))
        statement = signing.survivors(signed, list_of, key)
        return replace(message, signature=signer.sign(statement))

    parties = MaliciousClients(COMPLETE, {(attacker, Stage.CONFIRM): change})
    check_dropped(parties, attacker, Fault.BAD_SIGNATURE, Stage.CONFIRM)
    # Signed as it should be, it does no harm.
    fields.clear()
    parties = MaliciousClients(COMPLETE, {(attacker, Stage.CONFIRM): change})
    parties.finish()
    assert parties.faults == {}


@both
def test_without_t_signatures_the_sum_is_lost_before_a_share_is_asked_for(params):
    ids = make_ids(params.num_invited)
    attackers = ids[: params.num_invited - params.threshold + 1]
    parties = MaliciousClients(
        params, {(attacker, Stage.CONFIRM): sign_badly for attacker in attackers}
    )
    with pytest.raises(SessionAborted, match="devices are left to help unmask"):
        parties.finish()
    assert parties.server.state is ServerState.ABORTED
    assert parties.sums == []
    assert set(parties.faults.values()) == {Fault.BAD_SIGNATURE}


def test_exactly_t_signatures_are_enough():
    ids = make_ids(7)
    parties = MaliciousClients(
        COMPLETE, {(attacker, Stage.CONFIRM): sign_badly for attacker in ids[3:]}
    )
    next(itertools.islice(parties.steps(), index_of(Stage.MASK, 1) - 1, None))
    [result] = parties.sums
    assert set(result.contributors) == set(ids)
    assert set(result.remaining) == set(ids[:3])
    assert result.vector.tolist() == plain_sum(COMPLETE, 0, parties.inputs, ids)


def test_a_request_carries_t_signatures_of_holders_on_its_own_list():
    for params in (COMPLETE, SPARSE):
        parties, _, pending = at_step(index_of(Stage.UNMASK), params)
        for client, data in pending.items():
            request = parties.decode(data)
            assert request.survivors.all()
            assert len(request.signatures) == params.threshold
            holders = parties.clients[client]._phase.cohort.holders.tolist()
            assert set(request.signatures) <= set(holders)
            context = parties.clients[client]._phase.context
            for position, signature in request.signatures.items():
                signer = parties.roster[position]
                statement = signing.survivors(context, request.survivors, parties.key(signer))
                public = parties.enrolment.credentials(signer).identity.public
                assert verify(public, statement, signature)
