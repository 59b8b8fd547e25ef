"""What worlds were before a step, to put back those that did not make it or broke down in it."""

from collections.abc import Iterable, Mapping

import torch

from isaaclab_arena.sim.replayed import Capture, Replayed
from isaaclab_arena.sim.warp.buffers import Room

SENSORS = "sensordata"
WARM_START = "qacc_warmstart"

_LARGEST = 1e10
"""MuJoCo's mjMAXVAL: what is beyond counts as broken down."""

_MAY_BREAK = ("qpos", "qvel", WARM_START, "act")


class Undoing:
    """Keeps the states of all worlds for the length of a step.

    Everything is where it was from one step to the next, so that a GPU is told most of this as graphs.

    Args:
        state: What a world's future depends on, live. Shape of each: (num_envs, ...).
        sensordata: What sensors say, live. Shape: (num_envs, nsensordata).
        room: What says whether everything had room in a step.
        capture: Captures work of torch; see `Replayed`.

    Attributes:
        at_rest: The model's default state. Shape of each: (1, ...).
        diverged: Worlds that have broken down since their reset. Shape: (num_envs,), bool.
    """

    def __init__(
        self, state: Mapping[str, torch.Tensor], sensordata: torch.Tensor, room: Room, capture: Capture | None
    ) -> None:
        self._live = {**state, SENSORS: sensordata}
        self._before = {name: torch.empty_like(tensor) for name, tensor in self._live.items()}
        self._room = room
        self.at_rest = {name: tensor[:1].clone() for name, tensor in state.items()}
        self.diverged = torch.zeros(len(sensordata), dtype=torch.bool, device=sensordata.device)
        self._chosen = torch.zeros_like(self.diverged)

        self._keep = Replayed(self._copy_all, capture, name="keeping worlds")
        self._had_room = Replayed(self._see_room, capture, name="whether worlds had room")
        self._settle = Replayed(self._put_back_others, capture, name="putting worlds back")
        self._settle_if_room = Replayed(self._put_back_unmade, capture, name="putting worlds back that had no room")
        self._release = Replayed(self._put_back_sensors, capture, name="putting sensors back")

    def keep(self) -> None:
        """Keep what all worlds are now, before a step or before some of them are renewed."""
        self._keep()

    def had_room(self) -> bool:
        """Return whether everything had room, which is to wait for a GPU."""
        return bool(self._had_room())

    def put_back(self, names: Iterable[str] | None = None) -> None:
        """Put all worlds back where they were.

        Args:
            names: The parts of their state that are put back, by default all and their sensors.
        """
        for name in self._before if names is None else names:
            self._live[name].copy_(self._before[name])

    def settle(self, moved: torch.Tensor) -> None:
        """Put back what was not to make the step, and to rest what broke down in it. Shape: (num_envs,), bool."""
        self._chosen.copy_(moved)
        self._settle()

    def settle_if_room(self, moved: torch.Tensor) -> torch.Tensor:
        """Do the same, or put all worlds back if something had no room in the step.

        Args:
            moved: Worlds that were to make the step. Shape: (num_envs,), bool.

        Returns:
            Those that made it: all of these or none. Shape: (num_envs,), bool.
        """
        self._chosen.copy_(moved)
        return self._settle_if_room().clone()

    def release(self, env_ids: torch.Tensor) -> None:
        """Put back the sensors of worlds that were not renewed, and the warm starts of all. Shape: (n,), int64."""
        self._chosen.zero_()
        self._chosen[env_ids] = True
        self._release()

    def rest(self) -> None:
        """Put all worlds into the model's default state."""
        self._to_rest(torch.ones_like(self.diverged))

    def move_into(self, room: Room) -> None:
        """Ask another room from now on, because the worlds have more of it."""
        self._room = room
        self.forget()

    def forget(self) -> None:
        """Give back what was captured."""
        for each in (self._keep, self._had_room, self._settle, self._settle_if_room, self._release):
            each.forget()

    def _copy_all(self) -> None:
        for name, before in self._before.items():
            before.copy_(self._live[name])

    def _see_room(self) -> torch.Tensor:
        return self._room.was_enough()

    def _put_back_others(self) -> None:
        self._restore(self._before, ~self._chosen)
        self._mark_diverged(self._chosen)

    def _put_back_unmade(self) -> torch.Tensor:
        made = self._chosen & self._room.was_enough()
        self._restore(self._before, ~made)
        self._mark_diverged(made)
        return made

    def _put_back_sensors(self) -> None:
        self._restore({SENSORS: self._before[SENSORS]}, ~self._chosen)
        self._live[WARM_START].copy_(self._before[WARM_START])

    def _mark_diverged(self, moved: torch.Tensor) -> None:
        numbers = torch.cat([self._live[name] for name in _MAY_BREAK], dim=1)
        broken = moved & ~(numbers.abs() < _LARGEST).all(dim=1)
        self.diverged |= broken
        self._to_rest(broken)

    def _to_rest(self, worlds: torch.Tensor) -> None:
        self._restore({name: value.expand_as(self._live[name]) for name, value in self.at_rest.items()}, worlds)

    def _restore(self, kept: Mapping[str, torch.Tensor], worlds: torch.Tensor) -> None:
        for name, values in kept.items():
            if values.numel():
                self._live[name].copy_(torch.where(_like(worlds, values), values, self._live[name]))


def _like(worlds: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return worlds.reshape(-1, *(1 for _ in values.shape[1:]))
