"""A federation and a simulation of the same devices come to the same model, bit for bit."""

import resource
import shutil
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from federations import Federation, settings, simulate, vanishing, wired
from records import change, events_of, note, rows_of, toml_of, write_rows

from deltafl.secagg import ClientId, TrustedKeys
from deltafl.secagg.session import NoObserver
from deltafl.sim.errors import ConfigError, RunError
from deltafl.sim.inspect.audit.auditor import audit
from deltafl.sim.inspect.audit.catalogue import RunAgain
from deltafl.sim.inspect.audit.findings import Severity
from deltafl.sim.net import post, trips
from deltafl.sim.net.frames import Carry, Decline, Reason, Task, decode, encode
from deltafl.sim.net.identities import DeviceList
from deltafl.sim.net.post import Answer, Post
from deltafl.sim.net.remote import RemoteDevices
from deltafl.sim.run.engine import Stop

CASES = {
    "Δ-FL": settings(),
    "Δ-FL, verified": settings("private-delta-fl", {"privacy": {"adversary": "active"}}),
    "two levels": settings(
        "private-delta-fl",
        {"federation": {"levels": ["1", "1/2"]}, "privacy": {"colluding": 0}},
    ),
    "FedAvg": settings("private-fedavg", {"privacy": {"signed": True}}),
    "q-FFL": settings("private-q-ffl"),
    "FedProx, Adam": settings("private-fedprox", {"strategy": {"server_optimizer": "adam"}}),
}


def is_clean(path):
    """Whether nothing is found, and every round was played again."""
    report = audit(path)
    (again,) = [check.detail for check in report.checks if check.name == RunAgain.name]
    assert again.startswith(f"{report.rounds} of {report.rounds} ")
    return not [f for f in report.findings if f.severity >= Severity.MEDIUM]


@pytest.mark.slow
@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_models_are_the_same(tmp_path, config):
    federation = Federation(config)
    with wired(federation):
        state = federation.play(tmp_path / "net")
    expected = simulate(config, tmp_path / "simulated", federation.dataset)
    assert state.model.tobytes() == expected.model.tobytes()
    assert state.round == expected.round == 3
    assert is_clean(tmp_path / "net")
    assert not federation.declined


@pytest.mark.slow
def test_what_the_sums_do_not_lead_to_is_found_without_the_devices(tmp_path):
    """Beside what is said of them; the data, and who could have answered, nobody knows."""
    federation, path = Federation(CASES["FedAvg"]), tmp_path / "net"
    with wired(federation):
        federation.play(path)
    clip = toml_of(path).replace("update_clip = 2.0", "update_clip = 1.0")
    event = "UPDATE events SET event = json_set(event, '$.kept_devices', 7) WHERE round = 2"
    model = "UPDATE arrays SET data = zeroblob(length(data)) WHERE name = 'model'"
    found = []
    for number, statement in enumerate((event, model, "")):
        copy = tmp_path / str(number)
        shutil.copytree(path, copy)
        if statement:
            change(copy, statement)
            write_rows(copy / "record.sqlite", rows_of(copy / "record.sqlite"))
        else:
            note(copy, "settings", clip)
        report = audit(copy)
        found.append({f.detail for f in report.findings if f.rule == "record.disagrees"})
        assert any(one.startswith("devices on machines: ") for one in report.not_checked)
    assert "it says events[2].kept_devices = 7, and it is 10" in found[0]
    assert any(one.startswith("it says checkpoint[3].model[0] = 0.0") for one in found[1])
    assert any("update.clip = 2.0, and it is 1.0" in one for one in found[2])


@pytest.mark.slow
def test_nobody_knows_a_graph_before_its_cohort_is_drawn(tmp_path, monkeypatch):
    """Two runs with the same settings have no graph in common, and neither have two rounds."""
    seeds, begun = [], trips.RoundServer

    def noted(levels, models, params, *others, **options):
        seeds.append(params.graph_seed)
        return begun(levels, models, params, *others, **options)

    monkeypatch.setattr(trips, "RoundServer", noted)
    for name in ("first", "second"):
        federation = Federation(CASES["two levels"])
        with wired(federation):
            federation.play(tmp_path / name)
    assert len(set(seeds)) == len(seeds) == 2 * (3 + 4)  # rounds, and levels measured twice


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Δ-FL", "FedAvg", "q-FFL"])
def test_the_models_are_the_same_where_devices_drop_out(tmp_path, name):
    config = settings(CASES[name].federation.algorithm, {"faults": {"dropout": 0.2}})
    federation = Federation(config)
    with wired(federation, vanishing(federation)) as federation.wires:
        state = federation.play(tmp_path / "net")
    expected = simulate(config, tmp_path / "simulated", federation.dataset)
    assert federation.declined
    assert state.model.tobytes() == expected.model.tobytes()
    assert is_clean(tmp_path / "net")


@pytest.mark.slow
def test_a_fleet_that_is_the_cohort_goes_on_after_lost_rounds(tmp_path):
    fleet = {
        "data": {"num_devices": 20},
        "federation": {"rounds": 6, "evaluate_every": 6},
        "faults": {"dropout": 0.35},
    }
    config = settings("private-delta-fl", fleet)
    federation = Federation(config)
    with wired(federation, vanishing(federation)) as federation.wires:
        state = federation.play(tmp_path / "net")
    expected = simulate(config, tmp_path / "simulated", federation.dataset)
    assert state.model.tobytes() == expected.model.tobytes()
    events = events_of(tmp_path / "net")
    lost = [event["aborted"] is not None for event in events]
    repeated = [after for before, after in pairwise(events) if before["aborted"]]
    assert any(lost)
    assert not all(lost)
    assert any(one["secure_sums"] < one["num_queries"] for one in repeated)  # asked nothing again
    assert is_clean(tmp_path / "net")


FLEET = {
    "data": {"num_devices": 8},
    "federation": {"rounds": 2, "cohort_size": 4},
    "privacy": {"min_cohort": 4},
}


def unfit(side, because):
    """A device that cannot train by the run's settings."""

    def work_of(_task, _machine):
        raise ConfigError(because)

    side.work_of = work_of


@pytest.mark.slow
def test_a_fleet_waits_for_a_device_whose_file_does_not_fit(tmp_path):
    """No round is lost by it: it declines the measurement before the first."""
    federation = Federation(settings("private-fedavg", FLEET))
    object.__setattr__(federation.site, "patience", 60.0)
    unfit(federation.sides[2], "a column is missing")
    with wired(federation) as wires:

        def corrected():
            while not federation.post.declined:
                time.sleep(0.01)
            time.sleep(1.0)  # in which many more rounds would be lost
            wires.federation.sides[2] = federation.started(2)
            wires.connect(2)

        operator = threading.Thread(target=corrected)
        operator.start()
        federation.play(tmp_path / "net")
        operator.join()
    events = events_of(tmp_path / "net")
    assert [bool(event["aborted"]) for event in events] == [False, False]


@pytest.mark.slow
def test_who_is_waited_for_in_vain_is_named(tmp_path):
    federation = Federation(settings("private-fedavg", FLEET))
    object.__setattr__(federation.site, "patience", 0.2)
    unfit(federation.sides[2], "a column is missing")
    said = r"devices that the next round needs, 3 were there .*: device 2 \(settings: its log says"
    with wired(federation), pytest.raises(RunError, match=said):
        federation.play(tmp_path / "net")


@contextmanager
def memory_limited(more):
    """This process may take so many bytes beside what it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.slow
def test_a_finished_run_says_nothing_of_further_rounds(tmp_path):
    """Whoever connects hears how many rounds are done, and that the run is over."""
    federation = Federation(settings("private-fedavg", FLEET))
    with wired(federation):
        federation.play(tmp_path / "net")
    events = events_of(tmp_path / "net")
    federation.begin_server()
    federation.post = Post(time.monotonic, 2, 2)
    federation.site = replace(federation.site, post=federation.post)
    joined = []
    federation.sides[0].notes = replace(
        federation.sides[0].notes, joined=lambda *said: joined.append(said)
    )
    with wired(federation, only=[0]) as wires:
        federation.play(tmp_path / "net")
        while not federation.sides[0].has_ended():
            time.sleep(0.01)
    assert not wires.errors
    assert set(joined) == {(2, 2)}
    assert events_of(tmp_path / "net") == events


ASKED = 4  # the trip after that of the first question


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not bound memory so")
def test_numbers_near_the_largest_take_no_more_memory_than_others(tmp_path):
    """Also where a lost round is repeated, by a process that was started again, and audited."""
    config = settings("private-delta-fl", FLEET, {"privacy": {"colluding": 0}})
    federation = Federation(config, first=2**32 - 4)
    lost = []

    def losing(index, data):
        frame = decode(data)
        if lost or index != 2 or not isinstance(frame, Carry) or federation.post._task.measures:
            return [data]
        if frame.trip < ASKED:
            return [data]
        lost.append(frame)
        gone = encode(Decline(frame.task, Reason.UNKNOWN))
        federation.post.received(federation.wires.lines[index], gone)
        federation.site.stop.set()
        return []

    with memory_limited(1 << 30):
        with wired(federation, losing) as federation.wires, pytest.raises(Stop):
            federation.play(tmp_path / "net")
        federation.begin_server()
        with wired(federation):
            federation.play(tmp_path / "net")
        found = audit(tmp_path / "net").findings
    events = events_of(tmp_path / "net")
    assert [bool(event["aborted"]) for event in events] == [True, False]
    assert events[0]["cohort"] == events[1]["cohort"] == list(range(2**32 - 4, 2**32))
    assert not [one for one in found if one.severity >= Severity.MEDIUM]


@pytest.mark.slow
@pytest.mark.parametrize("reason", [Reason.SETTINGS, Reason.UNKNOWN])
def test_a_run_that_was_given_up_goes_on_once_devices_are_there(tmp_path, reason):
    """After too few were there for too long, or three rounds in a row were lost."""
    more = {"federation": {"rounds": 5, "evaluate_every": 5}}
    federation = Federation(settings("private-fedavg", FLEET, more))
    object.__setattr__(federation.site, "patience", 0.2)

    def declining(index, data):
        frame = decode(data)
        if index != 2 or not isinstance(frame, Task):
            return [data]
        declined = encode(Decline(frame.task, reason))
        federation.post.received(federation.wires.lines[index], declined)
        return []

    with wired(federation, declining) as federation.wires, pytest.raises(RunError, match="gave up"):
        federation.play(tmp_path / "net")
    events = events_of(tmp_path / "net")
    lost = 0 if reason is Reason.SETTINGS else 3
    assert [bool(event["aborted"]) for event in events] == [True] * lost
    federation.begin_server()
    with wired(federation):
        assert federation.play(tmp_path / "net").round == 5
    events = events_of(tmp_path / "net")
    assert [bool(event["aborted"]) for event in events] == [True] * lost + [False] * (5 - lost)
    assert is_clean(tmp_path / "net")


def test_an_advice_names_who_declined_and_why():
    """But not who was started again, or waits for another model."""
    federation = Federation(settings("private-fedavg", FLEET))
    devices = RemoteDevices(federation.config, federation.site, None)
    assert devices.to_lose_fewer.startswith("see why devices were lost")
    for client, reason in enumerate([Reason.UNKNOWN, Reason.REPEATED, *[Reason.REFUSED] * 6]):
        answer = Answer(ClientId(client), declined=reason, detail="privacy.min_cohort=9")
        federation.post.declined[ClientId(client)] = answer
    told = devices.to_lose_fewer
    assert "again: devices 2, 3, 4, 5, 6 and 1 more (refused: privacy.min_cohort=9); see" in told
    for client in (3, 5):
        answer = Answer(ClientId(client), declined=Reason.LEDGER)
        federation.post.declined[ClientId(client)] = answer
    for client in range(8, 14):
        answer = Answer(ClientId(client), declined=Reason.SETTINGS, detail=str(client))
        federation.post.declined[ClientId(client)] = answer
    told = devices.to_lose_fewer
    assert (
        "declined, and start it again: devices 2, 4, 6, 7 (refused: privacy.min_cohort=9), " in told
    )
    assert "devices 3, 5 (ledger: its log says more), device 8 (settings: 8), device 9" in told
    assert "device 10 (settings: 10) and others for 3 more reasons; see why" in told


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["private-fedavg", "private-delta-fl"])
def test_so_they_are_with_a_radius_of_updates(tmp_path, algorithm):
    clipped = {"strategy": {"aggregation": "clipped", "clipped_radius": 0.05}}
    config = settings(algorithm, clipped)
    federation = Federation(config)
    with wired(federation, vanishing(federation)) as federation.wires:
        state = federation.play(tmp_path / "net")
    expected = simulate(config, tmp_path / "simulated", federation.dataset)
    assert state.model.tobytes() == expected.model.tobytes()
    assert state.memory["robust.radius"].tobytes() == expected.memory["robust.radius"].tobytes()
    assert state.memory["robust.radius"] != 0.05
    found = {f.rule for f in audit(tmp_path / "net").findings if f.severity >= Severity.MEDIUM}
    assert found == set()
    mean = simulate(settings(algorithm), tmp_path / "mean", federation.dataset)
    assert mean.model.tobytes() != state.model.tobytes()


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Devices of which 0, 1 and 3 are connected, and the list has 0 to 2, until it is written."""
    monkeypatch.setattr(post, "_LOOK_S", 0.01)
    federation, path = Federation(CASES["FedAvg"]), tmp_path / "devices.txt"

    def write(*ids):
        keys = federation.trusted.keys
        path.write_text(TrustedKeys({ClientId(i): keys[ClientId(i)] for i in ids}).dump())

    write(0, 1, 2)
    known, calls = DeviceList(path), []

    def again():
        calls.append(1)
        if len(calls) == listed.at:
            known.read_again()

    site = replace(federation.site, devices=known, again=again)
    for client in (0, 1, 3):
        federation.post.connect(ClientId(client), lambda: None)
    listed = SimpleNamespace(write=write, at=0)
    listed.devices = RemoteDevices(federation.config, site, NoObserver())
    return listed


def test_who_is_put_on_the_list_while_devices_are_waited_for_counts(listed):
    listed.write(0, 1, 3)
    listed.at = 3
    assert listed.devices.present(3, frozenset()).tolist() == [0, 1, 3]


def test_the_list_is_read_anew_before_it_is_seen_whether_a_lost_round_is_repeated(listed):
    """Who came to the list after the run had begun is none of those who were lost."""
    listed.write(0, 1, 3)
    listed.at = 1
    nobody = frozenset()
    assert listed.devices.num_others(nobody) == 3
    assert listed.devices.num_others(nobody, frozenset([0, 1])) == 2
    assert listed.devices.num_others(nobody, frozenset([0, 2])) == 1
    assert listed.devices.present(1, nobody, only=frozenset([0, 2, 3])).tolist() == [0, 3]
