"""`deltafl serve`, `device` and `federation up`: over TLS, by their own arguments."""

import argparse
import asyncio
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from records import write_run

from deltafl.fl.errors import DataError
from deltafl.secagg import ClientId
from deltafl.sim.cli import main
from deltafl.sim.cohort.backends.base import ModelSpec
from deltafl.sim.errors import ConfigError, RunDirectoryError, UserError
from deltafl.sim.net import (
    device_cli,
    device_flags,
    federation_cli,
    logs,
    serve_cli,
    serve_flags,
)
from deltafl.sim.net.admission import Door
from deltafl.sim.net.certificates import make_certificate
from deltafl.sim.net.frames import Decline, Reason, Task, decode, encode
from deltafl.sim.net.identities import DeviceList
from deltafl.sim.net.post import Post
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.run.algorithms import of_few, policy_of
from deltafl.sim.run.engine import Stop
from deltafl.sim.settings.config_io import build_config, to_toml
from deltafl.sim.settings.own import NotAllowedError

NUMBER = 10
SETTINGS = {
    "data": {"num_devices": 2 * NUMBER},
    "federation": {"rounds": 2, "cohort_size": NUMBER},
    "training": {"device": "cpu", "backend": "reference"},
    "privacy": {"transcript": "full"},
    "experiment": {"baselines": []},
}


def parsed(module, arguments):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def prepared(tmp_path):
    federation_cli._prepare(tmp_path, build_config([SETTINGS]), NUMBER)
    return tmp_path


def server_arguments(folder, port=0):
    options = argparse.Namespace(out=folder, port=port, status="127.0.0.1:0")
    return federation_cli._server(options)[4:]


@pytest.mark.slow
def test_a_federation_over_tls_ends_with_a_model_and_a_clean_audit(prepared, capsys, monkeypatch):
    ports, seen = threading.Event(), {}

    def said(sentence):
        for what in ("Devices connect to", "Until it is over, the state of the run is at"):
            if sentence.startswith(what):
                seen[what] = sentence.removeprefix(what).strip()
        if len(seen) == 2:
            ports.set()

    monkeypatch.setattr(serve_cli, "say", said)
    monkeypatch.setattr(logs, "start", lambda _form: None)
    monkeypatch.setattr(device_cli, "say", lambda _sentence: None)
    arguments = [*server_arguments(prepared), "--gather", "60", "--patience", "60"]
    codes = {}

    def serve():
        codes["server"] = serve_cli.main(parsed(serve_flags, arguments))

    def take_part(index):
        url = seen["Devices connect to"]
        options = argparse.Namespace(out=prepared, port=int(url.rpartition(":")[2]))
        given = parsed(device_flags, federation_cli._device(options, index)[4:])
        codes[index] = device_cli.main(given)

    server = threading.Thread(target=serve)
    server.start()
    assert ports.wait(60)
    with urllib.request.urlopen(seen["Until it is over, the state of the run is at"]) as page:  # noqa: S310 our own
        assert b"of 10 on the list" in page.read()
    devices = [threading.Thread(target=take_part, args=(i,)) for i in range(NUMBER)]
    for one in devices:
        one.start()
    for one in (server, *devices):
        one.join(120)
        assert not one.is_alive()
    assert codes == {"server": 0, **dict.fromkeys(range(NUMBER), 0)}
    summary = RunDirectory(prepared / "run").summary()
    assert summary["rounds"] == 2
    assert summary["final_model_sha256"]
    assert main(["audit", str(prepared / "run"), "--fail-on", "low"]) == 0
    capsys.readouterr()
    assert federation_cli._audit(prepared) == 0
    told = capsys.readouterr().out
    assert "Nothing was found" in told
    assert re.search(r"(\d+) of \1 released sums computed again", told)
    assert (prepared / "audit.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-tls", "--listen", "0.0.0.0:0"], "only 127.0.0.1"),
        (["--listen", "127.0.0.1"], "--listen 127.0.0.1: must be HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "must be HOST:PORT"),
        (["--most-wait", "1", "--least-wait", "2"], "--most-wait"),
        (["--set", "data.input_shape=[8,8]"], "belong together"),
        (["--tls-key", "nowhere.key"], "nowhere.key"),
        (["--devices", "nowhere.txt"], "nowhere.txt"),
        (["--set", "federation.algorithm=fedavg"], "fedavg"),
    ],
)
def test_what_the_server_cannot_do_is_said(prepared, arguments, said):
    given = server_arguments(prepared)
    if "--no-tls" in arguments:
        given = [one for one in given if not one.startswith("--tls-")]
    with pytest.raises(UserError, match=said):
        serve_cli.main(parsed(serve_flags, [*given, *arguments]))
    assert not (prepared / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--server", "https://127.0.0.1:1"], "wss://"),
        (["--server", "ws://192.0.2.1:1"], "need TLS"),
        (["--index", "99"], "--index 99: must be from 0"),
        (["--max-steps", "0"], "--max-steps 0"),
        (["--identity", "nowhere.identity"], "nowhere.identity"),
        (["--ca", "nowhere.pem"], "nowhere.pem"),
    ],
)
def test_what_a_device_cannot_do_is_said(prepared, arguments, said):
    given = [*federation_cli._device(argparse.Namespace(out=prepared, port=1), 3)[4:], *arguments]
    with pytest.raises(UserError, match=said):
        device_cli.main(parsed(device_flags, given))


def test_a_device_that_is_not_on_its_list_says_which_line_is_missing(prepared):
    lines = (prepared / "devices.txt").read_text().splitlines()
    own = next(line for line in lines if line.startswith("3 "))
    (prepared / "devices.txt").write_text("\n".join(x for x in lines if x != own) + "\n")
    options = argparse.Namespace(out=prepared, port=1)
    with pytest.raises(UserError, match=own.replace("+", r"\+")):
        device_cli.main(parsed(device_flags, federation_cli._device(options, 3)[4:]))


def test_a_federation_needs_as_many_devices_as_a_round(tmp_path):
    given = ["up", "--out", str(tmp_path / "new"), "--devices", "3"]
    preset = [*given, "--preset", "quickstart"]
    with pytest.raises(UserError, match="--devices 3: must be from 20"):
        federation_cli.main(parsed(federation_cli, preset))
    (tmp_path / "new").mkdir()
    with pytest.raises(UserError, match="already exists: add --resume"):
        federation_cli.main(parsed(federation_cli, given))
    (tmp_path / "new" / "ca.pem").touch()  # which devices trusted before
    with pytest.raises(UserError, match="earlier version of this program: choose another --out"):
        federation_cli.main(parsed(federation_cli, [*given, "--resume"]))


@pytest.mark.parametrize(("devices", "cohort"), [(3, 3), (12, 12), (70, 20)])
def test_cohort_and_data_follow_the_number_of_devices(devices, cohort, tmp_path):
    given = parsed(federation_cli, ["up", "--out", str(tmp_path), "--devices", str(devices)])
    assert federation_cli._config(given).federation.cohort_size == cohort


def test_what_was_prepared_is_kept(prepared):
    before = {path: path.read_bytes() for path in prepared.iterdir()}
    federation_cli._prepare(prepared, build_config([SETTINGS]), NUMBER)
    assert {path: path.read_bytes() for path in prepared.iterdir()} == before
    assert (prepared / "server.key").stat().st_mode & 0o077 == 0
    assert (prepared / "device-0.identity").stat().st_mode & 0o077 == 0


def program(text):
    return [sys.executable, "-c", text]


FOREVER = program("import time; time.sleep(60)")


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit(0)"])
def test_what_is_killed_is_started_again(tmp_path, capfd, monkeypatch, end):
    """Or stopped, while the run is not over."""
    monkeypatch.setattr(federation_cli, "_GOODBYE_S", 0.5)  # for which devices may stay at the end
    (tmp_path / "run").mkdir()
    once = (
        "import os, pathlib, signal, time; seen = pathlib.Path({0!r})\n"
        "if seen.exists(): time.sleep({1}); pathlib.Path({2!r}).touch(); raise SystemExit(0)\n"
        f"seen.touch(); {end}\n"
    )
    over = str(tmp_path / "over")
    monkeypatch.setattr(RunDirectory, "is_finished", property(lambda _: Path(over).exists()))
    server = program(once.format(str(tmp_path / "server"), 1.5, over))
    device = program(once.format(str(tmp_path / "device"), 60, over))
    assert federation_cli._supervise(server, [device, FOREVER], tmp_path) == 0
    told = capfd.readouterr().err
    assert "the server ended and is started again" in told
    assert "device 0 ended and is started again" in told
    assert "device 1" not in told


def test_a_server_that_gives_up_ends_all(tmp_path):
    assert federation_cli._supervise(program("raise SystemExit(1)"), [FOREVER], tmp_path) == 1


def test_a_device_that_cannot_run_ends_all(tmp_path):
    with pytest.raises(UserError, match=r"device 1 cannot run: see .*device-1.log"):
        federation_cli._supervise(FOREVER, [FOREVER, program("raise SystemExit(2)")], tmp_path)


def test_the_first_signal_ends_the_server_after_the_round_and_the_second_at_once(capfd):
    logs.start("text")
    stop, before = threading.Event(), signal.getsignal(signal.SIGTERM)
    read_again = threading.Event()
    with serve_cli._ended_by_signals(stop, read_again.set):
        signal.raise_signal(signal.SIGHUP)
        assert read_again.wait(10)
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
    end = time.monotonic() + 10
    while not (told := capfd.readouterr().err):
        assert time.monotonic() < end
    assert told.endswith("INFO stopping after this round; a second signal stops at once\n")


@pytest.mark.parametrize(
    ("flags", "command"), [(serve_flags, serve_cli), (device_flags, device_cli)]
)
def test_a_signal_to_read_again_waits_until_there_is_a_handler(monkeypatch, flags, command):
    """While the command starts, which takes seconds."""
    blocked, again = [], threading.Event()

    def start(_options):
        blocked.append(signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        signal.raise_signal(signal.SIGHUP)
        with serve_cli._ended_by_signals(threading.Event(), again.set):
            assert again.wait(10)
        return 0

    monkeypatch.setattr(command, "main", start)
    assert flags.main(None) == 0
    assert blocked == [True]
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [(Stop, 0, "stopped after a round"), (KeyboardInterrupt, 130, "interr")],
)
def test_how_a_server_was_ended_is_its_exit_code(prepared, monkeypatch, capsys, ends, code, said):
    def ended(*_arguments, **_options):
        raise ends

    monkeypatch.setattr(serve_cli, "run_federation", ended)
    assert serve_cli.main(parsed(serve_flags, server_arguments(prepared))) == code
    told = capsys.readouterr().err
    assert f"{said}" in told
    assert "continue with --out" in told


def told_by_a_server(folder, monkeypatch, caplog, *arguments):
    """What a server warns of that is ended as soon as it serves."""

    def ended(_config, _path, site, *_arguments, **_options):
        site.again()
        site.again()
        raise Stop

    monkeypatch.setattr(serve_cli, "run_federation", ended)
    given = [*server_arguments(folder), *arguments]
    assert serve_cli.main(parsed(serve_flags, given)) == 0
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("at", "warned"),
    [("0.0.0.0:0", True), ("127.0.0.1:0", False), ("localhost:0", False), ("off", False)],
)
def test_a_page_that_others_reach_is_warned_of(prepared, monkeypatch, caplog, at, warned):
    told = told_by_a_server(prepared, monkeypatch, caplog, "--status", at)
    said = f"whoever reaches {at} can read the state of the run: it has neither TLS nor a password"
    assert [one.startswith(said) for one in told if "read the state" in one] == [True] * warned


@pytest.mark.parametrize(("age", "a_day", "times"), [(20, 86400.0, 1), (20, -1.0, 3), (1, -1.0, 0)])
def test_a_certificate_that_soon_expires_is_warned_of_once_a_day(
    prepared, monkeypatch, caplog, age, a_day, times
):
    """At the start, and where the server looks at the list: here twice."""
    made = make_certificate(["127.0.0.1"], datetime.now(UTC) - timedelta(days=age))
    (prepared / "server.pem").write_bytes(made.certificate)
    (prepared / "server.key").write_bytes(made.key)
    monkeypatch.setattr(serve_cli, "_A_DAY", a_day)
    told = told_by_a_server(prepared, monkeypatch, caplog)
    about = [one.startswith("devices will not accept") for one in told if "server.pem" in one]
    assert about == [True] * times


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--resume", "--set", "federation.rounds=3"], "was started with federation.rounds = 2"),
        (["--resume", "--set", "federation.rounds=1"], "made longer, never shorter"),
        ([], "add --resume"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused_before_devices_hear_of_it(
    prepared, monkeypatch, more, said
):
    """They would be told of more rounds that are done than there are."""
    given = [one for one in server_arguments(prepared) if one != "--resume"]
    config = serve_cli._config(parsed(serve_flags, given), NUMBER)
    write_run(prepared / "run", config)
    monkeypatch.setattr(serve_cli, "serving", None)
    with pytest.raises(RunDirectoryError, match=said):
        serve_cli.main(parsed(serve_flags, [*given, *more]))


def test_a_folder_that_another_server_uses_is_refused_and_the_first_goes_on(prepared, monkeypatch):
    given = server_arguments(prepared)
    config = serve_cli._config(parsed(serve_flags, given), NUMBER)
    run, second = RunDirectory(prepared / "run"), parsed(serve_flags, given)
    alone = parsed(serve_flags, [one for one in given if one != "--resume"])
    with run.claim(config, resume=True):
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        for options in (second, alone):
            with pytest.raises(RunDirectoryError, match="run is in use by another process: wait"):
                serve_cli.main(options)
        after = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        assert after == before
    monkeypatch.setattr(serve_cli, "serving", None)
    with pytest.raises(TypeError):  # once it has ended, the other gets as far as to serve
        serve_cli.main(second)


@pytest.mark.parametrize(
    ("theta", "event", "said"),
    [
        ("1/2", {"kept_devices": 3, "epsilon": 1.0}, "round 1 of 2: 4 sums, about 3 passed the"),
        ("1", {"kept_devices": 3, "epsilon": 1.0}, "round 1 of 2: 4 sums, 0.5 s"),
        ("1/2", {"aborted": "too few"}, "round 1 of 2: lost, because too few, 0.5 s"),
    ],
)
def test_a_line_of_a_round_tells_of_a_filter_where_there_is_one(caplog, theta, event, said):
    caplog.set_level("INFO")
    lines = serve_cli._Lines()
    lines.begin(build_config([SETTINGS, {"federation": {"theta": theta}}]), 0)
    lines.played({"round": 1, "secure_sums": 4, "wall_s": 0.5, **event})
    assert caplog.records[-1].getMessage().startswith(said)


def test_which_address_is_taken_is_told(prepared):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for flag in ("--listen", "--status"):
            given = [*server_arguments(prepared), flag, taken]
            with pytest.raises(UserError, match=f"in use; choose another {flag}"):
                serve_cli.main(parsed(serve_flags, given))


def test_of_the_model_of_one_level_the_numbers_are_counted():
    two = build_config([SETTINGS, {"federation": {"levels": ["1", "1/2"]}}])
    assert serve_cli._num_parameters(two, ModelSpec("linear", (64,), 10)) == 640
    with pytest.raises(ConfigError, match=r"model\.name"):
        serve_cli._num_parameters(
            build_config([SETTINGS, {"model": {"name": "convnet"}}]), ModelSpec("convnet", (1,), 10)
        )


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (10, "the run ends with the first round that is lost"),
        (20, "the run ends with the first round that is lost"),
        (21, "the run goes on after 1 lost rounds in a row"),
        (500, "the run goes on after 2 lost rounds in a row"),
    ],
)
def test_how_many_rounds_may_be_lost_is_said_at_the_start(listed, said, caplog):
    """Of ten of the devices in each; eleven are needed for a secure round."""
    size = serve_cli._num_parameters(build_config([SETTINGS]), ModelSpec("linear", (64,), 10))
    assert size == 640
    once = {"policy": {"max_rounds_per_model": 1}}
    caplog.set_level("INFO")
    serve_cli._say_losable(build_config([SETTINGS, once]), size, listed)
    serve_cli._say_losable(build_config([SETTINGS]), size, listed)
    told, repeated = (one.getMessage() for one in caplog.records)
    assert told.startswith(said)
    assert repeated.startswith("the run goes on after 2 lost rounds in a row")


def test_a_device_ends_by_a_signal_between_two_messages(prepared, monkeypatch):
    async def taking_part(_server, _side, _say, stop, _patience):
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()

    monkeypatch.setattr(device_cli, "take_part", taking_part)
    before = signal.getsignal(signal.SIGTERM)
    options = argparse.Namespace(out=prepared, port=1)
    try:
        assert device_cli.main(parsed(device_flags, federation_cli._device(options, 3)[4:])) == 0
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_device_says_that_its_ledger_is_new(prepared, monkeypatch, caplog):
    """If it was lost, nothing is counted that this identity has answered."""

    async def taking_part(*_):
        pass

    monkeypatch.setattr(device_cli, "take_part", taking_part)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    caplog.set_level("INFO")
    given = federation_cli._device(argparse.Namespace(out=prepared, port=1), 3)[4:]
    for _ in range(2):
        device_cli.main(parsed(device_flags, given))
    told = [one.getMessage() for one in caplog.records if "ledger" in one.getMessage()]
    path = prepared / "device-3.ledger"
    assert told == [
        f"a new ledger is begun, {path}: an identity that had another one is to be replaced"
    ]


def test_devices_are_there_until_the_server_has_ended_its_round(tmp_path):
    """It takes half a second for it, once it is told to stop; Ctrl-C is for this process alone."""
    (tmp_path / "run").mkdir()
    stops = (
        "import pathlib, signal, time; seen = pathlib.Path({0!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep({1}), seen.write_text(str("
        "time.monotonic())), exit(0)))\n"
        "pathlib.Path({0!r} + '-ready').touch(); time.sleep(60)\n"
    )
    server, device = tmp_path / "server", tmp_path / "device"

    def interrupt():
        while not all(path.with_name(f"{path.name}-ready").exists() for path in (server, device)):
            time.sleep(0.02)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    before, timer = signal.getsignal(signal.SIGTERM), threading.Thread(target=interrupt)
    timer.start()
    try:
        asked = program(stops.format(str(server), 0.5)), program(stops.format(str(device), 0))
        with pytest.raises(KeyboardInterrupt):
            federation_cli._supervise(asked[0], asked[1:], tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
        timer.join()
    assert float(server.read_text()) < float(device.read_text())


def options_of(folder, listed, *more):
    """Of a server whose settings are no more than an algorithm, with so many devices."""
    settings = folder / "own.toml"
    settings.write_text('[federation]\nalgorithm = "private-fedavg"\n')
    given = ["--devices", str(folder / "devices.txt"), "--out", str(folder / "run")]
    return serve_cli._config(parsed(serve_flags, [str(settings), *given, *more]), listed)


@pytest.mark.parametrize(
    ("listed", "cohort", "fewest"), [(2, 2, 2), (3, 3, 3), (9, 9, 9), (14, 14, 10), (50, 20, 10)]
)
def test_what_settings_leave_out_follows_from_the_list(tmp_path, listed, cohort, fewest):
    config = options_of(tmp_path, listed)
    assert (config.federation.cohort_size, config.privacy.min_cohort) == (cohort, fewest)
    serve_cli._preflight(config, 640, listed, tmp_path)  # and it works
    write_run(tmp_path / "run", config)
    assert options_of(tmp_path, 1 + listed, "--resume") == config  # as it was begun
    given = options_of(tmp_path, listed, "--set", "privacy.min_cohort=2")
    assert given.privacy.min_cohort == 2


def test_a_run_whose_list_got_shorter_is_gone_on_with(tmp_path):
    """As it is by a server that was not started again."""
    more = "--set", "privacy.min_cohort=3", "--set", "federation.cohort_size=5"
    config = options_of(tmp_path, 5, *more)
    with pytest.raises(ConfigError, match="more than the 4 training devices"):
        serve_cli._preflight(config, 640, 4, tmp_path)
    serve_cli._preflight(serve_cli._with_fewer(config, 4), 640, 4, tmp_path)
    with pytest.raises(ConfigError, match=r"min_cohort = 3.*3 devices are the fewest"):
        serve_cli._preflight(serve_cli._with_fewer(config, 2), 640, 2, tmp_path)
    resumed = parsed(serve_flags, ["--devices", "x", "--out", str(tmp_path), "--resume"])
    assert not serve_cli._has_begun(resumed)
    write_run(tmp_path, config)
    assert serve_cli._has_begun(resumed)
    assert serve_cli._with_fewer(config, 9) == config


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("federation.cohort_size=20", "more than the 3 training devices of"),
        ("privacy.min_cohort=10", r"cohort_size = 3: must be at least privacy\.min_cohort = 10"),
        (
            "federation.algorithm=private-delta-fl",
            "theta = 1/2 keeps 1 of 3 devices.* 4 devices are the fewest",
        ),
    ],
)
def test_what_a_small_fleet_cannot_do_is_refused_before_anybody_waits(tmp_path, more, said):
    with pytest.raises(ConfigError, match=said):
        serve_cli._preflight(options_of(tmp_path, 3, "--set", more), 640, 3, tmp_path)


@pytest.mark.parametrize(("listed", "accepted"), [(2, 2), (3, 3), (4, 4), (30, 10)])
def test_a_device_accepts_sums_over_a_fleet_that_its_own_list_says_is_small(listed, accepted):
    policy = policy_of(build_config([of_few(listed)]), own=True)
    assert policy.min_cohort == accepted


def test_a_list_and_a_certificate_are_read_again(prepared, caplog):
    """What is wrong is told, and changes nothing."""
    caplog.set_level("INFO")
    door = Door(DeviceList(prepared / "devices.txt"), None)
    post = Post(time.monotonic, 1)
    line = post.connect(ClientId(3), lambda: None)
    lines = (prepared / "devices.txt").read_text().splitlines()
    (prepared / "devices.txt").write_text("\n".join(x for x in lines if not x.startswith("3 ")))
    serve_cli._read_again(door, post, NUMBER - 1)
    assert not line.is_open
    assert "not on the list any more" in line.because
    (prepared / "devices.txt").write_text("nonsense")
    serve_cli._read_again(door, post, NUMBER)
    assert len(door.devices.keys) == NUMBER - 1
    first, second = (one.getMessage() for one in caplog.records)
    assert first.startswith("9 devices are on the list: 0 new, 1 removed")
    assert second.startswith("the list stays as it was")


@pytest.mark.parametrize(
    ("listed", "said"),
    [(4, []), (3, ["a round needs 4 devices, and 3 are on the list: the run ends with the next"])],
)
def test_a_list_that_is_too_short_for_a_round_is_warned_of_at_once(prepared, caplog, listed, said):
    door, path = Door(DeviceList(prepared / "devices.txt"), None), prepared / "devices.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:listed]))
    serve_cli._read_again(door, Post(time.monotonic, 1), 4)
    assert len(door.devices.keys) == listed
    told = [one.getMessage()[:73] for one in caplog.records if one.levelname == "WARNING"]
    assert told == [one[:73] for one in said]


def test_a_device_reads_its_list_again_by_a_signal(prepared, monkeypatch, caplog):
    """One that is too short for the rounds that it takes part in is taken, and warned of."""
    path, sides = prepared / "devices.txt", []

    async def taking_part(_server, side, _say, _stop, _patience):
        sides.append(side)
        caplog.clear()  # of what is said before it takes part
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
        signal.raise_signal(signal.SIGHUP)
        end = time.monotonic() + 20
        while len(caplog.records) < 2:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)

    caplog.set_level("INFO")
    monkeypatch.setattr(device_cli, "take_part", taking_part)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    given = federation_cli._device(argparse.Namespace(out=prepared, port=1), 0)[4:]
    try:
        assert device_cli.main(parsed(device_flags, given)) == 1  # the run is not over
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert len(sides[0].directory.keys) == NUMBER - 1
    first, second = (one.getMessage() for one in caplog.records)
    assert first.startswith("9 devices are on the list")
    assert second == "the list has 9 devices, and this one declines rounds of fewer than 10"


@pytest.mark.parametrize(
    ("label", "module", "complaint", "told"),
    [
        ("maybe", "", "a label is 'maybe', and the classes are no, yes", b""),
        ("no", "clinic.models:net", r"--set own\.module=clinic\.models:net", b"own.module = 'clin"),
    ],
)
def test_a_device_that_does_not_fit_declines_and_ends(
    prepared, monkeypatch, label, module, complaint, told
):
    """It says what is wrong, and has answered nothing. Of its data, the server hears nothing."""
    (prepared / "mine.csv").write_text(f"a,answer\n1,yes\n2,{label}\n")
    said = {"label_column": "answer", "feature_columns": ["a"], "classes": ["no", "yes"]}
    settings = to_toml(build_config([SETTINGS, {"data": said, "own": {"module": module}}])).encode()
    answers = []

    async def taking_part(_server, side, _say, stop, _patience):
        answers.append(decode(side.receive(encode(Task(bytes(16), 0, 0, settings)))))
        assert stop.is_set()

    monkeypatch.setattr(device_cli, "take_part", taking_part)
    monkeypatch.setattr(device_cli, "say", lambda _sentence: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    given = ["--server", "ws://127.0.0.1:1", "--data", str(prepared / "mine.csv")]
    own = str(prepared / "device-3.identity")
    given += ["--identity", own, "--devices", str(prepared / "devices.txt")]
    with pytest.raises((DataError, NotAllowedError), match=complaint):
        device_cli.main(parsed(device_flags, given))
    (answer,) = answers
    assert replace(answer, detail=b"") == Decline(bytes(16), Reason.SETTINGS)
    assert answer.detail[:18] == told


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (['data.classes=["no","yes"]'], "belong together"),
        (['data.feature_columns=["a","b"]'], "belong together"),
        (['data.feature_columns=["a","b"]', 'data.classes=["no"]'], "at least two"),
        (['data.feature_columns=["a"]', 'data.classes=["n","y"]', "data.means=[1,2]"], "2 numb"),
        (["own.module=nowhere.at:all"], "'nowhere' is not installed here"),
        ([f"data.classes={['x' * 999 + str(n) for n in range(70)]}"], "devices take up to"),
    ],
)
def test_what_the_server_cannot_state_is_said(prepared, stated, said):
    given = [*server_arguments(prepared)]
    for one in stated:
        given += ["--set", one]
    with pytest.raises((UserError, DataError), match=said):
        serve_cli.main(parsed(serve_flags, given))
