"""A run in the files of Isaac Lab Arena, of LeRobot and of Rerun, and as tables in LaTeX."""

import json
import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.errors import ConfigError, Problem, StorageError, did_you_mean
from isaaclab_arena.interfaces.episode import Outcome, split_evenly
from isaaclab_arena.registry import optional_library
from isaaclab_arena.results.columns import JOBS, SUITES, Show, latex_table, text_table
from isaaclab_arena.results.merge import read, records
from isaaclab_arena.results.rows import repeats_in_words
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.atomic import json_line, json_text, storage_errors, temporary_path, write_text
from isaaclab_arena.storage.commits import CommitLine, read_commits
from isaaclab_arena.storage.episode_file import RecordedEpisode
from isaaclab_arena.storage.episodes import locate_episodes, read_array, read_episode
from isaaclab_arena.storage.ledger import JobResultStatus, PlanEntry, read_run_plan, videos_of_job

# A run as the files of Isaac Lab Arena's experiments, which its report, plots and sensitivity analysis read.

RESULT_FILE = "arena_experiment_result.json"
MANIFEST_FILE = "experiment_manifest.json"


def export_arena(run: Path, output: Path) -> list[str]:
    """Write a run's episodes and jobs in Isaac Lab Arena's format into an empty directory, and return notes."""
    # Each job gets a directory with ``episode_results_rebuild<k>.jsonl`` and its videos. The run's own directory is not
    # changed.
    merged, num_episodes = read(run), 0
    status = {str(row["name"]): JobResultStatus(row["status"]) for row in merged.rows}
    jobs = [job for job in merged.plan.jobs if status[job.name] is not JobResultStatus.SKIPPED]
    if not jobs:
        raise ConfigError(f"{run} has no job to export: all are skipped")
    policies = {job.name: job.config.policy_type.replace(":", ".").rpartition(".")[2] for job in jobs}
    result: dict[str, Any] = {}
    for job in jobs:
        directory, completed = run / job.name, status[job.name] is JobResultStatus.COMPLETED
        rebuilds = _rebuilds_of(job, read_commits(directory, job.name, seed=job.config.seed).lines)
        # A completed job without episodes still gets one empty rebuild.
        rebuilds = {0: []} if completed and not rebuilds else rebuilds
        videos: defaultdict[tuple[int, int], list[tuple[str | None, Path]]] = defaultdict(list)
        for said, path in videos_of_job(run, job.name):
            videos[said.env_id, said.episode_index].append((said.camera, path))
        for index, episodes in rebuilds.items():
            lines = "".join(f"{json_line(fields)}\n" for _, fields in episodes)
            write_text(output / job.name / f"episode_results_rebuild{index}.jsonl", lines)
            num_episodes += len(episodes)
            # A video is named after the episode's fields in its rebuild.
            for line, fields in episodes:
                place = f"rebuild{index}-env{fields['env_id']}"
                for camera, source in videos.get((line.env_id, line.episode_index), ()):
                    view = f"{'viewport' if camera is None else 'robot-cam'}-{place}-{camera or 'viewport'}"
                    target = output / job.name / f"{view}-episode-{fields['episode_in_env']}.mp4"
                    with storage_errors("write", target):
                        shutil.copyfile(source, target)
        variant = job.policy_config.get("policy_variant")
        result[job.name] = {
            "environment": {"name": job.config.environment, "definition": job.config.environment},
            "policy_variant": variant if isinstance(variant, str) and variant else policies[job.name],
            "status": "completed" if completed else "failed",
            "rebuilds": [
                {"index": index, "episodes": [fields for _, fields in episodes]} for index, episodes in rebuilds.items()
            ],
        }
    write_text(output / RESULT_FILE, json_text({"runs": result}))
    labels = {job.name: job.config.labels for job in jobs}
    configured = any(own.get("task") or own.get("policy") for own in labels.values())
    manifest = {
        "runs": [
            {
                "name": job.name,
                "task": labels[job.name].get("task", job.config.environment),
                "policy": labels[job.name].get("policy", policies[job.name]),
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
        "schema_version": 1,
    }
    write_text(output / MANIFEST_FILE, json_text(manifest))

    of_episodes = f"{num_episodes} episode{'' if num_episodes == 1 else 's'}"
    of_jobs = f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}"
    notes = [f"{of_episodes} of {of_jobs} in {output}", *merged.problems]
    repeated = {str(row["name"]): repeats_in_words(row) for row in merged.rows}
    notes += [f"job '{name}': {words}" for name, words in repeated.items() if words]
    failed = [job.name for job in jobs if status[job.name] is not JobResultStatus.COMPLETED]
    return [*notes, *(f"job '{name}' {status[name].in_words}, and so is failed for Isaac Lab Arena" for name in failed)]


def _rebuilds_of(job: PlanEntry, lines: Sequence[CommitLine]) -> dict[int, list[tuple[CommitLine, dict[str, Any]]]]:
    """Return a job's episodes by rebuild, each with its fields in Isaac Lab Arena's format."""
    num_episodes, num_rebuilds = job.config.num_episodes, job.config.num_rebuilds
    grouped: defaultdict[int, list[CommitLine]] = defaultdict(list)
    shares = None if num_episodes is None or num_rebuilds < 2 else split_evenly(num_episodes, num_rebuilds)
    for line in lines:
        rebuild = 0 if shares is None else next(at for at, share in enumerate(shares) if line.episode_index in share)
        grouped[rebuild].append(line)

    # Arena identifies an episode by ``env_id`` and ``episode_in_env``. Here several ranks and attempts have an
    # environment 0. So those of rank r are numbered from ``r * num_envs``, and an environment's episodes by the order
    # of their ends, across attempts.
    rebuilds: dict[int, list[tuple[CommitLine, dict[str, Any]]]] = {}
    for index in sorted(grouped):
        ended, rebuilds[index] = Counter[int](), []
        grouped[index].sort(key=lambda line: (line.attempt, line.timestamp, line.rank, line.env_id, line.episode_index))
        for line in grouped[index]:
            env_id = line.rank * job.config.num_envs + line.env_id
            fields = {
                "job_name": line.job,
                "env_id": env_id,
                "episode_in_env": ended[env_id],
                "language_instruction": line.language_instruction,
                "seed": line.seed,
                "success": line.success,
                "episode_length": line.length,
                "timestamp": line.timestamp,
                "variations": line.conditions,
            }
            ended[env_id] += 1
            if line.progress is not None:
                fields["progress"] = line.progress
            rebuilds[index].append((line, fields))
    return rebuilds


# A run as ``eval_info.json``, the file that ``lerobot-eval`` writes and that tools around LeRobot read.

EVAL_INFO_FILE = "eval_info.json"


def export_lerobot(run: Path, output: Path) -> list[str]:
    """Write ``eval_info.json`` per job and for the run into an empty directory, and return notes."""
    merged = read(run)
    rows = {str(row["name"]): row for row in merged.rows}
    notes: list[str] = []
    tasks: dict[str, dict[str, Any]] = {}
    sizes: Counter[str] = Counter()
    for job in merged.plan.jobs:
        directory, group = run / job.name, job.config.environment
        finished = records(merged.episodes_of[job.name])
        # Episodes beyond a decision do not count, because their question was already answered. LeRobot has no errors
        # and no unmeasured success. Each omission is noted, so that a user can reconcile the numbers with the table of
        # jobs.
        counted = [row for row in finished if not row.get("beyond_decision")]
        scored = [row for row in counted if row["success"] is not None and row["outcome"] != Outcome.ERROR]
        if len(counted) < len(finished):
            notes.append(f"job '{job.name}': {len(finished) - len(counted)} episodes beyond its decision left out")
        if len(scored) < len(counted):
            left_out = f"{len(counted) - len(scored)} of {len(counted)} episodes left out"
            notes.append(f"job '{job.name}': {left_out}, whose success is not known")
        if repeated := repeats_in_words(rows[job.name]):
            notes.append(f"job '{job.name}': {repeated}")
        if not scored:
            continue
        # The largest reward of a step in each episode, NaN without a recording.
        recordings, _ = locate_episodes(directory, job.name)
        largest = dict.fromkeys((int(row["episode_index"]) for row in scored), math.nan)
        for index in largest:
            for file in recordings.get(index, ()):
                with suppress(StorageError):
                    rewards = read_array(file, index, layout.REWARDS)
                    if rewards.size:
                        largest[index] = float(rewards.max())
                        break
        tasks[job.name] = {
            "group": group,  # LeRobot's task group: the environment
            "task_id": sizes[group],  # position of the job in its group, from 0
            "episodes": [
                {
                    "episode_ix": row["episode_index"],
                    "sum_reward": math.nan if row["return"] is None else row["return"],
                    "max_reward": largest[row["episode_index"]],
                    "success": row["success"],
                    "seed": row["episode_seed"],
                }
                for row in scored
            ],
            "wall_s": math.nan if rows[job.name]["wall_s"] is None else float(rows[job.name]["wall_s"]),
            "videos": [str(path.absolute()) for _, path in videos_of_job(run, job.name)],
        }
        sizes[group] += 1
    if not tasks:
        raise ConfigError(f"{run} has no episode whose success is measured")

    infos = {output / name / EVAL_INFO_FILE: eval_info([task]) for name, task in tasks.items()}
    infos[output / EVAL_INFO_FILE] = eval_info(list(tasks.values()))
    for path, info in infos.items():
        # Like LeRobot: NaN for unknown values, which Python reads back.
        write_text(path, json.dumps(info, indent=2))
    num_episodes = sum(len(task["episodes"]) for task in tasks.values())
    return [f"{output / EVAL_INFO_FILE}: episodes {num_episodes}, jobs {len(tasks)}", *notes]


def eval_info(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of ``eval_info.json`` for at least one task."""
    # ``per_task``, ``per_group`` and ``overall`` are the format of LeRobot 0.4.0 and later. A single job also has
    # ``per_episode`` and ``aggregated`` of earlier versions, which LeRobot's comparison of policies reads.
    groups: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    per_task = []
    for task in tasks:
        groups[task["group"]].append(task)
        metrics = {
            "sum_rewards": [episode["sum_reward"] for episode in task["episodes"]],
            "max_rewards": [episode["max_reward"] for episode in task["episodes"]],
            "successes": [episode["success"] for episode in task["episodes"]],
            # LeRobot's world models write videos of their predictions since 0.6.
            "video_paths": task["videos"],
            "predicted_video_paths": [],
        }
        per_task.append({"task_group": task["group"], "task_id": task["task_id"], "metrics": metrics})
    eval_s = sum(task["wall_s"] for task in tasks)
    times = {"eval_s": eval_s, "eval_ep_s": eval_s / sum(len(task["episodes"]) for task in tasks)}
    # The means over the episodes of all tasks, and of each group, without unknown values.
    summaries: list[dict[str, Any]] = []
    for members in (tasks, *groups.values()):
        means = {}
        for name in ("sum_reward", "max_reward", "success"):
            values = (each[name] for task in members for each in task["episodes"])
            known = [value for value in values if not math.isnan(value)]
            means[name] = sum(known) / len(known) if known else math.nan
        summary = {
            "avg_sum_reward": means["sum_reward"],
            "avg_max_reward": means["max_reward"],
            "pc_success": 100 * means["success"],
            "n_episodes": sum(len(task["episodes"]) for task in members),
            "video_paths": [path for task in members for path in task["videos"]],
            "predicted_video_paths": [],
        }
        summaries.append(summary)
    overall, *of_groups = summaries
    info: dict[str, Any] = {
        "per_task": per_task,
        "per_group": dict(zip(groups, of_groups, strict=True)),
        "overall": overall | times,
    }
    if len(tasks) == 1:
        info |= {
            "per_episode": tasks[0]["episodes"],
            "aggregated": {name: overall[name] for name in ("avg_sum_reward", "avg_max_reward", "pc_success")} | times,
            "video_paths": tasks[0]["videos"],
        }
    return info


def export_latex(run: Path, output: Path) -> Iterator[str]:
    """Write ``results.tex``, and ``suites.tex`` for a run with suites, into an empty directory; yield their paths."""
    merged = read(run)
    for name, columns, rows in (("results", JOBS, merged.rows), ("suites", SUITES, records(merged.suites))):
        if rows:
            path = output / f"{name}.tex"
            table = text_table([each for each in columns if Show.COPY in each.show], rows, spread=False)
            write_text(path, latex_table(table))
            yield str(path)


_STEP, _TIME = "step", "time"
_PROPERTIES = (
    *("job", "episode_index", "outcome", "success", "termination", "episode_return", "num_samples"),
    *("language_instruction", "seed", "episode_seed", "conditions", "metrics"),
)
"""Attributes of an episode that become properties of its recording, by which the catalog filters."""


def export_rerun(run: Path, output: Path, *, jobs: Sequence[str] = ()) -> Iterator[str]:
    """Write ``<job>/episode_<index>.rrd`` per recorded episode into an empty directory, and yield a note per job."""
    library = optional_library("rerun", key="--rerun")
    plan, num_episodes = read_run_plan(run), 0
    names = [job.name for job in plan.jobs]
    # ConfigError for an unknown job and for a run without recordings. No `jobs` means all.
    for name in jobs:
        if name not in names:
            raise ConfigError(Problem(f"the run has no job '{name}'{did_you_mean(name, names)}", key="--job"))
    for name in jobs or names:
        found, problems = locate_episodes(run / name, name)
        films: dict[int, dict[str, Path]] = {}
        for said, film in videos_of_job(run, name):
            films.setdefault(said.episode_index, {})[said.camera or "viewport"] = film
        for index, files in sorted(found.items()):
            path = output / name / f"episode_{index:06d}.rrd"
            # Unique among all episodes of all runs.
            recording_id = f"{plan.run_id}_{name}_{index}"
            episode, temporary = read_episode(files[0], index), temporary_path(path)
            with storage_errors("write", path):
                path.parent.mkdir(parents=True, exist_ok=True)
            stream = library.RecordingStream("isaaclab_arena", recording_id=recording_id)
            try:
                stream.save(str(temporary))
                _log_episode(library, stream, episode, films.get(index, {}))
                stream.flush()
            except (OSError, RuntimeError, ValueError) as error:
                raise StorageError(f"cannot write {path}: {error}") from error
            finally:
                stream.disconnect()
            with storage_errors("write", path):
                temporary.replace(path)
            # With images it is large, so it goes before the next one comes.
            del episode
        num_episodes += len(found)
        if found:
            yield f"{output / name}: episodes {len(found)}; open with: rerun {output / name}"
        yield from problems
    if not num_episodes:
        raise ConfigError(Problem("holds no recorded episode; run without --no_dataset", file=str(run)))


def _log_episode(library: Any, stream: Any, episode: RecordedEpisode, films: Mapping[str, Path]) -> None:
    """Log an episode: its properties and outcome, its arrays, and films of cameras without recorded images."""
    said = {name: episode.attributes[name] for name in _PROPERTIES if name in episode.attributes}
    outcome = said.get("outcome", "unknown")
    stream.send_recording_name(f"{said.get('job', 'episode')} {episode.episode_index}: {outcome}")
    stream.send_property("episode", library.AnyValues(**said))
    lines = "".join(f"- {name}: {value}\n" for name, value in said.items())
    text = library.TextDocument(f"# {outcome}\n{lines}", media_type="text/markdown")
    stream.log("outcome", text, static=True)

    dt_s = float(episode.attributes.get("control_dt", 0) or 0)
    recorded = set()
    for name, array in episode.arrays.items():
        group, _, camera = name.partition("/")
        if group == layout.CAMERA_OBSERVATIONS and (array.ndim in (3, 4) or array.dtype == np.uint8):
            recorded.add(camera)
            _log_pictures(library, stream, f"cameras/{camera}", array, dt_s)
            continue
        is_numeric = array.ndim in (1, 2) and np.issubdtype(array.dtype, np.number)
        if group in (layout.OBSERVATIONS, layout.STATES, layout.ACTIONS, layout.REWARDS) and len(array) and is_numeric:
            columns = library.Scalars.columns(scalars=array.astype(np.float64).reshape(-1))
            steps = np.arange(len(array))
            indexes = [library.TimeColumn(_STEP, sequence=steps)]
            if dt_s:
                indexes.append(library.TimeColumn(_TIME, duration=steps * dt_s))
            width = array.size // len(array)
            stream.send_columns(name, indexes=indexes, columns=columns.partition([width] * len(array)))

    # Films follow the time of the control steps, if their length is known.
    for camera, film in films.items():
        if camera in recorded:
            continue
        video = library.AssetVideo(path=film)
        times_ns = np.asarray(video.read_frame_timestamps_nanos())
        steps = np.round(times_ns / 1e9 / dt_s).astype(np.int64) if dt_s else np.arange(len(times_ns))
        stream.log(f"cameras/{camera}", video, static=True)
        stream.send_columns(
            f"cameras/{camera}",
            indexes=[
                library.TimeColumn(_STEP, sequence=steps),
                library.TimeColumn(_TIME, duration=times_ns.astype("timedelta64[ns]")),
            ],
            columns=library.VideoFrameReference.columns_nanos(times_ns),
        )


def _log_pictures(library: Any, stream: Any, entity: str, pictures: np.ndarray, dt_s: float) -> None:
    """Log a camera's images: uint8 colours, depth [m] or segmentation ids; or the reason that this is impossible."""
    if pictures.dtype == np.uint8:
        from isaaclab_arena.interfaces.specs import in_colours  # noqa: PLC0415  torch, for pictures alone

        try:
            pictures = in_colours(pictures)
        except ValueError as reason:
            stream.log(entity, library.TextDocument(f"{entity} {reason}"), static=True)
            return
    for step, picture in enumerate(pictures):
        stream.set_time(_STEP, sequence=step)
        if dt_s:
            stream.set_time(_TIME, duration=step * dt_s)
        flat = picture[..., 0] if picture.ndim == 3 else picture
        if picture.ndim == 3 and picture.shape[-1] == 3:
            shown = library.Image(picture).compress(jpeg_quality=90)
        elif np.issubdtype(flat.dtype, np.floating):
            shown = library.DepthImage(flat.astype(np.float32), meter=1.0)
        else:
            shown = library.SegmentationImage(flat.astype(np.uint16))
        stream.log(entity, shown)
