"""What devices had to hide is read back as it was, or not at all."""

import math
import sqlite3
from contextlib import closing
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import read_truth

from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.protocol.sessions import Sessions
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.chain import Chain
from deltafl.sim.record.truth import TRUTH, DeviceSeed, Told, TruthWriter, read_with_marks

RUN_ID = bytes(range(16))
MODEL = np.array([1.0, 2.0], dtype=np.float32)


LOSS = 1.5
SENT = MODEL * np.float32(0.1)


def asked(device=7, weight=12, *, trains):
    """What a device told."""
    return Told({(device, 0): (LOSS, weight)}, {(device, 0): SENT} if trains else {})


def write(path, *rounds, mode="full", run_id=RUN_ID, last_round=0, digest=b""):
    writer = TruthWriter(path, run_id, last_round, digest, keeps_updates=mode == "full")
    try:
        for number, told in rounds:
            writer.add(number, told)
        return writer.flush()
    finally:
        writer.close()


def problem(path, run_id=RUN_ID):
    with pytest.raises(ChainError) as caught:
        list(read_truth(path, run_id))
    return caught.value.frame, caught.value.damage


def test_what_devices_tell_a_secure_round_is_noted():
    class Device:
        weight = 3

        def __init__(self, number):
            self.id = number

        def loss(self, model):
            del model
            return self.id / 3

        def update(self, model):
            return np.full(len(model), self.id / 7, dtype=np.float32)

    told = Told()
    rounds = MaskedRounds(Sessions())
    cohort = cohort_of(map(Device, range(12)), rounds, told=told)
    _, report = PrivateDeltaFL(Fraction(1, 2)).apply(TrainingState(MODEL), cohort)
    assert told.measured == {(number, 0): (number / 3, 3) for number in range(12)}
    assert 0 < report.kept_devices < 12
    assert sorted(told.updates) == [(one, 0) for one in range(12 - report.kept_devices, 12)]
    assert all(update[0] == np.float32(one / 7) for (one, _), update in told.updates.items())


def test_what_was_noted_is_read_back_to_the_bit(tmp_path):
    path = tmp_path / "truth.sqlite"
    write(path, (3, asked(trains=True)), (4, asked(2**32 - 1, 0, trains=False)))
    first, second = read_truth(path, RUN_ID)
    assert (first.round, first.device, first.weight, first.passed) == (3, 7, 12, True)
    assert first.loss == LOSS
    assert first.update.tobytes() == SENT.tobytes()
    assert first.update.dtype == np.float32
    assert (second.round, second.device, second.weight) == (4, 2**32 - 1, 0)
    assert (second.passed, second.update) == (False, None)


def test_who_was_asked_nothing_has_nothing_to_hide(tmp_path):
    write(tmp_path / "truth.sqlite", (1, Told()))
    assert list(read_truth(tmp_path / "truth.sqlite", RUN_ID)) == []


@pytest.mark.parametrize(("mode", "kept"), [("full", True), ("sums", False)])
def test_updates_are_kept_where_messages_are(tmp_path, mode, kept):
    write(tmp_path / "truth.sqlite", (1, asked(trains=True)), mode=mode)
    (one,) = read_truth(tmp_path / "truth.sqlite", RUN_ID)
    assert (one.update is not None, one.passed) == (kept, True)


def test_writing_goes_on_after_a_round(tmp_path):
    """What a process has written of the round in which it ended is dropped."""
    path, device = tmp_path / "truth.sqlite", asked(trains=True)
    digest = write(path, (1, device))
    write(path, (2, device), (3, asked(8, trains=False)), last_round=1, digest=digest)
    again = write(path, (2, asked(9, trains=False)), last_round=1, digest=digest)
    assert [(one.round, one.device) for one in read_truth(path, RUN_ID)] == [(1, 7), (2, 9)]
    assert again != digest
    with pytest.raises(ChainError, match="goes on otherwise up to round 1"):
        write(path, last_round=1, digest=again)
    with pytest.raises(ChainError, match="goes on otherwise"):
        write(tmp_path / "other.sqlite", last_round=1, digest=digest)


def test_the_same_truth_has_another_digest_in_another_file(tmp_path):
    """Otherwise whoever has the record could try out losses and weights."""
    device = asked(trains=True)
    assert write(tmp_path / "one", (1, device)) != write(tmp_path / "other", (1, device))


def test_the_truth_of_another_run_is_refused_by_name(tmp_path):
    write(tmp_path / "truth.sqlite", (1, asked(trains=False)))
    assert problem(tmp_path / "truth.sqlite", bytes(16)) == (0, Damage.FOREIGN)
    with pytest.raises(ChainError, match=f"run {RUN_ID.hex()}.* run {bytes(16).hex()}"):
        next(read_truth(tmp_path / "truth.sqlite", bytes(16)))


PACKED = np.zeros(2, "<f4").tobytes()
DEVICE = (1, 7, 0, LOSS, 12, 1, None)
SEED = (1, 7, bytes(16), bytes(32), b"")


def chained(path, *rows):
    """A truth of these rows, under a chain that is right."""
    write(path)
    with closing(sqlite3.connect(path, isolation_level="IMMEDIATE")) as db:
        db.execute("DELETE FROM run")
        chain = Chain(path, db, TRUTH)
        for table, *fields in rows:
            chain.append(table, *fields)
        db.commit()
    return path


OPENING = ("run", RUN_ID, bytes(32))


@pytest.mark.parametrize(
    "row",
    [
        OPENING,
        ("devices", *DEVICE[:4], "twelve", *DEVICE[5:]),
        ("devices", "one", *DEVICE[1:]),
        ("devices", *DEVICE[:5], 2, None),
        ("devices", *DEVICE[:6], "update"),
        ("devices", *DEVICE[:6], PACKED[:-1]),
        ("devices", *DEVICE[:3], "loss", *DEVICE[4:]),
        ("devices", -1, *DEVICE[1:]),
        ("devices", 1, -7, *DEVICE[2:]),
        ("devices", 1, 7, -1, *DEVICE[3:]),
        ("devices", *DEVICE[:4], -12, *DEVICE[5:]),
        ("seeds", *SEED[:2], bytes(15), *SEED[3:]),
        ("seeds", *SEED[:3], bytes(33), b""),
        ("seeds", *SEED[:4], bytes(31)),
        ("seeds", *SEED[:4], None),
        ("seeds", 1, -7, *SEED[2:]),
        ("seeds", -1, *SEED[1:]),
        ("seeds", *SEED[:3], "seed", b""),
    ],
)
def test_a_row_that_no_run_writes_is_malformed(tmp_path, row):
    path = chained(tmp_path / "truth.sqlite", OPENING, ("devices", *DEVICE), row)
    assert problem(path) == (2, Damage.MALFORMED)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_device_that_diverged_is_read_back(tmp_path, loss):
    path = tmp_path / "truth.sqlite"
    told = Told({(7, 0): (loss, 12)}, {(7, 0): np.full(2, math.nan, dtype=np.float32)})
    write(path, (1, told))
    (truth,) = read_truth(path, RUN_ID)
    assert repr(truth.loss) == repr(loss)
    assert np.isnan(truth.update).all()


@pytest.mark.parametrize(
    "opening", [("run", "run", bytes(32)), ("run", None, None), ("devices", *DEVICE)]
)
def test_a_file_without_an_opening_is_malformed(tmp_path, opening):
    assert problem(chained(tmp_path / "truth.sqlite", opening)) == (0, Damage.MALFORMED)


def test_a_row_that_was_edited_is_found(tmp_path):
    path = tmp_path / "truth.sqlite"
    write(path, (1, asked(trains=True)), (1, asked(8, trains=False)))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE devices SET loss = loss / 2 WHERE device = 8")
        db.commit()
    assert problem(path) == (2, Damage.EDITED)


def test_what_a_device_draws_follows_from_its_seed(tmp_path):
    told = Told(seeds={(bytes(16), 7): (bytes(range(32)), bytes(32)), (bytes(16), 8): SEEDS})
    write(tmp_path / "truth.sqlite", (1, told))
    first, second = read_truth(tmp_path / "truth.sqlite", RUN_ID, DeviceSeed)
    assert first == DeviceSeed(1, 7, bytes(16), bytes(range(32)), bytes(32))
    assert second == DeviceSeed(1, 8, bytes(16), *SEEDS)
    assert first.seed.hex() not in repr(first)


SEEDS = (bytes(reversed(range(32))), b"")


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_damaged_bytes_are_sentences(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("truth") / "truth.sqlite"
    write(path, (1, asked(trains=True)), (1, asked(8, trains=False)))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    said = str(path)
    try:
        list(read_with_marks(path, RUN_ID))
    except ChainError as error:
        said = str(error)
    assert said.startswith(str(path))
