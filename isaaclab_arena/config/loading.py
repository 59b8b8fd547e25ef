"""Read a job file: what it holds, with its interpolations resolved, as frozen jobs."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.arena.experiments import as_jobs
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.interpolation import OmegaConfInterpolation
from isaaclab_arena.config.job_fields import JOB_KEYS, check_defaults
from isaaclab_arena.config.job_list import Reading, checked_top_level
from isaaclab_arena.config.schema import WITHOUT_RESULT, JobConfig, JobDefaults, JobsFile
from isaaclab_arena.errors import ConfigError


def load_jobs_file(path: str | Path, defaults: JobDefaults | None = None, *, overrides: Sequence[str] = ()) -> JobsFile:
    """Read a job file or an experiment of Isaac Lab Arena, JSON or YAML.

    Args:
        path: The file; docs/jobs.md describes what it holds.
        defaults: What the command line gives to jobs that do not say it themselves.
        overrides: Keys of an experiment that the command line sets, such as ``runs.lift.num_rebuilds=2``.

    Raises:
        ConfigError: With every problem of the file, each with its job and key.
    """
    return read_jobs(read_document(path), source=str(path), defaults=defaults, overrides=overrides)


def read_jobs(
    document: Any, *, source: str, defaults: JobDefaults | None = None, overrides: Sequence[str] = ()
) -> JobsFile:
    """Read what a job file holds, or what a command line amounts to; see `load_jobs_file`.

    Args:
        document: Mapping with the key ``jobs`` or, for an experiment, ``runs``.
        source: Where it comes from, for messages.
        defaults: What the command line gives to jobs that do not say it themselves.
        overrides: Keys of an experiment that the command line sets.
    """
    defaults = defaults or JobDefaults()
    problems = check_defaults(defaults)
    if problems:
        raise ConfigError(problems)
    try:
        experiment = as_jobs(document, JOB_KEYS, overrides)
    except ConfigError as error:
        raise ConfigError([replace(problem, file=source) for problem in error.problems]) from error
    try:
        top = checked_top_level(experiment.document)
        interpolation = OmegaConfInterpolation(
            variables=top.variables, defaults=top.defaults, jobs=top.jobs, shared=experiment.shared
        )
        jobs = Reading(top, defaults, interpolation).jobs()
    except ConfigError as error:
        problems = (experiment.in_words_of_the_file(problem) for problem in error.problems)
        raise ConfigError([replace(problem, file=source) for problem in problems]) from error
    return JobsFile(path=source, jobs=jobs, config_hash=hash_jobs(jobs))


def hash_jobs(jobs: tuple[JobConfig, ...]) -> str:
    """Return 16 hexadecimal digits that are the same for the same jobs in the same order.

    How long jobs and episodes may take is left out: it decides whether there is a result, never what it is. So is what
    jobs are labelled with.
    """
    names = [field.name for field in fields(JobConfig) if field.name not in WITHOUT_RESULT]
    plain = [{name: getattr(job, name) for name in names} for job in jobs]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]
