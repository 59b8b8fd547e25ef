"""A run in the files of Isaac Lab Arena and LeRobot."""

import json
import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isaaclab_arena.episode_ranges import split_evenly
from isaaclab_arena.errors import ConfigError, StorageError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.merge import MergedResults, merge_results, records
from isaaclab_arena.results.rows import repeats_in_words
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.commits import CommitLine, JobResultStatus, read_commits
from isaaclab_arena.storage.hdf5.episodes import read_array
from isaaclab_arena.storage.json_values import json_line, json_text
from isaaclab_arena.storage.layout import REWARDS, job_directory, parse_video_file_name
from isaaclab_arena.storage.recordings import locate_episodes
from isaaclab_arena.storage.run_plan import PlanEntry
from isaaclab_arena.storage.videos import videos_of_job

# A run as the files of Isaac Lab Arena's experiments, which its report, plots and sensitivity analysis read.

RESULT_FILE = "arena_experiment_result.json"
MANIFEST_FILE = "experiment_manifest.json"
MANIFEST_SCHEMA_VERSION = 1


def export_arena(run: Path, output: Path) -> list[str]:
    """Write a run's episodes and jobs in Isaac Lab Arena's format into an empty directory, and return notes."""
    # Each job gets a directory with ``episode_results_rebuild<k>.jsonl`` and its videos. The run's own directory is not
    # changed.
    merged, num_episodes = merge_results(run), 0
    status = {str(row["name"]): JobResultStatus(row["status"]) for row in records(merged.jobs)}
    result: dict[str, Any] = {}
    jobs = [job for job in merged.plan.jobs if status[job.name] is not JobResultStatus.SKIPPED]
    if not jobs:
        raise ConfigError(f"{run} has no job that was to run")
    for job in jobs:
        lines = read_commits(job_directory(run, job.name), job.name, seed=job.config.seed).lines
        rebuilds = rebuilds_of(job, lines)
        completed = status[job.name] is JobResultStatus.COMPLETED
        # A completed job without episodes still gets one empty rebuild.
        rebuilds = {0: []} if completed and not rebuilds else rebuilds
        videos = _videos_by_episode(job_directory(run, job.name))
        for index, episodes in rebuilds.items():
            lines = "".join(f"{json_line(episode.fields)}\n" for episode in episodes)
            write_text(output / job.name / f"episode_results_rebuild{index}.jsonl", lines)
            num_episodes += len(episodes)
            for episode in episodes:
                for source in videos.get((episode.line.env_id, episode.line.episode_index), ()):
                    _copy(source, output / job.name / video_name(source.name, rebuild=index, fields=episode.fields))
        result[job.name] = _run_result(job, rebuilds, completed=completed)
    write_text(output / RESULT_FILE, json_text({"runs": result}))
    write_text(output / MANIFEST_FILE, json_text(_manifest(merged, jobs, output)))
    told = [f"{_counted(num_episodes, 'episode')} of {_counted(len(jobs), 'job')} in {output}", *merged.problems]
    failed = [job.name for job in jobs if status[job.name] is not JobResultStatus.COMPLETED]
    repeated = {str(row["name"]): repeats_in_words(row) for row in records(merged.jobs)}
    told += [f"job '{name}': {words}" for name, words in repeated.items() if words]
    return [*told, *(f"job '{name}' is {status[name]}, which Isaac Lab Arena calls failed" for name in failed)]


@dataclass(frozen=True, kw_only=True)
class ArenaEpisode:
    """A committed episode, and its fields in Isaac Lab Arena's format."""

    line: CommitLine
    fields: dict[str, Any]


def rebuilds_of(job: PlanEntry, lines: Sequence[CommitLine]) -> dict[int, list[ArenaEpisode]]:
    """Return a job's episodes by rebuild."""
    # Arena identifies an episode by ``env_id`` and ``episode_in_env``. Here several ranks and attempts have an
    # environment 0. So those of rank r are numbered from ``r * num_envs``, and an environment's episodes by the order
    # of their ends.
    grouped: defaultdict[int, list[CommitLine]] = defaultdict(list)
    for line in lines:
        grouped[_rebuild(job, line.episode_index)].append(line)
    return {index: _episodes(job, grouped[index]) for index in sorted(grouped)}


def _rebuild(job: PlanEntry, episode_index: int) -> int:
    num_episodes, num_rebuilds = job.config.num_episodes, job.config.num_rebuilds
    if num_episodes is None or num_rebuilds < 2:
        return 0
    shares = split_evenly(num_episodes, num_rebuilds)
    return next(index for index, share in enumerate(shares) if episode_index in share)


def _episodes(job: PlanEntry, lines: Sequence[CommitLine]) -> list[ArenaEpisode]:
    # The order of the ends numbers the episodes of each environment, across attempts.
    ended: defaultdict[int, int] = defaultdict(int)
    episodes = []
    for line in sorted(
        lines, key=lambda line: (line.attempt, line.timestamp, line.rank, line.env_id, line.episode_index)
    ):
        env_id = line.rank * job.config.num_envs + line.env_id
        fields = {
            "job_name": line.job_name,
            "env_id": env_id,
            "episode_in_env": ended[env_id],
            "language_instruction": line.language_instruction,
            "seed": line.seed,
            "success": line.success,
            "episode_length": line.episode_length,
            "timestamp": line.timestamp,
            "variations": line.variations,
        }
        ended[env_id] += 1
        if line.progress is not None:
            fields["progress"] = line.progress
        episodes.append(ArenaEpisode(line=line, fields=fields))
    return episodes


def video_name(name: str, *, rebuild: int, fields: Mapping[str, Any]) -> str:
    """Return Isaac Lab Arena's name of a video, with the episode's `fields` of its rebuild."""
    said = parse_video_file_name(name)
    camera = None if said is None else said.camera
    kind = "viewport" if camera is None else "robot-cam"
    env_id, episode = fields["env_id"], fields["episode_in_env"]
    return f"{kind}-rebuild{rebuild}-env{env_id}-{camera or 'viewport'}-episode-{episode}.mp4"


def _videos_by_episode(directory: Path) -> dict[tuple[int, int], list[Path]]:
    """Return a job's videos by env_id and episode index."""
    found: dict[tuple[int, int], list[Path]] = {}
    for said, path in videos_of_job(directory.parent, directory.name):
        found.setdefault((said.env_id, said.episode_index), []).append(path)
    return found


def _copy(source: Path, target: Path) -> None:
    with storage_errors("write", target):
        shutil.copyfile(source, target)


def _run_result(job: PlanEntry, rebuilds: Mapping[int, Sequence[ArenaEpisode]], *, completed: bool) -> dict[str, Any]:
    variant = job.policy_config.get("policy_variant")
    return {
        "environment": {"name": job.config.environment, "definition": job.config.environment},
        "policy_variant": variant if isinstance(variant, str) and variant else _policy_name(job),
        "status": "completed" if completed else "failed",
        "rebuilds": [
            {"index": index, "episodes": [episode.fields for episode in episodes]}
            for index, episodes in rebuilds.items()
        ],
    }


def _manifest(merged: MergedResults, jobs: Sequence[PlanEntry], output: Path) -> dict[str, Any]:
    labels = {job.name: job.config.labels for job in jobs}
    configured = any(own.get("task") or own.get("policy") for own in labels.values())
    return {
        "runs": [
            {
                "name": job.name,
                "task": labels[job.name].get("task", job.config.environment),
                "policy": labels[job.name].get("policy", _policy_name(job)),
                "environment": job.config.environment,
                "policy_type": job.config.policy_type,
                "num_episodes": job.config.num_episodes,
                "num_rebuilds": job.config.num_rebuilds,
                "num_envs": job.config.num_envs,
                "language_instruction": job.config.language_instruction,
                "variations": job.config.variations,
            }
            for job in jobs
        ],
        "experiment_name": output.resolve().name,
        "created_at": merged.plan.created_at,
        "source": "experiment_runner",
        "label_source": "configured" if configured else "derived",
        "schema_version": MANIFEST_SCHEMA_VERSION,
    }


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _policy_name(job: PlanEntry) -> str:
    return job.config.policy_type.replace(":", ".").rpartition(".")[2]


# A run as ``eval_info.json``, the file that ``lerobot-eval`` writes and that tools around LeRobot read.

EVAL_INFO_FILE = "eval_info.json"


@dataclass(frozen=True, kw_only=True)
class EvaluatedTask:
    """A job in LeRobot's terms."""

    group: str  # LeRobot's task group: the environment
    task_id: int  # position of the job in its group, from 0
    episodes: Sequence[Mapping[str, Any]]  # LeRobot's ``per_episode``, by index
    wall_s: float  # NaN if unknown
    video_paths: Sequence[str]


def export_lerobot(run: Path, output: Path) -> list[str]:
    """Write ``eval_info.json`` per job and for the run into an empty directory, and return notes."""
    # LeRobot has no errors and no unmeasured success, so such episodes are left out.
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
    """Return the content of ``eval_info.json`` for at least one task."""
    # ``per_task``, ``per_group`` and ``overall`` are the format of LeRobot 0.4.0 and later. A single job also has
    # ``per_episode`` and ``aggregated`` of earlier versions, which LeRobot's comparison of policies reads.
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
    """Return the jobs with an episode of known success, by name; append omissions to ``told``."""
    rows = {str(row["name"]): row for row in records(merged.jobs)}
    tasks: dict[str, EvaluatedTask] = {}
    sizes: Counter[str] = Counter()
    beyond = _beyond_decisions(merged)
    for job in merged.plan.jobs:
        directory, group = job_directory(run, job.name), job.config.environment
        lines = read_commits(directory, job.name, seed=job.config.seed).lines
        # Each omission is reported, so that the numbers can be reconciled with the table of jobs.
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
    """Return the episodes that do not count because their question was already answered."""
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
    """Return the largest reward of a step, NaN without a recording."""
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
    # LeRobot's world models write videos of their predictions since 0.6.
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
    # Like LeRobot: NaN for unknown values, which Python reads back.
    write_text(path, json.dumps(info, indent=2))
