"""The command line of training as one checked configuration, with one directory for all ranks."""

import dataclasses
import json
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from isaaclab_arena.config.documents import read_value
from isaaclab_arena.config.options import Count, wrong_numbers
from isaaclab_arena.distributed.context import claimed_rank
from isaaclab_arena.distributed.devices import joined_gpu_ids
from isaaclab_arena.distributed.launch import LaunchOptions, with_empty_resume
from isaaclab_arena.distributed.ranks import DistributedError, Ranks
from isaaclab_arena.errors import ConfigError, Problem, nearest_option, problems_at, refuse
from isaaclab_arena.models.rsl_rl_checkpoint import checkpoint_file, numbered_checkpoints
from isaaclab_arena.nested import without_none
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.layout import LOCK_FILE
from isaaclab_arena.training import config as settings
from isaaclab_arena.training.tasks import TASKS


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LaunchOptions):
    """Train a policy: TASK [options] [agent.learning_rate=3e-4 env.embodiment=panda ...]."""

    config: Path | None = None
    """YAML or JSON file with settings that override the task's own."""
    num_envs: Count | None = None
    """Env slots of each rank."""
    num_envs_total: Count | None = None
    """Env slots of all ranks together, instead of --num_envs."""
    max_iterations: int | None = None
    """Number of iterations, each with its samples and its learning."""
    seed: int | None = None
    """Seed of the run; each rank adds its number."""
    run_name: str | None = None
    """Suffix of the name of the run's directory."""
    log_root: Path = Path("logs/rsl_rl")
    """Directory of all runs: <log_root>/<experiment>/<time>."""
    run_directory: Path | None = None
    """Exact directory of the run, instead of a dated one; missing or empty, or with --resume that of the run."""
    resume: str | None = None
    """Resume a run: the one in that directory, or without a value the newest of the experiment."""
    load_run: str | None = None
    """With --resume: the newest run of the experiment whose name matches this regular expression."""
    load_checkpoint: str | None = None
    """Start a new run with the weights of a checkpoint (ours, mjlab's or Isaac Lab's): a file, or a run's directory.
    With --resume, a checkpoint of that run, such as model_100.pt."""
    stop_file: Path | None = None
    """End after the iteration in which this file exists; isaaclab-arena watch writes it."""
    eval_jobs_config: Path | None = None
    """Job file to evaluate with, instead of the task itself; its rsl_rl policies get the checkpoint."""
    device: str | None = None
    """Device of simulation and learning: cpu, cuda or cuda:<index>. By default each rank's own GPU if there is one."""
    num_threads: Count | None = None
    """Physics threads of this rank. By default its share of the cores."""
    torch_threads: Count = 1
    """Torch threads of this rank. More than one helps with large networks, on otherwise idle cores."""
    process_group: Literal["auto", "nccl", "gloo"] = "auto"
    """Backend between ranks: nccl; gloo; or auto: NCCL if each rank has its own GPU and it works, Unix sockets if
    all are on the CPU of one machine, else gloo."""
    distributed: bool = False
    """Accepted for other trainers' command lines; the launcher's variables say it."""

    def overrides(self) -> dict[str, Any]:
        """Return the options as a document of a training run."""
        # The path is absolute, because the run may be resumed from another working directory.
        jobs = None if self.eval_jobs_config is None else str(self.eval_jobs_config.absolute())
        return without_none(
            {
                "num_envs": self.num_envs,
                "num_envs_total": self.num_envs_total,
                "agent": {"max_iterations": self.max_iterations, "seed": self.seed, "run_name": self.run_name},
                "evaluation": {"eval_jobs_config": jobs},
            }
        )

    def check(self) -> None:
        """Refuse options that contradict each other; ConfigError lists every problem."""
        problems = []
        if self.num_envs is not None and self.num_envs_total is not None:
            problems.append(Problem("give either this or --num_envs", key="--num_envs_total"))
        problems += wrong_numbers(self)
        directory = self.run_directory
        if self.resume and directory is not None and Path(self.resume).resolve() != directory.resolve():
            problems.append(Problem(f"names '{self.resume}', but --run_directory '{directory}'", key="--resume"))
        if self.stop_file is not None and self.stop_file.exists():
            message = f"'{self.stop_file}' is there already and would end the training at once; remove it"
            problems.append(Problem(message, key="--stop_file"))
        # --load_run selects a run by name, so it needs --resume without a directory.
        if self.load_run is not None and self.resume is None:
            problems.append(Problem("says which run to go on with; add --resume", key="--load_run"))
        elif self.load_run is not None and self.resume:
            problems.append(Problem("names a run, and --resume a directory; give one of them", key="--load_run"))
        if self.load_checkpoint is not None and self.resume and Path(self.load_checkpoint).exists():
            message = f"'{self.load_checkpoint}' begins a new run, and --resume goes on with one; give one of them"
            problems.append(Problem(message, key="--load_checkpoint"))
        refuse(problems)


def read_train_options(arguments: Sequence[str], *, program: str) -> tuple[TrainOptions, str | None, list[str]]:
    """Return the options, the task (None if not named) and the override words; ConfigError, or SystemExit by tyro."""
    # Options of mjlab's and Isaac Lab's trainers are translated first. SystemExit is 2 for a malformed option, and 0
    # after ``--help``.
    options, rest = tyro.cli(
        TrainOptions,
        prog=program,
        # A task's name may follow ``--resume``.
        args=joined_gpu_ids(with_empty_resume(settings.own_command_line(arguments), is_run=_is_directory)),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
        console_outputs=claimed_rank() == 0,
    )
    unknown = [word.partition("=")[0] for word in rest if word.startswith("-")]
    # The words after an unknown option may be its values, so they are not reported.
    refuse([Problem(_reason_against(name.lstrip("-").replace("-", "_")), key=name) for name in unknown])
    overrides = [word for word in rest if "=" in word]
    tasks = [word for word in rest if "=" not in word]
    if len(tasks) > 1:
        raise ConfigError(f"one task is trained at a time, got {' '.join(tasks)}", key="TASK")
    return options, tasks[0] if tasks else None, overrides


def _is_directory(word: str) -> bool:
    return not word.startswith("-") and (os.sep in word or Path(word).is_dir())


def _reason_against(unknown: str) -> str:
    """Return the message about an option that does not exist, with its setting or the nearest option."""
    if found := [".".join(path) for path in settings.paths_of(settings.default_document()) if path[-1] == unknown]:
        return f"unknown option; it is set by {' or '.join(f'{path}=...' for path in found)}"
    known = [*(field.name for field in fields(TrainOptions)), *settings.option_names()]
    return f"unknown option{nearest_option(unknown, known)}"


_OF_THE_RUN = ("world_size", "devices", "simulation_devices", "command_lines", "began_with", "versions")
"""Keys of a run's settings that do not belong to its configuration."""


def training_config(
    options: TrainOptions, task: str | None, words: Sequence[str], *, world_size: int
) -> settings.TrainingConfig:
    """Return the configuration, with the command line over the user's file over the task's; ConfigError."""
    # ``task`` is None to resume a run, or if the user's file holds everything. ``words`` are ``path=value``.
    documents: list[dict[str, Any]] = []
    source = task or "command line"
    if options.resume is not None:
        # A resumed run begins with its own settings instead of the task's.
        before = settings.settings_of(run_to_resume(options, task, words))
        if task is not None and before.get("task") != task:
            what = f"'{options.resume}' is a run of '{before.get('task')}', not of '{task}'; leave the task out"
            raise ConfigError(what, key="--resume")
        documents.append({key: value for key, value in before.items() if key not in _OF_THE_RUN})
        task = task or str(before.get("task"))
    elif task is not None:
        documents.append(settings.task_document(task))
    if options.config is not None:
        document = settings.file_document(options.config)
        task = task or document.get("task")
        if not documents and task is not None:
            documents.append(settings.task_document(task))
        documents.append(document)
        source = str(options.config)
    if not documents:
        raise ConfigError(f"name a task ({', '.join(TASKS.names())}), or a --config", key="TASK")
    # The words' paths may be abbreviated, so they need the merged document of all files.
    base = settings.merged(settings.default_document(), *map(_with_one_number_of_envs, documents))
    overrides = [options.overrides(), settings.overrides_document(words, base)]
    document = settings.merged(base, *map(_with_one_number_of_envs, overrides))
    config = settings.read_training(document, task=task or str(document.get("environment")), source=source)
    if config.num_envs_total is None:
        return config
    return dataclasses.replace(config, num_envs=envs_of_a_rank(config.num_envs_total, world_size))


def envs_of_a_rank(num_envs_total: int, world_size: int) -> int:
    """Return the number of env slots of each rank; ConfigError, with the nearest numbers, if they do not divide."""
    # With unequal numbers of env slots, ranks would weigh their samples unequally.
    if num_envs_total % world_size == 0:
        return num_envs_total // world_size
    below = num_envs_total // world_size * world_size
    nearest = [str(number) for number in (below, below + world_size) if number]
    message = f"{num_envs_total} env slots do not divide over {world_size} ranks; use {' or '.join(nearest)}"
    raise ConfigError(message, key="--num_envs_total")


def run_to_resume(options: TrainOptions, task: str | None, words: Sequence[str]) -> Path:
    """Return the directory of the run to resume: the named one, or the experiment's newest; ConfigError if none."""
    named = options.resume or options.run_directory
    if named:
        return Path(named).absolute()
    if task is None:
        raise ConfigError("name the run's directory, or the task whose newest run is meant", key="--resume")
    experiments = [value for path, _, value in (word.partition("=") for word in words) if path == _EXPERIMENT]
    experiment = str(read_value(experiments[-1])) if experiments else task
    return settings.newest_run(
        options.log_root, experiment, pattern=options.load_run or ".*", of_others=options.load_checkpoint is not None
    )


def with_chosen_checkpoint(options: TrainOptions, task: str | None, words: Sequence[str]) -> TrainOptions:
    """Return options that either resume a run or start from a checkpoint file; ConfigError if there is none."""
    # rsl_rl's trainers name a run and a checkpoint of it: ``--resume --load_run RUN --load_checkpoint model_100.pt``.
    # The newest checkpoint of a run of this trainer resumes that run exactly; any other checkpoint begins a new run.
    if options.load_checkpoint is None:
        return options
    if options.resume is None or Path(options.load_checkpoint).is_file():
        with problems_at(key="--load_checkpoint"):
            file = checkpoint_file(options.load_checkpoint, None).absolute()
        return dataclasses.replace(options, resume=None, load_run=None, load_checkpoint=str(file))
    run = run_to_resume(options, task, words)
    chosen = settings.checkpoint_of_run(run, options.load_checkpoint)
    newest = list(numbered_checkpoints(run).values())[-1:]
    if newest == [chosen] and (run / settings.SETTINGS).is_file():
        return dataclasses.replace(options, resume=str(run), load_run=None, load_checkpoint=None)
    return dataclasses.replace(options, resume=None, load_run=None, load_checkpoint=str(chosen))


_EXPERIMENT = "agent.experiment_name"


def _with_one_number_of_envs(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the total number of env slots if an overriding document sets the number of each rank."""
    return {"num_envs_total": None, **document} if "num_envs" in document else document


LAUNCHER = "launcher"
"""Name of the directory for the ranks' output, in that of a run."""
LATEST = ".latest_run"
_POLL_INTERVAL_S = 0.05
_EARLY = (LAUNCHER, LOCK_FILE, LATEST)
"""Names that a run's directory may contain before the run begins."""


def shared_run_directory(options: TrainOptions, config: settings.TrainingConfig, ranks: Ranks) -> Path:
    """Return the run's directory, made by rank 0; ConfigError if it is in use, DistributedError if not visible."""
    launch = ranks.share_from_rank_zero("launch", uuid.uuid4().hex)
    # All ranks know a directory that the user named, and the directories around it belong to the user.
    named = options.resume or options.run_directory
    among = Path(named).absolute() if named else options.log_root / config.experiment_name
    if not ranks.context.is_rank_zero:
        return await_announcement(among, launch, timeout_s=config.distributed.timeout_s)
    if options.resume is not None:
        run_directory = run_to_resume(options, config.task, (f"{_EXPERIMENT}={config.experiment_name}",))
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
    write_text(experiment_directory / LATEST, content + "\n", overwrite=True)


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
