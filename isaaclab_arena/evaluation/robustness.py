"""From a job to its arms: the benign one, and one per level of each axis, all over the same episodes."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from isaaclab_arena.config.expansion.suites import AXIS_LABEL, LEVEL_LABEL, ROBUSTNESS_KEY, Robustness
from isaaclab_arena.config.schema import JobConfig, name_problem
from isaaclab_arena.environments.variations.overrides import ALL_AXES, AXES, BENIGN, LANGUAGE, enabled_variations
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment_builder import Variation

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
    [resolved] = resolve_jobs([job], may_import=may_import)
    catalogue = resolved.builder.variations(resolved.environment_config)
    if not catalogue:
        message = f"environment '{job.environment}' has no variations, so nothing of it can be changed"
        raise ConfigError(Problem(message, key=ROBUSTNESS_KEY))
    varied = frozenset(variation.key for variation in resolved.variations)

    # The variations of each axis and level, by axis.
    settings: dict[str, dict[int, dict[str, Any]]] = {}
    for name in _axes(job, asked, catalogue, varied):
        settings[name] = {level: AXES[name].settings(catalogue, level) for level in asked.levels}
        for level, own in settings[name].items():
            try:
                enabled_variations(catalogue, own)
            except ConfigError as error:
                message = f"{name} has no level {level}: {error.problems[0].key} {error.problems[0].message}"
                raise ConfigError(Problem(message, key=f"{ROBUSTNESS_KEY}.levels")) from error
    if len(settings) > 1:
        settings[ALL_AXES] = {
            level: {key: value for own in settings.values() for key, value in own[level].items()}
            for level in asked.levels
        }

    arms = []
    for axis, levels in {BENIGN: {0: {}}, **settings}.items():
        for level, own in levels.items():
            name = f"{job.name}-{axis}" if axis == BENIGN else f"{job.name}-{axis}-{level}"
            labels = {**job.labels, ROBUSTNESS_KEY: job.name, AXIS_LABEL: axis, LEVEL_LABEL: str(level)}
            arms.append(replace(job, name=name, labels=labels, variations={**job.variations, **own}))
    wrong = next((problem for arm in arms if (problem := name_problem(arm.name))), None)
    if wrong is not None:
        raise ConfigError(Problem(f"with an axis and a level behind it, {wrong}", key="name"))
    return tuple(arms)


def _axes(job: JobConfig, asked: Robustness, catalogue: Sequence[Variation], varied: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the axes, in the order of `AXES`; `ConfigError` if a named one is not possible."""
    # The reason why the job cannot have an axis, None if it can.
    reasons: dict[str, str | None] = {}
    for name, axis in AXES.items():
        own = [variation.key for variation in axis.variations(catalogue)]
        also = [key for key in own if key in varied]
        reasons[name] = None
        if not own and name == LANGUAGE:
            reasons[name] = f"'{job.environment}' has no paraphrases; TaskSpec.paraphrases of a task lists them"
        elif name == LANGUAGE and job.language_instruction is not None:
            reasons[name] = "the job tells the policy words of its own (language_instruction)"
        elif not own:
            reasons[name] = f"'{job.environment}' has nothing of the kind"
        elif axis.pictures_only and not job.enable_cameras:
            reasons[name] = "it changes pictures only, and the job has no cameras (enable_cameras)"
        elif also:
            reasons[name] = f"the job varies {also[0]} itself"
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
