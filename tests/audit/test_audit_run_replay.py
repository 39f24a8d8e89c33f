"""What an audit opens of what a record names: nothing."""

import pytest
import records

from deltafl.sim.inspect.audit import run_replay
from deltafl.sim.inspect.audit.run_replay import RunReplay, Unplayable
from deltafl.sim.settings.config_io import build_config, merge

NOT_HERE = {
    "a file": ({"data": {"source": "/etc/own.csv"}}, "the data are in '/etc/own.csv', and no file"),
    "word vectors": ({"data": {"vectors": "/etc/glove.npz"}}, "no file is opened"),
    "a module": ({"own": {"module": "own:Net"}, "model": {"name": "own"}}, "own code"),
    "an optimiser": ({"own": {"optimizer": "own:Sgd"}, "training": {"optimizer": "own"}}, "own"),
    "a module of a known name": ({"own": {"module": "own:Net"}}, "own code"),
    "machines": ({"federation": {"devices": "remote"}}, "devices on machines: "),
}


@pytest.fixture
def opens_nothing(monkeypatch):
    def opened(_config):
        raise AssertionError("it opens what the record names")

    monkeypatch.setattr(run_replay, "subject_of", opened)


def passed_over(path, sections):
    """What is not compared in a run that has no rounds yet, and so no first model."""
    config = merge([sections])
    with records.write_run(path, config).read() as record:
        replay = RunReplay(config, {})
        with pytest.raises(Unplayable, match="nothing says what its first model is"):
            replay.compare(record)
    return replay.passed_over


@pytest.mark.usefixtures("opens_nothing")
@pytest.mark.parametrize("name", NOT_HERE)
def test_no_code_and_no_file_is_opened_because_a_record_names_it(tmp_path, name):
    sections, said = NOT_HERE[name]
    assert any(said in one for one in passed_over(tmp_path / "run", sections))


@pytest.mark.usefixtures("opens_nothing")
def test_generated_data_are_made(tmp_path):
    """Control: what the others would come to."""
    with pytest.raises(AssertionError, match="it opens"):
        passed_over(tmp_path / "run", {})


def test_a_strategy_of_somebody_s_own_is_not_run(tmp_path):
    config = build_config([{"federation": {"algorithm": "private-own"}}])
    with (
        records.write_run(tmp_path / "run", config).read() as record,
        pytest.raises(Unplayable, match="owner's own code"),
    ):
        RunReplay(config, {}).compare(record)
