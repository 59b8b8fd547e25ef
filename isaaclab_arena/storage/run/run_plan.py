"""``run.json``: what a run set out to do, written before it starts, so that whatever is missing later can be named."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isaaclab_arena.config.schema import Delays, JobConfig, JobStatus, Question, name_problem
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import ATTEMPTS_DIRECTORY, PLAN_COPY_FILE, RUN_PLAN_FILE
from isaaclab_arena.storage.provenance import Node, Provenance

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
