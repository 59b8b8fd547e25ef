"""From a job to its arms: the benign one, and one per level of each axis, all over the same episodes."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from isaaclab_arena.config.expansion.sweeps import AXIS_LABEL, LEVEL_LABEL, ROBUSTNESS_KEY, Robustness
from isaaclab_arena.config.schema import JobConfig, name_problem
from isaaclab_arena.environments.variations.overrides import ALL_AXES, AXES, BENIGN, LANGUAGE, Axis, enabled_variations
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment_builder import VariableEnvironmentBuilder, Variation

_LOG = logging.getLogger(__name__)


def robustness_arms(job: JobConfig, asked: Robustness, *, may_import: bool = True) -> tuple[JobConfig, ...]:
    """Return the arms of a job: itself unchanged, one for each axis and level, and all axes together."""
    # Names: `<job>-benign` with level 0, then `<job>-<axis>-<level>`. All have the labels `robustness` (the job's
    # name), `axis` and `level`. `ConfigError` if an axis or a level is not possible in this job.
    if job.conditions is not None:
        message = "changes the episodes, and 'conditions' says what they start from; leave out one of them"
        raise ConfigError(Problem(message, key=ROBUSTNESS_KEY))
    taken = [name for name in (ROBUSTNESS_KEY, AXIS_LABEL, LEVEL_LABEL) if name in job.labels]
    if taken:
        raise ConfigError(Problem("is what robustness labels its own jobs with", key=f"labels.{taken[0]}"))
    catalogue, varied = _catalogue(job, may_import=may_import)
    settings = {axis: _settings(AXES[axis], catalogue, asked.levels) for axis in _axes(job, asked, catalogue, varied)}
    if len(settings) > 1:
        settings[ALL_AXES] = {
            level: {key: value for own in settings.values() for key, value in own[level].items()}
            for level in asked.levels
        }
    arms = [_arm(job, f"{job.name}-{BENIGN}", BENIGN, 0, {})]
    arms += [
        _arm(job, f"{job.name}-{axis}-{level}", axis, level, own)
        for axis, levels in settings.items()
        for level, own in levels.items()
    ]
    wrong = next((problem for arm in arms if (problem := name_problem(arm.name))), None)
    if wrong is not None:
        raise ConfigError(Problem(f"with an axis and a level behind it, {wrong}", key="name"))
    return tuple(arms)


def _catalogue(job: JobConfig, *, may_import: bool) -> tuple[tuple[Variation, ...], frozenset[str]]:
    """Return the variations of a job's environment, and the keys that the job varies itself."""
    [resolved] = resolve_jobs([job], may_import=may_import)
    if not isinstance(resolved.builder, VariableEnvironmentBuilder):
        message = f"environment '{job.environment}' has no variations, so nothing of it can be changed"
        raise ConfigError(Problem(message, key=ROBUSTNESS_KEY))
    found = resolved.builder.variations(resolved.environment_config)
    return found, frozenset(variation.key for variation in resolved.variations)


def _axes(job: JobConfig, asked: Robustness, catalogue: Sequence[Variation], varied: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the axes, in the order of `AXES`; `ConfigError` if a named one is not possible."""
    reasons = {name: _why_not(axis, job, catalogue, varied) for name, axis in AXES.items()}
    available = tuple(name for name, reason in reasons.items() if reason is None)
    if asked.axes is None:
        left_out = "; ".join(f"{name} ({reason})" for name, reason in reasons.items() if reason is not None)
        if left_out:
            _LOG.info("job '%s' goes without these axes of robustness: %s", job.name, left_out)
        return available
    problems = []
    for name in asked.axes:
        reason = reasons[name] if name in AXES else f"there is no such axis{did_you_mean(name, AXES)}"
        if reason is not None:
            message = f"'{name}': {reason}; this job has {', '.join(available)}"
            problems.append(Problem(message, key=f"{ROBUSTNESS_KEY}.axes"))
    if problems:
        raise ConfigError(problems)
    return tuple(name for name in available if name in asked.axes)


def _why_not(axis: Axis, job: JobConfig, catalogue: Sequence[Variation], varied: frozenset[str]) -> str | None:
    """Return the reason why a job cannot have an axis, None if it can."""
    own = [variation.key for variation in axis.variations(catalogue)]
    if not own and axis.name == LANGUAGE:
        return f"'{job.environment}' has no paraphrases; TaskSpec.paraphrases of a task lists them"
    if axis.name == LANGUAGE and job.language_instruction is not None:
        return "the job tells the policy words of its own (language_instruction)"
    if not own:
        return f"'{job.environment}' has nothing of the kind"
    if axis.pictures_only and not job.enable_cameras:
        return "it changes pictures only, and the job has no cameras (enable_cameras)"
    also = [key for key in own if key in varied]
    return f"the job varies {also[0]} itself" if also else None


def _settings(axis: Axis, catalogue: Sequence[Variation], levels: Sequence[int]) -> dict[int, dict[str, Any]]:
    settings = {level: axis.settings(catalogue, level) for level in levels}
    for level, own in settings.items():
        try:
            enabled_variations(catalogue, own)
        except ConfigError as error:
            message = f"{axis.name} has no level {level}: {error.problems[0].key} {error.problems[0].message}"
            raise ConfigError(Problem(message, key=f"{ROBUSTNESS_KEY}.levels")) from error
    return settings


def _arm(job: JobConfig, name: str, axis: str, level: int, settings: Mapping[str, Any]) -> JobConfig:
    labels = {**job.labels, ROBUSTNESS_KEY: job.name, AXIS_LABEL: axis, LEVEL_LABEL: str(level)}
    return replace(job, name=name, labels=labels, variations={**job.variations, **settings})
