"""What a simulation computes once: the same bytes, whoever asks for what, and when."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parties import BINDING, POLICY, make_ids, make_inputs, make_params

from deltafl.secagg import Client, ClientId, DecodeError, PeerError, Refusal, Server, keys
from deltafl.secagg.prg import add_masks
from deltafl.secagg.primitives import PLAIN, Primitives, pairwise_with
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ClientState
from deltafl.sim.cohort import shared as simulation
from deltafl.sim.cohort.shared import SharedAgreements, SharedResults

PRIME = 2**255 - 19
ORDER = simulation._ORDER
SECRETS = st.binary(min_size=32, max_size=32)


def drawn(agreements, secret):
    """The pair of a secret, drawn from randomness that gives it."""
    return agreements.generate(lambda size: secret[:size])


def encoded(number):
    return number.to_bytes(32, "little")


@given(secrets=st.lists(SECRETS, min_size=2, max_size=4, unique=True), data=st.data())
@settings(max_examples=60)
def test_agreements_are_those_of_plain_pairs_in_any_order_and_number(secrets, data):
    agreements = SharedAgreements()
    shared, plain = [drawn(agreements, s) for s in secrets], [keys.key_pair(s) for s in secrets]
    index = st.integers(0, len(secrets) - 1)
    for own, peer in data.draw(st.lists(st.tuples(index, index), max_size=12)):
        assert shared[own].public == plain[own].public
        assert shared[own].agree(shared[peer].public) == plain[own].agree(plain[peer].public)


@given(secret=SECRETS, other=SECRETS, bit=st.integers(0, 255), first=st.booleans())
@settings(max_examples=60)
def test_keys_that_differ_by_a_bit_meet_no_entry_of_each_other(secret, other, bit, first):
    agreements = SharedAgreements()
    own, peer = drawn(agreements, secret), drawn(agreements, other)
    shared = own.agree(peer.public)
    flipped = encoded(int.from_bytes(peer.public, "little") ^ 1 << bit)
    if not keys.is_low_order(flipped):
        assert own.agree(flipped) == keys.key_pair(secret).agree(flipped)
        # The other end is shown its own key with the bit flipped, or the first end's.
        theirs = flipped if first else encoded(int.from_bytes(own.public, "little") ^ 1 << bit)
        if not keys.is_low_order(theirs):
            assert peer.agree(theirs) == keys.key_pair(other).agree(theirs)
    assert peer.agree(own.public) == shared == keys.key_pair(other).agree(own.public)


def test_a_server_that_shows_each_device_another_key_gets_what_it_would_have_got():
    agreements = SharedAgreements()
    secrets = [bytes([i]) * 32 for i in range(1, 5)]
    pairs, plain = [drawn(agreements, s) for s in secrets], [keys.key_pair(s) for s in secrets]
    asked = [(0, 1), (1, 2), (2, 0), (1, 0), (0, 2), (3, 0), (0, 1), (2, 1)]
    for own, shown in asked:
        assert pairs[own].agree(pairs[shown].public) == plain[own].agree(plain[shown].public)


@pytest.mark.parametrize("high_bit", [0, 1 << 255])
@pytest.mark.parametrize("number", [2, 9, PRIME - 2])
def test_another_encoding_of_a_key_is_another_key(number, high_bit):
    agreements = SharedAgreements()
    secret = bytes(range(32))
    own = drawn(agreements, secret)
    alias = encoded(number + high_bit)
    assert own.agree(alias) == keys.key_pair(secret).agree(alias)
    assert not agreements._waiting


@pytest.mark.parametrize("number", [0, 1, PRIME - 1, PRIME, PRIME + 1])
def test_low_order_keys_are_refused_as_by_plain_pairs(number):
    agreements = SharedAgreements()
    own = drawn(agreements, bytes(range(32)))
    for _ in range(2):
        with pytest.raises(PeerError, match="all zeros") as refused:
            own.agree(encoded(number))
        assert refused.value.reason is Refusal.BAD_KEY
    assert not agreements._waiting


def test_an_agreement_is_computed_once_and_then_forgotten(monkeypatch):
    computed = []
    plain = simulation.crypto_scalarmult_base
    monkeypatch.setattr(
        simulation, "crypto_scalarmult_base", lambda s: computed.append(s) or plain(s)
    )
    agreements = SharedAgreements()
    pairs = [drawn(agreements, bytes([i]) * 32) for i in range(1, 6)]
    for own in pairs:
        for peer in pairs:
            if peer is not own:
                own.agree(peer.public)
    assert len(computed) == 10
    assert not agreements._waiting


def test_what_is_kept_is_what_is_given():
    agreements = SharedAgreements()
    own, peer = (drawn(agreements, bytes([i]) * 32) for i in (1, 2))
    own.agree(peer.public)
    agreements._waiting[own.public, peer.public] = b"planted"
    assert peer.agree(own.public) == b"planted"


# --- products of scalars -------------------------------------------------------------------------


@given(one=SECRETS, other=SECRETS)
@settings(max_examples=200)
def test_secrets_of_products_are_scalars_and_the_product_but_for_the_sign(one, other):
    number = simulation._scalar(one) * simulation._scalar(other)
    secret = simulation._secret_of(number)
    scalar = int.from_bytes(secret, "little")
    assert simulation._scalar(secret) == scalar
    assert (scalar - number) % ORDER == 0 or (scalar + number) % ORDER == 0


@given(secret=SECRETS)
@settings(max_examples=50)
def test_scalars_are_those_of_x25519(secret):
    """Python's integers beside RFC 7748, section 5."""
    clamped = bytearray(secret)
    clamped[0] &= 248
    clamped[31] = clamped[31] & 127 | 64
    assert simulation._scalar(secret) == int.from_bytes(clamped, "little")


def test_a_product_without_a_secret_is_agreed_on_as_always():
    # The multiple of 8 that is −2^100 modulo the order: 8 times the order less 2^100, above 2^255.
    product = -(2**100)
    assert simulation._secret_of(product) is simulation._secret_of(-product) is None
    own = bytes(range(32))
    inverse = pow(simulation._scalar(own), -1, ORDER)
    other = simulation._secret_of(product * inverse)
    agreements = SharedAgreements()
    pair, peer = drawn(agreements, own), drawn(agreements, other)
    shared = keys.key_pair(own).agree(peer.public)
    assert pair.agree(peer.public) == shared == peer.agree(pair.public)


# --- sessions ------------------------------------------------------------------------------------


def play(params, primitives, seed):
    """Every message of a session in which one device vanishes before a slot, and its sums."""
    ids = make_ids(params.num_invited)
    inputs = make_inputs(params, ids, seed)
    randomness = SeededRandomness(seed.to_bytes(32, "little"))
    server = Server(params, ids, primitives=primitives)
    clients = {
        i: Client(ClientId(i), POLICY, randomness, primitives=primitives) for i in sorted(ids)
    }
    messages, sums = [], []

    def exchange(outgoing, gone=()):
        for client, data in outgoing.items():
            machine = clients[client]
            reply = machine.receive(data)
            if machine.state is ClientState.OPENED:
                reply = machine.contribute(inputs[client][machine.slot], BINDING)
            messages.append((client, data, reply))
            if reply is not None and client not in gone:
                server.receive(client, reply)
        return server.close_round()

    outgoing = server.start()
    for _ in range(3):
        outgoing = exchange(outgoing)
    for slot in range(len(params.slots)):
        gone = set(sorted(ids)[:1]) if slot == 1 else set()
        outgoing = exchange(server.open_slot(slot, BINDING), gone)
        while outgoing:
            outgoing = exchange(outgoing)
        taken = server.take_sum()
        sums.append((taken.vector.tolist(), taken.contributors))
    return messages, sums


@pytest.mark.parametrize("degree", [None, 6])
def test_every_byte_of_a_session_is_the_same(degree):
    params = make_params(9, degree=degree, slots=((4, 16), (300, 40), (3, 64)))
    for seed in range(3):
        assert play(params, simulation.simulated(), seed) == play(params, PLAIN, seed)


def test_another_agreement_would_be_seen(monkeypatch):
    params = make_params(9)
    plain = play(params, PLAIN, 0)
    monkeypatch.setattr(simulation, "_secret_of", lambda number: encoded(number % ORDER))
    assert play(params, simulation.simulated(), 0)[0] != plain[0]


class Counted:
    """`add_masks`, with its calls counted."""

    def __init__(self):
        self.calls = []

    def __call__(self, total, added, subtracted):
        self.calls.append((len(total), len(added), len(subtracted)))
        add_masks(total, added, subtracted)


def alone(add_masks):
    return Primitives(add_masks=add_masks, add_pairwise=pairwise_with(add_masks))


def test_masks_are_added_by_what_the_parties_were_given():
    params = make_params(6, slots=((4, 16), (300, 40), (3, 40, True)))
    counted = Counted()
    assert play(params, alone(counted), 1) == play(params, PLAIN, 1)
    # The first slot: six devices with a self mask and five with others each, and the server, who
    # takes six off. The second, after which one is gone: its five masks with the others have to
    # come off as well. The third is whole, so nothing is unmasked.
    calls = [(length, a + s) for length, a, s in counted.calls]
    assert calls[:13] == [(4, 1), (4, 5)] * 6 + [(4, 6)]
    assert calls[13:26] == [(300, 1), (300, 5)] * 6 + [(300, 5 + 5)]
    assert calls[26:] == [(3, 4)] * 5


def test_simulated_parties_add_long_masks_as_they_were_told():
    params = make_params(6, slots=((4, 16), (300, 40)))
    counted = Counted()
    assert play(params, simulation.simulated(counted, 2000), 1) == play(params, PLAIN, 1)
    # Self masks and the server's masks as ever. Pairs share the short ones, and not the long ones.
    calls = [(length, a + s) for length, a, s in counted.calls]
    assert calls[:7] == [(4, 1)] * 6 + [(4, 6)]
    assert calls[7:] == [(300, 1), (300, 5)] * 6 + [(300, 5 + 5)]


def test_masks_that_are_left_out_would_be_seen():
    params = make_params(6, slots=((4, 16), (300, 40)))

    def forgetful(total, added, subtracted):
        add_masks(total, added[1:], subtracted)

    messages, sums = play(params, alone(forgetful), 1)
    plain_messages, plain_sums = play(params, PLAIN, 1)
    assert messages != plain_messages
    assert not np.array_equal(sums[1][0], plain_sums[1][0])


@given(calls=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 15)), max_size=60))
@settings(max_examples=60)
def test_results_are_those_of_the_functions_in_any_order(calls):
    functions = (lambda data: data + b"!", len)
    arguments = [bytes([i // 2] * 2) for i in range(16)]  # each twice, as two objects or one
    results = SharedResults()
    for which, index in calls:
        expected = functions[which](arguments[index])
        assert results.apply(functions[which], arguments[index]) == expected
        assert len(results._kept) <= simulation._REMEMBERED


def test_a_result_comes_back_for_the_very_argument_only():
    asked = []
    record = asked.append
    results = SharedResults()
    argument = bytes(1000)
    equal = bytes(bytearray(argument))
    for given_ in (argument, argument, equal, argument, equal):
        results.apply(record, given_)
    assert [one is argument for one in asked] == [True, False]


def test_arguments_live_as_long_as_their_results():
    # Else another object in the place of one that is gone would be taken for it.
    results = SharedResults()
    for i in range(1000):
        assert results.apply(bytes.hex, i.to_bytes(2000)) == i.to_bytes(2000).hex()


def test_what_was_refused_once_is_refused_again():
    results, asked = SharedResults(), []

    def refuse(data):
        asked.append(data)
        raise DecodeError("refused")

    for _ in range(2):
        with pytest.raises(DecodeError, match="refused"):
            results.apply(refuse, b"a")
    assert len(asked) == 2


def test_devices_that_are_shown_different_openings_do_not_share_what_they_read():
    primitives = simulation.simulated()
    for params in [make_params(num_invited=3), make_params(num_invited=4)] * 2:
        ids = make_ids(params.num_invited)
        for client in [Client(i, POLICY, primitives=primitives) for i in ids]:
            client.receive(Server(params, ids).start()[client.client_id])
            assert client.params == params
