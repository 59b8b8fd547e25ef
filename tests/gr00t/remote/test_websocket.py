"""Servers that speak over a WebSocket."""

import base64
import hashlib
import re
import socket as sockets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidMessage, ProtocolError, WebSocketException
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.sync import client
from websockets.sync.server import ServerConnection

from arena_wire.messages import WireError
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.remote import connection as connections
from isaaclab_arena.remote.connection import PolicyServerConnection, ServerUnreachableError
from isaaclab_arena.remote.openpi import OpenpiCodec
from isaaclab_arena.remote.protocols import Codec, ServerAddress
from isaaclab_arena.remote.vla_eval import VlaEvalCodec
from isaaclab_arena.remote.websocket import Websocket
from isaaclab_arena_gr00t.policy.gr00t_remote_closedloop_policy import Gr00tCodec
from tests.gr00t.policy.model_servers import Model, talking
from tests.gr00t.servers import NetworkPolicy, serving

# A websocket to a policy server, which may end while it is dialled, or send what no such server does.


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(ConnectionClosedError(None, None), id="before the handshake was sent"),
        pytest.param(InvalidMessage("did not receive a valid HTTP response"), id="before it was answered"),
        pytest.param(ProtocolError("what came is no frame"), id="after it was answered"),
    ],
)
def test_a_server_that_ends_while_it_is_dialled_is_a_lost_connection_at_any_moment(monkeypatch, end):
    def connect(url: str, **options: object) -> None:
        raise end

    monkeypatch.setattr(client, "connect", connect)
    assert isinstance(end, WebSocketException)
    with listening(lambda other: None) as address, pytest.raises(ConnectionError, match="refuses"):
        Websocket(address, 60.0, numbers_answers=False)


@contextmanager
def listening(talk: Callable[[sockets.socket], None]) -> Iterator[ServerAddress]:
    """Talk to each client, until that fails, and keep the connection open to the end."""
    with sockets.create_server(("127.0.0.1", 0)) as listener, suppress(OSError):
        # What is not read soon fills the connection.
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        others: list[sockets.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    others.append(listener.accept()[0])
                    with suppress(OSError):
                        talk(others[-1])

        threading.Thread(target=serve, daemon=True).start()
        yield ServerAddress(host="127.0.0.1", port=listener.getsockname()[1])
        for each in [listener, *others]:
            with suppress(OSError):
                each.shutdown(sockets.SHUT_RDWR)
        for each in others:
            each.close()


def upgrade(other: sockets.socket) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        request += other.recv(4096)
    found = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
    assert found is not None
    accept = base64.b64encode(hashlib.sha1(found[1] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    other.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
    )


def without_end(data: bytes, *, first: bytes = b"", upgraded: bool = True) -> Callable[[sockets.socket], None]:
    """Server that sends the same bytes forever and reads nothing."""

    def talk(other: sockets.socket) -> None:
        if upgraded:
            upgrade(other)
        other.sendall(first)
        while True:
            other.sendall(data * 1000)

    return talk


PING, FRAGMENT, EMPTY_FRAGMENT = b"\x89\x7d" + bytes(125), b"\x00\x01a", b"\x00\x00"
SQUEEZED = b"\xc2\x7e\x20\x00" + bytes(0x2000)


def ask(address: ServerAddress) -> None:
    websocket = Websocket(address, 1.0, numbers_answers=False)
    try:
        websocket.receive(1.0)
    finally:
        websocket.close()


@pytest.mark.parametrize(
    "talk",
    [
        without_end(PING),
        without_end(FRAGMENT, first=b"\x02\x01a"),
        without_end(EMPTY_FRAGMENT, first=b"\x02\x01a"),
        without_end(SQUEEZED),
        without_end(b"A: b\r\n", first=b"HTTP/1.1 200 OK\r\n", upgraded=False),
        without_end(b"x" * 100, first=b"HTTP/1.1 200 OK\r\n\r\n", upgraded=False),
    ],
    ids=["pings", "fragments", "empty fragments", "compressed", "headers", "body"],
)
def test_a_server_that_sends_without_end_and_reads_nothing_is_an_error_without_a_traceback(talk, capfd):
    with listening(talk) as address:
        with pytest.raises((OSError, WireError)):
            ask(address)
        threads = [each for each in threading.enumerate() if "recv_events" in each.name]
        for each in threads:
            each.join(60.0)
        assert not any(each.is_alive() for each in threads)
    assert capfd.readouterr().err == ""


def test_a_server_that_reads_slowly_holds_no_question_beyond_its_time():
    def talk(other: sockets.socket) -> None:
        upgrade(other)
        stop.wait(60.0)

    stop = threading.Event()
    with listening(talk) as address:
        websocket = Websocket(address, 60.0, numbers_answers=True)
        with pytest.raises(TimeoutError, match=r"0\.2 s"):
            websocket.send(bytes(64_000_000), 0.2)
        websocket.close()
        stop.set()


def test_a_client_follows_no_server_to_another_address():
    asked = threading.Event()

    def elsewhere(other: sockets.socket) -> None:
        asked.set()

    with listening(elsewhere) as other:

        def redirect(connection: sockets.socket) -> None:
            connection.recv(4096)
            connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: ws://{other}/\r\nContent-Length: 0\r\n\r\n".encode())

        with listening(redirect) as address, pytest.raises(ConnectionError, match=f"it sends clients to ws://{other}/"):
            Websocket(address, 60.0, numbers_answers=False)
    assert not asked.is_set()


# A server that was taken for one of another protocol is named, by every client.


def introducing(connection: ServerConnection) -> None:
    connection.send(OpenpiCodec.pack({"policy": "pi"}))
    connection.recv()


def answering(status: HTTPStatus, path: str = ""):
    """Answer the question for a path, or every question, before there is a websocket."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(status, "said\n") if request.path == path or not path else None

    return answer


CODECS: list[type[Codec]] = [Gr00tCodec, OpenpiCodec, VlaEvalCodec]


@contextmanager
def server_of(wire: type[Codec]) -> Iterator[int]:
    if wire is Gr00tCodec:
        with serving(NetworkPolicy()) as server:
            yield server.port
    elif wire is OpenpiCodec:
        with talking(introducing, process_request=answering(HTTPStatus.OK, "/healthz")) as port:
            yield port
    else:
        with talking(Model().talk, process_request=answering(HTTPStatus.OK, "/health")) as port:
            yield port


@pytest.mark.parametrize("server", CODECS)
@pytest.mark.parametrize("client", CODECS)
def test_a_server_of_another_protocol_is_named_with_the_policy_that_asks_it(client, server):
    with server_of(server) as port:
        address = ServerAddress(host="127.0.0.1", port=port, timeout_s=60.0, wait_for_server_s=60.0)
        connection = PolicyServerConnection(address, client())
        if client is server:
            connection.wait_until_ready()
        else:
            with pytest.raises(PolicyError, match=f"{client.server}.*policy_type {server.policy_type}"):
                connection.wait_until_ready()
        connection.close()


def test_a_package_whose_codec_cannot_be_loaded_keeps_no_other_from_being_named(tmp_path, monkeypatch):
    info = tmp_path / "half_installed-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: half-installed\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[isaaclab_arena.protocols]\nbroken = half_installed:Codec\n")
    monkeypatch.syspath_prepend(tmp_path)
    with connections.CODECS.restored_afterwards() as known, server_of(OpenpiCodec) as port:
        assert known.names() == ["broken", "gr00t", "openpi", "vla_eval"]
        address = ServerAddress(host="127.0.0.1", port=port, timeout_s=60.0, wait_for_server_s=60.0)
        with pytest.raises(PolicyError, match="policy_type openpi_remote"):
            PolicyServerConnection(address, Gr00tCodec()).wait_until_ready()


def test_a_server_that_has_no_time_for_a_second_client_is_named_too():
    others: list[ServerConnection] = []

    def refuse(connection: ServerConnection) -> None:
        others.append(connection)
        connection.send("no vla-eval here")
        for _ in connection:
            pass

    def idle(connection: ServerConnection, request: Request) -> Response | None:
        is_busy = any(client.protocol.state is State.OPEN for client in others)
        return None if is_busy else answering(HTTPStatus.OK, "/healthz")(connection, request)

    with talking(refuse, process_request=idle) as port:
        connection = PolicyServerConnection(ServerAddress(host="127.0.0.1", port=port), VlaEvalCodec())
        with pytest.raises(PolicyError, match="policy_type openpi_remote"):
            connection.wait_until_ready()


@pytest.mark.parametrize("client", [OpenpiCodec, VlaEvalCodec])
@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (HTTPStatus.UNAUTHORIZED, ConfigError, "remote_api_token_file"),
        (HTTPStatus.FORBIDDEN, ConfigError, "remote_api_token_file"),
        # A web server is none, and is waited for.
        (HTTPStatus.NOT_FOUND, ServerUnreachableError, "404"),
    ],
)
def test_a_server_that_lets_no_client_in_is_told_by_its_reason(client, status, error, says):
    with talking(introducing, process_request=answering(status)) as port:
        address = ServerAddress(host="127.0.0.1", port=port, api_token="a", wait_for_server_s=0.2)
        with pytest.raises(error, match=says):
            PolicyServerConnection(address, client()).wait_until_ready()
