"""The verification of a run: its files, and a sample of its episodes run again by ranks."""

import dataclasses
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isaaclab_arena.config.schema import JobConfig, JobStatus
from isaaclab_arena.distributed.context import DistributedContext, die_with_parent, limit_threads
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.episode_ranges import as_ranges, remaining_episodes
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError, first_line
from isaaclab_arena.evaluation import provenance
from isaaclab_arena.evaluation.builds import rank_settings
from isaaclab_arena.evaluation.console import exit_code_of
from isaaclab_arena.evaluation.contents import contents_of_jobs
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.options import RunOptions, read_command_line, refuse_unknown
from isaaclab_arena.evaluation.process import signals_held_back
from isaaclab_arena.evaluation.queues import jobs_of_rank
from isaaclab_arena.evaluation.replaying import Difference, first_difference, result_difference
from isaaclab_arena.evaluation.running_episodes import BROKEN_OFF
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.episode import Conditions, Outcome, conditions_from_json
from isaaclab_arena.paths import now, typed_words
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.policy.lent import STATE
from isaaclab_arena.results.merge import TABLES, MergedResults, MissingEpisodes, stale_tables
from isaaclab_arena.results.rows import JobEvidence
from isaaclab_arena.storage.atomic import read_whole, write_text
from isaaclab_arena.storage.commits import CommitLine, read_commits, read_job_reports
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, Contents, Provenance, differences_of_contents
from isaaclab_arena.storage.diagnosis import RecordedCopy, read_recordings
from isaaclab_arena.storage.hdf5.episodes import read_attributes, read_episode, read_totals
from isaaclab_arena.storage.json_values import adapter, json_line, json_text
from isaaclab_arena.storage.layout import ACTIONS, RUN_PLAN_FILE, demo_name, job_directory
from isaaclab_arena.storage.recorded_episode import RecordedEpisode
from isaaclab_arena.storage.recordings import datasets, in_words, locate_episodes
from isaaclab_arena.storage.run_plan import (
    Attempt,
    AttemptEntry,
    PlanEntry,
    RunPlan,
    contents_in_effect,
    policy_batches_in_effect,
    read_attempt,
    read_attempts,
    read_run_plan,
    write_attempt,
    write_run_plan,
)

# One rank of a verification: the sample, its plan, and its episodes, run end to end.

# Choose the episodes that a verification runs again. Pure functions.


def draw_sample(finished: Mapping[str, Sequence[int]], size: int, *, seed: int) -> dict[str, tuple[int, ...]]:
    """Draw episodes at random without repetition, as evenly over the jobs as their lengths allow; ascending."""
    generator = np.random.default_rng(seed)
    shuffled = {job: generator.permutation(np.asarray(episodes, np.int64)) for job, episodes in finished.items()}
    names = list(shuffled)
    turns = [names[position] for position in generator.permutation(len(names))]
    drawn: dict[str, list[int]] = {job: [] for job in names}
    left = min(size, sum(map(len, shuffled.values())))
    # The jobs take turns in a random order, so that each gives the same number while it has episodes left.
    while left > 0:
        for job in turns:
            taken = len(drawn[job])
            if left > 0 and taken < len(shuffled[job]):
                drawn[job].append(int(shuffled[job][taken]))
                left -= 1
    return {job: tuple(sorted(episodes)) for job, episodes in drawn.items() if episodes}


def another_num_envs(num_envs: int, *, largest: int | None = None) -> int:
    """Return a num_envs other than the job's, one for a batch, else three; at most `largest` even if equal."""
    wanted = 1 if num_envs > 1 else 3
    return wanted if largest is None else max(1, min(wanted, largest))


# Run some episodes of a run again: the plan, and the jobs built from the run's own plan.

ATTEMPT = 1
"""Number of the one attempt at running a sample again."""

_ASSIGNMENT = "round_robin"
_CONTENTS_FILE = "contents.json"


def plan_sample(
    plan: RunPlan,
    sample: Mapping[str, Sequence[int]],
    *,
    num_envs: int | None,
    world_size: int,
    policy_batches: Mapping[str, int],
) -> tuple[RunPlan, Attempt]:
    """Return a plan and an attempt that run a sample of a run's episodes, by job, and nothing else."""
    # `num_envs` None: numbers that differ from the run's; `ConfigError` if it exceeds the run's fixed batch.
    # `policy_batches`: env slots of each policy call in the run, kept if they are enough.
    jobs = _jobs_of_sample(plan, sample, num_envs)
    # The ranks state their devices in their reports.
    here: dict[str, Any] = {
        "run_id": uuid.uuid4().hex,
        "world_size": world_size,
        "versions": provenance.versions(),
        "machine": provenance.node(),
        "devices": (),
    }
    started_at = now()
    attempt = Attempt(
        number=ATTEMPT,
        started_at=started_at,
        command_line=plan.command_line,
        assignment=_ASSIGNMENT,
        git_revision=plan.git_revision,
        jobs=tuple(_work(job, sample[job.name], policy_batches.get(job.name, 0)) for job in jobs),
        **here,
    )
    return dataclasses.replace(plan, created_at=started_at, jobs=jobs, **here), attempt


def jobs_of_plan(plan: RunPlan, source: Path, *, may_import: bool, device: str | None = None) -> tuple[Job, ...]:
    """Return the checked jobs of a plan of `plan_sample`; `ConfigError` if one cannot be built any more."""
    # `source`: directory of the run that is verified, whose commits hold its conditions. `device`: `--device` of the
    # user.
    configs = [_without_latency_file(job.config) for job in plan.jobs]
    policy_batch = options_of_plan(plan).fixed_policy_batch()
    file = str(source / RUN_PLAN_FILE)
    jobs = resolve_jobs(configs, file=file, policy_batch=policy_batch, may_import=may_import, device=device)
    # The backend of the run is used again, even if another one would be faster here.
    jobs = tuple(job.with_delays(planned.latency) for job, planned in zip(jobs, plan.jobs, strict=True))
    return tuple(
        job.with_backend(planned.backend)
        if planned.conditions_checksum is None
        else dataclasses.replace(job.with_backend(planned.backend), saved_conditions=_conditions(source, planned))
        for job, planned in zip(jobs, plan.jobs, strict=True)
    )


def _without_latency_file(config: JobConfig) -> JobConfig:
    """Return a job whose latencies come from its plan: their file may be gone."""
    if config.latency is None or config.latency.file is None:
        return config
    return dataclasses.replace(config, latency=dataclasses.replace(config.latency, file=None, measured=True))


def write_contents(directory: Path, jobs: Sequence[Job]) -> None:
    """Write the contents that the jobs of a sample evaluate now."""
    write_text(directory / _CONTENTS_FILE, json_text(contents_of_jobs(jobs)))


def read_contents(directory: Path) -> dict[str, Contents]:
    """Return the contents written by `write_contents`, by job; empty if there is no file."""
    path = directory / _CONTENTS_FILE
    return adapter(dict[str, Contents]).validate_json(read_whole(path)) if path.is_file() else {}


def options_of_plan(plan: RunPlan) -> RunOptions:
    """Return the run's options that affect results; recordings are not compressed again."""
    known = {field.name for field in dataclasses.fields(RunOptions)} - {"compression"}
    given = {name: value for name, value in plan.settings.items() if name in known and value is not None}
    return RunOptions(**given)


def _jobs_of_sample(plan: RunPlan, sample: Mapping[str, Sequence[int]], num_envs: int | None) -> tuple[PlanEntry, ...]:
    largest = plan.settings.get("policy_batch") if plan.settings.get("deterministic") else None
    if largest is not None and num_envs is not None and num_envs > largest:
        raise ConfigError(
            Problem(f"must be at most {largest}, the run's policy_batch, got {num_envs}", key="--num_envs")
        )
    known = {job.name: job for job in plan.jobs}
    again = {name: num_envs or another_num_envs(known[name].config.num_envs, largest=largest) for name in sample}
    return tuple(
        _with_sample(known[name], episodes, index, again[name]) for index, (name, episodes) in enumerate(sample.items())
    )


def _work(job: PlanEntry, episodes: Sequence[int], policy_batch: int) -> AttemptEntry:
    return AttemptEntry(
        job=job.name,
        finished=remaining_episodes(job.config.num_episodes or 0, as_ranges(episodes)),
        policy_batch=policy_batch if policy_batch >= job.config.num_envs else None,
    )


def _with_sample(job: PlanEntry, episodes: Sequence[int], index: int, num_envs: int) -> PlanEntry:
    """Return a job that can leave out episodes, with another number of env slots."""
    config, policy_config = job.config, dict(job.policy_config)
    if policy_config.get("num_envs") == config.num_envs:
        policy_config["num_envs"] = num_envs
    if config.num_episodes is None:
        # The number of episodes in a number of steps depends on num_envs; the episodes themselves do not.
        config = dataclasses.replace(config, num_episodes=max(episodes) + 1, num_steps=None, num_rebuilds=1)
    config = dataclasses.replace(
        config,
        index=index,
        num_envs=num_envs,
        policy_config_dict=policy_config,
        variations=job.variations,
        conditions=None,
        timeout_s=None,
        episode_timeout_s=None,
        status=JobStatus.PENDING,
    )
    return dataclasses.replace(job, rank=None, policy_config=policy_config, config=config)


def _conditions(source: Path, job: PlanEntry) -> tuple[Conditions, ...]:
    lines = {line.episode_index: line for line in read_commits(job_directory(source, job.name), job.name).lines}
    return tuple(
        conditions_from_json(lines[index].variations) if index in lines else {}
        for index in range(job.config.num_episodes or 0)
    )


# One rank of a verification: it runs its share of a sample, end to end, as the verified run did.
#
# `isaaclab_arena.evaluation.verification` starts it, alone or under torchrun, on a directory that holds a plan and an
# attempt. It leaves commit lines and recordings there like any other rank; they are not merged.

PROGRAM = "isaaclab_arena.evaluation.verification"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Run a rank's share of a sample."""

    output_dir: Path
    """Directory with the plan and the attempt."""

    source: Path
    """Directory of the run that is verified."""

    no_import: bool = False
    """Refuse jobs that would import code which is not registered."""

    device: str | None = None
    """Where to simulate; by default a GPU where there is one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run this rank's share and return 0; a job that fails states it in its report."""
    arguments = typed_words(argv)
    return exit_code_of(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    options, unknown = read_command_line(WorkerOptions, arguments, program=PROGRAM)
    refuse_unknown(unknown, options)
    die_with_parent()
    context = DistributedContext.from_environment(device=options.device)
    plan, attempt = read_run_plan(options.output_dir), read_attempt(options.output_dir, ATTEMPT)
    run_options = options_of_plan(plan)
    limit_threads(run_options.torch_threads)
    if run_options.deterministic:
        calculate_deterministically()
    jobs = jobs_of_plan(plan, options.source, may_import=not options.no_import, device=options.device)
    if context.is_rank_zero:
        write_contents(options.output_dir, jobs)
    settings = rank_settings(
        run_options,
        context,
        output_directory=options.output_dir,
        attempt=attempt,
        config_hash=plan.config_hash,
    )
    with initialise(context):
        # The sample is divided before the start: no rank takes over the episodes of another.
        runner = JobRunner(settings)
        try:
            for assigned in jobs_of_rank(jobs, attempt, rank=context.rank, split=True):
                runner.run(assigned.job, supply=assigned.supply)
        finally:
            runner.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())


# The verification of a run: its files, and a sample of its episodes run again.

# Check the files of a run: every episode once, its arrays as written, the tables up to date.


def check_directory(output_directory: Path, merged: MergedResults) -> Iterator[str]:
    """Yield one line for each defect of a run's files; reads every array and writes nothing."""
    yield from merged.problems
    yield from map(_what_is_missing, merged.missing)
    for job in merged.plan.jobs:
        directory = job_directory(output_directory, job.name)
        try:
            wrong = [*_check_recordings(directory, job.name), *_check_totals(directory, job.name)]
        except StorageError as error:
            wrong = [str(error)]
        yield from (f"job '{job.name}': {what}" for what in wrong)
    yield from _check_tables(output_directory, merged)


def _what_is_missing(missing: MissingEpisodes) -> str:
    if not missing.episode_indices:
        return f"job '{missing.job}' is {missing.status}"
    return f"job '{missing.job}' is {missing.status} and lacks {in_words(missing.episode_indices)}"


def _check_recordings(directory: Path, job: str) -> Iterator[str]:
    lines = {line.episode_index: line for line in read_commits(directory, job).lines}
    recordings = read_recordings(directory, job, lines.values())
    yield from (f"{path.name}: {reason}" for path, reason in recordings.unreadable)
    copies = recordings.by_episode
    yield from _check_lines(lines, copies)
    for index, line in lines.items():
        yield from _check_episode(line, copies.get(index, []))


def _check_lines(lines: Mapping[int, CommitLine], copies: Mapping[int, Sequence[RecordedCopy]]) -> Iterator[str]:
    for index, recorded in copies.items():
        if index not in lines:
            yield f"{recorded[0].path} holds {demo_name(index)}, which has no line in the commit record"
        if len(recorded) > 1:
            yield f"{demo_name(index)} is recorded in {' and in '.join(str(copy.path) for copy in recorded)}"


def _check_episode(line: CommitLine, copies: Sequence[RecordedCopy]) -> Iterator[str]:
    """Yield the defects of the recordings of a finished episode."""
    name = demo_name(line.episode_index)
    for copy in copies:
        if copy.damage is not None:
            yield copy.damage
        if copy.contradiction is not None:
            yield f"{name} in {copy.path.name}: {copy.contradiction}"
    if line.checksum is None:
        if copies:
            yield f"{name} is recorded in {copies[0].path.name}, though its commit line says that nothing was"
    elif all(copy.damage is None and copy.checksum != line.checksum for copy in copies):
        what = "the recording of an error is lost: " if line.outcome is Outcome.ERROR else ""
        yield f"{what}no file holds {name} with the checksum of its commit line"


def _check_totals(directory: Path, job: str) -> Iterator[str]:
    for path in datasets(directory, job):
        try:
            told, found = read_totals(path)
        except StorageError:
            # It is reported as unreadable already.
            continue
        if told != found:
            yield f"{path.name} says that it holds {told} control steps, its episodes have {found}"


def _check_tables(output_directory: Path, merged: MergedResults) -> Iterator[str]:
    stale = stale_tables(output_directory, merged)
    if stale and not any((output_directory / f"{name}.csv").is_file() for name in TABLES):
        yield f"{output_directory} holds no tables; isaaclab-arena merge writes them"
        return
    for path in stale:
        wrong = "is not what a merge of these files gives" if path.is_file() else "is missing"
        yield f"{path} {wrong}; isaaclab-arena merge writes it anew"


# Verify a run: a sample of its episodes, run again with other env slots and ranks, must give the same bits.

_WORKER = "isaaclab_arena.evaluation.verification"
_LOG_FILE = "worker.log"
_LAUNCHER_LOGS = "launcher"
_MAX_ENDING_S = 10.0
_LOG_LINES_SHOWN = 15
_LAUNCHER = "torch/distributed/elastic"

Sample = Mapping[str, Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class VerifiedEpisode:
    """The result of running one episode again."""

    job: str
    episode_index: int
    num_steps: int  # control steps in the run
    compares_arrays: bool = False  # whether recordings were compared, not only results
    difference: Difference | None = None  # the first one, if any
    failure: str | None = None  # reason why it did not finish this time
    unreadable: str | None = None  # reason why its recording cannot be compared
    explanation: str | None = None  # reason why the difference is expected
    other_provenance: tuple[str, ...] = ()  # versions, processor, device or model that have changed
    contents: tuple[str, ...] = ()  # checkpoints, classes or robots that have changed

    @property
    def is_same(self) -> bool:
        """Whether all that was compared is equal."""
        return self.difference is None and self.failure is None and self.unreadable is None


def jobs_of_one_program(plan: RunPlan) -> list[str]:
    """Return the jobs whose policy was an object or a local class of the program that began the run."""
    return [
        job.name
        for job in plan.jobs
        if (job.contents is not None and STATE in job.contents.policy)
        or job.config.policy_type.startswith("__main__.")
        or "<locals>" in job.config.policy_type
    ]


def episodes_to_draw_from(output_directory: Path, plan: RunPlan) -> dict[str, list[int]]:
    """Map each job that can run again to its finished episodes, except those that ended as in `BROKEN_OFF`."""
    gone = jobs_of_one_program(plan)
    return {
        job.name: [
            line.episode_index for line in _lines(output_directory, job.name) if line.termination not in BROKEN_OFF
        ]
        for job in plan.jobs
        if job.name not in gone
    }


def prepare_sample(
    output_directory: Path, directory: Path, sample: Sample, *, num_envs: int | None, num_ranks: int
) -> RunPlan:
    """Write and return the plan that runs a sample of a run's episodes again, in an empty `directory`."""
    # `num_envs` None: numbers that differ from the run's. `ConfigError` if the plan lacks what builds its jobs.
    begun = read_run_plan(output_directory)
    batches = policy_batches_in_effect(output_directory, begun.jobs, read_attempts(output_directory, begun.run_id)[0])
    plan, attempt = plan_sample(begun, sample, num_envs=num_envs, world_size=num_ranks, policy_batches=batches)
    write_run_plan(directory, plan)
    write_attempt(directory, attempt)
    return plan


def run_sample(output_directory: Path, directory: Path, *, may_import: bool) -> None:
    """Run a sample of `prepare_sample` in processes of their own; `ArenaError` if a rank could not do its work."""
    begun, num_ranks = read_run_plan(output_directory), read_run_plan(directory).world_size
    arguments = ["--output_dir", str(directory), "--source", str(output_directory.absolute())]
    if all(device == "cpu" for device in begun.devices):
        arguments += ["--device", "cpu"]
    if not may_import:
        arguments.append("--no_import")
    # Relative paths of policies start from the run's working directory. Without `may_import` the ranks do not work
    # there, as its modules could be imported.
    started_in = begun.working_directory if may_import else None
    launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={num_ranks}"]
    launcher += ["--log-dir", str(directory / _LAUNCHER_LOGS), "-m"]
    command = [sys.executable, "-m", *(launcher if num_ranks > 1 else []), _WORKER, *arguments]
    log = directory / _LOG_FILE
    if _exit_code(command, log, directory=started_in if started_in and Path(started_in).is_dir() else None) != 0:
        raise ArenaError("\n".join(["the episodes could not be run again:", *_last_words(log)]))


def _exit_code(command: Sequence[str], log: Path, *, directory: str | None) -> int:
    """Run a program to its end and return its exit code; end the program if the wait is interrupted."""
    process = None
    with log.open("wb") as stream:
        try:
            # A signal in the middle of the start would leave a program without a handle to end it.
            with signals_held_back():
                process = subprocess.Popen(  # noqa: S603  this Python, and a module of this package
                    command, cwd=directory, stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
                )
            return process.wait()
        except BaseException:
            if process is not None:
                # A launcher ends its ranks if it is terminated, but not if it is killed.
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_MAX_ENDING_S)
                process.kill()
                process.wait()
            raise


def compare_runs(output_directory: Path, directory: Path, sample: Sample) -> Iterator[VerifiedEpisode]:
    """Yield for each episode of a sample the comparison of the run with its repetition in `directory`."""
    first, second = _Run(output_directory), _Run(directory)
    for job, episodes in sample.items():
        before, now = first.job(job), second.job(job)
        for index in episodes:
            yield _compared(before, now, index)


@dataclass(frozen=True, kw_only=True)
class _RecordedJob(JobEvidence):
    """The commit lines, reports and recordings of one job in one run."""

    plan: RunPlan
    attempts: Mapping[int, Attempt]
    files: Mapping[int, list[Path]]

    @cached_property
    def line_of(self) -> Mapping[int, CommitLine]:
        return {line.episode_index: line for line in self.lines}

    @property
    def plan_because(self) -> list[str]:
        return [report.plan_because for report in self.reports if report.plan_because is not None]

    def recording(self, index: int) -> RecordedEpisode | None:
        """Return the recording of an episode, None if there is none."""
        line = self.line_of[index]
        if line.checksum is None:
            return None
        files = self.files.get(index, [])
        file = next((file for file in files if read_attributes(file, index).get("checksum") == line.checksum), None)
        return None if file is None else read_episode(file, index)

    def provenance(self, index: int, recorded: RecordedEpisode | None) -> Provenance:
        """Return the provenance of an episode; its recording is more precise than the reports."""
        line = self.line_of[index]
        ran = self.attempts.get(line.attempt, self.plan)
        device = {report.rank: report.device for report in self.reports}.get(line.rank)
        kind = {} if device is None else {"device": torch.device(device).type}
        said = {} if recorded is None else recorded.provenance
        return Provenance(facts={**ran.provenance.facts, **kind, **said})


class _Run:
    """The files of a run."""

    def __init__(self, output_directory: Path) -> None:
        self._directory = output_directory
        self._plan = read_run_plan(output_directory)
        attempts = read_attempts(output_directory, self._plan.run_id)[0]
        self._attempts = {attempt.number: attempt for attempt in attempts}
        self._contents = {**contents_in_effect(self._plan.jobs, attempts), **read_contents(output_directory)}

    def job(self, name: str) -> _RecordedJob:
        directory = job_directory(self._directory, name)
        return _RecordedJob(
            job=next(job for job in self._plan.jobs if job.name == name),
            lines=_lines(self._directory, name),
            reports=read_job_reports(directory, name, self._plan.run_id)[0],
            contents=self._contents.get(name),
            plan=self._plan,
            attempts=self._attempts,
            files=locate_episodes(directory, name)[0],
        )


def _last_words(log: Path) -> list[str]:
    """Return the last lines of the ranks, before the launcher's lines about their end."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    of_ranks = list(takewhile(lambda line: _LAUNCHER not in line, lines))
    return of_ranks[-_LOG_LINES_SHOWN:]


def _compared(before: _RecordedJob, now: _RecordedJob, index: int) -> VerifiedEpisode:
    line = before.line_of[index]
    verdict = VerifiedEpisode(
        job=before.job.name,
        episode_index=index,
        num_steps=line.episode_length,
        contents=_other_contents(before.contents, now.contents),
    )
    if index not in now.line_of:
        errors = [report.error for report in now.reports if report.error is not None]
        return dataclasses.replace(verdict, failure="; ".join(errors) or "it did not finish")
    again = now.line_of[index]
    try:
        recorded, found = before.recording(index), now.recording(index)
    except StorageError as error:
        # The defect of the file is reported already; the other episodes are still compared.
        return dataclasses.replace(verdict, unreadable=first_line(error))
    if recorded is None or found is None:
        recorded = found = None
    difference = None if recorded is None or found is None else first_difference(recorded, found)
    difference = difference or _difference_of_commits(line, again)
    return dataclasses.replace(
        verdict,
        compares_arrays=recorded is not None,
        difference=difference,
        explanation=None if difference is None else _explanation(before, now, difference, verdict.contents),
        other_provenance=before.provenance(index, recorded).told_differences(now.provenance(index, found)),
    )


def _other_contents(before: Contents | None, now: Contents | None) -> tuple[str, ...]:
    if before is None or now is None:
        return ()
    # A sample takes its conditions from the run itself.
    differences = differences_of_contents(before, now)
    return tuple(f"{what} {how}" for what, how in differences if what != SAVED_CONDITIONS)


def _difference_of_commits(line: CommitLine, again: CommitLine) -> Difference | None:
    """Return the first difference of two commit lines, other than time and place."""
    for name in ("episode_seed", "variations", "language_instruction"):
        before, now = (json_line(getattr(each, name)) for each in (line, again))
        if before != now:
            field = "conditions" if name == "variations" else name
            return Difference(field=field, recorded=before, found=now, at_start=True)
    if line.episode_length != again.episode_length:
        return Difference(field="num_samples", recorded=str(line.episode_length), found=str(again.episode_length))
    return result_difference(_results(line), _results(again))


def _results(line: CommitLine) -> dict[str, Any]:
    return {**dataclasses.asdict(line), "metrics": json_line(line.metrics)}


def _explanation(
    before: _RecordedJob, now: _RecordedJob, difference: Difference, contents: Sequence[str]
) -> str | None:
    """Return the reason why an episode may differ this time, None if the difference cannot come from it."""
    if contents:
        return "expected: something else ran than was run"
    # The policy explains a difference of actions, or one of the result alone, whose cause no array shows.
    comes_from_actions = difference.field == ACTIONS or (difference.step is None and not difference.at_start)
    if not comes_from_actions:
        return None
    policy = resolve_policy_class(before.job.config.policy_type)
    reasons = []
    deterministic = bool(before.plan.settings.get("deterministic"))
    other_num_envs = before.job.config.num_envs != now.job.config.num_envs
    if other_num_envs and not policy.traits.batch_invariant and not deterministic:
        reasons.append("expected: this policy's answers may change with num_envs; run with --deterministic")
    if not policy.traits.reproducible and not before.plan_because:
        reasons.append("this policy does not say that it is reproducible")
    reasons += dict.fromkeys([*before.plan_because, *now.plan_because])
    return "; ".join(reasons) or None


def _lines(output_directory: Path, job: str) -> tuple[CommitLine, ...]:
    return read_commits(job_directory(output_directory, job), job).lines
