"""Whole runs with devices that lie: the same attackers for all, told by the simulator alone."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from doubles import Killed, KilledAfter, run
from records import attacked_of, checkpoint_of, evaluations_of, events_of, read_truth, said_of

from deltafl.fl.data.checks import checked_device
from deltafl.fl.data.federated import DeviceData, Split, federate
from deltafl.sim.errors import ConfigError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import read_transcript
from deltafl.sim.run.arms import check_data
from deltafl.sim.run.fitting import known_of
from deltafl.sim.run.table import describe
from deltafl.sim.settings.attackers import AttackersConfig, Claim, Kind
from deltafl.sim.settings.config import FederationConfig, RunConfig
from deltafl.sim.settings.config_io import build_config

pytestmark = pytest.mark.usefixtures("no_figures")

SMALL = {
    "data": {"num_devices": 24},
    "federation": {"algorithm": "delta-fl", "rounds": 3, "cohort_size": 8, "evaluate_every": 3},
    "privacy": {"min_cohort": 4, "sums": "ideal"},
    "training": {"batch_size": 64, "device": "cpu", "backend": "reference"},
}
LYING = {"share": "1/4"}


def settings(**changes):
    names = SMALL.keys() | changes.keys()
    return build_config([{name: SMALL.get(name, {}) | changes.get(name, {}) for name in names}])


def model(path):
    return checkpoint_of(path).state.model


@pytest.mark.slow
def test_nobody_lies_by_default_and_a_share_of_0_changes_no_bit(tmp_path):
    run(settings(), tmp_path / "none")
    nobody = {"share": 0, "kind": "inner-product", "loss": "top", "weight": "largest"}
    summary = run(settings(attackers=nobody), tmp_path / "zero")
    assert model(tmp_path / "none").tobytes() == model(tmp_path / "zero").tobytes()
    last = [evaluations_of(tmp_path / name)[-1] for name in ("none", "zero")]
    assert last[0] == last[1]
    assert said_of(tmp_path / "zero", "attackers") is None
    assert "attackers" not in summary
    assert "ttacker" not in describe(summary)
    run(settings(attackers=LYING), tmp_path / "some")
    assert model(tmp_path / "none").tobytes() != model(tmp_path / "some").tobytes()


def test_all_methods_of_a_seed_meet_the_same_attackers(tmp_path):
    others = ("fedavg", "q-ffl", "private-delta-fl", "private-fedavg")
    config = settings(
        attackers={**LYING, "loss": "top"}, experiment={"baselines": others, "num_seeds": 2}
    )
    summary = run(config, tmp_path / "run")
    who = {}
    for number, arm in enumerate(config.arms()):
        name = f"{arm.federation.algorithm}-seed-{arm.experiment.seed}"
        path = tmp_path / "run" / "arms" / name if number else tmp_path / "run"
        found = attacked_of(path)
        who.setdefault(arm.experiment.seed, set()).add(found.population.attackers)
        told = summary["seeds"][arm.federation.algorithm][str(arm.experiment.seed)]["attackers"]
        assert told["corrupted_share"] == pytest.approx(np.mean(list(found.shares.values())))
        assert told["number"] == 3
    assert [len(sets) for sets in who.values()] == [1, 1]
    assert who[1] != who[2]
    shown = describe(summary)
    assert "Attackers: 3 of the 12 train devices, sign-flipped, claims the top loss" in shown
    assert "errors are of honest devices" in shown
    share = np.mean(
        [one["attackers"]["corrupted_share"] for one in summary["seeds"]["fedavg"].values()]
    )
    assert f"  {'fedavg':<24}{share:>19.1%}" in shown


@pytest.mark.slow
@pytest.mark.parametrize("kind", Kind)
def test_under_masks_as_with_ideal_sums(tmp_path, kind):
    attackers = {**LYING, "kind": str(kind), "loss": "above-eta"}
    for sums in ("masked", "ideal"):
        config = settings(
            attackers=attackers,
            federation={"algorithm": "private-delta-fl"},
            privacy={"sums": sums},
            faults={"dropout": 0.1},
        )
        run(config, tmp_path / sums)
    masked, ideal = (tmp_path / sums for sums in ("masked", "ideal"))
    assert model(masked).tobytes() == model(ideal).tobytes()
    assert attacked_of(masked) == attacked_of(ideal)


@pytest.mark.slow
@pytest.mark.parametrize("claim", Claim)
def test_the_corrupted_share_is_that_of_an_independent_count(tmp_path, claim):
    config = settings(
        attackers={**LYING, "loss": str(claim)},
        federation={"algorithm": "private-delta-fl", "rounds": 6},
        privacy={"sums": "masked", "truth": True},
    )
    path = tmp_path / "run"
    run(config, path)
    events = events_of(path)
    found = attacked_of(path)
    opening = next(iter(read_transcript(path / "record.sqlite")))
    truth = list(read_truth(path / "truth.sqlite", opening.run_id))
    for event in events:
        passed = {
            one.device: one.weight for one in truth if one.round == event["round"] and one.passed
        }
        lying = sum(passed[one] for one in set(passed) & set(found.population.attackers))
        assert sum(passed.values()) == event["kept_weight"]
        assert found.shares[event["round"]] == pytest.approx(lying / sum(passed.values()))
    assert any(0 < share < 1 for share in found.shares.values())


@pytest.mark.parametrize("algorithm", ["fedavg", "delta-fl", "afl", "private-q-ffl"])
def test_it_adds_up_to_the_weight_that_the_server_kept(tmp_path, algorithm):
    config = settings(
        attackers={**LYING, "weight": "largest"},
        federation={"algorithm": algorithm},
        faults={"dropout": 0.2},
    )
    path = tmp_path / "run"
    run(config, path)
    found = attacked_of(path)
    events = {event["round"]: event for event in events_of(path)}
    for number, share in found.shares.items():
        event = events[number]
        lying = set(event["cohort"]) & set(found.population.attackers)
        weight = share * event["kept_weight"]
        assert 0 <= share <= 1
        if algorithm != "private-q-ffl":  # in units of its own
            assert weight / 8192 == pytest.approx(round(weight / 8192))
            assert weight <= 8192 * len(lying)
    assert any(found.shares.values())


@pytest.mark.slow
def test_the_server_sees_nothing_of_it(tmp_path):
    for name, attackers in (("clean", {}), ("lying", LYING)):
        config = settings(
            attackers=attackers,
            federation={"algorithm": "private-delta-fl"},
            privacy={"sums": "masked", "transcript": "full"},
        )
        run(config, tmp_path / name)
    clean, lying = tmp_path / "clean", tmp_path / "lying"
    keys = [[sorted(one) for one in events_of(path)] for path in (clean, lying)]
    assert keys[0] == keys[1]
    first = [
        [(type(one).__name__, len(getattr(one, "data", b"") or b"")) for one in _first_round(path)]
        for path in (clean, lying)
    ]
    assert first[0] == first[1], "as many messages, as long"
    words = ("attack", "corrupt", "backdoor", "sign-flipped")
    for table in ("rounds", "messages", "bodies", "sums", "events", "evaluations"):
        assert not any(word in told(lying, table) for word in words), table
    assert "corrupt" in told(lying, "attackers"), "the words are found if there"


def told(path, table):
    """All that a table says, bytes as the characters that they are in Latin 1."""
    with RunDirectory(path).read() as record:
        values = [value for row in record.db.execute(f"SELECT * FROM {table}") for value in row]  # noqa: S608
    return "\n".join(
        value.decode("latin-1") if isinstance(value, bytes) else str(value) for value in values
    )


def _first_round(path):
    for record in read_transcript(path / "record.sqlite"):
        yield record
        if type(record).__name__ == "RoundEnd":
            return


@pytest.mark.parametrize("kind", ["free-rider-last", "free-rider-noise", "backdoor"])
def test_a_run_that_was_killed_goes_on_to_the_same_bits(tmp_path, kind):
    config = settings(
        attackers={**LYING, "kind": kind, "loss": "raise-eta"},
        federation={"rounds": 5, "evaluate_every": 2},
    )
    run(config, tmp_path / "whole")
    for rounds in (2, 3):
        path = tmp_path / f"killed-{rounds}"
        with pytest.raises(Killed):
            run(config, path, progress=KilledAfter(rounds))
        run(config, path, resume=True)
        assert model(path).tobytes() == model(tmp_path / "whole").tobytes()
        ours, whole = (attacked_of(one) for one in (path, tmp_path / "whole"))
        assert ours == whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["backdoor", "little-is-enough", "gaussian", "free-rider-last"])
def test_every_backend_meets_the_same_attack(tmp_path, kind):
    models, noted = {}, {}
    for backend in ("reference", "batched", "processes"):
        config = settings(
            attackers={**LYING, "kind": kind, "loss": "top"},
            training={"backend": backend, "workers": 2},
        )
        run(config, tmp_path / backend)
        models[backend] = model(tmp_path / backend)
        noted[backend] = attacked_of(tmp_path / backend)
    for backend in ("batched", "processes"):
        np.testing.assert_allclose(models[backend], models["reference"], atol=1e-5)
        assert noted[backend].shares == noted["reference"].shares
        assert noted[backend].backdoor == pytest.approx(noted["reference"].backdoor, abs=0.01)


@pytest.mark.slow
def test_a_backdoor_is_learnt_and_its_success_measured(tmp_path):
    told = {}
    for name, kind in (("backdoor", "backdoor"), ("clean", "honest")):
        more = {"scale": 4.0, "to_class": 7} if name == "backdoor" else {}
        config = settings(
            attackers={"share": "0.4", "kind": kind, **more},
            federation={"algorithm": "fedavg", "rounds": 30, "evaluate_every": 30},
            training={"learning_rate": 0.2, "batch_size": 8},
        )
        told[name] = run(config, tmp_path / name)["attackers"]["backdoor_success"]
    assert told["clean"] is None, "without a backdoor there is nothing to measure"
    success = attacked_of(tmp_path / "backdoor").backdoor
    assert success[30] == told["backdoor"]
    assert success[30] > 0.5 > success[0]


def test_errors_are_of_honest_devices(tmp_path):
    config = settings(attackers=LYING, data={"split": "samples"})
    path = tmp_path / "run"
    summary = run(config, path)
    clean = tmp_path / "clean"
    run(replace(config, attackers=AttackersConfig()), clean)
    everybody = [one.id for one in evaluations_of(clean)[-1].train]
    lying = {everybody[one] for one in attacked_of(path).population.attackers}
    assert len(lying) == 6
    last = evaluations_of(path)[-1]
    for split in (last.train, last.test):
        assert [one.id for one in split] == [one for one in everybody if one not in lying]
    assert summary["train_devices"] == len(everybody)


@pytest.mark.slow
def test_an_audit_of_a_run_with_attackers_finds_what_it_finds_without(tmp_path):
    config = settings(
        attackers={**LYING, "loss": "top", "weight": "largest"},
        federation={"algorithm": "private-delta-fl"},
        privacy={"sums": "masked", "transcript": "full", "truth": True},
        data={"split": "samples"},
    )
    found = {}
    for name, one in (("lying", config), ("clean", replace(config, attackers=AttackersConfig()))):
        path = tmp_path / name
        run(one, path)
        report = audit(path, Options(truth=path / "truth.sqlite"))
        found[name] = {finding.rule for finding in report.findings}
    assert found["lying"] == found["clean"]
    assert "record.disagrees" not in found["clean"]
    assert any("who lies" in one for one in report.not_checked)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"federation": {"levels": ["0.8", "0.5"]}}, "must be 0 with federation.levels"),
        ({"attackers": {"share": 1}}, r"attackers.share = 1: must lie in \[0, 1\)"),
        ({"attackers": {"kind": "bakdoor"}}, "did you mean 'backdoor'"),
        (
            {
                "federation": {"algorithm": "private-delta-fl", "devices": "remote"},
                "privacy": {"sums": "masked"},
            },
            "attackers.share = 0.25: must be 0 with federation.devices = 'remote'",
        ),
    ],
)
def test_settings_that_contradict_attackers_are_refused(changes, complaint):
    with pytest.raises(ConfigError, match=complaint):
        settings(**{**changes, "attackers": LYING | changes.get("attackers", {})})


def numbers():
    made = [
        checked_device("d", f"{k:02}", np.ones((3, 2)), np.full(3, 1.0), numbers=True)
        for k in range(8)
    ]
    return federate("d", made, Split())


def labelled(x):
    made = [DeviceData(f"{k:02}", x, np.arange(3, dtype=np.int64)) for k in range(8)]
    return federate("d", made, Split())


TABLE = labelled(np.ones((3, 2), dtype=np.float32))
TOKENS = labelled(np.ones((3, 2), dtype=np.int16))
IMAGES = labelled(np.ones((3, 8, 4), dtype=np.uint8))


@pytest.mark.parametrize(
    ("data", "attackers", "complaint"),
    [
        (TABLE, {"share": "0.1"}, "0 of the 4 training devices of d, rounded: must be at least 1"),
        (TABLE, {"share": "0.9"}, "4 of the 4 .* leave an honest one"),
        (numbers(), {"kind": "flipped-labels"}, "d has no classes"),
        (numbers(), {"kind": "backdoor"}, "d has no classes"),
        (TABLE, {"kind": "backdoor", "to_class": 3}, "attackers.to_class = 3: must be below 3"),
        (TABLE, {"kind": "flipped-labels", "from_class": 4}, "from_class = 4: must be below 3"),
        (TOKENS, {"kind": "backdoor"}, "d has tokens"),
        (TABLE, {"kind": "backdoor"}, "trigger_size = 3: must be at most 2"),
        (IMAGES, {"kind": "backdoor", "trigger_size": 5}, "must be at most 4, for inputs of shape"),
    ],
)
def test_attackers_that_do_not_fit_the_data_are_refused(data, attackers, complaint):
    with pytest.raises(ConfigError, match=complaint):
        _check(attackers, data)


def _check(attackers, data):
    given = {"share": "1/4", **attackers}
    exact = {key: Fraction(value) if key == "share" else value for key, value in given.items()}
    federation = FederationConfig(cohort_size=1)
    config = RunConfig(attackers=AttackersConfig(**exact), federation=federation)
    check_data(config, known_of(data))


@pytest.mark.parametrize(
    ("data", "attackers"),
    [
        (TABLE, {"kind": "backdoor", "trigger_size": 2, "to_class": 2}),
        (IMAGES, {"kind": "backdoor", "trigger_size": 4}),
        (numbers(), {"kind": "sign-flipped"}),
        (TOKENS, {"kind": "flipped-labels", "from_class": 2}),
        (numbers(), {"share": "0", "kind": "backdoor"}),
    ],
)
def test_and_those_that_do_are_not(data, attackers):
    _check(attackers, data)
