"""Train a humanoid to walk, on every GPU of this machine, or on two processes of its CPU where there is none.

python examples/train_on_many_devices.py
python examples/train_on_many_devices.py --num_envs_total 512 distributed.grad_sync_period=4
python -m torch.distributed.run --nproc_per_node=2 examples/train_on_many_devices.py

Every rank has env slots of its own, 256 unless --num_envs or --num_envs_total says otherwise, and the same weights.
"""

import sys
from collections.abc import Sequence

from isaaclab_arena.training import is_a_rank, selectable_gpu_count, train


def ranks() -> list[str]:
    """Return the options that start a rank on each device, none where a launcher has started them already."""
    if is_a_rank():
        return []
    return ["--gpu_ids", "all"] if selectable_gpu_count() else ["--nproc_per_node", "2"]


def main(arguments: Sequence[str]) -> int:
    """Train with further options of the command line, and return the exit code."""
    return train.main(["walk_humanoid", *ranks(), *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
