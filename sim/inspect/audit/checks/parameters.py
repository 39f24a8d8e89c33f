"""Did the settings of a run stay the same from round to round, and its public seeds not?

This takes no settings: it holds for any run of this program. What may change is the number of the
round, the model, the threshold at which a search starts, and what follows from the size of the
cohort. A run with real weights may change the largest weight (`deltafl.fl.strategies.masked`).
"""

from collections.abc import Iterator
from dataclasses import fields
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.fl.strategies.masked import FIRST_WEIGHT_BITS, WEIGHT_BITS
from deltafl.protocol.levels import Levels
from deltafl.secagg import SessionParams
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.rules import Rules
from deltafl.sim.inspect.audit.views import SessionView

RULES: Final = Rules.read(
    """\
parameters.changed high server A19: settings changed from round to round
    Devices took part in another run than the one that was announced first.
parameters.unfitting high server A19: an announcement does not fit the round in which it was made
    Masks are bound to the number of the round. A server that announces another can repeat a
    round, and invite other devices to it than it says.
session.seed-repeated high server A6: the public seed of a session repeats, or has a pattern
    Whoever knows in advance who is next to whom can place colluding devices around one.
"""
)

MIN_DISTINCT: Final = 16
"""Of 32 random bytes, fewer are distinct with a probability of 10^-14."""

MIN_DISTANCE: Final = 48
"""Two random seeds differ in fewer bits with a probability below 2^-70."""

MAX_SEEDS: Final = 1 << 14
"""Seeds that are compared with each new one."""

_REAL_WEIGHTS: Final = {1 << WEIGHT_BITS, 1 << FIRST_WEIGHT_BITS}


class Parameters(Check):
    """Compares every announcement with the first one, and every seed with all before it."""

    name = "settings over rounds"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._fixed: dict[str, object] = {}
        self._by_size: dict[int, dict[str, object]] = {}
        # the levels at which a search may start warm, and those after the rounds before
        self._has_threshold: frozenset[Fraction | None] = frozenset()
        self._starts_warm: bool | None = None
        self._seeds: list[bytes] = []

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's announcements."""
        kept = self._premises.rounds.kept.get(over.view.number)
        is_repeated = kept is not None and any(one.devices for one in kept.lost)
        for session in over.view.sessions.values():
            if (levels := session.levels) is None or not session.announcements:
                continue
            place = session.announcements[0].place
            for detail in _unfitting(over, session, levels, is_repeated=is_repeated):
                yield RULES.found("parameters.unfitting", detail, [place])
            for detail in self._changed(levels, session.params):
                yield RULES.found("parameters.changed", detail, [place])
            for detail in self._seed(session.params.graph_seed):
                yield RULES.found("session.seed-repeated", detail, [place])
            yield from self._starts(levels, place)
        if kept is not None and kept.announced is not None:
            for config, one in zip(kept.announced.levels.rounds, kept.outcomes or (), strict=False):
                found = one.search if one.aborted is None else None
                if found is not None and found.tail is not None and found.eta:  # a strategy has it
                    self._has_threshold |= {config.theta}

    def coverage(self, tally: Tally) -> Coverage:
        """Announcements are kept but for their models."""
        return Coverage(tally.whole, f"announcements of {tally.whole} of {tally.rounds} rounds")

    def _changed(self, levels: Levels, params: SessionParams) -> Iterator[str]:
        """Settings that are not those of the rounds before."""
        for known, now in (
            (self._fixed, _fixed(levels, params)),
            (self._by_size.setdefault(params.num_invited, {}), _of_size(levels, params)),
        ):
            for name, value in now.items():
                before = known.setdefault(name, value)
                if before != value and not _may_change(name, before, value, levels):
                    yield f"{name} = {value} was announced, and {before} before"

    def _starts(self, levels: Levels, place: Evidence) -> Iterator[Finding]:
        """Searches that start warm in some rounds and afresh in others."""
        for config in levels.rounds:
            if config.theta not in self._has_threshold:
                continue
            is_warm = config.warm_start is not None
            if self._starts_warm is None:
                self._starts_warm = is_warm
            elif self._starts_warm != is_warm:
                how = ("afresh", "at the last threshold")
                detail = f"a search starts {how[is_warm]}, and others {how[not is_warm]}"
                yield RULES.found("parameters.changed", detail, [place])

    def _seed(self, seed: bytes) -> Iterator[str]:
        """A seed that somebody may have chosen."""
        if len(set(seed)) < MIN_DISTINCT:
            yield f"only {len(set(seed))} of its 32 bytes are distinct: {seed.hex()}"
        if self._seeds:
            before = np.frombuffer(b"".join(self._seeds), np.uint8).reshape(-1, len(seed))
            bits = np.unpackbits(before ^ np.frombuffer(seed, np.uint8), axis=1).sum(axis=1)
            if bits.min() < MIN_DISTANCE:
                yield f"it differs in {bits.min()} bits from that of an earlier session"
        self._seeds = [*self._seeds[-MAX_SEEDS + 1 :], seed]


def _unfitting(
    over: RoundOver, session: SessionView, levels: Levels, *, is_repeated: bool
) -> Iterator[str]:
    number, wanted = over.view.number, session.params.num_invited
    if (index := levels.common.round_index) != number - 1:
        yield f"round_index = {index} was announced in round {number}, not {number - 1}"
    invited = {seen.record.peer for seen in session.announcements}
    may_lack = over.view.breaks_off or is_repeated
    if len(invited) > wanted or (len(invited) < wanted and not may_lack):
        yield f"{len(invited)} devices were invited, and num_invited = {wanted}"


def _fixed(levels: Levels, params: SessionParams) -> dict[str, object]:
    """What is the same in all rounds of a run, by name."""
    common = levels.common
    return {
        "θ": ", ".join(str(one.theta) for one in levels.rounds),
        "method": common.method,
        **{f"search.{f.name}": getattr(common.search, f.name) for f in fields(common.search)},
        **{
            f"update.{f.name}": getattr(common.update, f.name)
            for f in fields(common.update)
            if f.name != "noise"
        },
        "update_length": common.update_length,
        "num_pivots": common.num_pivots,
        "signed": params.signed,
    }


def _of_size(levels: Levels, params: SessionParams) -> dict[str, object]:
    """What is the same in all rounds over cohorts of one size."""
    names = ("degree", "threshold", "min_cohort", "min_roster")
    slots = [
        (slot.label, slot.length, slot.ring_bits, slot.whole, slot.verified, slot.proof_size)
        for slot in params.slots
    ]
    real = _has_real_weights(levels)
    return {
        **{name: getattr(params, name) for name in names},
        "noise": levels.common.noise,
        "update.noise": levels.common.update.noise,
        **({} if real else {"slots": slots}),
    }


def _has_real_weights(levels: Levels) -> bool:
    """Whether a round is one of a weighted mean with real weights."""
    common = levels.common
    is_mean = len(levels.rounds) == 1 and common.theta == 1
    return (
        is_mean and common.update.resolution_bits == 0 and common.update.max_weight in _REAL_WEIGHTS
    )


def _may_change(name: str, before: object, now: object, levels: Levels) -> bool:
    """Whether the server has to set a value anew in each round, by the sums of the last one."""
    if name == "update.radius":  # the check of what the settings lead to knows which
        return None not in (before, now)
    return (
        name == "update.max_weight" and _has_real_weights(levels) and {before, now} <= _REAL_WEIGHTS
    )
