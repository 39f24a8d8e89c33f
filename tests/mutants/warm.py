"""A process that has imported what is slow to import, and runs pytest in forks of itself.

`run.py` starts it in a copy of the tree, writes a line of JSON for each run, and reads one back:
how pytest ended and the last line that it said. Modules of the copy are imported in the forks, for
a fault may be in them.
"""

import json
import os
import signal
import sys
import tempfile
import time
from importlib import import_module

SLOW = (
    "cryptography.hazmat.primitives.ciphers.aead",
    "msgpack",
    "nacl.bindings",
    "numpy",
    "pytest",
    "torch",
)


def run(arguments: list[str], report: str, limit_s: float) -> tuple[int | None, str]:
    """The exit code of pytest, None if it took too long, and the last line that it printed."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            _become_pytest(arguments, report, said.fileno())
        os.setpgid(child, child)  # whatever the tests start ends with them
        code = _ended(child, limit_s)
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    return code, lines[-1] if lines else "nothing"


def _become_pytest(arguments: list[str], report: str, output: int) -> None:
    code = 3
    try:
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ["MUTANTS_REPORT"] = report
        sys.path[0] = os.getcwd()
        code = int(import_module("pytest").main(arguments))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _ended(child: int, limit_s: float) -> int | None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def main() -> None:
    """Serve until the input ends."""
    for name in SLOW:
        import_module(name)
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
