"""What only a simulation knows of its attackers: the table `attackers` of a run's record.

An object of JSON each: first who they are (`devices`, `test_devices` and `attackers`), then for
every round (`round`) what they weigh in its aggregate, and for every evaluation how well a backdoor
works (`backdoor_success`). Nothing of it passes the server, its transcript or its events.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from deltafl.fl.read.exact import shortened
from deltafl.sim.errors import damaged
from deltafl.sim.record.evaluations import is_due
from deltafl.sim.record.events import Event, to_json
from deltafl.sim.record.record import Record, json_object

_MOST_ROUNDS: Final = 1 << 31


@dataclass(slots=True)
class Aggregated:
    """The devices whose updates entered the aggregate of a round.

    Attributes:
        weights: the numbers of samples that they claim, as far as they count, by device.
    """

    weights: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Population:
    """Who there is in a run with attackers.

    Attributes:
        devices: how many train.
        test_devices: how many test.
        attackers: which of the first lie, ascending.
    """

    devices: int
    test_devices: int
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
            self._append(asdict(population))
        elif _population(record, there) != population:
            raise damaged(record.path, "it has other attackers")

    def add_round(self, round_number: int, cohort: Mapping[int, int], into: Aggregated) -> None:
        """Note a round.

        Args:
            round_number: the round, counted from 1.
            cohort: the claimed weights of its devices.
            into: who entered the aggregate.
        """
        lying = self._attackers
        self._append(
            {
                "round": round_number,
                "attackers": sum(device in lying for device in cohort),
                "kept_attackers": sum(device in lying for device in into.weights),
                "kept_devices": len(into.weights),
                "corrupted_weight": sum(w for device, w in into.weights.items() if device in lying),
                "kept_weight": sum(into.weights.values()),
            }
        )

    def add_backdoor(self, round_number: int, success: float | None) -> None:
        """Note how well the backdoor of a model works, if there is one.

        Args:
            round_number: the rounds that the model was trained for.
            success: share of honest test samples with the trigger that get its label.
        """
        if success is not None:
            self._append({"round": round_number, "backdoor_success": success})

    def _append(self, line: Event) -> None:
        text = json.dumps(to_json(line), allow_nan=False)
        row = line.get("round"), text
        self._record.db.execute("INSERT INTO attackers (round, line) VALUES (?, ?)", row)


def _lines(record: Record) -> list[Event]:
    rows = record.rows("SELECT number, line FROM attackers ORDER BY number")
    return [json_object(record.path, text) for _, text in rows]


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
        return self.backdoor[max(self.backdoor)] if self.backdoor else None


def read_attacked(record: Record) -> Attacked:
    """Read what a run has noted of its attackers.

    Raises:
        RunDirectoryError: it is damaged, or not there.
    """
    lines, federation = _lines(record), record.config(checked=False).federation
    population, shares, backdoor = (
        _population(record, lines),
        dict[int, float](),
        dict[int, float](),
    )
    for line in lines[1:]:
        match line:
            case {"round": int(number), "backdoor_success": int() | float() as share}:
                if is_due(number, federation.evaluate_every, federation.rounds):
                    backdoor[number] = share
            case {
                "round": int(number),
                "corrupted_weight": int(corrupted),
                "kept_weight": int(kept),
            }:
                share = corrupted / kept if kept else 0.0
                if kept:
                    shares[number] = share
            case _:
                raise damaged(record.path, f"{shortened(line)} is no line about attackers")
        if not (0 <= share <= 1 and 0 <= number < _MOST_ROUNDS):
            raise damaged(record.path, f"{shortened(line)} is out of its range")
    return Attacked(population, shares, backdoor)


def _population(record: Record, lines: Sequence[Event]) -> Population:
    match lines:
        case [{"devices": int(devices), "test_devices": int(tests), "attackers": list(lying)}, *_]:
            if all(type(one) is int for one in lying):
                return Population(devices, tests, tuple(lying))
    raise damaged(record.path, "its first line does not say who the attackers are")
