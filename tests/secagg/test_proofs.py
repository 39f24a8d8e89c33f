import pytest
from edwards import LOW_ORDER, decoded
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.exceptions import UnavailableError
from plain_proofs import holds_plain, in_group

from deltafl.secagg import pedersen, proofs
from deltafl.secagg.pedersen import BASE, ORDER, generator, minus, plus, times
from deltafl.secagg.proofs import Case, Witness, holds, prove, size
from deltafl.secagg.randomness import SeededRandomness

ABOUT = b"what the proof is about"
SMALL = [point for point in LOW_ORDER if pedersen.add([point]) is not None]
NEUTRAL = (1).to_bytes(32, "little")


def randomness(seed=1):
    return SeededRandomness(bytes([seed]) * 32)


def target(secrets, bases):
    result = times(0, BASE)
    for secret, base in zip(secrets, bases, strict=True):
        result = plus(result, times(secret, base))
    return result


def made(shape, index, seed=1):
    """A choice of which one case holds, and its witness."""
    draw = randomness(seed)
    cases, secrets = [], ()
    for number, num_bases in enumerate(shape):
        bases = tuple([BASE, *(generator(7 + 3 * number + j) for j in range(num_bases - 1))])
        drawn = tuple(pedersen.draw_blinding(draw) for _ in bases)
        if number == index:
            secrets = drawn
        cases.append(Case(target(drawn if number == index else [3] * num_bases, bases), bases))
    return cases, Witness(index, secrets)


def false_cases(shape):
    """Cases about points of which nobody knows a representation."""
    return [
        Case(generator(100 + number), tuple([BASE] + [generator(200 + j) for j in range(n - 1)]))
        for number, n in enumerate(shape)
    ]


def only(shape, index, seed=1):
    """Cases of which one holds, and nobody knows more."""
    cases, witness = made(shape, index, seed)
    others = false_cases(shape)
    return [case if i == index else others[i] for i, case in enumerate(cases)], witness


def as_plain(choices):
    return [
        [(decoded(case.target), [decoded(base) for base in case.bases]) for case in choice]
        for choice in choices
    ]


shapes = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.lists(shapes, min_size=1, max_size=3), st.data())
def test_every_case_of_every_choice_can_be_proved(all_shapes, data):
    indices = [data.draw(st.integers(0, len(shape) - 1)) for shape in all_shapes]
    pairs = [only(shape, index) for shape, index in zip(all_shapes, indices, strict=True)]
    choices, witnesses = [c for c, _ in pairs], [w for _, w in pairs]
    proof = prove(ABOUT, choices, witnesses, randomness(2))
    assert len(proof) == size(all_shapes)
    assert holds(ABOUT, choices, proof)
    assert not holds(ABOUT + b"!", choices, proof)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_plain_verifier_agrees(index):
    choices, witnesses = map(list, zip(only([1, 2, 2], index), only([1, 1], 1), strict=True))
    proof = prove(ABOUT, choices, witnesses, randomness(2))
    plain = as_plain(choices)
    assert holds_plain(ABOUT, plain, proof)
    assert not holds_plain(b"another", plain, proof)
    for place in (0, 40, len(proof) - 1):
        bad = bytearray(proof)
        bad[place] ^= 1
        assert not holds_plain(ABOUT, plain, bytes(bad))


def test_a_witness_that_does_not_hold_proves_nothing():
    cases, witness = only([2, 2], 0)
    for bad in (
        Witness(1, witness.secrets),
        Witness(0, (witness.secrets[0], (witness.secrets[1] + 1) % ORDER)),
        Witness(0, witness.secrets[::-1]),
    ):
        assert not holds(ABOUT, [cases], prove(ABOUT, [cases], [bad], randomness()))
    assert holds(ABOUT, [cases], prove(ABOUT, [cases], [witness], randomness()))


def test_nothing_can_be_proved_where_no_case_holds():
    cases = false_cases([1, 2])
    for witness in (Witness(0, (1,)), Witness(1, (1, 2)), Witness(0, (0,))):
        assert not holds(ABOUT, [cases], prove(ABOUT, [cases], [witness], randomness()))
    # Simulated for a challenge that was guessed: the hash gives another one.
    simulated = b"".join((5 + i).to_bytes(32, "little") for i in range(size([[1, 2]]) // 32))
    assert not holds(ABOUT, [cases], simulated)


def test_every_byte_of_a_proof_matters():
    cases, witness = only([1, 2], 1)
    proof = prove(ABOUT, [cases], [witness], randomness())
    for place in range(0, len(proof), 5):
        bad = bytearray(proof)
        bad[place] ^= 1 << place % 8
        assert not holds(ABOUT, [cases], bytes(bad))


def test_every_point_of_a_statement_matters():
    """A proof is of its targets and its bases, also of those that nothing is known about."""
    cases, witness = only([1, 2], 1)
    proof = prove(ABOUT, [cases], [witness], randomness())
    other = generator(300)
    for changed in (
        [Case(other, cases[0].bases), cases[1]],
        [cases[0], Case(other, cases[1].bases)],
        [Case(cases[0].target, (other,)), cases[1]],
        [cases[0], Case(cases[1].target, (cases[1].bases[0], other))],
        cases[::-1],
    ):
        assert not holds(ABOUT, [changed], proof)


def test_scalars_have_one_encoding():
    cases, witness = only([1, 1], 0)
    proof = prove(ABOUT, [cases], [witness], randomness())
    for start in range(0, len(proof), 32):
        number = int.from_bytes(proof[start : start + 32], "little")
        again = (number + ORDER).to_bytes(32, "little")
        assert not holds(ABOUT, [cases], proof[:start] + again + proof[start + 32 :])
    assert holds(ABOUT, [cases], proof)


@pytest.mark.parametrize("change", [-32, -1, 1, 32])
def test_another_length_is_refused(change):
    cases, witness = only([1, 2], 0)
    proof = prove(ABOUT, [cases], [witness], randomness())
    longer = proof + bytes(32)
    assert not holds(ABOUT, [cases], longer[: len(proof) + change])
    assert not holds(ABOUT, [cases], b"")


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.binary(max_size=200) | st.binary(min_size=128, max_size=128))
def test_no_bytes_raise(data):
    cases, _ = only([1, 1], 0)
    assert not holds(ABOUT, [cases], data)


def test_challenges_that_do_not_add_up_are_refused():
    """A prover that could choose all challenges would simulate every case."""
    cases = false_cases([1, 1])
    draw = randomness()
    e0, e1, z0, z1 = (pedersen.draw_blinding(draw) for _ in range(4))
    announced = [
        [
            plus(times(z, BASE), times(-e, case.target))
            for case, e, z in zip(cases, (e0, e1), (z0, z1), strict=True)
        ]
    ]
    whole = proofs._challenge(ABOUT, [cases], announced)
    assert whole != (e0 + e1) % ORDER
    proof = b"".join(number.to_bytes(32, "little") for number in (whole, e1, z0, z1))
    assert not holds(ABOUT, [cases], proof)


def test_a_proof_is_of_all_its_choices():
    one, own = only([1, 1], 0)
    other, theirs = only([1, 1], 1, seed=9)
    proof = prove(ABOUT, [one, other], [own, theirs], randomness())
    assert holds(ABOUT, [one, other], proof)
    assert not holds(ABOUT, [other, one], proof)
    first, second = (prove(ABOUT, [c], [w], randomness()) for c, w in ((one, own), (other, theirs)))
    assert not holds(ABOUT, [one, other], first + second[32:])


@pytest.mark.parametrize("small", [point for point in SMALL if point != NEUTRAL])
def test_points_outside_the_group_prove_nothing(small):
    """A target with a part of small order would hold for one challenge of 8 without the check."""
    cases, witness = only([1, 1], 0)
    shifted = [Case(plus(cases[0].target, small), cases[0].bases), cases[1]]
    assert not pedersen.is_in_group(shifted[0].target)
    assert in_group(shifted[0].target) is None
    accepted = 0
    for seed in range(24):
        # A prover ignores the small part: it cancels where the challenge is a multiple of 8.
        proof = prove_ignoring(shifted, cases, witness, seed)
        accepted += holds(ABOUT, [shifted], proof)
    assert accepted == 0


def test_a_verifier_that_looks_at_no_subgroup_is_fooled():
    """The control: plain arithmetic accepts such a target in half of all tries."""
    cases, witness = only([1, 1], 0)
    half = next(point for point in SMALL if plus(point, point) == NEUTRAL != point)
    shifted = [Case(plus(cases[0].target, half), cases[0].bases), cases[1]]
    tries = [prove_ignoring(shifted, cases, witness, seed) for seed in range(8)]
    assert any(holds_plain(ABOUT, as_plain([shifted]), proof) for proof in tries)
    assert not any(holds(ABOUT, [shifted], proof) for proof in tries)


def prove_ignoring(shown, real, witness, seed):
    """What a prover does who knows the target only up to a part of small order."""
    draw = randomness(seed)
    nonce, e1, z1 = (pedersen.draw_blinding(draw) for _ in range(3))
    announced = [
        times(nonce, BASE),
        plus(times(z1, BASE), times(-e1, real[1].target)),
    ]
    whole = proofs._challenge(ABOUT, [shown], [announced])
    z0 = (nonce + (whole - e1) * witness.secrets[0]) % ORDER
    return b"".join(number.to_bytes(32, "little") for number in (whole, e1, z0, z1))


def test_that_prover_convinces_where_nothing_is_shifted():
    cases, witness = only([1, 1], 0)
    assert holds(ABOUT, [cases], prove_ignoring(cases, cases, witness, 3))


def test_a_simulator_without_a_witness_makes_the_same_transcripts(monkeypatch):
    """Zero knowledge: for a challenge that is known beforehand, no witness is needed.

    With the hash programmed to that challenge, what it makes is accepted. And from the challenges
    and responses of a real proof, drawn as the simulator draws them, it makes the same bytes.
    """
    cases, witness = only([1, 2], 1)
    proof = prove(ABOUT, [cases], [witness], randomness())
    numbers = [int.from_bytes(proof[i : i + 32], "little") for i in range(0, len(proof), 32)]
    whole, *drawn = numbers

    def simulate(whole, numbers):
        return b"".join(number.to_bytes(32, "little") for number in (whole, *numbers))

    assert simulate(whole, drawn) == proof
    draw = randomness(5)
    without = simulate(whole, [pedersen.draw_blinding(draw) for _ in drawn])
    assert not holds(ABOUT, [cases], without)
    monkeypatch.setattr(proofs, "challenge", lambda *_: whole)
    assert holds(ABOUT, [cases], without)
    assert holds(ABOUT, [false_cases([1, 2])], without)


def test_two_answers_to_one_announcement_give_the_witness():
    """Special soundness, for a case of a choice of one."""
    secrets = (11, 22)
    bases = (BASE, generator(5))
    nonces, challenges = (33, 44), (5, 9)
    first, second = (
        [(nonce + e * x) % ORDER for nonce, x in zip(nonces, secrets, strict=True)]
        for e in challenges
    )
    inverse = pow(challenges[0] - challenges[1], -1, ORDER)
    found = [(a - b) * inverse % ORDER for a, b in zip(first, second, strict=True)]
    assert tuple(found) == secrets
    case = Case(target(secrets, bases), bases)
    for e, answers in zip(challenges, (first, second), strict=True):
        [announced] = proofs._announced([case], [e], [answers])
        assert announced == target(nonces, bases)


def test_a_prover_draws_anew_for_every_proof():
    cases, witness = only([1, 1], 0)
    draw = randomness()
    first, second = (prove(ABOUT, [cases], [witness], draw) for _ in range(2))
    pieces = [{data[i : i + 32] for i in range(0, len(data), 32)} for data in (first, second)]
    assert not pieces[0] & pieces[1]


def solved(first, second, shape):
    """For each case of a choice, the numbers that two proofs from the same nonces give."""

    def parts(proof):
        whole, *rest = [
            int.from_bytes(proof[i : i + 32], "little") for i in range(0, len(proof), 32)
        ]
        others, responses = rest[: len(shape) - 1], iter(rest[len(shape) - 1 :])
        challenges = [(whole - sum(others)) % ORDER, *others]
        return [
            (e, [next(responses) for _ in range(n)]) for e, n in zip(challenges, shape, strict=True)
        ]

    found = []
    for (e, answers), (other, others) in zip(parts(first), parts(second), strict=True):
        inverse = pow(e - other, -1, ORDER) if e != other else 0
        found.append(tuple((a - b) * inverse % ORDER for a, b in zip(answers, others, strict=True)))
    return found


def unhedged(monkeypatch):
    """Numbers of a proof come from the randomness alone, as they did."""
    monkeypatch.setattr(proofs, "hedged", lambda source, *_: source)


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("is_hedged", [True, False])
def test_two_proofs_from_one_state_of_the_randomness_do_not_give_the_secrets(
    monkeypatch, is_hedged, index
):
    """As of a virtual machine that is resumed twice. The control is how it was before."""
    if not is_hedged:
        unhedged(monkeypatch)
    shape = [1, 2, 2]
    cases, witness = only(shape, index)
    first, second = (prove(about, [cases], [witness], randomness()) for about in (b"one", b"two"))
    assert holds(b"one", [cases], first)
    assert holds(b"two", [cases], second)
    found = solved(first, second, shape)
    assert (witness.secrets in found) != is_hedged
    if is_hedged:  # nothing was drawn twice: no number of one proof is in the other
        pieces = [{data[i : i + 32] for i in range(0, len(data), 32)} for data in (first, second)]
        assert not pieces[0] & pieces[1]


def test_what_is_drawn_depends_on_all_of_the_statement_and_the_secrets(monkeypatch):
    seeds = []
    honest = proofs.hedged
    monkeypatch.setattr(
        proofs, "hedged", lambda *given: seeds.append(honest(*given)(32)) or honest(*given)
    )
    cases, witness = only([1, 2], 1)
    other = generator(300)
    states = [
        (ABOUT, cases, witness, 1),
        (ABOUT, cases, witness, 2),
        (ABOUT + b"!", cases, witness, 1),
        (ABOUT, [Case(other, cases[0].bases), cases[1]], witness, 1),
        (ABOUT, [Case(cases[0].target, (other,)), cases[1]], witness, 1),
        (ABOUT, cases, Witness(1, (witness.secrets[0], 5)), 1),
        (ABOUT, cases, Witness(0, witness.secrets[:1]), 1),
    ]
    for about, choice, known, seed in states:
        prove(about, [choice], [known], randomness(seed))
    assert len(set(seeds)) == len(states)
    prove(ABOUT, [cases], [witness], randomness())
    assert seeds[-1] == seeds[0]


def test_secrets_are_not_printed():
    assert "12345" not in repr(Witness(0, (12345,)))


def test_a_library_without_points_is_no_bad_proof(monkeypatch):
    cases, witness = only([1, 1], 0)
    proof = prove(ABOUT, [cases], [witness], randomness())

    def unavailable(*_):
        raise UnavailableError

    monkeypatch.setattr(pedersen, "times", unavailable)
    with pytest.raises(UnavailableError):
        holds(ABOUT, [cases], proof)


def test_a_neutral_target_is_no_error():
    """It may come of points that are all in the group."""
    neutral = minus(BASE, BASE)
    case = Case(neutral, (BASE,))
    assert holds(ABOUT, [[case]], prove(ABOUT, [[case]], [Witness(0, (0,))], randomness()))
    assert not holds(ABOUT, [[case]], prove(ABOUT, [[case]], [Witness(0, (1,))], randomness()))
