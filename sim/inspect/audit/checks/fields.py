"""Does everything that should look random look so: keys, nonces, boxes, commitments, signatures?"""

from collections.abc import Iterator
from itertools import chain
from types import MappingProxyType
from typing import Final

from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.collected_fields import OF_BOXES, OF_FIELDS, OF_VALUES, FieldTests
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.field_tests import as_rows
from deltafl.sim.inspect.audit.field_values import functions_of, numbers_of
from deltafl.sim.inspect.audit.fields import random_strings
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.kept import kept_strings
from deltafl.sim.inspect.audit.rules import A3, A7, A15, Rule, Rules
from deltafl.sim.inspect.audit.seen import Seen
from deltafl.sim.inspect.audit.views import RoundView, SessionView, place_of

RULES: Final = Rules(
    {
        "fields.not-random": Rule(
            Severity.CRITICAL,
            "a field that should be random is not",
            "The field may hold a value in clear, or a secret that anybody can guess.",
            "Find out what the device puts there; draw secrets from the operating system.",
            A7,
        ),
        "fields.true-values": Rule(
            Severity.CRITICAL,
            "a field that should be random holds a device's value",
            "The server reads values that it should only learn as part of a sum.",
            "Stop using this device's software.",
            A15,
        ),
        "boxes.not-sealed": Rule(
            Severity.CRITICAL,
            "sealed shares are not encrypted, or not each under a nonce of its own",
            "The server reads the shares, rebuilds all secrets and removes the masks.",
            "Check how devices seal boxes; compare with the test vectors.",
            A3,
        ),
    }
)

_SECRETS: Final = "rebuilt secrets"


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

    def on_message(self, seen: Seen, round_: RoundView) -> tuple[Finding, ...]:
        """Take in what should look random in a device's message; a repeated message is left out."""
        device, own = seen.record.peer, (seen.record.peer, seen.record.sha256)
        if seen.record.sent or own in self._seen:
            return ()
        self._seen.add(own)
        strings = random_strings(seen.content.message)
        if not round_.keeps_whole and seen.content.tag in round_.sessions:
            params = round_.sessions[seen.content.tag].params
            strings = chain(strings, kept_strings(seen, params))
        for name, rows in strings:
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
        return ()

    def on_round(self, over: RoundOver) -> tuple[Finding, ...]:
        """Test what came in the round."""
        visible = functions_of(
            value for session in over.view.sessions.values() for value in _visible(session)
        )
        self._tests.end_round(visible, over.truth or {})
        self._seen.clear()
        return ()

    def on_end(self) -> tuple[Finding, ...]:
        """Make the last tests; the alarms come when all tests are made."""
        self._tests.finish()
        return ()

    def coverage(self, tally: Tally) -> Coverage:
        """Only whole messages show all their fields."""
        return Coverage(
            tally.whole, f"{self._tests.bytes_tested} bytes of keys, boxes and the like"
        )


def _visible(session: SessionView) -> Iterator[bytes]:
    """What everybody can see of a session: its parameters, devices and keys."""
    params = session.params
    yield from (params.tag, params.digest, params.context, params.graph_seed, session.session_id)
    for device, message, _ in session.advertised():
        yield from numbers_of(device)
        yield from (message.sealing_key, *message.mask_keys)
        if message.credential is not None:
            yield message.credential.identity
