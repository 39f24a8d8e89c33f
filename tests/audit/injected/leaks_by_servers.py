# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Servers that tell devices different things, choose what they ask, or report other sums."""

from dataclasses import replace

import numpy as np
from leaks import leak
from staged_runs import (
    ACTIVE,
    SESSIONS,
    ActiveStage,
    Edit,
    Kind,
    OneQuestionStage,
    Stage,
    VerifiedStage,
)

from deltafl.protocol import wire as round_wire
from deltafl.protocol.levels import Levels
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import Adversary, keys
from deltafl.secagg.messages import ShareKind, UnmaskRequest, UnmaskShares
from deltafl.secagg.states import Stage as Sending
from deltafl.secagg.states import Step, Vanish

VICTIM, OTHER = 17, 31  # two of the ids
UPDATE = 2  # the slot, where a search has two queries


def without(edit: Edit, members: np.ndarray, device: int) -> np.ndarray:
    """A set of devices without one."""
    fewer = members.copy()
    fewer[edit.run.stage.ids.index(device)] = False
    return fewer


@leak("broadcast.announcement", "spec.told-apart")
def another_model_for_one_device(edit):
    (entry,) = edit.find(1, Kind.OPEN, peer=VICTIM)
    model = np.zeros(edit.run.stage.length, "<f4").tobytes()
    edit.put_envelope(entry, models=model)


@leak("broadcast.announcement", round=2)
def other_settings_for_half_the_devices(edit):
    for device in edit.run.stage.ids[3:]:
        (entry,) = edit.find(2, Kind.OPEN, peer=device)
        config = edit.envelope(entry).levels.common
        other = replace(config, update=replace(config.update, clip=4.0))
        edit.put_envelope(entry, levels=Levels((other,)))
    del edit.touched[1:]


@leak("question.unfounded")
def another_threshold_for_one_device(edit):
    (entry,) = edit.find(1, Kind.SLOT, slot=UPDATE, peer=VICTIM)
    edit.put_envelope(entry, question=Threshold(0, 0))


@leak("question.unfounded", round=2)
def another_query_for_one_device(edit):
    (entry,) = edit.find(2, Kind.SLOT, slot=1, peer=VICTIM)
    (pivot,) = edit.envelope(entry).question.pivots
    edit.put_envelope(entry, question=Query("bracketed", (pivot + 1,)))


@leak("answers.ignored")
def a_roster_without_one_device(edit):
    (entry,) = edit.find(1, Kind.ROSTER, peer=VICTIM)
    message = edit.message(entry)
    last = len(message.roster) - 1
    shown = {p: k for p, k in message.keys.items() if p != last}
    edit.put_message(entry, replace(message, roster=message.roster[:-1], keys=shown))


@leak("answers.ignored")
def another_cohort_for_one_device(edit):
    (entry,) = edit.find(1, Kind.SLOT, slot=UPDATE, peer=VICTIM)
    message = edit.message(entry)
    edit.put_message(entry, replace(message, members=without(edit, message.members, OTHER)))


@leak("answers.ignored")
def other_survivors_for_one_device(edit):
    (entry,) = edit.find(1, Kind.REQUEST, slot=UPDATE, peer=VICTIM)
    message = edit.message(entry)
    edit.put_message(entry, replace(message, survivors=without(edit, message.survivors, OTHER)))


@leak("answers.ignored", stage=ActiveStage)
def other_survivors_to_be_signed_by_one_device(edit):
    (entry,) = edit.find(1, Kind.CHECK, slot=0, peer=VICTIM)
    message = edit.message(entry)
    edit.put_message(entry, replace(message, survivors=without(edit, message.survivors, OTHER)))


def ask_again(edit: Edit, victim: int, helpers: list[int]) -> None:
    """Tell helpers that a device, whose vector is summed, was lost; they give what they hold."""
    position = edit.run.stage.ids.index(victim)
    last = edit.find(1, Kind.SHARES, slot=UPDATE)[-1]
    for helper in helpers:
        (request,) = edit.find(1, Kind.REQUEST, slot=UPDATE, peer=helper)
        survivors = without(edit, edit.message(request).survivors, victim)
        asked = edit.insert_like(last, request, UnmaskRequest(UPDATE, survivors))
        client = edit.run.clients[1, 0, helper]
        positions = np.flatnonzero(np.ones_like(survivors)).astype(np.uint32)
        kinds = np.where(survivors, ShareKind.SEED, ShareKind.RECOVERY).astype(np.uint8)
        shares = np.stack(
            [client.share(UPDATE, int(p), k) for p, k in zip(positions, kinds, strict=True)]
        )
        (given,) = edit.find(1, Kind.SHARES, slot=UPDATE, peer=helper)
        last = edit.insert_like(asked, given, UnmaskShares(UPDATE, positions, kinds, shares))
    assert (kinds[position], kinds.sum()) == (ShareKind.RECOVERY, 1)


@leak("shares.both-kinds")
def both_secrets_of_one_device(edit):
    ask_again(edit, VICTIM, edit.run.stage.ids)
    edit.touched = []


@leak("shares.both-kinds")
def both_secrets_of_one_device_once_its_sum_is_there(edit):
    learnt = edit.sums(1)[-1]
    ask_again(edit, VICTIM, edit.run.stage.ids)
    edit.remove(learnt)
    edit.insert_after(edit.find(1, Kind.SHARES, slot=UPDATE)[6], learnt)
    edit.touched = []


@leak("shares.both-kinds")
def one_share_too_many(edit):
    ask_again(edit, VICTIM, [OTHER])
    edit.touched = []


@leak("keys.substituted", "spec.relayed")
def a_key_of_the_server_s_own(edit):
    (entry,) = edit.find(1, Kind.ROSTER, peer=VICTIM)
    message = edit.message(entry)
    place = edit.run.stage.ids.index(OTHER)
    own = keys.recipient(b"the server".ljust(32)).public
    shown = dict(message.keys) | {place: replace(message.keys[place], key=own)}
    edit.put_message(entry, replace(message, keys=shown))


@leak("parameters.below-policy", twin=VerifiedStage, options={"adversary": Adversary.ACTIVE})
def a_session_that_withstands_no_active_server(edit):
    edit.touched = edit.find(1, Kind.OPEN)[:1]


@leak("boxes.exchanged")
def two_boxes_exchanged(edit):
    (entry,) = edit.find(1, Kind.DELIVERY, peer=VICTIM)
    message = edit.message(entry)
    first, second, *_ = boxes = dict(message.boxes)
    swapped = {first: boxes[second], second: boxes[first]}
    edit.put_message(entry, replace(message, boxes=boxes | swapped))


def change_tags(edit: Edit, device: int, change) -> None:
    """Change the tags that a device is shown, by position."""
    (entry,) = edit.find(1, Kind.SLOT, slot=0, peer=device)
    message = edit.message(entry)
    edit.put_message(entry, replace(message, tags=change(dict(message.tags))))


@leak("links.tags", "spec.relayed")
def a_tag_that_its_device_did_not_send(edit):
    place = edit.run.stage.ids.index(OTHER)
    change_tags(edit, VICTIM, lambda tags: tags | {place: bytes(reversed(tags[place]))})


@leak("links.tags")
def a_tag_that_is_withheld(edit):
    place = edit.run.stage.ids.index(OTHER)
    change_tags(edit, VICTIM, lambda tags: {p: tag for p, tag in tags.items() if p != place})


@leak("links.tags", "spec.relayed")
def tags_that_are_shown_to_another_device(edit):
    (entry,) = edit.find(1, Kind.SLOT, slot=0, peer=OTHER)
    shown = dict(edit.message(entry).tags)
    change_tags(edit, VICTIM, lambda tags: tags | {p: shown[p] for p in tags.keys() & shown})


@leak("links.tags")
def tags_with_a_slot_that_needs_none(edit):
    (first,) = edit.find(1, Kind.SLOT, slot=0, peer=VICTIM)
    (later,) = edit.find(1, Kind.SLOT, slot=1, peer=VICTIM)
    edit.put_message(later, replace(edit.message(later), tags=edit.message(first).tags))


class TwiceStage(OneQuestionStage):
    """The first round is played again without one device; none keeps a ledger."""

    def cohorts(self, number):
        return [self.ids, [i for i in self.ids if i != VICTIM]] if number == 1 else [self.ids]


@leak("session.twice", stage=TwiceStage)
def one_round_in_two_sessions(edit):
    edit.touched = edit.find(1, Kind.OPEN)[-6:-5]


@leak("sums.differ-by-few", stage=TwiceStage)
def one_question_over_one_device_less(edit):
    edit.touched = edit.sums(1)[1:]


class SameModelStage(Stage):
    """The second round shows the first one's model again."""

    def model(self, number, model):
        return np.linspace(-1, 1, self.length).astype(np.float32)


@leak("retry.one-model", stage=SameModelStage, round=2)
def a_model_that_devices_have_answered_for(edit):
    edit.touched = edit.find(2, Kind.OPEN)[:1]


@leak("retry.same-model", stage=SameModelStage, round=2)
def the_same_model_again(edit):
    edit.touched = edit.find(2, Kind.OPEN)[:1]


class SameModelFewerStage(SameModelStage):
    """The second round shows the first one's model again, to one device less."""

    theta = OneQuestionStage.theta

    def cohorts(self, number):
        return [[i for i in self.ids if number == 1 or i != VICTIM]]


@leak("sums.differ-by-few", stage=SameModelFewerStage, round=2, twin=OneQuestionStage)
def the_same_model_for_one_device_less(edit):
    edit.touched = edit.sums(2)


class SameSessionStage(SameModelStage):
    """The second round is the first one, to the last parameter."""

    def config(self, number, cohort_size, warm_start=None):
        return super().config(1, cohort_size)

    def graph_seed(self, number, take):
        return super().graph_seed(1, take)


@leak("session.twice", stage=SameSessionStage, round=2)
def the_same_session_again(edit):
    edit.touched = [e for e in edit.find(2, Kind.OPEN)][:1]


class PairStage(OneQuestionStage):
    """Two devices alone."""

    num_devices = 2
    is_lenient = True

    def params(self, number, take, config, model):
        few = dict(threshold=2, min_cohort=2, degree=1, num_invited=2)
        whole = self.sessions.params(replace(config, cohort_size=7), model, bytes(32))
        return replace(
            whole,
            **few,
            slots=config.slots(),
            context=Levels((config,)).context(model),
            min_roster=2,
            graph_seed=self.graph_seed(number, take),
        )


@leak("cohort.below-floor", stage=PairStage)
def a_cohort_of_two(edit):
    edit.touched = edit.sums(1)


@leak("cohort.below-floor")
def sums_over_nobody(edit):
    edit.remove(*edit.find(1, Kind.MASKED))
    for one in edit.sums(1):
        nothing = replace(one.total, vector=one.total.vector * 0, contributors=())
        edit.put(one, replace(one, total=nothing))


class StrictStage(OneQuestionStage):
    """Sums over seven devices or none."""

    sessions = replace(SESSIONS, min_cohort=7)


@leak("cohort.below-floor", stage=StrictStage, twin=StrictStage, options={"min_cohort": 7})
def a_cohort_below_a_floor_of_one_s_own(edit):
    (learnt,) = edit.sums(1)
    total = replace(learnt.total, contributors=learnt.total.contributors[1:])
    edit.put(learnt, replace(learnt, total=total))


class ShrinkingStage(Stage):
    """A search goes on without one device, as does everybody."""

    is_lenient = True

    def vanishing(self, number, take, config):
        return {VICTIM: Vanish(Step(Sending.UNMASK, 0))} if number == 1 else {}


@leak("question.unfounded", stage=ShrinkingStage)
def a_query_over_a_part_of_its_cohort(edit):
    edit.touched = edit.find(1, Kind.SLOT, slot=1)[:1]


@leak("policy.ignored", stage=ShrinkingStage, with_truth=True)
def devices_that_answer_over_a_part_of_their_cohort(edit):
    edit.touched = edit.find(1, Kind.MASKED, slot=1)[:1]


@leak("sums.differ-by-few", stage=ShrinkingStage)
def a_search_over_cohorts_that_differ_by_one(edit):
    edit.touched = edit.sums(1)[1:2]


class IsolatingStage(Stage):
    """The server announces a threshold that one device alone reaches."""

    def question(self, number, question):
        isolates = number == 1 and isinstance(question, Threshold)
        return Threshold(2 * 3379, 0) if isolates else question


@leak("sums.small-tail", stage=IsolatingStage)
def a_threshold_for_one_device(edit):
    assert len(edit.run.passed(1)) == 1
    edit.touched = edit.sums(1)[-1:]


@leak("question.unfounded", "spec.questions", stage=IsolatingStage)
def a_threshold_of_the_server_s_own(edit):
    edit.touched = edit.find(1, Kind.SLOT, slot=UPDATE)[:1]


class ProbingStage(Stage):
    """The server asks for a rank that the search does not need."""

    def question(self, number, question):
        if number == 2 and isinstance(question, Query) and self._asked:
            return Query(question.method, (question.pivots[0] // 2,))
        self._asked = number == 2 and isinstance(question, Query)
        return question


@leak("question.unfounded", stage=ProbingStage, round=2)
def a_query_of_the_server_s_own(edit):
    edit.touched = edit.find(2, Kind.SLOT, slot=1)[:1]


class ElsewhereStage(Stage):
    """A search starts where the server likes, and goes on as it must."""

    def warm_start(self, number, tick):
        return 700 if number == 2 else tick


@leak("question.unfounded", stage=ElsewhereStage, round=2)
def a_search_that_starts_where_the_server_likes(edit):
    edit.touched = edit.find(2, Kind.OPEN)[:1]


class WeakStage(Stage):
    """Two devices that collude rebuild any secret."""

    is_lenient = True

    def params(self, number, take, config, model):
        return replace(super().params(number, take, config, model), threshold=2)


@leak("parameters.below-policy", stage=WeakStage)
def a_threshold_of_two_shares(edit):
    edit.touched = edit.find(1, Kind.OPEN)[:1]


class HalfStage(OneQuestionStage):
    """Lists are signed, by so few that two lists can be."""

    sessions = ACTIVE
    num_rounds = 1
    is_lenient = True

    def params(self, number, take, config, model):
        return replace(super().params(number, take, config, model), threshold=3)


@leak(
    "spec.threshold", stage=HalfStage, twin=VerifiedStage, options={"adversary": Adversary.ACTIVE}
)
def a_threshold_that_two_lists_reach(edit):
    edit.touched = edit.find(1, Kind.OPEN)[:1]


@leak("session.impossible", round=2)
def a_session_that_is_bound_to_another_model(edit):
    model = np.zeros(edit.run.stage.length, "<f4").tobytes()
    for entry in edit.find(2, Kind.OPEN):
        edit.put_envelope(entry, models=model)
    del edit.touched[1:]


@leak("sums.differ")
def a_forged_sum_of_updates(edit):
    learnt = edit.sums(1)[-1]
    vector = learnt.total.vector.copy()
    vector[0] += 1
    edit.put(learnt, replace(learnt, total=replace(learnt.total, vector=vector)))


@leak("independent.differs", options={"independent": True})
def a_sum_that_a_second_computation_denies(edit):
    a_forged_sum_of_updates(edit)


@leak("sums.differ", round=2)
def a_forged_answer_to_a_query(edit):
    learnt = edit.sums(2)[1]
    vector = learnt.total.vector.copy()
    vector[-1] ^= 1
    edit.put(learnt, replace(learnt, total=replace(learnt.total, vector=vector)))


@leak("sums.differ", round=1)
def a_masked_vector_changed_afterwards(edit):
    """Whoever changes a message writes the chain anew; what the sum says is another matter."""
    (entry,) = edit.find(1, Kind.MASKED, slot=0, peer=VICTIM)
    message = edit.message(entry)
    packed = bytes([message.packed[0] ^ 1]) + message.packed[1:]
    edit.put_message(entry, replace(message, packed=packed))
    edit.touched = edit.sums(1)[:1]


def say_contributors(edit: Edit, contributors) -> None:
    learnt = edit.sums(1)[-1]
    total = replace(learnt.total, contributors=contributors(learnt.total.contributors))
    edit.put(learnt, replace(learnt, total=total))


@leak("sums.differ")
def a_sum_said_to_be_over_one_device_more(edit):
    say_contributors(edit, lambda ids: (*ids, 999))


@leak("sums.differ")
def a_sum_said_to_be_over_some_devices_twice(edit):
    say_contributors(edit, lambda ids: ids[:4] * 2)


@leak("sums.unreplayable")
def a_sum_before_its_shares(edit):
    learnt = edit.sums(1)[-1]
    edit.remove(learnt)
    edit.insert_after(edit.find(1, Kind.REQUEST, slot=UPDATE)[0], learnt)


@leak("sums.unreplayable")
def a_second_sum_of_one_slot(edit):
    learnt = edit.sums(1)[-1]
    edit.insert_after(learnt, replace(learnt))


@leak("question.unfounded")
def a_slot_opened_again_with_another_question(edit):
    last = edit.sums(1)[0]
    for entry in edit.find(1, Kind.SLOT, slot=0):
        envelope = replace(edit.envelope(entry), question=Query("bracketed", (77,)))
        edit.insert_after(last, replace(entry, data=round_wire.encode(envelope)))
    edit.touched = []


@leak("sums.unreplayable")
def a_sum_without_messages(edit):
    edit.remove(*edit.find(1, Kind.MASKED, slot=0))
    edit.touched = edit.sums(1)[:1]


@leak("cohort.grown")
def a_masked_vector_taken_out(edit):
    edit.remove(*edit.find(1, Kind.MASKED, slot=0, peer=VICTIM))
    edit.touched = edit.find(1, Kind.REQUEST, slot=0)[:1]


@leak("sums.unreplayable", round=2)
def a_sum_of_a_slot_that_was_never_opened(edit):
    learnt = edit.sums(2)[-1]
    slot = [*edit.find(2, Kind.SLOT, slot=1), *edit.find(2, Kind.MASKED, slot=1)]
    slot += [*edit.find(2, Kind.REQUEST, slot=1), *edit.find(2, Kind.SHARES, slot=1)]
    edit.remove(*slot)
    edit.touched = edit.sums(2)[1:2]
    assert learnt in edit.entries


@leak("sums.unrecorded")
def a_sum_that_is_not_recorded(edit):
    edit.remove(edit.sums(1)[-1])


class OutOfRangeStage(Stage):
    """One device masks a number that is none of the layout's."""

    def contribution(self, number, device, slot, words):
        if (number, device, slot) == (1, VICTIM, UPDATE):
            words = words.copy()
            words[0] = 1 << 23  # the ring has 24 bits, and this is far beyond seven of the largest
        return words


@leak("sums.unrecorded")
def a_sum_hidden_behind_a_round_that_was_given_up(edit):
    edit.remove(edit.sums(1)[-1])
    edit.put(edit.end(1), replace(edit.end(1), aborted="too few devices are left"))
    edit.touched = []


@leak("sums.out-of-range", stage=OutOfRangeStage)
def a_sum_outside_its_range(edit):
    assert "field 'update'" in edit.end(1).aborted
    edit.touched = [edit.closing(edit.find(1, Kind.SHARES, slot=UPDATE)[0])]


class AbortedStage(Stage):
    """Four devices vanish before the second sum, and the round is given up."""

    def vanishing(self, number, take, config):
        return dict.fromkeys(self.ids[:4], Vanish(Step(Sending.UNMASK, 1))) if number == 1 else {}


@leak("retry.aborted", stage=AbortedStage)
def a_round_given_up_after_its_first_sum(edit):
    assert edit.end(1).aborted
    edit.touched = [edit.end(1)]


@leak("retry.aborted")
def a_round_given_up_by_a_server_that_had_its_sums(edit):
    edit.put(edit.end(1), replace(edit.end(1), aborted="it did not please the server"))
