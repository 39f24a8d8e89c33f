"""A federation on this machine, watched in a browser while it trains."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from browsing import Visit, started_browser

ROUNDS = 4


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


@contextmanager
def started(*arguments, **streams):
    command = [sys.executable, "-m", "deltafl", *arguments]
    with subprocess.Popen(command, text=True, **streams) as process:  # noqa: S603 - our own command
        try:
            yield process
        finally:
            process.terminate()


def held_back(federation, index):
    """Stop this device's process as soon as it is there: no round begins without it for 30 s."""
    for _ in range(6000):
        command = ["pgrep", "-P", str(federation.pid), "-f", f" --index={index} "]
        found = subprocess.run(command, capture_output=True, text=True).stdout  # noqa: S603
        if found:
            os.kill(int(found), signal.SIGSTOP)
            return int(found)
        time.sleep(0.01)
    raise AssertionError(f"device {index} was not started")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pgrep") is None, reason="processes are found by pgrep")
def test_the_page_follows_a_federation_from_before_it_begins_to_its_end(tmp_path):
    folder = tmp_path / "federation"
    settings = [f"federation.rounds={ROUNDS}", "federation.cohort_size=10"]
    given = [part for one in settings for part in ("--set", one)]
    ports = "--port", str(free_port()), "--status", f"127.0.0.1:{free_port()}"
    with (
        started_browser() as browser,
        started(
            *("watch", str(folder / "run"), "--listen", "127.0.0.1:0"), stderr=subprocess.PIPE
        ) as watch,
        browser.new_context(viewport={"width": 1200, "height": 900}) as context,
    ):
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/", watch.stderr.readline())
        seen, said = Visit(context.new_page()), []
        seen.page.goto(url)
        sentence = seen.page.locator("#status .sentence")
        assert "There is no run here yet" in sentence.inner_text()
        with (
            (tmp_path / "log").open("w") as log,
            started(
                *("federation", "up", "--devices", "10", *given, *ports, "--out", str(folder)),
                stdout=log,
                stderr=log,
            ) as federation,
        ):
            late = held_back(federation, 9)
            for _ in range(1200):
                said.append(sentence.inner_text())
                if late and said[-1].startswith(f"0 of {ROUNDS} rounds"):
                    os.kill(late, signal.SIGCONT)
                    late = 0
                if said[-1].startswith(f"{ROUNDS} of {ROUNDS}") or federation.poll():
                    break
                seen.page.wait_for_timeout(100)
            seen.page.wait_for_timeout(2500)  # it looks once more
            assert federation.wait(60) == 0, (tmp_path / "log").read_text()
        assert f"{ROUNDS} of {ROUNDS} rounds of 1 run" in said[-1]
        assert late == 0  # the page said "0 of 4 rounds"
        costs = seen.page.locator("#costs").inner_text()
        for stage in ("advertise", "share", "receipt", "mask", "unmask"):
            assert f"{stage}\tdevices " in costs
        assert "not recorded" not in costs
        assert (
            "Errors of single devices are not known" in seen.page.locator("#devices").inner_text()
        )
        asked = {request.url.partition("?")[0] for request in seen.requests}
        assert asked == {url, f"{url}state.json"}
        assert seen.complaints == []
