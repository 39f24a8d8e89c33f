"""What a simulation computes once changes no byte of a round, and nothing that comes of it."""

from dataclasses import dataclass, replace
from fractions import Fraction

import lenient
import numpy as np
import pytest
from round_parties import MODEL, play_single

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.losses import LossGrid
from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import SearchParams
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import Enrolment, GraphKind, Stage, Step, ThreatModel, Vanish
from deltafl.secagg.primitives import PLAIN
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.session import NoObserver
from deltafl.sim.cohort.masked import MaskedRounds
from deltafl.sim.cohort.shared import SharedAgreements

POLICY = RoundPolicy(
    **lenient.ROUNDS,
    min_cohort=2,
    colluding_rate=0.0,
    dropout_rate=0.0,
)
SESSIONS = Sessions(POLICY, ThreatModel(0.0, 0.3), GraphKind.COMPLETE, min_cohort=3)
CONFIG = RoundConfig(
    round_index=0,
    cohort_size=8,
    theta=Fraction(1, 2),
    method="mm",
    search=SearchParams(max_queries=12, grid=LossGrid(resolution_bits=8, bound=8)),
    update=UpdateParams(clip=4.0, resolution_bits=12, max_weight=512),
    update_length=500,
)


@dataclass(frozen=True)
class Device:
    id: int
    weight: int = 3
    length: int = 500

    def loss(self, model):
        assert bytes(model) == MODEL
        return self.id / 7

    def update(self, model):
        assert bytes(model) == MODEL
        return np.full(self.length, self.id / 9, dtype=np.float32)


class Messages(NoObserver):
    """Remembers every message."""

    def __init__(self):
        self.all = []

    def message(self, *, sent, peer, data):
        self.all.append((sent, peer, data))


def play(sessions, vanishing, config=CONFIG, **changes):
    messages = Messages()
    backend = MaskedRounds(
        sessions,
        SeededRandomness(b"s" * 32),
        observer=messages,
        enrolment=Enrolment(SeededRandomness(b"i" * 32)),
        **changes,
    )
    devices = [Device(i, length=config.update_length) for i in range(config.cohort_size)]
    outcome = play_single(backend, config, MODEL, devices, vanishing=vanishing).outcome
    return messages.all, outcome.search, outcome.update.tobytes(), outcome.drops


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_simulated_round_is_the_plain_one_to_the_byte(signed, late):
    sessions = replace(SESSIONS, signed=signed)
    gone = {2: Vanish(Step(Stage.SHARE), late), 5: Vanish(Step(Stage.MASK, 12), late)}
    assert play(sessions, gone) == play(sessions, gone, primitives=lambda: PLAIN)


def test_another_agreement_would_be_seen(monkeypatch):
    plain = play(SESSIONS, {})
    monkeypatch.setattr(SharedAgreements, "agree", lambda *_: bytes(31) + b"1")
    changed = play(SESSIONS, {})
    assert changed[0] != plain[0]
    assert changed[1:] == plain[1:]  # masks cancel all the same
