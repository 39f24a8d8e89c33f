"""What somebody adds to the files of a run is found, whether a reader looks at it or not."""

import io
import json
import zipfile

import numpy as np
import pytest
from run_directories import directory_of

from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity

MORE = "has bytes that no run writes"


def disagreements(directory):
    found = [one for one in audit(directory.path).findings if one.severity >= Severity.MEDIUM]
    assert {one.rule for one in found} <= {"record.disagrees"}
    return [one.detail for one in found]


def an_array(path):
    data = io.BytesIO()
    np.save(data, np.array([1.5]))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("loss.npy", data.getvalue())


def a_comment(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"the loss of device 7 is 1.5"


def another_time(path):
    with zipfile.ZipFile(path) as archive:
        parts = [(info, archive.read(info)) for info in archive.infolist()]
    parts[0][0].date_time = (1999, 1, 5, 0, 0, 0)
    with zipfile.ZipFile(path, "w") as archive:
        for info, data in parts:
            archive.writestr(info, data)


def bytes_before(path):
    path.write_bytes(b"the loss of device 7 is 1.5" + path.read_bytes())


def a_digit(path):
    head, row, rest = path.read_bytes().split(b"\r\n", 2)
    path.write_bytes(b"\r\n".join([head, row + b"0", rest]))


def quotes(path):
    path.write_bytes(path.read_bytes().replace(b"train", b'"train"', 1))


def a_column(path):
    head, rest = path.read_bytes().split(b"\r\n", 1)
    path.write_bytes(head + b",more\r\n" + rest.replace(b"\r\n", b",1.5\r\n"))


def a_key(path):
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "loss_of_7": 1.5}, indent=2, ensure_ascii=False) + "\n")


def a_space(path):
    path.write_bytes(path.read_bytes().replace(b": ", b":  ", 1))


def a_remark(path):
    path.write_text(path.read_text() + "# the loss of device 7 is 1.5\n")


def in_events(**values):
    def change(path):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        events[0].update(values)
        path.write_text("".join(json.dumps(event) + "\n" for event in events))

    return change


CASES = {
    "an array of the bundle": ("bundle.npz", an_array, "cannot be read"),
    "a comment of the bundle": ("bundle.npz", a_comment, f"bundle.npz {MORE}"),
    "a time in the bundle": ("bundle.npz", another_time, f"bundle.npz {MORE}"),
    "bytes before the bundle": ("bundle.npz", bytes_before, f"bundle.npz {MORE}"),
    "an array of a checkpoint": ("checkpoints/*2.npz", an_array, f"round-000002.npz {MORE}"),
    "a comment of a checkpoint": ("checkpoints/*2.npz", a_comment, f"round-000002.npz {MORE}"),
    "a column": ("metrics/*0.csv", a_column, "cannot be read"),
    "a digit": ("metrics/*0.csv", a_digit, f"round-000000.csv {MORE}"),
    "quotes": ("metrics/*0.csv", quotes, f"round-000000.csv {MORE}"),
    "a key of the summary": ("summary.json", a_key, "summary.json has loss_of_7, which no run"),
    "a space in the summary": ("summary.json", a_space, f"summary.json {MORE}"),
    "a key of the versions": ("versions.json", a_key, "versions.json has 'loss_of_7'"),
    "a space in the versions": ("versions.json", a_space, f"versions.json {MORE}"),
    "a remark in the settings": ("config.toml", a_remark, f"config.toml {MORE}"),
    "a space in the events": ("events.jsonl", a_space, f"events.jsonl {MORE}, in line 1"),
    "a key of an event": ("events.jsonl", in_events(loss_of_7=1.5), "'loss_of_7', and no report"),
    "a time below zero": ("events.jsonl", in_events(wall_s=-1.5), "wall_s is -1.5"),
    "a time of a stage below zero": (
        "events.jsonl",
        in_events(stage_s={"mask": -1.5}),
        "is damaged",
    ),
    "seconds of no stage": (
        "events.jsonl",
        in_events(stage_s={"loss of 7": 1.5}),
        "which is no stage",
    ),
    "seconds of a generation": ("events.jsonl", in_events(stage_s={"mask": 1.5e9}), "and no time"),
    "a stage": (
        "events.jsonl",
        in_events(dropped_by_stage={"loss of 7: 1.5": 1}),
        "which is no stage",
    ),
    "losses of nobody": (
        "events.jsonl",
        in_events(dropped_by_stage={"mask": 8}),
        "counts other than up to 7 devices",
    ),
    "a level": ("events.jsonl", in_events(levels={"1/2": {}}), "'levels, levels.1/2', and no"),
    "a text for a time": ("events.jsonl", in_events(train_cpu_s="loss 1.25"), "is damaged"),
    "a name twice": (
        "events.jsonl",
        lambda path: path.write_text(
            path.read_text().replace('"round": 1,', '"round": 9, "round": 1,', 1)
        ),
        "is damaged",
    ),
}


FAST = "seconds of no stage"


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == FAST else pytest.mark.slow) for one in CASES]
)
def test_what_was_added_to_a_file_is_found(tmp_path, name):
    pattern, add, said = CASES[name]
    directory = directory_of(tmp_path / "run")
    (path,) = directory.path.glob(pattern)
    add(path)
    found = disagreements(directory)
    assert any(said in one for one in found), found


def test_a_directory_as_it_was_written_has_nothing_added(tmp_path):
    assert disagreements(directory_of(tmp_path / "run")) == []


@pytest.mark.slow
@pytest.mark.parametrize("version", ["9.9.9", "2"])
def test_files_of_another_numpy_are_not_compared_byte_by_byte(tmp_path, version):
    directory = directory_of(tmp_path / "run", platform={"numpy": version})
    a_comment(directory.bundle)
    report = audit(directory.path)
    assert not [one for one in report.findings if one.severity >= Severity.MEDIUM]
    said = "checkpoints and bundle: written by another numpy, so not compared byte by byte"
    assert said in report.not_checked
