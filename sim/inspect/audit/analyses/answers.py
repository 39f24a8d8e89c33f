"""Do questions, answer and ε follow from the sums, and was nothing else summed?"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Final

from deltafl.fl.read.strict_json import parse_json
from deltafl.sim.analyse.asking import MAX_BYTES, Asking, json_line
from deltafl.sim.analyse.deduction import Answer
from deltafl.sim.analyse.plan import Plan
from deltafl.sim.analyse.question import HOLDERS
from deltafl.sim.inspect.audit.analyses.facts import AnalysisFacts, SumFacts
from deltafl.sim.inspect.audit.analyses.numbers import depends_on
from deltafl.sim.inspect.audit.analyses.replaying import Outcome, Told, played
from deltafl.sim.inspect.audit.analyses.terms import cohort_of, plan_of
from deltafl.sim.inspect.audit.check import Check, Premises, ReleasedSum, RoundOver
from deltafl.sim.inspect.audit.coverage import Coverage, Tally
from deltafl.sim.inspect.audit.facts import CheckFacts
from deltafl.sim.inspect.audit.findings import Evidence, Finding, Severity
from deltafl.sim.inspect.audit.rules import A17, A18, A19, A20, Rule, Rules
from deltafl.sim.inspect.audit.views import place_of
from deltafl.sim.record.transcript import Answered, Asked, Record
from deltafl.sim.run.bound import rounded_up

RULES: Final = Rules(
    {
        "analysis.asked": Rule(
            Severity.HIGH,
            "devices were asked what does not follow from the question and the sums before",
            "The server chose a question by itself, and so which values it learns more of.",
            "Ask the devices what they were told, and stop using this server.",
            A19,
        ),
        "analysis.unasked-sum": Rule(
            Severity.HIGH,
            "a sum was revealed that the question does not need",
            "The server knows more than the answer says.",
            "Take this sum for known. Its ε, if it has noise, is in no account.",
            A18,
        ),
        "analysis.answer": Rule(
            Severity.HIGH,
            "the answer does not follow from the sums",
            "The server told something other than what it found.",
            "Take the answer that follows from the sums, which this report has.",
            A17,
        ),
        "analysis.epsilon": Rule(
            Severity.HIGH,
            "the ε of the answer is not that of its sums",
            "Devices may have given away more than they were told.",
            "Take the ε that follows from the noise and the sums, which this report has.",
            A18,
        ),
        "analysis.out-of-range": Rule(
            Severity.MEDIUM,
            "a sum is one that no devices can give",
            "A device did not keep to the range or the cap, or the sum was made up.",
            "Discard the answer.",
            A17,
        ),
        "analysis.given-up": Rule(
            Severity.LOW,
            "an analysis ended without an answer",
            "A server that ends an analysis at will has the earlier sums for nothing.",
            "Watch how often this happens. Expect more drop-outs (`--expected-dropout`).",
            A20,
        ),
    }
)

_ROUNDED: Final = frozenset({"plus_minus", "epsilon"})
"""Numbers of an answer that processors round differently."""

_TOLERANCE: Final = 1e-9

_SHOWN: Final = 200
"""Characters of a text that the report shows."""

TOLD: Final = ("question", "answer", "privacy")
"""Names of the facts of an analysis."""


class Answers(Check):
    """Plays the analysis again from its sums, and compares."""

    name = "answer from sums"
    rules = RULES

    def __init__(self, premises: Premises) -> None:
        super().__init__(premises)
        self._said = Told()
        self._answers: list[Answered] = []
        self._plan: Plan | None = None
        self._found: Outcome | None = None
        self._facts: AnalysisFacts | None = None
        self._problem = "there is no analysis in it"

    def on_record(self, record: Record, digest: bytes) -> tuple[()]:
        """Keep what was asked, and the answer."""
        del digest
        if isinstance(record, Asked):
            self._said.asked.append(record)
        elif isinstance(record, Answered):
            self._answers.append(record)
        return ()

    def on_sum(self, released: ReleasedSum) -> tuple[()]:
        """Keep a sum, and what was computed again of it."""
        self._said.sums.append(released.record)
        if released.replayed is not None and released.replayed.total is not None:
            self._said.totals.setdefault(released.record.slot, released.replayed.total)
        return ()

    def on_round(self, over: RoundOver) -> Iterator[Finding]:
        """Play the analysis again, and compare what it comes to."""
        asking, view = self._premises.source.asking, over.view
        if asking is None:
            return
        plan = plan_of(asking, len(cohort_of(view)))
        if isinstance(plan, str):
            self._problem = plan
            return
        session = next(iter(view.sessions.values()), None)
        found = played(plan, self._said, session)
        self._plan, self._found, self._problem = plan, found, found.problem
        seed = b"" if session is None else session.params.graph_seed
        self._facts = _facts(asking, plan, found, self._said, seed)
        for detail, place, severity in found.asked:
            yield RULES.found("analysis.asked", detail, [place], severity)
        for extra in found.extra:
            detail = f"a sum of slot {extra.slot} over {len(extra.contributors)} devices"
            yield RULES.found("analysis.unasked-sum", detail, [place_of(extra)])
        if found.out_of_range is not None:
            detail, place = found.out_of_range
            yield RULES.found("analysis.out-of-range", detail, [place])
        yield from self._compare(over, found)

    def _compare(self, over: RoundOver, found: Outcome) -> Iterator[Finding]:
        end = over.view.end
        reason = "" if end is None else end.aborted
        for one in self._answers[1:]:
            yield RULES.found("analysis.answer", "there is a second answer", [_place(one)])
        if self._answers:
            if end is not None and reason:
                detail = f"it has an answer, and ends because {reason!r:.80}"
                yield RULES.found("analysis.answer", detail, [place_of(end)])
            yield from self._compare_answer(self._answers[0], found)
            return
        if end is None:
            return  # the record is unfinished, which is a finding of its own
        if not reason:
            detail = "it ends with no answer, and for no reason"
            yield RULES.found("analysis.answer", detail, [place_of(end)])
        elif found.reason and reason != found.reason:
            detail = f"its reason is {reason!r:.80}, and {found.reason!r:.80} is due"
            yield RULES.found("analysis.answer", detail, [place_of(end)])
        else:
            detail = f"{len(self._said.sums)} sums were released, then: {_in_line(reason)}"
            # answers may have been late, but with all sums at hand there is no reason
            severity = None if found.answer is None else Severity.MEDIUM
            yield RULES.found("analysis.given-up", detail, [place_of(end)], severity)

    def _compare_answer(self, one: Answered, found: Outcome) -> Iterator[Finding]:
        said, place = _read(one.answer), _place(one)
        if isinstance(said, str):
            yield RULES.found("analysis.answer", said, [place])
            return
        if found.answer is None:
            if found.reason:
                detail = f"it has an answer, and must have none: {found.reason:.120}"
                yield RULES.found("analysis.answer", detail, [place])
            elif not found.out_of_range:
                detail = f"it has an answer, and {found.problem}"
                yield RULES.found("analysis.answer", detail, [place])
            return
        due = asdict(found.answer)
        if said.keys() != due.keys():
            apart = _in_line(", ".join(sorted(said.keys() ^ due.keys())))
            detail = f"it has {apart} too much or too few"
            yield RULES.found("analysis.answer", detail, [place])
            return
        for name, wanted in due.items():
            if _is_same(name, said[name], wanted, found.answer):
                continue
            rule = "analysis.epsilon" if name in ("epsilon", "delta") else "analysis.answer"
            detail = f"its {name} is {said[name]!r:.60}, and the sums come to {wanted!r:.60}"
            yield RULES.found(rule, detail, [place])

    def coverage(self, tally: Tally) -> Coverage:
        """Nothing, where the sums do not come to an answer."""
        if self._found is None or self._problem:
            return Coverage(0, self._problem or "nothing was asked")
        return Coverage(tally.whole, f"{len(self._said.sums)} sums")

    def facts(self) -> CheckFacts:
        """The question, and what it has come to."""
        asking = self._premises.source.asking
        told = list(_question(asking)) if asking is not None else []
        if self._found is not None and self._found.answer is not None:
            told += _shown(self._found.answer)
        facts: CheckFacts = {"noise": tuple(told)}
        if self._facts is not None:
            facts["analysis"] = self._facts
        return facts


def _place(one: Answered) -> Evidence:
    return Evidence(one.round, one.number, one.offset)


def _read(data: bytes) -> Mapping[str, object] | str:
    """An answer; why it is none, if it is none."""
    if len(data) > MAX_BYTES * 4:
        return f"it has {len(data):,} bytes"
    try:
        said = parse_json(data)
        if not isinstance(said, dict) or json_line(said) != data:
            return "it is not written as the program writes it"
    except (ValueError, RecursionError) as error:
        return f"it is no answer: {error}"
    return said


def _is_same(name: str, said: object, wanted: object, answer: Answer) -> bool:
    """Whether two numbers of an answer are the same, but for what processors round differently."""
    interpolated = answer.statistic == "quantile" and answer.epsilon is not None
    is_rounded = name in _ROUNDED or (name == "value" and interpolated)
    if is_rounded and type(said) is float and type(wanted) is float:
        return math.isclose(said, wanted, rel_tol=_TOLERANCE, abs_tol=0)
    return _typed(said) == _typed(wanted)


def _typed(value: object) -> object:
    """A value with its types, so that 1 is not 1.0, nor true."""
    if isinstance(value, list):
        return [_typed(one) for one in value]
    return type(value).__name__, value


def _in_line(text: str) -> str:
    """A text of the server's, which must not pass for lines of the report."""
    shown = text if text.isprintable() else repr(text)[1:-1]
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


def _question(asking: Asking) -> Iterable[tuple[str, str]]:
    question, about = asking.question, asking.about
    of = f" of {_in_line(about.column)}" if about.column else ""
    where = f", where {_in_line(about.where)}" if about.where else ""
    level = f" {question.level}" if question.statistic == "quantile" else ""
    yield (
        "question",
        (
            f"{question.statistic}{level}{of}{where}, of {question.of}, each in "
            f"[{question.low:.15g}, {question.high:.15g}], cap {question.cap}, noise "
            f"{float(question.noise):g}, smallest cohort {asking.guard.min_cohort}"
        ),
    )


def _shown(answer: Answer) -> Iterable[tuple[str, str]]:
    value = answer.value
    shown = ", ".join(f"{one:.6g}" for one in value) if isinstance(value, list) else value
    yield "answer", f"{shown} ± {answer.plus_minus:.3g}, of {answer.count:.6g} values"
    if answer.epsilon is not None:
        yield "privacy", f"ε = {rounded_up(answer.epsilon)} at δ = {answer.delta:g}"
    else:
        yield "privacy", "sums are exact: this is not differential privacy"


def _facts(asking: Asking, plan: Plan, found: Outcome, said: Told, seed: bytes) -> AnalysisFacts:
    """What is compared with other analyses."""
    question, about = asking.question, asking.about
    needed = [one for one in said.sums if one.slot in found.names]
    rho = None
    if plan.is_noisy:
        rho = plan.rho(HOLDERS, *(plan.sums if any(one.slot == 1 for one in needed) else ()))
    return AnalysisFacts(
        statistic=question.statistic,
        user=about.user,
        column=about.column,
        where=about.where,
        seed=seed.hex(),
        sums=tuple(
            SumFacts(
                found.names[one.slot],
                tuple(depends_on(name, question) for name in found.names[one.slot]),
                tuple(one.contributors.tolist()),
            )
            for one in needed
        ),
        holders=found.holders,
        rho=rho,
        epsilon=None if found.answer is None else found.answer.epsilon,
    )
