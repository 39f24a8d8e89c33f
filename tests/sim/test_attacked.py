"""What a simulation notes of its attackers is read back."""

import pytest

from deltafl.sim.errors import RunDirectoryError
from deltafl.sim.record.attacked import AttackLog, Population, read_attacked
from deltafl.sim.record.record import write_record
from deltafl.sim.settings.config_io import build_config

WHO = Population(devices=9, attackers=(2, 5))


@pytest.fixture
def record(tmp_path):
    with write_record(tmp_path / "record.sqlite") as record:
        federation = {"rounds": 4, "evaluate_every": 1}
        record.note_settings(build_config([{"federation": federation}]))
        yield record


def noted(record, *rounds):
    log = AttackLog(record, WHO)
    for number, weights in rounds:
        log.add_round(number, weights)
        log.add_backdoor(number, number / 10)


def test_shares_are_of_the_weight_that_was_kept(record):
    noted(record, (1, {1: 30, 2: 10}), (2, {}), (3, {0: 5}), (4, {2: 1, 5: 2}))
    found = read_attacked(record)
    assert found.population == WHO
    assert found.shares == {1: 0.25, 3: 0.0, 4: 1.0}
    assert found.backdoor == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}


def test_it_goes_on(record):
    noted(record, (1, {2: 1}))
    noted(record, (2, {1: 1}))
    assert read_attacked(record).shares == {1: 1.0, 2: 0.0}


def test_what_a_longer_run_does_not_evaluate_is_left_out(record):
    """The last evaluation of a short run may be none of the longer one."""
    noted(record, (1, {2: 1}), (2, {2: 1}), (3, {2: 1}))
    federation = {"rounds": 4, "evaluate_every": 2}
    record.note_settings(build_config([{"federation": federation}]))
    found = read_attacked(record)
    assert list(found.backdoor) == [2]
    assert list(found.shares) == [1, 2, 3]


def test_no_backdoor_is_no_line(record):
    AttackLog(record, WHO).add_backdoor(1, None)
    assert read_attacked(record).backdoor == {}


@pytest.mark.parametrize(
    "who",
    [
        None,
        "{}",
        "[]",
        '{"devices": 9, "attackers": ["x"]}',
        '{"devices": 9, "attackers": 2}',
        '{"devices": "9", "attackers": [2]}',
    ],
)
def test_anything_else_is_damaged(record, who):
    record.note("attackers", who)
    with pytest.raises(RunDirectoryError, match=r"record\.sqlite is damaged"):
        read_attacked(record)


def test_a_run_does_not_go_on_with_the_attackers_of_another(record):
    noted(record, (1, {2: 1}))
    with pytest.raises(RunDirectoryError, match="other attackers"):
        AttackLog(record, Population(9, (3,)))
