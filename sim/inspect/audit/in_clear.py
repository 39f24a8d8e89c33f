"""The verdict on a run without masks: its server sees losses or updates as they are."""

from typing import Final

from deltafl.sim.inspect.audit.checks.clear import ValuesInClear
from deltafl.sim.inspect.audit.checks.run import RULES as RECORD
from deltafl.sim.inspect.audit.facts import CheckResult, Outcome, no_facts
from deltafl.sim.inspect.audit.findings import Evidence
from deltafl.sim.inspect.audit.options import Options, expected_of, reproduce
from deltafl.sim.inspect.audit.preface import LIMITS, facts_of_run
from deltafl.sim.inspect.audit.report import AuditReport
from deltafl.sim.inspect.audit.run_replay import summary_differs
from deltafl.sim.inspect.audit.source import Source
from deltafl.sim.record.events import read_events

BY_DESIGN: Final = "clear.by-design"
"""The rule that a run in clear breaks."""

IN_CLEAR: Final = (
    "what devices sent: a run in clear has no record of it, so events, losses and models were only "
    "compared with each other",
)

_FILES: Final = "the run's own account"


def report_in_clear(source: Source, options: Options) -> AuditReport:
    """The report on a run whose algorithm has no masks: its files are compared with each other.

    Args:
        source: The run.
        options: The limits to apply.
    """
    algorithm = source.config.federation.algorithm if source.config else "unknown"
    detail = f"the run's algorithm is {algorithm}, which has no masks"
    disagrees = [
        RECORD.found("record.disagrees", one, [Evidence()])
        for one in (summary_differs(source.directory, source.arms) if source.directory else ())
    ]
    compared = CheckResult(
        _FILES, Outcome.FAILED if disagrees else Outcome.PASSED, "its files, with each other"
    )
    facts, rounds = no_facts(options.false_alarm_rate), 0
    if source.directory is not None:
        with source.directory.read() as record:
            rounds = len(read_events(record))
    return AuditReport(
        source=str(source.given),
        head="",
        run_id="",
        facts=facts_of_run(source, None, expected_of(source, options)),
        rounds=rounds,
        full_rounds=0,
        records=0,
        size=0,
        sums_released=facts["sums_released"],
        sums_replayed=facts["sums_replayed"],
        has_truth=False,
        checks=(CheckResult(ValuesInClear.name, Outcome.FAILED, detail), compared),
        findings=(
            ValuesInClear.rules.found(BY_DESIGN, detail, [Evidence()]),
            *disagrees,
        ),
        observed=(),
        timeline=(),
        timeline_round=None,
        searches=facts["searches"],
        statistics=facts["statistics"],
        participation=facts["participation"],
        not_checked=IN_CLEAR,
        limits=LIMITS,
        reproduce=reproduce(source, options),
    )
