"""What devices had to hide is read back as it was, or not at all."""

import hashlib
from dataclasses import dataclass

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.sim.chain import ChainWriter
from deltafl.sim.errors import ChainError, Damage
from deltafl.sim.truth import TRUTH, TruthWriter, WatchedDevice, read_truth

RUN_ID = bytes(range(16))
MODEL = np.array([1.0, 2.0], dtype=np.float32)


@dataclass
class Device:
    id: int = 7
    weight: int = 12

    def loss(self, model):
        return float(model.sum()) / 3

    def update(self, model, objective=None):
        del objective
        return model * np.float32(0.1)


def asked(device, *, trains):
    watched = WatchedDevice(device)
    watched.loss(MODEL)
    if trains:
        watched.update(MODEL)
    return watched


def write(path, *devices, mode="full", run_id=RUN_ID):
    with TruthWriter(path, run_id, mode) as writer:
        for number, device in devices:
            writer.add(number, device)
        return writer.flush()


def problem(path, run_id=RUN_ID):
    with pytest.raises(ChainError) as caught:
        list(read_truth(path, run_id))
    return caught.value.frame, caught.value.damage


def test_a_watched_device_answers_as_the_device_itself():
    device, watched = Device(), WatchedDevice(Device())
    assert (watched.id, watched.weight) == (device.id, device.weight)
    assert (watched.noted_loss, watched.noted_update) == (None, None)
    assert watched.loss(MODEL) == watched.noted_loss == device.loss(MODEL)
    assert watched.update(MODEL) is watched.noted_update
    assert watched.noted_update.tobytes() == device.update(MODEL).tobytes()


def test_what_was_noted_is_read_back_to_the_bit(tmp_path):
    path = tmp_path / "truth.bin"
    devices = [asked(Device(), trains=True), asked(Device(id=2**32 - 1, weight=0), trains=False)]
    write(path, (3, devices[0]), (4, devices[1]))
    first, second = read_truth(path, RUN_ID)
    assert (first.round, first.device, first.weight, first.passed) == (3, 7, 12, True)
    assert first.loss == devices[0].noted_loss
    assert first.update.tobytes() == devices[0].noted_update.tobytes()
    assert first.update.dtype == np.float32
    assert (second.round, second.device, second.weight) == (4, 2**32 - 1, 0)
    assert (second.passed, second.update) == (False, None)


def test_who_was_asked_nothing_has_nothing_to_hide(tmp_path):
    write(tmp_path / "truth.bin", (1, WatchedDevice(Device())))
    assert list(read_truth(tmp_path / "truth.bin", RUN_ID)) == []


@pytest.mark.parametrize(
    ("mode", "kept"), [("full", [True] * 3), ("headers", [False] * 3), ("every=2", [0, 1, 0])]
)
def test_updates_are_kept_where_the_transcript_is_whole(tmp_path, mode, kept):
    devices = [(number, asked(Device(), trains=True)) for number in (1, 2, 3)]
    write(tmp_path / "truth.bin", *devices, mode=mode)
    truth = list(read_truth(tmp_path / "truth.bin", RUN_ID))
    assert [device.update is not None for device in truth] == kept
    assert all(device.passed for device in truth)


def test_writing_goes_on_from_a_mark(tmp_path):
    whole, resumed = tmp_path / "whole.bin", tmp_path / "resumed.bin"
    device = asked(Device(), trains=True)
    mark = write(whole, (1, device), (2, device))
    middle = write(resumed, (1, device))
    with TruthWriter(resumed, bytes(16), "full", middle) as writer:
        writer.add(2, WatchedDevice(Device()))
        writer.add(2, device)
        assert writer.flush() == mark
    assert resumed.read_bytes() == whole.read_bytes()


def test_the_truth_of_another_run_is_refused_by_name(tmp_path):
    write(tmp_path / "truth.bin", (1, asked(Device(), trains=False)))
    assert problem(tmp_path / "truth.bin", bytes(16)) == (0, Damage.FOREIGN)
    with pytest.raises(ChainError, match=f"run {RUN_ID.hex()}.* run {bytes(16).hex()}"):
        next(read_truth(tmp_path / "truth.bin", bytes(16)))


LOSS, UPDATE = 1.5, np.zeros(2, "<f4").tobytes()


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
        (1, [1, 7, LOSS, 12, True, UPDATE[:-1]]),
        (1, [1, 7, LOSS, 12, True, 0]),
        (1, [1, 7, float("nan"), 12, True, None]),
        (1, [1, 7, float("inf"), 12, True, None]),
        (1, [-1, 7, LOSS, 12, True, None]),
        (1, [1, -7, LOSS, 12, True, None]),
        (1, [1, 7, LOSS, -12, True, None]),
    ],
)
def test_a_record_of_another_shape_is_malformed(tmp_path, kind, fields):
    path = tmp_path / "truth.bin"
    with ChainWriter(path, TRUTH, TRUTH.start) as chain:
        chain.append(0, RUN_ID)
        chain.append(1, 1, 7, LOSS, 12, True, UPDATE)
        chain.append(kind, *fields)
    assert problem(path) == (2, Damage.MALFORMED)


@pytest.mark.parametrize("opening", [(1, RUN_ID), (0,), (0, "run"), (0, RUN_ID, 1), (0, 5)])
def test_a_file_without_an_opening_is_malformed(tmp_path, opening):
    with ChainWriter(tmp_path / "truth.bin", TRUTH, TRUTH.start) as chain:
        chain.append(*opening)
    assert problem(tmp_path / "truth.bin") == (0, Damage.MALFORMED)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("truth") / "truth.bin"
    write(path, (1, asked(Device(), trains=True)), (1, asked(Device(id=8), trains=False)))
    return path.read_bytes()


@settings(max_examples=40)
@given(st.data())
def test_any_edited_byte_is_found(written, tmp_path_factory, data):
    content = bytearray(written)
    at = data.draw(st.integers(len(TRUTH.magic), len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "truth.bin"
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
