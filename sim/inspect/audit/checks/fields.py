"""Does everything that should look random look so: keys, nonces, boxes, commitments, signatures?"""

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Final

from deltafl.secagg import pedersen, ring
from deltafl.secagg.errors import present
from deltafl.sim.inspect.audit import guesses
from deltafl.sim.inspect.audit.blindings import guessable_sums, random_limbs
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.collected_fields import OF_BOXES, OF_FIELDS, OF_VALUES, FieldTests
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.field_tests import as_rows
from deltafl.sim.inspect.audit.field_values import functions_of, numbers_of
from deltafl.sim.inspect.audit.fields import random_strings
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.statements import keys_of
from deltafl.sim.inspect.audit.views import RoundView, SessionView, contributors, place_of
from deltafl.sim.inspect.audit.visible import of_session, visible_in

RULES: Final = Rules.read(
    """\
fields.not-random critical device A7: a field that should be random is not
    The field may hold a value in clear, or a secret that anybody can guess.
fields.true-values critical device A15: a field that should be random holds a device's value
    The server reads values that it should only learn as part of a sum.
boxes.not-sealed critical device A3: sealed shares are not encrypted, or share a nonce
    The server reads the shares, rebuilds all secrets and removes the masks.
"""
)

_SECRETS: Final = "rebuilt secrets"
_SUMS: Final = "sums of blindings"
_BEGINNING: Final = 8  # bytes by which strings are compared with what is known


class RandomFields(Check):
    """Hands the strings that `fields.FIELDS` says should look random to the tests."""

    name = "random fields"
    rules = RULES
    tests = MappingProxyType(
        {
            OF_FIELDS: "fields.not-random",
            OF_VALUES: "fields.true-values",
            OF_BOXES: "boxes.not-sealed",
        }
    )

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._tests = FieldTests(premises.budget)
        self._seen: set[tuple[int, bytes]] = set()  # messages of the round
        self._lasting: set[tuple[str, int, bytes]] = set()  # identities stay the same
        self._rebuilt: list[bytes] = []  # of the round
        self._before: dict[bytes, str] = {}  # what follows from those of the round before
        self._packed: dict[tuple[bytes, int], tuple[bytes, Evidence]] = {}  # sums with blindings

    def on_message(self, seen: Seen, round_: RoundView) -> tuple[Finding, ...]:
        """Take in what should look random in a device's message; a repeated message is left out."""
        device, own = seen.record.peer, (seen.record.peer, seen.record.sha256)
        if seen.record.sent or own in self._seen:
            return ()
        self._seen.add(own)
        del round_
        for name, rows in random_strings(seen.content.message):
            if name == "identities":
                lasting = name, device, rows.tobytes()
                if lasting in self._lasting:
                    continue
                self._lasting.add(lasting)
            self._tests.add(name, device, rows, seen.place)
        return ()

    def on_sum(self, released: ReleasedSum) -> tuple[Finding, ...]:
        """Take in the secrets that were rebuilt for it."""
        if released.replayed is not None:
            place = place_of(released.record)
            for device, secret in released.replayed.rebuilt():
                self._tests.add(_SECRETS, device, as_rows([secret]), place)
                self._rebuilt.append(secret)
            if released.slot is not None and released.replayed.packed:
                session, slot = released.slot
                self._packed[session.params.tag, slot.index] = released.replayed.packed, place
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Test what came in the round."""
        for session in over.view.sessions.values():
            yield from self._blindings(session)
        visible = functions_of(
            value for session in over.view.sessions.values() for value in visible_in(session)
        )
        current = _functions_of_secrets(self._rebuilt)
        self._tests.end_round(visible | self._before | current, over.truth or {})
        self._before = current
        self._seen.clear()
        self._rebuilt.clear()
        self._packed.clear()

    def _blindings(self, session: SessionView) -> Iterator[Finding]:
        """Take in the sums of the blindings of commitments."""
        known: dict[tuple[int, ...], dict[int, str]] = {}
        for slot in session.slots.values():
            for seen in slot.opened:
                if (proof := seen.content.proof) is not None:
                    at = session.params.tag, proof.slot
                    self._packed.setdefault(at, (proof.packed, seen.place))
        for index, slot in session.slots.items():
            packed, place = self._packed.get((session.params.tag, index), (b"", Evidence()))
            members = session.summed(slot)
            if not packed or members is None or not session.params.slots[index].verified:
                continue
            spec, devices = session.params.slots[index], contributors(session, members)
            limbs = ring.unpack(packed, spec.wire_length, spec.ring_bits)[spec.length :]
            self._tests.add(_SUMS, None, random_limbs(limbs), place)
            if devices not in known:
                known[devices] = guessable_sums(_by_device(session, devices), len(devices))
            if (how := known[devices].get(pedersen.join_blinding(limbs.tolist()))) is not None:
                detail = f"slot {index}: all blindings are alike: one is {how}"
                yield RULES.found("fields.not-random", detail, [place])

    def on_end(self) -> tuple[Finding, ...]:
        """Make the last tests; the alarms come when all tests are made."""
        self._tests.finish()
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages show all their fields."""
        return Coverage(
            tally.whole, f"{self._tests.bytes_tested} bytes of keys, boxes and the like"
        )


def _functions_of_secrets(secrets: Iterable[bytes]) -> dict[bytes, str]:
    """The beginnings of what follows from secrets that the server has rebuilt."""
    known: dict[bytes, str] = {}
    for secret in secrets:
        for other, how in guesses.functions_of(secret):
            if other[:_BEGINNING] != secret[:_BEGINNING]:
                known[other[:_BEGINNING]] = f"{how} of a rebuilt secret"
    return known


def _by_device(session: SessionView, devices: Sequence[int]) -> Iterator[Sequence[bytes]]:
    """By kind of value, what everybody can see of each of some devices."""
    keys = [keys_of(session, device) for device in devices]
    for value in of_session(session):
        yield [value] * len(devices)
    yield from zip(*(numbers_of(device) for device in devices), strict=True)
    known = [one for one in keys if one is not None]
    if len(known) == len(devices):
        yield [one.sealing_key for one in known]
        yield [bytes(present(one.credential).identity) for one in known]
