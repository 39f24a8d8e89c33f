"""What devices had to hide is read back as it was, or not at all."""

import hashlib
import math
from fractions import Fraction

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.fl.strategies.base import TrainingState
from deltafl.fl.strategies.private_delta_fl import PrivateDeltaFL
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import SessionParams, SlotSpec
from deltafl.secagg.randomness import SeededRandomness
from deltafl.sim.cohort.ideal import IdealRounds
from deltafl.sim.cohort.simulated import cohort_of
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.record.chain import ChainWriter
from deltafl.sim.record.truth import (
    TRUTH,
    DeviceSecrets,
    Told,
    TruthWriter,
    read_records,
    read_truth,
)

RUN_ID = bytes(range(16))
MODEL = np.array([1.0, 2.0], dtype=np.float32)


LOSS = 1.5
SENT = MODEL * np.float32(0.1)


def asked(device=7, weight=12, *, trains):
    """The weights of a cohort of one device, and what it told."""
    return {device: weight}, Told({device: LOSS}, {device: SENT} if trains else {})


def silent():
    """The same of a device that was asked nothing."""
    return {7: 12}, Told()


def write(path, *rounds, mode="full", run_id=RUN_ID):
    with TruthWriter(path, run_id, mode) as writer:
        for number, (weights, told) in rounds:
            writer.add(number, weights, told)
        return writer.flush()


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
    rounds = IdealRounds(Sessions())
    cohort = cohort_of(map(Device, range(12)), rounds, told=told)
    _, report = PrivateDeltaFL(Fraction(1, 2)).apply(TrainingState(MODEL), cohort)
    assert told.losses == {number: number / 3 for number in range(12)}
    assert 0 < report.kept_devices < 12
    assert sorted(told.updates) == list(range(12 - report.kept_devices, 12))
    assert all(update[0] == np.float32(one / 7) for one, update in told.updates.items())


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
    write(tmp_path / "truth.sqlite", (1, silent()))
    assert list(read_truth(tmp_path / "truth.sqlite", RUN_ID)) == []


@pytest.mark.parametrize(
    ("mode", "kept"), [("full", [True] * 3), ("headers", [False] * 3), ("every=2", [0, 1, 0])]
)
def test_updates_are_kept_where_the_transcript_is_whole(tmp_path, mode, kept):
    devices = [(number, asked(trains=True)) for number in (1, 2, 3)]
    write(tmp_path / "truth.sqlite", *devices, mode=mode)
    truth = list(read_truth(tmp_path / "truth.sqlite", RUN_ID))
    assert [device.update is not None for device in truth] == kept
    assert all(device.passed for device in truth)


def test_writing_goes_on_from_a_mark(tmp_path):
    whole, resumed = tmp_path / "whole.bin", tmp_path / "resumed.bin"
    device = asked(trains=True)
    mark = write(whole, (1, device), (2, device))
    middle = write(resumed, (1, device))
    with TruthWriter(resumed, bytes(16), "full", middle) as writer:
        writer.add(2, *silent())
        writer.add(2, *device)
        assert writer.flush() == mark
    assert resumed.read_bytes() == whole.read_bytes()


def test_the_truth_of_another_run_is_refused_by_name(tmp_path):
    write(tmp_path / "truth.sqlite", (1, asked(trains=False)))
    assert problem(tmp_path / "truth.sqlite", bytes(16)) == (0, Damage.FOREIGN)
    with pytest.raises(ChainError, match=f"run {RUN_ID.hex()}.* run {bytes(16).hex()}"):
        next(read_truth(tmp_path / "truth.sqlite", bytes(16)))


PACKED = np.zeros(2, "<f4").tobytes()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (0, [RUN_ID]),
        (2, [1, 7, LOSS, 12, True, None]),
        (1, []),
        (1, [1, 7, LOSS, 12, True]),
        (1, [1, 7, LOSS, 12, True, None, 0]),
        (1, [True, 7, LOSS, 12, True, None]),
        (1, [1, 7, 2, 12, True, None]),
        (1, [1, 7, LOSS, 12, 1, None]),
        (1, [1, b"7", LOSS, 12, True, None]),
        (1, [1, 7, LOSS, 12.0, True, None]),
        (1, [1, 7, LOSS, 12, True, "update"]),
        (1, [1, 7, LOSS, 12, True, PACKED[:-1]]),
        (1, [1, 7, LOSS, 12, True, 0]),
        (1, [-1, 7, LOSS, 12, True, None]),
        (1, [1, -7, LOSS, 12, True, None]),
        (1, [1, 7, LOSS, -12, True, None]),
    ],
)
def test_a_record_of_another_shape_is_malformed(tmp_path, kind, fields):
    path = tmp_path / "truth.sqlite"
    with ChainWriter(path, TRUTH, TRUTH.start) as chain:
        chain.append(0, RUN_ID)
        chain.append(1, 1, 7, LOSS, 12, True, PACKED)
        chain.append(kind, *fields)
    assert problem(path) == (2, Damage.MALFORMED)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_device_that_diverged_is_read_back(tmp_path, loss):
    path = tmp_path / "truth.sqlite"
    told = Told({7: loss}, {7: np.full(2, math.nan, dtype=np.float32)})
    write(path, (1, ({7: 12}, told)))
    (truth,) = read_truth(path, RUN_ID)
    assert repr(truth.loss) == repr(loss)
    assert np.isnan(truth.update).all()


@pytest.mark.parametrize("opening", [(1, RUN_ID), (0,), (0, "run"), (0, RUN_ID, 1), (0, 5)])
def test_a_file_without_an_opening_is_malformed(tmp_path, opening):
    with ChainWriter(tmp_path / "truth.sqlite", TRUTH, TRUTH.start) as chain:
        chain.append(*opening)
    assert problem(tmp_path / "truth.sqlite") == (0, Damage.MALFORMED)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "truth.sqlite"
    write(path, (1, asked(trains=True)), (1, asked(8, trains=False)))
    return path.read_bytes()


@settings(max_examples=40)
@given(st.data())
def test_any_edited_byte_is_found(written, tmp_path_factory, data):
    content = bytearray(written)
    at = data.draw(st.integers(len(TRUTH.magic), len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "truth.sqlite"
    path.write_bytes(content)
    assert problem(path)[1] in (Damage.EDITED, Damage.CUT, Damage.REORDERED, Damage.MISSING)


@settings(max_examples=40)
@given(
    st.lists(
        st.none() | st.booleans() | st.integers(-1, 2**63) | st.floats() | st.binary(max_size=9),
        max_size=8,
    )
)
def test_whatever_a_chain_holds_is_read_or_refused(tmp_path_factory, fields):
    path = tmp_path_factory.getbasetemp() / "any.bin"
    opening = msgpack.packb([0, 0, RUN_ID])
    content, digest = TRUTH.magic, TRUTH.start.digest
    for frame in (opening, msgpack.packb([1, 1, *fields])):
        digest = hashlib.sha256(digest + frame).digest()
        content += len(frame).to_bytes(4, "big") + frame + digest
    path.write_bytes(content)
    try:
        list(read_truth(path, RUN_ID))
    except ChainError:
        return  # and nothing else is ever raised


PARAMS = SessionParams((SlotSpec("sum", 3, 24),), 5, 4, 3, 5, bytes(32), bytes(32))


def written_secrets(path, mode):
    told = Told()
    draw = told.note_draws(SeededRandomness(bytes(32)), PARAMS, 7)
    drawn = [draw(size) for size in (32, 32, 24, 32, 32)]
    with TruthWriter(path, RUN_ID, mode) as writer:
        writer.add(1, {7: 12}, told)
        writer.flush()
    return tuple(secret for secret in drawn if len(secret) == 32)[:3]


def test_what_devices_drew_first_is_read_again(tmp_path):
    """Of one tolerant slot: sealing key, mask key and seed; what is drawn later is left out."""
    drawn = written_secrets(tmp_path / "truth.sqlite", "full")
    (found,) = read_records(tmp_path / "truth.sqlite", RUN_ID)
    assert found == DeviceSecrets(1, 7, PARAMS.tag, drawn)
    assert drawn[0].hex() not in repr(found)
    assert list(read_truth(tmp_path / "truth.sqlite", RUN_ID)) == []


def test_secrets_are_kept_where_messages_are_whole(tmp_path):
    written_secrets(tmp_path / "truth.sqlite", "every=2")
    assert list(read_records(tmp_path / "truth.sqlite", RUN_ID)) == []


@pytest.mark.parametrize(
    "fields",
    [
        (1, 7, bytes(16)),
        (1, 7, bytes(15), bytes(32)),
        (1, 7, bytes(16), bytes(33)),
        (1, -7, bytes(16), bytes(32)),
        (-1, 7, bytes(16), bytes(32)),
        (1, True, bytes(16), bytes(32)),
        (1, 7, bytes(16), None),
    ],
)
def test_secrets_that_are_none_are_refused(tmp_path, fields):
    with ChainWriter(tmp_path / "truth.sqlite", TRUTH, TRUTH.start) as chain:
        chain.append(0, RUN_ID)
        chain.append(2, *fields)
        chain.flush()
    with pytest.raises(ChainError) as caught:
        list(read_records(tmp_path / "truth.sqlite", RUN_ID))
    assert caught.value.damage is Damage.MALFORMED
