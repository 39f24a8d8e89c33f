"""One device against a server that says anything at any time.

The server has all other devices in its hands (`scripted`), so that whatever can be signed or sealed
can be signed or sealed wrongly. Every answer of the device goes past a watch, which knows the
device's promises and nothing of its code.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)
from parties import BINDING, POLICY, LoggedRandomness, make_inputs, make_params, reachable_secrets
from scripted_clients import PROOF_FLAWS, REQUEST_FLAWS, ROSTER_FLAWS, ScriptedClients

from deltafl.secagg import (
    Client,
    PeerError,
    UsageError,
    client,
    cohort,
    openings,
    pedersen,
    ring,
    signing,
    wire,
)
from deltafl.secagg.identity import verify
from deltafl.secagg.messages import (
    AdvertiseKeys,
    ConsistencyCheck,
    ConsistencySignature,
    MaskedInput,
    OpenSlot,
    RosterMessage,
    ShareDelivery,
    ShareKind,
    SumOpening,
    UnmaskRequest,
    UnmaskShares,
)
from deltafl.secagg.states import CLIENT_TRANSITIONS, ClientState

SLOTS = {"tolerant": ((2, 16), (3, 40), (1, 8)), "whole": ((2, 24, True), (3, 40), (1, 24, True))}
"""Of signed sessions over the complete graph, the whole slots are verified."""

GRAPHS = {"complete": (5, None), "sparse": (7, 4)}
STRICT = replace(POLICY, colluding_rate=0.2)

TOPICS = ("open", "roster", "deliver", "slot", "check", "request", "prove")

DEPTHS = (1, 5, 6, 2, 1, 3, 9, 4, 10, 0)
"""How far into the session devices are met in turn: in every state, some in a later slot."""

SEARCH = settings(max_examples=40, stateful_step_count=40)


class Watch:
    """A device's promises, held against what it says."""

    def __init__(self, scripted):
        self.scripted = scripted
        self.cohort = None
        self.slot = -1
        self.masked = set()
        self.signed_lists = {}
        self.given = {}
        self.agreed = None
        self.proved = set()

    @property
    def unproved(self):
        """Whether there may be a sum that the device has not seen the proof of."""
        slots = self.scripted.params.slots
        last = self.slot if self.slot in self.masked else -1
        return last >= 0 and slots[last].verified and last not in self.proved

    def must_list(self, slot):
        """Whether devices have to agree on who takes part in a slot."""
        params = self.scripted.params
        return params.signed and params.slots[slot].whole and self.agreed is None

    def accepted(self, message):
        """The device has acted on a message of the server."""
        match message:
            case RosterMessage():
                self.believe(message)
            case ShareDelivery(members):
                self.shrink(members)
            case OpenSlot(slot, members, signatures):
                assert slot > self.slot, "a slot was opened twice"
                if self.scripted.params.slots[slot].whole:
                    self.take_part(slot, members, signatures)
                self.slot = slot
                self.shrink(members)
            case ConsistencyCheck(slot, survivors) if self.must_list(slot):
                assert slot > self.slot, "a list of devices for a slot that was open before"
                self.shrink(survivors)
            case ConsistencyCheck(slot, survivors):
                assert slot == self.slot, "a slot that is not open goes on"
                assert slot in self.masked, "a list of survivors before the vector"
                assert not self.scripted.params.slots[slot].whole, "a second list of a whole slot"
                self.shrink(survivors)
            case UnmaskRequest(slot, survivors):
                assert slot == self.slot, "a slot that is not open goes on"
                self.shrink(survivors)
                self.agreed = survivors
            case SumOpening():
                self.believe_sum(message)

    def take_part(self, slot, members, signatures):
        """A whole slot is over the devices that were agreed on, or signed for, and no others."""
        if self.agreed is not None:
            assert np.array_equal(members, self.agreed), "a whole slot over others than agreed on"
        elif self.scripted.params.signed:
            self.supported(slot, members, signatures)
        self.agreed = members

    def believe_sum(self, message):
        """Everybody in it signed a commitment in this slot, and they open to the sum."""
        slot, scripted = message.slot, self.scripted
        assert slot == self.slot, "a sum of a slot that is not the last"
        assert slot not in self.proved, "two sums of one slot"
        self.proved.add(slot)
        positions = np.flatnonzero(self.agreed).tolist()
        assert list(message.committed) == positions, "a sum over others than agreed on"
        commitments = []
        for position, committed in message.committed.items():
            commitment, signature = bytes(committed[:32]), bytes(committed[32:])
            commitments.append(commitment)
            statement = openings.statement(
                scripted.context(slot), commitment, scripted.sealing_key(position)
            )
            identity = scripted.identity(position).public
            assert verify(identity, statement, signature), "a commitment that nobody signed"
        spec = scripted.params.slots[slot]
        total = ring.unpack(message.packed, spec.wire_length, spec.ring_bits)
        values = openings.signed(total[: spec.length], spec.ring_bits)
        blinding = pedersen.join_blinding(total[spec.length :].tolist())
        assert pedersen.opens(commitments, values, blinding), "a sum that nobody committed to"

    def believe(self, message):
        public = [key for m in message.keys.values() for key in (m.sealing_key, *m.mask_keys)]
        assert len(public) == len(set(public)), "one key under two names"
        assert sorted(message.keys) == self.scripted.neighbours, "neighbours that are not its own"
        if self.scripted.params.signed:
            for position, theirs in message.keys.items():
                peer = int(message.roster[position])
                identity = self.scripted.enrolment.credentials(peer).identity.public
                assert theirs.credential.identity == identity, "a peer that somebody else plays"
                public = (theirs.sealing_key, theirs.mask_keys)
                statement = signing.advertisement(self.scripted.params, peer, *public)
                signature = theirs.credential.signature
                assert verify(identity, statement, signature), "keys that nobody signed"

    def shrink(self, members):
        params, scripted = self.scripted.params, self.scripted
        before = scripted.everybody() if self.cohort is None else self.cohort
        assert not (members & ~before).any(), "the cohort grew"
        assert members[scripted.position], "the device was left out"
        assert members.sum() >= params.min_cohort, "the cohort is too small"
        assert members[scripted.holders].sum() >= params.threshold, "too few hold its shares"
        self.cohort = members

    def said(self, answer, asked):
        """The device has said something; `asked` is what it answers."""
        match answer:
            case AdvertiseKeys():
                told = self.scripted.params
                honest = told.threshold - STRICT.num_colluding(told.num_invited)
                assert honest >= 2 or not told.is_complete, "below its policy"
            case MaskedInput(slot):
                assert slot not in self.masked, "two masked vectors of one slot"
                self.masked.add(slot)
            case ConsistencySignature(slot):
                survivors = asked.survivors
                assert slot not in self.signed_lists, "two lists signed for one slot"
                self.signed_lists[slot] = survivors
                self.scripted.own_signatures[slot, survivors.tobytes()] = answer.signature
            case UnmaskShares():
                self.unmasked(answer, asked)

    def unmasked(self, answer, asked):
        assert answer.slot in self.masked, "shares of a slot before its vector"
        assert not self.scripted.params.slots[answer.slot].whole, "shares of a whole slot"
        if self.scripted.params.signed:
            self.supported(asked.slot, asked.survivors, asked.signatures)
        for position, kind in zip(answer.positions.tolist(), answer.kinds.tolist(), strict=True):
            earlier = self.given.setdefault((answer.slot, position), kind)
            assert earlier == kind, "both shares of one peer"
            expected = ShareKind.SEED if asked.survivors[position] else ShareKind.KEY
            assert kind == expected, "a share of the wrong kind"
            own = position == self.scripted.position
            assert not (own and kind == ShareKind.KEY), "a share of its own mask key"

    def supported(self, slot, survivors, signatures):
        """There are t valid signatures on the one list that the device has signed itself."""
        scripted = self.scripted
        own = self.signed_lists.get(slot)
        assert own is not None, "an answer without a signed list"
        assert np.array_equal(own, survivors), "an answer for another list"
        valid = [
            position
            for position, signature in signatures.items()
            if position in scripted.holders and survivors[position]
            if verify(
                scripted.identity(position).public,
                scripted.statement(slot, survivors, position),
                signature,
            )
        ]
        assert len(valid) >= scripted.params.threshold, "an answer without t signatures"


class LyingServer(RuleBasedStateMachine):
    """Says anything to one device, and turns to a fresh one after each refusal."""

    @initialize(
        signed=st.booleans(),
        graph=st.sampled_from(sorted(GRAPHS)),
        slots=st.sampled_from(sorted(SLOTS)),
        lives=st.integers(0, len(DEPTHS) - 1),
    )
    def choose(self, signed, graph, slots, lives):
        num_invited, degree = GRAPHS[graph]
        verified = signed and graph == "complete" and slots == "whole"
        chosen = [(*slot, True) if verified and slot[2:] else slot for slot in SLOTS[slots]]
        self.params = make_params(
            num_invited, degree=degree, threshold=3, slots=chosen, signed=signed
        )
        self.vectors = make_inputs(self.params, [0])[0]
        self.lives = lives
        self.begin()

    def begin(self):
        """Turn to a fresh device, and take it some way into the session."""
        self.lives += 1
        self.scripted = ScriptedClients(self.params, seed=self.lives % 256)
        self.watch = Watch(self.scripted)
        victim = self.scripted.victim
        self.randomness = LoggedRandomness(self.lives.to_bytes(32, "little"))
        credentials = self.scripted.enrolment.credentials_for(victim, self.params)
        self.client = Client(victim, STRICT, self.randomness, credentials)
        self.acted_on = {}
        self.go_on(DEPTHS[self.lives % len(DEPTHS)])

    def tell(self, data):
        """Say something and hold the answer against the device's promises."""
        before = self.client.state
        try:
            reply = self.client.receive(data)
        except PeerError:
            assert data not in self.acted_on, "a repetition was refused"
            self.refused(data)
            return
        if self.client.state is before:
            assert reply is None, "an answer without a step"
            proved = self.client.proved
            if proved is None or proved.slot in self.watch.proved:
                return
        assert data not in self.acted_on, "a repetition was acted on"
        self.acted_on[data] = None
        opening = before is ClientState.IDLE
        asked = wire.decode_open(data) if opening else wire.decode(data, self.client.params)
        if opening:
            self.scripted.params = self.client.params
        self.watch.accepted(asked)
        if reply is not None:
            answer = wire.decode(reply, self.client.params)
            if opening:
                self.scripted.advertised = answer
            self.watch.said(answer, asked)

    def refused(self, data):
        """The device is silent for good, and keeps no secret. On with a fresh one."""
        machine = self.client
        assert machine.state is ClientState.FAILED, "alive after a refusal"
        for again in (data, b"", self.scripted.open(), *self.acted_on):
            with pytest.raises(UsageError):
                machine.receive(again)
        with pytest.raises(UsageError):
            machine.contribute(self.vectors[0], BINDING)
        assert machine.state is ClientState.FAILED, "alive again"
        found = reachable_secrets(machine, self.randomness)
        assert not found, f"secrets after a refusal: {found}"
        self.begin()

    def honest(self):
        """What an honest server would say next; None where it is not its turn."""
        scripted, cohort, slot = self.scripted, self.cohort(), self.watch.slot
        match self.client.state:
            case ClientState.IDLE:
                return scripted.open()
            case ClientState.ADVERTISED:
                return scripted.give_roster(scripted.ids)
            case ClientState.SHARED:
                return scripted.deliver(cohort)
            case ClientState.READY if self.watch.unproved:
                return scripted.prove(slot, self.watch.agreed)
            case ClientState.READY if slot + 1 < len(self.params.slots):
                if self.watch.must_list(slot + 1):
                    return scripted.check(slot + 1, cohort)
                whole = self.params.slots[slot + 1].whole and self.watch.agreed is not None
                return scripted.open_slot(slot + 1, self.watch.agreed if whole else cohort)
            case ClientState.LISTED:
                slot, listed = self.listed()
                return scripted.open_slot(slot, listed, listed=True)
            case ClientState.MASKED if self.params.signed:
                return scripted.check(slot, cohort)
            case ClientState.MASKED | ClientState.CONFIRMED:
                return scripted.request(slot, cohort)
        return None

    def listed(self):
        """The whole slot whose members the device has signed, and its members."""
        slot = max(self.watch.signed_lists)
        return slot, self.watch.signed_lists[slot]

    def cohort(self):
        return self.scripted.everybody() if self.watch.cohort is None else self.watch.cohort

    def subset(self, how, bits):
        """A set of devices: the cohort, the cohort without some, or any."""
        drawn = np.array([bits >> i & 1 for i in range(len(self.scripted.roster))], dtype=np.bool_)
        cohort = self.cohort()
        return {"same": cohort, "fewer": cohort & ~drawn, "any": drawn}[how].copy()

    def go_on(self, steps):
        """Say what an honest server would."""
        for _ in range(steps):
            if self.client.state is ClientState.OPENED:
                self.supply()
            elif (data := self.honest()) is not None:
                self.tell(data)

    def supply(self):
        """The device's caller gives its vector, asked for or not."""
        slot, state = self.client.slot, self.client.state
        try:
            reply = self.client.contribute(self.vectors[max(slot, 0)], BINDING)
        except UsageError:
            assert self.client.state is state, "a misuse changed the device"
            assert state is not ClientState.OPENED, "an open slot that takes no vector"
            return
        answer = wire.decode(reply, self.client.params)
        if self.params.slots[slot].verified:
            blinding = int.from_bytes(self.randomness.given[-1], "little") % pedersen.ORDER
            own = self.vectors[slot], blinding, answer.committed
            self.scripted.own_committed[slot] = own
        self.watch.said(answer, None)

    @rule(steps=st.integers(1, 3))
    def be_honest(self, steps):
        self.go_on(steps)

    @rule()
    def contribute(self):
        self.supply()

    @rule(
        topic=st.sampled_from([None] * 9 + list(TOPICS)),
        slot=st.none() | st.integers(0, 2),
        how=st.sampled_from(["same", "fewer", "any"]),
        bits=st.integers(0, 2**7 - 1) | st.sampled_from([1 << i for i in range(7)]),
        flaw=st.integers(0, len(PROOF_FLAWS)),
        which=st.integers(0, 6),
    )
    def lie(self, topic, slot, how, bits, flaw, which):
        """Say something that fits the moment (topic None) or not, with a flaw or without."""
        scripted, state = self.scripted, self.client.state
        topic = topic or self.timely()
        at = self.watch.slot + (state is ClientState.READY) if slot is None else slot
        if state is ClientState.LISTED and slot is None:
            at, _ = self.listed()
        if topic == "prove":
            at = self.watch.slot if slot is None else slot
        at = min(max(at, 0), len(self.params.slots) - 1)
        members = self.subset(how, bits)
        match topic:
            case "open":
                threshold = 2 + which % 3
                data = scripted.open(replace(self.params, threshold=threshold, min_cohort=4))
            case "roster":
                ids = scripted.ids[self.clients_left(how, bits)]
                late = state is not ClientState.ADVERTISED  # for another roster than was given
                flaws = [None, *ROSTER_FLAWS]
                flaw = flaws[flaw % len(flaws)]
                data = scripted.give_roster(scripted.roster if late else ids, flaw, which)
            case "deliver" if scripted.advertised is not None:
                without = which if flaw == 1 else None
                data = scripted.deliver(members, spoilt=flaw == 2, without=without)
            case "slot":
                flaws = [None, None, None, *REQUEST_FLAWS]
                listed = state is ClientState.LISTED or flaw == 0
                data = scripted.open_slot(
                    at, members, listed=listed, flaw=flaws[flaw % len(flaws)], which=which
                )
            case "check":
                data = scripted.check(at, members)
            case "prove" if at in scripted.own_committed and members.sum() > 2:
                flaws = [None, *PROOF_FLAWS]
                data = scripted.prove(at, members, flaws[flaw % len(flaws)], which)
            case _:
                flaws = [None, None, None, *REQUEST_FLAWS]
                data = scripted.request(at, members, flaws[flaw % len(flaws)], which)
        self.tell(data)

    def timely(self):
        """What an honest server could speak of now."""
        state, following = self.client.state, min(self.watch.slot + 1, len(self.params.slots) - 1)
        if state is ClientState.READY and self.watch.unproved:
            return "prove"
        if state is ClientState.READY and self.watch.must_list(following):
            return "check"
        return {
            ClientState.ADVERTISED: "roster",
            ClientState.SHARED: "deliver",
            ClientState.READY: "slot",
            ClientState.LISTED: "slot",
            ClientState.MASKED: "check" if self.params.signed else "request",
            ClientState.CONFIRMED: "request",
        }.get(state, "open")

    def clients_left(self, how, bits):
        everybody = range(len(self.scripted.ids))
        return [i for i in everybody if how != "any" or not bits >> i & 1]

    @rule(which=st.integers(0, 20))
    def repeat(self, which):
        if self.acted_on:
            self.tell(list(self.acted_on)[which % len(self.acted_on)])

    @rule(at=st.integers(0, 2**16), bit=st.integers(0, 7), noise=st.none() | st.binary(max_size=9))
    def corrupt(self, at, bit, noise):
        """What an honest server would say, with a bit flipped, or its end lost or noise."""
        data = bytearray(self.honest() or self.scripted.open())
        at %= len(data)
        if noise is None:
            data[at] ^= 1 << bit
        else:
            data[at:] = noise
        self.tell(bytes(data))

    @rule(slot=st.integers(0, 2))
    def speak_of_another_session(self, slot):
        other = ScriptedClients(replace(self.params, context=b"\1" * 32))
        machine, state = self.client, self.client.state
        self.tell(other.open_slot(slot, other.everybody()))
        assert state is ClientState.IDLE or machine.state is state, "led into another session"


@pytest.mark.slow
def test_a_device_keeps_its_promises():
    run_state_machine_as_test(LyingServer, settings=SEARCH)


# Controls: without one of its checks, the device is found to break a promise.


def pass_everything(*_args):
    """A check that finds no fault."""


def keep_secrets(machine):
    machine._state = ClientState.FAILED


def unmask_again(monkeypatch):
    table = {s: dict(CLIENT_TRANSITIONS[s]) for s in (False, True)}
    for signed, state in ((False, ClientState.MASKED), (True, ClientState.CONFIRMED)):
        table[signed][state] = table[signed][state] | {UnmaskRequest: state}
    monkeypatch.setattr(client, "CLIENT_TRANSITIONS", table)


def mask_again(monkeypatch):
    honest = Client.contribute

    def contribute(machine, vector, binding):
        spared = list(machine._mask_keys), list(machine._seeds)
        data = honest(machine, vector, binding)
        machine._mask_keys, machine._seeds = spared
        machine._state = ClientState.OPENED
        return data

    monkeypatch.setattr(Client, "contribute", contribute)


def take_any_members(monkeypatch):
    def agree(machine, message):
        machine._agreed = machine._formed.members = message.members

    monkeypatch.setattr(Client, "_agree", agree)


def list_again(monkeypatch):
    def accept(machine, message):
        machine._formed.shrink(message.survivors)
        machine._listed, machine._agreed = message, None

    monkeypatch.setattr(Client, "_accept_list", accept)


def forget_what_was_seen(monkeypatch):
    class Nothing(set):
        def add(self, item):
            pass

    honest = Client.__init__

    def init(machine, *args):
        honest(machine, *args)
        machine._seen = Nothing()

    monkeypatch.setattr(Client, "__init__", init)


FLAWS = {
    "the cohort": (
        lambda m: m.setattr(cohort, "check_members", pass_everything),
        "the cohort grew|left out|too small|too few hold",
    ),
    "the quorum": (
        lambda m: m.setattr(cohort, "check_quorum", pass_everything),
        "for another list|without t signatures|the cohort grew|left out|too small|too few",
    ),
    "who is in a whole slot": (
        take_any_members,
        "others than agreed on|for another list|without a signed list|without t signatures",
    ),
    "one list of a whole slot": (
        list_again,
        "two lists signed|was open before|a slot that is not open|a second list",
    ),
    "proofs": (
        lambda m: m.setattr(openings, "opens", lambda *_: True),
        "a sum that nobody committed to",
    ),
    "who committed": (
        lambda m: m.setattr(openings, "is_signed", lambda *_: True),
        "a commitment that nobody signed|a sum that nobody committed to",
    ),
    "whose sum": (
        lambda m: m.setattr(cohort, "check_named", pass_everything),
        "a sum over others|neighbours that are not its own|[0-9]",
    ),
    "signatures of the quorum": (
        lambda m: m.setattr(cohort, "verify", lambda *_: True),
        "without t signatures|keys that nobody signed",
    ),
    "who signs keys": (
        lambda m: m.setattr(cohort, "check_credentials", pass_everything),
        "somebody else plays|keys that nobody signed",
    ),
    "keys that come twice": (
        lambda m: m.setattr(cohort, "check_keys", pass_everything),
        "one key under two names",
    ),
    "neighbours": (
        lambda m: m.setattr(cohort, "check_neighbours", pass_everything),
        "neighbours that are not its own|[0-9]",
    ),
    "one unmasking": (unmask_again, "both shares|cohort grew|an answer without a step"),
    "one vector": (mask_again, "two masked vectors"),
    "the policy": (lambda m: m.setattr(type(STRICT), "check", pass_everything), "below its policy"),
    "secrets at the end": (lambda m: m.setattr(Client, "close", keep_secrets), "secrets after"),
    "repetitions": (forget_what_was_seen, "a repetition was refused"),
}


def misbehave(lies, topic=None, slot=None):
    """The machine's own rules, one lie to each device: a shorter way to a finding."""
    for lives, signed, graph, slots, how, flaw in lies:
        machine = LyingServer()
        machine.choose(signed=signed, graph=graph, slots=slots, lives=lives)
        machine.repeat(which=flaw)
        machine.contribute()
        machine.lie(topic, slot, how, bits=1 << flaw, flaw=flaw, which=flaw)
        machine.be_honest(steps=1)


LIES = [
    (lives, signed, graph, slots, how, flaw)
    for how, slots, graph, signed, flaw, lives in itertools.product(
        *(("fewer", "any", "same"), sorted(SLOTS), sorted(GRAPHS), (True, False)),
        *(range(9), range(len(DEPTHS))),
    )
]


def test_an_honest_server_is_followed_to_the_end():
    """Control of all the above: lists are agreed on and sums proved, and nothing is refused."""
    machine = LyingServer()
    machine.choose(signed=True, graph="complete", slots="whole", lives=len(DEPTHS) - 2)
    machine.go_on(20)
    assert (machine.lives, machine.client.state) == (len(DEPTHS) - 1, ClientState.READY)
    assert machine.watch.masked == {0, 1, 2}
    assert machine.watch.proved == {0, 2}
    assert machine.watch.signed_lists.keys() == {0, 1}


ABOUT_WHOLE_SLOTS = [lie for lie in LIES if lie[1:5] == (True, "complete", "whole", "same")]
"""Lies in sessions whose whole slots have lists and proofs, without a change of the members."""

ENOUGH = {
    "one list of a whole slot": (ABOUT_WHOLE_SLOTS, "check", 2),
    "proofs": (ABOUT_WHOLE_SLOTS, "prove", 0),
    "who committed": (ABOUT_WHOLE_SLOTS, "prove", 0),
}
"""By check, the lies that show that it is missing, where they are not among the first."""


@pytest.mark.slow
@pytest.mark.parametrize("check", FLAWS)
def test_a_device_without_a_check_is_found_out(check, monkeypatch):
    remove, promise = FLAWS[check]
    remove(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError), match=promise):
        misbehave(*ENOUGH.get(check, (LIES,)))


@pytest.mark.slow
@pytest.mark.parametrize("check", ENOUGH)
def test_such_lies_find_nothing_with_all_checks(check):
    misbehave(*ENOUGH[check])


@pytest.mark.slow
def test_the_same_lies_find_nothing_with_all_checks():
    misbehave(LIES[::17])
