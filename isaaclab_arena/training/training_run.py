"""One rank's part of a training with rsl_rl, from its configuration to the last checkpoint."""

import inspect
import json
import logging
import math
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from rsl_rl.utils import LogWriter, resolve_callable

from isaaclab_arena.checkpoints import BEST_RULE, model_path, numbered_checkpoints
from isaaclab_arena.config import loading, schema
from isaaclab_arena.distributed.ranks import DistributedError, Ranks, between_neighbours, gather_bytes_to_rank_zero
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation import planning, process, run_start
from isaaclab_arena.evaluation.job import OPEN_BACKEND, Job
from isaaclab_arena.logs import log_file
from isaaclab_arena.nested import leaves
from isaaclab_arena.storage import atomic, contents, layout
from isaaclab_arena.storage.ledger import RunLock
from isaaclab_arena.training import checkpoints
from isaaclab_arena.training import config as settings
from isaaclab_arena.training import learner as learning
from isaaclab_arena.training import training_loop as loop

_LOG = logging.getLogger(__name__)
EVALUATION_TIME = "Perf/evaluation_time"
_POLICY_TYPE = "rsl_rl"


def line_of_iteration(measures: Mapping[str, float], *, iterations: int, total: int, left_s: float) -> str:
    """Return the log line of an iteration (counted from 1), with `left_s`, the expected time left [s]."""
    reward, length, success, std = (
        measures.get(name, math.nan)
        for name in ("Train/mean_reward", "Train/mean_episode_length", "Train/success_rate", "Policy/mean_std")
    )
    told = ""
    if measures["Train/num_episodes"]:
        told = f"reward {reward:.2f}, length {length:.0f}, {'' if math.isnan(success) else f'success {success:.0%}, '}"
    return (
        f"iteration {iterations}/{total}: {told}std {std:.2f}, lr {measures['Loss/learning_rate']:.1e}, "
        f"{measures['Perf/total_fps']:,.0f} steps/s, {timedelta(seconds=round(left_s))} left"
    )


def told_of_evaluation(
    jobs: Mapping[str, loop.EvaluatedJob], *, iterations: int, evaluation_s: float
) -> tuple[dict[str, float], str]:
    """Return the measures of an evaluation that took `evaluation_s` [s], and its log line."""
    measures, told = {EVALUATION_TIME: evaluation_s}, []
    for name, job in jobs.items():
        if job.success_rate is None:
            told.append(f"{name}: success not measured")
        else:
            told.append(f"{name}: success {job.success_rate:.1%} of {job.episodes} episodes")
            measures[f"Eval/{name}/success_rate"] = job.success_rate
        if job.mean_return is not None:
            measures[f"Eval/{name}/mean_return"] = job.mean_return
    return measures, f"iteration {iterations}, evaluated: {'; '.join(told) or 'nothing'}"


_WRITERS = {"wandb": "WandbLogWriter", "neptune": "NeptuneLogWriter"}


class EnvironmentSettings(dict[str, Any]):
    """An environment's settings as a log writer gets them: a mapping that also says it as Isaac Lab's objects do."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings."""
        return dict(self)


def log_writer(config: settings.TrainingConfig) -> Callable[..., Any]:
    """Return the factory of the log writer ``agent.logger``; ConfigError if that cannot be made."""
    # The writer is made of a directory and of ``after_step``, on rank 0. Before anything is built, every rank asks.
    options = {"class_name": config.agent.logger} if isinstance(config.agent.logger, str) else {**config.agent.logger}
    name = str(options.pop("class_name", None))
    if name == "none":
        return lambda *_, **__: None
    if name == "tensorboard":
        return loop.tensorboard
    with _refusing(name):
        writer_class: Any = resolve_callable(_WRITERS.get(name, name))
        package = {_WRITERS[package]: package for package in _WRITERS}.get(getattr(writer_class, "__name__", ""))
        if package is not None:
            # W&B and Neptune need a project: the experiment.
            options.setdefault("project_name", config.experiment_name)
            # Modules of rsl_rl's writers look for their packages, and hold None for one that is missing.
            if getattr(sys.modules[writer_class.__module__], package, writer_class) is None:
                raise ImportError(f"the package {package} is not installed: pip install {package}")
        inspect.signature(writer_class).bind(log_dir="", **options)

    def made(directory: Path, *, after_step: int) -> Any:
        del after_step
        with _refusing(name):
            writer = writer_class(log_dir=str(directory), **options)
        if isinstance(writer, LogWriter):
            environment = {"environment": config.environment, "num_envs": config.num_envs, **config.env}
            writer.store_config(EnvironmentSettings(environment), settings.document_of(config))
        return writer

    return made


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    try:
        yield
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        message = f"'{name}' cannot be used: {error}; use tensorboard, none, or a log writer with its options"
        raise ConfigError(message, key="agent.logger") from error


LATEST = ".latest_run"
_POLL_INTERVAL_S = 0.05
_EARLY = (settings.LAUNCHER, layout.LOCK_FILE, LATEST)
"""Names that a run's directory may contain before the run begins."""


def shared_run_directory(options: settings.TrainOptions, config: settings.TrainingConfig, ranks: Ranks) -> Path:
    """Return the run's directory, made by rank 0; ConfigError if it is in use, DistributedError if not visible."""
    launch = ranks.share_from_rank_zero("launch", uuid.uuid4().hex)
    # All ranks know a directory that the user named, and the directories around it belong to the user.
    named = options.resume or options.run_directory
    among = Path(named).absolute() if named else options.log_root / config.experiment_name
    if not ranks.context.is_rank_zero:
        return await_announcement(among, launch, timeout_s=config.distributed.timeout_s)
    if options.resume is not None:
        words = (f"agent.experiment_name={config.experiment_name}",)
        run_directory = settings.run_to_resume(options, config.task, words)
        if not numbered_checkpoints(run_directory):
            raise ConfigError(f"'{run_directory}' holds no checkpoint to go on from; begin a new run", key="--resume")
    elif options.run_directory is None:
        run_directory = settings.new_run_directory(options.log_root, config.experiment_name, config.agent.run_name)
    else:
        run_directory = options.run_directory.absolute()
        is_there = run_directory.exists()
        if is_there and not (run_directory.is_dir() and {path.name for path in run_directory.iterdir()} <= {*_EARLY}):
            message = f"'{run_directory}' is not empty; go on with --resume, or name a new directory"
            raise ConfigError(message, key="--run_directory")
        run_directory.mkdir(parents=True, exist_ok=True)
    announce(among, launch, run_directory)
    return run_directory


def announce(experiment_directory: Path, launch: str, run_directory: Path) -> None:
    """Write the path of a run's directory into ``.latest_run`` of its experiment; StorageError if that fails."""
    # ``launch`` identifies one start of the ranks; files of other starts are ignored.
    content = json.dumps({"launch": launch, "run_directory": str(run_directory)})
    atomic.write_text(experiment_directory / LATEST, content + "\n", overwrite=True)


def await_announcement(experiment_directory: Path, launch: str, *, timeout_s: float) -> Path:
    """Wait for rank 0 of this `launch` to announce the directory; DistributedError after `timeout_s` [s]."""
    # ``.latest_run`` of an earlier start is ignored.
    deadline = time.monotonic() + timeout_s
    path = experiment_directory / LATEST
    while True:
        found = None
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_text(encoding="utf-8"))
            found = content["launch"], Path(content["run_directory"])
        if found is not None and found[0] == launch and found[1].is_dir():
            return found[1]
        if time.monotonic() > deadline:
            what = "there is none" if found is None else "it is that of another run"
            raise DistributedError(
                f"waited {timeout_s:g} s for rank 0 to name the directory of this run in {path}, and {what}; "
                "all ranks need the same --log_root, or --run_directory, on a disk that all nodes share"
            )
        time.sleep(_POLL_INTERVAL_S)


@dataclass
class TrainingRun:
    """One rank's part of a training run; rank 0 alone writes."""

    config: settings.TrainingConfig
    run_directory: Path  # it exists and is the same for all ranks
    ranks: Ranks
    learner: learning.Learner
    evaluation: loop.ClosedLoopEvaluation | None  # None without evaluations
    command_line: tuple[str, ...]
    resume: bool
    began_with: str | None = None  # the weights that the learner begins with, in words
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
                exactly = learner.load(*checkpoints.read_together(self.run_directory, self.ranks))
                _LOG.info("going on from %s", model_path(self.run_directory, learner.iterations))
                if learner.iterations >= config.agent.max_iterations:
                    told = "all %d iterations are done; --max_iterations says how many in all"
                    _LOG.warning(told, learner.iterations)
                if not exactly:
                    told = "env slots, ranks or random numbers are not those of the checkpoint: new episodes begin"
                    _LOG.warning(told)
            self._check_synchrony()
            if is_rank_zero:
                self._write_settings(self.run_directory)
                _LOG.info("writing to %s", self.run_directory)

            after_step = learner.iterations
            schedule = loop.Schedule(
                max_steps=config.agent.max_iterations,
                save_every=config.agent.save_interval,
                evaluate_every=config.evaluation.interval or None,
            )
            writer = log_writer(config)(self.run_directory, after_step=after_step) if is_rank_zero else None
            progress = loop.Progress(self.run_directory, is_writer=is_rank_zero, after_step=after_step, writer=writer)
            with closing(progress), process.watch_for_interruption() as interruption:
                if after_step == 0:
                    self.save()
                code = loop.run_loop(
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
        """Write ``params/agent.yaml`` and ``env.yaml`` like Isaac Lab and mjlab, and ``train.yaml``; StorageError."""
        # The settings keep the first weights' source and all command lines of the run.
        config, document = self.config, settings.document_of(self.config)
        before = settings.settings_of(directory) if (directory / settings.SETTINGS).is_file() else {}
        typed = before.get("command_lines")
        # Terms are in the order of the networks' input.
        terms = {group: list(names) for group, names in self.learner.environment.observation_terms.items()}
        written = {
            "agent": {**document["agent"], "experiment_name": config.experiment_name, "observation_terms": terms},
            "env": {"environment": config.environment, "num_envs": config.num_envs, **document["env"]},
            "train": {
                **document,
                "world_size": len(self._devices),
                "devices": list(self._devices),
                "simulation_devices": list(self._simulation_devices),
                "began_with": before.get("began_with") if self.began_with is None else self.began_with,
                "command_lines": [*(map(str, typed) if isinstance(typed, list) else ()), " ".join(self.command_line)],
                "versions": settings.training_versions(),
            },
        }
        for name, content in written.items():
            path = directory / "params" / f"{name}.yaml"
            atomic.write_text(path, yaml.safe_dump(content, sort_keys=False, width=120), overwrite=True)

    def _learned(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        learner = self.learner
        own = {
            "schema_version": settings.SCHEMA_VERSION,
            "iterations": learner.iterations,
            "env_steps": learner.env_steps,
            "world_size": self.ranks.context.world_size,
            "config": settings.document_of(self.config),
            "versions": settings.training_versions(),
        }
        return {**learner.algorithm.save(), "iter": learner.iterations, "infos": {settings.OWN_INFOS: own}}

    @property
    def num_steps(self) -> int:
        """Iterations done."""
        return self.learner.iterations

    def step(self, progress: loop.Progress) -> None:
        """Collect samples, learn from them, and write the measures of this iteration."""
        measures = self.learner.iterate()
        self.timed_iterations += 1
        iterations, total = self.learner.iterations, self.config.agent.max_iterations
        left_s = (time.perf_counter() - self._paced_from_s) / self.timed_iterations * (total - iterations)
        told = line_of_iteration(measures, iterations=iterations, total=total, left_s=left_s)
        progress.write(iterations, measures, told=told)
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

    def note_evaluation(
        self, evaluation: loop.ClosedLoopEvaluation, progress: loop.Progress, *, exit_code: int, evaluation_s: float
    ) -> None:
        """Write an evaluation's measures, and keep the checkpoint if it is the best so far; on rank 0 only."""
        iterations = self.learner.iterations
        jobs = evaluation.results(iterations)
        if exit_code != 0:
            _LOG.warning("the evaluation did not complete; %s says why", self.run_directory / "evaluations")
        measures, told = told_of_evaluation(jobs, iterations=iterations, evaluation_s=evaluation_s)
        progress.write(iterations, measures, told=told)
        score = checkpoints.score_of(jobs.values(), iterations, evaluation=evaluation.jobs_file.config_hash)
        if score is not None and checkpoints.keep_best(self.run_directory, score):
            _LOG.info("iteration %d is the best so far (%s)", iterations, BEST_RULE)
        self._paced_from_s += evaluation_s

    def _check_synchrony(self) -> None:
        """Refuse ranks that differ in their learned state; every rank calls it."""
        if self.ranks.context.is_distributed:
            counts = {"iterations": self.learner.iterations, "env_steps": self.learner.env_steps}
            learning.check_synchrony({**learning.learned_state(self.learner.algorithm), **counts})


def train_rank(
    options: settings.TrainOptions,
    config: settings.TrainingConfig,
    ranks: Ranks,
    *,
    num_threads: int,
    command_line: tuple[str, ...],
) -> int:
    """Train on this rank and return the exit code; ArenaError if it cannot go on. Every rank calls it."""
    # Cheap checks come first, then the environment and the networks are built.
    learning.check_agent(config)
    log_writer(config)

    # Refuse ranks that would begin differently, or whose arithmetic differs.
    run_start.agree_on_versions(ranks, settings.training_versions())
    begins_with = None if options.load_checkpoint is None else Path(options.load_checkpoint)
    ranks.agree_on(
        "training",
        {
            **{".".join(map(str, path)): repr(value) for path, value in leaves(settings.document_of(config))},
            "--resume": str(options.resume),
            "--run_directory": str(options.run_directory),
            "--log_root": str(options.log_root),
            "--load_checkpoint": str(options.load_checkpoint),
            "the content of --load_checkpoint": "" if begins_with is None else contents.content_hash(begins_with),
            "--stop_file": str(options.stop_file),
            "--torch_threads": str(options.torch_threads),
            # The last digits of an optimiser's step differ between CPU and GPU, and weights must stay equal to the bit.
            "the kind of device": ranks.context.device.type,
        },
    )

    settled = with_settled_backend(config, ranks, num_threads=num_threads)
    with ExitStack() as stack:
        if options.process_group != "gloo":
            stack.enter_context(between_neighbours(ranks, timeout_s=config.distributed.timeout_s))
        learner = learning.Learner(settled, ranks.context, num_threads=num_threads)
        stack.enter_context(closing(learner.environment))
        began_with = None if begins_with is None else checkpoints.begin_with(learner.algorithm, begins_with)
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
) -> loop.ClosedLoopEvaluation | None:
    """Return the evaluation of checkpoints, None for a training without; every rank calls it."""
    evaluation = config.evaluation
    if evaluation.interval == 0:
        if evaluation.video_episodes and ranks.context.is_rank_zero:
            _LOG.warning("nothing is filmed: evaluations are, and with evaluation.interval=0 there are none")
        return None

    options: dict[str, Any] = {}
    if evaluation.eval_jobs_config is not None:
        jobs = loading.load_jobs_file(Path(evaluation.eval_jobs_config), suites=SUITES)
        ranks.agree_on("jobs of the evaluation", {"jobs of the evaluation": jobs.config_hash})
    else:
        # A fixed list of the task's episodes, without variations. Ranks share the episodes, and the policy always
        # answers for the same number of env slots. So the result is the same for any number of ranks.
        jobs = evaluation_jobs(config)
        films = evaluation.video_episodes > 0
        options = {
            "split_jobs": True,
            "deterministic": True,
            "policy_batch": evaluation.num_envs,
            "record_viewport_video": films,
            "video_episodes": str(evaluation.video_episodes) if films else "all",
        }
    return loop.ClosedLoopEvaluation(
        jobs,
        checkpoint_option="checkpoint_path",
        policy_type=_POLICY_TYPE,
        output_directory=run_directory,
        ranks=ranks,
        device=device,
        torch_threads=1,
        options=options,
    )


def evaluation_jobs(config: settings.TrainingConfig) -> schema.JobsFile:
    """Return the job that evaluates checkpoints; it lacks only the checkpoint."""
    evaluation = config.evaluation
    return learning.jobs_file(
        config,
        num_envs=evaluation.num_envs,
        env={**config.env, **evaluation.env},
        policy_type=_POLICY_TYPE,
        num_episodes=evaluation.num_episodes,
        seed=evaluation.seed,
    )


def with_settled_backend(
    config: settings.TrainingConfig,
    ranks: Ranks,
    *,
    num_threads: int,
    settle: Callable[[Sequence[Job], planning.Machinery], Mapping[str, str]] = planning.settle_backends,
) -> settings.TrainingConfig:
    """Return the configuration with its backend; if open, rank 0 chooses it for all ranks. ConfigError."""
    job = learning.environment_job(config)
    if job.asked_backend != OPEN_BACKEND or not ranks.context.is_distributed:
        return config
    devices = tuple(ranks.gather("device of training", str(ranks.context.device)))
    settled = {job.config.name: ""}
    with ranks.keep_waiting():
        if ranks.context.is_rank_zero:
            settled = settle([job], planning.Machinery(devices=devices, num_threads=num_threads))
    backend = ranks.share_from_rank_zero("backend of training", settled[job.config.name])
    return replace(config, env={**config.env, "backend": backend})
