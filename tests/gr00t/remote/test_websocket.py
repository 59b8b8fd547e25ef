"""A websocket to a policy server, which may end while it is dialled."""

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidMessage, ProtocolError, WebSocketException
from websockets.sync import client

from isaaclab_arena_gr00t.remote.address import ServerAddress
from isaaclab_arena_gr00t.remote.websocket import Websocket


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
    address = ServerAddress(host="127.0.0.1", port=1)
    assert isinstance(end, WebSocketException)
    with pytest.raises(ConnectionError, match="it refuses the connection"):
        Websocket(address, 1.0, numbers_answers=False)
