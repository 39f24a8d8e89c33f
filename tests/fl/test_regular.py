import os

import pytest
from mutations import peak

from deltafl.fl.read.regular import open_regular, read_regular


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path, 3) == read_regular(tmp_path / "link", 3) == b"abc"
    with pytest.raises(OSError, match="more than 2 bytes"):
        read_regular(path, 2)


def test_a_bound_is_not_allocated(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert peak(lambda path: read_regular(path, 1 << 32), tmp_path / "f") < 4 << 20


def test_pipes_devices_and_folders_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(OSError, match="cannot be a path"):
        open_regular("a\0b")
