import hashlib
import json
import logging
import os
import shutil
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltafl.fl.data import cache
from deltafl.fl.data.cache import SourceKey, cached, default_cache_folder
from deltafl.fl.data.digits import load_digits
from deltafl.fl.data.federated import (
    DeviceData,
    FederatedDataset,
    Split,
    SplitBy,
    federate,
    text_under,
)
from deltafl.fl.data.shakespeare import split_text, windowed_device
from deltafl.fl.errors import DataError
from deltafl.sim.data.dataset import dataset_digest


def windows(seed=0, length=20):
    rng = np.random.default_rng(seed)
    return [
        windowed_device(f"r{k}", rng.integers(0, 53, length + n, np.int8), length)
        for k, n in enumerate([1, 2, 150, 31, 77])
    ]


def text_dataset(split=SplitBy.DEVICES):
    if split is SplitBy.DEVICES:
        return federate("text", windows(), Split(num_classes=53))
    sides = [split_text(device, Split()) for device in windows()[2:]]
    train, test = (tuple(side) for side in zip(*sides, strict=True))
    return FederatedDataset("text", train, test, 53, (20,), 3, "rule")


def token_dataset():
    rng = np.random.default_rng(1)
    devices = [
        DeviceData(f"u\xe9{k}", rng.integers(0, 9, (k + 1, 4), np.int32), np.arange(k + 1) % 2)
        for k in range(5)
    ]
    dataset = federate("tokens", devices, Split(more_than=1))
    return FederatedDataset(
        *(getattr(dataset, name) for name in dataset.__slots__[:7]),
        embedding=rng.random((9, 3), dtype=np.float32),
    )


DATASETS = {
    "windows": text_dataset,
    "windows split by samples": lambda: text_dataset(SplitBy.SAMPLES),
    "tokens with vectors": token_dataset,
    "images": lambda: load_digits(Split(train_fraction=Fraction(1, 3))),
    "numbers": lambda: federate(
        "n", [DeviceData(f"{k}", np.full((3, 1), k, np.float32), np.arange(3)) for k in range(3)],
        Split(),
    ),
    "loose windows": lambda: federate(
        "w", [DeviceData(d.id, np.ascontiguousarray(d.x), d.y) for d in windows()], Split()
    ),
}  # fmt: skip


def never():
    raise AssertionError("built again")


def fields(dataset):
    return (
        dataset.name,
        dataset.num_classes,
        dataset.input_shape,
        dataset.dropped,
        dataset.rule,
        len(dataset.train),
    )


def entry_of(folder):
    (entry,) = (path for path in folder.iterdir() if path.is_dir())
    return entry


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_the_cached_data_set_equals_the_one_that_was_built(tmp_path, name):
    built = DATASETS[name]()
    key = SourceKey(name, 1)
    for made in (lambda: built, never):
        opened = cached(key, made, tmp_path)
        assert dataset_digest(opened) == dataset_digest(built)
        assert fields(opened) == fields(built)
        assert (opened.embedding is None) == (built.embedding is None)
        if built.embedding is not None:
            assert np.array_equal(opened.embedding, built.embedding)


def test_the_digest_that_compares_them_tells_data_sets_apart():
    assert len({dataset_digest(make()) for make in DATASETS.values()}) == len(DATASETS) - 1
    loose, tight = DATASETS["loose windows"](), DATASETS["windows"]()
    assert dataset_digest(loose) == dataset_digest(tight)  # the same data in another layout


@settings(max_examples=20)  # each writes files and brings them to the disk
@given(
    st.lists(st.binary(min_size=4, max_size=12), min_size=2, max_size=5),
    st.integers(1, 3),
    st.booleans(),
)
def test_any_windows_come_back(tmp_path_factory, texts, length, loose):
    folder = tmp_path_factory.mktemp("cache")
    devices = []
    for k, text in enumerate(texts):
        device = windowed_device(f"{k}", np.frombuffer(text, np.int8) & 31, length)
        x = np.ascontiguousarray(device.x) if loose else device.x
        devices.append(DeviceData(device.id, x, device.y))
    built = federate("t", devices, Split())
    assert dataset_digest(cached(SourceKey("t", 1), lambda: built, folder)) == dataset_digest(built)
    shutil.rmtree(folder)


def test_texts_and_tables_of_windows_come_back_together(tmp_path):
    first, *others = windows()[2:]
    loose = DeviceData(first.id, np.ascontiguousarray(first.x), first.y)
    built = FederatedDataset("w", (loose,), tuple(others), 53, (20,), 0, "")
    opened = cached(SourceKey("t", 1), lambda: built, tmp_path)
    assert dataset_digest(opened) == dataset_digest(built)


def test_a_text_is_kept_as_a_text(tmp_path):
    built = text_dataset()
    opened = cached(SourceKey("t", 1), lambda: built, tmp_path)
    characters = sum(
        device.num_samples + 19 for device in [*built.train, *built.test]
    )  # the last label is in y
    assert np.load(entry_of(tmp_path) / "x.npy").shape == (characters,)
    assert all(text_under(device.x) is not None for device in opened.train)


def test_arrays_are_memory_mapped_and_read_only(tmp_path):
    opened = cached(SourceKey("t", 1), token_dataset, tmp_path)
    for array in (opened.train[0].x, opened.train[0].y, opened.embedding):
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        assert isinstance(owner, np.memmap)
        assert not array.flags.writeable


def test_whatever_the_data_depend_on_makes_another_entry(tmp_path):
    source = tmp_path / "raw" / "a.json"
    source.parent.mkdir()
    source.write_text("one")
    folder = tmp_path / "cache"
    built = []

    def build():
        built.append(1)
        return token_dataset()

    def is_new(loader="x", version=1, options=None, path=source.parent):
        before = len(built)
        cached(SourceKey(loader, version, options or {"k": 1}, [path]), build, folder)
        return len(built) > before

    assert is_new()
    assert not is_new()
    assert is_new(loader="y")
    assert is_new(version=2)
    assert is_new(options={"k": 2})
    assert is_new(options={"k": "1"})
    source.write_text("three")
    assert is_new()
    (source.parent / "b.json").write_text("")
    assert is_new()
    source.rename(source.with_name("c.json"))
    assert is_new()
    assert is_new(path=source.with_name("c.json"))


def test_a_source_that_was_moved_is_the_same_source(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "sub").mkdir(parents=True)
    (here / "sub" / "a.txt").write_text("text")
    cached(SourceKey("x", 1, {}, [here]), token_dataset, tmp_path / "cache")
    here.rename(there)
    cached(SourceKey("x", 1, {}, [there]), never, tmp_path / "cache")


def test_a_change_that_keeps_size_and_time_is_noticed(tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("one")
    stat = source.stat()
    key = SourceKey("x", 1, {}, [source])
    cached(key, token_dataset, tmp_path / "cache")
    source.write_text("two")
    while source.stat().st_ctime_ns == stat.st_ctime_ns:  # a tick of the file system's clock
        os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(AssertionError, match="built again"):
        cached(key, never, tmp_path / "cache")


def test_an_unchanged_source_is_not_read_again(tmp_path, monkeypatch):
    source = tmp_path / "a.txt"
    source.write_text("one")
    key = SourceKey("x", 1, {}, [source])
    cached(key, token_dataset, tmp_path / "cache")
    read = []
    digest = cache._file_digest
    monkeypatch.setattr(cache, "_file_digest", lambda path: read.append(path.name) or digest(path))
    cached(key, never, tmp_path / "cache")
    assert "a.txt" not in read
    assert read  # the entry itself is checked


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def forge(**changes):
    """Change the header and make its digest right again."""

    def apply(entry):
        header = json.loads((entry / "header.json").read_bytes())
        del header["digest"]
        header.update(changes)
        header["digest"] = hashlib.sha256(cache._canonical(header)).hexdigest()
        (entry / "header.json").write_bytes(cache._canonical(header))

    return apply


DAMAGE = {
    "a bit of the inputs": lambda entry: flip(entry / "x.npy"),
    "a bit of the labels": lambda entry: flip(entry / "y.npy"),
    "a bit of the vectors": lambda entry: flip(entry / "embedding.npy"),
    "a bit of the header": lambda entry: flip(entry / "header.json"),
    "a truncated file": lambda entry: os.truncate(entry / "x.npy", 100),
    "a missing file": lambda entry: (entry / "y.npy").unlink(),
    "a missing header": lambda entry: (entry / "header.json").unlink(),
    "an empty header": lambda entry: (entry / "header.json").write_text(""),
    "a header with other ids": lambda entry: (entry / "header.json").write_bytes(
        (entry / "header.json").read_bytes().replace(b'"dropped":1', b'"dropped":2')
    ),
    "a header of another kind": lambda entry: (entry / "header.json").write_text("[1]"),
    "no folder": lambda entry: (shutil.rmtree(entry), entry.write_text("?")),
    "too many samples": forge(counts=[9, 9, 9, 9]),
    "negative counts": forge(counts=[-1, 2, 3, 4]),
    "too few counts": forge(counts=[1]),
    "counts that are none": forge(counts=["a", "b", "c", "d"]),
    "no ids": forge(ids=None),
    "a path outside": forge(files={"../../etc/passwd": ""}),
    "windows that are none": forge(windows=10**9),
}


@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_a_damaged_entry_is_noticed_and_made_anew(tmp_path, caplog, name):
    key = SourceKey("x", 1)
    cached(key, token_dataset, tmp_path)
    entry = entry_of(tmp_path)
    DAMAGE[name](entry)
    with caplog.at_level(logging.WARNING):
        opened = cached(key, token_dataset, tmp_path)
    assert "damaged, made anew" in caplog.text
    assert str(entry) in caplog.text
    assert dataset_digest(opened) == dataset_digest(token_dataset())
    cached(key, never, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [entry.name]


def test_a_sound_entry_makes_no_note(tmp_path, caplog):
    for _ in range(2):
        cached(SourceKey("x", 1), token_dataset, tmp_path)
    assert caplog.text == ""


def test_a_failure_leaves_no_entry(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError("disk full")

    with pytest.raises(AssertionError, match="built again"):
        cached(SourceKey("x", 1), never, tmp_path)
    monkeypatch.setattr(cache, "_file_digest", broken)
    with pytest.raises(OSError, match="disk full"):
        cached(SourceKey("x", 1), token_dataset, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_who_comes_second_uses_the_entry_of_the_first(tmp_path):
    key = SourceKey("x", 1)

    def slow():
        cached(key, token_dataset, tmp_path)  # meanwhile, another process
        return token_dataset()

    assert dataset_digest(cached(key, slow, tmp_path)) == dataset_digest(token_dataset())
    assert len(list(tmp_path.iterdir())) == 1


def test_devices_of_two_kinds_fit_in_no_array(tmp_path):
    mixed = FederatedDataset(
        "m",
        (DeviceData("a", np.zeros((2, 3), np.uint8), np.zeros(2, np.int64)),),
        (DeviceData("b", np.zeros((2, 3), np.float32), np.zeros(2, np.int64)),),
        2, (3,), 0, "",
    )  # fmt: skip
    with pytest.raises(DataError, match=r"'b' are float32 .* 'a' uint8"):
        cached(SourceKey("x", 1), lambda: mixed, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_source_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none: no such file or folder"):
        cached(SourceKey("x", 1, {}, [tmp_path / "none"]), never, tmp_path)


def test_the_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("DELTAFL_CACHE", str(tmp_path))
    assert default_cache_folder() == tmp_path
    monkeypatch.delenv("DELTAFL_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_cache_folder().as_posix() == "/home/somebody/.cache/deltafl"
