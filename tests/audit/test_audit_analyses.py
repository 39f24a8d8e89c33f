"""Honest analyses are found clean, whatever is asked; and several are added up."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from analysed import (
    ANSWER,
    GUARD,
    NOISY,
    SMALL,
    TABLES,
    entries,
    question,
    recorded,
    rewritten,
    rules_of,
)

from deltafl.protocol.noise import Noise, discrete_gaussian
from deltafl.secagg import Adversary, ThreatModel
from deltafl.secagg.randomness import SeededRandomness
from deltafl.secagg.stages import Stage, Step, Vanish
from deltafl.sim.analyse.analysis import analyse_tables
from deltafl.sim.analyse.asking import About, Asking, json_line, read_asking
from deltafl.sim.analyse.plan import Guard
from deltafl.sim.analyse.question import STATISTICS
from deltafl.sim.cli import main
from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.analyses.catalogue import ANALYSIS_CHECKS
from deltafl.sim.inspect.audit.analyses.noise import AnalysisNoise, closer
from deltafl.sim.inspect.audit.analyses.numbers import depends_on
from deltafl.sim.inspect.audit.analyses.together import together
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.facts import Outcome
from deltafl.sim.inspect.audit.options import Options
from deltafl.sim.run.accounting import DELTA, epsilon_of

FEW = ("count", "mean", "variance")

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("noise", [{}, NOISY], ids=["exact", "noisy"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_an_honest_analysis_is_clean(statistic, noise, tmp_path):
    asked = question(statistic, **noise)
    # ten more than min_cohort: where a noisy count is below it, an analysis ends, which is found
    tables = {i: np.arange(i % 4 + 1) * 3.0 for i in range(20)}
    report = audit(recorded(tmp_path / "a", asked, tables=tables, guard=Guard()))
    assert [finding for finding in report.findings if finding.severity > 0] == []
    assert [made.name for made in report.checks] == [check.name for check in ANALYSIS_CHECKS]
    open_ = {made.name for made in report.checks if made.outcome is not Outcome.PASSED}
    # of two to four noisy sums, nobody can tell whether they have noise; of ten, they can
    assert open_ == ({AnalysisNoise.name} if noise and statistic in FEW else set())
    assert report.sums_replayed == report.sums_released == len(report.analysis.sums) >= 2
    facts = dict(report.facts)
    assert facts["question"].startswith(statistic)
    assert ("ε = " in facts["privacy"]) == bool(noise)


@pytest.mark.parametrize(
    ("statistic", "vanishing"),
    [
        ("mean", {0: Vanish(Step(Stage.ADVERTISE))}),
        ("mean", {3: Vanish(Step(Stage.MASK, 0))}),
        ("count", {3: Vanish(Step(Stage.UNMASK, 0)), 4: Vanish(Step(Stage.MASK, 1), late=True)}),
        ("quantile", {3: Vanish(Step(Stage.UNMASK, 1))}),
        ("quantile", {3: Vanish(Step(Stage.MASK, 6))}),
        ("quantile", {3: Vanish(Step(Stage.UNMASK, 1), late=True)}),
        ("quantile", {7: Vanish(Step(Stage.MASK, 6), late=True)}),
        ("quantile", {7: Vanish(Step(Stage.RECEIPT))}),
    ],
)
def test_devices_that_vanish_are_no_finding(statistic, vanishing, tmp_path):
    path = recorded(tmp_path / "a", question(statistic), vanishing=vanishing)
    report = audit(path)
    # what a design has is low: a vector that came late, sums over one device less
    assert {one.rule for one in report.findings if one.severity > 1} == set()
    assert report.sums_replayed == report.sums_released
    assert report.analysis is not None


def test_sums_over_a_device_less_are_told(tmp_path):
    gone = {3: Vanish(Step(Stage.MASK, 1))}
    assert rules_of(recorded(tmp_path / "a", vanishing=gone)) == {"analysis.fewer-devices"}


def test_a_signed_analysis_is_clean(tmp_path):
    guard = Guard(8, ThreatModel(0.1, 0.0, Adversary.ACTIVE))
    assert rules_of(recorded(tmp_path / "a", guard=guard)) == set()


def test_too_few_devices_with_rows_are_an_end_and_no_fault(tmp_path):
    few = {i: rows if i < 4 else np.zeros(0) for i, rows in TABLES.items()}
    for name, noise in (("exact", {}), ("noisy", {"cap": 1, "noise": Fraction(1, 100)})):
        report = audit(recorded(tmp_path / name, question(**noise), tables=few))
        assert [one.rule for one in report.findings] == ["analysis.given-up", SMALL]
        assert len(report.analysis.sums) == 1


def test_a_session_that_lost_its_devices_is_told(tmp_path):
    gone = {i: Vanish(Step(Stage.MASK, 1), late=i > 2) for i in range(5)}
    report = audit(recorded(tmp_path / "a", vanishing=gone))
    assert [(one.rule, one.severity) for one in report.findings] == [
        ("analysis.given-up", 1),
        (SMALL, 1),
    ]


@pytest.mark.parametrize("sigma", [Fraction(1, 4), Fraction(1), Fraction(4)])
def test_true_noise_raises_no_alarm(sigma):
    """What is small with some probability is small at most as often; more noise is no alarm."""
    noise, drawn = Noise(sigma**2, 8), SeededRandomness(bytes(32))
    steps = 1 << noise.resolution_bits
    variance = noise.share_variance * noise.num_devices
    values = []
    for more in (1, 1, 1, 2):
        for _ in range(50):
            numbers = [discrete_gaussian(variance * more, drawn) % steps for _ in range(11)]
            far = [(min(rest, steps - rest), steps, float(variance)) for rest in numbers]
            values.append(closer(far))
    assert sum(value < 0.1 for value in values) <= 0.1 * len(values)
    assert closer([(0, steps, float(variance))] * 11) < min(values)


# --- questions on record --------------------------------------------------------------------------


def asking(**more):
    return Asking(question(**more), GUARD, About("who", "age", "ward=burns"), bytes(32))


@pytest.mark.parametrize("more", [{}, NOISY, {"level": Fraction(1, 3)}, {"statistic": "quantile"}])
def test_a_question_is_read_as_it_was_written(more):
    assert read_asking(asking(**more).to_bytes()) == asking(**more)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cap", 3.0),
        ("cap", True),
        ("cap", -1),
        ("low", 9.0),
        ("low", 1e300),
        ("noise", "1e99999999"),
        ("level", "2/4"),
        ("salt", "00"),
        ("adversary", "kind"),
        ("graph", "star"),
        ("colluding", 7.0),
        ("column", None),
        ("another", 1),
        ("where", "x" * 70_000),
    ],
)
def test_a_question_that_nobody_can_ask_is_refused(name, value):
    document = {**json.loads(asking().to_bytes()), name: value}
    with pytest.raises(ValueError, match=r"."):
        read_asking(json_line(document))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"[" * 5000, b"\xff", b" " + asking().to_bytes()]
)
def test_what_is_no_question_is_refused(data):
    with pytest.raises(ValueError, match=r"."):
        read_asking(data)


def test_a_record_is_never_replaced(tmp_path):
    recorded(tmp_path / "a")
    before = (tmp_path / "a" / "analysis.bin").read_bytes()
    with pytest.raises(UserError, match="never replaced"):
        analyse_tables(TABLES, question(), GUARD, out=tmp_path / "a")
    assert (tmp_path / "a" / "analysis.bin").read_bytes() == before


# --- several ------------------------------------------------------------------------------------


def joint(*paths, fewest=3):
    return together([audit(path) for path in paths], fewest)


def test_epsilon_adds_up_over_analyses(tmp_path):
    paths = [recorded(tmp_path / str(i), question("count", **NOISY)) for i in range(2)]
    paths.append(recorded(tmp_path / "exact", question("variance")))
    reports = [audit(path) for path in paths]
    found = together(reports, 3)
    rhos = [one.analysis.rho for one in reports[:2]]
    assert found.epsilon == epsilon_of(sum(rhos), DELTA)
    assert found.epsilon > reports[0].analysis.epsilon == epsilon_of(rhos[0], DELTA)
    assert (found.analyses, found.exact, found.sums) == (3, 1, 6)
    assert [one.rule for one in found.findings] == ["analyses.noise-again"]


def test_one_device_less_in_another_analysis_is_found(tmp_path):
    one = recorded(tmp_path / "1")
    other = recorded(tmp_path / "2", vanishing={2: Vanish(Step(Stage.ADVERTISE))})
    (found,) = joint(one, other).findings
    assert found.rule == "analyses.same-sum"
    assert "devices 2" in found.detail
    assert joint(one, other, fewest=1).findings == ()
    assert joint(one, recorded(tmp_path / "3")).findings == ()


@pytest.mark.parametrize(
    "asked",
    [question(bins=11), question(low=-0.0), question("variance", high=9)],
    ids=["bins that do not matter", "minus zero", "another range"],
)
def test_rows_of_a_device_are_found_whatever_else_is_asked(asked, tmp_path):
    """Holders of all devices, and then counts of rows of all and of all but one."""
    late = {2: Vanish(Step(Stage.MASK, 1))}
    one, other = recorded(tmp_path / "1"), recorded(tmp_path / "2", asked, vanishing=late)
    (found,) = joint(one, other).findings
    assert found.rule == "analyses.same-sum"
    assert "count with and without devices 2" in found.detail


def test_one_number_has_one_key():
    zero, minus = question("histogram"), question("histogram", low=-0.0)
    assert depends_on("bins", zero) == depends_on("bins", minus)
    assert depends_on("bins", zero) != depends_on("bins", question("histogram", bins=11))
    assert depends_on("sum", question()) == depends_on("sum", question(bins=11))
    assert depends_on("outside", zero) != depends_on("outside", question(high=9))
    assert depends_on("count", question("count")) != depends_on("count", question("count", high=9))
    assert depends_on("count", question()) != depends_on("count", question(cap=2))


@pytest.mark.parametrize("spelled", ["ward=1.0", "ward=true", "ward=+1"])
def test_one_selection_is_found_in_every_spelling(spelled, tmp_path):
    asked = question("count", **NOISY)
    one = recorded(tmp_path / "1", asked, about=About("who", "age", "ward=1"))
    other = recorded(tmp_path / "2", asked, about=About("who", "age", spelled))
    assert [found.rule for found in joint(one, other).findings] == ["analyses.noise-again"]
    third = recorded(tmp_path / "3", asked, about=About("who", "age", "ward=2"))
    assert joint(one, third).findings == ()


def test_a_group_without_one_device_is_found(tmp_path):
    less = {i: rows if i != 2 else np.zeros(0) for i, rows in TABLES.items()}
    every = recorded(tmp_path / "all", about=About("who", "age", ""))
    without = recorded(tmp_path / "less", tables=less, about=About("who", "age", "who!=2"))
    assert [one.rule for one in joint(every, without).findings] == ["analyses.near-groups"]
    other = recorded(tmp_path / "other", tables=less, about=About("who", "weight", "who!=2"))
    assert joint(every, other).findings == ()


def test_a_group_without_one_device_is_found_if_too_few_are_in_it(tmp_path):
    less = {i: rows if i != 2 else np.zeros(0) for i, rows in TABLES.items()}
    one = recorded(tmp_path / "all")
    guard = Guard(len(TABLES), ThreatModel(0.0, 0.0))
    other = recorded(tmp_path / "b", tables=less, guard=guard, about=About("who", "age", "who!=2"))
    assert audit(other).analysis.epsilon is None
    assert [found.rule for found in joint(one, other).findings] == ["analyses.near-groups"]


def test_a_copy_under_another_id_is_found(tmp_path):
    one = recorded(tmp_path / "1")
    records = entries(one)
    records[0][2] = bytes(16)
    other = rewritten(one, records, tmp_path / "2")
    assert [one.rule for one in joint(one, other).findings] == ["analyses.same-session"]


def test_a_record_given_twice_and_a_run_are_refused(tmp_path):
    report = audit(recorded(tmp_path / "a"))
    with pytest.raises(UserError, match="are one record"):
        together([report, report], 3)
    with pytest.raises(UserError, match="is of a run"):
        together([report, replace(report, is_analysis=False)], 3)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_reports_one_and_several(tmp_path, capsys):
    paths = [str(recorded(tmp_path / str(i), question("count", **NOISY))) for i in range(2)]
    assert main(["audit", paths[0], "--html", str(tmp_path / "r.html")]) == 0
    told = capsys.readouterr().out
    assert "question: count of age" in told
    assert "answer from sums" in told
    assert "how large the noise is" in told
    assert "answer from sums" in (tmp_path / "r.html").read_text()
    assert main(["audit", paths[0] + "/analysis.bin", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["analysis"]["statistic"] == "count"
    assert main(["audit", *paths]) == 1
    assert "2 analyses together: 4 sums" in capsys.readouterr().out
    assert main(["audit", *paths, "--json", "--fail-on", "high"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["analyses"]) == 2
    assert document["together"]["findings"][0]["rule"] == "analyses.noise-again"


def test_names_and_reasons_do_not_pass_for_lines_of_the_report(tmp_path, capsys):
    lie = "age\nprivacy: ε = 0.01 at δ = 1e-05\n" + "x" * 300
    path = recorded(tmp_path / "a", about=About("who", lie, f"{lie}=1"))
    records = [one for one in entries(path) if one[0] != ANSWER]
    records[-2][3] = lie
    assert main(["audit", str(rewritten(path, records, tmp_path / "b"))]) == 1
    told = capsys.readouterr().out
    assert not any(line.startswith("privacy: ε") for line in told.splitlines())
    assert "of age\\nprivacy" in told
    assert "then: age\\nprivacy" in told
    assert "x" * 200 not in told


def test_a_page_does_not_replace_the_record(tmp_path, capsys):
    path = recorded(tmp_path / "a")
    assert main(["audit", str(path), "--html", str(path / "analysis.bin")]) == 2
    assert "is what is read" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [("--html", "r.html"), ("--head", "00" * 32)])
def test_what_is_of_one_record_is_refused_for_several(flags, tmp_path, capsys):
    path = str(recorded(tmp_path / "a"))
    assert main(["audit", path, path, *flags]) == 2
    assert "give one" in capsys.readouterr().err


def test_an_analysis_has_no_truth_file(tmp_path):
    path = recorded(tmp_path / "a")
    with pytest.raises(UserError, match="no truth file"):
        audit(path, Options(truth=path / "analysis.bin"))


@pytest.mark.parametrize(
    "data", [b"", b"deltafl analysis 2\n", b"deltafl analysis 1\n", b"deltafl analysis 1\n\x00"]
)
def test_what_is_no_record_is_refused(data, tmp_path, capsys):
    (tmp_path / "analysis.bin").write_bytes(data)
    assert main(["audit", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("deltafl: ")


def test_the_record_can_be_a_link_to_nowhere(tmp_path):
    (tmp_path / "analysis.bin").symlink_to(Path("nowhere"))
    with pytest.raises(UserError, match="exists"):
        analyse_tables(TABLES, question(), GUARD, out=tmp_path)
