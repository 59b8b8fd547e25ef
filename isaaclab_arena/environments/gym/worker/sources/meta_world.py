"""The tasks of Meta-World, on the MuJoCo it was made for and on later ones."""

from __future__ import annotations

import importlib
import typing
import warnings

import gymnasium
import numpy as np
from gymnasium.envs import registration

EPISODE_LENGTH = 500


def find(name: str, make_kwargs: dict) -> dict[str, object]:
    """Return a task's limit and its deciding module; LookupError for no such task, ImportError without Meta-World."""
    del make_kwargs
    tasks = task_names()
    if name not in tasks:
        raise LookupError(f"Meta-World has no task '{name}'; it has {', '.join(tasks)}")
    return {"max_episode_length": EPISODE_LENGTH, "modules": ["metaworld"]}


def task_names() -> list[str]:
    """Return the sorted names of all tasks, such as ``reach-v3``; ImportError without Meta-World."""
    return sorted(importlib.import_module("metaworld.env_dict").ALL_V3_ENVIRONMENTS)


def make(name: str, make_kwargs: dict, max_episode_length: int | None) -> gymnasium.Env:
    """Return a new environment of a task, with the goal in its observation."""
    metaworld = importlib.import_module("metaworld")
    # Meta-World 3.1 writes eleven numbers into a vector that has twelve since MuJoCo 3.16.
    if importlib.import_module("mujoco").mjNEQDATA > 11:
        metaworld.sawyer_xyz_env.SawyerMocapBase.reset_mocap_welds = _reset_mocap_welds
    task: typing.Any = metaworld.ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{name}-goal-observable"](seed=0, **make_kwargs)
    # A task made with a seed freezes its random vector: every episode would start from the same positions.
    task._freeze_rand_vec = False
    task.seeded_rand_vec = True
    task.spec = registration.EnvSpec(f"Meta-World/{name}")
    return gymnasium.wrappers.TimeLimit(_Seeded(task), max_episode_length or EPISODE_LENGTH)


def expert_actions(task: str, observations: np.ndarray) -> np.ndarray:
    """Return the scripted expert's actions (n, 4), float32, -1 to 1, for observations (n, 39); or LookupError."""
    experts = importlib.import_module("metaworld.policies").ENV_POLICY_MAP
    if task not in experts:
        raise LookupError(f"Meta-World has no expert for '{task}'; it has some for {', '.join(sorted(experts))}")
    # Experts keep nothing between steps, so one serves all env slots.
    expert = experts[task]()
    with warnings.catch_warnings():
        # Experts exceed the action range, and warn of it at every step.
        warnings.simplefilter("ignore")
        actions = [expert.get_action(each) for each in observations.astype(np.float64)]
    return np.clip(np.stack(actions).astype(np.float32), -1.0, 1.0)


class _Seeded(gymnasium.Wrapper):
    """Passes the seed of ``reset`` to Meta-World's own method."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[typing.Any, dict]:
        task: typing.Any = self.unwrapped
        if seed is not None:
            task.seed(seed)
        return self.env.reset(options=options)


def _reset_mocap_welds(environment: typing.Any) -> None:
    """Replace Meta-World's method of this name, for vectors of any length."""
    weld = int(importlib.import_module("mujoco").mjtEq.mjEQ_WELD)
    model = environment.model
    for index in range(model.neq if model.nmocap > 0 else 0):
        if int(model.eq_type[index]) == weld:
            model.eq_data[index] = 0.0
            model.eq_data[index, 6] = -1.0
            model.eq_data[index, 10] = 5.0
