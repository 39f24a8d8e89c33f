"""Run directories that are written, not played: of any methods, seeds, rounds and devices."""

from deltafl.fl.evaluation import DeviceMetrics
from deltafl.sim.record.attacked import AttackLog, Population
from deltafl.sim.record.evaluations import Evaluation, write_evaluation
from deltafl.sim.record.events import add_event
from deltafl.sim.record.record import write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.record.transcript import TranscriptWriter
from deltafl.sim.settings.config_io import build_config

SCRIPT = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
"""A name that would be markup if it were not escaped."""


def settings(*, algorithm="delta-fl", baselines=("fedavg",), seeds=2, rounds=4, **sections):
    """Settings of an experiment, as a table."""
    return {
        "data": {"source": "digits", "num_devices": 12},
        "federation": {
            "algorithm": algorithm,
            "rounds": rounds,
            "cohort_size": 3,
            "evaluate_every": 2,
            **sections.pop("federation", {}),
        },
        "experiment": {"num_seeds": seeds, "baselines": list(baselines)},
        **sections,
    }


def event(number, **more):
    """A round in which nothing special happened."""
    known = {"round": number, "eta": 2.0 / number, "kept_devices": 2, "secure_sums": 5}
    times = {"train_cpu_s": 0.25, "protocol_cpu_s": 0.5, "wall_s": 1.0}
    return {**known, **times, "cohort": [0, 1, 2], **more}


def private(number, **more):
    """A round of secure sums."""
    search = {"half_width": 0.5 / number, "num_queries": 4, "certified": True, "aborted": None}
    stages = {"advertise": 0.1, "share": 0.05, "receipt": 0.05, "mask": 0.5, "unmask": 0.1}
    of_session = {"dropped_by_stage": {}, "bytes_up_per_device": 1000.0, "stage_s": stages}
    return event(number, **{**search, **of_session, **more})


def error_of(method, seed, number, device):
    """A device's error: the first method is better for the last devices, and worse for the first.

    Args:
        method: counted from 0.
        seed: counted from 0.
        number: of the round.
        device: counted from 0.
    """
    start = 0.9 / (1 + number)
    return min(
        1.0, start * (0.2 + 0.1 * device * (1 + method) / 2) + 0.02 * seed + 0.01 * (not method)
    )


def make_run(path, *, played=None, finished=False, devices=8, names=None, make_event=event, **what):
    """Write a run directory; its settings.

    Args:
        path: where.
        played: rounds of each run; by default, all of each.
        finished: whether there is a summary.
        devices: how many test devices.
        names: their ids.
        make_event: the event of a round, by its number.
        what: of `settings`.
    """
    config = build_config([settings(**what)])
    top = RunDirectory(path)
    ids = names or [f"device-{number}" for number in range(devices)]
    for number, arm in enumerate(config.arms()):
        directory = top.arm(arm.federation.algorithm, arm.experiment.seed) if number else top
        directory.path.mkdir(parents=True, exist_ok=True)
        rounds = arm.federation.rounds if played is None else played[number]
        if rounds is None:
            continue
        method, seed = divmod(number, config.experiment.num_seeds)
        with write_record(directory.record) as record:
            if not record.has_begun():
                TranscriptWriter(record, "full")
                record.note_settings(config if not number else arm)
            for at in range(1, rounds + 1):
                add_event(record, make_event(at))
            if config.attackers.lie:
                note_attackers(record, rounds, 0.1 * (1 + method))
            for theta in arm.federation.thetas:
                for at in range(0, rounds + 1, arm.federation.evaluate_every):
                    test = [
                        DeviceMetrics(one, 10, 1.0, error_of(method, seed, at, place))
                        for place, one in enumerate(ids)
                    ]
                    write_evaluation(record, theta, Evaluation(at, test[:1], test))
            record.keep()
    with write_record(top.record) as record:
        record.note_settings(config)
        record.note("versions", {"deltafl": "0", "data_sha256": "00"})
        if finished:
            found = {"data": "digits", "train_devices": 4, "test_devices": len(ids)}
            record.note("summary", found)
        record.keep()
    return config


def note_attackers(record, rounds, share):
    """Note three liars of thirty devices: a share of each aggregate, and a backdoor in the end."""
    log = AttackLog(record, Population(30, (2, 5, 7)))
    for at in range(1, rounds + 1):
        log.add_round(at, {1: round(100 * (1 - share)), 2: round(100 * share)})
    log.add_backdoor(rounds, 0.75)
