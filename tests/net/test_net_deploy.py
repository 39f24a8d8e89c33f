"""The files of docs/deploy: each command in them is understood, each metric is exported."""

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from deltafl.secagg import TrustedKeys
from deltafl.sim import cli
from deltafl.sim.net.admission import Door
from deltafl.sim.net.post import Post
from deltafl.sim.net.status import Status
from deltafl.sim.parser import Parser
from deltafl.sim.settings.config_io import build_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "deploy"
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
UNITS = sorted(FOLDER.glob("*.service"))
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
OURS = {name: one for name, one in COMPOSE["services"].items() if one["image"] == "deltafl"}


def started(unit):
    """The words that a unit starts, without its program."""
    text = unit.read_text(encoding="utf-8").replace("\\\n", " ")
    return shlex.split(re.search("^ExecStart=(.*)$", text, re.MULTILINE)[1])[1:]


COMMANDS = {
    **{unit.name: started(unit) for unit in UNITS},
    **{name: shlex.split(one["command"]) for name, one in OURS.items()},
    **{line: shlex.split(line) for line in re.findall(r"\b(enrol [0-9].*)$", PAGE, re.MULTILINE)},
}


def understood(words):
    """The options of a command, by its own parser."""
    name, *arguments = words
    parser = Parser(prog=name)
    cli._module((name,)).add_arguments(parser)
    return parser.parse_args(arguments)


def test_there_are_commands():
    assert {words[0] for words in COMMANDS.values()} == {"serve", "device", "enrol"}
    assert len(COMMANDS) == 6


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_understood(name):
    options = understood(COMMANDS[name])
    if COMMANDS[name][0] == "serve":  # started again, it goes on; else it would be refused
        assert options.resume
        assert options.status == "127.0.0.1:8081"


def test_a_flag_that_is_not_there_is_found(capsys):
    with pytest.raises(SystemExit):
        understood([*COMMANDS["device"], "--patiently"])
    assert "no flag --patiently" in capsys.readouterr().err


def test_the_identity_and_its_ledger_are_where_a_device_may_write():
    assert understood(COMMANDS["device"]).identity.parts[1] == "state"
    assert "device:/state" in OURS["device"]["volumes"]
    made = {understood(w).out for w in COMMANDS.values() if w[0] == "enrol"}
    service = str(understood(COMMANDS["deltafl-device.service"]).identity)
    asked = {understood(COMMANDS["device"]).identity, Path(service.replace("%S", "/var/lib"))}
    assert made == asked


def test_a_round_is_given_the_time_that_an_answer_may_take():
    longest = understood(COMMANDS["server"]).most_wait
    unit = (FOLDER / "deltafl-serve.service").read_text(encoding="utf-8")
    assert OURS["server"]["stop_grace_period"] == "15m"
    assert "TimeoutStopSec=15min" in unit
    assert longest < 15 * 60


def test_containers_find_what_their_commands_name():
    for name, one in OURS.items():
        inside = {path.split(":")[1] for path in one["volumes"]} | {"/run/secrets"}
        named = [word for word in COMMANDS[name] if word.startswith("/")]
        assert named
        assert all(any(word.startswith(f"{here}/") for here in inside) for word in named)
        assert {f"/run/secrets/{secret}" for secret in one.get("secrets", ())} <= set(named)
    assert set(OURS["server"]["secrets"]) == set(COMPOSE["secrets"])
    used = {v.split(":")[0] for one in COMPOSE["services"].values() for v in one["volumes"]}
    assert {volume for volume in used if not volume.startswith(".")} == set(COMPOSE["volumes"])


def test_a_container_gets_every_folder_that_the_package_links_to():
    lines = (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]}
    links = [one for one in (ROOT / "src" / "deltafl").iterdir() if one.is_symlink()]
    assert {os.readlink(one).removeprefix("../../") for one in links} | {"src"} <= copied
    assert all((ROOT / one).exists() for one in copied)
    assert OURS["server"]["build"] == OURS["device"]["build"]
    assert (FOLDER / OURS["server"]["build"]["context"]).resolve() == ROOT
    assert (ROOT / OURS["server"]["build"]["dockerfile"]).is_file()


def exported():
    """The names of the server's metrics."""
    config = build_config([{"federation": {"rounds": 2}}])
    text = Status(config, Post(time.monotonic, 2), Door(TrustedKeys({}), None)).metrics()
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


def lost(text):
    """Metrics that are asked for, and not exported."""
    return set(re.findall(r"\bdeltafl_\w+", text)) - exported()


def test_the_board_and_the_page_ask_for_metrics_that_are_exported():
    board = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 10
    assert not lost(" ".join(asked).replace("deltafl_.+", ""))
    assert not lost(PAGE)
    assert lost("rate(deltafl_trips_totals[5m])") == {"deltafl_trips_totals"}


def test_prometheus_asks_where_the_server_answers():
    """In the server's network: its own address, to which the metrics are bound."""
    asked = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])["scrape_configs"]
    address = understood(COMMANDS["server"]).status
    assert asked[0]["static_configs"] == [{"targets": [address]}]
    assert COMPOSE["services"]["prometheus"]["network_mode"] == "service:server"
    assert f"http://{address}/healthz" in OURS["server"]["healthcheck"]["test"][-1]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd is here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit, tmp_path):
    def complaints(text):
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
        done = subprocess.run(  # noqa: S603
            [shutil.which("systemd-analyze"), "verify", str(tmp_path / unit.name)],
            capture_output=True,
            text=True,
            check=False,
        )
        return [line for line in done.stderr.splitlines() if unit.name in line]

    text = unit.read_text(encoding="utf-8")
    here = text.replace("/opt/deltafl/bin/deltafl", shutil.which("true"))
    assert complaints(here) == []
    assert complaints(here.replace("NoNewPrivileges", "NoOtherPrivileges"))
