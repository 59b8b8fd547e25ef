"""Tells an environment before each reset and step whether its pictures are wanted, where it can leave them out."""

from __future__ import annotations

import contextlib
import functools
import typing

import numpy as np

from .env_slot import kind_of  # noqa: TID252  beside this file, whatever package imports it

if typing.TYPE_CHECKING:
    import gymnasium

HOOK = "draw_pictures"
"""The method, of an environment or a wrapper, that is told whether the pictures of what comes next are wanted."""

ROBOSUITE_HOOK = "robosuite_cameras"
"""The method of an environment around one of robosuite that returns it, and which observables it shows as pictures.

It may return a third thing: packages beside robosuite whose observables do not depend on pictures.
"""

Drawing = typing.Callable[[bool], "contextlib.AbstractContextManager[None]"]
"""Around a reset or a step: whether the pictures that it returns are wanted."""

# What `gymnasium.make` puts around an environment. Other wrappers may keep pictures, and show them later.
_TRANSPARENT = frozenset({"TimeLimit", "OrderEnforcing", "PassiveEnvChecker"})

_CLOCK_TOLERANCE_S = 1e-9


def drawing_of(environment: gymnasium.Env) -> Drawing | None:
    """Return what tells an environment whether its pictures are wanted, None if it always draws them."""
    layer: typing.Any = environment
    while type(layer).__name__ in _TRANSPARENT and type(layer).__module__.startswith("gymnasium.wrappers."):
        layer = layer.env
    if callable(getattr(type(layer), HOOK, None)):
        return functools.partial(_telling, layer)
    if callable(getattr(type(layer), ROBOSUITE_HOOK, None)):
        return _on_demand(*getattr(layer, ROBOSUITE_HOOK)())
    if not _is_robosuite(layer) or kind_of(layer.observation_space) != "Dict":
        return None
    names = [name for name, space in layer.observation_space.spaces.items() if space.dtype == np.uint8]
    return _on_demand(layer.unwrapped, names)


def _on_demand(
    environment: typing.Any, names: typing.Sequence[str], trusted: typing.Sequence[str] = ()
) -> Drawing | None:
    cameras = RobosuiteCameras(environment, names, trusted)
    return cameras.drawing if cameras.names else None


class RobosuiteCameras:
    """The cameras of a robosuite environment, whose sensors draw only where a picture is wanted.

    robosuite reads a camera at one of the physics steps inside a control step, so a picture cannot be drawn afterwards.
    Switching an observable off resets its clock, and later pictures are others. So observables stay on, and only their
    sensors return the last picture again.

    Args:
        environment: The innermost environment, without wrappers.
        names: Observables that are observed as pictures.
        trusted: Packages beside robosuite whose observables do not depend on pictures.
    """

    def __init__(
        self, environment: typing.Any, names: typing.Sequence[str], trusted: typing.Sequence[str] = ()
    ) -> None:
        self._trusted = {"robosuite", *trusted}
        self._environment = environment
        self._wanted = True
        self._sensors: dict[str, typing.Any] = {}
        self._is_drawn: dict[str, bool] = {}
        self.names = [name for name in names if self._can_wait(name)]

    @contextlib.contextmanager
    def drawing(self, wanted: bool) -> typing.Iterator[None]:  # noqa: FBT001  the one thing that is told
        """Say whether the pictures of the reset or step inside the ``with`` block are wanted.

        Raises:
            RuntimeError: If they are, and robosuite read a camera too early for it.
        """
        # A new sensor is tried once; that needs no picture.
        self._wanted = False
        for name in self.names:
            self._replace_sensor(name)
        self._wanted = wanted
        yield
        for name in self.names if wanted else ():
            is_ours = self._environment._observables[name]._sensor is self._sensors[name]
            if is_ours and not self._is_drawn[name]:
                raise RuntimeError(
                    f"robosuite did not read '{name}' in this step; --eager_pictures draws every picture"
                )

    def _can_wait(self, name: str) -> bool:
        """Return whether nothing but the picture depends on a sensor, and each control step reads it."""
        observables = self._environment._observables
        if name not in observables or name.replace("_image", "_depth") in observables.keys() - {name}:
            return False
        if not all(_package(each._sensor) in self._trusted for each in observables.values()):
            return False
        off_s = observables[name]._sampling_timestep - self._environment.control_timestep
        return abs(off_s) < _CLOCK_TOLERANCE_S

    def _replace_sensor(self, name: str) -> None:
        """Put a sensor that draws only if it is wanted where there is none: a reset may bring new ones."""
        observable = self._environment._observables[name]
        if observable._sensor is self._sensors.get(name):
            return
        sensor, last = observable._sensor, observable.obs

        @functools.wraps(sensor)
        def draw_if_wanted(cache: dict) -> typing.Any:
            nonlocal last
            if self._wanted:
                last = sensor(cache)
            self._is_drawn[name] = self._wanted
            return last

        self._sensors[name] = draw_if_wanted
        self._environment.modify_observable(name, "sensor", draw_if_wanted)
        self._is_drawn[name] = True


@contextlib.contextmanager
def _telling(layer: typing.Any, wanted: bool) -> typing.Iterator[None]:  # noqa: FBT001  as the hook has it
    getattr(layer, HOOK)(wanted)
    yield


def _is_robosuite(layer: typing.Any) -> bool:
    """Return whether this is an environment of robosuite, around which each layer takes steps as robosuite wrote it."""
    inner = layer.unwrapped
    while _steps_as_robosuite(layer) and layer is not inner:
        layer = layer.env
    return layer is inner and _steps_as_robosuite(inner) and isinstance(getattr(inner, "_observables", None), dict)


def _steps_as_robosuite(layer: typing.Any) -> bool:
    methods = [getattr(type(layer), name, None) for name in ("step", "_flatten_obs")]
    return methods[0] is not None and all(_package(each) == "robosuite" for each in methods if each is not None)


def _package(thing: typing.Any) -> str:
    return thing.__module__.partition(".")[0]
