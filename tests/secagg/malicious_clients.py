"""Sessions with malicious clients: what they say is changed on its way to the server."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from parties import BINDING, STEPS, Parties, make_ids, make_params, plain_sum, sealed_once

from deltafl.secagg import Stage, Step, keys, links, shamir, signing
from deltafl.secagg.identity import identity
from deltafl.secagg.messages import Credential, Message
from deltafl.secagg.states import COLLECTED_AT, ServerState

COLLECTING = [
    index for index, state in enumerate(STEPS) if state not in (ServerState.READY, ServerState.DONE)
]
"""The steps of `parties.STEPS` at which the server listens."""

COMPLETE = make_params(9, threshold=4, slots=((4, 13), (3, 40)))
SPARSE = make_params(14, degree=8, threshold=4, slots=((4, 13), (3, 40)))

every_kind = pytest.mark.parametrize(
    "params",
    [COMPLETE, SPARSE],
    ids=["complete", "sparse"],
)
"""A test of every kind of session."""


def device_at(params, position):
    """The device at a place of the roster when nobody has vanished."""
    return sorted(make_ids(params.num_invited))[position]


def step_at(index) -> Step:
    """What the server collects at a step of `parties.STEPS`, in a session of two slots."""
    slot = sum(state is ServerState.READY for state in STEPS[:index]) - 1
    return Step(COLLECTED_AT[STEPS[index]], max(slot, 0))


def index_of(stage, slot=0) -> int:
    """The step of `parties.STEPS` at which the server collects a stage of a slot."""
    return next(index for index in COLLECTING if step_at(index) == Step(stage, slot))


def at_step(index, params):
    """A session that has come to a step: the parties, the steps left, what is to be delivered."""
    parties = Parties(params)
    steps = parties.steps()
    return parties, steps, next(itertools.islice(steps, index, None))


def check_sums(parties):
    """Every sum so far is that of its contributors."""
    for result in parties.sums:
        expected = plain_sum(parties.params, result.slot, parties.inputs, result.contributors)
        assert result.vector.tolist() == expected


def finish(parties, steps):
    """Run to the end; every sum must be that of its contributors."""
    for _ in steps:
        pass
    assert parties.server.state is ServerState.DONE
    check_sums(parties)
    return parties.sums


def changed(parties, data, change):
    """A device's message, changed."""
    return parties.encode(change(parties.decode(data)))


Change = Callable[["MaliciousClients", int, Message], Message | bytes | None]


class MaliciousClients(Parties):
    """Parties some of which cheat.

    `changes` says what becomes of a device's message at a stage: another message, bytes, or None
    for silence. It applies in every slot.
    """

    def __init__(self, params, changes: Mapping[tuple[int, Stage], Change]):
        super().__init__(params)
        self.changes = changes

    def answer(self, client, data, binding=BINDING):
        reply = super().answer(client, data, binding)
        change = self.changes.get((client, COLLECTED_AT[self.server.state]))
        if change is None or reply is None:
            return reply
        told = change(self, client, self.decode(reply))
        return told if told is None or isinstance(told, bytes) else self.encode(told)

    def finish(self):
        return finish(self, self.steps())

    @property
    def faults(self):
        return {client: drop.fault for client, drop in self.server.drops.items()}


# What a malicious client may do, each with the stage at which it does it.


def say(data):
    return lambda *_: data


def lie_about(positions=None, *, error=1):
    """Give wrong shares of some devices' secrets (None: of all)."""

    def change(parties, client, message):
        shares = message.shares.copy()
        wrong = np.isin(message.positions, list(positions or message.positions))
        shares[wrong, 3] = (shares[wrong, 3].astype(np.uint64) + error) % shamir.PRIME
        return replace(message, shares=shares)

    return change


def seal_junk(parties, client, message, recipients=None):
    """Boxes that do not open, for some neighbours (None: for all)."""
    chosen = set(message.boxes if recipients is None else recipients)
    boxes = {
        p: box[:-1] + bytes([box[-1] ^ 1]) if p in chosen else box
        for p, box in message.boxes.items()
    }
    return replace(message, boxes=boxes)


def reseal(parties, client, message, content):
    """Boxes with another content: `content(recipient, half, limbs)`, limbs of uint32."""
    cohort = parties.clients[client]._phase.cohort
    boxes = {}
    for recipient, box in message.boxes.items():
        info = links.info(cohort.session_id, cohort.end(cohort.position), cohort.end(recipient))
        theirs = keys.recipient(parties.randomness[parties.roster[recipient]].given[0])
        plain = theirs.open(box, info)
        half, shares = plain[: links.HALF_SIZE], plain[links.HALF_SIZE :]
        told = content(recipient, half, np.frombuffer(shares, dtype="<u4").astype(np.uint32))
        boxes[recipient] = sealed_once(told, theirs.public, info)
    return replace(message, boxes=boxes)


def deal_wrong_shares(victims, *, error=1):
    """Deal some neighbours shares of another polynomial; the boxes open, and have the half."""

    def content(recipient, half, limbs):
        if recipient in victims:
            limbs = limbs.reshape(-1, shamir.NUM_LIMBS)
            limbs[:, 3] = (limbs[:, 3].astype(np.uint64) + error) % shamir.PRIME
        return half + limbs.reshape(-1).astype("<u4").tobytes()

    return relink(content)


def deal_outside_the_field(victims):
    """Boxes that open, and hold limbs that are no field elements."""

    def content(recipient, half, limbs):
        told = np.full_like(limbs, shamir.PRIME) if recipient in victims else limbs
        return half + told.astype("<u4").tobytes()

    return relink(content)


def relink(content):
    """Send boxes of another content, and take them for one's own: the links are as they are."""

    def change(parties, client, message):
        told = reseal(parties, client, message, content)
        machine = parties.clients[client]
        sent = {
            peer: end._replace(box=sha256(told.boxes[peer]).digest())
            for peer, end in machine._phase.dealt.sent.items()
        }
        machine._phase = replace(machine._phase, dealt=replace(machine._phase.dealt, sent=sent))
        return told

    return change


def commit_falsely(parties, client, message):
    return replace(message, commitments=tuple(bytes(32) for _ in message.commitments))


def unread(positions):
    """A receipt without some neighbours, as if their boxes could not be read."""

    def change(parties, client, message):
        left = {p: bytes(row) for p, row in message.links.items() if p not in positions}
        return replace(message, links=left)

    return change


def say_of_links(place, positions=None):
    """A receipt, one byte of which is changed for some neighbours (None: for all)."""

    def change(parties, client, message):
        told = {p: bytearray(row) for p, row in message.links.items()}
        for p in told if positions is None else positions:
            told[p][place] ^= 1
        return replace(message, links={p: bytes(row) for p, row in told.items()})

    return change


def sign_badly(parties, client, message):
    """A wrong signature, of keys or of survivors."""
    own = message.credential if hasattr(message, "credential") else message
    wrong = replace(own, signature=own.signature[:-1] + bytes([own.signature[-1] ^ 1]))
    return replace(message, credential=wrong) if own is not message else wrong


def be_somebody_else(parties, client, message):
    """Keys that are signed in order, by an identity which the directory does not know."""
    stranger = identity(b"stranger".ljust(32, b"\0"))
    statement = signing.advertisement(parties.params, client, message.key)
    return replace(message, credential=Credential(stranger.public, stranger.sign(statement)))
