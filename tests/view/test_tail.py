"""A file is known again by the last piece that was read of it."""

import pytest

from deltafl.sim.view.tail import Tail


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n")
    return path


@pytest.mark.parametrize("content", [b"one\ntwo\n", b"one\ntwo\nthree", b"eno\ntwo\n"])
def test_what_has_grown_or_begins_otherwise_is_the_same(path, content):
    tail = Tail.of(path, 4, 8)
    path.write_bytes(content)
    assert tail.is_in(path)


@pytest.mark.parametrize("content", [b"one\nTwo\nthree\n", b"one\ntwo", b"one\n", b""])
def test_what_was_cut_back_or_replaced_is_another(path, content):
    tail = Tail.of(path, 4, 8)
    path.write_bytes(content)
    assert not tail.is_in(path)


def test_a_file_that_is_gone_is_another_and_nothing_is_in_every_file(path):
    tail = Tail.of(path, 4, 8)
    path.unlink()
    assert not tail.is_in(path)
    assert Tail().is_in(path)
    path.mkdir()
    assert not tail.is_in(path)
