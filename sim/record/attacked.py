"""What only a simulation knows of its attackers, in a run's record.

Who they are is what the run says of itself under `attackers`. The table of that name has for every
round their share of the weight of its aggregate (`corrupted_share`), unless that has none, and for
every evaluation how well a backdoor works (`backdoor_success`). Nothing of it passes the server,
its transcript or its events.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from deltafl.sim.errors import damaged
from deltafl.sim.record.chain import ascending
from deltafl.sim.record.evaluations import is_due
from deltafl.sim.record.record import Record

_WHO: Final = "attackers"
_MOST_ROUNDS: Final = 1 << 31
_SHARE: Final = "corrupted_share"
_SUCCESS: Final = "backdoor_success"


class Population(NamedTuple):
    """Who there is in a run with attackers.

    Attributes:
        devices: how many train.
        attackers: which of them lie, ascending.
    """

    devices: int
    attackers: tuple[int, ...]


class AttackLog:
    """Writes it; the record is not kept.

    Args:
        record: the run's.
        population: who lies.

    Raises:
        RunDirectoryError: it goes on, and it is not that of this population.
    """

    def __init__(self, record: Record, population: Population) -> None:
        self._record, self._attackers = record, frozenset(population.attackers)
        if record.json(_WHO) is None:
            record.note(_WHO, population._asdict())
        elif _population(record) != population:
            raise damaged(record.path, "it has other attackers")

    def add_round(self, round_number: int, into: Mapping[int, int]) -> None:
        """Note a round.

        Args:
            round_number: the round, counted from 1.
            into: who entered the aggregate: the numbers of samples that they claim, as far as they
                count, by device.
        """
        if kept := sum(into.values()):
            corrupted = sum(weight for one, weight in into.items() if one in self._attackers)
            self._note(round_number, _SHARE, corrupted / kept)

    def add_backdoor(self, round_number: int, success: float | None) -> None:
        """Note how well the backdoor of a model works, if there is one.

        Args:
            round_number: the rounds that the model was trained for.
            success: share of honest test samples with the trigger that get its label.
        """
        if success is not None:
            self._note(round_number, _SUCCESS, float(success))

    def _note(self, round_number: int, what: str, share: float) -> None:
        row = round_number, what, share
        self._record.db.execute("INSERT INTO attackers (round, what, share) VALUES (?, ?, ?)", row)


@dataclass(frozen=True, slots=True)
class Attacked:
    """What became of a run with attackers.

    Attributes:
        population: who they are.
        shares: share of the aggregate's weight that is theirs, by round; without rounds that kept
            nobody.
        backdoor: success of the backdoor by round of the evaluation; empty without one.
    """

    population: Population
    shares: Mapping[int, float]
    backdoor: Mapping[int, float]

    @property
    def mean_share(self) -> float | None:
        """The mean of the shares over rounds; None without any."""
        return math.fsum(self.shares.values()) / len(self.shares) if self.shares else None

    @property
    def largest_share(self) -> float | None:
        """The largest share of a round; None without any."""
        return max(self.shares.values(), default=None)

    @property
    def last_success(self) -> float | None:
        """The success of the backdoor of the last model evaluated; None without any."""
        return self.backdoor.get(max(self.backdoor, default=-1))


def read_attacked(record: Record) -> Attacked:
    """Read what a run has noted of its attackers.

    Raises:
        RunDirectoryError: it is damaged, or not there.
    """
    found: dict[str, dict[int, float]] = {_SHARE: {}, _SUCCESS: {}}
    rows = record.db.execute("SELECT number, round, what, share FROM attackers ORDER BY number")
    for number, at, what, share in ascending(record.path, rows):
        is_share = type(share) is float and 0 <= share <= 1
        if what not in found or not is_share or type(at) is not int or not 0 <= at < _MOST_ROUNDS:
            raise damaged(record.path, f"row {number} of the table attackers is no share of theirs")
        found[what][at] = share
    federation = record.config(checked=False).federation
    every, rounds = federation.evaluate_every, federation.rounds
    due = {at: share for at, share in found[_SUCCESS].items() if is_due(at, every, rounds)}
    return Attacked(_population(record), found[_SHARE], due)


def _population(record: Record) -> Population:
    match record.json(_WHO):
        case {"devices": int(devices), "attackers": list(lying)}:
            if all(type(one) is int for one in lying):
                return Population(devices, tuple(lying))
    raise damaged(record.path, "it does not say who its attackers are")
