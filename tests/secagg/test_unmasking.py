"""Wrong shares, false promises: who lied is named, and no sum is ever wrong."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from malicious_clients import (
    COMPLETE,
    SPARSE,
    MaliciousClients,
    at_step,
    be_somebody_else,
    changed,
    check_sums,
    commit_falsely,
    deal_outside_the_field,
    deal_wrong_shares,
    device_at,
    every_kind,
    index_of,
    lie_about,
    relink,
    say_of_links,
    seal_junk,
    sign_badly,
    unread,
)
from parties import BINDING, Parties, make_params, plain_sum

from deltafl.secagg import Fault, SessionAborted, Stage, Step, shamir
from deltafl.secagg.blame import places_of_errors, trace
from deltafl.secagg.graph import Graph
from deltafl.secagg.masks import SlotContext, recovery_commitment, seed_commitment
from deltafl.secagg.messages import ShareKind, UnmaskShares
from deltafl.secagg.params import SessionId
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.states import ServerState
from deltafl.secagg.unmasking import Promises, SlotSecrets

# One slot's secrets, without a session around them.

CONTEXT = SlotContext(SessionId(bytes(32)), b"slot")
COMMIT = (seed_commitment, recovery_commitment)
"""To the secrets of either `ShareKind`."""


class Slot:
    """The secrets of a slot, honestly dealt, and what comes of them."""

    def __init__(self, num_devices, degree, threshold, survivors=None, seed=bytes(32)):
        randomness = SeededRandomness(seed)
        self.graph = graph = Graph(num_devices, degree, bytes(32))
        self.threshold = threshold
        everyone = range(num_devices)
        self.survivors = set(everyone) if survivors is None else set(survivors)
        self.secrets = {p: [randomness(32), randomness(32)] for p in everyone}
        self.shares = {}
        for p in everyone:
            holders = graph.holders_of(p).tolist()
            points = [h + 1 for h in holders]
            dealt = shamir.split(self.secrets[p], points, threshold, randomness)
            self.shares |= {(h, p): share for h, share in zip(holders, dealt, strict=True)}
        self.commitments = {
            p: tuple(
                commit(CONTEXT.session_id, 0, p, secret)
                for commit, secret in zip(COMMIT, self.secrets[p], strict=True)
            )
            for p in everyone
        }

    def kind(self, position):
        return ShareKind.SEED if position in self.survivors else ShareKind.RECOVERY

    def told(self, holder, left_out=()):
        """What a device has to answer."""
        owners = [p for p in self.graph.holders_of(holder).tolist() if p not in left_out]
        return UnmaskShares(
            0,
            np.array(owners, dtype=np.uint32),
            np.array([self.kind(p) for p in owners], dtype=np.uint8),
            np.array(
                [self.shares[holder, p][self.kind(p)] for p in owners], dtype=np.uint32
            ).reshape(len(owners), shamir.NUM_LIMBS),
        )

    def open(self):
        members = np.ones(self.graph.num_devices, dtype=np.bool_)
        survivors = np.zeros_like(members)
        survivors[sorted(self.survivors)] = True
        return SlotSecrets(self.graph, self.threshold, members, survivors)

    def linked(self, unlinked=()):
        """All devices but some, as those with which a device has a link."""
        members = np.ones(self.graph.num_devices, dtype=np.bool_)
        members[list(unlinked)] = False
        return members

    def recover(self, answering=None):
        secrets, blame = self.traced(answering)
        return secrets.recovered(blame.secrets), blame

    def traced(self, answering=None):
        secrets = self.open()
        for holder in sorted(self.survivors) if answering is None else answering:
            assert secrets.take(holder, self.told(holder), self.linked()) is None
        return secrets, trace(secrets, self.promises)

    @property
    def promises(self):
        return Promises(CONTEXT, 0, self.commitments)

    def spoil(self, holder, position, error=1, limb=3):
        share = self.shares[holder, position][self.kind(position)]
        share[limb] = (int(share[limb]) + error) % shamir.PRIME

    def check(self, recovered):
        """All secrets are those that were dealt."""
        assert dict(recovered.seeds) == {p: self.secrets[p][0] for p in self.survivors}
        gone = set(range(self.graph.num_devices)) - self.survivors
        assert dict(recovered.recovery) == {p: self.secrets[p][1] for p in gone}

    def promise(self, position, kind, commitment=bytes(32)):
        """Have a device commit to something else."""
        both = list(self.commitments[position])
        both[kind] = commitment
        self.commitments[position] = tuple(both)


slots = st.sampled_from([(7, 6, 3), (8, 7, 5), (5, 4, 5), (12, 6, 3), (12, 8, 4), (10, 4, 2)])


@pytest.mark.slow
@settings(max_examples=60)
@given(drawn=slots, data=st.data())
def test_honest_answers_give_every_secret(drawn, data):
    survivors = data.draw(st.sets(st.sampled_from(range(drawn[0])), min_size=drawn[2]))
    slot = Slot(*drawn, survivors)
    left = [len(survivors & set(slot.graph.holders_of(p).tolist())) for p in range(drawn[0])]
    if min(left) < drawn[2]:
        with pytest.raises(SessionAborted, match="shares came for position"):
            slot.recover()
    else:
        recovered, blame = slot.recover()
        slot.check(recovered)
        assert blame.faults == {}


@settings(max_examples=40)
@given(drawn=slots, data=st.data())
def test_liars_within_the_radius_are_the_only_ones_named_and_all_secrets_are_right(drawn, data):
    num_devices, _, threshold = drawn
    slot = Slot(*drawn, data.draw(st.sets(st.sampled_from(range(num_devices)), min_size=2)))
    answering = sorted(slot.survivors)
    near = {p: set(slot.graph.holders_of(p).tolist()) & slot.survivors for p in range(num_devices)}
    liars = set()
    for liar in data.draw(st.permutations(answering)):
        more = liars | {liar}
        if all(2 * len(more & near[p]) <= len(near[p]) - threshold for p in range(num_devices)):
            liars = more
    assume(min(len(holders) for holders in near.values()) >= threshold)
    wrong = set()
    for liar in sorted(liars):
        for position in slot.graph.holders_of(liar).tolist():
            if data.draw(st.booleans()):
                slot.spoil(liar, position, data.draw(st.integers(1, shamir.PRIME - 1)))
                wrong.add((liar, position))
    lied = {liar for liar, _ in wrong}
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert set(blame.faults) <= lied
    assert set(blame.faults.values()) <= {Fault.BAD_SHARE}
    # The pairs of whom one lied: whoever is among the first t to answer for somebody is looked at.
    pairs = {(p, liar) for liar, p in wrong}
    assert blame.disputes <= pairs
    assert {(p, q) for p, q in pairs if q in sorted(near[p])[:threshold]} <= blame.disputes


@pytest.mark.slow
@settings(max_examples=40)
@given(drawn=slots, data=st.data())
def test_liars_beyond_the_radius_end_the_slot_or_do_no_harm(drawn, data):
    # Liars who know nothing of the others' shares, as many as may be but for t honest ones.
    num_devices, _, threshold = drawn
    slot = Slot(*drawn)
    liars = data.draw(st.sets(st.sampled_from(range(num_devices)), min_size=1))
    lied = {}
    for liar in sorted(liars):
        for position in slot.graph.holders_of(liar).tolist():
            limb = data.draw(st.integers(0, 8))
            slot.spoil(liar, position, data.draw(st.integers(1, shamir.PRIME - 1)), limb)
            lied.setdefault((position, limb), set()).add(liar)
    # Should very many err in one place, they may have agreed on another secret: that takes as
    # many as are right, and t colluding devices know all secrets anyway.
    for (position, _), who in lied.items():
        num_holders = len(slot.graph.holders_of(position))
        assume(len(who) < num_holders - (num_holders - threshold) // 2)
    try:
        recovered, blame = slot.recover()
    except SessionAborted:
        return
    slot.check(recovered)
    assert set(blame.faults) <= liars


def test_one_liar_where_one_share_can_be_spared_is_noticed_and_not_named():
    slot = Slot(6, 5, 5)
    slot.spoil(0, 2)
    with pytest.raises(SessionAborted, match="position 2 do not fit together"):
        slot.recover()


def test_the_radius_is_exact():
    for num, threshold in ((7, 3), (8, 3), (9, 5)):
        radius = (num - threshold) // 2
        for count in (radius, radius + 1):
            slot = Slot(num, num - 1, threshold)
            for liar in range(count):
                slot.spoil(liar, 4, error=5**liar)
            if count == radius:
                recovered, blame = slot.recover()
                slot.check(recovered)
                assert blame.disputes == {(4, liar) for liar in range(radius)}
                assert blame.faults == {}
            else:
                with pytest.raises(SessionAborted, match="do not fit together"):
                    slot.recover()


def test_a_wrong_limb_anywhere_is_found():
    for limb in range(shamir.NUM_LIMBS):
        slot = Slot(7, 6, 3)
        slot.spoil(1, 5, limb=limb)
        recovered, blame = slot.recover()
        slot.check(recovered)
        assert blame.disputes == {(5, 1)}


@pytest.mark.parametrize(("num", "degree"), [(7, 6), (12, 6)])
def test_one_wrong_share_anywhere_is_found_where_it_is_looked_at(num, degree):
    for whose in (0, 3, 6):
        holders = Slot(num, degree, 3).graph.holders_of(whose).tolist()
        for liar in holders:
            slot = Slot(num, degree, 3)
            slot.spoil(liar, whose)
            recovered, blame = slot.recover()
            slot.check(recovered)
            assert blame.disputes == ({(whose, liar)} if liar in holders[:3] else set())
            assert blame.faults == {}


@pytest.mark.parametrize("is_suspect", [True, False])
def test_only_the_wrong_shares_of_suspects_are_recorded(is_suspect):
    """Who is not among the first t is not looked at, and a list with gaps would mislead."""
    slot = Slot(7, 6, 3)
    slot.spoil(0, 5)
    slot.spoil(6, 5 if is_suspect else 4)
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert blame.disputes == {(5, 0), *({(5, 6)} if is_suspect else ())}


def test_liars_in_different_limbs_are_all_found():
    slot = Slot(7, 6, 3)
    slot.spoil(0, 5, limb=2)
    slot.spoil(6, 5, limb=8)
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert blame.disputes == {(5, 0), (5, 6)}


def test_what_too_few_others_can_check_is_not_held_against_a_suspect():
    slot = Slot(9, 8, 5)
    for liar in (3, 4):
        slot.spoil(liar, 8)
    secrets = slot.open()
    for holder in range(9):
        # Of the device at 5, four hold shares besides the two who lie about another.
        off = {5} if holder < 3 else set()
        assert secrets.take(holder, slot.told(holder, off), slot.linked(off)) is None
    blame = trace(secrets, slot.promises)
    slot.check(secrets.recovered(blame.secrets))
    assert blame.disputes == {(8, 3), (8, 4)}


@pytest.mark.parametrize(("num", "degree"), [(7, 6), (8, 7), (12, 6)])
def test_who_disputes_with_most_is_named_and_who_disputes_with_half_is_not(num, degree):
    for more in (False, True):
        slot = Slot(num, degree, 3)
        owners = slot.graph.holders_of(0).tolist()
        wrong = owners[: len(owners) // 2 + more]
        for owner in wrong:
            slot.spoil(0, owner)
        recovered, blame = slot.recover()
        slot.check(recovered)
        assert blame.disputes == {(owner, 0) for owner in wrong}
        assert blame.faults == ({0: Fault.BAD_SHARE} if more else {})


@pytest.mark.parametrize(("num", "degree"), [(9, 8), (14, 8)])
def test_who_is_compared_with_liars_is_not_blamed(num, degree):
    """A dealer has an honest holder suspected, and a liar's shares are what it is compared with."""
    slot = Slot(num, degree, 3)
    dealer = num - 1
    suspected, _, _, liar, *_ = slot.graph.holders_of(dealer).tolist()
    slot.spoil(suspected, dealer)
    wrong = [p for p in slot.graph.holders_of(liar).tolist() if p != dealer]
    for owner in wrong:
        slot.spoil(liar, owner)
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert blame.faults == {liar: Fault.BAD_SHARE}
    assert blame.disputes == {(dealer, suspected), *((p, liar) for p in wrong)}


def test_liars_whose_errors_cancel_in_the_secret_frame_nobody():
    """Two of those that the others are compared with: their shares of a seed give that seed."""
    slot = Slot(9, 8, 3)
    for suspected in (0, 1):  # so that the others are compared with 2, 3 and 4
        slot.spoil(suspected, 8, 1 + suspected)
    weights = shamir.lagrange_at_zero(np.array([[3, 4, 5]]))[0].tolist()
    for owner in range(8):
        slot.spoil(3, owner, weights[2])
        slot.spoil(4, owner, -weights[1])
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert blame.faults == dict.fromkeys((3, 4), Fault.BAD_SHARE)
    lies = {(owner, liar) for owner in range(8) for liar in (3, 4)}
    assert blame.disputes == {(8, 0), (8, 1)} | lies


def test_nobody_is_blamed_where_too_many_lied_to_tell():
    slot = Slot(7, 6, 4, survivors=range(6))
    weights = shamir.lagrange_at_zero(np.array([[1, 2, 3, 4]]))[0].tolist()
    slot.spoil(0, 6)
    for owner in range(6):  # two of six lie, but the first four give the secret
        slot.spoil(1, owner, weights[3])
        slot.spoil(3, owner, -weights[1])
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert (blame.faults, blame.disputes) == ({}, {(6, 0)})


def test_a_suspect_that_nobody_can_judge_is_not_blamed():
    """Four of ten lie, so that with two honest devices they are six for another polynomial."""
    slot = Slot(10, 9, 4)
    slot.spoil(6, 9)
    for owner in range(9):
        for liar in (2, 3, 4, 5):  # zero at the points 0, 1 and 2: the secret seems right
            slot.spoil(liar, owner, (liar + 1) * liar * (liar - 1))
    secrets = slot.open()
    for holder in range(10):
        off = {9} if holder < 3 else set()  # the device at 6 is among the first t
        assert secrets.take(holder, slot.told(holder, off), slot.linked(off)) is None
    blame = trace(secrets, slot.promises)
    slot.check(secrets.recovered(blame.secrets))
    assert (blame.faults, blame.disputes) == ({}, {(9, 6)})


def test_a_polynomial_that_does_not_give_the_secret_convicts_nobody():
    """Three of seven lie: with three honest devices they are near enough to another polynomial."""
    slot = Slot(7, 6, 4)
    slot.spoil(0, 6)  # so that the first four without a suspect are three honest ones and a liar
    for owner in range(6):
        for liar in (4, 5, 6):  # zero at the points of 1, 2 and 3
            slot.spoil(liar, owner, (liar - 1) * (liar - 2) * (liar - 3))
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert (blame.faults, blame.disputes) == ({}, {(6, 0)})


def test_shares_that_never_came_are_not_wrong():
    slot = Slot(9, 8, 3)
    for owner in (2, 8):
        slot.spoil(3, owner)
    secrets = slot.open()
    for holder in range(9):
        off = {8} if holder == 0 else {2} if holder > 3 else set()
        assert secrets.take(holder, slot.told(holder, off), slot.linked(off)) is None
    blame = trace(secrets, slot.promises)
    slot.check(secrets.recovered(blame.secrets))
    assert blame.disputes == {(2, 3), (8, 3)}


def test_without_blame_a_wrong_share_costs_the_sum():
    for is_wrong in (False, True):
        slot = Slot(7, 6, 3)
        if is_wrong:
            slot.spoil(1, 5)
        secrets, _ = slot.traced()
        everyone = np.arange(7)
        rebuilt = secrets.rebuild(slot.promises, everyone, np.zeros(7, dtype=np.bool_))
        if is_wrong:
            with pytest.raises(SessionAborted, match="position 5 do not give the seed"):
                secrets.recovered(rebuilt)
        else:
            slot.check(secrets.recovered(rebuilt))


@pytest.mark.parametrize("liar", [0, 3])
def test_a_liar_is_found_out_once_whatever_it_lies_about(monkeypatch, liar):
    # Decoding takes seconds where devices are many: one of them must not cause it for each.
    calls = []
    monkeypatch.setattr(
        "deltafl.secagg.blame.places_of_errors",
        lambda *word: calls.append(0) or places_of_errors(*word),
    )
    slot = Slot(9, 8, 4, survivors=range(liar, 9))  # those before it are gone
    for position in range(9):
        slot.spoil(liar, position)
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert blame.faults == {liar: Fault.BAD_SHARE}
    assert len(calls) <= 2  # a liar whose first limb is right is found at another


@pytest.mark.parametrize("threshold", [3, 4])
def test_a_false_commitment_names_its_dealer_and_ends_the_slot(threshold):
    slot = Slot(7, 6, threshold)
    slot.promise(4, ShareKind.SEED)
    secrets, blame = slot.traced()
    assert (blame.faults, blame.disputes) == ({4: Fault.BAD_COMMITMENT}, frozenset())
    with pytest.raises(SessionAborted, match="position 4 do not give the seed"):
        secrets.recovered(blame.secrets)


def test_all_false_commitments_of_a_slot_are_named():
    slot = Slot(7, 6, 3)
    for position in (1, 4):
        slot.promise(position, ShareKind.SEED)
    secrets, blame = slot.traced()
    with pytest.raises(SessionAborted, match="position 1 do not give the seed"):
        secrets.recovered(blame.secrets)
    assert blame.faults == dict.fromkeys((1, 4), Fault.BAD_COMMITMENT)


@pytest.mark.parametrize("liars", [[0], [5], [0, 5]])
def test_a_false_commitment_among_liars_ends_the_slot_and_names_nobody(liars):
    # More may have lied than decoding can tell: all seven shares agree, or nobody is to be blamed.
    slot = Slot(7, 6, 3)
    slot.promise(4, ShareKind.SEED)
    for liar in liars:
        slot.spoil(liar, 4)
    with pytest.raises(SessionAborted, match="position 4 do not fit together"):
        slot.recover()


def test_a_false_commitment_beside_lies_about_others_is_named():
    slot = Slot(7, 6, 3)
    slot.promise(4, ShareKind.SEED)
    for liar in (0, 5):
        slot.spoil(liar, 2)
    _, blame = slot.traced()
    assert blame.faults == {4: Fault.BAD_COMMITMENT}
    assert blame.disputes == {(2, 0), (2, 5)}


def test_a_false_commitment_is_not_believed_from_t_shares_alone():
    # Any t shares fit together: they do not show that it was not one of them.
    slot = Slot(7, 6, 7)
    slot.promise(4, ShareKind.SEED)
    with pytest.raises(SessionAborted, match="do not fit together"):
        slot.recover()


def test_another_recovery_key_than_the_promised_one_ends_the_slot_and_names_its_dealer():
    slot = Slot(7, 6, 3, survivors=[0, 1, 2, 3, 5, 6])
    slot.promise(4, ShareKind.RECOVERY)
    secrets, blame = slot.traced()
    assert (blame.faults, blame.disputes) == ({4: Fault.BAD_COMMITMENT}, frozenset())
    with pytest.raises(SessionAborted, match="position 4 do not give the recovery key"):
        secrets.recovered(blame.secrets)


def test_a_false_promise_of_what_is_not_asked_for_does_no_harm():
    slot = Slot(7, 6, 3, survivors=[0, 1, 2, 3, 4, 5])
    slot.promise(4, ShareKind.RECOVERY)
    slot.promise(6, ShareKind.SEED)
    recovered, blame = slot.recover()
    slot.check(recovered)
    assert blame.faults == {}


def test_shares_of_something_that_is_no_secret_end_the_slot():
    slot = Slot(7, 6, 3)
    for holder in range(7):
        # A constant polynomial of limbs that 30 bits do not hold.
        slot.shares[holder, 4][ShareKind.SEED] = 1 << 30
    with pytest.raises(SessionAborted, match="position 4 had shared something that is no secret"):
        slot.recover()


def test_shares_that_do_not_fit_together_end_the_slot():
    slot = Slot(7, 6, 3)
    for holder in range(7):
        slot.spoil(holder, 4, error=1 + holder**4)
    with pytest.raises(SessionAborted, match="position 4 do not fit together"):
        slot.recover()


@pytest.mark.parametrize("degree", [6, 4])
def test_what_was_not_asked_for_is_malformed(degree):
    slot = Slot(7, degree, 3)
    told, near = slot.told(2), slot.graph.holders_of(2).tolist()
    other = next(p for p in near if p != 2)

    def without(row):
        return replace(
            told,
            positions=np.delete(told.positions, row),
            kinds=np.delete(told.kinds, row),
            shares=np.delete(told.shares, row, axis=0),
        )

    for row in range(len(near)):
        assert slot.open().take(2, without(row), slot.linked()) is Fault.MALFORMED
    for kinds in (1 - told.kinds, np.where(told.positions == other, 1, 0).astype(np.uint8)):
        assert slot.open().take(2, replace(told, kinds=kinds), slot.linked()) is Fault.MALFORMED
    for stranger in (7, 2**31, 2**32 - 1):
        positions = told.positions.copy()
        positions[-1] = stranger
        wrong = replace(told, positions=positions)
        assert slot.open().take(2, wrong, slot.linked()) is Fault.MALFORMED
    assert slot.open().take(2, told, slot.linked()) is None


def test_shares_of_a_device_without_a_link_must_be_left_out():
    slot = Slot(7, 6, 3)
    assert slot.open().take(2, slot.told(2), slot.linked({4})) is Fault.MALFORMED
    assert slot.open().take(2, slot.told(2, left_out={4}), slot.linked({4})) is None
    assert slot.open().take(2, slot.told(2, left_out={4, 5}), slot.linked({4})) is Fault.MALFORMED


def test_a_refused_answer_leaves_no_shares_behind():
    slot = Slot(7, 6, 7)
    secrets = slot.open()
    for holder in range(7):
        told = slot.told(holder)
        if holder == 2:
            assert secrets.take(2, replace(told, kinds=1 - told.kinds), slot.linked()) is not None
        else:
            assert secrets.take(holder, told, slot.linked()) is None
    with pytest.raises(SessionAborted, match="6 shares came for position 0"):
        trace(secrets, slot.promises)


def test_secrets_are_not_printed():
    slot = Slot(5, 4, 3, survivors=[0, 1, 2, 3])
    recovered, blame = slot.recover()
    for secret in (*recovered.seeds.values(), recovered.recovery[4]):
        assert repr(secret) not in repr((recovered, blame))


# Whole sessions.

RADIUS = 2


def holders_of(params, position):
    graph = Graph(params.num_invited, params.degree, params.graph_seed)
    return graph.holders_of(position).tolist()


def at_unmasking(params, vanished=()):
    """At the unmasking of slot 0, into which the vanished sent nothing: the honest answers."""
    index = index_of(Stage.MASK)
    parties, _, pending = at_step(index, params)
    left = {client: data for client, data in pending.items() if client not in vanished}
    pending = parties.exchange(left)
    pending = parties.exchange(pending)
    return parties, parties.deliver(pending)


def check_named(parties, replies, liars, contributors):
    parties.collect(replies)
    result = parties.server.take_sum()
    assert {c for c, d in parties.server.drops.items() if d.fault is Fault.BAD_SHARE} == liars
    assert all(parties.server.drops[liar].step == Step(Stage.UNMASK, 0) for liar in liars)
    assert set(result.contributors) == set(contributors)
    assert set(result.remaining) == set(contributors) - liars
    expected = plain_sum(parties.params, 0, parties.inputs, contributors)
    assert result.vector.tolist() == expected


def is_looked_at(params, position):
    """Whether a device is among the first t to answer for somebody, which suffices to be checked.

    Others are where those fail.
    """
    owners = holders_of(params, position)
    return any(position in holders_of(params, owner)[: params.threshold] for owner in owners)


def lying(parties, data, positions, error=1):
    wrong = changed(
        parties, data, lambda message: lie_about(positions, error=error)(parties, None, message)
    )
    assert wrong != data
    return wrong


@every_kind
@pytest.mark.parametrize("which", [0, 3, 4, -1])
def test_wrong_shares_of_seeds_name_their_sender(params, which):
    position = holders_of(params, 3)[which]
    liar = device_at(params, position)
    parties, replies = at_unmasking(params)
    replies[liar] = lying(parties, replies[liar], set(range(params.num_invited)))
    check_named(
        parties, replies, {liar} if is_looked_at(params, position) else set(), parties.roster
    )


@every_kind
@pytest.mark.parametrize("which", [0, 3, 4, -1])
def test_one_wrong_share_costs_neither_the_sum_nor_a_device(params, which):
    liar = device_at(params, holders_of(params, 3)[which])
    parties, replies = at_unmasking(params)
    replies[liar] = lying(parties, replies[liar], {3})
    check_named(parties, replies, set(), parties.roster)


@every_kind
def test_wrong_shares_of_a_recovery_key_and_of_seeds_name_their_sender(params):
    gone = device_at(params, 5)
    parties, replies = at_unmasking(params, vanished=[gone])
    liar = device_at(params, [p for p in holders_of(params, 5) if p != 5][1])
    replies[liar] = lying(parties, replies[liar], set(range(params.num_invited)))
    parties.collect(replies)
    assert parties.server.drops[liar].fault is Fault.BAD_SHARE
    assert parties.server.drops[gone].fault is Fault.TIMED_OUT
    others = [client for client in parties.roster if client != gone]
    expected = plain_sum(params, 0, parties.inputs, others)
    assert parties.server.take_sum().vector.tolist() == expected


@every_kind
@pytest.mark.parametrize("which", list(itertools.combinations((0, 1, 2, -1), 2)))
def test_as_many_liars_as_the_radius_are_named_and_nobody_else(params, which):
    parties, replies = at_unmasking(params)
    holders = holders_of(params, 4)
    liars = {device_at(params, holders[i]) for i in which}
    for liar in liars:
        # Unequal errors: equal ones can cancel in the interpolation, and then do no harm.
        everyone, error = set(range(params.num_invited)), 5 ** parties.position(liar)
        replies[liar] = lying(parties, replies[liar], everyone, error=error)
    parties.collect(replies)
    parties.sums.append(parties.server.take_sum())
    check_sums(parties)
    assert parties.sums[0].contributors == tuple(parties.roster)
    named = set(parties.server.drops)
    assert {drop.fault for drop in parties.server.drops.values()} == {Fault.BAD_SHARE}
    assert named <= liars
    # On a complete graph whoever is not looked at is found with those who are.
    sure = (c for c in liars if params.is_complete or is_looked_at(params, parties.position(c)))
    assert set(sure) <= named


@every_kind
@pytest.mark.parametrize("which", [(0, 1, 2), (0, 3, -1), (0, 1, 2, 3, -1), range(8)])
def test_more_liars_end_the_session_and_no_sum_is_wrong(params, which):
    parties, replies = at_unmasking(params)
    holders = holders_of(params, 4)
    for i in which:
        liar = device_at(params, holders[i])
        replies[liar] = lying(parties, replies[liar], {4}, error=5 ** parties.position(liar))
    with pytest.raises(SessionAborted, match="position 4 do not fit together"):
        parties.collect(replies)
    assert parties.server.state is ServerState.ABORTED


@every_kind
def test_session_goes_on_without_the_liar(params):
    liar = device_at(params, holders_of(params, 4)[0])
    parties = MaliciousClients(params, {(liar, Stage.UNMASK): lie_about()})
    sums = parties.finish()
    assert parties.faults == {liar: Fault.BAD_SHARE}
    assert {(dispute.holder, dispute.step) for dispute in parties.server.disputes} == {
        (liar, Step(Stage.UNMASK))
    }
    honest = {client for client in parties.roster if client != liar}
    assert [set(result.contributors) for result in sums] == [set(parties.roster), honest]


def test_wrong_share_where_none_can_be_spared_ends_the_session():
    parties, replies = at_unmasking(make_params(5, threshold=5))
    liar = parties.ids[0]
    replies[liar] = lying(parties, replies[liar], {2})
    with pytest.raises(SessionAborted, match="do not fit together"):
        parties.collect(replies)
    assert parties.server.state is ServerState.ABORTED


@every_kind
def test_too_few_shares_end_the_session(params):
    parties, replies = at_unmasking(params)
    with pytest.raises(SessionAborted, match=r"only \d+ devices are left to help unmask"):
        parties.collect(dict(list(replies.items())[: params.threshold - 1]))


@every_kind
@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, kinds=1 - m.kinds),
        lambda m: replace(
            m, positions=np.where(m.positions == m.positions[-1], 2**32 - 1, m.positions)
        ),
        lambda m: replace(m, positions=m.positions[1:], kinds=m.kinds[1:], shares=m.shares[1:]),
        lambda m: replace(m, positions=m.positions[:0], kinds=m.kinds[:0], shares=m.shares[:0]),
    ],
    ids=["other kinds", "a stranger's", "one withheld", "none"],
)
def test_other_shares_than_were_asked_for_drop_their_sender(params, change):
    parties, replies = at_unmasking(params)
    faulty = parties.ids[2]
    replies[faulty] = changed(parties, replies[faulty], change)
    parties.collect(replies)
    assert set(parties.server.drops) == {faulty}
    assert parties.server.drops[faulty].fault is Fault.MALFORMED
    assert parties.server.drops[faulty].step == Step(Stage.UNMASK)
    expected = plain_sum(params, 0, parties.inputs, parties.roster)
    assert parties.server.take_sum().vector.tolist() == expected


def test_shares_of_a_device_that_was_not_in_the_slot_are_refused():
    params = COMPLETE
    parties, _, pending = at_step(index_of(Stage.MASK), params)
    gone, faulty, *_ = parties.ids
    parties.finish_slot(parties.exchange({c: d for c, d in pending.items() if c != gone}))
    pending = parties.exchange(parties.server.open_slot(1, BINDING))
    pending = parties.exchange(pending)
    replies = parties.deliver(pending)

    def add_one(message):
        position = parties.position(gone)
        at = int(np.searchsorted(message.positions, position))
        return replace(
            message,
            positions=np.insert(message.positions, at, position),
            kinds=np.insert(message.kinds, at, 1),
            shares=np.insert(message.shares, at, 0, axis=0),
        )

    replies[faulty] = changed(parties, replies[faulty], add_one)
    parties.collect(replies)
    assert parties.server.drops[faulty].fault is Fault.MALFORMED
    others = [client for client in parties.roster if client != gone]
    expected = plain_sum(params, 1, parties.inputs, others)
    assert parties.server.take_sum().vector.tolist() == expected


@every_kind
def test_a_false_commitment_is_named_and_there_is_no_sum(params):
    attacker = device_at(params, 5)
    parties = MaliciousClients(params, {(attacker, Stage.SHARE): commit_falsely})
    with pytest.raises(SessionAborted, match="position 5 do not give the seed"):
        parties.finish()
    assert parties.faults == {attacker: Fault.BAD_COMMITMENT}
    assert parties.server.drops[attacker].step == Step(Stage.UNMASK)
    assert parties.server.state is ServerState.ABORTED
    assert not parties.server.has_sum
    assert parties.sums == []


@every_kind
def test_a_device_is_dropped_for_its_first_fault(params):
    """Silent when asked for shares, it is lost for that, whatever its secrets bring to light."""
    attacker = device_at(params, 5)
    changes = {(attacker, Stage.SHARE): commit_falsely, (attacker, Stage.UNMASK): lambda *_: None}
    parties = MaliciousClients(params, changes)
    with pytest.raises(SessionAborted, match="position 5 do not give the seed"):
        parties.finish()
    assert parties.faults == {attacker: Fault.TIMED_OUT}


@every_kind
def test_a_false_commitment_to_a_seed_of_a_device_that_vanishes_does_no_harm(params):
    def commit(parties, client, message):
        told = [told if i % 2 else bytes(32) for i, told in enumerate(message.commitments)]
        return replace(message, commitments=tuple(told))

    attacker = device_at(params, 5)
    changes = {(attacker, Stage.SHARE): commit, (attacker, Stage.MASK): lambda *_: None}
    parties = MaliciousClients(params, changes)
    parties.finish()
    assert parties.faults == {attacker: Fault.TIMED_OUT}


@every_kind
@pytest.mark.parametrize("slot", [0, 1])
def test_wrong_deposits_of_a_device_that_vanishes_are_named_and_there_is_no_sum(params, slot):
    """The key that it hid is not the one of which it gave the digest, as its neighbour did."""
    attacker, peer = device_at(params, 5), holders_of(params, 5)[0]
    hidden = 32 + 48 * slot + 16
    changes = {
        (attacker, Stage.RECEIPT): say_of_links(hidden, [peer]),
        (attacker, Stage.MASK): lambda *_: None,
    }
    parties = MaliciousClients(params, changes)
    if slot == 0:
        with pytest.raises(SessionAborted, match="position 5, which is gone, had deposited other"):
            parties.finish()
        assert parties.sums == []
        assert parties.server.state is ServerState.ABORTED
    else:  # it is gone before that slot is opened
        assert len(parties.finish()) == 2
    # It is lost for its silence; that it had lied comes to light later.
    assert parties.faults == {attacker: Fault.TIMED_OUT}


@every_kind
def test_wrong_deposits_of_a_device_that_stays_do_no_harm(params):
    attacker = device_at(params, 5)
    parties = MaliciousClients(params, {(attacker, Stage.RECEIPT): say_of_links(48)})
    sums = parties.finish()
    assert parties.faults == {}
    assert all(set(result.contributors) == set(parties.roster) for result in sums)


@every_kind
def test_a_false_commitment_to_a_recovery_key_ends_the_session_where_it_is_needed(params):
    attacker = device_at(params, 5)
    for vanishes in (False, True):
        changes = {(attacker, Stage.SHARE): commit_falsely_to_recovery}
        if vanishes:
            changes[attacker, Stage.MASK] = lambda *_: None
        parties = MaliciousClients(params, changes)
        if vanishes:
            with pytest.raises(SessionAborted, match="position 5 do not give the recovery key"):
                parties.finish()
            assert parties.sums == []
        else:
            assert len(parties.finish()) == 2


def commit_falsely_to_recovery(parties, client, message):
    told = [bytes(32) if i % 2 else told for i, told in enumerate(message.commitments)]
    return replace(message, commitments=tuple(told))


@every_kind
@pytest.mark.parametrize("num_gone", [1, 2])
def test_masks_of_lost_devices_are_removed_with_what_they_deposited(params, num_gone):
    gone = [device_at(params, p) for p in (5, 8)[:num_gone]]
    parties = MaliciousClients(params, {(c, Stage.MASK): lambda *_: None for c in gone})
    sums = parties.finish()
    left = tuple(c for c in parties.roster if c not in gone)
    assert [result.contributors for result in sums] == [left, left]
    recovered = sums[0].recovered
    assert dict(recovered.recovery) == {
        parties.position(c): parties.randomness[c].given[2] for c in gone
    }
    assert set(recovered.seeds) == {parties.position(c) for c in left}


@every_kind
def test_shares_that_do_not_fit_together_end_the_session_and_say_whose(params):
    attacker = device_at(params, 5)

    def content(recipient, half, limbs):
        told = (limbs.astype(np.uint64) + 1 + recipient**4) % shamir.PRIME
        return half + told.astype("<u4").tobytes()

    parties = MaliciousClients(params, {(attacker, Stage.SHARE): relink(content)})
    with pytest.raises(SessionAborted, match="position 5 do not fit together"):
        parties.finish()
    assert parties.sums == []


@every_kind
@pytest.mark.parametrize("num_victims", [1, RADIUS])
def test_wrong_shares_for_a_few_do_not_cost_the_sum(params, num_victims):
    victims = [p for p in holders_of(params, 5) if p != 5][:num_victims]
    attacker = device_at(params, 5)
    parties = MaliciousClients(params, {(attacker, Stage.SHARE): deal_wrong_shares(victims)})
    list(itertools.islice(parties.steps(), index_of(Stage.MASK, 1)))
    check_sums(parties)
    assert set(parties.sums[0].contributors) == set(parties.roster)


@every_kind
def test_a_dealer_cannot_have_its_victim_named(params):
    # Both told the truth about what was in the box; only the dealer is not honest.
    victim = next(p for p in holders_of(params, 5) if p != 5)
    attacker = device_at(params, 5)
    parties = MaliciousClients(params, {(attacker, Stage.SHARE): deal_wrong_shares([victim])})
    parties.finish()
    assert device_at(params, victim) not in parties.server.drops


# Any mixture.


def junk_for_one(parties, client, message):
    return seal_junk(parties, client, message, list(message.boxes)[:1])


def outside_for_one(parties, client, message):
    return deal_outside_the_field(list(message.boxes)[:1])(parties, client, message)


def unread_one(parties, client, message):
    return unread(list(message.links)[:1])(parties, client, message)


MISCHIEF = {
    (stage, "junk"): lambda *_: b"\x93\x01\x12" for stage in Stage
} | {
    (stage, "silence"): lambda *_: None for stage in Stage
} | {
    (Stage.ADVERTISE, "signs badly"): sign_badly,
    (Stage.ADVERTISE, "is somebody else"): be_somebody_else,
    (Stage.SHARE, "junk for all"): seal_junk,
    (Stage.SHARE, "junk for one"): junk_for_one,
    (Stage.SHARE, "outside the field for one"): outside_for_one,
    (Stage.SHARE, "commits falsely"): commit_falsely,
    (Stage.RECEIPT, "reads one less"): unread_one,
    (Stage.RECEIPT, "reads nothing"): unread(range(14)),
    (Stage.RECEIPT, "says another digest"): say_of_links(32),
    (Stage.RECEIPT, "shows another tag"): say_of_links(0),
    (Stage.CONFIRM, "signs badly"): sign_badly,
    (Stage.UNMASK, "lies"): lie_about(),
    (Stage.UNMASK, "lies otherwise"): lie_about(error=7),
}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40)
@given(
    params=st.sampled_from([COMPLETE, SPARSE]),
    attackers=st.dictionaries(
        st.integers(0, 8), st.sampled_from(sorted(MISCHIEF)), min_size=1, max_size=RADIUS
    ),
)
def test_whatever_a_few_do_the_others_get_their_sums_and_no_blame(params, attackers):
    changes = {}
    for position, (stage, name) in attackers.items():
        changes[device_at(params, position), stage] = MISCHIEF[stage, name]
    parties = MaliciousClients(params, changes)
    guilty = {client for client, _ in changes}
    told = {name for _, name in attackers.values()}
    try:
        sums = parties.finish()
    except SessionAborted:
        # Nobody can tell which seed was used, and among wrong shares not even who lied.
        assert "commits falsely" in told
        assert parties.sums == []
        assert set(parties.faults) <= guilty
        return
    assert "commits falsely" not in told
    assert set(parties.faults) <= guilty
    assert all(set(parties.roster) - guilty <= set(result.contributors) for result in sums)
    assert len(sums) == 2


@pytest.mark.slow
@settings(max_examples=25)
@given(
    params=st.sampled_from([COMPLETE, SPARSE]),
    liars=st.dictionaries(
        st.integers(0, 13), st.integers(1, shamir.PRIME - 1), min_size=1, max_size=6
    ),
    whose=st.one_of(st.none(), st.sets(st.integers(0, 8), min_size=1)),
)
def test_any_number_of_liars_spoil_no_sum_and_no_name(params, liars, whose):
    liars = {p: e for p, e in liars.items() if p < params.num_invited}
    changes = {
        (device_at(params, p), Stage.UNMASK): lie_about(whose, error=error)
        for p, error in liars.items()
    }
    parties = MaliciousClients(params, changes)
    try:
        list(parties.steps())
    except SessionAborted:
        assert len(liars) > RADIUS
    check_sums(parties)
    for client, drop in parties.server.drops.items():
        assert drop.fault is not Fault.BAD_SHARE or parties.position(client) in liars
        assert drop.fault is not Fault.BAD_COMMITMENT


def test_the_properties_above_can_fail(monkeypatch):
    # A server that believes every commitment takes off a wrong mask, and nobody is named.
    liar = device_at(COMPLETE, 0)
    monkeypatch.setattr("deltafl.secagg.unmasking.Promises.is_seed", lambda *_: True)
    parties = MaliciousClients(COMPLETE, {(liar, Stage.UNMASK): lie_about({4})})
    with pytest.raises(AssertionError):
        parties.finish()
    assert parties.faults == {}


def test_an_honest_session_is_one_without_changes():
    parties, honest = MaliciousClients(COMPLETE, {}), Parties(COMPLETE)
    list(honest.steps())
    sums = parties.finish()
    assert [s.vector.tolist() for s in sums] == [s.vector.tolist() for s in honest.sums]
    assert parties.faults == {}
