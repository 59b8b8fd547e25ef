"""Give a job's episodes their conditions: drawn, with the job's variations, or read from a file."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isaaclab_arena.config.job_fields import COMMON_ENVIRONMENT_KEYS
from isaaclab_arena.config.options import read_options
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.evaluation.plan.condition_sets import ConditionSet, difference, fitting_set, load_conditions
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.variation import VariableEnvironmentBuilder, Variation


@dataclass(frozen=True, kw_only=True)
class JobConditions:
    """What the episodes of a job start from.

    Attributes:
        config: The job, with what its saved conditions settle: number of episodes, seed of the conditions.
        variations: What varies.
        saved: Conditions of each episode, by index, None where they are drawn.
    """

    config: JobConfig
    variations: tuple[Variation, ...] = ()
    saved: tuple[Conditions, ...] | None = None


def job_conditions(
    job: JobConfig,
    *,
    builder: EnvironmentBuilder,
    environment_config: Any,
    catalogue: Callable[[], tuple[Variation, ...]],
    directory: Path,
) -> JobConditions:
    """Return what the episodes of a job start from.

    Args:
        job: The job.
        builder: Builds its environment.
        environment_config: Options of the environment.
        catalogue: Returns everything that may vary in it.
        directory: What a relative path of saved conditions starts from.

    Raises:
        ConfigError: With every problem, its key within the job.
    """
    if job.conditions is None:
        variations = enabled_variations(catalogue(), job.variations) if job.variations else ()
        return JobConditions(config=job, variations=variations)
    chosen = _saved_set(job, builder, environment_config, directory)
    _check_agreement(job, chosen)
    offered = catalogue() if chosen.variations or isinstance(builder, VariableEnvironmentBuilder) else ()
    variations = _saved_variations(chosen, offered)
    if offered:
        _check_keys(chosen, offered, variations, job.conditions or "")
    has_length = job.num_episodes is not None or job.num_steps is not None
    num_saved = len(chosen.episodes[: job.max_episodes])
    config = dataclasses.replace(
        job,
        num_episodes=job.num_episodes if has_length else num_saved,
        placement_seed=None if chosen.seed == job.seed else chosen.seed,
    )
    return JobConditions(config=config, variations=variations, saved=chosen.conditions())


def _saved_variations(chosen: ConditionSet, offered: Sequence[Variation]) -> tuple[Variation, ...]:
    """Return what varies in saved conditions; refuse what the environment does not have."""
    try:
        return enabled_variations(offered, chosen.variations) if chosen.variations else ()
    except ConfigError as error:
        message = f"set '{chosen.job}' needs what this environment does not have: {error.problems[0].message}"
        raise ConfigError(Problem(message, key="conditions")) from error


def _saved_set(job: JobConfig, builder: EnvironmentBuilder, environment_config: Any, directory: Path) -> ConditionSet:
    try:
        sets = load_conditions(job.conditions or "", directory)
        seed = job.seed if job.placement_seed is None else job.placement_seed
        differences = [_difference(each, job, builder, environment_config) for each in sets]
        return fitting_set(sets, seed=seed, differences=differences)
    except ConfigError as error:
        problems = [Problem(_placed(problem, job.conditions), key="conditions") for problem in error.problems]
        raise ConfigError(problems) from error


def _placed(problem: Problem, reference: str | None) -> str:
    return ": ".join(part for part in (problem.file or reference, problem.key, problem.message) if part)


def _difference(saved: ConditionSet, job: JobConfig, builder: EnvironmentBuilder, wanted: Any) -> str | None:
    if saved.environment != job.environment:
        return f"environment was '{saved.environment}', the job has '{job.environment}'"
    try:
        config = read_options(
            builder.config_class,
            saved.environment_args,
            owner=f"environment '{job.environment}'",
            other_names=COMMON_ENVIRONMENT_KEYS,
        )
    except ConfigError as error:
        return error.problems[0].message
    return difference(config, wanted)


def _check_keys(
    chosen: ConditionSet, offered: Sequence[Variation], enabled: Sequence[Variation], reference: str
) -> None:
    """Refuse conditions that the environment needs and does not find, or that it would not heed."""
    limits = {variation.key: variation for variation in (*offered, *enabled)}
    needed = {variation.key for variation in offered if variation.is_drawn_anyway}
    known = needed.union(*({variation.key, *variation.companions} for variation in enabled))
    for index, episode in enumerate(chosen.conditions()):
        wrong = [f"'{key}' is no condition of it{did_you_mean(key, known)}" for key in episode if key not in known]
        wrong += [f"'{key}' is missing" for key in sorted(needed - episode.keys())]
        wrong += _values_that_cannot_be(episode, limits)
        if wrong:
            message = f"{reference}: set '{chosen.job}': episode {index}: {wrong[0]}"
            raise ConfigError(Problem(message, key="conditions"))


def _values_that_cannot_be(episode: Conditions, limits: Mapping[str, Variation]) -> list[str]:
    problems = {key: limits[key].problem_with(value) for key, value in episode.items() if key in limits}
    return [f"'{key}' {problem}" for key, problem in problems.items() if problem is not None]


def _check_agreement(job: JobConfig, chosen: ConditionSet) -> None:
    problems = []
    if job.variations:
        problems.append(Problem("are part of the saved conditions; leave them out", key="variations"))
    if job.placement_seed is not None and job.placement_seed != chosen.seed:
        message = f"is {job.placement_seed}, but the saved conditions have {chosen.seed}; leave it out"
        problems.append(Problem(message, key="arena_env_args.placement_seed"))
    saved = len(chosen.episodes)
    if job.num_episodes is not None and job.num_episodes > saved:
        problems.append(Problem(f"is {job.num_episodes}, but conditions are saved for {saved}", key="num_episodes"))
    if job.num_rebuilds > saved:
        problems.append(Problem(f"is {job.num_rebuilds}, but conditions are saved for {saved}", key="num_rebuilds"))
    if problems:
        raise ConfigError(problems)
