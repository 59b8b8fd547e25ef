"""``run.json``: what a run set out to do, written before it starts, so that whatever is missing later can be named."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isaaclab_arena.config.names import name_problem
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import ATTEMPTS_FOLDER, PLAN_COPY_FILE, RUN_PLAN_FILE

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """One job of the plan, as every rank understood it.

    Attributes:
        index: Position among all jobs, from 0.
        name: Unique name, which is also its folder.
        environment: Registered name of the environment.
        task: What is done, for tables; the environment's name where it has no better word.
        embodiment: The robot, None where the environment has no choice.
        object: The object, None where the environment has no choice.
        policy_type: Registered name or dotted path.
        policy_config: Options of the policy.
        environment_args: Options of the environment.
        seed: Seed of the job.
        num_envs: Rows of the batch.
        num_episodes: Episodes to run, None where steps or the policy decide.
        num_steps: Control steps to run, None where episodes decide.
        variations: The variations that are on, spelled out: ``cube.mass.sampler_cfg.high`` to its value.
        conditions: File of saved conditions that the episodes start from, None where they are drawn.
        rank: The rank that runs it, None for a job that is not run or that several ranks may run.
        status: ``pending`` for a job to run; any other status of the job file means it is skipped.
        config: Every key of the job, resolved: what it takes to build the job again without its file.
        conditions_checksum: CRC-32 of the saved conditions that it runs, None where they are drawn.
        contents: What it evaluated when the run began, None for a job that is skipped and in plans of programs that did
            not say. Later attempts may say otherwise; see `contents_in_effect`.
        backend: What simulates it, as the job says or as was settled for all ranks before the start; None in runs of
            earlier versions and where there is nothing to choose.
        swept: The dotted keys that a sweep of the job file gave it a value for, with that value.
    """

    index: int
    name: str
    environment: str
    policy_type: str
    seed: int
    num_envs: int
    rank: int | None
    task: str | None = None
    embodiment: str | None = None
    object: str | None = None
    policy_config: Mapping[str, Any] = field(default_factory=dict)
    environment_args: Mapping[str, Any] = field(default_factory=dict)
    variations: Mapping[str, Any] = field(default_factory=dict)
    conditions: str | None = None
    num_episodes: int | None = None
    num_steps: int | None = None
    status: str = "pending"
    config: Mapping[str, Any] = field(default_factory=dict)
    conditions_checksum: int | None = None
    contents: Contents | None = None
    backend: str | None = None
    swept: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a run ran.

    Attributes:
        host: Host name of rank 0.
        cpu: Model of the processor.
        cores: Cores that rank 0 may use.
        platform: Operating system, release and architecture.
    """

    host: str
    cpu: str
    cores: int
    platform: str


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
    machine: Machine
    devices: tuple[str, ...]
    jobs: tuple[PlannedJob, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    working_directory: str | None = None
    schema_version: int = SCHEMA_VERSION


def write_run_plan(output_directory: Path, plan: RunPlan) -> Path:
    """Write ``run.json``, complete or not at all, then its copy beside the attempts; return its path.

    Raises:
        StorageError: If the folder holds one already, or it cannot be written.
    """
    path = output_directory / RUN_PLAN_FILE
    write_text(path, json_text(plan))
    write_text(plan_copy_path(output_directory), json_text(plan), overwrite=True)
    return path


def plan_copy_path(output_directory: Path) -> Path:
    """Return where the copy of ``run.json`` is."""
    return output_directory / ATTEMPTS_FOLDER / PLAN_COPY_FILE


def read_run_plan(output_directory: Path) -> RunPlan:
    """Read ``run.json``.

    Raises:
        ConfigError: If the folder is no output of a run, is of another version of this program, or a job's name cannot
            be a folder's.
    """
    path = output_directory / RUN_PLAN_FILE
    if not path.is_file():
        is_lost = plan_copy_path(output_directory).is_file()
        what = "it is lost; isaaclab-arena recover brings it back" if is_lost else "it is not the output of a run"
        raise ConfigError(Problem(f"holds no {RUN_PLAN_FILE}: {what}", file=str(output_directory)))
    return _read_plan(path)


def _read_plan(path: Path) -> RunPlan:
    plan = read_versioned(path, RunPlan, SCHEMA_VERSION)
    # Names become paths, and a plan may be anybody's.
    problems = [
        Problem(problem, file=str(path), key=f"jobs[{position}].name")
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
