from dataclasses import replace
from fractions import Fraction
from functools import reduce
from hashlib import sha256
from itertools import pairwise

import pytest
from edwards import LOW_ORDER
from flat_configs import round_of, search_of
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_ballots import admitted, parts_of, weights_of

from deltafl.protocol.errors import ConfigurationError
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.quantile import ballots
from deltafl.protocol.quantile.ballots import METHODS, Voter, admits, proof_size
from deltafl.protocol.quantile.histogram import Histogram
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.weighting import Weighting
from deltafl.secagg import pedersen, proofs
from deltafl.secagg.masks import SlotContext
from deltafl.secagg.openings import Commitment
from deltafl.secagg.pedersen import BASE, ORDER, minus, plus, times
from deltafl.secagg.proofs import Witness
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.signing import Signer

GRID = LossGrid(resolution_bits=8, bound=8)
SIGNER = Signer(b"identity".ljust(32), b"sealing key".ljust(32))
CONTEXT = SlotContext(b"session".ljust(32), b"slot and binding")
SMALL = [point for point in LOW_ORDER if pedersen.add([point]) is not None][1:]


def config(largest=5, weighting=Weighting.SAMPLES):
    return search_of(
        Fraction(1, 2), GRID, largest, 9, 12, weighting=weighting, verified=True, proved=True
    )


def randomness(seed=1):
    return SeededRandomness(bytes([seed]) * 32)


def query_at(*pivots):
    return Query("histogram", pivots)


def values_of(weight, tick, pivots, *, count=None):
    """The vector of an answer, by 12.4."""
    one = int(weight > 0) if count is None else count
    below = [int(tick < pivot) for pivot in pivots]
    return [weight, one, *(weight * x for x in below), *(one * x for x in below)]


CONFIG, QUERY, BLINDING = config(), query_at(10, 20, 30), 77


def commitment_to(values, blinding=BLINDING, **changes):
    return replace(Commitment(CONTEXT, 3, SIGNER, pedersen.commit(values, blinding)), **changes)


def first_vote(weight=3, tick=15, *, query=QUERY, of=CONFIG, seed=1, values=None):
    """A voter, its commitment, and the proof with its first answer; the answer may be a lie."""
    draw = randomness(seed)
    voter = Voter.drawn(of, weight, draw)
    values = values_of(weight, tick, query.pivots) if values is None else values
    commitment = commitment_to(values)
    proof = voter.prove(of, query, tick, commitment, BLINDING, draw, is_first=True)
    return voter, commitment, proof


def is_admitted(commitment, proof, *, query=QUERY, of=CONFIG, weights=None, is_first=True):
    return admits(
        of, query, {} if weights is None else weights, commitment, proof, is_first=is_first
    )


def plainly(commitment, proof, *, known=None, query=QUERY, of=CONFIG):
    return admitted(
        of.largest_weight,
        of.search.weighting.value,
        query.pivots,
        commitment.described(),
        commitment.point,
        known,
        proof,
    )


# --- randomness that repeats itself -------------------------------------------------------------


@pytest.mark.parametrize("is_hedged", [True, False])
def test_two_answers_from_one_state_of_the_randomness_do_not_give_the_weight(
    monkeypatch, is_hedged
):
    """The control: with numbers from the randomness alone, they do, and the place with it."""
    if not is_hedged:
        monkeypatch.setattr(proofs, "hedged", lambda source, *_: source)
    voter, weights = Voter.drawn(CONFIG, 3, randomness()), {}
    read = []
    for pivots, blinding in (((10, 20, 30), 77), ((11, 21, 31), 78)):
        query = query_at(*pivots)
        answer = commitment_to(values_of(3, 15, pivots), blinding)
        weights = {3: reduce(plus, voter.commitments)}
        proof = voter.prove(CONFIG, query, 15, answer, blinding, randomness(9), is_first=False)
        assert is_admitted(answer, proof, query=query, weights=weights, is_first=False)
        numbers = [int.from_bytes(proof[i : i + 32], "little") for i in range(0, len(proof), 32)]
        others = numbers[1:5]
        read.append(([(numbers[0] - sum(others)) % ORDER, *others], numbers[5:]))
    (challenges, responses), (later, again) = read
    found = []
    for place in range(4):  # the second response of each place is about the weight
        e = (challenges[1 + place] - later[1 + place]) % ORDER
        z = (responses[2 + 2 * place] - again[2 + 2 * place]) % ORDER
        found.append(z * pow(e, -1, ORDER) % ORDER if e else None)
    assert (found[1] == 3) != is_hedged
    assert (3 in found) != is_hedged


@pytest.mark.parametrize("is_hedged", [True, False])
def test_commitments_to_two_weights_from_one_state_have_nothing_in_common(monkeypatch, is_hedged):
    if not is_hedged:
        monkeypatch.setattr(ballots, "hedged", lambda source, *_: source)
    first, second = (Voter.drawn(CONFIG, weight, randomness()) for weight in (1, 3))
    apart = minus(ballots._point((3, 1)), ballots._point((1, 1)))
    is_known = minus(reduce(plus, second.commitments), reduce(plus, first.commitments)) == apart
    assert is_known != is_hedged


# --- completeness -------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    largest=st.integers(1, 40) | st.sampled_from([8192, 2**53]),
    weighting=st.sampled_from(list(Weighting)),
    pivots=st.lists(st.integers(1, 60), min_size=1, max_size=6).map(sorted),
    tick=st.integers(0, 70),
    data=st.data(),
)
def test_every_valid_answer_can_be_proved(largest, weighting, pivots, tick, data):
    """And another in the same search, with the same weight."""
    of = config(largest, weighting)
    number = data.draw(st.integers(0, largest) | st.sampled_from([0, 1, largest]))
    weight, query = weighting.of(number), query_at(*pivots)
    voter, commitment, proof = first_vote(weight, tick, query=query, of=of)
    assert len(proof) == proof_size(of, len(pivots), is_first=True)
    weights = {}
    assert is_admitted(commitment, proof, query=query, of=of, weights=weights)
    assert list(weights) == [3]
    later = query_at(*(pivot + 5 for pivot in pivots))
    values = values_of(weight, tick, later.pivots)
    second = commitment_to(values, 99)
    proof = voter.prove(of, later, tick, second, 99, randomness(8), is_first=False)
    assert len(proof) == proof_size(of, len(pivots), is_first=False)
    assert is_admitted(second, proof, query=later, of=of, weights=weights, is_first=False)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", list(Weighting))
@pytest.mark.parametrize("weight", [0, 1, 4])
def test_the_plain_verifier_agrees(weighting, weight):
    weight, of, query = weighting.of(weight), config(5, weighting), query_at(10, 20)
    weights = {}
    voter, commitment, proof = first_vote(weight, 15, query=query, of=of)
    assert is_admitted(commitment, proof, query=query, of=of, weights=weights)
    assert plainly(commitment, proof, query=query, of=of) == weights[3]
    second = commitment_to(values_of(weight, 15, (14, 16)), 5)
    later = query_at(14, 16)
    proof = voter.prove(of, later, 15, second, 5, randomness(4), is_first=False)
    assert plainly(second, proof, known=weights[3], query=later, of=of) == weights[3]
    assert plainly(second, proof, known=BASE, query=later, of=of) is None


@pytest.mark.parametrize("largest", [*range(1, 34), 1000])
def test_weights_have_parts_that_give_each_of_them_and_no_other(largest):
    parts = ballots._parts(config(largest))
    assert parts == parts_of(largest, "samples")
    sums = weights_of(parts)
    assert {v for v, c in sums if c == 1} == set(range(1, largest + 1))
    assert {c for _, c in sums} == {0, 1}
    for weight in range(largest + 1):
        chosen = ballots._chosen(config(largest), weight)
        values = [part[index] for part, index in zip(parts, chosen, strict=True)]
        assert (sum(v for v, _ in values), sum(c for _, c in values)) == (weight, int(weight > 0))


@pytest.mark.parametrize("weighting", [Weighting.POWERS_OF_TWO, Weighting.EQUAL])
def test_rounded_weights_are_one_part(weighting):
    for largest in (1, 2, 7, 8, 100):
        of = config(largest, weighting)
        [part] = ballots._parts(of)
        legal = {weighting.of(n) for n in range(largest + 1)}
        assert part == [(v, int(v > 0)) for v in sorted(legal)]
        assert [part] == parts_of(of.largest_weight, weighting.value)
        assert all(part[ballots._chosen(of, v)[0]][0] == v for v in legal)


def test_weights_are_committed_to_with_generators_of_their_own():
    own = {ballots._weight_generator(), ballots._count_generator()}
    assert len(own | {BASE} | {pedersen.generator(j) for j in range(200)}) == 203


# --- a forgery for every clause -----------------------------------------------------------------

LIES = {
    "no count": [3, 0, 0, 3, 3, 0, 1, 1],
    "a count of two": [3, 2, 0, 3, 3, 0, 1, 1],
    "a negative count": [3, -1, 0, 3, 3, 0, 1, 1],
    "twice as much of everything": [6, 2, 0, 6, 6, 0, 2, 2],
    "the negative of everything": [-3, -1, 0, -3, -3, 0, -1, -1],
    "a bit of two": [3, 1, 0, 3, 3, 0, 2, 1],
    "a bit of two, with its weight": [3, 1, 0, 6, 3, 0, 2, 1],
    "a bit of minus one": [3, 1, 0, 3, 3, -1, 1, 1],
    "a bit of minus one modulo the order": [3, 1, 0, 3, 3, ORDER - 1, 1, 1],
    "a weight below that is another": [3, 1, 0, 2, 3, 0, 1, 1],
    "a weight below without its bit": [3, 1, 3, 3, 3, 0, 1, 1],
    "a bit without its weight below": [3, 1, 0, 0, 3, 0, 1, 1],
    "another weight than all weights below": [4, 1, 0, 3, 3, 0, 1, 1],
    "not monotone": [3, 1, 3, 0, 3, 1, 0, 1],
    "falling": [3, 1, 3, 3, 0, 1, 1, 0],
    "below none but counted elsewhere": [3, 1, 0, 0, 0, 0, 0, 0, 1],
    "a weight that does not count": [3, 0, 0, 0, 0, 0, 0, 0],
    "a count without a weight": [0, 1, 0, 0, 0, 0, 1, 1],
    "weights below of one who does not count": [0, 0, 0, 3, 3, 0, 0, 0],
    "bits of one who does not count": [0, 0, 0, 0, 0, 0, 1, 1],
}


@pytest.mark.parametrize("lie", list(LIES.values()), ids=list(LIES))
def test_what_is_no_answer_is_not_proved(lie):
    """By no witness: any place, any weight, and a device that does not count."""
    commitment = commitment_to(lie)
    for voter in (Voter.drawn(CONFIG, weight, randomness()) for weight in (0, 3)):
        tries = {(0, 0), *((index, w) for index in range(1, 5) for w in {3, lie[0] % ORDER})}
        for index, weight in tries:
            assert not is_admitted(commitment, forged(voter, commitment, index, weight))
    assert is_admitted(*honest_by_forger())


def forged(voter, commitment, index, weight, *, of=CONFIG, query=QUERY, blinding=BLINDING):
    """A first proof by a device that says whatever it likes of its answer."""
    own = ballots.reduce(plus, voter.commitments)
    about, factor = ballots._about(commitment, own)
    joined = (blinding + factor * voter.blinding) % ORDER
    witness = Witness(index, (joined, weight) if index else (joined,))
    choices = [ballots._answers(query, commitment.point, own, factor)]
    choices += ballots._weights(of, voter.commitments)
    witnesses = [
        witness,
        *(Witness(i, (b,)) for i, b in zip(voter.chosen, voter.blindings, strict=True)),
    ]
    proof = proofs.prove(about, choices, witnesses, randomness(6))
    return b"".join(voter.commitments) + proof


def honest_by_forger():
    """The forger's own proof of a true answer, which is admitted."""
    voter = Voter.drawn(CONFIG, 3, randomness())
    commitment = commitment_to([3, 1, 0, 3, 3, 0, 1, 1])
    return commitment, forged(voter, commitment, 2, 3)


@pytest.mark.parametrize("weight", [6, 7, 8, 100, -1, ORDER - 1, 2**64])
def test_weights_that_are_not_legal_are_not_proved(weight):
    """Their parts would have to have values that no part has."""
    values = [weight, 1, 0, weight, weight, 0, 1, 1]
    commitment = commitment_to(values)
    for place in range(3):
        for honest in (1, 5):
            voter = lying_about(honest, place, weight - honest)
            proof = forged(voter, commitment, 2, weight % ORDER)
            assert not is_admitted(commitment, proof)


def lying_about(weight, place, more):
    """A voter one of whose parts has another value than it chose."""
    voter = Voter.drawn(CONFIG, weight, randomness())
    parts = list(voter.commitments)
    place %= len(parts)
    parts[place] = plus(parts[place], times(more, ballots._weight_generator()))
    return replace(voter, weight=weight + more, commitments=tuple(parts))


@pytest.mark.parametrize("weight", [3, 5, 6, 7])
def test_rounded_weights_are_powers_of_two(weight):
    of = config(8, Weighting.POWERS_OF_TWO)
    values = [weight, 1, 0, weight, weight, 0, 1, 1]
    commitment = commitment_to(values)
    voter = Voter.drawn(of, 4, randomness())
    lie = times(weight - 4, ballots._weight_generator())
    voter = replace(voter, commitments=(plus(voter.commitments[0], lie),))
    for chosen in range(5):
        proof = forged(replace(voter, chosen=(chosen,)), commitment, 2, weight, of=of)
        assert not is_admitted(commitment, proof, of=of)
    honest = first_vote(4, 15, of=of)
    assert is_admitted(*honest[1:], of=of)


def test_equal_weights_are_one():
    of = config(8, Weighting.EQUAL)
    voter = Voter.drawn(of, 1, randomness())
    for weight in (2, 8):
        commitment = commitment_to([weight, 1, 0, weight, weight, 0, 1, 1])
        assert not is_admitted(commitment, forged(voter, commitment, 2, weight, of=of), of=of)
    assert is_admitted(*first_vote(1, 15, of=of)[1:], of=of)


def test_a_part_that_counts_twice_is_refused():
    """The count of a device is in its first part alone."""
    voter = Voter.drawn(CONFIG, 3, randomness())
    parts = list(voter.commitments)
    parts[1] = plus(parts[1], ballots._count_generator())
    commitment = commitment_to([3, 2, 0, 3, 3, 0, 1, 1])
    liar = replace(voter, commitments=tuple(parts))
    assert not any(
        is_admitted(commitment, forged(liar, commitment, index, 3)) for index in range(5)
    )


def test_equal_pivots_have_equal_answers():
    query = query_at(10, 20, 20)
    values = [3, 1, 0, 0, 3, 0, 0, 1]
    commitment = commitment_to(values)
    voter = Voter.drawn(CONFIG, 3, randomness())
    for index in range(5):
        proof = forged(voter, commitment, index, 3, query=query)
        assert not is_admitted(commitment, proof, query=query)
    other = query_at(10, 20, 21)
    assert is_admitted(commitment, forged(voter, commitment, 3, 3, query=other), query=other)


# --- one weight in all queries ------------------------------------------------------------------


def later_vote(weights, weight, *, index=2, seed=1):
    """A later answer with some weight, by a device that committed to 3."""
    voter, commitment, proof = first_vote(3, 15, seed=seed)
    assert is_admitted(commitment, proof, weights=weights)
    own = weights[3]
    later = commitment_to([weight, int(weight > 0), 0, *[weight] * 2, 0, *[int(weight > 0)] * 2], 9)
    about, factor = ballots._about(later, own)
    joined = (9 + factor * voter.blinding) % ORDER
    secrets = (joined, weight) if index else (joined,)
    choices = [ballots._answers(QUERY, later.point, own, factor)]
    return later, proofs.prove(about, choices, [Witness(index, secrets)], randomness(6))


@pytest.mark.slow
def test_later_answers_have_the_committed_weight():
    weights = {}
    commitment, proof = later_vote(weights, 3)
    assert is_admitted(commitment, proof, weights=weights, is_first=False)
    assert plainly(commitment, proof, known=weights[3]) == weights[3]
    for weight in (0, 1, 2, 4):
        for index in (0, 2):
            commitment, proof = later_vote({}, weight, index=index)
            known = dict(weights)
            assert not is_admitted(commitment, proof, weights=known, is_first=False)
            assert known == weights


def test_who_did_not_count_does_not_count_later():
    voter, commitment, proof = first_vote(0, 15)
    weights = {}
    assert is_admitted(commitment, proof, weights=weights)
    later = commitment_to([3, 1, 0, 3, 3, 0, 1, 1], 9)
    liar = replace(voter, weight=3)
    proof = liar.prove(CONFIG, QUERY, 15, later, 9, randomness(7), is_first=False)
    assert not is_admitted(later, proof, weights=weights, is_first=False)


def test_a_second_weight_is_refused_at_another_level():
    weights = {}
    _, commitment, proof = first_vote(3, seed=1)
    assert is_admitted(commitment, proof, weights=weights)
    known = dict(weights)
    _, commitment, proof = first_vote(3, seed=2)
    assert is_admitted(commitment, proof)
    assert not is_admitted(commitment, proof, weights=weights)
    assert weights == known


def test_a_later_answer_needs_a_first_one():
    commitment, proof = later_vote({}, 3)
    assert not is_admitted(commitment, proof, weights={}, is_first=False)
    assert not is_admitted(commitment, proof, weights={4: BASE}, is_first=False)


def shifted_by_colluder(factor_of):
    """Two devices whose commitments differ from answers by parts that cancel.

    Each has another weight than it committed to. The parts are along the generator of weights, by
    which answers are joined to them, and sized for a factor that the device hopes for.
    """
    voter = Voter.drawn(CONFIG, 3, randomness())
    own = ballots.reduce(plus, voter.commitments)
    for sign in (1, -1):
        weight = 3 + 2 * sign
        values = [weight, 1, 0, weight, weight, 0, 1, 1]
        guess = factor_of(own)
        part = times(guess * (weight - 3), ballots._weight_generator())
        yield (
            voter,
            weight,
            Commitment(CONTEXT, 3, SIGNER, plus(pedersen.commit(values, BLINDING), part)),
        )


def test_the_factor_that_joins_two_commitments_cannot_be_chosen(monkeypatch):
    """If it were known beforehand, colluding devices could exchange weight with each other."""
    honest = proofs.challenge

    def constant(label, *parts):
        return 1 if label == ballots.Label.BALLOT else honest(label, *parts)

    lies = list(shifted_by_colluder(lambda _: 1))
    points = [commitment.point for _, _, commitment in lies]
    assert pedersen.opens(points, [6, 2, 0, 6, 6, 0, 2, 2], 2 * BLINDING)  # the sum is as due
    for voter, weight, commitment in lies:
        assert not is_admitted(commitment, forged(voter, commitment, 2, weight))
    monkeypatch.setattr(proofs, "challenge", constant)
    for voter, weight, commitment in lies:  # the control
        assert is_admitted(commitment, forged(voter, commitment, 2, weight))


def test_the_factor_depends_on_both_commitments():
    commitment = commitment_to([3])
    factors = {
        ballots._about(one, own)[1]
        for one in (commitment, replace(commitment, point=BASE))
        for own in (BASE, pedersen.generator(0))
    }
    assert len(factors) == 4


# --- another place, another sender, other bytes --------------------------------------------------

ELSEWHERE = {
    "another session": {"context": SlotContext(b"other".ljust(32), CONTEXT.info)},
    "another slot or query": {
        "context": SlotContext(CONTEXT.session_id, b"slot and other binding")
    },
    "another position": {"position": 4},
    "another device": {"signer": Signer(b"other".ljust(32), SIGNER.key)},
    "other keys": {"signer": Signer(SIGNER.identity, b"other".ljust(32))},
    "another commitment to the same": {"point": pedersen.commit([3, 1, 0, 3, 3, 0, 1, 1], 78)},
}


@pytest.mark.parametrize("change", list(ELSEWHERE.values()), ids=list(ELSEWHERE))
def test_a_proof_holds_in_its_place_alone(change):
    _, commitment, proof = first_vote()
    assert is_admitted(commitment, proof)
    assert not is_admitted(replace(commitment, **change), proof)


def test_a_proof_is_of_one_query():
    """The binding of the slot has the query; its pivots are in the statement only if equal."""
    _, commitment, proof = first_vote()
    assert not is_admitted(commitment, proof, query=query_at(10, 10, 30))
    assert not is_admitted(commitment, proof, query=query_at(10, 20))


def test_proofs_of_two_devices_are_not_exchanged():
    _, one, first = first_vote(3, seed=1)
    voter = Voter.drawn(CONFIG, 3, randomness(2))
    other = replace(one, position=4)
    second = voter.prove(CONFIG, QUERY, 15, other, BLINDING, randomness(3), is_first=True)
    assert is_admitted(one, first)
    assert is_admitted(other, second)
    assert not is_admitted(one, second)
    assert not is_admitted(other, first)
    size = 32 * len(voter.commitments)
    assert not is_admitted(one, second[:size] + first[size:])


@pytest.mark.slow
def test_every_piece_of_a_proof_matters():
    _, commitment, proof = first_vote()
    for start in range(0, len(proof), 32):
        bad = bytearray(proof)
        bad[start + 3] ^= 4
        assert not is_admitted(commitment, bytes(bad))
    for start in range(0, len(proof) - 32, 32):  # neighbours exchanged
        one, other = proof[start : start + 32], proof[start + 32 : start + 64]
        assert not is_admitted(commitment, proof[:start] + other + one + proof[start + 64 :])


@pytest.mark.parametrize("data", [b"", bytes(32), b"\xff" * 500])
def test_bytes_of_no_proof_are_refused(data):
    _, commitment, proof = first_vote()
    assert not is_admitted(commitment, data)
    assert not is_admitted(commitment, proof[:-1])
    assert not is_admitted(commitment, proof + b"\0")
    assert not is_admitted(commitment, proof + bytes(32))
    weights = {3: BASE}
    assert not is_admitted(commitment, data, weights=weights, is_first=False)


def test_scalars_have_one_encoding():
    voter, commitment, proof = first_vote()
    for start in range(32 * len(voter.commitments), len(proof), 32):
        number = int.from_bytes(proof[start : start + 32], "little") + ORDER
        bad = proof[:start] + number.to_bytes(32, "little") + proof[start + 32 :]
        assert not is_admitted(commitment, bad)


@pytest.mark.parametrize("small", SMALL)
def test_parts_of_small_order_are_refused(small):
    """In the commitment to the answer, and in each of those to the weight, also if they cancel."""
    voter, commitment, proof = first_vote()
    shifted = replace(commitment, point=plus(commitment.point, small))
    for one in (shifted, replace(commitment, point=small)):
        own = voter.prove(CONFIG, QUERY, 15, commitment, BLINDING, randomness(2), is_first=True)
        assert not is_admitted(one, proof)
        assert not is_admitted(one, own)
    parts = list(voter.commitments)
    parts[0] = plus(parts[0], small)
    parts[1] = pedersen.minus(parts[1], small)
    size = 32 * len(parts)
    assert not is_admitted(commitment, b"".join(parts) + proof[size:])


@pytest.mark.parametrize("bad", [bytes(32), b"\xff" * 32, (1).to_bytes(32, "little")])
def test_what_is_no_point_of_the_group_is_refused(bad):
    voter, commitment, proof = first_vote()
    assert not is_admitted(replace(commitment, point=bad), proof)
    assert not is_admitted(replace(commitment, point=b""), proof)
    for place in range(len(voter.commitments)):
        assert not is_admitted(commitment, proof[: 32 * place] + bad + proof[32 * place + 32 :])


def test_a_refused_proof_fixes_no_weight():
    _, commitment, proof = first_vote()
    weights = {}
    assert not is_admitted(commitment, proof[:-1] + b"\0", weights=weights)
    assert weights == {}


KNOWN = {
    "samples": ["9bafb7d8f9954f4e", "834f6adf029fd12c"],
    "powers-of-two": ["d0a6d5636821933e", "98da83c0fd6546ca"],
    "equal": ["dff1555a2080e026", "c3f02528986e71e5"],
}


# --- sizes and settings -------------------------------------------------------------------------


def test_sizes_are_those_of_the_page():
    of = config(8192)
    assert proof_size(of, 1, is_first=False) == 32 * 8
    assert proof_size(of, 64, is_first=False) == 32 * (1 + 65 + 131)
    assert proof_size(of, 1, is_first=True) == 32 * (8 + 13 + 5 + 12 * 3)


def test_proofs_from_a_seed_never_change():
    """Known answers: labels, order of draws, and every byte."""
    found = {}
    for weighting in Weighting:
        of = config(5, weighting)
        voter, commitment, first = first_vote(weighting.of(3), 15, of=of)
        later = voter.prove(of, QUERY, 15, commitment, BLINDING, randomness(2), is_first=False)
        found[weighting.value] = [sha256(proof).hexdigest()[:16] for proof in (first, later)]
    assert found == KNOWN


def test_only_some_methods_have_proved_votes():
    settings_of = {
        "round_index": 0,
        "cohort_size": 9,
        "theta": Fraction(1, 2),
        "max_queries": 2,
        "update_length": 1,
        "verified": True,
        "proved": True,
    }
    for method in METHODS:
        first, later, update = round_of(method=method, **settings_of).slots()
        assert first.proof_size > later.proof_size > update.proof_size == 0
        plain = round_of(method=method, **settings_of | {"proved": False})
        assert [slot.proof_size for slot in plain.slots()] == [0, 0, 0]
    with pytest.raises(ConfigurationError, match="method='mm' has no proved votes"):
        round_of(method="mm", **settings_of)
    with pytest.raises(ConfigurationError, match="only in a verified search"):
        round_of(method="bracketed", **settings_of | {"verified": False})


def test_the_voters_weight_is_not_printed():
    shown = repr(Voter.drawn(config(10**9), 123456789, randomness()))
    assert "123456789" not in shown
    assert "blindings" not in shown


def test_place_is_where_the_histogram_counts():
    """The answer that is proved is the one that the method gives."""
    of, histogram = config(), Histogram(3)
    for tick in range(35):
        contributed = histogram.contribution(of, QUERY, tick, 3)
        expected = [3, 1, *contributed["weight_below"], *contributed["count_below"]]
        assert values_of(3, tick, QUERY.pivots) == expected
        assert all(a <= b for a, b in pairwise(contributed["count_below"]))
