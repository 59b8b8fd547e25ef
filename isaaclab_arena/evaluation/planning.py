"""The plan of a run, the turns and pieces of its jobs, and the answered ones."""

import dataclasses
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isaaclab_arena.config.schema import WITHOUT_RESULT, JobStatus, Question, compared_groups
from isaaclab_arena.episode_ranges import EpisodeRanges, contain, count_episodes, cut, remaining_episodes
from isaaclab_arena.errors import Problem
from isaaclab_arena.evaluation import provenance
from isaaclab_arena.evaluation.console import show_results, speaks_for_all
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.options import Assignment, RunOptions
from isaaclab_arena.interfaces.environment_builder import Sampler, SamplerType, spelled
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.paths import now
from isaaclab_arena.results.commit_watch import AnswerWatch
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.ledger import Attempt, CommitLine, PlanEntry, RunPlan

# Find the jobs that take turns because a run compares them, and cut their episodes into rounds: pure functions.


def jobs_taking_turns(jobs: Sequence[Job], questions: tuple[Question, ...]) -> Mapping[int, tuple[int, ...]]:
    """Map the index of each compared job to the indices of all jobs in its turns, itself included."""
    indices = {job.config.name: job.config.index for job in jobs}
    groups = (tuple(sorted(indices[name] for name in group)) for group in compared_groups(questions))
    return {index: group for group in groups for index in group}


def home_index(index: int, turns: Mapping[int, tuple[int, ...]]) -> int:
    """Return the job index that determines a job's rank: that of the first job in its turns."""
    return min(turns.get(index, (index,)))


def round_size(jobs: Iterable[Job], *, num_ranks: int) -> int:
    """Return the episodes of each job in a round: one for every env slot of the ranks that share it."""
    return max(job.config.num_envs for job in jobs) * num_ranks


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
    # The first share goes to `first_rank` (job_index % world_size), and the longer shares come first. So many short
    # jobs do not all burden the same rank. Ranks beyond the number of episodes get an empty share.
    shares = cut(remaining, even_sizes(count_episodes(remaining), world_size))
    return [shares[(rank - first_rank) % world_size] for rank in range(world_size)]


def pieces_of(remaining: EpisodeRanges, *, total_remaining: int, world_size: int) -> list[EpisodeRanges]:
    """Cut a job's remaining episodes into consecutive pieces, which ranks claim one at a time."""
    # Eight pieces per rank, of one episode or more: an uneven end loses at most an eighth of a rank's share. In a run
    # of many jobs a piece has at least a thousandth of a rank's share of the run, so that thousands of jobs do not make
    # millions of claims. The largest piece is a whole job.
    num_episodes = count_episodes(remaining)
    smallest = max(1, total_remaining // (_MAX_PIECES_PER_RANK * world_size))
    num_pieces = min(8 * world_size, max(1, num_episodes // smallest))
    return cut(remaining, even_sizes(num_episodes, num_pieces)) if num_episodes else []


def even_sizes(total: int, num_parts: int) -> list[int]:
    """Return the sizes of `num_parts` parts of `total`, which differ by at most one, the larger first."""
    size, longer = divmod(total, num_parts)
    return [size + 1] * longer + [size] * (num_parts - longer)


# Divide the jobs of an attempt into the pieces that ranks claim. Every rank computes the same pieces.


@dataclass(frozen=True, kw_only=True)
class DividedJob:
    """A job, cut into the pieces that ranks claim."""

    job: Job
    finished: EpisodeRanges  # finished before this attempt
    # Consecutive. `((),)` if only the report is left; `(None,)` if the number of episodes is not known beforehand.
    pieces: tuple[EpisodeRanges | None, ...]
    takes_turns_with: tuple[int, ...] = ()  # job indices compared with this job, its own included
    rounds: tuple[int, ...] = ()  # the round of each piece, empty without turns

    def round_of(self, piece: int) -> int:
        """Return the round of a piece, 0 if the job takes no turns."""
        return self.rounds[piece] if self.rounds else 0

    @property
    def index(self) -> int:
        """The job's position in the jobs file."""
        return self.job.config.index

    @cached_property
    def num_episodes(self) -> tuple[int, ...]:
        """The number of episodes of each piece, 0 if it is not known."""
        return tuple(count_episodes(piece or ()) for piece in self.pieces)

    @cached_property
    def environment_key(self) -> str:
        """Key that is equal for jobs that can share an environment."""
        return self.job.environment_key


def unfinished(jobs: Sequence[Job], attempt: Attempt) -> Mapping[int, EpisodeRanges]:
    """Map each pending job of an attempt (by index, in file order) to its finished episodes."""
    finished = {work.job: work.finished for work in attempt.jobs}
    pending = (job.config for job in jobs if job.config.status is JobStatus.PENDING and job.config.name in finished)
    return {config.index: finished[config.name] for config in pending}


def divided_jobs(jobs: Sequence[Job], attempt: Attempt, questions: tuple[Question, ...] = ()) -> list[DividedJob]:
    """Cut the jobs of an attempt into pieces, the same on every rank. Jobs that `questions` compare take turns."""
    turns = jobs_taking_turns(jobs, questions)
    finished_before = unfinished(jobs, attempt)
    lengths = {index: jobs[index].config.num_episodes for index in finished_before}
    # None if only the policy knows the number of episodes.
    remaining = {
        index: None if length is None else remaining_episodes(length, finished_before[index])
        for index, length in lengths.items()
    }
    total = sum(count_episodes(left) for left in remaining.values() if left)
    divided = []
    for index, left in remaining.items():
        pieces: list[EpisodeRanges | None] = []
        rounds: list[int] = []
        group = turns.get(index, ())
        if left and group:
            # Compared jobs advance in rounds of equal size, with at most one piece per rank in a round.
            smallest = total // (_MAX_PIECES_PER_RANK * attempt.world_size) * attempt.world_size
            size = max(smallest, round_size((jobs[each] for each in group), num_ranks=attempt.world_size))
            for number, episodes in rounds_of(left, size).items():
                num_episodes = count_episodes(episodes)
                parts = cut(episodes, even_sizes(num_episodes, min(attempt.world_size, num_episodes)))
                pieces += parts
                rounds += [number] * len(parts)
        elif left:
            # Other jobs are cut by the size of the whole run.
            pieces += pieces_of(left, total_remaining=total, world_size=attempt.world_size)
        else:
            pieces.append(left)
        divided.append(
            DividedJob(
                job=jobs[index],
                finished=finished_before[index],
                pieces=tuple(pieces),
                takes_turns_with=group,
                rounds=tuple(rounds),
            )
        )
    return divided


# Watch which jobs of a run need no further episode during an attempt.


def answer_watch(
    output_directory: Path,
    questions: Sequence[Question],
    finished: Mapping[str, EpisodeRanges],
    *,
    attempt: int,
    max_equal_errors: int,
) -> AnswerWatch:
    """Return the watch that knows the jobs that need no further episode; see `AnswerWatch`."""

    # `finished`: by job, the episodes that do not run again in this attempt; a job that is missing is complete. An
    # error of an earlier attempt that runs again does not count as finished.
    def runs_again(line: CommitLine) -> bool:
        kept = finished.get(line.job_name)
        is_earlier_error = line.outcome is Outcome.ERROR and line.attempt < attempt
        return kept is not None and is_earlier_error and not contain(kept, line.episode_index)

    return AnswerWatch(output_directory, questions, runs_again=runs_again, max_equal_errors=max_equal_errors)


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
    questions: tuple[Question, ...] = ()  # about the jobs, which stop as soon as they are answered
    import_s: float | None = None  # from this process's start to the program's [s], own on each rank; None if unknown


def plan_run(
    request: RunRequest,
    world_size: int,
    devices: Sequence[str],
    *,
    run_id: str,
    contents: Mapping[str, Contents] | None = None,
) -> RunPlan:
    """Return the content of `run.json` before anything runs. `contents`: by name, for jobs that are to run."""
    return RunPlan(
        run_id=run_id,
        created_at=now(),
        config_hash=request.config_hash,
        source_file=request.source_file,
        command_line=request.command_line,
        world_size=world_size,
        versions=provenance.versions(),
        git_revision=provenance.git_revision(Path.cwd()),
        machine=provenance.node(),
        devices=tuple(devices),
        jobs=plan_entries(request, world_size, contents or {}),
        settings=request.options.result_settings(),
        questions=request.questions,
        working_directory=str(Path.cwd()),
    )


def plan_entries(request: RunRequest, world_size: int, contents: Mapping[str, Contents]) -> tuple[PlanEntry, ...]:
    """Return the jobs of the plan, each with its rank if that is assigned before the start."""
    is_settled = request.options.mode is Assignment.ROUND_ROBIN
    turns = jobs_taking_turns(request.jobs, request.questions)
    entries = []
    for job in request.jobs:
        config, builder, saved = job.config, job.builder, job.saved_conditions
        has_rank = is_settled and config.status is JobStatus.PENDING
        # The task in results: the job's label, else the environment's task, else the environment's name.
        task, robot = config.labels.get("task"), job.environment_option("embodiment")
        if task is None:
            task = builder.task_name(job.environment_config)
        robot = builder.robot_name(job.environment_config) or robot
        entries.append(
            PlanEntry(
                config=config,
                rank=home_index(config.index, turns) % world_size if has_rank else None,
                task=task or config.environment,
                embodiment=robot,
                object=job.environment_option("object"),
                policy_config=job.policy_options,
                variations=spelled(job.variations),
                conditions_checksum=None if saved is None else zlib.crc32(json_line(saved).encode()),
                contents=contents.get(config.name),
                latency=None if job.latency is None else job.latency.delays,
            )
        )
    return tuple(entries)


def plan_differences(
    before: RunPlan, now: RunPlan, *, has_recorded: Callable[[str], bool] = lambda _: True
) -> list[Problem]:
    """Return a problem for each key that forbids to resume a run with the options of now."""
    # Values missing in both plans are equal.
    problems = [
        Problem(f"was {_shown(before.settings.get(name))} when the run began, now {_shown(value)}", key=f"--{name}")
        for name, value in now.settings.items()
        if before.settings.get(name) != value
    ]
    if before.questions != now.questions:
        problems.append(Problem("are others than when the run began", key="comparisons and bars"))
    known = {job.name: job for job in before.jobs}
    wanted = {job.name: job for job in now.jobs}
    problems += [Problem("is new", job=name) for name in wanted if name not in known]
    problems += [Problem("is missing now", job=name) for name in known if name not in wanted]

    for name in [name for name in wanted if name in known]:
        for key, (was, is_now) in _changes(known[name], wanted[name]).items():
            # Another num_envs may be allowed, which only the built job shows. A job that has recorded nothing may have
            # another policy.
            if key == "num_envs" or (key in _OF_POLICY and not has_recorded(name)):
                continue
            why = ""
            if key == "num_episodes" and None not in (was, is_now):
                # A job may grow.
                if was < is_now and known[name].config.num_rebuilds == 1:
                    continue
                why = "; more of them would be other rebuilds" if was < is_now else "; a run may grow, and not shrink"
            message = f"was {_shown(was)} when the run began, now {_shown(is_now)}{why}"
            problems.append(Problem(message, job=name, key=key))
    return problems


def revised_plan(before: RunPlan, now: RunPlan, *, has_recorded: Callable[[str], bool]) -> RunPlan:
    """Return the plan of a resumed run; the same object if nothing changes."""
    # `plan_differences` must have found none. The hash stays that of the first plan, which marks the run's recordings.
    wanted = {job.name: job for job in now.jobs}
    jobs = []
    for job in before.jobs:
        new = wanted[job.name]
        changed = _changes(job, new).keys()
        config, policy_config = job.config, job.policy_config
        if "num_episodes" in changed:
            config = dataclasses.replace(config, num_episodes=new.config.num_episodes)
        if changed & {*_OF_POLICY, "num_envs"} and not has_recorded(job.name):
            # No result depends on them yet.
            config = dataclasses.replace(
                config,
                policy_type=new.config.policy_type,
                policy_config_dict=new.config.policy_config_dict,
                num_envs=new.config.num_envs,
            )
            policy_config = new.policy_config
        is_same = (config, policy_config) == (job.config, job.policy_config)
        jobs.append(job if is_same else dataclasses.replace(job, config=config, policy_config=policy_config))
    if tuple(jobs) == before.jobs:
        return before
    return dataclasses.replace(
        before,
        jobs=tuple(jobs),
        source_file=now.source_file,
        command_line=now.command_line,
        working_directory=now.working_directory,
    )


def _changes(before: PlanEntry, now: PlanEntry) -> dict[str, tuple[Any, Any]]:
    """Map each key that differs between two entries of a job to both values; keys without effect are left out."""
    old, new = ({**dataclasses.asdict(job.config), "policy options": job.policy_config} for job in (before, now))
    # The server has no effect on results, but its device has, as that of any network.
    old["policy_server.device"], new["policy_server.device"] = (
        each.config.policy_server and each.config.policy_server.device for each in (before, now)
    )
    if now.latency is not None:
        # The latency measured when the run began stays, whatever would be measured now.
        old["latency in steps"], new["latency in steps"] = before.latency, now.latency
    old["saved conditions"], new["saved conditions"] = before.conditions_checksum, now.conditions_checksum
    for each in (old, new):
        apart = {*WITHOUT_RESULT, "num_envs"}
        each["policy options"] = {key: value for key, value in each["policy options"].items() if key not in apart}

    def is_changed(key: str) -> bool:
        # The values are compared as read back from a file, so that a tuple equals a list.
        was, is_now = (json.loads(json_line(each.get(key))) for each in (old, new))
        return was != is_now

    keys = sorted(old.keys() | new.keys())
    return {key: (old.get(key), new.get(key)) for key in keys if key not in WITHOUT_RESULT and is_changed(key)}


def _shown(value: Any) -> str:
    text = json_line(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def show_variations(jobs: Sequence[Job]) -> int:
    """Show all variations of each job's environment, on rank 0 only, and return the exit code."""

    def show(console: Console) -> None:
        for job in jobs:
            offered = job.builder.variations(job.environment_config)
            console.print(Text(f"job '{job.config.name}', environment '{job.config.environment}':", style="bold"))
            if not offered:
                console.print("  nothing can be varied in this environment")
                continue

            # The variations that the job turns on have the job's range.
            own = {variation.key: variation for variation in job.variations}
            table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
            for heading in ("variation", "on", "range", "unit", "meaning"):
                table.add_column(heading, overflow="fold")
            for variation in [own.get(each.key, each) for each in offered]:
                on = "on" if variation.enabled else "-"
                ranges = described(variation.sampler)
                table.add_row(variation.key, on, ranges, variation.unit or "-", variation.description)
            console.print(table, soft_wrap=True)

    if speaks_for_all():
        show_results(show)
    return 0


def described(sampler: Sampler) -> str:
    """Return a sampler in a few words: `0.05 to 0.2`, `one of 1, 2`."""

    def shown(values: tuple[float, ...]) -> str:
        numbers = ", ".join(f"{value:.4g}" for value in values)
        return numbers if len(values) < 2 else f"({numbers})"

    low, high = shown(sampler.low), shown(sampler.high)
    if sampler.type is SamplerType.UNIFORM:
        return low if low == high else f"{low} to {high}"
    if sampler.type is SamplerType.BERNOULLI:
        return f"{high} with probability {sampler.p:g}, else {low}"
    choices = ", ".join(choice if isinstance(choice, str) else shown(choice) for choice in sampler.choices)
    return f"{choices} in turn" if sampler.type is SamplerType.SEQUENTIAL_CHOICE else f"one of {choices}"
