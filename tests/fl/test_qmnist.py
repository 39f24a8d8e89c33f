"""MNIST by writer: the files of MNIST and QMNIST, and files that do not fit."""

import gzip

import numpy as np
import pytest
from beside import shared

from deltafl.fl.data.federated import Split
from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.data.npz import load_npz
from deltafl.fl.data.qmnist import SIDE, load_qmnist
from deltafl.fl.errors import DataError
from deltafl.sim.cli import main

WRITERS = {"train": [7, 9, 7, 391, 9, 7], "t10k": [9, 391, 391]}
QMNIST = {"train": "train", "t10k": "test"}


def idx(array):
    code = {"u1": 0x08, "i4": 0x0C}[array.dtype.str[1:]]
    head = bytes((0, 0, code, array.ndim))
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(head + sizes + array.tobytes(), mtime=0)


def images_of(part):
    count = len(WRITERS[part])
    first = 0 if part == "train" else 100
    return np.arange(first, first + count, dtype="u1")[:, None, None] * np.ones(
        (1, SIDE, SIDE), "u1"
    )


def rows_of(part, more=0):
    """Rows of QMNIST's labels; its test file has more than MNIST's."""
    writers = [*WRITERS[part], *[5] * more]
    rows = np.zeros((len(writers), 8), ">i4")
    rows[:, 0] = np.arange(len(writers)) % 10
    rows[:, 1] = 4  # a series of NIST's, which is no writer
    rows[:, 2] = writers
    return rows


def write(folder, **others):
    folder.mkdir(exist_ok=True)
    for part, theirs in QMNIST.items():
        labels = (np.arange(len(WRITERS[part])) % 10).astype("u1")
        files = {
            f"{part}-images-idx3-ubyte.gz": idx(images_of(part)),
            f"{part}-labels-idx1-ubyte.gz": idx(labels),
            f"qmnist-{theirs}-labels-idx2-int.gz": idx(rows_of(part, 4 if part == "t10k" else 0)),
        }
        for name, data in files.items():
            (folder / name).write_bytes(others.get(name, data))
    return folder


def devices(data):
    return {one.id: one for one in (*data.train, *data.test)}


def test_each_writer_has_the_images_of_both_parts_in_their_order(tmp_path):
    found = devices(load_qmnist(write(tmp_path), Split()))
    assert {name: one.x[:, 0, 0].tolist() for name, one in found.items()} == {
        "w7": [0, 2, 5],
        "w9": [1, 4, 100],
        "w391": [3, 101, 102],
    }
    assert {name: one.y.tolist() for name, one in found.items()} == {
        "w7": [0, 2, 5],
        "w9": [1, 4, 0],
        "w391": [3, 1, 2],
    }
    assert found["w7"].x.dtype == np.uint8


def test_a_part_of_the_writers_and_of_their_images(tmp_path):
    few = load_qmnist(write(tmp_path), Split(more_than=2, num_users=2, max_samples=2))
    assert [one.num_samples for one in devices(few).values()] == [2, 2]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train-images-idx3-ubyte.gz", b"no gzip", "not a readable packed IDX"),
        ("train-images-idx3-ubyte.gz", idx(images_of("train"))[:-9], "not a readable packed IDX"),
        ("train-images-idx3-ubyte.gz", idx(images_of("train")[:, :, 1:]), "not the expected IDX"),
        (
            "t10k-labels-idx1-ubyte.gz",
            gzip.compress(b"\0\0\x08\x01\0\0\0\x05123", mtime=0),
            "expected IDX",
        ),
        ("t10k-labels-idx1-ubyte.gz", idx(np.zeros(2, "u1")), "3 t10k images, 2 labels and 7 rows"),
        ("train-labels-idx1-ubyte.gz", idx(np.zeros(6, "u1")), "row 1 says 1 and MNIST's label is"),
        ("qmnist-train-labels-idx2-int.gz", idx(rows_of("train")[1:]), "5 rows of QMNIST's"),
        ("qmnist-train-labels-idx2-int.gz", idx(-rows_of("train")), "row 1 says -1"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, name, data, message):
    with pytest.raises(DataError, match=message):
        load_qmnist(write(tmp_path, **{name: data}), Split())


def test_files_without_images_are_refused(tmp_path):
    none = {
        f"{part}-images-idx3-ubyte.gz": idx(images_of("train")[:0]) for part in ("train", "t10k")
    }
    none |= {f"{part}-labels-idx1-ubyte.gz": idx(np.zeros(0, "u1")) for part in ("train", "t10k")}
    none |= {
        f"qmnist-{part}-labels-idx2-int.gz": idx(rows_of("train")[:0]) for part in ("train", "test")
    }
    with pytest.raises(DataError, match="its files have no images"):
        load_qmnist(write(tmp_path, **none), Split())


def test_a_writer_that_is_no_number_is_refused(tmp_path):
    rows = rows_of("train")
    rows[3, 2] = -1
    with pytest.raises(DataError, match="row 3 has the writer -1"):
        load_qmnist(write(tmp_path, **{"qmnist-train-labels-idx2-int.gz": idx(rows)}), Split())


def test_no_file_unpacks_without_bound(tmp_path, monkeypatch):
    monkeypatch.setattr("deltafl.fl.data.qmnist._MAX_ROWS", 6)
    write(tmp_path)
    with pytest.raises(DataError, match=r"qmnist-test-labels-idx2-int\.gz: not the expected"):
        load_qmnist(tmp_path, Split())  # it has 7 rows


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(DataError, match="deltafl data fetch qmnist"):
        load_qmnist(tmp_path / "none", Split())
    (write(tmp_path) / "qmnist-test-labels-idx2-int.gz").unlink()
    with pytest.raises(DataError, match=r"qmnist-test-labels-idx2-int\.gz: no such file"):
        load_qmnist(tmp_path, Split())


def test_what_is_fetched_is_checked_against_published_sums(tmp_path, capsys):
    """From a mirror; a file that is not MNIST's is not kept."""
    mirror = write(tmp_path / "mirror")
    to = tmp_path / "qmnist"
    arguments = ["data", "fetch", "qmnist", "--out", str(to), "--mirror", mirror.as_uri()]
    assert main(arguments) == 2
    assert "its MD5 is" in capsys.readouterr().err
    assert list(to.iterdir()) == []


def test_the_archive_by_writer_has_583_writers_of_more_than_50_images():
    path = shared("mnist_by_writer/mnist_by_writer.npz")
    data = load_npz(path, Split(more_than=50))
    assert (len(data.train), len(data.test), data.num_classes) == (291, 292, 10)
    assert data.dropped == 836 - 583


def test_the_files_of_the_archive_give_the_devices_of_the_archive(tmp_path):
    """Written back as MNIST and QMNIST have them, the shared archive is read as the same."""
    with np.load(shared("mnist_by_writer/mnist_by_writer.npz")) as archive:
        x, y, user, users = (archive[name] for name in ("x", "y", "user", "users"))
    writer = np.array([int(name[1:]) for name in users])[user]
    tests = slice(60_000, 61_000)
    for part, theirs, rows in (("train", "train", slice(0, 1_000)), ("t10k", "test", tests)):
        table = np.zeros((1_000, 8), ">i4")
        table[:, 0], table[:, 2] = y[rows], writer[rows]
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(idx(x[rows]))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx(y[rows].astype("u1")))
        (tmp_path / f"qmnist-{theirs}-labels-idx2-int.gz").write_bytes(idx(table))
    some = np.r_[0:1_000, tests]
    ids, index = np.unique(user[some], return_inverse=True)
    np.savez(tmp_path / "same.npz", x=x[some], y=y[some], user=index, users=users[ids])
    ours = load_dataset(DatasetSpec(str(tmp_path), format="qmnist"))
    theirs = load_dataset(DatasetSpec(str(tmp_path / "same.npz")))
    for one, other in zip((*ours.train, *ours.test), (*theirs.train, *theirs.test), strict=True):
        assert one.id == other.id
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
