"""Devices that are shown different things refuse, or give sums that nobody can read.

Two lines of defence, each tested by itself. Devices that are shown other models, configurations,
rosters or parameters are in different sessions and cannot open each other's boxes; who is left with
too few neighbours whose boxes it could open refuses before it computes a mask. And what differs,
questions too, enters the keys of all masks, so that masks do not cancel. To test the second where
the first would come before it, `run_attack` lifts the first.

`TwoFacedServer` has all the powers of a server that does what it likes with models, configurations,
rosters and questions, but shows all devices the same survivors (lists of survivors that differ are
the business of a consistency round). It unmasks as well as anybody could: each device's self mask
is taken off under that device's own view. What is left is compared with the true inputs.

False-alarm rates are for one seed; all seeds are fixed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import combinations, product
from typing import Self

import numpy as np
import pytest
from flat_configs import changed_round
from lenient import no_query_needed  # noqa: F401
from round_parties import (
    DEVICES,
    MODEL,
    POLICY,
    RoundParties,
    make_config,
    make_devices,
    make_params,
)

from deltafl.protocol import client as client_module
from deltafl.protocol import server as server_module
from deltafl.protocol import wire
from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.levels import Levels
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.quantile.search import Ended, Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import Fault, PeerError, Refusal, SessionParams, cohort, prg, ring, shamir
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.layout import Layout
from deltafl.secagg.masks import SlotContext, seed_commitment
from deltafl.secagg.messages import (
    OpenSlot,
    RosterMessage,
    SessionOpen,
    ShareDelivery,
    UnmaskRequest,
)
from deltafl.secagg.randomness import SeededRandomness

LENGTH = 2000
NUM_PIVOTS = 1000  # 2002 numbers
CONFIG = make_config(cohort_size=8, method="histogram", num_pivots=NUM_PIVOTS, update_length=LENGTH)
IDS = tuple(make_devices(CONFIG))
HALF = IDS[4:]
VICTIM = IDS[-1:]
ALL_PASS, NONE_PASS = Threshold(0, 0), Threshold(2**63 - 1, 0)
QUERY = Query("histogram", tuple(range(1, NUM_PIVOTS + 1)))
OTHER_QUERY = replace(QUERY, pivots=(*QUERY.pivots[:-1], NUM_PIVOTS + 1))  # one pivot, by one tick


@dataclass(frozen=True)
class View:
    """All that a device is shown."""

    question: Query | Threshold
    config: RoundConfig = CONFIG
    model: bytes = MODEL
    roster: tuple[int, ...] = IDS
    min_cohort: int = 3

    @cached_property
    def params(self) -> SessionParams:
        return make_params(self.config, self.model, min_cohort=self.min_cohort)

    @property
    def slot(self) -> int:
        return 0 if isinstance(self.question, Query) else self.config.update_slot

    @property
    def context(self) -> SlotContext:
        """What a device of this view derives its masks from."""
        bound = client_module.binding(self.params.context, self.question)
        session_id = self.params.session_id(np.array(self.roster, dtype="<u4").tobytes())
        return SlotContext.of(self.params, session_id, self.slot, bound)

    @property
    def everyone(self) -> np.ndarray:
        """All of the roster, as a set of devices."""
        return np.ones(len(self.roster), dtype=np.bool_)

    def position(self, device: int) -> int:
        return self.roster.index(device)


class TwoFacedServer:
    """Shows every device its own view, in one slot, and keeps all that it gets back.

    Attributes:
        receipts: Which shares each device says it did not get.
        seeds: The self-mask seeds that could be rebuilt, each proved by its commitment.
        stripped: Masked vectors, less their self masks where the seed is known.
    """

    def __init__(self, views: Mapping[int, View], devices):
        self.views = views
        self._clients = {
            i: RoundClient(i, POLICY, DEVICES.credentials(i), SeededRandomness(bytes([9, i]) * 16))
            for i in views
        }
        self._devices = devices
        self.receipts = {}

    def play(self) -> Self:
        """Play the slot to its end, or until a device refuses."""
        views = self.views
        keys = {i: self._decoded(i, self._announce(i)) for i in views}
        shares = {i: self._decoded(i, self._show_roster(i, keys)) for i in views}
        for i in views:
            self.receipts[i] = self._decoded(i, self._deliver(i, shares))
        masked = {i: self._decoded(i, self._ask(i)) for i in views}
        unmask = {i: self._decoded(i, self._request(i)) for i in views}
        self.seeds = self._rebuild(unmask, shares)
        self.stripped = {i: self._strip(i, masked[i].packed) for i in views}
        self._unexplained = {
            i: vector - ring.to_words(self.true_input(i), self.ring_bits)
            for i, vector in self.stripped.items()
        }
        return self

    def noise(self, devices=None) -> np.ndarray:
        """The sum over devices (all), less what the sum should be: words of the ring."""
        chosen = self.views if devices is None else devices
        total = sum(self._unexplained[i] for i in chosen)
        ring.reduce(total, self.ring_bits)
        return total

    def sum(self) -> np.ndarray:
        """The sum over all, as it would be decoded."""
        total = self.noise().astype(np.uint64)
        for i in self.views:
            total += self.true_input(i)
        return total & np.uint64(2**self.ring_bits - 1)

    def true_input(self, device: int) -> np.ndarray:
        """What a device really put in."""
        view, own = self.views[device], self._devices[device]
        measured = own.measured(view.config)
        if isinstance(view.question, Query):
            return measured.answer(view.question)
        return measured.contribution(own.update if measured.passes(view.question) else None)

    @property
    def ring_bits(self) -> int:
        return self._spec.ring_bits

    @property
    def layout(self) -> Layout:
        """By which an honest sum of the slot would be decoded."""
        view = next(iter(self.views.values()))
        is_query = isinstance(view.question, Query)
        return view.config.search_layout if is_query else view.config.update_layout

    @property
    def _spec(self):
        view = next(iter(self.views.values()))
        return view.params.slots[view.slot]

    def _tell(self, device: int, envelope) -> bytes:
        machine, own = self._clients[device], self._devices[device]
        reply = machine.receive(wire.encode(envelope))
        if reply is LocalWork.MEASURE_LOSS:
            return machine.supply_loss(own.loss, own.weight)
        if reply is LocalWork.WAIT:
            return machine.supply_zeros()
        return machine.supply_update(own.update) if reply is LocalWork.TRAIN else reply

    def _decoded(self, device: int, data: bytes):
        return session_wire.decode(data, self.views[device].params)

    def _announce(self, device: int) -> bytes:
        view = self.views[device]
        session = session_wire.encode(SessionOpen(view.params), view.params)
        return self._tell(device, Announce(Levels((view.config,)), view.model, session))

    def _show_roster(self, device: int, keys) -> bytes:
        view = self.views[device]
        near = {view.position(i): keys[i] for i in view.roster if i != device}
        roster = RosterMessage(np.array(view.roster, dtype=np.uint32), near)
        return self._tell(device, Relay(session_wire.encode(roster, view.params)))

    def _deliver(self, device: int, shares) -> bytes:
        view = self.views[device]
        boxes = {}
        for sender in view.roster:
            if sender == device:
                continue
            theirs = self.views[sender]
            sealed = shares[sender].boxes
            # Who was not told of this device has sent it nothing: make something up.
            made_up = bytes(session_wire.box_size(view.params))
            known = device in theirs.roster
            boxes[view.position(sender)] = sealed[theirs.position(device)] if known else made_up
        delivery = session_wire.encode(ShareDelivery(view.everyone, boxes), view.params)
        return self._tell(device, Relay(delivery))

    def _ask(self, device: int) -> bytes:
        view = self.views[device]
        opened = session_wire.encode(OpenSlot(view.slot, view.everyone), view.params)
        return self._tell(device, Ask(view.question, opened))

    def _request(self, device: int) -> bytes:
        view = self.views[device]
        request = UnmaskRequest(view.slot, view.everyone)
        return self._tell(device, Relay(session_wire.encode(request, view.params)))

    def _rebuild(self, unmask, shares) -> dict[int, bytes]:
        seeds = {}
        for owner, view in self.views.items():
            points, limbs = [], []
            for holder, message in unmask.items():
                theirs = self.views[holder]
                if owner not in theirs.roster or holder not in view.roster:
                    continue
                held = np.flatnonzero(message.positions == theirs.position(owner))
                if len(held):
                    points.append(view.position(holder) + 1)
                    limbs.append(message.shares[held[0]])
            if len(points) < view.params.threshold:
                continue
            weights = shamir.lagrange_at_zero(np.array([points]))
            seed = shamir.from_limbs(shamir.combine(weights, np.array(limbs)[:, None]))[0]
            place = (view.context.session_id, view.slot, view.position(owner))
            assert seed_commitment(*place, seed) == shares[owner].commitments[view.slot]
            seeds[owner] = seed
        return seeds

    def _strip(self, device: int, packed: bytes) -> np.ndarray:
        spec = self._spec
        vector = ring.unpack(packed, spec.length, spec.ring_bits)
        if device in self.seeds:
            key = self.views[device].context.self_mask_key(self.seeds[device])
            prg.add_mask(vector, key, negative=True)
            ring.reduce(vector, spec.ring_bits)
        return vector


# --- what noise looks like ----------------------------------------------------------------------

CHI_SQUARE_15 = 56.5  # exceeded by one uniform sample in a million, at 15 degrees of freedom


def chi_square(words: np.ndarray, shift: int) -> float:
    """χ² of four bits of every word against the uniform distribution."""
    counts = np.bincount((words.astype(np.int64) >> shift) & 15, minlength=16)
    expected = len(words) / 16
    return float(((counts - expected) ** 2).sum() / expected)


def is_uniform(words: np.ndarray, ring_bits: int) -> bool:
    """Whether no test tells the words from uniform ones; says no to one uniform sample in 25,000.

    χ² of every four neighbouring bits, and for every pair of bits that they agree half the time
    (to 5.5 standard deviations); the rate is for 24 bits and by union bound.
    """
    assert len(words) >= 2000
    if any(chi_square(words, s) > CHI_SQUARE_15 for s in range(ring_bits - 3)):
        return False
    bits = (words[:, None].astype(np.int64) >> np.arange(ring_bits)) & 1
    signs = 1.0 - 2.0 * bits
    agreement = np.abs(signs.T @ signs - len(words) * np.eye(ring_bits)).max()
    return bool(agreement < 5.5 * np.sqrt(len(words)))


def test_the_tests_for_noise_can_fail():
    bits = 24
    uniform = np.random.default_rng(1).integers(0, 2**bits, 2004, dtype=np.uint64)
    assert is_uniform(uniform, bits)
    assert not is_uniform(np.zeros_like(uniform), bits)
    assert not is_uniform(uniform & np.uint64(2**bits - 2), bits)
    assert not is_uniform(uniform & np.uint64(2 ** (bits - 1) - 1), bits)
    copied = uniform & np.uint64(2**bits - 2) | uniform >> np.uint64(bits - 1)
    assert not is_uniform(copied, bits)  # the lowest bit is the highest
    honest = TwoFacedServer(dict.fromkeys(IDS, View(ALL_PASS)), make_devices(CONFIG)).play()
    assert not is_uniform(honest.sum(), honest.ring_bits)


# --- the attacks --------------------------------------------------------------------------------

OTHER_MODEL = View(ALL_PASS, model=b"another model")
ATTACKS = {
    "another model": (View(ALL_PASS), OTHER_MODEL),
    "another model in the search": (View(QUERY), View(QUERY, model=b"another model")),
    "another configuration": (View(ALL_PASS), View(ALL_PASS, replace(CONFIG, round_index=4))),
    "another pivot": (View(QUERY), View(OTHER_QUERY)),
    "another threshold": (View(NONE_PASS), View(ALL_PASS)),
    "a threshold that only differs": (View(ALL_PASS), View(Threshold(1, 1))),
    "another roster": (View(ALL_PASS), View(ALL_PASS, roster=IDS[1:])),
    "another roster in the search": (View(QUERY), View(QUERY, roster=IDS[1:])),
    "other parameters": (View(ALL_PASS), View(ALL_PASS, min_cohort=4)),
}
ANOTHER_SESSION = [
    attack
    for attack, (shown, to_victims) in ATTACKS.items()
    if shown.context.session_id != to_victims.context.session_id
]
attacks = pytest.mark.parametrize("attack", ATTACKS)
victims = pytest.mark.parametrize("victims", [VICTIM, HALF], ids=["one", "half"])


def everybody_is_heard(monkeypatch):
    """Lift the first line of defence: neighbours count although their boxes did not open."""
    check = cohort.check_members

    def check_without_hearing(members, before, heard, *rest):
        check(members, before, np.ones_like(heard), *rest)

    monkeypatch.setattr(cohort, "check_members", check_without_hearing)


def views_of(attack, victims) -> dict[int, View]:
    """What each device is shown; made anew, for views remember what they have computed."""
    shown, to_victims = ATTACKS[attack]
    return {i: replace(to_victims if i in victims else shown) for i in IDS}


def run_attack(attack, victims, devices=None) -> TwoFacedServer:
    with pytest.MonkeyPatch.context() as monkeypatch:
        if attack in ANOTHER_SESSION:
            everybody_is_heard(monkeypatch)
        return TwoFacedServer(views_of(attack, victims), devices or make_devices(CONFIG)).play()


attacked = cache(run_attack)  # with the devices of all these tests, and with masks bound


@pytest.mark.parametrize("view", dict.fromkeys(v for views in ATTACKS.values() for v in views))
def test_when_all_are_shown_the_same_the_sum_is_exact(view):
    server = TwoFacedServer(dict.fromkeys(view.roster, view), make_devices(CONFIG)).play()
    assert set(server.seeds) == set(view.roster)
    assert not any(receipt.refused for receipt in server.receipts.values())
    assert not server.noise().any()
    server.layout.decode(server.sum())


def test_questions_alone_do_not_make_another_session():
    questions = {"another pivot", "another threshold", "a threshold that only differs"}
    assert set(ANOTHER_SESSION) == set(ATTACKS) - questions


# --- the first line: who cannot read its neighbours' boxes refuses ------------------------------


@pytest.fixture
def no_mask(monkeypatch):
    """Fails the test as soon as a device masks anything."""
    monkeypatch.setattr(SlotContext, "self_mask_key", lambda *_: pytest.fail("a mask was computed"))


@pytest.mark.parametrize("num_victims", [1, 2, 3, 4])
@pytest.mark.parametrize("attack", ANOTHER_SESSION)
def test_who_shares_its_session_with_too_few_refuses_at_the_receipt(attack, num_victims, no_mask):
    victims = IDS[-num_victims:]
    fewest = ATTACKS[attack][1].min_cohort
    if num_victims < fewest:
        with pytest.raises(PeerError, match=f"^cohort too small: {num_victims} devices") as refused:
            TwoFacedServer(views_of(attack, victims), make_devices(CONFIG)).play()
        assert refused.value.reason is Refusal.COHORT_TOO_SMALL
    else:  # here the second line has to do
        with pytest.raises(pytest.fail.Exception, match="a mask was computed"):
            TwoFacedServer(views_of(attack, victims), make_devices(CONFIG)).play()


@pytest.mark.parametrize("attack", ANOTHER_SESSION)
def test_who_is_alone_in_its_session_masks_once_the_rule_is_lifted(attack, no_mask):
    with pytest.raises(pytest.fail.Exception, match="a mask was computed"):
        run_attack(attack, VICTIM)


def test_the_others_take_their_boxes_and_miss_the_one():
    server = TwoFacedServer(views_of("another model", VICTIM), make_devices(CONFIG))
    with pytest.raises(PeerError, match="cohort too small"):
        server.play()
    assert set(server.receipts) == set(IDS) - set(VICTIM)
    assert {receipt.refused for receipt in server.receipts.values()} == {(7,)}


# --- the second line: masks do not cancel -------------------------------------------------------


@attacks
@victims
def test_when_some_are_shown_another_thing_the_sum_is_noise(attack, victims):
    server = attacked(attack, victims)
    noise = server.noise()
    assert np.count_nonzero(noise) >= 0.99 * len(noise)
    assert is_uniform(noise, server.ring_bits)
    assert is_uniform(server.sum(), server.ring_bits)
    with pytest.raises(EncodingError):
        server.layout.decode(server.sum())


@attacks
@victims
def test_no_part_of_the_cohort_gives_a_readable_sum_either(attack, victims):
    server = attacked(attack, victims)
    known = [i for i in IDS if i in server.seeds]
    assert len(known) >= 6  # the attack fails for want of pairwise masks, not of seeds
    noise = np.array([server.noise([i]) for i in known])
    parts = np.array(list(product([0, 1], repeat=len(known)))[1:], dtype=noise.dtype)
    sums = parts @ noise  # of all parts at once
    ring.reduce(sums, server.ring_bits)
    assert np.count_nonzero(sums, axis=1).min() >= 0.99 * sums.shape[1]


def test_only_the_whole_cohort_gives_a_readable_sum():
    server = TwoFacedServer(dict.fromkeys(IDS, View(ALL_PASS)), make_devices(CONFIG)).play()
    parts = [part for size in range(1, 9) for part in combinations(IDS, size)]
    assert [part for part in parts if not server.noise(part).any()] == [IDS]


@attacks
@victims
def test_the_noise_does_not_depend_on_the_victims_input(attack, victims):
    devices = make_devices(CONFIG)
    others = {
        i: replace(d, loss=7.0 - d.loss / 2, update=-d.update / 3) if i in victims else d
        for i, d in devices.items()
    }
    one, other = attacked(attack, victims), run_attack(attack, victims, others)
    assert any((one.true_input(i) != other.true_input(i)).any() for i in victims)
    np.testing.assert_array_equal(one.noise(), other.noise())


# --- the same with the server's own machine -----------------------------------------------------


signed_or_not = pytest.mark.parametrize("signed", [False, True])


def run_with_the_machine(victims, shown: Threshold, to_victims: Threshold):
    """Every device answers the server's honest machine, but to thresholds of the attacker's."""
    parties = RoundParties(changed_round(CONFIG, max_queries=0))

    def tamper(client, data):
        envelope = wire.decode(data)
        if isinstance(envelope, Ask):
            question = to_victims if client in victims else shown
            return wire.encode(replace(envelope, question=question))
        return data

    return parties, parties.play(tamper=tamper)


def unbound(monkeypatch):
    for module in (client_module, server_module):
        monkeypatch.setattr(module, "binding", lambda *_: b"the same for all")


@pytest.mark.usefixtures("no_query_needed")
@victims
def test_a_threshold_for_each_gives_the_machine_a_sum_that_it_refuses(victims):
    _, outcome = run_with_the_machine(victims, NONE_PASS, ALL_PASS)
    assert outcome.update is None
    assert "some device did not encode by this layout" in outcome.aborted


@pytest.mark.usefixtures("no_query_needed")
@victims
def test_in_a_signed_session_a_threshold_for_each_is_signed_by_nobody_else(victims):
    parties, outcome = run_with_the_machine(victims, NONE_PASS, ALL_PASS)
    assert outcome.update is None
    assert outcome.aborted is not None
    # The machine's own threshold lets everybody pass, so that the others sign another slot's list.
    others = set(parties.devices) - set(victims)
    assert set(outcome.drops) == others
    assert {drop.fault for drop in outcome.drops.values()} == {Fault.BAD_SIGNATURE}


@pytest.mark.usefixtures("no_query_needed")
@victims
def test_without_binding_the_same_attack_isolates_the_victims_update(victims, monkeypatch):
    unbound(monkeypatch)
    parties, outcome = run_with_the_machine(victims, NONE_PASS, ALL_PASS)
    assert outcome.aborted is None
    assert outcome.kept_devices == len(victims)
    devices = [parties.devices[i] for i in victims]
    assert outcome.kept_weight == sum(d.weight for d in devices)
    expected = sum(d.weight * d.update.astype(float) for d in devices) / outcome.kept_weight
    step = 2.0**-CONFIG.update.resolution_bits
    assert np.abs(outcome.update - expected).max() <= step * len(victims) / outcome.kept_weight
    if victims == VICTIM:
        total = parties.devices[VICTIM[0]].measured(CONFIG).weight * outcome.update
        mine = parties.devices[VICTIM[0]].measured(CONFIG).contribution(devices[0].update)
        encoded = CONFIG.update_layout.decode(mine)["update"]
        np.testing.assert_array_equal(np.rint(total / step), encoded)


@pytest.mark.parametrize("attack", ["another pivot", "another threshold"])
@victims
def test_without_binding_the_strong_attacker_reads_the_sum(attack, victims, monkeypatch):
    unbound(monkeypatch)
    assert not run_attack(attack, victims).noise().any()


@pytest.mark.parametrize("attack", ["another model", "another roster", "other parameters"])
@victims
def test_models_and_rosters_are_bound_by_the_session_as_well(attack, victims, monkeypatch):
    unbound(monkeypatch)
    server = run_attack(attack, victims)
    assert is_uniform(server.noise(), server.ring_bits)


@pytest.mark.parametrize("attack", ["another model", "another configuration"])
@victims
def test_without_either_binding_devices_of_two_models_are_summed(attack, victims, monkeypatch):
    unbound(monkeypatch)
    monkeypatch.setattr(Levels, "context", lambda *_: bytes(32))
    # All are in one session again: every box opens, and no rule has to be lifted.
    server = TwoFacedServer(views_of(attack, victims), make_devices(CONFIG)).play()
    assert not any(receipt.refused for receipt in server.receipts.values())
    assert not server.noise().any()


@victims
def test_a_pivot_for_each_ends_the_search_of_the_machine(victims):
    parties = RoundParties(CONFIG)

    def tamper(client, data):
        envelope = wire.decode(data)
        if client in victims and isinstance(envelope, Ask) and isinstance(envelope.question, Query):
            pivots = envelope.question.pivots
            other = replace(envelope.question, pivots=(*pivots[:-1], CONFIG.search.grid.top_pivot))
            return wire.encode(replace(envelope, question=other))
        return data

    outcome = parties.play(tamper=tamper)
    assert outcome.search.ended is Ended.SHRANK
    assert not outcome.search.certified
    assert outcome.aborted is None  # the slot of the update is bound to its own question
    honest = RoundParties(CONFIG).play()
    assert honest.search.ended is not Ended.SHRANK
