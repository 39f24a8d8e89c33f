import msgpack
import pytest
from mutations import peak

from deltafl.sim.inspect.audit.checks.clear import readable_values
from deltafl.sim.inspect.audit.shallow import MAX_NESTING, is_shallow

VALUES = [1, -1, 2**40, -(2**40), 0.5, None, True, b"b" * 300, "é" * 70_000, {"a": [1] * 20}]


@pytest.mark.parametrize("value", [*VALUES, VALUES, [[]] * 70_000])
def test_what_msgpack_packs_is_walked_to_its_end(value):
    data = msgpack.packb(value)
    assert is_shallow(data)
    assert not is_shallow(data + b"\0")
    assert not is_shallow(data[:-1])


def test_levels_are_counted():
    assert is_shallow(b"\x91" * MAX_NESTING + b"\1")
    assert not is_shallow(b"\x91" * (MAX_NESTING + 1) + b"\1")


def test_what_arrays_announce_is_not_allocated():
    bomb = (b"\xdd" + (100_000).to_bytes(4, "big")) * 1000 + b"\xc0" * 100_000
    assert peak(readable_values, bomb) < 30 * len(bomb)
    assert readable_values(msgpack.packb([{"loss": 0.5}])).startswith("msgpack: ")
