"""The worker: makes one environment and steps it as the frames on its standard input say."""

from __future__ import annotations

import ctypes
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
"""What the modules beside this one are called in a worker."""

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Leave when the program that started this one is gone, even out of an endless step; on Linux only."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # It may have gone before that took effect; then nobody holds the other end of this one's input any more.
    requests = select.poll()
    requests.register(0, 0)
    if any(event & select.POLLHUP for _, event in requests.poll(0)):
        sys.exit(1)


if __name__ == "__main__":
    # Before anything that takes a while, and importing Gymnasium does.
    _die_with_parent()


def _import_beside(*names: str) -> list[types.ModuleType]:
    """Import modules beside this one as those of `PACKAGE`, so that they shadow no module of an environment."""
    # Run as a directory, whose modules would lie at the front of the path.
    sys.path.pop(0)
    directory = pathlib.Path(__file__).parent
    spec: typing.Any = importlib.util.spec_from_file_location(
        PACKAGE, str(directory / "__init__.py"), submodule_search_locations=[str(directory)]
    )
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    return [importlib.import_module(f"{PACKAGE}.{name}") for name in names]


if __name__ == "__main__":
    drawing, env_slot, frames, sources, versions = _import_beside(
        "drawing", "env_slot", "frames", "sources", "versions"
    )


def main() -> None:
    """Answer frames until the input ends."""
    # What an environment prints must not get between the frames.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    worker = _Worker()

    def read_exactly(size: int) -> bytes:
        data = requests.read(size)
        if len(data) < size:
            raise EOFError
        return data

    while True:
        try:
            message, arrays = frames.decode(read_exactly)
        except EOFError:
            return
        try:
            answer, values = worker.answer(message, arrays)
        except Exception as error:  # noqa: BLE001  whatever an environment raises is told to who asked
            answer, values = {"error": _text(error), "kind": _kind(error), "traceback": traceback.format_exc()}, {}
        answers.write(frames.encode(answer, values))
        answers.flush()


class _Worker:
    """The environment, and what may be asked of it."""

    def __init__(self) -> None:
        self._slot: typing.Any = None

    def answer(self, message: dict, arrays: dict) -> tuple[dict, dict]:
        request = message["request"]
        if request == "find":
            found = sources.source_of(message["source"]).find(message["name"], message["make_kwargs"])
            return {**found, "origins": {name: versions.origin(name) for name in found["modules"]}}, {}
        if request == "make":
            environment = sources.source_of(message["source"]).make(
                message["name"], message["make_kwargs"], message["max_episode_length"]
            )
            told = message["info_keys"], drawing.drawing_of(environment), message["instruction_key"]
            self._slot = env_slot.EnvSlot(environment, *told)
            return {**self._slot.description(), "versions": versions.versions_of(environment)}, {}
        if request == "reset":
            start = self._slot.reset(message["seed"], pictures=message["pictures"], options=message["options"])
            return {"instruction": start.instruction}, start.observation
        if request == "expert":
            experts = sources.source_of("metaworld")
            return {}, {"actions": experts.expert_actions(message["task"], arrays["observations"])}
        if request == "render":
            return {}, {"picture": self._slot.render()}
        step = self._slot.step(arrays["action"], pictures=message["pictures"])
        return {key: value for key, value in step._asdict().items() if key != "observation"}, step.observation


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, (ImportError, LookupError)) else f"{type(error).__name__}: {error}"


def _kind(error: Exception) -> str:
    return "import" if isinstance(error, ImportError) else "lookup" if isinstance(error, LookupError) else "other"


if __name__ == "__main__":
    main()
