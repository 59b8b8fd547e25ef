"""A run as ``eval_info.json``, the file that ``lerobot-eval`` writes and that tools around LeRobot read."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.merge import MergedResults, merge_results, records
from isaaclab_arena.results.rows import repeats_in_words
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.hdf5.episodes import read_array
from isaaclab_arena.storage.layout import REWARDS, job_directory
from isaaclab_arena.storage.recordings import locate_episodes
from isaaclab_arena.storage.run.commits import CommitLine, read_commits
from isaaclab_arena.storage.videos import videos_of_job

EVAL_INFO_FILE = "eval_info.json"


@dataclass(frozen=True, kw_only=True)
class EvaluatedTask:
    """A job in LeRobot's words.

    Attributes:
        group: What LeRobot calls a task group: the environment.
        task_id: Position of the job in its group, from 0.
        episodes: LeRobot's ``per_episode``, in order of their indices.
        wall_s: How long the job took [s], NaN where nobody knows.
        video_paths: Its videos.
    """

    group: str
    task_id: int
    episodes: Sequence[Mapping[str, Any]]
    wall_s: float
    video_paths: Sequence[str]


def export_lerobot(run: Path, output: Path) -> list[str]:
    """Write ``eval_info.json`` for each job and for the whole run, and return lines for the user.

    LeRobot knows no errors and no unmeasured success, so such episodes are left out.

    Args:
        run: The directory of one run.
        output: Where to write; an empty directory.

    Raises:
        ConfigError: If ``run`` is no output of a run, or has no episode with a measured success.
        StorageError: If a file cannot be read or written.
    """
    told: list[str] = []
    tasks = _evaluated_tasks(run, merge_results(run), told)
    if not tasks:
        raise ConfigError(f"{run} has no episode whose success is measured")
    for name, task in tasks.items():
        _write(output / name / EVAL_INFO_FILE, eval_info([task]))
    _write(output / EVAL_INFO_FILE, eval_info(list(tasks.values())))
    num_episodes = sum(len(task.episodes) for task in tasks.values())
    return [f"{output / EVAL_INFO_FILE}: episodes {num_episodes}, jobs {len(tasks)}", *told]


def eval_info(tasks: Sequence[EvaluatedTask]) -> dict[str, Any]:
    """Return what the file holds.

    ``per_task``, ``per_group`` and ``overall`` are what LeRobot 0.4.0 and later write. Of a single job it also holds
    ``per_episode`` and ``aggregated``, which LeRobot wrote before, and which its comparison of policies reads.

    Args:
        tasks: At least one.
    """
    groups: defaultdict[str, list[EvaluatedTask]] = defaultdict(list)
    for task in tasks:
        groups[task.group].append(task)
    info: dict[str, Any] = {
        "per_task": [
            {"task_group": task.group, "task_id": task.task_id, "metrics": _metrics(task.episodes) | _paths([task])}
            for task in tasks
        ],
        "per_group": {group: _averages(members) | _counts(members) for group, members in groups.items()},
        "overall": _averages(tasks) | _counts(tasks) | _times(tasks),
    }
    if len(tasks) == 1:
        info |= {
            "per_episode": list(tasks[0].episodes),
            "aggregated": _averages(tasks) | _times(tasks),
            "video_paths": list(tasks[0].video_paths),
        }
    return info


def _evaluated_tasks(run: Path, merged: MergedResults, told: list[str]) -> dict[str, EvaluatedTask]:
    """Return the jobs that have an episode whose success is known, by name; ``told`` gets what is left out."""
    rows = {str(row["name"]): row for row in records(merged.jobs)}
    tasks: dict[str, EvaluatedTask] = {}
    sizes: Counter[str] = Counter()
    beyond = _beyond_decisions(merged)
    for job in merged.plan.jobs:
        directory, group = job_directory(run, job.name), job.config.environment
        lines = read_commits(directory, job.name, seed=job.config.seed).lines
        counted = [line for line in lines if (job.name, line.episode_index) not in beyond]
        scored = [line for line in counted if line.success is not None and line.outcome is not Outcome.ERROR]
        if len(counted) < len(lines):
            told.append(f"job '{job.name}': {len(lines) - len(counted)} episodes beyond its decision left out")
        if len(scored) < len(counted):
            left_out = f"{len(counted) - len(scored)} of {len(counted)} episodes left out"
            told.append(f"job '{job.name}': {left_out}, whose success is not known")
        if repeated := repeats_in_words(rows[job.name]):
            told.append(f"job '{job.name}': {repeated}")
        if scored:
            tasks[job.name] = EvaluatedTask(
                group=group,
                task_id=sizes[group],
                episodes=_recorded_episodes(directory, job.name, scored),
                wall_s=math.nan if rows[job.name]["wall_s"] is None else float(rows[job.name]["wall_s"]),
                video_paths=[str(path) for path in _videos(directory)],
            )
            sizes[group] += 1
    return tasks


def _beyond_decisions(merged: MergedResults) -> set[tuple[str, int]]:
    """Return the episodes that the table of jobs does not count, because their question had been answered before."""
    if not merged.plan.questions:
        return set()
    rows = records(merged.episodes)
    return {(str(row["job"]), int(row["episode_index"])) for row in rows if row.get("beyond_decision")}


def _recorded_episodes(directory: Path, job: str, lines: Iterable[CommitLine]) -> list[dict[str, Any]]:
    recordings, _ = locate_episodes(directory, job)
    return [
        {
            "episode_ix": line.episode_index,
            "sum_reward": math.nan if line.episode_return is None else line.episode_return,
            "max_reward": _largest_reward(recordings.get(line.episode_index, ()), line.episode_index),
            "success": bool(line.success),
            "seed": line.episode_seed,
        }
        for line in lines
    ]


def _largest_reward(files: Sequence[Path], episode_index: int) -> float:
    """Return the largest reward of a step, NaN where the episode was not recorded."""
    for file in files:
        try:
            rewards = read_array(file, episode_index, REWARDS)
        except StorageError:
            continue
        if rewards.size:
            return float(rewards.max())
    return math.nan


def _metrics(episodes: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    episodes = list(episodes)
    return {
        "sum_rewards": [episode["sum_reward"] for episode in episodes],
        "max_rewards": [episode["max_reward"] for episode in episodes],
        "successes": [episode["success"] for episode in episodes],
    }


def _averages(tasks: Iterable[EvaluatedTask]) -> dict[str, float]:
    metrics = _metrics(episode for task in tasks for episode in task.episodes)
    return {
        "avg_sum_reward": _mean(metrics["sum_rewards"]),
        "avg_max_reward": _mean(metrics["max_rewards"]),
        "pc_success": 100 * _mean(metrics["successes"]),
    }


def _counts(tasks: Sequence[EvaluatedTask]) -> dict[str, Any]:
    return {"n_episodes": sum(len(task.episodes) for task in tasks), **_paths(tasks)}


def _paths(tasks: Iterable[EvaluatedTask]) -> dict[str, list[str]]:
    # LeRobot's world models write videos of what they predict, since 0.6.
    return {"video_paths": [path for task in tasks for path in task.video_paths], "predicted_video_paths": []}


def _times(tasks: Sequence[EvaluatedTask]) -> dict[str, float]:
    eval_s = sum(task.wall_s for task in tasks)
    return {"eval_s": eval_s, "eval_ep_s": eval_s / sum(len(task.episodes) for task in tasks)}


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _videos(directory: Path) -> list[Path]:
    return [path.absolute() for _, path in videos_of_job(directory.parent, directory.name)]


def _write(path: Path, info: Mapping[str, Any]) -> None:
    # As LeRobot does: with NaN for what is not known, which Python reads back.
    write_text(path, json.dumps(info, indent=2))
