"""Vectors of rounds (section 12): layouts, contributions, noise, searches, envelopes, rounds."""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from hashlib import sha256

import numpy as np
from recorded_round import (
    SMALL_ROUND,
    config_from_json,
    levels_from_json,
    make_round,
    play_round,
    question_to_json,
)
from recorded_session import draw_elements, fixed, slot_to_json
from session_vectors import rounds_to_json

from deltafl.protocol import wire
from deltafl.protocol.configuration import binding
from deltafl.protocol.device import DeviceRound
from deltafl.protocol.followed_search import Followed
from deltafl.protocol.labels import Label
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.noise import Noise
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import PeerError
from deltafl.secagg.labels import digest
from deltafl.secagg.randomness import SeededRandomness

NOISE = [9, 2, 3]
CONFIGS = {
    "mm": {},
    "mm, with an ε": {"epsilon_ticks": 3, "weighting": "powers-of-two"},
    "mm, verified": {"verified": True, "min_search_cohort": 3},
    "mm, verified, a large cohort": {"verified": True, "cohort_size": 1000, "max_weight": 8192},
    "bracketed": {"method": "bracketed", "max_queries": 5},
    "bracketed, verified": {"method": "bracketed", "max_queries": 5, "verified": True},
    "histogram": {"method": "histogram", "num_pivots": 3, "weighting": "equal"},
    "histogram, verified": {"method": "histogram", "num_pivots": 3, "verified": True},
    "noisy": {
        "method": "noisy",
        "num_pivots": 3,
        "max_queries": 1,
        "weighting": "equal",
        "noise": NOISE,
    },
    "noisy, verified": {
        "method": "noisy",
        "num_pivots": 3,
        "max_queries": 1,
        "weighting": "equal",
        "noise": NOISE,
        "verified": True,
    },
    "no search": {"theta": [1, 1]},
    "too few for a search": {"min_search_cohort": 5},
    "large numbers": {
        "round_index": 2**63 - 1,
        "cohort_size": 1000,
        "theta": [4294967294, 4294967295],
        "resolution_bits": 16,
        "bound": 32,
        "max_weight": 8192,
        "update_length": 1000,
        "update_clip": 0.1,
        "update_resolution_bits": 20,
        "warm_start": 2**20,
    },
}
"""Configurations by name, as changes of SMALL_ROUND."""
MODEL = bytes(range(8))


@cache
def _config(name):
    return config_from_json(SMALL_ROUND | CONFIGS[name])


def _json(name):
    return SMALL_ROUND | CONFIGS[name]


def layouts():
    """Layouts, slots and context of a round."""
    cases = []
    for name in CONFIGS:
        config = _config(name)
        levels = levels_from_json([_json(name)])
        cases.append(
            {
                "name": name,
                "description": f"Layouts, slots and context: {name}.",
                "config": _printable(_json(name)),
                "search": _layout(config.search_layout),
                "update": _layout(config.update_layout),
                "slots": [slot_to_json(slot) for slot in config.slots()],
                "canonical": config.canonical().hex(),
                "model": MODEL.hex(),
                "context": levels.context(MODEL).hex(),
                "ledger_entry": digest(Label.MODEL, MODEL).hex(),
            }
        )
    return cases


def _printable(case):
    """A configuration without integers that a double would change."""
    return case | {"round_index": str(case["round_index"])}


def _layout(layout):
    return {
        "fields": {
            field.name: [
                str(number)
                for number in (
                    field.size,
                    field.min_numerator,
                    field.max_numerator,
                    field.resolution_bits,
                )
            ]
            for field in layout.fields
        },
        "order": [field.name for field in layout.fields],
        "length": layout.length,
        "ring_bits": layout.ring_bits,
    }


LEVELS = {
    "one level": [{}],
    "two levels": [{"theta": [3, 4]}, {"warm_start": 17}],
    "three levels, the first without a search": [
        {"theta": [1, 1], "method": "bracketed"},
        {"theta": [4, 5], "method": "bracketed", "warm_start": 0},
        {"theta": [1, 3], "method": "bracketed", "warm_start": 128},
    ],
}
QUESTIONS = (
    Query("mm", (0,)),
    Query("mm", (17,)),
    Query("histogram", (1, 2, 2)),
    Threshold(0, 0),
    Threshold(2**63 - 1, 5),
)


def contexts():
    """Contexts of levels and bindings of questions."""
    cases = []
    for name, changes in LEVELS.items():
        configs = [SMALL_ROUND | change for change in changes]
        levels = levels_from_json(configs)
        models = b"".join(fixed(f"model {i}")[:8] for i in range(len(changes)))
        context = levels.context(models)
        cases.append(
            {
                "description": f"Context, slots and bindings: {name}.",
                "levels": configs,
                "models": models.hex(),
                "context": context.hex(),
                "first_slots": [levels.first_slot(i) for i in range(len(configs))],
                "num_slots": len(levels.slots()),
                "ledger_entries": [
                    digest(Label.MODEL, model).hex() for model in levels.split(models)
                ],
                "bindings": [
                    {
                        "question": _printable_question(question),
                        "canonical": question.canonical().hex(),
                        "binding": binding(context, question).hex(),
                    }
                    for question in QUESTIONS
                ],
            }
        )
    return cases


def _printable_question(question):
    shown = question_to_json(question)
    return {k: str(v) if k in ("eta", "delta") else v for k, v in shown.items()}


def envelopes():
    """Every kind of envelope, its fields and its bytes."""
    cases = []

    def add(description, envelope, fields):
        data = wire.encode(envelope)
        assert wire.decode(data) == envelope
        cases.append({"description": description, "envelope": data.hex(), **fields})

    session = b"a message of the session"
    for name in CONFIGS:
        configs = [_json(name)]
        fields = {
            "kind": "Announce",
            "levels": [_printable(config) for config in configs],
            "models": MODEL.hex(),
            "session": session.hex(),
        }
        announced = Announce(levels_from_json(configs), MODEL, session)
        add(f"An announcement: {name}.", announced, fields)
    for name in ("two levels", "three levels, the first without a search"):
        configs = [SMALL_ROUND | change for change in LEVELS[name]]
        models = bytes(8 * len(configs))
        fields = {
            "kind": "Announce",
            "levels": [_printable(config) for config in configs],
            "models": models.hex(),
            "session": session.hex(),
        }
        announced = Announce(levels_from_json(configs), models, session)
        add(f"An announcement: {name}.", announced, fields)
    add("A message of the session.", Relay(session), {"kind": "Relay", "session": session.hex()})
    for question in QUESTIONS:
        for opening in (b"", b"a proof"):
            fields = {
                "kind": type(question).__name__,
                "question": _printable_question(question),
                "opening": opening.hex(),
                "session": session.hex(),
            }
            description = "with" if opening else "without"
            add(f"A question {description} a proof.", Ask(question, session, opening), fields)
    return cases


def ticks():
    """Losses on the grid."""
    cases = []
    for bits, bound, losses in (
        (4, 8, (0.0, 1.0, 1.03125, 1.09375, 1.15625, 8.0, 8.03125, 9.0, -0.5, 1e300, 0.1)),
        (0, 3, (0.5, 1.5, 2.5, 3.5, 0.49)),
        (16, 32, (1.0, 0.693147180559945, 2.302585092994046, 31.99999)),
    ):
        grid = LossGrid(bits, bound)
        for loss in losses:
            tick, clipped = grid.tick(loss)
            cases.append(
                {
                    "description": "A loss, the nearest tick, and whether it was clipped.",
                    "resolution_bits": bits,
                    "bound": bound,
                    "loss": loss,
                    "tick": tick,
                    "clipped": clipped,
                }
            )
    return cases


def contributions():
    """What devices mask, for queries and updates."""
    cases = []
    for name in CONFIGS:
        config = _config(name)
        if name == "large numbers":
            continue
        grid = config.search.grid
        for loss, weight in ((1.25, 7), (0.0, 0), (8.0, 100), (40.0, 1000), (2.0, 64)):
            device = DeviceRound.measured(config, loss, weight)
            shown = {
                "round": name,
                "loss": loss,
                "weight": weight,
                "tick": device.tick,
                "search_weight": config.search.weighting.of(device.weight),
            }
            if config.num_query_slots:
                for pivots in _pivots(config, device.tick, grid.top_pivot):
                    query = Query(config.method, pivots)
                    seed = fixed(f"noise of {loss}")
                    vector = device.answer(query, SeededRandomness(seed))
                    case = {
                        "description": f"An answer to a query: {name}.",
                        **shown,
                        "question": question_to_json(query),
                        "vector": [str(x) for x in vector.tolist()],
                    }
                    if config.noise is not None:
                        case["noise"] = _share(config, seed)
                    cases.append(case)
            if name not in ("mm", "bracketed, verified"):
                continue
            for eta, delta, update in (
                (2 * device.tick, 0, (0.5, -0.25)),
                (2 * device.tick + 3, 3, (2.0, -2.0)),
                (2 * device.tick + 1, 0, (0.5, -0.25)),
                (0, 0, (2.5, -1e30)),
                (0, 0, (1 / 256, 3 / 512)),
            ):
                passes = device.passes(Threshold(eta, delta))
                vector = np.array(update, dtype=np.float32)
                answer = device.contribution(vector if passes else None)
                cases.append(
                    {
                        "description": f"An answer to a threshold: {name}.",
                        **shown,
                        "question": question_to_json(Threshold(eta, delta)),
                        "update": [float(x) for x in vector],
                        "passes": passes,
                        "vector": [str(x) for x in answer.tolist()],
                    }
                )
    return cases


def _pivots(config, tick, top):
    """A few sets of pivots: around the device's own tick, and at the ends of the grid."""
    num = 1 if config.num_pivots is None else config.num_pivots
    ends = (0,) * (num - 1) + (top,) if num > 1 else (top,)
    ladder = sorted((min(tick + 1, top), tick, 3)[:num])
    return sorted({(tick,) * num, (min(tick + 1, top),) * num, ends, tuple(ladder)})


def _share(config, seed):
    """The share of the noise that a device draws for a query, in steps."""
    layout = next(f for f in config.search_layout.fields if f.name == "bins")
    bound = layout.max_numerator - (1 << layout.resolution_bits)
    return [str(x) for x in config.noise.share(layout.size, bound, SeededRandomness(seed))]


def noises():
    """Resolution, variance and bound of noise."""
    cases = []
    for variance, devices, num_draws in (
        (Fraction(9, 2), 3, 16),
        (Fraction(4), 1, 1),
        (Fraction(1, 1000), 7, 1000),
        (Fraction(10**6), 10, 17 * 100),
        (Fraction(39, 10), 1, 2**20),
        (Fraction(2**63 - 1), 2**32 - 1, 2),
    ):
        noise = Noise(variance, devices)
        share = noise.share_variance
        cases.append(
            {
                "description": "From variance and devices to r, s² and c.",
                "variance": [str(variance.numerator), str(variance.denominator)],
                "devices": devices,
                "num_draws": num_draws,
                "resolution_bits": noise.resolution_bits,
                "share_variance": [str(share.numerator), str(share.denominator)],
                "bound": str(noise.bound(num_draws)),
            }
        )
    return cases


# Searches that devices follow.


def searches():
    """Searches played in clear over drawn cohorts, question by question."""
    cases = []
    for method, changes in (
        ("mm", {"max_queries": 12}),
        ("mm", {"max_queries": 4, "epsilon_ticks": 3}),
        ("mm", {"max_queries": 2, "theta": [4, 5], "weighting": "equal"}),
        ("bracketed", {"max_queries": 12}),
        ("bracketed", {"max_queries": 3, "warm_start": 60}),
        ("histogram", {"max_queries": 3, "num_pivots": 3}),
        ("histogram", {"max_queries": 2, "num_pivots": 4, "warm_start": 40}),
        ("noisy", CONFIGS["noisy, verified"] | {"num_pivots": 6, "theta": [1, 3]}),
        ("noisy", CONFIGS["noisy, verified"] | {"num_pivots": 5, "warm_start": 40}),
    ):
        for kind in ("spread", "ties", "no weight"):
            given = {"cohort_size": 7, "verified": True, **changes, "method": method}
            cases.append(_search(f"{method}, {kind}", SMALL_ROUND | given, kind))
    return cases


def _search(name, case, kind):
    config = config_from_json(case)
    draw = draw_elements(fixed(f"search {name} {sorted(case.items(), key=str)}"))
    devices = []
    for _ in range(case["cohort_size"]):
        loss = draw() % 129 / 16 if kind != "ties" else 1 + draw() % 2 / 16
        devices.append([loss, 0 if kind == "no weight" else draw() % 101])
    machines = [DeviceRound.measured(config, *device) for device in devices]
    followed, steps = Followed.begin(config), []
    start = replace(followed)
    while (query := followed.search.query) is not None:
        seeds = [fixed(f"{name}, noise of {index}") for index in range(len(machines))]
        draws = map(SeededRandomness, seeds)
        answers = [m.answer(query, draw) for m, draw in zip(machines, draws, strict=True)]
        total = sum(answer.astype(object) for answer in answers)
        vector = np.array([int(x) % 2**config.search_layout.ring_bits for x in total], np.uint64)
        before, followed = followed, followed.after(vector, len(machines))
        result = followed.search.result()
        lost = int(before.num_searched > 0)
        early = before.search.result(shrank=True, num_lost=lost).threshold
        steps.append(
            {
                "pivots": list(query.pivots),
                "if_a_device_had_left": question_to_json(early),
                "sum": [str(x) for x in vector.tolist()],
                "certified": result.certified,
                "ended": result.ended.value if followed.search.query is None else None,
                "tail": {"fewest": result.tail.fewest, "most": result.tail.most},
            }
        )
        if config.noise is not None:
            steps[-1]["noise"] = [_share(config, seed) for seed in seeds]
    threshold = followed.search.result().threshold
    found = followed.check_threshold(threshold, len(machines), shrank=False)
    _only(start, followed, threshold, len(machines))
    return {
        "description": f"A search that devices follow: {name}.",
        "config": case,
        "devices": devices,
        "steps": steps,
        "threshold": question_to_json(threshold),
        "tail": {"fewest": found.fewest, "most": found.most},
    }


def _only(start, followed, threshold, num_devices):
    """No other threshold is accepted, and the search cannot be ended before its first answer."""
    for other, search in (
        (Threshold(threshold.eta_half_ticks + 1, threshold.half_width_half_ticks), followed),
        (threshold, start),
    ):
        try:
            search.check_threshold(other, num_devices, shrank=False)
        except PeerError:
            continue
        raise AssertionError("a threshold that does not follow")


# Whole rounds.

VERIFIED = {"verified": True, "method": "bracketed", "max_queries": 3, "resolution_bits": 3}
COUNTED = VERIFIED | {"cohort_size": 5, "min_search_cohort": 4, "min_tail": 2, "max_queries": 2}
COUNTED_BY_FOUR = {"min_search_cohort": 4, "max_queries": 1}
LOSSES = ((0.5,), (1.25,), (2.0,), (5.0,))
ROUNDS = {
    "mm": {"levels": [{}]},
    "histogram, two levels": {
        "levels": [
            {"method": "histogram", "num_pivots": 2, "theta": [3, 4], "cohort_size": 3},
            {"method": "histogram", "num_pivots": 2, "warm_start": 30, "cohort_size": 3},
        ],
        "vanishing": [(1, "mask", 4)],
    },
    "noisy": {"levels": [CONFIGS["noisy"]], "min_cohort": 3},
    "bracketed, verified": {"levels": [VERIFIED], "losses": LOSSES},
    "mm, verified, of three or more, one is lost": {
        "levels": [{"verified": True, "min_search_cohort": 3, "max_queries": 3}],
        "losses": LOSSES,
        "vanishing": [(3, "mask", 1)],
    },
    "a tail of two, widened": {
        "levels": [COUNTED | {"theta": [1, 2]}],
        "losses": (*LOSSES, (7.0,)),
        "weights": (10, 10, 10, 10, 90),
        "policy": {"min_honest_tail": 2},
    },
    "two levels, verified, an active server": {
        "levels": [
            VERIFIED | COUNTED_BY_FOUR | {"theta": [3, 4]},
            VERIFIED | COUNTED_BY_FOUR | {"theta": [1, 2], "warm_start": 30},
        ],
        "losses": [(one, 8 - one) for (one,) in LOSSES],
        "weights": (50,) * 4,
        "threshold": 3,
        "min_cohort": 4,
        "policy": {"min_honest_tail": 1, "adversary": "active"},
    },
    "no search": {"levels": [{"theta": [1, 1], "cohort_size": 3}]},
}


@cache
def round_case(name):
    """A round, as the vectors have it."""
    return make_round(name, **ROUNDS[name])


@cache
def round_played(name):
    """What `play_round` gives of a round."""
    return play_round(round_case(name))


def rounds():
    cases = []
    for name in ROUNDS:
        played, questions, sums, tails, outcomes, drops = round_played(name)
        case = round_case(name)
        if case["levels"][0]["noise"] is not None:
            config = config_from_json(case["levels"][0])
            for device in case["devices"]:
                device["noise_share"] = _share(config, bytes.fromhex(device["noise"]))
        cases.append(
            {
                "name": name,
                "description": "A whole round, every envelope and every message.",
                **case,
                "models_digest": sha256(bytes.fromhex(case["models"])).hexdigest(),
                "rounds": rounds_to_json(played, whole=False),
                "questions": questions,
                "sums": sums,
                "tails": tails,
                "outcomes": outcomes,
                "drops": drops,
            }
        )
    return cases
