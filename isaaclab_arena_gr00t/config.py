"""The files of a GR00T policy: its settings, its joints, its checkpoint, and its model's inputs and outputs."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from isaaclab_arena.checkpoints import wrong_with_weights
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import Count, NotNegative, read_options
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, placed, problems_at, refuse
from isaaclab_arena.interfaces.policy import PolicyCfg
from isaaclab_arena.paths import not_a_plain_file

# Describe a model's inputs and outputs, as far as an environment needs them.

Modality: TypeAlias = Any
"""A ``gr00t.data.types.ModalityConfig`` or a `StatedModality`: steps relative to now, and names in order."""


@dataclass(frozen=True, kw_only=True)
class StatedModality:
    """One modality in a checkpoint's files or a server's answer; further values of a `Modality` are ignored."""

    delta_indices: Sequence[int]
    modality_keys: Sequence[str]


Dimensions = Mapping[str, Mapping[str, int]]
"""``state`` and ``action`` to the size of each key."""

PRESENT = (0,)
"""The steps of a model that uses the present step only."""

_LONGEST_HISTORY = 256
"""Largest number of remembered control steps; a model or a server that asks for more is wrong, or an attack."""


@dataclass(frozen=True, kw_only=True)
class ModelInterface:
    """The inputs and outputs of a model."""

    video_keys: tuple[str, ...]
    state_keys: tuple[str, ...]  # groups of the state
    action_keys: tuple[str, ...]  # groups of the action
    # Names of the instruction. A model with several uses the first, and may require all.
    language_keys: tuple[str, ...]
    horizon: int  # control steps that the model predicts
    dimensions: Dimensions | None = None  # None if the model does not state them
    video_steps: tuple[int, ...] = PRESENT  # 0 is the present step, -15 the one 15 steps before
    state_steps: tuple[int, ...] = PRESENT


def model_interface(modalities: Mapping[str, Modality], dimensions: Dimensions | None) -> ModelInterface:
    """Return a model's inputs and outputs; ConfigError for impossible steps, or no instruction or action."""
    keys = {name: tuple(modality.modality_keys) for name, modality in modalities.items()}
    steps = {name: tuple(modalities[name].delta_indices) if keys.get(name) else PRESENT for name in ("video", "state")}
    # Policies remember a limited number of past steps, and no future ones exist.
    problems = [
        Problem(
            f"the model wants '{name}' at the steps {str(list(wanted))[:100]}; the present one, 0, and up to "
            f"{_LONGEST_HISTORY} before it, -{_LONGEST_HISTORY}, are given"
        )
        for name, wanted in steps.items()
        if not 1 <= len(wanted) <= _LONGEST_HISTORY + 1 or min(wanted) < -_LONGEST_HISTORY or max(wanted) > 0
    ]
    languages = keys.get("language", ())
    if not languages:
        problems.append(Problem("the model takes no instruction"))
    if not keys.get("action"):
        problems.append(Problem("the model has no actions"))
    refuse(problems)
    return ModelInterface(
        video_keys=keys.get("video", ()),
        state_keys=keys.get("state", ()),
        action_keys=keys["action"],
        language_keys=languages,
        horizon=len(list(modalities["action"].delta_indices)),
        dimensions=dimensions,
        video_steps=steps["video"],
        state_steps=steps["state"],
    )


# Read the settings of a GR00T policy: the options of a job, and the YAML file that they name.

YAML_OPTION = "policy_config_yaml_path"

SettingsT = TypeVar("SettingsT")

JOINT_FILES = ("policy_joints_config_path", "action_joints_config_path", "state_joints_config_path")
_PATHS = ("modality_config_path", *JOINT_FILES)


@dataclass(frozen=True)
class ClosedloopPolicyArgs(PolicyCfg):
    """Options of a job that every policy of this package takes.

    Attributes:
        policy_config_yaml_path: The YAML file, see `Gr00tClosedloopPolicyConfig`; relative to the working directory.
        num_envs: Accepted for Isaac Lab Arena's job files; the policy serves whatever number of env slots there is.
        rows_per_query: The model is always asked for exactly this many env slots, in several queries where more need an
            action chunk, with repeated env slots where fewer do; None leaves the choice to the policy.
        temporal_ensemble_coeff: Ask in every step and average all predictions for it, as in ACT; the oldest prediction
            weighs most, each later one less by ``exp(-coeff)``. None plays one chunk after the other.
    """

    policy_config_yaml_path: str
    num_envs: int = 1
    rows_per_query: int | None = None
    temporal_ensemble_coeff: float | None = None


@dataclass(frozen=True)
class Gr00tClosedloopPolicyArgs(ClosedloopPolicyArgs):
    """Options of `Gr00tClosedloopPolicy`.

    Attributes:
        model_path: Directory of the checkpoint, instead of the YAML file's; relative to the working directory.
        compile_model: Whether torch compiles the model, on a GPU into CUDA graphs. Every query then has the same number
            of env slots, and the first one takes a minute.
        policy_device: ``cpu``, ``cuda`` or ``cuda:<index>``.
        policy_device_id: Index of a GPU.
    """

    model_path: str | None = None
    compile_model: bool = False
    policy_device: str | None = None
    policy_device_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class Gr00tClosedloopPolicyConfig:
    """The YAML file of a policy, with Isaac Lab Arena's keys.

    Paths are relative to the file or, if nothing is found there, to the working directory.

    Attributes:
        language_instruction: The instruction if neither the job nor the environment has one.
        model_path: Directory of the checkpoint; with NVIDIA's package also a name ``owner/name`` on the hub.
        action_horizon: Control steps of each answer that are used; at most as many as the model predicts.
        embodiment_tag: Which of the checkpoint's embodiments this is.
        action_chunk_length: Control steps that are played before the model is asked again.
        original_image_size: Height, width and channels that the cameras must have; None for any.
        target_image_size: Height, width and channels of the model's pictures.
        pov_cam_name_sim: Cameras of the environment, in the order of the model's video keys unless they are those
            keys; or a mapping from video key to camera.
        state_names_sim: Observations of the group ``policy`` that hold the joints of the model's state.
        policy_joints_config_path: File with the joints of each of the model's groups, or one such mapping each under
            ``state`` and ``action``. Without it a group is the observation of that name, and the only group of the
            action is the whole action.
        state_joints_config_path: File with the position of every joint in the state. The environment's own names must
            agree with it; an environment without names needs it.
        action_joints_config_path: The same for actions.
        policy_device: The model's device, if neither the job nor the command line names one.
        seed: Seed of the model's noise if no episode gives one, in loops other than this program's.
        task_mode_name: Isaac Lab Arena's key; only compared with ``embodiment_tag``.
        denoising_steps: Accepted and not used: the checkpoint has it.
        modality_config_path: Accepted and not used: the checkpoint has it.
        video_backend: Accepted and not used: no videos are read.
    """

    model_path: str = ""
    language_instruction: str = ""
    action_horizon: Count = 16
    embodiment_tag: str = "NEW_EMBODIMENT"
    action_chunk_length: Count = 16
    original_image_size: tuple[int, int, int] | None = None
    target_image_size: tuple[int, int, int] = (480, 640, 3)
    pov_cam_name_sim: str | tuple[str, ...] | dict[str, str] = ("robot_head_cam_rgb",)
    state_names_sim: str | tuple[str, ...] = ("robot_joint_pos",)
    policy_joints_config_path: str | None = None
    state_joints_config_path: str | None = None
    action_joints_config_path: str | None = None
    policy_device: str | None = None
    seed: NotNegative = 10
    task_mode_name: str | None = None
    denoising_steps: int | None = None
    modality_config_path: str | None = None
    video_backend: str | None = None

    @property
    def cameras(self) -> dict[str, str]:
        """Camera for each video key; if the file names only cameras, each is its own key."""
        given = self.pov_cam_name_sim
        if isinstance(given, dict):
            return dict(given)
        return {name: name for name in ((given,) if isinstance(given, str) else given)}

    @property
    def state_names(self) -> tuple[str, ...]:
        """The observations of ``state_names_sim``, without repetitions."""
        given = self.state_names_sim
        return (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))


def check_args(args: ClosedloopPolicyArgs) -> None:
    """Refuse options of a job that are wrong for any YAML file: ConfigError with every problem."""
    problems = []
    if args.rows_per_query is not None and args.rows_per_query < 1:
        problems.append(Problem(f"must be at least 1, got {args.rows_per_query}", key="rows_per_query"))
    if args.temporal_ensemble_coeff is not None and args.temporal_ensemble_coeff < 0:
        message = f"must not be negative, got {args.temporal_ensemble_coeff:g}"
        problems.append(Problem(message, key="temporal_ensemble_coeff"))
    refuse(problems)


def read_policy_config(path: str | Path) -> Gr00tClosedloopPolicyConfig:
    """Read a policy's YAML file, with its paths resolved; ConfigError with every problem, each with file and key."""
    config = read_settings(Gr00tClosedloopPolicyConfig, path, owner="a GR00T policy", paths=(*_PATHS, "model_path"))
    problems: list[Problem] = []
    if config.action_chunk_length > config.action_horizon:
        message = (
            f"{config.action_chunk_length} steps of a chunk cannot be played from answers of action_horizon "
            f"{config.action_horizon} steps; make it {config.action_horizon} or less"
        )
        problems.append(Problem(message, key="action_chunk_length"))
    for key in ("original_image_size", "target_image_size"):
        size = getattr(config, key)
        if size is not None and (size[2] != 3 or min(size) < 1):
            problems.append(Problem(f"must be height, width and 3 channels, got {list(size)}", key=key))

    # Isaac Lab Arena's task mode must fit the embodiment.
    mode = config.task_mode_name
    embodiments: dict[str, tuple[str, ...]] = {
        "g1_locomanipulation": ("NEW_EMBODIMENT",),
        "gr1_tabletop_manipulation": ("GR1",),
        "droid_manipulation": ("OXE_DROID", "OXE_DROID_RELATIVE_EEF_RELATIVE_JOINT"),
    }
    if mode is not None and mode not in embodiments:
        message = f"no task mode called '{mode}'{did_you_mean(mode, embodiments)}"
        problems.append(Problem(message, key="task_mode_name"))
    elif mode is not None and config.embodiment_tag.strip().upper() not in embodiments[mode]:
        due = " or ".join(embodiments[mode])
        message = f"'{mode}' is for embodiment_tag {due}, not {config.embodiment_tag}; leave it out"
        problems.append(Problem(message, key="task_mode_name"))

    for key in _PATHS:
        named = getattr(config, key)
        if named is None:
            continue
        wrong = not_a_plain_file(Path(named))
        if not Path(named).exists():
            message = f"there is no file '{named}', neither beside this file nor in the working directory"
            problems.append(Problem(message, key=key))
        elif wrong is not None:
            problems.append(Problem(f"'{named}' {wrong}", key=key))
    refuse(placed(problems, file=str(path)))
    return config


@contextmanager
def named_by_option(option: str, file: str | None = None) -> Iterator[None]:
    """Name the job's option for the problems of a ``with`` block that a YAML file has: all of them if it is `file`."""
    # The key is the option of the job file; the message has file and key of the YAML file.
    try:
        yield
    except ConfigError as error:
        located = [dataclasses.replace(problem, file=problem.file or file) for problem in error.problems]
        raise ConfigError(
            [Problem(str(each), key=option) if each.file or file is not None else each for each in located]
        ) from error


def read_settings(
    settings_class: type[SettingsT], path: str | Path, *, owner: str, paths: Sequence[str], **given: str
) -> SettingsT:
    """Read a YAML file of the fields of `settings_class`, `given` ones replaced; ConfigError with every problem."""
    document = read_document(path)
    if not isinstance(document, dict):
        raise ConfigError("must be a mapping from key to value", file=str(path))
    with problems_at(file=str(path)):
        settings = read_options(settings_class, {**document, **given}, owner=owner)
    # A path is relative to the directory of the YAML file or, if nothing is there, to the working directory.
    named = {key: getattr(settings, key) for key in paths}
    beside: dict[str, Any] = {key: str(Path(path).parent / name) for key, name in named.items() if name}
    return dataclasses.replace(settings, **{key: name for key, name in beside.items() if Path(name).exists()})


# Read Isaac Lab Arena's joint files: the joints of a model's groups, and the order of a simulation's joints.

JointGroups: TypeAlias = Mapping[str, tuple[str, ...]]
"""Name of a group of the model to the names of its joints, in the model's order."""


@dataclass(frozen=True, kw_only=True)
class PolicyJoints:
    """The joints of each group of a model's state and action."""

    state: JointGroups
    action: JointGroups


@dataclass(frozen=True, kw_only=True)
class JointFiles:
    """The content of a policy's joint files; None for a file that is not given."""

    policy: PolicyJoints | None = None
    state_order: tuple[str, ...] | None = None  # the environment's state joints
    action_order: tuple[str, ...] | None = None  # the environment's action joints


def read_joint_files(settings: object) -> JointFiles:
    """Read the joint files that a policy's YAML file names; ConfigError if one cannot be read."""
    policy, action, state = (getattr(settings, key, None) for key in JOINT_FILES)
    return JointFiles(
        policy=read_policy_joints(policy) if policy else None,
        state_order=read_joint_order(state) if state else None,
        action_order=read_joint_order(action) if action else None,
    )


def read_policy_joints(path: str | Path) -> PolicyJoints:
    """Read the joints of a model's groups; ConfigError, with file and key, for any other content."""
    document = _mapping(read_document(path), str(path), None)
    # Two forms: one mapping from group to joints, or one mapping each under ``state`` and ``action``.
    if set(document) == {"state", "action"} and all(isinstance(part, dict) for part in document.values()):
        state, action = (_groups(document[part], str(path), f"{part}.") for part in ("state", "action"))
        return PolicyJoints(state=state, action=action)
    groups = _groups(document, str(path), "")
    return PolicyJoints(state=groups, action=groups)


def read_joint_order(path: str | Path) -> tuple[str, ...]:
    """Read the order of a simulation's joints, a mapping from joint to position; ConfigError for anything else."""
    file = str(path)
    positions = _mapping(read_document(path), file, None)
    problems = [
        Problem(f"{position!r} is not a position; positions count from 0", file=file, key=joint)
        for joint, position in positions.items()
        if isinstance(position, bool) or not isinstance(position, int)
    ]
    refuse(problems)
    # Each position from 0 must be there exactly once.
    ordered = sorted(positions, key=positions.__getitem__)
    for due, joint in enumerate(ordered):
        if positions[joint] != due:
            message = (
                f"has position {positions[joint]}, expected {due} next; each of 0 to {len(ordered) - 1} must be there"
            )
            raise ConfigError(message, file=file, key=joint)
    return tuple(ordered)


def _mapping(value: Any, file: str, key: str | None) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ConfigError("must be a mapping with at least one entry", file=file, key=key)
    return value


def _groups(document: dict[str, Any], file: str, prefix: str) -> JointGroups:
    problems: list[Problem] = []
    for group, joints in document.items():
        are_names = isinstance(joints, list) and joints and all(isinstance(joint, str) for joint in joints)
        if not are_names or len(set(joints)) != len(joints):
            message = "must be a list of joint names without repetition"
            problems.append(Problem(message, file=file, key=f"{prefix}{group}"))
    refuse(problems)
    return {group: tuple(joints) for group, joints in _mapping(document, file, prefix.rstrip(".") or None).items()}


# Check and describe a checkpoint before loading it.


StatedEmbodiment: TypeAlias = tuple[Mapping[str, StatedModality], Dimensions | None]
"""The modalities of one embodiment in a checkpoint's files, as far as present, and its sizes, None if not there."""


def checkpoint_problems(
    model_path: str, *, searched: str = "neither beside this file nor in the working directory"
) -> list[Problem]:
    """Return the problems of a checkpoint's directory; `searched` names the searched locations in the message."""
    key = "model_path"
    if not model_path:
        return [Problem("is missing; name the directory of the model", key=key)]
    directory, config = Path(model_path), Path(model_path) / "config.json"
    # The model package may fetch a name ``owner/name`` from the hub.
    is_hub_name = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", model_path, re.ASCII) is not None
    if not directory.exists() and is_hub_name and not directory.parent.exists():
        return []
    if not directory.exists():
        return [Problem(f"'{model_path}' does not exist, {searched}", key=key)]

    wrong: str | None = None
    if not directory.is_dir():
        wrong = "is a file; name the directory that holds it"
    elif not config.exists():
        wrong = "is not a checkpoint: it has no config.json"
    elif (unreadable := not_a_plain_file(config)) is not None:
        wrong = f"is not a checkpoint: its config.json {unreadable}"
    elif any(directory.glob("*.safetensors")):
        damage = wrong_with_weights(directory)
        wrong = None if damage is None else f"cannot be loaded: {damage}"
    else:
        suffixes = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
        pickled = sorted(path.name for suffix in suffixes for path in directory.glob(suffix))
        found = f" but {pickled[0]}, and loading that could run code; save the model as safetensors" if pickled else ""
        wrong = f"has no weights in a *.safetensors file{found}"
    return [] if wrong is None else [Problem(f"'{model_path}' {wrong}", key=key)]


def stated_embodiments(model_path: str) -> dict[str, StatedEmbodiment]:
    """Return the embodiments in a checkpoint's ``processor_config.json``, by tag value; none if it is unreadable."""
    # The included package and NVIDIA's write two different formats. The model package judges any other content.
    try:
        document = read_document(Path(model_path) / "processor_config.json")
        if "embodiments" in document:
            own = document["embodiments"].items()
            parts = {tag: (each["modality_configs"], each["statistics"]) for tag, each in own}
        else:
            kept = document["processor_kwargs"]["modality_configs"]
            parts = {tag: (modalities, None) for tag, modalities in kept.items()}
        stated: dict[str, StatedEmbodiment] = {}
        for tag, (modalities, statistics) in parts.items():
            found = {
                name: StatedModality(
                    delta_indices=tuple(map(int, each["delta_indices"])),
                    modality_keys=tuple(map(str, each["modality_keys"])),
                )
                for name, each in modalities.items()
            }
            dimensions = statistics and {
                kind: {key: len(statistics[kind][key]["min"]) for key in found[kind].modality_keys}
                for kind in ("state", "action")
            }
            stated[tag] = found, dimensions
    except (ConfigError, AttributeError, KeyError, TypeError, ValueError):
        return {}
    return stated
