"""The command line of training, also in the words of other trainers, as one checked configuration."""

import ast
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import tyro

from isaaclab_arena.config.documents import read_value
from isaaclab_arena.config.options import Count, wrong_numbers
from isaaclab_arena.distributed.context import claimed_rank
from isaaclab_arena.distributed.devices import joined_gpu_ids
from isaaclab_arena.distributed.launch import LaunchOptions, with_empty_resume
from isaaclab_arena.errors import ConfigError, Problem, nearest_option, problems_at, refuse
from isaaclab_arena.models.rsl_rl_checkpoint import checkpoint_file, numbered_checkpoints
from isaaclab_arena.nested import without_none
from isaaclab_arena.training import TASKS
from isaaclab_arena.training import config as settings

# Translate command lines of mjlab, Isaac Lab and rsl_rl's examples into this trainer's.

_NAMED_ELSEWHERE = {
    "torchrunx_log_dir": "launcher_log_dir",
    "checkpoint": "load_checkpoint",
    "agent.load_run": "load_run",
    "agent.load_checkpoint": "load_checkpoint",
    "agent.run_name": "run_name",
    "env.scene.num_envs": "num_envs",
}
"""Options of theirs that are options here under another name."""

_FLAGS: Mapping[str, str | None] = {
    "resume": "--resume=",
    "agent.resume": "--resume=",
    "video": "evaluation.video_episodes=1",
    "enable_nan_guard": "agent.check_for_nan=true",
    # No window opens here, and nothing is uploaded.
    "headless": None,
    "agent.upload_model": None,
}
"""Options of theirs that may have no value or ``True`` or ``False``, with their meaning here, None for no effect."""

_EXPERIMENTS = frozenset({"experiment_name", "agent.experiment_name"})
_LOGGER = frozenset({"logger", "agent.logger"})
_PROJECT = frozenset({"agent.wandb_project", "agent.neptune_project", "log_project_name"})
_FILMED_WHOLE = (
    "evaluations are filmed, each episode whole; --video films one of each, evaluation.interval=<iterations>"
)
_NOTHING_IS_FETCHED = "nothing is fetched from W&B; fetch the file, and name it with --load_checkpoint"
_NO_SIMULATOR = "is an option of Isaac Sim's launcher, and there is none here; leave it out"
_ONE_DEVICE = "simulation and learning share a device; use --device, or --gpu_ids for one rank per GPU"
_REFUSED = {
    "video_length": _FILMED_WHOLE,
    "video_interval": _FILMED_WHOLE,
    "registry_name": f"{_NOTHING_IS_FETCHED}; a motion is env.motion_file=<file>",
    "wandb_run_path": _NOTHING_IS_FETCHED,
    "wandb_checkpoint_name": _NOTHING_IS_FETCHED,
    "agent.wandb_tags": "W&B reads them from the environment variable WANDB_TAGS",
    "agent.class_name": "there is one runner; the algorithm's class is agent.algorithm.class_name=PPO",
    "agent.device": _ONE_DEVICE,
    "rl_device": _ONE_DEVICE,
    "sim_device": _ONE_DEVICE,
    "env.seed": "environment and agent share one seed; use --seed",
    "agent": "the task's own file says what learns; lay one of yours over it with --config",
    "horovod": "ranks are started with --gpu_ids or torchrun",
    "ray_proc_id": "ranks are started with --gpu_ids or torchrun",
    **dict.fromkeys(("livestream", "enable_cameras", "xr", "experience", "kit_args", "rendering_mode"), _NO_SIMULATOR),
    **dict.fromkeys(("disable_fabric", "export_io_descriptors", "anim_recording_enabled"), _NO_SIMULATOR),
    **dict.fromkeys(("anim_recording_start_time", "anim_recording_stop_time", "visualizer"), _NO_SIMULATOR),
    **dict.fromkeys(("viz", "verbose", "info"), _NO_SIMULATOR),
}
_A_PART_OF_THEIRS = (
    "is a part of mjlab's and Isaac Lab's environments; those here have options of their own, env.<option>=..."
)
_PARTS_OF_THEIR_ENVIRONMENTS = frozenset(
    {
        *("scene", "sim", "viewer", "observations", "actions", "events", "rewards", "terminations", "commands"),
        *("curriculum", "metrics", "recorders", "decimation", "episode_length_s", "is_finite_horizon", "auto_reset"),
        *("scale_rewards_by_dt", "rerender_on_reset", "wait_for_textures", "xr", "teleop_devices"),
    }
)
_OPTIONS = frozenset({*_NAMED_ELSEWHERE, *_FLAGS, *_EXPERIMENTS, *_LOGGER, *_PROJECT, "task"})
"""All options of theirs that have a meaning here."""
_TRUE, _FALSE = frozenset({"true", "1"}), frozenset({"false", "0"})


def own_command_line(arguments: Sequence[str]) -> list[str]:
    """Translate other trainers' options into this one's; ConfigError lists those without a meaning here."""
    # mjlab's ``--agent.max-iterations 2`` becomes ``agent.max_iterations=2``, Isaac Lab's ``--task NAME`` the task's
    # name. Hyphens equal underscores, ``--name value`` equals ``--name=value``, and unknown words stay unchanged.
    translated: list[str] = []
    problems: list[Problem] = []
    logging: dict[str, str] = {}  # class and project of the log writer that the user named
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.partition("=")
        is_option = name.startswith("--")
        own = name.removeprefix("--").replace("-", "_") if is_option else name
        follows = value if equals else next(iter(waiting), "--")
        first, _, part = own.partition(".")
        is_part = first == "env" and part.partition(".")[0] in _PARTS_OF_THEIR_ENVIRONMENTS
        is_theirs = own.startswith(("agent.", "env.")) or own in _OPTIONS or own in _REFUSED
        # Our option --resume takes a directory, and theirs a boolean; a value that could be either is a directory.
        is_directory = own == "resume" and (follows.lower() not in {"true", "false"} or Path(follows).is_dir())
        # Isaac Lab's users also write words ``env.path=value``.
        if not (is_theirs and not is_directory if is_option else equals and name.startswith("env.")):
            translated.append(argument)
        elif own in _REFUSED or (is_part and own not in _NAMED_ELSEWHERE):
            problems.append(Problem(_REFUSED.get(own, _A_PART_OF_THEIRS), key=name))
        elif not is_option:
            translated.append(f"num_envs={value}" if name == "env.scene.num_envs" else argument)
        else:
            if not equals and own in _FLAGS:
                value = waiting.pop(0) if follows.lower() in _TRUE | _FALSE else "true"
            elif not equals:
                if follows.startswith("--"):
                    raise ConfigError("needs a value", key=name)
                value = waiting.pop(0)
            if own in _LOGGER or own in _PROJECT:
                logging["class_name" if own in _LOGGER else "project_name"] = value
            else:
                translated += _in_own_words(own, value, typed=name)

    if "project_name" not in logging:
        translated += [f"agent.logger={_as_yaml(writer)}" for writer in logging.values()]
    elif logging.get("class_name") in {"wandb", "neptune"}:
        described = {name: logging[name] for name in ("class_name", "project_name")}
        translated.append(f"agent.logger={json.dumps(described)}")
    else:
        message = f"names the project '{logging['project_name']}' of a log writer; add --logger wandb"
        problems.append(Problem(message, key="--log_project_name"))
    refuse(problems)
    return translated


def _in_own_words(own: str, value: str, *, typed: str) -> list[str]:
    """Return an option of theirs as words of this trainer's command line, none if it has no effect."""
    if own in _FLAGS:
        if value.lower() not in _TRUE | _FALSE:
            raise ConfigError(f"is True or False, got '{value}'", key=typed)
        does = _FLAGS[own]
        return [does] if value.lower() in _TRUE and does is not None else []
    if own in _NAMED_ELSEWHERE:
        return [f"--{_NAMED_ELSEWHERE[own]}={value}"]
    if own in _EXPERIMENTS:
        # The name is quoted, because it may look like a number.
        return [f"agent.experiment_name={json.dumps(value)}"]
    return [value if own == "task" else f"{own}={_as_yaml(value)}"]


def _as_yaml(value: str) -> str:
    """Return a value as YAML; mjlab also accepts Python's notation: ``(256, 128)``, ``None``."""
    try:
        found = ast.literal_eval(value)
        return json.dumps(found) if isinstance(found, tuple | list | dict | bool | None) else value
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return value


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
        args=joined_gpu_ids(
            with_empty_resume(
                own_command_line(arguments),
                is_run=lambda word: not word.startswith("-") and (os.sep in word or Path(word).is_dir()),
            )
        ),
        return_unknown_args=True,
        config=(tyro.conf.FlagCreatePairsOff,),
        use_underscores=True,
        console_outputs=claimed_rank() == 0,
    )
    # The words after an unknown option may be its values, so they are not reported.
    problems = []
    for name in [word.partition("=")[0] for word in rest if word.startswith("-")]:
        unknown = name.lstrip("-").replace("-", "_")
        settable = [".".join(path) for path in settings.paths_of(settings.default_document()) if path[-1] == unknown]
        reason = nearest_option(unknown, [*(field.name for field in fields(TrainOptions)), *_OPTIONS])
        if settable:
            reason = f"; it is set by {' or '.join(f'{path}=...' for path in settable)}"
        problems.append(Problem(f"unknown option{reason}", key=name))
    refuse(problems)
    overrides = [word for word in rest if "=" in word]
    tasks = [word for word in rest if "=" not in word]
    if len(tasks) > 1:
        raise ConfigError(f"one task is trained at a time, got {' '.join(tasks)}", key="TASK")
    return options, tasks[0] if tasks else None, overrides


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
    base = settings.merged(settings.default_document(), *documents)
    # The job file's path is absolute, because the run may be resumed from another working directory.
    jobs = None if options.eval_jobs_config is None else str(options.eval_jobs_config.absolute())
    agent = {name: getattr(options, name) for name in ("max_iterations", "seed", "run_name")}
    envs = {name: getattr(options, name) for name in ("num_envs", "num_envs_total")}
    typed = without_none({**envs, "agent": agent, "evaluation": {"eval_jobs_config": jobs}})
    overrides = [typed, settings.overrides_document(words, base)]
    document = settings.merged(base, *overrides)
    config = settings.read_training(document, task=task or str(document.get("environment")), source=source)
    if config.num_envs_total is None:
        return config
    # With unequal numbers of env slots, ranks would weigh their samples unequally.
    num_envs, too_many = divmod(config.num_envs_total, world_size)
    if too_many:
        nearest = " or ".join(str(each * world_size) for each in (num_envs, num_envs + 1) if each)
        message = f"{config.num_envs_total} env slots do not divide over {world_size} ranks; use {nearest}"
        raise ConfigError(message, key="--num_envs_total")
    return dataclasses.replace(config, num_envs=num_envs)


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


LAUNCHER = "launcher"
"""Name of the directory for the ranks' output, in that of a run."""
