"""The live page: what it answers, to whom, and how it follows a run in a browser."""

import http.client
import json
import shutil
import socket
import threading
from contextlib import ExitStack, contextmanager
from urllib.parse import quote

import pytest
from browsing import Visit, started_browser
from made_runs import event, make_run

from deltafl.sim.errors import UserError
from deltafl.sim.inspect.audit.html.verdict import Verdict
from deltafl.sim.record.events import add_event
from deltafl.sim.record.record import write_record
from deltafl.sim.record.rundir import RunDirectory
from deltafl.sim.view.sections import AuditState
from deltafl.sim.view.watch import MAX_CONNECTIONS, Audit, Server, Watched


@contextmanager
def served(path, **options):
    clock = iter(range(0, 10_000, 5))  # every reading is a new one
    server = Server(Watched(path, clock=lambda: next(clock)), "127.0.0.1", 0, **options)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, path, *, method="GET", **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_the_page_and_its_state_are_served_with_a_strict_policy(tmp_path):
    make_run(tmp_path / "run")
    with served(tmp_path / "run") as server:
        status, headers, text = ask(server, "/")
        assert status == 200
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert text.startswith("<!DOCTYPE html>")
        status, headers, text = ask(server, "/state.json")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        state = json.loads(text)
        assert state["labels"] == ["delta-fl, θ = 0.5", "fedavg"]
        assert "Test error" in state["sections"]["errors"]
        assert ask(server, "/../../etc/passwd")[0] == 404
        assert ask(server, "/audit.html")[0] == 404


def test_what_methods_are_compared_with_can_be_chosen(tmp_path):
    make_run(tmp_path / "run")
    with served(tmp_path / "run") as server:
        for wanted, expected in (
            ("", "fedavg"),
            ("delta-fl, θ = 0.5", "delta-fl, θ = 0.5"),
            ("nonsense", "fedavg"),
        ):
            state = json.loads(ask(server, f"/state.json?baseline={quote(wanted)}")[2])
            assert state["baseline"] == expected


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:8090", 200),
        ("[::1]:8090", 200),
        ("rebound.example", 421),
        ("rebound.example:8090", 421),
        ("127.0.0.1.example", 421),
        ("", 421),
        ("[", 421),
        ("[::1%25<b>]", 421),
        ("evil.example@127.0.0.1", 421),
        ("127.0.0.1/.evil.example", 421),
        ("127.0.0.1?evil.example", 421),
        ("2130706433", 421),
    ],
)
def test_only_who_names_this_machine_is_answered(tmp_path, host, status):
    make_run(tmp_path / "run")
    with served(tmp_path / "run") as server:
        assert ask(server, "/state.json", Host=host)[0] == status
        assert ask(server, "/audit", method="POST", Host=host)[0] == (421 if status == 421 else 403)


def test_only_the_page_itself_may_ask_for_an_audit(tmp_path, monkeypatch):
    make_run(
        tmp_path / "run",
        algorithm="private-delta-fl",
        finished=True,
        federation={"cohort_size": 10},
    )
    asked = []
    monkeypatch.setattr("deltafl.sim.view.watch.Audit.start", lambda one: asked.append(one))
    with served(tmp_path / "run") as server:
        own = f"127.0.0.1:{server.server_address[1]}"
        for origin in ("http://evil.example", "null", f"https://{own}"):
            assert ask(server, "/audit", method="POST", Host=own, Origin=origin)[0] == 403
        assert ask(server, "/audit", method="POST", Host=own)[0] == 403
        assert asked == []
        for _ in range(2):
            answer = ask(server, "/audit", method="POST", Host=own, Origin=f"http://{own}")
            assert answer[0] == 202
        assert len(asked) == 1
        assert ask(server, "/elsewhere", method="POST", Host=own, Origin=f"http://{own}")[0] == 404


def test_a_run_that_is_not_over_is_not_audited(tmp_path, monkeypatch):
    make_run(tmp_path / "run", algorithm="private-delta-fl", federation={"cohort_size": 10})
    monkeypatch.setattr("deltafl.sim.view.watch.Audit.start", pytest.fail)
    watched = Watched(tmp_path / "run")
    watched.ask_audit()
    assert watched.page().audit.state == "early"


def test_an_address_that_is_taken_is_refused_in_a_sentence(tmp_path):
    with (
        served(tmp_path / "run") as server,
        pytest.raises(UserError, match=r"cannot listen at 127\.0\.0\.1:.*choose another"),
    ):
        Server(Watched(tmp_path / "run"), *server.server_address[:2])


def sent(server, data):
    """What is answered to these bytes, to the end."""
    with socket.create_connection(server.server_address[:2], timeout=20) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


HOST = b"Host: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"<script>alert(1)</script> / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n", 501),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Host: rebound.example\r\n\r\n", 421),
        (b"GET / HTTP/1.0\r\n\r\n", 421),
        (b"GET http://[/ HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET http://rebound.example/state.json HTTP/1.1\r\n" + HOST + b"\r\n", 404),
        (b"GET /state.json?" + b"&a=1" * 1000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 200),
        (b"GET /state.json?baseline=\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n", 200),
    ],
)
def test_whatever_is_sent_is_answered_in_plain_text_and_not_repeated(
    tmp_path, capsys, request_, status
):
    make_run(tmp_path / "run")
    with served(tmp_path / "run") as server:
        head, _, body = sent(server, request_).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.0 {status} ".encode())
    assert b"default-src 'none'" in head
    assert b"nosniff" in head
    assert b"script>" not in head
    if status != 200:
        assert b"text/plain" in head
        assert b"<" not in body
    assert b"Server: deltafl\r\n" in head
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("site", "mode", "status"),
    [
        ("same-origin", "cors", 200),
        ("none", "navigate", 200),
        ("cross-site", "navigate", 200),  # a link that somebody has followed
        ("cross-site", "no-cors", 403),
        ("cross-site", "cors", 403),
        ("same-site", "cors", 403),  # another port of this machine
    ],
)
def test_what_other_sites_fetch_is_refused(tmp_path, site, mode, status):
    make_run(tmp_path / "run")
    told = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
    with served(tmp_path / "run") as server:
        for path in ("/", "/state.json"):
            assert ask(server, path, **told)[0] == status


def test_who_sends_slowly_makes_room_for_who_comes_later(tmp_path):
    make_run(tmp_path / "run")
    with served(tmp_path / "run") as server, ExitStack() as slow:
        several = []
        for _ in range(MAX_CONNECTIONS + 8):
            one = socket.create_connection(
                server.server_address[:2], timeout=5
            )  # not the server's 20
            several.append(slow.enter_context(one))
            one.sendall(b"GET / HTTP/1.1\r\nHost:")  # and no more
        assert ask(server, "/")[0] == 200
        assert [one.recv(1) for one in several[:9]] == [b""] * 9  # hung up on
        several[-1].sendall(b" 127.0.0.1\r\n\r\n")  # this one has only been slow
        assert several[-1].recv(8) == b"HTTP/1.0"


def test_an_audit_of_another_run_is_not_that_of_this_one(tmp_path, monkeypatch):
    what = {"algorithm": "private-delta-fl", "finished": True, "federation": {"cohort_size": 10}}
    make_run(tmp_path / "run", **what)
    monkeypatch.setattr("deltafl.sim.view.watch.Audit.start", lambda one: setattr(one, "report", 1))
    monkeypatch.setattr("deltafl.sim.view.watch.verdict", lambda _: None)
    monkeypatch.setattr("deltafl.sim.view.watch.render", lambda _: "the report")
    clock = iter(range(0, 10_000, 5))
    watched = Watched(tmp_path / "run", clock=lambda: next(clock))
    watched.ask_audit()
    assert (watched.page().audit.state, watched.audit_report()) == ("done", "the report")
    shutil.rmtree(tmp_path / "run")
    make_run(tmp_path / "run", devices=9, **what)
    assert (watched.page().audit.state, watched.audit_report()) == ("ready", None)


def test_an_audit_that_a_fault_of_ours_ends_has_ended(tmp_path, monkeypatch):
    def failed(_path, *, progress):
        del progress
        raise IndexError("list index out of range")

    monkeypatch.setattr("deltafl.sim.view.watch.audit", failed)
    one = Audit(tmp_path)
    with pytest.raises(IndexError):  # a thread's goes to the terminal
        one._run()
    assert one.state().state == "failed"
    assert "cannot be audited: list index out of range" in one.state().sentence


def test_an_audit_says_how_far_it_is_and_why_it_failed(tmp_path, monkeypatch):
    what = {"algorithm": "private-delta-fl", "finished": True, "federation": {"cohort_size": 10}}
    make_run(tmp_path / "run", **what)
    said, done = [], threading.Event()
    watched = Watched(tmp_path / "run")

    def failed(_path, *, progress):
        progress(1, 4, 1)
        said.append(watched.page().audit)
        done.set()
        raise OSError("it is gone")

    monkeypatch.setattr("deltafl.sim.view.watch.audit", failed)
    watched.ask_audit()
    assert done.wait(60)
    assert (said[0].state, said[0].done) == ("running", 0.25)
    for thread in threading.enumerate():
        if thread.daemon and thread.name.endswith("(_run)"):
            thread.join(60)
    found = watched.page().audit
    assert (found.state, found.sentence) == ("failed", "The run cannot be audited: it is gone")
    assert watched.audit_report() is None


def test_the_report_of_an_audit_is_a_page(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    monkeypatch.setattr(Watched, "audit_report", lambda _: "the report")
    with served(tmp_path / "run") as server:
        status, headers, text = ask(server, "/audit.html")
    assert (status, text) == (200, "the report")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"


# in a browser


@pytest.fixture(scope="module")
def browser():
    with started_browser() as started:
        yield started


def until(page, holds):
    """Wait until something holds; the page's policy keeps the browser from looking for it."""
    for _ in range(600):
        if holds():
            return
        page.wait_for_timeout(100)
    pytest.fail("it has not come to hold in a minute")


def says(seen, place, text):
    until(seen.page, lambda: text in seen.page.locator(place).inner_text())


@contextmanager
def opened(browser, server):
    with browser.new_context(viewport={"width": 1200, "height": 900}) as context:
        seen = Visit(context.new_page())
        seen.page.goto(server.url)
        until(seen.page, lambda: seen.page.locator("#live").inner_text() != "Looking …")
        yield seen


@pytest.mark.slow
def test_the_page_follows_a_run_that_is_written(tmp_path, browser):
    make_run(tmp_path / "run", played=[1, None, None, None])
    run = RunDirectory(tmp_path / "run")
    with served(tmp_path / "run") as server, opened(browser, server) as seen:
        sentence = seen.page.locator("#status .sentence")
        assert "1 of 16 rounds" in sentence.inner_text()
        with write_record(run.record) as record:
            add_event(record, event(2))  # not kept yet, as a page may find it
            seen.page.wait_for_timeout(2500)
            assert "1 of 16 rounds" in sentence.inner_text()
            record.keep()
        says(seen, "#status .sentence", "2 of 16 rounds")
        own = server.url
        assert {request.url.split("?")[0] for request in seen.requests} == {
            own,
            f"{own}state.json",
        }
        assert seen.complaints == []


@pytest.mark.slow
def test_what_is_open_and_in_focus_stays_so_when_a_section_is_replaced(tmp_path, browser):
    make_run(tmp_path / "run", played=[2, 1, None, None])
    with served(tmp_path / "run") as server, opened(browser, server) as seen:
        summary = seen.page.locator("#costs details.numbers summary").first
        summary.focus()
        summary.press("Enter")
        before = seen.page.locator("#costs").inner_html()
        with write_record(RunDirectory(tmp_path / "run").record) as record:
            add_event(record, event(3, wall_s=9.0))
            record.keep()
        until(seen.page, lambda: seen.page.locator("#costs").inner_html() != before)
        assert seen.page.locator("#costs details.numbers table").first.is_visible()
        assert seen.page.evaluate("document.activeElement.tagName") == "SUMMARY"


@pytest.mark.slow
def test_the_choice_of_what_to_compare_with_works_by_keyboard(tmp_path, browser):
    make_run(tmp_path / "run", finished=True)
    with served(tmp_path / "run") as server, opened(browser, server) as seen:
        assert "delta-fl, θ = 0.5 against fedavg" in seen.page.locator("#paired").inner_text()
        seen.page.locator("#baseline").focus()
        seen.page.keyboard.press("ArrowUp")
        says(seen, "#paired", "fedavg against delta-fl, θ = 0.5")
        assert seen.complaints == []


@pytest.mark.slow
def test_an_audit_that_is_asked_for_is_shown(tmp_path, browser, monkeypatch):
    make_run(
        tmp_path / "run",
        algorithm="private-delta-fl",
        finished=True,
        federation={"cohort_size": 10},
    )
    reached = Verdict("clean", "Nothing was found.", "All was checked.", ())
    monkeypatch.setattr("deltafl.sim.view.watch.Audit.start", lambda _: None)
    monkeypatch.setattr(
        "deltafl.sim.view.watch.Audit.state", lambda _: AuditState("done", 1.0, reached)
    )
    with served(tmp_path / "run") as server, opened(browser, server) as seen:
        seen.page.locator("#ask-audit").press("Enter")
        says(seen, "#audit", "Nothing was found.")
        assert seen.complaints == []


@pytest.mark.slow
def test_the_page_says_when_nobody_answers_any_more(tmp_path, browser):
    make_run(tmp_path / "run")
    with served(tmp_path / "run") as server, opened(browser, server) as seen:
        server.shutdown()
        server.server_close()
        says(seen, "#live", "does not answer")
