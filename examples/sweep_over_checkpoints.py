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
  - name: "{checkpoint_path}"
    policy_type: policy_of_a_network.ReachPolicy
    arena_env_args: {environment: reach, action_mode: ee_delta}
    sweep:
      policy_config_dict.checkpoint_path: [%s]
"""


def main() -> pd.DataFrame:
    """Make checkpoints, evaluate all of them in the same episodes, and return their table."""
    checkpoints = [DIRECTORY / f"model_{steps}.pt" for steps in (1, 20, 200)]
    for path in checkpoints:
        train(path, steps=int(path.stem.removeprefix("model_")))
    jobs = DIRECTORY / "jobs.yaml"
    jobs.write_text(JOBS % ", ".join(map(str, checkpoints)))
    results = arena.evaluate(jobs, no_dataset=True)
    columns = ["checkpoint", "success_rate", "success_low", "success_high", "policy_sha256"]
    table = pd.DataFrame(results.jobs[columns])
    print(table.to_string(index=False))
    return table


if __name__ == "__main__":
    main()
