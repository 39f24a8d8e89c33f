"""What the search for the threshold gives away to a server that follows the protocol."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

import numpy as np

from deltafl.protocol import wire
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Ask
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Query, SearchParams
from deltafl.protocol.selection import Threshold
from deltafl.secagg import ClientId, Refusal, SlotSum
from deltafl.sim.inspect.attacks.attack import Left, Loot, Power, attack
from deltafl.sim.inspect.attacks.own_round import (
    POLICY,
    UPDATE_ROUND,
    Device,
    RoundDevices,
    make_devices,
    with_an_honest_server,
)
from deltafl.sim.inspect.leakage.observations import Answer, SearchView
from deltafl.sim.inspect.leakage.prior import Prior
from deltafl.sim.inspect.leakage.reconstruction import reconstruct

_SEARCH: Final = SearchParams(max_queries=30, grid=UPDATE_ROUND.search.grid)
_WEIGHT: Final = 200
_SMALLEST: Final = 10
_HALF: Final = Fraction(1, 2)
_THIRD: Final = Fraction(1, 3)
_SEED: Final = 1
_TICK_BITS: Final = 32


class _Overheard(RoundDevices):
    """Devices with a note of the questions that they are asked, which the server knows too.

    Attributes:
        asked: The questions of the round, in order.
    """

    asked: tuple[Query | Threshold, ...] = ()

    def shown(self, client: ClientId, data: bytes) -> bytes:
        """Note the first device's question."""
        envelope = wire.decode(data)
        question = envelope.question if isinstance(envelope, Ask) else None
        if isinstance(question, Query | Threshold) and client == min(self.devices):
            self.asked = (*self.asked, question)
        return super().shown(client, data)


@attack(
    "losses-of-a-small-cohort",
    14,
    "solves the sums of an honest search by mm over five devices for their losses",
    power=Power.SERVER,
    gain="every loss of the cohort, to the tick",
    defence="no search over fewer devices than min_search_cohort: nothing is asked",
    spec="12.9",
    end=Left.NOTHING,
)
def losses_of_a_small_cohort(defended: bool) -> Loot:
    """All parties follow the protocol, and all devices weigh the same."""
    return _solved(replace(_SEARCH, min_cohort=_SMALLEST if defended else 0), POLICY)


@attack(
    "search-below-the-own-floor",
    14,
    "announces no smallest cohort for a search by mm over five devices, and solves its sums",
    power=Power.SERVER,
    gain="every loss of the cohort, to the tick",
    defence="the device's own floor for the devices to search over",
    spec="12.14",
    end=Refusal.POLICY,
    saying=f"below min_search_cohort={RoundPolicy().min_search_cohort}",
)
def search_below_the_own_floor(defended: bool) -> Loot:
    """The search is an honest one. Without the defence, devices search over any cohort."""
    floor = RoundPolicy().min_search_cohort if defended else 0
    return _solved(_SEARCH, replace(POLICY, min_search_cohort=floor))


@attack(
    "levels-as-one-search",
    14,
    "announces models that hardly differ, one for each of four levels, and solves the sums of "
    "their searches by mm together",
    power=Power.SERVER,
    gain="every loss of the cohort, to the tick",
    defence="the device counts the pivots of all levels, against the devices that share them",
    spec="12.14",
    end=Refusal.POLICY,
    saying="a search by 'mm' with 120 pivots over 10 devices is above max_mm_pivots_per_device=3",
)
def levels_as_one_search(defended: bool) -> Loot:
    """Devices accept the 30 queries of one level over ten devices; their losses stay the same."""
    grid = LossGrid(_SEARCH.grid.resolution_bits, 16)  # with room for ten losses
    search = replace(_SEARCH, min_cohort=_SMALLEST, grid=grid)
    config = replace(UPDATE_ROUND, cohort_size=_SMALLEST, theta=_HALF, search=search)
    thetas = [Fraction(tenths, 10) for tenths in (9, 6, 3, 1)]
    most = Fraction(search.max_queries, _SMALLEST) * (1 if defended else len(thetas))
    return _solved_levels(config, thetas, replace(POLICY, max_mm_pivots_per_device=most))


def _solved(search: SearchParams, policy: RoundPolicy) -> Loot:
    """The losses of five devices as they follow from the sums of a search, and as they are."""
    return _solved_levels(replace(UPDATE_ROUND, theta=_THIRD, search=search), (_THIRD,), policy)


def _solved_levels(config: RoundConfig, thetas: Sequence[Fraction], policy: RoundPolicy) -> Loot:
    """The losses as they follow from the sums of the searches of all levels, and as they are."""
    same = {
        client: Device(device.loss, _WEIGHT, device.update)
        for client, device in make_devices(config).items()
    }
    # Devices refuse equal models, so these differ; the losses under them do not.
    models = b"".join(b"model %d" % level for level in range(len(thetas)))
    devices = _Overheard(config, same, policy=policy, thetas=thetas, model=models)
    learnt = list[SlotSum]()
    with_an_honest_server(devices, lambda _step, _client, data: data, learnt)
    wanted = np.array(sorted(d.measured(config).tick for d in same.values()), dtype=np.uint64)
    answers = []
    for query, revealed in zip(devices.asked, learnt, strict=False):
        if not isinstance(query, Query):
            continue
        decoded = config.search_layout.decode(revealed.vector.astype(np.uint64))
        sums = {name: tuple(values.tolist()) for name, values in decoded.items()}
        answers.append(Answer(query.pivots, sums))
    taken = np.zeros_like(wanted)
    if answers:
        view = SearchView(config.method, config.search_config, len(same), tuple(answers))
        prior = Prior(config.search.grid, lightest=_WEIGHT, heaviest=_WEIGHT)
        found = reconstruct(view, prior, np.random.default_rng(_SEED))
        taken = np.array(np.rint(found.sorted_ticks), dtype=np.uint64)
    note = f"{len(answers)} queries were answered; losses in ticks of 1/256 nat, sorted"
    return Loot(taken, wanted, _TICK_BITS, note=note)
