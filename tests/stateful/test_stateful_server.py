"""One server against devices of which some say anything at any time.

Honest and lying devices alike are real ones; the liars' messages are changed on their way (`lies`).
What honest devices have really put in decides what a sum must be, and what liars have done, who may
be blamed.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from lies import flip, structured
from parties import BINDING, Parties, make_params, plain_sum

from deltafl.secagg import (
    Fault,
    PeerError,
    Server,
    SessionAborted,
    Stage,
    UsageError,
    openings,
    server,
    summing,
)
from deltafl.secagg.states import COLLECTED_AT, ServerState
from deltafl.secagg.unmasking import Promises

SLOTS = {"tolerant": ((2, 16), (3, 40)), "whole": ((2, 24, True), (3, 40), (1, 24, True))}
"""Of signed sessions over the complete graph, the whole slots are verified."""

GRAPHS = {"complete": (6, None, 3), "sparse": (8, 4, 2)}
DEPTHS = (3, 4, 1, 5, 0, 2, 6, 7)
"""How many rounds of a session have gone well when the lying begins, in turn."""
STRANGER = 2**32 - 1

SEARCH = settings(max_examples=20, stateful_step_count=25)


class AnyDevices(RuleBasedStateMachine):
    """Sessions one after the other; a new one begins where one is over."""

    @initialize(
        graph=st.sampled_from(sorted(GRAPHS)),
        slots=st.sampled_from(sorted(SLOTS)),
        liars=st.sets(st.integers(0, 5), min_size=1, max_size=2),
        sessions=st.integers(0, len(DEPTHS) - 1),
    )
    def choose(self, graph, slots, liars, sessions):
        num_invited, degree, threshold = GRAPHS[graph]
        verified = graph == "complete"
        chosen = [(*slot, verified) if slot[2:] else slot for slot in SLOTS[slots]]
        self.params = make_params(num_invited, degree=degree, threshold=threshold, slots=chosen)
        self.chosen, self.sessions = liars, sessions
        self.begin()

    def begin(self):
        """Open the next session, and play some rounds of it honestly."""
        self.sessions += 1
        self.parties = Parties(self.params, seed=self.sessions)
        self.server = self.parties.server
        self.liars = {self.parties.ids[i] for i in self.chosen}
        self.lied = set()
        self.drops, self.said = {}, {}
        self.pending = {}
        self.gone = set()
        self.pass_on(self.server.start())
        for _ in range(DEPTHS[self.sessions % len(DEPTHS)]):
            self.play_round()

    def pass_on(self, outgoing):
        """Give every device its message; nobody refuses what an honest server says."""
        assert set(outgoing) <= set(self.server.remaining), "a message to a dropped device"
        self.heard, self.pending = set(), {}
        for client, data in outgoing.items():
            try:
                reply = self.parties.answer(client, data)
            except PeerError as error:
                raise AssertionError(f"an honest server was refused: {error}") from error
            self.pending[client] = reply

    def send(self, client, data, *, honest):
        """Whatever comes, the server takes it."""
        self.said.setdefault(client, []).append(data)
        awaited = self.server.state
        self.heard.add(client)
        if not honest and awaited in COLLECTED_AT:
            self.lied.add((client, COLLECTED_AT[awaited]))
        self.server.receive(client, data)
        self.look()
        if not honest and self.liars <= set(self.server.drops):
            session = self.sessions  # there is nobody left to lie in it
            while self.sessions == session:
                self.play_round()

    def speak(self, client):
        """A device says what it honestly would, if anything, unless it has."""
        if self.pending.get(client) is not None and client not in self.heard:
            self.send(client, self.pending[client], honest=True)

    def close(self):
        state, remaining = self.server.state, set(self.server.remaining)
        unheard = {client for client in remaining if client not in self.heard}
        try:
            outgoing = self.server.close_round()
        except UsageError:
            assert self.server.state is state, "a misuse changed the server"
            return
        except SessionAborted:
            self.over()
            return
        self.look(remaining, unheard)
        self.pass_on(outgoing)
        if self.server.has_sum:
            self.check_sum()
        if self.server.state is ServerState.DONE:
            self.over()

    def over(self):
        """Nothing changes any more."""
        state, drops = self.server.state, dict(self.server.drops)
        for misuse in (self.server.close_round, lambda: self.server.open_slot(0, BINDING)):
            with pytest.raises(UsageError):
                misuse()
        for client, said in self.said.items():
            self.server.receive(client, said[-1])
        assert (self.server.state, self.server.drops) == (state, drops), "not over after the end"
        self.begin()

    def look(self, remaining=frozenset(), unheard=frozenset()):
        """Drops are for good; honest devices are blamed in the known cases only."""
        new = {c: d for c, d in self.server.drops.items() if c not in self.drops}
        for client, drop in self.drops.items():
            assert self.server.drops.get(client) == drop, "a drop was changed or forgotten"
        assert not set(self.server.remaining) & set(self.server.drops), "a dropped device is back"
        self.drops = dict(self.server.drops)
        for client, drop in new.items():
            if client not in self.liars:
                blamed = self.may_be_blamed(client, drop, remaining, unheard)
                assert blamed, f"an honest device was blamed: {drop}"

    def may_be_blamed(self, client, drop, remaining, unheard):
        match drop.fault:
            case Fault.TIMED_OUT:
                return client in unheard
            case Fault.ISOLATED:
                return True  # the others were lost, and not it
            case Fault.BAD_SHARE:  # most of whom it answers for dealt what does not fit together
                graph, place = self.server._cohort.graph, self.server._cohort.positions[client]
                near = graph.holders_of(place)
                false = {liar for liar in self.liars if (liar, Stage.SHARE) in self.lied}
                opened = self.members(self.opened)[near]
                return 2 * (self.members(false)[near] & opened).sum() > opened.sum()
        return False

    def members(self, clients):
        return np.isin(self.server._cohort.ids, list(clients))

    def check_sum(self):
        """The sum is that of its contributors' vectors, if these are what they put in."""
        taken = self.server.take_sum()
        with pytest.raises(UsageError):
            self.server.take_sum()
        spec = self.params.slots[taken.slot]
        if spec.whole:
            assert set(taken.contributors) == self.opened, "a whole slot that lacks somebody"
        assert len(taken.contributors) >= self.params.min_cohort, "a sum over too few"
        assert not set(taken.contributors) & self.gone, "a vector of a dropped device"
        spoilt = {c for c, stage in self.lied if stage in (Stage.ADVERTISE, Stage.MASK)}
        if not set(taken.contributors) & spoilt:
            expected = plain_sum(self.params, taken.slot, self.parties.inputs, taken.contributors)
            assert taken.vector.tolist() == expected, "the sum is wrong"
            assert spec.verified == (taken.opening is not None), "no proof of a sum that is right"
        if taken.opening is not None:
            self.pass_on(dict.fromkeys(taken.remaining, taken.opening))

    def open(self, slot):
        state = self.server.state
        try:
            outgoing = self.server.open_slot(slot, BINDING)
        except UsageError:
            assert self.server.state is state, "a misuse changed the server"
        except SessionAborted:
            self.over()
        else:
            self.look()
            self.gone, self.opened = set(self.server.drops), set(self.server.remaining)
            self.pass_on(outgoing)

    def open_next(self):
        """Open the next slot that can have a sum; without one, the session is over."""
        left = range(self.server._slot + 1, len(self.params.slots))
        slot = next(filter(self.server.can_sum, left), None)
        if slot is None:
            self.begin()
        else:
            self.open(slot)

    def play_round(self, silent=()):
        """All but some say what they honestly would, unless they have, and the round is closed."""
        if self.server.state is ServerState.READY:
            self.open_next()
            return
        for client in self.parties.ids:
            if client not in silent:
                self.speak(client)
        self.close()

    @rule(rounds=st.integers(1, 4), silent=st.sets(st.integers(0, 7), max_size=1))
    def play(self, rounds, silent):
        """Some rounds go well, the first perhaps without one device."""
        self.play_round({self.parties.ids[i % len(self.parties.ids)] for i in silent})
        for _ in range(1, rounds):
            self.play_round()

    @rule(which=st.integers(0, 7), twice=st.booleans())
    def say(self, which, twice):
        """A device speaks, and the network may deliver it twice."""
        client = self.parties.ids[which % len(self.parties.ids)]
        self.speak(client)
        if twice and client in self.pending:
            self.server.receive(client, self.said[client][-1])

    def liar(self, which):
        return [*sorted(self.liars), STRANGER][which % (len(self.liars) + 1)]

    @rule(
        which=st.integers(0, 2),
        pick=st.integers(0, 2**12),
        after=st.booleans(),
        rounds=st.integers(0, 4),
    )
    def lie(self, which, pick, after, rounds):
        """A liar says something false in its turn, in place of the truth or after it."""
        liar, session = self.liar(which), self.sessions
        if after:
            self.speak(liar)
        if self.pending.get(liar) is not None:
            message = self.parties.decode(self.pending[liar])
            false = structured(message, self.parties.clients[liar], pick)
            self.send(liar, self.parties.encode(false), honest=False)
        for _ in range(rounds):
            if self.sessions == session:
                self.play_round()

    @rule(
        which=st.integers(0, 2),
        what=st.sampled_from(["cut", "flipped", "echo", "noise"]),
        at=st.integers(0, 2**16),
        noise=st.binary(max_size=40),
    )
    def babble(self, which, what, at, noise):
        """A liar says what makes no sense, or what another device has said."""
        liar = self.liar(which)
        said = self.said.get(self.parties.ids[at % len(self.parties.ids)], [noise])
        data = self.pending.get(liar) or noise or b"?"
        words = {
            "cut": data[: at % len(data)],
            "flipped": flip(data, at),
            "echo": said[at // 8 % len(said)],
            "noise": noise,
        }
        self.send(liar, words[what], honest=False)

    @rule(which=st.integers(0, 7), when=st.integers(0, 9))
    def repeat(self, which, when):
        """The network delivers something twice, however late."""
        client = self.parties.ids[which % len(self.parties.ids)]
        said = self.said.get(client)
        if said and client not in self.liars:
            self.server.receive(client, said[-1 - when % len(said)])
            self.look()

    @rule(slot=st.integers(-1, 3))
    def misuse(self, slot):
        with pytest.raises(UsageError):
            self.server.take_sum()
        self.open(slot)

    @rule()
    def start_over(self):
        self.begin()


@pytest.mark.slow
def test_a_server_bears_any_devices():
    run_state_machine_as_test(AnyDevices, settings=SEARCH)


# Controls: without one of its checks, the server is found to be wrong.


def count_twice(monkeypatch):
    honest = Server.receive

    def receive(machine, sender, data):
        heard = machine._heard
        machine._heard = {}
        honest(machine, sender, data)
        machine._heard = heard | machine._heard

    monkeypatch.setattr(Server, "receive", receive)


CREDULOUS = SimpleNamespace(
    opens=openings.opens, is_point=openings.is_point, is_signed=lambda *_: True
)


def sum_without_some(monkeypatch):
    honest = Server._close_mask

    def close(machine):
        if not machine.params.slots[machine._slot].whole:
            return honest(machine)
        machine._sum = machine._open.revealed(machine.remaining)
        machine._open = None
        return {}

    monkeypatch.setattr(Server, "_close_mask", close)


def take_any_keys(machine, sender, message):
    machine._advertised[sender] = message


def no_fault(*_args):
    """A check that finds nothing."""


FLAWS = {
    "seeds": (
        lambda m: m.setattr(Promises, "is_seed", lambda *_: True),
        ServerState.UNMASK,
        "the sum is wrong",
    ),
    "keys that come twice": (
        lambda m: m.setattr(Server, "_take_keys", take_any_keys),
        ServerState.ADVERTISE,
        "an honest server was refused: bad key",
    ),
    "who signs keys": (
        lambda m: m.setattr(Server, "_check_credential", no_fault),
        ServerState.ADVERTISE,
        "an honest server was refused: bad signature",
    ),
    "signatures of the survivors": (
        lambda m: m.setattr(summing, "verify", lambda *_: True),
        ServerState.CONFIRM,
        "an honest server was refused: bad signature",
    ),
    "signatures of commitments": (
        lambda m: m.setattr(summing, "openings", CREDULOUS),
        ServerState.MASK,
        "an honest server was refused: bad signature",
    ),
    "all of a whole slot": (
        sum_without_some,
        ServerState.MASK,
        "a whole slot that lacks somebody",
    ),
    "repetitions": (count_twice, ServerState.MASK, "the sum is wrong"),
    "what is late": (
        lambda m: m.setattr(server, "is_late", lambda *_: False),
        ServerState.SHARE,
        "an honest device was blamed: .*UNEXPECTED",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("check", FLAWS)
def test_a_server_without_a_check_is_found_out(check, monkeypatch):
    remove, state, finding = FLAWS[check]
    remove(monkeypatch)
    with pytest.raises(AssertionError, match=finding):
        misbehave_in(state)


@pytest.mark.slow
@pytest.mark.parametrize("state", list(COLLECTED_AT))
def test_the_same_finds_nothing_with_all_checks(state):
    misbehave_in(state, most=4)


def misbehave_in(state, most=48):
    """The machine's own rules, all in one round of sessions: a shorter way to a finding."""
    for pick in range(most):
        machine = AnyDevices()
        slots = "whole" if pick % 2 else "tolerant"
        machine.choose(graph="complete", slots=slots, liars={pick % 6}, sessions=4)
        while machine.server.state is not state:
            machine.play_round()
        for which in range(6):
            machine.say(which, twice=True)
            machine.repeat(which, when=1)
        machine.play(rounds=6, silent=set())
        machine.sessions = 4  # which begins in the set-up, as the first did
        machine.begin()
        while machine.server.state is not state:
            machine.play_round()
        machine.lie(0, pick, after=False, rounds=6)
