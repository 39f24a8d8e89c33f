# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""What sizes, times and presence give away, and what many rounds and searches do."""

from leaks import leak
from staged_runs import (
    BatchedStage,
    Kind,
    ManyStage,
    OneQuestionStage,
    Stage,
)

from deltafl.secagg.codec import read_fields, write_fields
from deltafl.secagg.states import Stage as Sending
from deltafl.secagg.states import Step, Vanish

UPDATE = 2


@leak("clear.values")
def shorter_vectors_of_whoever_fails_the_filter(edit):
    passed = edit.run.passed(1)
    for entry in edit.find(1, Kind.MASKED, slot=UPDATE):
        if entry.peer not in passed:
            fields = read_fields(entry.data, most=9)
            edit.put_data(
                entry, write_fields([*fields[:4], fields[4][: len(fields[4]) // 2], fields[5]])
            )
    edit.touched = []


@leak("metadata.order", stage=ManyStage, with_truth=True, round=None)
def whoever_trains_answers_last(edit):
    update = ManyStage.max_queries
    for number in range(1, edit.run.stage.num_rounds + 1):
        passed = edit.run.passed(number)
        last = edit.find(number, Kind.SLOT, slot=update)[-1]
        answers = edit.find(number, Kind.MASKED, slot=update)
        edit.remove(*answers)
        edit.insert_after(last, *sorted(answers, key=lambda entry: entry.peer in passed))
    edit.touched = []


def sort_answers(edit, kind, key, **which):
    """Have the answers of a step come in another order, in every round."""
    for number in range(1, edit.run.stage.num_rounds + 1):
        answers = edit.find(number, kind, **which)
        places = sorted(edit.place(entry) for entry in answers)
        for place, entry in zip(places, sorted(answers, key=key), strict=True):
            edit.entries[place] = entry
    edit.touched = []


@leak("metadata.order-of-values", stage=ManyStage, with_truth=True, round=None)
def whoever_has_the_smallest_loss_answers_first(edit):
    sort_answers(edit, Kind.MASKED, lambda e: edit.run.loss(e.round, e.peer), slot=0)


@leak("metadata.order-of-values", stage=ManyStage, with_truth=True, round=None)
def shares_that_come_in_the_order_of_the_losses(edit):
    """From the largest to the smallest."""
    sort_answers(edit, Kind.SHARES, lambda e: -edit.run.loss(e.round, e.peer), slot=0)


@leak("metadata.order-of-values", stage=ManyStage, with_truth=True, round=None)
def receipts_that_come_in_the_order_of_the_weights(edit):
    sort_answers(edit, Kind.RECEIPT, lambda e: -edit.run.stage.weight(e.peer))


class SilentStage(ManyStage):
    """Most of those that fail the filter have nothing to say."""

    def vanishing(self, number, take, config):
        return dict.fromkeys(self.by_loss()[:5], Vanish(Step(Sending.MASK, self.max_queries)))


@leak("metadata.answers", stage=SilentStage, with_truth=True, round=None)
def whoever_fails_the_filter_stays_away(edit):
    for number in range(1, edit.run.stage.num_rounds + 1):
        assert edit.run.passed(number).isdisjoint(edit.run.stage.by_loss()[:5])


class LonelyStage(OneQuestionStage):
    """The second cohort has one device more than the first."""

    def cohorts(self, number):
        return [self.ids[: 5 + number]]


@leak("participation.solvable", stage=LonelyStage, twin=BatchedStage, round=2)
def cohorts_that_isolate_one_device_over_rounds(edit):
    assert len(edit.sums(2)[0].total.contributors) == len(edit.sums(1)[0].total.contributors) + 1


@leak("search.narrow", stage=Stage, twin=OneQuestionStage)
def searches_that_tell_what_all_searches_tell(edit):
    assert len(edit.sums(1)) > 1
