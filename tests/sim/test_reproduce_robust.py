"""The tables of strategies under attack: which runs they need, and who breaks when."""

from fractions import Fraction
from pathlib import Path

import pytest
from records import due, write_run

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.cli import main
from deltafl.sim.errors import ConfigError
from deltafl.sim.record.attacked import AttackLog, Population
from deltafl.sim.record.evaluations import Evaluation
from deltafl.sim.record.record import write_record
from deltafl.sim.reproduce.catalogue import experiment_named
from deltafl.sim.reproduce.experiment import Finished, Request
from deltafl.sim.reproduce.methods import COMPARED
from deltafl.sim.reproduce.robust import (
    ATTACKS,
    BREAKS,
    breaking,
    results_of,
    rise,
    written,
)
from deltafl.sim.settings.attackers import Claim, Kind
from deltafl.sim.settings.config_io import flatten


def request(**settings) -> Request:
    return Request(**{"out": Path("unused"), "data": {"digits": Path()}, "rounds": 2, **settings})


def cells(name="robust", **settings):
    return experiment_named(name).cells(request(**{"seeds": 3, **settings}))


@pytest.mark.slow
def test_every_method_has_clean_runs_and_runs_under_every_attack():
    made = cells()
    assert len(made) == len(COMPARED) * 3 * (1 + len(ATTACKS))
    assert len({(one.method, one.seed) for one in made}) == len(made)
    clean = [one for one in made if not one.config.attackers.lie]
    assert {one.method for one in clean} == {method.label for method in COMPARED}
    assert {one.config.attackers.share for one in made} == {Fraction(0), Fraction(1, 10)}


def test_every_kind_and_claim_is_in_the_table_but_what_others_contain():
    said = [settings for _, settings in ATTACKS.values()]
    assert {Kind(one["kind"]) for one in said} == set(Kind) - {
        Kind.HONEST,
        Kind.SCALED,
        Kind.NOISE,
    }
    assert {Claim(one.get("loss", "own")) for one in said} == set(Claim)


def test_an_attacked_run_differs_from_its_clean_one_in_the_attackers_alone():
    made = cells(methods=("fedavg",), attacks=("sign-top",), seeds=1)
    clean, attacked = (flatten(one.config) for one in made)
    differing = {key for key in clean if clean[key] != attacked[key]}
    assert differing == {"attackers.share", "attackers.loss"}


def test_clipped_methods_are_the_plain_ones_but_for_the_aggregation():
    """Their devices give one sum of the updates, as by default."""
    for name in ("fedavg", "private-delta-fl-0.5"):
        made = cells(methods=(name, f"{name}-clipped"), attacks=("sign-top",), seeds=1)
        plain, clipped = (flatten(one.config) for one in made[:2])
        differing = {key for key in plain if plain[key] != clipped[key]}
        assert differing == {"strategy.aggregation"}
        assert clipped["strategy.aggregation"] == "clipped"


def test_attacks_are_chosen_by_their_words():
    made = cells(attacks=("labels", "inner"), methods=("fedavg",), seeds=1)
    assert [one.method for one in made] == [
        "FedAvg",
        "FedAvg, labels y → C − 1 − y, 10 %",
        "FedAvg, inner product, −2 × mean, 10 %",
    ]
    with pytest.raises(ConfigError, match="there is no 'label': did you mean 'labels'"):
        cells(attacks=("label",))


def test_the_option_is_for_these_tables(capsys):
    assert main(["reproduce", "table2", "--data", "digits", "--attacks", "labels"]) == 2
    assert "--attacks needs robust" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["share", "kind", "loss", "weight"])
def test_what_the_rows_differ_in_is_not_set_for_all(name):
    with pytest.raises(ConfigError, match=f"attackers.{name}: the rows of robust differ in it"):
        cells(overrides={"attackers": {name: "1/5"}})
    scaled = cells(overrides={"attackers": {"scale": 5.0}}, attacks=("sign",), methods=("fedavg",))
    assert {one.config.attackers.scale for one in scaled} == {5.0}
    assert [one.config.attackers.lie for one in scaled] == [False] * 3 + [True] * 3


def played(tmp_path, made, error_of):
    """Cells whose devices all err as `error_of` says; a fifth of the weight is the attackers'."""
    finished = []
    for number, cell in enumerate(made):
        devices = [DeviceMetrics("d", 100, 1.0, error_of(cell))]
        evaluation = Evaluation(2, devices, devices)
        directory = write_run(tmp_path / str(number), due(cell.config), evaluation)
        if cell.config.attackers.lie:
            with write_record(directory.record) as record:
                log = AttackLog(record, Population(9, (2,)))
                log.add_round(1, {1: 4, 2: 1})
                log.add_backdoor(2, 0.5 + cell.seed / 10)
                record.keep()
        finished.append(Finished(cell, directory))
    return finished


def error(cell):
    """Δ-FL breaks from 20 % on, FedAvg at 40 %."""
    share = float(cell.config.attackers.share)
    limit = 0.35 if cell.method.startswith("FedAvg") else 0.15
    return 0.5 + cell.seed / 100 + (0.06 if share > limit else 0.04 if share else 0.0)


def test_a_method_breaks_at_the_smallest_share_that_raises_its_tail(tmp_path):
    wanted = {"methods": ("fedavg", "delta-fl-0.5"), "attacks": ("sign-top",), "seeds": 3}
    made = cells("robust-shares", **wanted)
    experiment = experiment_named("robust-shares")
    report = experiment.report(request(**wanted), played(tmp_path, made, error))
    table, breaks = report.tables
    assert breaks.rows == (("−2 × update, top loss", "40 %", "20 %"),)
    rows = {row[:3]: row[3:] for row in table.rows}
    assert rows["no attack", "0", "FedAvg"] == ("52.00 ± 1.00", "–", "52.00 ± 1.00", "–", "–")
    found = rows["−2 × update, top loss", "10 %", "FedAvg"]
    assert found == ("56.00 ± 1.00", "+7.7%", "56.00 ± 1.00", "20.00 ± 0.00", "70.00 ± 10.00")
    assert 0.04 / 0.52 < BREAKS < 0.06 / 0.52
    assert any("more than 10% above" in note for note in report.notes)


def test_a_method_that_does_not_break_and_runs_that_are_missing(tmp_path):
    wanted = {"methods": ("fedavg", "delta-fl-0.5"), "attacks": ("labels",), "seeds": 2}
    made = [one for one in cells(**wanted) if not one.method.startswith("Δ-FL θ=0.5,")]
    report = experiment_named("robust").report(
        request(**wanted), played(tmp_path, made, lambda _: 0.5)
    )
    assert report.tables[1].rows == (("labels y → C − 1 − y", "not at 10 %", "–"),)
    assert report.tables[0].rows[-1][2:] == ("Δ-FL θ=0.5", "–", "–", "–", "–", "–")


def test_an_attacked_case_is_compared_with_the_same_seeds():
    clean = {"p90": {1: 20.0, 2: 60.0, 3: 40.0}}
    assert rise({"p90": {2: 66.0, 1: 22.0}}, clean) == pytest.approx(0.1)
    assert rise({"p90": {3: 44.0}}, clean) == pytest.approx(0.1)
    assert rise({"p90": {4: 44.0}}, clean) is None
    assert rise({}, clean) is None
    assert rise(clean, {}) is None
    assert rise(clean, {"p90": {1: 0.0, 2: 0.0}}) is None


@pytest.mark.parametrize(
    ("rises", "text"),
    [
        ((0.0, 0.05, BREAKS), "not at 20 %"),
        ((-0.5, 0.05, 0.11), "20 %"),
        ((0.0, 0.2, 0.0), "10 %"),
        ((0.2, None, None), "5 %"),
        ((0.0, 0.05, None), "not at 10 %"),
        ((0.0, None, 0.05), "not at 20 %"),
        ((None, 0.2, 0.3), "at most 10 %"),
        ((0.0, None, 0.2), "at most 20 %"),
        ((None, None, None), "–"),
    ],
)
def test_nothing_is_said_of_shares_without_a_result(rises, text):
    shares = (Fraction(1, 20), Fraction(1, 10), Fraction(1, 5))
    assert written(breaking(dict(zip(shares, rises, strict=True)))) == text


def test_the_numbers_of_a_case_by_hand(tmp_path):
    made = cells(methods=("fedavg",), attacks=("backdoor",), seeds=1)
    attacked = made[-1]
    errors = [DeviceMetrics(str(k), 10, 1.0, k / 10) for k in range(11)]
    evaluations = Evaluation(0, errors[:1], errors[:1]), Evaluation(2, errors[:1], errors)
    directory = write_run(tmp_path / "run", due(attacked.config), *evaluations)
    with write_record(directory.record) as record:
        log = AttackLog(record, Population(9, (2,)))
        log.add_backdoor(0, 0.9)
        log.add_round(1, {1: 3, 2: 1})
        log.add_round(2, {1: 3})
        log.add_round(3, {})
        log.add_backdoor(2, 0.6)
        record.keep()
    found = results_of([Finished(attacked, directory)])["emnist-linear", attacked.method]
    assert attacked.method == "FedAvg, backdoor, 2 × update, 10 %"
    assert found == {
        "p90": {1: pytest.approx(90)},
        "mean": {1: pytest.approx(50)},
        "corrupted_share": {1: pytest.approx((25 + 0) / 2)},  # the third round kept nobody
        "backdoor_success": {1: pytest.approx(60)},  # of the last evaluation
    }
