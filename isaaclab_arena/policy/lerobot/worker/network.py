"""A policy of LeRobot with its processors, asked for chunks of actions."""

from __future__ import annotations

import contextlib
import typing

import numpy as np
import torch

from .loading import loaded, saved_steps  # noqa: TID252  beside this file, whatever imports it
from .memory import NOTHING, EpisodeMemory  # noqa: TID252
from .noise import NoiseOfEntries  # noqa: TID252

DRAWN_BY_ENTRY = frozenset({"act", "diffusion", "pi0", "pi05", "smolvla", "xvla"})
"""Types whose noise, if they draw any, has the batch as its first dimension. Others are asked about one entry each."""

_ACTION = "action"

_ROOM = 2
"""How much longer a memory may become than after the first action, such as by the digits of a counter."""

_ENTRYWISE = frozenset(
    {"rename_observations_processor", "to_batch_processor", "normalizer_processor", "device_processor"}
)
"""Steps before a policy that make no entry longer because of others, as a tokenizer may."""

_ELEMENTWISE = frozenset({"unnormalizer_processor", "device_processor"})
"""Steps after a policy that do the same with each action, however many there are."""


class Network:
    """A policy with its saved pre- and post-processors.

    Args:
        directory: What LeRobot's ``save_pretrained`` wrote.
        device: Where it runs, such as ``cuda:1``.
        settings: ``threads`` of torch, and whether its algorithms are ``deterministic``.
    """

    def __init__(self, directory: str, device: str, settings: dict) -> None:
        torch.set_num_threads(settings["threads"])
        if settings["deterministic"]:
            # To say that it need not be, which holds from the start, would import torch's compiler.
            torch.use_deterministic_algorithms(mode=True)
        if device != "cpu":
            torch.cuda.set_device(torch.device(device))
        self._policy, self._before, self._after = loaded(directory, device)
        self._before_is_entrywise = saved_steps(directory, "policy_preprocessor") <= _ENTRYWISE
        self._after_is_elementwise = saved_steps(directory, "policy_postprocessor") <= _ELEMENTWISE
        self._device = torch.device(device)
        self._memory = EpisodeMemory(self._policy)

    @property
    def remembers(self) -> bool:
        """Whether it keeps more of an episode than observations and actions; it is asked for one action then."""
        return bool(self._memory.paths)

    @property
    def takes_batches(self) -> bool:
        """Whether it may be asked about several entries at once."""
        return self._policy.config.type in DRAWN_BY_ENTRY and not self.remembers

    def description(self) -> dict:
        """Return what the policy takes and gives, after it was asked about nothing."""
        config = self._policy.config
        inputs = {name: _policy_in_words(feature) for name, feature in config.input_features.items()}
        arrays = {name: _nothing(feature, config.n_obs_steps) for name, feature in inputs.items()}
        actions, memory = self.actions(arrays, ["nothing"], [0]), NOTHING
        self._memory.find(lambda: self._acted(arrays, ["nothing"], [0], self._next))
        if self.remembers:
            actions, memory = self.next_action(arrays, ["nothing"], [0], NOTHING)
        return {
            "type": config.type,
            "inputs": inputs,
            "num_observations": config.n_obs_steps,
            "num_actions": actions.shape[1],
            "action_dim": actions.shape[2],
            "takes_batches": self.takes_batches,
            "memory_bytes": _ROOM * len(memory),
        }

    def actions(self, arrays: dict, words: list[str], seeds: list[int]) -> np.ndarray:
        """Return the actions that the policy plays before it looks again.

        Entries that are of several forms, such as instructions of several lengths, are asked about in several calls of
        the same size, which copies fill up. So no entry is padded because of others, which would change last digits.

        Args:
            arrays: By feature, the last observations of each entry, oldest first. Shape: (n, num_observations, ...);
                pictures are uint8 with channels last.
            words: What each entry is to do.
            seeds: What each entry's noise is drawn from.

        Returns:
            Shape: (n, num_actions, action_dim), float32.
        """
        groups = self._of_one_form(arrays, words)
        if len(groups) == 1:
            return self._acted(arrays, words, seeds, self._played)
        found: dict[int, np.ndarray] = {}
        for places in groups:
            filled = places + places[:1] * (len(words) - len(places))
            part = {name: array[filled] for name, array in arrays.items()}
            asked = [words[place] for place in filled], [seeds[place] for place in filled]
            found.update(zip(places, self._acted(part, *asked, self._played), strict=False))
        return np.stack([found[place] for place in range(len(words))])

    def next_action(
        self, arrays: dict, words: list[str], seeds: list[int], memory: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the next action of a policy that remembers, and what it remembers from now on.

        Args:
            arrays: As in `actions`, of one entry.
            words: As there.
            seeds: As there.
            memory: What it has remembered; see `EpisodeMemory.recall`.

        Returns:
            Shape of the action: (1, 1, action_dim), float32. Shape of the memory: (bytes,), uint8.
        """
        # Some draw when an episode begins, and not what they draw for its first action.
        torch.manual_seed(seeds[0] ^ 1)
        self._memory.recall(memory, self._device)
        return self._acted(arrays, words, seeds, self._next), self._memory.kept()

    def _acted(self, arrays: dict, words: list[str], seeds: list[int], act: typing.Callable) -> np.ndarray:
        """Return processed actions: what is done after some observations, with the noise of some seeds."""
        steps = self._shown(arrays, words)
        if self.takes_batches:
            noise: typing.Any = NoiseOfEntries(seeds)
        else:
            noise = contextlib.nullcontext()
            torch.manual_seed(seeds[0])
        amp = torch.autocast(self._device.type) if self._policy.config.use_amp else contextlib.nullcontext()
        with torch.inference_mode(), amp, noise:
            played = self._processed(act([self._before(step) for step in steps]))
        return played.to("cpu", torch.float32).numpy()

    def _shown(self, arrays: dict, words: list[str]) -> list[dict]:
        """Return each observation as LeRobot's processors take it."""
        shown = {name: _tensor(array) for name, array in arrays.items()}
        return [{**{name: each[:, step] for name, each in shown.items()}, "task": words} for step in self._steps]

    def _of_one_form(self, arrays: dict, words: list[str]) -> list[list[int]]:
        """Return the places of entries in groups, of each of which the processor makes the same shapes by itself."""
        if len(words) == 1 or self._before_is_entrywise:
            return [[*range(len(words))]]
        groups: dict[tuple, list[int]] = {}
        for place, said in enumerate(words):
            alone = self._shown({name: array[[place]] for name, array in arrays.items()}, [said])
            processed = [self._before(step) for step in alone]
            shapes = [
                (name, value.shape) for step in processed for name, value in step.items() if hasattr(value, "shape")
            ]
            groups.setdefault(tuple(shapes), []).append(place)
        return [*groups.values()]

    def _next(self, observations: list[dict]) -> list[torch.Tensor]:
        """Return what LeRobot's own loop plays next: a policy that remembers was shown all but the last before."""
        return [self._policy.select_action(observations[-1])]

    def _processed(self, actions: list[torch.Tensor]) -> torch.Tensor:
        """Return actions after the saved processor. Shape: (n, num_actions, action_dim)."""
        if not self._after_is_elementwise:
            return torch.stack([self._after(action) for action in actions], dim=1)
        stacked = torch.stack(actions, dim=1)
        return self._after(stacked.flatten(0, 1)).unflatten(0, stacked.shape[:2])

    @property
    def _steps(self) -> range:
        return range(self._policy.config.n_obs_steps)

    def _played(self, observations: list[dict]) -> list[torch.Tensor]:
        """Return what LeRobot's own loop would play: the action after the last observation, and those kept for later.

        A policy keeps its last observations itself and acts after each of them, if it has no action left to play. So
        it gets a blank one to play after all but the last.
        """
        self._policy.reset()
        for observation in observations[:-1]:
            self._kept().append(None)
            self._policy.select_action(observation)
        action = self._policy.select_action(observations[-1])
        return [action, *self._kept()]

    def _kept(self) -> typing.Any:
        """Return the actions that the policy has still to play; those of one that keeps none are always none."""
        queue = getattr(self._policy, "_action_queue", None)
        return getattr(self._policy, "_queues", {}).get(_ACTION, []) if queue is None else queue


def _policy_in_words(feature: typing.Any) -> dict:
    return {"type": feature.type.value, "shape": list(feature.shape)}


def _nothing(feature: dict, num_observations: int) -> np.ndarray:
    shape = feature["shape"]
    if feature["type"] == "VISUAL":
        channels, height, width = shape
        return np.zeros((1, num_observations, height, width, channels), np.uint8)
    return np.zeros((1, num_observations, *shape), np.float32)


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Return an array as LeRobot's own loop shows it to a policy: pictures as floats up to 1, channels first."""
    tensor = torch.from_numpy(array.copy())
    if tensor.dtype is not torch.uint8:
        return tensor
    return tensor.movedim(-1, -3).contiguous().to(torch.float32) / 255
