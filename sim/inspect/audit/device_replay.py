"""A round's devices played again: the real ones, given what the record says that they were sent.

A simulation writes the seed of all that a device draws, its losses, its weight and its update to
the file of truth. With them the real device must send what the record says that it sent. What it
sends otherwise is a departure, of a rule that follows from what is different.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.levels import Levels
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import Adversary, DecodeError, SessionParams
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError, LedgerError, PeerError, UsageError
from deltafl.sim.inspect.audit.server_replay import different
from deltafl.sim.record.truth import DeviceTruth


class _Lenient(RoundPolicy):
    """Of devices whose policy is not known: of what they refuse, other checks judge."""

    def check_round(self, levels: Levels, params: SessionParams) -> None:
        """Accept all rounds whose sessions are not too much work."""
        del levels
        self.check(params)


LENIENT: Final = _Lenient(
    Adversary.NONCOLLUDING,
    min_cohort=2,
    dropout_rate=0.999,
    min_honest_tail=0,
    max_levels=16,
)
_UNASKED: Final = "messages.unasked", "sent what nobody had asked it for"
_OTHER_SHARES: Final = "shares.other", "gave other shares than it was asked for, or had been sent"
_DIFFERENT: Final = {
    "type": ("messages.unasked", "sent {said} where {due} was due"),
    "slot": ("messages.unasked", "answered about slot {said}, where {due} was due"),
    "sealing_key": ("secrets.other", "has another key than that of the secret that it drew"),
    "mask_keys": ("secrets.other", "has other keys than those of the secrets that it drew"),
    "credential": ("keys.unsworn", "signed its keys otherwise than its identity does"),
    "commitments": ("commitments.other", "committed to other seeds than it drew"),
    "boxes": ("boxes.other", "sealed other boxes than those of its shares"),
    "refused": ("boxes.refused", "complained of other boxes than those that do not open"),
    "packed": ("masks.other", "sent another vector than its contribution under its masks"),
    "committed": ("commitments.other", "committed to another answer than its own"),
    "proof": ("proof.predictable", "proved its answer by other numbers than it drew"),
    "signature": ("keys.unsworn", "signed the list otherwise than its identity does"),
} | dict.fromkeys(("positions", "kinds", "shares"), _OTHER_SHARES)
"""Of a message's fields: the rule, and what was otherwise."""


class _Untrue(Exception):
    """What the truth lacks, or says otherwise than the device decides: rule and detail."""


@dataclass(slots=True, eq=False)
class DeviceReplay:
    """A device of a session, and what it has made of what it was sent.

    Attributes:
        client: The device; nothing was sent to it.
        params: The session's.
        inputs: Its values by conformity level.
        has_refused: Whether it was sent what it refuses.
        lost_track: Whether the rest of its answers is passed over.
    """

    client: RoundClient
    params: SessionParams
    inputs: Mapping[int, DeviceTruth]
    has_refused: bool = False
    lost_track: bool = False
    _due: list[bytes] = field(default_factory=list)
    _ended: tuple[str, str] = _UNASKED

    def take(self, data: bytes) -> None:
        """Answer what it was sent; the answer is due from now on, unless none can be known."""
        if self.lost_track or self._ended is not _UNASKED:
            return
        try:
            reply = self.client.receive(data)
            if isinstance(reply, LocalWork):
                reply = self._work(reply)
        except (PeerError, LedgerError, UsageError) as error:
            self.has_refused = True
            self._ended = "policy.ignored", f"answered what it refuses: {error}"
        except EncodingError as error:
            self._ended = "truth.disagrees", f"cannot have the values of the truth: {error}"
        except _Untrue as error:
            self._ended = error.args
        else:
            self._due += () if reply is None else (reply,)

    def _work(self, task: LocalWork) -> bytes | None:
        inputs, client = self.inputs, self.client
        if task is LocalWork.MEASURE_LOSS:
            if inputs.keys() != set(range(len(client.models))):
                raise _Untrue("truth.missing", "was asked for its loss, and the truth has none")
            losses = [inputs[level].loss for level in sorted(inputs)]
            return client.supply_losses(losses, inputs[0].weight)
        one = inputs[client.level]
        if one.passed != (task is LocalWork.TRAIN):
            trains = "does not train" if one.passed else "trains"
            raise _Untrue("truth.disagrees", f"{trains} by its loss, and otherwise by the truth")
        if one.passed and one.update is None:
            raise _Untrue("truth.missing", "trains by its loss, and the truth has no update of it")
        return client.supply_update(one.update) if one.passed else client.supply_zeros()

    def compare(self, data: bytes) -> Iterable[tuple[str, str]]:
        """Compare what it sent with what is due: the rules that are broken, and how."""
        expected = self._due.pop(0) if self._due else None
        if self.lost_track or expected == data:
            return ()
        self.lost_track = True
        if expected is None:
            return [self._ended]
        found: list[tuple[str, str]] = []
        with suppress(DecodeError):  # the check of what is no message says so
            both = (session_wire.decode(one, self.params) for one in (expected, data))
            for name, due, said in different(*both):
                rule, detail = _DIFFERENT[name]
                found.append((rule, detail.format(due=due, said=said)))
        otherwise = "messages.unasked", "sent what an honest device writes otherwise"
        return dict.fromkeys(found or [otherwise])
