"""Scripted experts for tasks of LIBERO, robosuite and Meta-World."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits

# Scripted experts for robosuite's Lift, Stack and PickPlaceCan, which see nothing but the observation.

ACTION_DIM = 7
"""Three of the gripper's place, three of its turn, and one for its fingers."""

OPEN, CLOSE = -1.0, 1.0

_OPENED_M = 0.07
_STILL_M_S = 0.02
_UP_M = np.array([0.0, 0.0, 0.1])

# OSC_POSE moves at most 5 cm or 0.5 rad in one control step. It lags behind, so the gain is above 1.
_ASKED_PER_M = 1.5 / 0.05
_ASKED_PER_RAD = 1.5 / 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A task's object to pick, and the place to put it."""

    thing: str  # the object to pick
    grip: tuple[float, float, float] = (0.0, 0.0, 0.0)  # the grasp, from the object's origin along the world's axes [m]
    has_corners: bool = True  # True if the fingers must align with its sides
    onto: str | None = None  # the object to put it onto, None for a place or only a lift
    # The place relative to ``onto`` if there is one, else in the world [m]; None for only a lift.
    place: tuple[float, float, float] | None = None
    tolerance_m: float = 0.008  # largest error of the place [m]
    clearance_m: float = 0.08  # height above the place while it is carried [m]


PLANS: Mapping[str, Plan] = {
    "Lift": Plan(thing="cube"),
    "Stack": Plan(thing="cubeA", onto="cubeB", place=(0.0, 0.0, 0.0465)),
    "PickPlaceCan": Plan(
        thing="Can", has_corners=False, place=(0.1975, 0.4025, 0.88), tolerance_m=0.03, clearance_m=0.15
    ),
}
"""The tasks for which there is an expert."""


def expert_action(plan: Plan, observed: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the expert's action in one env slot, shape (7,), float32, in [-1, 1]; it has no memory."""
    # Terms of the observation by name, of robosuite's first robot and of the objects.
    gripper, thing = observed["robot0_eef_pos"], observed[f"{plan.thing}_pos"]
    left, right = observed["robot0_gripper_qpos"]
    opening_m, is_still = left - right, bool(np.abs(observed["robot0_gripper_qvel"]).max() < _STILL_M_S)
    grip = thing + plan.grip
    off_m, above_m = float(np.linalg.norm(gripper[:2] - grip[:2])), float(gripper[2] - grip[2])
    is_around = off_m < 0.02 and abs(above_m) < 0.02
    is_held = is_around and is_still and opening_m < 0.075
    # In this order: release a placed object, carry a held one, close around one, else approach.
    if plan.place is not None:
        place = np.asarray(plan.place) + (observed[f"{plan.onto}_pos"] if plan.onto else 0.0)
        if np.linalg.norm(thing[:2] - place[:2]) < 1.5 * plan.tolerance_m and thing[2] - place[2] < 0.005:
            return _towards(_UP_M if opening_m > _OPENED_M else np.zeros(3), fingers=OPEN)
        if is_held:
            # Up, then over its place, then down.
            far_m, height_m = float(np.linalg.norm(thing[:2] - place[:2])), float(thing[2] - place[2])
            wanted = place.copy()
            if far_m > 2 * plan.tolerance_m:
                wanted[2] += plan.clearance_m
                if height_m < 0.6 * plan.clearance_m:
                    wanted[:2] = thing[:2]
            else:
                wanted[2] = max(wanted[2] - 0.01, thing[2] - 0.03) if far_m < plan.tolerance_m else thing[2]
            return _towards(wanted - thing, fingers=CLOSE)
    elif is_held:
        return _towards(_UP_M, fingers=CLOSE)
    if is_around and off_m < 0.012:
        return _towards(grip - gripper, fingers=CLOSE)
    # Quarter turns do not change a cube.
    turn = _yaw(observed[f"{plan.thing}_quat"]) - _yaw(observed["robot0_eef_quat"])
    turn = (turn + np.pi / 4) % (np.pi / 2) - np.pi / 4
    turn = turn if plan.has_corners else 0.0
    # Stay above the object while the fingers are not open, and go lower the better they are aligned.
    funnel_m = float(np.clip(8 * (off_m - 0.008) + 0.3 * abs(turn) - 0.01, 0.0, 0.12))
    height_m = funnel_m if opening_m > _OPENED_M else max(above_m, 0.06)
    return _towards(grip + np.array([0.0, 0.0, height_m]) - gripper, turn=turn, fingers=OPEN)


class RobosuiteExpertPolicy(PolicyBase):
    """Acts as the expert of the environment's task does."""

    name: ClassVar[str] = "robosuite_expert"
    # ``family`` is the prefix of the environments' names, before the name of the task.
    plans: ClassVar[Mapping[str, Plan]] = PLANS
    family: ClassVar[str] = "robosuite:"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the expert's actions, shape (num_envs, 7); ConfigError if the environment has no expert."""
        task = str(getattr(env, "task_name", env.task_description))
        terms = observation["policy"]
        if task not in self.plans or "robot0_eef_pos" not in terms:
            tasks = ", ".join(f"{self.family}{name}" for name in self.plans)
            raise ConfigError(f"{self.name} acts in {tasks}, and this is {task}")
        if env.action_spec.shape != (ACTION_DIM,):
            raise ConfigError(
                f"{self.name} moves one arm by OSC_POSE, {ACTION_DIM} numbers; '{task}' takes "
                f"{env.action_spec.shape[0]} with these robots and controllers"
            )
        seen = {name: term.to("cpu", torch.float64).numpy() for name, term in terms.items()}
        slots = range(env.num_envs)
        actions = [expert_action(self.plans[task], {name: term[slot] for name, term in seen.items()}) for slot in slots]
        return torch.from_numpy(np.stack(actions)).to(env.device)


def _towards(way: np.ndarray, *, turn: float = 0.0, fingers: float) -> np.ndarray:
    action = np.zeros(ACTION_DIM, np.float32)
    action[:3] = np.clip(way * _ASKED_PER_M, -1.0, 1.0)
    action[5] = np.clip(turn * _ASKED_PER_RAD, -1.0, 1.0)
    action[6] = fingers
    return action


def _yaw(quaternion: np.ndarray) -> float:
    """Return the turn of a body's first axis about the vertical [rad]. Order: x, y, z, w."""
    x, y, z, w = quaternion
    return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))


# A scripted expert for LIBERO's first spatial task, which sees nothing but the observation.

LIBERO_PLANS: Mapping[str, Plan] = {
    "pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate": Plan(
        thing="akita_black_bowl_1",
        # The fingers take the rim, one of them inside the bowl.
        grip=(0.0, -0.044, 0.033),
        has_corners=False,
        onto="plate_1",
        place=(0.0, 0.0, 0.01),
        tolerance_m=0.012,
        clearance_m=0.1,
    )
}
"""The tasks of ``libero_spatial`` for which there is an expert."""


class LiberoExpertPolicy(RobosuiteExpertPolicy):
    """Acts as the expert of LIBERO's task does, where the last number of an action closes the gripper at 1."""

    name: ClassVar[str] = "libero_expert"
    plans: ClassVar[Mapping[str, Plan]] = LIBERO_PLANS
    family: ClassVar[str] = "libero:libero_spatial/"


# Meta-World's own scripted experts, one for each of its tasks.


@dataclass(frozen=True)
class MetaWorldExpertCfg(PolicyCfg):
    """Options of `MetaWorldExpertPolicy`.

    Attributes:
        task: Whose expert acts, for example ``reach-v3``; the one of the environment's task by default.
    """

    task: str | None = None


class MetaWorldExpertPolicy(PolicyBase[MetaWorldExpertCfg]):
    """Acts as Meta-World's expert for the task does; it sees nothing but the observation."""

    # The expert runs where the environment's Meta-World is, which may be another interpreter.
    name: ClassVar[str] = "metaworld_expert"
    traits = PolicyTraits(reproducible=True, batch_invariant=True, sees_pictures=False)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the expert's actions, shape (num_envs, 4); ConfigError if the environment or task has no expert."""
        ask, here = getattr(env, "expert_actions", None), str(getattr(env, "task_name", env.task_description))
        if ask is None:
            raise ConfigError(f"metaworld_expert acts in environments metaworld:<task>, and this is {here}")
        task = self.config.task if self.config is not None and self.config.task is not None else here
        try:
            actions = ask(task, observation["policy"]["obs"].to("cpu", torch.float32).numpy())
        except ImportError as error:
            message = f"metaworld_expert needs Meta-World where its environment runs ({error})"
            raise ConfigError(f"{message}: docs/how_to/external_environments.md says how to install it") from error
        except LookupError as error:
            raise ConfigError(str(error), key="task") from error
        return torch.tensor(actions, device=env.device)
