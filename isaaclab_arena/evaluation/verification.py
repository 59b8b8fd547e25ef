"""The verification of a run: its files, and a sample of its episodes run again."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

import torch

from isaaclab_arena.errors import ArenaError, StorageError, first_line
from isaaclab_arena.evaluation.process import signals_held_back
from isaaclab_arena.evaluation.replaying import Difference, first_difference, result_difference
from isaaclab_arena.evaluation.running_episodes import BROKEN_OFF
from isaaclab_arena.evaluation.verification_worker import PROGRAM, read_contents
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.policy.in_memory import STATE
from isaaclab_arena.results.merge import FILES, MergedResults, stale_tables
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, Contents, Provenance, differences_of_contents
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import in_words, locate_episodes, read_attributes, read_episode, read_totals
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import ACTIONS, demo_name
from isaaclab_arena.storage.ledger import (
    Attempt,
    CommitLine,
    PlanEntry,
    RunPlan,
    contents_in_effect,
    datasets,
    read_attempts,
    read_commits,
    read_run_plan,
)
from isaaclab_arena.storage.recovery import read_recordings
from isaaclab_arena.storage.reports import JobReport, read_job_reports

# Check the files of a run: every episode once, its arrays as written, the tables up to date.


def check_directory(output_directory: Path, merged: MergedResults) -> Iterator[str]:
    """Yield one line for each defect of a run's files; reads every array and writes nothing."""
    yield from merged.problems
    for missing in merged.missing:
        lacks = f" and lacks {in_words(missing.episode_indices)}" if missing.episode_indices else ""
        yield f"job '{missing.job}' is {missing.status}{lacks}"
    for job in merged.plan.jobs:
        directory = output_directory / job.name
        try:
            wrong = [*_check_recordings(directory, job.name), *_check_totals(directory, job.name)]
        except StorageError as error:
            wrong = [str(error)]
        yield from (f"job '{job.name}': {what}" for what in wrong)

    # The tables must be what a merge writes now.
    stale = stale_tables(output_directory, merged)
    if stale and not any((output_directory / f"{name}.csv").is_file() for name in FILES):
        yield f"{output_directory} holds no tables; isaaclab-arena merge writes them"
        return
    for path in stale:
        wrong = "is not what a merge of these files gives" if path.is_file() else "is missing"
        yield f"{path} {wrong}; isaaclab-arena merge writes it anew"


def _check_recordings(directory: Path, job: str) -> Iterator[str]:
    lines = {line.episode_index: line for line in read_commits(directory, job).lines}
    copies, unreadable = read_recordings(directory, job, lines.values())
    yield from (f"{path.name}: {reason}" for path, reason in unreadable)
    for index, recorded in copies.items():
        if index not in lines:
            yield f"{recorded[0].path} holds {demo_name(index)}, which has no line in the commit record"
        if len(recorded) > 1:
            yield f"{demo_name(index)} is recorded in {' and in '.join(str(copy.path) for copy in recorded)}"
    for index, line in lines.items():
        name, recorded = demo_name(index), copies.get(index, [])
        for copy in recorded:
            if copy.damage is not None:
                yield copy.damage
            if copy.contradiction is not None:
                yield f"{name} in {copy.path.name}: {copy.contradiction}"
        if line.checksum is None:
            if recorded:
                yield f"{name} is recorded in {recorded[0].path.name}, though its commit line says that nothing was"
        elif all(copy.damage is None and copy.checksum != line.checksum for copy in recorded):
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


# Verify a run: a sample of its episodes, run again with other env slots and ranks, must give the same bits.

_MAX_ENDING_S = 10.0
_LOG_LINES_SHOWN = 15

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
    finished = {}
    for name in (job.name for job in plan.jobs if job.name not in gone):
        lines = read_commits(output_directory / name, name).lines
        finished[name] = [line.episode_index for line in lines if line.termination not in BROKEN_OFF]
    return finished


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
    launcher += ["--log-dir", str(directory / "launcher"), "-m"]
    command = [sys.executable, "-m", *(launcher if num_ranks > 1 else []), PROGRAM, *arguments]
    log = directory / "worker.log"
    if _exit_code(command, log, directory=started_in if started_in and Path(started_in).is_dir() else None) != 0:
        # Show the last lines of the ranks, before the launcher's lines about their end.
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        of_ranks = list(takewhile(lambda line: "torch/distributed/elastic" not in line, lines))
        raise ArenaError("\n".join(["the episodes could not be run again:", *of_ranks[-_LOG_LINES_SHOWN:]]))


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
    first, second = (_recorded_jobs(each, sample) for each in (output_directory, directory))
    for job, episodes in sample.items():
        for index in episodes:
            yield _compared(first[job], second[job], index)


@dataclass(frozen=True, kw_only=True)
class _RecordedJob:
    """The commit lines, reports and recordings of one job in one run."""

    job: PlanEntry
    lines: Sequence[CommitLine]
    reports: Sequence[JobReport]
    contents: Contents | None
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


def _recorded_jobs(output_directory: Path, names: Iterable[str]) -> dict[str, _RecordedJob]:
    """Return the named jobs of a run."""
    plan = read_run_plan(output_directory)
    attempts = read_attempts(output_directory, plan.run_id)[0]
    contents = {**contents_in_effect(plan.jobs, attempts), **read_contents(output_directory)}
    entries, jobs = {job.name: job for job in plan.jobs}, {}
    for name in names:
        directory = output_directory / name
        jobs[name] = _RecordedJob(
            job=entries[name],
            lines=read_commits(directory, name).lines,
            reports=read_job_reports(directory, name, plan.run_id)[0],
            contents=contents.get(name),
            plan=plan,
            attempts={attempt.number: attempt for attempt in attempts},
            files=locate_episodes(directory, name)[0],
        )
    return jobs


def _compared(before: _RecordedJob, now: _RecordedJob, index: int) -> VerifiedEpisode:
    line = before.line_of[index]
    contents: tuple[str, ...] = ()
    if before.contents is not None and now.contents is not None:
        # A sample takes its conditions from the run itself.
        differences = differences_of_contents(before.contents, now.contents)
        contents = tuple(f"{what} {how}" for what, how in differences if what != SAVED_CONDITIONS)
    verdict = VerifiedEpisode(
        job=before.job.name, episode_index=index, num_steps=line.episode_length, contents=contents
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
        recorded = found = difference = None
    else:
        difference = first_difference(recorded, found)
    difference = difference or _difference_of_commits(line, again)
    return dataclasses.replace(
        verdict,
        compares_arrays=recorded is not None,
        difference=difference,
        explanation=None if difference is None else _explanation(before, now, difference, contents),
        other_provenance=before.provenance(index, recorded).told_differences(now.provenance(index, found)),
    )


def _difference_of_commits(line: CommitLine, again: CommitLine) -> Difference | None:
    """Return the first difference of two commit lines, other than time and place."""
    for name in ("episode_seed", "variations", "language_instruction"):
        before, now = (json_line(getattr(each, name)) for each in (line, again))
        if before != now:
            field = "conditions" if name == "variations" else name
            return Difference(field=field, recorded=before, found=now, at_start=True)
    if line.episode_length != again.episode_length:
        return Difference(field="num_samples", recorded=str(line.episode_length), found=str(again.episode_length))
    first, second = ({**dataclasses.asdict(each), "metrics": json_line(each.metrics)} for each in (line, again))
    return result_difference(first, second)


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
