"""One rank of a training run that compares itself with the others after every step; see test_ranks."""

import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist

from isaaclab_arena.distributed.context import DistributedContext, leave_process
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.storage.episodes import RecordedSteps
from isaaclab_arena.training.learner import check_synchrony
from isaaclab_arena_gr00t.training.trainer import Trainer
from tests.gr00t.training.demonstrations import small_trainer

NUM_STEPS = 4


def fingerprint(trainer: Trainer) -> int:
    """Return a number that stands for every bit of the weights, their averages and the optimiser's state."""
    crc = 0
    state = trainer.state()
    tensors = [*state["model"].values(), *state["average"].values()]
    tensors += [value for each in state["optimizer"]["state"].values() for value in each.values()]
    for tensor in tensors:
        crc = zlib.crc32(torch.as_tensor(tensor).contiguous().numpy().tobytes(), crc)
    return crc


def main(directory: Path) -> None:
    """Train, and fail if the ranks ever differ in a bit."""
    torch.set_num_threads(1)
    context = DistributedContext.from_environment(device="cpu")
    with initialise(context):
        trainer = small_trainer(directory, context, RecordedSteps())
        losses = []
        for _ in range(NUM_STEPS):
            losses.append(trainer.step())
            found: list[tuple[int, float] | None] = [None] * context.world_size
            dist.all_gather_object(found, (fingerprint(trainer), losses[-1]))
            crcs, of_ranks = zip(*filter(None, found), strict=True)
            assert len(set(crcs)) == 1, f"the ranks differ after step {trainer.num_steps}: {crcs}"
            assert len(set(of_ranks)) == context.world_size, "the ranks learn from the same samples"
        check_synchrony(trainer.state())
        if context.is_rank_zero:
            sys.stdout.write(f"alike for {NUM_STEPS} steps\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave_process(0)
