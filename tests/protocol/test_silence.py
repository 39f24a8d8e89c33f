"""Whether, when and how much a device sends does not depend on its data, nor on its own code.

A server that crafts a model knows under which data a loss or an update overflows, or code raises
an exception. If a device then fell silent, or sent something of another size, the server would know
its data, by name.
"""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from flat_configs import changed_round
from hypothesis import given, settings
from hypothesis import strategies as st
from round_parties import (
    MODEL,
    POLICY,
    Device,
    Point,
    RoundParties,
    comparable,
    make_config,
    make_devices,
)
from torch import nn

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.parameters import num_parameters
from deltafl.protocol import answering, wire
from deltafl.protocol.answering import answered
from deltafl.protocol.client import LocalWork
from deltafl.protocol.labels import Label
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Relay
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.protocol.states import RoundState
from deltafl.secagg import PeerError, UsageError
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError
from deltafl.secagg.labels import digest
from deltafl.secagg.messages import UnmaskRequest

EDGES = [0.0, -0.0, 1e-320, 3e38, -3e38, math.inf, -math.inf, math.nan]
numbers = st.one_of(st.sampled_from(EDGES), st.floats(width=32))
losses = st.one_of(st.sampled_from([*EDGES, 1e308]), st.floats())
weights = st.one_of(st.sampled_from([0, 1, 2**63, 2**200]), st.integers(0, 1000))

CONFIGS = {
    "all": make_config(theta=Fraction(1)),
    "mm": make_config(max_queries=4),
    "bracketed": make_config(method="bracketed", max_queries=4),
    "histogram": make_config(method="histogram", num_pivots=3, max_queries=4),
    "verified": changed_round(make_config(method="bracketed", max_queries=4), verified=True),
}


def traffic(config, devices, answer=RoundParties.answer, model=MODEL):
    """Whom the server has heard in each trip, with the sizes, by step; and who was lost."""
    parties = RoundParties(config, devices=devices, policy=POLICY, model=model)
    sizes = defaultdict(set)
    outgoing = parties.server.start()
    while outgoing:
        step = parties.server.step
        replies = {client: answer(parties, client, data) for client, data in outgoing.items()}
        assert None not in replies.values()
        stage = step.stage, step.slot == config.update_slot
        sizes[stage].add(tuple(len(data) for data in replies.values()))
        assert list(replies) == list(outgoing)
        outgoing = parties.collect(replies)
    return dict(sizes), parties.server.outcomes[0]


def drawn(config, draw):
    """Devices of a round with whatever loss, weight and update."""
    return {
        client: Device(
            draw(losses),
            draw(weights),
            np.array([draw(numbers) for _ in range(config.update_length)], dtype=np.float32),
        )
        for client in make_devices(config)
    }


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@settings(max_examples=40)
@given(data=st.data())
def test_devices_are_heard_whatever_their_data_are(config, data):
    usual, _ = traffic(config, make_devices(config))
    sizes, outcome = traffic(config, drawn(config, data.draw))
    assert not outcome.drops
    for step, seen in sizes.items():
        assert seen == usual.get(step, seen)


def test_a_device_that_refuses_what_is_not_finite_would_be_noticed(monkeypatch):
    def refuse(grid, loss):
        raise EncodingError(f"{grid} {loss}")

    monkeypatch.setattr(LossGrid, "tick", refuse)
    with pytest.raises(EncodingError):
        traffic(CONFIGS["all"], make_devices(CONFIGS["all"]))


# --- whatever the device's own code does --------------------------------------------------------

NETWORK = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
LENGTH = num_parameters(NETWORK)
HIDDEN = 6
"""Numbers of the first layer, which come first."""

usual_models = st.integers(0, 9).map(
    lambda seed: np.random.default_rng(seed).normal(size=LENGTH).astype(np.float32)
)
extreme = st.sampled_from([0.0, 1e-45, 1e-20, 1.0, 1e20, 3.4e38])


@st.composite
def crafted_models(draw):
    """Small layers before large ones and the like, with a few weights that are no numbers."""
    model = draw(usual_models)
    with np.errstate(all="ignore"):
        model[:HIDDEN] *= np.float32(draw(extreme))
        model[HIDDEN:] *= np.float32(draw(extreme))
    for place in draw(st.lists(st.integers(0, LENGTH - 1), max_size=2)):
        model[place] = draw(numbers)
    return model


@dataclass(frozen=True)
class Trained:
    """A device whose own code may do anything; what it raised."""

    data: DeviceData
    training: LocalTraining
    raised: list = field(default_factory=list)

    def weight(self):
        return self.data.num_samples

    def loss(self, model):
        return Learner(NETWORK).mean_loss(np.frombuffer(model, dtype="<f4"), self.data)

    def update(self, model):
        vector = np.frombuffer(model, dtype="<f4")
        generator = torch.Generator().manual_seed(0)
        return Learner(NETWORK).train(vector, self.data, self.training, generator)

    def wait(self, model):
        self.update(model)


@st.composite
def trained_devices(draw):
    """Samples that are no numbers, labels that there are not, or no samples at all."""
    size = draw(st.integers(0, 3))
    x = [[draw(numbers) for _ in range(2)] for _ in range(size)]
    y = [draw(st.sampled_from([0, 1, 1, 7, -1])) for _ in range(size)]
    training = LocalTraining(draw(st.sampled_from([0.1, 1e30])), draw(st.integers(1, 2)))
    inputs = np.array(x, dtype=np.float32).reshape(size, 2)
    return Trained(DeviceData("one", inputs, np.array(y, dtype=np.int64)), training)


def trains(parties, client, data):
    own = parties.devices[client]
    return answered(parties.clients[client], data, own, own.raised.append)


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@settings(max_examples=25)
@given(data=st.data())
def test_devices_are_heard_whatever_their_model_and_samples_are(config, data):
    config = changed_round(config, update_length=LENGTH)
    usual, _ = traffic(config, make_devices(config))
    own = {client: data.draw(trained_devices()) for client in make_devices(config)}
    model = data.draw(crafted_models()).astype("<f4").tobytes()
    sizes, outcome = traffic(config, own, trains, model)
    assert not outcome.drops
    for step, seen in sizes.items():
        assert seen == usual.get(step, seen)


class Broken:
    """A device whose own code raises wherever it is told to, or returns what is no answer."""

    def __init__(self, device, **broken):
        self.device, self.broken, self.raised = device, broken, []

    def _told(self, name, otherwise):
        told = self.broken.get(name, otherwise)
        if isinstance(told, type) and issubclass(told, Exception):
            raise told(name)
        return told

    def weight(self):
        return self._told("weight", self.device.weight)

    def loss(self, _):
        return self._told("loss", self.device.loss)

    def update(self, _):
        return self._told("update", self.device.update)

    def wait(self, _):
        self._told("wait", None)


class RaisesWhenRead:
    """A number or an array whose conversion raises."""

    def __index__(self):
        raise RuntimeError("read")

    __float__ = __array__ = __len__ = __index__
    shape = property(__index__)
    dtype = property(__index__)


FAILURES = {
    "an exception while measuring": {"loss": RuntimeError},
    "no loss": {"loss": None},
    "a loss beyond all floats": {"loss": 10**400},
    "an exception while training": {"update": MemoryError},
    "an error of the protocol's own kind while training": {"update": EncodingError},
    "no update": {"update": None},
    "an update of another model": {"update": np.zeros(5, dtype=np.float32)},
    "an update of another type": {"update": np.zeros(4)},
    "an exception while counting samples": {"weight": OSError},
    "no weight": {"weight": None},
    "a negative weight": {"weight": -1},
    "a weight that is no number": {"weight": math.nan},
    "a ragged list for an update": {"update": [[1.0], [1.0, 2.0]]},
    "an update with a mask": {"update": np.ma.masked_invalid(np.float32([1, math.nan, 0, 0]))},
    "a negative weight of too many digits to print": {"weight": -(10**5000)},
    "a weight that raises when it is read": {"weight": RaisesWhenRead()},
    "a loss that raises when it is read": {"loss": RaisesWhenRead()},
    "an update that raises when it is read": {"update": RaisesWhenRead()},
    "an exception while others train": {"wait": OSError, "loss": ValueError},
    "everything": {"loss": ValueError, "weight": ValueError, "update": ValueError},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_device_whose_own_code_fails_is_heard(config, failure):
    given = make_devices(config)
    victim = max(given)  # which has the largest loss, so that it trains
    own = {client: Broken(device) for client, device in given.items()}
    usual, _ = traffic(config, own, trains)
    own[victim] = Broken(given[victim], **failure)
    sizes, outcome = traffic(config, own, trains)
    assert not outcome.drops
    for step, seen in sizes.items():
        assert seen == usual.get(step, seen)
    assert own[victim].raised or failure == {"update": None}
    assert not any(own[client].raised for client in given if client != victim)


class Panics(BaseException):
    """What a panic of an extension may be raised as: no `Exception`."""


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, Panics])
def test_what_is_no_exception_gets_out(raised):
    """Whoever stops the program stops it."""
    config = CONFIGS["all"]
    given = make_devices(config)
    own = {client: Broken(device) for client, device in given.items()}

    def stop(_model):
        raise raised

    own[max(given)].loss = stop
    with pytest.raises(raised):
        traffic(config, own, trains)


@pytest.mark.parametrize(
    "weight", [2**53, 2**53 + 1, pytest.param(10**5000, id="long"), np.int64(2**53), True]
)
def test_a_weight_beyond_all_limits_counts_as_the_largest_and_as_clipped(weight):
    config = changed_round(CONFIGS["all"], max_weight=100)
    given = make_devices(config)
    victim = max(given)
    own = {client: Broken(device) for client, device in given.items()}
    own[victim] = Broken(given[victim], weight=weight)
    _, outcome = traffic(config, own, trains)
    expected = replace(given[victim], weight=min(int(weight), 2**60))
    _, outcome_of_large = traffic(config, given | {victim: expected})
    assert comparable(outcome) == comparable(outcome_of_large)


def test_what_cannot_be_trained_counts_as_zeros_all_of_them_clipped():
    config = CONFIGS["all"]
    given = make_devices(config)
    victim, length = max(given), config.update_length
    own = {client: Broken(device) for client, device in given.items()}
    _, whole = traffic(config, own, trains)
    own[victim] = Broken(given[victim], update=RuntimeError)
    _, outcome = traffic(config, own, trains)
    zeros = replace(given[victim], update=np.zeros(length, dtype=np.float32))
    _, expected = traffic(config, given | {victim: zeros})
    assert np.array_equal(outcome.update, expected.update)
    assert not np.array_equal(outcome.update, whole.update)
    assert (whole.clipped, outcome.clipped) == (0, length)


@pytest.mark.parametrize("num_taken", [0, 1, 3, 5])
def test_training_that_nobody_asked_for_cannot_have_failed(num_taken):
    parties = RoundParties()
    parties.bring(Point(num_taken))
    state = parties.machine.state
    with pytest.raises(UsageError):
        parties.machine.supply_update(None)
    assert parties.machine.state is state


def test_what_cannot_be_measured_counts_as_the_largest_loss_and_weighs_what_is_known():
    config = CONFIGS["all"]
    given = make_devices(config)
    victim = max(given)
    own = {client: Broken(device) for client, device in given.items()}
    own[victim] = Broken(given[victim], loss=RuntimeError, weight=OSError)
    _, outcome = traffic(config, own, trains)
    expected = replace(given[victim], loss=math.inf, weight=0)
    _, outcome_of_zero = traffic(config, given | {victim: expected})
    assert comparable(outcome) == comparable(outcome_of_zero)
    assert [str(error) for error in own[victim].raised] == ["loss", "weight"]


def test_a_device_that_lets_an_exception_out_would_be_noticed(monkeypatch):
    monkeypatch.setattr(answering, "_tried", lambda work, *_: work())
    given = make_devices(CONFIGS["all"])
    own = {client: Broken(device, update=RuntimeError) for client, device in given.items()}
    with pytest.raises(RuntimeError):
        traffic(CONFIGS["all"], own, trains)


# --- between the threshold and the vector -------------------------------------------------------


def at_the_threshold():
    """A round whose threshold is on its way to the devices."""
    parties = RoundParties(CONFIGS["mm"])
    outgoing = parties.server.start()
    while not isinstance(getattr(wire.decode(outgoing[min(outgoing)]), "question", 0), Threshold):
        outgoing = parties.collect({c: parties.answer(c, d) for c, d in outgoing.items()})
    return parties, outgoing


def behind(parties, honest):
    """What a server may send right behind a threshold."""
    shares = UnmaskRequest(CONFIGS["mm"].update_slot, np.ones(len(parties.devices), dtype=bool))
    relayed = Relay(session_wire.encode(shares, parties.params))
    return {
        "repetition": honest,
        "another threshold": replace(honest, question=Threshold(3, 1)),
        "a query": replace(honest, question=Query("mm", (5,))),
        "the opening alone": Relay(honest.session),
        "shares": relayed,
    }


@pytest.mark.parametrize(
    "kind", ["repetition", "another threshold", "a query", "the opening alone", "shares"]
)
def test_what_a_device_says_behind_the_threshold_does_not_tell_whether_it_trains(kind):
    parties, outgoing = at_the_threshold()
    given = {client: parties.clients[client].receive(data) for client, data in outgoing.items()}
    assert set(given.values()) == {LocalWork.TRAIN, LocalWork.WAIT}
    said, remembered = set(), set()
    for client, machine in parties.clients.items():
        sent = behind(parties, wire.decode(outgoing[client]))[kind]
        try:
            reply = machine.receive(wire.encode(sent))
        except PeerError as error:
            reply = error.reason
        said.add((reply, machine.state))
        remembered.add(parties.enrolment.ledger(client).knows(digest(Label.MODEL, MODEL)))
    assert len(said) == 1
    assert remembered == {True}


def test_an_update_is_taken_only_of_a_device_that_trains_and_zeros_of_the_others():
    parties, outgoing = at_the_threshold()
    for client, data in outgoing.items():
        machine, own = parties.clients[client], parties.devices[client]
        if machine.receive(data) is LocalWork.TRAIN:
            with pytest.raises(UsageError, match="an update must be supplied"):
                machine.supply_zeros()
        else:
            for update in (own.update, None):
                with pytest.raises(UsageError, match="zeros must be supplied"):
                    machine.supply_update(update)
        assert machine.state is RoundState.TRAINING


def test_whoever_is_told_of_a_failure_may_fail_too():
    """Only a device whose work fails would fall silent, where its log cannot be written."""

    def work():
        raise ValueError("on some data only")

    def full(error):
        raise OSError(28, "no space left on device") from error

    assert answering._tried(work, 7, full) == 7
