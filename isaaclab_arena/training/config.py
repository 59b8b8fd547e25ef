"""The configuration of a training run from files and the command line, and the directories that keep it."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from isaaclab_arena.config.documents import read_document, read_value
from isaaclab_arena.config.options import Count, NotNegative, Positive, read_options
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, placed, problems_into, refuse
from isaaclab_arena.evaluation.provenance import versions
from isaaclab_arena.models.network import ActionScaling
from isaaclab_arena.models.rsl_rl_checkpoint import numbered_checkpoints
from isaaclab_arena.nested import overlaid, set_at, value_at
from isaaclab_arena.paths import make_dated_directory
from isaaclab_arena.storage.disk import storage_errors, write_text
from isaaclab_arena.training.tasks import TASKS


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
            nested: dict[str, Any] = {}
            set_at(nested, _whole_path(path, known), read_value(text))
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
    refuse(placed([*of_plain, *problems], file=source))
    return dataclasses.replace(config, **sections)


def document_of(config: TrainingConfig) -> dict[str, Any]:
    """Return a configuration as plain values, for files."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def paths_of(document: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of a document, outer ones before inner ones."""
    for key, value in document.items():
        yield (*path, key)
        if isinstance(value, Mapping):
            yield from paths_of(value, (*path, key))


def _whole_path(text: str, known: list[tuple[str, ...]]) -> tuple[str, ...]:
    first, *others = text.split(".")
    # A full path, or one below a class or environment that checks its own options.
    path = (first, *others)
    if path in known or any(path[: len(free)] == free for free in _FREE):
        return path
    # A path with parts omitted: it needs exactly one known path with the same first and last key.
    inside = [each for each in known if len(each) > len(path) > 1 and each[0] == first and each[-1] == path[-1]]
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise ConfigError(f"means {' or '.join('.'.join(each) for each in inside)}; write one of them out")
    if first == "agent" and len(path) == 2:
        # An option of the algorithm that the file does not set.
        return ("agent", "algorithm", path[1])
    raise ConfigError(f"there is no such key{did_you_mean(text, ['.'.join(each) for each in known])}")


# Make and find the directories of training runs, and read their settings.

SETTINGS = Path("params") / "train.yaml"


def new_run_directory(log_root: Path, experiment: str, run_name: str) -> Path:
    """Make a run's directory ``<log_root>/<experiment>/<time>[_<run_name>]``; StorageError if that fails."""
    directory = log_root / experiment
    with storage_errors("make a directory in", directory):
        directory.mkdir(parents=True, exist_ok=True)
        return make_dated_directory(directory, suffix=f"_{run_name}" if run_name else "").absolute()


def newest_run(log_root: Path, experiment: str, *, pattern: str = ".*", of_others: bool = False) -> Path:
    """Return an experiment's newest run with a checkpoint; ConfigError if none matches `pattern`."""
    directory = log_root / experiment
    runs = {path.name: path for path in {path.parent for path in directory.glob("*/model_*.pt")}}
    # Runs of other trainers have no settings file. The pattern, as rsl_rl's ``load_run``, matches the begin of a name.
    if not of_others:
        runs = {name: path for name, path in runs.items() if (path / SETTINGS).is_file()}
    found = _newest_match(runs, pattern, key="--load_run")
    if found is None:
        which = "" if pattern == ".*" else f" whose name matches '{pattern}'"
        raise ConfigError(f"there is no run in {directory}{which} to go on with", key="--resume")
    return found.absolute()


def checkpoint_of_run(run_directory: Path, name: str) -> Path:
    """Return a checkpoint of a run, by file name, number or regular expression; ConfigError if there is none."""
    numbered = {path.name: path for path in numbered_checkpoints(run_directory).values()}
    others = {path.name: path for path in run_directory.glob("*.pt")}
    found = (
        numbered.get(f"model_{name}.pt") or others.get(name) or _newest_match(numbered, name, key="--load_checkpoint")
    )
    if found is None:
        held = ", ".join(numbered) or "none"
        message = f"there is no '{name}' in '{run_directory}'; its checkpoints are {held}"
        raise ConfigError(message, key="--load_checkpoint")
    return found


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


# Write the settings of the agent and the environment beside a run's checkpoints, for other programs.

SCHEMA_VERSION = 1
_OWN = "isaaclab_arena"


def write_settings(
    run_directory: Path,
    config: TrainingConfig,
    *,
    observation_terms: Mapping[str, tuple[str, ...]],
    devices: tuple[str, ...],
    simulation_devices: tuple[str, ...],
    command_line: tuple[str, ...],
    began_with: str | None,
) -> None:
    """Write ``params/agent.yaml`` and ``env.yaml`` like Isaac Lab and mjlab, and ``train.yaml``; StorageError."""
    # Terms are in the order of the networks' input. A rank simulates on the CPU with MuJoCo, on a GPU with MuJoCo-Warp.
    # ``began_with`` is the source of the first weights, None for random weights or a resumed run.
    # The settings keep the first weights' source and all command lines of the run.
    before = settings_of(run_directory) if (run_directory / SETTINGS).is_file() else {}
    typed = before.get("command_lines")
    document, terms = document_of(config), {group: list(names) for group, names in observation_terms.items()}
    agent = {**document["agent"], "experiment_name": config.experiment_name, "observation_terms": terms}
    environment = {"environment": config.environment, "num_envs": config.num_envs, **document["env"]}
    run = {
        **document,
        "world_size": len(devices),
        "devices": list(devices),
        "simulation_devices": list(simulation_devices),
        "began_with": began_with or before.get("began_with"),
        "command_lines": [*(map(str, typed) if isinstance(typed, list) else ()), " ".join(command_line)],
        "versions": training_versions(),
    }
    for name, content in {"agent": agent, "env": environment, "train": run}.items():
        path = run_directory / "params" / f"{name}.yaml"
        write_text(path, yaml.safe_dump(content, sort_keys=False, width=120), overwrite=True)


def checkpoint_infos(config: TrainingConfig, *, iterations: int, env_steps: int, world_size: int) -> dict[str, Any]:
    """Return the metadata of a checkpoint for rsl_rl's key ``infos``."""
    counts = {"schema_version": SCHEMA_VERSION, "iterations": iterations, "env_steps": env_steps}
    return {_OWN: {**counts, "world_size": world_size, "config": document_of(config), "versions": training_versions()}}


def recorded_in(learned: Mapping[str, Any], *path: str) -> Any:
    """Return an entry of a checkpoint's `checkpoint_infos`, None if it has none."""
    return value_at(learned, ("infos", _OWN, *path))


def training_versions() -> dict[str, str]:
    """Return the versions of all software that can influence training."""
    return versions(more=("rsl-rl-lib", "tensordict"))
