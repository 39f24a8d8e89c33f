# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Values in fields that should be random, keys that anybody can have, lists without quorum."""

import struct
from dataclasses import replace
from hashlib import sha256
from unittest import mock

import numpy as np
from leaks import leak
from leaks_by_devices import UPDATE, VICTIM
from staged_runs import (
    ActiveStage,
    Device,
    Edit,
    Kind,
    Stage,
)

from deltafl.secagg import cohort, keys
from deltafl.secagg import wire as session_wire
from deltafl.secagg.directory import Credentials
from deltafl.secagg.identity import identity
from deltafl.secagg.links import TAG_SIZE
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import Stage as Sending
from deltafl.sim.inspect.audit.public_keys import of_edwards

OTHER = 31


def loss_of(stage: Stage, device: int) -> float:
    """A device's loss in the first round."""
    model = np.linspace(-1, 1, stage.length).astype("<f4").tobytes()
    return Device(device, stage.weight(device), stage.base(device), 1).loss(model)


class DepositStage(Stage):
    """Devices deposit what they like in place of hidden keys; nobody drops out."""

    def deposit(self, device: int, honest: bytes) -> bytes:
        return f"loss={loss_of(self, device):.12f}".encode().ljust(32)

    def upload(self, number, step, device, data, params):
        if step.stage is not Sending.RECEIPT:
            return data
        links, message = {}, session_wire.decode(data, params)
        for peer, link in message.links.items():
            parts = [link[start : start + 48] for start in range(TAG_SIZE, len(link), 48)]
            said = (part[:TAG_SIZE] + self.deposit(device, part[TAG_SIZE:]) for part in parts)
            links[peer] = link[:TAG_SIZE] + b"".join(said)
        return session_wire.encode(replace(message, links=links), params)


class NumberInDepositStage(DepositStage):
    """A device's loss as a double, before random bytes that differ."""

    def deposit(self, device, honest):
        return struct.pack(">d", loss_of(self, device)) + honest[8:] if device == VICTIM else honest


class FloatInDepositStage(DepositStage):
    """Every device's loss as a float."""

    def deposit(self, device, honest):
        return honest[:-4] + struct.pack("<f", loss_of(self, device))


class DigestDepositStage(DepositStage):
    """What a device deposits is a digest of its id."""

    def deposit(self, device, honest):
        return sha256(device.to_bytes(4, "little")).digest()


@leak("fields.not-random", stage=DepositStage)
def losses_in_decimal_in_deposits(edit):
    assert edit.run.entries


@leak("secrets.guessed", stage=DigestDepositStage)
def deposits_that_follow_from_ids(edit):
    assert edit.run.entries


@leak("links.other", stage=NumberInDepositStage, with_truth=True)
def a_loss_in_a_deposit(edit):
    assert edit.run.entries


@leak("links.other", stage=FloatInDepositStage, with_truth=True)
def short_losses_in_deposits(edit):
    assert edit.run.entries


def change_keys(edit: Edit, device: int, change) -> None:
    """Change a device's advertisement, wherever it is shown."""
    (entry,) = edit.find(1, Kind.ADVERTISE, peer=device)
    sent = edit.put_message(entry, change(edit.message(entry)))
    for roster in edit.find(1, Kind.ROSTER):
        message = edit.message(roster)
        place = message.roster.tolist().index(device)
        shown = {p: change(k) if p == place else k for p, k in message.keys.items()}
        edit.put_message(roster, replace(message, keys=shown))
    edit.touched = [sent]


@leak("fields.not-random")
def a_text_in_place_of_a_key(edit):
    text = b"my loss is 1.3437 nats, roughly."
    change_keys(edit, VICTIM, lambda k: replace(k, key=k.key[: -len(text)] + text))


@leak("fields.not-random")
def texts_in_place_of_an_ml_kem_key(edit):
    text = b"my loss is 1.3437 nats, roughly. " * 40
    change_keys(edit, VICTIM, lambda k: replace(k, key=text[: len(k.key) - 64] + k.key[-64:]))


@leak("keys.outside-group")
def random_bytes_in_place_of_a_key(edit):
    drawn = sha256(b"the second of these is on no curve").digest()[:31] + b"\1"
    change_keys(edit, VICTIM, lambda k: replace(k, key=k.key[:-32] + drawn))


@leak("fields.not-random")
def a_number_in_place_of_a_commitment(edit):
    (entry,) = edit.find(1, Kind.SHARE_KEYS, peer=VICTIM)
    message = edit.message(entry)
    number = struct.pack("<d", edit.run.loss(1, VICTIM)).ljust(32, b"\0")
    edit.put_message(entry, replace(message, commitments=(*message.commitments[:-1], number)))


class TextSeedStage(Stage):
    """One device's seeds are texts, of good entropy for a text."""

    def randomness(self, number, take, device):
        honest, count = super().randomness(number, take, device), iter(range(10**6))
        if device != VICTIM:
            return honest
        return lambda size: (
            f"{number}: my secret seed of the slot!!!".encode()[:size]
            if next(count) in (1, 3)
            else honest(size)
        )


@leak("fields.not-random", stage=TextSeedStage)
def seeds_that_can_be_read(edit):
    assert edit.run.entries


class GuessableStage(Stage):
    """One device's key follows from its id."""

    def randomness(self, number, take, device):
        honest, count = super().randomness(number, take, device), iter(range(10**6))
        if device != VICTIM:
            return honest
        return lambda size: (
            sha256(device.to_bytes(4, "little")).digest() if next(count) == 0 else honest(size)
        )


@leak("secrets.guessed", stage=GuessableStage)
def a_key_that_follows_from_an_id(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=VICTIM)


class SmallKeyStage(GuessableStage):
    """One device's key is of a small number."""

    def randomness(self, number, take, device):
        honest, count = super().randomness(number, take, OTHER), iter(range(10**6))
        if device != VICTIM:
            return super().randomness(number, take, device)
        return lambda size: (5).to_bytes(size, "big") if next(count) == 0 else honest(size)


@leak("secrets.guessed", stage=SmallKeyStage, twin=Stage)
def a_key_of_a_small_number(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=VICTIM)


class _OfIdentities(ActiveStage):
    """Devices do not mind what identities others have."""

    def machinery(self):
        return mock.patch.object(cohort, "check_credentials", _accept_all)


def _accept_all(credentials, params, roster, advertised):
    del credentials, params
    return {int(roster[p]): one.credential.identity for p, one in advertised.items()}


class OneIdentityStage(_OfIdentities):
    """Two devices have one identity, and the directory believes it."""

    def enrol(self, number, enrolment):
        own = identity(SeededRandomness(b"of two devices".ljust(32))(32))
        for device in (VICTIM, OTHER):
            enrolment._enrolled[device] = Credentials(own, enrolment)


@leak("keys.reused", stage=OneIdentityStage)
def one_identity_for_two_devices(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=OTHER)


class EveryIdentityStage(_OfIdentities):
    """All devices have one identity."""

    def enrol(self, number, enrolment):
        own = identity(SeededRandomness(b"of all devices".ljust(32))(32))
        for device in self.ids:
            enrolment._enrolled[device] = Credentials(own, enrolment)


@leak("keys.reused", stage=EveryIdentityStage)
def one_identity_for_all_devices(edit):
    assert edit.run.entries


@leak("keys.reused", stage=EveryIdentityStage)
def many_signatures_of_one_identity(edit):
    assert edit.run.entries


class SeedIsKeyStage(Stage):
    """One device's seed is the secret of its key."""

    def randomness(self, number, take, device):
        honest, drawn = super().randomness(number, take, device), []
        if device != VICTIM:
            return honest

        def again(size):
            drawn.append(honest(size))
            return drawn[0] if len(drawn) == 2 else drawn[-1]

        return again


@leak("secrets.guessed", stage=SeedIsKeyStage)
def a_seed_that_is_the_secret_of_a_key(edit):
    assert edit.run.entries


class SigningKeyStage(ActiveStage):
    """One device signs with a seed that it shares."""

    known = bytes(range(7, 39))

    def enrol(self, number, enrolment):
        own = identity(self.known)
        enrolment._enrolled[VICTIM] = Credentials(own, enrolment)

    def randomness(self, number, take, device):
        honest, count = super().randomness(number, take, device), iter(range(10**6))
        if device != VICTIM or number == 2:
            return honest
        return lambda size: self.known if next(count) == 1 else honest(size)


@leak("keys.reused", stage=ActiveStage)
def an_identity_that_opens_boxes(edit):
    change_keys(
        edit,
        VICTIM,
        lambda k: replace(k, key=k.key[:-32] + of_edwards(bytes(k.credential.identity))),
    )


@leak("secrets.guessed", stage=SigningKeyStage)
def a_seed_that_signs(edit):
    assert edit.run.entries


def change_requests(edit: Edit, kind: Kind, slot: int, change) -> None:
    """Change the signatures that are shown to one device."""
    (entry,) = edit.find(1, kind, slot=slot, peer=VICTIM)
    message = edit.message(entry)
    edit.put_message(entry, replace(message, signatures=change(dict(message.signatures))))


@leak("lists.no-quorum", stage=ActiveStage)
def an_answer_to_a_list_that_nobody_signed(edit):
    change_requests(edit, Kind.REQUEST, UPDATE, lambda _: {})


@leak("lists.strange-signature", stage=ActiveStage)
def signatures_that_nobody_sent(edit):
    first = edit.find(1, Kind.REQUEST, slot=UPDATE)[0]
    signer = edit.run.stage.ids[min(edit.message(first).signatures)]
    edit.remove(*edit.find(1, Kind.SIGNATURE, slot=UPDATE, peer=signer))
    edit.touched = edit.find(1, Kind.REQUEST, slot=UPDATE)[1:2]


@leak("lists.strange-signature", "lists.no-quorum", stage=ActiveStage)
def signatures_of_another_slot(edit):
    (earlier,) = edit.find(1, Kind.REQUEST, slot=0, peer=VICTIM)
    change_requests(edit, Kind.REQUEST, UPDATE, lambda _: dict(edit.message(earlier).signatures))


@leak("secrets.other", stage=Stage, with_truth=True)
def keys_that_were_not_drawn(edit):
    other = keys.recipient(b"of somebody else".ljust(32)).public
    change_keys(edit, VICTIM, lambda k: replace(k, key=other))


@leak("commitments.other", with_truth=True)
def a_commitment_to_no_seed(edit):
    (entry,) = edit.find(1, Kind.SHARE_KEYS, peer=VICTIM)
    message = edit.message(entry)
    other = sha256(b"my loss, under a key of the server").digest()
    edit.put_message(entry, replace(message, commitments=(*message.commitments[:-1], other)))
