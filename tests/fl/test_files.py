"""Files of a person's own: each is opened within a bound, and what a library raises is told."""

import os

import pytest

from deltafl.fl.data.files import bounded
from deltafl.fl.errors import DataError


def test_a_file_is_opened_up_to_its_bound(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"four")
    with bounded(path, "table", 4) as file:
        assert file.read() == b"four"
    with (
        pytest.raises(DataError, match=r"a\.csv: 4 bytes are more than the 3 .*check the path"),
        bounded(path, "table", 3),
    ):
        pass


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "absent"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "a.csv"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
    with (
        pytest.raises(DataError, match=r"a\.csv: (no such file|not a readable table)"),
        bounded(path, "table"),
    ):
        pass


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("odd"), EOFError("odd")])
def test_what_a_library_raises_is_told_with_the_file_and_the_mend(tmp_path, error):
    path = tmp_path / "a.csv"
    path.touch()
    with (
        pytest.raises(DataError, match=r"a\.csv: not a readable table .*odd.*: mend it"),
        bounded(path, "table", mend="mend it"),
    ):
        raise error
    with pytest.raises(DataError, match="fit into memory"), bounded(path, "table"):
        raise MemoryError
