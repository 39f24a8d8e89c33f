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
from datetime import UTC, datetime, timedelta
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
from deltafl.secagg.codec import write_fields
from deltafl.secagg.identity import identity
from deltafl.sim.errors import UserError
from deltafl.sim.net import admission, app, dialling, identities, strangers
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


def _written(folder, now=None):
    made = make_certificate(["127.0.0.1", "localhost"], now)
    assert "PRIVATE" not in repr(made)
    (folder / "cert").write_bytes(made.certificate)
    (folder / "key").write_bytes(made.key)
    return Tls(folder / "cert", folder / "key"), str(folder / "cert")


@pytest.fixture
def federation():
    return Federation(settings())


@contextmanager
def serving(federation, tls, port=0, door=None):
    at = "127.0.0.1", port
    post, listed = federation.post, federation.trusted
    with app.serving(post, door or Door(listed, tls), at, max_frame=MAX_FRAME) as url:
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


def test_of_strangers_the_one_that_has_waited_longest_goes(federation, tls, monkeypatch):
    """So who is honest is admitted, whoever else says nothing."""
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 2)
    own, trusted = tls[0]
    key, door = federation.identities[3].identity, Door(federation.trusted, own)
    context = ssl.create_default_context(cafile=trusted)

    async def talk(connection):
        url = f"wss://127.0.0.1:{connection.remote_address[1]}{PATH}"
        async with (
            connect(url, ssl=context, subprotocols=[SUBPROTOCOL]),
            connect(url, ssl=context, subprotocols=[SUBPROTOCOL]) as third,
        ):
            welcome = await hello_of(federation, 3, key, own.hash())(third)
            return await closed_or_broken(connection), welcome

    with serving(federation, own, door=door) as url:
        assert exchanged(url, trusted, talk) == (True, Welcome(0, 3))
    assert door.refusals.counts == {"crowded": 1}


async def closed_or_broken(connection):
    """Whether the server ends a connection."""
    try:
        while True:
            await connection.recv()
    except ConnectionClosed:
        return True


def test_a_message_that_is_too_long_is_not_read(federation, tls):
    """Not even of a device that was admitted."""
    own, trusted = tls[0]
    key = federation.identities[3].identity

    async def talk(connection):
        await hello_of(federation, 3, key, own.hash())(connection)
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


def test_a_second_connection_of_a_device_that_is_there_is_refused(federation, tls):
    """An identity that was copied: neither throws the other out without end."""
    own, trusted = tls[0]
    key, door = federation.identities[3].identity, Door(federation.trusted, own)
    context = ssl.create_default_context(cafile=trusted)

    async def talk(connection):
        await hello_of(federation, 3, key, own.hash())(connection)
        url = f"wss://127.0.0.1:{connection.remote_address[1]}{PATH}"
        async with connect(url, ssl=context, subprotocols=[SUBPROTOCOL]) as other:
            with pytest.raises(ConnectionClosed) as told:
                await hello_of(federation, 3, key, own.hash())(other)
        await (await connection.ping())
        return told.value.rcvd.reason

    with serving(federation, own, door=door) as url:
        assert "this identity is connected already" in exchanged(url, trusted, talk)
    assert door.refusals.counts == {"twice": 1}


def test_copies_that_come_at_one_moment_are_all_refused(federation, tls, monkeypatch):
    """Who waits for an answer of the first is not forgotten for who comes after."""
    monkeypatch.setattr(app, "ALIVE_S", 1.0)
    own, trusted = tls[0]
    key, door = federation.identities[3].identity, Door(federation.trusted, own)
    context = ssl.create_default_context(cafile=trusted)

    async def talk(connection):
        await hello_of(federation, 3, key, own.hash())(connection)
        url = f"wss://127.0.0.1:{connection.remote_address[1]}{PATH}"

        async def copied():
            async with connect(url, ssl=context, subprotocols=[SUBPROTOCOL]) as other:
                with pytest.raises(ConnectionClosed) as told:
                    await hello_of(federation, 3, key, own.hash())(other)
            return told.value.rcvd.reason

        told = await asyncio.gather(*(copied() for _ in range(12)))
        await (await connection.ping())
        return told

    with serving(federation, own, door=door) as url:
        told = exchanged(url, trusted, talk)
    assert all("this identity is connected already" in one for one in told)
    assert door.refusals.counts == {"twice": 12}


def test_a_device_that_comes_back_replaces_a_connection_that_is_dead(federation, tls, monkeypatch):
    """The first one answers no ping, as where a machine was cut off."""
    monkeypatch.setattr(app, "ALIVE_S", 0.05)
    own, trusted = tls[0]
    key = federation.identities[3].identity

    def hello(challenge):
        return identities.OwnIdentity(ClientId(3), key).hello(challenge, own.hash())

    with serving(federation, own) as url:
        port = int(url.rpartition(":")[2])
        with reading_nothing("127.0.0.1", port, trusted, hello):
            waited_for(lambda: federation.post.connected == {3})
            talk = hello_of(federation, 3, key, own.hash())
            assert exchanged(url, trusted, talk) == Welcome(0, 3)
    assert federation.post.passed["reconnections"] == 1


def test_of_several_that_come_for_one_that_is_dead_one_is_admitted(federation, tls, monkeypatch):
    """The others are told that it is there."""
    monkeypatch.setattr(app, "ALIVE_S", 0.2)
    own, trusted = tls[0]
    key, door = federation.identities[3].identity, Door(federation.trusted, own)
    context = ssl.create_default_context(cafile=trusted)
    over = asyncio.Event()

    def hello(challenge):
        return identities.OwnIdentity(ClientId(3), key).hello(challenge, own.hash())

    async def comes(url):
        async with connect(f"{url}{PATH}", ssl=context, subprotocols=[SUBPROTOCOL]) as other:
            try:
                await hello_of(federation, 3, key, own.hash())(other)
            except ConnectionClosed as closing:
                return closing.rcvd.reason
            else:
                await over.wait()
                await (await other.ping())
                return "admitted"

    async def three(url):
        coming = [asyncio.create_task(comes(url)) for _ in range(3)]
        async with asyncio.timeout(30):
            while sum(one.done() for one in coming) < 2:
                await asyncio.sleep(0.01)
            over.set()
            return await asyncio.gather(*coming)

    with serving(federation, own, door=door) as url, ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        stack.enter_context(reading_nothing("127.0.0.1", port, trusted, hello))
        waited_for(lambda: federation.post.connected == {3})
        told = asyncio.run(three(url))
    assert told.count("admitted") == 1
    assert sum("this identity is connected already" in one for one in told) == 2
    assert door.refusals.counts == {"twice": 2}


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
def test_what_is_not_read_is_kept_for_one_connection_of_a_device(federation, tls, monkeypatch):
    """A device that connects again and again, and never reads, takes no more memory than once."""
    monkeypatch.setattr(app, "ALIVE_S", 0.1)
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
    seen = [one for one in gc.get_objects() if issubclass(type(one), app._Protocol)]
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


UPGRADE = (
    f"GET {PATH} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    f"Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
).encode()
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
            assert ends(opened[0])
        talk = hello_of(federation, 3, key, own.hash())
        waited_for(lambda: _is_welcomed(url, trusted, talk))  # others may come again


def test_handshakes_that_do_not_end_are_limited_in_number_and_time(federation, tls, monkeypatch):
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 2)
    monkeypatch.setattr(app, "HANDSHAKE_S", 1.0)
    own, trusted = tls[0]
    key = federation.identities[3].identity
    with serving(federation, own) as url, sockets(url, trusted, 3, shakes_hands=False) as opened:
        assert ends(opened[0])
        assert ends(opened[2])
        talk = hello_of(federation, 3, key, own.hash())
        waited_for(lambda: _is_welcomed(url, trusted, talk))


def test_a_stranger_sends_no_long_frame(federation, tls, caplog):
    """And writes no traceback to the server's log by it."""
    own, trusted = tls[0]

    async def talk(connection):
        await connection.recv()
        await connection.send(bytes(app.MAX_HELLO + 1))
        return await closed(connection)

    with serving(federation, own) as url:
        assert exchanged(url, trusted, talk)[0] == 1009
        waited_for(lambda: caplog.records)
    assert [one.getMessage() for one in caplog.records] == [
        "not admitted: the first frame is too long"
    ]
    assert not caplog.records[0].exc_info


@pytest.mark.parametrize("offered", [["deltafl.net.v1"], []])
def test_who_speaks_another_version_is_told_and_so_is_the_server(federation, tls, offered):
    own, trusted = tls[0]
    door = Door(federation.trusted, own)
    with serving(federation, own, door=door) as url:
        _, told = exchanged(url, trusted, closed, subprotocols=offered or None)
    assert f"the device speaks '{', '.join(offered)}', and this server {SUBPROTOCOL}" in told
    assert door.refusals.counts == {"version": 1}


def test_a_frame_of_another_version_is_told(federation, tls):
    own, trusted = tls[0]
    door = Door(federation.trusted, own)

    async def talk(connection):
        await connection.recv()
        await connection.send(write_fields([1, 2, 0, bytes(32), bytes(64)]))
        return await closed(connection)

    with serving(federation, own, door=door) as url:
        assert exchanged(url, trusted, talk) == (4401, "version 1 of the transport, not 2")
    assert door.refusals.counts == {"version": 1}


def test_a_device_says_that_a_server_speaks_another_version(federation, tls, monkeypatch):
    monkeypatch.setattr(app, "SUBPROTOCOL", "deltafl.net.v1")
    monkeypatch.setattr(admission, "SUBPROTOCOL", SUBPROTOCOL)
    assert "another version than this device, deltafl.net.v2" in report_of(federation, tls[0])


def report_of(federation, tls):
    """What a device says first of its connection."""
    own, trusted = tls
    stop, said = threading.Event(), []

    def report(sentence):
        said.append(sentence)
        stop.set()

    with serving(federation, own) as url:
        taking_part(Server(url, trusted), federation.sides[0], report, stop)
    return said[0]


def test_a_handshake_that_fails_is_counted(federation, tls):
    """Whoever does not trust the certificate says so in TLS; who speaks no TLS does too."""
    (own, trusted), (_, other) = tls
    door = Door(federation.trusted, own)
    with serving(federation, own, door=door) as url:
        with sockets(url, trusted, 1, shakes_hands=False) as (one,):
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert ends(one)
        assert door.refusals.counts == {"tls": 1}
        with pytest.raises(ssl.SSLError):
            exchanged(url, other, closed)


def test_a_list_that_is_another_is_noted_and_admitted(federation, tls, tmp_path, caplog):
    own, trusted = tls[0]
    (tmp_path / "list").write_text(federation.trusted.dump())
    door = Door(identities.DeviceList(tmp_path / "list"), own)
    owner = federation.identities[3]
    some = type(federation.trusted)({owner.client: owner.identity.public})

    def of(listed):
        async def talk(connection):
            challenge = decode(await connection.recv())
            await connection.send(encode(owner.hello(challenge, own.hash(), listed)))
            return decode(await connection.recv()), door.strays

        return talk

    with serving(federation, own, door=door) as url:
        assert exchanged(url, trusted, of(federation.trusted)) == (Welcome(0, 3), 0)
        waited_for(lambda: not federation.post.connected)
        assert exchanged(url, trusted, of(some)) == (Welcome(0, 3), 1)
    assert [one.fields["reason"] for one in caplog.records] == ["list"]
    assert door.strays == 0  # nobody is connected


def test_a_certificate_is_shown_once_its_files_are_read_again(federation, tls, tmp_path):
    """A wrong one is refused, and the other one stays."""
    (first, trusted), (second, other) = tls
    files = Tls(tmp_path / "cert", tmp_path / "key")

    def put(one):
        files.certificate.write_bytes(one.certificate.read_bytes())
        files.key.write_bytes(one.key.read_bytes())

    put(first)
    key = federation.identities[3].identity
    door = Door(federation.trusted, files)
    with serving(federation, files, door=door) as url:
        talk = hello_of(federation, 3, key, first.hash())
        assert exchanged(url, trusted, talk) == Welcome(0, 3)
        files.key.write_bytes(second.key.read_bytes())
        with pytest.raises(UserError, match="not a certificate and its key"):
            files.read()
        waited_for(lambda: not federation.post.connected)
        assert exchanged(url, trusted, talk) == Welcome(0, 3)
        put(second)
        files.read()
        waited_for(lambda: not federation.post.connected)
        talk = hello_of(federation, 3, key, second.hash())
        assert exchanged(url, other, talk) == Welcome(0, 3)
    assert files.expires > time.time()


def test_a_server_that_ends_says_so_to_its_devices(federation, tls):
    own, trusted = tls[0]
    key, stack = federation.identities[3].identity, ExitStack()

    async def talk(connection):
        await hello_of(federation, 3, key, own.hash())(connection)
        _, told = await asyncio.gather(asyncio.to_thread(stack.close), closed(connection))
        return told

    with stack:
        url = stack.enter_context(serving(federation, own))
        code, told = exchanged(url, trusted, talk)
    assert (code, told[:12]) == (1012, "it has ended")


def test_pauses_grow_unless_a_connection_has_lasted(monkeypatch):
    clock = iter([0.0, 1.0, 1.1, 2.0, 2.3, 9.0, 30.0, 40.0])
    monkeypatch.setattr(dialling.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(dialling.secrets, "randbelow", lambda _: 500)
    pauses = dialling._Pauses(1e9)
    pauses.admitted()
    assert pauses.following() == 0.5  # it lasted a tenth of a second
    pauses.admitted()
    assert pauses.following() == 1.0
    pauses.admitted()
    assert pauses.following() == 0.5  # it lasted longer than the next pause
    assert pauses.following() == 1.0


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


def frame_without_data(opcode):
    return bytes([128 | opcode, 128]) + bytes(4)


@pytest.mark.parametrize("opcode", [1, 2, 9, 10])
def test_of_a_stranger_who_sends_without_end_little_is_parsed(
    federation, tls, monkeypatch, caplog, opcode
):
    """Tens of thousands of frames come at once, by somebody who reads nothing."""
    own, trusted = tls[0]
    parsed, receive = [], app.WebSocketsSansIOProtocol.data_received

    def received(protocol, data):
        if protocol.handshake_initiated:
            parsed.append(len(data))
        receive(protocol, data)

    monkeypatch.setattr(app.WebSocketsSansIOProtocol, "data_received", received)
    door = Door(federation.trusted, own)
    with serving(federation, own, door=door) as url, sockets(url, trusted, 1) as (one,):
        one.sendall(UPGRADE)
        assert one.recv(12) == b"HTTP/1.1 101"
        with suppress(OSError):  # it is cut off meanwhile
            one.sendall(frame_without_data(opcode) * 40_000)
        assert ends(one)
        waited_for(lambda: door.refusals.counts)
    assert door.refusals.counts == {"malformed": 1}
    assert sum(parsed) <= app._MOST_HEARD
    assert [one.levelname for one in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("said", [b"\x81\x81" + bytes(4) + b"\xff", b"\xff" * 9])
def test_what_is_no_text_and_no_frame_is_no_error_of_the_server(federation, tls, caplog, said):
    own, trusted = tls[0]
    door = Door(federation.trusted, own)
    with serving(federation, own, door=door) as url, sockets(url, trusted, 1) as (one,):
        one.sendall(UPGRADE)
        assert one.recv(12) == b"HTTP/1.1 101"
        one.sendall(said)
        assert ends(one)
        waited_for(lambda: door.refusals.counts)
    assert door.refusals.counts == {"malformed": 1}
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_what_a_device_sends_is_parsed_in_pieces(federation, tls, monkeypatch):
    """And no further once its connection is cut off, as for its pings."""
    own, trusted = tls[0]
    parsed, receive = [], app.WebSocketsSansIOProtocol.data_received
    monkeypatch.setattr(
        app.WebSocketsSansIOProtocol,
        "data_received",
        lambda protocol, data: (parsed.append(len(data)), receive(protocol, data)),
    )
    door = Door(federation.trusted, own)
    key = federation.identities[3].identity

    async def talk(connection):
        await hello_of(federation, 3, key, own.hash())(connection)
        connection.transport.write(frame_without_data(9) * 40_000)
        return await closed_or_broken(connection)

    with serving(federation, own, door=door) as url:
        assert exchanged(url, trusted, talk)
    assert door.refusals.counts == {"rules": 1}
    assert max(parsed) <= 1 << 12
    assert sum(parsed) < 1 << 13


def test_a_connection_asks_once(federation, tls):
    """Who asks for pages without end, and reads none, takes no memory for the answers."""
    own, trusted = tls[0]
    with serving(federation, own) as url, sockets(url, trusted, 1) as (one,):
        one.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        answers = b""
        with suppress(OSError):
            while part := one.recv(1 << 12):
                answers += part
    assert answers.count(b"HTTP/1.1 404") == 1


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
    assert said[-1].endswith("giving up: not admitted for 0.5 s (--patience)")
    assert "not on the server's list" in said[0]


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
    said = report_of(federation, (own, other))
    assert said.startswith("the server's certificate is not accepted: self-signed certificate; try")


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("https://localhost", "no address of a server"),
        ("wss://", "no address of a server"),
        ("wss://host:99999", "no address of a server"),
        ("ws://fl.example.org:80", "need TLS"),
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


DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("begins", "device", "server"),
    [
        (-31 * DAY, "certificate has expired (the server's operator has", "it has expired, on 20"),
        (DAY, "certificate is not yet valid (the server's operator has", "it is not valid before"),
        (-17 * DAY, None, "devices will not accept"),
        (-15 * DAY, None, None),
    ],
)
def test_dates_of_a_certificate_are_told_on_both_sides(
    federation, tmp_path, begins, device, server
):
    """It holds for thirty days."""
    own, trusted = _written(tmp_path, datetime.now(UTC) + begins)
    own.read()
    concern = own.concern()
    assert (concern is None) == (server is None)
    assert server is None or server in concern
    if device is not None:
        said = report_of(federation, (own, trusted))
        assert said.startswith(f"the server's certificate is not accepted: {device}")
        assert "trying again" in said
