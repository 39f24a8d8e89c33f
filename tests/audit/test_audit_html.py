"""The HTML report: it says what there is to say, loads nothing, runs nothing, and can be read."""

import dataclasses
import html
import re
from contextlib import contextmanager
from dataclasses import replace

import example_reports
import pytest
from browsing import CONTRASTS, OVERFLOW, Visit, started_browser
from html_pages import faults, parsed
from hypothesis import given
from hypothesis import strategies as st

import deltafl
from deltafl.sim import writing
from deltafl.sim.inspect.audit.catalogue import RULES
from deltafl.sim.inspect.audit.facts import CheckResult, Outcome
from deltafl.sim.inspect.audit.findings import Finding, Severity
from deltafl.sim.inspect.audit.html import render
from deltafl.sim.inspect.audit.html.verdict import verdict
from deltafl.sim.inspect.audit.report import grouped, harm_of
from deltafl.sim.inspect.audit.rules import Harm

EXAMPLES = sorted(example_reports.EXAMPLES)


@pytest.fixture(scope="module")
def pages():
    return {name: render(make()) for name, make in example_reports.EXAMPLES.items()}


# what the page is made of


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_page_loads_nothing_runs_nothing_and_is_labelled(pages, name):
    assert faults(pages[name]) == []


@pytest.mark.parametrize(
    ("addition", "fault"),
    [
        ("<script>1</script>", "element script"),
        ('<p onclick="f()">x</p>', "attribute onclick"),
        ('<a href="https://example.org">x</a>', "link to https://example.org"),
        ('<a href="#nowhere">x</a>', "no element nowhere"),
        ("<style>@import 'x'; p { background: url(x) }</style>", "@import"),
        ("<table><tr><th>x</th></tr></table>", "header without scope"),
        ("<svg></svg>", "figure without text"),
        ("<h4>x</h4>", "headings [1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 4]"),
        ('<p id="checks">x</p>', "two elements of one id"),
    ],
)
def test_control_a_page_with_a_fault_is_noticed(pages, addition, fault):
    page = pages["clean"].replace("</main>", addition + "</main>")
    assert fault in faults(page)


def test_the_page_forbids_everything_that_it_does_not_need(pages):
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', pages["clean"])
    directives = dict(part.split(None, 1) for part in policy.split("; "))
    assert directives == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert pages["clean"].index("Content-Security-Policy") < pages["clean"].index("<style")


def test_equal_reports_make_equal_pages(pages):
    assert render(example_reports.rich()) == pages["rich"]
    assert pages["rich"] != pages["clean"]


# hostile content


def _texts(value):
    """All texts of a report but ids of rules, and checks that its other texts tell of."""
    if isinstance(value, (Outcome, Severity)):
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, Finding):
        yield value.detail
    elif isinstance(value, CheckResult) and value.outcome not in (Outcome.PASSED, Outcome.FAILED):
        return
    elif dataclasses.is_dataclass(value):
        for one in dataclasses.fields(value):
            yield from _texts(getattr(value, one.name))


def _shown(page):
    return " ".join("".join(parsed(page).itertext()).split())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_text_of_a_report_is_on_the_page_as_text(pages, name):
    shown = _shown(pages[name])
    texts = list(_texts(example_reports.EXAMPLES[name]()))
    assert [one for one in texts if " ".join(writing.visible(one).split()) not in shown] == []


def test_control_a_text_that_is_missing_is_noticed(pages):
    assert "no such text" not in _shown(pages["rich"])


def test_markup_in_a_report_is_escaped_everywhere(pages):
    page = pages["hostile"]
    assert page.count("&lt;script&gt;") > 100
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("{{ 7 * 7 }}") > 100
    assert page.count("</style>") == 1
    assert all(one.isprintable() or one == "\n" for one in page)
    page.encode("utf-8")


@given(st.text(st.characters()))
def test_what_cannot_be_seen_is_spelt_out(text):
    shown = writing.visible(text)
    assert all(one.isprintable() or one == "\n" for one in shown)
    shown.encode("utf-8")
    if text.isprintable():
        assert shown == text


# verdict


@pytest.mark.parametrize("severity", [one for one in Severity if one > Severity.INFO])
def test_the_worst_finding_gives_the_verdict(severity):
    report = example_reports.clean()
    lesser = [example_reports.finding(one) for one in Severity if one <= severity]
    assert verdict(replace(report, findings=tuple(lesser))).level == severity.name.lower()


def test_a_report_is_clean_if_all_was_checked_and_nothing_but_facts_found(pages):
    report = example_reports.clean()
    info = (example_reports.finding(Severity.INFO),)
    assert verdict(report).level == "clean"
    assert verdict(replace(report, findings=info)).level == "clean"
    assert verdict(report).sentence in _shown(pages["clean"])


@pytest.mark.parametrize(
    "changes",
    [
        {"checks": ()},
        {"checks": (CheckResult("x", Outcome.PARTIAL, "y"),)},
        {"checks": (CheckResult("x", Outcome.SKIPPED, "y"),)},
        {"sums_replayed": 419},
        {"not_checked": ("the weather",)},
    ],
)
def test_what_was_not_checked_is_not_clean(changes):
    assert verdict(replace(example_reports.clean(), **changes)).level == "open"


def test_a_record_of_sums_says_so_first(pages):
    (sentence,) = re.findall('class="sentence">([^<]*)<', pages["unchecked"])
    assert sentence.startswith("No message was played again: the record has sums only. Nothing")
    assert "No message" not in pages["rich"]


# findings


def test_findings_come_worst_first_with_all_that_their_rule_says(pages):
    shown = _shown(pages["rich"])
    badges = re.findall(r'class="badge (\w+)"', pages["rich"])
    order = [one.name.lower() for one in sorted(Severity, reverse=True)]
    assert badges == sorted(badges, key=order.index)
    assert set(badges) == set(order)
    for finding in example_reports.rich().findings:
        assert finding.rule in shown
        rule = RULES[finding.rule]
        assert all(one in shown for one in (rule.title, rule.consequence, rule.remedy, rule.attack))
        assert all(str(evidence) in shown for evidence in finding.evidence)


def test_findings_are_told_by_harm(pages):
    harms = re.findall(r'class="harm">([^<]*)<', pages["rich"])
    assert [html.unescape(one) for one in harms] == [str(one) for one in Harm]
    broken, false = (pages["rich"].index(one) for one in ("sums.differ", "record.head-differs"))
    assert broken < false  # of one severity


def test_what_was_checked_in_part_or_not_is_said_once(pages):
    report = example_reports.rich()
    assert len(report.not_checked) == 2
    for one in report.checks:
        assert _shown(pages["rich"]).count(one.name) == 1


# several runs


def test_several_runs_are_on_one_page_under_one_verdict():
    runs = [replace(example_reports.rich(), source=f"runs/{name}") for name in ("a", "b")]
    page = render(example_reports.clean(), *runs)
    assert faults(page) == []
    shown = _shown(page)
    both = verdict(example_reports.clean(), *runs)
    assert both.level == "critical"
    assert both.sentence.startswith("2 critical findings")
    assert both.coverage.startswith("3 runs. 17 of 21 checks made in full.")
    assert f"{both.sentence} {both.coverage}" in shown
    for number, one in enumerate(runs, start=1):
        said = verdict(one)
        assert f"{one.source} {said.sentence}" in shown  # in the list
        assert f"{one.source} {said.sentence} {said.coverage}" in shown  # and over its report
        assert f'href="#run{number}-checks"' in page
    assert shown.count("What this audit cannot show") == 1


@pytest.mark.slow
def test_thousands_of_searches_make_a_short_page_that_says_so():
    page = render(example_reports.crowded())
    assert "2,700 more rows left out here" in _shown(page)
    assert len(page) < 1_000_000


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(Severity), st.integers(0, 3)), max_size=600))
def test_findings_are_together_by_harm_and_rule_and_none_is_lost(drawn):
    rules = sorted(RULES)
    findings = [
        example_reports.finding(severity, str(number), of=rules[which % len(rules)])
        for number, (severity, which) in enumerate(drawn)
    ]
    groups = grouped(example_reports.ordered(findings))
    assert list(groups) == [harm for harm in Harm if harm in groups]
    every = []
    for harm, by_rule in groups.items():
        for rule, members in by_rule.items():
            assert {(harm_of(one), one.rule) for one in members} == {(harm, rule)}
            assert len({one.severity for one in members}) == 1
            assert members == sorted(members, key=lambda one: int(one.detail))
            every += members
    assert sorted(every, key=lambda one: int(one.detail)) == findings


# figures


@given(st.floats())
def test_every_number_can_be_written(value):
    assert writing.quantity(value).isprintable()


def test_the_page_says_which_version_wrote_it(pages):
    assert all(f"Written by deltafl {deltafl.__version__}." in page for page in pages.values())


# in a browser


VISIBLE = """() => [...document.querySelectorAll('.verdict .sentence, h1, h2')]
  .map(one => one.checkVisibility() && one.getBoundingClientRect().width > 0)"""

UNFOLD = "() => document.querySelectorAll('details').forEach(one => { one.open = true; })"

HIDDEN = """() => [...document.querySelectorAll('td, .seen p, figcaption')]
  .filter(one => !one.getClientRects().length || !one.checkVisibility()).length"""


@pytest.fixture(scope="module")
def browser():
    with started_browser() as started:
        yield started


@pytest.fixture
def visit(browser, tmp_path):
    @contextmanager
    def open_page(text):
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        with browser.new_context(viewport={"width": 1200, "height": 900}) as context:
            visit = Visit(context.new_page())
            visit.page.goto(file.as_uri())
            assert visit.requests.pop(0).url == file.as_uri()
            yield visit

    return open_page


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_browser_opens_the_page_and_nothing_else_and_needs_no_sideways_scrolling(
    pages, visit, name
):
    with visit(pages[name]) as seen:
        seen.page.evaluate(UNFOLD)
        for width in (1200, 400):
            seen.page.set_viewport_size({"width": width, "height": 900})
            assert seen.page.evaluate(VISIBLE) == [True] * (1 + (8 if name == "empty" else 11))
            assert seen.page.evaluate(OVERFLOW) == 0
        assert seen.page.title() != "owned"
        assert (seen.requests, seen.complaints) == ([], [])


@pytest.mark.slow
def test_every_text_has_contrast_in_light_and_dark(pages, visit):
    passed = (CheckResult("a check", Outcome.PASSED, "of something"),)
    clean = render(replace(example_reports.empty(), checks=passed))
    for page in (pages["rich"], pages["empty"], clean):  # these have banners of other colours
        with visit(page) as seen:
            seen.page.evaluate(UNFOLD)
            for scheme, white in (("light", True), ("dark", False)):
                seen.page.emulate_media(color_scheme=scheme)
                background = "getComputedStyle(document.body).backgroundColor"
                assert (seen.page.evaluate(background) == "rgb(255, 255, 255)") == white
                texts, poor = seen.page.evaluate(CONTRASTS)
                assert texts > 50
                assert poor == []


CUT = """() => [...document.querySelectorAll('.scroll')]
  .filter(one => one.scrollWidth > one.clientWidth).length"""


@pytest.mark.slow
def test_on_a_wide_screen_and_on_paper_no_table_is_cut(pages, visit):
    with visit(pages["rich"]) as seen:
        seen.page.evaluate(UNFOLD)
        assert seen.page.evaluate(CUT) == 0
        seen.page.set_viewport_size({"width": 400, "height": 900})
        assert seen.page.evaluate(CUT) > 0  # there it scrolls
        seen.page.set_viewport_size({"width": 680, "height": 900})  # of A4, within the margins
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate(CUT) == 0


def test_findings_fold_by_keyboard_and_only_lesser_ones_are_folded(pages, visit):
    with visit(pages["rich"]) as seen:
        findings = seen.page.locator("details.finding")
        opened = [one.get_attribute("open") is not None for one in findings.all()]
        assert opened == [True, True, True, True, True, False, False]
        text = findings.last.locator(".seen")
        assert not text.is_visible()
        findings.last.locator("summary").press("Enter")
        assert text.is_visible()


def test_on_paper_nothing_is_folded_away(pages, visit):
    with visit(pages["rich"]) as seen:
        assert seen.page.evaluate(HIDDEN) > 0
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate(HIDDEN) == 0
        paper = seen.page.pdf(prefer_css_page_size=True, print_background=True)
        assert paper.startswith(b"%PDF")
        assert 3 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 20
        assert (seen.requests, seen.complaints) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "sign"),
    [
        ('<img src="http://127.0.0.1:9/x.png">', "http://127.0.0.1:9/x.png"),
        ("<script>throw new Error('a mistake')</script>", "a mistake"),
        ("<script>console.log('a remark')</script>", "a remark"),
    ],
)
def test_control_a_page_that_loads_or_fails_is_caught(visit, page, sign):
    with visit(f"<!DOCTYPE html><title>x</title>{page}") as seen:
        noticed = [request.url for request in seen.requests] + seen.complaints
        assert any(sign in one for one in noticed)


@pytest.mark.slow
def test_a_script_or_image_that_got_into_the_page_is_stopped_by_its_policy(pages, visit):
    page = pages["clean"].replace("</main>", example_reports.SCRIPT + "</main>")
    with visit(page) as seen:
        assert seen.page.title() != "owned"
        assert sum("Content Security Policy" in one for one in seen.complaints) >= 2
        assert [request.failure for request in seen.requests] == ["csp"]


@pytest.mark.slow
def test_control_poor_contrast_and_overflow_are_caught(pages, visit):
    addition = '<p style="color: #999">faint</p><div style="width: 2000px">wide</div></main>'
    with visit(pages["clean"].replace("</main>", addition)) as seen:
        assert seen.page.evaluate(OVERFLOW) > 0
        assert [text for _, text in seen.page.evaluate(CONTRASTS)[1]] == ["faint"]
