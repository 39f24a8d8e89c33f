"""How long each stage of a round takes, as the events of a run say."""

from contextlib import nullcontext

import pytest
from doubles import run
from records import events_of, write_run

from deltafl.secagg import ClientId, Stage, Step
from deltafl.secagg.session import NoObserver
from deltafl.sim.errors import RunDirectoryError
from deltafl.sim.record.events import add_event
from deltafl.sim.record.record import write_record
from deltafl.sim.run.stage_seconds import StageSeconds
from deltafl.sim.settings.config_io import build_config

pytestmark = pytest.mark.usefixtures("no_figures")

RUN = {
    "data": {"num_devices": 24},
    "federation": {"algorithm": "private-delta-fl", "rounds": 1, "cohort_size": 8},
    "privacy": {"min_cohort": 5},
    "quantile": {"resolution_bits": 8, "loss_bound": 8, "method": "bracketed"},
    "training": {"batch_size": 64, "device": "cpu"},
}
OF_A_SESSION = ["advertise", "share", "receipt", "mask", "confirm", "unmask"]


def measured(path, **changes):
    """The only event of a run."""
    run(build_config([RUN, changes]), path)
    (event,) = events_of(path)
    return event


def test_every_stage_of_a_session_takes_a_part_of_the_round(tmp_path):
    event = measured(tmp_path / "run", privacy={"min_cohort": 5})
    assert list(event["stage_s"]) == OF_A_SESSION
    assert all(seconds > 0 for seconds in event["stage_s"].values())
    assert sum(event["stage_s"].values()) <= event["wall_s"]


@pytest.mark.parametrize(
    "changes", [{"privacy": {"sums": "ideal"}}, {"federation": {"algorithm": "delta-fl"}}]
)
def test_where_no_message_passes_there_are_no_stages(tmp_path, changes):
    assert measured(tmp_path / "run", **changes)["stage_s"] == {}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_stage_lasts_until_the_next_and_slots_add_up():
    clock = Clock()
    watch = StageSeconds(NoObserver(), clock)
    for stage, slot, took in (
        (Stage.ADVERTISE, 0, 1.0),
        (Stage.MASK, 0, 2.0),
        (Stage.MASK, 1, 4.0),
        (Stage.UNMASK, 1, 8.0),
        (Stage.MASK, 2, 16.0),
    ):
        with watch.working(None, Step(stage, slot)):
            clock.now += took / 2
        clock.now += took / 2  # it waits for answers
    assert watch.taken() == {"advertise": 1.0, "mask": 22.0, "unmask": 8.0}
    clock.now += 100.0  # between rounds, nobody is at work
    assert watch.taken() == {}


def test_whatever_is_seen_is_handed_on():
    seen = []

    class Log(NoObserver):
        def message(self, **what):
            seen.append(what)

        def revealed(self, total):
            seen.append(total)

        def working(self, party, step):
            seen.append((party, step))
            return nullcontext()

    watch, step = StageSeconds(Log()), Step(Stage.MASK, 1)
    watch.message(sent=True, peer=ClientId(3), data=b"x")
    watch.revealed("a sum")
    with watch.working(ClientId(3), step):
        pass
    told = {"sent": True, "peer": 3, "data": b"x"}
    assert seen == [told, "a sum", (3, step)]


@pytest.mark.parametrize("seconds", [{"mask": -0.5}, {"mask": 2e100}, {"mask": True}, [1.0], 3])
def test_seconds_that_are_none_are_refused(tmp_path, seconds):
    write_run(tmp_path, build_config([]), events=[{"round": 1, "stage_s": {"mask": 0.5}}])
    assert events_of(tmp_path)[0]["stage_s"] == {"mask": 0.5}
    with write_record(tmp_path / "record.sqlite") as record:
        add_event(record, {"round": 2, "stage_s": seconds})
        record.keep()
    with pytest.raises(RunDirectoryError, match="stage_s is not a table of seconds"):
        events_of(tmp_path)
