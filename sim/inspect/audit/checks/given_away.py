"""What follows from the sums that the server learnt, also where everybody is honest?"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from deltafl.protocol.quantile.noisy import NoisyHistogram
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.update_noise import Sizes
from deltafl.protocol.weighting import Weighting
from deltafl.secagg.wire import Kind
from deltafl.sim.inspect.audit.check import Check, Premises, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import (
    CheckFacts,
    GivenAwayFacts,
    SingleFacts,
)
from deltafl.sim.inspect.audit.findings import Evidence, Finding
from deltafl.sim.inspect.audit.participation import follows
from deltafl.sim.inspect.audit.searches import (
    ATTACKED,
    Located,
    attack,
    located,
    located_by_weights,
    searched,
    tail_of,
    update_of,
    view_of,
)
from deltafl.sim.inspect.audit.session_log import Level
from deltafl.sim.inspect.audit.truth_rounds import TruthOfRound
from deltafl.sim.inspect.leakage.measure import SearchFacts
from deltafl.sim.inspect.leakage.observations import SearchView
from deltafl.sim.run.accounting import DELTA, epsilon_of, rho_of, rho_of_update

_SHOWN: Final = 5


def _singles(rounds: Sequence[Located]) -> SingleFacts:
    """Of whom something single followed from one round and level."""
    passed, closer, widths = set[int](), set[int](), list[float]()
    for losses, pivot, tick in rounds:
        least, most = min(low for low, _ in losses.values()), max(h for _, h in losses.values())
        for device, (low, high) in losses.items():
            if pivot is not None and not low < pivot < high:
                passed.add(device)
            if (low, high) != (least, most):
                closer.add(device)
            widths.append((high - low) * tick)
    return SingleFacts(len(passed), len(closer), min(widths, default=None), len(rounds))


class GivenAway(Check):
    """Says who can be told apart by the sums, and plays the server in every search."""

    name = "what follows from the sums"
    table = """\
participation.solvable low settings A11: updates could be solved for over many rounds
    If a device's update stayed the same, the server could compute it from the sums.
participation.above-limit high server A11: a device answered for more models than its limit
    What sums reveal of a device adds up over rounds: more is known than its limit was to allow.
search.losses-found high settings A14: the losses of a cohort follow from the sums of its search
    The server knows the losses. If it knows the weights, it also knows whose losses they are.
search.narrow info design A14: what the searches gave away
    The server knows the threshold, and the ranks of the losses at every query.
"""

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._answered = Counter[int]()
        self._devices: set[int] = set()
        self._invited = 0
        self._sizes: list[tuple[int, int]] = []  # the smallest: devices, and the round
        self._counts = Counter[str]()  # of sums, and of searches that were not attacked
        self._updates: list[tuple[int, npt.NDArray[np.uint32]]] = []
        self._weights: list[tuple[int, npt.NDArray[np.uint32]]] = []
        self._single: list[Located] = []
        self._with_weights: list[Located] = []
        self._rho = Counter[int]()
        self._searches: list[SearchFacts] = []
        self._facts = GivenAwayFacts()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Look at a round's sums, level by level."""
        number, tails = over.view.number, dict[int, int]()  # of sums of updates, by identity
        for session in over.view.sessions.values():
            self._invited = max(self._invited, session.params.num_invited)
            for level in session.by_level():
                yield from self._limits(level)
                self._spend(level)
                self._equations(number, level)
                yield from self._search(over, level)
                if tail := tail_of(level):
                    tails[id(update_of(level))] = tail.count
        apart = [abs(a - b) for a, b in itertools.combinations(tails.values(), 2)]
        for released in over.view.sums:
            size = len(released.contributors)
            apart.append(min(size, tails.get(id(released), size)))
            self._invited = max(self._invited, size)
            self._devices.update(released.contributors.tolist())
        self._sizes = sorted([*((size, number) for size in apart if size), *self._sizes])[:1]
        self._counts["all"] += len(over.view.sums)
        self._counts["untold"] += 0 if over.view.sessions else len(over.view.sums)

    def _limits(self, level: Level) -> Iterator[Finding]:
        """Count for how many models each device has answered."""
        most = self._premises.expected.policy.max_participations
        masked = (level.session.first(Kind.MASKED, slot) for slot in level.slots)
        came = {device: seen for every in masked for device, seen in every.items()}
        self._answered.update(came.keys())
        above = sorted(device for device in came if self._answered[device] > most)
        if most and above:
            times = max(self._answered[device] for device in above)
            detail = f"devices {_listed(above)} answered for up to {times} models, and "
            detail += f"max_participations={most}"
            places = [came[device].place for device in above]
            yield self.rules.found("participation.above-limit", detail, places)

    def _spend(self, level: Level) -> None:
        """Add what noisy sums of a round cost each device that was asked, as `accounting` does."""
        rho, config = 0.0, level.config
        if (noise := config.noise) is not None:
            rho += rho_of(noise, NoisyHistogram(noise).num_bins)
            asked = (question for _, question, _ in level.answered())
            self._counts["noisy"] += sum(isinstance(question, Query) for question in asked)
        if (hiding := config.update.noise) is not None:
            rho += rho_of_update(hiding, Sizes.of(config.update_length, config.cohort_size))
            self._counts["noisy"] += update_of(level) is not None
        if rho:
            self._rho.update(dict.fromkeys(level.session.first(Kind.OPEN), rho))

    def _equations(self, number: int, level: Level) -> None:
        """Note over whom updates were summed, and over whom weights."""
        update, over, config = update_of(level), searched(level), level.config
        if update is not None:
            self._updates.append((number, update.contributors))
        of_search = config.noise is None and config.search.weighting is not Weighting.EQUAL
        of_update = update is not None and config.update.noise is None
        if over and (of_search if config.selects else of_update):
            self._weights.append((number, np.array(over, dtype=np.uint32)))

    def _search(self, over: RoundOver, level: Level) -> Iterator[Finding]:
        """Play the server in a search."""
        view, truth = view_of(level, over.again), over.view.truth.devices
        if view is None:
            return
        self._locate(view, level, truth)
        attacked = attack(over.view.number, view, searched(level), truth)
        if attacked is None:
            return
        facts, place = attacked.facts, level.session.place
        self._searches.append(facts)
        self._counts["without weights"] += attacked.lacks_weights and not attacked.found
        self._counts["not attacked"] += view.devices > ATTACKED and view.method == "mm"
        if attacked.found:
            detail = f"all {facts.devices} losses, {attacked.found}, from {facts.queries} queries"
            yield self.rules.found("search.losses-found", f"{detail} by {facts.method}", [place])

    def _locate(self, view: SearchView, level: Level, truth: TruthOfRound) -> None:
        if (known := located(view, level)) is None:
            return
        self._single.append(known)
        if truth.keys() >= known.losses.keys():
            closer = located_by_weights(known, view, truth)
            self._with_weights += [] if closer is None else [closer]

    def on_end(self) -> Iterator[Finding]:
        """Say what follows over all rounds, and that each search reveals something."""
        policy, config = self._premises.expected.policy, self._premises.source.config
        colluding = policy.num_colluding(self._invited)
        updates, solved = follows(self._updates, colluding)
        delta = DELTA if config is None else config.dp.delta
        size, where = self._sizes[0] if self._sizes else (None, None)
        self._facts = GivenAwayFacts(
            devices=len(self._devices),
            sums=self._counts["all"],
            noisy=self._counts["noisy"],
            untold=self._counts["untold"],
            colluding=colluding,
            smallest=size,
            smallest_round=where,
            single=_singles(self._single),
            with_weights=_singles(self._with_weights) if self._with_weights else None,
            weights=follows(self._weights, colluding)[0],
            updates=updates,
            epsilon=epsilon_of(max(self._rho.values()), delta) if self._rho else None,
            delta=delta,
        )
        if solved:
            device, used = next(iter(solved.items()))
            detail = f"{len(solved)} of {updates.devices} devices, such as device {device} from "
            rounds = sorted({used[-1] for used in solved.values()})
            yield self.rules.found(
                "participation.solvable", f"{detail}rounds {_listed(used)}", map(Evidence, rounds)
            )
        if self._searches:
            queries = sum(facts.queries for facts in self._searches)
            detail = f"{len(self._searches)} searches, {queries} queries; see the table of searches"
            places = [Evidence(facts.round) for facts in self._searches]
            yield self.rules.found("search.narrow", detail, places)

    def coverage(self, tally: Tally) -> Coverage:
        """Rounds that have messages; whom a sum is over is known in others, too."""
        sums, noisy, exact = self._facts.sums, self._facts.noisy, len(self._searches)
        detail = f"{sums} sums, {noisy} with noise; {exact} searches without"
        return Coverage(tally.whole, detail, sums)

    def unchecked(self) -> Iterator[str]:
        """Attacks that were not made."""
        if number := self._counts["without weights"]:
            known = "with the weights, which no truth file has, or which are too large"
            yield f"whether the losses of {number} searches follow {known}"
        if number := self._counts["not attacked"]:
            solved = f"can be solved for the losses: over {ATTACKED} devices"
            yield f"whether the sums of {number} searches by mm {solved}"
        if left := len(self._updates) - self._facts.updates.sums:
            yield f"the last {left} sums of updates, over all rounds together: too many"

    def facts(self) -> CheckFacts:
        """The figures, and the searches."""
        return {"searches": tuple(self._searches), "given_away": self._facts}


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return shown if len(numbers) <= _SHOWN else f"{shown} and {len(numbers) - _SHOWN} more"
