# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Servers that leave out devices that answered, keep others, and find lost ones again."""

from dataclasses import replace

from leaks import leak
from leaks_by_devices import UPDATE, VICTIM, LateStage
from staged_runs import ActiveStage, Edit, Kind, Said, Stage

from deltafl.secagg.states import Stage as Sending
from deltafl.secagg.states import Step, Vanish

STRANGER = 4  # none of the ids


def in_its_turn(edit: Edit, entry: Said, asked: Kind, **which) -> None:
    """Have an answer that came too late come right after its question."""
    edit.remove(entry)
    (question,) = edit.find(1, asked, peer=VICTIM, **which)
    edit.insert_after(question, entry)


class LateKeysStage(Stage):
    """One device's keys come after the roster was made."""

    def vanishing(self, number, take, config):
        return {VICTIM: Vanish(Step(Sending.ADVERTISE), late=True)} if number == 1 else {}


class LateReceiptStage(Stage):
    """One device's receipt comes after the first slot was opened."""

    def vanishing(self, number, take, config):
        return {VICTIM: Vanish(Step(Sending.RECEIPT), late=True)} if number == 1 else {}


@leak("answers.ignored", stage=LateStage, twin=LateStage)
def a_vector_that_came_in_time_and_was_called_lost(edit):
    (late,) = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)
    in_its_turn(edit, late, Kind.SLOT, slot=UPDATE)
    edit.touched = [edit.follows(edit.touched[0])]


@leak("answers.ignored", stage=LateKeysStage, twin=LateKeysStage)
def keys_that_came_in_time_and_are_in_no_roster(edit):
    (late,) = edit.find(1, Kind.ADVERTISE, peer=VICTIM)
    in_its_turn(edit, late, Kind.OPEN)
    edit.touched = [edit.follows(edit.touched[0])]


@leak("answers.ignored", stage=LateReceiptStage, twin=LateReceiptStage)
def a_receipt_that_came_in_time_of_a_device_that_was_asked_nothing(edit):
    (late,) = edit.find(1, Kind.RECEIPT, peer=VICTIM)
    in_its_turn(edit, late, Kind.DELIVERY)
    edit.touched = [edit.follows(edit.touched[0])]


@leak("cohort.grown")
def a_receipt_that_never_came(edit):
    edit.remove(*edit.find(1, Kind.RECEIPT, peer=VICTIM))


@leak("lists.strange-signature", stage=ActiveStage)
def a_signature_that_never_came(edit):
    edit.remove(*edit.find(1, Kind.SIGNATURE, slot=UPDATE, peer=VICTIM))


@leak("shares.asked-twice", stage=LateStage, twin=LateStage)
def a_device_that_was_called_lost_and_is_asked_for_shares(edit):
    request = edit.find(1, Kind.REQUEST, slot=UPDATE)[0]
    edit.insert_after(request, replace(request, peer=VICTIM))


@leak("cohort.grown", stage=LateReceiptStage, twin=LateReceiptStage)
def a_device_that_sent_no_receipt_and_is_asked_for_its_update(edit):
    for opened in edit.find(1, Kind.SLOT, slot=UPDATE):
        members = edit.message(opened).members.copy()
        members[edit.run.stage.ids.index(VICTIM)] = True
        edit.put_message(opened, replace(edit.message(opened), members=members))
    first = edit.find(1, Kind.SLOT, slot=UPDATE)[0]
    edit.insert_after(first, replace(first, peer=VICTIM))


@leak("sums.differ", stage=LateStage, twin=LateStage)
def a_sum_over_a_device_that_its_list_has_as_lost(edit):
    learnt = edit.sums(1)[-1]
    contributors = tuple(sorted((*learnt.total.contributors, VICTIM)))
    edit.put(learnt, replace(learnt, total=replace(learnt.total, contributors=contributors)))


@leak("cohort.uninvited")
def a_roster_for_a_device_that_was_not_invited(edit):
    roster = edit.find(1, Kind.ROSTER)[0]
    edit.insert_after(roster, replace(roster, peer=STRANGER))


@leak("messages.missing")
def a_roster_that_is_larger_than_the_invitation(edit):
    for announced in edit.find(1, Kind.OPEN, peer=VICTIM):
        edit.remove(announced)


def not_asked(edit: Edit, asked: Kind, answered: Kind, device: int, **which) -> None:
    """A device that is not sent a message, and so does not answer it."""
    edit.remove(*edit.find(1, asked, peer=device, **which))
    edit.remove(*edit.find(1, answered, peer=device, **which))
    edit.touched = edit.find(1, Kind.MASKED, peer=device)[-1:]


def last_of(edit: Edit, kind: Kind, **which) -> int:
    """The device whose message came last."""
    return edit.find(1, kind, **which)[-1].peer


@leak("messages.missing")
def a_survivor_whose_vector_came_last_and_who_is_not_asked_for_shares(edit):
    last = last_of(edit, Kind.MASKED, slot=UPDATE)
    not_asked(edit, Kind.REQUEST, Kind.SHARES, last, slot=UPDATE)
    edit.touched = [edit.closing(edit.find(1, Kind.REQUEST, slot=UPDATE)[0])]


@leak("messages.missing", stage=ActiveStage)
def a_survivor_whose_vector_came_last_and_who_is_not_asked_to_sign(edit):
    last = last_of(edit, Kind.MASKED, slot=UPDATE)
    for asked, answered in ((Kind.REQUEST, Kind.SHARES), (Kind.CHECK, Kind.SIGNATURE)):
        not_asked(edit, asked, answered, last, slot=UPDATE)
    edit.touched = [edit.closing(edit.find(1, Kind.CHECK, slot=UPDATE)[0])]


@leak("messages.missing", stage=ActiveStage)
def a_signature_that_others_are_shown_of_a_device_that_is_not_asked_for_shares(edit):
    (own,) = edit.find(1, Kind.SIGNATURE, slot=UPDATE, peer=edit.run.stage.ids[0])
    last = edit.find(1, Kind.SIGNATURE, slot=UPDATE)[-1]
    edit.remove(own)
    edit.insert_after(last, own)
    not_asked(edit, Kind.REQUEST, Kind.SHARES, own.peer, slot=UPDATE)
    edit.touched = [edit.closing(edit.find(1, Kind.REQUEST, slot=UPDATE)[0])]


@leak("answers.ignored")
def a_device_in_the_sum_of_a_whole_slot_that_is_not_asked_for_its_update(edit):
    last = last_of(edit, Kind.MASKED, slot=1)
    for kind in (Kind.SLOT, Kind.MASKED, Kind.REQUEST, Kind.SHARES):
        edit.remove(*edit.find(1, kind, slot=UPDATE, peer=last))
    for opened in edit.find(1, Kind.SLOT, slot=UPDATE):
        members = edit.message(opened).members.copy()
        members[edit.run.stage.ids.index(last)] = False
        edit.put_message(opened, replace(edit.message(opened), members=members))
    edit.touched = edit.find(1, Kind.MASKED, slot=1, peer=last)
    edit.touched = [edit.follows(edit.touched[0])]
