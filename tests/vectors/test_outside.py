"""The vectors from elsewhere: small, and each with its origin and licence."""

import json
import re

import pytest
from outside import cut

FILES = sorted(path.name for path in cut.HERE.iterdir() if path.suffix in (".json", ".csv"))


def test_each_file_has_its_origin_and_licence():
    readme = (cut.HERE / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \| .+ \| .+ \| .+ \|$", readme, re.MULTILINE)
    assert sorted(rows) == FILES
    assert "Apache License 2.0" in readme
    licence = (cut.HERE / "../../../LICENSE").resolve().read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "4. Redistribution" in licence


def test_the_files_are_small():
    assert sum((cut.HERE / name).stat().st_size for name in FILES) < 300_000


def test_each_file_was_cut_from_a_known_original():
    assert {*cut.ORIGINALS, "graph_parameters.csv"} == set(FILES)
    assert all(len(digest) == 64 for _, digest, _ in cut.ORIGINALS.values())
    with pytest.raises(ValueError, match="SHA-256 is not 35c3f523"):
        cut.cut("x25519.json", b"{}")


def test_what_is_cut_is_what_is_unlike():
    group = {"tests": [_case(i, ["EdgeCaseMultiplication"]) for i in range(11)]}
    group["tests"].append(_case(11, ["EdgeCaseMultiplication", "Twist"]))
    kept = cut.ORIGINALS["x25519.json"][2]("x25519.json", {"testGroups": [group]})
    assert [case["tcId"] for case in kept] == [0, 10, 11]
    assert "comment" not in kept[0]


def _case(number, flags):
    fields = dict.fromkeys(("public", "private", "shared", "comment"), "")
    return {"tcId": number, "result": "valid", "flags": flags} | fields


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_a_case_is_a_line(name):
    first, *lines, last = (cut.HERE / name).read_text(encoding="utf-8").splitlines()
    assert (first, last) == ("[", "]")
    assert all(isinstance(json.loads(line.removesuffix(",")), dict) for line in lines)
