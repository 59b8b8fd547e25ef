"""Read a job file: what it holds, with its interpolations resolved, as frozen jobs."""

import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.interpolation import OmegaConfInterpolation
from isaaclab_arena.config.job_fields import check_defaults
from isaaclab_arena.config.job_list import Reading, checked_top_level
from isaaclab_arena.config.schema import TIME_LIMITS, JobConfig, JobDefaults, JobsFile
from isaaclab_arena.errors import ConfigError


def load_jobs_file(path: str | Path, defaults: JobDefaults | None = None) -> JobsFile:
    """Read a job file, JSON or YAML.

    Args:
        path: The file; docs/jobs.md describes what it holds.
        defaults: What the command line gives to jobs that do not say it themselves.

    Raises:
        ConfigError: With every problem of the file, each with its job and key.
    """
    return read_jobs(read_document(path), source=str(path), defaults=defaults)


def read_jobs(document: Any, *, source: str, defaults: JobDefaults | None = None) -> JobsFile:
    """Read what a job file holds, or what a command line amounts to; see `load_jobs_file`.

    Args:
        document: Mapping with the key ``jobs``.
        source: Where it comes from, for messages.
        defaults: What the command line gives to jobs that do not say it themselves.
    """
    defaults = defaults or JobDefaults()
    problems = check_defaults(defaults)
    if problems:
        raise ConfigError(problems)
    try:
        top = checked_top_level(document)
        interpolation = OmegaConfInterpolation(variables=top.variables, defaults=top.defaults, jobs=top.jobs)
        jobs = Reading(top, defaults, interpolation).jobs()
    except ConfigError as error:
        raise ConfigError([replace(problem, file=source) for problem in error.problems]) from error
    return JobsFile(path=source, jobs=jobs, config_hash=hash_jobs(jobs))


def hash_jobs(jobs: tuple[JobConfig, ...]) -> str:
    """Return 16 hexadecimal digits that are the same for the same jobs in the same order.

    How long jobs and episodes may take is left out: it decides whether there is a result, never what it is.
    """
    names = [field.name for field in fields(JobConfig) if field.name not in TIME_LIMITS]
    plain = [{name: getattr(job, name) for name in names} for job in jobs]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]
