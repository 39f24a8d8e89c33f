# ruff: noqa: ARG002 - what a stage is asked, another may need to know
"""Faults of the machines themselves, which playing them again repeats and other checks find.

Each is planted in the code while a run is played and while its record is audited. The machines
played again depart from nothing; the demands of the specification, or the second opinion, do.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from leaks import USUAL, as_transcript, truth_of
from staged_runs import ActiveStage, Stage, StagedClient, TinyStage, play

from deltafl.protocol.levels import LevelRounds
from deltafl.protocol.quantile.histogram import Bracketed
from deltafl.protocol.selection import Threshold
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import Adversary, Server, labels, links, params, wire
from deltafl.secagg import server as server_module
from deltafl.secagg.errors import PeerError, UsageError
from deltafl.secagg.graph import Graph
from deltafl.secagg.labels import Label
from deltafl.secagg.masks import PairSecret, SlotContext
from deltafl.secagg.messages import MaskedInput, UnmaskRequest
from deltafl.secagg.states import Stage as Sending
from deltafl.secagg.states import Step, Vanish
from deltafl.secagg.summing import Summing
from deltafl.sim.inspect.audit import auditor
from deltafl.sim.inspect.audit.checks.devices import DevicesAgain
from deltafl.sim.inspect.audit.checks.independent import Independent
from deltafl.sim.inspect.audit.checks.invariants import Invariants
from deltafl.sim.inspect.audit.checks.run import RunAgain
from deltafl.sim.inspect.audit.checks.server import ServerAgain
from deltafl.sim.inspect.audit.options import Options

REPLAYS = (ServerAgain, DevicesAgain, RunAgain)
UPDATE = 2  # the slot, where a search has two queries


class OnceStage(Stage):
    """A single round: what follows a round that was lost is another matter."""

    num_rounds = 1


class ActiveOnceStage(ActiveStage):
    """A single round against an active server."""

    num_rounds = 1


class SparseStage(TinyStage):
    """Devices have four neighbours each."""

    num_devices = 12
    is_lenient = True

    def params(self, number, take, config, model):
        whole = super().params(number, take, config, model)
        return replace(whole, degree=4, threshold=3, min_cohort=12, min_roster=12)


class LosingStage(OnceStage):
    """A device is gone after the first query is answered."""

    def vanishing(self, number, take, config):
        return {self.ids[0]: Vanish(Step(Sending.MASK, 0))}


class EmptyingStage(LosingStage):
    """Three devices are gone before the update."""

    def vanishing(self, number, take, config):
        return dict.fromkeys(self.ids[:3], Vanish(Step(Sending.MASK, UPDATE)))


class LateStage(OnceStage):
    """A device's update comes late."""

    def vanishing(self, number, take, config):
        return {self.ids[0]: Vanish(Step(Sending.MASK, UPDATE), late=True)}


def tells_two_lists_of_survivors(patch):
    """Half of the devices are told that a survivor was lost."""
    honest = Summing.requests

    def requests(self, recipients, linked):
        fewer = self.contributed.copy()
        fewer[0] = False
        other = wire.encode(UnmaskRequest(self.index, fewer, {}), self.params)
        told = dict(honest(self, recipients, linked))
        return told | dict.fromkeys(list(told)[len(told) // 2 :], other)

    patch(Summing, "requests", requests)


def takes_dropped_devices_back(patch):
    def settle(self):
        self._members[:] = True
        self.drops.clear()

    patch(Server, "_settle", settle)


def shows_one_device_other_keys(patch):
    """The first device is shown the keys of two neighbours exchanged."""
    honest = Server._close_advertise

    def close(self):
        told = dict(honest(self))
        first = next(iter(told))
        roster = wire.decode(told[first], self.params)
        (one, a), (other, b), *rest = roster.keys.items()
        shown = replace(roster, keys={one: b, other: a, **dict(rest)})
        return told | {first: wire.encode(shown, self.params)}

    patch(Server, "_close_advertise", close)


def forgets_the_floor(patch):
    for name in ("require_cohort", "require_recoverable"):
        patch(server_module, name, lambda *_: None)
    patch(LevelRounds, "check_tail", lambda *_: None)


def asks_at_one_pivot_again(patch):
    patch(Bracketed, "propose", lambda *_: (1,))


def announces_another_threshold(patch):
    honest = LevelRounds.question.fget

    def question(self):
        asked = honest(self)
        is_last = isinstance(asked, Threshold)
        return Threshold(asked.eta_half_ticks + 6, 0) if is_last else asked

    patch(LevelRounds, "question", property(question))


def says_a_sum_that_is_off_by_one(patch):
    honest = Summing.revealed

    def revealed(self, remaining):
        self.total[0] += 1
        return honest(self, remaining)

    patch(Summing, "revealed", revealed)


def sends_no_signatures(patch):
    def requests(self, recipients, _linked):
        without = UnmaskRequest(self.index, self.contributed, {})
        return dict.fromkeys(recipients, wire.encode(without, self.params))

    patch(Summing, "requests", requests)


def takes_a_late_vector(patch):
    """Into the list of contributors, once the shares are asked for."""
    honest = Server.receive

    def receive(self, sender, data):
        message = wire.decode(data, self.params)
        if isinstance(message, MaskedInput) and self.step.stage is Sending.UNMASK:
            self._open.contributed = self._open.contributed.copy()
            self._open.contributed[self._formed.positions[sender]] = True
        honest(self, sender, data)

    patch(Server, "receive", receive)


def draws_one_graph_for_all_rounds(patch):
    honest = Sessions.params

    def parameters(self, config, model, _seed, **more):
        return honest(self, config, model, bytes(range(32)), **more)

    patch(Sessions, "params", parameters)


def does_not_shuffle_the_ring(patch):
    patch(Graph, "_order", property(lambda self: np.arange(self.num_devices)))


def masks_alike_in_all_slots(patch):
    """The masks that two devices share are not bound to the slot and its question."""

    def tolerant(_self, of_peers):
        info = labels.pack(Label.PAIRWISE_MASK)
        return [PairSecret(peer, key, info) for peer, key in of_peers.items()]

    patch(SlotContext, "tolerant", tolerant)


def has_one_key_for_all_slots(patch):
    """A recovery key opens more than the keys of its slot."""
    honest = links.link

    def link(session_id, low, high, num_slots):
        own = honest(session_id, low, high, num_slots)
        return replace(own, keys=own.keys[:1] * num_slots)

    patch(links, "link", link)


def lets_two_lists_be_signed(patch):
    patch(params, "complete_threshold", lambda *_, **__: 3)


def nothing(_patch):
    """The control: no fault at all."""


ACTIVE = {"adversary": Adversary.ACTIVE}
FAULTS = (
    (tells_two_lists_of_survivors, OnceStage, {"spec.told-apart"}, {}),
    (takes_dropped_devices_back, LosingStage, {"spec.membership"}, {}),
    (shows_one_device_other_keys, OnceStage, {"spec.relayed"}, {}),
    (forgets_the_floor, EmptyingStage, {"spec.membership"}, {}),
    (asks_at_one_pivot_again, OnceStage, {"spec.questions"}, {}),
    (announces_another_threshold, OnceStage, {"spec.questions"}, {}),
    (says_a_sum_that_is_off_by_one, OnceStage, {"independent.differs"}, {}),
    (sends_no_signatures, ActiveOnceStage, {"spec.relayed"}, {}),
    (takes_a_late_vector, LateStage, {"spec.membership"}, {}),
    (draws_one_graph_for_all_rounds, Stage, {"session.seed-repeated"}, {}),
    (does_not_shuffle_the_ring, SparseStage, {"independent.differs"}, {}),
    (masks_alike_in_all_slots, OnceStage, {"independent.differs"}, {}),
    (has_one_key_for_all_slots, OnceStage, {"independent.differs"}, {}),
    (lets_two_lists_be_signed, ActiveOnceStage, {"spec.threshold"}, ACTIVE),
)
CONTROLS = [*dict.fromkeys((stage, bool(options)) for _, stage, _, options in FAULTS)]


def refusing(receive):
    """A device that says nothing any more once it has refused a message."""

    def answer(self, data):
        try:
            return receive(self, data)
        except (PeerError, UsageError):
            return None

    return answer


def audited(stage, options, folder, monkeypatch):
    """What is found in a run of a stage, by the machines played again and by the others."""
    with monkeypatch.context() as played:
        played.setattr(StagedClient, "receive", refusing(StagedClient.receive))
        run = play(stage())
    path, truth = as_transcript(run, run.entries, folder), truth_of(run, folder)
    monkeypatch.setattr(auditor, "CHECKS", (*REPLAYS, Invariants, Independent))
    report = auditor.audit(path, Options(**USUAL | options, truth=truth, independent=True))
    found = {finding.rule for finding in report.findings}
    departures = {rule for check in REPLAYS for rule in check.rules}
    return found & departures, found - departures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "stage", "rules", "options"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
def test_a_fault_of_the_machines_is_found_by_others(
    plant, stage, rules, options, tmp_path, monkeypatch
):
    plant(partial(monkeypatch.setattr))
    departures, found = audited(stage, options, tmp_path, monkeypatch)
    assert departures == set()
    assert rules <= found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "options"), CONTROLS, ids=lambda value: getattr(value, "__name__", None)
)
def test_without_a_fault_nothing_is_found(stage, options, tmp_path, monkeypatch):
    chosen = ACTIVE if options else {}
    departures, found = audited(stage, chosen, tmp_path, monkeypatch)
    assert departures == set()
    assert found <= {"input.late"}
