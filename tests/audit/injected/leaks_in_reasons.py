"""Servers that give rounds up for reasons of their own, and say what they like."""

from dataclasses import replace

from leaks import leak
from leaks_by_servers import AbortedStage
from staged_runs import Edit, Kind, Stage

from deltafl.sim.record.transcript import INTERRUPTED

FEW = (
    "{} devices are left and min_cohort is 5: invite more devices or expect more drop-outs when "
    "choosing the parameters"
)

ABORTED = {
    "stage": AbortedStage,
    "twin": AbortedStage,
    "common": ("retry.one-model", "question.unfounded", "messages.untimely"),
}


def say(edit: Edit, reason: str | None) -> None:
    edit.put(edit.end(1), replace(edit.end(1), aborted=reason))


def stop_before(edit: Edit, kind: Kind, slot: int) -> None:
    """A server that does not go on."""
    first, end = edit.find(1, kind, slot=slot)[0], edit.end(1)
    edit.entries[edit.place(first) : edit.place(end)] = []


@leak("round.given-up", **ABORTED)
def a_reason_with_more_in_it_than_a_reason(edit):
    say(edit, f"{edit.end(1).aborted}; the loss of device 7 was 1.2345")


@leak("round.given-up", **ABORTED)
def a_reason_with_another_number(edit):
    reason = edit.end(1).aborted
    assert "3 devices are left" in reason
    say(edit, reason.replace("3 devices are left", "4 devices are left"))


@leak("round.given-up", **ABORTED)
def a_round_that_stops_and_has_no_reason(edit):
    say(edit, None)


@leak("round.given-up")
def a_round_given_up_although_everybody_had_answered(edit):
    stop_before(edit, Kind.SLOT, 1)
    say(edit, FEW.format(4))


@leak("round.given-up")
def a_round_given_up_for_a_number_of_devices_that_there_cannot_be(edit):
    stop_before(edit, Kind.SLOT, 1)
    say(edit, FEW.format(5))


@leak("round.given-up")
def a_round_given_up_before_its_first_question(edit):
    stop_before(edit, Kind.SLOT, 0)
    say(edit, FEW.format(0))


@leak("round.given-up", stage=Stage)
def an_interruption_of_a_server_that_was_not_interrupted(edit):
    say(edit, INTERRUPTED)
