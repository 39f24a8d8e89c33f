"""Backends: whoever does the devices' work, the answers are the reference's."""

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from torch_threads import single

from deltafl.fl.data.federated import DeviceData
from deltafl.fl.data.lazy import LazyDevices
from deltafl.fl.local import Learner, LocalTraining
from deltafl.fl.objectives import LocalObjective
from deltafl.fl.parameters import to_vector
from deltafl.sim.cohort.backends.base import CpuClock, ModelSpec, SampleReference, Work
from deltafl.sim.cohort.backends.choice import WORTH_PROCESSES_S, Choice, choose, open_backend
from deltafl.sim.cohort.backends.pool import Pool
from deltafl.sim.cohort.backends.processes import WorkerGone
from deltafl.sim.cohort.backends.shared_memory import DoubleBuffer, read_samples
from deltafl.sim.errors import ConfigError, RunError, UserError
from deltafl.sim.settings.config import TrainingConfig

SPEC = ModelSpec("convnet", (256,), 4)
TRAINING = LocalTraining(0.3, batch_size=4, epochs=2, l2=0.01)
START = to_vector(SPEC.build(1))


def made(index, size=None):
    rng = np.random.default_rng(index)
    size = size or 1 + index * 7 % 23
    return DeviceData(
        f"device {index}", rng.random((size, 256), np.float32), rng.integers(0, 4, size)
    )


DEVICES = tuple(map(made, range(17)))


def refs(devices=DEVICES):
    return [SampleReference(devices, k, devices[k].num_samples) for k in range(len(devices))]


@pytest.fixture(scope="module")
def processes():
    backend = open_backend(Choice("processes", 2, 1), SPEC)
    yield backend
    backend.close()


@pytest.fixture(params=["reference", "processes"])
def backend(request):
    if request.param == "processes":
        return request.getfixturevalue("processes")
    return open_backend(Choice("reference", 0, 1), SPEC)


def reference():
    return Learner(SPEC.build())


@pytest.fixture(autouse=True)
def one_thread():
    with single():
        yield


def test_losses_are_those_of_the_learner_in_any_order(backend):
    begun = [backend.begin_loss(START, ref) for ref in refs()]
    expected = reference().losses(START, DEVICES)
    order = np.random.default_rng(1).permutation(len(begun))
    assert [begun[k].result() for k in order] == [expected[k] for k in order]


@pytest.mark.slow
@pytest.mark.parametrize("objective", [LocalObjective(), LocalObjective(0.5, 3.0)])
def test_updates_are_those_of_the_learner_to_the_bit(backend, objective):
    begun = [
        backend.begin_update(START, ref, TRAINING, 100 + k, objective)
        for k, ref in enumerate(refs())
    ]
    expected = reference().updates(
        START, DEVICES, TRAINING, range(100, 100 + len(DEVICES)), objective
    )
    for pending, update in zip(begun, expected, strict=True):
        assert pending.result().tobytes() == update.tobytes()


def test_evaluations_are_those_of_the_learner(backend):
    assert backend.evaluate(START, DEVICES) == reference().evaluate(START, DEVICES)


def test_models_trainings_and_devices_may_be_mixed(backend):
    other = START * 2
    asked = [
        (backend.begin_update(START, refs()[1], TRAINING, 1), START, TRAINING, 1),
        (backend.begin_update(START, refs()[3], replace(TRAINING, epochs=1), 3), START, None, 3),
        (backend.begin_update(other, refs()[2], TRAINING, 2), other, TRAINING, 2),
    ]
    loss = backend.begin_loss(other, refs()[4])
    for pending, model, training, seed in asked:
        (update,) = reference().updates(
            model, [DEVICES[seed]], training or replace(TRAINING, epochs=1), [seed]
        )
        assert pending.result().tobytes() == update.tobytes()
    assert loss.result() == reference().mean_loss(other, DEVICES[4])


def test_who_asks_when_others_have_their_answer_gets_one_too(backend):
    expected = reference().losses(START, DEVICES[:2])
    for ref, loss in zip(refs()[:2], expected, strict=True):
        assert backend.begin_loss(START, ref).result() == loss


def test_what_is_forgotten_is_not_done_and_costs_nothing_later(backend):
    for ref in refs():
        backend.begin_loss(START * 3, ref)
    backend.forget()
    assert backend.begin_loss(START, refs()[5]).result() == reference().mean_loss(START, DEVICES[5])


def test_time_is_counted_where_it_is_spent(backend):
    before = backend.clock.here, backend.clock.elsewhere
    backend.evaluate(START, DEVICES)
    here, elsewhere = backend.clock.here - before[0], backend.clock.elsewhere - before[1]
    assert (here > 0, elsewhere > 0) == (backend.name != "processes", backend.name == "processes")


def test_a_model_that_does_not_fit_is_refused_and_the_next_one_is_not(backend):
    with pytest.raises(ValueError, match="does not fit"):
        backend.begin_loss(START[:-1], refs()[0]).result()
    assert backend.begin_loss(START, refs()[0]).result() == reference().mean_loss(START, DEVICES[0])


def test_a_model_of_other_numbers_is_refused(backend):
    with pytest.raises(ValueError, match="float64 is not float32"):
        backend.begin_loss(START.astype(np.float64), refs()[0]).result()


def test_everybody_who_is_asked_to_train_a_model_that_does_not_fit_refuses(backend):
    begun = [backend.begin_update(START[:-1], ref, TRAINING, 0) for ref in refs()[:2]]
    for pending in begun:
        with pytest.raises(ValueError, match="does not fit"):
            pending.result()


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_run_with_a_sentence():
    backend = open_backend(Choice("processes", 1, 1), SPEC)
    try:
        assert backend.begin_loss(START, refs()[0]).result() > 0
        os.kill(backend._crew._processes[0].pid, signal.SIGSTOP)
        begun = [backend.begin_loss(START * 2, ref) for ref in refs()[:2]]
        os.kill(backend._crew._processes[0].pid, signal.SIGKILL)
        with pytest.raises(RunError, match=r"worker 1 of 1 ended with signal 9.*lack of memory"):
            begun[-1].result()
    finally:
        backend.close()


def in_time(call, rescue=lambda: None):
    """What a call gives or raises; fails the test if it takes a minute, after the rescue."""
    asked = Future()

    def ask():
        try:
            asked.set_result(call())
        except Exception as error:  # noqa: BLE001 (who waits raises it)
            asked.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        return asked.result(timeout=60)
    except TimeoutError:
        rescue()
        pytest.fail("this hangs")


def test_messages_may_be_longer_than_a_pipe_holds_in_both_directions(processes):
    names = [f"{k:04d}" * 250 for k in range(2048)]
    devices = [DeviceData(name, DEVICES[0].x[:1], DEVICES[0].y[:1]) for name in names]

    def rescue():
        for process in processes._crew._processes:
            process.kill()

    found = in_time(lambda: processes.evaluate(START, devices), rescue)
    assert [one.id for one in found] == names


def test_nobody_reads_the_samples_of_a_chunk_that_could_not_be_sent(processes):
    def make(number):
        if number:
            raise OSError("the samples cannot be read")
        return DEVICES[0]

    crew = processes._crew
    lazy = LazyDevices(["0", "1"], np.full(2, DEVICES[0].num_samples), make, "test")
    with pytest.raises(OSError, match="cannot be read"):
        processes.evaluate(START, lazy)
    with pytest.raises(TypeError, match="pickle"):
        crew.do(0, Work(START), refs(), [threading.Lock()])
    assert crew._samples._readers == crew._models._readers == [0, 0]


@pytest.mark.slow
def test_a_crew_of_which_not_everybody_starts_leaves_nothing_behind(monkeypatch, capfd):
    started = []

    def start(*args, popen=subprocess.Popen, **settings):
        if started:
            raise OSError("no more processes")
        started.append(popen(*args, **settings))
        return started[0]

    monkeypatch.setattr("deltafl.sim.cohort.backends.processes.subprocess.Popen", start)
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(OSError, match="no more processes"):
        open_backend(Choice("processes", 2, 1), SPEC)
    assert len(os.listdir("/dev/fd")) <= before
    assert started[0].poll() is not None
    assert capfd.readouterr().err == ""


class FakeCrew:
    """Notes what it is sent, and does it in its own time, once it is let go."""

    def __init__(self, size, order=None, at_once=1):
        self.size, self.order, self.at_once = size, order, at_once
        self.chunks, self.clock = [], CpuClock()
        self.is_let_go, self.is_stopped = threading.Event(), False

    def do(self, worker, _work, refs, _seeds):
        self.chunks.append([ref.index for ref in refs])
        self.is_let_go.wait()
        if self.is_stopped:
            raise WorkerGone(f"worker {worker} is gone")
        if self.order is not None:
            time.sleep(self.order.random() / 500)
        return [float(ref.index) for ref in refs]

    def stop(self):
        self.is_stopped = True
        self.is_let_go.set()

    def close(self):
        pass


def until(is_so):
    deadline = time.monotonic() + 30
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert is_so()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_chunks_do_not_depend_on_who_is_ready_first(size):
    seen = []
    for seed in range(4):
        crew = FakeCrew(size, np.random.default_rng(seed), at_once=3)
        pool = Pool(crew)
        begun = [pool.begin_update(START, ref, TRAINING, 0) for ref in refs()]
        assert not crew.chunks, "nobody begins before all are known"
        crew.is_let_go.set()
        assert [one.result() for one in begun] == list(range(len(DEVICES)))
        pool.close()
        seen.append(crew.chunks if size == 1 else sorted(crew.chunks))
    assert all(chunks == seen[0] for chunks in seen)
    sizes = [[DEVICES[k].num_samples for k in chunk] for chunk in seen[0]]
    in_order = list(chain.from_iterable(sizes))
    if size == 1:
        assert in_order == sorted(in_order, reverse=True), "the largest come first"
    assert max(map(len, sizes)) <= 3
    assert len(sizes) % size == 0 or len(sizes) == len(DEVICES)


def test_devices_that_train_alone_begin_at_once_and_go_on_unasked():
    crew = FakeCrew(2)
    pool = Pool(crew)
    begun = [pool.begin_update(START, ref, TRAINING, 0) for ref in refs()]
    until(lambda: sorted(crew.chunks) == [[0], [1]])
    crew.is_let_go.set()
    until(lambda: len(crew.chunks) == len(begun))  # though nobody waits for an answer
    assert sorted(crew.chunks) == [[k] for k in range(len(begun))]
    pool.close()


class Unwilling(FakeCrew):
    """Refuses the chunks that begin with some devices."""

    refused, error = (3,), OSError("the samples cannot be read")

    def do(self, worker, work, refs, seeds):
        if refs[0].index in self.refused:
            raise self.error
        return super().do(worker, work, refs, seeds)


def test_who_cannot_be_worked_on_has_no_answer_and_the_others_have():
    crew = Unwilling(2)
    crew.is_let_go.set()
    pool = Pool(crew)
    begun = [pool.begin_update(START, ref, TRAINING, 0) for ref in refs()]
    for k, pending in enumerate(begun):
        if k in crew.refused:
            with pytest.raises(OSError, match="cannot be read"):
                pending.result()
        else:
            assert in_time(pending.result) == k
    pool.close()


def test_whoever_waits_for_a_crew_that_fails_is_told():
    crew = Unwilling(1)
    crew.refused, crew.error = range(1, len(DEVICES)), WorkerGone("the worker is gone")
    pool = Pool(crew)
    begun = [pool.begin_update(START, ref, TRAINING, 0) for ref in refs()]
    until(lambda: crew.chunks)
    crew.is_let_go.set()
    assert begun[0].result() == 0
    for pending in [*begun[1:], pool.begin_loss(START, refs()[1])]:
        with pytest.raises(RunError, match="the worker is gone"):
            in_time(pending.result)
    pool.close()


def test_what_was_forgotten_is_not_waited_for():
    crew = FakeCrew(1)
    pool = Pool(crew)
    begun = [pool.begin_update(START, ref, TRAINING, 0) for ref in refs()]
    until(lambda: crew.chunks)
    pool.forget()
    crew.is_let_go.set()
    assert begun[0].result() == 0, "this one was begun"
    for pending in begun[1:]:
        with pytest.raises(RuntimeError, match="forgotten"):
            in_time(pending.result)
    pool.close()
    pool.close()


def test_whoever_waits_when_the_pool_is_closed_is_told():
    pool = Pool(FakeCrew(1))
    begun = [pool.begin_update(START, ref, TRAINING, 0) for ref in refs()]
    until(lambda: pool._crew.chunks)
    pool.close()
    for pending in begun:
        with pytest.raises(RunError, match="ended before"):
            in_time(pending.result)


class Forgetful(FakeCrew):
    """Leaves the last answer out."""

    def do(self, worker, work, refs, seeds):
        return super().do(worker, work, refs, seeds)[:-1]


def test_nobody_waits_for_answers_that_a_worker_leaves_out():
    crew = Forgetful(1, at_once=3)
    crew.is_let_go.set()
    pool = Pool(crew)
    begun = [pool.begin_update(START, ref, TRAINING, 0) for ref in refs()[:6]]
    for pending in begun:
        with pytest.raises(ValueError, match="shorter"):
            in_time(pending.result)
    pool.close()


def hold(buffers, spot):
    return buffers.hold(spot.devices, spot.index, spot.data)


def test_samples_stay_on_the_buffer_while_they_fit_and_memory_is_bounded_when_not():
    asked = []

    def make(number):
        asked.append(number)
        return made(number, size=50)

    lazy = LazyDevices(list(map(str, range(40))), np.full(40, 50), make, "test")
    lazy._room = 0  # remembers nothing itself
    spots = [SampleReference(lazy, k, 50) for k in range(40)]
    buffers = DoubleBuffer(room=5 * 50 * (256 * 4 + 8))
    held = [hold(buffers, spots[0]), hold(buffers, spots[0])]
    assert asked == [0]
    for location in held:
        buffers.release(location)
    for spot in spots:
        location = hold(buffers, spot)
        data = read_samples(buffers.memories, location)
        assert np.array_equal(data.x, made(spot.index, size=50).x)
        assert np.array_equal(data.y, made(spot.index, size=50).y)
        buffers.release(location)
    assert len(buffers._found[0]) + len(buffers._found[1]) <= 14
    hold(buffers, spots[39])
    assert asked.count(39) == 1


def test_a_buffer_that_is_read_from_is_not_emptied():
    devices = tuple(made(k, size=50) for k in range(30))
    buffers = DoubleBuffer(room=3 * 50 * (256 * 4 + 8))
    spots = refs(devices)
    read_on = hold(buffers, spots[0])
    data = read_samples(buffers.memories, read_on)
    for spot in spots[1:]:
        buffers.release(hold(buffers, spot))
    assert np.array_equal(data.x, devices[0].x)
    buffers.release(read_on)


def test_a_full_buffer_is_emptied_though_what_lies_there_is_asked_for_all_the_time():
    devices = tuple(made(k, size=50) for k in range(120))
    room = 5 * 50 * (256 * 4 + 8)
    buffers = DoubleBuffer(room=room)
    spots = refs(devices)
    reading = []
    for number in range(300):
        # every second device is one of the first few, and four are always being read
        spot = spots[number % 7] if number % 2 else spots[number % len(spots)]
        reading.append(hold(buffers, spot))
        data = read_samples(buffers.memories, reading[-1])
        assert np.array_equal(data.x, devices[spot.index].x)
        if len(reading) > 4:
            buffers.release(reading.pop(0))
        assert max(buffers._used) <= 3 * room


@pytest.mark.parametrize(
    ("settings", "model", "num_samples", "cores", "expected"),
    [
        ({}, "linear", 1e3, 4, "reference"),
        ({}, "linear", WORTH_PROCESSES_S / 1.3e-5 + 1, 4, "processes"),
        ({}, "convnet", WORTH_PROCESSES_S / 3e-4 + 1, 4, "processes"),
        ({}, "convnet", WORTH_PROCESSES_S / 3e-4 + 1, 1, "reference"),
        ({"backend": "batched"}, "linear", 1e9, 4, "batched"),
        ({"backend": "processes", "workers": 7}, "linear", 1, 4, "processes"),
    ],
)
def test_long_runs_are_spread_over_the_cores(
    settings, model, num_samples, cores, expected, monkeypatch
):
    monkeypatch.setattr("deltafl.sim.cohort.backends.choice.usable_cores", lambda: cores)
    monkeypatch.setattr("deltafl.sim.cohort.hardware.torch.cuda.is_available", lambda: False)
    choice = choose(TrainingConfig(**settings), model, num_samples)
    assert choice.backend == expected
    has_workers = expected == "processes"
    assert choice.workers == (settings.get("workers", cores) if has_workers else 0)


def test_no_more_workers_are_started_than_eight_for_each_core(monkeypatch):
    monkeypatch.setattr("deltafl.sim.cohort.backends.choice.usable_cores", lambda: 2)
    assert choose(TrainingConfig(backend="processes", workers=16), "linear", 1).workers == 16
    with pytest.raises(UserError, match=r"workers = 17: .* take at most 16"):
        choose(TrainingConfig(backend="processes", workers=17), "linear", 1)


@pytest.mark.slow
def test_a_gpu_is_taken_where_there_is_one_and_asked_for_where_not(monkeypatch):
    monkeypatch.setattr("deltafl.sim.cohort.hardware.torch.cuda.is_available", lambda: True)
    assert choose(TrainingConfig(), "linear", 1).backend == "cuda"
    assert choose(TrainingConfig(device="cpu"), "linear", 1).backend == "reference"
    for settings in (
        {"backend": "cuda", "device": "cpu"},
        {"backend": "processes", "device": "cuda"},
    ):
        with pytest.raises(ConfigError, match="contradict"):
            choose(TrainingConfig(**settings), "linear", 1)
    monkeypatch.setattr("deltafl.sim.cohort.hardware.torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="no CUDA device"):
        choose(TrainingConfig(backend="cuda"), "linear", 1)
