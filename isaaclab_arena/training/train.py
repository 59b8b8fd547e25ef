"""Train a policy, on one process or as one of many ranks.

python -m isaaclab_arena.training.train velocity_go1 --num_envs 256 --max_iterations 300
python -m torch.distributed.run --nproc_per_node=2 -m isaaclab_arena.training.train reach agent.learning_rate=3e-4
"""

import importlib.util
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.launch import launch_if_asked
from isaaclab_arena.distributed.process import die_with_parent, leave_process, leave_process_on_error, limit_threads
from isaaclab_arena.distributed.process_group import initialise
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.layout import LOCK_FILE
from isaaclab_arena.storage.run_lock import RunLock
from isaaclab_arena.training.checkpoints import checkpoints
from isaaclab_arena.training.config import TrainingConfig
from isaaclab_arena.training.documents import (
    default_document,
    merged,
    overrides_document,
    read_training,
    task_document,
)
from isaaclab_arena.training.options import TrainOptions, read_train_options, shard
from isaaclab_arena.training.run_directory import (
    LATEST,
    LatestRun,
    announce,
    await_announcement,
    new_run_directory,
    newest_run,
    settings_of,
)

PROGRAM = "isaaclab_arena.training.train"
LAUNCHER = "launcher"
"""Folder in that of a run for what ranks write on their screens."""
_EARLY = (LAUNCHER, LOCK_FILE, LATEST)
"""What may lie in a run's folder before the run begins."""


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
    with initialise(context, timeout_s=config.distributed.timeout_s) as ranks:
        return _train(options, config, ranks, num_threads=num_threads, command_line=(PROGRAM, *arguments))


def _launched(
    options: TrainOptions, task: str | None, words: Sequence[str], arguments: tuple[str, ...]
) -> tuple[TrainOptions, int | None]:
    """Start the ranks that are asked for in a folder made for them; return the options with it, and the exit code."""
    config = training_config(options, task, words, world_size=1)
    if options.resume is not None:
        run_directory = _run_to_resume(options, config.task, words)
    elif options.run_directory is not None:
        run_directory = options.run_directory
    else:
        run_directory = new_run_directory(options.log_root, config.experiment_name, config.agent.run_name)
        options = replace(options, run_directory=run_directory)
        arguments = (*arguments, "--run_directory", str(run_directory))
    log_directory = run_directory / LAUNCHER
    return options, launch_if_asked(options, module=PROGRAM, arguments=arguments, log_directory=log_directory)


def _train(
    options: TrainOptions, config: TrainingConfig, ranks: Ranks, *, num_threads: int, command_line: tuple[str, ...]
) -> int:
    _need_rsl_rl()
    # rsl_rl takes seconds to load, which a mistake on the command line should not cost.
    from isaaclab_arena.training.agent import check_agent  # noqa: PLC0415
    from isaaclab_arena.training.learner import Learner  # noqa: PLC0415
    from isaaclab_arena.training.logging_writer import check_logger  # noqa: PLC0415
    from isaaclab_arena.training.training_run import TrainingRun  # noqa: PLC0415

    check_agent(config)
    check_logger(config)
    ranks.agree("training", repr(config))
    learner = Learner(config, ranks.context, num_threads=num_threads)
    run_directory = shared_run_directory(options, config, ranks)
    lock = RunLock(run_directory).hold_alone() if ranks.context.is_rank_zero else None
    try:
        run = TrainingRun(
            config,
            run_directory=run_directory,
            ranks=ranks,
            learner=learner,
            evaluation=_evaluation(options, config, run_directory, ranks),
            command_line=command_line,
            resume=options.resume is not None,
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


def training_config(
    options: TrainOptions, task: str | None, words: Sequence[str], *, world_size: int
) -> TrainingConfig:
    """Return what is asked for: the task's file, then the user's, then the command line.

    Args:
        options: The command line's options.
        task: The task; None to go on with a run, or where the user's file holds everything.
        words: ``path=value`` of the command line.
        world_size: Number of ranks.

    Raises:
        ConfigError: With every problem.
    """
    documents: list[dict[str, Any]] = []
    source = task or "command line"
    if options.resume is not None:
        before = settings_of(_run_to_resume(options, task, words))
        if task is not None and before.get("task") != task:
            what = f"'{options.resume}' is a run of '{before.get('task')}', not of '{task}'; leave the task out"
            raise ConfigError(Problem(what, key="--resume"))
        documents.append({key: value for key, value in before.items() if key not in _OF_THE_RUN})
        task = task or str(before.get("task"))
    elif task is not None:
        documents.append(task_document(task))
    if options.config is not None:
        document = read_document(options.config)
        if not isinstance(document, dict):
            raise ConfigError(Problem("must hold a mapping with the keys of a training run", file=str(options.config)))
        task = task or document.get("task")
        if options.resume is None and not documents and task is not None:
            documents.append(task_document(task))
        documents.append(document)
        source = str(options.config)
    if not documents:
        raise ConfigError(Problem(f"name a task{_known_tasks()}, or a --config", key="TASK"))
    base = merged(default_document(), *documents)
    document = merged(base, options.overrides(), overrides_document(words, base))
    if options.num_envs_total is not None:
        document["num_envs"] = shard(options.num_envs_total, world_size)
    return read_training(document, task=task or str(document.get("environment")), source=source)


_OF_THE_RUN = ("world_size", "command_lines", "versions")


def shared_run_directory(options: TrainOptions, config: TrainingConfig, ranks: Ranks) -> Path:
    """Return the run's folder, made by rank 0 and known to all ranks.

    Raises:
        ConfigError: If it is the folder of something else.
        DistributedError: If the other ranks do not see what rank 0 has made.
    """
    launch = ranks.share_from_rank_zero("launch", uuid.uuid4().hex)
    # A folder that was named is known to all, and what lies around it is not ours.
    named = options.resume or options.run_directory
    among = Path(named).absolute() if named else options.log_root / config.experiment_name
    if not ranks.context.is_rank_zero:
        return await_announcement(among, launch, timeout_s=config.distributed.timeout_s)
    run_directory = _own_run_directory(options, config)
    announce(among, LatestRun(launch=launch, run_directory=run_directory))
    return run_directory


def _own_run_directory(options: TrainOptions, config: TrainingConfig) -> Path:
    if options.resume is not None:
        run_directory = _run_to_resume(options, config.task, (f"agent.experiment_name={config.experiment_name}",))
        if not checkpoints(run_directory):
            message = f"'{run_directory}' holds no checkpoint to go on from; begin a new run"
            raise ConfigError(Problem(message, key="--resume"))
        return run_directory
    if options.run_directory is None:
        return new_run_directory(options.log_root, config.experiment_name, config.agent.run_name)
    folder = options.run_directory.absolute()
    if folder.exists() and (not folder.is_dir() or any(path.name not in _EARLY for path in folder.iterdir())):
        message = f"'{folder}' is not empty; go on with --resume, or name a new folder"
        raise ConfigError(Problem(message, key="--run_directory"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run_to_resume(options: TrainOptions, task: str | None, words: Sequence[str]) -> Path:
    named = options.resume or options.run_directory
    if named:
        return Path(named).absolute()
    if task is None:
        raise ConfigError(Problem("name the run's folder, or the task whose newest run is meant", key="--resume"))
    named = [value for path, _, value in (word.partition("=") for word in words) if path == "agent.experiment_name"]
    return newest_run(options.log_root, named[-1] if named else task)


def _evaluation(options: TrainOptions, config: TrainingConfig, run_directory: Path, ranks: Ranks) -> Any:
    from isaaclab_arena.training.closed_loop import ClosedLoopEvaluation  # noqa: PLC0415
    from isaaclab_arena.training.task_evaluation import POLICY_TYPE, task_evaluation  # noqa: PLC0415

    if config.evaluation.interval == 0:
        return None
    if options.eval_jobs_config is None:
        return task_evaluation(config, output_directory=run_directory, ranks=ranks, device=options.device)
    return ClosedLoopEvaluation(
        load_jobs_file(options.eval_jobs_config),
        checkpoint_option="checkpoint_path",
        policy_type=POLICY_TYPE,
        output_directory=run_directory,
        ranks=ranks,
        device=options.device,
    )


def _known_tasks() -> str:
    from isaaclab_arena.training.tasks import TASKS  # noqa: PLC0415

    return f" ({', '.join(TASKS.names())})"


if __name__ == "__main__":
    leave_process_on_error()
    leave_process(main())
