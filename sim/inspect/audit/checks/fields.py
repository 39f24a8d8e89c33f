"""Does everything that should look random look so, and is no secret a guess?

Keys, boxes, tags, deposits, commitments, signatures, proofs, the secrets that the server rebuilds,
and the polynomials by which they were shared.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import chain, product
from types import MappingProxyType
from typing import Final

import numpy as np

from deltafl.secagg import openings, pedersen, shamir, wire
from deltafl.secagg.messages import SumOpening, UnmaskShares
from deltafl.secagg.summing import SlotSum
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.public_keys import is_in_group, of_edwards
from deltafl.sim.inspect.audit.randomness import guesses
from deltafl.sim.inspect.audit.randomness.fields import (
    IDENTITIES,
    PROOFS,
    random_blinding,
    random_strings,
)
from deltafl.sim.inspect.audit.randomness.polynomials import (
    beyond,
    by_secret,
    coefficients,
    packed,
)
from deltafl.sim.inspect.audit.randomness.strings import Block, Rows, Strings, as_rows
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.session_log import Session
from deltafl.sim.inspect.audit.views import RoundView, place_of

MAX_NUMBERS: Final = 1 << 23
"""Of slots with more coefficients and shares, only as many secrets' polynomials are computed whole.

Of the others, the leading coefficient is.
"""

_FIELDS: Final = "fields: "
_SHARES: Final = "shares: "
_SECRETS: Final = "rebuilt secrets"
_NUMBERS: Final = 5  # values that say the number of a device, after as many that are common to all

_Source = tuple[bytes, str, Collection[tuple[bool, bytes]], bool]
"""What secrets may follow from: a value, what it is, where it may be seen, and if points are tried.

Where: whether among rebuilt secrets, and by which beginning.
"""


class RandomFields(Check):
    """Tests the strings of messages that should look random, and tries guesses for secrets."""

    name = "random fields and secrets"
    table = """\
fields.not-random critical device A7: a field or a secret that should be random is not
    It may hold a value in clear, or be known to others. Of boxes, the server reads the shares.
secrets.guessed critical device A7: a secret can be guessed
    Anybody computes masks, opens boxes, signs in a device's name, or reads what was committed to.
shares.reveal critical device A2: fewer shares than the threshold reveal a secret
    A few devices that collude, or a single share, are enough to remove a device's masks.
shares.unfitting medium device A22: a share does not lie on the polynomial of the others
    A device dealt or returned a false share, or something else; the record cannot tell which.
"""
    tests = MappingProxyType({_FIELDS: "fields.not-random", _SHARES: "shares.reveal"})

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._bytes = self._secrets = 0
        self._fields = Strings(premises.budget, _FIELDS)
        self._leading = Strings(premises.budget, _SHARES)
        self._lasting: set[tuple[int, bytes]] = set()  # identities stay the same
        self._before: dict[bytes, str] = {}  # rebuilt in the round before: whose
        self._begin()

    def _begin(self) -> None:
        """What is kept of one round."""
        self._seen: set[tuple[int, bytes]] = set()
        self._shown: dict[bytes, list[tuple[bool, str, Evidence]]] = defaultdict(list)
        self._has_proofs = False
        self._signed: dict[int, bytes] = {}  # the last signature of each device
        self._rebuilt: dict[bytes, str] = {}

    def on_message(self, seen: Seen, round_: RoundView) -> tuple[()]:
        """Take in what should look random in a device's message; a repeated message is left out."""
        del round_
        device, place, message = seen.record.peer, seen.place, seen.content.message
        if seen.record.sent or not self._is_new(device, seen.record.sha256):
            return ()
        for name, rows, size in random_strings(message):
            every = [row.tobytes() for row in rows]
            if name == IDENTITIES:
                if (device, every[0]) in self._lasting:
                    continue
                self._lasting.add((device, every[0]))
                self._show(of_edwards(every[0]), f"device {device}'s identity", place)
            elif name == PROOFS:  # of which points may come again
                self._has_proofs |= bool(every)
                rows = rows[[self._is_new(device, one) or not is_in_group(one) for one in every]]
            elif name.startswith("signatures"):
                self._compare(device, every[0], place)
            self._add(name, f"device {device}'s", rows[:, :size], place)
        return ()

    def _rebuild(
        self, session: Session, slot: int, learnt: SlotSum, place: Evidence
    ) -> Iterator[Finding]:
        """Take in the secrets that were rebuilt for a sum, and what is known of blindings."""
        if learnt.recovered is not None:
            both = learnt.recovered.seeds, learnt.recovered.recovery
            for position, secret in chain(*(one.items() for one in both)):
                self._rebuilt[secret] = whose = f"device {session.ids[position]}'s"
                self._add(_SECRETS, whose, as_rows([secret]), place)
        opening = wire.decode(learnt.opening, session.params) if learnt.opening else None
        if isinstance(opening, SumOpening):
            rows = random_blinding(opening.packed)
            self._add("sums of blindings", f"slot {slot}'s", rows, place)
            visible = guesses.visible(session)
            values = [visible.get(device, ()) for device in learnt.contributors]
            _, total = openings.unpack(session.params.slots[slot], opening.packed)
            if (how := guesses.sums_of_blindings(values).get(total)) is not None:
                yield _found(f"each blinding of slot {slot}", place, how)

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Test what came in the round."""
        polynomials = Strings(self._premises.budget, _SHARES)
        for tag, session in over.view.sessions.items():
            for slot in session.slots:
                learnt, released = over.again.get((tag, slot)), session.sum_of(slot)
                if learnt is not None and released is not None:
                    yield from self._rebuild(session, slot, learnt, place_of(released))
                yield from self._share(session, slot, polynomials)
        found = {(what, place): how for what, place, how in self._guessed(over.view)}
        yield from (_found(*where, how) for where, how in found.items())
        for strings in (self._fields, self._leading, polynomials):
            strings.end_round()
        polynomials.end()
        self._before = self._rebuilt
        self._begin()

    def on_end(self) -> tuple[()]:
        """Make the last tests; the alarms come when all tests are made."""
        self._fields.end()
        self._leading.end()
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages show all their fields."""
        fields = f"{self._bytes} bytes of keys, boxes and the like"
        return Coverage(tally.whole, f"{fields}, the polynomials of {self._secrets} secrets")

    def _is_new(self, device: int, data: bytes) -> bool:
        is_new = (device, data) not in self._seen
        self._seen.add((device, data))
        return is_new

    def _add(self, name: str, whose: str, rows: Rows, place: Evidence) -> None:
        self._bytes += rows.size
        self._fields.add(name, Block(f"{whose} {name}", rows, place))
        for row in rows:
            self._show(row.tobytes(), f"{whose} {name}", place, is_secret=name == _SECRETS)

    def _show(self, data: bytes, what: str, place: Evidence, *, is_secret: bool = False) -> None:
        self._shown[data[: guesses.HEAD]].append((is_secret, what, place))

    def _compare(self, device: int, signature: bytes, place: Evidence) -> None:
        """Take in by how much the number of a signature differs from that of the one before."""
        before = self._signed.get(device, signature)
        self._signed[device] = signature
        points = signature[: guesses.SIZE], before[: guesses.SIZE]
        if before != signature and all(map(is_in_group, points)):
            what = f"device {device}'s signature, less the one before"
            self._show(pedersen.minus(*points), what, place)

    def _guessed(self, round_: RoundView) -> Iterator[tuple[str, Evidence, str]]:
        """Secrets, and points, that follow from what everybody or the server knows."""
        for value, said, due, is_deep in self._sources(round_):
            for secret, how in guesses.of_value(value):
                few = guesses.drawn_from(secret) if self._has_proofs else [secret]
                for data in guesses.shown_by(secret) if is_deep else few:
                    head = data[: guesses.HEAD]
                    for is_secret, what, place in self._shown.get(head, ()):
                        if (is_secret, head) not in due:
                            yield what, place, f"{how}{said}"
        numbers = guesses.shown_by_bytes() | guesses.of_small_seeds(self._rebuilt)
        for data, how in numbers.items():
            for _, what, place in self._shown.get(data[: guesses.HEAD], ()):
                yield what, place, how

    def _sources(self, round_: RoundView) -> Iterator[_Source]:
        """What is known: what everybody can see, and what the server rebuilt."""
        for session in round_.sessions.values():
            visible = guesses.visible(session)
            for value in dict.fromkeys(chain(*visible.values(), guesses.signed(session))):
                due = [(False, value[: guesses.HEAD])]
                yield value, f"{value[: guesses.SIZE].hex()}, which everybody can see", due, True
            for values in visible.values():
                for one, number in product(values[:_NUMBERS], values[_NUMBERS : 2 * _NUMBERS]):
                    yield one + number, "what everybody can see", (), False
        for secret, whose in (self._before | self._rebuilt).items():
            due = [(True, secret[: guesses.HEAD])]
            yield secret, f"{whose} rebuilt secret", due, True

    def _share(self, session: Session, slot: int, whole: Strings) -> Iterator[Finding]:
        """Look at the shares of a slot; of each holder at the first that came."""
        came, numbers = session.first(Kind.SHARES, slot), 0
        ids, threshold = session.ids, session.params.threshold
        holders = {
            session.positions[device]: seen.content.message
            for device, seen in came.items()
            if device in session.positions and isinstance(seen.content.message, UnmaskShares)
        }
        for owner, points, shares in by_secret(holders) if holders else ():
            if owner >= len(ids) or len(points) < threshold:
                continue
            whose = f"device {ids[owner]}'s secret of slot {slot}"
            place = next(iter(came.values())).place
            self._secrets += 1
            if len(points) > threshold and beyond(points, shares, threshold).any():
                yield self.rules.found("shares.unfitting", f"a share of {whose}", [place])
            last = packed(beyond(points[:threshold], shares[:threshold], threshold - 1))
            self._leading.add("leading coefficients", Block(whose, last, place))
            numbers += threshold * (threshold + len(points)) * shamir.NUM_LIMBS
            if numbers <= MAX_NUMBERS:
                secret, *rest = coefficients(points[:threshold], shares[:threshold])
                for name, each in (("", np.array(rest)), (" less the secret", rest - secret)):
                    whole.add(f"coefficients{name}", Block(whose, packed(each), place))


def _found(what: str, place: Evidence, how: str) -> Finding:
    return RandomFields.rules.found("secrets.guessed", f"{what}: the secret is {how}", [place])
