"""Runs that are killed with SIGKILL at random moments and resumed, until they are done.

    python tests/sim/kills.py --kills 100 --seed 1

kills runs of two kinds in turn (masked and noisy) until there were so many kills, and
prints what came of each run as a line of JSON. It counts answers in everything that the server has
ever seen: in the transcript as each kill left it, not only in the one of the end. It ends with
status 1 if a device answered twice in one context, a message is missing from the transcript of the
end, the ε of the summary is below that of the answers given, or the audit finds anything of
medium severity.

A run is a process of its own, forked from this one once everything is imported.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from deltafl.secagg.wire import Kind
from deltafl.sim.data.dataset import build_dataset
from deltafl.sim.errors import ChainError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.inspect.audit.seen import Decoder
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import Message, read_transcript
from deltafl.sim.run.accounting import privacy_of
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.settings.config_io import build_config

ROUNDS = 8
_UNWATCHED = SimpleNamespace(
    begin=lambda *_: None, played=lambda *_: None, evaluated=lambda *_: None
)
_KINDS = {
    "masked": {},
    # so little noise that it never leaves a tail of a device or two, which the audit would tell
    "noisy": {"quantile": {"method": "noisy", "weights": "equal", "noise": "1/4"}},
}


def config_of(kind):
    """The settings of one kind of run: eight rounds of sixteen devices, of very many."""
    base = {
        "data": {"num_devices": 300},
        "federation": {
            "algorithm": "private-delta-fl",
            "theta": "4/5",
            "rounds": ROUNDS,
            "cohort_size": 16,
            "evaluate_every": 4,
        },
        "training": {"batch_size": 64, "device": "cpu", "backend": "reference"},
        "quantile": {"method": "histogram"},
        "privacy": {"transcript": "full"},
        "policy": {"max_pivots": 512},  # a histogram, of weights that differ
    }
    for section, values in _KINDS[kind].items():
        base[section] = {**base[section], **values}
    return build_config([base])


def play(config, path):
    """Begin or resume a run in a process of its own; the process's id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        run_experiment(
            config, path, resume=True, progress=_UNWATCHED, warn=lambda _: None, plots=False
        )
        status = 0
    except BaseException:
        traceback.print_exc()  # the process ends without
        raise
    finally:
        os._exit(status)


def seen_in(transcript):
    """The messages of a transcript up to where it ends or breaks off: what each was, in order."""
    messages, decoder, last = [], Decoder(), 0
    try:
        for record in read_transcript(transcript):
            if not isinstance(record, Message):
                continue
            if record.round < last or not messages:
                decoder = Decoder()
            last = record.round
            content = decoder.decode(record).content
            params = decoder.params.get(content.tag)
            context = params.context.hex() if params is not None else ""
            what = content.kind, context, content.slot
            messages.append(((record.sent, record.peer, record.sha256), what))
    except (ChainError, FileNotFoundError):
        pass
    return messages


def kill_and_resume(kind, path, moments, snapshots):
    """Play a run to its end, and kill it after each of these seconds of work, if it still runs."""
    config, kills = config_of(kind), 0
    for seconds in moments:
        child = play(config, path)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        kills += os.WIFSIGNALED(status)
        for file in RunDirectory(path).path.glob("record.sqlite*"):
            shutil.copy(file, snapshots / file.name.replace("record", str(kills), 1))
        if not os.WIFSIGNALED(status):
            break
    _, status = os.waitpid(play(config, path), 0)
    return kills, os.waitstatus_to_exitcode(status)


def account_of(kind, path, snapshots):
    """What came of a run that was killed and resumed: numbers, and what is wrong with it."""
    directory = RunDirectory(path)
    seen = {}  # every message that ever passed, by direction, device and digest
    final = Counter(message for message, _ in seen_in(directory.record))
    missing = 0
    for snapshot in sorted(snapshots.glob("*.sqlite")):
        messages = seen_in(snapshot)
        missing += sum((Counter(message for message, _ in messages) - final).values())
        seen.update(messages)
    seen.update(seen_in(directory.record))
    took_part, answers, searched = Counter(), Counter(), Counter()
    for (sent, peer, _), (what, context, slot) in seen.items():
        if not sent and what is Kind.ADVERTISE:
            took_part[peer, context] += 1
        if not sent and what is Kind.MASKED:
            answers[peer, context, slot] += 1
            searched[peer] += slot == 0
    summary = directory.summary()
    config, report = config_of(kind), audit(path)
    given = max(searched.values(), default=0)
    spent = privacy_of(config, given)
    stated = summary["search_privacy"]
    found = Counter(f.rule for f in report.findings if f.severity >= Severity.MEDIUM)
    wrong = []
    if max(took_part.values(), default=0) > 1 or max(answers.values(), default=0) > 1:
        wrong.append("a device took part twice in one context")
    if missing:
        wrong.append("messages are missing from the transcript")
    if spent is not None and stated["epsilon"] < spent.epsilon:
        wrong.append("the summary's ε is below that of the answers given")
    if found:
        wrong.append("the audit found something")
    return {
        "kind": kind,
        "lost_rounds": summary["lost_rounds"],
        "interrupted_rounds": summary.get("interrupted_rounds"),
        "most_parts_in_a_context": max(took_part.values(), default=0),
        "most_answers_in_a_slot": max(answers.values(), default=0),
        "most_search_answers_of_a_device": given,
        "epsilon_given": spent and spent.epsilon,
        "epsilon_stated": stated and stated["epsilon"],
        "missing_messages": missing,
        "found": dict(found),
        "wrong": wrong,
    }


def main():
    """Kill runs until there were enough kills."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-run", type=int, default=4, help="kills of one run, at most")
    parser.add_argument("--longest", type=float, default=1.2, help="seconds before a kill")
    options = parser.parse_args()
    build_dataset(
        config_of("masked").data
    )  # a library of its takes longer to load than a run takes
    draw = random.Random(options.seed)  # noqa: S311 (moments, no secrets)
    kills, wrong, number = 0, 0, 0
    while kills < options.kills:
        kind = list(_KINDS)[number % len(_KINDS)]
        number += 1
        with tempfile.TemporaryDirectory() as folder:
            snapshots = Path(folder, "seen")
            snapshots.mkdir()
            some = min(options.per_run, options.kills - kills)
            moments = [draw.uniform(0, options.longest) for _ in range(some)]
            done, status = kill_and_resume(kind, Path(folder, "run"), moments, snapshots)
            kills += done
            line = {"kind": kind, "wrong": [f"the last process ended with {status}"]}
            if status == 0:
                line = account_of(kind, Path(folder, "run"), snapshots)
            print(json.dumps({"kills": done, **line}), flush=True)
            wrong += bool(line["wrong"])
    print(json.dumps({"runs": number, "kills": kills, "wrong": wrong}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
