"""Hands of fate for tests: put things somewhere, whatever the robot does."""

import torch

from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.interfaces.environment import EpisodeStart, Step
from isaaclab_arena.policy.scripted import ScriptedPolicy
from tests.environments.building import episode


def put(env: TableEnvironment, prefix: str, position: tuple[float, float, float]) -> None:
    """Put an object of env slot 0 somewhere, upright and at rest."""
    names = env.backend.names
    env.backend.qpos[0, names.joint_qpos[f"{prefix}/free"]] = torch.tensor([*position, 1, 0, 0, 0]).double()
    env.backend.qvel[0, names.joint_dof[f"{prefix}/free"]] = 0


def turn_joint(env: TableEnvironment, joint: str, position: float) -> None:
    """Put a joint of env slot 0 somewhere, at rest."""
    env.backend.qpos[0, env.backend.names.joint_qpos[joint]] = position
    env.backend.qvel[0, env.backend.names.joint_dof[joint]] = 0


def solve(env: TableEnvironment, index: int = 0, *, told: str | None = None) -> list[Step]:
    """Play one episode with the scripted policy, telling it what the environment says or something else."""
    which = episode(index)
    conditions = env.draw_conditions(which.conditions_generator())
    observation = env.reset(torch.tensor([0]), [conditions])
    policy = ScriptedPolicy()
    words = told or env.instruction(conditions)
    policy.start_episodes(
        env, [EpisodeStart(env_id=0, episode=which, conditions=conditions, language_instruction=words)]
    )
    steps = []
    while not steps or not bool(steps[-1].terminated | steps[-1].truncated):
        steps.append(env.step(policy.get_action(env, observation)))
        observation = steps[-1].observation
    return steps
