"""Vectors of whole sessions, message by message; also of those from which devices vanish."""

from functools import cache
from hashlib import sha256

from recorded_session import POLICY, make_case, make_params, play

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
    "sparse": {
        "num_invited": 7,
        "degree": 4,
        "threshold": 2,
        "min_cohort": 4,
        "min_roster": 6,
        "slots": (("a sum", 5, 64),),
    },
    "whole slots": {"num_invited": 4, "threshold": 2, "slots": WHOLE},
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
    "verified": [(3, "mask", 0)],
}
SET_UP = ("advertise", "share", "receipt")
TOLERANT = ("mask", "confirm", "unmask")


@cache
def small_case(name):
    """A small session."""
    return make_case(name, make_params(**SMALL[name]), vanishing=LOST.get(name, ()))


@cache
def played(name):
    """The rounds, sums and drops of a small session."""
    return play(small_case(name))


def sessions():
    return [_whole_case(name, small_case(name), whole=True) for name in SMALL]


LOSING = {
    "complete": {"num_invited": 4, "threshold": 3, "slots": (("a sum", 2, 13),)},
    "sparse": {**SMALL["sparse"], "min_cohort": 4, "slots": (("a sum", 1, 64),)},
    "whole": {
        "num_invited": 3,
        "threshold": 2,
        "slots": (("a whole sum", 2, 13, True), ("a sum", 2, 13)),
    },
    "verified": {
        "num_invited": 3,
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
        cases.append(_whole_case(title, case, whole=False))

    for stage in (*SET_UP, *TOLERANT):
        add("complete", f"one device vanishes at {stage}", (1, stage, 0))
    add("sparse", "one device vanishes at unmask", (1, "unmask", 0))
    add("whole", "one device vanishes at mask", (1, "mask", 0))
    for stage, slot in (("mask", 1), ("unmask", 2)):
        add("verified", f"one device vanishes at {stage} of slot {slot}", (1, stage, slot))
    two = {"num_invited": 5, "slots": (("a first sum", 2, 13), ("a second sum", 1, 40))}
    losses = (0, "mask", 0), (3, "unmask", 1)
    add("complete", "two slots, a device vanishes in each", *losses, **two)
    two["num_invited"] = 4
    add("complete", "the first of two slots is left out", asked=[1], **two)
    losses = (2, "unmask", 0), (0, "mask", 1)
    title = "two slots, a device vanishes between them"
    add("complete", title, *losses, **two | {"threshold": 2})
    whole = ("a first sum", 1, 13), ("a whole sum", 1, 13, True), ("another", 1, 13, True)
    title = "a device vanishes at the tolerant slot, and another at the second whole one"
    losses = (0, "mask", 0), (2, "mask", 2)
    add("complete", title, *losses, slots=whole, threshold=2)
    title = "two boxes do not open, and a device vanishes"
    add("complete", title, (2, "mask", 0), spoiling=((0, 1), (2, 0)), threshold=2)
    title = "a box does not open, and the first slot is whole"
    add("whole", title, spoiling=((0, 1),))
    title = "two boxes of one device do not open: it is isolated"
    add("complete", title, spoiling=((0, 1), (2, 0)))
    title = "larger: devices vanish at several stages"
    losses = [(2 * i + 1, stage, 0) for i, stage in enumerate(("share", *TOLERANT))]
    larger = {"num_invited": 10, "degree": 6, "threshold": 2, "min_cohort": 6, "min_roster": 10}
    add("sparse", title, *losses, **larger, slots=(("a sum", 9, 33),))
    return cases


def _whole_case(name, case, *, whole):
    rounds, sums, drops = play(case)
    return {
        "name": name,
        "description": "Every message.",
        "policy": POLICY,
        **case,
        "rounds": rounds_to_json(rounds, whole=whole),
        "sums": sums,
        "drops": drops,
    }


LONGEST = 1000


def rounds_to_json(rounds, *, whole):
    """Rounds, as `play` gives them; a message that all devices get alike is written once.

    Args:
        rounds: The rounds.
        whole: Whether messages of more than LONGEST bytes are written, and not their digests.
    """

    def shown_as(data):
        is_short = whole or len(data) <= LONGEST
        return data.hex() if is_short else "sha256:" + sha256(data).hexdigest()

    shown = []
    for one in rounds:
        asked = {str(client): shown_as(data) for client, data in one["to"].items()}
        alike = set(asked.values())
        shown.append(
            {
                "stage": one["stage"],
                "slot": one["slot"],
                "asked": sorted(one["to"]),
                "to": asked if len(alike) > 1 else {"all": alike.pop()},
                "from": {str(client): shown_as(data) for client, data in one["from"].items()},
            }
        )
    return shown


def rounds_from_json(rounds, played=None):
    """Rounds as `play` gives them.

    Args:
        rounds: As `rounds_to_json` writes them.
        played: What `play` gives, where digests are written.
    """
    if played is not None:
        assert rounds_to_json(played, whole=False) == rounds
        return played
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
