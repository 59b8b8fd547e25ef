"""Answers the frames on its standard input as the module ``answers`` of a directory says."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.util
import os
import pathlib
import select
import signal
import sys
import traceback
import types
import typing

PACKAGE = "isaaclab_arena_worker"
"""What the modules beside this one, and those of the directory, are called in a worker."""

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Exit when the parent program is gone, even out of an endless step; on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # The parent may have ended before the call took effect; then the other end of stdin is closed.
    requests = select.poll()
    requests.register(0, 0)
    if any(event & select.POLLHUP for _, event in requests.poll(0)):
        sys.exit(1)


def _import_from(directory: str, *names: str) -> list[types.ModuleType]:
    """Import modules from a directory or beside this one as parts of `PACKAGE`, so that they shadow no other."""
    # Python put this program's directory at the front of the path; remove it.
    sys.path.pop(0)
    beside = pathlib.Path(__file__).parent
    spec: typing.Any = importlib.util.spec_from_file_location(
        PACKAGE, str(beside / "__init__.py"), submodule_search_locations=[directory, str(beside)]
    )
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    return [importlib.import_module(f"{PACKAGE}.{name}") for name in names]


def main(memory: int, directory: str) -> None:
    """Answer frames until the input ends, with ``Answers(memory, told)`` of the directory's module ``answers``."""
    # ``memory`` is the descriptor of the file for shared arrays. ``Answers.answer`` maps a message and arrays to the
    # same; ``told`` turns an error into a message.
    # Python searches cycles once more at its end, which takes most of a second with torch.
    atexit.register(gc.freeze)
    # Output of the worker's packages must not get between the frames.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.set_inheritable(memory, False)  # noqa: FBT003  it takes no name
    frames, module = _import_from(directory, "frames", "answers")
    worker = module.Answers(memory, _told)

    def read_exactly(size: int) -> bytes:
        data = requests.read(size)
        if len(data) < size:
            raise EOFError
        return data

    while True:
        try:
            number = read_exactly(frames.NUMBER.size)
            message, arrays = frames.decode(read_exactly)
        except EOFError:
            return
        try:
            answer, values = worker.answer(message, arrays)
        except Exception as error:  # noqa: BLE001  any error goes to the asking process
            answer, values = _told(error), {}
        answers.write(number + frames.encode(answer, values))
        answers.flush()


def _told(error: Exception) -> dict:
    return {"error": _text(error), "kind": _kind(error), "traceback": traceback.format_exc()}


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, (ImportError, LookupError)) else f"{type(error).__name__}: {error}"


def _kind(error: Exception) -> str:
    return "import" if isinstance(error, ImportError) else "lookup" if isinstance(error, LookupError) else "other"


if __name__ == "__main__":
    # Before anything that takes a while, and importing the worker's packages does.
    _die_with_parent()
    main(int(sys.argv[1]), sys.argv[2])
