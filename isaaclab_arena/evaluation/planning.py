"""The plan of a run, the rounds and pieces of its jobs, their early ends, and choices of one rank before the plan."""

import hashlib
import json
import logging
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import torch

from isaaclab_arena.config import schema
from isaaclab_arena.distributed.ranks import Ranks
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, refuse
from isaaclab_arena.evaluation import batching, policy_client, process, rollout
from isaaclab_arena.evaluation.job import OPEN_BACKEND, Job
from isaaclab_arena.evaluation.latency import Answers, continuation, in_time, refusals
from isaaclab_arena.evaluation.options import Assignment, ResultOptions, RunOptions
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.environment_builder import spelled
from isaaclab_arena.interfaces.episode import (
    Episode,
    EpisodeRanges,
    EpisodeRecord,
    Outcome,
    contain,
    count_episodes,
    cut_evenly,
    remaining_episodes,
)
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.paths import now
from isaaclab_arena.results import stopping
from isaaclab_arena.storage import layout, ledger
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.commits import CommitLine, counts_before, fresh_lines
from isaaclab_arena.storage.contents import Contents, git_revision, node, versions

_LOG = logging.getLogger(__name__)

# Deal the jobs to ranks, find those that a run compares and so interleaves, and cut their episodes into rounds: pure
# functions.


def interleaved_jobs(jobs: Sequence[Job], questions: tuple[schema.Question, ...]) -> Mapping[int, tuple[int, ...]]:
    """Map the index of each compared job to the indices of all jobs interleaved with it, itself included."""
    indices = {job.config.name: job.config.index for job in jobs}
    groups = (tuple(sorted(indices[name] for name in group)) for group in schema.compared_groups(questions))
    return {index: group for group in groups for index in group}


def first_ranks(
    assignment: Assignment, jobs: Sequence[Job], questions: tuple[schema.Question, ...], world_size: int
) -> Mapping[int, int]:
    """Map each job's index to the rank that runs it, or begins with its first share; interleaved jobs share one."""
    interleaved = interleaved_jobs(jobs, questions)
    indices = [job.config.index for job in jobs]
    return {index: assignment.first_rank(min(interleaved.get(index, (index,))), world_size) for index in indices}


def rounds_of(remaining: EpisodeRanges, size: int) -> dict[int, EpisodeRanges]:
    """Map each round to its episodes, in order; round r has the indices from r * size up to (r + 1) * size."""
    rounds: dict[int, EpisodeRanges] = {}
    for begin, end in remaining:
        for number in range(begin // size, (end - 1) // size + 1):
            part = (max(begin, number * size), min(end, (number + 1) * size))
            rounds[number] = (*rounds.get(number, ()), part)
    return rounds


# Cut the episodes of a job into the shares and pieces that ranks run. Pure functions.

_MAX_PIECES_PER_RANK = 1000
"""No piece is smaller than this part of a rank's share of the whole run: each one costs two small files."""


def split_shares(remaining: EpisodeRanges, world_size: int, *, first_rank: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into one consecutive share per rank, by rank. Sizes differ by at most one."""
    # The first share goes to `first_rank`, see `first_ranks`, and the longer shares come first. So many short
    # jobs do not all burden the same rank. Ranks beyond the number of episodes get an empty share.
    shares = cut_evenly(remaining, world_size)
    return [shares[(rank - first_rank) % world_size] for rank in range(world_size)]


def pieces_of(remaining: EpisodeRanges, *, total_remaining: int, world_size: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into consecutive pieces, which ranks claim one at a time."""
    # Eight pieces per rank, of one episode or more: an uneven end loses at most an eighth of a rank's share. In a run
    # of many jobs a piece has at least a thousandth of a rank's share of the run, so that thousands of jobs do not make
    # millions of claims. The largest piece is a whole job.
    num_episodes = count_episodes(remaining)
    smallest = max(1, total_remaining // (_MAX_PIECES_PER_RANK * world_size))
    num_pieces = min(8 * world_size, max(1, num_episodes // smallest))
    return cut_evenly(remaining, num_pieces) if num_episodes else []


# Divide the jobs of an attempt into the pieces that ranks claim. Every rank computes the same pieces.


@dataclass(frozen=True, kw_only=True)
class DividedJob:
    """A job, cut into the pieces that ranks claim."""

    job: Job
    finished: EpisodeRanges  # finished before this attempt
    # Consecutive. `((),)` if only the report is left; `(None,)` if the number of episodes is not known beforehand.
    pieces: tuple[EpisodeRanges | None, ...]
    interleaved_with: tuple[int, ...] = ()  # job indices compared with this job, its own included
    rounds: tuple[int, ...] = ()  # the round of each piece, 0 for a job that is not compared

    @cached_property
    def num_episodes(self) -> tuple[int, ...]:
        """The number of episodes of each piece, 0 if it is not known."""
        return tuple(count_episodes(piece or ()) for piece in self.pieces)


def remaining_by_job(jobs: Sequence[Job], attempt: ledger.Attempt) -> Mapping[int, EpisodeRanges | None]:
    """Map each pending job of an attempt (by index, in file order) to its remaining episodes, None if unknown."""
    # Only the policy may know the number of episodes.
    return {
        config.index: None
        if config.num_episodes is None
        else remaining_episodes(config.num_episodes, attempt.state(config.name).finished)
        for config in (job.config for job in jobs)
        if config.status is schema.JobStatus.PENDING and config.name in attempt.states
    }


def divided_jobs(
    jobs: Sequence[Job], attempt: ledger.Attempt, questions: tuple[schema.Question, ...] = ()
) -> dict[int, DividedJob]:
    """Cut the jobs of an attempt (by index, in file order) into pieces, the same on every rank."""
    # Jobs that `questions` compare are interleaved.
    interleaved = interleaved_jobs(jobs, questions)
    work = remaining_by_job(jobs, attempt)
    total = sum(count_episodes(left) for left in work.values() if left)
    divided: dict[int, DividedJob] = {}
    for index, left in work.items():
        pieces: list[EpisodeRanges | None] = []
        rounds: list[int] = []
        group = interleaved.get(index, ())
        if left and group:
            # Compared jobs advance in rounds of equal size, with at most one piece per rank in a round. A round has an
            # episode of each job for every env slot of the ranks, or more in a large run.
            smallest = total // (_MAX_PIECES_PER_RANK * attempt.world_size) * attempt.world_size
            size = max(smallest, max(jobs[each].config.num_envs for each in group) * attempt.world_size)
            for number, episodes in rounds_of(left, size).items():
                parts = cut_evenly(episodes, min(attempt.world_size, count_episodes(episodes)))
                pieces += parts
                rounds += [number] * len(parts)
        elif left:
            # Other jobs are cut by the size of the whole run.
            pieces += pieces_of(left, total_remaining=total, world_size=attempt.world_size)
        else:
            pieces.append(left)
        divided[index] = DividedJob(
            job=jobs[index],
            finished=attempt.state(jobs[index].config.name).finished,
            pieces=tuple(pieces),
            interleaved_with=group,
            rounds=tuple(rounds or [0] * len(pieces)),
        )
    return divided


# Follow the commits of a run's ranks, and find the jobs that need no further episode.

_LOOK_INTERVAL_S = 0.2


@dataclass(eq=False)
class AnswerWatch(Observer):
    """Follow the commit lines of all ranks for answers to a run's questions, and for jobs that fail by errors."""

    sees_pictures = False

    # Each line is read once. Ranks need not agree: a rank that has not seen the last line yet continues for a while.
    # Jobs without questions are read only after one of their episodes ended in an error, hence the observer.
    output_directory: Path
    questions: Sequence[schema.Question]
    _: KW_ONLY
    # True if the episode of a line will run again, so that the line does not count.
    runs_again: Callable[[CommitLine], bool] = lambda _: False
    max_equal_errors: int = 0  # equal errors in a row before the job ends; 0 for no limit
    clock: Callable[[], float] = time.monotonic  # monotonic [s]
    # By job, how many of its last episodes ended in an error, or may have: its committed lines are checked soon.
    suspects: Counter[str] = field(default_factory=Counter, init=False)
    _read_bytes: dict[Path, int] = field(default_factory=dict, init=False)
    _lines: dict[str, dict[int, CommitLine]] = field(default_factory=lambda: defaultdict(dict), init=False)
    _looked_at: dict[str, float] = field(default_factory=dict, init=False)
    _checked: set[str] = field(default_factory=set, init=False)
    _over: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._asked = {job for question in self.questions for job in question.jobs}
        self._answering = [stopping.Answering(each, num_questions=len(self.questions)) for each in self.questions]

    def look(self, *, now: bool = False) -> tuple[stopping.Answer, ...]:
        """Return the answers. Commit files are read at most every `_LOOK_INTERVAL_S`, unless `now`."""
        if self._asked and self._is_time("", now=now):
            for job in self._asked:
                self._read(job)
            for answering in self._answering:
                before = answering.answer
                answer = before if before.verdict is not None else answering.look(self._lines)
                if (answer.verdict, answer.out) != (before.verdict, before.out):
                    _LOG.info("%s", stopping.in_words(answer))
        return tuple(answering.answer for answering in self._answering)

    def needed(self, job: str) -> int | None:
        """Return the number of episodes that a job needs, None while it needs all planned ones; see `look`."""
        if not self.is_over(job):
            return None
        answered = stopping.needed_episodes(job, self.look()) if job in self._asked else None
        # A job that ended by errors needs the episodes that it has.
        return next(index for index in count() if index not in self._lines[job]) if answered is None else answered

    def is_over(self, job: str, *, now: bool = False) -> bool:
        """Whether a job needs no further episode, or more of them would end in the same error; see `look`."""
        if job in self._asked and stopping.needed_episodes(job, self.look(now=now)) is not None:
            return True
        most, in_a_row = self.max_equal_errors, self.suspects[job]
        may_end = most > 0 and in_a_row > 0 and job not in self._over
        # Unequal errors may continue for long, and are not urgent.
        if may_end and self._is_time(job, now=now or most <= in_a_row <= 2 * most):
            self._read(job)
            lines = self._lines[job]
            streak = stopping.error_streak((lines[index] for index in sorted(lines)), most)
            if streak is not None:
                self._over.add(job)
                _LOG.error("job '%s' ends early: %s", job, streak)
        return job in self._over

    def fails(self, job: str, num_episodes: int | None) -> bool:
        """Whether a job that a rank has left fails by its errors. `num_episodes` is None if unknown."""
        if not self.suspects[job]:
            return False
        # All episodes must be in before "nothing but errors" is certain.
        self.is_over(job, now=True)
        self._read(job)
        lines = self._lines[job].values()
        has_all = num_episodes is None or len(lines) == num_episodes
        return job in self._over or (has_all and stopping.nothing_but_errors(lines) is not None)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Suspect the job after an error; any other end clears the suspicion."""
        del environment
        if record.outcome is Outcome.ERROR:
            self.suspects[record.episode.job] += 1
        else:
            self.suspects[record.episode.job] = 0

    def checked_is_over(self, job: str) -> bool:
        """Return `is_over`, asked before an episode begins. ConfigError if the job does not measure success."""
        if job not in self._checked:
            # Earlier attempts may have left the lines that end the job.
            self._checked.add(job)
            self.suspects[job] += 1
        is_over = self.is_over(job)
        if job not in self._asked:
            return is_over
        line = next(iter(self._lines[job].values()), None)
        if line is not None and line.success is None and line.outcome is not Outcome.ERROR:
            message = "does not measure success; leave out the comparisons and bars that name it"
            raise ConfigError(Problem(message, job=job))
        return is_over

    def _is_time(self, what: str, *, now: bool) -> bool:
        """Whether the next read of a job is due, or, for "", of all jobs with questions."""
        at, before = self.clock(), self._looked_at.get(what)
        if not now and before is not None and at - before < _LOOK_INTERVAL_S:
            return False
        self._looked_at[what] = at
        return True

    def _read(self, job: str) -> None:
        """Read the lines of a job that its ranks have appended since the last read."""
        lines = self._lines[job]
        for line in fresh_lines(self.output_directory / job, job, self._read_bytes):
            known = lines.get(line.episode_index)
            is_older = known is not None and not counts_before(line, known)
            if self.runs_again(line) or is_older:
                continue
            lines[line.episode_index] = line
            if known is not None and job in self._asked:
                # A later attempt replaced an error, which may change earlier answers, so all of them start again.
                self._answering = [
                    stopping.Answering(each, num_questions=len(self.questions)) for each in self.questions
                ]


def answer_watch(
    output_directory: Path,
    questions: Sequence[schema.Question],
    attempt: int,
    # By job, with the episodes that do not run again; a job that is missing is complete.
    states: Mapping[str, ledger.JobState],
    max_equal_errors: int,
) -> AnswerWatch:
    """Return the watch that knows the jobs that need no further episode; see `AnswerWatch`."""
    return AnswerWatch(
        output_directory,
        questions,
        # An error of an earlier attempt that runs again does not count as finished.
        runs_again=lambda line: (
            (state := states.get(line.job)) is not None
            and (line.outcome is Outcome.ERROR and line.attempt < attempt)
            and not contain(state.finished, line.episode_index)
        ),
        max_equal_errors=max_equal_errors,
    )


# The request for a run, and its plan.

_OF_POLICY = frozenset({"policy_type", "policy_config_dict", "policy options"})
"""Keys of a job's policy, in `_changes`."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The request for a run, the same on every rank."""

    jobs: tuple[Job, ...]  # every job of the file
    config_hash: str  # of the resolved jobs
    source_file: str | None  # the job file, None for a job from the command line
    command_line: tuple[str, ...]  # as typed, one token each
    options: RunOptions  # shared by all jobs
    questions: tuple[schema.Question, ...] = ()  # about the jobs, which stop as soon as they are answered
    assignment_reason: str | None = None  # why the program chose the assignment of `options`; None if the user did
    import_s: float | None = None  # from this process's start to the program's [s], own on each rank; None if unknown

    @classmethod
    def of(cls, jobs: tuple[Job, ...], file_hash: str, **others: Any) -> Self:
        """Return the request for the jobs of a file, by the hash of the file; it also holds for saved conditions."""
        saved = [job.saved_conditions for job in jobs]
        if any(saved):
            file_hash = hashlib.sha256(json_line([file_hash, saved]).encode()).hexdigest()[:16]
        return cls(jobs=jobs, config_hash=file_hash, **others)


def plan_run(
    request: RunRequest, world_size: int, devices: Sequence[str], *, run_id: str, contents: Mapping[str, Contents]
) -> ledger.RunPlan:
    """Return the content of `run.json` before anything runs. `contents`: by name, for jobs that are to run."""
    # A job has its rank in the plan if that is assigned before the start.
    assignment = request.options.mode
    ranks = first_ranks(assignment, request.jobs, request.questions, world_size)
    entries = []
    for job in request.jobs:
        config, builder, saved = job.config, job.builder, job.saved_conditions
        # The task in results: the job's label, else the environment's task, else the environment's name.
        task = config.labels.get("task")
        if task is None:
            task = builder.task_name(job.environment_config)
        values = {name: getattr(job.environment_config, name, None) for name in ("embodiment", "object")}
        of_environment = {name: None if value is None else str(value) for name, value in values.items()}
        has_rank = assignment.deals_whole_jobs and config.status is schema.JobStatus.PENDING
        entries.append(
            ledger.PlanEntry(
                config=config,
                rank=ranks[config.index] if has_rank else None,
                task=task or config.environment,
                embodiment=builder.robot_name(job.environment_config) or of_environment["embodiment"],
                object=of_environment["object"],
                policy_config=job.policy_options,
                variations=spelled(job.variations),
                conditions_checksum=None if saved is None else zlib.crc32(json_line(saved).encode()),
                contents=contents.get(config.name),
                latency=job.delays,
            )
        )
    return ledger.RunPlan(
        run_id=run_id,
        created_at=now(),
        config_hash=request.config_hash,
        source_file=request.source_file,
        command_line=request.command_line,
        world_size=world_size,
        versions=versions(),
        git_revision=git_revision(Path.cwd()),
        machine=node(),
        devices=tuple(devices),
        jobs=tuple(entries),
        settings=request.options.result_settings(),
        questions=request.questions,
        working_directory=str(Path.cwd()),
    )


def keeping_num_envs(plan: ledger.RunPlan, before: ledger.RunPlan) -> ledger.RunPlan:
    """Return a plan with the numbers of env slots of the run so far, where the program may choose them."""
    known = {entry.name: entry.config.num_envs for entry in before.jobs}
    jobs = tuple(
        replace(entry, config=replace(entry.config, num_envs=known[entry.name]))
        if entry.config.chooses_num_envs and entry.name in known
        else entry
        for entry in plan.jobs
    )
    return replace(plan, jobs=jobs)


def resumed_plan(
    before: ledger.RunPlan, now: ledger.RunPlan, *, has_recorded: Callable[[str], bool]
) -> tuple[ledger.RunPlan, list[Problem]]:
    """Return the plan of a resumed run, the same object if nothing changes, and a problem per key that forbids it."""
    # An option that an earlier version lacked had its default.
    settings = {**ResultOptions().result_settings(), **before.settings}
    problems = [
        Problem(f"was {_shown(settings.get(name))} when the run began, now {_shown(value)}", key=f"--{name}")
        for name, value in now.settings.items()
        if settings.get(name) != value
    ]
    if before.questions != now.questions:
        problems.append(Problem("have changed since the run began", key="comparisons and bars"))
    known = {job.name: job for job in before.jobs}
    wanted = {job.name: job for job in now.jobs}
    problems += [Problem("is new", job=name) for name in wanted if name not in known]
    problems += [Problem("is missing now", job=name) for name in known if name not in wanted]

    revised: dict[str, ledger.PlanEntry] = {}
    for name, new in wanted.items():
        old = known.get(name)
        if old is None:
            continue
        changed, config, policy_config = _changes(old, new), old.config, old.policy_config
        for key, (was, is_now) in changed.items():
            # Another num_envs may be allowed, which only the built job shows. A job that has recorded nothing may have
            # another policy.
            if key == "num_envs" or (key in _OF_POLICY and not has_recorded(name)):
                continue
            why = ""
            if key == "num_episodes" and None not in (was, is_now):
                # A job may grow.
                if was < is_now and config.num_rebuilds == 1:
                    continue
                why = "; more of them would be other rebuilds" if was < is_now else "; a run may grow, but not shrink"
            message = f"was {_shown(was)} when the run began, now {_shown(is_now)}{why}"
            problems.append(Problem(message, job=name, key=key))
        if "num_episodes" in changed:
            config = replace(config, num_episodes=new.config.num_episodes)
        if changed.keys() & {*_OF_POLICY, "num_envs"} and not has_recorded(name):
            # No result depends on them yet.
            config = replace(
                config,
                policy_type=new.config.policy_type,
                policy_config_dict=new.config.policy_config_dict,
                num_envs=new.config.num_envs,
            )
            policy_config = new.policy_config
        revised[name] = replace(old, config=config, policy_config=policy_config)
    jobs = tuple(revised.get(job.name, job) for job in before.jobs)
    if jobs == before.jobs:
        return before, problems
    # The hash stays that of the first plan, which marks the run's recordings.
    origin = {name: getattr(now, name) for name in ("source_file", "command_line", "working_directory")}
    return replace(before, jobs=jobs, **origin), problems


def _changes(before: ledger.PlanEntry, now: ledger.PlanEntry) -> dict[str, tuple[Any, Any]]:
    """Map each key that differs between two entries of a job to both values; keys without effect are left out."""
    apart = {*schema.WITHOUT_RESULT, "num_envs"}
    old, new = (
        {
            **asdict(entry.config),
            # The server has no effect on results, but its device has, as that of any network.
            "policy_server.device": entry.config.policy_server and entry.config.policy_server.device,
            "policy options": {key: value for key, value in entry.policy_config.items() if key not in apart},
            # The latency measured when the run began stays, whatever would be measured now.
            "latency in steps": None if now.latency is None else entry.latency,
            "saved conditions": entry.conditions_checksum,
        }
        for entry in (before, now)
    )
    pairs = {key: (old[key], new[key]) for key in sorted(old.keys() - schema.WITHOUT_RESULT)}
    # The values are compared as read back from a file, so that a tuple equals a list.
    as_read = {key: [json.loads(json_line(each)) for each in pair] for key, pair in pairs.items()}
    return {key: pair for key, pair in pairs.items() if as_read[key][0] != as_read[key][1]}


def _shown(value: Any) -> str:
    text = json_line(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


# Choose the backend of each job of a run, once, on one rank for all, before the plan is written.
#
# Ranks that timed the backends separately could choose different physics, and so could the groups of a job's env slots.

_ON_CPU = "mujoco"
_ON_GPU = "warp"


@dataclass(frozen=True, kw_only=True)
class Machinery:
    """The devices and threads that the ranks simulate with."""

    devices: tuple[str, ...]  # by rank
    num_threads: int  # of the physics on the rank that measures
    num_groups: int = 1  # groups of a job's env slots
    # Whether this process can measure for the ranks. The head of a cluster may lack the GPUs that its ranks have.
    measures: bool = True


def settle_backends(
    jobs: Sequence[Job],
    machinery: Machinery,
    *,
    known: Mapping[str, str] | None = None,
    watch: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> dict[str, str]:
    """Map each pending job to its backend; jobs whose environment has no choice are left out."""
    measured: dict[str, str] = {}
    settled: dict[str, str] = {}
    # A job keeps the backend that it names, or that the run began with. An open one is MuJoCo unless every rank has a
    # GPU; then the faster one is measured, once for equal environments, if this process can. `watch` is entered during
    # it.
    for job in jobs:
        asked, name = job.asked_backend, job.config.name
        if asked is None or job.config.status is not schema.JobStatus.PENDING:
            continue
        if asked != OPEN_BACKEND:
            settled[name] = asked
        elif known is not None and name in known:
            settled[name] = known[name]
        elif any(torch.device(device).type != "cuda" for device in machinery.devices):
            settled[name] = _ON_CPU
        elif not machinery.measures:
            _LOG.warning(
                "job '%s' runs on %s: the faster backend is measured where the run starts, which has no GPU; "
                "'backend: %s' in its arena_env_args chooses the other one",
                name,
                _ON_CPU,
                _ON_GPU,
            )
            settled[name] = _ON_CPU
        else:
            key, num_envs = job.environment_key, job.config.num_envs
            if key not in measured:
                largest = rollout.group_sizes(num_envs, min(machinery.num_groups, num_envs))[0]
                with watch(name):
                    try:
                        measured[key] = job.builder.faster_backend(
                            job.environment_config,
                            num_envs=largest,
                            device=torch.device(machinery.devices[0]),
                            num_threads=machinery.num_threads,
                            variations=job.variations,
                        )
                    except ArenaError as error:
                        # The job will fail with this error when it is built, without the others.
                        _LOG.debug("job '%s' cannot be measured: %s", name, error)
                        measured[key] = _ON_CPU
            settled[name] = measured[key]
    return settled


def refuse_slow_backends(jobs: Sequence[Job], settled: Mapping[str, str | None], machinery: Machinery) -> None:
    """Refuse to resume jobs without GPUs that were settled on MuJoCo-Warp because there were GPUs."""
    # `settled`: the backend of each job that runs. On a CPU MuJoCo-Warp is several times slower than MuJoCo, and the
    # user did not ask for it there.
    left_open = {job.config.name for job in jobs if job.asked_backend == OPEN_BACKEND}
    slow = [name for name, backend in settled.items() if backend == _ON_GPU and name in left_open]
    without = dict.fromkeys(device for device in machinery.devices if torch.device(device).type != "cuda")
    if slow and without:
        message = (
            f"has used MuJoCo-Warp since the run began on GPUs, and now ranks use {', '.join(without)}; resume with a "
            "GPU for every rank, or start a new run"
        )
        raise ConfigError([Problem(message, job=name, key="arena_env_args.backend") for name in slow])


# Measure how long a policy's queries take, once, on one rank for all, before the plan is written.
#
# Ranks that measured separately would play different episodes, and so would a run that is resumed.

NUM_QUERIES = 40
QUANTILE = 95
"""Up to which quantile of the measured times answers are late [%]."""

Asked: TypeAlias = Callable[[Job], AbstractContextManager[PolicyBase]]
"""Builds a job's policy for a ``with`` block."""


def settle_latencies(
    jobs: Sequence[Job],
    machinery: Machinery,
    *,
    known: Mapping[str, schema.Delays],
    asked: Asked = lambda job: closing(job.build_policy()),
    watch: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> dict[str, schema.Delays]:
    """Map each job with a measured latency to its delays; `ConfigError` if it cannot be measured or is too long."""
    # `known`: measured when the run began; it stays. `asked` builds the policy. `watch` is entered during a
    # measurement.
    settled: dict[str, schema.Delays] = {}
    problems: list[Problem] = []
    for job in jobs:
        name, latency = job.config.name, job.config.latency
        if job.config.status is not schema.JobStatus.PENDING or latency is None or not latency.measured:
            continue
        if name in known:
            settled[name] = known[name]
            continue
        if not machinery.measures:
            message = "is measured where the run starts, which has no GPU, but its ranks use "
            message += f"{machinery.devices[0]}: give steps, ms or a file of measured times"
            problems.append(Problem(message, job=name, key="latency"))
            continue
        one, device = job.with_num_envs(1, policy_num_envs=1), torch.device(machinery.devices[0])
        meanwhile = latency.meanwhile
        continues = meanwhile is schema.Meanwhile.RTC
        with watch(name):
            try:
                with process.put_back(f"job '{name}'"):
                    environment = one.build_environment(device=device, num_threads=machinery.num_threads)
                    with closing(environment), asked(one) as policy:
                        answers = Answers(policy, waits=meanwhile is schema.Meanwhile.WAIT)
                        times_ms = query_times_ms(policy, answers, environment, continues=continues)
                        delays = in_time(without_outliers(times_ms), environment.control_dt)
                        refused = refusals(delays, meanwhile, environment, traits=answers.traits)
            except Exception as error:  # noqa: BLE001  the job will fail with this error itself, without the others
                _LOG.debug("job '%s' cannot be measured: %s", name, error)
                continue
        settled[name] = delays
        middle, high, longest = np.percentile(times_ms, (50, QUANTILE, 100))
        quantiles = f"{middle:.1f} ms (p50), {high:.1f} ms (p{QUANTILE}), {longest:.1f} ms (longest of {len(times_ms)})"
        problems += [replace(each, job=name, message=f"{each.message}; measured here: {quantiles}") for each in refused]
        _LOG.info("job '%s': its policy's answers take %s here; %s", name, delays, quantiles)
    refuse(problems)
    return settled


def without_outliers(times_ms: Sequence[float]) -> list[float]:
    """Return the times with those above the quantile `QUANTILE` reduced to it."""
    # The longest time decides how long a chunk has to last. Without this, a single disturbed query would decide it.
    most = float(np.percentile(times_ms, QUANTILE, method="higher"))
    return [min(each, most) for each in times_ms]


@torch.no_grad()
def query_times_ms(
    policy: PolicyBase, answers: Answers, environment: Environment, *, continues: bool = False
) -> list[float]:
    """Return the durations of a policy's queries about made-up observations [ms]."""
    # The environment has one env slot, and is neither reset nor stepped. `continues`: whether each chunk continues the
    # one before, which takes a network longer.
    num_warm_up, seed = 3, 2_506_073
    generator = np.random.default_rng(seed)
    going_on, times_ms = None, []
    continues = continues and answers.traits.can_continue
    policy.check_environment(environment)
    for number in range(num_warm_up + NUM_QUERIES):
        episode = Episode(job="measured latency", episode_index=number, seed=seed)
        conditions = environment.draw_conditions(episode.conditions_generator())
        words = environment.instruction(conditions)
        start = EpisodeStart(env_id=0, episode=episode, conditions=conditions, language_instruction=words)
        policy.start_episodes(environment, [start])
        observation = batching.made_up(environment.observation_spec, 1, generator, environment.device)
        began_s = time.perf_counter()
        answers.look(environment, observation, [0])
        chunks = answers.chunks(environment, observation, [0], going_on)
        times_ms.append(1000.0 * (time.perf_counter() - began_s))
        if continues:
            going_on = continuation(chunks, torch.tensor([answers.traits.played // 2]), committed=1)
    return times_ms[num_warm_up:]


# Give each rank the settled backends and delays of its jobs, and the addresses of the policy servers that they share.


def with_num_envs(jobs: Sequence[Job], num_envs: Mapping[str, int | None], policy_batch: int | None) -> tuple[Job, ...]:
    """Return the jobs with these numbers of env slots, by name, where the program may choose them."""
    chosen = []
    for job in jobs:
        own = num_envs.get(job.config.name) if job.config.chooses_num_envs else None
        if own is None:
            chosen.append(job)
        else:
            in_a_call = batching.batch_of(job.policy_traits, policy_batch, num_envs=own)
            chosen.append(job.with_num_envs(own, policy_num_envs=in_a_call))
    return tuple(chosen)


def settled_jobs(jobs: Sequence[Job], attempt: ledger.Attempt, policy_batch: int | None = None) -> tuple[Job, ...]:
    """Return the jobs with the settled choices, as every rank of an attempt runs them."""
    states = [attempt.state(job.config.name) for job in jobs]
    jobs = with_num_envs(jobs, {own.job: own.chosen_num_envs for own in states}, policy_batch)
    return tuple(job.with_settled(own.backend, own.latency) for job, own in zip(jobs, states, strict=True))


@contextmanager
def running_policy_servers(
    jobs: Sequence[Job], to_run: Collection[str], options: RunOptions, ranks: Ranks, output_directory: Path
) -> Iterator[Mapping[schema.PolicyServerConfig, policy_client.ServerAddress]]:
    """Run the jobs' policy servers within a `with` block that all ranks enter; yields their addresses."""
    # Every rank lists the same servers and networks in the same order.
    asking: dict[schema.PolicyServerConfig, list[Job]] = {}
    for job in jobs:
        if job.config.policy_server is not None and job.config.name in to_run:
            asking.setdefault(job.config.policy_server, []).append(job)
    orders = {config: _orders(config, its_jobs, options) for config, its_jobs in asking.items()}

    addresses: dict[schema.PolicyServerConfig, policy_client.ServerAddress] = {}
    context = ranks.context
    with ExitStack() as running:
        for number, config in enumerate(orders):
            # The first rank of a node, or of the run, starts a server, watches it and stops it.
            owner = 0 if config.shared is schema.ServerScope.RUN else context.rank - context.local_rank
            own = ""
            if owner == context.rank:
                # Ranks on other nodes find the server by the name of rank 0's machine.
                host, is_one_node = None, context.world_size == context.local_world_size
                is_for_others = config.shared is not schema.ServerScope.NODE and not is_one_node
                if is_for_others and context.master_address is not None:
                    host = context.master_address.rpartition(":")[0]
                log_file = output_directory / "logs" / f"policy_server{number}_rank{owner}.log"
                server = running.enter_context(
                    closing(policy_client.PolicyServer(orders[config], host=host, log_file=log_file))
                )
                own = json.dumps(asdict(server.address))
            address = ranks.gather(f"address of policy server {number}", own)[owner]
            addresses[config] = policy_client.ServerAddress(**json.loads(address))
            _LOG.debug("policy server %d is rank %d's, at %s", number, owner, addresses[config])
        yield addresses


@contextmanager
def policy_as_served(job: Job, options: RunOptions, output_directory: Path) -> Iterator[PolicyBase]:
    """Build a job's policy for a `with` block, with a policy server of its own if the job has one."""
    config = job.config.policy_server
    with ExitStack() as running:
        if config is None:
            yield running.enter_context(closing(job.build_policy()))
            return
        orders = _orders(config, [job], options)
        # The next start clears away a file of this name if this process dies.
        log_file = output_directory / f".{layout.RUN_PLAN_FILE}.policy_server.tmp"
        running.callback(log_file.unlink, missing_ok=True)
        server = running.enter_context(closing(policy_client.PolicyServer(orders, host=None, log_file=log_file)))
        network = running.enter_context(closing(policy_client.ServedNetwork(server.address, job.network_key)))
        yield running.enter_context(closing(job.build_policy(network)))


def _orders(config: schema.PolicyServerConfig, jobs: Sequence[Job], options: RunOptions) -> policy_client.ServerOrders:
    """Return the orders to the policy server of these jobs."""
    networks: dict[str, policy_client.NetworkOrder] = {}
    for job in jobs:
        asked = dict(job.policy_options)
        if "num_envs" in asked:
            # The same on every rank, whatever its number of env slots.
            asked["num_envs"] = config.max_batch
        device = config.device or options.policy_device
        if device is not None:
            asked[policy_client.DEVICE_OPTION] = device
        networks[job.network_key] = policy_client.NetworkOrder(policy_type=job.config.policy_type, options=asked)
    return policy_client.ServerOrders(
        networks=networks,
        max_batch=config.max_batch,
        max_wait_ms=config.max_wait_ms,
        torch_threads=options.torch_threads,
        deterministic=options.deterministic,
    )
