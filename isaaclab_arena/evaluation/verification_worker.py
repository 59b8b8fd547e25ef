"""One rank of a verification: the sample, its plan, and its episodes, run end to end."""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.config.schema import JobStatus
from isaaclab_arena.distributed.context import (
    DistributedContext,
    die_with_parent,
    limit_threads,
    take_rank_of_scheduler,
)
from isaaclab_arena.distributed.devices import calculate_deterministically
from isaaclab_arena.distributed.ranks import initialise
from isaaclab_arena.episode_ranges import as_ranges, remaining_episodes
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation import provenance
from isaaclab_arena.evaluation.builds import RankSettings
from isaaclab_arena.evaluation.console import program
from isaaclab_arena.evaluation.job import Job, contents_of_jobs
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.options import RunOptions, read_command_line, refuse_unknown
from isaaclab_arena.evaluation.queues import jobs_of_rank
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.episode import conditions_from_json
from isaaclab_arena.paths import now, typed_words
from isaaclab_arena.sim.threads import default_num_threads
from isaaclab_arena.storage.atomic import read_whole, write_text
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import adapter, json_text
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.ledger import (
    Attempt,
    AttemptEntry,
    PlanEntry,
    RunPlan,
    policy_batches_in_effect,
    read_attempt,
    read_attempts,
    read_commits,
    read_run_plan,
    write_attempt,
    write_run_plan,
)

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

_CONTENTS_FILE = "contents.json"


def prepare_sample(
    output_directory: Path,
    directory: Path,
    sample: Mapping[str, Sequence[int]],
    *,
    num_envs: int | None,
    num_ranks: int,
) -> RunPlan:
    """Write and return the plan that runs a sample of a run's episodes again, by job, in an empty `directory`."""
    # `num_envs` None: numbers that differ from the run's. `ConfigError` if it exceeds the run's fixed batch, or if the
    # plan lacks what builds its jobs.
    begun = read_run_plan(output_directory)
    batches = policy_batches_in_effect(output_directory, begun.jobs, read_attempts(output_directory, begun.run_id)[0])
    jobs = _jobs_of_sample(begun, sample, num_envs)
    # The ranks state their devices in their reports.
    here: dict[str, Any] = {
        "run_id": uuid.uuid4().hex,
        "world_size": num_ranks,
        "versions": provenance.versions(),
        "machine": provenance.node(),
        "devices": (),
    }
    plan = dataclasses.replace(begun, created_at=now(), jobs=jobs, **here)
    attempt = Attempt(
        number=ATTEMPT,
        started_at=plan.created_at,
        command_line=begun.command_line,
        assignment="round_robin",
        git_revision=begun.git_revision,
        jobs=tuple(
            AttemptEntry(
                job=job.name,
                finished=remaining_episodes(job.config.num_episodes or 0, as_ranges(sample[job.name])),
                # The env slots of each policy call in the run are kept if they are enough.
                policy_batch=batch if (batch := batches.get(job.name, 0)) >= job.config.num_envs else None,
            )
            for job in jobs
        ),
        **here,
    )
    write_run_plan(directory, plan)
    write_attempt(directory, attempt)
    return plan


def jobs_of_plan(plan: RunPlan, source: Path, *, may_import: bool, device: str | None = None) -> tuple[Job, ...]:
    """Return the checked jobs of a plan of `prepare_sample`; `ConfigError` if one cannot be built any more."""
    # `source`: directory of the run that is verified, whose commits hold its conditions. `device`: `--device` of the
    # user. Latencies come from the plan, because their file may be gone.
    configs = [job.config for job in plan.jobs]
    for index, config in enumerate(configs):
        if config.latency is not None and config.latency.file is not None:
            latency = dataclasses.replace(config.latency, file=None, measured=True)
            configs[index] = dataclasses.replace(config, latency=latency)
    policy_batch = options_of_plan(plan).fixed_policy_batch()
    file = str(source / RUN_PLAN_FILE)
    jobs = []
    for job, planned in zip(
        resolve_jobs(configs, file=file, policy_batch=policy_batch, may_import=may_import, device=device),
        plan.jobs,
        strict=True,
    ):
        # The backend of the run is used again, even if another one would be faster here, and its conditions.
        settled = job.with_settled(planned.backend, planned.latency)
        if planned.conditions_checksum is not None:
            lines = read_commits(source / planned.name, planned.name).lines
            saved = {line.episode_index: conditions_from_json(line.variations) for line in lines}
            conditions = tuple(saved.get(index, {}) for index in range(planned.config.num_episodes or 0))
            settled = dataclasses.replace(settled, saved_conditions=conditions)
        jobs.append(settled)
    return tuple(jobs)


def read_contents(directory: Path) -> dict[str, Contents]:
    """Return the contents that the jobs of a sample evaluated, by job; empty in another run."""
    path = directory / _CONTENTS_FILE
    return adapter(dict[str, Contents]).validate_json(read_whole(path)) if path.is_file() else {}


def options_of_plan(plan: RunPlan) -> RunOptions:
    """Return the run's options that affect results; recordings are not compressed again."""
    known = {field.name for field in dataclasses.fields(RunOptions)} - {"compression"}
    given = {name: value for name, value in plan.settings.items() if name in known and value is not None}
    return RunOptions(**given)


def _jobs_of_sample(plan: RunPlan, sample: Mapping[str, Sequence[int]], num_envs: int | None) -> tuple[PlanEntry, ...]:
    """Return the plan's jobs that have episodes in the sample, with other numbers of env slots."""
    largest = plan.settings.get("policy_batch") if plan.settings.get("deterministic") else None
    if largest is not None and num_envs is not None and num_envs > largest:
        raise ConfigError(
            Problem(f"must be at most {largest}, the run's policy_batch, got {num_envs}", key="--num_envs")
        )
    known, jobs = {job.name: job for job in plan.jobs}, []
    for index, (name, episodes) in enumerate(sample.items()):
        job = known[name]
        config, policy_config = job.config, dict(job.policy_config)
        again = num_envs or another_num_envs(config.num_envs, largest=largest)
        if policy_config.get("num_envs") == config.num_envs:
            policy_config["num_envs"] = again
        if config.num_episodes is None:
            # The number of episodes in a number of steps depends on num_envs; the episodes themselves do not.
            config = dataclasses.replace(config, num_episodes=max(episodes) + 1, num_steps=None, num_rebuilds=1)
        config = dataclasses.replace(
            config,
            index=index,
            num_envs=again,
            policy_config_dict=policy_config,
            variations=job.variations,
            conditions=None,
            timeout_s=None,
            episode_timeout_s=None,
            status=JobStatus.PENDING,
        )
        jobs.append(dataclasses.replace(job, rank=None, policy_config=policy_config, config=config))
    return tuple(jobs)


# One rank of a verification: it runs its share of a sample, end to end, as the verified run did.
#
# `isaaclab_arena.evaluation.verification` starts it, alone or under torchrun, on a directory that holds a plan and an
# attempt. It leaves commit lines and recordings there like any other rank; they are not merged.

PROGRAM = "isaaclab_arena.evaluation.verification_worker"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Run a rank's share of a sample."""

    output_dir: Path
    """Directory with the plan and the attempt."""

    source: Path
    """Directory of the run to verify."""

    no_import: bool = False
    """Refuse jobs that would import unregistered code."""

    device: str | None = None
    """Device of the simulation; by default a GPU if there is one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run this rank's share and return 0; a job that fails states it in its report."""
    arguments = typed_words(argv)
    with program() as ended:
        take_rank_of_scheduler()
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
            write_text(options.output_dir / _CONTENTS_FILE, json_text(contents_of_jobs(jobs)))
        settings = RankSettings(
            context=context,
            options=run_options,
            output_directory=options.output_dir,
            attempt=attempt,
            num_threads=run_options.num_threads or default_num_threads(context.local_world_size),
            provenance={**provenance.provenance_on(context.device).facts, "config_hash": plan.config_hash},
        )
        with initialise(context):
            # The sample is divided before the start: no rank takes over the episodes of another.
            runner = JobRunner(settings)
            try:
                for assigned in jobs_of_rank(jobs, attempt, rank=context.rank, split=True):
                    runner.run(assigned.job, supply=assigned.supply)
            finally:
                runner.close()
    return ended.code


if __name__ == "__main__":
    raise SystemExit(main())
