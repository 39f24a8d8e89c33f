"""Is the session the one that its question takes: its sums, their ranges, and who is asked?"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from deltafl.protocol.errors import ProtocolError
from deltafl.secagg import SecAggError, SessionParams
from deltafl.sim.analyse.asking import Asking
from deltafl.sim.analyse.plan import Plan
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.check import Check, RoundOver
from deltafl.sim.inspect.audit.checks.parameters import MIN_DISTINCT
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.rules import A4, A6, A19, Rule, Rules
from deltafl.sim.inspect.audit.views import RoundView, SessionView

RULES: Final = Rules(
    {
        "analysis.question": Rule(
            Severity.HIGH,
            "the session is not the one of the recorded question",
            "Devices were asked something else: other sums, other ranges or caps, or other limits.",
            "Ask the devices what they were asked, and take what was summed for known.",
            A19,
        ),
        "analysis.strange-devices": Rule(
            Severity.HIGH,
            "others were asked than the record says",
            "The server may have added devices of its own, of which it knows the answers.",
            "Find out who the devices are.",
            A4,
        ),
        "analysis.seed": Rule(
            Severity.HIGH,
            "the public seed or the salt of an analysis has a pattern",
            "Whoever knows in advance who is next to whom can place colluding devices around one. "
            "A pattern may also be a message to whoever reads the record.",
            "Draw both anew for every analysis, the seed after the devices are known.",
            A6,
        ),
        "analysis.too-few-devices": Rule(
            Severity.HIGH,
            "an analysis was begun with fewer devices than its own smallest cohort",
            "A sum over few devices says much of each.",
            "Ask more devices, or do not ask.",
            A4,
        ),
    }
)


class Terms(Check):
    """Plans the session again from the question, and compares."""

    name = "question and session"
    rules = RULES

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Compare the session with its question."""
        asking, view = self._premises.source.asking, over.view
        if asking is None:
            return
        invited = cohort_of(view)
        if len(invited) < asking.guard.min_cohort:
            detail = f"{len(invited)} devices, and min_cohort = {asking.guard.min_cohort}"
            yield RULES.found("analysis.too-few-devices", detail, [Evidence(view.number)])
        sessions = list(view.sessions.values())
        if len(sessions) > 1:
            places = [one.announcements[0].place for one in sessions]
            detail = f"{len(sessions)} sessions were opened for one question"
            yield RULES.found("analysis.question", detail, places)
        for session in sessions:
            place = session.announcements[0].place
            for name, drawn in (("seed", session.params.graph_seed), ("salt", asking.salt)):
                if len(set(drawn)) < MIN_DISTINCT:
                    detail = f"its {name} has only {len(set(drawn))} distinct bytes: {drawn.hex()}"
                    yield RULES.found("analysis.seed", detail, [place])
            for detail in _differing(asking, session, len(invited)):
                yield RULES.found("analysis.question", detail, [place])
            asked = {seen.record.peer for seen in session.announcements}
            if view.cohort is not None and asked != set(view.cohort):
                apart = sorted(asked ^ set(view.cohort))
                detail = f"{len(apart)} devices, such as {apart[0]}, are in one list only"
                yield RULES.found("analysis.strange-devices", detail, [place])

    def coverage(self, tally: Tally) -> Coverage:
        """Every analysis is recorded in full."""
        return Coverage(tally.told, "slots, ranges, caps, noise, neighbours, threshold, cohort")


def cohort_of(view: RoundView) -> tuple[int, ...]:
    """Who is asked: by the record of its begin, or else by the messages."""
    if view.cohort is not None:
        return view.cohort
    sessions = view.sessions.values()
    return tuple(sorted({seen.record.peer for one in sessions for seen in one.announcements}))


def plan_of(asking: Asking, num_devices: int) -> Plan | str:
    """The plan of a question for so many devices; why there is none, if there is none."""
    try:
        return Plan(asking.question, asking.guard, num_devices)
    except (SecAggError, ProtocolError, UserError) as error:
        return str(error)


def _differing(asking: Asking, session: SessionView, num_devices: int) -> Iterator[str]:
    """What of a session is not what the question comes to."""
    plan = plan_of(asking, num_devices)
    if isinstance(plan, str):
        yield f"no session can answer this question: {plan}"
        return
    wanted = plan.params(session.params.graph_seed, asking.context)
    if session.params.context != wanted.context:
        yield "its context is not the digest of the question"
    for one in fields(SessionParams):
        said, due = getattr(session.params, one.name), getattr(wanted, one.name)
        if one.compare and one.name != "context" and said != due:
            shown = "" if one.name == "slots" else f": {said!r:.40}, and {due!r:.40} are due"
            yield f"its {one.name} are not those of the question{shown}"
