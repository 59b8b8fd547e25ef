"""Count for how many env slots a GR00T model is asked, in jobs whose episodes end at different times.

Which slots need a chunk of actions depends on when episodes end, and on nothing that a model says. So there is no
model: the scripted policy moves the robot, and episodes end as those of a policy that can do the task.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gr00t.checkpoint import modalities
from benchmarks.harness.environments import Tally, build, tally
from benchmarks.harness.tables import markdown_table
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs
from isaaclab_arena_gr00t.joints import Dimensions, Modality
from isaaclab_arena_gr00t.policy.closedloop import ClosedloopPolicy, QueryCount
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import CPU_SLOTS_PER_QUERY

HEADING = ("env slots", "episodes", "steps of an episode", "slots needed", "asked for on a CPU", "all slots", "saved")
_DIMENSIONS = {"state": {"arm": 7, "gripper": 2}, "action": {"arm": 7, "gripper": 1}}


class CountedQueries(ClosedloopPolicy[ClosedloopPolicyArgs]):
    """Asks for chunks as the GR00T policies do, and counts; what it plays are the scripted policy's actions."""

    def __init__(self, config: ClosedloopPolicyArgs) -> None:
        super().__init__(config)
        self._driver = ScriptedPolicy()
        self._modalities: dict[str, Any] = modalities()

    def query(self, observation: dict[str, Any], noise_seeds: list[int]) -> Mapping[str, np.ndarray]:
        """Answer with zeros, which are never played."""
        del observation
        shape = (len(noise_seeds), len(self._modalities["action"].delta_indices))
        return {key: np.zeros((*shape, size), np.float32) for key, size in _DIMENSIONS["action"].items()}

    def modality_config(self) -> Mapping[str, Modality]:
        """Return what the Panda's models take, but for the pictures, which would only cost time."""
        return {**self._modalities, "video": dataclasses.replace(self._modalities["video"], modality_keys=[])}

    def dimensions(self) -> Dimensions | None:
        """Return the sizes of the Panda's groups."""
        return _DIMENSIONS

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Ask where that is due, and return what the scripted policy does."""
        super().get_action(env, observation)
        return self._driver.get_action(env, observation)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Start them for both."""
        super().start_episodes(env, starts)
        self._driver.start_episodes(env, starts)


def count_requests(
    yaml: str, environment_name: str, *, num_envs: int, num_episodes: int, per_query: int | None
) -> tuple[QueryCount, Tally]:
    """Run episodes, and return what was asked for and what became of the episodes."""
    environment = build(environment_name, num_envs)
    policy = CountedQueries(ClosedloopPolicyArgs(policy_config_yaml_path=yaml, rows_per_query=per_query))
    found = tally(environment, policy, num_episodes)
    environment.close()
    return policy.count, found


def requests_table(yaml: str, environment_name: str, *, num_envs: Sequence[int], episodes_per_slot: int) -> list[str]:
    """Return the lines of the table of requests.

    Args:
        yaml: The Panda's YAML file, without cameras.
        environment_name: What is run.
        num_envs: Env slots of each job.
        episodes_per_slot: Episodes for each slot.
    """
    table = []
    for slots in num_envs:
        count, found = count_requests(
            yaml,
            environment_name,
            num_envs=slots,
            num_episodes=slots * episodes_per_slot,
            per_query=CPU_SLOTS_PER_QUERY,
        )
        parts = (count.slots_needed, count.slots_asked)
        numbers = (f"{number:,}" for number in (*parts, count.slots_of_all))
        saved = (f"{100 * (1 - part / count.slots_of_all):.0f} %" for part in parts)
        table.append((str(slots), str(len(found.records)), found.lengths, *numbers, *saved))
    return markdown_table((*HEADING, "on a CPU"), table, words=0)
