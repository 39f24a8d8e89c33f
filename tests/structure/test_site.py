"""The documentation as a site: every page is in it, links fit, diagrams say what the tables say."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

import command_help  # noqa: E402
import drawings  # noqa: E402
import project_links  # noqa: E402
import sequence_drawing  # noqa: E402
import settings_table  # noqa: E402
import state_drawing  # noqa: E402

from deltafl.protocol.states import TRANSITIONS  # noqa: E402
from deltafl.secagg.states import CLIENT_TRANSITIONS, SERVER_TRANSITIONS  # noqa: E402
from deltafl.sim.settings import config  # noqa: E402

MERMAID = re.compile(r"^```mermaid\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOCTREE = re.compile(
    r"```\{toctree\}\n(.*?)```|^\.\. toctree::\n(.*?)(?=^\S)", re.MULTILINE | re.DOTALL
)
SVG = "{http://www.w3.org/2000/svg}"
IN_THE_SPEC = MERMAID.findall((DOCS / "spec.md").read_text(encoding="utf-8"))
MACHINES = [CLIENT_TRANSITIONS.values(), SERVER_TRANSITIONS.values(), [TRANSITIONS]]


def moves(*machines):
    return {
        (str(state), str(following))
        for machine in machines
        for state, events in machine.items()
        for following in events.values()
    }


@pytest.mark.parametrize(
    ("source", "machines"),
    list(zip(IN_THE_SPEC, MACHINES, strict=True)),
    ids=["device", "server", "round"],
)
def test_a_drawn_machine_moves_as_the_table_of_the_code(source, machines):
    machine = state_drawing.parse(source)
    assert {(arrow.start, arrow.end) for arrow in machine.arrows} == moves(*machines)
    assert set(machine.states) == {str(state) for table in machines for state in table}
    assert set(machine.ends) == {
        str(s) for table in machines for s in table if not any(one[s] for one in machines)
    }


@pytest.mark.parametrize("source", IN_THE_SPEC, ids=["device", "server", "round"])
def test_a_drawing_has_every_state_and_every_label_and_says_so_in_words(source):
    machine = state_drawing.parse(source)
    picture = ElementTree.fromstring(drawings.drawn("one", "States", source))  # noqa: S314 our own
    written = [text.text for text in picture.iter(f"{SVG}text")]
    labels = [a.label if a.start != a.end else f"↻ {a.label}" for a in machine.arrows]
    assert sorted(written) == sorted([*machine.states, *labels])
    title, description = picture.find(f"{SVG}title"), picture.find(f"{SVG}desc")
    assert picture.get("role") == "img"
    assert picture.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert title.text == "States"
    for arrow in machine.arrows:
        assert f"{arrow.start} to {arrow.end}: {arrow.label}" in description.text


@pytest.mark.parametrize("source", IN_THE_SPEC, ids=["device", "server", "round"])
def test_nothing_of_a_drawing_is_outside_of_it(source):
    picture = ElementTree.fromstring(drawings.drawn("one", "States", source))  # noqa: S314 our own
    width, height = (float(picture.get(side)) for side in ("width", "height"))
    for part in picture.iter():
        for point in (part.get("points") or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_a_sequence_is_drawn_with_all_that_is_said():
    (source,) = MERMAID.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    sequence = sequence_drawing.parse(source)
    picture = ElementTree.fromstring(drawings.drawn("one", "A round", source))  # noqa: S314 our own
    written = {text.text for text in picture.iter(f"{SVG}text")}
    assert written == {e.said for e in sequence.events if e.said} | set(sequence.parties.values())
    assert sum(event.kind in ("message", "both") for event in sequence.events) == source.count(">>")


@pytest.mark.parametrize(
    "source",
    [
        "flowchart\n  a --> b",
        "stateDiagram-v2\n  [*] --> a\n  a ==> b: other",
        "sequenceDiagram\n  participant A as one\n  A->>A: alone",
        "sequenceDiagram\n  participant A as one\n  participant B as two\n  A-->>B: dotted",
    ],
)
def test_what_cannot_be_drawn_is_refused(source):
    with pytest.raises(ValueError, match=r"drawn|line of a"):
        drawings.drawn("one", "None", source)


def test_labels_are_escaped():
    source = "stateDiagram-v2\n  [*] --> a\n  a --> b: <script>, R&D\n  b --> [*]"
    drawn = drawings.drawn("one", "<b>", source)
    assert "<script" not in drawn
    assert "<b>" not in drawn
    ElementTree.fromstring(drawn)  # noqa: S314 our own


@pytest.mark.parametrize(
    ("link", "fitted"),
    [
        ("[a](audit.md)", "[a](../audit.md)"),
        ("[a](audit.md#checks)", "[a](../audit.md#checks)"),
        ("[a](../CONTRIBUTING.md)", "[a](../project/contributing.md)"),
        ("[a](../SECURITY.md)", "[a](../project/security.md)"),
        ("[a](examples/flower/app)", "[a](../reference/examples.md)"),
        ("[a](examples/tcp_sum.py)", "[a](../examples/tcp_sum.py)"),
        ("[a](../tests/README.md)", "a"),
        ("[a](https://example.org/b.md)", "[a](https://example.org/b.md)"),
        ("[a](#here)", "[a](#here)"),
        ("```\n[a](audit.md)\n```", "```\n[a](audit.md)\n```"),
    ],
)
def test_links_of_a_code_host_fit_the_site(link, fitted):
    assert project_links.fitted(link, "docs", "docs/how-to", ROOT) == fitted


def test_every_page_is_in_a_table_of_contents():
    pages = {
        page.relative_to(DOCS).with_suffix("").as_posix()
        for page in [*DOCS.rglob("*.md"), *DOCS.rglob("*.rst"), *DOCS.rglob("*.ipynb")]
        if not page.is_relative_to(DOCS / "examples/flower")
    }
    listed = {"index"}
    for page in pages:
        path = next(
            DOCS / f"{page}{end}"
            for end in (".md", ".rst", ".ipynb")
            if (DOCS / f"{page}{end}").exists()
        )
        for blocks in TOCTREE.findall(path.read_text(encoding="utf-8")):
            for line in "".join(blocks).split("\n"):
                if line.strip() and not line.strip().startswith(":"):
                    named = (path.parent / line.strip()).resolve()
                    listed.add(named.relative_to(DOCS.resolve()).as_posix())
    assert listed == pages


def test_every_section_of_the_settings_is_described():
    page = (DOCS / "reference/settings.rst").read_text(encoding="utf-8")
    sections = {field.name for field in config.RunConfig.__dataclass_fields__.values()}
    assert set(re.findall(r"^\[(\w+)\]$", page, re.MULTILINE)) == sections
    described = re.findall(r"^\.\. settings:: (\w+)$", page, re.MULTILINE)
    for name in described:
        assert settings_table.described(getattr(config, name))
    assert len(described) == len(sections)


def test_a_setting_is_described_with_its_default_and_its_range():
    lines = settings_table.described(config.FederationConfig)
    at = lines.index('``theta = "1/2"``')
    assert lines[at + 1].startswith("   Conformity level θ")
    assert lines[at + 1].endswith("Must lie in (0, 1].")


def test_a_setting_that_is_not_described_is_found():
    with pytest.raises(KeyError, match="algorithm"):
        settings_table.described(type("Bare", (config.FederationConfig,), {"__doc__": "None."}))


def test_every_command_is_on_the_page_of_commands():
    page = (DOCS / "reference/commands.rst").read_text(encoding="utf-8")
    shown = re.findall(r"^\.\. command-help:: (.+)$", page, re.MULTILINE)
    helps = {words.split()[0]: command_help.help_of(*words.split()) for words in shown}
    assert helps.keys() == set(re.findall(r"(?m)^    ([a-z]+)(?: |$)", command_help.help_of()))
    assert "--preset NAME" in helps["run"]


def test_a_command_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="ended with 2"):
        command_help.help_of("walk")
