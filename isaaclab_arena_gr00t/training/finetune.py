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
)
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.evaluation.console import exit_code_of
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
    return exit_code_of(lambda: _run(options, arguments))


def _run(options: FinetuneOptions, arguments: Sequence[str]) -> int:
    options.check()
    context = DistributedContext.from_environment(device=options.device)
    if context.launched_by_torchrun:
        die_with_parent()
    limit_threads(options.torch_threads)
    with initialise(context, process_group=options.process_group) as ranks:
        return TrainingRun(options, context, ranks, command_line=(PROGRAM, *arguments)).execute()


if __name__ == "__main__":
    leave_process_on_error()
    leave_process(main())
