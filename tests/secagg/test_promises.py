"""Devices that promise, deal and use different secrets: a sum is as promised, or there is none.

What a device promises (commitments to its secrets, digests of its links' keys) is all that the
server can check. So a sum that comes out is that of the contributors' messages less the masks that
follow from their promises. For an honest device, this is its vector. For a device that masks with
other secrets than it promised, it is noise that this device chose, and nobody can notice.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from malicious_clients import (
    COMPLETE,
    SPARSE,
    MaliciousClients,
    deal_wrong_shares,
    device_at,
    lie_about,
    say_of_links,
)
from parties import BINDING

from deltafl.secagg import Fault, SessionAborted, Stage, prg, ring, shamir
from deltafl.secagg.masks import SlotContext, seed_commitment, subtracts
from deltafl.secagg.unmasking import Promises, SlotSecrets

SLOT = 0
HIDE_OTHERS = say_of_links(48)
"""A receipt in which every hidden key of the first slot is another one."""

OTHER_SEED, THIRD_SEED, OTHER_KEY = (bytes([i]) * 32 for i in (7, 8, 9))
"""Secrets that nobody dealt."""


@dataclass(frozen=True)
class Lies:
    """What one device does otherwise than told. The seed that it deals is always the one it drew.

    Attributes:
        commits: The seed that it commits to; None for the one that it dealt.
        masks: The seed that it masks with; None for the one that it dealt.
        commits_other_key: Whether it commits to another recovery key than it deals.
        hides_other_keys: Whether it deposits other keys of its links than it gives digests of.
        masks_with_other_keys: Whether its pairwise masks come from other keys than those.
        cheats: Neighbours to whom it deals shares of another polynomial.
        error: Added to the shares that it returns, of `whose` secrets. Devices with one error
            return shares of one other secret.
        whose: Positions.
        vanishes: Whether it sends no vector.
    """

    commits: bytes | None = None
    masks: bytes | None = None
    commits_other_key: bool = False
    hides_other_keys: bool = False
    masks_with_other_keys: bool = False
    cheats: frozenset[int] = frozenset()
    error: int = 0
    whose: frozenset[int] = frozenset()
    vanishes: bool = False

    @property
    def breaks_its_seed(self):
        return self.commits is not None


class Liars(MaliciousClients):
    """A session in which some positions lie."""

    def __init__(self, params, lies, silent=()):
        self.lies = {device_at(params, position): lie for position, lie in lies.items()}
        self.masked = {}
        self.dealt = {}
        self.links = {}
        gone = {device_at(params, position) for position in silent}
        gone |= {client for client, lie in self.lies.items() if lie.vanishes}
        changes = {(client, Stage.MASK): lambda *_: None for client in gone}
        for client, lie in self.lies.items():
            changes[client, Stage.SHARE] = self._share
            changes[client, Stage.RECEIPT] = self._link
            if lie.whose:
                changes[client, Stage.UNMASK] = lie_about(lie.whose, error=lie.error)
        super().__init__(params, changes)

    @staticmethod
    def _share(parties, client, message):
        lie, machine = parties.lies[client], parties.clients[client]
        parties.dealt[client] = list(machine._phase.dealt.seeds)
        if lie.cheats:
            message = deal_wrong_shares(lie.cheats)(parties, client, message)
        dealt, cohort = machine._phase.dealt, machine._phase.cohort
        if lie.masks is not None:
            told = replace(dealt, seeds=tuple(lie.masks for _ in dealt.seeds))
            machine._phase = replace(machine._phase, dealt=told)
        told = list(message.commitments)
        for slot in range(len(parties.params.slots)):
            if lie.commits is not None:
                seed = lie.commits
                told[2 * slot] = seed_commitment(cohort.session_id, slot, cohort.position, seed)
            if lie.commits_other_key:
                told[2 * slot + 1] = bytes(32)
        return replace(message, commitments=tuple(told))

    @staticmethod
    def _link(parties, client, message):
        lie, machine = parties.lies[client], parties.clients[client]
        secrets = machine._phase.secrets
        parties.links[client] = dict(secrets.pairs[SLOT])
        if lie.masks_with_other_keys:
            pairs = {slot: dict.fromkeys(of, OTHER_KEY) for slot, of in secrets.pairs.items()}
            machine._phase = replace(machine._phase, secrets=replace(secrets, pairs=pairs))
        return HIDE_OTHERS(parties, client, message) if lie.hides_other_keys else message

    def contribute(self, client, binding=BINDING):
        data = super().contribute(client, binding)
        self.masked[client, self.clients[client].slot] = self.decode(data)
        return data

    def play(self):
        """The first slot's sum, or None."""
        try:
            for _ in self.steps():
                if self.sums:
                    return self.sums[0]
        except SessionAborted:
            return None
        return self.sums[0] if self.sums else None

    def promised(self, client):
        """A device's message, less the masks that follow from what it promised."""
        spec = self.params.slots[SLOT]
        position, lie = self.position(client), self.lies.get(client, Lies())
        context = SlotContext.of(self.params, self.session_id(), SLOT, BINDING)
        total = ring.unpack(self.masked[client, SLOT].packed, spec.length, spec.ring_bits).copy()
        if client not in self.lies:
            return self.inputs[client][SLOT]
        seed = self.dealt[client][SLOT] if lie.commits is None else lie.commits
        added, subtracted = [], [context.self_mask_key(seed)]
        for pair in context.tolerant(self.links[client]):  # nobody is lost before the slot opens
            (added if subtracts(position, pair.peer) else subtracted).append(pair.key())
        prg.add_masks(total, added, subtracted)
        ring.reduce(total, spec.ring_bits)
        return total


def check(parties, result):
    """The sum is that of its contributors, as promised."""
    assert result.slot == SLOT
    spec = parties.params.slots[SLOT]
    expected = ring.zeros(spec.length, spec.ring_bits)
    for client in result.contributors:
        expected += parties.promised(client)
    ring.reduce(expected, spec.ring_bits)
    assert result.vector.tolist() == expected.tolist()


def lies_in(size):
    positions = st.frozensets(st.integers(0, size - 1), max_size=size)
    return st.builds(
        Lies,
        commits=st.sampled_from([None, None, OTHER_SEED]),
        masks=st.sampled_from([None, OTHER_SEED, THIRD_SEED]),
        commits_other_key=st.booleans(),
        hides_other_keys=st.booleans(),
        masks_with_other_keys=st.booleans(),
        cheats=st.sampled_from([frozenset(), frozenset({0, 3}), frozenset(range(size))]),
        error=st.integers(1, 2),
        whose=positions,
        vanishes=st.booleans(),
    )


@st.composite
def sessions(draw):
    params = draw(st.sampled_from([COMPLETE, SPARSE]))
    size = params.num_invited
    places = draw(st.permutations(range(size)))
    num_liars = draw(st.integers(1, params.threshold - 1))
    num_silent = draw(st.integers(0, size - num_liars - params.threshold))
    lies = {p: draw(lies_in(size)) for p in places[:num_liars]}
    silent = places[num_liars : num_liars + num_silent]
    return params, lies, silent


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(sessions())
@example((COMPLETE, {5: Lies(commits=OTHER_SEED)}, []))
@example((COMPLETE, {5: Lies(commits=OTHER_SEED, masks=OTHER_SEED)}, []))
@example((COMPLETE, {5: Lies(commits=OTHER_SEED, masks=THIRD_SEED)}, []))
# Three of the six who are left return shares of another seed of the device at 8.
@example((COMPLETE, {p: Lies(error=1, whose=frozenset({8})) for p in (4, 5, 6)}, [0, 1, 2]))
def test_a_sum_is_what_was_promised_or_there_is_none(drawn):
    params, lies, silent = drawn
    parties = Liars(params, lies, silent)
    result = parties.play()
    if result is not None:
        check(parties, result)
        here = {parties.roster[p] for p in lies} & set(result.contributors)
        assert not any(parties.lies[client].breaks_its_seed for client in here)
        assert set(result.contributors).isdisjoint(device_at(params, p) for p in silent)
        honest = set(parties.roster) - set(parties.lies) - {parties.roster[p] for p in silent}
        assert honest <= set(result.contributors)


COMMITS = {"as dealt": None, "otherwise": OTHER_SEED}
MASKS = {"as dealt": None, "as it may commit": OTHER_SEED, "a third": THIRD_SEED}


@pytest.mark.parametrize("params", [COMPLETE, SPARSE], ids=["complete", "sparse"])
@pytest.mark.parametrize("vanishes", [False, True])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("commits", COMMITS)
def test_one_device_and_its_seeds(params, vanishes, masks, commits):
    lie = Lies(commits=COMMITS[commits], masks=MASKS[masks], vanishes=vanishes)
    parties = Liars(params, {5: lie})
    result = parties.play()
    liar = device_at(params, 5)
    if vanishes:  # its seed is not asked for
        check(parties, result)
        assert liar not in result.contributors
    elif commits == "otherwise":
        assert result is None
        assert parties.faults == {liar: Fault.BAD_COMMITMENT}
    else:
        check(parties, result)
        assert parties.faults == {}
        # It is noise for whoever believes that the device masked as it said.
        is_its_vector = np.array_equal(parties.promised(liar), parties.inputs[liar][SLOT])
        assert is_its_vector == (masks == "as dealt")


KEYS = ["commits_other_key", "hides_other_keys", "masks_with_other_keys"]


@pytest.mark.parametrize("params", [COMPLETE, SPARSE], ids=["complete", "sparse"])
@pytest.mark.parametrize("vanishes", [False, True])
@pytest.mark.parametrize("which", [(), *((key,) for key in KEYS), tuple(KEYS)])
def test_one_device_and_its_keys(params, vanishes, which):
    parties = Liars(params, {5: Lies(**dict.fromkeys(which, True), vanishes=vanishes)})
    result = parties.play()
    liar = device_at(params, 5)
    if vanishes and {"commits_other_key", "hides_other_keys"} & set(which):
        assert result is None
        return
    check(parties, result)
    assert parties.faults == ({liar: Fault.TIMED_OUT} if vanishes else {})
    if not vanishes:
        is_its_vector = np.array_equal(parties.promised(liar), parties.inputs[liar][SLOT])
        assert is_its_vector == ("masks_with_other_keys" not in which)


def test_a_server_that_believes_deposits_is_found(monkeypatch):
    """Without the digests, the masks that are taken off are others than were put on."""
    monkeypatch.setattr("deltafl.secagg.links.key_digest", lambda _: bytes(16))
    parties = Liars(COMPLETE, {5: Lies(hides_other_keys=True, vanishes=True)})
    with pytest.raises(AssertionError):
        check(parties, parties.play())


def test_a_server_that_uses_what_was_dealt_is_found(monkeypatch):
    monkeypatch.setattr(Promises, "is_seed", lambda *_: True)
    parties = Liars(COMPLETE, {5: Lies(commits=OTHER_SEED, masks=OTHER_SEED)})
    with pytest.raises(AssertionError):
        check(parties, parties.play())


def test_a_server_that_believes_all_shares_is_found(monkeypatch):
    monkeypatch.setattr(Promises, "is_seed", lambda *_: True)
    forgers = {p: Lies(error=1, whose=frozenset({8})) for p in (0, 1, 2)}
    parties = Liars(COMPLETE, forgers)
    with pytest.raises(AssertionError):
        check(parties, parties.play())


def test_forged_shares_of_one_seed_can_frame_its_dealer_but_give_no_sum(monkeypatch):
    """The limit of what blame can mean: m − t + 1 holders make all shares fit another secret.

    With the error 1 · (x − x₀)…, zero at the points of the t − 1 honest holders, all m fit.
    """
    seen = []
    take = SlotSecrets.take

    def forge(secrets, holder, message, linked):
        honest, forged = (5, 6, 7), 8
        points = [p + 1 for p in honest]
        error = int(np.prod([holder + 1 - x for x in points]))
        shares = message.shares.astype(np.int64)
        row = int(np.flatnonzero(message.positions == forged)[0])
        shares[row, 3] = (shares[row, 3] + error) % shamir.PRIME
        seen.append(error)
        return take(secrets, holder, replace(message, shares=shares.astype(np.uint32)), linked)

    monkeypatch.setattr(SlotSecrets, "take", forge)
    parties = Liars(COMPLETE, {})
    assert parties.play() is None
    assert seen.count(0) == COMPLETE.threshold - 1
    assert parties.faults == {device_at(COMPLETE, 8): Fault.BAD_COMMITMENT}
