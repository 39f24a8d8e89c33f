"""A node's process that lives from one message of Flower's to the next.

Flower starts a process for each message and ends it. Where a round's trips are such messages, the
device's keys must outlive them, and must not lie in Flower's own state, which may be kept on a
disk. So they are in the memory of this process, and nowhere else. It holds the machine of the
round; what the app computes, the process of the message computes for it:

    process of a message                      resident
    member, frames             ->
                               <-             MEASURE, TRAIN: a model; or NOTE: a sentence
    what the app says          ->
                               <-             REPLIES: frames

They talk over a socket in a folder that only their user can enter. The resident ends when the
server says that the run is over, and by itself when nobody has said anything for `IDLE_S`. The node
then knows nothing of the round any more, as if it had been started again.
"""

import contextlib
import math
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from enum import IntEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np

from deltafl.fl.vectors import Vector
from deltafl.secagg import DecodeError, LedgerError
from deltafl.secagg.codec import Value, read_fields, write_fields
from deltafl.secagg.ledger import SqliteLedger
from deltafl.sim.errors import UserError
from deltafl.sim.net.device import DeviceSide, Notes, said
from deltafl.sim.net.flower.member import App, Member

IDLE_S: Final = 1800.0
"""Seconds without a message after which a resident ends: longer than any stage of a round."""

MOST_FRAMES: Final = 64
"""Most frames of one message of Flower's, either way."""

_THERE_S: Final = 30.0  # in which a resident that is not at work says that it is there
_LOSS: Final = struct.Struct("<d")
_SOCKET: Final = "socket"
_LOG: Final = "log"
_SHOWN: Final = 2000  # characters of a log


class _Kind(IntEnum):
    MEASURE = 1
    TRAIN = 2
    NOTE = 3
    REPLIES = 4
    MEASURED = 5
    TRAINED = 6
    FAILED = 7
    MEMBER = 8
    END = 9
    PING = 10
    PONG = 11


def found_or_started(folder: str) -> str:
    """Where a resident can be reached: in a folder where one was, or a new one's."""
    return folder if folder and is_there(folder) else start()


def start() -> str:
    """Start a resident; where it can be reached.

    Raises:
        RuntimeError: the name of the system's temporary folder is too long for a socket.
    """
    folder = Path(tempfile.mkdtemp(prefix="deltafl-"))  # which only its owner can enter
    address = folder / _SOCKET
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        (folder / _LOG).open("wb") as log,
    ):
        try:
            listener.bind(str(address))
        except OSError as error:
            shutil.rmtree(folder)
            raise RuntimeError(
                f"{address}: no socket can be there ({error}): set TMPDIR to a folder with a "
                "shorter name"
            ) from None
        listener.listen(8)
        process = subprocess.Popen(  # noqa: S603 (this program itself)
            [
                sys.executable,
                "-P",
                "-m",
                "deltafl.sim.net.flower.resident",
                str(folder),
                str(listener.fileno()),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # so that whoever ends the message's process spares it
        )
    _STARTED.append(process)
    return str(folder)


_STARTED: Final[list[subprocess.Popen[bytes]]] = []  # kept, for it is meant that they go on


def is_there(folder: str) -> bool:
    """Whether a resident can be reached, and has nothing else to do."""
    try:
        with _reached(folder) as connection:
            connection.send_bytes(write_fields([_Kind.PING]))
            return connection.poll(_THERE_S) and bool(connection.recv_bytes())
    except (OSError, EOFError):
        return False


def end(folder: str) -> None:
    """End a resident, and forget what it knows; if there is none, nothing happens."""
    with contextlib.suppress(OSError), _reached(folder) as connection:
        connection.send_bytes(write_fields([_Kind.END]))


def exchange(
    folder: str, member: Member, frames: list[bytes], app: App, say: Callable[[str], None]
) -> list[bytes]:
    """Hand frames to a resident, and work for it; the frames that it answers.

    Args:
        folder: where it can be reached.
        member: who the node is.
        frames: what the server sends.
        app: does the work.
        say: told what happens on the node, in short sentences; nothing of it goes to the server.

    Raises:
        OSError: there is no resident, or what is there belongs to somebody else.
        RuntimeError: the resident ended; `say` was told what it left in its log.
    """
    with _reached(folder) as connection:
        try:
            connection.send_bytes(write_fields([_Kind.MEMBER, member.to_json(), *frames]))
            while True:
                match read_fields(connection.recv_bytes(), most=MOST_FRAMES + 1):
                    case [_Kind.REPLIES, *replies]:
                        return [one for one in replies if isinstance(one, bytes)]
                    case [_Kind.NOTE, bytes() as sentence]:
                        say(sentence.decode("utf-8", "replace"))
                    case [int() as kind, bytes() as model]:
                        connection.send_bytes(write_fields(_worked(app, kind, model)))
        except (EOFError, ConnectionError):
            with contextlib.suppress(OSError):
                say((Path(folder) / _LOG).read_text(encoding="utf-8", errors="replace")[-_SHOWN:])
            raise RuntimeError("the node cannot go on, and its log says why") from None


def _worked(app: App, kind: int, model: bytes) -> list[Value]:
    """What the app says of a model; an exception of its own goes to the resident as such."""
    vector = np.frombuffer(model, dtype="<f4")
    try:
        if kind == _Kind.TRAIN:
            return [_Kind.TRAINED, np.asarray(app.train(vector), "<f4").tobytes()]
        loss, weight = app.measure(vector)
        return [_Kind.MEASURED, _LOSS.pack(float(loss)), str(int(weight)).encode("ascii")]
    except Exception as error:  # noqa: BLE001 (whatever the app raises)
        return [_Kind.FAILED, said(error).encode("utf-8", "replace")]


def _reached(folder: str) -> Connection:
    """Connect to a resident of this user.

    Raises:
        OSError: there is none. In the place of one that has ended, somebody else may have put
            another.
    """
    found = os.lstat(folder)
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(f"{folder} is not a folder that only this user can enter")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.connect(str(Path(folder) / _SOCKET))
        return Connection(one.detach())


class _AppElsewhere:
    """The app, in the process of the message that has come; an `App`.

    Attributes:
        connection: to that process.
    """

    connection: Connection

    def measure(self, model: Vector) -> tuple[float, int]:
        """The training loss of a model, and the number of samples."""
        match self._asked(_Kind.MEASURE, model):
            case [_Kind.MEASURED, bytes() as loss, bytes() as weight]:
                return _LOSS.unpack(loss)[0], int(weight)
            case other:
                raise RuntimeError(_failure(other))

    def train(self, model: Vector) -> Vector:
        """What training changes of a model."""
        match self._asked(_Kind.TRAIN, model):
            case [_Kind.TRAINED, bytes() as change]:
                return np.frombuffer(change, dtype="<f4")
            case other:
                raise RuntimeError(_failure(other))

    def _asked(self, kind: _Kind, model: Vector) -> list[Value]:
        self.connection.send_bytes(write_fields([kind, model.astype("<f4").tobytes()]))
        return read_fields(_heard(self.connection), most=3)


def _failure(answer: list[Value]) -> str:
    text = answer[1] if len(answer) > 1 else b""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else "no answer"


class _Resident:
    """The device that a resident is."""

    def __init__(self) -> None:
        self._app = _AppElsewhere()
        self._member: bytes | None = None
        self._side: DeviceSide | None = None
        self._ledger: SqliteLedger | None = None

    def take(self, connection: Connection) -> bool:
        """Take what a process of a message hands over; whether to go on."""
        kind, *given = read_fields(_heard(connection), most=MOST_FRAMES + 2)
        if kind == _Kind.PING:
            connection.send_bytes(write_fields([_Kind.PONG]))
        if kind != _Kind.MEMBER:
            return kind != _Kind.END
        member, *frames = [one for one in given if isinstance(one, bytes)]
        self._app.connection = connection
        try:
            side = self._as(member)
            replies = [reply for frame in frames if (reply := side.receive(frame)) is not None]
        except (UserError, LedgerError, DecodeError) as error:
            self._give_up(str(error))
            return True
        except Exception as error:  # noqa: BLE001 (else the log would be gone before it is read)
            self._give_up(said(error))
            return True
        has_ended = side.has_ended()  # the run
        connection.send_bytes(write_fields([_Kind.REPLIES, *replies]))
        return not has_ended

    def _give_up(self, why: str) -> None:
        self.close()
        self._say(f"this node cannot take part: {why}")

    def close(self) -> None:
        """Discard all secrets."""
        if self._side is not None:
            self._side.close()
        if self._ledger is not None:
            self._ledger.close()
        self._side = self._ledger = self._member = None

    def _as(self, member: bytes) -> DeviceSide:
        """The device's side; a new one where who it is has changed, as it does with each token."""
        if self._side is None or member != self._member:
            self.close()
            who = Member.of_json(member)
            self._ledger = SqliteLedger(who.ledger)
            work = who.work_by(self._app)
            self._side = who.side(self._ledger, work, Notes.spoken(self._say))
            self._member = member
        return self._side

    def _say(self, sentence: str) -> None:
        text = sentence.encode("utf-8", "replace")
        self._app.connection.send_bytes(write_fields([_Kind.NOTE, text]))


def _heard(connection: Connection) -> bytes:
    """What comes next, if it comes soon enough.

    Raises:
        EOFError: it does not, or the connection has ended.
    """
    if not connection.poll(IDLE_S):
        raise EOFError("the other side says nothing")
    return connection.recv_bytes()


def serve(listener: socket.socket, idle: float = IDLE_S) -> None:
    """Be a resident until told to end, or until nobody has come for long enough.

    Args:
        listener: where processes of messages come.
        idle: seconds.
    """
    resident = _Resident()
    listener.settimeout(None if math.isinf(idle) else idle)
    try:
        while True:
            one, _ = listener.accept()
            one.settimeout(None)
            with Connection(one.detach()) as connection, contextlib.suppress(EOFError, OSError):
                if not resident.take(connection):
                    return
    except TimeoutError:
        return
    finally:
        resident.close()


def main() -> None:
    """Be a resident: `python -m` this module, with its folder and the number of its socket."""
    folder, number = sys.argv[1:]
    try:
        with socket.socket(fileno=int(number)) as listener:
            serve(listener)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
