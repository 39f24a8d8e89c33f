# ruff: noqa: ARG004, ARG005 - what a stage is asked, another may need to know
"""Shares that anybody can read: boxes that are not sealed, and polynomials of too low a degree."""

from dataclasses import replace
from hashlib import sha256
from unittest import mock

import numpy as np
from leaks import leak
from leaks_by_devices import UPDATE
from staged_runs import Kind, Stage

from deltafl.secagg import keys, shamir
from deltafl.secagg.primitives import Primitives
from deltafl.secagg.randomness import SeededRandomness

_TAG = 16
_ENCAPSULATED = keys.OVERHEAD - _TAG


def known(change):
    """Boxes of which everybody can compute the content."""

    def seal(content, public, info):
        encapsulated = keys.seal(b"", public, info)[:_ENCAPSULATED]
        return encapsulated + change(content) + sha256(content).digest()[:_TAG]

    return Primitives(seal=seal, open=lambda own, box, info: change(box[_ENCAPSULATED:-_TAG]))


def crossed(data):
    stream = SeededRandomness(b"one keystream".ljust(32))(len(data))
    return bytes(a ^ b for a, b in zip(data, stream, strict=True))


EVERYBODY = keys.recipient(bytes(32))


class OpenBoxStage(Stage):
    """Boxes hold their shares in clear."""

    primitives = known(bytes)


class XoredBoxStage(Stage):
    """Boxes hold their shares under one keystream, the same for all."""

    primitives = known(crossed)


class OtherKeyStage(Stage):
    """Boxes are sealed well, to a key of which everybody has the secret."""

    primitives = Primitives(
        seal=lambda content, public, info: keys.seal(content, EVERYBODY.public, info),
        open=lambda own, box, info: EVERYBODY.open(box, info),
    )


@leak("fields.not-random", stage=OpenBoxStage)
def boxes_that_are_not_sealed(edit):
    assert edit.run.entries


@leak("fields.not-random", stage=XoredBoxStage)
def boxes_under_one_keystream(edit):
    assert edit.run.entries


@leak("boxes.other", stage=OtherKeyStage, with_truth=True)
def boxes_to_a_key_of_everybody(edit):
    assert edit.run.entries


class DealtStage(Stage):
    """Secrets are shared by polynomials of the stage's own."""

    @staticmethod
    def coefficients(constants, count, randomness):
        """All but the constant terms, shape (count, secrets)."""
        return np.zeros((count, constants.size), dtype=np.uint32)

    def machinery(self):
        coefficients = self.coefficients

        def split(secrets, points, threshold, randomness):
            constants = shamir.to_limbs(secrets).reshape(1, -1)
            rest = coefficients(constants, threshold - 1, randomness)
            every = np.concatenate([constants, rest]).astype(np.uint64)
            shares = np.zeros((len(points), constants.size), dtype=np.uint64)
            for row in every[::-1]:
                shares = (shares * np.array(points, dtype=np.uint64)[:, None] + row) % shamir.PRIME
            return shares.astype(np.uint32).reshape(len(points), len(secrets), shamir.NUM_LIMBS)

        return mock.patch.object(shamir, "split", split)


class LineStage(DealtStage):
    """Two shares rebuild a secret."""

    @staticmethod
    def coefficients(constants, count, randomness):
        rest = np.zeros((count, constants.size), dtype=np.uint32)
        rest[0] = shamir._field_elements(constants.size, randomness)
        return rest


class OneTermStage(DealtStage):
    """Of full degree, with one random coefficient: two shares rebuild a secret."""

    @staticmethod
    def coefficients(constants, count, randomness):
        rest = np.zeros((count, constants.size), dtype=np.uint32)
        rest[-1] = shamir._field_elements(constants.size, randomness)
        return rest


class OnePolynomialStage(DealtStage):
    """All devices share everything by one polynomial, so that differences of secrets show."""

    @staticmethod
    def coefficients(constants, count, randomness):
        source = SeededRandomness(b"coefficients".ljust(32))
        one = shamir._field_elements(count * shamir.NUM_LIMBS, source)
        return np.tile(one.reshape(count, -1), constants.size // shamir.NUM_LIMBS)


class SmallStage(DealtStage):
    """Coefficients of eight bits."""

    @staticmethod
    def coefficients(constants, count, randomness):
        drawn = np.frombuffer(randomness(count * constants.size), np.uint8)
        return drawn.reshape(count, -1).astype(np.uint32)


@leak("shares.reveal", stage=DealtStage)
def shares_that_are_the_secret(edit):
    assert edit.run.entries


@leak("shares.reveal", stage=LineStage)
def two_shares_that_are_enough(edit):
    assert edit.run.entries


@leak("shares.reveal", stage=OneTermStage)
def polynomials_of_two_terms(edit):
    assert edit.run.entries


@leak("shares.reveal", stage=OnePolynomialStage)
def one_polynomial_for_all_secrets(edit):
    assert edit.run.entries


@leak("shares.reveal", stage=SmallStage)
def coefficients_that_are_small(edit):
    assert edit.run.entries


@leak("boxes.other", stage=LineStage, with_truth=True)
def boxes_of_which_two_are_enough(edit):
    assert edit.run.entries


@leak("shares.unfitting")
def a_share_too_many_that_is_something_else(edit):
    last = edit.find(1, Kind.SHARES, slot=UPDATE)[-1]
    message = edit.message(last)
    shares = message.shares.copy()
    shares[0] = shares[0][::-1]
    edit.put_message(last, replace(message, shares=shares))
    edit.touched = []
