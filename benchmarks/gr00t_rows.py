"""How many rows a GR00T model is asked for, in jobs whose episodes end at different times.

Which rows need a chunk depends on when episodes end, and on nothing that a model says. So there is none: the scripted
policy moves the robot, and episodes end as those of a policy that can do the task.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gr00t_checkpoint import modalities

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer
from isaaclab_arena.policy.scripted.policy import ScriptedPolicy
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs
from isaaclab_arena_gr00t.modality import Dimensions, Modality
from isaaclab_arena_gr00t.policy.closedloop import ClosedloopPolicy, QueryCount
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import CPU_ROWS_PER_QUERY

_DIMENSIONS = {"state": {"arm": 7, "gripper": 2}, "action": {"arm": 7, "gripper": 1}}


class CountedQueries(ClosedloopPolicy[ClosedloopPolicyArgs]):
    """Asks for chunks as the GR00T policies do, and counts; what it plays are the scripted policy's actions."""

    def __init__(self, config: ClosedloopPolicyArgs) -> None:
        super().__init__(config)
        self._driver = ScriptedPolicy()
        self._modalities: dict[str, Any] = modalities()

    def query(self, observation: dict[str, Any], noise_seeds: list[int]) -> Mapping[str, np.ndarray]:
        """Answer with zeros, which nobody plays."""
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


class _Lengths(Observer):
    def __init__(self) -> None:
        self.lengths: list[int] = []

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        del environment
        self.lengths.append(record.length)


def count_rows(
    yaml: str, environment_name: str, *, num_envs: int, num_episodes: int, rows_per_query: int | None
) -> tuple[QueryCount, list[int]]:
    """Run episodes, and return what was asked for and how long the episodes were."""
    builder = ENVIRONMENTS.get(environment_name)
    environment = builder.build(builder.config_class(), num_envs=num_envs, device=torch.device("cpu"), num_threads=1)
    policy = CountedQueries(ClosedloopPolicyArgs(policy_config_yaml_path=yaml, rows_per_query=rows_per_query))
    episodes = [Episode(job="rows", episode_index=index, seed=0) for index in range(num_episodes)]
    watched = _Lengths()
    rollout(environment, policy, episodes, [watched])
    environment.close()
    return policy.count, watched.lengths


def rows_table(yaml: str, environment_name: str, *, num_envs: Sequence[int], episodes_per_row: int) -> list[str]:
    """Return the lines of the table of rows.

    Args:
        yaml: The Panda's YAML file, without cameras.
        environment_name: What is run.
        num_envs: Rows of each job.
        episodes_per_row: Episodes for each row.
    """
    lines = [
        "| rows | episodes | steps of an episode | rows needed | asked for on a CPU | all rows | saved | on a CPU |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rows in num_envs:
        count, lengths = count_rows(
            yaml,
            environment_name,
            num_envs=rows,
            num_episodes=rows * episodes_per_row,
            rows_per_query=CPU_ROWS_PER_QUERY,
        )
        spread = f"{min(lengths)} to {max(lengths)}, mean {sum(lengths) / len(lengths):.0f}"
        needed, asked = (100 * (1 - part / count.rows_of_all) for part in (count.rows_needed, count.rows_asked))
        lines.append(
            f"| {rows} | {len(lengths)} | {spread} | {count.rows_needed:,} | {count.rows_asked:,} "
            f"| {count.rows_of_all:,} | {needed:.0f} % | {asked:.0f} % |"
        )
    return lines
