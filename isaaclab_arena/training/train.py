"""Train a policy, on one process or as one of many ranks.

python -m isaaclab_arena.training.train velocity_go1 --num_envs 256 --max_iterations 300
python -m torch.distributed.run --nproc_per_node=2 -m isaaclab_arena.training.train reach agent.learning_rate=3e-4
"""

import importlib.util
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.launching.launch import launch_if_asked
from isaaclab_arena.distributed.process import die_with_parent, leave_process, leave_process_on_error, limit_threads
from isaaclab_arena.distributed.process_group import initialise
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.run.run_lock import RunLock
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.options import TrainOptions, read_train_options
from isaaclab_arena.training.settings.request import run_to_resume, training_config, with_chosen_checkpoint
from isaaclab_arena.training.settings.run_directory import new_run_directory
from isaaclab_arena.training.settings.shared_run_directory import LAUNCHER, shared_run_directory

_LOG = logging.getLogger(__name__)
PROGRAM = "isaaclab_arena.training.train"


def main(argv: Sequence[str] | None = None) -> int:
    """Train, and return the exit code.

    Args:
        argv: Arguments after the program's name; those of this process where None.

    Returns:
        0, 1 for what went wrong on the way, 2 for a mistake of the user's, 130 or 143 if it was interrupted.
    """
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    return exit_code_of(lambda: _run(arguments))


def _run(arguments: tuple[str, ...]) -> int:
    options, task, words = read_train_options(arguments, program=f"python -m {PROGRAM}")
    options.check()
    options = with_chosen_checkpoint(options, task, words)
    if options.gpu_ids is not None or options.nproc_per_node is not None:
        options, launched = _launched(options, task, words, arguments)
        if launched is not None:
            return launched
    context = DistributedContext.from_environment(device=options.device)
    config = training_config(options, task, words, world_size=context.world_size)
    if context.launched_by_torchrun:
        die_with_parent()
    num_threads = options.num_threads or default_num_threads(context.local_world_size)
    limit_threads(options.torch_threads)
    timeout_s = config.distributed.timeout_s
    with initialise(context, timeout_s=timeout_s, process_group=options.process_group) as ranks:
        return _train(options, config, ranks, num_threads=num_threads, command_line=(PROGRAM, *arguments))


def _launched(
    options: TrainOptions, task: str | None, words: Sequence[str], arguments: tuple[str, ...]
) -> tuple[TrainOptions, int | None]:
    """Start the ranks that are asked for in a folder made for them; return the options with it, and the exit code."""
    config = training_config(options, task, words, world_size=1)
    if options.resume is not None:
        run_directory = run_to_resume(options, config.task, words)
    elif options.run_directory is not None:
        run_directory = options.run_directory
    else:
        run_directory = new_run_directory(options.log_root, config.experiment_name, config.agent.run_name)
        options = replace(options, run_directory=run_directory)
        arguments = (*arguments, "--run_directory", str(run_directory))
    if options.load_checkpoint is not None:
        # The file itself, and no run beside it: what is the newest one may have changed by the time the ranks look.
        arguments = (*arguments, "--resume=None", "--load_run=None", "--load_checkpoint", options.load_checkpoint)
    log_directory = run_directory / LAUNCHER
    try:
        return options, launch_if_asked(options, module=PROGRAM, arguments=arguments, log_directory=log_directory)
    except ConfigError:
        # Nothing was started; what is not empty is no folder that was made here.
        with suppress(OSError):
            run_directory.rmdir()
        raise


def _train(
    options: TrainOptions, config: TrainingConfig, ranks: Ranks, *, num_threads: int, command_line: tuple[str, ...]
) -> int:
    _need_rsl_rl()
    # rsl_rl takes seconds to load, which a mistake on the command line should not cost.
    from isaaclab_arena.training.checkpoints.task_evaluation import with_settled_backend  # noqa: PLC0415
    from isaaclab_arena.training.learner.agent import check_agent  # noqa: PLC0415
    from isaaclab_arena.training.learner.learner import Learner  # noqa: PLC0415
    from isaaclab_arena.training.logging_writer import check_logger  # noqa: PLC0415
    from isaaclab_arena.training.training_run import TrainingRun  # noqa: PLC0415

    check_agent(config)
    check_logger(config)
    ranks.agree("training", repr(config))
    settled = with_settled_backend(config, ranks, num_threads=num_threads)
    learner = Learner(settled, ranks.context, num_threads=num_threads)
    began_with = None if options.load_checkpoint is None else learner.begin_with(Path(options.load_checkpoint))
    run_directory = shared_run_directory(options, config, ranks)
    lock = RunLock(run_directory).hold_alone() if ranks.context.is_rank_zero else None
    try:
        run = TrainingRun(
            config,
            run_directory=run_directory,
            ranks=ranks,
            learner=learner,
            evaluation=_evaluation(config, run_directory, ranks, device=options.device),
            command_line=command_line,
            resume=options.resume is not None,
            began_with=began_with,
        )
        run.check_evaluation()
        return run.execute()
    finally:
        learner.close()
        if lock is not None:
            lock.release()


def _need_rsl_rl() -> None:
    if importlib.util.find_spec("rsl_rl") is None:
        raise ConfigError("training needs rsl_rl, which is not installed: pip install 'isaaclab-arena-mujoco[train]'")


def _evaluation(config: TrainingConfig, run_directory: Path, ranks: Ranks, *, device: str | None) -> Any:
    from isaaclab_arena.training.checkpoints.closed_loop import ClosedLoopEvaluation  # noqa: PLC0415
    from isaaclab_arena.training.checkpoints.task_evaluation import POLICY_TYPE, task_evaluation  # noqa: PLC0415

    if config.evaluation.interval == 0:
        if config.evaluation.video_episodes and ranks.context.is_rank_zero:
            _LOG.warning("nothing is filmed: evaluations are, and with evaluation.interval=0 there are none")
        return None
    if config.evaluation.eval_jobs_config is None:
        return task_evaluation(config, output_directory=run_directory, ranks=ranks, device=device)
    return ClosedLoopEvaluation(
        load_jobs_file(Path(config.evaluation.eval_jobs_config)),
        checkpoint_option="checkpoint_path",
        policy_type=POLICY_TYPE,
        output_directory=run_directory,
        ranks=ranks,
        device=device,
        torch_threads=1,
    )


if __name__ == "__main__":
    leave_process_on_error()
    leave_process(main())
