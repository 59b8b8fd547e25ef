"""Directories of runs as a crash may leave them: parts with and without commit lines, datasets, reports."""

import dataclasses
import json
from pathlib import Path

from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.storage import episodes as hdf5
from isaaclab_arena.storage.commits import CommitLine, CommitWriter, attributes_of, commit_line, line_text, read_commits
from isaaclab_arena.storage.dataset import consolidate
from isaaclab_arena.storage.episode_file import checksum
from isaaclab_arena.storage.layout import COMMIT_ATTRIBUTE, episode_file_name
from isaaclab_arena.storage.ledger import JobReport, PlanEntry, ReportedStatus, RunPlan, write_attempt, write_job_report
from isaaclab_arena.storage.recovery import Recovery, recover_run
from tests.results.evidence import attempt, plan_entry, run_plan
from tests.storage.recordings import ended, recorded

CONFIG_HASH = "right"


def planned(name: str = "lift", **said) -> PlanEntry:
    return plan_entry(name, **{"environment": "lift", "policy_type": "scripted", "num_episodes": 4, **said})


def plan(*jobs: PlanEntry) -> RunPlan:
    return run_plan(*(jobs or (planned(),)), config_hash=CONFIG_HASH)


def recover(output: Path, *jobs: PlanEntry, retry_errors: bool = False, attempt: int = 2) -> Recovery:
    return recover_run(output, plan(*jobs), retry_errors=retry_errors, attempt=attempt)


def state_of(recovery: Recovery) -> list[tuple[object, ...]]:
    """Return the state of each job after a recovery, without the repairs."""
    return [(job.job, job.finished, job.reports, job.is_whole, job.last_attempt) for job in recovery.jobs]


def begin_attempt(output: Path, number: int, recovery: Recovery, *, retry_errors: bool = False) -> None:
    """Write the attempt that is to run what a recovery has left to do."""
    begun = attempt(number, run_id="run", jobs=recovery.left(), retry_errors=retry_errors)
    write_attempt(output, begun)


class JobOnDisk:
    """Writes what ranks write into the directory of one job."""

    def __init__(self, output: Path, name: str = "lift", *, dataset: str | None = None) -> None:
        self.name = name
        self.directory = output / name
        self.dataset = self.directory / (dataset or f"dataset_{name}.hdf5")

    def part(self, index: int) -> Path:
        return self.directory / "episodes" / episode_file_name(index)

    def line(self, index: int, *, length: int = 5, outcome: Outcome = Outcome.SUCCESS, **changes) -> CommitLine:
        """Return the line of an episode whose arrays are those of `write_part`."""
        record = ended(index, job=self.name, outcome=outcome, length=length)
        line = commit_line(
            record,
            rank=0,
            episode_in_env=0,
            timestamp="",
            wall_s=0.5,
            dataset_file=self.dataset.name,
            episode_file=f"episodes/{episode_file_name(index)}",
            checksum=checksum(recorded(index, length=length).arrays),
        )
        return dataclasses.replace(line, **changes)

    def write_part(self, line: CommitLine, *, config_hash: str = CONFIG_HASH, **attributes) -> Path:
        """Write an episode's file as the recorder does, just before it commits the episode."""
        index = line.episode_index
        values = {
            **attributes_of(line),
            "provenance": json.dumps({"config_hash": config_hash}),
            COMMIT_ATTRIBUTE: line_text(line),
            **attributes,
        }
        path = self.part(index)
        hdf5.write_episode(path, dataclasses.replace(recorded(index, length=line.length), attributes=values))
        return path

    def commit(self, *lines: CommitLine, rank: int = 0) -> Path:
        writer = CommitWriter(self.directory, rank)
        for line in lines:
            writer.write(line)
        writer.close()
        return writer.path

    def finish(self, *indices: int, **changes) -> list[CommitLine]:
        """Record and commit episodes."""
        lines = [self.line(index, **changes) for index in indices]
        for line in lines:
            self.write_part(line)
        self.commit(*lines)
        return lines

    def consolidate(self) -> None:
        directory = self.directory / "episodes"
        consolidate(sorted(directory.glob("*.h5")), self.dataset)
        directory.rmdir()

    def report(self, status: ReportedStatus = ReportedStatus.COMPLETED, **changes) -> Path:
        values = {"job": self.name, "rank": 0, "device": "cpu", "started_at": "", "ended_at": "", "wall_s": 1.0}
        return write_job_report(self.directory, JobReport(**{**values, "status": status, **changes}))

    def committed(self) -> dict[int, CommitLine]:
        return {line.episode_index: line for line in read_commits(self.directory, self.name).lines}

    def recorded(self) -> dict[str, list[int]]:
        """Return the intact episodes of each dataset and part, by file name."""
        found = {}
        for path in sorted([*self.directory.glob("*.hdf5"), *self.directory.glob("episodes/*")]):
            found[path.name] = hdf5.list_episodes(path)
            hdf5.verify_episodes(path, found[path.name])
        return found

    def set_aside(self) -> set[str]:
        directory = self.directory / "set_aside"
        return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
