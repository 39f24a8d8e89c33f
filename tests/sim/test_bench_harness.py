import argparse
import json
from dataclasses import dataclass

import pytest

from deltafl.secagg import GraphKind
from deltafl.sim.bench.harness import as_text, command, in_turns, ratios
from deltafl.sim.cli import main
from deltafl.sim.errors import RunError, UserError


@dataclass(frozen=True)
class Case:
    clients: int = 100
    graph: GraphKind = GraphKind.SPARSE
    dropout: float = 0.0
    wait: float | None = None


def run(measure, *words):
    add_arguments, main = command(Case, measure, "A benchmark.")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args(words))


def test_the_flags_are_those_of_the_fields():
    cases = []
    words = ("--clients", "7", "--graph", "complete", "--wait", "2.5")
    for each in ((), words):
        assert run(lambda case: cases.append(case) or {}, *each) == 0
    assert cases == [Case(), Case(7, GraphKind.COMPLETE, wait=2.5)]
    assert isinstance(cases[1].graph, GraphKind)


@pytest.mark.parametrize(
    "words",
    [
        ("--clients", "1"),
        ("--clients", "100001"),
        ("--clients", "many"),
        ("--dropout", "1"),
        ("--dropout", "-0.1"),
        ("--wait", "0"),
        ("--wait", "nan"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(lambda _: {}, *words)
    assert f"{words[0]}: {words[1]} must be a" in capsys.readouterr().err


@pytest.mark.parametrize("benchmark", ["round", "audit", "net"])
def test_a_sparse_graph_over_few_devices_is_refused_with_what_to_do(benchmark, capsys):
    assert main(["bench", benchmark, "--clients", "10", "--dim", "20"]) == 2
    said = capsys.readouterr().err
    assert "10 devices are too few for a sparse graph: pass --graph complete, or a larger" in said


def test_work_takes_turns_of_which_the_first_does_not_count():
    done, checked = [], []
    works = {name: lambda name=name: done.append(name) or len(done) for name in "ab"}
    found = in_turns(works, 2, checked.append)
    assert "".join(done) == "ababab"
    assert checked == [{"a": 1, "b": 2}]
    assert found == {"a": [3, 5], "b": [4, 6]}


def test_what_may_not_be_compared_is_not_repeated():
    done = []

    def refuse(_):
        raise RunError("another sum")

    with pytest.raises(RunError, match="another sum"):
        in_turns({"a": lambda: done.append(1)}, 5, refuse)
    assert done == [1]


def test_ratios_are_of_the_same_turn():
    assert ratios([2, 9, 4], [1, 3, 4]) == {"median": 2, "lowest": 1, "highest": 3}


def test_a_report_is_told_with_all_but_its_lists():
    text = as_text(
        {
            "all": [1, 2],
            "best_peer": None,
            "upload": {"bytes": 9, "over_packed": 1.00123},
            "rounds": {
                "clear": {"round_s": [1, 2], "seconds": 2.5},
                "mm": {"over_clear": {"median": 1.5, "lowest": 1.0, "highest": 2.0}},
            },
        }
    )
    assert text.splitlines() == [
        "best peer: none",
        "upload: bytes 9, over packed 1.001",
        "",
        "rounds  seconds  over clear",
        "clear   2.5",
        "mm               1.5 (1–2)",
    ]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [(UserError("no"), 2, "deltafl: no\n"), (RunError("no"), 1, "the benchmark failed: no\n")],
)
def test_what_fails_is_one_sentence_and_an_exit_code(capsys, error, code, said):
    def measure(_):
        raise error

    assert run(measure) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.endswith(said)


def test_the_machine_is_told_with_the_figures(capsys, monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    assert run(lambda _: {"devices": 3}, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["devices"] == 3
    assert {"processor", "cores", "load", "numpy"} <= set(told["machine"])
    assert told["machine"]["OPENBLAS_CORETYPE"] == "Haswell"
