"""Vectors of whole sessions: all messages of small ones, digests of those of others."""

from functools import cache
from hashlib import sha256

from recorded_session import POLICY, make_case, make_params, play

from deltafl.secagg.graph import Graph

SLOTS = (("a first sum", 4, 13), ("a second sum", 3, 40))
WHOLE = (
    ("a first sum", 2, 13, True),
    ("a void sum", 2, 13, True),
    ("a third sum", 2, 13, True),
    ("a fourth sum", 2, 13),
)
SMALL = {
    "complete, one lost": {"num_invited": 5, "threshold": 2, "signed": False, "slots": SLOTS[:1]},
    "complete": {"num_invited": 5, "threshold": 3, "signed": False, "slots": SLOTS},
    "complete, signed": {"num_invited": 5, "threshold": 3, "signed": True, "slots": SLOTS},
    "sparse": {
        "num_invited": 8,
        "degree": 4,
        "threshold": 2,
        "signed": False,
        "slots": (("a sum", 5, 32),),
    },
    "sparse, signed": {
        "num_invited": 8,
        "degree": 4,
        "threshold": 2,
        "signed": True,
        "slots": (("a sum", 5, 64),),
    },
    "whole slots": {"num_invited": 4, "threshold": 2, "signed": False, "slots": WHOLE},
    "whole slots, signed": {"num_invited": 3, "threshold": 2, "signed": True, "slots": WHOLE[:3]},
}
LOST = {
    "complete, one lost": [(0, "mask", 0)],
    # The second slot is void; the third is whole again, over those who are left.
    "whole slots": [(1, "mask", 1), (0, "mask", 3)],
    "whole slots, signed": [(0, "mask", 1)],
}
STAGES = ("advertise", "share", "receipt", "mask", "confirm", "unmask")


@cache
def small_case(name):
    """A small session."""
    return make_case(name, make_params(**SMALL[name]), vanishing=LOST.get(name, ()))


@cache
def played(name):
    """The rounds, sums and drops of a small session."""
    return play(small_case(name))


def sessions():
    cases = []
    for name in SMALL:
        rounds, sums, drops = played(name)
        cases.append(
            {
                "name": name,
                "description": "Every message.",
                "policy": POLICY,
                **small_case(name),
                "rounds": [_shown(one, bytes.hex) for one in rounds],
                "sums": sums,
                "drops": drops,
            }
        )
    return cases


def dropouts():
    cases = []
    for name in sorted(SMALL.keys() - LOST.keys()):
        options = SMALL[name]
        params = make_params(**{**options, "slots": options["slots"][:1]})
        for stage in STAGES:
            if stage != "confirm" or params.signed:
                title = f"{name}: one device vanishes at {stage}"
                cases.append(_digested(title, make_case(title, params, vanishing=[(1, stage, 0)])))
    for title, vanishing in (
        ("two slots, a device vanishes in each", [(0, "mask", 0), (3, "unmask", 1)]),
        ("two slots, a device vanishes between them", [(2, "unmask", 0), (4, "mask", 1)]),
    ):
        for name in ("complete", "complete, signed"):
            params = make_params(**SMALL[name])
            case = make_case(f"{name}: {title}", params, vanishing=vanishing)
            cases.append(_digested(f"{name}: {title}", case))
    for title, *vanishing in (
        ("a device vanishes before the list is signed", (1, "confirm", 0)),
        ("a device vanishes between the list and its shares", (1, "unmask", 0)),
        ("the last slot is void", (1, "mask", 2)),
    ):
        name = "whole slots, signed"
        case = make_case(f"{name}: {title}", make_params(**SMALL[name]), vanishing=vanishing)
        cases.append(_digested(f"{name}: {title}", case))
    for name in ("complete", "complete, signed", "sparse, signed"):
        title = f"{name}: two boxes do not open, and a device vanishes"
        params = make_params(**{**SMALL[name], "slots": SMALL[name]["slots"][:1]})
        first, second = _neighbours_of_the_first(params)
        case = make_case(
            title, params, vanishing=[(second, "mask", 0)], spoiling=[(0, first), (second, 0)]
        )
        cases.append(_digested(title, case))
    title = "sparse: devices are isolated by others that vanish"
    params = make_params(10, degree=4, threshold=2, slots=SLOTS[:1], signed=False)
    vanishing = [(index, "share", 0) for index in range(3)]
    cases.append(_digested(title, make_case(title, params, vanishing=vanishing)))
    title = "sparse, signed, larger: devices vanish at every stage"
    params = make_params(
        16, degree=8, threshold=3, min_cohort=8, slots=(("a sum", 67, 33),), signed=True
    )
    vanishing = [(2 * i + 1, stage, 0) for i, stage in enumerate(STAGES)]
    cases.append(_digested(title, make_case(title, params, vanishing=vanishing)))
    return cases


def _neighbours_of_the_first(params):
    """Two neighbours of the device at position 0."""
    graph = Graph(params.num_invited, params.degree, params.graph_seed)
    return graph.neighbours(0).tolist()[:2]


def _digested(name, case):
    rounds, sums, drops = play(case)
    return {
        "name": name,
        "description": "Digests of the messages.",
        **case,
        "rounds": [_shown(one, lambda data: sha256(data).hexdigest()[:32]) for one in rounds],
        "sums": sums,
        "drops": drops,
    }


def _shown(one, show):
    """A round as JSON; a message that all devices get alike is written once."""
    asked = {str(client): show(data) for client, data in one["to"].items()}
    alike = set(asked.values())
    return {
        "stage": one["stage"],
        "slot": one["slot"],
        "asked": sorted(one["to"]),
        "to": asked if len(alike) > 1 else {"all": alike.pop()},
        "from": {str(client): show(data) for client, data in one["from"].items()},
    }


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
