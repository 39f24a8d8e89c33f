"""`deltafl watch`: a page at an address, or in a file; what it refuses."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from made_runs import make_run

from deltafl.sim.cli import main
from deltafl.sim.view import watch


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{folder}/run/record.sqlite"], "is not a directory"),
        (["{folder}/run", "--listen", "8090"], "must be HOST:PORT"),
        (["{folder}/run", "--listen", "127.0.0.1:99999"], "must be HOST:PORT"),
        (["{folder}/run", "--listen", "192.0.2.1:8090"], "choose another address"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, capsys, arguments, words):
    make_run(tmp_path / "run", finished=True)
    assert main(["watch", *(one.format(folder=tmp_path) for one in arguments)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    reason="interrupts are ignored here, as in a job in the background of a shell",
)
def test_the_page_is_served_until_the_user_ends_it(tmp_path):
    make_run(tmp_path / "run")
    command = [sys.executable, "-m", "deltafl", "watch", str(tmp_path / "run")]
    with subprocess.Popen(  # noqa: S603 - our own command
        [*command, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stderr.readline()
            (url,) = re.findall(r"http://127\.0\.0\.1:\d+/", line)
            with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - our own address
                assert b"Test error" in answer.read()
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_of_a_federation_on_this_machine_the_run_in_its_folder_is_shown(tmp_path, monkeypatch):
    make_run(tmp_path / "run", finished=True)
    (tmp_path / "devices.txt").write_text("")
    shown = []

    def server(watched, *_):
        shown.append(watched.path)
        return nullcontext(SimpleNamespace(url="", serve_forever=lambda: None))

    monkeypatch.setattr(watch, "Server", server)
    assert main(["watch", str(tmp_path)]) == 0
    assert shown == [tmp_path / "run"]


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("address", "is_noted"), [("localhost:0", False), ("::1:0", False), ("0.0.0.0:0", True)]
)
def test_who_lets_others_reach_the_page_is_told(tmp_path, monkeypatch, capsys, address, is_noted):
    if address.startswith("::") and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    make_run(tmp_path / "run", finished=True)
    monkeypatch.setattr(watch.Server, "serve_forever", lambda _: None)
    assert main(["watch", str(tmp_path / "run"), "--listen", address]) == 0
    assert ("note: others can reach" in capsys.readouterr().err) == is_noted
