"""Coverage-guided fuzzing of everything that reads bytes, for people to run; not part of the suite.

    pip install atheris                                   # not among the project's dependencies
    mkdir -p /tmp/deltafl-fuzz
    python tests/fuzz/atheris_wire.py /tmp/deltafl-fuzz   # until interrupted, or a finding

The folder holds the corpus: it is filled with valid inputs first and grows with what reaches new
code. Arguments after it go to libFuzzer (`-max_total_time=600`, `-runs=100000`). A finding is an
exception other than those that the readers promise, or an accepted input that is not canonical;
libFuzzer writes the input to a file `crash-…`, which can be given in place of the folder.

    python tests/fuzz/atheris_wire.py --selftest

needs no atheris: it puts the valid inputs and prefixes of them through the same function. The
suite runs it.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).parent
LONGEST = 1 << 16


def selftest() -> None:
    """See to it that the valid inputs are accepted, and none of their prefixes breaks a reader."""
    targets = importlib.import_module("targets")
    inputs = targets.corpus()
    refused = [data[:8].hex() for data in inputs if not targets.one_input(data)]
    if refused:
        sys.exit(f"valid inputs are refused: {refused}")
    prefixes = [data[:size] for data in inputs for size in range(0, len(data), 7)]
    accepted = sum(map(targets.one_input, prefixes))
    print(f"{len(inputs)} valid inputs accepted; {accepted} of {len(prefixes)} prefixes")


def fuzz() -> None:
    """Hand over to libFuzzer."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["deltafl.secagg", "deltafl.protocol", "msgpack"]):
        targets = importlib.import_module("targets")
    folder = Path(sys.argv[1]) if sys.argv[1:] else None
    if folder is not None and folder.is_dir():
        for number, data in enumerate(targets.corpus()):
            (folder / f"valid-{number:03}").write_bytes(data)
    atheris.Setup([*sys.argv, f"-max_len={LONGEST}"], targets.one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    if sys.argv[1:] == ["--selftest"]:
        selftest()
    else:
        fuzz()
