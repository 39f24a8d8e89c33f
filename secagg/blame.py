"""Who returned wrong shares: called when shares do not give what was promised, to save the sum.

Without this module one wrong share costs the sum. Shares are the values of a polynomial of degree
t − 1, that is, a Reed–Solomon code word: up to ⌊(m − t)/2⌋ wrong ones of m can be found. If all
m > t shares fit together and still do not give what was promised, the promise was false, and the
device that dealt them is at fault. Nobody can tell which of the two secrets it used in its mask,
so the slot then has no sum.

A wrong share is a dispute between the device that dealt it and the one that returned it; nobody
else can tell which of the two is lying. So a single dispute drops neither device. A device in
dispute with most of those whose shares it holds is at fault (compare `survival.judge`).

Spec: §10.10.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.secagg import shamir
from deltafl.secagg.errors import Fault, SessionAborted
from deltafl.secagg.graph import Members, Positions
from deltafl.secagg.shamir import PRIME, Limbs
from deltafl.secagg.unmasking import Promises, SlotSecrets

_P: Final = np.uint64(PRIME)


@dataclass(frozen=True, slots=True)
class Blame:
    """Who lied about the secrets of one slot, by roster position.

    Attributes:
        secrets: Those that are as promised, whoever lied.
        faults: Devices that lied. One that broke its promise has no secret above.
        disputes: Owner and holder of every wrong share of a suspect that was found.
    """

    secrets: Mapping[int, bytes] = field(repr=False)
    faults: Mapping[int, Fault]
    disputes: frozenset[tuple[int, int]]


def trace(shares: SlotSecrets, promises: Promises) -> Blame:
    """Rebuild what can be rebuilt in spite of wrong shares, and say whose they are.

    Raises:
        SessionAborted: too many shares are wrong, or too few came, to tell.
    """
    dealt: dict[int, bytes] = {}
    broken = dict[int, Fault]()
    suspects = np.zeros_like(shares.cohort)
    failing = np.flatnonzero(shares.cohort).tolist()
    while failing:
        dealt |= shares.rebuild(promises, np.array(failing), suspects)
        failing = [owner for owner in failing if owner not in dealt]
        # Decode only one. Without the holders of its wrong shares, the rest may succeed.
        for owner in failing[:1]:
            dealt[owner], wrong = _decode(shares, owner)
            suspects[wrong] = True
            if not shares.fits(promises, owner, dealt[owner]):
                if len(wrong):
                    # More holders may be lying than decoding can detect, so blame nobody.
                    raise _at_odds(owner)
                broken[owner] = Fault.BAD_COMMITMENT
        failing = failing[1:]
    judged = _judge(shares, dealt, suspects) if suspects.any() else {}
    faults, disputes = broken.copy(), set[tuple[int, int]]()
    for suspect in np.flatnonzero(suspects).tolist():
        owners = shares.answered_for(suspect)
        wrong_for = [p for p in owners if suspect in judged.get(p, ())]
        disputes |= {(owner, suspect) for owner in wrong_for}
        if 2 * len(wrong_for) > len(owners):
            faults[suspect] = Fault.BAD_SHARE
    kept = {owner: secret for owner, secret in dealt.items() if owner not in broken}
    return Blame(kept, faults, frozenset(disputes))


def _at_odds(owner: int) -> SessionAborted:
    return SessionAborted(
        f"the shares that came for position {owner} do not fit together, and too few are left "
        "over to tell which are wrong: this slot's sum is lost"
    )


def _decode(shares: SlotSecrets, owner: int) -> tuple[bytes, Positions]:
    """The secret that most shares of an owner agree on, and the holders of the others."""
    threshold, (holders, words) = shares.threshold, shares.arrived(owner)
    # Any t values fit a polynomial, so it takes at least one more to prove anything.
    wrong = locate(holders + 1, words, threshold) if len(holders) > threshold else None
    if wrong is None:
        raise _at_odds(owner)
    right = np.argsort(wrong, axis=0, kind="stable")[:threshold]  # of each limb
    weights = shamir.lagrange_at_zero(holders[right].T + 1)
    values = np.take_along_axis(words, right, axis=0)[..., None]
    (secret,) = shamir.from_limbs(shamir.combine(weights, values).T)
    if secret is None:
        raise SessionAborted(
            f"the device at position {owner} had shared something that is no secret: this "
            "slot's sum is lost"
        )
    return secret, holders[wrong.any(axis=1)]


def _judge(
    shares: SlotSecrets, dealt: Mapping[int, bytes], suspects: Members
) -> dict[int, Positions]:
    """For each device whose shares can be judged, the holders who returned wrong ones.

    Shares are compared with what the first t of non-suspects give. If these t are wrong
    themselves, somebody else would be blamed; so decoding finds out who is wrong among them,
    and they become suspects. It is given up when it fails, as it may fail for every device.
    """
    judged: dict[int, Positions] = {}
    waiting = sorted(dealt)
    while waiting:
        unclear = []
        for owner, wrong in _compare(shares, waiting, dealt, suspects):
            if wrong is None:
                unclear.append(owner)
            else:
                judged[owner] = wrong
        waiting = unclear
        if waiting:
            found = _located(shares, waiting[0], dealt)
            if suspects[found].all():  # nothing new, or nobody can tell
                break
            suspects[found] = True
    return judged


def _compare(
    shares: SlotSecrets, owners: Sequence[int], dealt: Mapping[int, bytes], suspects: Members
) -> Iterator[tuple[int, Positions | None]]:
    """Each owner with the holders whose shares differ from what the first t non-suspects' give.

    None if that is not sure to be what was dealt. It is sure if it gives the secret and at most
    ⌊(m − t + 1)/2⌋ of m shares differ: with the secret there are m + 1 values, so two
    polynomials that give it differ in more than twice as many shares.
    """
    alike: defaultdict[bytes, list[int]] = defaultdict(list)
    for owner in owners:
        holders, _ = shares.arrived(owner)
        if np.count_nonzero(~suspects[holders]) >= shares.threshold:
            alike[holders.tobytes()].append(owner)
    for group in alike.values():
        holders, _ = shares.arrived(group[0])
        words = np.stack([_with_secret(shares, owner, dealt)[1] for owner in group], axis=1)
        points = np.concatenate([[0], holders + 1])
        doubt = np.concatenate([[True], suspects[holders]])
        differs = _differing(points, words.reshape(len(points), -1), shares.threshold, doubt)
        wrong = differs.reshape(words.shape)
        sure = ~wrong[0].any(axis=1)
        sure &= (wrong.sum(axis=0) <= (len(points) - shares.threshold) // 2).all(axis=1)
        for index, owner in enumerate(group):
            yield owner, holders[wrong[1:, index].any(axis=1)] if sure[index] else None


def _located(shares: SlotSecrets, owner: int, dealt: Mapping[int, bytes]) -> Positions:
    """The holders whose shares do not fit the secret of an owner; none if nobody can tell."""
    holders, words = _with_secret(shares, owner, dealt)
    wrong = locate(np.concatenate([[0], holders + 1]), words, shares.threshold)
    if wrong is None or wrong[0].any():
        return holders[:0]
    return holders[wrong[1:].any(axis=1)]


def _with_secret(
    shares: SlotSecrets, owner: int, dealt: Mapping[int, bytes]
) -> tuple[Positions, Limbs]:
    """The senders of an owner's m shares, and its secret and these shares, shape (m + 1, 9)."""
    holders, words = shares.arrived(owner)
    return holders, np.concatenate([shamir.to_limbs([dealt[owner]]), words])


def locate(
    points: npt.NDArray[np.int64], words: Limbs, threshold: int
) -> npt.NDArray[np.bool_] | None:
    """What is wrong in several words, which are most often wrong in the same places.

    A word is decoded only if too much of it differs from what the places give that were right in
    all words before.

    Args:
        points: Distinct, in [0, 2^31 − 1), shape (m,), m ≥ threshold.
        words: Values below the prime, shape (m, words).
        threshold: t, at least 1.

    Returns:
        Whether each value is wrong, shape (m, words); None if in a word more than ⌊(m − t)/2⌋ are.
    """
    wrong = np.zeros(words.shape, dtype=np.bool_)
    waiting = np.arange(words.shape[1])
    while len(waiting):
        doubt = np.where(wrong.any(axis=1), 1, 0)
        doubt[places_of_errors(points, words[:, waiting[0]], threshold)] = 2
        differs = _differing(points, words[:, waiting], threshold, doubt)
        sure = differs.sum(axis=0) <= (len(points) - threshold) // 2
        if not sure[0]:
            return None
        wrong[:, waiting[sure]] = differs[:, sure]
        waiting = waiting[~sure]
    return wrong


def _differing(
    points: npt.NDArray[np.int64],
    words: Limbs,
    threshold: int,
    doubt: npt.NDArray[np.int64] | Members,
) -> npt.NDArray[np.bool_]:
    """Which values are off the polynomials through those in the t places of the least doubt."""
    order = np.argsort(doubt, kind="stable")
    base, others = order[:threshold], order[threshold:]
    weights = shamir.lagrange_at(points[base], points[others])
    differs = np.zeros(words.shape, dtype=np.bool_)
    differs[others] = shamir.multiply(weights, words[base]) != words[others]
    return differs


def places_of_errors(points: npt.NDArray[np.int64], word: Limbs, threshold: int) -> Positions:
    """Where a word is wrong, if it is in at most ⌊(m − t)/2⌋ places; else anywhere.

    The syndromes, which are zero for a code word, follow a linear recurrence whose roots are the
    points of the errors. The shortest such recurrence is found (Massey 1969).

    Args:
        points: As of `locate`.
        word: Values below the prime, shape (m,).
        threshold: t, at least 1.
    """
    at = points.astype(np.uint64)
    gaps = (at[:, None] + _P - at) % _P
    np.fill_diagonal(gaps, 1)
    terms = word * shamir.inverse(reduce(lambda left, right: left * right % _P, gaps)) % _P
    syndromes = np.zeros(len(at) - threshold, dtype=np.uint64)
    for index in range(len(syndromes)):
        syndromes[index] = terms.sum() % _P
        terms = terms * at % _P
    recurrence, before = np.zeros((2, len(syndromes) + 1), dtype=np.uint64)
    recurrence[0] = before[0] = 1
    length, scale = 0, 1
    for index in range(len(syndromes)):
        before = np.roll(before, 1)
        last = syndromes[index - length : index + 1][::-1]
        gap = int((recurrence[: length + 1] * last % _P).sum() % _P)
        if gap:
            factor = np.uint64(PRIME - gap * pow(scale, -1, PRIME) % PRIME)
            following = (recurrence + factor * before % _P) % _P
            if 2 * length <= index:
                before, length, scale = recurrence, index + 1 - length, gap
            recurrence = following
    values = np.zeros_like(at)
    for coefficient in recurrence[: length + 1]:
        values = (values * at + coefficient) % _P
    return np.flatnonzero(values == 0)
