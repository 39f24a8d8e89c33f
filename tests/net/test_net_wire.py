"""What somebody sees on the wire, where there is no TLS: nothing of a single device."""

import struct
import subprocess
import sys
import threading
from collections import Counter
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from federations import Federation, settings, taking_part
from wire_capture import Tap, captured, write_transcript

from deltafl.sim.net.admission import Door
from deltafl.sim.net.app import serving
from deltafl.sim.net.dialling import Server
from deltafl.sim.net.frames import Carry, Challenge, Hello, Over, Task, Welcome, decode
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import Message, read_transcript

pytestmark = pytest.mark.slow

SPLIT = {"data": {"num_devices": 30, "split": "samples"}}
READER = Path(__file__).parents[2] / "docs" / "examples" / "read_record.py"


class Noting:
    """A device's work, whose results are kept.

    Attributes:
        known: losses and updates, as they come.
    """

    def __init__(self, work, known):
        self._work, self._known = work, known

    def weight(self):
        return self._work.weight()

    def loss(self, model):
        loss = self._work.loss(model)
        self._known.append(loss)
        return loss

    def update(self, model):
        update = self._work.update(model)
        self._known.append(update.copy())
        return update

    def wait(self, model):
        self.update(model)


def noting(work_of, known):
    return lambda task, machine: Noting(work_of(task, machine), known)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A federation without TLS: its run directory, what passed, and what devices computed."""
    path = tmp_path_factory.mktemp("wire") / "run"
    federation, known, stop = Federation(settings("private-delta-fl", SPLIT)), [], threading.Event()
    object.__setattr__(federation.site, "gathering", 60.0)
    for side in federation.sides:
        side.work_of = noting(side.work_of, known)
    at = "127.0.0.1", 0
    post, listed = federation.post, federation.trusted
    with serving(post, Door(listed, None), at, max_frame=1 << 16) as url:
        tap = Tap(urlsplit(url).port)
        server = Server(f"ws://127.0.0.1:{tap.port}")
        threads = [
            threading.Thread(target=taking_part, args=(server, side, lambda _said: None, stop))
            for side in federation.sides
        ]
        for thread in threads:
            thread.start()
        federation.play(path)
        stop.set()
        for thread in threads:
            thread.join()
        tap.close()
    return path, tap.ways, known


@pytest.fixture(scope="module")
def frames(played):
    return [one for way in played[1] for one in captured(way)]


def test_what_was_captured_is_what_the_server_has_recorded(played, frames, tmp_path):
    path, _, _ = played
    assert write_transcript(tmp_path / "wire.sqlite", frames) == 3
    assert write_transcript(tmp_path / "measured.sqlite", frames, measures=True) == 2
    wire = messages(tmp_path / "wire.sqlite")
    assert wire == messages(RunDirectory(path).record)
    assert sum(wire.values()) > 500
    measured = sorted((path / "measured").glob("*.sqlite"))
    assert messages(tmp_path / "measured.sqlite") == sum(map(messages, measured), Counter())


def messages(file):
    """What a transcript has, whatever the order."""
    return Counter(
        (one.sent, one.peer, one.sha256)
        for one in read_transcript(file)
        if isinstance(one, Message)
    )


def test_the_capture_decodes_without_this_project(frames, tmp_path):
    write_transcript(tmp_path / "wire.sqlite", frames)
    done = subprocess.run(  # noqa: S603 our own program
        [sys.executable, "-I", READER, tmp_path / "wire.sqlite"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    table = {tuple(line.split()[:2]) for line in done.stdout.splitlines()}
    assert {("sent", "announcement"), ("sent", "roster"), ("received", "masked")} <= table
    assert "unknown" not in done.stdout
    assert "3 rounds, 0 lost" in done.stdout


def test_beside_envelopes_all_devices_get_the_same_and_send_their_names(frames):
    decoded = [(one, decode(one.data)) for one in frames]
    assert {type(frame) for one, frame in decoded if not one.down} == {Hello, Carry}
    assert {type(frame) for one, frame in decoded if one.down} == {
        Challenge,
        Welcome,
        Task,
        Carry,
        Over,
    }
    tasks = [frame for _, frame in decoded if isinstance(frame, Task)]
    assert len(tasks) == 30 + 2 * 30  # three rounds of ten, and all measure twice
    for _, of_round in groupby(sorted(tasks, key=task_name), key=task_name):
        assert len(set(of_round)) == 1


def task_name(frame):
    return frame.task


def found_in(haystack, known):
    """Which of the devices' numbers are in some bytes."""
    found = []
    for value in known:
        if isinstance(value, float):
            spellings = [struct.pack(kind, value) for kind in ("<d", ">d", "<f", ">f")]
            spellings.append(repr(value).encode())
        elif value.size > 1:
            some = value[np.flatnonzero(value)[:4]]
            assert len(some) == 4
            spellings = [some.astype(kind).tobytes() for kind in ("<f4", ">f4", "<f8", ">f8")]
        else:
            continue  # a share of errors, such as 1/2
        # 4 bytes of chance are in megabytes: those of a float32 prove nothing
        found += [value for one in spellings if len(one) >= 8 and one in haystack]
    return found


def test_no_devices_number_passes_in_clear(played, frames):
    _, ways, known = played
    assert sum(isinstance(value, float) for value in known) == 30 + 2 * 30
    assert sum(not isinstance(value, float) and value.size > 1 for value in known) == 30
    wire = b"".join(way.data for way in ways) + b"".join(one.data for one in frames)
    assert not found_in(wire, known)
    update = next(one for one in known if not isinstance(one, float) and one.size > 1)
    for planted in (struct.pack(">d", known[0]), update.tobytes()):
        assert found_in(wire + planted, known)


def test_masked_vectors_look_random(frames):
    """A masked vector has as many ones as zeros; that of a device in clear would not."""
    told = [(one, decode(one.data)) for one in frames]
    training = {task.task for _, task in told if isinstance(task, Task) and not task.measures}
    sent = [one for one, f in told if isinstance(f, Carry) and f.task in training and not one.down]
    longest = sorted((one.data for one in sent), key=len)[-30:]
    bits = np.unpackbits(np.frombuffer(b"".join(one[64:] for one in longest), dtype=np.uint8))
    deviation = abs(bits.mean() - 0.5) * 2 * np.sqrt(bits.size)
    assert bits.size > 500_000
    assert deviation < 6
