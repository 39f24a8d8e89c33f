"""The state of a federation, as a page and as metrics."""

import re
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest

from deltafl.secagg import ClientId, Stage, Step, TrustedKeys
from deltafl.sim.net.admission import Door
from deltafl.sim.net.app import served
from deltafl.sim.net.frames import Reason, decode
from deltafl.sim.net.logs import Cause
from deltafl.sim.net.post import Post
from deltafl.sim.net.status import METRICS_TYPE, SHOWN_ROUNDS, Status
from deltafl.sim.settings.config_io import build_config


def config(**privacy):
    return build_config([{"federation": {"rounds": 50, "cohort_size": 20}, "privacy": privacy}])


def event(number, **more):
    return {
        "round": number,
        "cohort": list(range(1000, 1020)),
        "kept_devices": 11,
        "eta": 1.25,
        "secure_sums": 7,
        "wall_s": 3.5,
        "dropped_by_stage": {"MASK": 2},
        "aborted": None,
        **more,
    }


@pytest.fixture
def status():
    return Status(config(), Post(time.monotonic, 50), door())


def door():
    """Of a list of thirty devices."""
    keys = {ClientId(i): bytes([i]) * 32 for i in range(1, 31)}
    return Door(TrustedKeys(keys), None)


def of(status):
    """The metrics, by name."""
    lines = [line for line in status.metrics().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_before_the_first_round(status):
    page = status.page()
    assert "waiting for devices" in page
    assert "0 connected of 30 on the list; 20 in a round" in page
    assert "no noise is added" in page
    assert of(status)["deltafl_rounds"] == 50


def test_a_trip_and_its_round(status):
    line = status.post.connect(ClientId(1004), lambda: None)
    status.begin(status.config, 3)
    server = SimpleNamespace(step=Step(Stage.MASK, 2), awaits_updates=False)
    status.stage(server, 18)
    assert "devices send masked vectors (18 asked)" in status.page()
    status.stage(SimpleNamespace(step=Step(Stage.MASK, 2), awaits_updates=True), 17)
    assert "devices train and send masked updates (17 asked)" in status.page()
    assert of(status)["deltafl_devices_asked"] == 17
    status.declined(ClientId(1004), Reason.LEDGER, "")
    status.played(event(4))
    page = status.page()
    assert re.search(r"<dt>Rounds</dt><dd>4 of 50, 0 lost", page)
    assert "7, in 2 trips" in page
    assert "2; 1 declined (ledger)" in page
    assert "1.250" in page
    assert "waiting for devices" in page
    told = of(status)
    assert told["deltafl_devices_connected"] == 1
    assert told["deltafl_rounds_done"] == 4
    assert told["deltafl_sums_total"] == 7
    assert told["deltafl_dropped_total"] == 2
    assert told['deltafl_declined_total{reason="ledger"}'] == 1
    status.post.disconnect(line)


def test_every_stage_has_words(status):
    for stage in Stage:
        status.stage(SimpleNamespace(step=Step(stage, 0), awaits_updates=False), 5)
        assert "(5 asked)" in status.page()


def test_a_lost_round_says_why_and_is_escaped(status):
    lost = {"aborted": "<script>alert(1)</script>", "eta": None, "kept_devices": None}
    status.played(event(1, secure_sums=1234567, **lost))
    page = status.page()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert of(status)["deltafl_lost_rounds_total"] == 1
    assert of(status)["deltafl_sums_total"] == 1234567


def test_the_page_names_no_device(status):
    """Ids of devices are from 1000 to 1019, and appear nowhere else."""
    status.post.connect(ClientId(1017), lambda: None)
    status.declined(ClientId(1017), Reason.REFUSED, "")
    for number in range(1, 31):
        status.played(event(number))
    for shown in (status.page(), status.metrics()):
        assert not re.search(r"\b10[01][0-9]\b", shown)
    assert status.page().count("<tr><td>") == SHOWN_ROUNDS
    assert "<td>30</td>" in status.page()
    assert "<td>10</td>" not in status.page()


def test_a_run_that_is_over_is_not_reloaded(status):
    assert 'http-equiv="refresh"' in status.page()
    status.over()
    assert 'http-equiv="refresh"' not in status.page()
    assert "the run is finished" in status.page()


def test_noise_is_accounted():
    noise = {"method": "noisy", "noise": "4", "weights": "equal"}
    shown = Status(noisy := build_config([{"quantile": noise}]), Post(time.monotonic, 50), door())
    shown.begin(noisy, 10)
    assert "ε = " in shown.page() or "ε is not bounded" in shown.page()


def test_it_is_served_without_scripts_or_other_hosts(status):
    with served(status.application(), "127.0.0.1", 0) as (host, port):
        with urllib.request.urlopen(f"http://{host}:{port}/") as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert b"waiting for devices" in answer.read()
        with urllib.request.urlopen(f"http://{host}:{port}/metrics") as answer:
            assert answer.headers["Content-Type"] == METRICS_TYPE
            assert b"# TYPE deltafl_rounds_done gauge" in answer.read()


def test_a_device_is_welcomed_with_the_rounds_that_are_done():
    post = Post(time.monotonic, 50, 3)
    assert decode(post.take(post.connect(ClientId(1), lambda: None))).rounds_done == 3


def test_whoever_runs_the_server_sees_how_it_is(status):
    status.door.refusals.note(Cause.KEY, "wrong")
    status.door.refusals.note(Cause.LIST, "admitted")
    status.taken(Stage.MASK, [1.0, 2.5])
    status.taken(Stage.MASK, [0.5])
    for _ in range(2):
        status.post.take(status.post.connect(ClientId(1), lambda: None))
    told = of(status)
    assert told['deltafl_refused_total{reason="key"}'] == 1
    assert 'deltafl_refused_total{reason="list"}' not in told
    assert told['deltafl_answers_total{stage="mask"}'] == 3
    assert told['deltafl_answers_seconds_total{stage="mask"}'] == 4.0
    assert told["deltafl_reconnections_total"] == 1
    assert told["deltafl_sent_bytes_total"] > 0
    assert told["deltafl_cpu_seconds_total"] > 0
    assert told["deltafl_since_round_seconds"] >= 0
    assert "deltafl_certificate_expiry_timestamp_seconds" not in told


def test_it_is_ready_while_devices_are_served(status):
    def asked(path):
        with served(status.application(), "127.0.0.1", 0) as (host, port):
            try:
                with urllib.request.urlopen(f"http://{host}:{port}{path}") as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

    assert (asked("/healthz"), asked("/readyz")) == (200, 503)
    status.ready(is_ready=True)
    assert asked("/readyz") == 200
    status.over()
    assert (asked("/healthz"), asked("/readyz")) == (200, 503)
