"""Makes environments and steps them on request."""

from __future__ import annotations

import functools
import gc
import time
import typing

from . import env_slot, render_contexts, shared_arrays, sources, versions  # noqa: TID252  beside this file, whatever imports it

_SLOW_RESET_S = 0.05
"""Resets that take longer make a scene anew [s]; a collection of garbage after them costs little."""


class Answers:
    """The environments of a worker, and its answers to requests; observations go into shared memory."""

    def __init__(self, memory: int, told: typing.Callable[[Exception], dict]) -> None:
        # ``told`` converts an environment's exception to a message.
        self._memory, self._told = memory, told
        self._shared: typing.Any = None
        self._slots: dict[int, typing.Any] = {}
        self._description: dict = {}
        self._num_slots = self._num_ahead = 0
        self._made_by: dict = {}
        # Errors of env slots in steps ahead that are not requested yet.
        self._raised: dict[int, dict] = {}

    def answer(self, message: dict, arrays: dict) -> tuple[dict, dict]:
        """Return the message and arrays of the answer to a request."""
        try:
            if not message:
                # The shared memory requests the steps, and takes most of their results. The answer has further notes.
                asked = self._shared.asked.tolist()
                notes = {slot: self._step(slot, what) for slot, what in enumerate(asked) if what != shared_arrays.REST}
                return {slot: note for slot, note in notes.items() if note}, {}
            request = message["request"]
            plain = {"find": self._find, "make": self._make, "forget": self._forget}
            if request in plain:
                return plain[request](message), {}
            if request == "reset":
                told = zip(message["slots"], message["starts"], message["pictures"])  # noqa: B905  Python 3.9 has none
                return {"starts": [self._reset(slot, start, pictures=seen) for slot, start, seen in told]}, {}
            if request == "expert":
                experts = sources.source_of("metaworld")
                return {}, {"actions": experts.expert_actions(message["task"], arrays["observations"])}
            if request == "render":
                return {}, {"picture": self._slots[message["slot"]].render()}
            raise ValueError(f"there is no request '{request}'")
        finally:
            if self._shared is not None:
                self._shared.moving[0] = shared_arrays.NO_SLOT

    def _find(self, message: dict) -> dict:
        found = sources.source_of(message["source"]).find(message["name"], message["make_kwargs"])
        return {**found, "origins": {name: versions.origin(name) for name in found["modules"]}}

    def _make(self, message: dict) -> dict:
        made = [self._made(message) for _ in message["slots"]]
        self._slots.update(zip(message["slots"], made))  # noqa: B905  Python 3.9 has none
        self._description, self._num_slots = made[0].description(), message["num_slots"]
        self._num_ahead, self._made_by = message.get("num_ahead", 0), message
        # Imported objects never become garbage, and a scan of them takes as long as many steps.
        gc.freeze()
        told = versions.versions_of(made[0].environment, alone=True)
        return {**self._description, "versions": told, **render_contexts.drawn_with()}

    def _forget(self, message: dict) -> dict:
        """Close the environments, so that the next ones start as in a new process."""
        del message
        if self._raised:
            raise RuntimeError("an environment raised, and may have left this process in any state")
        while self._slots:
            self._slots.popitem()[1].close()
        self._shared = None
        gc.unfreeze()
        gc.collect()
        return {}

    def _made(self, message: dict) -> typing.Any:
        make, generators = sources.source_of(message["source"]).make, env_slot.OwnGenerators()
        with generators:
            environment = make(message["name"], dict(message["make_kwargs"]), message["max_episode_length"])
        render_contexts.keep_robosuite_apart()
        told = message["info_keys"], env_slot.drawing_of(environment), message["instruction_key"]
        return env_slot.EnvSlot(environment, *told, generators, checks_ranges=message["checks_ranges"])

    def _reset(self, slot: int, start: dict, *, pictures: bool) -> tuple:
        if self._raised.pop(slot, None):
            self._slots[slot] = self._made(self._made_by)
        began_s = time.perf_counter()
        started = self._moving(slot).reset(start["seed"], pictures=pictures, options=start["options"])
        self._shared.put(slot, started.observation)
        if time.perf_counter() - began_s > _SLOW_RESET_S:
            # A new scene leaves the old one as garbage: in robosuite some hundred megabytes. Python triggers its
            # collection by the number of objects, not by their size.
            gc.collect()
        return started.instruction, started.info, started.error

    def _step(self, slot: int, asked: int) -> dict:
        """Make a step, show its results, and return further notes on it."""
        pictures = asked == shared_arrays.MOVE_AND_LOOK
        if slot in self._raised:
            del self._slots[slot]
            return self._raised.pop(slot)
        try:
            step = self._moving(slot).step(self._shared.actions[slot], pictures=pictures)
        except Exception as error:  # noqa: BLE001  the other env slots go on
            # The environment's state is unknown after an error.
            del self._slots[slot]
            return self._told(error)
        self._shared.put_step(slot, step)
        note = {"info_names": step.info_names} if step.info_names else {}

        # Make the steps that follow; `ahead` receives the names in ``info`` by the number of the step.
        ahead: dict = {}
        if self._num_ahead:
            make = functools.partial(self._slots[slot].step, pictures=False)
            try:
                shared_arrays.make_ahead(self._shared, slot, step, make, ahead)
            except Exception as error:  # noqa: BLE001  reported with the answer to that step
                self._raised[slot] = self._told(error)
        return {**note, "ahead_names": ahead} if ahead else note

    def _moving(self, slot: int) -> typing.Any:
        """Mark an env slot as moving, and return its environment."""
        if self._shared is None:
            told = self._description, self._num_slots, self._num_ahead
            self._shared = shared_arrays.SharedArrays(self._memory, *told)
        self._shared.moving[0] = slot
        return self._slots[slot]
