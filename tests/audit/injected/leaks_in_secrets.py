# ruff: noqa: ARG002, ARG005 - what a stage is asked, another may need to know
"""Secrets that can be guessed, or follow from one another, and points that say something."""

from dataclasses import replace
from hashlib import blake2s, sha3_256, sha256, sha512
from itertools import count
from unittest import mock

from leaks import leak
from leaks_by_devices import UPDATE, VICTIM, LateStage
from leaks_in_fields import change_keys
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_sub,
    crypto_scalarmult_ed25519_base_noclamp,
)
from staged_runs import ActiveStage, Kind, ProvedStage, Stage, VerifiedStage

from deltafl.protocol.quantile.ballots import Voter
from deltafl.secagg import Client, openings, pedersen, proofs
from deltafl.secagg.directory import Credentials
from deltafl.secagg.identity import Identity, identity
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.inspect.audit.public_keys import coordinate

PRIME = 2**255 - 19
SMALL_ORDER = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
"""A point of order 8."""


def multiple(scalar: int) -> bytes:
    """A multiple of the base point of Ed25519."""
    return crypto_scalarmult_ed25519_base_noclamp((scalar % pedersen.ORDER).to_bytes(32, "little"))


def clamped(secret: bytes) -> bytes:
    """The bits of a secret that X25519 and Ed25519 use of it."""
    return bytes([secret[0] & 0xF8]) + secret[1:31] + bytes([secret[31] & 0x7F | 0x40])


def digest(*parts: bytes) -> int:
    return int.from_bytes(sha512(b"".join(parts)).digest(), "little")


# --- keys ----------------------------------------------------------------------------------------


class GuessableIdentityStage(ActiveStage):
    """One device's identity follows from its id."""

    def enrol(self, number, enrolment):
        own = identity(sha256(VICTIM.to_bytes(4, "little")).digest())
        enrolment._enrolled[VICTIM] = Credentials(own, enrolment)


class RepeatedIdentityStage(ActiveStage):
    """One device's identity is of a byte, repeated."""

    def enrol(self, number, enrolment):
        enrolment._enrolled[VICTIM] = Credentials(identity(bytes([9]) * 32), enrolment)


class ScalarIdentityStage(ActiveStage):
    """The secret scalar of one device's identity is the number 13, as X25519 uses it."""

    def enrol(self, number, enrolment):
        scalar = clamped((13).to_bytes(32, "little"))
        public = multiple(int.from_bytes(scalar, "little"))
        own = Identity(public, b"".join((bytes(32), public)))
        enrolment._enrolled[VICTIM] = Credentials(own, enrolment)

    def machinery(self):
        scalar = int.from_bytes(clamped((13).to_bytes(32, "little")), "little")
        return signing_with(lambda own, message: digest(b"?", message), scalar)


@leak("secrets.guessed", stage=GuessableIdentityStage)
def an_identity_that_follows_from_an_id(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=VICTIM)


@leak("secrets.guessed", stage=RepeatedIdentityStage)
def an_identity_of_one_byte(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=VICTIM)


def with_top_bit(key: bytes) -> bytes:
    return key[:-1] + bytes([key[-1] | 0x80])


def with_small_order(key: bytes) -> bytes:
    """The same X25519 key, and a point of order 8."""
    u = coordinate(key)
    y = (u - 1) * pow(u + 1, -1, PRIME) % PRIME
    point = crypto_core_ed25519_add(y.to_bytes(32, "little"), SMALL_ORDER)
    y = int.from_bytes(point, "little") & (1 << 255) - 1
    return ((1 + y) * pow(1 - y, -1, PRIME) % PRIME).to_bytes(32, "little")


@leak("keys.outside-group")
def a_bit_that_readers_of_keys_ignore(edit):
    change_keys(edit, VICTIM, lambda k: replace(k, key=with_top_bit(k.key)))


@leak("keys.outside-group")
def a_key_and_a_point_of_small_order(edit):
    change_keys(
        edit,
        VICTIM,
        lambda k: replace(k, key=k.key[:-32] + with_small_order(k.key[-32:])),
    )


@leak("keys.outside-group", stage=ActiveStage)
def an_identity_and_a_point_of_small_order(edit):
    def changed(message):
        own = message.credential
        moved = crypto_core_ed25519_add(bytes(own.identity), SMALL_ORDER)
        return replace(message, credential=replace(own, identity=moved))

    change_keys(edit, VICTIM, changed)


# --- nonces of signatures ------------------------------------------------------------------------


def signing_with(nonce, scalar: int | None = None):
    """Identities sign with nonces of their own choice: numbers, from an identity and a message.

    Args:
        nonce: Gives the number.
        scalar: The secret scalar of the only identity that does so, which has no seed; by default,
            all do.
    """
    real = Identity.sign

    def sign(self, message):
        secret = sha512(self._secret[:32]).digest()[:32]
        own = int.from_bytes(clamped(secret), "little")
        if multiple(own) != bytes(self.public):
            own = scalar
        elif scalar is not None:
            return real(self, message)
        number = nonce(self, message) % pedersen.ORDER
        point = multiple(number)
        total = number + digest(point, bytes(self.public), message) * own
        return point + (total % pedersen.ORDER).to_bytes(32, "little")

    return mock.patch.object(Identity, "sign", sign)


@leak("secrets.guessed", stage=ScalarIdentityStage)
def an_identity_whose_scalar_is_small(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=VICTIM)


class SmallNonceStage(ActiveStage):
    """Nonces count up from a number that everybody can try."""

    def machinery(self):
        numbers = count(1000)
        return signing_with(lambda own, message: next(numbers))


class CountedNonceStage(ActiveStage):
    """Nonces count up from a number that nobody knows."""

    def machinery(self):
        start, numbers = digest(b"nobody knows"), count()
        return signing_with(lambda own, message: start + next(numbers))


class MessageNonceStage(ActiveStage):
    """Nonces are digests of the message."""

    def machinery(self):
        return signing_with(lambda own, message: digest(message))


class IdNonceStage(VerifiedStage):
    """Nonces of signed commitments are digests of the session's id; other ones are good."""

    def machinery(self):
        label = openings.Label.COMMITTED

        def nonce(own, message):
            head = openings.labels.pack(label)
            is_commitment = message.startswith(head)
            public = bytes(own.public)
            return (
                int.from_bytes(sha256(public).digest(), "little")
                if is_commitment
                else digest(b"a secret", public, message)
            )

        return signing_with(nonce)


@leak("secrets.guessed", stage=SmallNonceStage)
def nonces_that_are_small(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=VICTIM)


@leak("secrets.guessed", stage=CountedNonceStage)
def nonces_of_signatures_that_count(edit):
    edit.touched = edit.find(1, Kind.SIGNATURE, slot=0, peer=VICTIM)


@leak("secrets.guessed", stage=MessageNonceStage)
def nonces_that_are_digests_of_the_message(edit):
    edit.touched = edit.find(1, Kind.ADVERTISE, peer=VICTIM)


@leak("secrets.guessed", stage=IdNonceStage)
def nonces_of_commitments_that_are_digests_of_the_identity(edit):
    edit.touched = edit.find(1, Kind.MASKED, slot=0, peer=VICTIM)


# --- proofs of votes ---------------------------------------------------------------------------


class KnownProofStage(ProvedStage):
    """The numbers in proofs of votes follow from the session and the device's id."""

    def machinery(self):
        real = Voter.prove

        def prove(voter, config, query, tick, commitment, *rest, **named):
            device = self.ids[commitment.position].to_bytes(4, "little")
            seed = sha256(commitment.context.session_id + device).digest()
            with mock.patch.object(proofs, "hedged", return_value=SeededRandomness(seed)):
                return real(voter, config, query, tick, commitment, *rest, **named)

        return mock.patch.object(Voter, "prove", prove)


@leak("secrets.guessed", stage=KnownProofStage)
def proofs_of_votes_by_numbers_that_anybody_can_draw(edit):
    edit.touched = edit.find(1, Kind.MASKED, slot=0)


@leak("proof.predictable", stage=KnownProofStage, with_truth=True)
def proofs_of_votes_by_other_numbers_than_were_drawn(edit):
    edit.touched = edit.find(1, Kind.MASKED, slot=0)


# --- commitments ---------------------------------------------------------------------------------


class SmallOrderStage(VerifiedStage):
    """Two devices add points of small order to their commitments, which cancel in the sum."""

    def machinery(self):
        real, calls = pedersen.commit, {}

        def commit(context, spec, vector, own, key, randomness):
            at = context.session_id, context.info
            calls[at] = calls.get(at, 0) + 1

            def moved(values, blinding):
                point = real(values, blinding)
                if calls[at] == 1:
                    return crypto_core_ed25519_add(point, SMALL_ORDER)
                return crypto_core_ed25519_sub(point, SMALL_ORDER) if calls[at] == 2 else point

            with mock.patch.object(pedersen, "commit", moved):
                return honest(context, spec, vector, own, key, randomness)

        honest = openings.commit
        return mock.patch.object(openings, "commit", commit)


@leak("keys.outside-group", stage=SmallOrderStage)
def commitments_and_points_of_small_order_that_cancel(edit):
    assert edit.run.entries


@leak("round.given-up", stage=VerifiedStage)
def a_commitment_without_a_proof_whose_signature_is_invalid(edit):
    (entry,) = edit.find(1, Kind.MASKED, slot=0, peer=VICTIM)
    message = edit.message(entry)
    changed = message.committed[:-1] + bytes([message.committed[-1] ^ 1])
    last = edit.find(1, Kind.MASKED, slot=0)[-1]
    edit.remove(*edit.entries[edit.place(last) + 1 : edit.place(edit.end(1))])
    edit.put_message(entry, replace(message, committed=changed))
    edit.touched = [edit.end(1)]


class CountedBlindingStage(VerifiedStage):
    """All devices' blindings are small numbers."""

    def machinery(self):
        numbers = count(10_000)
        return mock.patch.object(pedersen, "draw_blinding", side_effect=numbers)


class IdBlindingStage(VerifiedStage):
    """All devices' blindings are digests of their ids, each time by another function."""

    def randomness(self, number, take, device):
        honest = super().randomness(number, take, device)
        digests = iter((sha256, sha3_256) if number == 1 else (blake2s, sha512))  # two in a round
        known = device.to_bytes(4, "little")

        def drawn(size):
            return next(digests)(known).digest()[:32].ljust(size, b"\0")

        return lambda size: drawn(size) if size == 64 else honest(size)


class OneIdBlindingStage(VerifiedStage):
    """The first blinding of one device is."""

    def randomness(self, number, take, device):
        honest, draws = super().randomness(number, take, device), count()
        if device != VICTIM:
            return honest
        known = sha256(device.to_bytes(4, "little")).digest().ljust(64, b"\0")
        return lambda size: known if size == 64 and not next(draws) else honest(size)


@leak("fields.not-random", stage=CountedBlindingStage)
def blindings_that_count(edit):
    assert edit.run.entries


@leak("secrets.guessed", stage=IdBlindingStage)
def blindings_that_follow_from_ids(edit):
    assert edit.run.entries


@leak("masks.other", stage=OneIdBlindingStage, with_truth=True)
def a_blinding_that_follows_from_an_id(edit):
    edit.touched = edit.find(1, Kind.MASKED, slot=0, peer=VICTIM)


# --- secrets that follow from others -------------------------------------------------------------

KEY, SEED = 0, 1  # draws of a device, for its key and for the first slot that is not whole


class RelatedStage(Stage):
    """One device draws a secret that follows from another."""

    to, of = SEED, KEY  # draw `to` follows from draw `of`
    past = 0  # of so many rounds before

    def follow(self, secret: bytes) -> bytes:
        return sha256(secret).digest()

    def randomness(self, number, take, device):
        honest, draws = super().randomness(number, take, device), count()
        if device != VICTIM or number <= self.past:
            return honest
        before = super().randomness(number - self.past, take, device)
        known = self.follow([before(32) for _ in range(self.of + 1)][self.of])
        return lambda size: (known, honest(size))[0] if next(draws) == self.to else honest(size)


class FlippedStage(RelatedStage):
    """A seed that gives the key away, once it is rebuilt."""

    to, of = KEY, SEED

    def follow(self, secret):
        return bytes(byte ^ 0xFF for byte in secret)


class DigestedStage(FlippedStage):
    """The same by a digest."""

    def follow(self, secret):
        return sha512(secret).digest()[:32]


class RatchetStage(FlippedStage):
    """A key that follows from the seed of the round before."""

    past = 1


class SeedRatchetStage(RelatedStage):
    """A seed that follows from the seed of the round before."""

    to = of = SEED
    past = 1


class MaskedSecretStage(RelatedStage):
    """A seed that is the secret of the key under a constant that somebody knows."""

    def follow(self, secret):
        pad = SeededRandomness(b"the same for all".ljust(32))(32)
        return bytes(one ^ other for one, other in zip(secret, pad, strict=True))


class SignsLaterStage(ActiveStage):
    """One device signs with a digest of a seed that it shares."""

    def enrol(self, number, enrolment):
        drawn = Stage.randomness(self, 1, 0, VICTIM)
        seed = [drawn(32) for _ in range(SEED + 1)][SEED]
        enrolment._enrolled[VICTIM] = Credentials(identity(sha256(seed).digest()), enrolment)


@leak("boxes.other", stage=RelatedStage, with_truth=True)
def a_seed_that_is_a_digest_of_another_secret(edit):
    assert edit.run.entries


@leak("secrets.guessed", stage=FlippedStage)
def a_key_of_the_complement_of_a_seed(edit):
    assert edit.run.entries


@leak("secrets.guessed", stage=DigestedStage)
def a_key_of_a_digest_of_a_seed(edit):
    assert edit.run.entries


@leak("secrets.guessed", stage=RatchetStage, round=2)
def a_key_of_the_complement_of_a_seed_of_the_round_before(edit):
    assert edit.run.entries


@leak("secrets.guessed", stage=SeedRatchetStage, round=2)
def a_seed_that_is_a_digest_of_the_one_before(edit):
    assert edit.run.entries


@leak("boxes.other", stage=SeedRatchetStage, round=2, with_truth=True)
def a_recorded_seed_that_is_a_digest_of_the_one_before(edit):
    assert edit.run.entries


@leak("boxes.other", stage=MaskedSecretStage, with_truth=True, round=None)
def seeds_that_differ_from_other_secrets_by_a_constant(edit):
    assert edit.run.entries


@leak("secrets.guessed", stage=SignsLaterStage)
def a_digest_of_a_seed_that_signs(edit):
    assert edit.run.entries


# --- late vectors --------------------------------------------------------------------------------


class LateBareStage(LateStage):
    """The vector that comes too late has no self mask."""

    def machinery(self):
        real = Client._mask

        def masked(client, total, phase, context):
            if client.client_id != VICTIM or phase.slot != UPDATE:
                return real(client, total, phase, context)
            bare = client._primitives
            client._primitives = mock.Mock(wraps=bare, add_masks=lambda *_: None)
            try:
                return real(client, total, phase, context)
            finally:
                client._primitives = bare

        return mock.patch.object(Client, "_mask", masked)


@leak("masks.missing", stage=LateBareStage, twin=LateStage)
def a_late_vector_without_its_self_mask(edit):
    edit.touched = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)


@leak("masks.missing", stage=LateBareStage, twin=LateStage)
def a_vector_without_its_self_mask_that_comes_after_the_sum(edit):
    (late,) = edit.find(1, Kind.MASKED, slot=UPDATE, peer=VICTIM)
    edit.remove(late)
    edit.insert_after(edit.sums(1)[-1], late)
