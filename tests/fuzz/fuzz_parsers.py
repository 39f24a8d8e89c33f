"""Coverage-guided fuzzing of every parser, for people to run: `make fuzz MINUTES=10`.

    python tests/fuzz/fuzz_parsers.py   # every parser for two minutes of CPU time
    python tests/fuzz/fuzz_parsers.py --minutes 10 --only npz settings
    python tests/fuzz/fuzz_parsers.py --list

Parsers are fuzzed side by side, one for each processor; `--jobs` says how many at once. It needs
atheris (`pip install '.[fuzz]'`), and says so where it is not installed; `--without` makes do with
inputs drawn at random from the valid ones. A parser is fuzzed in a process of its own, from its
valid inputs, the hostile ones and the regressions, within 4 GiB of memory. A finding is an
exception that the parser does not promise, an input that takes more than 25 s, or more memory. It
is written to tests/fuzz/regressions/PARSER/, where the suite replays it.
"""

import argparse
import importlib
import importlib.util
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REGRESSIONS = HERE / "regressions"
LONGEST = 1 << 17
MEMORY_MB = 4096
PER_INPUT_S = 25
INCLUDED = ["deltafl", "zipfile", "tomllib", "json", "gzip", "csv", "msgpack"]


def main() -> int:
    """Fuzz the parsers one after the other; 1 if anything was found."""
    sys.path[:0] = [str(HERE), str(ROOT / "tests/common"), str(ROOT / "src")]
    options = _options()
    if options.one:
        return _fuzz_one(options)
    names = list(importlib.import_module("parsers").NAMES)
    if options.list:
        print("\n".join(names))
        return 0
    if unknown := set(options.only) - set(names):
        sys.exit(f"there is no parser {min(unknown)}: known are {', '.join(names)}")
    if not options.without and importlib.util.find_spec("atheris") is None:
        sys.exit("atheris is not installed: pip install '.[fuzz]', or give --without")
    print(f"{'parser':<14} {'executions':>11} {'coverage':>9} {'CPU s':>6}  findings", flush=True)
    one = partial(_fuzz, minutes=options.minutes, without=options.without)
    with ThreadPoolExecutor(options.jobs) as pool:
        found = sum(pool.map(one, options.only or names))
    print(f"{found} findings")
    return int(found > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=2, help="of CPU time for each parser")
    parser.add_argument("--only", nargs="*", default=[], metavar="PARSER")
    parser.add_argument("--list", action="store_true", help="name the parsers")
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="parsers at once",
    )
    parser.add_argument("--without", action="store_true", help="without atheris")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_known_args()[0]


def _fuzz(name: str, minutes: float, *, without: bool) -> int:
    """Fuzz one parser in a process of its own; how much was found."""
    seconds = max(1, round(60 * minutes))
    with tempfile.TemporaryDirectory() as folder:
        corpus, crashes = Path(folder) / "corpus", Path(folder) / "found"
        corpus.mkdir()
        crashes.mkdir()
        _seed(name, corpus)
        command = [sys.executable, __file__, "--one", name, "--folder", folder]
        command += ["--seconds", str(seconds)]
        if without:
            command += ["--without"]
        else:
            command += [
                str(corpus),
                f"-max_len={LONGEST}",
                "-timeout=0",  # the target has its own, which gives a traceback
                f"-rss_limit_mb={MEMORY_MB}",
                f"-artifact_prefix={crashes}/",
                "-print_final_stats=1",
            ]
        status, cpu_s, said = _run(command, Path(folder) / "said")
        kept = [_keep(name, path.read_bytes()) for path in sorted(crashes.iterdir())]
        executions, coverage = _told(said)
        if not kept and status:
            kept = [f"it ended with {status}: {said[-300:]}"]
        print(
            f"{name:<14} {executions:>11} {coverage:>9} {cpu_s:>6.0f}  {', '.join(kept) or 'none'}",
            flush=True,
        )
        return len(kept)


def _run(command: list[str], output: Path) -> tuple[int, float, str]:
    """Run a command to its end: its exit status, the seconds of CPU that it took, what it said."""
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=ROOT)  # noqa: S603
        _, status, usage = os.wait4(process.pid, 0)  # usage of this child alone
    process.returncode = os.waitstatus_to_exitcode(status)
    said = output.read_text(errors="replace")
    return process.returncode, usage.ru_utime + usage.ru_stime, said


def _seed(name: str, corpus: Path) -> None:
    parsers, hostile = importlib.import_module("parsers"), importlib.import_module("hostile")
    regressions = REGRESSIONS / name
    known = [path.read_bytes() for path in regressions.glob("*")] if regressions.is_dir() else []
    for data in (*parsers.NAMES[name].valid(), *hostile.HOSTILE.get(name, ()), *known):
        if len(data) <= LONGEST:
            (corpus / sha256(data).hexdigest()[:16]).write_bytes(data)


def _keep(name: str, data: bytes) -> str:
    path = REGRESSIONS / name / sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path.relative_to(ROOT))


def _told(output: str) -> tuple[str, str]:
    """Executions and coverage, as libFuzzer or `_at_random` tells them; "?" where it does not."""
    executions = re.findall(r"stat::number_of_executed_units:\s*(\d+)", output)
    coverage = re.findall(r"\bcov: (\d+)", output)
    return (executions or ["?"])[-1], (coverage or ["–"])[-1]


def _fuzz_one(options: argparse.Namespace) -> int:
    name, folder, seconds = options.one, Path(options.folder), options.seconds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if options.without:
        parsers = importlib.import_module("parsers")
        return _at_random(parsers.NAMES[name], folder, seconds)
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=INCLUDED):
        parsers = importlib.import_module("parsers")
    target = parsers.NAMES[name]
    parsers.one_input(target, target.valid()[0])
    arguments = [argument for argument in sys.argv[1:] if argument.startswith("-max_")]
    arguments += [a for a in sys.argv[1:] if re.match("-(timeout|rss|artifact|print)", a)]
    signal.signal(signal.SIGALRM, _late)
    end = time.process_time() + seconds

    def one_input(data: bytes) -> None:
        signal.alarm(PER_INPUT_S)
        parsers.one_input(target, data)
        signal.alarm(0)
        if time.process_time() > end:
            os.kill(os.getpid(), signal.SIGUSR1)  # libFuzzer ends in good order

    atheris.Setup([sys.argv[0], *arguments, str(folder / "corpus")], one_input)
    atheris.Fuzz()
    return 0


def _late(*_: object) -> None:
    raise importlib.import_module("parsers").Hangs(f"still reading after {PER_INPUT_S} s")


def _at_random(target: "object", folder: Path, seconds: int) -> int:
    """Change the corpus at random, without looking at coverage, until the time is over."""
    parsers, words = importlib.import_module("parsers"), importlib.import_module("mutations").WORDS
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MB << 20, MEMORY_MB << 20))
    signal.signal(signal.SIGALRM, _late)
    corpus = [path.read_bytes() for path in sorted((folder / "corpus").iterdir())]
    draw, executions = random.Random(1), 0  # noqa: S311
    end = time.process_time() + seconds
    while time.process_time() < end:
        data = bytearray(draw.choice(corpus))
        for _ in range(draw.randint(1, 4)):
            at, size = draw.randrange(len(data) + 1), draw.randint(1, 40)
            if draw.random() < 0.5 and at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            else:
                data[at : at + draw.choice((0, size))] = draw.choice((b"", draw.choice(words)))
        executions += 1
        signal.alarm(PER_INPUT_S)
        try:
            parsers.one_input(target, bytes(data))
            signal.alarm(0)
        except (Exception, parsers.Hangs):  # noqa: BLE001 (a finding)
            traceback.print_exc()
            (folder / "found" / f"crash-{executions}").write_bytes(data)
            break
    print(f"stat::number_of_executed_units: {executions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
