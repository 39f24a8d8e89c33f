"""`make formal`: asks Spin every question of docs/formal/models.toml, and prints a table.

With `--write`, the table goes into docs/formal/README.md, with the times of this machine.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Final

from spin_models import MODELS, Answer, Run, ask, missing_tool, runs

README: Final = MODELS / "README.md"
BEGIN, END = "<!-- runs:begin -->", "<!-- runs:end -->"


def row(run: Run, answer: Answer) -> str:
    """A line of the table."""
    found = "holds: " + ", ".join(f"`{name}`" for name in run.properties)
    if run.violates is not None:
        found = f"attack on `{run.violates}`" if run.violates != "no deadlock" else "deadlock"
    if run.reaches is not None:
        found = f"reached: {run.reaches}"
    states = f"{answer.states:,}"
    return f"| `{run.name}` | {run.says} | {found} | {states} | {answer.seconds:.1f} |"


def unexecuted(asked: dict[str, list[Answer]]) -> list[str]:
    """Moves and properties that no search of a model came to: what they say was not checked."""
    found = []
    for name, answers in asked.items():
        for file, line in sorted(frozenset.intersection(*(one.unreached for one in answers))):
            text = (MODELS / file).read_text(encoding="utf-8").splitlines()[line - 1]
            if file == name and any(word in text for word in ("MOVE", "SERVER", "MUST")):
                found.append(f"{file}:{line}: {text.strip()}")
    return found


def main() -> int:
    """Ask, print, and say whether all answers are as expected."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these runs")
    parser.add_argument("--write", action="store_true", help="write the table into the README")
    arguments = parser.parse_args()
    if (missing := missing_tool()) is not None:
        print(f"the models cannot be checked: {missing}")
        return 75
    rows, wrong, asked = [], 0, dict[str, list[Answer]]()
    for run in runs():
        if arguments.only and run.name not in arguments.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            answer = ask(run.file, run.defines, Path(folder))
        if run.expected is None:
            asked.setdefault(run.file, []).append(answer)
        verdict = "as expected" if answer.violated == run.expected else "NOT AS EXPECTED"
        wrong += answer.violated != run.expected
        rows.append(row(run, answer))
        print(
            f"{run.name}: {answer.violated or 'nothing'} violated, {answer.states:,} states, "
            f"{answer.seconds:.1f} s, {answer.memory_mb:.0f} MiB: {verdict}",
            flush=True,
        )
    if not arguments.only:
        for line in unexecuted(asked):
            wrong += 1
            print(f"never executed: {line}")
    if arguments.write:
        before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
        head = "| run | what is modelled, or which check is missing | Spin finds | states | s |"
        table = "\n".join([head, "| --- | --- | --- | ---: | ---: |", *rows])
        after = rest.partition(END)[2]
        README.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
