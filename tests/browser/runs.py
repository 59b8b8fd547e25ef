"""Writes what runs leave on disk: whole ones, half finished, damaged, and with names that want to be more than text."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.storage.commits import CommitLine, CommitWriter
from isaaclab_arena.storage.contents import Node
from isaaclab_arena.storage.ledger import (
    JobReport,
    PlanEntry,
    ReportedStatus,
    Reproducible,
    RunPlan,
    write_job_report,
    write_run_plan,
)

WHEN = "2026-01-01T00:00:00.000+00:00"
HOSTILE_NAMES = (
    "<b onclick=alert(1)>",
    "'quoted' \"twice\"",
    "${window.hacked = 1} {{ 7 * 7 }} {% raw %}",
    "&lt;script&gt;",
    "a" * 80,
)
"""Names of jobs that are markup, templates, or long; a job's name is that of a directory, so it has no slash."""

HOSTILE_TEXTS = (
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "' onmouseover='window.hacked = 1' x='",
    "</script><script>window.hacked = 1</script><!--",
    "\u202egnol\u202c",
    "long " * 60,
)
"""Texts that are markup, attributes, the end of a script, written from right to left, or 300 characters long."""


def write_run(
    directory: Path,
    jobs: Sequence[str],
    *,
    num_episodes: int = 4,
    finished: int | None = None,
    outcomes: Sequence[Outcome] = (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TIMEOUT),
    text: str = "lift the cube",
    reports: bool = True,
) -> Path:
    """Write a run and return its directory.

    Args:
        directory: Where; it must not exist.
        jobs: Names of its jobs.
        num_episodes: Planned episodes of each.
        finished: Finished episodes of each; all where None.
        outcomes: How they end, in turn.
        text: What stands wherever a text may: instructions, conditions, terminations, errors.
        reports: Whether its jobs have ended.
    """
    directory.mkdir(parents=True)
    entries = [_planned(index, name, num_episodes, text) for index, name in enumerate(jobs)]
    write_run_plan(
        directory,
        RunPlan(
            run_id="run",
            created_at=WHEN,
            config_hash="0" * 64,
            source_file=f"{text}.json",
            command_line=("isaaclab-arena", "run", text),
            world_size=1,
            versions={"isaaclab-arena-mujoco": "0.1.0"},
            git_revision=None,
            machine=Node(host=text, cpu=text, cores=2, platform="Linux"),
            devices=("cpu",),
            jobs=tuple(entries),
        ),
    )
    for entry in entries:
        of_job = directory / entry.name
        of_job.mkdir()
        writer = CommitWriter(of_job, 0)
        for line in _lines(entry, num_episodes if finished is None else finished, outcomes, text):
            writer.write(line)
        writer.close()
        if reports:
            write_job_report(of_job, _report(entry))
    return directory


def _planned(index: int, name: str, num_episodes: int, text: str) -> PlanEntry:
    config = JobConfig(
        index=index,
        name=name,
        environment="lift_object",
        policy_type="scripted",
        environment_args={"environment": "lift_object", "object": text, "num_envs": 2},
        num_envs=2,
        num_episodes=num_episodes,
        language_instruction=text,
    )
    return PlanEntry(config=config, rank=0, task=text, object=text, embodiment=text)


def _lines(entry: PlanEntry, finished: int, outcomes: Sequence[Outcome], text: str) -> Iterator[CommitLine]:
    for index in range(finished):
        outcome = outcomes[index % len(outcomes)]
        is_error = outcome is Outcome.ERROR
        yield CommitLine(
            job=entry.name,
            env_id=index % 2,
            episode_in_env=index // 2,
            language_instruction=text,
            seed=0,
            success=None if is_error else outcome is Outcome.SUCCESS,
            length=10 + index,
            timestamp=WHEN,
            conditions={"cube.mass": 0.1 * index, "cube.position": [0.1, 0.2 * index, 0.0], text: text},
            episode_index=index,
            outcome=outcome,
            termination="diverged" if is_error else "terminated",
            episode_return=1.5 * index,
            metrics={"distance_m": 0.1},
            error=text if is_error else None,
            rank=0,
            episode_seed=index,
            wall_s=1.5,
        )


def _report(entry: PlanEntry) -> JobReport:
    return JobReport(
        job=entry.name,
        rank=0,
        device="cpu",
        status=ReportedStatus.COMPLETED,
        started_at=WHEN,
        ended_at=WHEN,
        wall_s=4.0,
        build_s=1.0,
        simulate_s=2.0,
        env_steps=600,
        num_episodes=entry.config.num_episodes,
        reproducible=Reproducible.BITWISE,
    )
