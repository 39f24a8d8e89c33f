import contextlib
import functools
import hashlib
import http.server
import json
import threading
import zipfile
from dataclasses import fields
from fractions import Fraction
from inspect import Parameter, signature
from urllib.parse import urlsplit

import numpy as np
import pytest
from beside import shared

from deltafl.fl.data.federated import Split, SplitBy
from deltafl.fl.data.registry import FORMATS, Download, format_of
from deltafl.sim.cli import main
from deltafl.sim.data.convert import _leaf
from deltafl.sim.data.dataset import build_dataset, dataset_digest
from deltafl.sim.data.fetch import fetch
from deltafl.sim.errors import ConfigError, UserError
from deltafl.sim.settings.config import FORMATS as SETTINGS
from deltafl.sim.settings.config import DataConfig
from deltafl.sim.settings.config_io import build_config


@pytest.fixture
def archive(tmp_path):
    """Six users with 4, 5, ..., 9 images each."""
    counts = range(4, 10)
    user = np.repeat(np.arange(6), list(counts))
    rng = np.random.default_rng(0)
    path = tmp_path / "images.npz"
    x = rng.integers(0, 256, (len(user), 3, 3), dtype=np.uint8)
    np.savez(path, x=x, y=np.arange(len(user)) % 3, user=user)
    return path


def run(*arguments):
    return main(["data", *map(str, arguments)])


# --- registry and settings ------------------------------------------------------------------------


def test_settings_and_registry_know_the_same_formats():
    assert ("auto", *FORMATS) == SETTINGS


def test_loaders_and_settings_have_the_same_defaults():
    usual = DataConfig()
    for kind in FORMATS.values():
        arguments = signature(kind.load).parameters
        for name in kind.options - {"num_devices", "vectors"}:  # 0 and "" leave these to the loader
            assert arguments[name].default in (getattr(usual, name), Parameter.empty)


def test_every_format_says_where_its_data_come_from():
    for kind in FORMATS.values():
        assert kind.title
        assert kind.origin
        assert kind.licence
        assert kind.options <= {one.name for one in fields(DataConfig)}
        assert bool(kind.stands_for) == (kind.name in ("synthetic-emnist", "synthetic-sent140"))
        for download in kind.downloads:
            assert urlsplit(download.url).scheme in ("http", "https")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("femnist", Split(more_than=100, num_classes=62)),
        ("sent140", Split(more_than=50, num_classes=2)),
        ("shakespeare", Split(more_than=100)),
        ("heart", Split(train_fraction=Fraction(4, 5), by=SplitBy.SAMPLES, num_classes=2)),
    ],
)
def test_the_published_rule_of_a_format(name, split):
    assert FORMATS[name].split == split


def test_a_source_without_files_is_a_format_by_its_name():
    assert format_of("synthetic-emnist").name == "synthetic-emnist"
    assert build_dataset(DataConfig(source="synthetic-sent140", num_devices=8)).num_classes == 2


def test_an_older_configuration_means_what_it_meant():
    old = build_config([{"data": {"source": "digits", "num_devices": 60, "rotated_fraction": 0.2}}])
    assert dataset_digest(build_dataset(old.data)) == dataset_digest(build_dataset(DataConfig()))


def test_settings_of_the_digits_are_no_obstacle_to_other_data(archive):
    # the preset that everything begins with has them
    data = DataConfig(source=str(archive), num_devices=60, rotated_fraction=Fraction(1, 4))
    assert len(build_dataset(data).train) == 3
    assigned = build_dataset(
        DataConfig(source=str(archive), num_devices=8, partitioner="dirichlet")
    )
    assert len(assigned.train) + len(assigned.test) == 8


def test_the_published_rule_can_be_asked_for_and_leaves_no_say(archive):
    data = DataConfig(source=str(archive), rule="published")
    assert build_dataset(data).rule == "keep devices with more than 0 samples"
    with pytest.raises(ConfigError, match=r"data\.min_samples = 5 and data\.rule = 'published'"):
        build_dataset(DataConfig(source=str(archive), rule="published", min_samples=5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heterogeneity": 0.1}, "'digits' does not use heterogeneity"),
        ({"num_devices": 5}, r"num_devices=5 is not in \[8, 300\]"),
        ({"partitioner": "dirichlet"}, "makes its own devices"),
        ({"num_users": 1}, "num_users=1"),
        ({"format": "synthetic-emnist", "num_devices": 3}, "num_devices=3"),
    ],
)
def test_settings_that_do_not_fit_the_format_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_dataset(DataConfig(**settings))


def test_the_digest_tells_lazy_data_apart_without_making_them():
    def digest(**settings):
        return dataset_digest(
            build_dataset(DataConfig(format="synthetic", num_devices=50_000, **settings))
        )

    assert digest() == digest()
    assert len({digest(), digest(split_seed=1), digest(alpha=2.0), digest(standardise="none")}) == 3


# --- list and describe ----------------------------------------------------------------------------


def test_list_names_every_format_and_calls_stand_ins_so(capsys):
    assert run("list") == 0
    text = capsys.readouterr().out
    assert all(f"\n{name}: " in f"\n{text}" for name in FORMATS)
    assert "STAND-IN for EMNIST" in text
    assert run("list", "--json") == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["heart"]["licence"] == "CC BY 4.0"
    assert listed["synthetic-emnist"]["stand_in_for"] == "EMNIST"


def test_a_file_of_a_kind_that_is_not_written_is_refused(archive, tmp_path, capsys):
    assert run("convert", "npz", "--data", archive, "--out", tmp_path / "x.csv") == 2
    assert ".csv files are not written: name a file that ends in .npz" in capsys.readouterr().err
    assert run("convert", "npz", "--data", archive, "--out", tmp_path / "y.csv", "--as=leaf") == 0
    assert (tmp_path / "y.csv" / "train").is_dir()
    assert run("convert", "npz", "--data", archive) == 2
    assert "--out is missing" in capsys.readouterr().err


def described(capsys, *arguments):
    assert run("describe", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_describe_counts(archive, capsys):
    found = described(capsys, "npz", "--data", archive, "--set", "min_samples=5")
    assert found["kept"] == {
        "devices": 4,
        "median": 7.5,
        "smallest": 6,
        "largest": 9,
        "samples": 30,
    }
    assert found["train"]["devices"] == found["test"]["devices"] == 2
    assert found["train"]["samples"] + found["test"]["samples"] == 30
    assert (found["dropped"], found["num_classes"]) == (2, 3)
    assert found["input_shape"] == [3, 3]
    assert found["peak_memory_mb"] > 1
    assert found["published"] is None


def test_describe_counts_a_device_that_is_split_by_samples_once(archive, capsys):
    found = described(capsys, "npz", "--data", archive, "--set", "split=samples")
    assert found["kept"]["devices"] == 6
    assert found["kept"]["largest"] == 9
    assert found["train"]["largest"] == 4


def test_describe_prints_the_papers_row_beside_a_stand_in(capsys):
    assert run("describe", "synthetic-emnist") == 0
    text = capsys.readouterr().out
    assert "THIS IS A STAND-IN for EMNIST" in text
    rows = {
        line.rsplit(None, 2)[0]: line.split()[-2:] for line in text.splitlines() if "  " in line
    }
    assert rows["classes"] == ["62", "62"]
    assert rows["train devices"] == ["865", "865"]
    assert rows["samples per train device: median"] == ["179", "179"]
    assert rows["samples per train device: min"] == ["101", "101"]
    assert rows["samples per train device: max"] == ["447", "447"]


def test_describe_shakespeare(capsys):
    found = described(capsys, "shakespeare", "--data", shared("shakespeare_moby"))
    assert found["num_classes"] == 53
    assert found["kept"] == {
        "devices": 1106,
        "median": 1266.5,
        "smallest": 101,
        "largest": 61_269,
        "samples": 4_258_856,
    }
    assert found["published"]["largest"] == 66_963


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("describe", "hart"), "no data set 'hart': did you mean 'heart'"),
        (("describe", "heart"), "--data is missing; it must name the folder of processed"),
        (("describe", "digits", "--data", "x"), "is not read from files: leave out --data x"),
        (("describe", "digits", "--set", "seed=1"), "unknown setting data.seed"),
        (("describe", "digits", "--set", "data.seed=1"), "unknown setting data.seed"),
        (("describe", "npz", "--data", "none.npz"), "none.npz: no such file"),
        (("describe", "digits", "--set", "num_devices=9000"), "num_devices=9000"),
        (("fetch", "digits"), "is not read from files: there is nothing to fetch"),
        (("fetch", "leaf"), "cannot be fetched because no download address is known"),
        (("fetch", "glov"), "no data set 'glov'"),
    ],
)
def test_what_can_not_be_done_is_answered_by_a_sentence(arguments, message, capsys):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


# --- convert --------------------------------------------------------------------------------------


def test_converted_to_leaf_it_is_the_same_data_in_the_same_split(archive, tmp_path, capsys):
    before = build_dataset(DataConfig(source=str(archive)))
    assert run("convert", "npz", "--data", archive, "--out", tmp_path / "leaf") == 0
    after = build_dataset(DataConfig(source=str(tmp_path / "leaf"), split_seed=99))
    for one, other in ((before.train, after.train), (before.test, after.test)):
        for a, b in zip(one, other, strict=True):
            assert a.id == b.id
            np.testing.assert_allclose(a.inputs(), b.inputs(), rtol=1e-6)
            np.testing.assert_array_equal(a.y, b.y)
    assert run("convert", "npz", "--data", archive, "--out", tmp_path / "leaf") == 2
    assert "exists: give another --out" in capsys.readouterr().err


def test_leaf_is_written_a_device_at_a_time_and_is_one_object(archive):
    devices = build_dataset(DataConfig(source=str(archive))).train
    pieces = list(_leaf(devices))
    assert len(pieces) == 2 + len(devices)
    assert json.loads(b"".join(pieces)) == {
        "users": [device.id for device in devices],
        "num_samples": [device.num_samples for device in devices],
        "user_data": {
            device.id: {"x": device.inputs().tolist(), "y": device.y.tolist()} for device in devices
        },
    }


def test_half_a_folder_of_leaf_is_not_written(archive, tmp_path):
    (tmp_path / "leaf/test").mkdir(parents=True)
    assert run("convert", "npz", "--data", archive, "--out", tmp_path / "leaf") == 2
    assert [path.name for path in (tmp_path / "leaf").iterdir()] == ["test"]


def test_converted_to_an_archive_it_has_every_sample_once(archive, tmp_path):
    to = tmp_path / "again.npz"
    arguments = ("npz", "--data", archive, "--out", to, "--set", "split=samples")
    assert run("convert", *arguments) == 0
    with np.load(archive) as before, np.load(to) as after:
        for name in ("user", "y"):
            assert sorted(after[name]) == sorted(before[name])
        assert {x.tobytes() for x in after["x"]} == {x.tobytes() for x in before["x"]}
    assert run("convert", *arguments) == 2


def test_tokens_are_not_converted(tmp_path, capsys):
    arguments = ("synthetic-sent140", "--set", "features=tokens", "--set", "num_devices=8")
    assert run("convert", *arguments, "--out", tmp_path / "x") == 2
    assert "has tokens" in capsys.readouterr().err


# --- fetch ----------------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path):
    folder = tmp_path / "mirror"
    folder.mkdir()
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        (folder / f"processed.{hospital}.data").write_text(f"rows of {hospital}\n")
    with zipfile.ZipFile(folder / "glove.6B.zip", "w") as packed:
        packed.writestr("../outside/glove.6B.50d.txt", "the 0.1 0.2\n")
        packed.writestr("glove.6B.300d.txt", "the 0.3\n")
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(folder):
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_fetch_brings_the_files_and_prints_licence_and_hash(mirror, tmp_path, capsys):
    to = tmp_path / "heart"
    with served(mirror) as address:
        assert run("fetch", "heart", "--out", to, "--mirror", address) == 0
    text = capsys.readouterr().out
    assert text.index("licence: CC BY 4.0") < text.index("fetching ")
    assert len(list(to.iterdir())) == 4
    content = (to / "processed.va.data").read_bytes()
    assert content == b"rows of va\n"
    assert hashlib.sha256(content).hexdigest() in text
    assert run("fetch", "heart", "--out", to, "--mirror", "file:///nowhere") == 0
    assert capsys.readouterr().out.count("already there") == 4


def test_fetch_takes_the_wanted_files_out_of_an_archive_and_nothing_outside(mirror, tmp_path):
    to = tmp_path / "glove"
    assert run("fetch", "glove", "--out", to, "--mirror", mirror.as_uri()) == 0
    assert [path.name for path in to.iterdir()] == ["glove.6B.50d.txt"]
    assert not (tmp_path / "outside").exists()


def refused(tmp_path, download, mirror, message):
    to = tmp_path / "to"
    with pytest.raises(UserError, match=message):
        fetch(download, to, mirror=mirror, tell=lambda _: None)
    assert not to.exists() or not list(to.iterdir())


def test_fetch_leaves_nothing_of_what_it_can_not_use(mirror, tmp_path):
    plain, packed = "http://example.org/processed.va.data", "http://example.org/glove.6B.zip"
    there = mirror.as_uri()
    refused(tmp_path, Download(plain, 5), there, "more than 5 bytes")
    refused(tmp_path, Download(plain, 99, md5="0" * 32), there, "its MD5 is .* but must be 000")
    refused(
        tmp_path, Download(packed, 9999, ("other.txt",)), there, "0 files other.txt in the archive"
    )
    refused(tmp_path, Download(plain, 99, ("a.txt",)), there, "not a readable zip archive")
    with zipfile.ZipFile(mirror / "bad.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", "rows " * 99)
    content = bytearray((mirror / "bad.zip").read_bytes())
    content[30 + len("a.txt")] = 0xFF  # no kind of block begins so
    (mirror / "bad.zip").write_bytes(content)
    bad = Download("http://example.org/bad.zip", 9999, ("a.txt",))
    refused(tmp_path, bad, there, "not a readable zip archive")
    refused(tmp_path, Download(plain, 99), "file:///nowhere", "cannot be fetched .*--mirror")
    refused(tmp_path, Download(plain, 99), "ftp://here", "must begin with http, https, file")
    md5 = hashlib.md5(b"rows of va\n", usedforsecurity=False).hexdigest()
    told = []
    fetch(Download(plain, 11, md5=md5), tmp_path / "to", mirror=there, tell=told.append)
    assert "processed.va.data: 11 bytes, SHA-256 " in told[-1]


def test_fetch_without_a_network_says_so(tmp_path):
    with served(tmp_path) as address:
        gone = address  # of a server that is not there any more
        refused(
            tmp_path,
            Download("http://x/none.data", 9),
            address,
            "answers 404 File not found",
        )
    refused(tmp_path, Download("http://x/none.data", 9), gone, "connect to the network")


class CutShort(Quiet):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"half")


def test_a_file_that_is_cut_short_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.Quiet", CutShort)
    with served(tmp_path) as address:
        refused(tmp_path, Download("http://x/a.data", 999), address, "only 4 of 100 bytes arrived")


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        run("--help")
    text = capsys.readouterr().out
    assert "A synthetic data set named after a real one is a stand-in" in " ".join(text.split())
    assert "deltafl data describe synthetic-emnist" in text
