"""Vectors of whole sessions: all messages of small ones, digests of those of others."""

from functools import cache
from hashlib import sha256

from recorded_session import POLICY, make_case, make_params, play

SLOTS = (("a first sum", 4, 13), ("a second sum", 3, 40))
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
}
LOST = {"complete, one lost": [(0, "mask", 0)]}
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


def _digested(name, case):
    rounds, sums, drops = play(case)
    return {
        "name": name,
        "description": "Digests (SHA-256) of the messages.",
        **case,
        "rounds": [_shown(one, lambda data: sha256(data).hexdigest()) for one in rounds],
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
