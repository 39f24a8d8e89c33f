"""Proofs that one of several statements about points holds, without saying which.

A *case* is a statement target = x_1·base_1 + x_2·base_2 + … about secret numbers x. A *choice* is
the statement that its owner knows the numbers of at least one of several cases. One proof covers
any number of choices.

Each case has the proof of Schnorr (CRYPTO 1989), for several bases as in Okamoto (CRYPTO 1992).
Within a choice, the challenges of the cases add up to the challenge of the whole, so the prover is
free to simulate all cases but one (Cramer, Damgård and Schoenmakers, CRYPTO 1994). The challenge is
a hash of all that is public (Fiat and Shamir, CRYPTO 1986): what the proof is about, every target,
every base, and every announcement. Announcements are not sent, as they follow from the rest.

Spec: §12.17.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from nacl.exceptions import RuntimeError as SodiumError
from nacl.exceptions import UnavailableError

from deltafl.secagg import labels, pedersen
from deltafl.secagg.labels import Label
from deltafl.secagg.pedersen import ORDER
from deltafl.secagg.randomness import Randomness, hedged

SCALAR_SIZE: Final = 32
CHALLENGE_BITS: Final = 252
"""So many bits of a hash are a challenge: such a number is below the order."""


@dataclass(frozen=True, slots=True)
class Case:
    """The statement that target = Σ x_i·base_i for numbers x that the prover knows.

    Attributes:
        target: A point, 32 bytes.
        bases: Points, 32 bytes each.
    """

    target: bytes
    bases: tuple[bytes, ...]


Choice = Sequence[Case]
"""The statement that one of these cases holds; at least one case."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What proves a choice.

    Attributes:
        index: The case that holds.
        secrets: Its numbers x, in [0, ORDER), one for each base.
    """

    index: int = field(repr=False)
    secrets: tuple[int, ...] = field(repr=False)

    @property
    def parts(self) -> tuple[int, bytes]:
        """The case and its secrets, to be hashed."""
        return self.index, _joined(self.secrets)


def size(shape: Sequence[Sequence[int]]) -> int:
    """Bytes of a proof.

    Spec: §12.17.

    Args:
        shape: For each choice, the number of bases of each of its cases.
    """
    return SCALAR_SIZE * (1 + sum(len(bases) - 1 + sum(bases) for bases in shape))


def challenge(label: bytes, *parts: bytes | int) -> int:
    """A hash as a number in [0, 2^252). Spec: §12.17."""
    return int.from_bytes(labels.digest(label, *parts), "little") % (1 << CHALLENGE_BITS)


def prove(
    about: bytes, choices: Sequence[Choice], witnesses: Sequence[Witness], randomness: Randomness
) -> bytes:
    """A proof of some choices, as many bytes as `size` says.

    How many points are multiplied does not depend on which cases hold. Beyond that and what
    `pedersen.times` says, nothing is claimed of the time. If the randomness repeats itself, proofs
    of different statements still tell nothing: what is drawn depends on statement and secrets too.

    Spec: §12.17.

    Args:
        about: Whatever else the proof is to be bound to.
        choices: The statements. Targets and bases are in the subgroup of prime order, or neutral.
        witnesses: One for each choice.
        randomness: Takes 32 bytes.
    """
    stated = [*_stated(about, choices), *(part for each in witnesses for part in each.parts)]
    source = hedged(randomness, Label.PROOF_NUMBERS, *stated)

    def drawn(number: int) -> list[int]:
        return [pedersen.draw_blinding(source) for _ in range(number)]

    challenges, responses, announced = [], [], []
    for choice, witness in zip(choices, witnesses, strict=True):
        parts = drawn(len(choice))
        parts[witness.index] = 0  # for now, so that the announcement is Σ response·base
        answers = [drawn(len(case.bases)) for case in choice]
        challenges.append(parts)
        responses.append(answers)
        announced.append(_announced(choice, parts, answers))
    whole = _challenge(about, choices, announced)
    for parts, answers, witness in zip(challenges, responses, witnesses, strict=True):
        own = parts[witness.index] = (whole - sum(parts)) % ORDER
        answers[witness.index] = [
            (nonce + own * secret) % ORDER
            for nonce, secret in zip(answers[witness.index], witness.secrets, strict=True)
        ]
    numbers = [whole]
    for parts, answers in zip(challenges, responses, strict=True):
        numbers += parts[1:]
        numbers += [response for each in answers for response in each]
    return _joined(numbers)


def holds(about: bytes, choices: Sequence[Choice], proof: bytes) -> bool:
    """Whether a proof proves some choices; never raises.

    Spec: §12.17.

    Args:
        about: What the proof is bound to.
        choices: The statements. The caller has checked that all points that came from outside are
            in the subgroup of prime order.
        proof: Bytes from any source.
    """
    shape = [[len(case.bases) for case in choice] for choice in choices]
    if len(proof) != size(shape):
        return False
    starts = range(0, len(proof), SCALAR_SIZE)
    numbers = [int.from_bytes(proof[i : i + SCALAR_SIZE], "little") for i in starts]
    if max(numbers) >= ORDER:
        return False
    rest = iter(numbers)
    whole = next(rest)
    announced = []
    try:
        for choice in choices:
            others = [next(rest) for _ in choice[1:]]
            parts = [(whole - sum(others)) % ORDER, *others]
            answers = [[next(rest) for _ in case.bases] for case in choice]
            announced.append(_announced(choice, parts, answers))
    except UnavailableError:  # libsodium was built without points
        raise
    except SodiumError:  # a point that is not in the subgroup
        return False
    return whole == _challenge(about, choices, announced)


def _announced(
    choice: Choice, challenges: Sequence[int], responses: Sequence[Sequence[int]]
) -> list[bytes]:
    """For each case, Σ response·base − challenge·target."""
    announced = []
    for case, part, answers in zip(choice, challenges, responses, strict=True):
        total = pedersen.times(-part, case.target)
        for response, base in zip(answers, case.bases, strict=True):
            total = pedersen.plus(total, pedersen.times(response, base))
        announced.append(total)
    return announced


def _challenge(
    about: bytes, choices: Sequence[Choice], announced: Sequence[Sequence[bytes]]
) -> int:
    return challenge(Label.PROOF, *_stated(about, choices, announced))


def _stated(
    about: bytes, choices: Sequence[Choice], announced: Sequence[Sequence[bytes]] | None = None
) -> list[bytes | int]:
    """All that is public of a proof, to be hashed; without announcements if there are none yet."""
    parts: list[bytes | int] = [about, len(choices)]
    for index, choice in enumerate(choices):
        parts.append(len(choice))
        for number, case in enumerate(choice):
            parts += [case.target, b"".join(case.bases)]
            if announced is not None:
                parts.append(announced[index][number])
    return parts


def _joined(numbers: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(SCALAR_SIZE, "little") for number in numbers)
