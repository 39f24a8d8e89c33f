"""Whoever is told how training goes on may end it; what is done is kept."""

import json
from itertools import chain

import pytest
from api_network import FEW, network

import deltafl as dfl
from deltafl.fl.parameters import to_vector
from deltafl.sim.cli import main
from deltafl.sim.errors import RunDirectoryError, RunError

SIX = FEW | {"rounds": 6}


class Noting(dfl.Callback):
    def __init__(self):
        self.said = []

    def begin(self, config, rounds_done):
        self.said.append(("begin", config.experiment.seed, rounds_done))

    def played(self, event):
        self.said.append(("played", event["round"]))

    def evaluated(self, round_number, errors):
        assert list(errors) == ["train", "test"]
        self.said.append(("evaluated", round_number, 0 <= errors["test"].mean <= 1))


class Ending(dfl.Callback):
    """Ends a run, or all of them, after some round of one seed."""

    def __init__(self, after, how, seed=1):
        self.after, self.how, self.of, self.seed = after, how, seed, None

    def begin(self, config, _):
        self.seed = config.experiment.seed

    def played(self, event):
        if event["round"] == self.after and self.seed == self.of:
            raise self.how


def test_a_callback_is_told_every_round_and_evaluation(federation, tmp_path):
    noting = Noting()
    dfl.train(network, federation, "fedavg", out=tmp_path / "r", callbacks=[noting], **FEW)
    rounds = [[("evaluated", n, True), ("played", n)] for n in (1, 2, 3)]
    assert noting.said == [("begin", 1, 0), ("evaluated", 0, True), *chain(*rounds)]


def test_a_callback_without_overrides_changes_nothing(federation, tmp_path):
    found = [
        dfl.train(network, federation, "fedavg", out=tmp_path / name, callbacks=each, **FEW)
        for name, each in (("with", [dfl.Callback()]), ("without", []))
    ]
    assert len({to_vector(one.module()).tobytes() for one in found}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "private-delta-fl"])
def test_who_stops_a_seed_gets_what_there_is_and_the_others_go_on(federation, tmp_path, strategy):
    out = tmp_path / "run"
    options = SIX | {"seeds": 2, "out": out}
    found = dfl.train(network, federation, strategy, callbacks=[Ending(2, dfl.Stop)], **options)
    assert found.rounds == {1: 2, 2: 6}
    assert (found.is_finished, found.summary) == (False, {})
    assert "stopped before its last round" in repr(found)
    history = found.history()
    assert history.groupby("seed")["round"].max().to_dict() == {1: 2, 2: 6}
    assert set(found.devices()["seed"]) == {1, 2}
    assert found.plot().axes[0].get_lines()
    with_all = dfl.train(network, federation, strategy, resume=True, **options)
    assert with_all.is_finished
    assert with_all.rounds == {1: 6, 2: 6}
    whole = dfl.train(network, federation, strategy, **options | {"out": tmp_path / "whole"})
    for seed in (1, 2):
        ours, theirs = with_all.module(seed), whole.module(seed)
        assert to_vector(ours).tobytes() == to_vector(theirs).tobytes()


@pytest.mark.slow
def test_of_a_run_that_was_stopped_an_audit_says_that_and_nothing_else(
    federation, tmp_path, capsys
):
    out = tmp_path / "run"
    dfl.train(network, federation, out=out, callbacks=[Ending(2, dfl.Stop)], **SIX)
    main(["audit", str(out), "--json"])
    findings = json.loads(capsys.readouterr().out)["findings"]
    serious = [one["rule"] for one in findings if one["severity"] not in ("low", "info")]
    assert serious == ["record.unfinished"]


@pytest.mark.slow
def test_an_interrupted_run_says_where_it_is_and_can_be_read_or_resumed(federation, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt) as caught:
        dfl.train(network, federation, out=out, callbacks=[Ending(2, KeyboardInterrupt)], **SIX)
    assert f"pass out={str(out)!r} and resume=True" in caught.value.__notes__[0]
    opened = dfl.Result.open(out, network)
    assert opened.rounds == {1: 2}
    assert not opened.is_finished
    assert opened.test_errors().shape == (1, 20)
    resumed = dfl.train(network, federation, out=out, resume=True, **SIX)
    whole = dfl.train(network, federation, out=tmp_path / "b", **SIX)
    ours, theirs = resumed.module(), whole.module()
    assert to_vector(ours).tobytes() == to_vector(theirs).tobytes()
    assert to_vector(opened.module()).tobytes() == to_vector(theirs).tobytes()


def test_another_error_of_a_callback_is_the_callers(federation, tmp_path):
    with pytest.raises(ZeroDivisionError):
        dfl.train(
            network, federation, out=tmp_path / "r", callbacks=[Ending(1, ZeroDivisionError)], **SIX
        )


def test_what_is_no_run_is_not_opened(federation, tmp_path):
    with pytest.raises(RunDirectoryError, match=r"no record\.sqlite"):
        dfl.Result.open(tmp_path)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        dfl.train(network, federation, out=out, callbacks=[Ending(1, KeyboardInterrupt)], **FEW)
    with pytest.raises(RunError, match="`model`"):
        dfl.Result.open(out).module()
    with pytest.raises(ValueError, match="seed=9: must be one of 1"):
        dfl.Result.open(out, network).module(9)


def test_a_finished_run_gets_longer_and_is_measured_as_often(federation, tmp_path):
    """With twice as many rounds, a new run would be measured every other round only."""
    short = dfl.train(network, federation, "fedavg", out=tmp_path / "a", rounds=20, progress=False)
    before = short.history()
    with pytest.warns(UserWarning, match="from 20 to 40 rounds"):
        longer = dfl.train(
            network,
            federation,
            "fedavg",
            out=tmp_path / "a",
            rounds=40,
            resume=True,
            progress=False,
        )
    often = {"federation": {"evaluate_every": 1}}
    whole = dfl.train(network, federation, "fedavg", rounds=40, settings=often, progress=False)
    assert longer.history().equals(whole.history())
    assert (len(before) < len(longer.history()), longer.rounds) == (True, {1: 40})
