"""Does everything that should look random look so, and is no secret a guess?

Keys, nonces, boxes, commitments, signatures, proofs, and the secrets that the server rebuilds.
"""

from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.secagg import keys, pedersen, ring, signing, wire
from deltafl.secagg.messages import AdvertiseKeys, MaskedInput, SumOpening
from deltafl.secagg.params import ClientId
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.public_keys import is_in_group, of_edwards
from deltafl.sim.inspect.audit.randomness import guesses
from deltafl.sim.inspect.audit.randomness.fields import POINT, pieces, random_limbs, random_strings
from deltafl.sim.inspect.audit.randomness.strings import (
    Columns,
    Rows,
    as_rows,
    one_by_one,
    repeated,
)
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.tails import PValue
from deltafl.sim.inspect.audit.views import RoundView, SessionView, contributors, place_of

RULES: Final = Rules.read(
    """\
fields.not-random critical device A7: a field or a secret that should be random is not
    It may hold a value in clear, or be known to others. Of boxes, the server reads the shares.
secrets.guessed critical device A7: a secret can be guessed
    Anybody computes masks, opens boxes, signs in a device's name, or reads what was committed to.
"""
)

_FIELDS: Final = "fields: "
_SECRETS: Final = "rebuilt secrets"
_SUMS: Final = "sums of blindings"
_BEGINNING: Final = 16  # bytes of a string that are compared with guesses
_END: Final = 8  # bytes at either end of a string that are compared over the whole run

_Block = tuple[str, Rows, Evidence]
"""Whose strings they are, the strings of one name in one message, and where they are."""


class RandomFields(Check):
    """Tests the strings of messages that should look random, and tries guesses for secrets."""

    name = "random fields and secrets"
    rules = RULES
    tests = MappingProxyType({_FIELDS: "fields.not-random"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._bytes = 0
        self._columns: dict[str, tuple[Columns, Evidence]] = {}
        self._parts: dict[str, list[_Block]] = defaultdict(list)  # of all strings, their ends
        self._lasting: set[tuple[int, bytes]] = set()  # identities stay the same
        self._seeds: dict[bytes, tuple[str, Evidence]] = {}  # all that were rebuilt
        self._before: list[tuple[str, bytes, bool]] = []  # rebuilt in the round before
        self._begin()

    def _begin(self) -> None:
        """What is kept of one round."""
        self._seen: set[tuple[int, bytes]] = set()
        self._round: dict[str, list[_Block]] = defaultdict(list)
        self._points: list[tuple[str, bytes, Evidence]] = []
        self._signed: dict[int, bytes] = {}  # the last signature of each device
        self._proofs: dict[bytes, tuple[str, Evidence]] = {}  # the numbers in them
        self._rebuilt: list[tuple[str, bytes, bool]] = []  # whether it is of a key
        self._packed: dict[tuple[bytes, int], tuple[bytes, Evidence]] = {}  # sums with blindings

    def on_message(self, seen: Seen, round_: RoundView) -> Iterator[Finding]:
        """Take in what should look random in a device's message; a repeated message is left out."""
        content, device, place = seen.content, seen.record.peer, seen.place
        if (proof := content.proof) is not None:
            self._packed.setdefault((content.tag, proof.slot), (proof.packed, place))
        if seen.record.sent or (device, seen.record.sha256) in self._seen:
            return
        self._seen.add((device, seen.record.sha256))
        whose, message = f"device {device}'s ", content.message
        for name, rows in random_strings(message):
            if name == "identities":
                if (device, rows.tobytes()) in self._lasting:
                    continue
                self._lasting.add((device, rows.tobytes()))
            elif name.startswith("signatures"):
                yield from self._note_signature(device, rows.tobytes(), place)
            self._add(name, (whose, rows, place))
        if isinstance(message, AdvertiseKeys):
            for public in (message.sealing_key, *message.mask_keys):
                self._points.append((f"{whose}key", keys.canonical(public), place))
            if (own := message.credential) is not None and content.tag in round_.sessions:
                signer, params = bytes(own.identity), round_.sessions[content.tag].params
                for alike in (signer, of_edwards(signer)):
                    self._points.append((f"{whose}identity", alike, place))
                said = signing.advertisement(
                    params, ClientId(device), message.sealing_key, message.mask_keys
                )
                if how := guesses.number_of(signer, said, bytes(own.signature)):
                    yield _found(f"{whose}signature", place, how)
        elif isinstance(message, MaskedInput):
            self._note_proof(whose, pieces(message.proof), place)

    def on_sum(self, released: ReleasedSum) -> tuple[()]:
        """Take in the secrets that were rebuilt for it."""
        again, place = released.again, place_of(released.record)
        if again is None or released.slot is None:
            return ()
        (session, slot), recovered = released.slot, again.recovered
        if recovered is not None:
            ids = session.ids.tolist()
            lost = {position: pair.secret for position, pair in recovered.mask_keys.items()}
            for position, secret in (*recovered.seeds.items(), *lost.items()):
                whose = f"device {ids[position]}'s "
                self._add(_SECRETS, (whose, as_rows([secret]), place))
                self._rebuilt.append((whose, secret, position in lost))
        if again.opening is not None:
            opening = wire.decode(again.opening, session.params)
            if isinstance(opening, SumOpening):
                self._packed[session.params.tag, slot.index] = opening.packed, place
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Test what came in the round."""
        for session in over.view.sessions.values():
            yield from self._sums_of_blindings(session)
        yield from self._guessed(over.view)
        for name, blocks in self._round.items():
            self._test(name, blocks)
        self._before = self._rebuilt
        self._begin()

    def on_end(self) -> Iterator[Finding]:
        """Make the last tests; the alarms come when all tests are made."""
        for name, (columns, place) in self._columns.items():
            for result in columns.results():
                self._take(name, result, f"all {name}", place)
        for name, parts in self._parts.items():
            every = np.concatenate([rows for _, rows, _ in parts])
            ends = np.cumsum([len(rows) for _, rows, _ in parts])
            result = repeated(every.view("<u8").reshape(-1))
            at = [parts[int(np.searchsorted(ends, n, "right"))] for n in result.at or (0,)]
            self._take(name, result, " and ".join(whose for whose, *_ in at), at[-1][2])
        for secret, how in guesses.of_small_seeds(tuple(self._seeds)).items():
            yield _found(*self._seeds[secret], how)

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages show all their fields."""
        return Coverage(tally.whole, f"{self._bytes} bytes of keys, boxes and the like")

    def _add(self, name: str, block: _Block) -> None:
        whose, rows, place = block
        if len(rows):
            self._bytes += rows.size
            self._round[name].append((whose + name, rows, place))

    def _note_signature(self, device: int, signature: bytes, place: Evidence) -> Iterator[Finding]:
        """Take in a signature; say if its number follows from that of the one before."""
        whose, before = f"device {device}'s signature", self._signed.get(device, signature)
        self._signed[device] = signature
        self._points.append((whose, signature[: guesses.SIZE], place))
        if before != signature and (gap := guesses.gap(before, signature)) is not None:
            yield _found(whose, place, f"that of the one before, give or take {gap}")

    def _note_proof(self, whose: str, numbers: list[bytes], place: Evidence) -> None:
        """Take in the points and numbers of a proof; points may be those of a level before."""
        for number in numbers:
            whole = f"{whose}proof", place
            before, _ = self._proofs.setdefault(number, whole)
            if self._proofs[number] is whole or before != whole[0] or not is_in_group(number):
                block = whose, as_rows([number], POINT), place
                self._add("points and numbers of proofs", block)

    def _test(self, name: str, blocks: list[_Block]) -> None:
        """Test the strings of one name in a round, and count them for the end."""
        every = np.concatenate([rows for _, rows, _ in blocks])
        ends = np.cumsum([len(rows) for _, rows, _ in blocks])
        for result in one_by_one(every):
            at = int(np.searchsorted(ends, result.at[0], "right"))
            self._take(name, result, blocks[at][0], blocks[at][2])
        size, first = 8 * every.shape[1], blocks[0][2]
        self._columns.setdefault(name, (Columns(size), first))[0].add(every)
        for whose, rows, place in blocks:
            alone = Columns(size)
            alone.add(rows)
            for result in alone.results():
                self._take(name, result, whose, place)
            for end, part in (("beginnings", rows[:, :_END]), ("ends", rows[:, -_END:])):
                self._parts[end].append((whose, part.copy(), place))

    def _take(self, name: str, result: PValue, whose: str, place: Evidence) -> None:
        self._premises.budget.add(result, place, f"{_FIELDS}{name}: ", f"{whose}: ")

    def _guessed(self, round_: RoundView) -> Iterator[Finding]:
        """Secrets, and points, that follow from what everybody or the server knows."""
        secrets, points, plain = self._known(round_)
        beginnings = {secret[:_BEGINNING]: how for secret, how in secrets.items()}
        for name, (whose, rows, place) in (
            (name, one) for name, blocks in self._round.items() for one in blocks if name != _SUMS
        ):
            for row in rows:
                string = row.tobytes()
                if name == _SECRETS:
                    self._seeds.setdefault(string, (whose, place))
                    how = secrets.get(string)
                else:
                    head = string[:_BEGINNING]
                    how = None if head in plain else beginnings.get(head)
                if how is not None:
                    yield _found(whose, place, how)
        for what, public, place in self._points:
            if (how := points.get(public)) is not None:
                yield _found(what, place, how)
        for secret, how in secrets.items() if self._proofs else ():
            for number in guesses.numbers_drawn(secret):
                if number in self._proofs:
                    yield _found(*self._proofs[number], how)

    def _known(
        self, round_: RoundView
    ) -> tuple[Mapping[bytes, str], Mapping[bytes, str], set[bytes]]:
        """Guesses of secrets and of points, and the beginnings of what is known anyhow."""
        secrets: dict[bytes, str] = {}
        points: dict[bytes, str] = {}
        plain = {secret[:_BEGINNING] for _, secret, _ in (*self._before, *self._rebuilt)}
        for session in round_.sessions.values():
            common, own = _visible(session), _visible_of_devices(session)
            for value in {*common, *(value for values in own.values() for value in values)}:
                plain.add(value[:_BEGINNING])
                for secret, how in guesses.of_value(value):
                    secrets[secret] = f"{how}{value.hex()}, which everybody can see"
                    points |= dict.fromkeys(guesses.points(secret), secrets[secret])
            for one, values in product(common, own.values()):
                for number in values[:-2]:  # and its keys
                    found = guesses.of_value(one + number)
                    secrets |= {s: f"{how}what everybody can see" for s, how in found}
        for whose, secret, is_key in (*self._before, *self._rebuilt):
            for other, how in guesses.of_value(secret):
                shown = f"{how}{whose}rebuilt secret"
                if other != secret:
                    secrets[other] = shown
                agreeing, signing_key = guesses.public_keys(other)
                points[signing_key] = shown
                # some functions change only bits that are not used
                if not is_key or agreeing != keys.key_pair(secret).public:
                    points[agreeing] = shown
        few, of_few = dict(guesses.of_bytes()), dict(guesses.points_of_bytes())
        return ChainMap(secrets, few), ChainMap(points, of_few), plain

    def _sums_of_blindings(self, session: SessionView) -> Iterator[Finding]:
        """Take in the sums of the blindings of commitments; say which can be guessed."""
        for index, slot in session.slots.items():
            packed, place = self._packed.get((session.params.tag, index), (b"", Evidence()))
            members = session.summed(slot)
            if not packed or members is None or not session.params.slots[index].verified:
                continue
            spec, devices = session.params.slots[index], contributors(session, members)
            limbs = ring.unpack(packed, spec.wire_length, spec.ring_bits)[spec.length :]
            self._add(_SUMS, (f"slot {index}'s ", random_limbs(limbs), place))
            own = _visible_of_devices(session)
            values = zip(*(own.get(device, ()) for device in devices), strict=False)
            alike = ([value] * len(devices) for value in _visible(session))
            known = guesses.sums_of_blindings([*alike, *values], len(devices))
            if (how := known.get(pedersen.join_blinding(limbs.tolist()))) is not None:
                yield _found(f"each blinding of slot {index}", place, how)


def _visible(session: SessionView) -> tuple[bytes, ...]:
    """What everybody can see of a session, and is the same for all devices."""
    params = session.params
    return params.tag, params.digest, params.context, params.graph_seed, session.session_id


def _visible_of_devices(session: SessionView) -> dict[int, tuple[bytes, ...]]:
    return {
        device: guesses.visible_of(device, message) for device, message, _ in session.advertised()
    }


def _found(what: str, place: Evidence, how: str) -> Finding:
    return RULES.found("secrets.guessed", f"{what}: the secret is {how}", [place])
