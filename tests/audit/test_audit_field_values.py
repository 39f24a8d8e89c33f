"""Values in strings that should be random: each encoding is found, and chance is not."""

import hashlib
import struct

import numpy as np
import pytest

from deltafl.sim.inspect.audit.field_tests import as_rows
from deltafl.sim.inspect.audit.field_values import (
    TrueValues,
    beginning_like,
    functions_of,
    numbers_of,
    windows,
)
from deltafl.sim.record.truth import DeviceTruth

UPDATE = np.array([0.25, -0.125, 0.0, 0.0, 0.7], dtype=np.float32)
TRUTH = DeviceTruth(1, 5, 1.375, 211, True, UPDATE)
FOUND = 1e-12


def drawn(count=6, size=24):
    return np.random.default_rng(0).integers(0, 256, (count, size), dtype=np.uint8)


def least(rows, truth=TRUTH):
    values = TrueValues()
    values.add(rows, truth)
    return min(result.value for result in values.results())


def with_value(value, at=9):
    rows = drawn()
    rows[2, at : at + len(value)] = np.frombuffer(value, dtype=np.uint8)
    return rows


def test_chance_is_not_found():
    assert least(drawn(4000)) > 1e-4


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<d", 1.375),
        struct.pack(">d", 1.375),
        struct.pack("<q", 211),
        struct.pack(">q", 211),
        hashlib.sha256(struct.pack("<d", 1.375)).digest()[:12],
        UPDATE[:2].astype("<f4").tobytes(),
        UPDATE[3:].astype(">f4").tobytes(),
    ],
)
def test_a_value_of_eight_bytes_is_found_once(value):
    assert least(with_value(value)) < FOUND


@pytest.mark.parametrize("form", ["<f", ">f"])
def test_a_short_value_is_found_where_it_comes_twice(form):
    value = struct.pack(form, 1.375)
    assert least(with_value(value + b"\1\2\3" + value)) < FOUND


def test_values_of_another_device_are_not_looked_for():
    other = DeviceTruth(1, 6, 2.5, 7, False, None)
    assert least(with_value(struct.pack("<d", 1.375)), other) == 1


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e308])
def test_a_loss_that_has_no_short_form_is_no_crash(loss):
    assert least(drawn(), DeviceTruth(1, 5, loss, 2**70, False, None)) > 1e-6


def test_windows_are_all_bytes_that_follow_one_another():
    assert windows(as_rows([b"\1\2\3\4\5"]), 4).tolist() == [0x04030201, 0x05040302]
    assert len(windows(as_rows([b"\1\2"]), 4)) == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda value: value[::-1],
        lambda value: bytes(byte ^ 0xFF for byte in value),
        lambda value: hashlib.sha256(value).digest(),
        lambda value: hashlib.blake2b(value).digest(),
    ],
)
def test_functions_of_visible_values_are_found(function):
    visible = [b"a session's tag!", *numbers_of(17)]
    known = functions_of(visible)
    rows = with_value(function(visible[0])[:16], at=0)
    found, what = beginning_like(rows, known)
    assert found.value < FOUND
    assert what
    assert beginning_like(drawn(), known)[0].value == 1
