"""What the pages of a Parquet file say of themselves, before pyarrow believes it."""

import struct
import tracemalloc
from copy import deepcopy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltafl.fl.read import parquet, zipped
from deltafl.fl.read.parquet import check_pages, read_structure

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
    with path.open("rb") as file:
        check_pages(file)
        return pq.read_table(file)


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
    return unsigned(number << 1)


def unsigned(number):
    """As a length: seven bits a byte."""
    out = []
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


@pytest.mark.parametrize(
    ("count", "complaint"),
    [
        (ROWS - 1, "have 19,999 values"),
        (ROWS + 1, "which it cannot have"),
        (1_000_000, "which it cannot have"),
    ],
)
def test_a_page_with_other_numbers_of_values_is_refused(tmp_path, count, complaint):
    path, _, header = plain(tmp_path)
    lie = header.removesuffix(varint(ROWS)) + varint(count)
    with pytest.raises(ValueError, match=complaint):
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


def footer_of(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<I", content[-8:-4])
    return read_structure(content[-8 - length : -8], 0, 12)[0]


def thrift(value):
    """A value in the compact protocol, and its type; booleans only as fields."""
    if isinstance(value, dict):
        fields = b""
        for index, one in sorted(value.items()):
            if isinstance(one, bool):
                kind, content = (1 if one else 2), b""
            else:
                kind, content = thrift(one)
            fields += bytes([kind]) + varint(index) + content
        return 12, fields + b"\0"
    if isinstance(value, list):
        kinds = [thrift(one) for one in value] or [(5, b"")]
        content = b"".join(content for _, content in kinds if value)
        return 9, bytes([0xF0 | kinds[0][0]]) + unsigned(len(value)) + content
    if isinstance(value, bytes):
        return 8, unsigned(len(value)) + value
    return 6, varint(value)


def with_footer(path, footer):
    """The file with another end; an encoded one, or its fields."""
    content = path.read_bytes()
    (length,) = struct.unpack("<I", content[-8:-4])
    new = footer if isinstance(footer, bytes) else thrift(footer)[1]
    path.write_bytes(content[: -8 - length] + new + struct.pack("<I", len(new)) + b"PAR1")


def changed(footer, change, group=0):
    """The footer after a change of the first column of a row group."""
    copy = deepcopy(footer)
    change(copy[4][group][1][0])
    return copy


def test_a_footer_is_read_as_it_was_written(tmp_path):
    """By which the other tests know that it is their change that is refused."""
    path = written(tmp_path, TABLE.select(["number"]), row_group_size=ROWS // 2)
    footer = footer_of(path)
    with_footer(path, footer)
    assert footer_of(path) == footer
    with path.open("rb") as file:
        check_pages(file)


def test_columns_that_share_their_pages_are_refused(tmp_path):
    """However small a file is, its end may name the same pages any number of times."""
    path = written(tmp_path, TABLE.select(["number"]), row_group_size=ROWS // 2)
    footer = footer_of(path)
    footer[4] = footer[4][:1] * 3
    with_footer(path, footer)
    with path.open("rb") as file, pytest.raises(ValueError, match="its columns take"):
        check_pages(file)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda column: column.update({1: b"/etc/passwd"}), "in another file"),
        (lambda column: column.pop(3), "in another file"),
        (lambda column: column.update({3: 7}), "in another file"),
        (lambda column: column.update({8: {}}), "encrypted"),
        (lambda column: column.update({9: b"x"}), "encrypted"),
        (lambda column: column[3].pop(3), "no name"),
        (lambda column: column[3].pop(5), "no number in its field 5"),
        (lambda column: column[3].update({5: b"x"}), "no number in its field 5"),
        (lambda column: column[3].update({7: True}), "no number in its field 7"),
        (lambda column: column[3].update({9: [1]}), "no number in its field 9"),
        (lambda column: column[3].update({7: 1 << 40}), "its columns take"),
    ],
)
def test_a_column_that_is_not_as_pyarrow_writes_it_is_refused(tmp_path, change, complaint):
    path = written(tmp_path)
    with_footer(path, changed(footer_of(path), change))
    with path.open("rb") as file, pytest.raises(ValueError, match=complaint):
        check_pages(file)


@pytest.mark.parametrize(
    ("footer", "complaint"),
    [
        ({}, "no list in field 4"),
        ({4: 1}, "no list in field 4"),
        ({4: [1]}, "lists no structures"),
        ({4: [{}]}, "no list in field 1"),
        (b"\x15", "cut short"),
        (b"\x1a\0", "type 10"),
    ],
)
def test_a_footer_that_says_nothing_of_its_columns_is_refused(tmp_path, footer, complaint):
    path = written(tmp_path)
    with_footer(path, footer)
    with path.open("rb") as file, pytest.raises(ValueError, match=complaint):
        check_pages(file)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"PAR1PAR1", "8 bytes"),
        (b"PAR1" * 2 + b"\0\0\0\0PARE", "does not end like"),
        (b"PAR1\0\0\0\0\5\0\0\0PAR1", "5 bytes, more than"),
    ],
)
def test_what_does_not_end_like_a_parquet_file_is_refused(tmp_path, content, complaint):
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(ValueError, match=complaint):
        check_pages(file)


def test_a_footer_of_any_size_is_not_read(tmp_path, monkeypatch):
    path = written(tmp_path)
    monkeypatch.setattr(parquet, "_MAX_FOOTER_BYTES", 100)
    with path.open("rb") as file, pytest.raises(ValueError, match="bytes, more than"):
        check_pages(file)


def test_a_column_that_contradicts_itself_ends_no_process(tmp_path):
    """pyarrow would end it with SIGABRT, if it were asked what the footer says of this column."""
    path = written(tmp_path, TABLE.select(["maybe"]))
    missing = sum(i % 3 > 0 for i in range(ROWS))
    counts = (
        b"\x26" + varint(missing) + varint(ROWS - missing)
    )  # of those that are missing and the others
    lie = b"\x36" + varint(ROWS - missing) + varint(ROWS - missing) + varint(1)
    edited(path, counts, lie)
    with path.open("rb") as file:
        check_pages(file)
        with pytest.raises(OSError, match="histogram size mismatch"):
            pq.read_table(file)


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


def test_a_page_without_sizes_is_refused(tmp_path):
    path, _, header = plain(tmp_path)
    with pytest.raises(ValueError, match="no number in its field 1"):
        check(edited(path, header, bytes([0x25]) + header[1:]))


def test_a_header_that_is_longer_than_usual_is_read(tmp_path):
    """The statistics of long texts are in it."""
    long = pa.table({"text": pa.array(["a" * 5000, "b" * 5000])})
    path = written(tmp_path, long, use_dictionary=False, write_statistics=True)
    assert check(path).equals(long)


# --- structures -----------------------------------------------------------------------------------

# What a field may hold, byte by byte after the protocol's description, and what it stands for.
FIELDS = [
    ([0x11], True),
    ([0x12], False),
    ([0x13, 0xFE], 254),
    ([0x14, 1], -1),
    ([0x15, 0xAC, 2], 150),
    ([0x16, *[0xFF] * 9, 1], -(2**63)),
    ([0x17, 1, 2, 3, 4, 5, 6, 7, 8], bytes(range(1, 9))),
    ([0x18, 2, 65, 66], b"AB"),
    ([0x19, 0x05], []),
    ([0x19, 0x21, 1, 0], [1, 0]),
    ([0x19, 0x35, 1, 2, 3], [-1, 1, -2]),
    ([0x19, 0xF8, 16, *[0] * 16], [b""] * 16),
    ([0x1C, 0x15, 2, 0], {1: 1}),
    ([0x19, 0x2C, 0, 0x15, 2, 0], [{}, {1: 1}]),
]


@pytest.mark.parametrize(("encoded", "value"), FIELDS)
def test_every_type_is_read(encoded, value):
    assert read_structure(bytes([*encoded, 0, 99]), 0, 9) == ({1: value}, len(encoded) + 1)


def test_fields_may_be_named_in_full_or_by_steps():
    assert read_structure(bytes([0x05, 0x80, 1, 2, 0x25, 4, 0]), 0, 9) == ({64: 1, 66: 2}, 7)


@pytest.mark.parametrize(
    ("encoded", "complaint"),
    [
        ([0x1A, 0], "a field of type 10"),
        ([0x1B, 0], "a field of type 11"),
        ([0x1D, 0], "a field of type 13"),
        ([0x19, 0x1A], "a field of type 10"),
        ([0x15, 2, 0x05, 2, 2, 0], "a field twice"),
        ([0x1C] * 9 + [0] * 9, "nested too deeply"),
        ([0x19, *[0x19] * 9, 0], "nested too deeply"),
        ([0x15, *[0xFF] * 10, 1, 0], "more than 64 bits"),
    ],
)
def test_what_no_parquet_file_has_is_refused(encoded, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_structure(bytes(encoded), 0, 4)


@pytest.mark.parametrize(("encoded", "value"), FIELDS)
def test_a_structure_that_is_cut_short_is_told(encoded, value):
    for length in range(len(encoded) + 1):
        with pytest.raises(IndexError):
            read_structure(bytes(encoded[:length]), 0, 9)


@pytest.mark.parametrize("huge", [[0x18], [0x19, 0xF5], [0x19, 0xF1], [0x19, 0xFC]])
def test_lengths_are_not_believed(huge):
    data = bytes([*huge, *[0xFF] * 8, 0x7F]) + bytes([1]) * 1000
    tracemalloc.start()
    try:
        with pytest.raises((IndexError, ValueError)):
            read_structure(data, 0, 9)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data):
    try:
        _, end = read_structure(data, 0, 9)
    except (ValueError, IndexError):
        return
    assert 0 < end <= len(data)
