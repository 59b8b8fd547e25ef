"""Assemble one rank's training from its configuration, check it, and run it."""

import logging
from contextlib import ExitStack, closing
from pathlib import Path

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.distributed.collectives import between_neighbours
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.evaluation.start_up import agree_on_versions
from isaaclab_arena.nested import leaves
from isaaclab_arena.storage.contents import content_hash
from isaaclab_arena.storage.run_plan import RunLock
from isaaclab_arena.training.checkpoints.closed_loop import ClosedLoopEvaluation
from isaaclab_arena.training.checkpoints.task_evaluation import POLICY_TYPE, task_evaluation, with_settled_backend
from isaaclab_arena.training.learner.agent import check_agent
from isaaclab_arena.training.learner.learner import Learner
from isaaclab_arena.training.logging_writer import check_logger
from isaaclab_arena.training.settings.config import TrainingConfig
from isaaclab_arena.training.settings.documents import document_of
from isaaclab_arena.training.settings.options import TrainOptions
from isaaclab_arena.training.settings.settings_files import training_versions
from isaaclab_arena.training.settings.shared_run_directory import shared_run_directory
from isaaclab_arena.training.training_run import TrainingRun

_LOG = logging.getLogger(__name__)


def train_rank(
    options: TrainOptions, config: TrainingConfig, ranks: Ranks, *, num_threads: int, command_line: tuple[str, ...]
) -> int:
    """Train on this rank, and return the exit code; every rank calls it.

    Args:
        options: The command line's options.
        config: What is asked for.
        ranks: All ranks; their process group exists where there are several.
        num_threads: Threads that the physics may use.
        command_line: What was typed.

    Raises:
        ArenaError: If the configuration is wrong, or training cannot go on.
    """
    check_agent(config)
    check_logger(config)
    _agree(options, config, ranks)
    settled = with_settled_backend(config, ranks, num_threads=num_threads)
    with ExitStack() as stack:
        if options.process_group != "gloo":
            stack.enter_context(between_neighbours(ranks, timeout_s=config.distributed.timeout_s))
        learner = stack.enter_context(closing(Learner(settled, ranks.context, num_threads=num_threads)))
        began_with = None if options.load_checkpoint is None else learner.begin_with(Path(options.load_checkpoint))
        run_directory = shared_run_directory(options, config, ranks)
        if ranks.context.is_rank_zero:
            stack.callback(RunLock(run_directory).hold_alone().release)
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
        return run.execute(stop_file=options.stop_file)


def _agree(options: TrainOptions, config: TrainingConfig, ranks: Ranks) -> None:
    """Refuse ranks that would begin in different ways, or whose arithmetic differs; every rank calls it."""
    agree_on_versions(ranks, training_versions())
    begins_with = options.load_checkpoint
    ranks.agree_on(
        "training",
        {
            **{".".join(map(str, path)): repr(value) for path, value in leaves(document_of(config))},
            "--resume": str(options.resume),
            "--run_directory": str(options.run_directory),
            "--log_root": str(options.log_root),
            "--load_checkpoint": str(begins_with),
            "the content of --load_checkpoint": "" if begins_with is None else content_hash(Path(begins_with)),
            "--stop_file": str(options.stop_file),
            "--torch_threads": str(options.torch_threads),
            # An optimiser's step has other last digits on a CPU than on a GPU, and weights must stay the same bits.
            "the kind of device": ranks.context.device.type,
        },
    )


def _evaluation(
    config: TrainingConfig, run_directory: Path, ranks: Ranks, *, device: str | None
) -> ClosedLoopEvaluation | None:
    if config.evaluation.interval == 0:
        if config.evaluation.video_episodes and ranks.context.is_rank_zero:
            _LOG.warning("nothing is filmed: evaluations are, and with evaluation.interval=0 there are none")
        return None
    if config.evaluation.eval_jobs_config is None:
        return task_evaluation(config, output_directory=run_directory, ranks=ranks, device=device)
    jobs = load_jobs_file(Path(config.evaluation.eval_jobs_config), suites=SUITES)
    ranks.agree("jobs of the evaluation", jobs.config_hash)
    return ClosedLoopEvaluation(
        jobs,
        checkpoint_option="checkpoint_path",
        policy_type=POLICY_TYPE,
        output_directory=run_directory,
        ranks=ranks,
        device=device,
        torch_threads=1,
    )
