"""The program of every worker, in its own interpreter: it reads frames of JSON and raw arrays, and writes the answers.

The answers are those of the class ``Answers`` of another file. Nothing is ever unpickled. A frame: four bytes of magic,
the length of the header, the header, the bytes of each array in the header's order.
"""

# Nothing here imports anything of this package, and everything is valid in Python 3.9.

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import pathlib
import platform
import select
import signal
import struct
import sys
import traceback
import types
import typing
from importlib import metadata

import numpy as np

MAGIC = b"ARN1"
MAX_HEADER_BYTES = 1 << 24
MAX_ARRAYS_BYTES = 1 << 30

NUMBER = struct.Struct("<Q")
"""Stands before each frame between a program and its worker: the number of the request, which its answer repeats."""

_PREFIX = struct.Struct("<4sI")
_KINDS = frozenset("biuf")

_NOTHING = json.dumps({"message": {}, "arrays": []}).encode()
EMPTY = _PREFIX.pack(MAGIC, len(_NOTHING)) + _NOTHING
"""The frame that says nothing, which needs neither be written nor read as JSON."""


class FrameError(Exception):
    """The received bytes are not a frame."""


def encode(message: typing.Mapping[str, typing.Any], arrays: typing.Mapping[str, np.ndarray]) -> bytes:
    """Return a frame with a message of plain JSON values and numeric arrays."""
    if not message and not arrays:
        return EMPTY
    layout, blobs = [], []
    for name, array in arrays.items():
        plain = np.asarray(array)
        if plain.dtype.kind not in _KINDS:
            raise FrameError(f"array '{name}' holds {plain.dtype}, and only numbers travel")
        layout.append([name, plain.dtype.newbyteorder("<").str, list(plain.shape)])
        blobs.append(plain.astype(plain.dtype.newbyteorder("<"), copy=False).tobytes())
    header = json.dumps({"message": message, "arrays": layout}).encode()
    return b"".join([_PREFIX.pack(MAGIC, len(header)), header, *blobs])


def decode(
    read_exactly: typing.Callable[[int], bytes | bytearray],
) -> tuple[dict[str, typing.Any], dict[str, np.ndarray]]:
    """Read the next frame's message and arrays; FrameError if it is no frame or too large."""
    magic, size = _PREFIX.unpack(read_exactly(_PREFIX.size))
    if magic != MAGIC or size > MAX_HEADER_BYTES:
        raise FrameError(f"the pipe holds {magic!r} where a frame should begin")
    written = read_exactly(size)
    # An empty frame is recognised by its bytes, without the JSON parser.
    if written == _NOTHING:
        return {}, {}
    try:
        header = json.loads(written)
    except RecursionError as error:
        raise FrameError("the header of a frame is nested too deeply") from error
    # Check every size before the read: a damaged header must not reserve memory.
    arrays, total = {}, 0
    for name, dtype_name, shape in header["arrays"]:
        dtype = np.dtype(dtype_name)
        if dtype.kind not in _KINDS or any(type(length) is not int or length < 0 for length in shape):
            raise FrameError(f"array '{name}' claims to be {dtype_name} of shape {shape}")
        num_bytes = dtype.itemsize
        for length in shape:
            num_bytes *= length
        total += num_bytes
        if total > MAX_ARRAYS_BYTES:
            raise FrameError(f"array '{name}' brings the frame to {total} bytes; {MAX_ARRAYS_BYTES} are allowed")
        arrays[name] = np.frombuffer(read_exactly(num_bytes), dtype).reshape(shape)
    return header["message"], arrays


PACKAGE = "isaaclab_arena_worker"
"""The package of the modules beside the file with the answers, so that they shadow no other in a worker."""

_PR_SET_PDEATHSIG = 1


def main(memory: int, file: str) -> None:
    """Answer frames until the input ends, with ``Answers(memory, told)`` of a file."""
    # ``memory`` is the descriptor of the file for shared arrays. ``Answers.answer`` maps a message and arrays to the
    # same; ``told`` turns an error into a message.
    # Exit when the parent program is gone, even out of an endless step; on Linux only. This stands before anything that
    # takes a while, as importing the worker's packages does.
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        # The parent may have ended before the call took effect; then the other end of stdin is closed.
        poll = select.poll()
        poll.register(0, 0)
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            sys.exit(1)

    # Python searches cycles once more at its end, which takes most of a second with torch.
    atexit.register(gc.freeze)
    # Output of the worker's packages must not get between the frames.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(memory, False)  # noqa: FBT003  it takes no name

    # Python put this program's directory at the front of the path; modules of that directory must shadow no other.
    own = pathlib.Path(__file__).resolve().parent
    sys.path[:] = [each for each in sys.path if pathlib.Path(each).resolve() != own]
    package = sys.modules[PACKAGE] = types.ModuleType(PACKAGE)
    package.__path__, name = [str(pathlib.Path(file).parent)], pathlib.Path(file).stem
    worker: typing.Any = None

    def read_exactly(size: int) -> bytes:
        data = requests.read(size)
        if len(data) < size:
            raise EOFError
        return data

    while True:
        try:
            number = read_exactly(NUMBER.size)
            message, arrays = decode(read_exactly)
        except EOFError:
            return
        try:
            answer, values = {}, {}
            # The imports of the answers may take seconds, for which a question about versions does not wait.
            if message.get("request") != "versions":
                worker = worker or importlib.import_module(f"{PACKAGE}.{name}").Answers(memory, told)
                answer, values = worker.answer(message, arrays)
            if "packages" in message:
                # The versions of Python, and of the packages that are installed.
                found = {"python": platform.python_version()}
                for each in message["packages"]:
                    with contextlib.suppress(metadata.PackageNotFoundError):
                        found[each] = metadata.version(each)
                answer = {**answer, "versions": found}
        except Exception as error:  # noqa: BLE001  any error goes to the asking process
            answer, values = told(error), {}
        answers.write(number + encode(answer, values))
        answers.flush()


def told(error: BaseException) -> dict[str, str]:
    """Return an error as a message: its type and words, its family, and where it was raised."""
    kind = "import" if isinstance(error, ImportError) else "lookup" if isinstance(error, LookupError) else "other"
    text, words = f"{type(error).__name__}: {error}", str(error)
    return {"error": text, "words": words, "kind": kind, "traceback": traceback.format_exc()}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
