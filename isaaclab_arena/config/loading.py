"""Read a job file: what it holds, with its interpolations resolved, as frozen jobs."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.arena.experiments import ExperimentAsJobs, as_jobs
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.expansion.robustness import ArmsOf, no_arms
from isaaclab_arena.config.interpolation import OmegaConfInterpolation
from isaaclab_arena.config.job_fields import JOB_KEYS, check_defaults
from isaaclab_arena.config.job_list import Reading, checked_top_level
from isaaclab_arena.config.schema import WITHOUT_RESULT, JobConfig, JobDefaults, JobsFile
from isaaclab_arena.config.stopping.questions import Question
from isaaclab_arena.config.stopping.reading import about_jobs, read_questions
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.paths import expanded
from isaaclab_arena.registry import Registry

NO_SUITES = Registry("suite", {}, entry_point_group="isaaclab_arena.suites")
"""Where only suites of installed packages are known."""


def load_jobs_file(
    path: str | Path,
    defaults: JobDefaults | None = None,
    *,
    overrides: Sequence[str] = (),
    suites: Registry = NO_SUITES,
    arms: ArmsOf = no_arms,
    partly: bool = False,
) -> JobsFile:
    """Read a job file or an experiment of Isaac Lab Arena, JSON or YAML.

    Args:
        path: The file; docs/reference/jobs.md describes what it holds.
        defaults: What the command line gives to jobs that do not say it themselves.
        overrides: Keys of an experiment that the command line sets, such as ``runs.lift.num_rebuilds=2``.
        suites: Where the names of suites are looked up.
        arms: What makes the jobs of one that asks for its robustness.
        partly: Whether a file with problems is returned with them and with what else can be read of its jobs, so that
            that is checked too; see `resolve_jobs`.

    Raises:
        ConfigError: With every problem of the file, each with its job and key.
    """
    document = read_document(path)
    return read_jobs(
        document, source=str(path), defaults=defaults, overrides=overrides, suites=suites, arms=arms, partly=partly
    )


def read_jobs(
    document: Any,
    *,
    source: str,
    defaults: JobDefaults | None = None,
    overrides: Sequence[str] = (),
    suites: Registry = NO_SUITES,
    arms: ArmsOf = no_arms,
    partly: bool = False,
) -> JobsFile:
    """Read what a job file holds, or what a command line amounts to; see `load_jobs_file`.

    Args:
        document: Mapping with the key ``jobs`` or, for an experiment, ``runs``.
        source: Where it comes from, for messages.
        defaults: What the command line gives to jobs that do not say it themselves.
        overrides: Keys of an experiment that the command line sets.
        suites: Where the names of suites are looked up.
        arms: What makes the jobs of one that asks for its robustness.
        partly: Whether a file with problems is returned with them.
    """
    defaults = defaults or JobDefaults()
    problems = check_defaults(defaults)
    if problems:
        raise ConfigError(problems)
    try:
        experiment = as_jobs(expanded(document), JOB_KEYS, overrides)
    except ConfigError as error:
        raise ConfigError([replace(problem, file=source) for problem in error.problems]) from error

    def of_file(problems: Sequence[Problem]) -> tuple[Problem, ...]:
        return tuple(replace(experiment.in_words_of_the_file(problem), file=source) for problem in problems)

    try:
        read = _jobs_file(experiment, source, defaults, suites, arms)
    except ConfigError as error:
        raise ConfigError(of_file(error.problems)) from error
    if read.problems and not partly:
        raise ConfigError(of_file(read.problems))
    return replace(read, problems=of_file(read.problems))


def _jobs_file(
    experiment: ExperimentAsJobs, source: str, defaults: JobDefaults, suites: Registry, arms: ArmsOf
) -> JobsFile:
    """Return what can be read of a file, with what is wrong with it.

    Raises:
        ConfigError: If nothing can be read of its jobs.
    """
    top, problems = checked_top_level(experiment.document)
    interpolation = OmegaConfInterpolation(
        variables=top.variables, defaults=top.defaults, jobs=top.jobs, shared=experiment.shared
    )
    jobs, wrong = Reading(top, defaults, interpolation, suites, arms).jobs()
    problems += wrong
    questions: tuple[Question, ...] = ()
    try:
        read = read_questions(top.comparisons, top.bars, jobs)
        jobs, questions = read.jobs, read.questions
    except ConfigError as error:
        # Of jobs that could not be read nothing can be said against a question. Those of a sweep begin with its name.
        unread = {
            "" if each.job is None or each.job.startswith("jobs[") else each.job
            for each in problems
            if each.key != "tracking"
        }
        problems += [
            each
            for each in error.problems
            if not about_jobs(each) or not any(f"'{name}" in each.message for name in unread)
        ]
    return JobsFile(
        path=source,
        jobs=jobs,
        config_hash="" if problems else hash_jobs(jobs, questions),
        questions=questions,
        tracking=top.tracking,
        problems=tuple(problems),
    )


def limited(jobs_file: JobsFile, limit: int | None) -> JobsFile:
    """Return the jobs of a file with at most ``limit`` episodes each, to try the file out; None for the file as it is.

    A job that has fewer episodes keeps them, and one that is limited by steps ends at whatever comes first. The hash
    is another one than the file's.
    """
    if limit is None:
        return jobs_file
    jobs = tuple(_limited_job(job, limit) for job in jobs_file.jobs)
    questions = tuple(replace(each, max_episodes=min(each.max_episodes, limit)) for each in jobs_file.questions)
    digest = hashlib.sha256(f"{hash_jobs(jobs, questions)} limited to {limit}".encode()).hexdigest()
    return replace(jobs_file, jobs=jobs, questions=questions, config_hash=digest[:16])


def limit_in_words(limit: int) -> str:
    """Return what `limited` does, for a line below a table."""
    return f"limited to {limit} episode{'s' if limit > 1 else ''} a job"


def _limited_job(job: JobConfig, limit: int) -> JobConfig:
    num_rebuilds = min(job.num_rebuilds, limit)
    if job.num_episodes is None:
        return replace(job, max_episodes=limit, num_rebuilds=num_rebuilds)
    return replace(job, num_episodes=min(job.num_episodes, limit), num_rebuilds=num_rebuilds)


def hash_jobs(jobs: tuple[JobConfig, ...], questions: tuple[Question, ...] = ()) -> str:
    """Return 16 hexadecimal digits that are the same for the same jobs in the same order, with the same questions.

    How long jobs and episodes may take is left out: it decides whether there is a result, never what it is. So is what
    jobs are labelled with, and what no file says: `limited` sees to that.
    """
    left_out = WITHOUT_RESULT | {"max_episodes", "latency"}
    names = [field.name for field in fields(JobConfig) if field.name not in left_out]
    plain = [{name: getattr(job, name) for name in names} | _of_latency(job) for job in jobs]
    plain += [asdict(question) for question in questions]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]


def _of_latency(job: JobConfig) -> dict[str, Any]:
    # A job without it has the hash that it had before there was such a key.
    return {} if job.latency is None else {"latency": asdict(job.latency)}
