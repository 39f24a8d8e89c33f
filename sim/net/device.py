"""A device's side of a connection, without the connection: frames in, frames out.

A device lives longer than its connections. It keeps the machine of the current round and its last
answer, so that an envelope that comes again after the connection broke is answered with the same
bytes. It does not outlive its process: its keys are in memory only. A device that was started again
in the middle of a round says that it does not know the round, and joins the next one. Its ledger is
on its disk, and keeps it from answering twice whatever the server sends.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self

from deltafl.protocol.answering import OwnWork, answered
from deltafl.protocol.client import RoundClient
from deltafl.protocol.participations import limits_of
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Credentials, LedgerError, PeerError, Refusal, TrustedKeys, UsageError
from deltafl.secagg.ledger import Ledger
from deltafl.secagg.randomness import Randomness, system_randomness
from deltafl.sim.errors import ConfigError
from deltafl.sim.net.frames import (
    MAX_DETAIL,
    Carry,
    Challenge,
    Decline,
    Over,
    Reason,
    Task,
    Welcome,
    decode,
    encode,
)
from deltafl.sim.net.identities import OwnIdentity
from deltafl.sim.net.own_work import WorkOf
from deltafl.sim.run.arms import in_settings
from deltafl.sim.settings.own import NotAllowedError

_LIFELONG: Final = "max_participations"
_USED_UP: Final = (
    "this device has taken part in as many rounds as its owner allows (dp.epsilon_budget, or "
    "policy.max_participations)"
)


@dataclass(slots=True, eq=False)
class _Round:
    """The round that a device is in.

    Attributes:
        task: its name.
        measures: whether devices measure the model in place of training.
        machine: None once the device declines.
        work: what it computes; likewise.
        trip: the last that was answered; −1 before the first.
        answer: its last frame; sent again if the envelope comes again.
    """

    task: bytes
    measures: bool
    machine: RoundClient | None = None
    work: OwnWork | None = None
    trip: int = -1
    answer: bytes | None = None


@dataclass(frozen=True, slots=True)
class Notes:
    """Who is told what happens, on the device itself; nothing of it goes to the server.

    Attributes:
        joined: the server has admitted the device: rounds done, rounds of the run.
        began: a round began in which devices train, with this number, counted from 1.
        over: it is over; rounds done.
        declined: the device does not go on with a round, and why.
        failed: an exception of training, which counts as a loss or update that is not finite.
        near: nine tenths of a limit of the device's policy are used up: its name and value.
    """

    joined: Callable[[int, int], None] = lambda _done, _rounds: None
    began: Callable[[int], None] = lambda _number: None
    over: Callable[[int], None] = lambda _done: None
    declined: Callable[[Reason, str], None] = lambda _reason, _detail: None
    failed: Callable[[Exception], None] = lambda _error: None
    near: Callable[[str, int], None] = lambda _limit, _most: None

    @classmethod
    def spoken(cls, say: Callable[[str], None]) -> Self:
        """Notes that say in sentences what the device's owner has to know.

        Args:
            say: told the sentences.
        """
        return cls(
            declined=lambda reason, detail: say(f"not in this round ({reason.words}): {detail}"),
            failed=lambda error: say(f"training failed, and counts as zeros: {_said(error)}"),
            near=lambda limit, most: say(
                f"nine tenths of this device's {limit}={most} are used up"
            ),
        )


def _said(error: Exception) -> str:
    """What an exception says, though saying it may fail."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 (whatever an app raises)
        return type(error).__name__


def today() -> int:
    """The day by this machine's clock: days since 1970 (UTC)."""
    return max(0, int(time.time() // 86400))


@dataclass(slots=True, eq=False)
class DeviceSide:
    """One device of a federation.

    Attributes:
        own: who it is.
        directory: the federation's list, its own copy.
        policy: what it insists on.
        ledger: what it took part in; on its disk.
        work_of: what it computes, round by round.
        notes: who is told what happens.
        randomness: source of every secret.
        today: which day it is.
    """

    own: OwnIdentity
    directory: TrustedKeys
    policy: RoundPolicy
    ledger: Ledger
    work_of: WorkOf
    notes: Notes = field(default_factory=Notes)
    randomness: Randomness = system_randomness
    today: Callable[[], int] = today
    _has_ended: bool = False
    _round: _Round | None = None

    def credentials(self) -> Credentials:
        """Who it is in a session, and by what it knows the others."""
        return Credentials(self.own.identity, self.directory)

    def hello(self, data: bytes, server: bytes) -> bytes:
        """Answer the first frame of a connection.

        Args:
            data: the frame.
            server: the `identities.certificate_hash` of the server.

        Raises:
            DecodeError: it is no frame.
            ConfigError: it is another one than a challenge.
        """
        challenge = decode(data)
        if not isinstance(challenge, Challenge):
            raise ConfigError(f"the server began with a {type(challenge).__name__}")
        return encode(self.own.hello(challenge, server, self.directory))

    def receive(self, data: bytes) -> bytes | None:
        """Take a frame; the frame to send, or None.

        Raises:
            DecodeError: it is no frame; the server is not one of this version.
        """
        match decode(data):
            case Welcome(done, rounds, is_over):
                self._has_ended = is_over
                self.notes.joined(done, rounds)
            case Task() as task:
                return self._begin(task)
            case Carry() as carried:
                return self._carry(carried)
            case Over(task, done):
                if self._forget(task):
                    self.notes.over(done)
            case Challenge() | Decline():
                pass  # of no meaning here
        return None

    def has_ended(self) -> bool:
        """Whether the run that the device was admitted to has ended."""
        return self._has_ended

    def close(self) -> None:
        """Discard the secrets of the current round."""
        if self._round is not None and self._round.machine is not None:
            self._round.machine.close()
        self._round = None

    def _begin(self, task: Task) -> bytes | None:
        if self._round is not None and self._round.task == task.task:
            return None  # the connection broke, and is back
        self.close()
        if not task.measures:
            self.notes.began(task.round_index + 1)
        day = self.today()
        mine = self.own.client, self.policy, self.credentials(), self.randomness
        machine = RoundClient(*mine, ledger=self.ledger, graph_seed=task.graph_seed, today=day)
        self._round = begun = _Round(task.task, task.measures, machine)
        try:
            for limit in limits_of(self.policy, day):
                if limit.name == _LIFELONG and limit.counted(self.ledger) == limit.most:
                    told = f"{_USED_UP}: {limit.most}"
                    return self._decline(begun, Reason.SETTINGS, told, told)  # for good
                if limit.is_near(self.ledger):
                    self.notes.near(limit.name, limit.most)
            begun.work = self.work_of(task, machine)
        except LedgerError as error:
            return self._decline(begun, Reason.LEDGER, str(error))
        except (ConfigError, ValueError) as error:
            told = str(error) if isinstance(error, NotAllowedError) else ""
            return self._decline(begun, Reason.SETTINGS, str(error), told)
        return None

    def _carry(self, carried: Carry) -> bytes | None:
        current = self._round
        if current is None or current.task != carried.task:
            return encode(Decline(carried.task, Reason.UNKNOWN))
        if current.machine is None or current.work is None or carried.trip == current.trip:
            return current.answer
        if carried.trip < current.trip:
            return None  # delayed on its way
        if current.trip < 0 < carried.trip:
            return self._decline(current, Reason.UNKNOWN, "the device was started again")
        try:
            reply = answered(current.machine, carried.data, current.work, self.notes.failed)
        except PeerError as error:
            is_repeated = error.reason is Refusal.MODEL_REPEATED
            reason = Reason.REPEATED if is_repeated else Reason.REFUSED
            detail = in_settings(str(error))
            # the limit is the owner's setting, and no secret; of other refusals, what was done
            told = detail if error.reason is Refusal.POLICY else error.reason.value
            return self._decline(current, reason, detail, told)
        except LedgerError as error:
            return self._decline(current, Reason.LEDGER, str(error))
        except UsageError as error:
            return self._decline(current, Reason.REFUSED, str(error))
        if reply is None:
            return None
        current.trip = carried.trip
        current.answer = encode(Carry(carried.task, carried.trip, reply))
        return current.answer

    def _decline(self, current: _Round, reason: Reason, detail: str, told: str = "") -> bytes:
        """Go no further; the server is told the reason, and the owner the detail, too."""
        if current.machine is not None:
            current.machine.close()
        current.machine = current.work = None
        shown = told.encode()[:MAX_DETAIL].decode(errors="ignore").encode()
        current.answer = encode(Decline(current.task, reason, shown))
        self.notes.declined(reason, detail)
        return current.answer

    def _forget(self, task: bytes) -> bool:
        """End a round; whether it is one in which the device was asked to train."""
        if self._round is None or self._round.task != task:
            return False
        measures = self._round.measures
        self.close()
        return not measures
