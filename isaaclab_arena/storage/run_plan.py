"""What a run sets out to do: its plan, attempts, settled batches, verification and lock."""

import errno
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from isaaclab_arena.config.schema import Delays, JobConfig, JobStatus, Question, name_problem
from isaaclab_arena.episode_ranges import EpisodeRanges
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError
from isaaclab_arena.storage.atomic import storage_error, storage_errors, temporary_path, write_text
from isaaclab_arena.storage.contents import Contents, Node, Provenance
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import (
    ATTEMPTS_DIRECTORY,
    LOCK_FILE,
    PLAN_COPY_FILE,
    RUN_PLAN_FILE,
    SETTLED_FILE,
    VERIFICATION_FILE,
    attempt_file_name,
    attempt_number,
    job_directory,
)

# One run at a time in a directory: a lock that the system gives back by itself when its holders have died.
#
# The rank that sets a run up holds the lock alone, while it repairs and plans. Then all ranks of the run share it
# until they exit, so that nobody else can begin as long as one of them may still write.

_LOG = logging.getLogger(__name__)
_HELD = (errno.EWOULDBLOCK, errno.EACCES)


class RunLock:
    """The lock of one output directory, as this process holds it.

    Args:
        output_directory: The directory, which exists.

    Raises:
        StorageError: If the lock's file cannot be made.
    """

    def __init__(self, output_directory: Path) -> None:
        self._path = output_directory / LOCK_FILE
        with storage_errors("make", self._path):
            # Programs that this process starts must not keep the lock when it has gone, hence O_CLOEXEC.
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def hold_alone(self) -> Self:
        """Take the lock for this process alone.

        Raises:
            ConfigError: If another run has it.
        """
        self._take(fcntl.LOCK_EX)
        return self

    def share(self) -> Self:
        """Share the lock with the other ranks of this run, or give up holding it alone.

        Raises:
            ConfigError: If another run has it.
        """
        self._take(fcntl.LOCK_SH)
        return self

    @property
    def descriptor(self) -> int:
        """The open file that holds the lock; a program that is given it holds the lock too, as long as it runs."""
        return self._descriptor

    def release(self) -> None:
        """Give the lock back. May be called more than once; the end of the process does it too."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _take(self, kind: int) -> None:
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _HELD:
                # No other run has said so: this is a file system without locks, in one of the ways of saying that.
                _LOG.warning(
                    "%s cannot be locked on this file system (%s): never start two runs in one directory",
                    self._path,
                    error.strerror,
                )
                return
            raise ConfigError(
                Problem(
                    "another run is at work in this directory; wait until it has ended, or choose another one",
                    file=str(self._path.parent),
                )
            ) from error


# ``run.json``: what a run set out to do, written before it starts, so that whatever is missing later can be named.

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PlanEntry:
    """What the plan says of one job: what was asked for, and what was resolved and cannot be derived from that.

    Attributes:
        config: The job as it was asked for, every key given: what it takes to build it again without its file.
        rank: The rank that runs it, None for a job that is not run or that several ranks may run.
        task: What is done, for tables.
        embodiment: The robot, None where the environment has no choice.
        object: The object, None where the environment has no choice.
        policy_config: Options that the policy is built from: those of the job and those of the command line.
        variations: The variations that are on, spelled out: ``cube.mass.sampler_cfg.high`` to its value.
        conditions_checksum: CRC-32 of the saved conditions that it runs, None where they are drawn.
        contents: What it evaluated when the run began, None for a job that is skipped and in plans of programs that did
            not say. Later attempts may say otherwise; see `contents_in_effect`.
        backend: What simulates it, as the job says or as was settled for all ranks before the start; None in runs of
            earlier versions and where there is nothing to choose.
        latency: How many control steps the policy's answers are late; None for a job without latency, and where the
            length of a control step is known only when the environment is built.
    """

    config: JobConfig
    rank: int | None
    task: str | None = None
    embodiment: str | None = None
    object: str | None = None
    policy_config: Mapping[str, Any] = field(default_factory=dict)
    variations: Mapping[str, Any] = field(default_factory=dict)
    conditions_checksum: int | None = None
    contents: Contents | None = None
    backend: str | None = None
    latency: Delays | None = None

    @property
    def name(self) -> str:
        """Name of the job, which is also that of its directory."""
        return self.config.name

    @property
    def is_to_run(self) -> bool:
        """Whether the run includes the job; the job file may say that it is done already."""
        return self.config.status is JobStatus.PENDING


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run set out to do.

    Attributes:
        run_id: Names the run.
        created_at: ISO 8601 with time zone.
        config_hash: Hash of the resolved jobs.
        source_file: The job file.
        command_line: What was typed, one token each.
        world_size: Number of ranks.
        versions: Package to version: python, torch, mujoco, numpy, this package.
        git_revision: Revision of the working directory, None outside a repository.
        machine: Where rank 0 runs.
        devices: Device of each rank, by rank.
        jobs: Every job, in order of index.
        settings: Options of the command line that decide what is recorded or what comes out.
        questions: What was asked of the jobs, which stop as soon as it is answered.
        working_directory: Where the command was typed, from which relative paths of policies count.
        schema_version: Version of this layout.
    """

    run_id: str
    created_at: str
    config_hash: str
    source_file: str | None
    command_line: tuple[str, ...]
    world_size: int
    versions: Mapping[str, str]
    git_revision: str | None
    machine: Node
    devices: tuple[str, ...]
    jobs: tuple[PlanEntry, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()
    working_directory: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def provenance(self) -> Provenance:
        """What its results depend on beside its jobs, as rank 0 saw it when the run began."""
        return Provenance.of(self.versions, self.machine)


def write_run_plan(output_directory: Path, plan: RunPlan) -> Path:
    """Write ``run.json``, complete or not at all, then its copy beside the attempts; return its path.

    Raises:
        StorageError: If the directory holds one already, or it cannot be written.
    """
    path = output_directory / RUN_PLAN_FILE
    write_text(path, json_text(plan))
    write_text(plan_copy_path(output_directory), json_text(plan), overwrite=True)
    return path


def revise_run_plan(output_directory: Path, plan: RunPlan) -> None:
    """Write the plan of a run that goes on otherwise than it began in place of the one that it had.

    Raises:
        StorageError: If it cannot be written.
    """
    # The copy first: it may be needed where the plan is lost, and must never know of fewer episodes.
    write_text(plan_copy_path(output_directory), json_text(plan), overwrite=True)
    write_text(output_directory / RUN_PLAN_FILE, json_text(plan), overwrite=True)


def plan_copy_path(output_directory: Path) -> Path:
    """Return where the copy of ``run.json`` is."""
    return output_directory / ATTEMPTS_DIRECTORY / PLAN_COPY_FILE


def read_run_plan(output_directory: Path) -> RunPlan:
    """Read ``run.json``.

    Raises:
        ConfigError: If the directory is no output of a run, is of another version of this program, or a job's name
            cannot be a directory's.
    """
    path = output_directory / RUN_PLAN_FILE
    if not path.is_file():
        is_lost = plan_copy_path(output_directory).is_file()
        what = "it is lost; isaaclab-arena recover brings it back" if is_lost else "it is not the output of a run"
        raise ConfigError(Problem(f"holds no {RUN_PLAN_FILE}: {what}", file=str(output_directory)))
    try:
        return _read_plan(path)
    except ConfigError as error:
        try:
            read_plan_copy(output_directory)
        except ConfigError:
            raise error from None
        mend = Problem("isaaclab-arena recover brings it back from its copy", file=str(path))
        raise ConfigError([*error.problems, mend]) from error


def _read_plan(path: Path) -> RunPlan:
    plan = read_versioned(path, RunPlan, SCHEMA_VERSION)
    # Names become paths, and a plan may be anybody's.
    problems = [
        Problem(problem, file=str(path), key=f"jobs[{position}].config.name")
        for position, job in enumerate(plan.jobs)
        if (problem := name_problem(job.name)) is not None
    ]
    if problems:
        raise ConfigError(problems)
    return plan


def read_plan_copy(output_directory: Path) -> RunPlan:
    """Read the copy of ``run.json``.

    Raises:
        ConfigError: If there is none, or it cannot be read; see `read_run_plan`.
    """
    path = plan_copy_path(output_directory)
    if not path.is_file():
        raise ConfigError(Problem("is missing too: only runs of this version and later ones have it", file=str(path)))
    return _read_plan(path)


# ``settled.json``: on how many env slots a job's policy is asked, settled by the rank that builds the job first.


@dataclass(frozen=True, kw_only=True)
class SettledBatch:
    """What every rank and every later start of the program keeps to, so that a job's bits are the same.

    Attributes:
        policy_batch: Env slots that the policy is asked on together.
        schema_version: Version of this layout.
    """

    policy_batch: int
    schema_version: int = SCHEMA_VERSION


def read_settled(job_directory: Path) -> SettledBatch | None:
    """Return what was settled, None if nothing was.

    Raises:
        ConfigError: If the file is damaged.
        StorageError: If it cannot be read.
    """
    path = job_directory / SETTLED_FILE
    return read_versioned(path, SettledBatch, SCHEMA_VERSION) if path.exists() else None


def settle(job_directory: Path, settled: SettledBatch) -> SettledBatch:
    """Settle a job's batch, unless that was done already; return what counts.

    Args:
        job_directory: Directory of the job; it is made if need be.
        settled: What this rank would have.

    Raises:
        ConfigError: If what was settled cannot be read.
        StorageError: If it cannot be written.
    """
    path = job_directory / SETTLED_FILE
    temporary = temporary_path(path)
    write_text(temporary, json_text(settled), overwrite=True)
    try:
        # A link is made whole or not at all, and fails where there is a file: only one rank settles.
        os.link(temporary, path)
    except FileExistsError:
        return read_settled(job_directory) or settled
    except OSError as error:
        _write_exclusively(path, json_text(settled), error)
    finally:
        temporary.unlink(missing_ok=True)
    return read_settled(job_directory) or settled


def _write_exclusively(path: Path, text: str, no_links: OSError) -> None:
    """Write the file where the file system has no links; ranks that come at the same moment may both write the same."""
    try:
        write_text(path, text)
    except ArenaError as error:
        if not path.exists():
            raise storage_error("write", path, no_links) from error


# ``attempts/attempt_<n>.json``: one start of the program on a run, and what was finished before it.
#
# The plan in ``run.json`` says what a run is; an attempt says who worked on it when. All ranks of an attempt read
# from this file what is finished, so they agree on what remains though none of them asks another.

INSTEAD_OF_ATTEMPT = "run.json and the recordings say with which versions it ran"
"""Where the rest of a run finds what an attempt's file does not say any more."""


@dataclass(frozen=True, kw_only=True)
class AttemptEntry:
    """What an attempt has to do of one job that is not finished.

    Attributes:
        job: Name of the job.
        finished: Episodes that must not run again.
        contents: What it evaluates in this attempt, None in files of programs that did not say.
        is_rerun: Whether its episodes of earlier attempts were set aside, because it evaluated something else then.
        backend: What simulates it, the same on every rank; None where there is nothing to choose.
        policy_batch: Env slots that its policy is asked on together, as an earlier attempt settled it; None as long as
            no attempt has built the job, and where that makes no difference.
        latency: How many control steps the policy's answers are late, where that was measured when the run began.
        num_episodes: How many episodes the job has from this attempt on, where it has more than before.
        num_envs: With how many env slots its finished episodes were played, where it has another number now.
    """

    job: str
    finished: EpisodeRanges = ()
    contents: Contents | None = None
    is_rerun: bool = False
    backend: str | None = None
    policy_batch: int | None = None
    latency: Delays | None = None
    num_episodes: int | None = None
    num_envs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the program on a run.

    Attributes:
        number: 1 for the first start, then one more each time.
        run_id: Names this start.
        started_at: ISO 8601 with time zone.
        command_line: What was typed, one token each.
        assignment: How jobs are given to ranks.
        world_size: Number of ranks.
        devices: Device of each rank, by rank.
        versions: Package to version.
        git_revision: Revision of the working directory, None outside a repository.
        machine: Where rank 0 runs.
        jobs: What is left to do, in order of the plan; jobs that are finished are not named.
        retry_errors: Whether episodes that had ended in an error run again.
        max_equal_errors: How many episodes of a job in a row may end in the same error before it fails; 0 for any
            number, and in attempts of programs that did not say.
        run: Names the run that it belongs to; None in files of programs that did not say.
        schema_version: Version of this layout.
    """

    number: int
    run_id: str
    started_at: str
    command_line: tuple[str, ...]
    assignment: str
    world_size: int
    devices: tuple[str, ...]
    versions: Mapping[str, str]
    git_revision: str | None
    machine: Node
    jobs: tuple[AttemptEntry, ...] = field(default_factory=tuple)
    retry_errors: bool = False
    max_equal_errors: int = 0
    run: str | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def provenance(self) -> Provenance:
        """What its results depend on beside its jobs, as rank 0 saw it at the start."""
        return Provenance.of(self.versions, self.machine)


def attempt_path(output_directory: Path, number: int) -> Path:
    """Return where an attempt is described."""
    return output_directory / ATTEMPTS_DIRECTORY / attempt_file_name(number)


def write_attempt(output_directory: Path, attempt: Attempt) -> Path:
    """Write an attempt's file, complete or not at all, and return its path.

    Raises:
        StorageError: If there is one of that number, or it cannot be written.
    """
    path = attempt_path(output_directory, attempt.number)
    write_text(path, json_text(attempt))
    return path


def read_attempt(output_directory: Path, number: int) -> Attempt:
    """Read an attempt's file.

    Raises:
        StorageError: If there is none.
        ConfigError: If it is of another version of this program, or damaged, or a directory has taken its place.
    """
    path = attempt_path(output_directory, number)
    if not os.path.lexists(path):
        raise StorageError(f"{path} is missing; the run's directory was changed by something else")
    return read_versioned(path, Attempt, SCHEMA_VERSION)


def read_attempts(output_directory: Path, run: str | None = None) -> tuple[list[Attempt], list[str]]:
    """Read every attempt of a run.

    What came out of a run is in other files, so a damaged attempt is a loss and no obstacle.

    Args:
        output_directory: Directory of the run.
        run: Names the run, to find files of another one; None to take them all.

    Returns:
        The attempts in order, and one message for each file that is damaged, of another version or of another run.

    Raises:
        StorageError: If the system cannot read a file, which says nothing about what it holds.
    """
    attempts, problems = [], []
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
    """Return what the episodes that count were made with, by the name of their job; None where nobody wrote it down.

    Args:
        jobs: The jobs of a run, as they were planned.
        attempts: Those of the run, in order. All that worked on a job since it last ran anew evaluated the same.
    """
    found = {job.name: job.contents for job in jobs}
    found.update({work.job: work.contents for attempt in attempts for work in attempt.jobs if work.contents})
    return found


def policy_batches_in_effect(
    output_directory: Path, jobs: Sequence[PlanEntry], attempts: Sequence[Attempt]
) -> dict[str, int]:
    """Return on how many env slots the policies of a run's jobs are asked, by the name of the job.

    What an attempt says counts for those after it. As long as none says it, the job's ``settled.json`` does. A job that
    nobody has built yet, or whose file cannot be read, is left out.

    Args:
        output_directory: Directory of the run.
        jobs: The jobs of the run, as they were planned.
        attempts: Those of the run, in order.

    Raises:
        StorageError: If the system cannot read a file.
    """
    found: dict[str, int | None] = {job.name: None for job in jobs}
    for work in (work for attempt in attempts for work in attempt.jobs):
        # Another network may need another number of env slots, and nothing holds a job to one that has not played yet.
        begins = work.is_rerun or not work.finished
        found[work.job] = work.policy_batch or (None if begins else found.get(work.job))
    return {job: batch for job, said in found.items() if (batch := said or _settled(output_directory, job)) is not None}


def _settled(output_directory: Path, job: str) -> int | None:
    try:
        settled = read_settled(job_directory(output_directory, job))
    except ConfigError:
        # Whoever builds the job tells, and promises less.
        return None
    return None if settled is None else settled.policy_batch


def grown_jobs(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Return how many episodes jobs have that were given more after the run had begun, by the name of the job."""
    return {
        work.job: work.num_episodes for attempt in attempts for work in attempt.jobs if work.num_episodes is not None
    }


def times_rerun(attempts: Sequence[Attempt]) -> Counter[str]:
    """Return how often the episodes of each job were set aside and ran anew, because it evaluated something else."""
    return Counter(work.job for attempt in attempts for work in attempt.jobs if work.is_rerun)


def attempt_numbers(output_directory: Path) -> list[int]:
    """Return the numbers of the attempts of a run, ascending."""
    directory = output_directory / ATTEMPTS_DIRECTORY
    if not directory.is_dir():
        return []
    return sorted(number for path in directory.iterdir() if (number := attempt_number(path.name)) is not None)


# ``verification.json``: what ``isaaclab-arena verify`` found when it last looked at a run.

_MOST_NAMED = 12


@dataclass(frozen=True, kw_only=True)
class EpisodeVerification:
    """What came of an episode that ran again.

    Attributes:
        job: Its job.
        episode_index: Which episode.
        is_same: Whether nothing that was compared differs.
        is_bitwise: Whether it is the same and its recording was compared, to the last bit.
        verdict: The same in words, such as ``differs first at control step 17: states/...``.
    """

    job: str
    episode_index: int
    is_same: bool
    is_bitwise: bool
    verdict: str


@dataclass(frozen=True, kw_only=True)
class RunVerification:
    """What a verification found.

    Attributes:
        verified_at: When it began, ISO 8601 with time zone.
        sources: The commit files and reports that the run then had, and how long each was [bytes].
        num_episodes: How many finished episodes had their files checked.
        problems: What is wrong with the files of the run.
        episodes: What came of the episodes that ran again.
        is_sound: Whether the files are whole and nothing differs.
        schema_version: Version of this layout.
    """

    verified_at: str
    sources: Mapping[str, int]
    num_episodes: int
    problems: tuple[str, ...]
    episodes: tuple[EpisodeVerification, ...]
    is_sound: bool
    schema_version: int = SCHEMA_VERSION

    def in_words(self) -> str:
        """Return what was found, in a sentence."""
        return "; ".join(self._findings())

    def _findings(self) -> Iterator[str]:
        if self.problems:
            first, *others = self.problems
            yield f"wrong with the files: {first}" + (f", and {len(others)} more" if others else "")
        else:
            yield f"the files of {self.num_episodes:,} episodes are whole"
        bitwise = [each for each in self.episodes if each.is_bitwise]
        ended = [each for each in self.episodes if each.is_same and not each.is_bitwise]
        if not self.episodes:
            yield "no episode ran again"
        if bitwise:
            yield f"{len(bitwise)} of {len(self.episodes)} episodes ran again bitwise the same ({_named(bitwise)})"
        if ended:
            yield f"{len(ended)} ended the same ({_named(ended)})"
        yield from (f"{each.job} {each.episode_index} {each.verdict}" for each in self.episodes if not each.is_same)


def write_verification(output_directory: Path, verification: RunVerification) -> None:
    """Write ``verification.json``, complete or not at all, over an earlier one.

    Raises:
        StorageError: If it cannot be written.
    """
    write_text(output_directory / VERIFICATION_FILE, json_text(verification), overwrite=True)


def read_verification(output_directory: Path) -> RunVerification | None:
    """Return what was found last, None if nobody has looked.

    Raises:
        ConfigError: If the file is damaged.
        StorageError: If it cannot be read.
    """
    path = output_directory / VERIFICATION_FILE
    return read_versioned(path, RunVerification, SCHEMA_VERSION) if path.is_file() else None


def _named(episodes: list[EpisodeVerification]) -> str:
    by_job: dict[str, list[str]] = {}
    for each in episodes[:_MOST_NAMED]:
        by_job.setdefault(each.job, []).append(str(each.episode_index))
    named = [f"{job} {', '.join(indices)}" for job, indices in by_job.items()]
    return "; ".join([*named, *(["…"] if len(episodes) > _MOST_NAMED else [])])
