"""``attempts/attempt_<n>.json``: one start of the program on a run, and what was finished before it.

The plan in ``run.json`` says what a run is; an attempt says who worked on it when. All ranks of an attempt read from
this file what is finished, so they agree on what remains though none of them asks another.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isaaclab_arena.config.schema import Delays
from isaaclab_arena.episode_ranges import EpisodeRanges
from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import ATTEMPTS_DIRECTORY, attempt_file_name, attempt_number, job_directory
from isaaclab_arena.storage.provenance import Node, Provenance
from isaaclab_arena.storage.run.run_plan import PlanEntry
from isaaclab_arena.storage.run.settled_batch import read_settled

SCHEMA_VERSION = 1

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
