"""What the pages of a Parquet file say of themselves, before pyarrow believes it."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltafl.fl.read import zipped
from deltafl.fl.read.parquet import _structure, check_pages

ROWS = 20_000
TABLE = pa.table(
    {
        "user": pa.array([f"user {i // 100}" for i in range(ROWS)]),
        "number": pa.array(np.arange(ROWS) % 997),
        "maybe": pa.array([None if i % 3 else i / 7 for i in range(ROWS)], pa.float64()),
        "flag": pa.array([i % 2 == 0 for i in range(ROWS)]),
        "list": pa.array([[float(j) for j in range(i % 4)] for i in range(ROWS)]),
        "image": pa.array([{"bytes": bytes([i % 256] * 9), "path": None} for i in range(ROWS)]),
    }
)
WAYS = {
    "as usual": {},
    "no dictionary": {"use_dictionary": False},
    "not packed": {"compression": "none"},
    "zstd, small pages": {"compression": "zstd", "data_page_size": 512},
    "version 2": {"data_page_version": "2.0", "compression": "gzip"},
    "many groups": {"row_group_size": 1000},
    "without statistics": {"write_statistics": False},
    "streams of bytes": {"use_dictionary": False, "use_byte_stream_split": ["maybe"]},
    "with checksums": {"write_page_checksum": True},
}


def written(tmp_path, table=TABLE, **ways):
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, **ways)
    return path


def check(path):
    with path.open("rb") as file, pq.ParquetFile(file) as opened:
        check_pages(file, opened.metadata)
        return opened.read()


def edited(path, old, new):
    """Replace bytes that occur once before the end of the file."""
    content = path.read_bytes()
    assert content.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(content.replace(old, new))
    return path


@pytest.mark.parametrize("ways", WAYS.values(), ids=WAYS)
def test_files_that_pyarrow_writes_are_read(tmp_path, ways):
    assert check(written(tmp_path, **ways)).equals(TABLE)


def test_a_file_without_rows_is_read(tmp_path):
    assert check(written(tmp_path, TABLE.slice(0, 0))).num_rows == 0


def varint(number):
    """As an integer of a header: in zigzag order, seven bits a byte."""
    number, out = number << 1, []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def plain(tmp_path):
    """A file of one column and one page: header, then the numbers as they are."""
    table = TABLE.select(["number"])
    ways = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    path = written(tmp_path, table, data_page_size=1 << 20, **ways)
    size = 8 * ROWS + 8  # numbers, and the runs that say that none is missing
    header = b"\x15\x00\x15" + varint(size) + b"\x15" + varint(size) + b"\x2c\x15" + varint(ROWS)
    assert path.read_bytes().count(header) == 1
    return path, size, header


@pytest.mark.parametrize("count", [ROWS - 1, ROWS + 1, 1_000_000])
def test_a_page_with_other_numbers_of_values_is_refused(tmp_path, count):
    path, _, header = plain(tmp_path)
    lie = header.removesuffix(varint(ROWS)) + varint(count)
    with pytest.raises(ValueError, match="values"):
        check(edited(path, header, lie))


def test_a_page_that_claims_more_bytes_than_the_file_explains_is_refused(tmp_path, monkeypatch):
    path, size, header = plain(tmp_path)
    check(path)
    monkeypatch.setattr(zipped, "ALWAYS_ALLOWED", 1000)
    monkeypatch.setattr(zipped, "MAX_RATIO", 3)
    check(path)
    lie = header.replace(varint(size), varint(1_000_000), 1)
    with pytest.raises(ValueError, match="unpacks to more bytes than its size explains"):
        check(edited(path, header, lie))


def test_a_column_that_claims_more_values_than_the_file_explains_is_refused(tmp_path, monkeypatch):
    path = written(tmp_path, TABLE.select(["flag"]))
    monkeypatch.setattr(zipped, "ALWAYS_ALLOWED", 1000)
    with pytest.raises(ValueError, match="20,000 values, which are not in so few bytes"):
        check(path)


def test_a_page_that_is_longer_than_its_column_is_refused(tmp_path):
    path, size, header = plain(tmp_path)
    lie = header.replace(b"\x15" + varint(size) + b"\x2c", b"\x15" + varint(size + 9) + b"\x2c")
    with pytest.raises(ValueError, match="end at"):
        check(edited(path, header, lie))


def test_columns_that_share_their_pages_are_refused(tmp_path):
    """However small a file is, its end may name the same pages any number of times."""
    path = written(tmp_path, TABLE.select(["number"]), row_group_size=ROWS // 2)
    with path.open("rb") as file, pq.ParquetFile(file) as opened:

        class Repeated:
            num_row_groups = 3

            def row_group(self, _):
                return opened.metadata.row_group(0)

        check_pages(file, opened.metadata)
        with pytest.raises(ValueError, match="its columns take"):
            check_pages(file, Repeated())


def test_a_dictionary_with_more_words_than_bytes_is_refused(tmp_path):
    words = [chr(33 + i) for i in range(70)]  # of one letter, each after its length in four bytes
    ways = {"compression": "none", "write_statistics": False}
    path = written(tmp_path, pa.table({"word": pa.array(words * 2)}), **ways)
    size = varint(5 * 70)
    header = b"\x15\x04\x15" + size + b"\x15" + size + b"\x4c\x15"
    check(path)
    with pytest.raises(ValueError, match="351 values, which it cannot have"):
        check(edited(path, header + varint(70), header + varint(351)))


@pytest.mark.parametrize(
    ("column", "encoding"),
    [
        ("user", "DELTA_BYTE_ARRAY"),
        ("user", "DELTA_LENGTH_BYTE_ARRAY"),
        ("number", "DELTA_BINARY_PACKED"),
    ],
)
def test_encodings_that_state_numbers_of_their_own_are_refused(tmp_path, column, encoding):
    ways = {"use_dictionary": False, "column_encoding": {column: encoding}}
    path = written(tmp_path, TABLE.select([column]), **ways)
    with pytest.raises(ValueError, match="write the file again without DELTA encodings"):
        check(path)


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ([0x13, 1, 0], "a field of type 3"),
        ([0x19, 1, 0], "a field of type 9"),
        ([0x15, 2, 0x05, 2, 2, 0], "a field twice"),
        ([0x1C] * 9 + [0] * 9, "nested too deeply"),
        ([0x15, *[0xFF] * 10, 1, 0], "more than 64 bits"),
    ],
)
def test_headers_that_no_page_has_are_refused(header, complaint):
    with pytest.raises(ValueError, match=complaint):
        _structure(bytes(header), 0, 4)


def test_a_page_without_sizes_is_refused(tmp_path):
    path, _, header = plain(tmp_path)
    with pytest.raises(ValueError, match="no number in its field 1"):
        check(edited(path, header, bytes([0x25]) + header[1:]))


def test_a_header_that_is_cut_short_is_refused():
    with pytest.raises(IndexError):
        _structure(bytes([0x15, 2, 0x15]), 0, 4)


def test_a_header_that_is_longer_than_usual_is_read(tmp_path):
    """The statistics of long texts are in it."""
    long = pa.table({"text": pa.array(["a" * 5000, "b" * 5000])})
    path = written(tmp_path, long, use_dictionary=False, write_statistics=True)
    assert check(path).equals(long)
