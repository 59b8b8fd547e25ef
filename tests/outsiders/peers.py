"""Peers that speak ZeroMQ's protocol byte by byte, to say what no library would."""

import socket as sockets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32)
DELIMITER = b"\x01\x00"


def frame(data: bytes, *, more: bool = False) -> bytes:
    """Return a frame as it travels."""
    return bytes((2 | more,)) + len(data).to_bytes(8) + data


def introduced(other: sockets.socket, socket_type: bytes) -> sockets.socket:
    """Shake hands with a library, as a socket of some type."""
    other.settimeout(20)
    other.sendall(GREETING)
    assert len(read(other, 64)) == 64
    body = b"\x05READY\x0bSocket-Type" + len(socket_type).to_bytes(4) + socket_type
    other.sendall(bytes((4, len(body))) + body)
    (_, size) = read(other, 2)
    read(other, size)
    return other


def dialled(port: int) -> sockets.socket:
    """Return a connection to a server that takes this side for a REQ socket."""
    return introduced(sockets.create_connection(("127.0.0.1", port)), b"REQ")


def read(other: sockets.socket, size: int) -> bytes:
    """Return so many bytes, fewer if the other side closes before."""
    data = b""
    while len(data) < size and (piece := other.recv(size - len(data))):
        data += piece
    return data


def read_answer(other: sockets.socket) -> bytes:
    """Return the body of the answer that comes next."""
    assert read(other, 2) == DELIMITER
    flags, size = read(other, 2)
    if flags & 2:
        size = int.from_bytes(bytes((size,)) + read(other, 7))
    return read(other, size)


@contextmanager
def pretending(talk: Callable[[sockets.socket], None], *, introduce: bool = True) -> Iterator[int]:
    """Take every connection as a REP socket would, then do as told; yield the port."""
    listener = sockets.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                other, _ = listener.accept()
            except OSError:
                return
            with other:
                try:
                    if introduce:
                        introduced(other, b"REP")
                    talk(other)
                except OSError:
                    # The client has had enough.
                    continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(sockets.SHUT_RDWR)
        listener.close()
        thread.join()


def peak_bytes(process: int) -> int:
    """Return the most memory that a process has had."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
