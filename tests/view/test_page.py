"""Pages of runs say what there is to say, load nothing, and can be read; also in a browser."""

import re
from contextlib import contextmanager

import pytest
from browsing import CONTRASTS, OVERFLOW, Visit, started_browser
from html_pages import faults, parsed
from made_runs import SCRIPT, make_run, private
from records import change, note

from deltafl.sim.inspect.audit.html.verdict import Verdict
from deltafl.sim.record.snapshot import Reader
from deltafl.sim.run.table import describe
from deltafl.sim.view import page
from deltafl.sim.view.sections import AuditState, Page, compared, facts, lying, paired

HOSTILE = (SCRIPT, "</style><b>", "{{ 7 * 7 }}", "'\"&", "\u202egnp.\x1b[2J", "x" * 300, "ä", "8")


def dropping(number):
    return private(number, dropped_by_stage={"mask": number, SCRIPT: 1})


def rich(folder):
    """A run with something in every section."""
    make_run(
        folder / "run",
        algorithm="private-delta-fl",
        baselines=("fedavg", "delta-fl", "q-ffl"),
        make_event=private,
        finished=True,
        federation={"cohort_size": 10},
    )
    return [Reader(folder / "run").read()]


def hostile(folder):
    """A run whose names are markup, with damaged files."""
    make_run(folder / SCRIPT.replace("/", "∕"), names=HOSTILE, make_event=dropping)
    path = folder / SCRIPT.replace("/", "∕")
    note(path, "versions", {"deltafl": "<script>1</script>"})
    hostile = "UPDATE events SET event = '<script>alert(2)</script>' WHERE round = 2"
    change(path / "arms" / "fedavg-seed-2", hostile)
    return [Reader(path).read()]


def early(folder):
    make_run(folder / "run", played=[0, None, None, None])
    return [Reader(folder / "run").read()]


def absent(folder):
    return [Reader(folder / "run").read()]


LIES = {"share": "0.1", "kind": "backdoor", "loss": "top", "to_class": 7}


def with_liars(folder):
    """A run with attackers, in a folder whose name is markup."""
    path = folder / SCRIPT.replace("/", "∕")
    make_run(path, attackers=LIES, finished=True, seeds=1)
    return [Reader(path).read()]


MADE = {"rich": rich, "hostile": hostile, "early": early, "absent": absent, "lying": with_liars}


@pytest.fixture(scope="module")
def all_shown(tmp_path_factory):
    reached = Verdict("clean", "Nothing was found.", "26 of 26 checks made in full.", ())
    found = {}
    for name, make in MADE.items():
        runs = make(tmp_path_factory.mktemp(name))
        audit = AuditState("done", 1.0, reached) if name == "rich" else None
        found[name] = Page(runs, asked=audit, now=runs[0].written + 1)
    return found


@pytest.fixture(scope="module")
def pages(all_shown):
    return {name: page.page_of_results(one) for name, one in all_shown.items()}


def words(text):
    return " ".join("".join(parsed(text).itertext()).split())


@pytest.mark.slow
def test_a_page_loads_nothing_runs_nothing_and_is_labelled(pages):
    assert {key: faults(text) for key, text in pages.items()} == {key: [] for key in pages}


def test_control_a_page_with_a_fault_is_noticed(pages):
    text = pages["rich"]
    assert faults(text.replace("</main>", "<script>1</script></main>")) == ["element script"]
    assert faults(text.replace("</main>", "<svg></svg></main>")) == ["figure without text"]


def test_the_policy_allows_the_pages_own_style_and_script_alone(all_shown, pages):
    (policy,) = re.findall('Security-Policy" content="([^"]*)"', pages["rich"])
    assert "default-src &#39;none&#39;" in policy
    assert "script-src" not in policy
    assert "connect-src" not in policy
    assert "unsafe" not in policy
    (live,) = re.findall('Security-Policy" content="([^"]*)"', page.live_page(all_shown["rich"]))
    rules = dict(rule.split(" ", 1) for rule in live.replace("&#39;", "'").split("; "))
    assert rules["script-src"].startswith("'sha256-")
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in live


def test_names_are_text_wherever_they_are(all_shown, pages):
    for text in (*pages.values(), *page.fragments(all_shown["hostile"]).values()):
        assert "<script>" not in text
        assert "<img" not in text
        assert "\u202e" not in text
        assert "\x1b" not in text
    text = pages["hostile"]
    assert text.count("&lt;script&gt;") > 5
    assert "7 * 7" not in text  # a device's name, and no page has any
    assert text.count("</style>") == 1


def test_the_page_says_how_far_the_run_is_and_what_cannot_be_read(pages):
    assert "32 of 32 rounds of 8 runs" in words(pages["rich"])
    early = words(pages["early"])
    assert "0 of 16 rounds of 4 runs. Now: delta-fl, θ = 0.5, seed 1, after round 0 of 4" in early
    assert "No round has been played yet" in early
    assert "There is no run here yet" in words(pages["absent"])
    hostile = words(pages["hostile"])
    assert "Not everything can be read" in hostile
    assert "fedavg-seed-2/record.sqlite is damaged" in hostile


def section_of(text, name):
    """A section's words, and its names and values."""
    section = re.search(rf'<section id="{name}".*?</section>', text, re.DOTALL)[0]
    return words(section), dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", section))


def test_devices_that_lie_are_shown_as_what_only_the_simulator_knows(pages):
    text, facts = section_of(pages["lying"], "attackers")
    assert "Only the simulator knows what this section says: no server does" in text
    assert "All errors on this page are of honest devices" in text
    assert facts.pop("Run").endswith("alert(1)&gt;")
    assert facts == {
        "Share that is asked for": "0.1",
        "Devices that lie": "3 of 30 training devices",
        "Kind": "backdoor",
        "Loss that they claim": "top",
        "Samples that they claim": "their own",
    }
    for row in ("delta-fl, θ = 0.510 %10 %75 %", "fedavg20 %20 %75 %"):
        assert row in text


def test_the_share_is_drawn_by_round_and_method(all_shown):
    share, backdoor = lying(all_shown["lying"])["charts"]
    assert share.head == ("round", "delta-fl, θ = 0.5", "fedavg")
    assert share.rows() == [(at, (str(at), "10 %", "20 %")) for at in (1, 2, 3, 4)]
    assert backdoor.rows() == [(4, ("4", "75 %", "75 %"))]


@pytest.mark.parametrize("name", ["rich", "hostile", "early", "absent"])
def test_where_nobody_lies_by_the_settings_the_page_says_no_more(pages, all_shown, name):
    assert not any(lying(all_shown[name]).values())
    text, facts = section_of(pages[name], "attackers")
    assert text.startswith("Devices that lie By the settings, no device lies.")
    assert facts == {}


def test_attackers_of_a_run_that_has_not_begun_are_those_of_its_settings(tmp_path):
    make_run(
        tmp_path / "run",
        attackers={**LIES, "kind": "flipped-labels", "weight": "largest"},
        played=[None] * 4,
    )
    text = page.page_of_results(Page([Reader(tmp_path / "run").read()]))
    told, facts = section_of(text, "attackers")
    assert facts["Devices that lie"] == "not known yet"
    assert facts["Samples that they claim"] == "largest"
    assert "Share of the aggregate" not in told


def test_results_have_differences_settings_and_versions(pages, all_shown):
    text = words(pages["rich"])
    for expected in ("paired differences", "data_sha256", "[federation]", "Nothing was found."):
        assert expected in text
    tables = compared(all_shown["rich"])["tables"]
    assert [one["title"] for one in tables] == [
        "90th percentile over devices",
        "Mean over devices",
    ]
    for row in tables[0]["rows"][:1]:
        assert page.in_points(row.devices.difference) in text
        assert page.in_points(row.devices.low) in text


@pytest.mark.parametrize(
    ("settings", "spent", "said"),
    [
        (
            {
                "dp": {"noise": "1.5"},
                "quantile": {"method": "noisy", "weights": "equal", "noise": 4},
            },
            {"epsilon": 2.0, "delta": 1e-5},
            "all sums of 4 rounds cost",
        ),
        (
            {"quantile": {"method": "noisy", "weights": "equal", "noise": 4}},
            {},
            "the searches of 4 rounds cost",
        ),
        ({}, {}, ""),
    ],
)
def test_what_noise_has_cost_is_told(tmp_path, settings, spent, said):
    make_run(
        tmp_path / "run",
        algorithm="private-delta-fl",
        baselines=(),
        make_event=lambda number: private(number, **spent),
        federation={"cohort_size": 10},
        **settings,
    )
    text = words(page.page_of_results(Page([Reader(tmp_path / "run").read()])))
    assert ("rounds cost a device" in text) == bool(said)
    assert said in text
    assert ("at most ε = 2.00 at δ = 10⁻⁵, in this run alone" in text) == ("epsilon" in spent)
    assert ("No sum so far has noise" in text) == (not said)


def test_what_the_noise_of_a_baseline_has_cost_is_told(tmp_path):
    make_run(
        tmp_path / "run",
        algorithm="fedavg",
        baselines=("private-delta-fl",),
        federation={"cohort_size": 10},
        quantile={"method": "noisy", "weights": "equal", "noise": 4},
    )
    text = words(page.page_of_results(Page([Reader(tmp_path / "run").read()])))
    assert "private-delta-fl-seed-1: the searches of 4 rounds cost" in text
    assert "No sum so far has noise" not in text


def test_what_the_noise_of_a_finished_run_has_cost_is_over_all_seeds(tmp_path):
    make_run(
        tmp_path / "run",
        algorithm="private-delta-fl",
        baselines=(),
        federation={"cohort_size": 10},
        dp={"noise": "1.5"},
        quantile={"method": "noisy", "weights": "equal", "noise": 4},
    )
    seeds = Reader(tmp_path / "run").read().config.experiment.num_seeds
    spent = {"epsilon": 3.5, "delta": 1e-5, "participations": 4, "epsilon_of_a_run": 2.0}
    note(tmp_path / "run", "summary", {"privacy": spent})
    text = words(page.page_of_results(Page([Reader(tmp_path / "run").read()])))
    assert seeds > 1
    assert f"ε = 3.50 at δ = 1e-05: {seeds} runs over the same devices add up" in text
    assert "in this run alone" not in text


def test_a_run_that_is_quiet_for_long_may_have_stopped(tmp_path):
    make_run(tmp_path / "run", played=[2, None, None, None])
    found = Reader(tmp_path / "run").read()
    for quiet, title in ((10, "In progress"), (10_000, "Not finished")):
        assert Page([found], now=found.written + quiet).state.title == title


def test_methods_of_several_runs_have_names_of_their_own(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name, baselines=(), finished=True)
    found = Page([Reader(tmp_path / name).read() for name in ("a", "b")])
    assert found.labels == ("delta-fl, θ = 0.5 (a)", "delta-fl, θ = 0.5 (b)")
    assert len(paired(found)["found"]) == 1
    assert compared(found)["tables"]


@pytest.mark.slow
def test_ten_thousand_rounds_and_devices_make_a_page_of_bounded_size(tmp_path):
    make_run(
        tmp_path / "run",
        rounds=10_000,
        devices=2000,
        seeds=1,
        make_event=lambda n: {"round": n, "wall_s": 1.0, "eta": 1.0, "half_width": 0.5},
        federation={"evaluate_every": 5_000},
    )
    text = page.page_of_results(Page([Reader(tmp_path / "run").read()]))
    assert len(text) < 700_000


@pytest.mark.slow
def test_what_files_say_is_repeated_in_part_only(tmp_path):
    make_run(tmp_path / "run", finished=True)
    long = {"torch": "x" * 100_000, **{f"{n}{'y' * 1000}": "z" for n in range(10_000)}}
    note(tmp_path / "run", "versions", long)
    said = {"data": "x" * 100_000, "train_devices": "x" * 100_000, "test_devices": [1] * 100_000}
    note(tmp_path / "run", "summary", said)
    assert len(page.page_of_results(Page([Reader(tmp_path / "run").read()]))) < 120_000


# in a browser


@pytest.fixture(scope="module")
def browser():
    with started_browser() as started:
        yield started


@pytest.fixture
def visit(browser, tmp_path):
    @contextmanager
    def open_page(text, **options):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        with browser.new_context(viewport={"width": 1200, "height": 900}, **options) as context:
            seen = Visit(context.new_page())
            seen.page.goto(file.as_uri())
            assert seen.requests.pop(0).url == file.as_uri()
            yield seen

    return open_page


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MADE))
def test_a_browser_opens_the_page_and_nothing_else_and_needs_no_sideways_scrolling(
    pages, visit, name
):
    with visit(pages[name]) as seen:
        for width in (1200, 390):
            seen.page.set_viewport_size({"width": width, "height": 900})
            assert seen.page.evaluate(OVERFLOW) == 0
        assert seen.page.title() != "owned"
        assert (seen.requests, seen.complaints) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_contrast(pages, visit, scheme):
    for name in ("rich", "hostile"):
        with visit(pages[name], color_scheme=scheme) as seen:
            seen.page.evaluate(
                "document.querySelectorAll('details').forEach(d => { d.open = true })"
            )
            texts, poor = seen.page.evaluate(CONTRASTS)
            assert texts > 100
            assert poor == []


LINES = """() => [...document.querySelectorAll('.legend .series')].map(one => {
  const style = getComputedStyle(one);
  return [style.stroke, getComputedStyle(document.body).backgroundColor, style.strokeDasharray];
})"""


def light(colour):
    parts = [int(one) / 255 for one in re.findall(r"\d+", colour)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(v * w for v, w in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_have_the_contrast_that_graphics_need_and_differ_in_dashes(pages, visit, scheme):
    with visit(pages["rich"], color_scheme=scheme) as seen:
        lines = seen.page.evaluate(LINES)
        assert len(lines) == 4
        for stroke, behind, _ in lines:
            bright, dark = sorted((light(stroke), light(behind)), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 3
        assert len({dashes for _, _, dashes in lines}) == 4


@pytest.mark.slow
def test_tables_open_by_keyboard_and_everything_can_be_printed(pages, visit):
    with visit(pages["rich"]) as seen:
        summary = seen.page.locator("details.numbers summary").first
        table = seen.page.locator("details.numbers table").first
        assert not table.is_visible()
        summary.press("Enter")
        assert table.is_visible()
        seen.page.emulate_media(media="print")
        paper = seen.page.pdf(prefer_css_page_size=True, print_background=True)
        assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 15
        assert (seen.requests, seen.complaints) == ([], [])


def test_what_is_in_clear_says_so_and_has_no_level(tmp_path):
    make_run(
        tmp_path / "a",
        algorithm="private-delta-fl",
        make_event=private,
        finished=True,
        federation={"cohort_size": 10},
    )
    make_run(tmp_path / "b", algorithm="fedavg", baselines=(), finished=True)
    read = [Reader(tmp_path / name).read() for name in ("a", "b")]
    first, second = (dict(facts(Page([one]))["about"][0]) for one in read)
    assert first["Methods"] == "private-delta-fl, θ = 0.5 (masked sums), fedavg (in clear)"
    assert (first["θ"], second["Methods"]) == ("0.5", "fedavg (in clear)")
    assert "θ" not in second
    shared, *own = facts(Page(read))["about"]  # what is the same is told once
    assert ("Rounds", "4") in shared
    assert not any(pair in shared for one in own for pair in one)
    summary = {
        "algorithm": "fedavg",
        "seeds": {"fedavg": {"1": {}}},
        "baseline": {},
        "test_error": {"mean": 0.1, "p90": 0.2, "spread": 0.0},
        "noteworthy": {},
        **dict.fromkeys(("data", "train_devices", "test_devices", "model"), "x"),
        **dict.fromkeys(("model_parameters", "theta", "rounds", "secure_sums"), 0),
        **dict.fromkeys(("train_cpu_s", "protocol_cpu_s"), 0.0),
    }
    assert "θ" not in describe(summary)
    of_a_level = {**summary, "algorithm": "delta-fl", "seeds": {"delta-fl": {"1": {}}}}
    assert "θ = 0" in describe(of_a_level)
