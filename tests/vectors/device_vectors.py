"""Vectors of one device: a conversation, message by message, with nobody else needed."""

from dataclasses import replace

import numpy as np
from negative_vectors import SIGNED, SPARSE, VICTIM, Rewriting, only
from recorded_session import POLICY, Parties, fixed, make_case, make_params, policy_of
from session_vectors import played, small_case

from deltafl.secagg import Client, Credentials, PeerError, TrustedKeys, wire
from deltafl.secagg.identity import identity
from deltafl.secagg.ledger import MemoryLedger
from deltafl.secagg.messages import OpenSlot, RosterMessage, SessionOpen
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.ring import to_words
from deltafl.secagg.states import ClientState

PLAIN = "complete"


def devices():
    cases = [*_ignored(), *_rosters(), *_repeated_contexts(), *_policies(), *_slots()]
    for case in cases:
        heard = converse(case)
        for steps, outcomes in zip(case["sessions"], heard, strict=True):
            for step, outcome in zip(steps["steps"], outcomes, strict=True):
                step.update(outcome)
    return cases


def converse(case):
    """What a device says to each message, session by session.

    Returns:
        For each session and message `answer`, or `refusal` of the last one.
    """
    ledger, credentials = MemoryLedger(), None
    if case["directory"] is not None:
        keys = {int(client): bytes.fromhex(key) for client, key in case["directory"].items()}
        credentials = Credentials(identity(bytes.fromhex(case["identity"])), TrustedKeys(keys))
    found = []
    for session in case["sessions"]:
        machine = Client(
            case["device"],
            policy_of(case["policy"]),
            SeededRandomness(bytes.fromhex(session["randomness"])),
            credentials,
            ledger=ledger,
        )
        found.append([_outcome(machine, step) for step in session["steps"]])
    return found


def _outcome(machine, step):
    try:
        answer = machine.receive(bytes.fromhex(step["message"]))
        if machine.state is ClientState.OPENED and "vector" in step:
            bits = machine.params.slots[machine.slot].ring_bits
            numbers = np.array([int(x) for x in step["vector"]], dtype=np.uint64)
            answer = machine.contribute(to_words(numbers, bits), bytes.fromhex(step["binding"]))
    except PeerError as error:
        return {"refusal": error.reason.value}
    return {"answer": answer and answer.hex()}


def _case(description, session, *sessions, policy=None, device=VICTIM):
    """A case of the device of a small session; `sessions` are messages, or pairs with slots."""
    case = small_case(session)
    own = next(one for one in case["devices"] if one["id"] == device)
    keys = None
    if "identity" in own:
        keys = {
            str(one["id"]): identity(bytes.fromhex(one["identity"])).public.hex()
            for one in case["devices"]
        }
    return {
        "description": description,
        "device": device,
        "identity": own.get("identity"),
        "directory": keys,
        "policy": POLICY | (policy or {}),
        "sessions": [
            {
                "randomness": own["randomness"],
                "steps": [_step(case, own, message) for message in messages],
            }
            for messages in sessions
        ],
    }


def _step(case, own, message):
    """A message, and what the device contributes if it opens a slot, unless told otherwise."""
    if isinstance(message, tuple):
        return {"message": message[0].hex()}
    step = {"message": message.hex()}
    params = Parties(case).params
    if wire.tag_of(message) == params.tag:
        read = wire.decode(message, params)
        if isinstance(read, OpenSlot):
            binding = case["bindings"][read.slot]
            step |= {"vector": own["inputs"][read.slot], "binding": binding}
    return step


def _heard(session, device=VICTIM):
    """What a device hears in a small session."""
    return [one["to"][device] for one in played(session)[0] if device in one["to"]]


def _ignored():
    heard = _heard(SIGNED)
    twice = [message for message in heard[:7] for _ in range(2)]
    yield _case("Signed: every message twice.", SIGNED, twice)
    heard = _heard(PLAIN)
    late = [message for i, one in enumerate(heard) for message in (one, *heard[3:i])]
    yield _case("After each message all those before, from the first slot on.", PLAIN, late)
    other = _heard("whole slots")
    mixed = [*heard[:1], *(m for pair in zip(other, heard[1:6], strict=False) for m in pair)]
    yield _case("Messages of another session in between.", PLAIN, mixed)
    cut = [message[:-1] for message in other[:3]]
    yield _case("Other sessions' messages that are cut.", PLAIN, [*heard[:2], *cut])


def _rosters():
    for fewest, smallest in ((3, 4), (4, 2), (3, 3)):
        params = make_params(
            5,
            threshold=3,
            signed=False,
            slots=(("a sum", 2, 13),),
            min_cohort=fewest,
            min_roster=smallest,
        )
        case = make_case(PLAIN, params)
        opening = wire.encode(SessionOpen(params), params)
        parties = Parties(case)
        chosen = (3, 10, VICTIM)
        keys = {
            position: wire.decode(parties.client(client).receive(opening), params)
            for position, client in enumerate(chosen)
            if client != VICTIM
        }
        roster = wire.encode(RosterMessage(np.array(chosen, dtype=np.uint32), keys), params)
        yield _case(
            f"A roster of three, min_cohort {fewest}, min_roster {smallest}.",
            PLAIN,
            [opening, roster],
        )


def _repeated_contexts():
    own = Rewriting(SIGNED)
    again = replace(own.params, graph_seed=fixed("the seed of another session"))
    other = replace(again, context=fixed("another context"))
    heard = _heard(SIGNED)
    opening, same, new = (
        wire.encode(SessionOpen(params), params) for params in (own.params, again, other)
    )
    answered = heard[: 1 + _first_slot(own.params, heard)]
    yield _case("The same session twice: the second is refused.", SIGNED, answered, [opening])
    yield _case(
        "The same session twice, as long as nothing was answered in the first.",
        SIGNED,
        answered[:-1],
        answered,
        [opening],
    )
    yield _case(
        "Sessions of one context and of another: the device remembers by itself.",
        SIGNED,
        answered,
        [new],
        [same],
    )


def _first_slot(params, heard):
    """Which message opens the first slot."""
    read = wire.reader(params)
    return next(i for i, one in enumerate(heard) if i and isinstance(read(one), OpenSlot))


def _policies():
    """Rules about parameters, each with a session that just keeps it, and one that does not."""
    signed = {"signed": True, "slots": (("a sum", 2, 13),)}
    active = {"adversary": "active"}
    for description, policy, options in (
        ("Active: a sparse graph, though its thresholds would do.", active, (8, 4, 4, 6)),
        ("A sparse graph: min_roster k + 2.", {}, (8, 4, 4, 6)),
        ("A sparse graph: min_roster k + 1.", {}, (8, 4, 4, 5)),
        ("Active, complete graph: 2t = h + 1.", active, (5, 4, 3, 2)),
        ("Active, complete graph: 2t = h.", active, (8, 7, 4, 2)),
        ("Degree 1000 of five devices, max_degree 4.", {"max_degree": 4}, (5, 1000, 3, 2)),
        ("Degree 1000 of five devices, max_degree 3.", {"max_degree": 3}, (5, 1000, 3, 2)),
    ):
        num, degree, threshold, smallest = options
        params = make_params(
            num,
            degree=degree,
            threshold=threshold,
            min_cohort=num - 3 if degree < num - 1 else None,
            min_roster=smallest,
            **signed,
        )
        opening = wire.encode(SessionOpen(params), params)
        yield _case(description, SIGNED, [opening], policy=policy)
    expected = {"colluding_rate": 0.05, "dropout_rate": 0.05}
    for description, degree, threshold, fewest in (
        ("A sparse graph that is enough for the device's own rates.", 12, 6, 95),
        ("A sparse graph whose threshold is one below that.", 12, 5, 95),
        ("A sparse graph that those who vanish may cut.", 8, 6, 95),
        ("A sparse graph of which one more may be missing.", 12, 6, 94),
    ):
        params = make_params(100, degree=degree, threshold=threshold, min_cohort=fewest, **signed)
        opening = wire.encode(SessionOpen(params), params)
        yield _case(description, SIGNED, [opening], policy=expected)


def _slots():
    own, heard = Rewriting(PLAIN), _heard(PLAIN)
    fewer = own.encode(OpenSlot(0, only(0, 1, 2)))
    for description, second in (
        ("Another opening of the slot, before the vector is known.", fewer),
        ("The next slot, before the vector is known.", own.encode(OpenSlot(1, only(0, 1, 2)))),
    ):
        yield _case(description, PLAIN, [*heard[:3], (heard[3],), second])
    yield _case(
        "The first slot is left out.",
        PLAIN,
        [*heard[:3], own.encode(OpenSlot(1, only(0, 1, 2, 3, 4)))],
    )
    yield _case("A sparse session, to its end.", SPARSE, _heard(SPARSE))
