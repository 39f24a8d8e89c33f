"""Event files for TensorBoard: what is in them, also after a run was resumed."""

import struct

import pytest
from doubles import Killed, KilledAfter, run
from records import evaluations_of, events_of

from deltafl.sim.cli import main
from deltafl.sim.run import tensorboard
from deltafl.sim.run.progress import Several
from deltafl.sim.settings.config_io import build_config

CONFIG = build_config(
    [
        {
            "data": {"num_devices": 8},
            "federation": {
                "algorithm": "delta-fl",
                "rounds": 4,
                "cohort_size": 3,
                "evaluate_every": 2,
            },
            "experiment": {"num_seeds": 1, "baselines": ["fedavg"]},
        }
    ]
)


def read(folder):
    """Scalars and histograms of the only event file of a folder, by tag and step."""
    protocol = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = folder.iterdir()
    data, at = path.read_bytes(), 0
    scalars, histograms = {}, {}
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = protocol.Event.FromString(data[at + 12 : at + 12 + size])
        at += 12 + size + 4
        for value in event.summary.value:
            if value.HasField("histo"):
                assert (value.tag, event.step) not in histograms
                histograms[value.tag, event.step] = value.histo.num
            else:
                assert (value.tag, event.step) not in scalars
                scalars[value.tag, event.step] = value.simple_value
    return scalars, histograms


def folders(path):
    return {one.name: one for one in (path / tensorboard.FOLDER).iterdir()}


def test_scalars_and_histograms_are_those_of_the_run_directory(tmp_path):
    pytest.importorskip("tensorboardX")
    board = tensorboard.TensorBoard(tmp_path / "run")
    run(CONFIG, tmp_path / "run", progress=board)
    board.close()
    assert sorted(folders(tmp_path / "run")) == ["delta-fl-seed-1", "fedavg-seed-1"]
    places = {"delta-fl-seed-1": "", "fedavg-seed-1": "arms/fedavg-seed-1"}
    for name, folder in folders(tmp_path / "run").items():
        scalars, histograms = read(folder)
        place = tmp_path / "run" / places[name]
        for event in events_of(place):
            kept = scalars["round/kept_devices", event["round"]]
            assert kept == event["kept_devices"]
        for one in evaluations_of(place):
            errors = [device.error for device in one.test]
            mean = scalars["test_error/mean", one.round]
            assert mean == pytest.approx(sum(errors) / len(errors), abs=1e-6)
            assert histograms["test_error/devices", one.round] == len(errors)


@pytest.mark.slow
def test_after_a_resumed_run_every_step_is_there_once(tmp_path):
    pytest.importorskip("tensorboardX")
    board = tensorboard.TensorBoard(tmp_path / "run")
    with pytest.raises(Killed):
        run(CONFIG, tmp_path / "run", progress=Several((board, KilledAfter(2))))
    board.close()
    board = tensorboard.TensorBoard(tmp_path / "run")
    run(CONFIG, tmp_path / "run", resume=True, progress=board)
    board.close()
    for folder in folders(tmp_path / "run").values():
        scalars, _ = read(folder)
        assert [step for tag, step in scalars if tag == "round/wall_s"] == [1, 2, 3, 4]
        assert sorted(step for tag, step in scalars if tag == "test_error/mean") == [0, 2, 4]


def test_without_the_package_the_command_says_what_to_install(tmp_path, monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(tensorboard, "import_module", missing)
    out = tmp_path / "run"
    assert main(["run", "--preset", "quickstart", "--tensorboard", "--out", str(out)]) == 2
    assert "pip install '.[tensorboard]'" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_stages_of_a_session_are_scalars(tmp_path):
    pytest.importorskip("tensorboardX")
    config = build_config(
        [
            {
                "data": {"num_devices": 24},
                "federation": {"algorithm": "private-delta-fl", "rounds": 1, "cohort_size": 8},
                "privacy": {"min_cohort": 5},
                "experiment": {"num_seeds": 1, "baselines": []},
            }
        ]
    )
    board = tensorboard.TensorBoard(tmp_path / "run")
    run(config, tmp_path / "run", progress=board)
    board.close()
    (folder,) = folders(tmp_path / "run").values()
    scalars, _ = read(folder)
    (event,) = events_of(tmp_path / "run")
    assert len(event["stage_s"]) == 5
    for stage, seconds in event["stage_s"].items():
        assert scalars[f"round/stage_s/{stage}", 1] == pytest.approx(seconds)
