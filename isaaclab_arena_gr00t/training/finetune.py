"""Train a GR00T model on recorded demonstrations, on one process or as one of many ranks.

python -m isaaclab_arena_gr00t.training.finetune --dataset outputs/demos --output_dir outputs/model
python -m torch.distributed.run --nproc_per_node=2 -m isaaclab_arena_gr00t.training.finetune --dataset … --output_dir …
"""

from collections.abc import Sequence

import tyro

from isaaclab_arena.distributed.context import (
    DistributedContext,
    die_with_parent,
    leave_process,
    leave_process_on_error,
    limit_threads,
    take_rank_of_scheduler,
)
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.evaluation.console import program
from isaaclab_arena.paths import typed_words
from isaaclab_arena_gr00t.training.training_run import FinetuneOptions, TrainingRun

PROGRAM = "isaaclab_arena_gr00t.training.finetune"


def main(argv: Sequence[str] | None = None, *, typed_as: str = f"python -m {PROGRAM}") -> int:
    """Train, and return the exit code: 0, 1 for a failure, 2 for a mistake of the user, 130 or 143 after a signal."""
    arguments = typed_words(argv)
    options = tyro.cli(
        FinetuneOptions,
        prog=typed_as,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
    )
    with program() as ended:
        take_rank_of_scheduler()
        options.check()
        context = DistributedContext.from_environment(device=options.device)
        if context.launched_by_torchrun:
            die_with_parent()
        limit_threads(options.torch_threads)
        with initialise(context, process_group=options.process_group) as ranks:
            return TrainingRun(options, context, ranks, command_line=(PROGRAM, *arguments)).execute()
    return ended.code


if __name__ == "__main__":
    leave_process_on_error()
    leave_process(main())
