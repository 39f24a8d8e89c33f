"""What a model does on the devices' test data, as sums over the devices."""

import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict, replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federations import Federation, settings, wired
from hypothesis import given
from hypothesis import strategies as st
from records import change, checkpoint_of, note, rows_of, write_rows

from deltafl.fl.local import Learner
from deltafl.fl.vectors import vector_sha256
from deltafl.protocol.levels import Levels
from deltafl.secagg import ClientId, TrustedKeys
from deltafl.sim.cli import main
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.net.frames import Decline, Reason, Task, decode, encode
from deltafl.sim.net.own_work import (
    MeasuringWork,
    OwnData,
    RoundWork,
    SummedMetrics,
    marked,
    measuring_levels,
    work_on,
)
from deltafl.sim.net.remote import RemoteDevices
from deltafl.sim.record.record import read_measured, write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import INTERRUPTED
from deltafl.sim.run.simulated import spec_of

SPLIT = {"data": {"num_devices": 30, "split": "samples"}, "privacy": {"min_cohort": 6}}


def federation(*more, algorithm="private-delta-fl"):
    """Devices that have test samples, all but the last three."""
    made = Federation(settings(algorithm, SPLIT, *more))
    made.results = []
    object.__setattr__(made.site, "measured", made.results.append)
    for index, side in enumerate(made.sides):
        test = made.dataset.test[index] if index < len(made.sides) - 3 else None
        shapes = spec_of(made.config, made.dataset)
        data = OwnData(made.dataset.train[index], shapes, test=test)
        side.work_of = work_on(data, side.own.client)
    return made


def in_clear(made, model):
    """The same numbers, as whoever has all data knows them."""
    spec = spec_of(made.config, made.dataset)
    tested = made.dataset.test[: len(made.sides) - 3]
    each = Learner(spec.build(), device=torch.device("cpu")).evaluate(model, tested)
    samples = sum(one.num_samples for one in each)
    error = sum(one.num_samples * one.error for one in each) / samples
    return samples, error, sum(one.num_samples * one.loss for one in each) / samples


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    path = tmp_path_factory.mktemp("measured") / "run"
    made = federation()
    with wired(made):
        state = made.play(path)
    return made, state, path


def test_the_sums_are_those_of_the_test_data(played):
    made, state, _ = played
    first, last = made.results
    assert (first.round, last.round) == (0, 3)
    samples, error, loss = in_clear(made, state.model)
    assert last.lost is None
    assert last.devices == len(made.sides)
    assert last.samples == samples
    # each device's share is rounded to 1/1024 of a sample; its loss to a tick, and then in the sum
    layout = measuring_levels(made.config, len(made.sides)).common.update_layout
    bits = next(one.resolution_bits for one in layout.fields if one.name == "weighted_loss")
    rounded = 2.0**-17 + len(made.sides) * 2.0 ** -(bits + 1) / samples
    assert last.error == pytest.approx(error, abs=len(made.sides) / 2048 / samples)
    assert last.loss == pytest.approx(loss, abs=rounded)
    assert last.error < first.error
    assert not made.declined


@pytest.mark.slow
def test_they_are_kept_with_the_messages_that_gave_them(played, capsys):
    made, state, path = played
    names = sorted(one.name for one in (path / "measured").iterdir())
    assert names == [f"round-00000{i}-level-0.sqlite" for i in (0, 3)]
    with RunDirectory(path).read() as record:
        (_, first), (_, kept) = read_measured(record)
    assert first["round"] == 0
    assert kept.pop("model_sha256") == vector_sha256(state.model).hex()
    assert kept == asdict(made.results[-1])
    assert main(["audit", str(path / "measured" / names[-1]), "--fail-on", "high"]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_the_run_itself_is_as_without(played, tmp_path):
    made, state, path = played
    assert main(["audit", str(path), "--fail-on", "medium"]) == 0
    without = Federation(made.config)
    with wired(without):
        assert without.play(tmp_path / "run").model.tobytes() == state.model.tobytes()


@pytest.mark.slow
def test_every_level_is_measured(tmp_path):
    made = federation(
        {
            "federation": {"levels": ["1", "0.5"], "evaluate_every": 10},
            "privacy": {"colluding": 0},
        }
    )
    with wired(made):
        made.play(tmp_path / "run")
    assert [(one.round, one.level) for one in made.results] == [(0, 0), (0, 1), (3, 0), (3, 1)]
    assert len({one.error for one in made.results}) == 4
    assert not made.declined


@pytest.mark.slow
def test_what_was_measured_is_not_measured_again(tmp_path):
    made = federation()
    with wired(made):
        made.play(tmp_path / "run")
        number = len(made.results)
        note(tmp_path / "run", "summary", None)  # the run is taken up once more
        made.begin_server()
        object.__setattr__(made.site, "measured", made.results.append)
    with wired(made):
        made.play(tmp_path / "run")
    assert len(made.results) == number
    assert not made.declined


@pytest.mark.slow
def test_a_measurement_that_was_interrupted_is_lost(tmp_path):
    """As of a server that was killed while devices measured the last model."""
    made = federation()
    with wired(made):
        made.play(tmp_path / "run")
        note(tmp_path / "run", "summary", None)
        change(tmp_path / "run", "DELETE FROM measured WHERE round = 3")
        (last,) = (tmp_path / "run" / "measured").glob("*3-level-0.sqlite")
        rows = rows_of(last)
        write_rows(last, rows[: len(rows) // 2])
        with closing(sqlite3.connect(last)) as db:
            db.execute("DELETE FROM about")  # else, the measurement goes on
            db.commit()
        made.begin_server()
        object.__setattr__(made.site, "measured", made.results.append)
    with wired(made):
        made.play(tmp_path / "run")
    assert [one.round for one in made.results] == [0, 3, 3]
    assert "the server's process ended" in made.results[-1].lost
    assert not made.declined


@pytest.mark.slow
def test_too_few_devices_measure_nothing_and_the_run_goes_on(tmp_path):
    """Nobody goes on when the model is measured."""
    made = federation({"federation": {"rounds": 2}})

    def change(index, data):
        frame = decode(data)
        if not isinstance(frame, Task) or not frame.measures:
            return [data]
        gone = encode(Decline(frame.task, Reason.UNKNOWN))
        made.post.received(made.wires.lines[index], gone)
        return []

    with wired(made, change) as made.wires:
        state = made.play(tmp_path / "run")
    assert state.round == 2
    assert [one.lost is None for one in made.results] == [False, False]
    assert made.results[0].error is None
    assert "nothing was measured" in str(made.results[0])


@pytest.mark.slow
@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
def test_the_record_of_an_interrupted_measurement_can_be_audited(played, tmp_path, capsys, left):
    """However much of it was written."""
    whole = sorted((played[2] / "measured").glob("*.sqlite"))[-1]
    torn = shutil.copy(whole, tmp_path / "torn.sqlite")
    rows = rows_of(torn)
    write_rows(torn, rows[: int(left * len(rows))])
    with closing(sqlite3.connect(torn)) as db:
        db.execute("DELETE FROM about")
        db.commit()
    made, state, _ = played
    devices = RemoteDevices(made.config, made.site, None)
    assert devices._measure(state.model, 3, 0, torn).lost == INTERRUPTED
    assert main(["audit", str(torn), "--fail-on", "medium"]) == 0, capsys.readouterr().out
    capsys.readouterr()


def test_a_record_that_is_damaged_is_left_to_the_audit(played, tmp_path):
    whole = sorted((played[2] / "measured").glob("*.sqlite"))[-1]
    path = shutil.copy(whole, tmp_path / "damaged.sqlite")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE messages SET peer = peer + 1 WHERE number = 9")
        db.commit()
    made, state, _ = played
    before = rows_of(path)
    devices = RemoteDevices(made.config, made.site, None)
    assert devices._measure(state.model, 3, 0, path).lost == INTERRUPTED
    assert rows_of(path) == before


@pytest.mark.slow
def test_a_model_that_stays_is_not_measured_again_by_another_process(tmp_path):
    """Its devices would refuse. Here no round changes it, for all devices decline."""
    made = federation()
    path = tmp_path / "run"
    with wired(made):
        made.play(path)
    model = checkpoint_of(path).state.model
    with write_record(RunDirectory(path).record) as record:
        site = replace(made.site, records=path / "measured", record=record)
        RemoteDevices(made.config, site, None).evaluate([model], 4)
        assert len(made.results) == len(list(read_measured(record))) == 2


def test_few_devices_may_have_large_ids():
    made = federation()
    keys = {ClientId(4_000_000_000): bytes(32), ClientId(7): b"7" * 32}
    site = replace(made.site, devices=TrustedKeys(keys))
    for client in keys:
        made.post.connect(client, lambda: None)
    devices = RemoteDevices(made.config, site, None)
    assert devices.present(2, set()).tolist() == [7, 4_000_000_000]
    assert devices.present(1, {7}).tolist() == [4_000_000_000]


# A device's part.


@pytest.fixture(scope="module")
def device():
    config = settings("private-delta-fl", SPLIT)
    dataset = build_dataset(config.data)
    spec = spec_of(config, dataset)
    learner = Learner(spec.build(), device=torch.device("cpu"))
    work = MeasuringWork(dataset.test[0], config, announced_to(config), lambda: learner)
    return work, learner, dataset.test[0]


def announced_to(config, levels=None):
    """A device's side of a round, as far as a work looks at it."""
    return SimpleNamespace(levels=levels or measuring_levels(config, 10))


def test_a_device_gives_what_it_measures(device):
    work, learner, samples = device
    model = np.random.default_rng(1).normal(size=640).astype(np.float32)
    announced = marked(model).tobytes()
    (expected,) = learner.evaluate(model, [samples])
    assert work.weight() == samples.num_samples
    assert work.loss(announced) == expected.loss
    assert work.update(announced).tolist() == [np.float32(expected.error)]
    assert work.update(announced).dtype == np.float32
    assert work.wait(announced) is None


@pytest.mark.parametrize("mark", [0.0, -1.0, math.nan, math.inf])
def test_a_model_that_is_to_be_trained_is_not_measured(device, mark):
    announced = np.append(np.ones(640, np.float32), np.float32(mark)).tobytes()
    for ask in (device[0].loss, device[0].update):
        with pytest.raises(ValueError, match="not marked"):
            ask(announced)


def test_a_marked_model_is_not_trained_from(device):
    """Its size is wrong, so the device's update counts as zeros."""
    with pytest.raises(Exception, match=r"641|size|shape"):
        device[1].evaluate(marked(np.zeros(640, np.float32)), [device[2]])


def test_without_test_data_a_device_counts_for_nothing():
    nothing = settings()
    work = MeasuringWork(
        None, nothing, announced_to(nothing), lambda: pytest.fail("there is nothing to measure")
    )
    announced = marked(np.zeros(3, np.float32)).tobytes()
    assert work.weight() == 0
    assert work.loss(announced) == 0.0
    assert work.update(announced).tolist() == [0.0]


def test_a_device_measures_only_by_sums_over_all(device):
    """A search among test losses, a tail of them, or another resolution: the server may ask."""
    config = settings("private-delta-fl", SPLIT)
    (usual,) = measuring_levels(config, 10).rounds
    work, _, samples = device
    announced = marked(np.zeros(640, np.float32)).tobytes()
    others = [
        {"theta": Fraction(1, 2)},
        {"update_length": 641},
        {"update": replace(usual.update, max_weight=usual.update.max_weight + 1)},
        {"warm_start": 3},
    ]
    for other in [*others, None]:
        levels = None if other is None else Levels((replace(usual, **other),))
        machine = announced_to(config, levels) if other else SimpleNamespace(levels=None)
        asked = MeasuringWork(samples, config, machine, work._backend)
        for ask in (asked.weight, lambda of=asked: of.loss(announced)):
            with pytest.raises(ValueError, match="not how a model is measured"):
                ask()
        with pytest.raises(ValueError, match="not how a model is measured"):
            asked.update(announced)


def test_the_task_says_what_is_to_be_done():
    config = settings("private-delta-fl", SPLIT)
    dataset = build_dataset(config.data)
    work_of = work_on(OwnData(dataset.train[0], spec_of(config, dataset)), ClientId(0))
    text = b"[training]\nlearning_rate = 0.1\n"
    assert isinstance(work_of(Task(bytes(16), 0, 0, text), None), RoundWork)
    assert isinstance(work_of(Task(bytes(16), 0, 0, text, measures=True), None), MeasuringWork)


@pytest.mark.slow
@given(st.integers(1, 5000))
def test_what_is_announced_asks_no_query_and_one_number(devices):
    (round_,) = measuring_levels(settings(), devices).rounds
    assert not round_.selects
    assert round_.update_length == 1
    assert round_.num_query_slots == 0


@pytest.mark.parametrize(
    ("sums", "said"),
    [
        (SummedMetrics(5, 0, 9, 70, 0.25, 1.5, None), "test error 25.0% and loss 1.500, of 70"),
        (SummedMetrics(5, 0, 9, 0, None, None, None), "no device that answered has test data"),
        (SummedMetrics(5, 0, 0, 0, None, None, "why"), "nothing was measured: why"),
    ],
)
def test_what_came_out_in_words(sums, said):
    assert said in str(sums)


def test_a_metric_that_is_no_share_is_measured_within_the_bound_of_losses():
    """So a mean absolute error of 8 m is 8 m, and not cut off at 1."""
    numbers = {
        "data": {"unit": "m"},
        "training": {"loss": "mse", "metric": "mae"},
        "own": {"module": "any.package:net"},
    }
    config = settings("private-delta-fl", numbers)
    found = SimpleNamespace(evaluate=lambda *_: [SimpleNamespace(error=8.0, loss=1.0)])
    work = MeasuringWork(object(), config, announced_to(config), lambda: found)
    (share,) = work.update(marked(np.zeros(3, np.float32)).tobytes())
    outcome = SimpleNamespace(
        update=[share], kept_devices=4, kept_weight=9, train_loss=1.0, aborted=None
    )
    sums = SummedMetrics.of(outcome, 5, 0, config)
    assert str(sums).startswith("after round 5, mean absolute error 8 m and loss 1.000, of 9 samp")
    assert sums.metric == "mae"
