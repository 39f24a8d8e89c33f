import io
import zipfile

import pytest

from deltafl.fl.read import zipped
from deltafl.fl.read.zipped import opened_zip, unpacked


def packed(content, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("a", content)
    return buffer


def content_of(buffer, most=1 << 30):
    with opened_zip(buffer) as archive:
        return b"".join(unpacked(archive, archive.infolist()[0], most))


def test_entries_are_unpacked():
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        assert content_of(packed(b"text", method)) == b"text"
    assert content_of(packed(b"text"), most=4) == b"text"


def test_what_unpacks_to_more_than_its_bound_is_refused():
    with pytest.raises(ValueError, match="more than 3 bytes"):
        content_of(packed(b"text"), most=3)


def test_a_bomb_is_refused_by_its_ratio(monkeypatch):
    monkeypatch.setattr(zipped, "ALWAYS_ALLOWED", 1000)
    assert len(content_of(packed(bytes(1000)))) == 1000
    with pytest.raises(ValueError, match="unpacks to more than"):
        content_of(packed(bytes(100_000)))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_are_refused(method):
    with pytest.raises(ValueError, match="another method"):
        content_of(packed(b"text", method))


def test_what_is_no_archive_is_refused():
    data = packed(b"text" * 9, zipfile.ZIP_STORED).getvalue()
    negative = data[1:]  # every place in it is before the file's begin
    for broken in (b"", b"text", data[:-3], data.replace(b"text", b"tent"), negative):
        with pytest.raises(ValueError, match=r"not a readable zip|negative seek"):
            content_of(io.BytesIO(broken))


def test_an_entry_that_states_another_size_is_refused():
    data = bytearray(packed(b"text").getvalue())
    place = data.index(b"PK\x01\x02") + 24  # of the size in the directory
    data[place : place + 4] = (5).to_bytes(4, "little")
    with pytest.raises(ValueError, match="has 4 bytes and states 5"):
        content_of(io.BytesIO(data))


def test_an_archive_that_was_closed_is_not_read():
    with opened_zip(packed(b"text")) as archive:
        archive.close()
        with pytest.raises(ValueError, match="closed"):
            next(unpacked(archive, archive.infolist()[0], 9))


def test_errors_of_places_are_the_archive_s_and_those_of_other_files_are_not(tmp_path):
    with pytest.raises(ValueError, match="a place in it"), opened_zip(packed(b"text")):
        raise OSError(22, "Invalid argument")
    with pytest.raises(FileNotFoundError), opened_zip(packed(b"text")):
        (tmp_path / "other").read_bytes()
