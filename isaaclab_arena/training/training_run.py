"""One rank's part of a training with rsl_rl, from its configuration to the last checkpoint."""

import inspect
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rsl_rl.utils import LogWriter, resolve_callable

from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.distributed.collectives import between_neighbours, gather_bytes_to_rank_zero
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.process import watch_for_interruption
from isaaclab_arena.evaluation.start_up import agree_on_versions
from isaaclab_arena.logs import log_file
from isaaclab_arena.models.rsl_rl_checkpoint import model_path
from isaaclab_arena.nested import leaves
from isaaclab_arena.storage.atomic import RunLock
from isaaclab_arena.storage.contents import content_hash
from isaaclab_arena.training import checkpoints, closed_loop
from isaaclab_arena.training import config as settings
from isaaclab_arena.training import learner as learning
from isaaclab_arena.training.options import TrainOptions, shared_run_directory
from isaaclab_arena.training.training_loop import Progress, ScalarWriter, Schedule, run_loop, tensorboard

EVALUATION_TIME = "Perf/evaluation_time"


def measures_of_iteration(done: learning.Iteration, *, env_steps: int) -> dict[str, float]:
    """Return the measures of an iteration without NaN; `env_steps` counts the whole training."""
    episodes = done.episodes
    measures = {
        **{f"Loss/{name}": value for name, value in done.losses.items()},
        "Loss/learning_rate": done.learning_rate,
        "Policy/mean_std": done.action_std,
        "Perf/total_fps": done.env_steps / (done.collect_s + done.learn_s),
        "Perf/collection_time": done.collect_s,
        "Perf/learning_time": done.learn_s,
        "Perf/total_steps": env_steps,
        "Train/num_episodes": episodes.num_episodes,
        "Train/mean_reward": episodes.mean_return,
        "Train/mean_episode_length": episodes.mean_length,
        "Train/success_rate": episodes.success_rate,
        "Train/lost_rate": episodes.lost_rate,
        **{f"Metrics/{name}": value for name, value in episodes.metrics.items()},
    }
    return {name: value for name, value in measures.items() if not math.isnan(value)}


def line_of_iteration(done: learning.Iteration, *, iterations: int, total: int, left_s: float) -> str:
    """Return the log line of an iteration (counted from 1), with `left_s`, the expected time left [s]."""
    ended, told = done.episodes, ""
    if ended.num_episodes:
        success = "" if math.isnan(ended.success_rate) else f"success {ended.success_rate:.0%}, "
        told = f"reward {ended.mean_return:.2f}, length {ended.mean_length:.0f}, {success}"
    steps_per_s = done.env_steps / (done.collect_s + done.learn_s)
    minutes, seconds = divmod(round(left_s), 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
    return (
        f"iteration {iterations}/{total}: {told}std {done.action_std:.2f}, "
        f"lr {done.learning_rate:.1e}, {steps_per_s:,.0f} steps/s, {left} left"
    )


def measures_of_evaluation(jobs: Mapping[str, closed_loop.EvaluatedJob], *, evaluation_s: float) -> dict[str, float]:
    """Return the measures of an evaluation that took `evaluation_s` [s], without those that no job measured."""
    measures = {EVALUATION_TIME: evaluation_s}
    for name, job in jobs.items():
        if job.success_rate is not None:
            measures[f"Eval/{name}/success_rate"] = job.success_rate
        if job.mean_return is not None:
            measures[f"Eval/{name}/mean_return"] = job.mean_return
    return measures


def line_of_evaluation(jobs: Mapping[str, closed_loop.EvaluatedJob], *, iterations: int) -> str:
    """Return the log line of the evaluation after `iterations` iterations."""
    told = [
        f"{name}: success not measured"
        if job.success_rate is None
        else f"{name}: success {job.success_rate:.1%} of {job.episodes} episodes"
        for name, job in jobs.items()
    ]
    return f"iteration {iterations}, evaluated: {'; '.join(told) or 'nothing'}"


_WRITERS = {"wandb": "WandbLogWriter", "neptune": "NeptuneLogWriter"}


class EnvironmentSettings(dict[str, Any]):
    """An environment's settings as a log writer gets them: a mapping that also says it as Isaac Lab's objects do."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return dict(self)


def check_logger(config: settings.TrainingConfig) -> None:
    """Refuse a log writer that cannot be made, before anything is built; ConfigError with the reason."""
    name = _name_of(config.agent.logger)
    if name in {"none", "tensorboard"}:
        return
    with _refusing(name):
        writer, options = _writer_and_options(config)
        # Modules of rsl_rl's writers look for their packages, and hold None for one that is missing.
        package = {writer_name: name for name, writer_name in _WRITERS.items()}.get(getattr(writer, "__name__", ""))
        if package is not None and getattr(sys.modules[writer.__module__], package, writer) is None:
            raise ImportError(f"the package {package} is not installed: pip install {package}")
        inspect.signature(writer).bind(log_dir="", **options)


def scalar_writer(config: settings.TrainingConfig, run_directory: Path, *, after_step: int) -> ScalarWriter | None:
    """Return the writer that ``agent.logger`` names, None for ``none``; ConfigError if it fails. Rank 0 only."""
    name = _name_of(config.agent.logger)
    if name == "none":
        return None
    if name == "tensorboard":
        return tensorboard(run_directory, after_step=after_step)
    with _refusing(name):
        writer_class, options = _writer_and_options(config)
        writer = writer_class(log_dir=str(run_directory), **options)
    if isinstance(writer, LogWriter):
        environment = {"environment": config.environment, "num_envs": config.num_envs, **config.env}
        writer.store_config(EnvironmentSettings(environment), settings.document_of(config))
    return writer


def _writer_and_options(config: settings.TrainingConfig) -> tuple[Any, dict[str, Any]]:
    """Return the class that ``agent.logger`` names, and its options beside the directory."""
    logger = config.agent.logger
    name = _name_of(logger)
    writer: Any = resolve_callable(_WRITERS.get(name, name))
    options = {} if isinstance(logger, str) else {key: value for key, value in logger.items() if key != "class_name"}
    # W&B and Neptune need a project: the experiment.
    if getattr(writer, "__name__", "") in _WRITERS.values():
        options.setdefault("project_name", config.experiment_name)
    return writer, options


def _name_of(logger: str | dict[str, Any]) -> str:
    return logger if isinstance(logger, str) else str(logger.get("class_name"))


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        message = f"'{name}' cannot be used: {error}; use tensorboard, none, or a log writer with its options"
        raise ConfigError(message, key="agent.logger") from error


_LOG = logging.getLogger(__name__)


@dataclass
class TrainingRun:
    """One rank's part of a training run; rank 0 alone writes."""

    config: settings.TrainingConfig
    run_directory: Path  # it exists and is the same for all ranks
    ranks: Ranks
    learner: learning.Learner
    evaluation: closed_loop.ClosedLoopEvaluation | None  # None without evaluations
    command_line: tuple[str, ...]
    resume: bool
    began_with: learning.FirstWeights | None = None  # the checkpoint whose weights the learner begins with
    env_steps: int = 0
    timed_iterations: int = 0
    evaluation_measure: str = EVALUATION_TIME

    def __post_init__(self) -> None:
        # Every rank gathers, because each must send its device.
        self._devices = tuple(self.ranks.gather("device of learning", str(self.ranks.context.device)))
        simulation = str(self.learner.environment.device)
        self._simulation_devices = tuple(self.ranks.gather("device of simulation", simulation))
        # The pace counts iterations from this time on; an evaluation delays it by its own duration.
        self._paced_from_s = time.perf_counter()

    def save_untrained(self, directory: Path) -> Path:
        """Write settings and a checkpoint of the networks as they are, and return the checkpoint's path."""
        self._write_settings(directory)
        return checkpoints.write_checkpoint(directory, self._learned(), [], iterations=0, kept=1)

    def execute(self, *, stop_file: Path | None = None) -> int:
        """Train to the end; return the exit code 0, or 130 or 143 after an interruption. ArenaError if it fails."""
        # A signal to any rank, or ``stop_file``, stops all ranks after the same iteration, with a checkpoint to resume.
        # After an error, the checkpoint of the last iteration but one may exist.
        config, learner, context = self.config, self.learner, self.ranks.context
        is_rank_zero = context.is_rank_zero
        with log_file(self.run_directory / "logs" / f"rank{context.rank}.log", context.rank):
            if self.began_with is not None:
                _LOG.info("%s", self.began_with)
            if self.resume:
                found = checkpoints.read_together(self.run_directory, self.ranks)
                exactly = learner.load(found.learned, found.rank_state)
                self.env_steps = (
                    settings.env_steps_of(found.learned) or found.iterations * learner.env_steps_per_iteration
                )
                _LOG.info("going on from %s", model_path(self.run_directory, found.iterations))
                if found.iterations >= config.agent.max_iterations:
                    _LOG.warning("all %d iterations are done; --max_iterations says how many in all", found.iterations)
                if not exactly:
                    told = "env slots, ranks or random numbers are not those of the checkpoint: new episodes begin"
                    _LOG.warning(told)
            self._check_synchrony()
            if is_rank_zero:
                self._write_settings(self.run_directory)
                _LOG.info("writing to %s", self.run_directory)

            after_step = learner.iterations
            schedule = Schedule(
                max_steps=config.agent.max_iterations,
                save_every=config.agent.save_interval,
                evaluate_every=config.evaluation.interval or None,
            )
            writer = scalar_writer(config, self.run_directory, after_step=after_step) if is_rank_zero else None
            with (
                Progress(self.run_directory, is_writer=is_rank_zero, after_step=after_step, writer=writer) as progress,
                watch_for_interruption() as interruption,
            ):
                if after_step == 0:
                    self.save()
                code = run_loop(
                    self,
                    schedule,
                    evaluation=self.evaluation,
                    progress=progress,
                    interruption=interruption,
                    stop_file=stop_file,
                )

            if code == 0 and is_rank_zero and config.checkpoints.export:
                for path in checkpoints.export_policy(learner.algorithm, self.run_directory):
                    _LOG.info("wrote %s", path)
            return code

    def _write_settings(self, directory: Path) -> None:
        settings.write_settings(
            directory,
            self.config,
            observation_terms=self.learner.environment.observation_terms,
            devices=self._devices,
            simulation_devices=self._simulation_devices,
            command_line=self.command_line,
            began_with=None if self.began_with is None else str(self.began_with),
        )

    def _learned(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        iterations, world_size = self.learner.iterations, self.ranks.context.world_size
        infos = settings.checkpoint_infos(
            self.config, iterations=iterations, env_steps=self.env_steps, world_size=world_size
        )
        return {**self.learner.algorithm.save(), "iter": iterations, "infos": infos}

    @property
    def num_steps(self) -> int:
        """Iterations done."""
        return self.learner.iterations

    def step(self, progress: Progress) -> None:
        """Collect samples, learn from them, and write the measures of this iteration."""
        done = self.learner.iterate()
        self.env_steps += done.env_steps
        self.timed_iterations += 1
        iterations, total = self.learner.iterations, self.config.agent.max_iterations
        left_s = (time.perf_counter() - self._paced_from_s) / self.timed_iterations * (total - iterations)
        progress.write(
            iterations,
            measures_of_iteration(done, env_steps=self.env_steps),
            told=line_of_iteration(done, iterations=iterations, total=total, left_s=left_s),
        )
        every = self.config.distributed.check_sync_every
        if every and iterations % every == 0:
            self._check_synchrony()

    def checkpoint(self, num_steps: int) -> Path:
        """Return the path of the checkpoint after `num_steps` iterations."""
        return model_path(self.run_directory, num_steps)

    def save(self) -> None:
        """Write a checkpoint; every rank calls it with its own state. OutOfSyncError, before any write."""
        learner, context = self.learner, self.ranks.context
        self._check_synchrony()
        states = gather_bytes_to_rank_zero(checkpoints.packed(learner.rank_state()))
        if not context.is_rank_zero:
            return
        evaluation = self.evaluation
        path = checkpoints.write_checkpoint(
            self.run_directory,
            self._learned(),
            states,
            iterations=learner.iterations,
            kept=self.config.checkpoints.keep_last,
            # The results of an evaluation refer to their checkpoint.
            stays=lambda iterations: evaluation is not None and evaluation.directory(iterations).is_dir(),
        )
        _LOG.debug("wrote %s", path)

    def note_evaluation(self, evaluated: closed_loop.Evaluated, progress: Progress, *, evaluation_s: float) -> None:
        """Write an evaluation's measures, and keep the checkpoint if it is the best so far; on rank 0 only."""
        iterations = self.learner.iterations
        if evaluated.exit_code != 0:
            _LOG.warning("the evaluation did not complete; %s says why", self.run_directory / "evaluations")
        progress.write(
            iterations,
            measures_of_evaluation(evaluated.jobs, evaluation_s=evaluation_s),
            told=line_of_evaluation(evaluated.jobs, iterations=iterations),
        )
        score = checkpoints.score_of(evaluated.jobs.values(), iterations, evaluation=evaluated.config_hash)
        if score is not None and checkpoints.keep_best(self.run_directory, score):
            _LOG.info("the best so far")
        self._paced_from_s += evaluation_s

    def _check_synchrony(self) -> None:
        """Refuse ranks that differ in their learned state; every rank calls it."""
        if self.ranks.context.is_distributed:
            counts = {"iterations": self.learner.iterations, "env_steps": self.env_steps}
            learning.check_synchrony({**learning.learned_state(self.learner.algorithm), **counts})


def train_rank(
    options: TrainOptions,
    config: settings.TrainingConfig,
    ranks: Ranks,
    *,
    num_threads: int,
    command_line: tuple[str, ...],
) -> int:
    """Train on this rank and return the exit code; ArenaError if it cannot go on. Every rank calls it."""
    # Cheap checks come first, then the environment and the networks are built.
    learning.check_agent(config)
    check_logger(config)

    # Refuse ranks that would begin differently, or whose arithmetic differs.
    agree_on_versions(ranks, settings.training_versions())
    begins_with = None if options.load_checkpoint is None else Path(options.load_checkpoint)
    ranks.agree_on(
        "training",
        {
            **{".".join(map(str, path)): repr(value) for path, value in leaves(settings.document_of(config))},
            "--resume": str(options.resume),
            "--run_directory": str(options.run_directory),
            "--log_root": str(options.log_root),
            "--load_checkpoint": str(options.load_checkpoint),
            "the content of --load_checkpoint": "" if begins_with is None else content_hash(begins_with),
            "--stop_file": str(options.stop_file),
            "--torch_threads": str(options.torch_threads),
            # The last digits of an optimiser's step differ between CPU and GPU, and weights must stay equal to the bit.
            "the kind of device": ranks.context.device.type,
        },
    )

    settled = closed_loop.with_settled_backend(config, ranks, num_threads=num_threads)
    with ExitStack() as stack:
        if options.process_group != "gloo":
            stack.enter_context(between_neighbours(ranks, timeout_s=config.distributed.timeout_s))
        learner = stack.enter_context(closing(learning.Learner(settled, ranks.context, num_threads=num_threads)))
        began_with = None if begins_with is None else learning.begin_with(learner.algorithm, begins_with)
        run_directory = shared_run_directory(options, config, ranks)
        # Rank 0 locks the directory, so that no second run writes into it.
        if ranks.context.is_rank_zero:
            stack.callback(RunLock(run_directory).hold(alone=True).release)
        evaluation = _evaluation(config, run_directory, ranks, device=options.device)
        resume = options.resume is not None
        run = TrainingRun(config, run_directory, ranks, learner, evaluation, command_line, resume, began_with)
        if evaluation is not None:
            evaluation.check(run.save_untrained)
        return run.execute(stop_file=options.stop_file)


def _evaluation(
    config: settings.TrainingConfig, run_directory: Path, ranks: Ranks, *, device: str | None
) -> closed_loop.ClosedLoopEvaluation | None:
    """Return the evaluation of checkpoints, None for a training without; every rank calls it."""
    evaluation = config.evaluation
    if evaluation.interval == 0:
        if evaluation.video_episodes and ranks.context.is_rank_zero:
            _LOG.warning("nothing is filmed: evaluations are, and with evaluation.interval=0 there are none")
        return None

    options: dict[str, Any] = {}
    if evaluation.eval_jobs_config is not None:
        jobs = load_jobs_file(Path(evaluation.eval_jobs_config), suites=SUITES)
        ranks.agree("jobs of the evaluation", jobs.config_hash)
    else:
        # A fixed list of the task's episodes, without variations. Ranks share the episodes, and the policy always
        # answers for the same number of env slots. So the result is the same for any number of ranks.
        jobs = closed_loop.evaluation_jobs(config)
        films = evaluation.video_episodes > 0
        options = {
            "split_jobs": True,
            "deterministic": True,
            "policy_batch": evaluation.num_envs,
            "record_viewport_video": films,
            "video_episodes": str(evaluation.video_episodes) if films else "all",
        }
    return closed_loop.ClosedLoopEvaluation(
        jobs,
        checkpoint_option="checkpoint_path",
        policy_type=closed_loop.POLICY_TYPE,
        output_directory=run_directory,
        ranks=ranks,
        device=device,
        torch_threads=1,
        options=options,
    )
