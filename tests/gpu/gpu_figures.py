"""The figures of `make gpu`: how fast learning and private rounds are.

Seconds are by the wall clock, and the device is waited for. What is compared takes turns, so that
whatever else the machine does falls on both. Every step ends early when its time is spent, with
what it has.
"""

import time
from dataclasses import replace
from fractions import Fraction
from functools import partial
from statistics import median

import torch
from gpu_steps import FIGURES as KIND
from gpu_steps import Step

from deltafl.fl.batched import BatchedLearner
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.strategies.delta_fl import DeltaFL
from deltafl.fl.strategies.fedavg import FedAvg
from deltafl.sim.bench.peers.tasks import TASKS, BenchmarkTask
from deltafl.sim.cohort.backends.base import ModelSpec, SampleReference
from deltafl.sim.cohort.backends.in_process import InProcess
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.seeds import Seeds
from deltafl.sim.cohort.shared import simulated
from deltafl.sim.cohort.simulated import SimulatedCohort
from deltafl.sim.cohort.work import BackendDevices
from deltafl.sim.run.algorithms import sessions_of, strategy_of
from deltafl.sim.settings.config import (
    FederationConfig,
    PrivacyConfig,
    QuantileConfig,
    RunConfig,
)
from deltafl.sim.settings.policy import PolicyConfig

REPEATS = 5
PAPER_TASKS = {
    # rounds, and a task like the paper's: model, devices in a round, mean samples of a device by
    # its Table 1, batch, rate, inputs, classes
    "EMNIST, linear": (
        3000, BenchmarkTask("linear", "linear", 100, 195, 10, 0.03, (784,), 62)
    ),
    "EMNIST, ConvNet": (
        1000, BenchmarkTask("cnn", "convnet", 100, 195, 16, 0.03, (28, 28), 62)
    ),
    "Sent140, linear": (
        1000, BenchmarkTask("sent", "logistic", 100, 87, 10, 0.01, (50,), 2)
    ),
    "Shakespeare, GRU": (
        600, BenchmarkTask("gru", "gru", 100, 3937, 16, 0.1, (20,), 53)
    ),
}  # fmt: skip
"""Tasks of arXiv 2002.11223, Section C.2, with made-up samples: speed does not depend on them."""

RUNS_OF_A_TASK = 10 * 5  # methods and seeds of Tables 2 and 3


class Rounds:
    """Rounds over made-up devices by one learner."""

    def __init__(self, task, learner):
        self.backend = InProcess("cuda", learner)
        self.data = [task.samples_of(k) for k in range(task.clients)]
        self.refs = {k: SampleReference(self.data, k, task.samples) for k in range(task.clients)}
        self.training = LocalTraining(task.learning_rate, task.batch_size)
        self.seeds = Seeds(task.seed)

    def play(self, strategy, state, rounds=None):
        devices = BackendDevices(self.refs, self.backend, self.training, self.seeds, state.round)
        cohort = SimulatedCohort(devices, state.round, self.seeds, rounds)
        played = strategy.apply(state, cohort)
        self.backend.forget()
        return played


def learner_of(task, place, clients=None):
    spec = ModelSpec(task.model, task.input_shape, task.num_classes)
    learner = BatchedLearner(spec.build(), device=place.device)
    if clients is not None and learner._choice is not None:
        learner._choice = learner._choice[0], clients
    return learner


def sized(task, place, clients):
    """A task with so many clients; a small one where nothing is measured."""
    if place.emulated:
        return replace(task, clients=4, samples=min(task.samples, 12))
    return replace(task, clients=clients)


def timed(place, work, deadline, repeats=REPEATS):
    """The median seconds of some work, after doing it once; in emulation, it is done once."""
    if place.emulated:
        repeats = 1
    else:
        work()
    seconds = []
    while len(seconds) < repeats and (not seconds or time.monotonic() < deadline):
        place.wait()
        began = time.perf_counter()
        work()
        place.wait()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def rounds_of(task, place, end, clients=(100, 1000)):
    """Updates a second and seconds a round of FedAvg, by the number of devices."""
    found = {}
    for number in clients:
        if time.monotonic() >= end:
            found[f"{number} devices"] = "no time was left"
            continue
        small = sized(task, place, number)
        rounds = Rounds(small, learner_of(small, place))
        strategy, state = FedAvg(), FedAvg().init(small.first_model(), number)
        seconds = timed(place, partial(rounds.play, strategy, state), end)
        found[f"{number} devices, s/round"] = round(seconds, 4)
        found[f"{number} devices, updates/s"] = round(number / seconds, 1)
    return found


def speed(name):
    def run(place, end):
        return rounds_of(TASKS[name], place, end)

    return run


def ways(place, end):
    """Sizes of stacks: updates a second of 256 devices."""
    found = {}
    for name, task in TASKS.items():
        task = sized(replace(task, samples=min(task.samples, 179)), place, 256)
        for clients in (16,) if place.emulated else (16, 64, 128, 256):
            if time.monotonic() >= end:
                return found | {"cut": "no time was left"}
            rounds = Rounds(task, learner_of(task, place, clients))
            state = FedAvg().init(task.first_model(), task.clients)
            seconds = timed(place, partial(rounds.play, FedAvg(), state), end, 2)
            found[f"{name}, stacks of {clients}"] = round(task.clients / seconds, 1)
    return found


def on_cpu(place, end):
    """The plain learner on one thread of this machine's processor: updates a second."""
    found = {}
    there = replace(place, device=torch.device("cpu"))
    torch.set_num_threads(1)
    for name, task in TASKS.items():
        task = sized(replace(task, samples=min(task.samples, 179)), place, 4)
        learner = Learner(ModelSpec(task.model, task.input_shape, task.num_classes).build())
        rounds = Rounds(task, learner)
        state = FedAvg().init(task.first_model(), task.clients)
        seconds = timed(there, partial(rounds.play, FedAvg(), state), end, 2)
        found[f"{name}, updates/s"] = round(task.clients / seconds, 1)
    return found


def private(place, end):
    """Private rounds of Δ-FL over the same rounds in clear, ConvNet, 100 devices, in turns."""
    task = sized(TASKS["cnn"], place, 100)
    clients = task.clients
    rounds = Rounds(task, learner_of(task, place))
    half = Fraction(1, 2)
    clear = DeltaFL(half)
    state = clear.init(task.first_model(), clients)
    for _ in range(1 if place.emulated else 3):  # so that losses differ
        state, _ = rounds.play(clear, state)
    seconds = {"clear": [], "histogram": [], "bracketed": []}
    for turn in range(1 + REPEATS):
        for name, spent in seconds.items():
            if turn > 1 and time.monotonic() >= end:
                break
            played = None
            strategy = clear
            if name != "clear":
                config = private_config(name, clients)
                strategy = strategy_of(config)
                # anew, because devices answer for a model only once
                played = MaskedRounds(sessions_of(config), primitives=simulated)
            place.wait()
            began = time.perf_counter()
            rounds.play(strategy, state, played)
            place.wait()
            if turn:
                spent.append(time.perf_counter() - began)
        if place.emulated and turn:
            break
    plain = median(seconds["clear"])
    found = {"clear, s/round": round(plain, 4)}
    for name in ("histogram", "bracketed"):
        found[f"{name}, s/round"] = round(median(seconds[name]), 4)
        found[f"{name} over clear"] = round(median(seconds[name]) / plain, 3)
    return found


def private_config(method, clients):
    few = clients < 10
    return RunConfig(
        federation=FederationConfig(algorithm="private-delta-fl", cohort_size=clients),
        quantile=QuantileConfig(method=method),
        privacy=PrivacyConfig(
            graph="complete" if few else "sparse",
            min_cohort=min(10, clients),
            colluding=0.0 if few else 0.1,
            expected_dropout=0.0 if few else 0.1,
        ),
        policy=PolicyConfig(max_pivots=320, max_mm_pivots_per_device=Fraction(320)),
    )


def papers(place, end):
    """Hours of the papers' Tables 2 and 3 by task: measured seconds a round, times their rounds.

    Without evaluations, and as if every method took as long as FedAvg.
    """
    found = {}
    for name, (rounds, task) in PAPER_TASKS.items():
        if time.monotonic() >= end:
            return found | {"cut": "no time was left"}
        seconds = rounds_of(task, place, end, (100,))["100 devices, s/round"]
        found[f"{name}, s/round"] = seconds
        found[f"{name}, hours of {RUNS_OF_A_TASK} runs of {rounds} rounds"] = round(
            RUNS_OF_A_TASK * rounds * seconds / 3600, 2
        )
    return found


FIGURES = (
    Step("linear", KIND, 50, speed("linear"), "linear"),
    Step("cnn", KIND, 80, speed("cnn"), "ConvNet"),
    Step("gru", KIND, 80, speed("gru"), "GRU"),
    Step("private", KIND, 60, private, "private over clear"),
    Step("papers", KIND, 80, papers, "the papers' tables"),
    Step("ways", KIND, 100, ways, "updates/s of 256 devices"),
    Step("cpu", KIND, 30, on_cpu, "plain learner, one CPU thread"),
)
"""Those that matter most first."""
