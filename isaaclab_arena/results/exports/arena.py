"""A run as the files of Isaac Lab Arena's experiments, which its report, plots and sensitivity analysis read."""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isaaclab_arena.episode_ranges import split_evenly
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.merge import MergedResults, merge_results, records
from isaaclab_arena.results.rows import repeats_in_words
from isaaclab_arena.storage.atomic import storage_errors, write_text
from isaaclab_arena.storage.json_values import json_line, json_text
from isaaclab_arena.storage.layout import job_directory, parse_video_file_name
from isaaclab_arena.storage.run.commits import CommitLine, read_commits
from isaaclab_arena.storage.run.job_standing import JobResultStatus
from isaaclab_arena.storage.run.run_plan import PlanEntry
from isaaclab_arena.storage.videos import videos_of_job

RESULT_FILE = "arena_experiment_result.json"
MANIFEST_FILE = "experiment_manifest.json"
MANIFEST_SCHEMA_VERSION = 1


def export_arena(run: Path, output: Path) -> list[str]:
    """Write a run's episodes and jobs in Isaac Lab Arena's names, and return lines for the user.

    Each job that was to run gets a directory with ``episode_results_rebuild<k>.jsonl`` and its videos, beside
    ``arena_experiment_result.json`` and ``experiment_manifest.json``. Nothing is written into the run's directory.

    Args:
        run: The directory of one run.
        output: Where to write; an empty directory.

    Raises:
        ConfigError: If ``run`` is no output of a run, or no job of it was to run.
        StorageError: If a file cannot be read or written.
    """
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
    """An episode as it was committed, and in Isaac Lab Arena's fields."""

    line: CommitLine
    fields: dict[str, Any]


def rebuilds_of(job: PlanEntry, lines: Sequence[CommitLine]) -> dict[int, list[ArenaEpisode]]:
    """Return a job's episodes, by the rebuild that they belong to.

    Arena knows an episode by ``env_id`` and ``episode_in_env`` alone. Here several ranks and attempts have an
    environment 0, so those of rank r are numbered from ``r * num_envs`` on, and the episodes of each environment in the
    order in which they ended.

    Args:
        job: The job.
        lines: Its episodes, by index.
    """
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
    """Return Isaac Lab Arena's name of a video, in which an episode is known as in the lines of its rebuild.

    Args:
        name: The video's name in the run.
        rebuild: The rebuild.
        fields: The episode in Arena's fields.
    """
    said = parse_video_file_name(name)
    camera = None if said is None else said.camera
    kind = "viewport" if camera is None else "robot-cam"
    env_id, episode = fields["env_id"], fields["episode_in_env"]
    return f"{kind}-rebuild{rebuild}-env{env_id}-{camera or 'viewport'}-episode-{episode}.mp4"


def _videos_by_episode(directory: Path) -> dict[tuple[int, int], list[Path]]:
    """Return a job's videos by the environment and the index of their episode."""
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
