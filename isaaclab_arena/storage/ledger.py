"""The ledger of a run in its directory: place and lock, plan, attempts, reports of ranks and the files of its jobs."""

import errno
import fcntl
import logging
import os
import re
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase, translate
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from isaaclab_arena.config.schema import Delays, JobConfig, JobStatus, Question, name_problem
from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.interfaces.episode import EpisodeRanges, Metric
from isaaclab_arena.paths import beside, make_dated_directory, now
from isaaclab_arena.storage import atomic, layout
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
            way_out = "resume it with isaaclab-arena resume, or " if (path / layout.RUN_PLAN_FILE).is_file() else ""
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


_MOMENT_S = 0.05


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
        mode = (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB
        try:
            # `is_in_use` holds the lock for a moment, so a second try decides.
            try:
                fcntl.flock(self.descriptor, mode)
            except BlockingIOError:
                time.sleep(_MOMENT_S)
                fcntl.flock(self.descriptor, mode)
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


def is_in_use(directory: Path) -> bool:
    """Whether a process holds the lock of a directory; those of a killed program end a little after it."""
    if not (directory / layout.LOCK_FILE).is_file():
        return False
    # A reader that may not write the lock file cannot know.
    with suppress(StorageError), RunLock(directory) as lock:
        try:
            lock.hold(alone=True)
        except ConfigError:
            return True
    return False


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
    ("the run is merged", "tables, results.json, then report.html", "old tables are written again"),
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


RUNNERS = {"isaaclab_arena.evaluation.eval_runner": "run", "isaaclab_arena.evaluation.policy_runner": "policy"}
"""Modules that begin runs, each with its command of ``isaaclab-arena``."""


def typed_command(plan: RunPlan) -> str | None:
    """Return the line to type for the same run: ``isaaclab-arena run jobs.yaml``. None for a run of Python's."""
    program, *words = plan.command_line or ("",)
    if program not in RUNNERS:
        return None
    # A cluster starts its ranks itself, and the launcher of several machines is not known.
    on_cluster = any(word.partition("=")[0] == "--cluster" for word in words)
    ranks = [] if on_cluster else rank_options(plan.devices) or []
    return shlex.join(["isaaclab-arena", RUNNERS[program], *ranks, *words])


def rank_options(devices: Sequence[str]) -> list[str] | None:
    """Return the options that start ranks on these devices, none for one rank. None if it takes several machines."""
    if len(devices) < 2:
        return []
    if set(devices) == {"cpu"}:
        return ["--nproc_per_node", str(len(devices))]
    indices = [match[1] for device in devices if (match := re.fullmatch(r"cuda:(\d+)", device))]
    return ["--gpu_ids", ",".join(indices)] if len(set(indices)) == len(devices) else None


def write_run_plan(output_directory: Path, plan: RunPlan, *, revises: bool = False) -> Path:
    """Write ``run.json`` and its copy, and return its path. StorageError if there is one that this does not revise."""
    path, copy = output_directory / layout.RUN_PLAN_FILE, output_directory / layout.PLAN_COPY_FILE
    # The copy of a revised plan comes first: it replaces a lost plan, and must never know of fewer episodes.
    for each in (copy, path) if revises else (path, copy):
        atomic.write_text(each, atomic.json_text(plan), overwrite=revises or each is copy)
    return path


def read_run_plan(output_directory: Path) -> RunPlan:
    """Read ``run.json``. ConfigError if it is missing, damaged, of another version, or holds an invalid job name."""
    path = output_directory / layout.RUN_PLAN_FILE
    if not path.is_file():
        is_lost = (output_directory / layout.PLAN_COPY_FILE).is_file()
        what = "it is lost; isaaclab-arena recover restores it" if is_lost else "it is not the output of a run"
        message = f"holds no {layout.RUN_PLAN_FILE}: {what}{'' if is_lost else near_run(output_directory)}"
        raise ConfigError(Problem(message, file=str(output_directory)))
    try:
        return _read_plan(path)
    except ConfigError as error:
        # The error names the recovery only if the copy is readable.
        try:
            read_plan_copy(output_directory)
        except ConfigError:
            raise error from None
        mend = Problem("isaaclab-arena recover restores it from its copy", file=str(path))
        raise ConfigError([*error.problems, mend]) from error


def near_run(directory: Path) -> str:
    """Return ``"; did you mean 'x'?"`` for the newest run in a directory, or one beside it; empty if there is none."""
    if not directory.exists():
        return beside(directory)
    # The parent of dated directories is easily taken for a run.
    plans = [path for path in directory.glob(f"*/{layout.RUN_PLAN_FILE}") if path.is_file()]
    newest = max(plans, key=lambda path: (path.stat().st_mtime, path.parent.name), default=None)
    return "" if newest is None else f"; did you mean '{newest.parent}'?"


def _read_plan(path: Path) -> RunPlan:
    plan = atomic.read_versioned(path, RunPlan, SCHEMA_VERSION)
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
        way_out = "run the job file again in a new directory; recordings can still be replayed"
        raise ConfigError(Problem(f"is missing too; {way_out}", file=str(path)))
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
    return atomic.read_versioned(path, SettledBatch, SCHEMA_VERSION).policy_batch if path.exists() else None


def settle(job_directory: Path, policy_batch: int) -> int:
    """Settle the batch of a job unless another rank has done so, and return the batch in effect."""
    path, text = job_directory / layout.SETTLED_FILE, atomic.json_text(SettledBatch(policy_batch=policy_batch))
    temporary = atomic.temporary_path(path)
    atomic.write_text(temporary, text, overwrite=True)
    try:
        # A link is created atomically, and fails if the file exists: only one rank settles.
        with suppress(FileExistsError):
            os.link(temporary, path)
    except OSError:
        # This file system has no links. Ranks that race here all write the same content.
        with suppress(atomic.FileThereError):
            atomic.write_text(path, text)
    finally:
        temporary.unlink(missing_ok=True)
    settled = read_settled(job_directory)
    return policy_batch if settled is None else settled


# ``attempts/attempt_<n>.json``: one start of the program on a run, and the episodes finished before it.
#
# The plan in ``run.json`` defines the run; an attempt records its ranks and its time. All ranks of an attempt read the
# finished episodes from this file, so they agree on the rest without communication.

_ATTEMPT_FILE = re.compile(r"attempt_([1-9]\d{0,5})\.json", re.ASCII)

INSTEAD_OF_ATTEMPT = "run.json and the recordings hold the versions"
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
    chosen_num_envs: int | None = None  # env slots that the program chose; None if the job names them


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
    assignment_reason: str | None = None  # why the program chose it; None if the user did, and in earlier files
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
    atomic.write_text(path, atomic.json_text(attempt))
    return path


def read_attempt(output_directory: Path, number: int) -> Attempt:
    """Read an attempt's file. StorageError if it is missing, ConfigError if it is damaged or of another version."""
    path = attempt_path(output_directory, number)
    if not os.path.lexists(path):
        raise StorageError(f"{path} is missing; the run's directory was changed by something else")
    return atomic.read_versioned(path, Attempt, SCHEMA_VERSION)


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


# The reports of ranks, and the conclusions from a run's files: jobs' standings, fresh tables, a verification.

# ``job_report_rank<r>.json``: the result of a job on a rank, written when the rank leaves the job.
#
# Until then ``job_begun_rank<r>_attempt<n>.json`` states what the rank guarantees, so the rank may die at any moment.

MAX_QUERY_TIMES = 512  # the most query times that a report holds


class ReportedStatus(StrEnum):
    """The end of a job on a rank. ``BEGUN``: the job is built there and has not ended yet."""

    BEGUN = "begun"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Reproducible(StrEnum):
    """The promise of a rerun of the job: the same bits, or the same episodes and conditions."""

    BITWISE = "bitwise"
    PLAN = "plan"


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """Time before a job's first control step, by phase [s]. None for a phase that the job did not reach."""

    # Phases do not overlap. All but `import_s` are part of the job's `wall_s`.
    #
    # From the start of the process to that of the program. 0 for later jobs of a process, None if unknown.
    import_s: float | None = None
    compile_s: float = 0.0  # Warp compiles kernels and loads those
    kernel_wait_s: float = 0.0  # waits while another process of the machine compiles kernels
    kernel_load_s: float = 0.0  # Warp loads kernels that were compiled before
    build_environment_s: float | None = None  # builds or reuses the environment, without kernels
    build_policy_s: float | None = None  # the same for the policy
    first_reset_s: float | None = None  # from there to the start of the first episodes, without kernels
    first_step_s: float | None = None  # from there to the first control step, without kernels


@dataclass(frozen=True, kw_only=True)
class ServerUsage:
    """The share of a policy server that a rank's queries took; the sum over all ranks is the server's total."""

    queries: int = 0
    entries: int = 0  # batch entries of the queries
    calls: float = 0.0  # forward passes; a pass for several queries is shared among them
    call_entries: float = 0.0  # batch entries of the passes, padding included, shared in the same way
    queue_s: float = 0.0  # from the arrival of a query to its first pass [s]
    busy_s: float = 0.0  # duration of the passes [s], shared in the same way
    seen_s: float = 0.0  # from the rank's first answer to its last [s]
    seen_busy_s: float = 0.0  # duration of all passes of the server in that time, for any rank [s]
    seen_entries: int = 0  # batch entries that the server answered in that time, for any rank

    def __add__(self, other: "ServerUsage") -> "ServerUsage":
        return ServerUsage(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __sub__(self, other: "ServerUsage") -> "ServerUsage":
        return ServerUsage(**{name: value - getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class QueryPace:
    """The rate at which a policy is queried for an env slot while the simulation waits for its answers."""

    steps: int  # control steps between two queries
    control_dt: float  # control step [s]


@dataclass(frozen=True, kw_only=True)
class RecordedEntries:
    """The entries of a recorded array, as its environment declares them; None for what it does not say."""

    names: tuple[str, ...] | None = None
    unit: str | None = None
    low: tuple[float | None, ...] | None = None  # least values, None for an entry without a bound
    high: tuple[float | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """The result of a job on one rank. Optional fields are None in files of earlier versions too."""

    job: str
    rank: int
    device: str
    status: ReportedStatus
    started_at: str
    ended_at: str
    wall_s: float  # start to end [s]; the sum of the following
    build_s: float = 0.0  # build of environment and policy, kernels included
    simulate_s: float = 0.0  # physics
    policy_s: float = 0.0  # policy
    render_s: float = 0.0  # images
    record_s: float = 0.0  # recording
    idle_s: float = 0.0  # the rest
    start_up: StartUp | None = None
    env_steps: int = 0  # control steps, summed over running env slots
    # Images rendered for policies, one for each env slot and each term of ``camera_obs``.
    pictures_drawn: int | None = None
    pictures_looked_at: int | None = None  # images that a policy or an observer declared it would use
    num_episodes: int | None = None  # planned episodes, once known; None for a job limited by steps
    cut_episodes: int = 0  # running episodes that a step limit or an interruption ended
    reproducible: Reproducible | None = None  # None if the job was never built
    plan_because: str | None = None  # the reason for ``plan``, in one line; None for ``bitwise``
    remarks: tuple[str, ...] = ()  # observations of the rank that its numbers do not show, one line each
    policy_batch: int | None = None  # env slots in one policy query; None if the number has no effect
    policy_server: ServerUsage | None = None  # None without a policy server
    # Sample of the query times [s], at most `MAX_QUERY_TIMES`. None for a job without latency.
    query_s: tuple[float, ...] | None = None
    query_pace: QueryPace | None = None  # None for a job without latency, or if the simulation does not wait
    processor: str | None = None  # processor model
    device_kind: str | None = None  # ``cpu``, or ``cuda`` with the GPU's name
    # Simulator as the environment describes it. None if the job was never built.
    simulated_by: Mapping[str, str] | None = None
    metrics: tuple[Metric, ...] = ()  # as environment and policy declare them
    # Actions and observations by their path in recordings. None if the job was never built.
    entries: Mapping[str, RecordedEntries] | None = None
    error: str | None = None  # one line
    traceback_file: str | None = None  # relative to the output directory
    attempt: int = 1  # start of the program on this run, from 1
    run: str | None = None  # id of the run
    schema_version: int = SCHEMA_VERSION


def write_job_report(job_directory: Path, report: JobReport) -> Path:
    """Write a report atomically beside earlier reports of this rank, and return its path."""
    begun = job_directory / f"job_begun_rank{report.rank}_attempt{report.attempt}.json"
    if report.status is ReportedStatus.BEGUN:
        atomic.write_text(begun, atomic.json_text(report), overwrite=True)
        return begun
    # The report replaces the begun file only after it is in place: a kill in between leaves both, not neither.
    for life in range(MAX_LIVES):
        path = job_directory / f"job_report_rank{report.rank}{f'_life{life}' if life else ''}.json"
        if not path.exists():
            atomic.write_text(path, atomic.json_text(report))
            with atomic.storage_errors("remove", begun):
                begun.unlink(missing_ok=True)
            return path
    raise StorageError(f"{job_directory} holds {MAX_LIVES} reports of rank {report.rank} already")


def write_failed_report(job_directory: Path, job: str, error: str, attempt: Attempt, rank: int) -> None:
    """Log and report a job that failed outside its episodes; its times are unknown. `error` is one line."""
    _LOG.error("job '%s' has failed: %s", job, error)
    at, device = now(), attempt.devices[rank]
    times: dict[str, Any] = {"started_at": at, "ended_at": at, "wall_s": 0.0}
    where: dict[str, Any] = {"rank": rank, "device": device, "attempt": attempt.number, "run": attempt.run}
    write_job_report(job_directory, JobReport(job=job, status=ReportedStatus.FAILED, error=error, **where, **times))


def read_job_reports(
    job_directory: Path, job: str, run: str | None = None, *, skip_unreadable: bool = True
) -> tuple[list[JobReport], list[tuple[Path, str]]]:
    """Return the reports of a job by attempt, rank and time, and each unreadable file with its reason."""
    reports: list[JobReport] = []
    unread: list[tuple[Path, str]] = []
    # `run` None accepts the reports of every run.
    for path in sorted([*job_directory.glob(layout.JOB_REPORT_PATTERN), *job_directory.glob(layout.JOB_BEGUN_PATTERN)]):
        try:
            report = atomic.read_versioned(path, JobReport, SCHEMA_VERSION)
        except ConfigError as error:
            unread.append((path, str(error)))
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                # The rank ended between the glob and the read; its final report is there.
                continue
            if not skip_unreadable:
                raise
            unread.append((path, str(error)))
        else:
            if report.job != job:
                unread.append((path, f"{path}: is of job '{report.job}'"))
            elif None not in (run, report.run) and report.run != run:
                unread.append((path, f"{path}: is of another run"))
            else:
                reports.append(report)
    # A begun file counts only until the same rank and attempt has reported its end.
    ended = {(each.rank, each.attempt) for each in reports if each.status is not ReportedStatus.BEGUN}
    counted = [
        each
        for each in sorted(reports, key=lambda each: (each.attempt, each.rank, each.started_at))
        if each.status is not ReportedStatus.BEGUN or (each.rank, each.attempt) not in ended
    ]
    return counted, unread


# The standing of a job from its files: the one rule for a resume, for a merge, and for the view of a running job.


class JobResultStatus(StrEnum):
    """The state of a job, according to its files."""

    # INTERRUPTED: by a signal, or its rank died after the begin. MISSING: no trace. SKIPPED: excluded by the job file.
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    MISSING = "missing"
    SKIPPED = "skipped"

    @property
    def in_words(self) -> str:
        """The state as a verb, for a sentence about a job."""
        return {"interrupted": "was interrupted", "missing": "never started", "skipped": "was skipped"}.get(self, self)


def job_standing(
    job: PlanEntry,
    finished: Collection[int],
    reports: Sequence[JobReport],
    *,
    needed: int | None = None,
    has_parts: bool = False,
) -> tuple[JobResultStatus, int | None, tuple[int, ...]]:
    """Return the state of a job, its planned number of episodes, and the indices of those that it lacks."""
    # `needed` is the number of episodes its questions need, None for all; later ones are not missing. The planned
    # number is None if steps decide, or no rank has reported it.
    said = (report.num_episodes for report in reports if report.num_episodes is not None)
    planned = job.config.num_episodes if job.config.num_episodes is not None else next(said, None)
    last = max((report.attempt for report in reports), default=0)
    ended = {report.status for report in reports if report.attempt == last} - {ReportedStatus.BEGUN}
    if planned is None or not job.is_to_run:
        missing, is_complete = (), ended == {ReportedStatus.COMPLETED}
    else:
        owed = planned if needed is None else min(planned, needed)
        # A job of known length is complete with its last episode. Its begin reports already state what its results
        # guarantee, so a rank may die between its last episode and its report. Episode files outside a dataset
        # (`has_parts`) still need consolidation.
        missing = tuple(index for index in range(owed) if index not in finished)
        is_promised = not has_parts and any(report.reproducible is not None for report in reports)
        is_complete = not missing and (ReportedStatus.COMPLETED in ended or is_promised)
    if ReportedStatus.FAILED in ended:
        status = JobResultStatus.FAILED
    elif is_complete:
        status = JobResultStatus.COMPLETED
    elif reports or finished:
        status = JobResultStatus.INTERRUPTED
    else:
        status = JobResultStatus.MISSING if job.is_to_run else JobResultStatus.SKIPPED
    return status, planned, missing


def sizes_of_sources(output_directory: Path) -> dict[str, int]:
    """Return the size of each commit file and report of a run [bytes]."""
    # These files only grow, so equal sizes mean equal files. Modification times are not compared: clocks are set back.
    patterns, sizes = (layout.COMMIT_FILE_PATTERN, layout.JOB_REPORT_PATTERN, layout.JOB_BEGUN_PATTERN), {}
    for directory in _entries(output_directory):
        try:
            is_directory = directory.is_dir()
        except OSError:
            # A link in a loop.
            is_directory = False
        for file in _entries(directory) if is_directory else ():
            if any(fnmatchcase(file.name, pattern) for pattern in patterns):
                sizes[f"{directory.name}/{file.name}"] = file.stat(follow_symlinks=False).st_size
    return dict(sorted(sizes.items()))


def _entries(directory: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    # A run has as many directories as jobs, and waiting ranks scan them: `Path` would be too slow.
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return []


RESULTS_FILE = "results.json"
"""The table that is written last."""


def tables_are_current(output_directory: Path) -> bool:
    """Whether the tables exist and no rank has written an episode or a report since."""
    try:
        document = atomic.read_json(output_directory / RESULTS_FILE)
    except StorageError:
        return False
    return isinstance(document, dict) and document.get("sources") == sizes_of_sources(output_directory)


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
    is_sound: bool  # the files are whole and no episode differs unexpectedly
    schema_version: int = SCHEMA_VERSION

    def in_words(self) -> str:
        """Return the result as one sentence."""
        findings = [f"the files of {self.num_episodes:,} episodes are whole"]
        if self.problems:
            first, *others = self.problems
            findings = [f"defects in the files: {first}" + (f", and {len(others)} more" if others else "")]
        bitwise = [each for each in self.episodes if each.is_bitwise]
        ended = [each for each in self.episodes if each.is_same and not each.is_bitwise]
        if not self.episodes:
            findings.append("no episode ran again")
        again, most = f"{len(bitwise)} of {len(self.episodes)} episodes repeated bit for bit", 12
        for said, episodes in ((again, bitwise), (f"{len(ended)} ended the same", ended)):
            by_job: dict[str, list[str]] = {}
            for each in episodes[:most]:
                by_job.setdefault(each.job, []).append(str(each.episode_index))
            named = [f"{job} {', '.join(indices)}" for job, indices in by_job.items()]
            if episodes:
                findings.append(f"{said} ({'; '.join([*named, *(['…'] if len(episodes) > most else [])])})")
        findings += [f"{each.job} {each.episode_index} {each.verdict}" for each in self.episodes if not each.is_same]
        return "; ".join(findings)


def write_verification(output_directory: Path, verification: RunVerification) -> None:
    """Write ``verification.json`` atomically, over an earlier one."""
    atomic.write_text(output_directory / layout.VERIFICATION_FILE, atomic.json_text(verification), overwrite=True)


def read_verification(output_directory: Path) -> RunVerification | None:
    """Return the last verification, None if the run was never verified. ConfigError if the file is damaged."""
    path = output_directory / layout.VERIFICATION_FILE
    return atomic.read_versioned(path, RunVerification, SCHEMA_VERSION) if path.is_file() else None
