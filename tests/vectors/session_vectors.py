"""Vectors of whole sessions, message by message; also of those from which devices vanish."""

from functools import cache

from recorded_session import POLICY, make_case, make_params, play

from deltafl.secagg.graph import Graph

SLOTS = (("a first sum", 4, 13), ("a second sum", 3, 40))
WHOLE = (
    ("a first sum", 2, 13, True),
    ("a void sum", 2, 13, True),
    ("a sum that cannot be asked for", 2, 13, True),
    ("a fourth sum", 2, 13),
    ("a fifth sum", 3, 40, True),
)
VERIFIED = (
    ("quantile", 3, 24, False, True),
    ("quantile", 3, 24, True, True),
    ("update", 2, 40),
)
SMALL = {
    "complete, one lost": {"num_invited": 5, "threshold": 2, "slots": SLOTS[:1]},
    "complete": {"num_invited": 5, "threshold": 3, "slots": SLOTS},
    "complete, signed": {"num_invited": 5, "threshold": 3, "slots": SLOTS},
    "sparse": {
        "num_invited": 8,
        "degree": 4,
        "threshold": 2,
        "min_cohort": 5,
        "min_roster": 6,
        "slots": (("a sum", 5, 32),),
    },
    "sparse, signed": {
        "num_invited": 8,
        "degree": 4,
        "threshold": 2,
        "min_cohort": 5,
        "min_roster": 6,
        "slots": (("a sum", 5, 64),),
    },
    "whole slots": {"num_invited": 4, "threshold": 2, "slots": WHOLE},
    "whole slots, signed": {"num_invited": 4, "threshold": 2, "slots": WHOLE},
    "complete, keys with the highest bit": {
        "num_invited": 4,
        "threshold": 3,
        "slots": (*SLOTS[:1], ("a whole sum", 3, 40, True)),
    },
    "verified": {"num_invited": 4, "threshold": 3, "slots": VERIFIED},
    "verified, whole": {
        "num_invited": 3,
        "threshold": 2,
        "slots": (("quantile", 2, 60, True, True), *VERIFIED[1:]),
    },
}
LOST = {
    "complete, one lost": [(0, "mask", 0)],
    # The second slot is void, so the third has no sum either; the fourth is tolerant, and the fifth
    # is over those whose vectors were in the fourth.
    "whole slots": [(1, "mask", 1), (0, "mask", 3)],
    "whole slots, signed": [(0, "mask", 1)],
    "verified": [(3, "mask", 0)],
}
SET_UP = ("advertise", "share", "receipt")
TOLERANT = ("mask", "confirm", "unmask")


@cache
def small_case(name):
    """A small session."""
    odd = (1, 3) if "highest bit" in name else ()
    lost = LOST.get(name, ())
    return make_case(name, make_params(**SMALL[name]), vanishing=lost, highest_bit=odd)


@cache
def played(name):
    """The rounds, sums and drops of a small session."""
    return play(small_case(name))


def sessions():
    return [_whole_case(name, "Every message.", small_case(name)) for name in SMALL]


LOSING = {
    "complete": {"num_invited": 4, "threshold": 2, "slots": (("a sum", 2, 13),)},
    "complete, signed": {
        "num_invited": 4,
        "threshold": 3,
        "slots": (("a sum", 2, 13),),
    },
    "sparse": {**SMALL["sparse"], "min_cohort": 4, "num_invited": 7, "slots": (("a sum", 2, 13),)},
    "sparse, signed": {
        **SMALL["sparse, signed"],
        "min_cohort": 4,
        "num_invited": 7,
        "slots": (("a sum", 1, 64),),
    },
    "whole, signed": {
        "num_invited": 3,
        "threshold": 2,
        "slots": (("a whole sum", 2, 13, True), ("a sum", 2, 13)),
    },
    "verified": {
        "num_invited": 4,
        "threshold": 2,
        "slots": (("quantile", 1, 24, True, True), ("quantile", 1, 24, True, True), ("u", 1, 40)),
    },
}
"""Sessions from which devices vanish; as few devices and elements as show it."""


def dropouts():
    cases = []

    def add(name, title, *vanishing, spoiling=(), asked=None, **changes):
        params = make_params(**{**LOSING[name], **changes})
        title = f"{name}: {title}"
        case = make_case(title, params, vanishing=vanishing, spoiling=spoiling)
        if asked is not None:
            case["asked"] = asked
        cases.append(_whole_case(title, "Every message.", case))

    for name, stages in (
        ("complete", ("advertise", "mask", "unmask")),
        ("complete, signed", ("share", *TOLERANT)),
        ("sparse", ("unmask",)),
    ):
        for stage in stages:
            add(name, f"one device vanishes at {stage}", (1, stage, 0))
    for stage in ("list", "mask"):
        add("whole, signed", f"one device vanishes at {stage}", (1, stage, 0))
    for stage, slot in (("list", 0), ("mask", 1), ("unmask", 2)):
        add("verified", f"one device vanishes at {stage} of slot {slot}", (1, stage, slot))
    two = {"num_invited": 5, "slots": (("a first sum", 2, 13), ("a second sum", 1, 40))}
    losses = (0, "mask", 0), (3, "unmask", 1)
    add("complete, signed", "two slots, a device vanishes in each", *losses, **two)
    losses = (2, "unmask", 0), (4, "mask", 1)
    add("complete", "two slots, a device vanishes between them", *losses, **two)
    add("complete", "the first of two slots is left out", asked=[1], **two)
    whole = ("a first sum", 1, 13), ("a whole sum", 1, 13, True), ("another", 1, 13, True)
    for name in ("complete", "complete, signed"):
        title = "a device vanishes at the tolerant slot, and another at the second whole one"
        losses = (0, "mask", 0), (2, "mask", 2)
        add(name, title, *losses, slots=whole, threshold=2, num_invited=4)
    for name in ("complete", "complete, signed"):
        first, second = _neighbours_of_the_first(make_params(**LOSING[name]))
        title = "two boxes do not open, and a device vanishes"
        spoiled = (0, first), (second, 0)
        add(name, title, (second, "mask", 0), spoiling=spoiled, threshold=2)
    title = "larger: devices vanish at several stages"
    losses = [(2 * i + 1, stage, 0) for i, stage in enumerate(("share", *TOLERANT))]
    larger = {"num_invited": 10, "degree": 6, "threshold": 2, "min_cohort": 6, "min_roster": 10}
    add("sparse, signed", title, *losses, **larger, slots=(("a sum", 9, 33),))
    return cases


def _neighbours_of_the_first(params):
    """Two neighbours of the device at position 0."""
    graph = Graph(params.num_invited, params.degree, params.graph_seed)
    return graph.neighbours(0).tolist()[:2]


def _whole_case(name, description, case):
    rounds, sums, drops = play(case)
    return {
        "name": name,
        "description": description,
        "policy": POLICY,
        **case,
        "rounds": rounds_to_json(rounds),
        "sums": sums,
        "drops": drops,
    }


def rounds_to_json(rounds):
    """Rounds, as `play` gives them; a message that all devices get alike is written once."""
    shown = []
    for one in rounds:
        asked = {str(client): data.hex() for client, data in one["to"].items()}
        alike = set(asked.values())
        shown.append(
            {
                "stage": one["stage"],
                "slot": one["slot"],
                "asked": sorted(one["to"]),
                "to": asked if len(alike) > 1 else {"all": alike.pop()},
                "from": {str(client): data.hex() for client, data in one["from"].items()},
            }
        )
    return shown


def rounds_from_json(rounds):
    """The rounds of `sessions`, as `play` gives them."""
    return [
        {
            "stage": one["stage"],
            "slot": one["slot"],
            "to": {
                client: bytes.fromhex(one["to"].get("all") or one["to"][str(client)])
                for client in one["asked"]
            },
            "from": {int(client): bytes.fromhex(data) for client, data in one["from"].items()},
        }
        for one in rounds
    ]
