"""Tails of many kinds of cohorts, counted and played with real masks: never too few honest."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from counted_cohorts import CELLS, MIN_HONEST, cohorts_of, num_honest, searched, verdicts
from round_parties import play_single

from deltafl.protocol.policy import RoundPolicy
from deltafl.protocol.quantile.search import Ended
from deltafl.protocol.sessions import Sessions
from deltafl.secagg import GraphKind, PeerError, ThreatModel
from deltafl.sim.cohort.masked import MaskedRounds

MODEL = bytes(4)
KEPT = [cell for cell in CELLS if cell.num_colluding >= 0]
REFUSED = [cell for cell in CELLS if cell.num_colluding < 0]
DRAWN = np.random.default_rng(3).choice(len(KEPT), 200).tolist()
"""The cells of 200 cohorts that are played."""


@dataclass(frozen=True)
class Device:
    id: int
    weight: int
    value: float

    def loss(self, model):
        del model
        return self.value

    def update(self, model):
        del model
        return np.full(1, self.id / 100, dtype=np.float32)


def played(cell, config, cohort):
    """The round by server and devices of the default policy, but for the share that colludes."""
    rate = max(cell.num_colluding, 0) / cell.size
    policy = RoundPolicy(colluding_rate=rate, min_honest_tail=MIN_HONEST)
    sessions = Sessions(policy, ThreatModel(rate, 0.0), GraphKind.COMPLETE, min_cohort=cell.size)
    devices = [
        Device(number, int(weight), float(loss))
        for number, (loss, weight) in enumerate(zip(cohort.losses, cohort.weights, strict=True))
    ]
    return play_single(MaskedRounds(sessions), config, MODEL, devices).outcome


@pytest.mark.slow
def test_no_tail_is_over_fewer_honest_devices():
    for cell in KEPT:
        found = verdicts(cell, 20)
        assert found["fewest"] >= MIN_HONEST, cell
        assert found["ended"] == 0


@pytest.mark.slow
def test_a_tail_that_is_not_counted_is_over_fewer():
    fewest = []
    for cell in KEPT:
        plain = replace(cell.config(), min_tail=0)
        cohorts = list(cohorts_of(cell, 20))
        fewest.append(min(num_honest(plain, one, searched(plain, one)) for one in cohorts))
    assert min(fewest) == 0
    assert sum(number < MIN_HONEST for number in fewest) > 20  # of the cells


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_server_and_devices_come_to_the_same_by_real_masks(part):
    for place in DRAWN[20 * part : 20 * part + 20]:
        cell = KEPT[place]
        config = cell.config()
        *_, cohort = cohorts_of(cell, 1 + DRAWN.index(place) % 5)
        found, outcome = searched(config, cohort), played(cell, config, cohort)
        assert outcome.search == found
        assert outcome.aborted is None
        passing = [found.passes(config.search.grid.tick(loss)[0]) for loss in cohort.losses]
        assert outcome.kept_devices == sum(passing)
        assert outcome.kept_devices - cohort.num_colluding >= MIN_HONEST
        assert (found.ended is Ended.WIDENED) <= (outcome.kept_devices == config.min_tail)


@pytest.mark.parametrize("cell", REFUSED, ids=str)
def test_where_no_share_fits_devices_refuse(cell):
    config = cell.config()
    (cohort,) = cohorts_of(cell, 1)
    with pytest.raises(PeerError, match="too few even if nobody colludes"):
        played(replace(cell, claims=False), config, cohort)
