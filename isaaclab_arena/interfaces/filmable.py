"""The protocol of environments that can be filmed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Filmable(Protocol):
    """An environment that shows what cameras see; there are no videos of others.

    It may also have an attribute ``filming_hint``: what a user can do for more cameras, to be put behind a message.

    Attributes:
        filmable: Names of the cameras that `film` knows: those of ``camera_obs`` that show colours, and ``viewport``.
    """

    filmable: tuple[str, ...]

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return what cameras see of some env slots now; nothing else changes by it.

        Args:
            env_ids: The env slots.
            cameras: Names out of ``filmable``.

        Returns:
            By name. Shape of each: (len(env_ids), height, width, 3), uint8, from top to bottom.

        Raises:
            KeyError: If there is no such camera.
        """
        ...


@runtime_checkable
class FilmableLater(Filmable, Protocol):
    """A filmable environment whose pictures can be drawn after it has moved on, so that no step waits for them."""

    def film_later(
        self, env_ids: Sequence[int], cameras: Sequence[str]
    ) -> Sequence[Callable[[], Mapping[str, np.ndarray]]]:
        """Keep what cameras see of some env slots now; nothing else changes by it.

        Args:
            env_ids: The env slots.
            cameras: Names out of ``filmable``.

        Returns:
            For each env slot what draws its pictures, bit for bit those of `film` at this moment. May be called on any
            thread, also when the environment is closed. It returns, by camera, shape (height, width, 3), uint8.

        Raises:
            KeyError: If there is no such camera.
        """
        ...
