"""The truth beside the record: what devices had to hide, round by round, and how far it goes."""

from dataclasses import replace

import numpy as np
import pytest
from honest_runs import config_of

from deltafl.fl.strategies.base import TrainingState
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.truth_rounds import TruthRounds, input_of, passes
from deltafl.sim.record.truth import DeviceTruth, Told, TruthWriter
from deltafl.sim.run.algorithms import build_strategy

RUN_ID = bytes(16)


@pytest.fixture
def written(tmp_path):
    """A file of rounds 1 to 3, of devices 4 and 7 in turns, and its digest after each."""
    writer = TruthWriter(tmp_path / "truth.sqlite", RUN_ID, 0, b"", keeps_updates=True)
    digests = []
    for number in (1, 2, 3):
        device = 4 + 3 * (number % 2)
        told = Told({(device, 0): (number / 2, 5)}, {(device, 0): np.ones(2, np.float32)})
        told.seeds[bytes([number] * 16), device] = bytes(32), b""
        writer.add(number, told)
        digests.append(writer.flush())
    writer.close()
    return tmp_path / "truth.sqlite", digests


def test_every_round_has_the_truth_of_its_devices(written):
    path, digests = written
    truth = TruthRounds(path, RUN_ID)
    for number, digest in enumerate(digests, 1):
        hidden = truth.of(number)
        ((device, one),) = hidden.devices.items()
        assert (device, one.loss, one.weight, one.passed) == (
            4 + 3 * (number % 2),
            number / 2,
            5,
            1,
        )
        assert hidden.inputs == {(device, 0): one}
        assert hidden.seeds.keys() == {(bytes([number] * 16), device)}
        assert hidden.digest == digest
    assert truth.of(4).devices == {}
    assert truth.of(4).digest == digests[-1]
    assert truth.to_the_end() == []


def test_rounds_that_nobody_asks_for_are_named(written):
    truth = TruthRounds(written[0], RUN_ID)
    nothing, second = truth.of(0), truth.of(2)
    assert nothing.devices == {}
    assert nothing.digest not in written[1]
    assert second.devices.keys() == {4}
    assert second.digest == written[1][1]
    assert truth.to_the_end() == [1, 3]


def test_several_levels_have_no_truth_of_one(tmp_path):
    writer = TruthWriter(tmp_path / "t.sqlite", RUN_ID, 0, b"", keeps_updates=True)
    writer.add(1, Told({(4, 0): (1.0, 5), (4, 1): (2.0, 5)}))
    writer.flush()
    writer.close()
    hidden = TruthRounds(tmp_path / "t.sqlite", RUN_ID).of(1)
    assert hidden.devices == {}
    assert hidden.inputs.keys() == {(4, 0), (4, 1)}


def test_what_a_device_had_to_hide_follows_from_its_truth():
    """Zeros of those that do not pass, and nothing of those whose update is not there."""
    state = TrainingState(np.zeros(2, np.float32))
    config = build_strategy(config_of()).levels_for(state, 10).rounds[0]
    trained = DeviceTruth(1, 4, 0, 1.0, 3, passed=True, update=np.ones(2, np.float32))
    low, high = Threshold(0, 0), Threshold(2 * config.search.grid.max_tick, 0)
    assert passes(trained, config, low)
    assert not passes(trained, config, high)
    assert input_of(trained, config, low).any()
    assert not input_of(trained, config, high).any()
    assert input_of(replace(trained, update=None), config, low) is None
    assert input_of(replace(trained, loss=float("nan")), config, low) is not None
    assert input_of(trained, config, Query("histogram", (1,))) is None


def test_the_truth_of_another_run_is_refused(written):
    with pytest.raises(UserError, match="of run"):
        TruthRounds(written[0], bytes(15) + b"\x01")
