"""A run that is made longer is, bit for bit, the one that was begun with as many rounds."""

from dataclasses import replace

import pytest
from doubles import Killed, Silent, run
from records import events_of, toml_of
from resumed import kill_at_write, result

from deltafl.sim.cli import main
from deltafl.sim.errors import RunDirectoryError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import Closing, Resumed, read_transcript
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.settings.config import ExperimentConfig
from deltafl.sim.settings.config_io import build_config

pytestmark = pytest.mark.usefixtures("no_figures")

MASKED = {
    "data": {"num_devices": 24},
    "federation": {"rounds": 2, "cohort_size": 10, "evaluate_every": 3},
    "training": {"batch_size": 64, "device": "cpu"},
    "privacy": {"transcript": "full", "truth": True},
}


def of_rounds(config, rounds):
    return replace(config, federation=replace(config.federation, rounds=rounds))


def lengthened(config, path):
    """The summary of a run that is here and is made longer, and the notes that it gives."""
    told = []
    summary = run_experiment(config, path, resume=True, progress=Silent(), warn=told.append)
    return summary, told


def findings(path, truth=None):
    found = audit(path, Options(truth=truth)).findings
    return {(one.rule, one.severity.name) for one in found}


@pytest.mark.parametrize("rounds", [3, 4])
@pytest.mark.parametrize("algorithm", ["delta-fl", "fedavg", "afl", "aaggff-d"])
def test_it_has_the_same_bits(algorithm, rounds, tiny, tmp_path):
    """Also where the last evaluation of the short run is none that the long one makes."""
    changed = replace(tiny.federation, algorithm=algorithm, evaluate_every=2)
    short = of_rounds(replace(tiny, federation=changed), rounds)
    run(short, tmp_path / "run")
    before = result(tmp_path / "run")
    _, told = lengthened(of_rounds(short, 7), tmp_path / "run")
    assert told == [f"{tmp_path / 'run'}: from {rounds} to 7 rounds"]
    run(of_rounds(short, 7), tmp_path / "wanted")
    assert result(tmp_path / "run") == result(tmp_path / "wanted")
    assert before["model"] != result(tmp_path / "run")["model"]


@pytest.mark.slow
def test_all_runs_of_an_experiment_get_longer(tiny, tmp_path):
    config = replace(tiny, experiment=ExperimentConfig(seed=1, num_seeds=2, baselines=("fedavg",)))
    config = of_rounds(config, 2)
    run(config, tmp_path / "run")
    summary, _ = lengthened(of_rounds(config, 5), tmp_path / "run")
    wanted = run(of_rounds(config, 5), tmp_path / "wanted")
    assert summary["seeds"] == wanted["seeds"]
    assert summary["rounds"] == 5
    for arm in RunDirectory(tmp_path / "run").arms.iterdir():
        assert result(arm) == result(tmp_path / "wanted" / "arms" / arm.name)


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_it_is_made_longer_it_goes_on_to_the_same_bits(
    after, tiny, tmp_path, monkeypatch
):
    short, long = of_rounds(tiny, 2), of_rounds(tiny, 3)
    run(long, tmp_path / "wanted")
    for number in (1, 2, 3):
        path = tmp_path / str(number)
        run(short, path)
        with monkeypatch.context() as patch:
            kill_at_write(patch, number, after=after)
            with pytest.raises(Killed):
                lengthened(long, path)
        assert RunDirectory(path).finished(long, resume=True) is None
        lengthened(long, path)
        assert result(path) == result(tmp_path / "wanted")


@pytest.mark.slow
def test_a_masked_run_has_the_same_bits_and_a_clean_record(tmp_path):
    short = build_config([MASKED])
    path, wanted = tmp_path / "run", tmp_path / "wanted"
    run(short, path)
    lengthened(of_rounds(short, 4), path)
    run(of_rounds(short, 4), wanted)
    same, other = result(path), result(wanted)
    assert same == other
    ends = [
        record
        for record in read_transcript(path / "record.sqlite")
        if isinstance(record, Closing | Resumed)
    ]
    assert [(type(one), one.round) for one in ends] == [(Closing, 2), (Resumed, 2), (Closing, 4)]
    assert findings(path, path / "truth.sqlite") == findings(wanted, wanted / "truth.sqlite")
    assert not {severity for _, severity in findings(path)} & {"HIGH", "MEDIUM"}


def test_before_its_next_round_it_is_unfinished_and_not_cut(tmp_path):
    """The settings say more rounds by then than the record, which is closed."""
    short = build_config([MASKED])
    path = tmp_path / "run"
    run(short, path)
    with RunDirectory(path).claim(of_rounds(short, 4), resume=True):
        found = findings(path)
    assert ("run.unfinished", "MEDIUM") in found
    assert "HIGH" not in {severity for _, severity in found}


def test_a_federation_of_remote_devices_is_not_made_longer(tmp_path):
    remote = build_config([{"federation": {"devices": "remote", "rounds": 2}}])
    with RunDirectory(tmp_path / "run").claim(remote, resume=False):
        pass
    before = toml_of(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"= 2, not 3: devices .* were told how long"):
        RunDirectory(tmp_path / "run").check(of_rounds(remote, 3), resume=True)
    assert toml_of(tmp_path / "run") == before
    assert RunDirectory(tmp_path / "run").check(remote, resume=True) is None


def test_the_command_makes_it_longer_from_its_own_settings(
    capsys, tiny_arguments, tmp_path, monkeypatch
):
    def call(*arguments):
        code = main(["run", "--out=a", "--quiet", *arguments])
        return (code, *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    assert call(*tiny_arguments)[0] == 0
    code, out, err = call("--resume", "--rounds=6")
    assert (code, "a: from 4 to 6 rounds" in err) == (0, True)
    assert len(events_of(tmp_path / "a")) == 6
    assert call("--resume") == (0, out, "")
    code, _, err = call("--resume", "--rounds=9", "--set=federation.theta=1/3")
    assert (code, "started with federation.theta = 0.5, not 1/3" in err) == (2, True)
    assert {"record.sqlite", "bundle.npz"} <= {one.name for one in (tmp_path / "a").iterdir()}
    assert "rounds = 6\n" in toml_of(tmp_path / "a")


@pytest.mark.parametrize(
    ("algorithm", "aggregation"), [("delta-fl", "rfa"), ("private-fedavg", "clipped")]
)
def test_what_a_robust_aggregation_remembers_is_gone_on_with(algorithm, aggregation, tmp_path):
    sections = {
        "federation": {**MASKED["federation"], "algorithm": algorithm},
        "strategy": {"aggregation": aggregation},
    }
    short = build_config([{**MASKED, **sections}])
    path, wanted = tmp_path / "run", tmp_path / "wanted"
    run(short, path)
    lengthened(of_rounds(short, 4), path)
    run(of_rounds(short, 4), wanted)
    assert result(path) == result(wanted)
