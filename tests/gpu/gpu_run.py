"""`make gpu`: checks and figures on one GPU, within ten minutes; without one, a rehearsal.

From a checkout, with nothing installed but torch, numpy, cryptography, pynacl and
msgpack:

    python tests/gpu/gpu_run.py --out build/gpu

Checks come first, the cheapest of them first, then figures. A step that fails stops no other. After
every step, results.json and results.md are written, so that a cut loses only the step that was
under way. The exit code is 0 if every check passed, 1 if one did not, 2 if a package is missing.

Without a GPU, the checks run on the CPU with small sizes: learning by the learner for
accelerators. The figures' code runs once, and its seconds are thrown away: those
of a CPU would say nothing.
"""

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "cryptography": "cryptography",
    "nacl": "pynacl",
    "msgpack": "msgpack",
}
"""What has to be there: the module, and the package that has it."""


def missing(needed=NEEDED, find=importlib.util.find_spec):
    return [package for module, package in needed.items() if find(module) is None]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of results")
    parser.add_argument("--budget", type=float, default=570, help="seconds for everything (570)")
    parser.add_argument("--only", default="", help="names of steps, separated by commas")
    parser.add_argument("--cpu", action="store_true", help="rehearse, even if there is a GPU")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    if absent := missing():
        print(
            f"missing: {', '.join(absent)}; install with: pip install {' '.join(absent)}",
            file=sys.stderr,
        )
        return 2
    if options.cpu:  # before anything looks for a GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).parent)]
    from gpu_checks import CHECKS
    from gpu_figures import FIGURES
    from gpu_steps import Place, play

    place = Place.here()
    only = {name for name in options.only.split(",") if name}
    known = [step.name for step in (*CHECKS, *FIGURES)]
    if wrong := sorted(only - set(known)):
        parser.error(f"--only {', '.join(wrong)}: the steps are {', '.join(known)}")
    steps = [step for step in (*CHECKS, *FIGURES) if not only or step.name in only]
    return play(steps, place, options.out, started + options.budget)


if __name__ == "__main__":
    sys.exit(main())
