"""What a round of a run with some settings is like, before it is run.

A model is built from the shape of the data, which takes torch and the files. How many numbers it
has is known here for the models and data of the presets, whose shape is published; a test builds
each and counts.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np
from scipy.special import bdtr

from deltafl.protocol.anonymity import expected_tail
from deltafl.protocol.configuration import RoundConfig
from deltafl.protocol.levels import Levels
from deltafl.secagg import SessionParams, ring, wire
from deltafl.sim.errors import ConfigError
from deltafl.sim.plan.messages import trips
from deltafl.sim.run.accounting import account_of, privacy_of
from deltafl.sim.run.algorithms import looser_limits, policy_of
from deltafl.sim.run.arms import (
    KnownData,
    check_arms,
    check_data,
    fewest_devices,
    largest_dropout,
    losable_rounds,
    session_of,
)
from deltafl.sim.settings.config import RunConfig

_DEVICES_DRAWN: Final = 300  # for each kind of losses: playing takes microseconds for each query
_DRAWS: Final = 15
_KINDS: Final = ((0.01, 0.1), (0.03, 0.1), (0.1, 0.5), (1.0, 0.5), (1.0, 1.5), (2.0, 0.02))
"""Losses that searches are played on: their median in nats, and the deviation of their logarithms.
A search asks more where they are small, as of trained models, or nearly equal, as at first."""

_UNTRAINED: Final = (2.3, 0.0)
"""Before the first round, devices' losses are nearly equal."""

_MAX_SAMPLES: Final = 100
_WORD_BYTES: Final = {True: 4, False: 8}  # of a sum, by whether its ring fits 32 bits


_SHAPES: Final[Mapping[str, tuple[tuple[int, ...], int]]] = {
    "digits": ((8, 8), 10),
    "digits-by-writer": ((8, 8), 10),
    "femnist": ((28, 28), 62),
    "unipen62": ((28, 28), 62),
    "qmnist": ((28, 28), 10),
    "synthetic-emnist": ((28, 28), 62),
    "synthetic-sent140": ((50,), 2),
}
"""The shape of an input, and classes, by format or by the name of the file."""

_COUNTS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "linear": lambda inputs, classes: inputs * classes,
    "logistic": lambda inputs, classes: inputs * (1 if classes == 2 else classes),
    "logistic-bias": lambda inputs, classes: (inputs + 1) * (1 if classes == 2 else classes),
    "convnet": lambda inputs, classes: 52_096 + (1024 + 1) * classes if inputs == 784 else 0,
}


@dataclass(frozen=True, slots=True)
class RoundCost:
    """What one round takes, if nobody is lost.

    Attributes:
        queries: of the searches of all levels.
        secure_sums: queries and updates.
        trips: exchanges between server and devices.
        bytes_down: to each device.
        bytes_up: from each device.
    """

    queries: int
    secure_sums: int
    trips: int
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True, slots=True)
class Privacy:
    """What the noise of a run comes to; see `deltafl.sim.run.accounting`.

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
class SessionPlan:
    """Who shares masks in a session, and what it survives.

    Attributes:
        graph: "complete" or "sparse".
        signed: whether sessions are.
        neighbours: devices that a device shares masks with.
        threshold: shares that rebuild a secret.
        quorum: fewest devices to sum over.
        survives: devices that may drop out once they have sent their keys.
        expected_dropout: the rate that the session is made for.
        loss: probability that more than `survives` drop out, if each does at that rate by itself.
        losable_rounds: rounds in a row that may be lost before the run cannot go on; None if it is
            not known how many devices there are.
    """

    graph: str
    signed: bool
    neighbours: int
    threshold: int
    quorum: int
    survives: int
    expected_dropout: float
    loss: float
    losable_rounds: int | None


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How thresholds are searched for.

    Attributes:
        method: of the search.
        fewest: devices to search over.
        expected_tails: for each level, the devices that θ is sure to keep, if all weigh the same.
        min_tail: fewest devices that a threshold may keep, those that may collude among them.
        num_colluding: devices of the cohort that may collude.
        ring_bits: ring of a query's sum.
        numbers: in the sum of a query.
    """

    method: str
    fewest: int
    expected_tails: tuple[int, ...]
    min_tail: int
    num_colluding: int
    ring_bits: int
    numbers: int


@dataclass(frozen=True, slots=True)
class Costs:
    """What a round takes, and what the server has to hold.

    Attributes:
        few: a round whose searches are short: the fewest, on average, over kinds of losses.
        many: one whose searches are long: the most, likewise.
        first: the first round, in which devices' losses are equal.
        most: a round whose searches ask as often as they may.
        ring_bits: ring of an update's sum.
        numbers: in the sum of an update.
        server_memory: bytes of the model, a sum and the devices' boxes of shares.
        vectors_at_once: bytes of the longest vectors, if all arrive at the same moment.
    """

    few: RoundCost
    many: RoundCost
    first: RoundCost
    most: RoundCost
    ring_bits: int
    numbers: int
    server_memory: int
    vectors_at_once: int


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
        adversary: whom devices expect.
        session: of a round.
        search: for the thresholds; None if nothing is searched for.
        costs: of a round.
        privacy: of the searches; None where they have no noise.
        looser: limits of devices that these settings need looser than usual, each with both values.
        fewest_devices: the smallest cohort that works with otherwise these settings, or None.
        largest_dropout: the largest `privacy.expected_dropout` that works, or None.
    """

    algorithm: str
    thetas: tuple[str, ...]
    rounds: int
    parameters: int
    masked: bool
    cohort: int
    adversary: str
    session: SessionPlan
    search: SearchPlan | None
    costs: Costs
    privacy: Privacy | None
    looser: tuple[str, ...]
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
    searches = any(one.selects for one in levels.rounds)
    fewest, losable = fewest_devices(first, num_parameters), None
    if data.num_devices is not None:
        losable = losable_rounds(first, fewest, data.num_devices)
    return Plan(
        algorithm=first.federation.algorithm,
        thetas=tuple(map(str, first.federation.thetas)),
        rounds=first.federation.rounds,
        parameters=num_parameters,
        masked=first.privacy.sums == "masked",
        cohort=params.num_invited,
        adversary=first.privacy.adversary,
        session=_session(params, first.privacy.expected_dropout, losable),
        search=_search(first, levels, params) if searches else None,
        costs=_costs(levels, params, num_parameters),
        privacy=_privacy(first, num_parameters, searches=searches),
        looser=looser_limits(policy_of(first)),
        fewest_devices=fewest,
        largest_dropout=largest_dropout(first, num_parameters),
    )


def _remedy(config: RunConfig, num_parameters: int) -> str:
    """The nearest settings that work, for the end of a sentence; "" if there are none."""
    size, rate = config.federation.cohort_size, config.privacy.expected_dropout
    devices = fewest_devices(config, num_parameters)
    dropout = largest_dropout(config, num_parameters)
    ways = [
        *([] if devices is None or devices <= size else [f"federation.cohort_size = {devices}"]),
        *([] if dropout is None or dropout >= rate else [f"privacy.expected_dropout = {dropout}"]),
    ]
    if not ways:
        return ""
    return f"; with the other settings as they are, it works with {' or with '.join(ways)}"


def _session(params: SessionParams, dropout: float, losable: int | None) -> SessionPlan:
    return SessionPlan(
        graph="complete" if params.is_complete else "sparse",
        signed=params.signed,
        neighbours=min(params.degree, params.num_invited - 1),
        threshold=params.threshold,
        quorum=params.min_cohort,
        survives=params.num_invited - params.min_cohort,
        expected_dropout=dropout,
        loss=float(bdtr(params.min_cohort - 1, params.num_invited, 1 - dropout)),
        losable_rounds=losable,
    )


def _search(config: RunConfig, levels: Levels, params: SessionParams) -> SearchPlan:
    common, invited = levels.common, params.num_invited
    return SearchPlan(
        method=common.method,
        fewest=max(params.min_cohort, common.search.min_cohort),
        expected_tails=tuple(expected_tail(one.theta, invited) for one in levels.rounds),
        min_tail=common.min_tail,
        num_colluding=policy_of(config).num_colluding(invited),
        ring_bits=common.search_layout.ring_bits,
        numbers=common.search_layout.length,
    )


def _costs(levels: Levels, params: SessionParams, num_parameters: int) -> Costs:
    longest = max(ring.packed_size(s.wire_length, s.ring_bits) for s in params.slots)
    played = [[_queries(one, kind) for one in levels.rounds] for kind in _KINDS]
    cost = partial(_cost, levels, params, num_parameters)
    return Costs(
        few=cost([*map(math.floor, min(played, key=sum))]),
        many=cost([*map(math.ceil, max(played, key=sum))]),
        first=cost([math.ceil(_queries(one, _UNTRAINED)) for one in levels.rounds]),
        most=cost([one.num_query_slots for one in levels.rounds]),
        ring_bits=levels.common.update_layout.ring_bits,
        numbers=levels.common.update_layout.length,
        server_memory=_memory(params, num_parameters * len(levels.rounds)),
        vectors_at_once=longest * params.num_invited,
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
    exchanges = trips(levels, params, num_parameters, queries)
    return RoundCost(
        queries=sum(queries),
        secure_sums=sum(queries) + len(levels.rounds),
        trips=len(exchanges),
        bytes_down=sum(trip.down for trip in exchanges),
        bytes_up=sum(trip.up for trip in exchanges),
    )


def _queries(config: RoundConfig, kind: tuple[float, float]) -> float:
    """Queries until a search is done: the mean over draws.

    Losses are log-normal; weights are uniform.

    Args:
        config: of the round; its search has no noise, or asks as often as it may.
        kind: of losses, one of `_KINDS`.
    """
    if not config.selects or config.noise is not None:
        return config.num_query_slots
    draws = max(1, min(_DRAWS, _DEVICES_DRAWN // config.cohort_size))
    return fmean(_played(config, kind, draws))


def _played(config: RoundConfig, kind: tuple[float, float], draws: int) -> Iterator[int]:
    random = np.random.default_rng(0)
    num = min(config.cohort_size, _DEVICES_DRAWN)
    (median, spread), num_weights = kind, min(_MAX_SAMPLES, config.update.max_weight)
    params, fields = config.search_config, config.search_layout.fields
    for _ in range(draws):
        losses = random.lognormal(math.log(median), spread, num).tolist()
        ticks = [config.search.grid.tick(loss)[0] for loss in losses]
        weights = [
            config.search.weighting.of(int(n))
            for n in random.integers(1, num_weights, num, endpoint=True)
        ]
        search = config.start_search()
        while (query := search.query) is not None:
            answers = [
                config.quantile.contribution(params, query, tick, weight)
                for tick, weight in zip(ticks, weights, strict=True)
            ]
            sums = {}
            for one in fields:
                rows = [np.asarray(answer[one.name]).reshape(one.size) for answer in answers]
                total = np.sum(rows, axis=0)
                sums[one.name] = np.rint(np.ldexp(total, one.resolution_bits)).astype(np.int64)
            search = search.update(sums)
        yield search.result().num_queries


def _memory(params: SessionParams, num_parameters: int) -> int:
    """Bytes that the server's machine holds at once, without connections and Python's own."""
    boxes = params.num_invited * min(params.degree, params.num_invited - 1) * wire.box_size(params)
    longest = max(params.slots, key=lambda slot: slot.wire_length)
    total = longest.wire_length * _WORD_BYTES[longest.ring_bits <= 32]
    return boxes + total + 4 * num_parameters


def known_parameters(config: RunConfig) -> int:
    """Parameters of the model of one conformity level.

    Raises:
        ConfigError: they are not known before the data are read.
    """
    data, name = known_data(config), config.model.name
    count = _COUNTS.get(name)
    if data.input_shape is None or not data.num_classes or count is None:
        found = 0
    else:
        found = count(math.prod(data.input_shape), data.num_classes)
    if found:
        return found
    raise ConfigError(
        f"how many parameters the model {name!r} has on {data.name!r} is not known before the "
        "data are read: say it with --parameters N (a run prints it, and its summary has it as "
        "model_parameters)"
    )


def known_data(config: RunConfig, num_devices: int | None = None) -> KnownData:
    """What is known of the data before they are read.

    Args:
        config: settings.
        num_devices: how many train, if somebody knows it.
    """
    data = config.data
    keys = (data.format, data.source, Path(data.source).name.partition(".")[0])
    found = next((_SHAPES[key] for key in keys if key in _SHAPES), None)
    if found is None or data.features != "mean":
        return KnownData(data.source, num_devices, data.num_classes or None)
    shape, classes = found
    return KnownData(data.source, num_devices, data.num_classes or classes, shape, is_tokens=False)
