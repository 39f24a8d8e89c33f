"""What only a simulation knows of its attackers: the table `attackers` of a run's record.

An object of JSON each: first who they are (`devices` and `attackers`), then for
every round (`round`) their share of the weight of its aggregate (`corrupted_share`), unless that
has none, and for every evaluation how well a backdoor works (`backdoor_success`). Nothing of it
passes the server, its transcript or its events.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from deltafl.fl.read.exact import shortened
from deltafl.sim.errors import damaged
from deltafl.sim.record.chain import ascending
from deltafl.sim.record.evaluations import is_due
from deltafl.sim.record.events import Event, to_json
from deltafl.sim.record.record import Record, json_object

_MOST_ROUNDS: Final = 1 << 31
_SHARE: Final = "corrupted_share"
_SUCCESS: Final = "backdoor_success"


@dataclass(slots=True)
class Aggregated:
    """The devices whose updates entered the aggregate of a round.

    Attributes:
        weights: the numbers of samples that they claim, as far as they count, by device.
    """

    weights: dict[int, int] = field(default_factory=dict)


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
        there = _lines(record)
        if not there:
            self._append(population._asdict())
        elif _population(record, there) != population:
            raise damaged(record.path, "it has other attackers")

    def add_round(self, round_number: int, into: Aggregated) -> None:
        """Note a round.

        Args:
            round_number: the round, counted from 1.
            into: who entered the aggregate.
        """
        if kept := sum(into.weights.values()):
            corrupted = sum(w for device, w in into.weights.items() if device in self._attackers)
            self._append({"round": round_number, _SHARE: corrupted / kept})

    def add_backdoor(self, round_number: int, success: float | None) -> None:
        """Note how well the backdoor of a model works, if there is one.

        Args:
            round_number: the rounds that the model was trained for.
            success: share of honest test samples with the trigger that get its label.
        """
        if success is not None:
            self._append({"round": round_number, _SUCCESS: success})

    def _append(self, line: Event) -> None:
        text = json.dumps(to_json(line), allow_nan=False)
        row = line.get("round"), text
        self._record.db.execute("INSERT INTO attackers (round, line) VALUES (?, ?)", row)


def _lines(record: Record) -> list[Event]:
    rows = record.db.execute("SELECT number, line FROM attackers ORDER BY number")
    return [json_object(record.path, text) for _, text in ascending(record.path, rows)]


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
    lines, federation = _lines(record), record.config(checked=False).federation
    population = _population(record, lines)
    found: dict[str, dict[int, float]] = {_SHARE: {}, _SUCCESS: {}}
    for line in lines[1:]:
        match list(line.items()):
            case [("round", int(number)), (what, int() | float() as share)] if (
                what in found and 0 <= share <= 1 and 0 <= number < _MOST_ROUNDS
            ):
                found[what][number] = share
            case _:
                raise damaged(record.path, f"{shortened(line)} is no line about attackers")
    every, rounds = federation.evaluate_every, federation.rounds
    due = {at: share for at, share in found[_SUCCESS].items() if is_due(at, every, rounds)}
    return Attacked(population, found[_SHARE], due)


def _population(record: Record, lines: Sequence[Event]) -> Population:
    match lines:
        case [{"devices": int(devices), "attackers": list(lying)}, *_]:
            if all(type(one) is int for one in lying):
                return Population(devices, tuple(lying))
    raise damaged(record.path, "its first line does not say who the attackers are")
