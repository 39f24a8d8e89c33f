"""What a round of a run with some settings is like, before it is run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from deltafl.protocol.anonymity import expected_tail
from deltafl.protocol.levels import Levels
from deltafl.secagg import SessionParams, ring, wire
from deltafl.secagg.threat import at_most
from deltafl.sim.errors import ConfigError
from deltafl.sim.plan.messages import Trip, trips
from deltafl.sim.plan.search import typical_queries
from deltafl.sim.plan.survival import fewer_stay
from deltafl.sim.run.accounting import privacy_of
from deltafl.sim.run.arms import check_arms, check_data, session_of
from deltafl.sim.run.known import KnownData
from deltafl.sim.run.spending import account_of
from deltafl.sim.run.workable import fewest_devices, largest_dropout, losable_rounds
from deltafl.sim.settings.config import RunConfig

_WORD_BYTES: Final = {True: 4, False: 8}  # of a sum, by whether its ring fits 32 bits


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What one round takes, if nobody is lost.

    Attributes:
        queries: of the searches of all levels.
        secure_sums: queries and updates.
        trips: exchanges between server and devices.
        bytes_down: to each device.
        bytes_up: from each device.
        server_bytes_out: to all devices.
        server_bytes_in: from all devices.
    """

    queries: int
    secure_sums: int
    trips: int
    bytes_down: int
    bytes_up: int
    server_bytes_out: int
    server_bytes_in: int


@dataclass(frozen=True, slots=True)
class Privacy:
    """What the noise of a run comes to; see `deltafl.sim.run.accounting` and `spending`.

    Attributes:
        epsilon: of all rounds, for a device that is in every one.
        epsilon_once: of one round.
        delta: δ.
        updates: whether sums of updates have noise, and are counted; else only searches are.
    """

    epsilon: float
    epsilon_once: float
    delta: float
    updates: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What a setting has.

    Attributes:
        algorithm: its name.
        thetas: its conformity levels, as texts.
        rounds: of the run.
        parameters: of the model of one level.
        masked: whether messages are sent at all; ideal sums have none.
        cohort: devices invited to a round.
        graph: "complete" or "sparse".
        signed: whether sessions are.
        neighbours: devices that a device shares masks with.
        threshold: shares that rebuild a secret.
        quorum: fewest devices to sum over.
        survives: devices that may drop out once they have sent their keys.
        expected_dropout: the rate that the session is made for.
        loss: probability that more than `survives` drop out, if each does at that rate by itself.
        search: method of the search; None if nothing is searched for.
        min_search: fewest devices to search over; 0 if nothing is searched for.
        expected_tails: for each level, the devices that θ is sure to keep, if all weigh the same.
        min_tail: fewest devices that a threshold may keep, those that may collude among them; 0 if
            nothing is searched for.
        num_colluding: devices of the cohort that may collude.
        query_ring_bits: ring of a query's sum; 0 if nothing is searched for.
        update_ring_bits: ring of the update's sum.
        numbers_per_query: in the sum of a query; 0 if nothing is searched for.
        numbers_per_update: in the sum of an update.
        typical: a round whose searches start afresh.
        most: a round whose searches ask as often as they may.
        server_memory: bytes of the model, a sum and the devices' boxes of shares.
        vectors_at_once: bytes of the longest vectors, if all arrive at the same moment.
        sums_released: sums that the server learns in a typical run.
        most_sums_released: sums that it learns at most.
        privacy: of the searches; None where they have no noise.
        losable_rounds: rounds in a row that may be lost before the run cannot go on; None if it is
            not known how many devices there are.
        fewest_devices: the smallest cohort that works with otherwise these settings, or None.
        largest_dropout: the largest `privacy.expected_dropout` that works, or None.
    """

    algorithm: str
    thetas: tuple[str, ...]
    rounds: int
    parameters: int
    masked: bool
    cohort: int
    graph: str
    signed: bool
    neighbours: int
    threshold: int
    quorum: int
    survives: int
    expected_dropout: float
    loss: float
    search: str | None
    min_search: int
    expected_tails: tuple[int, ...]
    min_tail: int
    num_colluding: int
    query_ring_bits: int
    update_ring_bits: int
    numbers_per_query: int
    numbers_per_update: int
    typical: RoundCost
    most: RoundCost
    server_memory: int
    vectors_at_once: int
    sums_released: int
    most_sums_released: int
    privacy: Privacy | None
    losable_rounds: int | None
    fewest_devices: int | None
    largest_dropout: float | None


def plan_of(config: RunConfig, num_parameters: int, data: KnownData) -> Plan:
    """What a run with these settings would have in each round.

    Args:
        config: settings; of an experiment, the first run's are taken.
        num_parameters: of the model of one conformity level.
        data: what is known of the data.

    Raises:
        ConfigError: the settings cannot work; the message says which would.
    """
    first = config.arms()[0]
    try:
        check_data(config, data)
        check_arms(config, num_parameters, data.num_devices)
    except ConfigError as error:
        raise ConfigError(f"{error}{_remedy(first, num_parameters)}") from error
    levels, params = session_of(first, num_parameters)
    return _plan(first, num_parameters, levels, params, data.num_devices)


def _remedy(config: RunConfig, num_parameters: int) -> str:
    """The nearest settings that work, for the end of a sentence; "" if there are none."""
    size, rate = config.federation.cohort_size, config.privacy.expected_dropout
    devices, dropout = (
        fewest_devices(config, num_parameters),
        largest_dropout(config, num_parameters),
    )
    ways = [
        *([] if devices is None or devices <= size else [f"federation.cohort_size = {devices}"]),
        *([] if dropout is None or dropout >= rate else [f"privacy.expected_dropout = {dropout}"]),
    ]
    if not ways:
        return ""
    return f"; with the other settings as they are, it works with {' or with '.join(ways)}"


def _plan(
    config: RunConfig,
    num_parameters: int,
    levels: Levels,
    params: SessionParams,
    num_devices: int | None,
) -> Plan:
    federation, privacy = config.federation, config.privacy
    common = levels.common
    searches = any(one.selects for one in levels.rounds)
    fewest = max(params.min_cohort, common.search.min_cohort)
    typical = _cost(levels, params, num_parameters, [typical_queries(c) for c in levels.rounds])
    most = _cost(levels, params, num_parameters, [c.num_query_slots for c in levels.rounds])
    longest = max(ring.packed_size(s.wire_length, s.ring_bits) for s in params.slots)
    fewest_invited = fewest_devices(config, num_parameters)
    return Plan(
        algorithm=federation.algorithm,
        thetas=tuple(str(theta) for theta in federation.thetas),
        rounds=federation.rounds,
        parameters=num_parameters,
        masked=privacy.sums == "masked",
        cohort=params.num_invited,
        graph="complete" if params.is_complete else "sparse",
        signed=params.signed,
        neighbours=min(params.degree, params.num_invited - 1),
        threshold=params.threshold,
        quorum=params.min_cohort,
        survives=params.num_invited - params.min_cohort,
        expected_dropout=privacy.expected_dropout,
        loss=fewer_stay(params.num_invited, privacy.expected_dropout, params.min_cohort),
        search=common.method if searches else None,
        min_search=fewest if searches else 0,
        expected_tails=tuple(expected_tail(one.theta, params.num_invited) for one in levels.rounds),
        min_tail=common.min_tail if searches else 0,
        num_colluding=at_most(privacy.colluding, params.num_invited),
        query_ring_bits=common.search_layout.ring_bits if searches else 0,
        update_ring_bits=common.update_layout.ring_bits,
        numbers_per_query=common.search_layout.length if searches else 0,
        numbers_per_update=common.update_layout.length,
        typical=typical,
        most=most,
        server_memory=_memory(params, num_parameters * len(levels.rounds)),
        vectors_at_once=longest * params.num_invited,
        sums_released=typical.secure_sums * federation.rounds,
        most_sums_released=most.secure_sums * federation.rounds,
        privacy=_privacy(config, num_parameters, searches=searches),
        losable_rounds=None
        if num_devices is None
        else losable_rounds(config, fewest_invited, num_devices),
        fewest_devices=fewest_invited,
        largest_dropout=largest_dropout(config, num_parameters),
    )


def _privacy(config: RunConfig, num_parameters: int, *, searches: bool) -> Privacy | None:
    """The privacy of a device that is in every round: the plan does not know how many there are."""
    rounds, size = config.federation.rounds, config.federation.cohort_size
    account = account_of(config, size, num_parameters)
    if account is not None:
        every, once = account.after(rounds), account.after(1)
        return Privacy(every.epsilon, once.epsilon, every.delta, updates=True)
    spent = privacy_of(config, rounds) if searches else None
    first = privacy_of(config, 1) if searches else None
    if spent is None or first is None:
        return None
    return Privacy(spent.epsilon, first.epsilon, spent.delta, updates=False)


def _cost(
    levels: Levels, params: SessionParams, num_parameters: int, queries: Sequence[int]
) -> RoundCost:
    exchanges: Sequence[Trip] = trips(levels, params, num_parameters, queries)
    down, up = sum(trip.down for trip in exchanges), sum(trip.up for trip in exchanges)
    return RoundCost(
        queries=sum(queries),
        secure_sums=sum(queries) + len(levels.rounds),
        trips=len(exchanges),
        bytes_down=down,
        bytes_up=up,
        server_bytes_out=down * params.num_invited,
        server_bytes_in=up * params.num_invited,
    )


def _memory(params: SessionParams, num_parameters: int) -> int:
    """Bytes that the server's machine holds at once, without connections and Python's own."""
    boxes = params.num_invited * min(params.degree, params.num_invited - 1) * wire.box_size(params)
    longest = max(params.slots, key=lambda slot: slot.wire_length)
    total = longest.wire_length * _WORD_BYTES[longest.ring_bits <= 32]
    return boxes + total + 4 * num_parameters
