"""One job of a file as many: one per task of a suite, swept value, checkpoint, level of robustness, or control."""

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, runtime_checkable

from pydantic import Field, ValidationError

from isaaclab_arena.checkpoints import Checkpoint, best_of_training, find_checkpoints, look_at
from isaaclab_arena.config.options import StrictModel, error_message, shown
from isaaclab_arena.config.schema import JobConfig, SuiteMember, name_problem
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, nearest_names, problems_at, refuse
from isaaclab_arena.nested import set_at, value_at
from isaaclab_arena.registry import Registry

MAX_JOBS = 100_000

# One job per task of a suite.


@dataclass(frozen=True, kw_only=True)
class SuiteTask:
    """A task of a suite.

    Attributes:
        label: The suffix of its job's name: short, and unique in the suite.
        environment: Name of its environment, as ``arena_env_args.environment`` gives it.
        options: The task's own keys of ``arena_env_args``.
    """

    label: str
    environment: str
    options: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Suite(Protocol):
    """A registered suite, which lists the tasks of a benchmark."""

    def tasks(self, options: Mapping[str, Any]) -> Sequence[SuiteTask]:
        """Return the tasks in order: at least one, and the same for the same options.

        It simulates nothing and starts no other interpreter, because every rank calls it.

        Args:
            options: ``arena_env_args`` of the job, not checked yet, such as the path of a checkout that has the list.

        Raises:
            ConfigError: With ``key`` set to the option at fault, or to ``suite``.
        """
        ...


def expand_suite(
    job: Mapping[str, Any], suites: Registry, *, room: int
) -> Iterator[tuple[dict[str, Any], SuiteMember | None]]:
    """Yield one job per task, with its part in the suite; the job itself if it has none. ConfigError."""
    # A task's job is named ``<name>-<label>`` and shares all else with the other jobs of its suite. ``room`` limits the
    # number of jobs.
    plain = {key: value for key, value in job.items() if key != "suite"}
    if job.get("suite") is None:
        yield plain, None
        return
    options = plain.get("arena_env_args") or {}
    if not isinstance(options, dict):
        raise ConfigError(f"{shown(options)} is not a mapping", key="arena_env_args")
    given = job["suite"]
    if not isinstance(given, str) or not given:
        raise ConfigError(f"{shown(given)} is not the name of a suite", key="suite")
    if options.get("environment") is not None:
        message = "gives every job its environment; leave out either this or arena_env_args.environment"
        raise ConfigError(message, key="suite")
    with problems_at(key="suite"):
        suite = suites.get(given)
    if not isinstance(suite, Suite):
        raise ConfigError(f"'{given}' is registered as a {type(suite).__name__}, which lists no tasks", key="suite")
    try:
        tasks = suite.tasks(options)
    except ConfigError as error:
        problems = []
        for each in error.problems:
            key = "arena_env_args" if each.key is None else f"arena_env_args.{each.key}"
            problems.append(Problem(each.message, key="suite" if each.key == "suite" else key))
        raise ConfigError(problems) from error
    # Labels become parts of job names, so they must be unique.
    labels = [task.label for task in tasks]
    if not tasks or len(set(labels)) < len(labels):
        raise ConfigError(f"'{given}' lists {'a task twice' if tasks else 'no task'}", key="suite")
    if len(tasks) > room:
        raise ConfigError(f"makes {len(tasks)} jobs, and a file may have {MAX_JOBS} in all", key="suite")
    name = job.get("name")
    names = [f"{name}-{task.label}" if isinstance(name, str) else name for task in tasks]
    wrong = next((problem for each in names if isinstance(each, str) and (problem := name_problem(each))), None)
    if wrong is not None:
        raise ConfigError(f"with a task behind it, {wrong}", key="name")
    for own_name, task in zip(names, tasks, strict=True):
        environment = {**deepcopy(options), **task.options, "environment": task.environment}
        member = SuiteMember(name=str(name), suite=job["suite"], task=task.label)
        yield {**deepcopy(plain), "name": own_name, "arena_env_args": environment}, member


# One job per combination of swept values.

_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][\w.]*)\}")
_UNSAFE = re.compile(r"[^\w.+-]+")


def sweep_problems(job: Mapping[str, Any], sweep: Mapping[str, Any], job_keys: frozenset[str]) -> list[Problem]:
    """Return the problems of a sweep (dotted keys with values) of a job without its ``sweep``."""
    problems = []
    name = job.get("name")
    sweepable = job_keys - {"name", "sweep"}
    for key, values in sweep.items():
        head, *_ = path = key.split(".")
        if head not in sweepable:
            hint = f"; an option of the environment is arena_env_args.{key}, one of the policy policy_config_dict.{key}"
            hint = did_you_mean(head, sweepable) if nearest_names(head, sweepable) else hint
            message = f"'{head}' is no key that can be swept{hint}"
            problems.append(Problem(message, key=f"sweep.{key}"))
        elif not isinstance(values, list) or not values:
            problems.append(Problem("needs a list with at least one value", key=f"sweep.{key}"))
        elif not all(isinstance(value_at(job, path[:length]), dict | None) for length in range(1, len(path))):
            message = f"cannot be swept: what the job gives for '{head}' is no mapping"
            problems.append(Problem(message, key=f"sweep.{key}"))
    # Placeholders in the job's name must be swept keys.
    if sweep and isinstance(name, str):
        known = _placeholder_keys(sweep)
        problems.extend(
            Problem(f"'{{{placeholder}}}' is no swept key{did_you_mean(placeholder, known)}", key="name")
            for placeholder in _PLACEHOLDER.findall(name)
            if placeholder not in known
        )
    return problems


def expand(job: Mapping[str, Any], sweep: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield one job per combination, the last key changing fastest."""
    # Each name gets a suffix such as ``-seed0-cube``. If the name has a key in braces, ``lift-{seed}``, the value
    # replaces it.
    labels: dict[str, list[str]] = {}
    for key, values in sweep.items():
        each: list[str] = []
        for value in values:
            if isinstance(value, dict | list):
                each.append("")
            elif value is None or isinstance(value, bool):
                each.append(str(value).lower())
            else:
                # Of a dotted class path, the class distinguishes two policies.
                text = re.split(r"[.:]", str(value))[-1] if key == "policy_type" else str(value)
                each.append(_UNSAFE.sub("_", text).strip("_."))
        # Values without a label, or with the same one where file systems ignore case, are numbered.
        are_distinct = all(each) and len({label.casefold() for label in each}) == len(each)
        labels[key] = each if are_distinct else [str(position) for position in range(len(values))]
    template, keys = job.get("name"), _placeholder_keys(sweep)
    for choice in itertools.product(*(range(len(values)) for values in sweep.values())):
        expanded = deepcopy(dict(job))
        chosen = dict(zip(sweep, choice, strict=True))
        for key, position in chosen.items():
            set_at(expanded, key.split("."), deepcopy(sweep[key][position]))
        if sweep and isinstance(template, str):
            own = {key: labels[key][position] for key, position in chosen.items()}
            # Another placeholder is a mistake, which `sweep_problems` reports.
            values = {placeholder: own[key] for placeholder, key in keys.items()}
            name = _PLACEHOLDER.sub(lambda match, values=values: values.get(match[1], match[0]), template)
            used = {keys.get(placeholder) for placeholder in _PLACEHOLDER.findall(template)}
            for key, label in own.items():
                # A number means nothing without its key; 'cube' does.
                is_word = label[:1].isalpha() and label not in {"true", "false", "none"}
                if key not in used:
                    name += f"-{label}" if is_word else f"-{key.rpartition('.')[2]}{label}"
            expanded["name"] = name
        yield expanded


def _placeholder_keys(sweep: Mapping[str, Any]) -> dict[str, str]:
    leaves = {key: key.rpartition(".")[2] for key in sweep}
    short = {leaf: key for key, leaf in leaves.items() if [*leaves.values()].count(leaf) == 1}
    return short | {key: key for key in sweep}


# One job per checkpoint of a training.

_LOG = logging.getLogger(__name__)

CHECKPOINTS_KEY = "checkpoints"
STEP = "checkpoint_step"
"""The name under which a job's step is swept, and so that of its column."""

OPTIONS = ("checkpoint_path", "model_path", "pretrained")
"""The options in which policies take a checkpoint: the first that a job gives names the training's directory."""

_NAMES_CHECKPOINT = re.compile(rf"{STEP}|policy_config_dict\.(.*\.)?[^.]*(checkpoint|model)[^.]*", re.IGNORECASE)
"""Matches swept keys that name checkpoints: `STEP`, and options of policies like those in `OPTIONS`."""


def swept_step(key: str, value: Any) -> int | None:
    """Return the training step of a swept checkpoint, the axis of learning curves; None if the key names none."""
    # The step is a whole number, or the last number of a path: 2000 for ``runs/a1/model_2000.pt`` and for
    # ``checkpoints/002000/pretrained_model``.
    if _NAMES_CHECKPOINT.fullmatch(key) is None or type(value) not in (int, str):
        return None
    numbers = re.findall(r"(?<!\d)\d{1,12}(?!\d)", value) if isinstance(value, str) else [value]
    return int(numbers[-1]) if numbers else None


_ALL_STEPS, _LAST, _BEST = "all", "last", "best"
_WILDCARDS = "*?["
_MOST_SHOWN = 12


def expand_checkpoints(job: Mapping[str, Any], *, room: int) -> Iterator[tuple[dict[str, Any], dict[str, int | None]]]:
    """Yield one job per checkpoint, with its step; the job itself without ``checkpoints``. ConfigError."""
    # A checkpoint's job is named ``<name>-<step>``, and its option names the checkpoint instead of the directory.
    # ``room`` limits the number of jobs.
    # ConfigError: the option does not name a training's directory, or a checkpoint is missing or incomplete.
    plain = {key: value for key, value in job.items() if key != CHECKPOINTS_KEY}
    if job.get(CHECKPOINTS_KEY) is None:
        yield plain, {}
        return
    options = plain.get("policy_config_dict") or {}
    option = next((name for name in OPTIONS if isinstance(options, dict) and options.get(name) is not None), None)
    if option is None:
        message = f"needs the directory of the training as an option of the policy: {', '.join(OPTIONS)}"
        raise ConfigError(message, key=CHECKPOINTS_KEY)
    directory = Path(str(options[option]))
    if not directory.is_dir():
        message = f"'{directory}' is no directory, and '{CHECKPOINTS_KEY}' takes the checkpoints of one"
        raise ConfigError(message, key=f"policy_config_dict.{option}")
    asked, chosen = job[CHECKPOINTS_KEY], list[tuple[Path, int | None]]()
    if asked == _BEST:
        best = best_of_training(directory)
        if best is None:
            message = f"the training in '{directory}' names no best checkpoint: there is no model_best.pt, and no "
            message += "trainer_state.json with best_model_checkpoint; isaaclab-arena watch chooses the best of all"
            raise ConfigError(message, key=CHECKPOINTS_KEY)
        if best[1] is None:
            _LOG.warning("the step of '%s' is unknown, so its column is empty", best[0])
        chosen = [best]
    else:
        chosen = [(each.path, each.step) for each in _found(asked, directory)]
    if not chosen:
        steps = _in_words(find_checkpoints(directory))
        message = f"there is none like {shown(asked)} in '{directory}'; its steps are {steps}"
        raise ConfigError(message, key=CHECKPOINTS_KEY)
    looks = ((path, look_at(path).missing) for path, _ in chosen)
    if (incomplete := next((each for each in looks if each[1] is not None), None)) is not None:
        path, missing = incomplete
        message = f"'{path}' cannot be loaded: {missing}; isaaclab-arena watch waits for checkpoints"
        raise ConfigError(message, key=f"policy_config_dict.{option}" if asked == _BEST else CHECKPOINTS_KEY)
    if len(chosen) > room:
        raise ConfigError(f"makes {len(chosen)} jobs, and a file may have {MAX_JOBS} in all", key=CHECKPOINTS_KEY)
    for path, step in chosen:
        own = deepcopy(plain)
        own["policy_config_dict"][option] = str(path)
        if isinstance(own.get("name"), str):
            own["name"] += f"-{_BEST if asked == _BEST else step}"
        yield own, {STEP: step}


def _found(asked: Any, directory: Path) -> Sequence[Checkpoint]:
    wanted, pattern = asked, None
    if isinstance(asked, str) and any(sign in asked for sign in _WILDCARDS):
        wanted, pattern = _ALL_STEPS, asked
    elif isinstance(asked, dict):
        wanted, pattern = asked.get("steps", _ALL_STEPS), asked.get("pattern")
    found = find_checkpoints(directory, pattern)
    if wanted == _ALL_STEPS:
        return found
    if wanted == _LAST:
        return found[-1:]

    # All else names steps, one or a list.
    steps: list[Any] = wanted if isinstance(wanted, list) else [wanted]
    if not all(type(step) is int for step in steps) or not steps:
        kinds = f"{_ALL_STEPS}, {_BEST}, {_LAST}, a list of steps or a glob such as model_*00.pt"
        raise ConfigError(f"must be {kinds}, got {shown(wanted)}", key=CHECKPOINTS_KEY)
    by_step = {checkpoint.step: checkpoint for checkpoint in found}
    if absent := [step for step in steps if step not in by_step]:
        message = f"there is no checkpoint of step {absent[0]} in '{directory}'; its steps are {_in_words(found)}"
        raise ConfigError(message, key=CHECKPOINTS_KEY)
    return [by_step[step] for step in dict.fromkeys(steps)]


def _in_words(found: Sequence[Checkpoint]) -> str:
    steps = [str(checkpoint.step) for checkpoint in found]
    more = f" and {len(steps) - _MOST_SHOWN} more" if len(steps) > _MOST_SHOWN else ""
    return f"{', '.join(steps[:_MOST_SHOWN])}{more}" if steps else "none"


BENIGN = "benign"
"""The arm in which nothing is changed: the axis of level 0, and the control that is none."""


def is_changed(labels: Mapping[str, Any]) -> bool:
    """Whether a job with these labels is an arm whose episodes or senses are changed."""
    pairs = (ROBUSTNESS_KEY, AXIS_LABEL), (CONTROLS_KEY, CONTROL_LABEL)
    return any(key in labels and labels.get(label, BENIGN) != BENIGN for key, label in pairs)


# One job per axis and level of a robustness run.

ROBUSTNESS_KEY = "robustness"
AXIS_LABEL, LEVEL_LABEL = "axis", "level"
"""Labels of the jobs that it makes, beside ``robustness``, the name of the job that they come from."""

MAX_LEVEL = 20
_ALL_AXES = "all"

_Level = Annotated[int, Field(ge=1, le=MAX_LEVEL)]


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The robustness jobs that a job requests."""

    axes: tuple[str, ...] | None = None  # names of axes, None for all of the environment
    levels: tuple[int, ...] = (1, 2, 3, 4, 5)  # levels of each axis, ascending


# One job per control: a policy that cannot look or listen.

CONTROLS_KEY, CONTROL_LABEL = "controls", "control"
"""Labels of the jobs: the name of the job that they come from, and the control."""
RECORDED_CONTROLS = ("open_loop", "mean_action")
"""Controls that play the recording of the job itself, and so run after it."""
CONTROLS = ("blind", "no_instruction", "swapped_instruction", "shuffled_cameras", *RECORDED_CONTROLS)


@dataclass(frozen=True, kw_only=True)
class Controls:
    """The control jobs that a job requests."""

    names: tuple[str, ...]  # in the order of `CONTROLS`
    others: Sequence[JobConfig] = ()  # jobs with words for `swapped_instruction`, the preferred one first


def read_controls(value: Any) -> tuple[str, ...]:
    """Read ``[blind, no_instruction]``; ConfigError lists every problem."""
    asked = [value] if isinstance(value, str) else value
    if not isinstance(asked, list) or not asked:
        raise ConfigError(f"must be a list of {', '.join(CONTROLS)}, got {value!r}", key=CONTROLS_KEY)
    unknown = [each for each in asked if each not in CONTROLS]
    messages = [f"there is no control {each!r}{did_you_mean(str(each), CONTROLS)}" for each in unknown]
    refuse([Problem(message, key=CONTROLS_KEY) for message in messages])
    return tuple(name for name in CONTROLS if name in asked)


ArmsOf: TypeAlias = Callable[[JobConfig, Robustness | Controls], Sequence[JobConfig]]
"""Makes the jobs of a job that asks for them; raises `ConfigError` with the key within the job."""


class _Fields(StrictModel):
    axes: str | list[str] = _ALL_AXES
    levels: _Level | Annotated[list[_Level], Field(min_length=1)] = 5


def no_arms(job: JobConfig, asked: Robustness | Controls) -> Sequence[JobConfig]:
    """Refuse a job with arms: only some programs take those."""
    del job
    key = ROBUSTNESS_KEY if isinstance(asked, Robustness) else CONTROLS_KEY
    raise ConfigError(f"is for runs of a job file: isaaclab-arena run or isaaclab-arena {key}", key=key)


def read_robustness(value: Any) -> Robustness:
    """Read ``{axes: all, levels: 5}`` or ``{axes: [light], levels: [1, 3]}``; ConfigError lists every problem."""
    try:
        fields = _Fields.model_validate(value)
    except ValidationError as invalid:
        problems = []
        for error in invalid.errors(include_url=False):
            path = ".".join(map(str, error["loc"])).partition(".")[0]
            if path == "levels":
                message = f"must be 1 to {MAX_LEVEL}, or a list of such levels, got {value['levels']!r}"
            elif path == "axes":
                message = f"must be all or a list of axes, got {value['axes']!r}"
            else:
                message = error_message(error, _Fields.model_fields)
            problems.append(Problem(message, key=f"{ROBUSTNESS_KEY}.{path}" if path else ROBUSTNESS_KEY))
        raise ConfigError(problems) from invalid
    levels = range(1, fields.levels + 1) if isinstance(fields.levels, int) else sorted(set(fields.levels))
    if fields.axes == _ALL_AXES:
        return Robustness(levels=tuple(levels))
    axes = [fields.axes] if isinstance(fields.axes, str) else fields.axes
    if not axes:
        raise ConfigError("lists no axis", key=f"{ROBUSTNESS_KEY}.axes")
    return Robustness(axes=tuple(dict.fromkeys(axes)), levels=tuple(levels))
