"""The vectors are current, small, and say which part of the specification they belong to."""

import json
import re

import pytest
from generate import FILES, FOLDER, RENEW, generate, main, render, stale

SPECIFICATION = FOLDER.parents[1] / "docs" / "spec.md"
PATHS = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def texts():
    return generate()


def test_vectors_are_current(texts):
    names = stale(FOLDER, texts)
    assert names == [], (
        f"stale vectors: {', '.join(names)}. A change of these bytes is a change of the protocol "
        f"for everybody who implements it: if it is meant, renew them with `{RENEW}`"
    )


@pytest.mark.slow
def test_stale_missing_and_surplus_files_are_found(texts, tmp_path):
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert stale(tmp_path, texts) == []
    (tmp_path / "graph.json").write_text(texts["graph.json"].replace("0", "1", 1))
    (tmp_path / "searches.json").unlink()
    (tmp_path / "others.json").write_text("{}")
    assert stale(tmp_path, texts) == ["graph.json", "others.json", "searches.json"]


def test_the_command_checks_and_renews(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("generate.FILES", {"graph": FILES["graph"]})
    folder = ["--folder", str(tmp_path)]
    assert main([*folder, "--check"]) == 1
    assert capsys.readouterr().out == f"stale: graph.json\nrenew with: {RENEW}\n"
    (tmp_path / "others.json").write_text("{}")
    assert main(folder) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["graph.json"]
    assert main([*folder, "--check"]) == 0


def test_rendering_keeps_the_value():
    value = {"b": [], "a": {"d": [1, "x", None], "c": [{}, [True, 0.5]]}}
    text = render(value)
    assert json.loads(text) == value
    assert text.index('"a"') < text.index('"b"')


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_case_is_described(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content.keys() == {"cases", "description", "section", "version"}
    assert content["cases"]
    assert all(re.fullmatch(r"\S.*\.", case["description"]) for case in content["cases"])
    names = [case["name"] for case in content["cases"] if "name" in case]
    assert len(set(names)) == len(names)


def unexplained(readme, content):
    """Fields of a file's cases that a text does not name."""
    named = set(re.findall(r"`([a-z0-9_]+)", readme))
    return {key for case in content["cases"] for key in case} - named - {"description"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_field_is_explained(path):
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"`{path.stem}`|\*\*{path.stem}\*\*", readme)
    assert unexplained(readme, json.loads(path.read_text(encoding="utf-8"))) == set()


def test_a_field_that_is_not_explained_is_found():
    content = {"cases": [{"description": "", "seed": 1, "secret": 2}]}
    assert unexplained("A `seed`.", content) == {"secret"}


def missing_sections(specification, sections):
    titles = set(re.findall(r"(?m)^#+ (?:[0-9.]+ )?(.*)$", specification))
    return set(sections) - titles


def test_every_section_that_is_named_exists():
    specification = SPECIFICATION.read_text(encoding="utf-8")
    assert missing_sections(specification, [section for _, section, _ in FILES.values()]) == set()


def test_a_section_that_does_not_exist_is_found():
    assert missing_sections("# Whole\n## 1.2 Part\n", ["Whole", "Part", "1.2"]) == {"1.2"}


def test_files_are_small():
    sizes = [path.stat().st_size for path in PATHS]
    assert max(sizes) <= 950_000
    assert sum(sizes) < 3_900_000
