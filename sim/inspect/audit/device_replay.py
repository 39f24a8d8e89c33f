"""A round's devices played again: the real ones, given what the record says that they were sent.

A simulation writes the seed of all that a device draws, its losses, its weight and its update to
the file of truth. With them the real device must send what the record says that it sent. What it
sends otherwise is a departure, of a rule that follows from what is different.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from deltafl.protocol.client import LocalWork, RoundClient
from deltafl.protocol.levels import Levels
from deltafl.protocol.policy import RoundPolicy
from deltafl.secagg import ClientId, Credentials, DecodeError, FirstUse, Ledger, SessionParams
from deltafl.secagg import wire as session_wire
from deltafl.secagg.errors import EncodingError, LedgerError, PeerError, UsageError
from deltafl.secagg.identity import identity
from deltafl.sim.inspect.audit.server_replay import Found, different, fields_of
from deltafl.sim.inspect.audit.truth_rounds import InputsOfRound
from deltafl.sim.record.truth import DeviceSeed, DeviceTruth, sources_of


class _Lenient(RoundPolicy):
    """Of devices whose policy is not known: of what they refuse, other checks judge."""

    def check_round(self, levels: Levels, params: SessionParams) -> None:
        """Accept all rounds whose sessions are not too much work."""
        del levels
        self.check(params)


LENIENT: Final = _Lenient(
    min_cohort=2,
    min_threshold=2,
    min_threshold_share=0.0,
    colluding_rate=0.0,
    dropout_rate=0.999,
    min_honest_tail=0,
    max_levels=16,
)
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
    "positions": _OTHER_SHARES,
    "kinds": _OTHER_SHARES,
    "shares": _OTHER_SHARES,
}
"""Of a message's fields: the rule, and what was otherwise."""


class _Untrue(Exception):
    """What the truth lacks, or says otherwise than the device decides: rule and detail."""


@dataclass(slots=True, eq=False)
class _Device:
    """A device, and what it has made of what it was sent.

    Attributes:
        client: The device.
        inputs: Its values by conformity level.
        due: Its answers that have not come.
        ended: Rule and detail of an answer, once none can be known.
        has_refused: Whether it was sent what it refuses.
        lost_track: Whether the rest of its answers is passed over.
    """

    client: RoundClient
    inputs: Mapping[int, DeviceTruth]
    due: list[bytes] = field(default_factory=list)
    ended: tuple[str, str] | None = None
    has_refused: bool = False
    lost_track: bool = False

    def take(self, data: bytes) -> None:
        """Answer what the device was sent; it is due from now on."""
        if self.lost_track or self.ended is not None:
            return
        try:
            reply = self.client.receive(data)
            if isinstance(reply, LocalWork):
                reply = self._work(reply)
        except (PeerError, LedgerError, UsageError) as error:
            self.has_refused = True
            self.ended = "policy.ignored", f"answered what it refuses: {error}"
        except EncodingError as error:
            self.ended = "truth.disagrees", f"cannot have the values of the truth: {error}"
        except _Untrue as error:
            self.ended = error.args
        else:
            self.due += [] if reply is None else [reply]

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


@dataclass(slots=True, eq=False)
class DeviceReplay:
    """The devices of a session, played again as far as their seeds are known.

    Attributes:
        params: The session's.
        policy: What devices insist on.
        seeds: Theirs.
        inputs: Their values, by device and conformity level.
        ledgers: What each remembers over all rounds.
    """

    params: SessionParams
    policy: RoundPolicy
    seeds: Mapping[int, DeviceSeed]
    inputs: InputsOfRound
    ledgers: Mapping[int, Ledger]
    _devices: dict[int, _Device] = field(default_factory=dict)
    _seedless: set[int] = field(default_factory=set)

    @property
    def refused(self) -> frozenset[int]:
        """The devices that refused to go on."""
        return frozenset(peer for peer, one in self._devices.items() if one.has_refused)

    @property
    def played(self) -> int:
        """How many devices were played again to where the record leads them."""
        return sum(not one.lost_track for one in self._devices.values())

    def sent(self, peer: int, data: bytes) -> Found:
        """The record says that the server sent this to a device."""
        if peer not in self._devices and peer in self.seeds:
            inputs = {level: one for (of, level), one in self.inputs.items() if of == peer}
            self._devices[peer] = _Device(self._client(peer), inputs)
        elif peer not in self._devices and peer not in self._seedless:
            self._seedless.add(peer)
            yield "truth.missing", f"the truth has no seed of device {peer}"
        if peer in self._devices:
            self._devices[peer].take(data)

    def received(self, peer: int, data: bytes) -> Found:
        """The record says that a device sent this."""
        device = self._devices.get(peer)
        if device is None or device.lost_track:
            return
        expected = device.due.pop(0) if device.due else None
        if expected == data:
            return
        device.lost_track = True
        found: Sequence[tuple[str, str]]
        found = [device.ended or ("messages.unasked", "sent what nobody had asked it for")]
        if expected is not None:
            found = _differences(expected, data, self.params)
        for rule, detail in dict.fromkeys(found):
            yield rule, f"device {peer} {detail}"

    def _client(self, device: int) -> RoundClient:
        seed = self.seeds[device]
        secrets, noise = sources_of(seed.seed)
        credentials = Credentials(identity(seed.identity), FirstUse()) if seed.identity else None
        own, ledger = (secrets, credentials, noise), self.ledgers[device]
        return RoundClient(ClientId(device), self.policy, *own, ledger=ledger)


def _differences(expected: bytes, data: bytes, params: SessionParams) -> Sequence[tuple[str, str]]:
    """What is different in a device's message: rules and details."""
    found: list[tuple[str, str]] = []
    with suppress(DecodeError):  # the check of what is no message says so
        both = (fields_of(session_wire.decode(one, params)) for one in (expected, data))
        for name, due, said in different(*both):
            rule, detail = _DIFFERENT[name]
            found.append((rule, detail.format(due=due, said=said)))
    return found or [("messages.unasked", "sent what an honest device writes otherwise")]
