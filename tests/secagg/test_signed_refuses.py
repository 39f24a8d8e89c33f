"""A lying server: whom a device takes for whom, and whose word it needs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from parties import POLICY, Parties, make_params, plain_sum
from refusing import IDS, OTHERS, VICTIM, lie, refuse

from deltafl.secagg import (
    Client,
    Credentials,
    Enrolment,
    FirstUse,
    PeerError,
    Refusal,
    TrustedKeys,
    UsageError,
    keys,
    signing,
)
from deltafl.secagg.identity import identity
from deltafl.secagg.messages import (
    ConsistencyCheck,
    Credential,
    OpenSlot,
    ShareKind,
    UnmaskRequest,
)
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ClientState

PARAMS = make_params(6, threshold=3)
SPARSE = make_params(9, degree=4, threshold=3)
PEER = OTHERS[0]
STRANGER = identity(b"\7" * 32)
FRESH = keys.recipient(b"\x0b" * 32).public
"""A key that no device drew."""


# Who the device itself is.


@pytest.mark.parametrize(
    "known",
    [
        pytest.param({}, id="nobody"),
        pytest.param({VICTIM: identity(b"\1" * 32).public}, id="another key under its id"),
        pytest.param({PEER: STRANGER.public}, id="its key under another id"),
    ],
)
def test_a_directory_that_does_not_know_the_device_is_misuse(known):
    with pytest.raises(UsageError, match=f"does not accept this identity for device {VICTIM}"):
        Client(VICTIM, POLICY, credentials=Credentials(STRANGER, TrustedKeys(known)))
    Client(
        VICTIM,
        POLICY,
        credentials=Credentials(STRANGER, TrustedKeys({VICTIM: STRANGER.public})),
    )


def test_an_advertisement_proves_session_id_and_keys():
    """Its signature holds for exactly what was advertised."""
    parties = Parties(PARAMS)
    data = parties.clients[VICTIM].receive(parties.advance(ClientState.IDLE)[VICTIM])
    said = parties.decode(data)
    assert said == parties.advertisement(VICTIM, said.key)
    others = [
        parties.advertisement(PEER, said.key, by=VICTIM),
        parties.advertisement(VICTIM, FRESH),
        Parties(make_params(6, threshold=4)).advertisement(VICTIM, said.key),
    ]
    assert {other.credential.identity for other in others} == {said.credential.identity}
    signatures = {message.credential.signature for message in (said, *others)}
    assert len(signatures) == 1 + len(others)


# Who its neighbours are.


def credential_of(signer, message, *, params=PARAMS, client=PEER):
    """A signature of advertised keys, by anybody, for any session and device."""
    statement = signing.advertisement(params, client, message.key)
    return Credential(signer.public, signer.sign(statement))


def forgeries(parties, message):
    """What a server may put in the place of a neighbour's honest advertisement."""
    honest = parties.enrolment.credentials(PEER).identity
    other = parties.enrolment.credentials(OTHERS[1]).identity
    own = parties.enrolment.credentials(VICTIM).identity
    signature = message.credential.signature
    wrong = bytes([signature[0] ^ 1]) + signature[1:]
    session, threshold = replace(PARAMS, context=b"\1" * 32), replace(PARAMS, threshold=2)
    fresh = replace(message, key=FRESH)
    credentials = {
        "a changed signature": Credential(honest.public, wrong),
        "no signature": Credential(honest.public, bytes(64)),
        "an identity that did not sign": Credential(other.public, signature),
        "an identity that nobody can have": Credential(bytes(32), bytes(64)),
        "signed for another session": credential_of(honest, message, params=session),
        "signed for another threshold": credential_of(honest, message, params=threshold),
        "signed for another device": credential_of(honest, message, client=OTHERS[1]),
        "a stranger for the honest key": credential_of(STRANGER, message),
        "another device of the session": credential_of(other, message),
        "the device itself": credential_of(own, message),
        "honest": credential_of(honest, message),
    }
    return {
        "another key": fresh,
        "a stranger's own key": replace(fresh, credential=credential_of(STRANGER, fresh)),
        **{name: replace(message, credential=told) for name, told in credentials.items()},
    }


FORGERIES = {
    "another key": Refusal.BAD_SIGNATURE,
    "a changed signature": Refusal.BAD_SIGNATURE,
    "no signature": Refusal.BAD_SIGNATURE,
    "an identity that did not sign": Refusal.BAD_SIGNATURE,
    "an identity that nobody can have": Refusal.BAD_SIGNATURE,
    "signed for another session": Refusal.BAD_SIGNATURE,
    "signed for another threshold": Refusal.BAD_SIGNATURE,
    "signed for another device": Refusal.BAD_SIGNATURE,
    "a stranger's own key": Refusal.UNKNOWN_IDENTITY,
    "a stranger for the honest key": Refusal.UNKNOWN_IDENTITY,
    "another device of the session": Refusal.UNKNOWN_IDENTITY,
    "the device itself": Refusal.UNKNOWN_IDENTITY,
}


def with_forgery(name):
    def change(parties, message):
        position = parties.position(PEER)
        told = forgeries(parties, message.keys[position])[name]
        return replace(message, keys={**message.keys, position: told})

    return lie(ClientState.ADVERTISED, change, params=PARAMS)


@pytest.mark.parametrize(("name", "reason"), FORGERIES.items())
def test_keys_that_are_not_their_owners(name, reason):
    refuse(*with_forgery(name), reason, match=f"device {PEER}")


def test_keys_that_their_owner_signed_again_are_taken():
    parties, data = with_forgery("honest")
    parties.clients[VICTIM].receive(data)
    assert parties.clients[VICTIM].state is ClientState.SHARED


def test_two_neighbours_cannot_change_their_places():
    """Both advertisements are genuine, but each under the other's id."""

    def change(parties, message):
        one, other = parties.position(OTHERS[0]), parties.position(OTHERS[1])
        swapped = {one: message.keys[other], other: message.keys[one]}
        return replace(message, keys={**message.keys, **swapped})

    refuse(*lie(ClientState.ADVERTISED, change, params=PARAMS), Refusal.BAD_SIGNATURE)


def test_a_roster_cannot_rename_a_neighbour():
    """The id is signed, and the roster says which id a position has."""

    def change(parties, message):
        last = message.roster.tolist()[-1]
        assert last != VICTIM
        return replace(message, roster=np.array([*message.roster[:-1], last + 1], dtype=np.uint32))

    refuse(*lie(ClientState.ADVERTISED, change, params=PARAMS), Refusal.BAD_SIGNATURE)


def learning(params=PARAMS, known=None):
    """Parties whose victim trusts on first use."""
    parties = Parties(params)
    own = parties.enrolment.credentials(VICTIM).identity
    directory = FirstUse(known)
    parties.clients[VICTIM] = Client(
        VICTIM, POLICY, Credentials(own, directory), parties.randomness[VICTIM]
    )
    return parties, directory


def test_trust_on_first_use_learns_every_neighbour_and_catches_a_later_change():
    parties, directory = learning()
    parties.advance(ClientState.SHARED)
    pinned = directory.pinned()
    assert dict(pinned.keys) == {
        client: parties.enrolment.credentials(client).identity.public for client in IDS
    }
    # A stranger comes for a neighbour that was met before, and one whom the device never met.
    for known, reason in ((pinned, Refusal.UNKNOWN_IDENTITY), (None, None)):
        parties, directory = learning(replace(PARAMS, context=b"\1" * 32), known)
        pending = parties.advance(ClientState.ADVERTISED)
        message = parties.decode(pending[VICTIM])
        position = parties.position(PEER)
        told = credential_of(STRANGER, message.keys[position], params=parties.params)
        named = {**message.keys, position: replace(message.keys[position], credential=told)}
        data = parties.encode(replace(message, keys=named))
        if reason is not None:
            refuse(parties, data, reason)
        else:
            parties.clients[VICTIM].receive(data)
            assert directory.pinned().keys[PEER] == STRANGER.public


@pytest.mark.parametrize("last", ["unsigned", "met under another key", "twice", None])
def test_of_a_roster_that_is_refused_nothing_is_learnt(last):
    """The server shows identities of its own, and the last one is wrong; None: none of them is."""
    known = None
    if last == "met under another key":
        known = TrustedKeys({IDS[-1]: identity(b"\2" * 32).public})
    parties, directory = learning(known=known)
    before = directory.pinned()
    message = parties.decode(parties.advance(ClientState.ADVERTISED)[VICTIM])
    named, made = {}, None
    for position, told in message.keys.items():
        is_last = position == max(message.keys)
        if not is_last or last != "twice":
            made = identity(bytes([7, position]) * 16)
        client = int(message.roster[position])
        statement = signing.advertisement(PARAMS, client, told.key)
        signature = bytes(64) if is_last and last == "unsigned" else made.sign(statement)
        named[position] = replace(told, credential=Credential(made.public, signature))
    data = parties.encode(replace(message, keys=named))
    if last is None:
        parties.clients[VICTIM].receive(data)
        assert len(directory.pinned().keys) == len(named) + 1
        return
    reason = Refusal.BAD_SIGNATURE if last == "unsigned" else Refusal.UNKNOWN_IDENTITY
    refuse(parties, data, reason)
    assert directory.pinned() == before


def test_an_identity_whose_signature_is_wrong_is_not_learnt():
    """Anybody can claim a key; to learn it would lock its owner out."""
    parties, directory = learning()
    message = parties.decode(parties.advance(ClientState.ADVERTISED)[VICTIM])
    position = parties.position(PEER)
    claimed = Credential(STRANGER.public, bytes(64))
    named = {position: replace(message.keys[position], credential=claimed)}
    data = parties.encode(replace(message, keys={**message.keys, **named}))
    refuse(parties, data, Refusal.BAD_SIGNATURE)
    assert PEER not in directory.pinned().keys
    assert STRANGER.public not in directory.pinned().keys.values()


# Whose word it needs before it helps unmask.


def confirmed(params=PARAMS, victim=VICTIM, lost=()):
    """A session whose victim has signed a list of survivors, which lacks those `lost`."""
    parties = Parties(params)
    parties.advance(ClientState.MASKED)
    survivors = parties.members(set(parties.ids) - set(lost))
    parties.clients[victim].receive(parties.encode(ConsistencyCheck(0, survivors)))
    assert parties.clients[victim].state is ClientState.CONFIRMED
    return parties, survivors


def request(parties, survivors, signers, *, listed=None, **options):
    """A request with the signatures of some devices on a list."""
    signed = survivors if listed is None else listed
    signatures = {
        parties.position(client): parties.sign_survivors(client, signed, **options)
        for client in signers
    }
    return UnmaskRequest(0, survivors, signatures)


def test_what_a_device_signs_is_the_list_that_it_was_told():
    parties = Parties(PARAMS)
    parties.advance(ClientState.MASKED)
    survivors = parties.members(IDS[1:])  # of which the last in the roster is lost
    reply = parties.clients[VICTIM].receive(parties.encode(ConsistencyCheck(0, survivors)))
    said = parties.decode(reply)
    assert said.slot == 0
    assert said.signature == parties.sign_survivors(VICTIM, survivors)
    # And nothing else:
    others = [
        parties.sign_survivors(VICTIM, parties.members(IDS)),
        parties.sign_survivors(VICTIM, survivors[:5]),
        parties.sign_survivors(VICTIM, survivors, slot=1),
        parties.sign_survivors(VICTIM, survivors, binding=b"another"),
        parties.sign_survivors(VICTIM, survivors, roster=[*parties.roster[:-1], 1000]),
        parties.sign_survivors(VICTIM, survivors, key=parties.key(PEER)),
        parties.sign_survivors(PEER, survivors),
    ]
    assert len({said.signature, *others}) == 1 + len(others)


@pytest.mark.parametrize("num_signers", range(7))
def test_threshold_signatures_are_enough_and_one_less_is_too_few(num_signers):
    parties, survivors = confirmed()
    data = parties.encode(request(parties, survivors, IDS[:num_signers]))
    if num_signers < PARAMS.threshold:
        refuse(parties, data, Refusal.TOO_FEW_SIGNATURES, match=f"{num_signers}, fewer than t = 3")
    else:
        revealed = parties.decode(parties.clients[VICTIM].receive(data))
        assert revealed.kinds.tolist() == [ShareKind.SEED] * 6


@pytest.mark.parametrize("threshold", [2, 3, 5, 6])
def test_every_threshold_is_met_exactly(threshold):
    params = make_params(6, threshold=threshold)
    parties, survivors = confirmed(params)
    few = parties.encode(request(parties, survivors, IDS[-threshold + 1 :]))
    refuse(parties, few, Refusal.TOO_FEW_SIGNATURES)
    parties, survivors = confirmed(params)
    enough = parties.encode(request(parties, survivors, IDS[-threshold:]))
    assert parties.clients[VICTIM].receive(enough) is not None


def test_on_a_complete_graph_the_devices_own_signature_counts():
    parties, survivors = confirmed()
    data = parties.encode(request(parties, survivors, [VICTIM, *OTHERS[:2]]))
    assert parties.clients[VICTIM].receive(data) is not None
    # It is a signature like the others, not a free one.
    parties, survivors = confirmed()
    data = parties.encode(request(parties, survivors, OTHERS[:2]))
    refuse(parties, data, Refusal.TOO_FEW_SIGNATURES)


def sparse_places(parties):
    """A device of a sparse session, its four neighbours, and the rest."""
    victim = parties.ids[4]
    near = [parties.roster[p] for p in sorted(parties.clients[victim]._phase.cohort.neighbours)]
    far = [client for client in parties.ids if client not in (victim, *near)]
    assert (len(near), len(far)) == (4, 4)
    return victim, near, far


def sparse_request(num_neighbours, and_also=None):
    """A request with the signatures of some neighbours, and of a far device or the device too."""
    parties = Parties(SPARSE)
    parties.advance(ClientState.MASKED)
    victim, near, far = sparse_places(parties)
    survivors = parties.members(parties.ids)
    parties.clients[victim].receive(parties.encode(ConsistencyCheck(0, survivors)))
    more = {None: [], "a far device": far[:1], "the device itself": [victim]}[and_also]
    signers = [*near[:num_neighbours], *more]
    return parties, victim, parties.encode(request(parties, survivors, signers))


def test_on_a_sparse_graph_threshold_neighbours_are_enough():
    parties, victim, data = sparse_request(SPARSE.threshold)
    assert parties.clients[victim].receive(data) is not None
    parties, victim, data = sparse_request(SPARSE.threshold - 1)
    refuse(parties, data, Refusal.TOO_FEW_SIGNATURES, victim)


@pytest.mark.parametrize("num_neighbours", [0, 2, 4])
@pytest.mark.parametrize("and_also", ["a far device", "the device itself"])
def test_on_a_sparse_graph_only_those_who_hold_its_shares_have_a_say(num_neighbours, and_also):
    parties, victim, data = sparse_request(num_neighbours, and_also)
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR, victim, "who has no say, signed")


@pytest.mark.parametrize("position", [6, 2**32 - 1])
def test_a_signer_that_does_not_exist(position):
    parties, survivors = confirmed()
    message = request(parties, survivors, IDS[:3])
    signatures = {**message.signatures, position: bytes(64)}
    data = parties.encode(replace(message, signatures=signatures))
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR)


def test_a_signer_that_is_lost_has_no_say():
    """It could be one of the server's: it need not be seen by the others."""
    lost = OTHERS[0]
    parties, survivors = confirmed(lost=[lost])
    data = parties.encode(request(parties, survivors, [lost, *OTHERS[1:4]]))
    refuse(parties, data, Refusal.UNKNOWN_NEIGHBOUR)
    parties, survivors = confirmed(lost=[lost])
    data = parties.encode(request(parties, survivors, OTHERS[1:4]))
    revealed = parties.decode(parties.clients[VICTIM].receive(data))
    kinds = dict(zip(revealed.positions.tolist(), revealed.kinds.tolist(), strict=True))
    assert kinds.pop(parties.position(lost)) == ShareKind.RECOVERY
    assert set(kinds.values()) == {ShareKind.SEED}


ELSEWHERE = {
    "another list": {"listed": np.arange(6) < 5},
    "a longer list": {"listed": np.ones(7, dtype=np.bool_)},
    "a shorter list": {"listed": np.ones(5, dtype=np.bool_)},
    "another slot": {"slot": 1},
    "another binding": {"binding": b"what only some were shown"},
    "another roster": {"roster": [*sorted(IDS)[:-1], 1000]},
    "another key": {"key": FRESH},
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_signatures_of_something_else_are_refused(name):
    parties, survivors = confirmed()
    data = parties.encode(request(parties, survivors, IDS, **ELSEWHERE[name]))
    refuse(parties, data, Refusal.BAD_SIGNATURE)


def test_signatures_of_another_session_are_refused():
    """The same devices, roster, slot, binding, list, and even keys."""
    parties, survivors = confirmed()
    other = Parties(replace(PARAMS, context=b"\1" * 32))
    other.advance(ClientState.ADVERTISED)
    assert all(other.key(client) == parties.key(client) for client in IDS)
    signatures = request(other, survivors, IDS).signatures
    refuse(parties, parties.encode(UnmaskRequest(0, survivors, signatures)), Refusal.BAD_SIGNATURE)


def test_signatures_of_an_earlier_session_of_the_same_parameters_are_refused():
    """All that they say is the same, but the keys are new in every session."""
    earlier, survivors = confirmed()
    signatures = request(earlier, survivors, IDS).signatures
    parties = Parties(PARAMS, seed=1)
    parties.advance(ClientState.MASKED)
    parties.clients[VICTIM].receive(parties.encode(ConsistencyCheck(0, survivors)))
    assert parties.clients[VICTIM]._phase.context == earlier.clients[VICTIM]._phase.context
    refuse(parties, parties.encode(UnmaskRequest(0, survivors, signatures)), Refusal.BAD_SIGNATURE)
    # Control: they were good in their own.
    data = earlier.encode(UnmaskRequest(0, survivors, signatures))
    assert earlier.clients[VICTIM].receive(data) is not None


def test_signatures_of_an_earlier_slot_are_refused_in_a_later_one():
    """Honest ones, replayed where they would suit the server."""
    parties = Parties(PARAMS)
    steps = parties.steps()
    earlier = parties.decode(next(itertools.islice(steps, 6, None))[VICTIM])
    assert isinstance(earlier, UnmaskRequest)
    later = parties.decode(next(itertools.islice(steps, 3, None))[VICTIM])
    assert (later.slot, later.signatures.keys()) == (1, earlier.signatures.keys())
    data = parties.encode(replace(later, signatures=earlier.signatures))
    refuse(parties, data, Refusal.BAD_SIGNATURE)


@pytest.mark.parametrize("signed_by", [OTHERS[1], VICTIM])
def test_signatures_count_for_their_signer_only(signed_by):
    parties, survivors = confirmed()
    message = request(parties, survivors, IDS)
    wrong = parties.sign_survivors(signed_by, survivors)
    signatures = {**message.signatures, parties.position(PEER): wrong}
    refuse(parties, parties.encode(replace(message, signatures=signatures)), Refusal.BAD_SIGNATURE)


def test_one_wrong_signature_spoils_enough_right_ones():
    """No honest server sends one: it checked them all."""
    parties, survivors = confirmed()
    message = request(parties, survivors, IDS)
    for client in IDS:
        parties, survivors = confirmed()
        position = parties.position(client)
        good = message.signatures[position]
        signatures = {**message.signatures, position: good[:-1] + bytes([good[-1] ^ 1])}
        data = parties.encode(replace(message, signatures=signatures))
        refuse(parties, data, Refusal.BAD_SIGNATURE)


# Two lists.


@pytest.mark.parametrize("listed", [IDS[:5], [VICTIM, *OTHERS[:3]]])
def test_another_list_in_the_request(listed):
    """Even if everybody signed that other list, this device did not."""
    parties, _ = confirmed()
    data = parties.encode(request(parties, parties.members(listed), listed))
    refuse(parties, data, Refusal.INCONSISTENT_SURVIVORS)


def test_a_larger_list_in_the_request():
    parties, _ = confirmed(lost=[PEER])
    data = parties.encode(request(parties, parties.members(IDS), IDS))
    refuse(parties, data, Refusal.INCONSISTENT_SURVIVORS)


@pytest.mark.parametrize("cut", [5, 4])
def test_a_list_over_fewer_devices_in_the_request(cut):
    parties, survivors = confirmed()
    data = parties.encode(request(parties, survivors[:cut], IDS[-cut:]))
    refuse(parties, data, Refusal.INCONSISTENT_SURVIVORS)


@pytest.mark.parametrize("second", [IDS[:5], IDS])
def test_a_second_check_of_one_slot(second):
    parties, _ = confirmed(lost=[PEER])
    data = parties.encode(ConsistencyCheck(0, parties.members(second)))
    refuse(parties, data, Refusal.INCONSISTENT_SURVIVORS)


def test_the_same_check_again_is_not_answered_again():
    parties, survivors = confirmed()
    machine = parties.clients[VICTIM]
    assert machine.receive(parties.encode(ConsistencyCheck(0, survivors))) is None
    assert machine.state is ClientState.CONFIRMED


def test_a_second_list_after_the_shares_are_given():
    parties, survivors = confirmed()
    data = parties.encode(request(parties, survivors, IDS))
    assert parties.clients[VICTIM].receive(data) is not None
    second = parties.encode(request(parties, parties.members(IDS[:5]), IDS[:5]))
    refuse(parties, second, Refusal.BOTH_SHARE_KINDS)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (ClientState.MASKED, lambda p: ConsistencyCheck(1, p.members(IDS))),  # not the open slot
        (ClientState.OPENED, lambda p: ConsistencyCheck(0, p.members(IDS))),  # before it is masked
        (ClientState.MASKED, lambda p: request(p, p.members(IDS), IDS)),  # before it is checked
        (ClientState.CONFIRMED, lambda p: OpenSlot(1, p.members(IDS))),  # before it is unmasked
        (
            ClientState.CONFIRMED,
            lambda p: replace(request(p, p.members(IDS), IDS, slot=1), slot=1),
        ),
    ],
)
def test_out_of_order(state, message):
    parties = Parties(PARAMS)
    parties.advance(state)
    refuse(parties, parties.encode(message(parties)), Refusal.OUT_OF_ORDER)


def test_a_list_of_another_slot_before_the_unmasking():
    parties, _ = confirmed()
    data = parties.encode(ConsistencyCheck(1, parties.members(IDS)))
    refuse(parties, data, Refusal.INCONSISTENT_SURVIVORS)


def test_a_check_that_brings_a_lost_device_back():
    parties = Parties(PARAMS)
    parties.exchange(parties.advance(ClientState.SHARED))
    pending = parties.server.open_slot(0, b"")
    message = replace(parties.decode(pending[VICTIM]), members=parties.members(IDS[:5]))
    parties.answer(VICTIM, parties.encode(message))
    data = parties.encode(ConsistencyCheck(0, parties.members(IDS)))
    refuse(parties, data, Refusal.COHORT_GREW)


def test_a_lost_device_stays_lost_in_the_next_slot():
    parties, survivors = confirmed(lost=[PEER])
    parties.clients[VICTIM].receive(parties.encode(request(parties, survivors, OTHERS[1:4])))
    data = parties.encode(OpenSlot(1, parties.members(IDS)))
    refuse(parties, data, Refusal.COHORT_GREW)


# The attack that all of this is about.


def split_view(threshold):
    """Half of the devices are told that a victim survived, half that it is lost.

    Of six devices one colludes: it signs both lists and holds both kinds of share.

    Returns:
        How many shares of the victim's seed, and of its key, the server gets in the end.
    """
    parties = Parties(make_params(6, threshold=threshold))
    parties.advance(ClientState.MASKED)
    colluding, told_lost = IDS[5], [IDS[0], IDS[1], IDS[3]]
    told_survived = [VICTIM, IDS[4]]
    assert {colluding, *told_lost, *told_survived} == set(IDS)
    everybody = parties.members(IDS)
    without = parties.members(set(IDS) - {VICTIM})
    shares = {ShareKind.SEED: 1, ShareKind.RECOVERY: 1}  # the colluding device's
    for listed, told in ((everybody, told_survived), (without, told_lost)):
        signatures = {parties.position(colluding): parties.sign_survivors(colluding, listed)}
        for client in told:
            reply = parties.clients[client].receive(parties.encode(ConsistencyCheck(0, listed)))
            signatures[parties.position(client)] = parties.decode(reply).signature
        data = parties.encode(UnmaskRequest(0, listed, signatures))
        for client in told:
            if len(signatures) < threshold:
                refuse(parties, data, Refusal.TOO_FEW_SIGNATURES, client)
                continue
            reply = parties.clients[client].receive(data)
            revealed = parties.decode(reply)
            (row,) = np.flatnonzero(revealed.positions == parties.position(VICTIM))
            shares[ShareKind(revealed.kinds[row])] += 1
    return shares[ShareKind.SEED], shares[ShareKind.RECOVERY]


def test_a_split_view_gets_threshold_shares_of_one_secret_only():
    """2t = 8 > h + c = 7: two quorums share an honest device, who signs one list."""
    seed, key = split_view(threshold=4)
    assert (seed, key) == (1, 4)


def test_a_split_view_strips_both_masks_where_the_threshold_is_too_low():
    """Control: 2t = 6 is not above h + c = 7, and the victim's vector is the server's."""
    seed, key = split_view(threshold=3)
    assert seed >= 3
    assert key >= 3


def test_a_list_that_nobody_else_was_told():
    parties, survivors = confirmed(lost=[PEER])
    data = parties.encode(request(parties, survivors, [VICTIM]))
    refuse(parties, data, Refusal.TOO_FEW_SIGNATURES)


@pytest.mark.parametrize("params", [PARAMS, SPARSE])
def test_an_honest_server_is_refused_nothing(params):
    """Control of everything above."""
    parties = Parties(params)
    for _ in parties.steps():
        pass
    assert parties.server.drops == {}
    for result in parties.sums:
        expected = plain_sum(params, result.slot, parties.inputs, parties.ids)
        assert result.vector.tolist() == expected


def test_devices_that_were_enrolled_elsewhere_do_not_know_each_other():
    parties = Parties(PARAMS)
    elsewhere = Enrolment(SeededRandomness(b"elsewhere".ljust(32, b"\0")))
    machine = Client(VICTIM, POLICY, elsewhere.credentials(VICTIM), parties.randomness[VICTIM])
    pending = parties.advance(ClientState.ADVERTISED)
    machine.receive(parties.server.start()[VICTIM])
    with pytest.raises(PeerError) as refused:
        machine.receive(pending[VICTIM])
    assert refused.value.reason is Refusal.UNKNOWN_IDENTITY
