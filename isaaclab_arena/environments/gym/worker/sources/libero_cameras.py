"""Draws LIBERO's pictures only where they are wanted, and turns them as a protocol says."""

from __future__ import annotations

import functools
import importlib
import typing

import numpy as np


class Cameras:
    """The cameras of an environment of robosuite 1.4, whose sensors draw only where a picture is wanted.

    robosuite reads a camera at one of the physics steps inside a control step, so a picture cannot be drawn afterwards.
    Its observables and their clocks stay as they are, and only the sensors below them return the last picture again.
    A reset makes new sensors, and tries each of them: so it is the making of sensors that is replaced here.

    Args:
        environment: The environment of robosuite.
        names: The cameras.
        size: Width and height that they draw [pixels].
        shown_size: Width and height that pictures are shrunk to, None for none [pixels].

    Attributes:
        wanted: Whether the pictures that are read next are wanted.
    """

    def __init__(
        self, environment: typing.Any, names: typing.Sequence[str], *, size: int, shown_size: int | None
    ) -> None:
        self.wanted = True
        self._drawn: set[str] = set()
        self._size = size
        self._shown_size = shown_size
        self._names = [f"{name}_image" for name in names]
        self._make = environment._create_camera_sensors
        environment._create_camera_sensors = self._make_on_demand

    def forget(self) -> None:
        """Forget which pictures were drawn, before they are to be drawn anew."""
        self._drawn.clear()

    def shown(self, observation: typing.Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the pictures of an observation if they were wanted, turned by half a turn as all policies see them.

        Raises:
            RuntimeError: If they were, and robosuite read a camera too early for it.
        """
        if not self.wanted:
            return {}
        missing = [name for name in self._names if name not in self._drawn]
        if missing:
            raise RuntimeError(f"robosuite did not read '{missing[0]}' in this step; --eager_pictures draws every one")
        return {name: self._shrunk(observation[name][::-1, ::-1]) for name in self._names}

    def _make_on_demand(self, *args: typing.Any, **kwargs: typing.Any) -> tuple[list, list[str]]:
        sensors, names = self._make(*args, **kwargs)
        return [self._on_demand(names[number], sensor) for number, sensor in enumerate(sensors)], names

    def _on_demand(self, name: str, sensor: typing.Any) -> typing.Any:
        last = np.zeros((self._size, self._size, 3), np.uint8)

        @functools.wraps(sensor)
        def draw_if_wanted(cache: dict) -> typing.Any:
            nonlocal last
            if self.wanted:
                last = sensor(cache)
                self._drawn.add(name)
            return last

        return draw_if_wanted

    def _shrunk(self, picture: np.ndarray) -> np.ndarray:
        if self._shown_size in (None, self._size):
            return np.ascontiguousarray(picture)
        # As openpi_client.image_tools.resize_with_pad does it; square pictures need no border.
        image = importlib.import_module("PIL.Image")
        whole = image.fromarray(np.ascontiguousarray(picture))
        return np.asarray(whole.resize((self._shown_size, self._shown_size), resample=image.BILINEAR))
