"""Train a policy, on one process or as one of many ranks.

python -m isaaclab_arena.training.train velocity_go1 --num_envs 256 --max_iterations 300
python -m torch.distributed.run --nproc_per_node=2 -m isaaclab_arena.training.train reach agent.learning_rate=3e-4
"""

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from isaaclab_arena.distributed.interrupts import leave_on_ctrl_c
from isaaclab_arena.garbage import collect_from_now_on, collect_later, join_freed_memory_at_once
from isaaclab_arena.paths import typed_words

if __name__ == "__main__":
    leave_on_ctrl_c()
    # Imports make hundreds of thousands of objects that stay; searching garbage among them takes a sixth of the time.
    collect_later()

from isaaclab_arena.distributed import context as this_process
from isaaclab_arena.distributed.devices import default_num_threads, set_up_torch
from isaaclab_arena.distributed.launch import launch_if_asked
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.process import program
from isaaclab_arena.training import config as settings
from isaaclab_arena.training.config import TrainOptions  # the command table finds it here

PROGRAM = "isaaclab_arena.training.train"
Launch = Callable[..., int | None]


def main(
    argv: Sequence[str] | None = None, *, launch: Launch = launch_if_asked, typed_as: str = f"python -m {PROGRAM}"
) -> int:
    """Train, and return the exit code: 0, 1 for a failure, 2 for a user's mistake, 130 or 143 if interrupted."""
    # ``argv`` is None for the arguments of this process. ``typed_as`` is the program's name in the help.
    arguments = tuple(typed_words(argv))
    with program() as ended:
        this_process.take_rank_of_scheduler()
        options: TrainOptions
        options, task, words = settings.read_train_options(arguments, program=typed_as)
        options.check()
        # Decide first whether the run resumes: the launcher's log directory and the configuration depend on it.
        options = settings.with_chosen_checkpoint(options, task, words)
        if options.gpu_ids is not None or options.nproc_per_node is not None:
            # The launcher starts the ranks in one new directory.
            passed_on = arguments
            config = settings.training_config(options, task, words, world_size=1)
            if options.resume is not None:
                run_directory = settings.run_to_resume(options, config.task, words)
            elif options.run_directory is not None:
                run_directory = options.run_directory
            else:
                run_directory = settings.new_run_directory(
                    options.log_root, config.experiment_name, config.agent.run_name
                )
                options = replace(options, run_directory=run_directory)
                passed_on = (*passed_on, "--run_directory", str(run_directory))
            if options.load_checkpoint is not None:
                # Name the file itself, and no run: its newest checkpoint may have changed by the time the ranks look.
                passed_on += ("--resume=None", "--load_run=None", "--load_checkpoint", options.load_checkpoint)
            try:
                launched = launch(
                    options, module=PROGRAM, arguments=passed_on, log_directory=run_directory / settings.LAUNCHER
                )
            except ConfigError:
                # No rank was started. A directory that is not empty was not made here, and stays.
                with suppress(OSError):
                    run_directory.rmdir()
                raise
            if launched is not None:
                return launched
        context = this_process.DistributedContext.from_environment(device=options.device)
        config = settings.training_config(options, task, words, world_size=context.world_size)
        if context.launched_by_torchrun:
            this_process.die_with_parent()
        num_threads = options.num_threads or default_num_threads(context.local_world_size)
        set_up_torch(options.torch_threads)
        join_freed_memory_at_once()
        if importlib.util.find_spec("rsl_rl") is None:
            raise ConfigError(
                "training needs rsl_rl, which is not installed: pip install 'isaaclab-arena-mujoco[train]'"
            )
        from isaaclab_arena.training.training_run import train_rank  # noqa: PLC0415  rsl_rl takes seconds to load

        collect_from_now_on()
        timeout_s = config.distributed.timeout_s
        with initialise(context, timeout_s=timeout_s, process_group=options.process_group) as ranks:
            return train_rank(options, config, ranks, num_threads=num_threads, command_line=(PROGRAM, *arguments))
    return ended.code


if __name__ == "__main__":
    this_process.leave_process_on_error()
    this_process.leave_process(main())
