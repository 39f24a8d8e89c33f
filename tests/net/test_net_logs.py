"""Lines of servers and devices, and how few of them strangers can cause."""

import json
import logging

import pytest

from deltafl.sim.net import logs
from deltafl.sim.net.logs import Cause, Refusals, say


@pytest.fixture(autouse=True)
def _as_before():
    """What is logged goes where it went before."""
    loggers = [logging.getLogger(name) for name in ("deltafl", "uvicorn", "asyncio")]
    before = [[*one.handlers] for one in loggers]
    yield
    for one, handlers in zip(loggers, before, strict=True):
        one.handlers[:] = handlers


def test_a_line_has_its_time_level_and_fields(capsys):
    logs.start("text")
    say("a\nb\x1b[2J", logging.WARNING, reason="key", device=7, peer=None)
    said = capsys.readouterr().err
    time, rest = said.split(" ", 1)
    assert len(time) == len("2026-11-28T03:17:44Z")
    assert rest == "WARNING a\\nb\\x1b[2J reason=key device=7\n"


def test_a_line_is_json_if_asked_for(capsys):
    logs.start("json")
    say("hello", device=7)
    line = json.loads(capsys.readouterr().err)
    assert line.pop("time").endswith("Z")
    assert line == {"level": "INFO", "message": "hello", "device": 7}


def test_errors_of_others_are_a_line_and_no_traceback(capsys):
    logs.start("text")
    try:
        raise ValueError("x")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    assert capsys.readouterr().err.count("\n") == 1


def test_of_each_cause_few_lines_are_logged_and_all_are_counted(caplog):
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for _ in range(1000):
        refusals.note(Cause.KEY, "wrong", device=7)
    refusals.note(Cause.TLS, "other")
    assert [one.getMessage() for one in caplog.records] == 5 * ["wrong"] + ["other"]
    now[0] = 30.0
    refusals.note(Cause.KEY, "wrong")
    refusals.note(Cause.KEY, "wrong")
    last = caplog.records[-1].getMessage()
    assert last == "wrong (995 more of this cause were not logged)"
    assert len(caplog.records) == 7
    assert refusals.counts == {Cause.KEY: 1002, Cause.TLS: 1}
