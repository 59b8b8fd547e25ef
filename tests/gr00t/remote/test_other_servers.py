"""A server that was taken for one of another protocol is named, by every client."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.sync.server import ServerConnection

from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena_gr00t.remote.connection import PolicyServerConnection, ServerUnreachableError
from isaaclab_arena_gr00t.remote.protocols import Codec, Gr00tCodec, OpenpiCodec, ServerAddress, VlaEvalCodec
from tests.gr00t.policy.model_servers import Model, serving
from tests.gr00t.servers import NetworkPolicy
from tests.gr00t.servers import serving as serving_gr00t

CODECS: list[type[Codec]] = [Gr00tCodec, OpenpiCodec, VlaEvalCodec]


def introducing(connection: ServerConnection) -> None:
    connection.send(OpenpiCodec.pack({"policy": "pi"}))
    connection.recv()


def healthy(path: str):
    """Answer the question whether a server is ready as it does itself."""

    def answer(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(HTTPStatus.OK, "OK\n") if request.path == path else None

    return answer


@contextmanager
def server_of(wire: type[Codec]) -> Iterator[int]:
    if wire is Gr00tCodec:
        with serving_gr00t(NetworkPolicy()) as server:
            yield server.port
    elif wire is OpenpiCodec:
        with serving(introducing, process_request=healthy("/healthz")) as port:
            yield port
    else:
        with serving(Model().talk, process_request=healthy("/health")) as port:
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
            with pytest.raises(PolicyError, match=f"is no {client.server}.*policy_type {server.policy_type} asks"):
                connection.wait_until_ready()
        connection.close()


def test_a_server_that_has_no_time_for_a_second_client_is_named_too():
    talking: list[ServerConnection] = []

    def refuse(connection: ServerConnection) -> None:
        talking.append(connection)
        connection.send("no vla-eval here")
        for _ in connection:
            pass

    def idle(connection: ServerConnection, request: Request) -> Response | None:
        is_busy = any(client.protocol.state is State.OPEN for client in talking)
        return None if is_busy else healthy("/healthz")(connection, request)

    with serving(refuse, process_request=idle) as port:
        connection = PolicyServerConnection(ServerAddress(host="127.0.0.1", port=port), VlaEvalCodec())
        with pytest.raises(PolicyError, match="policy_type openpi_remote asks"):
            connection.wait_until_ready()


@pytest.mark.parametrize("client", [OpenpiCodec, VlaEvalCodec])
@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
def test_a_wrong_token_is_a_mistake_of_the_users(client, status):
    def refuse(connection: ServerConnection, request: Request) -> Response:
        del request
        return connection.respond(status, "no\n")

    with serving(introducing, process_request=refuse) as port:
        connection = PolicyServerConnection(ServerAddress(host="127.0.0.1", port=port, api_token="a"), client())
        with pytest.raises(ConfigError, match=r"remote_api_token_file: .*wants another token than the one given here"):
            connection.wait_until_ready()


def test_a_web_server_is_none_and_is_waited_for():
    def refuse(connection: ServerConnection, request: Request) -> Response:
        del request
        return connection.respond(HTTPStatus.NOT_FOUND, "no\n")

    with serving(introducing, process_request=refuse) as port:
        address = ServerAddress(host="127.0.0.1", port=port, wait_for_server_s=0.2)
        with pytest.raises(ServerUnreachableError, match=r"refuses the connection \(.*404"):
            PolicyServerConnection(address, OpenpiCodec()).wait_until_ready()
