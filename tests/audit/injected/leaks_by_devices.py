# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Devices that leak, and masks that do not mask."""

import json
import struct
from dataclasses import replace
from hashlib import sha256
from unittest import mock

import numpy as np
from leaks import leak
from leaks_in_searches import shares_for_a_whole_slot
from staged_runs import (
    ActiveStage,
    Edit,
    Kind,
    ManyStage,
    ProvedStage,
    Stage,
    SteepStage,
    VerifiedStage,
)

from deltafl.secagg import keys, prg, ring, shamir
from deltafl.secagg import wire as session_wire
from deltafl.secagg.codec import read_fields, write_fields
from deltafl.secagg.directory import Credentials
from deltafl.secagg.identity import generate
from deltafl.secagg.messages import MaskedInput
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import Stage as Sending
from deltafl.secagg.states import Step, Vanish

VICTIM = 17  # one of the ids, in the middle
UPDATE = 2  # the slot, where a search has two queries


def in_masked(edit: Edit, number: int, slot: int, change) -> None:
    """Change every masked vector of a slot."""
    spec = next(iter(edit.run.params.values())).slots[slot]
    for entry in edit.find(number, Kind.MASKED, slot=slot):
        packed = edit.message(entry).packed
        words = change(entry.peer, ring.unpack(packed, spec.length, spec.ring_bits))
        ring.reduce(words, spec.ring_bits)
        edit.put_message(entry, MaskedInput(slot, ring.pack(words, spec.ring_bits)))


@leak("clear.values")
def losses_behind_masked_vectors(edit):
    for entry in edit.find(1, Kind.MASKED, slot=0):
        loss = edit.run.loss(1, entry.peer)
        edit.put_data(entry, entry.data + struct.pack("<d", loss))


@leak("clear.values")
def losses_in_a_field_more(edit):
    for entry in edit.find(1, Kind.MASKED, slot=0):
        fields = read_fields(entry.data, most=9)
        loss = struct.pack("<d", edit.run.loss(1, entry.peer))
        edit.put_data(entry, write_fields([*fields, loss]))


@leak("clear.values")
def a_float32_loss_in_a_field_more(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=0, peer=VICTIM)
    loss = struct.pack("<f", edit.run.loss(1, VICTIM))
    edit.put_data(entry, write_fields([*read_fields(entry.data, most=9), loss]))


@leak("clear.values")
def weights_in_messages_of_their_own(edit):
    for entry in edit.find(1, Kind.ADVERTISE):
        weight = edit.run.stage.weight(entry.peer)
        fields = [2, 0x1F, session_wire.tag_of(entry.data), weight]
        edit.insert_after(entry, replace(entry, data=write_fields(fields)))


@leak("clear.values")
def telemetry_in_json(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=1, peer=VICTIM)
    said = {"device": VICTIM, "loss": edit.run.loss(1, VICTIM)}
    edit.insert_after(entry, replace(entry, data=json.dumps(said).encode()))


@leak("clear.values")
def an_update_in_clear(edit):
    (device,) = [d for n, d in edit.run.truths if n == 1 and d.id == max(edit.run.stage.ids)]
    (entry,) = edit.find(1, Kind.MASKED, slot=UPDATE, peer=device.id)
    edit.insert_after(entry, replace(entry, data=device.noted_update.astype("<f4").tobytes()))


@leak("clear.values")
def a_message_that_nobody_can_read(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=1, peer=VICTIM)
    edit.insert_after(entry, replace(entry, data=SeededRandomness(bytes(32))(64)))


@leak("masks.reused", stage=SteepStage)
def masks_used_in_two_slots(edit):
    (first,) = edit.find(1, Kind.MASKED, slot=0, peer=VICTIM)
    spec = edit.run.params[session_wire.tag_of(first.data)].slots[0]
    masked = ring.unpack(edit.message(first).packed, spec.length, spec.ring_bits)
    mask = masked - edit.run.input(1, VICTIM, 0)
    in_masked(edit, 1, 1, lambda i, words: mask + edit.run.input(1, i, 1) if i == VICTIM else words)
    edit.touched = [first, *edit.find(1, Kind.MASKED, slot=1, peer=VICTIM)]


@leak("masks.reused", round=None)
def masks_used_in_two_rounds(edit):
    (first,) = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)
    spec = edit.run.params[session_wire.tag_of(first.data)].slots[UPDATE]
    masked = ring.unpack(edit.message(first).packed, spec.length, spec.ring_bits)
    mask = masked - edit.run.input(1, VICTIM, UPDATE)
    in_masked(
        edit, 2, UPDATE, lambda i, w: mask + edit.run.input(2, i, UPDATE) if i == VICTIM else w
    )
    edit.touched = [first, *edit.find(2, Kind.MASKED, slot=UPDATE, peer=VICTIM)]


class BiasedStage(Stage):
    """The two highest bits of every byte of every mask are zero, which the sum of masks blurs."""

    length = 240

    def machinery(self):
        keystream = prg.keystream

        def biased(seed, size):
            return (np.frombuffer(keystream(seed, size), np.uint8) & 0x3F).tobytes()

        return mock.patch.object(prg, "keystream", biased)


@leak("masks.biased", stage=BiasedStage, round=None)
def a_biased_keystream(edit):
    assert edit.run.entries


@leak("masks.biased", round=None)
def masked_bytes_without_their_top_bit(edit):
    for number in (1, 2):
        for entry in edit.find(number, Kind.MASKED, slot=UPDATE):
            packed = np.frombuffer(edit.message(entry).packed, np.uint8) & 0x7F
            packed = packed[:-1].tobytes() + edit.message(entry).packed[-1:]
            edit.put_message(entry, MaskedInput(UPDATE, packed))


@leak("masks.biased", round=None)
def masked_bits_of_which_six_in_ten_are_ones(edit):
    generator = np.random.default_rng(0)
    for number in (1, 2):

        def more_ones(_, words):
            extra = (generator.random((len(words), 24)) < 0.2) @ (1 << np.arange(24))
            return words | extra.astype(words.dtype)

        in_masked(edit, number, UPDATE, more_ones)


class WeakSeedStage(Stage):
    """One device draws the seeds of its self masks from 65536 values."""

    expand = staticmethod(lambda number: number.to_bytes(32, "little"))

    def randomness(self, number, take, device):
        honest = super().randomness(number, take, device)
        return honest if device != VICTIM else _WeakSeeds(honest, self.expand, number)


class _WeakSeeds:
    def __init__(self, honest, expand, number):
        self._honest, self._expand, self._number, self._calls = honest, expand, number, 0

    def __call__(self, size):
        self._calls += 1
        if self._calls in (2, 4):  # after the secret of its key, and each before a recovery key
            return self._expand(12_345 * self._number + 811 * self._calls & 0xFFFF)
        return self._honest(size)


class SpreadSeedStage(WeakSeedStage):
    """The same behind a hash, so that the seeds look like any others."""

    expand = staticmethod(lambda number: sha256(number.to_bytes(2, "little")).digest())


@leak("fields.not-random", stage=WeakSeedStage, round=None)
def seeds_that_are_small_numbers(edit):
    assert edit.run.entries


@leak("secrets.guessed", stage=SpreadSeedStage, round=None)
def seeds_of_sixteen_bits_behind_a_hash(edit):
    assert edit.run.entries


@leak("masks.biased", "masks.other", with_truth=True)
def a_vector_without_masks(edit):
    in_masked(
        edit, 1, UPDATE, lambda i, words: edit.run.input(1, i, UPDATE) if i == VICTIM else words
    )
    edit.touched = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)


@leak("masks.other", with_truth=True, round=None)
def masks_that_keep_the_sign(edit):
    """The top bit of a masked word is that of the input: each looks uniform by itself."""
    for number in (1, 2):

        def keep(device, words, number=number):
            top = np.uint32(1 << 23)  # of a ring of 24 bits
            return (words & ~top) | (edit.run.input(number, device, UPDATE) & top)

        in_masked(edit, number, UPDATE, keep)


class SameKeysStage(Stage):
    """One device comes with the same keys in every round."""

    def randomness(self, number, take, device):
        return super().randomness(1 if device == VICTIM else number, take, device)


@leak("keys.reused", stage=SameKeysStage, round=2)
def the_same_keys_in_two_rounds(edit):
    edit.touched = edit.find(2, Kind.ADVERTISE, peer=VICTIM)


class LowOrderStage(Stage):
    """One device advertises a key whose X25519 half hides nothing."""

    def upload(self, number, step, device, data, params):
        if (number, step.stage, device) != (1, Sending.ADVERTISE, VICTIM):
            return data
        message = session_wire.decode(data, params)
        key = keys.PublicKey(message.key[:-32] + bytes(32))
        return session_wire.encode(replace(message, key=key), params)


@leak("messages.twice")
def a_second_advertisement_with_other_keys(edit):
    (first,) = edit.find(1, Kind.ADVERTISE, peer=VICTIM)
    (later,) = edit.find(2, Kind.ADVERTISE, peer=VICTIM)
    other = replace(edit.message(first), key=edit.message(later).key)
    edit.insert_like(first, first, other)


@leak("keys.outside-group", stage=LowOrderStage)
def a_key_of_low_order(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=VICTIM)


@leak("lists.strange-signature", stage=ActiveStage)
def a_signature_of_other_survivors(edit):
    (entry,) = edit.find(1, Kind.SIGNATURE, slot=UPDATE, peer=VICTIM)
    (earlier,) = edit.find(1, Kind.SIGNATURE, slot=0, peer=VICTIM)
    edit.put_message(entry, replace(edit.message(earlier), slot=UPDATE))
    edit.touched = [edit.follows(edit.touched[0])]


@leak("cohort.grown", stage=ActiveStage)
def keys_signed_by_nobody(edit):
    def forged(advertised):
        signature = bytes(64)
        return replace(advertised, credential=replace(advertised.credential, signature=signature))

    (entry,) = edit.find(1, Kind.ADVERTISE, peer=VICTIM)
    edit.put_message(entry, forged(edit.message(entry)))
    for roster in edit.find(1, Kind.ROSTER):
        message = edit.message(roster)
        place = message.roster.tolist().index(VICTIM)
        shown = {p: forged(k) if p == place else k for p, k in message.keys.items()}
        edit.put_message(roster, replace(message, keys=shown))
    edit.touched = edit.touched[:1]
    edit.touched = [edit.follows(edit.touched[0])]


class OtherIdentityStage(ActiveStage):
    """One device comes back under another identity, and the directory believes it."""

    def enrol(self, number, enrolment):
        if number == 2:
            other = generate(SeededRandomness(b"another".ljust(32)))
            enrolment._enrolled[VICTIM] = Credentials(other, enrolment)


@leak("keys.identity-changed", stage=OtherIdentityStage, round=2)
def another_identity(edit):
    edit.touched = edit.find(2, Kind.ADVERTISE, peer=VICTIM)


class LateStage(Stage):
    """One device's update comes after its keys were asked for."""

    def vanishing(self, number, take, config):
        return {VICTIM: Vanish(Step(Sending.MASK, UPDATE), late=True)} if number == 1 else {}


@leak("input.late", stage=LateStage)
def an_update_that_comes_late(edit):
    edit.touched = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)
    assert edit.place(edit.touched[0]) > edit.place(edit.find(1, Kind.MASKED, slot=UPDATE)[-2])


class GoneStage(Stage):
    """One device is gone after the search."""

    def vanishing(self, number, take, config):
        return {VICTIM: Vanish(Step(Sending.MASK, UPDATE))} if number == 1 else {}


@leak("sums.search-and-update", stage=GoneStage)
def an_update_over_fewer_devices_than_the_search(edit):
    assert len(edit.sums(1)[-1].total.contributors) == 6
    edit.touched = edit.sums(1)[-1:]


@leak("spec.answers")
def two_vectors_under_one_mask(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)
    message = edit.message(entry)
    packed = bytes([message.packed[0] ^ 1]) + message.packed[1:]
    data = session_wire.encode(
        replace(message, packed=packed), next(iter(edit.run.params.values()))
    )
    edit.insert_after(entry, replace(entry, data=data))


@leak("spec.answers")
def two_vectors_for_a_whole_slot(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=1, peer=VICTIM)
    (other,) = edit.find(2, Kind.MASKED, slot=1, peer=VICTIM)
    edit.insert_like(entry, entry, edit.message(other))


class FalseCommitmentStage(VerifiedStage):
    """One device masks another answer than the one that it has committed to."""

    def upload(self, number, step, device, data, params):
        if (number, step, device) != (1, Step(Sending.MASK, 0), VICTIM):
            return data
        message = session_wire.decode(data, params)
        packed = bytes([message.packed[0] ^ 1]) + message.packed[1:]
        return session_wire.encode(replace(message, packed=packed), params)


@leak("proof.impossible", stage=FalseCommitmentStage)
def an_answer_that_was_not_committed_to(edit):
    assert "committed" in edit.end(1).aborted
    edit.touched = [edit.closing(edit.find(1, Kind.MASKED, slot=0)[0])]


@leak("sums.unreplayable", stage=ProvedStage)
def an_answer_whose_proof_does_not_hold(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=1, peer=VICTIM)
    message = edit.message(entry)
    changed = message.proof[:-1] + bytes([message.proof[-1] ^ 1])
    edit.put_message(entry, replace(message, proof=changed))
    edit.touched = edit.sums(1)[1:2]


class WrongShareStage(Stage):
    """One device returns shares that nobody has dealt."""

    def upload(self, number, step, device, data, params):
        if (number, step, device) != (1, Step(Sending.UNMASK, 0), VICTIM):
            return data
        message = session_wire.decode(data, params)
        wrong = (message.shares + np.uint32(1)) % np.uint32(shamir.PRIME)
        return session_wire.encode(replace(message, shares=wrong), params)


@leak("shares.unfitting", stage=WrongShareStage)
def wrong_shares(edit):
    assert edit.find(1, Kind.SHARES, slot=0, peer=VICTIM)


@leak("shares.other", stage=WrongShareStage, with_truth=True)
def shares_that_the_device_was_not_sent(edit):
    edit.touched = edit.find(1, Kind.SHARES, slot=0, peer=VICTIM)


@leak("messages.unasked", with_truth=True)
def shares_that_nobody_asked_for(edit):
    shares_for_a_whole_slot(edit)


@leak("proof.predictable", stage=ProvedStage, with_truth=True)
def a_proof_by_other_numbers(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=1, peer=VICTIM)
    message = edit.message(entry)
    changed = message.proof[:-1] + bytes([message.proof[-1] ^ 1])
    edit.put_message(entry, replace(message, proof=changed))


@leak("keys.unsworn", stage=ActiveStage, with_truth=True)
def a_list_that_is_signed_by_somebody_else(edit):
    (entry,) = edit.find(1, Kind.SIGNATURE, slot=UPDATE, peer=VICTIM)
    (other,) = edit.find(1, Kind.SIGNATURE, slot=UPDATE, peer=min(edit.run.stage.ids))
    edit.put_message(entry, edit.message(other))


class SilentAtTheEndStage(ManyStage):
    """Those that fail the filter have no shares to give, in the last step."""

    def vanishing(self, number, take, config):
        return dict.fromkeys(self.by_loss()[:5], Vanish(Step(Sending.UNMASK, self.max_queries)))


@leak("metadata.answers", stage=SilentAtTheEndStage, with_truth=True, round=None)
def whoever_fails_the_filter_gives_no_shares(edit):
    for number in range(1, edit.run.stage.num_rounds + 1):
        assert edit.run.passed(number).isdisjoint(edit.run.stage.by_loss()[:5])
