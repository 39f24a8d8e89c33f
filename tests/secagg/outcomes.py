"""What a session comes to, by the real machines and by the ideal functionality."""

from typing import NamedTuple

import numpy as np
from parties import POLICY

from deltafl.secagg import IdealSession, Server, SessionAborted, run_session
from deltafl.secagg.randomness import SeededRandomness


def bindings_of(params):
    return [f"binding {slot}".encode() for slot in range(len(params.slots))]


def comparable(result):
    return (
        result.slot,
        result.vector.dtype,
        result.vector.tolist(),
        result.contributors,
        result.remaining,
    )


class Outcome(NamedTuple):
    """What came of a session.

    Attributes:
        sums: Those that it revealed until it ended.
        void: Slots that were opened, were whole, and lacked a device.
        skipped: Whole slots that were not opened, because a device of theirs was gone.
        drops: As the server's.
        aborted: Whether it ended before its last slot was over.
    """

    sums: list
    void: list
    skipped: list
    drops: dict
    aborted: bool


def run_real(params, inputs, vanishing, monkeypatch, seed=0):
    """The real session."""
    servers, sums, void, skipped = [], [], [], []

    class Noted(Server):
        def __init__(self, *args):
            super().__init__(*args)
            servers.append(self)

        def can_sum(self, slot):
            can = super().can_sum(slot)
            if not can:
                skipped.append(slot)
            return can

        def close_round(self):
            was_open = self._open is not None
            outgoing = super().close_round()
            if was_open and not outgoing and not self.has_sum:
                void.append(self._slot)
            return outgoing

        def take_sum(self):
            sums.append(super().take_sum())
            return sums[-1]

    monkeypatch.setattr("deltafl.secagg.session.Server", Noted)
    aborted = False
    try:
        returned = run_session(
            params,
            inputs,
            bindings_of(params),
            vanishing=vanishing,
            policy=POLICY,
            randomness=SeededRandomness(seed.to_bytes(32, "little")),
        )
        assert returned == sums
    except SessionAborted:
        aborted = True
    return Outcome([comparable(s) for s in sums], void, skipped, servers[0].drops, aborted)


def run_ideal(params, inputs, vanishing):
    """The same by the ideal functionality."""
    session, aborted = IdealSession(params, inputs, vanishing), False
    sums, void, skipped = [], [], []
    try:
        session.set_up()
        for slot in range(len(params.slots)):
            if not session.can_sum(slot):
                skipped.append(slot)
                continue
            session.open_slot(slot)
            result = session.sum(slot, lambda c, slot=slot: inputs[c][slot])
            if result is None:
                void.append(slot)
            else:
                sums.append(result)
    except SessionAborted:
        aborted = True
    return Outcome([comparable(s) for s in sums], void, skipped, session.drops, aborted)


def looks_uniform(difference):
    """Whether elements of Z_2^16 pass for independent uniform ones.

    Chi-square of their upper four bits (15 degrees of freedom, above 56 with probability 1e-6),
    and at most two zeros (of an expected 4096 / 65536; three or more with probability 4e-5).
    """
    counts = np.bincount(difference >> 12, minlength=16)
    expected = len(difference) / 16
    return ((counts - expected) ** 2 / expected).sum() < 56 and (difference == 0).sum() <= 2
