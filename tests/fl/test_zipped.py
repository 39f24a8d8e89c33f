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
