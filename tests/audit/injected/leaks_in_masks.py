# ruff: noqa: ARG004, ARG005 - what a stage is asked, another may need to know
"""Masks that are missing, too few, or known to the server; the sums are right all the same."""

from dataclasses import replace
from unittest import mock

from leaks import leak
from leaks_in_files import in_a_directory
from staged_runs import DrawnStage, ManyStage, Stage, SteepStage, VerifiedStage

from deltafl.secagg import Client, openings, pedersen
from deltafl.secagg.masks import PairSecret, SlotContext

UPDATE = 2  # the slot, where a search has two queries


class PartnersStage(Stage):
    """Devices mask with some of their neighbours only."""

    num_devices = 8

    @staticmethod
    def masks_with(own, peer, slot):
        """Whether two positions share a mask in a slot."""
        return own // 2 == peer // 2

    def machinery(self):
        masks_with, real = self.masks_with, Client._mask

        def masked(client, total, phase, context):
            own, slot, pairs = phase.cohort.position, phase.slot, phase.secrets.pairs
            few = {peer: key for peer, key in pairs[slot].items() if masks_with(own, peer, slot)}
            secrets = replace(phase.secrets, pairs={**pairs, slot: few})
            real(client, total, replace(phase, secrets=secrets), context)

        return mock.patch.object(Client, "_mask", masked)


class DrawnPartnersStage(PartnersStage, DrawnStage):
    """The same in a run whose settings are known."""

    num_devices = DrawnStage.num_devices


class AloneStage(PartnersStage):
    """Self masks only, in the slots that have them."""

    masks_with = staticmethod(lambda own, peer, slot: slot == 1)


class BareStage(PartnersStage, SteepStage):
    """No masks at all in whole slots, so that vectors are what they hide."""

    masks_with = staticmethod(lambda own, peer, slot: slot != 1)


class RingStage(PartnersStage):
    """Each masks with the next and the one before: no few of them can be read, but less hides."""

    masks_with = staticmethod(lambda own, peer, slot: (own - peer) % 8 in (1, 7))


class TriplesStage(PartnersStage):
    """Groups of three."""

    num_devices = 9
    masks_with = staticmethod(lambda own, peer, slot: own // 3 == peer // 3)


@leak("masks.missing", stage=PartnersStage, round=None)
def masks_between_two_devices_only(edit):
    assert edit.run.entries


@leak(
    "masks.missing",
    stage=DrawnPartnersStage,
    round=None,
    laid=in_a_directory,
    twin_laid=in_a_directory,
    common=("run.unfinished",),
)
def masks_between_two_devices_only_in_a_run_directory(edit):
    assert edit.run.entries


@leak("masks.missing", stage=TriplesStage, round=None)
def masks_within_groups_of_three(edit):
    assert edit.run.entries


@leak("masks.missing", stage=AloneStage, round=None)
def no_masks_but_those_that_are_removed(edit):
    assert edit.run.entries


@leak("masks.missing", "masks.biased", stage=BareStage, round=None)
def whole_slots_without_masks(edit):
    assert edit.run.entries


@leak("masks.other", stage=RingStage, round=1, with_truth=True)
def masks_with_two_devices_of_seven(edit):
    assert edit.run.entries


@leak("masks.other", stage=BareStage, round=1, with_truth=True)
def whole_slots_without_masks_and_a_truth_file(edit):
    assert edit.run.entries


class KnownStage(Stage):
    """The masks that devices share follow from what everybody can see."""

    def machinery(self):
        return mock.patch.object(
            PairSecret, "key", lambda pair: pedersen.labels.digest(b"mask", pair.info)
        )


@leak("masks.other", stage=KnownStage, with_truth=True)
def masks_that_everybody_can_compute(edit):
    """Played with other keys than those that the auditor derives."""


class KnownSelfStage(Stage):
    """Self masks do not follow from the seeds that are shared; the sum is then of no use."""

    def machinery(self):
        return mock.patch.object(SlotContext, "self_mask_key", return_value=bytes(32))


@leak("masks.other", stage=KnownSelfStage, with_truth=True)
def self_masks_of_no_seed(edit):
    assert edit.run.entries


class WholeKnownStage(Stage):
    """The masks of whole slots do not come from the links."""

    def machinery(self):
        real = SlotContext.whole

        def known(self, of_peers, members):
            return real(self, dict.fromkeys(of_peers, bytes(32)), members)

        return mock.patch.object(SlotContext, "whole", known)


@leak("masks.other", stage=WholeKnownStage, with_truth=True)
def whole_masks_of_no_secret(edit):
    assert edit.run.entries


class OtherAnswerStage(VerifiedStage):
    """One device commits to another answer than the one that it masks."""

    def machinery(self):
        real, calls = openings.commit, []

        def commit(context, spec, vector, identity, key, randomness):
            calls.append(None)
            said = vector.copy()
            said[0] += len(calls) == 1
            return real(context, spec, said, identity, key, randomness)

        return mock.patch.object(openings, "commit", commit)


class ManyPartnersStage(PartnersStage, ManyStage):
    """More devices in pairs, whose vectors are short."""

    num_devices = 12


@leak("masks.missing", stage=ManyPartnersStage, round=None, twin=ManyStage)
def short_vectors_masked_in_pairs(edit):
    assert edit.run.entries


@leak("commitments.other", stage=OtherAnswerStage, with_truth=True)
def an_answer_other_than_what_was_committed_to(edit):
    assert edit.run.entries
