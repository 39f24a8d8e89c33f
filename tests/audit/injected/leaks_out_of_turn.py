"""Servers that send what they should not send then: slots again, late sums, lists nobody needs."""

from dataclasses import replace

from leaks import leak
from staged_runs import ActiveStage, Edit, Kind, VerifiedStage

from deltafl.protocol import wire as round_wire

WHOLE, UPDATE = 1, 2  # slots, where a search has two queries


def move_after(edit: Edit, place, *moved) -> None:
    """Put entries elsewhere."""
    edit.remove(*moved)
    edit.insert_after(place, *moved)
    edit.touched = []


@leak("messages.untimely", "spec.asked-again", stage=VerifiedStage)
def a_whole_slot_opened_twice(edit):
    again = [replace(entry) for entry in edit.find(1, Kind.SLOT, slot=WHOLE)]
    edit.insert_after(edit.sums(1)[WHOLE], *again)


@leak("messages.untimely")
def a_slot_opened_twice_for_one_device(edit):
    first = edit.find(1, Kind.SLOT, slot=UPDATE)[3]
    edit.insert_after(edit.sums(1)[-1], replace(first))


@leak("messages.untimely")
def a_query_after_the_update(edit):
    query = [*edit.find(1, Kind.SLOT, slot=WHOLE), *edit.find(1, Kind.MASKED, slot=WHOLE)]
    move_after(edit, edit.sums(1)[-1], *query, edit.sums(1)[WHOLE])


@leak("messages.untimely", stage=VerifiedStage)
def a_question_before_the_sum_that_it_follows_from(edit):
    learnt = edit.sums(1)[0]
    edit.remove(learnt)
    edit.insert_after(edit.find(1, Kind.MASKED, slot=WHOLE)[-1], learnt)
    edit.touched = edit.find(1, Kind.SLOT, slot=WHOLE)[:1]


@leak("messages.untimely", stage=ActiveStage)
def a_list_to_be_signed_although_one_is_agreed(edit):
    before = edit.sums(1)[0]
    for entry in edit.find(1, Kind.CHECK, slot=0):
        edit.insert_like(before, entry, replace(edit.message(entry), slot=WHOLE))


@leak("cohort.uninvited")
def a_question_to_a_device_without_a_roster(edit):
    asked = edit.find(1, Kind.SLOT, slot=UPDATE)[-1]
    edit.insert_after(asked, replace(asked, peer=999))


@leak("proof.differs", stage=VerifiedStage)
def the_proof_of_a_sum_that_is_not_there_yet(edit):
    proof = edit.envelope(edit.find(1, Kind.SLOT, slot=UPDATE)[0]).opening
    assert proof
    for entry in edit.find(1, Kind.SLOT, slot=0):
        envelope = replace(edit.envelope(entry), opening=proof)
        edit.put_data(entry, round_wire.encode(envelope))
    del edit.touched[3:]


@leak("spec.relayed", stage=ActiveStage)
def signatures_that_nobody_is_recorded_to_have_sent(edit):
    edit.remove(*edit.find(1, Kind.CHECK, slot=0), *edit.find(1, Kind.SIGNATURE, slot=0))
    edit.touched = []


@leak("record.missing", round=2)
def a_round_that_is_left_out(edit):
    edit.remove(*(entry for entry in edit.entries if entry.round == 1))
    edit.touched = []


@leak("sums.differ", "proof.differs", stage=VerifiedStage)
def a_sum_with_fewer_devices_below_the_pivot_than_before(edit):
    for learnt in edit.sums(1)[:2]:
        vector = learnt.total.vector.copy()
        vector[-1] += 1
        edit.put(learnt, replace(learnt, total=replace(learnt.total, vector=vector)))
    del edit.touched[:]


@leak("answers.ignored", "spec.membership", round=1)
def a_device_that_left_and_is_asked_for_its_update(edit):
    last = len(edit.run.stage.ids) - 1
    for entry in edit.find(1, Kind.DELIVERY):
        members = edit.message(entry).members.copy()
        members[last] = False
        edit.put_message(entry, replace(edit.message(entry), members=members))
    edit.touched = []


@leak("session.unannounced")
def a_roster_of_another_session(edit):
    later = edit.find(2, Kind.ROSTER)[0]
    edit.insert_after(edit.find(1, Kind.SLOT, slot=UPDATE)[-1], replace(later, round=1))


@leak("messages.unreadable", "spec.answers")
def a_request_that_is_cut(edit):
    (entry,) = edit.find(1, Kind.REQUEST, slot=UPDATE, peer=edit.run.stage.ids[0])
    edit.put_data(entry, entry.data[:-1])
