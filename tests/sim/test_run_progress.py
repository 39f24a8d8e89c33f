import fcntl
import io
import os
import pty
import select
import struct
import sys
import termios
from dataclasses import replace
from types import SimpleNamespace

import pytest

from deltafl.fl.metrics import Summary
from deltafl.sim.errors import RunDirectoryError
from deltafl.sim.run.experiment import run_experiment
from deltafl.sim.run.progress import ProgressBars

ROUND = {"eta": 1.25, "kept_weight": 60, "secure_sums": 12}
FOUND = Summary(mean=0.16, percentiles={90: 0.355})


def played(config):
    """Two rounds of a run, with an evaluation between them."""
    bars = ProgressBars()
    bars.begin(config, 0)
    bars.played(ROUND)
    bars.evaluated(1, {"test": FOUND})
    bars.played(ROUND)
    bars.close()


@pytest.mark.parametrize("columns", [80, 200])
def test_at_any_width_the_errors_are_seen(monkeypatch, tiny, columns):
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    longest = replace(tiny, federation=replace(tiny.federation, algorithm="private-tilted-erm"))
    with os.fdopen(ours, "rb") as reader, os.fdopen(terminal, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        played(longest)
        drawn = b""
        while select.select([reader], [], [], 0)[0]:  # a terminal hands over so much at a time
            drawn += os.read(reader.fileno(), 1 << 16)
    last = [line for line in drawn.decode().split("\r") if line.strip()][-1]
    assert len(last.rstrip()) <= columns
    assert "error 16.0%, p90 35.5%" in last
    assert ("12 secure sums" in last) is (columns == 200)  # what matters less is cut off


def test_in_a_file_each_run_has_its_lines(monkeypatch, tiny):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    played(tiny)
    lines = sys.stderr.getvalue().splitlines()
    assert lines[0].startswith("delta-fl seed 1: 0/4")
    assert lines[-1].endswith("error 16.0%, p90 35.5%, η=1.250, kept weight 60, in clear")


def test_a_lost_round_is_said_and_no_threshold_with_it(monkeypatch, tiny):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    bars = ProgressBars()
    bars.begin(tiny, 0)
    bars.played({"aborted": "everybody vanished", "secure_sums": 3})
    bars.close()
    assert sys.stderr.getvalue().splitlines()[-1].endswith("left, round lost, in clear")


class Counted:
    """In place of a bar: how far each got, and of how many."""

    def __init__(self):
        self.bars = []

    def __call__(self, total, initial, **_):
        self.bars.append(bar := SimpleNamespace(total=total, at=[initial]))
        bar.update = lambda: bar.at.append(bar.at[-1] + 1)
        bar.set_postfix_str = lambda *_, **__: None
        bar.close = lambda: None
        return bar


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "shown"), [(2, []), (3, [(3, [2, 3])]), (1, "made longer, never shorter")]
)
def test_a_run_that_is_gone_on_with_is_never_beyond_its_last_round(
    tmp_path, tiny, no_figures, rounds, shown
):
    def run(number, resume):
        counted = Counted()
        config = replace(tiny, federation=replace(tiny.federation, rounds=number))
        bars = ProgressBars(new=counted)
        run_experiment(config, tmp_path / "run", resume=resume, progress=bars, warn=print)
        return [(bar.total, bar.at) for bar in counted.bars]

    assert run(2, resume=False) == [(2, [0, 1, 2])]
    if isinstance(shown, str):
        with pytest.raises(RunDirectoryError, match=shown):
            run(rounds, resume=True)
    else:
        assert run(rounds, resume=True) == shown
