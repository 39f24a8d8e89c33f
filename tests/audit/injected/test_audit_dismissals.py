"""Servers that drop exactly whom they have to drop are accused of nothing."""

from dataclasses import replace

import pytest
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
from deltafl.sim.inspect.audit.catalogue import ServerAgain
from deltafl.sim.inspect.audit.options import Options


def accused(edit, path):
    """What a server is found to do otherwise than it must."""
    write(edit.entries, path / "t.sqlite")
    found = audit(path / "t.sqlite", Options(min_cohort=5)).findings
    return {finding.rule for finding in found} & set(ServerAgain.rules)


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


class OwnLinkStage(HonestServerStage):
    """One device says that it has a link with itself."""

    step = Step(Sending.RECEIPT)

    @staticmethod
    def changed(message):
        (link, *_) = message.links.values()
        return replace(message, links={**message.links, 2: link})


class AloneStage(HonestServerStage):
    """One device says that it could read few boxes."""

    step = Step(Sending.RECEIPT)

    @staticmethod
    def changed(message):
        return replace(message, links={p: message.links[p] for p in (5, 6)})


@pytest.mark.parametrize("stage", [RefusalStage, AloneStage, UnheldStage, OwnLinkStage])
def test_missing_links_drop_whom_the_rules_say(tmp_path, stage):
    edit = Edit(played(stage))
    asked = {entry.peer for entry in edit.find(1, Kind.SLOT, slot=0)}
    assert set(stage().ids) - asked == (set() if stage is RefusalStage else {VICTIM})
    assert accused(edit, tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize("stage", [ForeignSharesStage, FewBoxesStage])
def test_devices_whose_answers_do_not_fit_are_dropped(tmp_path, stage):
    edit = Edit(played(stage))
    asked = {entry.peer for entry in edit.find(1, Kind.SLOT, slot=UPDATE)}
    assert set(stage().ids) - asked == {VICTIM}
    assert accused(edit, tmp_path) == set()


def test_with_all_links_the_same_losses_are_named(tmp_path):
    """Control: it is the missing links that explain them."""
    edit = Edit(played(AloneStage))
    (receipt,) = edit.find(1, Kind.RECEIPT, peer=VICTIM)
    links = dict(edit.message(receipt).links)
    for other in edit.find(1, Kind.RECEIPT):  # both ends say the same of their keys
        said = edit.message(other).links
        links |= {Stage().ids.index(other.peer): said[2]} if 2 in said else {}
    edit.put_message(receipt, replace(edit.message(receipt), links=links))
    assert "answers.ignored" in accused(edit, tmp_path)
