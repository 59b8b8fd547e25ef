"""A cable between a client and a server, which can be cut at any moment; who dials again gets another one."""

import select
import socket as sockets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PIECE_BYTES = 1 << 16


class Cable:
    """Relays the connections to ``port`` (0 for a free one), where clients dial, to another port of this machine."""

    def __init__(self, to_port: int, port: int = 0) -> None:
        self.num_dialled = 0
        self._to_port = to_port
        self._listener = sockets.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._ends: list[sockets.socket] = []
        self._threads = [threading.Thread(target=self._take)]
        self._threads[0].start()

    def cut(self) -> None:
        """End all connections as when the server is killed: what has not arrived never does."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(sockets.SHUT_RDWR)

    def close(self) -> None:
        """End all connections, and take no others. May be called more than once."""
        with suppress(OSError):
            self._listener.shutdown(sockets.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _take(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = sockets.create_connection(("127.0.0.1", self._to_port))
            self._ends += [near, far]
            self.num_dialled += 1
            self._threads.append(threading.Thread(target=_relay, args=(near, far)))
            self._threads[-1].start()


def _relay(near: sockets.socket, far: sockets.socket) -> None:
    other = {near: far, far: near}
    with near, far, suppress(OSError):
        while True:
            for end in select.select([near, far], [], [])[0]:
                data = end.recv(_PIECE_BYTES)
                if not data:
                    return
                other[end].sendall(data)


@contextmanager
def cable(to_port: int, port: int = 0) -> Iterator[Cable]:
    made = Cable(to_port, port)
    try:
        yield made
    finally:
        made.close()
