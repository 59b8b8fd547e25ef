"""The worker: makes environments and steps them as the frames on its standard input say."""

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
    drawing, env_slot, frames, shared_arrays, sources, versions = _import_beside(
        "drawing", "env_slot", "frames", "shared_arrays", "sources", "versions"
    )


def main() -> None:
    """Answer frames until the input ends."""
    # What an environment prints must not get between the frames.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    memory = int(sys.argv[1])
    os.set_inheritable(memory, False)  # noqa: FBT003  it takes no name
    worker = _Worker(memory)

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
            answer, values = _told(error), {}
        worker.rest()
        answers.write(frames.encode(answer, values))
        answers.flush()


class _Worker:
    """The environments, and what may be asked of them. What they observe goes into memory that is shared.

    Args:
        memory: Descriptor of the file for it.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._shared: typing.Any = None
        self._slots: dict[int, typing.Any] = {}
        self._description: dict = {}
        self._num_slots = 0

    def answer(self, message: dict, arrays: dict) -> tuple[dict, dict]:
        request = message["request"]
        if request == "find":
            found = sources.source_of(message["source"]).find(message["name"], message["make_kwargs"])
            return {**found, "origins": {name: versions.origin(name) for name in found["modules"]}}, {}
        if request == "make":
            return self._make(message), {}
        if request == "reset":
            told = zip(message["slots"], message["starts"], message["pictures"])  # noqa: B905  Python 3.9 has none
            return {"instructions": [self._reset(slot, start, pictures=seen) for slot, start, seen in told]}, {}
        if request == "expert":
            experts = sources.source_of("metaworld")
            return {}, {"actions": experts.expert_actions(message["task"], arrays["observations"])}
        if request == "render":
            return {}, {"picture": self._slots[message["slot"]].render()}
        told = zip(message["slots"], arrays["actions"], message["pictures"])  # noqa: B905  Python 3.9 has none
        notes = {slot: self._step(slot, action, pictures=seen) for slot, action, seen in told}
        return {"notes": {slot: note for slot, note in notes.items() if note}}, {}

    def rest(self) -> None:
        """Say that no env slot moves."""
        if self._shared is not None:
            self._shared.moving[0] = shared_arrays.NOBODY

    def _make(self, message: dict) -> dict:
        made = [self._made(message) for _ in message["slots"]]
        self._slots.update(zip(message["slots"], made))  # noqa: B905  Python 3.9 has none
        self._description, self._num_slots = made[0].description(), message["num_slots"]
        return {**self._description, "versions": versions.versions_of(made[0].environment)}

    def _made(self, message: dict) -> typing.Any:
        make = sources.source_of(message["source"]).make
        environment = make(message["name"], dict(message["make_kwargs"]), message["max_episode_length"])
        told = message["info_keys"], drawing.drawing_of(environment), message["instruction_key"]
        return env_slot.EnvSlot(environment, *told)

    def _reset(self, slot: int, start: dict, *, pictures: bool) -> str | None:
        started = self._moving(slot).reset(start["seed"], pictures=pictures, options=start["options"])
        self._shared.put(slot, started.observation)
        return started.instruction

    def _step(self, slot: int, action: typing.Any, *, pictures: bool) -> dict:
        """Make a step, show what it gave, and return what else is to be said of it."""
        try:
            step = self._moving(slot).step(action, pictures=pictures)
        except Exception as error:  # noqa: BLE001  the other env slots go on
            # Its state is unknown.
            del self._slots[slot]
            return _told(error)
        self._shared.put_step(slot, step)
        return {"info_names": step.info_names} if step.info_names else {}

    def _moving(self, slot: int) -> typing.Any:
        """Return the environment in an env slot, which moves from now on."""
        if self._shared is None:
            self._shared = shared_arrays.SharedArrays(self._memory, self._description, self._num_slots)
        self._shared.moving[0] = slot
        return self._slots[slot]


def _told(error: Exception) -> dict:
    return {"error": _text(error), "kind": _kind(error), "traceback": traceback.format_exc()}


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, (ImportError, LookupError)) else f"{type(error).__name__}: {error}"


def _kind(error: Exception) -> str:
    return "import" if isinstance(error, ImportError) else "lookup" if isinstance(error, LookupError) else "other"


if __name__ == "__main__":
    main()
