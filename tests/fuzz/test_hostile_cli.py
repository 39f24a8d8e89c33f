"""Hostile files given to the command: exit code 2, one sentence, and little memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import hostile
import numpy as np
import parsers
import pytest

ROOT = Path(__file__).parents[2]
MEMORY = 3 << 30
"""Address space that the command may take; libraries alone take a half."""

CHILD = """
import contextlib, io, json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from deltafl.sim.cli import main
for arguments in json.loads(sys.stdin.read()):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            code = repr(error)[:300]
    print(json.dumps([code, said.getvalue()]), flush=True)
"""


def answers(calls, seconds=240):
    """Exit codes and what was said, of calls of the command in one process with little memory."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", CHILD, str(MEMORY)],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == len(calls), done.stderr[-2000:]
    return told


def refused(calls):
    for call, (code, said) in zip(calls, answers(calls), strict=True):
        assert code == 2, (call, code, said[:500])
        assert said.startswith("deltafl"), call
        assert said.count("\n") == 1, (call, said[:500])
        assert len(said) < 6000, call


@pytest.mark.slow
def test_settings(tmp_path):
    calls = []
    for number, text in enumerate(hostile.SETTINGS):
        path = tmp_path / f"{number}.toml"
        path.write_bytes(text)
        calls.append(["run", str(path), "--out", str(tmp_path / "out")])
    calls += [
        ["run", "--set", "federation.theta=1e99999999"],
        ["run", "--set", 'quantile.noise="1e5000"'],
        ["run", "--set", "experiment.num_seeds=9007199254740992"],
        ["run", "--seed", "9" * 5000],
        ["run", "--data", "\udcff", "--out", str(tmp_path / "out")],
        ["run", "/dev/zero", "--out", str(tmp_path / "out")],
        ["run", str(tmp_path), "--out", str(tmp_path / "out")],
        ["audit", "leakage", "--noise", "1e99999999"],
        ["audit", "leakage", "--theta", "1e99999999"],
        ["reproduce", "table1", "--rounds", "1e99999999%"],
        ["audit", "/dev/zero"],
    ]
    refused(calls)


@pytest.mark.slow
def test_models(tmp_path):
    bundle = tmp_path / "bundle.npz"
    bundle.write_bytes(parsers.NAMES["bundle"].valid()[0])
    calls = [
        ["predict", str(bundle), "--list", "--vectors", "/dev/zero"],
        ["predict", str(bundle), "--data", str(tmp_path / "x.npz"), "--conformity", "1e99999999"],
    ]
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 2, 2)))
    for number, data in enumerate(hostile.HOSTILE["bundle"]):
        path = tmp_path / f"bundle-{number}.npz"
        path.write_bytes(data)
        calls.append(["predict", str(path), "--list"])
    refused(calls)


# Controls.


@pytest.mark.slow
def test_what_is_valid_is_taken(tmp_path):
    bundle = tmp_path / "bundle.npz"
    bundle.write_bytes(parsers.NAMES["bundle"].valid()[0])
    ((code, said),) = answers([["predict", str(bundle), "--list"]])
    assert (code, said) == (0, "")


def test_an_uncaught_error_and_memory_are_seen():
    calls = [["run"], ["run"]]
    broken = CHILD.replace("main(arguments)", "bytearray(2 * int(sys.argv[1]))")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", broken, str(MEMORY)],
        input='[["run"], ["run"]]',
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.count("MemoryError") == len(calls)
