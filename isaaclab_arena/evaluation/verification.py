"""The verification of a run: its files, and a sample of its episodes run again by ranks of its own."""

import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.distributed.context import DistributedContext, die_with_parent, take_rank_of_scheduler
from isaaclab_arena.distributed.devices import set_up_torch
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError, first_line
from isaaclab_arena.evaluation import heartbeat, job_run, planning, process, queues, rerun, validation
from isaaclab_arena.evaluation.job import Job, contents_of_jobs
from isaaclab_arena.evaluation.options import SPLIT, RunOptions
from isaaclab_arena.evaluation.process import signals_held_back
from isaaclab_arena.interfaces.episode import Outcome, as_ranges, conditions_from_json, remaining_episodes
from isaaclab_arena.paths import now
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.results.merge import FILES, MergedResults, stale_tables
from isaaclab_arena.storage import contents, layout, ledger, recovery
from isaaclab_arena.storage.atomic import adapter, json_text, read_whole, write_text
from isaaclab_arena.storage.commits import CommitLine, attributes_of, read_commits
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import file_with, in_words, locate_episodes, read_episode, read_totals
from isaaclab_arena.storage.ledger import JobReport, read_job_reports

# Check the files of a run: every episode once, its arrays as written, the tables up to date.


def check_directory(output_directory: Path, merged: MergedResults) -> Iterator[str]:
    """Yield one line for each defect of a run's files; reads every array and writes nothing."""
    yield from merged.problems
    for missing in merged.missing:
        lacks = f" and lacks {in_words(missing.episode_indices)}" if missing.episode_indices else ""
        yield f"job '{missing.job}' {missing.status.in_words}{lacks}"
    for job in merged.plan.jobs:
        directory = output_directory / job.name
        try:
            wrong = list(_check_recordings(directory, job.name))
            for path in ledger.datasets(directory, job.name):
                with suppress(StorageError):  # it is reported as unreadable already
                    told, found = read_totals(path)
                    if told != found:
                        wrong.append(f"{path.name} states {told} control steps, its episodes have {found}")
        except StorageError as error:
            wrong = [str(error)]
        yield from (f"job '{job.name}': {what}" for what in wrong)

    # The tables must be equal to those of a merge now.
    stale = stale_tables(output_directory, merged)
    if stale and not any((output_directory / f"{name}.csv").is_file() for name in FILES):
        yield f"{output_directory} holds no tables; isaaclab-arena merge writes them"
        return
    for path in stale:
        wrong = "differs from a merge of these files" if path.is_file() else "is missing"
        yield f"{path} {wrong}; isaaclab-arena merge writes it again"


def _check_recordings(directory: Path, job: str) -> Iterator[str]:
    lines = {line.episode_index: line for line in read_commits(directory, job).lines}
    copies, unreadable = recovery.read_recordings(directory, job, lines.values())
    yield from (f"{path.name}: {reason}" for path, reason in unreadable)
    for index, recorded in copies.items():
        if index not in lines:
            yield f"{recorded[0].path} holds {layout.demo_name(index)}, which has no line in the commit record"
        if len(recorded) > 1:
            yield f"{layout.demo_name(index)} is recorded in {' and in '.join(str(copy.path) for copy in recorded)}"
    for index, line in lines.items():
        name, recorded = layout.demo_name(index), copies.get(index, [])
        for copy in recorded:
            if copy.damage is not None:
                yield copy.damage
            if copy.contradiction is not None:
                yield f"{name} in {copy.path.name}: {copy.contradiction}"
        if line.checksum is None:
            if recorded:
                yield f"{name} is recorded in {recorded[0].path.name}, but its commit line states no recording"
        elif all(copy.damage is None and copy.checksum != line.checksum for copy in recorded):
            what = "the recording of an episode with an error is lost: " if line.outcome is Outcome.ERROR else ""
            yield f"{what}no file holds {name} with the checksum of its commit line"


# Choose the episodes to run again, and write the plan of a run of them, with other env slots and ranks.

PROGRAM = "isaaclab_arena.evaluation.verification"
_ATTEMPT = 1
"""Number of the one attempt at running a sample again."""

_CONTENTS_FILE, _NO_IMPORT = "contents.json", "--no_import"
_MAX_ENDING_S = 10.0
_LOG_LINES_SHOWN = 15

Sample = Mapping[str, Sequence[int]]


def draw_sample(finished: Sample, size: int, *, seed: int) -> dict[str, tuple[int, ...]]:
    """Draw episodes at random without repetition, as evenly over the jobs as their lengths allow; ascending."""
    generator = np.random.default_rng(seed)
    shuffled = {job: generator.permutation(np.asarray(episodes, np.int64)) for job, episodes in finished.items()}
    names = list(shuffled)
    turns = [names[position] for position in generator.permutation(len(names))]
    drawn: dict[str, list[int]] = {job: [] for job in names}
    # The jobs take turns in a random order, so that each gives the same number while it has episodes left.
    rounds = range(max(map(len, shuffled.values()), default=0))
    in_turn = ((job, shuffled[job][number]) for number in rounds for job in turns if number < len(shuffled[job]))
    for _, (job, episode) in zip(range(size), in_turn, strict=False):
        drawn[job].append(int(episode))
    return {job: tuple(sorted(episodes)) for job, episodes in drawn.items() if episodes}


def prepare_sample(
    output_directory: Path, directory: Path, sample: Sample, *, num_envs: int | None, num_ranks: int
) -> ledger.RunPlan:
    """Write and return the plan that runs a sample of a run's episodes again, by job, in an empty `directory`."""
    # `num_envs` None: numbers that differ from the run's. `ConfigError` if it exceeds the run's fixed batch, or if the
    # plan lacks what builds its jobs.
    begun = ledger.read_run_plan(output_directory)
    batches = ledger.policy_batches_in_effect(
        output_directory, begun.jobs, ledger.read_attempts(output_directory, begun.run_id)[0]
    )
    largest = begun.settings.get("policy_batch") if begun.settings.get("deterministic") else None
    if largest is not None and num_envs is not None and num_envs > largest:
        message = f"must be at most {largest}, the run's policy_batch, got {num_envs}"
        raise ConfigError(Problem(message, key="--num_envs"))

    known: dict[str, ledger.PlanEntry] = {job.name: job for job in begun.jobs}
    jobs, work = [], []
    for index, (name, episodes) in enumerate(sample.items()):
        job = known[name]
        config, policy_config = job.config, dict(job.policy_config)
        # One env slot for a batch, else three; at most the fixed batch, even if that is equal.
        other = 1 if config.num_envs > 1 else 3
        again = num_envs or (other if largest is None else max(1, min(other, largest)))
        if policy_config.get("num_envs") == config.num_envs:
            policy_config["num_envs"] = again
        if config.num_episodes is None:
            # The number of episodes in a number of steps depends on num_envs; the episodes themselves do not.
            config = replace(config, num_episodes=max(episodes) + 1, num_steps=None, num_rebuilds=1)
        # The plan holds the latencies; their file may be gone.
        latency = config.latency
        if latency is not None and latency.file is not None:
            latency = replace(latency, file=None, measured=True)
        config = replace(
            config,
            index=index,
            latency=latency,
            num_envs=again,
            chooses_num_envs=False,
            policy_config_dict=policy_config,
            variations=job.variations,
            conditions=None,
            timeout_s=None,
            episode_timeout_s=None,
            status=JobStatus.PENDING,
        )
        jobs.append(replace(job, rank=None, policy_config=policy_config, config=config))
        # The env slots of each policy call in the run are kept if they are enough.
        batch = batches.get(name, 0)
        left_out = remaining_episodes(config.num_episodes or 0, as_ranges(episodes))
        work.append(ledger.JobState(job=name, finished=left_out, policy_batch=batch if batch >= again else None))

    # The ranks state their devices in their reports.
    here: dict[str, Any] = {
        "run_id": uuid.uuid4().hex,
        "world_size": num_ranks,
        "versions": contents.versions(),
        "machine": contents.node(),
        "devices": (),
    }
    plan = replace(begun, created_at=now(), jobs=tuple(jobs), **here)
    attempt = ledger.Attempt(
        number=_ATTEMPT,
        started_at=plan.created_at,
        command_line=begun.command_line,
        assignment="round_robin",
        git_revision=begun.git_revision,
        jobs=tuple(work),
        **here,
    )
    ledger.write_run_plan(directory, plan)
    ledger.write_attempt(directory, attempt)
    return plan


# One rank of a verification runs its share of a sample, end to end, as the verified run did. `run_sample` starts it,
# alone or under torchrun, on a directory with a plan and an attempt. Commit lines and recordings there are not merged.


def main(argv: Sequence[str] | None = None) -> int:
    """Run this rank's share and return 0; a job that fails states it in its report."""
    # The words: directory of the plan and the attempt, directory of the verified run, and `--no_import` if asked for.
    place, verified, *more = sys.argv[1:] if argv is None else argv
    directory, source = Path(place), Path(verified)
    with process.program() as ended:
        take_rank_of_scheduler()
        die_with_parent()
        # A run on CPUs is run again on CPUs.
        device = "cpu" if all(each == "cpu" for each in ledger.read_run_plan(source).devices) else None
        context = DistributedContext.from_environment(device=device)
        plan, attempt = ledger.read_run_plan(directory), ledger.read_attempt(directory, _ATTEMPT)
        # The run's options that affect results; recordings are not compressed again.
        known = {field.name for field in fields(RunOptions)} - {"compression"}
        given = {name: value for name, value in plan.settings.items() if name in known and value is not None}
        options = RunOptions(**given)
        set_up_torch(options.torch_threads, deterministic=options.deterministic)
        batch = options.fixed_policy_batch()
        jobs = jobs_of_plan(plan, source, policy_batch=batch, may_import=_NO_IMPORT not in more, device=device)
        if context.is_rank_zero:
            write_text(directory / _CONTENTS_FILE, json_text(contents_of_jobs(jobs)))
        # The sample is divided before the start: no rank takes over the episodes of another.
        queue = queues.FixedQueue(queues.jobs_of_rank(jobs, attempt, SPLIT, rank=context.rank))
        request = planning.RunRequest.of(
            jobs, plan.config_hash, source_file=None, command_line=plan.command_line, options=options
        )
        status = queue.first_status(context.rank, plan.run_id)
        with initialise(context), heartbeat.StatusPublisher(directory, status) as publisher:
            job_run.run_jobs(queue, request, attempt, context, publisher, lambda: False, config_hash=plan.config_hash)
    return ended.code


def jobs_of_plan(
    plan: ledger.RunPlan, source: Path, *, policy_batch: int | None, may_import: bool, device: str | None = None
) -> tuple[Job, ...]:
    """Return the checked jobs of a plan of `prepare_sample`; `ConfigError` if one cannot be built any more."""
    # `source`: directory of the run that is verified, whose commits hold its conditions. `policy_batch`: env slots of
    # each policy call in that run, None for the job's num_envs.
    configs, file = [job.config for job in plan.jobs], str(source / layout.RUN_PLAN_FILE)
    resolved = validation.resolve_jobs(
        configs, file=file, policy_batch=policy_batch, may_import=may_import, device=device
    )
    jobs = []
    for job, planned in zip(resolved, plan.jobs, strict=True):
        # The backend of the run is used again, even if another one would be faster here, and its conditions.
        settled = job.with_settled(planned.backend, planned.latency)
        if planned.conditions_checksum is not None:
            lines = read_commits(source / planned.name, planned.name).lines
            saved = {line.episode_index: conditions_from_json(line.conditions) for line in lines}
            conditions = tuple(saved.get(index, {}) for index in range(planned.config.num_episodes or 0))
            settled = replace(settled, saved_conditions=conditions)
        jobs.append(settled)
    return tuple(jobs)


def run_sample(output_directory: Path, directory: Path, *, may_import: bool) -> None:
    """Run a sample of `prepare_sample` in processes of their own; `ArenaError` if a rank could not do its work."""
    num_ranks = ledger.read_run_plan(directory).world_size
    words = [PROGRAM, str(directory), str(output_directory.absolute()), *([] if may_import else [_NO_IMPORT])]
    if num_ranks > 1:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={num_ranks}"]
        words = [*launcher, "--log-dir", str(directory / "launcher"), "-m", *words]
    # Relative paths of policies start from the run's working directory. Without `may_import` the ranks do not work
    # there, as its modules could be imported.
    started_in = ledger.read_run_plan(output_directory).working_directory if may_import else None
    log, process = directory / "worker.log", None
    with log.open("wb") as stream:
        try:
            # A signal in the middle of the start would leave a program without a handle to end it.
            with signals_held_back():
                process = subprocess.Popen(  # noqa: S603  this Python, and a module of this package
                    [sys.executable, "-m", *words],
                    cwd=started_in if started_in and Path(started_in).is_dir() else None,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
            exit_code = process.wait()
        finally:
            # A launcher ends its ranks if it is terminated, but not if it is killed.
            if process is not None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_MAX_ENDING_S)
                process.kill()
                process.wait()
    if exit_code != 0:
        # Show the last lines of the ranks, before the launcher's lines about their end.
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        of_ranks = list(takewhile(lambda line: "torch/distributed/elastic" not in line, lines))
        raise ArenaError("\n".join(["the episodes could not be run again:", *of_ranks[-_LOG_LINES_SHOWN:]]))


# Compare a run with the repetition of its sample: the results, and the recordings bit for bit.


@dataclass(frozen=True, kw_only=True)
class VerifiedEpisode:
    """The result of running one episode again."""

    job: str
    episode_index: int
    num_steps: int  # control steps in the run
    compares_arrays: bool = False  # whether recordings were compared, not only results
    difference: rerun.Difference | None = None  # the first one, if any
    failure: str | None = None  # reason why it did not finish this time
    unreadable: str | None = None  # reason why its recording cannot be compared
    explanation: str | None = None  # reason why the difference is expected
    other_provenance: tuple[str, ...] = ()  # versions, processor, device or model that have changed
    contents: tuple[str, ...] = ()  # checkpoints, classes or robots that have changed

    @property
    def is_same(self) -> bool:
        """Whether all that was compared is equal."""
        return self.difference is None and self.failure is None and self.unreadable is None

    @property
    def is_expected(self) -> bool:
        """Whether it is the same, or differs in a way that its policy does not rule out."""
        return self.is_same or self.explanation is not None

    @property
    def surroundings(self) -> list[str]:
        """What has changed around the episode, in words."""
        other = [f"job '{self.job}' has changed since the run: {each}" for each in self.contents]
        return other + [f"changed since the run: {each}" for each in self.other_provenance]

    @property
    def verdict(self) -> str:
        """The result in words."""
        if self.failure is not None:
            verdict = f"did not finish: {self.failure}"
        elif self.unreadable is not None:
            verdict = f"cannot be compared: {self.unreadable}"
        elif self.difference is not None:
            verdict = f"differs first {self.difference}"
        else:
            verdict = "bitwise" if self.compares_arrays else "ended the same"
        verdict += "" if self.explanation is None else f" (expected: {self.explanation})"
        return f"{verdict}, but the job has changed since the run" if self.contents else verdict


@dataclass(frozen=True, kw_only=True)
class _JobOfRun:
    """One job as one run played it."""

    entry: ledger.PlanEntry
    lines: Mapping[int, CommitLine]
    reports: Sequence[JobReport]
    evaluated: contents.Contents | None
    starts: Mapping[int, ledger.Attempt]  # by number
    plan: ledger.RunPlan
    files: Mapping[int, list[Path]]  # with recordings, by episode

    def recording(self, index: int) -> RecordedEpisode | None:
        """Return the recording of an episode, None if there is none."""
        checksum = self.lines[index].checksum
        file = None if checksum is None else file_with(self.files.get(index, ()), index, checksum)
        return None if file is None else read_episode(file, index)

    def provenance(self, index: int, recorded: RecordedEpisode | None) -> contents.Provenance:
        """Return the provenance of an episode; its recording is more precise than the reports."""
        line = self.lines[index]
        device = {report.rank: report.device for report in self.reports}.get(line.rank)
        kind = {} if device is None else {"device": torch.device(device).type}
        start = self.starts.get(line.attempt, self.plan)
        facts = contents.provenance_of(start.versions, start.machine, **kind)
        return facts if recorded is None else {**facts, **recorded.provenance}


def compare_runs(output_directory: Path, directory: Path, sample: Sample) -> Iterator[VerifiedEpisode]:
    """Yield for each episode of a sample the comparison of the run with its repetition in `directory`."""
    sides: list[dict[str, _JobOfRun]] = []
    for output in (output_directory, directory):
        plan = ledger.read_run_plan(output)
        attempts = ledger.read_attempts(output, plan.run_id)[0]
        evaluated = ledger.contents_in_effect(plan.jobs, attempts)
        # The ranks of a sample write the contents that they evaluated.
        if (path := output / _CONTENTS_FILE).is_file():
            evaluated |= adapter(dict[str, contents.Contents]).validate_json(read_whole(path))
        sides.append({})
        for entry in (entry for entry in plan.jobs if entry.name in sample):
            name, place = entry.name, output / entry.name
            sides[-1][name] = _JobOfRun(
                entry=entry,
                lines={line.episode_index: line for line in read_commits(place, name).lines},
                reports=read_job_reports(place, name, plan.run_id)[0],
                evaluated=evaluated.get(name),
                starts={attempt.number: attempt for attempt in attempts},
                plan=plan,
                files=locate_episodes(place, name)[0],
            )
    for job, episodes in sample.items():
        for index in episodes:
            yield _compared(sides[0][job], sides[1][job], index)


def _compared(before: _JobOfRun, now: _JobOfRun, index: int) -> VerifiedEpisode:
    line, changed = before.lines[index], tuple[str, ...]()
    if before.evaluated is not None and now.evaluated is not None:
        # A sample takes its conditions from the run itself.
        of_policy = contents.changes(before.evaluated.policy, now.evaluated.policy)
        differences = (*of_policy, *contents.changes(before.evaluated.environment, now.evaluated.environment))
        changed = tuple(f"{what} {how}" for what, how in differences if what != contents.SAVED_CONDITIONS)
    verdict = VerifiedEpisode(job=before.entry.name, episode_index=index, num_steps=line.length, contents=changed)
    if index not in now.lines:
        errors = [report.error for report in now.reports if report.error is not None]
        return replace(verdict, failure="; ".join(errors) or "it did not finish")
    again = now.lines[index]
    try:
        recorded, found = before.recording(index), now.recording(index)
    except StorageError as error:
        # The defect of the file is reported already; the other episodes are still compared.
        return replace(verdict, unreadable=first_line(error))
    # Without both recordings only the commit lines can be compared: start, length and result.
    compares_arrays = recorded is not None and found is not None
    sides = [
        RecordedEpisode(
            episode_index=index,
            arrays=recording.arrays if compares_arrays and recording is not None else {},
            attributes={**attributes_of(side), "num_samples": side.length},
            env_args={},
        )
        for side, recording in ((line, recorded), (again, found))
    ]
    difference = rerun.first_difference(*sides)

    # The policy explains a difference of actions, or one of the result alone, whose cause no array shows. Nothing
    # explains one of a job that has changed: the sample says nothing about the run then.
    explanation = None
    if (
        difference is not None
        and not changed
        and (difference.field == layout.ACTIONS or (difference.step is None and not difference.at_start))
    ):
        traits = resolve_policy_class(before.entry.config.policy_type).traits
        because, because_now = (
            [report.plan_because for report in each.reports if report.plan_because is not None]
            for each in (before, now)
        )
        reasons = []
        may_change = not (traits.batch_invariant or before.plan.settings.get("deterministic"))
        if may_change and before.entry.config.num_envs != now.entry.config.num_envs:
            reasons.append("the policy's actions may change with num_envs; --deterministic fixes its batch")
        if not traits.reproducible and not because:
            reasons.append("the policy does not declare itself reproducible")
        explanation = "; ".join([*reasons, *dict.fromkeys([*because, *because_now])]) or None
    return replace(
        verdict,
        compares_arrays=compares_arrays,
        difference=difference,
        explanation=explanation,
        other_provenance=contents.told_changes(before.provenance(index, recorded), now.provenance(index, found)),
    )


if __name__ == "__main__":
    raise SystemExit(main())
