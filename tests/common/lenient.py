"""Limits on rounds that hardly limit anything, for tests of something else."""

from dataclasses import fields
from fractions import Fraction

import pytest

from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import Adversary, ThreatModel
from deltafl.secagg.threat import PROFILES

ROUNDS = {
    "min_honest_tail": 0,
    "max_levels": 16,
    "max_pivots": 1 << 32,
    "max_pivots_if_equal": 1 << 32,
    "max_mm_pivots_per_device": Fraction(1 << 32),
    "max_loss_resolution_bits": 64,
    "max_loss_bound": 1 << 32,
    "max_weight": 1 << 53,
    "min_update_resolution_bits": 0,
    "min_update_clip": 2.0**-1000,
    "max_update_clip": 2.0**1000,
    "min_noise": Fraction(0),
    "min_update_noise": Fraction(0),
    "max_update_norm": 2.0**1000,
}
"""Fields of `RoundPolicy`."""


class Trusting(RoundPolicy):
    """Answers searches that it cannot check, whomever it expects."""

    __slots__ = ()

    @property
    def profile(self):
        return PROFILES[self.adversary]._replace(takes_unverified=True)


def trusting(policy):
    """The same limits on an active server whose searches are answered unchecked."""
    limits = {each.name: getattr(policy, each.name) for each in fields(policy)}
    return Trusting(**limits | {"adversary": Adversary.ACTIVE})


SESSIONS = Sessions(
    policy=RoundPolicy(
        **ROUNDS,
        min_cohort=2,
        colluding_rate=0.0,
        dropout_rate=0.0,
    ),
    threat=ThreatModel(0.0, 0.1),
    min_cohort=2,
)
"""Sessions of two devices or more, which withstand nobody."""


@pytest.fixture
def no_query_needed(monkeypatch):
    """Devices that take a threshold without a query, which lets a test begin with the threshold."""
    monkeypatch.setattr(RoundPolicy, "_check_search", lambda *_: None)
