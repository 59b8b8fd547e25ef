"""Answers requests for versions, and for the actions of a LeRobot policy that it loads."""

from __future__ import annotations

import importlib
import platform
import typing
from importlib import metadata

PACKAGES = ("lerobot", "torch", "torchvision", "transformers", "diffusers", "numpy", "safetensors")
"""The packages that decide a policy's actions, beside its files."""

MEMORY = "memory"
"""The name of a policy's memory of an episode in questions and answers."""


class Answers:
    """One policy, and the requests to it."""

    def __init__(self, memory: int, told: typing.Callable[[Exception], dict]) -> None:
        # Neither is needed: observations and memory arrive with each request, and the caller reports errors.
        del memory, told
        self._network: typing.Any = None

    def answer(self, message: dict, arrays: dict) -> tuple[dict, dict]:
        """Return message and arrays of the answer to a request."""
        request = message["request"]
        if request == "versions":
            return {"versions": versions()}, {}
        if request == "load":
            # The import takes seconds, and a request for versions must not wait for it.
            network = importlib.import_module(f"{__package__}.network")
            self._network = network.Network(message["directory"], message["device"], message["settings"])
            return {**self._network.description(), "versions": versions()}, {}
        asked = message["words"], message["seeds"]
        if not self._network.remembers:
            return {}, {"actions": self._network.actions(arrays, *asked)}
        memory = arrays.pop(MEMORY)
        action, memory = self._network.next_action(arrays, *asked, memory)
        return {}, {"actions": action, MEMORY: memory}


def versions() -> dict[str, str]:
    """Return the version of Python, and of each of `PACKAGES` that is installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
