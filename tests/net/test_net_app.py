"""Real connections over TLS on this machine, also of those who do not keep to the rules."""

import asyncio
import gc
import resource
import socket
import ssl
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from federations import Federation, settings, simulate, taking_part
from websockets.asyncio.client import connect
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.frames import Frame
from websockets.uri import parse_uri

from deltafl.secagg import ClientId
from deltafl.secagg.identity import identity
from deltafl.sim.errors import UserError
from deltafl.sim.net import admission, app, dialling, identities, logs, strangers
from deltafl.sim.net.admission import Door
from deltafl.sim.net.app import served
from deltafl.sim.net.certificates import Tls, make_certificate
from deltafl.sim.net.dialling import PATH, SUBPROTOCOL, Server
from deltafl.sim.net.frames import Carry, Task, Welcome, decode, encode

MAX_FRAME = 1 << 16


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Two servers' certificates, each with what vouches for it."""
    return [_written(tmp_path_factory.mktemp(name)) for name in ("first", "second")]


def _written(folder):
    made = make_certificate(["127.0.0.1", "localhost"])
    assert "PRIVATE" not in repr(made)
    (folder / "cert").write_bytes(made.certificate)
    (folder / "key").write_bytes(made.key)
    return Tls(folder / "cert", folder / "key"), str(folder / "cert")


@pytest.fixture
def federation():
    return Federation(settings())


@contextmanager
def serving(federation, tls, port=0):
    at = "127.0.0.1", port
    post, listed = federation.post, federation.trusted
    with app.serving(post, listed, at, tls=tls, max_frame=MAX_FRAME) as url:
        yield url


@contextmanager
def devices(federation, url, trusted):
    """Every device, connecting by itself."""
    stop, said = threading.Event(), []
    threads = [
        threading.Thread(target=taking_part, args=(Server(url, trusted), side, said.append, stop))
        for side in federation.sides
    ]
    for thread in threads:
        thread.start()
    try:
        yield said
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_a_federation_over_tls_comes_to_the_simulations_model(tmp_path, federation, tls):
    own, trusted = tls[0]
    object.__setattr__(federation.site, "gathering", 60.0)
    with serving(federation, own) as url, devices(federation, url, trusted):
        state = federation.play(tmp_path / "net")
        end = time.monotonic() + 20
        while not all(side.has_ended() for side in federation.sides):
            assert time.monotonic() < end
            time.sleep(0.01)
    expected = simulate(federation.config, tmp_path / "simulated", federation.dataset)
    assert state.model.tobytes() == expected.model.tobytes()


@pytest.mark.slow
def test_devices_go_on_with_a_server_that_comes_back_with_another_certificate(
    tmp_path, federation, tls, monkeypatch
):
    """Both are trusted, as after a renewal. The first process ends before a round has begun."""
    monkeypatch.setattr(dialling, "_FIRST_PAUSE", 0.01)
    both = tmp_path / "both"
    both.write_text("".join(Path(trusted).read_text() for _, trusted in tls))
    with serving(federation, tls[0][0]) as url:
        port = int(url.rpartition(":")[2])
        stack = ExitStack()
        said = stack.enter_context(devices(federation, url, str(both)))
        federation.post.wait_for(lambda connected: len(connected) == 30, 30, Event())
    with stack:
        federation.begin_server()
        with serving(federation, tls[1][0], port):
            federation.play(tmp_path / "net")
    assert said


def exchanged(url, trusted, talk, **options):
    """What a conversation comes to that a stranger has with the server."""
    context = ssl.create_default_context(cafile=trusted)

    async def converse():
        options.setdefault("subprotocols", [SUBPROTOCOL])
        async with connect(url + PATH, ssl=context, compression=None, **options) as connection:
            return await talk(connection)

    return asyncio.run(asyncio.wait_for(converse(), 30))


async def closed(connection):
    """The code and the reason with which the server closes."""
    try:
        while True:
            await connection.recv()
    except ConnectionClosed as error:
        return error.rcvd.code, error.rcvd.reason


def hello_of(federation, client, key, server):
    async def talk(connection):
        challenge = decode(await connection.recv())
        await connection.send(
            encode(identities.OwnIdentity(ClientId(client), key).hello(challenge, server))
        )
        first = await connection.recv()
        return decode(first)

    return talk


def test_who_is_on_the_list_is_welcomed(federation, tls):
    own, trusted = tls[0]
    key = federation.identities[3].identity
    with serving(federation, own) as url:
        talk = hello_of(federation, 3, key, own.hash())
        assert exchanged(url, trusted, talk) == Welcome(0, 3)


@pytest.mark.parametrize("case", ["another key", "another id", "another server", "no server"])
def test_who_is_not_is_closed(federation, tls, case):
    own, trusted = tls[0]
    key = identity(bytes(32)) if case == "another key" else federation.identities[3].identity
    server = {"another server": tls[1][0].hash(), "no server": b""}.get(case, own.hash())
    client = 4 if case == "another id" else 3
    with serving(federation, own) as url, pytest.raises(ConnectionClosed) as told:
        exchanged(url, trusted, hello_of(federation, client, key, server))
    assert told.value.rcvd.code == 4401
    assert not federation.post.connected


@pytest.mark.parametrize("frame", [b"", b"x" * 100, encode(Welcome(0, 1)), "text"])
def test_who_does_not_say_who_it_is_is_closed(federation, tls, frame):
    own, trusted = tls[0]

    async def talk(connection):
        await connection.send(frame)
        return await closed(connection)

    with serving(federation, own) as url:
        assert exchanged(url, trusted, talk)[0] == 4401


def test_who_says_nothing_is_closed(federation, tls, monkeypatch):
    monkeypatch.setattr(admission, "ADMISSION_S", 0.1)
    own, trusted = tls[0]
    with serving(federation, own) as url:
        assert exchanged(url, trusted, closed)[0] == 4401


def test_strangers_are_limited_in_number(federation, tls, monkeypatch):
    monkeypatch.setattr(app, "MOST_UNKNOWN", 1)
    own, trusted = tls[0]

    async def talk(connection):
        context = ssl.create_default_context(cafile=trusted)
        url = f"wss://127.0.0.1:{connection.remote_address[1]}{PATH}"
        await connection.recv()
        async with connect(url, ssl=context, subprotocols=[SUBPROTOCOL]) as second:
            return await closed(second)

    with serving(federation, own) as url:
        assert exchanged(url, trusted, talk)[0] == 1013


def test_a_message_that_is_too_long_is_not_read(federation, tls):
    own, trusted = tls[0]

    async def talk(connection):
        await connection.send(bytes(MAX_FRAME + 1))
        return await closed(connection)

    with serving(federation, own) as url:
        assert exchanged(url, trusted, talk)[0] == 1009


@pytest.mark.parametrize("frame", [b"x", encode(Welcome(0, 1)), "text"])
def test_a_device_that_breaks_the_rules_is_closed_and_no_other(federation, tls, frame):
    own, trusted = tls[0]
    good, bad = federation.identities[3].identity, federation.identities[4].identity
    context = ssl.create_default_context(cafile=trusted)

    async def talk(connection):
        await hello_of(federation, 3, good, own.hash())(connection)
        url = f"wss://127.0.0.1:{connection.remote_address[1]}{PATH}"
        async with connect(url, ssl=context, subprotocols=[SUBPROTOCOL]) as other:
            await hello_of(federation, 4, bad, own.hash())(other)
            await other.send(frame)
            code, _ = await closed(other)
        await (await connection.ping())
        return code

    with serving(federation, own) as url:
        assert exchanged(url, trusted, talk) == 1008


def test_a_second_connection_closes_the_first(federation, tls):
    own, trusted = tls[0]
    key = federation.identities[3].identity
    context = ssl.create_default_context(cafile=trusted)

    async def talk(connection):
        await hello_of(federation, 3, key, own.hash())(connection)
        url = f"wss://127.0.0.1:{connection.remote_address[1]}{PATH}"
        async with connect(url, ssl=context, subprotocols=[SUBPROTOCOL]) as other:
            await hello_of(federation, 3, key, own.hash())(other)
            return (await closed(connection))[0], federation.post.connected

    with serving(federation, own) as url:
        assert exchanged(url, trusted, talk) == (4409, {3})


def reading_nothing(host, port, trusted, hello):
    """A device that says who it is, and then reads nothing more; its socket."""
    context = ssl.create_default_context(cafile=trusted)
    plain = socket.create_connection((host, port))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    secure = context.wrap_socket(plain, server_hostname=host)
    protocol = ClientProtocol(parse_uri(f"wss://{host}{PATH}"), subprotocols=[SUBPROTOCOL])
    protocol.send_request(protocol.connect())
    while True:
        for data in protocol.data_to_send():
            secure.sendall(data)
        protocol.receive_data(secure.recv(1 << 12))
        for event in protocol.events_received():
            if isinstance(event, Frame):
                protocol.send_binary(encode(hello(decode(bytes(event.data)))))
                for data in protocol.data_to_send():
                    secure.sendall(data)
                return secure


@contextmanager
def unread(federation, tls, connections):
    """A device with a large message to read, which connects some times, and reads nothing."""
    own, trusted = tls
    key = federation.identities[3].identity
    federation.post.begin(Task(bytes(16), 0, 0, b""), [ClientId(3)])
    federation.post.send(ClientId(3), 0, bytes(1 << 25))
    with serving(federation, own) as url, ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        for _ in range(connections):
            one = reading_nothing(
                "127.0.0.1",
                port,
                trusted,
                lambda challenge: identities.OwnIdentity(ClientId(3), key).hello(
                    challenge, own.hash()
                ),
            )
            stack.callback(one.close)
        yield


@pytest.mark.slow
def test_what_is_not_read_is_kept_for_one_connection_of_a_device(federation, tls):
    """A device that connects again and again, and never reads, takes no more memory than once."""
    with unread(federation, tls[0], 4):
        waited_for(lambda: len(open_transports()) == 1)
        assert federation.post.connected == {3}


@pytest.mark.slow
def test_who_reads_nothing_for_long_is_cut_off(federation, tls, monkeypatch):
    monkeypatch.setattr(app, "_PING_S", 0.1)
    monkeypatch.setattr(app, "SENDING_S", 0.1)
    with unread(federation, tls[0], 1):
        waited_for(lambda: not open_transports())
        waited_for(lambda: not federation.post.connected)


def open_transports():
    """The connections of this process that somebody else has opened and that are not closed."""
    seen = [one for one in gc.get_objects() if type(one) is app._Protocol]
    return [one for one in seen if one in one.connections]


def waited_for(is_so, seconds=20.0):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def sockets(url, trusted, number, *, shakes_hands=True):
    """Connections of somebody who speaks no WebSocket."""
    context = ssl.create_default_context(cafile=trusted)
    with ExitStack() as stack:
        opened = []
        for _ in range(number):
            one = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
            one.settimeout(5)  # less than the time after which all such connections are ended
            stack.callback(one.close)
            if shakes_hands:
                with suppress(OSError):
                    one = context.wrap_socket(one, server_hostname="127.0.0.1")
                    stack.callback(one.close)
            opened.append(one)
        yield opened


def ends(connection):
    """Whether the server ends a connection."""
    try:
        while connection.recv(1 << 12):
            pass
    except TimeoutError:
        return False
    except OSError:  # it may be reset
        pass
    return True


REQUEST = b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"


@pytest.mark.parametrize("said", [[], [b"GET /"], [REQUEST, b"1"], [REQUEST, b"1", b"2"]])
def test_a_connection_that_becomes_no_websocket_is_cut_off(federation, tls, monkeypatch, said):
    monkeypatch.setattr(admission, "ADMISSION_S", 0.3)
    own, trusted = tls[0]
    with serving(federation, own) as url, sockets(url, trusted, 1) as (one,):
        for part in said:
            one.sendall(part)
            time.sleep(0.05)
        assert ends(one)


def test_connections_that_ask_for_nothing_are_limited_in_number(federation, tls, monkeypatch):
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 2)
    own, trusted = tls[0]
    key = federation.identities[3].identity
    with serving(federation, own) as url:
        with sockets(url, trusted, 3) as opened:
            assert ends(opened[2])
        talk = hello_of(federation, 3, key, own.hash())
        waited_for(lambda: _is_welcomed(url, trusted, talk))  # others may come again


def test_handshakes_that_do_not_end_are_limited_in_number_and_time(federation, tls, monkeypatch):
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 2)
    monkeypatch.setattr(app, "HANDSHAKE_S", 1.0)
    own, trusted = tls[0]
    key = federation.identities[3].identity
    with serving(federation, own) as url:
        began = time.monotonic()
        with sockets(url, trusted, 3, shakes_hands=False) as opened:
            assert ends(opened[2])
            assert time.monotonic() - began < 0.9
            assert ends(opened[0])
            talk = hello_of(federation, 3, key, own.hash())
            waited_for(lambda: _is_welcomed(url, trusted, talk))


def test_a_stranger_sends_no_long_frame(federation, tls, caplog):
    """And writes nothing to the server's log by it."""
    own, trusted = tls[0]

    async def talk(connection):
        await connection.recv()
        await connection.send(bytes(app.MAX_HELLO + 1))
        return await closed(connection)

    with serving(federation, own) as url:
        assert exchanged(url, trusted, talk)[0] == 1009
    assert not caplog.records


def test_a_device_sends_frames_as_long_as_any(federation, tls):
    own, trusted = tls[0]
    key = federation.identities[3].identity

    async def talk(connection):
        await hello_of(federation, 3, key, own.hash())(connection)
        await connection.send(encode(Carry(bytes(16), 0, bytes(MAX_FRAME - 100))))
        await (await connection.ping())

    with serving(federation, own) as url:
        exchanged(url, trusted, talk)


def test_who_pings_all_the_time_is_cut_off(federation, tls):
    own, trusted = tls[0]

    async def talk(connection):
        for _ in range(100):
            await connection.ping()
        await closed(connection)

    with serving(federation, own) as url, pytest.raises((ConnectionClosed, AttributeError)):
        exchanged(url, trusted, talk)


def test_a_device_gives_up_once_its_patience_is_over(federation, tls, monkeypatch):
    """As a node of Flower's whose connection broke as the round ended."""
    monkeypatch.setattr(dialling, "_FIRST_PAUSE", 0.05)
    own, trusted = tls[0]
    said = []
    stranger = federation.sides[0]
    stranger.own = replace(stranger.own, identity=identity(bytes(32)))
    with serving(federation, own) as url:
        began = time.monotonic()
        taking_part(Server(url, trusted), stranger, said.append, threading.Event(), patience=0.5)
    assert 0.5 < time.monotonic() - began < 15
    assert said[-1].endswith("giving up")
    assert "not on the list" in said[0]


def _is_welcomed(url, trusted, talk):
    try:
        return exchanged(url, trusted, talk) == Welcome(0, 3)
    except (OSError, InvalidHandshake, ConnectionClosed):
        return False


def test_a_device_goes_to_no_other_address_than_it_was_given(federation, tls):
    """A server that was taken over sends it somewhere else."""
    own, trusted = tls[0]

    async def elsewhere(scope, receive, send):
        del receive
        assert scope["type"] == "websocket"
        headers = [(b"location", f"{other}{PATH}".encode())]
        start = {"type": "websocket.http.response.start", "status": 302, "headers": headers}
        await send(start)
        await send({"type": "websocket.http.response.body", "body": b""})

    stop, said = threading.Event(), []

    def report(sentence):
        said.append(sentence)
        stop.set()

    with (
        serving(federation, own) as other,
        served(elsewhere, "127.0.0.1", 0, tls=own) as (host, port),
    ):
        taking_part(Server(f"wss://{host}:{port}", trusted), federation.sides[0], report, stop)
        assert not federation.post.connected
    assert "302" in said[0]


def test_a_certificate_that_nobody_vouches_for_is_not_talked_to(federation, tls):
    (own, _), (_, other) = tls
    stop, said = threading.Event(), []

    def report(sentence):
        said.append(sentence)
        stop.set()

    with serving(federation, own) as url:
        taking_part(Server(url, other), federation.sides[0], report, stop)
    assert "CERTIFICATE_VERIFY_FAILED" in said[0]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("https://localhost", "no address of a server"),
        ("wss://", "no address of a server"),
        ("wss://host:99999", "no address of a server"),
        ("ws://fl.example.org:80", "must be reached over TLS"),
    ],
)
def test_addresses_that_are_none_are_refused(url, complaint):
    with pytest.raises(UserError, match=complaint):
        Server(url)


def test_certificates_that_are_none_are_refused(tmp_path, tls):
    empty = tmp_path / "empty"
    empty.write_text("")
    (own, trusted), (other, _) = tls
    with pytest.raises(UserError, match="no certificates to trust"):
        Server("wss://localhost:1", str(empty))
    with pytest.raises(UserError, match="has no certificate"):
        Tls(empty, own.key).hash()
    with pytest.raises(UserError, match="not a certificate and its key"):
        Tls(own.certificate, other.key).context()
    assert trusted


def test_an_address_in_use_is_told(federation, tls):
    own, _ = tls[0]
    with serving(federation, own) as url:
        port = int(url.rpartition(":")[2])
        with (
            pytest.raises(UserError, match="choose another --listen"),
            serving(federation, own, port),
        ):
            pass


@pytest.mark.parametrize("files", [resource.RLIM_INFINITY, 1 << 20])
def test_who_may_open_any_number_of_files_has_room(federation, tls, monkeypatch, files):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, files))
    monkeypatch.setattr(app, "allow_connections", lambda: None)
    own, trusted = tls[0]
    with serving(federation, own) as url:
        talk = hello_of(federation, 3, federation.identities[3].identity, own.hash())
        assert exchanged(url, trusted, talk) == Welcome(0, 3)


def test_where_files_run_out_strangers_are_turned_away(federation, tls, monkeypatch):
    monkeypatch.setattr(strangers, "_OTHER_FILES", 1)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (2, 2))
    monkeypatch.setattr(app, "allow_connections", lambda: None)
    own, trusted = tls[0]
    with serving(federation, own) as url, sockets(url, trusted, 2) as opened:
        assert ends(opened[1])


def test_a_server_may_have_as_many_connections_as_the_system_allows():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        strangers.allow_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
