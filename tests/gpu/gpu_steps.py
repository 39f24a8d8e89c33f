"""Steps of `make gpu`: played one after the other within a time, and written down after each."""

import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import torch

from deltafl.sim.cohort.hardware import choose_device, processor, usable_cores

CHECK, FIGURES = "check", "figures"
PASSED, REHEARSED = "passed", "rehearsed"
FAILED, CUT, LEFT_OUT = "failed", "cut", "left out"
NO_GPU = "no GPU here: the code ran on the CPU with small sizes, whose seconds say nothing"


class NotPassed(AssertionError):
    """A check found a difference."""


@dataclass(frozen=True)
class Place:
    """Where steps run.

    Attributes:
        device: of tensors.
        emulated: whether a CPU stands in for the GPU.
        hardware: in words, by what it is.
    """

    device: torch.device
    emulated: bool
    hardware: dict

    @classmethod
    def here(cls):
        emulated = not torch.cuda.is_available()
        device = choose_device("cpu" if emulated else "cuda")
        return cls(device, emulated, hardware_of(device))

    def wait(self):
        """Wait until the device has done what it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Step:
    """Something to do.

    Attributes:
        name: of the step.
        kind: CHECK or FIGURES.
        limit_s: the most seconds that it may take on a GPU.
        run: takes the place and a deadline by `time.monotonic`; returns what was found, as JSON
            has it. Raises if a check does not pass.
        title: in words.
    """

    name: str
    kind: str
    limit_s: float
    run: Callable[[Place, float], dict]
    title: str


@dataclass
class Result:
    """What came of a step."""

    name: str
    kind: str
    title: str
    state: str
    seconds: float = 0.0
    emulated: bool = False
    why: str = ""
    found: dict = field(default_factory=dict)


class _TooLong(BaseException):
    """A step has used up its time."""


def play(steps, place, out, end, clock=time.monotonic, say=print) -> int:
    """Play all steps that the time suffices for; the exit code.

    Args:
        steps: in their order.
        place: where.
        out: folder of the results.
        end: when everything has to have ended, by `clock`.
        clock: tells the time in seconds.
        say: tells a person a line.
    """
    out.mkdir(parents=True, exist_ok=True)
    results = []
    for step in steps:
        results.append(_result(step, place, end, clock))
        _tell(results[-1], say)
        _write(out, place, results)
    checks = [one for one in results if one.kind == CHECK]
    say(f"results are in {out}: results.json, results.md")
    return 0 if checks and all(one.state == PASSED for one in checks) else 1


def _result(step, place, end, clock) -> Result:
    result = Result(step.name, step.kind, step.title, PASSED, emulated=place.emulated)
    began = clock()
    left = end - began
    if left <= 1:
        result.state, result.why = LEFT_OUT, "the time was spent"
        return result
    limit = min(left, step.limit_s)
    try:
        with _limited(limit):
            found = step.run(place, began + limit)
    except _TooLong:
        result.state, result.why = CUT, f"took more than {limit:.0f} s"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (a step that fails stops no other)
        result.state, result.why = FAILED, f"{type(error).__name__}: {error}"
        result.found = {"traceback": traceback.format_exc().splitlines()[-12:]}
    else:
        rehearsed = place.emulated and step.kind == FIGURES
        result.state = REHEARSED if rehearsed else PASSED
        result.found = {} if rehearsed else found
        result.why = NO_GPU if rehearsed else ""
    result.seconds = round(clock() - began, 2)
    return result


@contextmanager
def _limited(seconds):
    """Raise `_TooLong` in the block if it takes longer; only the main thread can be told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_):
        raise _TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def hardware_of(device) -> dict:
    """The machine and what computes on it."""
    found = {
        "gpu": None,
        "processor": processor(),
        "cores": usable_cores(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return found


def _tell(result, say):
    why = f": {result.why}" if result.why else ""
    emulated = ", emulated" if result.emulated else ""
    say(f"{result.state:<9} {result.seconds:7.1f} s  {result.name}{emulated}{why}")
    sys.stdout.flush()


def _write(out, place, results):
    document = {
        "hardware": place.hardware,
        "emulated": place.emulated,
        "steps": [asdict(one) for one in results],
    }
    _replace(out / "results.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    _replace(out / "results.md", as_markdown(document))


def _replace(path, text):
    draft = path.with_suffix(f"{path.suffix}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def as_markdown(document) -> str:
    """The results for people, with the hardware named."""
    hardware = ", ".join(
        f"{key} {value}" for key, value in document["hardware"].items() if value is not None
    )
    lines = ["# Checks and figures of `make gpu`", "", f"Hardware: {hardware}.", ""]
    if document["emulated"]:
        lines += [
            "**Not run on a GPU.** There is none here. Checks ran in emulation: learning by "
            "the learner of stacks on the CPU, all with small sizes. "
            "Figures are absent: a CPU's seconds would say nothing of a GPU.",
            "",
        ]
    lines += ["| check | result | emulated | seconds | |", "|---|---|---|---|---|"]
    steps = document["steps"]
    lines += [
        f"| {one['title']} | {one['state']} | {'yes' if one['emulated'] else 'no'} | "
        f"{one['seconds']} | {_cell(one['why'])} |"
        for one in steps
        if one["kind"] == CHECK
    ]
    lines += ["", "| figure | value | |", "|---|---|---|"]
    for one in steps:
        if one["kind"] == FIGURES:
            numbers = {k: v for k, v in one["found"].items() if k != "traceback"}
            if not numbers:
                lines.append(f"| {one['title']} | absent | {_cell(one['why'] or one['state'])} |")
            lines += [f"| {one['title']}: {name} | {value} | |" for name, value in numbers.items()]
    return "\n".join(lines) + "\n"


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")
