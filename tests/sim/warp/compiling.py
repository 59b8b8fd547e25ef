"""A program that needs one kernel: ``python -m tests.sim.warp.compiling DIRECTORY NAME NUM_PROCESSES``.

It starts when as many processes as there are to be have come to the directory, and prints what it spent on kernels.
"""

import json
import sys
import time
from pathlib import Path

import warp

from isaaclab_arena.logs import KERNELS
from isaaclab_arena.sim.warp_kernels import one_compiler_at_a_time


@warp.kernel
def double(numbers: warp.array(dtype=float)):  # pyright: ignore[reportInvalidTypeForm]  Warp's own way to say it
    index = warp.tid()
    numbers[index] = 2.0 * numbers[index]


def main(directory: Path, name: str, num_processes: int) -> None:
    (directory / f"{name}.ready").touch()
    while len(list(directory.glob("*.ready"))) < num_processes:
        time.sleep(0.01)
    with one_compiler_at_a_time(), warp.ScopedDevice("cpu"):
        warp.launch(double, dim=4, inputs=[warp.zeros(4, dtype=float)])
    sys.stdout.write(json.dumps(vars(KERNELS.times)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
