"""The configuration of a training run from files and the command line, and the directories that keep it."""

import ast
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from isaaclab_arena.checkpoints import checkpoint_file, numbered_checkpoints
from isaaclab_arena.config.command_line import read_some
from isaaclab_arena.config.documents import read_document, read_value
from isaaclab_arena.config.options import Count, NotNegative, Positive, read_options, wrong_numbers
from isaaclab_arena.distributed import context, devices, launch
from isaaclab_arena.errors import (
    ConfigError,
    Problem,
    did_you_mean,
    nearest_names,
    nearest_option,
    problems_at,
    problems_into,
    refuse,
)
from isaaclab_arena.models import ActionScaling
from isaaclab_arena.nested import overlaid, set_at, without_none
from isaaclab_arena.paths import make_dated_directory
from isaaclab_arena.storage import atomic, contents
from isaaclab_arena.training import TASKS


def _network(**more: Any) -> dict[str, Any]:
    layers = {"class_name": "MLPModel", "hidden_dims": [128, 128, 128], "activation": "elu"}
    return {**layers, "obs_normalization": True, **more}


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The agent; keys of rsl_rl have the same meaning as there."""

    experiment_name: str | None = None  # directory of the experiment's runs; the task's name by default
    run_name: str = ""  # suffix of the name of the run's directory
    seed: NotNegative = 42  # of the run; each rank adds its number to it
    max_iterations: NotNegative = 300  # each iteration collects samples and learns from them
    num_steps_per_env: Count = 24  # control steps of an env slot in an iteration
    save_interval: Count = 50  # iterations between checkpoints
    init_at_random_ep_len: bool = True  # True for first episodes of random lengths, so that not all end at once
    action_scaling: ActionScaling = ActionScaling.AS_IS
    clip_actions: Positive | None = None  # limit of the network's absolute output, None for no limit
    check_for_nan: bool = True  # True to stop at the first NaN
    torch_compile_mode: str | None = None  # mode of ``torch.compile`` for the networks, None for none
    # ``tensorboard``, ``none``, or a mapping with the ``class_name`` of one of rsl_rl's log writers.
    logger: str | dict[str, Any] = "tensorboard"
    # Groups of observations that each network sees.
    obs_groups: dict[str, tuple[str, ...]] = field(
        default_factory=lambda: {"actor": ("policy",), "critic": ("policy",)}
    )
    # Options of the networks and of the algorithm, each with its ``class_name``.
    actor: dict[str, Any] = field(
        default_factory=lambda: _network(distribution_cfg={"class_name": "GaussianDistribution", "init_std": 1.0})
    )
    critic: dict[str, Any] = field(default_factory=_network)
    algorithm: dict[str, Any] = field(default_factory=lambda: {"class_name": "PPO"})


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """How ranks work together."""

    grad_sync_period: Count = 1  # mini-batches between two exchanges of gradients
    # Iterations between two checks that all ranks hold the same weights, beside those before the first update and
    # before every checkpoint; 0 for no others.
    check_sync_every: NotNegative = 50
    timeout_s: Positive = 600.0  # limit of a rank's wait for another rank [s]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The evaluations during training, by the evaluation runner, on all ranks."""

    interval: NotNegative = 100  # iterations between evaluations, 0 for no evaluations; there is one at the end too
    num_episodes: Count = 100  # of each evaluation, the same ones each time
    num_envs: Count = 50  # env slots of a rank
    seed: NotNegative = 10_000  # of their conditions; training uses another one
    video_episodes: NotNegative = 0  # number of episodes that are filmed
    env: dict[str, Any] = field(default_factory=dict)  # options of the environment that differ from training
    # Job file to evaluate with, instead of the task; its rsl_rl policies get the checkpoint, and the settings of
    # episodes above have no effect.
    eval_jobs_config: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints stay."""

    keep_last: Count = 3  # number of newest checkpoints to keep, besides the best one and the evaluated ones
    export: bool = True  # True to write the policy as TorchScript and ONNX files at the end of a run


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """A whole training run."""

    task: str  # name of the training task
    environment: str  # registered name
    num_envs: Count = 256  # env slots of each rank
    num_envs_total: Count | None = None  # env slots of all ranks, from which ``num_envs`` follows; None if not given
    env: Mapping[str, Any] = field(default_factory=dict)  # options of the environment, as in ``arena_env_args``
    variations: Mapping[str, Any] = field(default_factory=dict)  # of the episodes, as in a job's ``variations``
    agent: AgentConfig = field(default_factory=AgentConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)

    @property
    def experiment_name(self) -> str:
        """Name of the directory of the experiment's runs."""
        return self.agent.experiment_name or self.task


# Merge a task's file, a user's file and the command line into one checked configuration.

_SECTIONS = {
    "agent": AgentConfig,
    "distributed": DistributedConfig,
    "evaluation": EvaluationConfig,
    "checkpoints": CheckpointConfig,
}
_CLASS_NAME = "class_name"
_OPTIONS_OF_CLASSES = ("actor", "critic", "algorithm")
_FREE = (
    *(("env",), ("variations",), ("evaluation", "env")),
    *(("agent", key) for key in (*_OPTIONS_OF_CLASSES, "obs_groups", "logger")),
)
"""Paths below which any key may stand: environments, variations and classes check their options themselves."""


def default_document() -> dict[str, Any]:
    """Return the default settings, without ``task`` and ``environment``."""
    document = document_of(TrainingConfig(task="", environment=""))
    return {key: value for key, value in document.items() if key not in {"task", "environment"}}


_SIMILAR: Sequence[tuple[frozenset[str], str]] = (
    (frozenset({"cartpole", "pendulum"}), "cartpole"),
    (frozenset({"tracking", "mimic", "amp", "motion", "dance"}), "track_motion"),
    (frozenset({"reach"}), "reach"),
    (frozenset({"push", "lift", "cube", "stack", "pick", "place"}), "push_cube"),
    (frozenset({"humanoid", "g1", "h1", "digit", "cassie", "t1"}), "walk_humanoid"),
    (frozenset({"velocity", "locomotion", "ant", "a1", "go1", "go2", "b2", "spot", "anymal"}), "velocity_go1"),
)
"""Words in the names of their tasks, with the most similar task here; the first match counts."""


def task_document(task: str) -> dict[str, Any]:
    """Return the settings of a registered training task; ConfigError if there is no such task."""
    # A task name of mjlab or Isaac Lab (``Isaac-Reach-Franka-v0``) gets a hint at the most similar task here.
    words = re.split(r"[^a-z0-9]+", task.lower())
    owner = {"mjlab": "mjlab", "isaac": "Isaac Lab"}.get(words[0])
    if owner is not None and task not in TASKS:
        hint = "none here is like it"
        if similar := next((name for known, name in _SIMILAR if not known.isdisjoint(words)), None):
            start = " env.start=hanging" if similar == "cartpole" and "swingup" in words else ""
            hint = f"the nearest here is {similar}{start}, with a robot and rewards of its own"
        joint = ", and " if similar is None else "; "
        message = f"'{task}' is a task of {owner}{joint}{hint}; those here are {', '.join(TASKS.names())}"
        raise ConfigError(message, key="TASK")
    found = TASKS.get(task)
    return file_document(Path(found)) if isinstance(found, Path | str) else dict(found)


def file_document(path: Path) -> dict[str, Any]:
    """Return the settings in a user's file; ConfigError if it cannot be read or is not a mapping."""
    document = read_document(path)
    if not isinstance(document, dict):
        raise ConfigError("must hold a mapping with the keys of a training run", file=str(path))
    return document


def merged(*documents: Mapping[str, Any]) -> dict[str, Any]:
    """Merge documents, the last one on top; ConfigError if a section is not a mapping."""
    # Mappings merge key by key. If a document names another class, its options replace those of the earlier class. An
    # empty section has no effect.
    mappings = {*_SECTIONS, *(path[0] for path in _FREE)}
    result: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            if key in mappings and value is not None and not isinstance(value, Mapping):
                raise ConfigError(f"must be a mapping, got {value!r}", key=key)
        said = {key: value for key, value in document.items() if key not in _SECTIONS or value is not None}
        if "num_envs" in said and "num_envs_total" in result:
            # Env slots of each rank replace a total from below.
            said = {"num_envs_total": None, **said}
        result = overlaid(
            result,
            said,
            replaces=lambda below, above: _CLASS_NAME in above and above[_CLASS_NAME] != below.get(_CLASS_NAME),
        )
    return result


def overrides_document(words: Sequence[str], base: Mapping[str, Any]) -> dict[str, Any]:
    """Convert words ``path=value`` (value in YAML) into a document; ConfigError lists every wrong word."""
    # ``base`` has the known paths. Parts of a path may be omitted if it stays unambiguous: ``agent.learning_rate`` is
    # ``agent.algorithm.learning_rate``.
    problems: list[Problem] = []
    document: dict[str, Any] = {}
    known = list(paths_of(base))
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or not path:
            problems.append(Problem(f"'{word}' is neither an option nor path=value, as agent.learning_rate=3e-4"))
            continue
        with problems_into(problems, key=path):
            typed = tuple(path.split("."))
            first, last = typed[0], typed[-1]
            # With parts omitted, exactly one known path has the same first and last key.
            inside = [each for each in known if len(each) > len(typed) > 1 and (each[0], each[-1]) == (first, last)]
            if typed in known or any(typed[: len(free)] == free for free in _FREE):
                # A full path, or one below a class or environment that checks its own options.
                whole = typed
            elif len(inside) > 1:
                raise ConfigError(f"means {' or '.join('.'.join(each) for each in inside)}; write one of them out")
            elif inside:
                whole = inside[0]
            elif first == "agent" and len(typed) == 2:
                # An option of the algorithm that the file does not set.
                whole = ("agent", "algorithm", last)
            else:
                raise ConfigError(f"there is no such key{did_you_mean(path, ['.'.join(each) for each in known])}")
            nested: dict[str, Any] = {}
            set_at(nested, whole, read_value(text))
            # The words apply together, in any order.
            document = overlaid(document, nested)
    refuse(problems)
    return document


def read_training(document: Mapping[str, Any], *, task: str, source: str) -> TrainingConfig:
    """Check a merged document and return its configuration; ConfigError lists every problem with its key."""
    # Collect the problems of all sections, so that the user can correct them at once.
    problems: list[Problem] = []
    sections: dict[str, Any] = {}
    for key, section in _SECTIONS.items():
        with problems_into(problems, below=key):
            sections[key] = read_options(section, document.get(key, {}), owner=f"'{key}'")
    problems += [
        Problem("names no class", key=f"agent.{role}.{_CLASS_NAME}")
        for role in (_OPTIONS_OF_CLASSES if "agent" in sections else ())
        if not isinstance(getattr(sections["agent"], role).get(_CLASS_NAME), str)
    ]
    # The plain keys are read after the sections, but their problems come first in the message.
    plain = {key: value for key, value in document.items() if key not in _SECTIONS}
    of_plain: list[Problem] = []
    config: Any = None
    with problems_into(of_plain):
        config = read_options(TrainingConfig, {**plain, "task": task}, owner="a training run")
    with problems_at(file=source):
        refuse([*of_plain, *problems])
    return replace(config, **sections)


def document_of(config: TrainingConfig) -> dict[str, Any]:
    """Return a configuration as plain values, for files."""
    return json.loads(json.dumps(asdict(config)))


def paths_of(document: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of a document, outer ones before inner ones."""
    for key, value in document.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from paths_of(value, (*path, key))


# Make and find the directories of training runs, and read their settings.

SETTINGS, PROGRESS = Path("params") / "train.yaml", "progress.csv"
TRAINING_OF_OTHERS = "training.json"
"""File that another package's command writes beside its checkpoints. Its keys are ``command_line``,
``working_directory`` and ``world_size``."""

LAUNCHER = "launcher"
"""Name of the directory for the ranks' output, in that of a run."""


def new_run_directory(log_root: Path, experiment: str, run_name: str) -> Path:
    """Make a run's directory ``<log_root>/<experiment>/<time>[_<run_name>]``; StorageError if that fails."""
    directory = log_root / experiment
    with atomic.storage_errors("make a directory in", directory):
        directory.mkdir(parents=True, exist_ok=True)
        return make_dated_directory(directory, suffix=f"_{run_name}" if run_name else "").absolute()


def _newest_match(paths: Mapping[str, Path], pattern: str, *, key: str) -> Path | None:
    try:
        matching = [name for name in paths if re.match(pattern, name)]
    except re.error as error:
        raise ConfigError(f"'{pattern}' is no regular expression: {error}", key=key) from error
    # Runs are named by time, and checkpoints by iteration.
    newest = max(matching, key=lambda name: (len(name) if name.startswith("model_") else 0, name), default=None)
    return None if newest is None else paths[newest]


def settings_of(run_directory: Path) -> dict[str, object]:
    """Return the settings of a run; ConfigError if the directory is not that of a training run."""
    path = run_directory / SETTINGS
    if not path.is_file():
        message = f"'{run_directory}' holds no training run: there is no {SETTINGS}"
        if any(run_directory.glob("model_*.pt")):
            message += "; --load_checkpoint begins a new run with the weights of another trainer's checkpoint"
        raise ConfigError(message, key="--resume")
    settings = read_document(path)
    if not isinstance(settings, dict):
        raise ConfigError("holds no settings of a training run", file=str(path))
    return settings


# The records of a run for other programs.

SCHEMA_VERSION = 1
OWN_INFOS = "isaaclab_arena"
"""Key of this trainer's metadata below rsl_rl's key ``infos`` of a checkpoint."""


training_versions = partial(contents.versions, more=("rsl-rl-lib", "tensordict"))
"""Return the versions of all software that can influence training."""


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
class TrainOptions(launch.LaunchOptions):
    """Train a policy: TASK [options] [agent.learning_rate=3e-4 env.embodiment=panda ...]."""

    operands: ClassVar[str] = " TASK"

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
    # A task's name may follow ``--resume``.
    words = launch.with_empty_resume(
        own_command_line(arguments),
        is_run=lambda word: not word.startswith("-") and (os.sep in word or Path(word).is_dir()),
    )
    options, rest = read_some(
        TrainOptions, devices.joined_gpu_ids(words), program=program, on_console=context.claimed_rank() == 0
    )
    # The words after an unknown option may be its values, so they are not reported.
    problems = []
    options_here = {*(field.name for field in fields(TrainOptions)), *_OPTIONS}
    paths = [*paths_of(default_document()), ("agent", "learning_rate")]
    for name in [word.partition("=")[0] for word in rest if word.startswith("-")]:
        unknown = name.lstrip("-").replace("-", "_")
        near = nearest_names(unknown, {*options_here, *(path[-1] for path in paths)})
        settable = [".".join(path) for path in paths if path[-1] in {unknown, *near} - options_here]
        reason = nearest_option(unknown, options_here)
        if settable:
            reason = f"; it is set by {' or '.join(f'{path}=...' for path in settable)}"
        problems.append(Problem(f"unknown option{reason}", key=name))
    refuse(problems)
    overrides = [word for word in rest if "=" in word]
    tasks = [word for word in rest if "=" not in word]
    if len(tasks) > 1:
        raise ConfigError(f"one task is trained at a time, got {' '.join(tasks)}", key="TASK")
    return options, tasks[0] if tasks else None, overrides


_EXPERIMENT = "agent.experiment_name"
_OF_THE_RUN = ("world_size", "devices", "simulation_devices", "command_lines", "began_with", "versions")
"""Keys of a run's settings that do not belong to its configuration."""


def training_config(
    options: TrainOptions, task: str | None, words: Sequence[str], *, world_size: int
) -> TrainingConfig:
    """Return the configuration, with the command line over the user's file over the task's; ConfigError."""
    # ``task`` is None to resume a run, or if the user's file holds everything. ``words`` are ``path=value``.
    documents: list[dict[str, Any]] = []
    source = task or "command line"
    if options.resume is not None:
        # A resumed run begins with its own settings instead of the task's.
        before = settings_of(run_to_resume(options, task, words))
        if task is not None and before.get("task") != task:
            what = f"'{options.resume}' is a run of '{before.get('task')}', not of '{task}'; leave the task out"
            raise ConfigError(what, key="--resume")
        documents.append({key: value for key, value in before.items() if key not in _OF_THE_RUN})
        task = task or str(before.get("task"))
    elif task is not None:
        documents.append(task_document(task))
    if options.config is not None:
        document = file_document(options.config)
        task = task or document.get("task")
        if not documents and task is not None:
            documents.append(task_document(task))
        documents.append(document)
        source = str(options.config)
    if not documents:
        raise ConfigError(f"name a task ({', '.join(TASKS.names())}), or a --config", key="TASK")
    # The words' paths may be abbreviated, so they need the merged document of all files.
    base = merged(default_document(), *documents)
    # The job file's path is absolute, because the run may be resumed from another working directory.
    jobs = None if options.eval_jobs_config is None else str(options.eval_jobs_config.absolute())
    agent = {name: getattr(options, name) for name in ("max_iterations", "seed", "run_name")}
    envs = {name: getattr(options, name) for name in ("num_envs", "num_envs_total")}
    typed = without_none({**envs, "agent": agent, "evaluation": {"eval_jobs_config": jobs}})
    document = merged(base, typed, overrides_document(words, base))
    config = read_training(document, task=task or str(document.get("environment")), source=source)
    if config.num_envs_total is None:
        return config
    # With unequal numbers of env slots, ranks would weigh their samples unequally.
    num_envs, too_many = divmod(config.num_envs_total, world_size)
    if too_many:
        nearest = " or ".join(str(each * world_size) for each in (num_envs, num_envs + 1) if each)
        message = f"{config.num_envs_total} env slots do not divide over {world_size} ranks; use {nearest}"
        raise ConfigError(message, key="--num_envs_total")
    return replace(config, num_envs=num_envs)


def run_to_resume(options: TrainOptions, task: str | None, words: Sequence[str]) -> Path:
    """Return the directory of the run to resume: the named one, or the experiment's newest; ConfigError if none."""
    named = options.resume or options.run_directory
    if named:
        return Path(named).absolute()
    if task is None:
        raise ConfigError("name the run's directory, or the task whose newest run is meant", key="--resume")
    experiments = [value for path, _, value in (word.partition("=") for word in words) if path == _EXPERIMENT]
    experiment = str(read_value(experiments[-1])) if experiments else task
    directory = options.log_root / experiment
    runs = {path.name: path for path in {path.parent for path in directory.glob("*/model_*.pt")}}
    # A new run may begin with a checkpoint of another trainer, whose runs have no settings file.
    if options.load_checkpoint is None:
        runs = {name: path for name, path in runs.items() if (path / SETTINGS).is_file()}
    # The pattern, as rsl_rl's ``load_run``, matches the begin of a name.
    found = _newest_match(runs, options.load_run or ".*", key="--load_run")
    if found is None:
        which = f" whose name matches '{options.load_run}'" if options.load_run else ""
        raise ConfigError(f"there is no run in {directory}{which} to go on with", key="--resume")
    return found.absolute()


def with_chosen_checkpoint(options: TrainOptions, task: str | None, words: Sequence[str]) -> TrainOptions:
    """Return options that either resume a run or start from a checkpoint file; ConfigError if there is none."""
    # rsl_rl's trainers name a run and a checkpoint of it: ``--resume --load_run RUN --load_checkpoint model_100.pt``.
    # The newest checkpoint of a run of this trainer resumes that run exactly; any other checkpoint begins a new run.
    if options.load_checkpoint is None:
        return options
    if options.resume is None or Path(options.load_checkpoint).is_file():
        with problems_at(key="--load_checkpoint"):
            file = checkpoint_file(options.load_checkpoint, None).absolute()
        return replace(options, resume=None, load_run=None, load_checkpoint=str(file))
    # The checkpoint of a run has a file name, a number or a regular expression.
    run, name = run_to_resume(options, task, words), options.load_checkpoint
    numbered = {path.name: path for path in numbered_checkpoints(run).values()}
    others = {path.name: path for path in run.glob("*.pt")}
    chosen = (
        numbered.get(f"model_{name}.pt") or others.get(name) or _newest_match(numbered, name, key="--load_checkpoint")
    )
    if chosen is None:
        held = ", ".join(numbered) or "none"
        raise ConfigError(f"there is no '{name}' in '{run}'; its checkpoints are {held}", key="--load_checkpoint")
    if list(numbered.values())[-1:] == [chosen] and (run / SETTINGS).is_file():
        return replace(options, resume=str(run), load_run=None, load_checkpoint=None)
    return replace(options, resume=None, load_run=None, load_checkpoint=str(chosen))
