# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Servers that go another way through several passes over the updates."""

import numpy as np
from leaks import leak
from staged_runs import Kind, RobustStage

from deltafl.protocol.robust import Centre
from deltafl.secagg.stages import Stage as Sending
from deltafl.secagg.stages import Step, Vanish

VICTIM = 17
BELOW = ("round.below-policy",)
"""Devices give one sum of their updates, unless they are told that they may give more."""
FIRST, SECOND = 3, 4  # the slots of the later passes, after two queries and the update


def shifted(centre: Centre) -> Centre:
    """A centre that differs in one number."""
    vector = centre.vector().copy()
    vector[5] += np.float32(0.25)
    return Centre(vector.tobytes())


class OwnCentreStage(RobustStage):
    """The server asks for a pass around a centre of its own."""

    def question(self, number, question):
        is_centre = number == 2 and isinstance(question, Centre)
        return shifted(question) if is_centre else question


@leak("question.unfounded", stage=OwnCentreStage, round=2, common=BELOW)
def a_centre_of_the_server_s_own(edit):
    edit.touched = edit.find(2, Kind.SLOT, slot=FIRST)[:1]


@leak("broadcast.question", stage=RobustStage, common=BELOW)
def another_centre_for_one_device(edit):
    (entry,) = edit.find(1, Kind.SLOT, slot=SECOND, peer=VICTIM)
    edit.put_envelope(entry, question=shifted(edit.envelope(entry).question))


@leak("question.unfounded", stage=RobustStage, common=BELOW)
def a_centre_that_the_record_has_otherwise(edit):
    told = edit.find(1, Kind.SLOT, slot=SECOND)
    for entry in told:
        edit.put_envelope(entry, question=shifted(edit.envelope(entry).question))
    del edit.touched[1:]


class HastyStage(RobustStage):
    """The server leaves the last pass out, though nobody is lost."""

    def question(self, number, question):
        self._centres = getattr(self, "_centres", 0) + (
            number == 1 and isinstance(question, Centre)
        )
        is_last = number == 1 and isinstance(question, Centre) and self._centres == 2
        return None if is_last else question


@leak("round.given-up", stage=HastyStage, common=BELOW)
def a_pass_that_is_left_out(edit):
    assert edit.run.outcomes[1].passes == 2
    edit.touched = [edit.end(1)]


class ShrinkingPassStage(RobustStage):
    """A later pass is over one device fewer than the first; its devices do not mind."""

    is_lenient = True

    def vanishing(self, number, take, config):
        return {VICTIM: Vanish(Step(Sending.UNMASK, 2))} if number == 1 else {}


EVERYWHERE = ("full", "headers")


@leak("lists.not-whole", stage=ShrinkingPassStage, modes=EVERYWHERE, common=BELOW)
def a_pass_over_fewer_devices(edit):
    edit.touched = edit.find(1, Kind.SLOT, slot=FIRST)[:1]


@leak("sums.differ-by-few", stage=ShrinkingPassStage, modes=EVERYWHERE, common=BELOW)
def two_passes_that_differ_by_one_device(edit):
    edit.touched = edit.sums(1)[3:4]
