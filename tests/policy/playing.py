"""Episodes played from a recording."""

import torch

from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, ScriptedEnvironment, episodes


def play(policy: PolicyBase, number: int, num_envs: int = 4) -> tuple[dict[int, torch.Tensor], list[EpisodeRecord]]:
    """Have a policy play a number of episodes; return its actions by episode, and how they ended."""
    log, notebook = ActionLog(), Notebook()
    # Timeouts after 8 steps at most and 3 at least: a recording of 3 steps always ends first or at the same time.
    rollout(ScriptedEnvironment(num_envs, endings=("timeout",)), policy, episodes(number), [log, notebook])
    return log.actions, notebook.records
