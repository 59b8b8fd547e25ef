"""What a run sets out to do: its plan, attempts, settled batches, verification and lock."""

import errno
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from isaaclab_arena.config.schema import Delays, JobConfig, JobStatus, Question, name_problem
from isaaclab_arena.episode_ranges import EpisodeRanges
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import storage_error, storage_errors, temporary_path, write_text
from isaaclab_arena.storage.contents import Contents, Node, Provenance
from isaaclab_arena.storage.json_values import json_text, read_versioned

# One run at a time in a directory: the system releases the lock if its holders die.
#
# The rank that sets a run up holds the lock alone during repair and planning. Then all ranks of the run share it until
# they exit, so no other run can begin while one of them may still write.

_LOG = logging.getLogger(__name__)


class RunLock:
    """The lock of one existing output directory, held by this process."""

    def __init__(self, output_directory: Path) -> None:
        self._path = output_directory / layout.LOCK_FILE
        with storage_errors("make", self._path):
            # Child processes must not keep the lock after this process has ended, hence O_CLOEXEC. A child that
            # inherits the descriptor on purpose holds the lock as long as it runs.
            self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def hold_alone(self) -> Self:
        """Take the lock exclusively. ConfigError if another run holds it."""
        self._take(fcntl.LOCK_EX)
        return self

    def share(self) -> Self:
        """Share the lock with this run's ranks, also from an exclusive hold. ConfigError if another run holds it."""
        self._take(fcntl.LOCK_SH)
        return self

    def release(self) -> None:
        """Release the lock. May be called more than once; the end of the process releases it too."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _take(self, kind: int) -> None:
        try:
            fcntl.flock(self.descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                # The error is not from another run: this file system has no locks, and reports that in one of several
                # ways.
                cannot = "cannot be locked on this file system"
                _LOG.warning("%s %s (%s): never start two runs in one directory", self._path, cannot, error.strerror)
                return
            message = "another run is at work in this directory; wait until it has ended, or choose another one"
            raise ConfigError(Problem(message, file=str(self._path.parent))) from error


# ``run.json``: the plan of a run, written before it starts, so that missing results can be named later.

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PlanEntry:
    """One job of the plan: its configuration, and the resolved values that cannot be derived from it."""

    config: JobConfig  # with every key, enough to build the job again without its file
    rank: int | None  # None for a job that is skipped or that several ranks may run
    task: str | None = None  # for tables
    embodiment: str | None = None  # None if the environment has no choice
    object: str | None = None  # None if the environment has no choice
    policy_config: Mapping[str, Any] = field(default_factory=dict)  # options of the job and of the command line
    # Active variations: ``cube.mass.sampler_cfg.high`` to its value.
    variations: Mapping[str, Any] = field(default_factory=dict)
    conditions_checksum: int | None = None  # CRC-32 of the saved conditions; None if conditions are drawn
    # Evaluated contents at the start of the run. None for a skipped job, and in plans of earlier versions. A later
    # attempt may change them; see `contents_in_effect`.
    contents: Contents | None = None
    # The simulator of all ranks. None in runs of earlier versions, and if there is no choice.
    backend: str | None = None
    # Delay of the policy's answers [control steps]. None for a job without latency, and if the control step is known
    # only after the environment is built.
    latency: Delays | None = None

    @property
    def name(self) -> str:
        """The name of the job and of its directory."""
        return self.config.name

    @property
    def is_to_run(self) -> bool:
        """Whether the run includes the job; a job file may mark it as done."""
        return self.config.status is JobStatus.PENDING


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The plan of a run, as stored in ``run.json``."""

    run_id: str
    created_at: str  # ISO 8601 with time zone
    config_hash: str  # hash of the resolved jobs
    source_file: str | None  # job file
    command_line: tuple[str, ...]
    world_size: int  # number of ranks
    versions: Mapping[str, str]  # by package: python, torch, mujoco, numpy, this package
    git_revision: str | None  # of the working directory; None outside a repository
    machine: Node  # host of rank 0
    devices: tuple[str, ...]  # by rank
    jobs: tuple[PlanEntry, ...]  # in order of index
    # Options of the command line that change the recordings or the results.
    settings: Mapping[str, Any] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()  # the jobs stop as soon as these are answered
    working_directory: str | None = None  # base of the relative paths of policies
    schema_version: int = SCHEMA_VERSION

    @property
    def provenance(self) -> Provenance:
        """Versions and machine that the results depend on, as rank 0 saw them at the start of the run."""
        return Provenance.of(self.versions, self.machine)


def write_run_plan(output_directory: Path, plan: RunPlan) -> Path:
    """Write ``run.json`` and its copy atomically, and return its path. StorageError if there is one already."""
    path = output_directory / layout.RUN_PLAN_FILE
    write_text(path, json_text(plan))
    write_text(plan_copy_path(output_directory), json_text(plan), overwrite=True)
    return path


def revise_run_plan(output_directory: Path, plan: RunPlan) -> None:
    """Replace the plan of a run that continues with other jobs or options."""
    # Write the copy first. It replaces a lost plan, and must never know of fewer episodes than the plan.
    write_text(plan_copy_path(output_directory), json_text(plan), overwrite=True)
    write_text(output_directory / layout.RUN_PLAN_FILE, json_text(plan), overwrite=True)


def plan_copy_path(output_directory: Path) -> Path:
    """Return the path of the copy of ``run.json``."""
    return output_directory / layout.ATTEMPTS_DIRECTORY / layout.PLAN_COPY_FILE


def read_run_plan(output_directory: Path) -> RunPlan:
    """Read ``run.json``. ConfigError if it is missing, damaged, of another version, or holds an invalid job name."""
    path = output_directory / layout.RUN_PLAN_FILE
    if not path.is_file():
        is_lost = plan_copy_path(output_directory).is_file()
        what = "it is lost; isaaclab-arena recover brings it back" if is_lost else "it is not the output of a run"
        raise ConfigError(Problem(f"holds no {layout.RUN_PLAN_FILE}: {what}", file=str(output_directory)))
    try:
        return _read_plan(path)
    except ConfigError as error:
        # The error names the recovery only if the copy is readable.
        try:
            read_plan_copy(output_directory)
        except ConfigError:
            raise error from None
        mend = Problem("isaaclab-arena recover brings it back from its copy", file=str(path))
        raise ConfigError([*error.problems, mend]) from error


def _read_plan(path: Path) -> RunPlan:
    plan = read_versioned(path, RunPlan, SCHEMA_VERSION)
    # Job names become paths, and a plan file is untrusted input.
    problems = [
        Problem(problem, file=str(path), key=f"jobs[{position}].config.name")
        for position, job in enumerate(plan.jobs)
        if (problem := name_problem(job.name)) is not None
    ]
    if problems:
        raise ConfigError(problems)
    return plan


def read_plan_copy(output_directory: Path) -> RunPlan:
    """Read the copy of ``run.json``. ConfigError if it is missing or cannot be read."""
    path = plan_copy_path(output_directory)
    if not path.is_file():
        raise ConfigError(Problem("is missing too: only runs of this version and later ones have it", file=str(path)))
    return _read_plan(path)


# ``settled.json``: the policy batch of a job [env slots], settled by the first rank that builds the job.


@dataclass(frozen=True, kw_only=True)
class SettledBatch:
    """The settings that every rank and every later attempt keep, so that a job's bits are the same."""

    policy_batch: int  # env slots in one policy query
    schema_version: int = SCHEMA_VERSION


def read_settled(job_directory: Path) -> SettledBatch | None:
    """Return the settled batch, None if no rank has settled one. ConfigError if the file is damaged."""
    path = job_directory / layout.SETTLED_FILE
    return read_versioned(path, SettledBatch, SCHEMA_VERSION) if path.exists() else None


def settle(job_directory: Path, settled: SettledBatch) -> SettledBatch:
    """Settle the batch of a job unless another rank has done so, and return the batch in effect."""
    path = job_directory / layout.SETTLED_FILE
    temporary = temporary_path(path)
    write_text(temporary, json_text(settled), overwrite=True)
    try:
        # A link is created atomically, and fails if the file exists: only one rank settles.
        os.link(temporary, path)
    except FileExistsError:
        return read_settled(job_directory) or settled
    except OSError as no_links:
        # This file system has no links. Ranks that race here all write the same content.
        try:
            write_text(path, json_text(settled))
        except ArenaError as error:
            if not path.exists():
                raise storage_error("write", path, no_links) from error
    finally:
        temporary.unlink(missing_ok=True)
    return read_settled(job_directory) or settled


# ``attempts/attempt_<n>.json``: one start of the program on a run, and the episodes finished before it.
#
# The plan in ``run.json`` defines the run; an attempt records its ranks and its time. All ranks of an attempt read the
# finished episodes from this file, so they agree on the rest without communication.

INSTEAD_OF_ATTEMPT = "run.json and the recordings say with which versions it ran"
"""The source of the facts that a damaged attempt's file has lost, for messages."""


@dataclass(frozen=True, kw_only=True)
class AttemptEntry:
    """The rest of one unfinished job, for one attempt."""

    job: str
    finished: EpisodeRanges = ()  # episodes that must not run again
    contents: Contents | None = None  # evaluated contents; None in files of earlier versions
    is_rerun: bool = False  # its earlier episodes were set aside, because they evaluated other contents
    backend: str | None = None  # simulator of every rank; None if there is no choice
    # Env slots in one policy query, as an earlier attempt settled it. None before the job is built, and if the number
    # has no effect.
    policy_batch: int | None = None
    latency: Delays | None = None  # delay of the policy's answers, if measured at the start of the run
    num_episodes: int | None = None  # new number of episodes, if the attempt raises it
    num_envs: int | None = None  # num_envs of the finished episodes, if the job has another number now


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the program on a run."""

    number: int  # from 1
    run_id: str  # id of this start
    started_at: str  # ISO 8601 with time zone
    command_line: tuple[str, ...]
    assignment: str  # assignment of jobs to ranks
    world_size: int  # number of ranks
    devices: tuple[str, ...]  # by rank
    versions: Mapping[str, str]  # by package
    git_revision: str | None  # of the working directory; None outside a repository
    machine: Node  # host of rank 0
    jobs: tuple[AttemptEntry, ...] = field(default_factory=tuple)  # unfinished jobs, in the plan's order
    retry_errors: bool = False  # episodes that ended in an error run again
    # Consecutive episodes with the same error before the job fails. 0 for no limit, and in files of earlier versions.
    max_equal_errors: int = 0
    run: str | None = None  # id of the run; None in files of earlier versions
    schema_version: int = SCHEMA_VERSION

    @property
    def provenance(self) -> Provenance:
        """Versions and machine that the results depend on, as rank 0 saw them at the start of the attempt."""
        return Provenance.of(self.versions, self.machine)


def attempt_path(output_directory: Path, number: int) -> Path:
    """Return the path of an attempt's file."""
    return output_directory / layout.ATTEMPTS_DIRECTORY / layout.attempt_file_name(number)


def write_attempt(output_directory: Path, attempt: Attempt) -> Path:
    """Write an attempt's file atomically, and return its path. StorageError if that number exists."""
    path = attempt_path(output_directory, attempt.number)
    write_text(path, json_text(attempt))
    return path


def read_attempt(output_directory: Path, number: int) -> Attempt:
    """Read an attempt's file. StorageError if it is missing, ConfigError if it is damaged or of another version."""
    path = attempt_path(output_directory, number)
    if not os.path.lexists(path):
        raise StorageError(f"{path} is missing; the run's directory was changed by something else")
    return read_versioned(path, Attempt, SCHEMA_VERSION)


def read_attempts(output_directory: Path, run: str | None = None) -> tuple[list[Attempt], list[str]]:
    """Return the attempts of a run in order, and one message for each damaged or foreign file."""
    attempts, problems = [], []
    # Results are in other files, so a damaged attempt does not stop the caller. `run` None accepts every run.
    for number in attempt_numbers(output_directory):
        try:
            attempt = read_attempt(output_directory, number)
        except ConfigError as error:
            problems.append(f"{error}; {INSTEAD_OF_ATTEMPT}")
            continue
        if None not in (run, attempt.run) and attempt.run != run:
            problems.append(f"{attempt_path(output_directory, number)}: is of another run; {INSTEAD_OF_ATTEMPT}")
        else:
            attempts.append(attempt)
    return attempts, problems


def contents_in_effect(jobs: Sequence[PlanEntry], attempts: Sequence[Attempt]) -> dict[str, Contents | None]:
    """Map each job to the contents that its counted episodes evaluated; None if no file records them."""
    found = {job.name: job.contents for job in jobs}
    # `attempts` are in order. All attempts since a job's last rerun evaluated the same contents, so the last one
    # counts.
    found.update({work.job: work.contents for attempt in attempts for work in attempt.jobs if work.contents})
    return found


def policy_batches_in_effect(
    output_directory: Path, jobs: Sequence[PlanEntry], attempts: Sequence[Attempt]
) -> dict[str, int]:
    """Map each job to its policy batch [env slots]. Unbuilt jobs and damaged files are left out."""
    # An attempt's value holds for the attempts after it. Without one, the job's ``settled.json`` counts.
    found: dict[str, int | None] = {job.name: None for job in jobs}
    for work in (work for attempt in attempts for work in attempt.jobs):
        # Another network may need another batch, and a job without finished episodes is free to change it.
        begins = work.is_rerun or not work.finished
        found[work.job] = work.policy_batch or (None if begins else found.get(work.job))
    batches = {}
    for job, batch in found.items():
        if batch:
            batches[job] = batch
            continue
        # The rank that builds a job reports the damage of its file, and guarantees less.
        with suppress(ConfigError):
            settled = read_settled(layout.job_directory(output_directory, job))
            if settled is not None:
                batches[job] = settled.policy_batch
    return batches


def grown_jobs(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Map each job that was extended after the start of the run to its new number of episodes."""
    return {
        work.job: work.num_episodes for attempt in attempts for work in attempt.jobs if work.num_episodes is not None
    }


def times_rerun(attempts: Sequence[Attempt]) -> Counter[str]:
    """Count the reruns of each job: its episodes were set aside because its contents changed."""
    return Counter(work.job for attempt in attempts for work in attempt.jobs if work.is_rerun)


def attempt_numbers(output_directory: Path) -> list[int]:
    """Return the numbers of the run's attempts, ascending."""
    directory = output_directory / layout.ATTEMPTS_DIRECTORY
    if not directory.is_dir():
        return []
    return sorted(number for path in directory.iterdir() if (number := layout.attempt_number(path.name)) is not None)


# ``verification.json``: the result of the last ``isaaclab-arena verify`` on a run.


@dataclass(frozen=True, kw_only=True)
class EpisodeVerification:
    """The result of one episode's rerun."""

    job: str
    episode_index: int
    is_same: bool  # no compared value differs
    is_bitwise: bool  # the same, and its recording was compared to the last bit
    verdict: str  # in words, such as ``differs first at control step 17: states/...``


@dataclass(frozen=True, kw_only=True)
class RunVerification:
    """The result of a verification."""

    verified_at: str  # start, ISO 8601 with time zone
    sources: Mapping[str, int]  # commit files and reports at that time, with their sizes [bytes]
    num_episodes: int  # finished episodes whose files were checked
    problems: tuple[str, ...]  # defects of the run's files
    episodes: tuple[EpisodeVerification, ...]  # episodes that ran again
    is_sound: bool  # the files are whole and no episode differs
    schema_version: int = SCHEMA_VERSION

    def in_words(self) -> str:
        """Return the result as one sentence."""

        def named(episodes: list[EpisodeVerification], most: int = 12) -> str:
            by_job: dict[str, list[str]] = {}
            for each in episodes[:most]:
                by_job.setdefault(each.job, []).append(str(each.episode_index))
            jobs = [f"{job} {', '.join(indices)}" for job, indices in by_job.items()]
            return "; ".join([*jobs, *(["…"] if len(episodes) > most else [])])

        findings = [f"the files of {self.num_episodes:,} episodes are whole"]
        if self.problems:
            first, *others = self.problems
            findings = [f"wrong with the files: {first}" + (f", and {len(others)} more" if others else "")]
        bitwise = [each for each in self.episodes if each.is_bitwise]
        ended = [each for each in self.episodes if each.is_same and not each.is_bitwise]
        if not self.episodes:
            findings.append("no episode ran again")
        if bitwise:
            number = f"{len(bitwise)} of {len(self.episodes)}"
            findings.append(f"{number} episodes ran again bitwise the same ({named(bitwise)})")
        if ended:
            findings.append(f"{len(ended)} ended the same ({named(ended)})")
        findings += [f"{each.job} {each.episode_index} {each.verdict}" for each in self.episodes if not each.is_same]
        return "; ".join(findings)


def write_verification(output_directory: Path, verification: RunVerification) -> None:
    """Write ``verification.json`` atomically, over an earlier one."""
    write_text(output_directory / layout.VERIFICATION_FILE, json_text(verification), overwrite=True)


def read_verification(output_directory: Path) -> RunVerification | None:
    """Return the last verification, None if the run was never verified. ConfigError if the file is damaged."""
    path = output_directory / layout.VERIFICATION_FILE
    return read_versioned(path, RunVerification, SCHEMA_VERSION) if path.is_file() else None
