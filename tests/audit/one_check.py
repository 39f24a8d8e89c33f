"""One check by itself, for a round that was put together by hand."""

from pathlib import Path

from deltafl.sim.inspect.audit.check import Premises, RoundOver
from deltafl.sim.inspect.audit.expected import expected_of
from deltafl.sim.inspect.audit.false_alarms import FalseAlarmBudget
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.inspect.audit.rounds_again import RoundsAgain
from deltafl.sim.inspect.audit.source import Source


def new(check_type, **options):
    """A check that has seen nothing yet, of a record alone."""
    source, chosen = Source(Path("t.sqlite"), Path("t.sqlite")), Options(**options)
    budget = FalseAlarmBudget(chosen.false_alarm_rate)
    expected = expected_of(source, chosen)
    return check_type(
        Premises(source, expected, chosen.head, budget, RoundsAgain(keeps_cohort=False))
    )


def found_in(view, check):
    """What a check finds in a round."""
    return list(check.on_round(RoundOver(view)))
