"""Train a policy that balances a pole, on the GPU if there is one, else on the CPU; then evaluate it.

python examples/train_on_one_device.py
python examples/train_on_one_device.py --device cpu --max_iterations 200 agent.learning_rate=3e-4
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from isaaclab_arena.evaluation import policy_runner
from isaaclab_arena.training import train

RUN_DIRECTORY = Path("outputs") / "cartpole_on_one_device"


def main(arguments: Sequence[str]) -> int:
    """Train with further options of the command line, evaluate the best checkpoint, and return the exit code."""
    line = ["cartpole", "--num_envs", "64", "--max_iterations", "20", "--run_directory", str(RUN_DIRECTORY)]
    code = train.main([*line, *arguments])
    if code != 0:
        return code
    evaluated = ["--policy_type", "rsl_rl", "--num_episodes", "20", "cartpole", "--num_envs", "10"]
    return policy_runner.main([*evaluated, "--checkpoint_path", str(RUN_DIRECTORY)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
