"""Keeps the pictures that env slots observed last, and tells those of the present from older ones."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch

from isaaclab_arena.errors import UnannouncedPictureError
from isaaclab_arena.interfaces.pictures import SomePictures
from isaaclab_arena.interfaces.specs import ArraySpec


class SlotPictures:
    """The group ``camera_obs`` of a batch of single environments, which may leave pictures out.

    Args:
        specs: The terms of the group.
        num_envs: Number of env slots. One that was never reset shows black pictures.
        always_drawn: Whether the environments draw every picture, also those that nobody wants.

    Attributes:
        num_drawn: Pictures that were drawn, one for each env slot and each term.
    """

    def __init__(self, specs: Mapping[str, ArraySpec], num_envs: int, *, always_drawn: bool) -> None:
        self._arrays = {name: np.zeros((num_envs, *spec.shape), np.uint8) for name, spec in specs.items()}
        self._always_drawn = always_drawn
        self._announced: Sequence[int] | None = None
        self._outdated = np.zeros(num_envs, bool)
        self.num_drawn = 0

    def __len__(self) -> int:
        """Return how many terms there are."""
        return len(self._arrays)

    def announce(self, env_ids: Sequence[int] | None) -> None:
        """Say which env slots are looked at when `wanted` is called next, None for all."""
        self._announced = env_ids

    def wanted(self, moving: Iterable[int], resting: np.ndarray) -> set[int]:
        """Return which of the env slots that are about to move were announced; the announcement is used up.

        Of env slots that rest, a last picture that was left out cannot be drawn any more. It is black if they are
        announced, so that a reader of all env slots can go on: nobody acts on what it shows.

        Args:
            moving: The env slots.
            resting: Which env slots are without an episode. Shape: (num_envs,), bool.
        """
        if not self:
            return set()
        announced, self._announced = self._announced, None
        named = np.zeros(len(resting), bool)
        named[slice(None) if announced is None else list(announced)] = True
        black = self._outdated & resting & named
        for pictures in self._arrays.values():
            pictures[black] = 0
        self._outdated &= ~black
        return {env_id for env_id in moving if named[env_id]}

    def put(self, env_id: int, observation: Mapping[str, np.ndarray], *, drawn: bool) -> None:
        """Keep what an env slot observed after it has moved; without pictures, its earlier ones are out of date.

        Args:
            env_id: The env slot.
            observation: Term to array. Pictures are there only if they were wanted.
            drawn: Whether they were.
        """
        self._outdated[env_id] = not drawn
        if drawn:
            for name, pictures in self._arrays.items():
                pictures[env_id] = observation[name]
        if drawn or self._always_drawn:
            self.num_drawn += len(self._arrays)

    def observed(self, device: torch.device) -> dict[str, torch.Tensor | SomePictures]:
        """Return the pictures of all env slots, shape (num_envs, height, width, channels), or those of the present."""
        if not self._outdated.any():
            return {name: torch.from_numpy(each.copy()).to(device) for name, each in self._arrays.items()}
        places = np.where(self._outdated, -1, np.cumsum(~self._outdated) - 1)
        drawn = {name: torch.from_numpy(each[~self._outdated]).to(device) for name, each in self._arrays.items()}
        return {name: SomePictures(name, pictures, places) for name, pictures in drawn.items()}

    def of(self, name: str, env_ids: Sequence[int]) -> np.ndarray:
        """Return the pictures of some env slots. Shape: (len(env_ids), height, width, channels).

        Raises:
            UnannouncedPictureError: If one of them is out of date.
        """
        outdated = [env_id for env_id in env_ids if self._outdated[env_id]]
        if outdated:
            raise UnannouncedPictureError(
                f"'{name}' of env slots {', '.join(map(str, outdated))} was not drawn, and this environment cannot do "
                "so afterwards; docs/how_to/cameras.md says how pictures are announced"
            )
        return self._arrays[name][list(env_ids)]
