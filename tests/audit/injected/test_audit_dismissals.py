"""Servers that drop exactly whom they have to drop are accused of nothing."""

from dataclasses import replace

import pytest
from deltafl.sim.inspect.audit.dismissals import closings
from leaks_behind_covers import (
    VICTIM,
    RefusalStage,
    UnheldStage,
)
from leaks_by_devices import UPDATE
from staged_runs import Edit, Kind, Stage, played, write

from deltafl.secagg import wire as session_wire
from deltafl.secagg.states import Stage as Sending
from deltafl.secagg.states import Step
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options

ABOUT_MEMBERS = {"answers.ignored", "answers.invented", "cohort.grown"}


def findings(edit, folder, mode="full"):
    write(edit.entries, folder / "t.bin", mode)
    return audit(folder / "t.bin", Options(min_cohort=5)).findings


def about_members(edit, folder, mode="full"):
    return {finding.rule for finding in findings(edit, folder, mode)} & ABOUT_MEMBERS


class HonestServerStage(Stage):
    """One device sends something else at one step, and the server does what the rules say."""

    step = Step(Sending.MASK, 0)
    changed = staticmethod(lambda message: message)

    def upload(self, number, step, device, data, params):
        if (number, step, device) != (1, self.step, VICTIM):
            return data
        return session_wire.encode(self.changed(session_wire.decode(data, params)), params)


class ForeignSharesStage(HonestServerStage):
    """One device returns fewer shares than it was asked for."""

    step = Step(Sending.UNMASK, 0)

    @staticmethod
    def changed(message):
        return replace(
            message,
            positions=message.positions[1:],
            kinds=message.kinds[1:],
            shares=message.shares[1:],
        )


class FewBoxesStage(HonestServerStage):
    """One device leaves out the box of a neighbour."""

    step = Step(Sending.SHARE)

    @staticmethod
    def changed(message):
        boxes = {position: message.boxes[position] for position in sorted(message.boxes)[1:]}
        return replace(message, boxes=boxes)


class OwnBoxStage(HonestServerStage):
    """One device refuses its own box, which nobody has sent it."""

    step = Step(Sending.RECEIPT)

    @staticmethod
    def changed(message):
        return replace(message, refused=(2,))


class BlamedStage(HonestServerStage):
    """One device refuses most boxes."""

    step = Step(Sending.RECEIPT)

    @staticmethod
    def changed(message):
        return replace(message, refused=(0, 1, 3, 4))


@pytest.mark.parametrize("mode", ["full", "headers"])
@pytest.mark.parametrize("stage", [RefusalStage, BlamedStage, UnheldStage, OwnBoxStage])
def test_complaints_drop_whom_the_rules_say(tmp_path, stage, mode):
    edit = Edit(played(stage))
    asked = {entry.peer for entry in edit.find(1, Kind.SLOT, slot=0)}
    assert set(stage().ids) - asked == (set() if stage is RefusalStage else {VICTIM})
    assert about_members(edit, tmp_path, mode) == set()


@pytest.mark.slow
@pytest.mark.parametrize("stage", [ForeignSharesStage, FewBoxesStage])
def test_devices_whose_answers_do_not_fit_are_dropped(tmp_path, stage):
    edit = Edit(played(stage))
    asked = {entry.peer for entry in edit.find(1, Kind.SLOT, slot=UPDATE)}
    assert set(stage().ids) - asked == {VICTIM}
    assert about_members(edit, tmp_path) == set()


@pytest.mark.parametrize("stage", [BlamedStage, UnheldStage])
def test_without_the_complaints_the_same_losses_are_named(tmp_path, stage):
    """Control: it is the complaints that explain them."""
    edit = Edit(played(stage))
    for receipt in edit.find(1, Kind.RECEIPT):
        edit.put_message(receipt, replace(edit.message(receipt), refused=()))
    assert "answers.ignored" in about_members(edit, tmp_path)


def test_a_device_that_says_two_things_is_dropped_at_that_step_only(tmp_path):
    """The same record, of a server that drops the device, and of one that drops it later."""
    found = {}
    for name, kind, slot in (("then", Kind.RECEIPT, None), ("later", Kind.MASKED, 0)):
        edit = Edit(played(Stage))
        (receipt,) = edit.find(1, Kind.RECEIPT, peer=VICTIM)
        edit.insert_like(receipt, receipt, replace(edit.message(receipt), refused=(0,)))
        last, *_ = edit.find(1, kind, slot=slot, peer=VICTIM)
        after = edit.place(last)
        gone = [
            entry
            for entry in edit.entries[after + 1 :]
            if getattr(entry, "round", 0) == 1 and getattr(entry, "peer", None) == VICTIM
        ]
        edit.remove(*(entry for entry in gone if entry not in edit.touched))
        found[name] = {
            finding.rule
            for finding in findings(edit, tmp_path)
            if finding.rule == "answers.ignored" and "was not asked for" in finding.detail
        }
    assert found == {"then": set(), "later": {"answers.ignored"}}


def test_a_step_may_have_been_closed_after_the_last_answer_that_counted_or_later():
    answers = [(4, 8), (9, 5), (5, 7), (6, 9)]
    assert list(closings(answers, frozenset({7}))) == [{7, 8}, {7, 8, 9}, {5, 7, 8, 9}]
    assert list(closings([], frozenset({1}))) == [{1}]


@pytest.mark.parametrize(("gap", "is_found"), [(0, False), (1, True)])
def test_a_server_that_stopped_while_it_asked_had_not_come_to_the_others(tmp_path, gap, is_found):
    """Their answers came in another order than that in which they are asked next."""
    edit = Edit(played(Stage))
    came = edit.find(2, Kind.MASKED, slot=UPDATE)
    for entry in came:
        edit.remove(entry)
        edit.insert_after(edit.find(2, Kind.SLOT, slot=UPDATE)[-1], entry)
    requests = edit.find(2, Kind.REQUEST, slot=UPDATE)
    del edit.entries[edit.place(requests[3]) :]
    edit.remove(*requests[:gap], *edit.find(2, Kind.SHARES, slot=UPDATE)[:gap])
    write(edit.entries, tmp_path / "t.bin", closed=0)
    found = {one.rule for one in audit(tmp_path / "t.bin", Options(min_cohort=5)).findings}
    assert ("answers.ignored" in found) == is_found
    assert "record.unfinished" in found
