"""Play episodes with this package's own rollout: ``our_loop PYTHON CHECKOUT STEPS SIZE CHUNK``."""

import sys
import time
from collections.abc import Sequence
from typing import ClassVar

import torch

from benchmarks.harness.environments import Tally, build
from benchmarks.harness.runs import cpu_of_all_s
from benchmarks.harness.workers import serve
from benchmarks.libero.inside import HOLD
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.policy import PolicyBase


class HoldPolicy(PolicyBase):
    """Does nothing, and looks at the pictures of every step or of the first in each chunk."""

    name: ClassVar[str] = "hold"

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self._chunk = chunk
        self._step = 0

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        """Return all env slots at the beginning of a chunk, no env slot after it."""
        del env
        return None if starting or self._step % self._chunk == 0 else []

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        """Begin a chunk."""
        super().reset(env_ids)
        self._step = 0

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the actions. Shape: (num_envs, 7)."""
        if self._step % self._chunk == 0:
            assert all(picture[0].any() for picture in observation["camera_obs"].values())
        self._step += 1
        return torch.tensor([HOLD] * env.num_envs)


def main(python: str, checkout: str, steps: int, size: int, chunk: int) -> None:
    """Play an episode for each line on the standard input."""
    # As in a run. The other harnesses compute nothing with torch.
    torch.set_num_threads(1)
    environment = build(
        "libero:libero_spatial/0",
        1,
        python=python,
        libero_path=checkout,
        protocol="vla_eval",
        enable_cameras=True,
        camera_size=size,
        max_episode_length=steps,
        environment_variables={"MUJOCO_GL": "osmesa"},
    )
    policy = HoldPolicy(chunk)

    def play(index: int) -> dict[str, float]:
        found, cpu_s, wall_s = Tally(), cpu_of_all_s(), time.perf_counter()
        rollout(environment, policy, [Episode(job="benchmark", episode_index=index, seed=0)], [found])
        took = {"cpu_s": cpu_of_all_s() - cpu_s, "wall_s": time.perf_counter() - wall_s}
        return {**took, "steps": found.records[0].length}

    serve({"ready": True}, play)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
