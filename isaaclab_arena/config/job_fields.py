"""The keys of a job and the values they take: from a plain dict, or from old tokens, to a `JobConfig`."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from isaaclab_arena.config.arena import ARENA_JOB_KEYS
from isaaclab_arena.config.options import StrictModel, error_message, key_path
from isaaclab_arena.config.schema import (
    UNREADABLE,
    EnvSlots,
    JobConfig,
    JobCount,
    JobDefaults,
    JobStatus,
    PolicyServerConfig,
    Seed,
    ServerScope,
    name_problem,
    read_latency,
)
from isaaclab_arena.errors import Problem, did_you_mean, problems_into, refuse

# Command-line tokens of the old job files, ``["--num_envs", "4", "lift_object", "--object", "cube"]``.

FLAGS = frozenset({"enable_cameras", "headless", "distributed"})
"""Options that take no value, so that a word after them is positional."""

SCALARS = frozenset({"num_envs", "env_spacing", "placement_seed", "seed", "device"})
"""Options that take exactly one value, so that a second word after them is positional."""

_INTEGER = re.compile(r"[-+]?[0-9]+")
_DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def parse_tokens(tokens: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Split tokens into positional words and options by name; ConfigError lists every malformed option."""
    # An option is ``--name``, ``--name value``, ``--name=value`` or ``--name value value``; hyphens inside a name read
    # as underscores. Without a value it is True, with several values a list. An option takes all words up to the next
    # option, unless it is one of `FLAGS` or `SCALARS`. So positional words come first or after one of those.
    positionals: list[str] = []
    options: dict[str, Any] = {}
    problems, position = [], 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if not _is_option(token):
            positionals.append(token)
            continue
        name, equals, value = token.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        words = [value] if equals else []
        limit = 0 if equals or name in FLAGS else 1 if name in SCALARS else len(tokens)
        while len(words) < limit and position < len(tokens) and not _is_option(tokens[position]):
            words.append(tokens[position])
            position += 1
        if not token.startswith("--"):
            problems.append(Problem(f"'{token}' has one hyphen; options begin with two, --{token[1:]}"))
        elif not re.fullmatch(r"[A-Za-z]\w*", name):
            problems.append(Problem(f"'{token}' names no option"))
        elif name in SCALARS and not words:
            problems.append(Problem(f"--{name} needs a value", key=name))
        elif name in options:
            problems.append(Problem(f"--{name} is given twice", key=name))
        typed = [_typed(word) for word in words]
        options.setdefault(name, True if not typed else typed[0] if len(typed) == 1 else typed)
    refuse(problems)
    return positionals, options


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and _DECIMAL.fullmatch(word) is None


def _typed(word: str) -> Any:
    if word.lower() in {"true", "false"}:
        return word.lower() == "true"
    if _INTEGER.fullmatch(word) and len(word) < 300:
        return int(word)
    if _DECIMAL.fullmatch(word) and math.isfinite(float(word)):
        return float(word)
    return word


# The keys of a job and their values: from a plain dict to a `JobConfig`, or to its problems.

MAX_SECONDS = 100_000_000
MAX_WAIT_MS = 60_000

_Text = Annotated[str, Field(min_length=1)]
_Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS, allow_inf_nan=False)]


class _EnvironmentArgs(StrictModel):
    """The keys of ``arena_env_args`` that every environment has; the others are the environment's own."""

    model_config = ConfigDict(extra="allow")

    environment: _Text
    num_envs: EnvSlots | None = None
    enable_cameras: bool | None = None
    placement_seed: Seed | None = None
    env_spacing: float | None = None


class _PolicyServer(StrictModel):
    """The keys of ``policy_server``."""

    shared: Literal["node", "run"]
    max_batch: EnvSlots = 64
    max_wait_ms: Annotated[float, Field(ge=0, le=MAX_WAIT_MS, allow_inf_nan=False)] = 5.0
    device: _Text | None = None


class _JobFields(StrictModel):
    """The keys of a job, after defaults, interpolation and sweep."""

    name: str
    arena_env_args: _EnvironmentArgs
    policy_type: _Text
    policy_config_dict: dict[str, Any] | None = None
    python: _Text | None = None
    policy_server: _PolicyServer | None = None
    latency: Any = None
    num_steps: JobCount | None = None
    num_episodes: JobCount | None = None
    num_rebuilds: JobCount | None = None
    language_instruction: _Text | None = None
    variations: dict[str, Any] | None = None
    conditions: _Text | None = None
    labels: dict[str, _Text | None] | None = None
    seed: Seed | None = None
    timeout_s: _Seconds | None = None
    episode_timeout_s: _Seconds | None = None
    status: str | None = None


JOB_KEYS = frozenset(
    {*_JobFields.model_fields, *ARENA_JOB_KEYS, "policy_args", "sweep", "suite", "checkpoints", "robustness"}
)
"""Every key that a job of the file may have."""

COMMON_ENVIRONMENT_KEYS = frozenset(_EnvironmentArgs.model_fields)
"""The keys of ``arena_env_args`` that every environment has."""


def read_job(
    fields: Mapping[str, Any], *, index: int, label: str, defaults: JobDefaults
) -> tuple[JobConfig | None, list[Problem]]:
    """Check one job; return the valid part of it (None if nothing is readable), and its problems."""
    # ``fields`` are the job's keys after defaults, interpolation and sweep.
    try:
        checked = _JobFields.model_validate(fields)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False)
        problems = []
        for error in errors:
            keys = _PolicyServer.model_fields if error["loc"][:1] == ("policy_server",) else JOB_KEYS
            problems.append(Problem(error_message(error, keys), job=label, key=key_path(error)))
        checked = _without(fields, [error["loc"] for error in errors])
        if checked is None:
            return None, problems
    else:
        problems = []

    # Values that are valid one by one may exclude each other.
    if (unsafe := name_problem(checked.name)) is not None:
        problems.append(Problem(unsafe, job=label, key="name"))
    if checked.num_steps is not None and checked.num_episodes is not None:
        problems.append(Problem("excludes num_episodes; give one of them", job=label, key="num_steps"))
    other = (checked.policy_config_dict or {}).get("python")
    if checked.python is not None and other not in (None, checked.python):
        message = f"is '{checked.python}', and policy_config_dict.python is '{other}'; give one of them"
        problems.append(Problem(message, job=label, key="python"))
    known = [status.value for status in JobStatus]
    if checked.status is not None and checked.status not in known:
        message = f"no status '{checked.status}'{did_you_mean(checked.status, known)}"
        problems.append(Problem(message, job=label, key="status"))
    latency = None
    with problems_into(problems, below="latency", job=label):
        latency = read_latency(checked.latency)

    arguments, asked, policy_options = checked.arena_env_args, checked.policy_server, checked.policy_config_dict or {}
    server = None
    if asked is not None:
        server = PolicyServerConfig(**{**asked.model_dump(), "shared": ServerScope(asked.shared)})
    # A length of the command line is for jobs without any length of their own.
    has_length = checked.num_steps is not None or checked.num_episodes is not None
    same = ("name", "policy_type", "language_instruction", "conditions", "timeout_s", "episode_timeout_s")
    job = JobConfig(
        **{name: getattr(checked, name) for name in same},
        index=index,
        environment=arguments.environment,
        environment_args={key: value for key, value in (arguments.model_extra or {}).items() if value is not None},
        num_envs=arguments.num_envs or defaults.num_envs or 1,
        enable_cameras=defaults.enable_cameras if arguments.enable_cameras is None else arguments.enable_cameras,
        placement_seed=arguments.placement_seed if arguments.placement_seed is not None else defaults.placement_seed,
        policy_config_dict=policy_options if checked.python is None else {**policy_options, "python": checked.python},
        policy_server=server,
        latency=latency,
        num_steps=checked.num_steps if has_length else defaults.num_steps,
        num_episodes=checked.num_episodes if has_length else defaults.num_episodes,
        num_rebuilds=checked.num_rebuilds or 1,
        variations=checked.variations or {},
        labels={key: text for key, text in (checked.labels or {}).items() if text is not None},
        seed=(defaults.seed or 0) if checked.seed is None else checked.seed,
        status=JobStatus(checked.status) if checked.status in known else JobStatus.PENDING,
    )
    if job.num_episodes is not None and job.num_episodes < job.num_rebuilds:
        message = f"{job.num_rebuilds} rebuilds cannot share {job.num_episodes} episodes; each needs at least one"
        problems.append(Problem(message, job=label, key="num_rebuilds"))

    # Later messages must use the same label, even if the name is wrong.
    return replace(job, name=label) if problems else job, problems


def _without(fields: Mapping[str, Any], wrong: Collection[tuple[int | str, ...]]) -> _JobFields | None:
    """Return the valid fields of a job, None if the rest is not readable."""
    sound = {key: value for key, value in fields.items() if (key,) not in wrong}
    for place in wrong:
        block = sound.get(str(place[0]))
        if len(place) > 1 and isinstance(block, Mapping):
            sound[str(place[0])] = {key: value for key, value in block.items() if key != place[1]}
    unread = {"name": UNREADABLE, "policy_type": UNREADABLE}
    arguments = {"environment": UNREADABLE, **sound.get("arena_env_args", {})}
    try:
        return _JobFields.model_validate({**unread, **sound, "arena_env_args": arguments})
    except ValidationError:
        return None
