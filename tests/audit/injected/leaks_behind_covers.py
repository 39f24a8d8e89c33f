"""Servers that have an excuse for leaving devices out, and messages that pass more than once.

An excuse counts where an honest server would have acted on it: at that step, and for that device.
"""

from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

from leaks import leak
from leaks_by_devices import UPDATE, VICTIM
from leaks_in_membership import LateStage, in_its_turn
from leaks_out_of_turn import WHOLE
from staged_runs import Edit, Kind, Said, Stage

from deltafl.secagg import Client, Fault, Server
from deltafl.secagg.messages import ShareReceipt

ACCUSER = 3  # one of the ids, the first
VICTIM_AT = 2  # position of the victim in the roster


UNLINKED = ("links.missing",)


def refusing(refused: dict[int, set[int]]):
    """Devices that do not read the boxes of some positions, in every round."""
    honest = Client._link

    def link(self, phase, message):
        bad = refused.get(self.client_id, set())
        boxes = {p: bytes(len(box)) if p in bad else box for p, box in message.boxes.items()}
        return honest(self, phase, replace(message, boxes=boxes))

    return mock.patch.object(Client, "_link", link)


def dropping(slot: int):
    """A server that calls a device lost just before it opens a slot."""
    honest = Server.open_slot

    def open_slot(self, index, binding, check=None):
        if index == slot:
            self._drop(VICTIM, Fault.TIMED_OUT)
        return honest(self, index, binding, check)

    return mock.patch.object(Server, "open_slot", open_slot)


class RefusalStage(Stage):
    """An honest server; one device does not read a box, which makes nobody leave."""

    def machinery(self):
        return refusing({ACCUSER: {1}})


class UnheldStage(Stage):
    """An honest server; so many devices do not read the boxes of one that it has to leave."""

    def machinery(self):
        return refusing({device: {VICTIM_AT} for device in (3, 10, 24, 31, 38)})


class DroppedStage(Stage):
    """One device is called lost before the update."""

    def machinery(self):
        return dropping(UPDATE)


class CoveredStage(RefusalStage):
    """The same, and one device has no link with another: not with the one that is left out."""

    def machinery(self):
        stack = ExitStack()
        stack.enter_context(super().machinery())
        stack.enter_context(dropping(UPDATE))
        return stack


class LostAfterReceiptsStage(RefusalStage):
    """One device is called lost before the first slot; two others have no link."""

    def machinery(self):
        stack = ExitStack()
        stack.enter_context(super().machinery())
        stack.enter_context(dropping(0))
        return stack


def another_receipt(edit: Edit) -> Said:
    (receipt,) = edit.find(1, Kind.RECEIPT, peer=VICTIM)
    links = dict(list(edit.message(receipt).links.items())[1:])
    return edit.insert_like(receipt, receipt, ShareReceipt(links))


@leak("answers.ignored", stage=CoveredStage, twin=RefusalStage, common=UNLINKED)
def a_missing_link_that_covers_for_another_loss(edit):
    edit.touched = edit.find(1, Kind.MASKED, slot=WHOLE, peer=VICTIM)
    edit.touched = [edit.follows(edit.touched[0])]


@leak("answers.ignored", stage=LostAfterReceiptsStage, twin=RefusalStage, common=UNLINKED)
def a_missing_link_that_covers_for_a_loss_at_once(edit):
    edit.touched = edit.find(1, Kind.RECEIPT, peer=VICTIM)
    edit.touched = [edit.follows(edit.touched[0])]


@leak("cohort.grown", stage=DroppedStage)
def a_second_receipt_that_covers_for_a_later_loss(edit):
    receipt = another_receipt(edit)
    edit.touched = [edit.follows(receipt)]


@leak("cohort.grown", stage=LateStage, twin=LateStage)
def a_second_receipt_that_covers_for_a_vector_in_time(edit):
    receipt = another_receipt(edit)
    (late,) = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)
    in_its_turn(edit, late, Kind.SLOT, slot=UPDATE)
    edit.touched = [edit.follows(receipt)]


@leak("answers.ignored", stage=LateStage, twin=LateStage)
def a_second_vector_that_covers_for_the_first(edit):
    """The server drops the device, and still has its first vector in the sum."""
    (late,) = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)
    in_its_turn(edit, late, Kind.SLOT, slot=UPDATE)
    message = edit.message(late)
    packed = bytes([message.packed[0] ^ 1]) + message.packed[1:]
    edit.insert_like(late, late, replace(message, packed=packed))
    edit.touched = [late]
    edit.touched = [edit.follows(edit.touched[0])]


@leak("messages.twice")
def two_receipts(edit):
    another_receipt(edit)


@leak("messages.twice")
def two_answers_with_shares(edit):
    (entry,) = edit.find(1, Kind.SHARES, slot=0, peer=VICTIM)
    message = edit.message(entry)
    edit.insert_like(entry, entry, replace(message, shares=message.shares ^ 1))


@leak("shares.asked-twice")
def two_lists_of_survivors_for_one_device(edit):
    entry = edit.find(1, Kind.REQUEST, slot=UPDATE)[3]
    survivors = edit.message(entry).survivors.copy()
    survivors[VICTIM_AT] = False
    edit.insert_like(entry, entry, replace(edit.message(entry), survivors=survivors))


@leak("messages.repeated")
def an_update_that_is_sent_twice_by_those_that_passed(edit):
    for entry in edit.find(1, Kind.MASKED, slot=UPDATE):
        if entry.peer in edit.run.passed(1):
            edit.insert_after(entry, replace(entry))


@leak("messages.repeated")
def shares_that_are_sent_as_often_as_the_loss_says(edit):
    for entry in edit.find(1, Kind.SHARES, slot=0):
        times = int(10 * edit.run.loss(1, entry.peer)) % 10
        edit.insert_after(entry, *(replace(entry) for _ in range(times)))


@leak("messages.repeated")
def a_receipt_that_comes_again_late(edit):
    (entry,) = edit.find(1, Kind.RECEIPT, peer=VICTIM)
    edit.insert_after(edit.find(1, Kind.MASKED, slot=0)[-1], replace(entry))


@leak("messages.repeated")
def an_announcement_that_is_sent_again(edit):
    entry = edit.find(1, Kind.OPEN)[0]
    edit.insert_after(entry, replace(entry))


@leak("messages.repeated")
def a_list_that_is_sent_again(edit):
    entry = edit.find(1, Kind.REQUEST, slot=UPDATE)[3]
    edit.insert_after(entry, replace(entry))


@leak("links.other", stage=RefusalStage, with_truth=True)
def a_good_box_that_is_not_read(edit):
    edit.touched = edit.find(1, Kind.RECEIPT, peer=ACCUSER)


@leak("links.other", stage=UnheldStage, with_truth=True)
def good_boxes_that_so_few_read_that_a_device_has_to_leave(edit):
    edit.touched = edit.find(1, Kind.RECEIPT, peer=ACCUSER)


@leak("links.missing", stage=RefusalStage)
def a_link_that_is_denied(edit):
    edit.touched = edit.find(1, Kind.RECEIPT, peer=ACCUSER)
