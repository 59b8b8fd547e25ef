"""Evaluate every checkpoint of a training in one run, and show success by checkpoint.

python examples/sweep_over_checkpoints.py
"""

from pathlib import Path

import pandas as pd
from policy_of_a_network import train

import isaaclab_arena as arena

DIRECTORY = Path("outputs") / "checkpoints"
JOBS = """
defaults: {num_episodes: 20, arena_env_args: {num_envs: 4}}
jobs:
  - name: reach
    policy_type: policy_of_a_network.ReachPolicy
    arena_env_args: {environment: reach, action_mode: ee_delta}
    policy_config_dict: {checkpoint_path: %s}
    checkpoints: all
"""


def main() -> pd.DataFrame:
    """Make checkpoints, evaluate all of them in the same episodes, and return their table."""
    for steps in (1, 20, 200):
        train(DIRECTORY / f"model_{steps}.pt", steps=steps)
    jobs = DIRECTORY / "jobs.yaml"
    jobs.write_text(JOBS % DIRECTORY)
    results = arena.evaluate(jobs, no_dataset=True)
    columns = ["sweep.checkpoint_step", "success_rate", "success_low", "success_high", "policy_sha256"]
    table = pd.DataFrame(results.jobs[columns])
    print(table.to_string(index=False))
    return table


if __name__ == "__main__":
    main()
