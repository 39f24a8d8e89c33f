"""`deltafl doctor`: is everything here that is needed, and what of it would be used?"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterable

from deltafl.sim.doctor.findings import Finding, State, as_json, as_text, works
from deltafl.sim.doctor.machine import gpu, libraries, machine
from deltafl.sim.flags import add_json
from deltafl.sim.visible import visible

_DESCRIPTION = """\
Check the installation, and say what this machine has and what of it would be
used: software, cores, memory, a GPU. At the end a few simulated devices sum
vectors under real masks. It takes seconds, changes nothing, and asks nobody
over the network.
"""

_EPILOG = """\
absent: not there, and only needed for what the line names. warning: it works, but
slower, or not everywhere. Put the output of `deltafl doctor --json` into a report
of a fault.
exit codes: 0 everything needed works, 1 something does not.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_json(parser)


def main(options: argparse.Namespace) -> int:
    """Look and report; the exit code."""
    groups = examine()
    if options.json:
        print(json.dumps(as_json(groups), indent=2, ensure_ascii=False))
    else:
        print(visible(as_text(groups, shutil.get_terminal_size().columns)))
    return 0 if works([one for findings in groups.values() for one in findings]) else 1


def examine() -> dict[str, list[Finding]]:
    """All findings by group; what cannot be looked at is a finding too."""
    return {
        "software": _found("software", _software),
        "machine": [
            *_found("machine", machine),
            *_found("libraries", libraries),
            *_found("GPU", gpu),
        ],
        "the quickstart would use": _found("trial", _used),
        "trial": _found("trial", _trial),
    }


def _software() -> Iterable[Finding]:
    from deltafl.sim.doctor.software import software  # needs what may be missing

    return software()


def _used() -> Iterable[Finding]:
    from deltafl.sim.doctor.trial import used

    return used()


def _trial() -> Iterable[Finding]:
    from deltafl.sim.doctor.trial import secure_sum

    return [secure_sum()]


def _found(topic: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(look())
    except ModuleNotFoundError as error:
        return [Finding(topic, State.FAILED, f"{error.name} is missing", "pip install '.[sim]'")]
    except Exception as error:  # noqa: BLE001 (whatever is broken is what is looked for)
        text = f"{type(error).__name__}: {error}"
        return [Finding(topic, State.FAILED, text, "reinstall with: pip install '.[sim]'")]
