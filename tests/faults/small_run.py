"""A run of three small jobs that is over in a moment, and writes down which episodes it really executes.

As a program it is the evaluation runner that knows the environment ``coins``.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isaaclab_arena.environments import ENVIRONMENTS, Environment, Observation
from isaaclab_arena.evaluation import eval_runner
from isaaclab_arena.policies import EpisodeStart, PolicyBase, PolicyCfg, PolicyTraits
from tests.end_to_end.launching import job, write_jobs
from tests.fakes import CoinBuilder

DIARY = "ARENA_TEST_DIARY"
"""The environment variable that names the file to which every started episode is appended."""

# What they are before faults are put in their place.
_open, _write = os.open, os.write


@dataclass(frozen=True)
class WatchedCfg(PolicyCfg):
    """Options of `WatchedPolicy`: the time that an action takes [s]."""

    step_s: float = 0.0


class WatchedPolicy(PolicyBase[WatchedCfg]):
    """Does nothing, and writes down every episode that starts."""

    name = "watched"
    config_class = WatchedCfg
    traits = PolicyTraits(reproducible=True, batch_invariant=True)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        lines = "".join(f"{start.episode.job} {start.episode.episode_index}\n" for start in starts)
        # One write each, so that the lines of several ranks do not mix.
        diary = Path(os.environ[DIARY])
        descriptor = _open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        _write(descriptor, lines.encode())
        os.close(descriptor)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        time.sleep(self.config.step_s if self.config is not None else 0)
        return torch.zeros(env.num_envs, *env.action_spec.shape)


def write_small_jobs(
    path: Path,
    *,
    num_jobs: int = 3,
    num_episodes: int = 6,
    step_s: float = 0.0,
    success_rate: float = 0.5,
    top_level: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Path:
    """Write the job file: jobs ``a``, ``b``, ``c`` … of two env slots each; keys are added to every job."""
    args = {"success_rate": success_rate, "success_step": 2, "failure_step": 3}
    policy = {"policy": "tests.faults.small_run.WatchedPolicy", "options": {"step_s": step_s}}
    jobs = [
        job(
            "coins", num_episodes=num_episodes, args=args, name="abcdefghij"[index], **{"seed": index, **policy, **keys}
        )
        for index in range(num_jobs)
    ]
    return write_jobs(path, jobs, **(top_level or {}))


def read_diary(path: Path) -> Counter[tuple[str, int]]:
    """Return the number of starts of each episode, by job and index."""
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter((job, int(index)) for job, index in (line.split() for line in lines))


def main(arguments: Sequence[str]) -> int:
    """Run the evaluation runner, which knows the environment ``coins`` here."""
    if not ENVIRONMENTS.is_listed("coins"):
        ENVIRONMENTS.register("coins", CoinBuilder())
    return eval_runner.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
