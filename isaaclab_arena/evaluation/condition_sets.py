"""Saved conditions: the starts of a job's episodes in a file, for any policy to meet the same ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.options import problems_of, read_options
from isaaclab_arena.config.schema import COMMON_ENVIRONMENT_KEYS, JobConfig
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, placed, refuse
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder
from isaaclab_arena.interfaces.episode import MAX_SEED
from isaaclab_arena.storage.atomic import json_text, write_text
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.ledger import read_run_plan

SCHEMA_VERSION = 1

_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_Value = float | int | str | list[float]


@dataclass(frozen=True, kw_only=True)
class ConditionSet:
    """The conditions from which the episodes of one job started."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    job: str  # name of the job, for people and for ``FILE#job``
    environment: str  # registered name
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)]
    episodes: Annotated[list[dict[str, _Value]], Field(min_length=1)]  # conditions of each episode, by index
    environment_args: dict[str, Any] = field(default_factory=dict)
    variations: dict[str, Any] = field(default_factory=dict)  # enabled ones, in the job file's syntax


@dataclass(frozen=True, kw_only=True)
class ConditionFile:
    """The content of a file of saved conditions, one set per job."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    sets: Annotated[list[ConditionSet], Field(min_length=1)]
    schema_version: int = SCHEMA_VERSION


def save_conditions(path: Path, output_directory: Path, *, goes_on: bool = False) -> list[str]:
    """Write the conditions of a run's complete jobs, bit-exact. Return one line per job with missing episodes."""
    # An earlier start of the run may have written the file; without `goes_on` an existing file is an error.
    if goes_on:
        check_saved_earlier(path, output_directory)
    sets, left_out = _complete_sets(output_directory)
    if not sets:
        raise ConfigError("there is no complete job whose conditions could be saved", file=str(path))
    write_text(path, json_text(ConditionFile(sets=sets)), overwrite=goes_on)
    return [f"the conditions of job '{name}' are not saved: episodes of it are missing" for name in left_out]


def check_saved_earlier(path: Path, output_directory: Path) -> None:
    """Raise `ConfigError` if the file exists and holds a set that none of the run's complete jobs has."""
    if not path.exists():
        return
    sets, _ = _complete_sets(output_directory)
    other = next((each.job for each in load_conditions(str(path), Path.cwd()) if each not in sets), None)
    if other is not None:
        message = f"{path} exists already, and its conditions of job '{other}' are not in this run; name another file"
        raise ConfigError(message, key="--save_conditions")


def _complete_sets(output_directory: Path) -> tuple[list[ConditionSet], list[str]]:
    """Return the conditions of a run's complete jobs, and the names of jobs with missing episodes."""
    sets, incomplete = [], []
    for job in read_run_plan(output_directory).jobs:
        directory = output_directory / job.name
        lines = read_commits(directory, job.name, seed=job.config.seed).lines
        if not job.is_to_run:
            continue
        if not lines or len(lines) != (job.config.num_episodes or len(lines)):
            incomplete.append(job.name)
            continue
        first = lines[0]
        sets.append(
            ConditionSet(
                job=job.name,
                environment=job.config.environment,
                environment_args=dict(job.config.environment_args),
                seed=first.seed if first.conditions_seed is None else first.conditions_seed,
                variations=dict(job.variations),
                episodes=[dict(line.conditions) for line in lines],
            )
        )
    return sets, incomplete


def load_conditions(reference: str, directory: Path) -> list[ConditionSet]:
    """Return the sets of a file, or the one set of ``FILE#job``. `ConfigError` with every problem of the file."""
    name, _, job = reference.partition("#")
    path = directory / name
    # Check the version first, so that a newer layout is not reported as many wrong keys.
    document = read_document(path)
    found = document.get("schema_version") if isinstance(document, dict) else None
    if found != SCHEMA_VERSION:
        message = f"holds no saved conditions of schema version {SCHEMA_VERSION}, which this program reads"
        raise ConfigError(message, file=str(path))
    try:
        sets = TypeAdapter(ConditionFile).validate_json(json.dumps(document)).sets
    except ValidationError as invalid:
        raise ConfigError(placed(problems_of(invalid), file=str(path))) from invalid
    if not job:
        return sets
    named = [each for each in sets if each.job == job]
    if not named:
        raise ConfigError(f"holds no set '{job}'{did_you_mean(job, (each.job for each in sets))}", file=str(path))
    return named


def save_unplayed(reference: str, played: int, path: Path) -> bool:
    """Write the `played` conditions behind the first `played` ones of each set; False if no set has as many."""
    sets = [
        replace(each, episodes=each.episodes[played : 2 * played])
        for each in load_conditions(reference, Path())
        if len(each.episodes) >= 2 * played
    ]
    if sets:
        write_text(path, json_text(ConditionFile(sets=sets)), overwrite=True)
    return bool(sets)


def saved_set(job: JobConfig, builder: EnvironmentBuilder, wanted: Any, directory: Path) -> ConditionSet:
    """Return the saved conditions of a job whose environment has the options `wanted`."""
    environment, reference = job.environment, job.conditions or ""
    try:
        # A relative path of saved conditions starts from `directory`.
        fitting, differences = [], []
        for saved in load_conditions(reference, directory):
            if (how := _difference(saved, environment, builder, wanted)) is None:
                fitting.append(saved)
            else:
                differences.append(how)
        refuse([] if fitting else [Problem(f"was saved for another environment: {differences[0]}")])
        if len(fitting) > 1:
            seed = job.seed if job.placement_seed is None else job.placement_seed
            fitting = [each for each in fitting if each.seed == seed] or fitting
        if len(fitting) > 1:
            names = ", ".join(each.job for each in fitting)
            refuse([Problem(f"holds {len(fitting)} sets that fit ({names}); name one, as in FILE#{fitting[0].job}")])
        chosen = fitting[0]
    except ConfigError as error:
        # The job's key leads to the file, so the message names the place in it.
        places = [(each.file or reference, each.key, each.message) for each in error.problems]
        messages = [": ".join(part for part in place if part) for place in places]
        raise ConfigError([Problem(message, key="conditions") for message in messages]) from error

    # Refuse keys of the job that contradict the set.
    problems = []
    if job.variations:
        problems.append(Problem("are part of the saved conditions; leave them out", key="variations"))
    if job.placement_seed is not None and job.placement_seed != chosen.seed:
        message = f"is {job.placement_seed}, but the saved conditions have {chosen.seed}; leave it out"
        problems.append(Problem(message, key="arena_env_args.placement_seed"))
    for key, number in (("num_episodes", job.num_episodes), ("num_rebuilds", job.num_rebuilds)):
        if number is not None and number > len(chosen.episodes):
            problems.append(Problem(f"is {number}, but conditions are saved for {len(chosen.episodes)}", key=key))
    refuse(problems)
    return chosen


def _difference(saved: ConditionSet, environment: str, builder: EnvironmentBuilder, wanted: Any) -> str | None:
    """Return the first difference between a set's environment and a job's that affects conditions, None without one."""
    if saved.environment != environment:
        return f"environment was '{saved.environment}', the job has '{environment}'"
    try:
        changed = changed_options(builder, saved.environment_args, wanted, owner=f"environment '{environment}'")
    except ConfigError as error:
        return error.problems[0].message
    of_conditions = (name for name in changed if not name.startswith(("camera_", "enable_cameras", "action_mode")))
    return next((f"{name} was {changed[name][0]!r}, the job has {changed[name][1]!r}" for name in of_conditions), None)


def changed_options(
    builder: EnvironmentBuilder, before: Mapping[str, Any], now: Any, *, owner: str
) -> dict[str, tuple[Any, Any]]:
    """Map each option with another value before to both values; `ConfigError` if the environment has none of it now."""
    read = read_options(builder.config_class, before, owner=owner, other_names=COMMON_ENVIRONMENT_KEYS)
    pairs = {each.name: (getattr(read, each.name), getattr(now, each.name)) for each in fields(now) if each.init}
    return {name: (was, is_now) for name, (was, is_now) in pairs.items() if was != is_now}
