"""Are the secrets that devices drew as good as random? They are known from the truth file.

What comes of a secret hides how bad it is: a key looks random whatever its secret is, and nothing
that the server sees shows that the seed which it rebuilds is a digest of another secret.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from deltafl.secagg import pedersen
from deltafl.secagg.ring import Vector
from deltafl.sim.inspect.audit import guesses
from deltafl.sim.inspect.audit.blindings import guessable_sums, random_limbs
from deltafl.sim.inspect.audit.collected_fields import FieldTests
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.field_tests import as_rows
from deltafl.sim.inspect.audit.field_values import functions_of
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.tails import PValue
from deltafl.sim.inspect.audit.truth_rounds import SecretsOfRound, TruthOfRound
from deltafl.sim.inspect.audit.views import RoundView, place_of
from deltafl.sim.inspect.audit.visible import visible_in
from deltafl.sim.inspect.audit.weak_seeds import examine_secrets

OF_DRAWN: Final = "drawn: "
"""Tests of recorded secrets begin so, in the budget."""

_COMPARED: Final = 4  # secrets of a device that are compared with those after them, bit by bit


@dataclass(frozen=True, slots=True)
class _Blinding:
    """The blinding of a commitment."""

    device: int
    number: int
    place: Evidence


@dataclass(slots=True, eq=False)
class DrawnTests:
    """Takes in the secrets that devices drew, and tests them round by round.

    Args:
        budget: Takes the p-values.
    """

    budget: FalseAlarmBudget
    _fields: FieldTests = field(init=False)
    _blindings: list[_Blinding] = field(default_factory=list)
    _before: dict[bytes, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._fields = FieldTests(self.budget, OF_DRAWN)

    def add_blinding(self, device: int, limbs: Vector, place: Evidence) -> None:
        """Take in the blinding of a commitment.

        Args:
            device: Whose.
            limbs: Its limbs of 16 bits, the lowest first, shape (16,).
            place: Where its masked vector is.
        """
        self._fields.add("blindings", device, random_limbs(limbs), place)
        number = pedersen.join_blinding(limbs.tolist())
        self._blindings.append(_Blinding(device, number, place))

    def end_round(
        self, round_: RoundView, secrets: SecretsOfRound, truth: TruthOfRound
    ) -> Iterator[tuple[str, Evidence]]:
        """Test the secrets of a round.

        Args:
            round_: The round.
            secrets: What its devices drew.
            truth: Its devices' values.

        Yields:
            Blindings that can be guessed, and where.
        """
        place = Evidence(round_.number) if round_.end is None else place_of(round_.end)
        for (_, device), own in secrets.items():
            if not own:
                continue
            self._fields.add("recorded secrets", device, as_rows(own), place)
            rows = as_rows(own)
            for at in range(min(_COMPARED, len(own) - 1)):
                name = f"recorded secrets, compared with secret {at + 1} of the device"
                self._fields.add(name, device, rows[at + 1 :] ^ rows[at], place)
        for result in examine_secrets([secret for own in secrets.values() for secret in own]):
            named = PValue(f"{OF_DRAWN}{result.test}", result.value, result.detail)
            self.budget.add(named, place)
        visible = {value for session in round_.sessions.values() for value in visible_in(session)}
        self._fields.end_round(functions_of(visible), truth)
        known = guessable_sums([[value] for value in visible], 1) if self._blindings else {}
        for one in self._blindings:
            if (how := known.get(one.number)) is not None:
                yield f"a blinding of device {one.device} is {how}", one.place
        self._blindings.clear()

    def related(self, secrets: SecretsOfRound) -> Iterator[str]:
        """Secrets of a round that follow from others of it, or of the round before."""
        current: dict[bytes, str] = {}
        for (_, device), own in secrets.items():
            for at, secret in enumerate(own):
                for other, how in guesses.functions_of(secret):
                    if other != secret:
                        current[other] = f"{how} of secret {at + 1} of device {device}"
        for (_, device), own in secrets.items():
            for at, secret in enumerate(own):
                for known, when in ((current, ""), (self._before, " in the round before")):
                    if secret in known:
                        yield f"secret {at + 1} of device {device} is {known[secret]}{when}"
        self._before = current

    def finish(self) -> None:
        """Make the last tests."""
        self._fields.finish()
