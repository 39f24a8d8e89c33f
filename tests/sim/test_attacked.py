"""What a simulation notes of its attackers is read back, and goes on where its checkpoint is."""

import pytest

from deltafl.sim.errors import RunDirectoryError
from deltafl.sim.record.attacked import Aggregated, AttackLog, Population, read_attacked

WHO = Population(devices=9, test_devices=4, attackers=(2, 5))


def noted(path, last_round=None, *rounds):
    log = AttackLog(path, WHO, last_round)
    for number, weights in rounds:
        log.add_round(number, dict.fromkeys(range(9), 1), Aggregated(weights))
        log.add_backdoor(number, number / 10)
    log.flush()
    log.close()


def test_shares_are_of_the_weight_that_was_kept(tmp_path):
    path = tmp_path / "attackers.jsonl"
    noted(path, None, (1, {1: 30, 2: 10}), (2, {}), (3, {0: 5}), (4, {2: 1, 5: 2}))
    found = read_attacked(path)
    assert found.population == WHO
    assert found.shares == {1: 0.25, 3: 0.0, 4: 1.0}
    assert found.backdoor == {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}


def test_it_goes_on_from_the_round_of_a_checkpoint(tmp_path):
    path = tmp_path / "attackers.jsonl"
    noted(path, None, (1, {2: 1}), (2, {2: 1}), (3, {2: 1}))
    with path.open("ab") as file:
        file.write(b'{"round": 4, "kept_we')
    noted(path, 2, (3, {1: 1}))
    again = tmp_path / "again.jsonl"
    noted(again, None, (1, {2: 1}), (2, {2: 1}), (3, {1: 1}))
    assert path.read_bytes() == again.read_bytes()
    noted(path, None, (1, {1: 1}))
    assert read_attacked(path).shares == {1: 0.0}, "a new run begins anew"


def test_what_the_longer_run_does_not_evaluate_is_dropped(tmp_path):
    """The last evaluation of a short run may be none of the longer one."""
    path = tmp_path / "attackers.jsonl"
    noted(path, None, (1, {2: 1}), (2, {2: 1}), (3, {2: 1}))
    AttackLog(path, WHO, 3, lambda number: number != 3).close()
    found = read_attacked(path)
    assert list(found.backdoor) == [1, 2]
    assert list(found.shares) == [1, 2, 3]


def test_no_backdoor_is_no_line(tmp_path):
    log = AttackLog(tmp_path / "a", WHO, None)
    log.add_backdoor(1, None)
    log.close()
    assert read_attacked(tmp_path / "a").backdoor == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}\n",
        '{"devices": 9, "test_devices": 4, "attackers": ["x"]}\n',
        '{"devices": 9, "test_devices": 4, "attackers": [2, 5]}\n{"round": "1"}\n',
        '{"devices": 9, "test_devices": 4, "attackers": [2, 5]}\n{"round": 1, "kept_weight": 1}\n',
        '{"devices": 9, "test_devices": 4, "attackers": [2, 5]}\n[]\n',
    ],
)
def test_anything_else_is_damaged(tmp_path, text):
    path = tmp_path / "attackers.jsonl"
    path.write_text(text)
    with pytest.raises(RunDirectoryError, match=r"attackers\.jsonl is damaged"):
        read_attacked(path)


def test_a_run_does_not_go_on_with_the_attackers_of_another(tmp_path):
    path = tmp_path / "attackers.jsonl"
    noted(path, None, (1, {2: 1}))
    with pytest.raises(RunDirectoryError, match="who the attackers are"):
        AttackLog(path, Population(9, 4, (3,)), 1)
