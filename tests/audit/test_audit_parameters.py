"""Which settings of a run may change from round to round."""

from fractions import Fraction

import pytest

from deltafl.protocol.configuration import RoundConfig, UpdateParams
from deltafl.protocol.levels import Levels
from deltafl.protocol.quantile.search import SearchParams
from deltafl.sim.inspect.audit.checks.parameters import _may_change


@pytest.mark.parametrize(
    ("before", "now", "may"), [(0.5, 0.25, True), (None, 0.25, False), (0.5, None, False)]
)
def test_a_radius_may_change_but_not_go(before, now, may):
    config = RoundConfig(
        round_index=3,
        cohort_size=12,
        theta=Fraction(1),
        method="bracketed",
        search=SearchParams(0),
        update=UpdateParams(radius=now),
        update_length=5,
    )
    assert _may_change("update.radius", before, now, Levels((config,))) is may
