"""The ledger of a run in its directory: the place and its lock, the plan, attempts and the files of its jobs."""

import errno
import fcntl
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from isaaclab_arena.config.schema import Delays, JobConfig, JobStatus, Question, name_problem
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError
from isaaclab_arena.interfaces.episode import EpisodeRanges
from isaaclab_arena.paths import make_dated_directory
from isaaclab_arena.storage import atomic, json_values, layout
from isaaclab_arena.storage.contents import Contents, Node, Provenance, provenance_of

_LOG = logging.getLogger(__name__)

# Make the directory of a run: a new one with the date, or exactly the requested one.

PROBE_PATTERN = ".seen_by_all.*.tmp"
"""Names of the files by which ranks find out whether they share a directory; one stays if rank 0 dies meanwhile."""

_LEFT_BEFORE_BEGINNING = re.compile(
    rf"{re.escape(layout.LOCK_FILE)}|{translate(PROBE_PATTERN)}|\.{re.escape(layout.RUN_PLAN_FILE)}\..+\.tmp"
)


def make_output_directory(*, output_dir: str | None, output_base_dir: str) -> Path:
    """Make the directory of a run, and return its absolute path."""
    # The exact directory must be missing or empty; None makes a dated one in `output_base_dir`. `ConfigError` if the
    # directory is not empty, not a directory or not writable.
    option = "--output_base_dir" if output_dir is None else "--output_dir"
    path = named_directory(output_base_dir if output_dir is None else output_dir)
    if output_dir is not None:
        if path.is_symlink() and not path.exists():
            raise ConfigError(Problem(f"'{path}' is a link to nothing", key="--output_dir"))
        if path.exists() and not path.is_dir():
            raise ConfigError(Problem(f"'{path}' is a file; name a directory", key="--output_dir"))
        if not holds_no_run(path):
            way_out = "go on with that run by --resume, or " if (path / layout.RUN_PLAN_FILE).is_file() else ""
            message = f"'{path}' is not empty; {way_out}name a new directory, or use --output_base_dir"
            raise ConfigError(Problem(message, key="--output_dir"))

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(Problem(f"cannot make '{path}': {error.strerror}", key=option)) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(Problem(f"'{path}' cannot be written", key=option))
    if output_dir is not None:
        return path
    with atomic.storage_errors("make a directory in", path):
        return make_dated_directory(path)


def named_directory(name: str) -> Path:
    """Return the absolute path of a user's directory, without making it; ``..`` follows links."""
    path = Path(name)
    return path.resolve() if ".." in path.parts else path.absolute()


def holds_no_run(path: Path) -> bool:
    """Whether a directory is missing, empty, or holds only files of a run that died before it began."""
    return not path.exists() or (
        path.is_dir() and all(_LEFT_BEFORE_BEGINNING.fullmatch(entry.name) for entry in path.iterdir())
    )


def clear_unbegun(path: Path) -> None:
    """Remove the files of a run that died before its plan was written. The caller holds the run's lock exclusively."""
    for entry in path.iterdir():
        if entry.name != layout.LOCK_FILE and _LEFT_BEFORE_BEGINNING.fullmatch(entry.name):
            with atomic.storage_errors("remove", entry):
                entry.unlink(missing_ok=True)


# One run at a time in a directory: the system releases the lock if its holders die.
#
# The rank that sets a run up holds the lock alone during repair and planning. Then all ranks of the run share it until
# they exit, so no other run can begin while one of them may still write.


class RunLock(AbstractContextManager["RunLock"]):
    """The lock of one existing output directory, held by this process."""

    def __init__(self, output_directory: Path) -> None:
        self._path = output_directory / layout.LOCK_FILE
        with atomic.storage_errors("make", self._path):
            # Child processes must not keep the lock after this process has ended, hence O_CLOEXEC. A child that
            # inherits the descriptor on purpose holds the lock as long as it runs.
            self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def hold(self, *, alone: bool) -> Self:
        """Hold the lock alone, or share it with this run's ranks; either may follow. ConfigError if it is taken."""
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                # The error is not from another run: this file system has no locks, and reports that in one of several
                # ways.
                cannot = "cannot be locked on this file system"
                _LOG.warning("%s %s (%s): never start two runs in one directory", self._path, cannot, error.strerror)
                return self
            message = "another run is at work in this directory; wait until it has ended, or choose another one"
            raise ConfigError(Problem(message, file=str(self._path.parent))) from error
        return self

    def release(self, *exception: object) -> None:
        """Release the lock. May be called more than once; the end of the process releases it too."""
        del exception
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    __exit__ = release


# The transitions of a run in its directory, in order. A process may die between any two of them: then the next start
# goes on, or a rank that is left. `tests/storage/recovery/test_leftovers.py` cuts a run at each one.

TRANSITIONS = (
    ("the run is planned", "run.json, then attempts/plan.json", "all episodes are left"),
    ("an attempt begins", "attempts/attempt_<n>.json", "the next attempt reads the files again"),
    ("a piece is claimed", "claims/attempt_<n>/j<job>_p<piece>.g<n>", "another rank takes the piece over"),
    ("a job begins", "job_begun_rank<r>_attempt<n>.json", "the job is interrupted"),
    ("an episode is recorded", "episodes/e<index>.h5, with its line", "its line is committed: it is adopted"),
    ("an episode is committed", "a line of episode_results_rank<r>.jsonl", "the episode is finished"),
    ("a piece is played", "claims/attempt_<n>/j<job>_p<piece>.done", "its new owner finds it committed"),
    ("a job is consolidated", "dataset_<job>.hdf5, then no episodes/", "its episode files are removed"),
    ("a job is reported", "job_report_rank<r>.json, then no begun file", "the later one of the two counts"),
    ("the run is merged", "tables, results.json, then report.html", "old tables are written anew"),
)
"""Each event of a run, its trace on disk from then on, and the effect of a death before the next event."""

# ``run.json``: the plan of a run, written before it starts, so that missing results can be named later.

SCHEMA_VERSION = 1  # of each file here
MAX_LIVES = 10_000  # how often a rank may take up the same job


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
        return provenance_of(self.versions, self.machine)


def write_run_plan(output_directory: Path, plan: RunPlan, *, revises: bool = False) -> Path:
    """Write ``run.json`` and its copy, and return its path. StorageError if there is one that this does not revise."""
    path, copy = output_directory / layout.RUN_PLAN_FILE, output_directory / layout.PLAN_COPY_FILE
    # The copy of a revised plan comes first: it replaces a lost plan, and must never know of fewer episodes.
    for each in (copy, path) if revises else (path, copy):
        atomic.write_text(each, json_values.json_text(plan), overwrite=revises or each is copy)
    return path


def read_run_plan(output_directory: Path) -> RunPlan:
    """Read ``run.json``. ConfigError if it is missing, damaged, of another version, or holds an invalid job name."""
    path = output_directory / layout.RUN_PLAN_FILE
    if not path.is_file():
        is_lost = (output_directory / layout.PLAN_COPY_FILE).is_file()
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
    plan = json_values.read_versioned(path, RunPlan, SCHEMA_VERSION)
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
    path = output_directory / layout.PLAN_COPY_FILE
    if not path.is_file():
        raise ConfigError(Problem("is missing too: only runs of this version and later ones have it", file=str(path)))
    return _read_plan(path)


# ``settled.json``: the policy batch of a job [env slots], settled by the first rank that builds the job.


@dataclass(frozen=True, kw_only=True)
class SettledBatch:
    """The settings that every rank and every later attempt keep, so that a job's bits are the same."""

    policy_batch: int  # env slots in one policy query
    schema_version: int = SCHEMA_VERSION


def read_settled(job_directory: Path) -> int | None:
    """Return the settled batch, None if no rank has settled one. ConfigError if the file is damaged."""
    path = job_directory / layout.SETTLED_FILE
    return json_values.read_versioned(path, SettledBatch, SCHEMA_VERSION).policy_batch if path.exists() else None


def settle(job_directory: Path, policy_batch: int) -> int:
    """Settle the batch of a job unless another rank has done so, and return the batch in effect."""
    path, text = job_directory / layout.SETTLED_FILE, json_values.json_text(SettledBatch(policy_batch=policy_batch))
    temporary = atomic.temporary_path(path)
    atomic.write_text(temporary, text, overwrite=True)
    try:
        # A link is created atomically, and fails if the file exists: only one rank settles.
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as no_links:
        # This file system has no links. Ranks that race here all write the same content.
        try:
            atomic.write_text(path, text)
        except ArenaError as error:
            if not path.exists():
                raise atomic.storage_error("write", path, no_links) from error
    finally:
        temporary.unlink(missing_ok=True)
    settled = read_settled(job_directory)
    return policy_batch if settled is None else settled


# ``attempts/attempt_<n>.json``: one start of the program on a run, and the episodes finished before it.
#
# The plan in ``run.json`` defines the run; an attempt records its ranks and its time. All ranks of an attempt read the
# finished episodes from this file, so they agree on the rest without communication.

_ATTEMPT_FILE = re.compile(r"attempt_([1-9]\d{0,5})\.json", re.ASCII)

INSTEAD_OF_ATTEMPT = "run.json and the recordings say with which versions it ran"
"""The source of the facts that a damaged attempt's file has lost, for messages."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """The settled choices of one unfinished job and its finished episodes, when an attempt begins."""

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
    jobs: tuple[JobState, ...] = field(default_factory=tuple)  # unfinished jobs, in the plan's order
    retry_errors: bool = False  # episodes that ended in an error run again
    # Consecutive episodes with the same error before the job fails. 0 for no limit, and in files of earlier versions.
    max_equal_errors: int = 0
    run: str | None = None  # id of the run; None in files of earlier versions
    schema_version: int = SCHEMA_VERSION

    @cached_property
    def states(self) -> Mapping[str, JobState]:
        """The states of the unfinished jobs, by name."""
        return {state.job: state for state in self.jobs}

    def state(self, job: str) -> JobState:
        """Return the state of a job, one without any choices for a job that is not in the attempt."""
        return self.states.get(job, JobState(job=job))


def attempt_path(output_directory: Path, number: int) -> Path:
    """Return the path of an attempt's file."""
    return output_directory / layout.ATTEMPTS_DIRECTORY / f"attempt_{number}.json"


def write_attempt(output_directory: Path, attempt: Attempt) -> Path:
    """Write an attempt's file atomically, and return its path. StorageError if that number exists."""
    path = attempt_path(output_directory, attempt.number)
    atomic.write_text(path, json_values.json_text(attempt))
    return path


def read_attempt(output_directory: Path, number: int) -> Attempt:
    """Read an attempt's file. StorageError if it is missing, ConfigError if it is damaged or of another version."""
    path = attempt_path(output_directory, number)
    if not os.path.lexists(path):
        raise StorageError(f"{path} is missing; the run's directory was changed by something else")
    return json_values.read_versioned(path, Attempt, SCHEMA_VERSION)


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
            if (settled := read_settled(output_directory / job)) is not None:
                batches[job] = settled
    return batches


def attempt_numbers(output_directory: Path) -> list[int]:
    """Return the numbers of the run's attempts, ascending."""
    directory = output_directory / layout.ATTEMPTS_DIRECTORY
    names = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return sorted(int(match[1]) for match in map(_ATTEMPT_FILE.fullmatch, names) if match is not None)


# The files of a job.


def datasets(job_directory: Path, job: str) -> list[Path]:
    """Return the datasets of a job, of all ranks."""
    return sorted(path for path in job_directory.glob("*") if layout.is_dataset_of(job, path.name))


def episode_files(job_directory: Path) -> Iterator[tuple[Path, int]]:
    """Yield the episode files of a job with their indices, in order; files with other names are skipped."""
    for path in sorted((job_directory / layout.EPISODES_DIRECTORY).glob(layout.EPISODE_FILE_PATTERN)):
        index = layout.episode_index_of_file(path.name)
        if index is not None and path.name == layout.episode_file_name(index):
            yield path, index


def videos_of_job(output_directory: Path, job: str) -> list[tuple[layout.VideoName, Path]]:
    """Return the videos of a job, sorted by file name."""
    directory = output_directory / job / layout.VIDEOS_DIRECTORY
    # Links are skipped: a run may come from an untrusted source, and a link's target would enter pages and exports.
    try:
        with os.scandir(directory) as entries:
            files = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    except OSError:
        # Most jobs are not filmed.
        return []
    files = [] if atomic.leads_out_of_its_run(directory) else files
    return [(said, directory / name) for name in files if (said := layout.parse_video_file_name(name)) is not None]
