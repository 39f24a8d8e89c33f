"""Vectors of lies in a round: what a device refuses of a server, in the order of its checks."""

import contextlib
from dataclasses import replace

import numpy as np
from recorded_round import SMALL_ROUND, RoundParties, levels_from_json
from recorded_session import fixed
from round_vectors import CONFIGS, round_case, round_played

from deltafl.protocol import wire
from deltafl.protocol.labels import Label
from deltafl.protocol.messages import Announce, Ask, Relay
from deltafl.protocol.quantile.search import Query
from deltafl.protocol.selection import Threshold
from deltafl.secagg import PeerError, Refusal, UsageError, ring, signing
from deltafl.secagg import wire as session_wire
from deltafl.secagg.labels import digest
from deltafl.secagg.messages import ConsistencyCheck, OpenSlot, SessionOpen

PLAIN, LEVELS, NOISY = "mm", "histogram, two levels", "noisy"
WIDENED = "a tail of two, widened"
VERIFIED, LISTED = "bracketed, verified", "mm, verified, of three or more, one is lost"
VICTIM = 17
OWN = 2  # its position


class Heard:
    """The envelopes of a round that one device hears, to be changed."""

    def __init__(self, name, device=VICTIM):
        self.name, self.device = name, device
        self.parties = RoundParties(round_case(name))
        self.params = self.parties.params
        self.rounds = [one for one in round_played(name)[0] if device in one["to"]]
        self.places = [(one["stage"], one["slot"]) for one in self.rounds]

    def envelope(self, at):
        return wire.decode(self.rounds[self.places.index(at)]["to"][self.device])

    def decode(self, data):
        return session_wire.decode(data, self.params)

    def encode(self, message):
        return session_wire.encode(message, self.params)

    def lie(self, description, refusal, at, *told, **others):
        """A case: the device has heard everything before `at`, then what is told."""
        return {
            "description": description,
            "round": self.name,
            "device": self.device,
            "received": self.places.index(at),
            "messages": [
                (one if isinstance(one, bytes) else wire.encode(one)).hex() for one in told
            ],
            "refusal": refusal and refusal.value,
            **others,
        }


def round_refusals():
    cases = [*_announcements(), *_relays(), *_questions(), *_levels(), *_verified(), *_few()]
    cases += [*_tails(), *_accepted(), *_limits()]
    for case in cases:
        name = case["round"]
        refused, answers = refuse_in_round(case, round_case(name), round_played(name)[0])
        assert refused == case["refusal"], (case["description"], refused)
        case["answers"] = answers
    return cases


def refuse_in_round(case, played_case, rounds):
    """Feed a case's envelopes to a device, which does the work that it is given.

    Args:
        case: One of `round_refusals`.
        played_case: The round that it names.
        rounds: The envelopes of that round, as `play_round` gives them.

    Returns:
        The name of its refusal of the last envelope, or None; and its answers to those before, and
        to the last one too if it does not refuse that.

    Raises:
        AssertionError: it does not say what it said before.
    """
    client, parties = case["device"], RoundParties(played_case)
    machine = parties.client(
        client,
        case.get("policy"),
        answered=case.get("answered", ()),
    )
    heard = [one for one in rounds if client in one["to"]]
    for one in heard[: case["received"]]:
        assert parties.answer(machine, client, one["to"][client]) == one["from"].get(client)
    *before, last = [bytes.fromhex(data) for data in case["messages"]]
    replies = [parties.answer(machine, client, data) for data in before]
    if "answered_since" in case:
        parties.ledger.admit([bytes.fromhex(entry) for entry in case["answered_since"]])
    refused = None
    try:
        replies.append(parties.answer(machine, client, last))
    except PeerError as error:
        refused = error.reason.value
        with contextlib.suppress(UsageError):
            machine.receive(last)
            raise AssertionError(f"not over: {case['description']}") from None
    return refused, [reply and reply.hex() for reply in replies]


def _announcements():
    own, at = Heard(PLAIN), ("advertise", 0)
    honest = own.envelope(at)
    data = wire.encode(honest)

    def opened(**changes):
        params = replace(own.params, **changes)
        return replace(honest, session=session_wire.encode(SessionOpen(params), params))

    def lie(description, refusal, told, **others):
        return own.lie(description, refusal, at, told, **others)

    yield lie("A cut announcement.", Refusal.MALFORMED, data[:-1])
    yield lie("Nothing.", Refusal.MALFORMED, b"")
    yield lie("Version 2.", Refusal.MALFORMED, data.replace(b"\x03\x21", b"\x02\x21", 1))
    yield lie("A device's message.", Refusal.MALFORMED, own.rounds[0]["from"][VICTIM])
    yield lie("A message before the round.", Refusal.OUT_OF_ORDER, own.envelope(("share", 0)))
    yield lie("A query before the round.", Refusal.OUT_OF_ORDER, own.envelope(("mask", 0)))
    yield lie("No session.", Refusal.MALFORMED, replace(honest, session=b""))
    yield lie("A cut session.", Refusal.MALFORMED, replace(honest, session=honest.session[:-1]))
    yield lie("Another model than the session's.", Refusal.MALFORMED, replace(honest, models=b"a"))
    for name, value in (
        ("round_index", 4),
        ("theta", [1, 3]),
        ("warm_start", 3),
        ("epsilon_ticks", 1),
        ("update_clip", 1.5),
    ):
        levels = levels_from_json([SMALL_ROUND | {name: value}])
        told = replace(honest, levels=levels)
        yield lie(f"Another {name} than the session's.", Refusal.MALFORMED, told)
    slots = own.params.slots
    for description, changes in (
        ("a slot fewer", {"slots": slots[1:]}),
        ("a slot more", {"slots": (*slots, slots[-1])}),
        ("another ring", {"slots": (*slots[:-1], replace(slots[-1], ring_bits=33))}),
        ("a query that is not whole", {"slots": (slots[0], slots[0], slots[2])}),
        ("an update that is whole", {"slots": (*slots[:-1], replace(slots[-1], whole=True))}),
        ("a device more", {"num_invited": 5, "degree": 4}),
    ):
        yield lie(
            f"The session of this context has {description}.", Refusal.MALFORMED, opened(**changes)
        )
    entry = digest(Label.MODEL, honest.models).hex()
    yield lie(
        "A model that the device has answered for.",
        Refusal.MODEL_REPEATED,
        honest,
        answered=[entry],
    )
    yield lie(
        "The same, and the session is not that of the round.",
        Refusal.MALFORMED,
        opened(slots=slots[1:]),
        answered=[entry],
    )
    yield lie(
        "A session below the device's policy.",
        Refusal.POLICY,
        honest,
        policy={"min_cohort": 3},
    )
    yield own.lie(
        "A second announcement of the session.",
        Refusal.OUT_OF_ORDER,
        ("share", 0),
        replace(honest, models=b"a"),
    )
    yield from _announcements_of_others()


LIMITS = (
    ("min_honest_tail", PLAIN, 1, 2),
    ("max_pivots", PLAIN, 2, 1),
    ("max_pivots_if_equal", NOISY, 3, 2),
    ("max_mm_pivots_per_device", PLAIN, [1, 1], [99, 100]),
    ("max_loss_resolution_bits", PLAIN, 4, 3),
    ("max_loss_bound", PLAIN, 8, 7),
    ("max_weight", PLAIN, 100, 99),
    ("min_update_resolution_bits", PLAIN, 8, 9),
    ("min_update_clip", PLAIN, 2.0, 2.0001),
    ("max_update_clip", PLAIN, 2.0, 1.9999),
    ("min_noise", NOISY, [21213, 10000], [21214, 10000]),
)
"""Limits of a device, the round that they are about, what just admits it and what just does not."""


def _limits():
    at = ("advertise", 0)
    for of in dict.fromkeys(of for _, of, _, _ in LIMITS):
        own, limits = Heard(of), [limit for limit in LIMITS if limit[1] == of]
        honest = own.envelope(at)
        admitting = {name: admits for name, _, admits, _ in limits}
        yield own.lie("At the limits.", None, at, honest, policy=admitting)
        for name, _, _, refuses in limits:
            what = f"Beyond {name} = {refuses}."
            yield own.lie(what, Refusal.POLICY, at, honest, policy={name: refuses})


def _announcements_of_others():
    at = ("advertise", 0)
    levels = Heard(LEVELS)
    honest = levels.envelope(at)
    yield levels.lie(
        "More levels than the device allows.",
        Refusal.POLICY,
        at,
        honest,
        policy={"max_levels": 1},
    )
    yield levels.lie(
        "The same, and no session.",
        Refusal.POLICY,
        at,
        replace(honest, session=b""),
        policy={"max_levels": 1},
    )
    half = len(honest.models) // 2
    for description, models, answered, refusal in (
        ("Two levels with one model.", honest.models[:half] * 2, False, Refusal.POLICY),
        ("The same, answered for before.", honest.models[:half] * 2, True, Refusal.POLICY),
        ("The second level's model was answered for.", honest.models, True, Refusal.MODEL_REPEATED),
    ):
        params = replace(levels.params, context=honest.levels.context(models))
        opening = session_wire.encode(SessionOpen(params), params)
        told = Announce(honest.levels, models, opening)
        entry = digest(Label.MODEL, models[half:]).hex()
        others = {"answered": [entry]} if answered else {}
        yield levels.lie(description, refusal, at, told, **others)
    noisy = Heard(NOISY)
    yield noisy.lie(
        "Noise from more devices than are certain to be honest.",
        Refusal.POLICY,
        at,
        noisy.envelope(at),
        policy={"colluding_rate": 0.25},
    )
    signed = Heard(VERIFIED)
    config = levels_from_json([SMALL_ROUND | CONFIGS["bracketed"]])
    models = fixed("an unverified model")
    params = replace(
        signed.params, slots=config.slots(), context=config.context(models), threshold=3,
        min_cohort=3,
    )  # fmt: skip
    told = Announce(config, models, session_wire.encode(SessionOpen(params), params))
    yield signed.lie(
        "A search that is not verified, and a device that expects an active server.",
        Refusal.POLICY,
        at,
        told,
        policy={"adversary": "active"},
    )


def _relays():
    own = Heard(PLAIN)
    share, query = ("share", 0), ("mask", 0)
    roster = own.decode(own.envelope(share).session)
    few = np.array([3, 10, 24], dtype=np.uint32)
    yield own.lie(
        "What the session refuses, under its name.",
        Refusal.NOT_IN_ROSTER,
        share,
        Relay(own.encode(replace(roster, roster=few))),
    )
    yield own.lie("A relay of nothing.", Refusal.MALFORMED, share, Relay(b""))
    opening = own.envelope(query).session
    yield own.lie("A slot without a question.", Refusal.OUT_OF_ORDER, query, Relay(opening))
    yield own.lie(
        "The same slot, and the session refuses it.",
        Refusal.DEVICE_LEFT_OUT,
        query,
        Relay(own.encode(OpenSlot(0, np.arange(4) != OWN))),
    )


def _questions():
    own = Heard(PLAIN)
    first, request, second, last = (own.places[i] for i in (3, 4, 5, 6))
    assert (first, second, last) == (("mask", 0), ("mask", 1), ("mask", 2))
    query, threshold = own.envelope(first), own.envelope(last)
    everybody = np.ones(4, dtype=np.bool_)
    for description, refusal, told in (
        ("A query in the slot of the update.", Refusal.OUT_OF_ORDER, replace(
            query, session=own.encode(OpenSlot(2, everybody))
        )),
        ("A threshold in the slot of a query.", Refusal.OUT_OF_ORDER, replace(
            query, question=Threshold(0, 0)
        )),
        ("A query with the roster.", Refusal.OUT_OF_ORDER, replace(
            query, session=own.envelope(("share", 0)).session[:-1]
        )),
        ("A query of another method.", Refusal.MALFORMED, replace(
            query, question=Query("bracketed", query.question.pivots)
        )),
        ("A query of two pivots.", Refusal.MALFORMED, replace(
            query, question=Query("mm", (16, 17))
        )),
        ("A query of no pivots.", Refusal.MALFORMED, replace(query, question=Query("mm", ()))),
        ("A pivot above the grid.", Refusal.MALFORMED, replace(
            query, question=Query("mm", (130,))
        )),
        ("A proof where none is due.", Refusal.OUT_OF_ORDER, replace(query, opening=b"x")),
        ("A wrong query in the slot of the update.", Refusal.OUT_OF_ORDER, replace(
            query, question=Query("bracketed", ()), session=own.encode(OpenSlot(2, everybody))
        )),
        ("A query that leaves the device out.", Refusal.DEVICE_LEFT_OUT, replace(
            query, session=own.encode(OpenSlot(0, np.arange(4) != OWN))
        )),
    ):  # fmt: skip
        if description == "A query with the roster.":
            refusal = Refusal.MALFORMED
        yield own.lie(description, refusal, first, told)
    unmask = own.envelope(request).session
    yield own.lie(
        "A query with a request, which opens no slot.",
        Refusal.OUT_OF_ORDER,
        request,
        replace(query, session=unmask, question=Query("mm", (5,))),
    )
    yield own.lie(
        "The second query over fewer devices.",
        Refusal.NOT_AGREED,
        second,
        replace(own.envelope(second), session=own.encode(OpenSlot(1, np.arange(4) != 1))),
    )
    yield own.lie(
        "The first slot once more, with another query.",
        Refusal.SLOT_REUSED,
        second,
        replace(
            query, question=Query("mm", (5,)), session=own.encode(OpenSlot(0, np.arange(4) > 0))
        ),
    )
    yield own.lie(
        "A second threshold.",
        Refusal.OUT_OF_ORDER,
        own.places[7],
        replace(threshold, question=Threshold(0, 0)),
    )
    entry = digest(Label.MODEL, own.parties.models).hex()
    yield own.lie(
        "Another round over the model was answered since the announcement.",
        Refusal.MODEL_REPEATED,
        first,
        query,
        answered_since=[entry],
    )


def _levels():
    own = Heard(LEVELS)
    first = ("mask", 0)
    query = own.envelope(first)
    everybody = np.ones(3, dtype=np.bool_)
    for description, slot, question in (
        ("A query at the second level when the first is played.", 3, query.question),
        ("The threshold of the second level when the first is played.", 5, Threshold(0, 0)),
    ):
        told = replace(query, question=question, session=own.encode(OpenSlot(slot, everybody)))
        yield own.lie(description, Refusal.OUT_OF_ORDER, first, told)
    yield own.lie(
        "Pivots that decrease.",
        Refusal.MALFORMED,
        first,
        replace(query, question=Query("histogram", (9, 8))),
    )
    told = replace(query, question=Threshold(0, 0), session=own.encode(OpenSlot(2, everybody)))
    yield own.lie("A cut threshold.", Refusal.MALFORMED, first, wire.encode(told)[:-1])


def _verified():
    own = Heard(VERIFIED)
    places = [place for place in own.places if place[0] == "mask"]
    first, second, *_, last = places
    query, after, threshold = (own.envelope(at) for at in (first, second, last))
    assert isinstance(after.question, Query)
    assert isinstance(threshold.question, Threshold)
    everybody = np.ones(4, dtype=np.bool_)
    update = own.encode(OpenSlot(len(own.params.slots) - 1, everybody))
    other = Query("bracketed", (after.question.pivots[0] + 1,))
    eta = threshold.question.eta_half_ticks
    yield own.lie(
        "A first query with another pivot than the search begins with.",
        Refusal.NOT_FOLLOWING,
        first,
        replace(query, question=Query("bracketed", (1,))),
    )
    yield own.lie(
        "A threshold before the first query.",
        Refusal.NOT_FOLLOWING,
        first,
        Ask(Threshold(0, 0), update),
    )
    yield own.lie(
        "A proof before the first query.",
        Refusal.OUT_OF_ORDER,
        first,
        replace(query, opening=after.opening),
    )
    proof = own.decode(after.opening)
    spec = own.params.slots[0]
    total = ring.unpack(proof.packed, spec.wire_length, spec.ring_bits)
    total[2] -= 1
    false = own.encode(replace(proof, packed=ring.pack(total, spec.ring_bits)))
    for description, refusal, told in (
        ("The second query without a proof.", Refusal.UNPROVED, replace(after, opening=b"")),
        (
            "A threshold without a proof.",
            Refusal.UNPROVED,
            Ask(threshold.question, update),
        ),
        (
            "The proof of another sum.",
            Refusal.BAD_OPENING,
            replace(after, opening=false),
        ),
        (
            "A proof that lacks a device.",
            Refusal.MISSING_NEIGHBOUR,
            replace(
                after,
                opening=own.encode(
                    replace(proof, committed={p: c for p, c in proof.committed.items() if p})
                ),
            ),
        ),
        ("A proof that is cut.", Refusal.MALFORMED, replace(after, opening=after.opening[:-1])),
        (
            "The message that opens the slot, for a proof.",
            Refusal.OUT_OF_ORDER,
            replace(after, opening=after.session),
        ),
        (
            "Another query than follows.",
            Refusal.NOT_FOLLOWING,
            replace(after, question=other),
        ),
        (
            "A query of another method than follows.",
            Refusal.NOT_FOLLOWING,
            replace(after, question=Query("mm", after.question.pivots)),
        ),
        (
            "A threshold although the search is to go on.",
            Refusal.NOT_FOLLOWING,
            Ask(threshold.question, update, after.opening),
        ),
        (
            "Another query, without a proof.",
            Refusal.UNPROVED,
            replace(after, question=other, opening=b""),
        ),
        (
            "A threshold in the slot of a query, without a proof.",
            Refusal.OUT_OF_ORDER,
            Ask(threshold.question, after.session),
        ),
        (
            "A false proof with the slot of the update.",
            Refusal.BAD_OPENING,
            replace(after, opening=false, session=update),
        ),
    ):
        yield own.lie(description, refusal, second, told)
    for description, changes in (
        ("A higher threshold.", (eta + 1, None)),
        ("A lower threshold.", (eta - 1, None)),
        ("A threshold with another δ.", (eta, 1)),
    ):
        delta = threshold.question.half_width_half_ticks + (changes[1] or 0)
        told = replace(threshold, question=Threshold(changes[0], delta))
        yield own.lie(description, Refusal.NOT_FOLLOWING, last, told)


def _accepted():
    """What looks like a lie and is none."""
    own, other = Heard(PLAIN), Heard(LEVELS)
    first, second = ("mask", 0), ("mask", 1)
    query = own.envelope(first)
    everybody = np.ones(4, dtype=np.bool_)
    threshold = Ask(Threshold(0, 0), own.encode(OpenSlot(2, everybody)))
    yield own.lie("An envelope twice.", None, first, query, query)
    yield own.lie("The open slot once more, in a relay.", None, first, query, Relay(query.session))
    strange = (other.envelope(place) for place in (("advertise", 0), ("share", 0), first))
    yield own.lie("Envelopes of another session.", None, first, *strange, query)
    yield own.lie("The threshold, and no query before it.", None, first, threshold)
    yield own.lie(
        "The first query in the second slot.",
        None,
        first,
        replace(query, session=own.encode(OpenSlot(1, everybody))),
    )
    yield own.lie("A message that is cut, of another session.", None, second, Relay(
        other.envelope(first).session[:-1]
    ))  # fmt: skip
    signed = Heard(VERIFIED)
    config = levels_from_json([SMALL_ROUND | CONFIGS["bracketed"]])
    models = fixed("an unverified model")
    params = replace(
        signed.params,
        slots=config.slots(),
        context=config.context(models),
        threshold=3,
        min_cohort=3,
    )
    told = Announce(config, models, session_wire.encode(SessionOpen(params), params))
    yield signed.lie(
        "A search that is not verified, and a device that expects an active server.",
        Refusal.POLICY,
        ("advertise", 0),
        told,
        policy={"adversary": "active"},
    )
    listed = Heard(LISTED)
    last = [place for place in listed.places if place[0] == "mask"][-1]
    told = listed.envelope(last)
    yield listed.lie(
        "The threshold when a device has left, without a proof of the last sum.", None, last, told
    )


def _tails():
    """Devices that are said to be gone when the updates are summed."""
    own = Heard(WIDENED)
    at = next(place for place in reversed(own.places) if place[0] == "confirm")
    fewer = np.arange(5) != 3
    told = Relay(own.encode(ConsistencyCheck(at[1], fewer)))
    yield own.lie(
        "Of the tail, a device is said to be lost, and it is then smaller than the device allows.",
        Refusal.TAIL_TOO_SMALL,
        at,
        told,
        policy={"min_honest_tail": 2},
    )
    yield own.lie(
        "Of the tail, a device is said to be lost, and it is large enough.",
        None,
        at,
        told,
        policy={"min_honest_tail": 1},
    )


def _few():
    """A search over fewer devices than it needs."""
    own = Heard(LISTED)
    listing, query = ("list", 0), own.envelope(("mask", 0))
    two = np.arange(4) % 2 == 0
    session_id = own.params.session_id(np.array([3, 10, 17, 24], dtype="<u4").tobytes())
    keys = [own.decode(own.rounds[0]["from"][c]).sealing_key for c in sorted(own.parties.devices)]
    signatures = {
        p: own.parties.identity(3 + 7 * p).sign(signing.members(session_id, 0, two, keys[p]))
        for p in (0, OWN)
    }
    yield own.lie(
        "A query over two devices where three are needed.",
        Refusal.COHORT_TOO_SMALL,
        listing,
        Relay(own.encode(ConsistencyCheck(0, two))),
        replace(query, session=own.encode(OpenSlot(0, two, signatures))),
    )
    yield own.lie(
        "A query over devices that nobody agreed on.",
        Refusal.NOT_AGREED,
        listing,
        replace(query, session=own.encode(OpenSlot(0, two, signatures))),
    )
