import io
import sys
from dataclasses import replace
from fractions import Fraction

import pytest

from deltafl.sim import progress
from deltafl.sim.flags import is_quiet, quieted
from deltafl.sim.progress import EVERY_S, Bar
from deltafl.sim.run.progress import ClippingNote
from deltafl.sim.settings.config import DPConfig, RunConfig


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which only a test lets pass."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(progress, "monotonic", lambda: Clock.now)
    return Clock


def file(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    return sys.stderr


def test_a_file_gets_the_first_and_the_last_line_without_carriage_returns(monkeypatch, clock):
    written = file(monkeypatch)
    with Bar(total=100, desc="run", unit="round", leave=True) as bar:
        for _ in range(100):
            bar.set_postfix_str("error 5.0%")
            bar.update()
    first, last = written.getvalue().splitlines()
    assert first.startswith("run: 0/100")
    assert last.startswith("run: 100/100")
    assert last.endswith(", error 5.0%")
    assert "\r" not in written.getvalue()


def test_a_file_gets_a_line_now_and_then(monkeypatch, clock):
    written = file(monkeypatch)
    with Bar(total=100, desc="run", leave=True) as bar:
        for _ in range(100):
            clock.now += EVERY_S / 10 + 0.001
            bar.n += 1
            bar.refresh()
    assert 10 <= len(written.getvalue().splitlines()) <= 13


def test_what_is_over_soon_and_does_not_stay_leaves_nothing_in_a_file(monkeypatch, clock):
    written = file(monkeypatch)
    for _ in Bar(range(5), desc="masks"):
        pass
    assert written.getvalue() == ""


@pytest.mark.parametrize("quiet", [True, False])
def test_a_terminal_gets_a_bar_unless_it_is_to_be_quiet(monkeypatch, quiet):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with quieted(quiet), Bar(total=2, desc="run", leave=True) as bar:
        bar.update(2)
    assert ("\r" in sys.stderr.getvalue()) is not quiet
    assert ("run: 2/2|" in sys.stderr.getvalue()) is not quiet


def test_quiet_is_over_when_the_command_is():
    with quieted(True), quieted(False):
        assert is_quiet()  # whoever calls a command in a quiet one is quiet
    assert not is_quiet()


def test_without_a_stderr_nothing_is_shown(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with Bar(total=2, desc="run", leave=True) as bar:
        bar.update(2)


def test_a_description_has_one_colon(monkeypatch, clock):
    written = file(monkeypatch)
    with Bar(total=2, desc="first", leave=True) as bar:
        bar.set_description("second")
    assert written.getvalue().splitlines()[-1].startswith("second: 0/2")


@pytest.mark.parametrize(
    ("clipped", "noise", "times"), [(0, 0, 0), (10, 0, 0), (11, 0, 1), (11, 1, 0), (None, 0, 0)]
)
def test_clipping_of_more_than_a_thousandth_is_told_once_a_run(clipped, noise, times):
    told = []
    note = ClippingNote(told.append, lambda: 1000)
    config = replace(RunConfig(), dp=DPConfig(noise=Fraction(noise)))
    for _ in range(2):
        note.begin(config, 0)
        for number in (1, 2):
            note.played({"round": number, "clipped": clipped, "kept_devices": 10})
    assert len(told) == 2 * times
    assert all(
        "0.1% of the numbers that devices gave in round 1 were clipped" in one for one in told
    )
