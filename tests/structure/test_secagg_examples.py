"""The programs in docs/examples that use `secagg` alone: what they print, and what they refuse."""

import asyncio
import contextlib
import importlib.util
import re
import socket
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from fresh_python import run_python

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
NAMES = ("asyncio_sum", "http_sum", "queue_sum", "signed_sum", "tcp_sum")


def output_of(name, *arguments):
    done = run_python("-W", "error", f"docs/examples/{name}.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def load(name):
    """An example as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_over_tcp_a_device_is_killed():
    present = [n for n in range(8) if n != 3]
    total = [len(present), sum(present), sum(n * n for n in present)]
    assert output_of("tcp_sum") == [
        f"sum over 7 devices: {total}",
        "lost: device 3, timed out, stage MASK",
        "exit codes: [0, 0, 0, -9, 0, 0, 0, 0]",
    ]


@pytest.mark.slow
def test_with_asyncio_one_hangs_up_and_one_is_slow():
    total, mean, *lost = output_of("asyncio_sum")
    assert total == f"mean over 8 devices of weight {sum(range(1, 11)) - 3 - 6}"
    assert re.fullmatch(r"its first numbers:( -?0\.\d+){3}", mean)
    assert lost == [
        "lost: device 2, timed out, stage RECEIPT",
        "lost: device 5, timed out, stage MASK",
    ]


@pytest.mark.slow
def test_over_http_one_stops_and_strangers_and_long_messages_are_turned_away():
    present = [n for n in range(8) if n != 4]
    assert output_of("http_sum") == [
        "a stranger: 401",
        "too long: 413",
        f"sum over 7 devices: {[1.5 * sum(present), 0.25 * len(present)]}",
        "lost: device 4, timed out, stage MASK",
    ]


@pytest.mark.slow
def test_with_queues_one_leaves():
    present = [n for n in range(100, 108) if n != 105]
    assert output_of("queue_sum") == [
        f"sum over 7 devices: {[7, sum(n % 2 for n in present), sum(present)]}",
        "lost: device 105, timed out, stage MASK",
    ]


@pytest.mark.slow
def test_a_device_that_was_started_again_refuses_the_session_and_joins_the_next(tmp_path):
    present = [n for n in range(8) if n != 3]
    runs = [output_of("signed_sum", str(tmp_path / "kept")) for _ in range(2)]
    for run in runs:
        assert run[1:] == [
            f"sum over 7 devices: {[7, sum(present)]}",
            "lost: 3",
            "device 3: a second session of one context: the device took part in one of the same "
            "context",
            f"sum over 8 devices: {[8, sum(range(8))]}",
            "exit codes: [0, 0, 0, -9, 0, 0, 0, 0, 0]",
        ]
    assert runs[0][0] == runs[1][0], "the devices' identities were not kept"
    for number in range(8):
        home = tmp_path / "kept" / f"device-{number}"
        assert {one.name for one in home.iterdir()} == {"identity", "ledger"}
        assert all(one.stat().st_mode & 0o077 == 0 for one in (home, *home.iterdir()))


@pytest.mark.parametrize("name", ["asyncio_sum", "signed_sum", "tcp_sum"])
def test_frames_too_long_are_refused_before_they_are_read(name):
    example = load(name)
    rest = {"asyncio_sum": [1 << 10], "signed_sum": [1 << 10, 1.0], "tcp_sum": []}[name]
    limit = example.LONGEST_FRAME if name == "tcp_sum" else 1 << 10

    async def read(size, sent):
        reader = asyncio.StreamReader()
        reader.feed_data(size.to_bytes(4, "big") + bytes(sent))
        return await asyncio.wait_for(example.receive(reader, *rest), 5)

    assert asyncio.run(read(limit, limit)) == bytes(limit)
    with pytest.raises(ConnectionError, match=f"a frame of {limit + 1} bytes"):
        asyncio.run(read(limit + 1, 0))


@pytest.mark.slow
def test_who_has_another_token_is_no_device(capsys, monkeypatch):
    example = load("asyncio_sum")
    honest = example.device
    monkeypatch.setattr(example, "HANGS_UP", None)
    monkeypatch.setattr(example, "IS_SLOW", None)
    monkeypatch.setattr(example, "JOIN_S", 3.0)
    monkeypatch.setattr(
        example, "device", lambda port, n, token: honest(port, n, bytes(32) if n == 7 else token)
    )
    asyncio.run(example.server({n: bytes([n + 1]) * 32 for n in range(10)}))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"mean over 9 devices of weight {sum(range(1, 11)) - 8}"
    assert printed[2:] == ["lost: device 7, timed out, stage ADVERTISE"]


def exchanged(port, *parts, pause=0.0):
    """What a server answers to bytes that are sent in parts, until it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        for part in parts:
            with contextlib.suppress(ConnectionError):  # it has hung up
                link.sendall(part)
                time.sleep(pause)
        with contextlib.suppress(OSError):  # likewise
            link.shutdown(socket.SHUT_WR)
            return link.makefile("rb").read()
    return b""


@pytest.fixture
def http():
    """The HTTP example and its service, at a port, with a session that waits for public keys."""
    example = load("http_sum")
    tokens = {example.ClientId(n): f"token{n}" for n in range(example.NUM_DEVICES)}
    service = example.Service(tokens)
    service.waiting = dict(service.session.start())
    handler = type("Bound", (example.Handler,), {"service": service})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        threading.Thread(target=listener.serve_forever, args=(0.01,), daemon=True).start()
        yield example, service, listener.server_address[1]
        listener.shutdown()


def head(method="POST", path="/message", **more):
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Authorization: 3 token3", *lines, "", ""])


def test_over_http_half_a_message_is_thrown_away(http):
    example, service, port = http
    answer = example.Client(example.ClientId(3), example.DevicePolicy()).receive(service.waiting[3])
    whole = head(Content_Length=len(answer)).encode() + answer
    assert exchanged(port, whole[:-1]) == b""
    assert service.session.drops == {}
    assert 3 in service.waiting
    assert exchanged(port, whole).startswith(b"HTTP/1.1 204 ")
    assert 3 not in service.waiting


@pytest.mark.parametrize("part", [b"x", head(Content_Length=9).encode()])
def test_over_http_who_sends_byte_by_byte_is_hung_up_on(http, part):
    example, service, port = http
    begun, example.SOCKET_S = time.monotonic(), 0.1
    exchanged(port, part, *[b"y"] * 8, pause=0.03)
    with socket.create_connection(("127.0.0.1", port)) as idle:
        idle.settimeout(10)
        idle.sendall(part)
        assert idle.recv(1) == b""
    assert time.monotonic() - begun < 8
    assert service.session.drops == {}
    example.SOCKET_S = 10.0
    assert example.request(port, "3 token3")[0] == 200


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head("GET", "/other"), 404),
        (head(path="/other", Content_Length=1), 404),
        (head(Content_Length="-1"), 411),
        (head(Content_Length="1\r\nContent-Length: 2"), 411),
        (head(Content_Length="1\r\nTransfer-Encoding: chunked"), 411),
        (head(), 411),
    ],
)
def test_over_http_what_can_be_read_in_two_ways_is_refused(http, request_head, status):
    _, service, port = http
    assert exchanged(port, request_head.encode() + b"0").startswith(b"HTTP/1.1 %d " % status)
    assert service.session.drops == {}


def test_over_http_an_answer_that_is_repeated_later_is_no_answer_to_the_next_message(http):
    example, service, _ = http
    devices = {number: example.Client(number, example.DevicePolicy()) for number in service.tokens}
    answers = {n: device.receive(service.waiting[n]) for n, device in devices.items()}
    for number, answer in answers.items():
        service.take(number, answer)
    assert service.waiting == {}
    service.waiting = dict(service.session.close_round())
    service.take(example.ClientId(3), answers[3])
    assert 3 in service.waiting
    service.take(example.ClientId(3), devices[3].receive(service.waiting[3]))
    assert 3 not in service.waiting


@pytest.mark.slow
def test_with_queues_messages_may_come_twice_and_late(capsys):
    example = load("queue_sum")
    deliver, earlier = example.to_server.put, {}

    def put(item, timeout):
        if item[0] in earlier:
            deliver(earlier[item[0]], timeout=timeout)
            time.sleep(0.3)
        earlier[item[0]] = item
        deliver(item, timeout=timeout)

    example.to_server.put = put
    example.main()
    assert capsys.readouterr().out.splitlines() == [
        "sum over 7 devices: [7, 3, 723]",
        "lost: device 105, timed out, stage MASK",
    ]


def imported_by(name):
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    return set(re.findall(r"^\s*(?:import|from) (\w+)", source, re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_needs_secagg_and_numpy_only(name):
    assert imported_by(name) - sys.stdlib_module_names <= {"deltafl", "numpy"}
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert set(re.findall(r"from (deltafl[\w.]*)", source)) <= {
        "deltafl.secagg",
        "deltafl.secagg.identity",
    }


def test_what_an_example_imports_is_seen():
    assert "msgpack" in imported_by("read_record")
