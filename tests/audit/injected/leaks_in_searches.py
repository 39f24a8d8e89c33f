# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Whole slots that are not whole, and searches that are not as they were proved to be."""

from dataclasses import replace
from fractions import Fraction

from leaks import leak
from leaks_by_servers import OTHER, UPDATE, VICTIM, a_masked_vector_changed_afterwards, without
from staged_runs import ActiveStage, Kind, Stage, VerifiedStage

from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import Adversary
from deltafl.secagg import wire as session_wire
from deltafl.secagg.messages import UnmaskRequest
from deltafl.secagg.states import Stage as Sending
from deltafl.secagg.states import Step, Vanish


@leak("answers.ignored")
def a_whole_slot_that_all_are_told_is_smaller(edit):
    for entry in edit.find(1, Kind.SLOT, slot=1):
        message = edit.message(entry)
        edit.put_message(entry, replace(message, members=without(edit, message.members, OTHER)))
    del edit.touched[1:]


@leak("answers.ignored")
def a_whole_slot_with_a_device_that_was_lost(edit):
    for entry in edit.find(1, Kind.REQUEST, slot=0):
        message = edit.message(entry)
        edit.put_message(entry, replace(message, survivors=without(edit, message.survivors, OTHER)))
    edit.touched = edit.touched[:1]


@leak("lists.strange-signature", stage=ActiveStage)
def survivors_with_signatures_of_other_survivors(edit):
    (entry,) = edit.find(1, Kind.REQUEST, slot=UPDATE, peer=VICTIM)
    (earlier,) = edit.find(1, Kind.REQUEST, slot=0, peer=VICTIM)
    signatures = dict(edit.message(earlier).signatures)
    edit.put_message(entry, replace(edit.message(entry), signatures=signatures))


@leak("shares.asked-twice")
def a_request_for_shares_of_a_whole_slot(edit):
    last = edit.find(1, Kind.MASKED, slot=1)[-1]
    (like,) = edit.find(1, Kind.REQUEST, slot=0, peer=VICTIM)
    edit.insert_like(last, like, UnmaskRequest(1, edit.message(like).survivors))


@leak("spec.answers")
def shares_for_a_whole_slot(edit):
    (like,) = edit.find(1, Kind.SHARES, slot=0, peer=VICTIM)
    last = edit.find(1, Kind.MASKED, slot=1)[-1]
    edit.insert_like(last, like, replace(edit.message(like), slot=1))


@leak("sums.unreplayable")
def a_sum_of_a_whole_slot_without_one_of_its_vectors(edit):
    edit.remove(*edit.find(1, Kind.MASKED, slot=1, peer=VICTIM))
    edit.touched = edit.sums(1)[1:2]


class LostStage(Stage):
    """One device is gone at the second query, a whole slot, which ends without a sum."""

    def vanishing(self, number, take, config):
        return {VICTIM: Vanish(Step(Sending.MASK, 1))} if number == 1 else {}


@leak("sums.unreplayable", stage=LostStage)
def a_sum_of_a_whole_slot_that_was_lost(edit):
    first, *_ = edit.sums(1)
    last = edit.find(1, Kind.MASKED, slot=1)[-1]
    edit.insert_after(last, replace(first, total=replace(first.total, slot=1)))


@leak("sums.unrecorded")
def a_sum_of_a_whole_slot_that_is_not_recorded(edit):
    edit.remove(edit.sums(1)[1])
    edit.touched = edit.find(1, Kind.MASKED, slot=1)[-1:]
    edit.touched = [edit.follows(edit.touched[0])]


@leak("proof.missing", stage=VerifiedStage)
def no_proof_for_one_device(edit):
    (entry,) = edit.find(1, Kind.SLOT, slot=1, peer=VICTIM)
    edit.put_envelope(entry, opening=b"")


@leak("proof.missing", stage=VerifiedStage)
def a_query_without_the_proof_of_the_last(edit):
    for entry in edit.find(1, Kind.SLOT, slot=1):
        edit.put_envelope(entry, opening=b"")
    del edit.touched[1:]


@leak("proof.missing", stage=VerifiedStage, round=2)
def a_threshold_without_the_proof_of_the_last_query(edit):
    for entry in edit.find(2, Kind.SLOT, slot=UPDATE):
        edit.put_envelope(entry, opening=b"")
    del edit.touched[1:]


def prove(edit, slot, change):
    """Put another proof in the place of the one that comes with the question of a slot."""
    for entry in edit.find(1, Kind.SLOT, slot=slot):
        envelope = edit.envelope(entry)
        proof = session_wire.decode(envelope.opening, params_of(edit))
        edit.put_envelope(entry, opening=session_wire.encode(change(proof), params_of(edit)))
    del edit.touched[1:]


def params_of(edit):
    """The parameters of the first session."""
    return next(iter(edit.run.params.values()))


@leak("proof.differs", stage=VerifiedStage)
def a_proof_of_another_sum(edit):
    prove(edit, 1, lambda p: replace(p, packed=bytes([p.packed[0] ^ 1]) + p.packed[1:]))


@leak("proof.differs", stage=VerifiedStage)
def a_proof_without_one_of_the_devices(edit):
    def shorter(proof):
        (*kept, _) = proof.committed
        return replace(proof, committed={p: proof.committed[p] for p in kept})

    prove(edit, 1, shorter)


@leak("proof.differs", stage=VerifiedStage)
def a_proof_with_a_forged_signature(edit):
    def forged(proof):
        first, *_ = proof.committed
        committed = bytes(proof.committed[first])
        return replace(proof, committed={**proof.committed, first: committed[:32] + bytes(64)})

    prove(edit, 1, forged)


@leak("sums.unreplayable", stage=VerifiedStage)
def a_commitment_that_the_device_did_not_send(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=0, peer=VICTIM)
    (other,) = edit.find(1, Kind.MASKED, slot=0, peer=OTHER)
    edit.put_message(entry, replace(edit.message(entry), committed=edit.message(other).committed))
    edit.touched = edit.sums(1)[:1]


@leak("sums.differ", stage=VerifiedStage)
def a_vector_that_is_not_in_the_proved_sum(edit):
    a_masked_vector_changed_afterwards(edit)


@leak("sums.unrecorded", stage=VerifiedStage)
def a_proved_sum_that_is_not_in_the_record(edit):
    edit.remove(edit.sums(1)[0])
    edit.touched = edit.find(1, Kind.SLOT, slot=1)[:1]


@leak("sums.differ", stage=VerifiedStage)
def a_forged_answer_that_was_proved_to_be_another(edit):
    learnt = edit.sums(1)[0]
    vector = learnt.total.vector.copy()
    vector[-1] ^= 1
    edit.put(learnt, replace(learnt, total=replace(learnt.total, vector=vector)))


class CredulousStage(VerifiedStage):
    """Devices check proofs, but answer any question; the server asks what it likes."""

    is_credulous = True


class EarlyStage(CredulousStage):
    """The server ends a search although nobody is gone."""

    def question(self, number, question):
        is_second = isinstance(question, Query) and getattr(self, "_asked", 0) == number
        self._asked = number
        return Threshold(0, 0) if is_second and number == 1 else question


@leak("question.unfounded", stage=EarlyStage)
def a_search_that_ends_although_nobody_is_gone(edit):
    edit.touched = edit.find(1, Kind.SLOT, slot=UPDATE)[:1]


class IsolatingVerifiedStage(CredulousStage):
    """The server announces another threshold than the proved sums give."""

    def question(self, number, question):
        isolates = number == 1 and isinstance(question, Threshold)
        return Threshold(2 * 3379, 0) if isolates else question


@leak("question.unfounded", stage=IsolatingVerifiedStage)
def a_threshold_that_does_not_follow_from_proved_sums(edit):
    edit.touched = edit.find(1, Kind.SLOT, slot=UPDATE)[:1]


class SmallTailStage(CredulousStage):
    """A small θ keeps one device, and devices do not mind."""

    theta = Fraction(1, 20)
    max_queries = 14
    counts_tails = False


@leak("sums.small-tail", stage=SmallTailStage)
def a_threshold_that_keeps_one_device(edit):
    assert len(edit.run.passed(1)) == 1
    edit.touched = edit.sums(1)[-1:]


@leak(
    "round.below-policy",
    stage=ActiveStage,
    twin=VerifiedStage,
    options={"adversary": Adversary.ACTIVE},
)
def a_search_of_an_active_server_that_nobody_can_check(edit):
    edit.touched = edit.find(1, Kind.OPEN)[:1]
