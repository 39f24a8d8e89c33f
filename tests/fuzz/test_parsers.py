"""Hostile files: whatever the bytes are, a parser accepts them or raises what it promises."""

import ast
import os
import signal
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from hostile import HOSTILE, at_all
from hypothesis import given, settings
from mutations import mutants, peak
from parsers import NAMES, PARSERS, Hangs, Target, accepts, one_input

ROOT = Path(__file__).parents[2]
REGRESSIONS = Path(__file__).parent / "regressions"
PATIENCE_S = 120
PER_BYTE, AT_ONCE = 64, 48 << 20
"""Memory that a parser may take: so many bytes for one of the file, and so many for any."""

everything = pytest.mark.parametrize("target", PARSERS, ids=NAMES)


@contextmanager
def in_time():
    """Fail what hangs, rather than the whole suite."""

    def late(*_):
        raise Hangs(f"still reading after {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@cache
def loaded(target):
    """Read a valid input, which loads and prepares what is loaded once."""
    one_input(target, target.valid()[0])


def read_within(target, data):
    """Read, and see that it takes no more memory than the bytes explain; whether it is accepted."""
    accepted = []
    with in_time():
        loaded(target)
        taken = peak(lambda one: accepted.append(one_input(target, one)), data)
    assert taken < PER_BYTE * len(data) + AT_ONCE, f"{taken:,} bytes for {len(data):,}"
    return accepted[0]


@pytest.mark.slow
@everything
def test_valid_inputs_are_accepted(target):
    inputs = target.valid()
    assert inputs
    assert all(one_input(target, data) for data in inputs)


@pytest.mark.slow
@everything
def test_what_is_nearly_right_is_accepted_or_refused(target):
    @settings(max_examples=25)
    @given(data=mutants(list(target.valid())))
    def check(data):
        with in_time():
            one_input(target, data)

    check()


@pytest.mark.slow
@everything
def test_what_is_no_file_of_its_kind_is_refused_within_bounds(target):
    for data in at_all(target.valid()[0]):
        read_within(target, data)


@pytest.mark.parametrize(
    ("name", "data"),
    [(name, data) for name, inputs in HOSTILE.items() for data in inputs],
    ids=[f"{name}-{number}" for name, inputs in HOSTILE.items() for number in range(len(inputs))],
)
def test_hostile_files_are_refused_within_bounds(name, data):
    assert not read_within(NAMES[name], data)


@pytest.mark.parametrize(
    "path", sorted(path for path in REGRESSIONS.rglob("*") if path.is_file()), ids=lambda p: p.name
)
def test_what_was_found_once_is_read_within_bounds(path):
    read_within(NAMES[path.parent.name], path.read_bytes())


def special(folder, target, kind):
    """A path that is no regular file, where a target's file should be."""
    path = folder / target.place
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)
        case "dangling":
            path.symlink_to("nowhere")
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "dangling"])
@pytest.mark.parametrize(
    "target", [target for target in PARSERS if target.is_file], ids=lambda target: target.name
)
def test_what_is_no_regular_file_is_refused_at_once(target, kind, tmp_path):
    absent = kind in ("dangling", "loop") and target.name == "comparison"
    path = special(tmp_path, target, kind)
    if absent:
        return  # a file that need not be there
    with in_time():
        assert not accepts(target, path)


# --- every parser is a target ---------------------------------------------------------------------

READS = {
    *("open", "open_regular", "read_regular", "read_bytes", "read_text", "frombuffer", "unpackb"),
    *("ZipFile", "ParquetFile", "read_table", "fromhex", "recv_bytes", "load_from_disk", "memmap"),
    *("exact_number", "parse_json", "parse_toml", "open_npz", "parse_npy", "map_npy", "read_image"),
    *("opened_zip", "json.load", "json.loads", "np.load", "tomllib.load", "tomllib.loads"),
    *("csv.reader", "sqlite3.connect", "Unpacker", "gzip.open", "tarfile.open"),
    *("package.load_dataset", "read_csv", "loadtxt", "genfromtxt", "fromfile", "fromstring"),
    *("cloudpickle.loads", "bounded", "recv"),
}
"""Names of calls by which bytes or text become something else."""

OWN = {
    "fl/data/shakespeare.py": "its own text, as code points",
    "fl/superquantile.py": "numbers of the caller; `exact_number` is a target",
    "protocol/participations.py": "a model whose length the configuration states",
    "protocol/noise.py": "its own randomness",
    "protocol/update_noise.py": "its own keystream and randomness",
    "secagg/cohort.py": "limbs that were opened with its own keys, of a length that was checked",
    "secagg/graph.py": "its own keystream",
    "secagg/prg.py": "its own keystream",
    "secagg/server.py": "records that the wire's readers have checked",
    "secagg/shamir.py": "its own randomness",
    "sim/bench/audit.py": "what its own child process prints",
    "sim/bench/peers/party.py": "what its own child process answers, /proc and /dev/null",
    "sim/bench/peers/plain.py": "what its own parent and child processes send",
    "sim/bench/secagg.py": "its own buffer",
    "sim/cohort/hardware.py": "the processor's name, as the kernel has it",
    "sim/cli.py": "/dev/null",
    "sim/cohort/backends/base.py": "what its own parent process sends",
    "sim/cohort/backends/processes.py": "what its own parent and child processes send",
    "sim/cohort/backends/shared_memory.py": "its own shared memory",
    "sim/api/results.py": "what it writes, to export",
    "sim/api/tuning.py": "runs, whose readers are targets",
    "sim/cohort/shared.py": "its own masks",
    "sim/inspect/attacks/lying.py": "messages that it has made itself",
    "sim/inspect/audit/options.py": "--head, of 64 digits",
    "sim/inspect/audit/plain.py": "messages that were read already",
    "sim/inspect/audit/second_opinion.py": "messages that were read already",
    "sim/inspect/audit/checks/differences.py": "ids that were read already",
    "sim/inspect/audit/source.py": "a digest of 64 digits",
    "sim/inspect/audit/randomness/guesses.py": "what it has made itself",
    "sim/net/serve_cli.py": "settings of a run, whose readers are targets",
    "sim/run/cli.py": "settings of a run, whose readers are targets",
    "sim/net/certificates.py": "the operator's own certificate",
    "sim/net/dialling.py": "frames, whose reader is a target",
    "sim/net/enrol_cli.py": "a line that it has made itself",
    "sim/net/federation_cli.py": "files that it has written itself",
    "sim/doctor/machine.py": "/proc",
    "sim/doctor/trial.py": "a preset of the package",
    "sim/net/flower/messages.py": "a layout, by the reader of JSON, which is a target",
    "sim/net/flower/mod.py": "models whose length was announced",
    "sim/net/flower/strategy.py": "the operator's own certificate",
    "sim/net/own_work.py": "models whose length was announced",
    "sim/record/memory.py": "/proc",
    "sim/record/own_files.py": "nothing: it opens files for those that read or change them",
    "sim/reproduce/cells.py": "the log of its own child process, and a count of lines",
    "sim/settings/own.py": "files of the owner's own packages, of which it makes a digest",
    "sim/settings/constraints.py": "levels; the targets `option` and `settings` have them",
    "sim/settings/given.py": "settings whose readers are targets",
    "sim/settings/rules.py": "its own table",
    "sim/view/page.py": "templates of the package",
    "sim/compare/cli.py": "whether a file begins as its own tables do, in bounded bytes",
}
"""Modules that call such functions, and read nothing that others have written."""


LIBRARIES = {
    "fl/data/adult.py": "whether its file begins with a title",
    "fl/data/csv_file.py": "pyarrow",
    "fl/data/files.py": "all of these",
    "fl/data/glove.py": "pyarrow",
    "fl/data/hub.py": "pyarrow and datasets; images by a reader that is a target",
    "fl/data/npz.py": "NumPy, without pickle",
    "fl/data/sent140.py": "pyarrow",
    "fl/data/tables.py": "pyarrow",
}
"""Modules that let libraries read a person's own data, from files within a bound."""


def reading(source):
    """Whether a module calls anything of `READS`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    called = [ast.unparse(call.func) for call in calls]
    return any(name in READS or name.rpartition(".")[2] in READS for name in called)


def unlisted(sources, targets):
    """Modules that read and are no target's, and listed ones that do not read."""
    found = {name for name, source in sources.items() if reading(source)}
    listed = {module for target in targets for module in target.modules} & set(sources)
    known = set(OWN) | set(LIBRARIES)
    return sorted(found - listed - known), sorted(known - found)


def sources():
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for layer in ("secagg", "protocol", "fl", "sim")
        for path in (ROOT / layer).rglob("*.py")
    }


@pytest.mark.slow
def test_every_module_that_reads_has_a_target():
    assert unlisted(sources(), PARSERS) == ([], [])


def test_modules_of_targets_exist():
    for target in PARSERS:
        assert all((ROOT / module).is_file() for module in target.modules), target.name
    assert len(NAMES) == len(PARSERS)


def test_regressions_belong_to_targets():
    assert {path.parent.name for path in REGRESSIONS.rglob("*") if path.is_file()} <= set(NAMES)


# --- controls -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_module_that_reads_without_a_target_is_found():
    new = {"fl/new.py": "import json\n\ndef read(path):\n    return json.loads(path)\n"}
    assert unlisted(new | sources(), PARSERS)[0] == ["fl/new.py"]
    assert not reading("def read(path):\n    return path.name\n")


def careless(read, raises=(ValueError,)):
    return Target("careless", (), "file", read, raises, lambda: [b"1"])


def test_an_error_that_is_not_promised_is_found():
    target = careless(lambda path: int(path.read_bytes()[0:0] or [][0]))
    with pytest.raises(IndexError):
        one_input(target, b"1")


def test_an_error_without_words_is_found():
    def silent(_):
        raise ValueError

    with pytest.raises(AssertionError, match="says nothing"):
        one_input(careless(silent), b"1")


def test_memory_beyond_what_is_read_is_found():
    with pytest.raises(AssertionError, match="bytes for 1"):
        read_within(careless(lambda _: bytearray(2 * AT_ONCE)), b"1")


def test_what_hangs_is_found(monkeypatch):
    monkeypatch.setattr("test_parsers.PATIENCE_S", 1)
    with pytest.raises(Hangs, match="still reading"):
        read_within(careless(lambda _: threading.Event().wait()), b"1")
