"""Films of episodes after a run: their choice, and their simulation from the recordings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from isaaclab_arena.analysis.arms import differences_of_tasks, match, named_arm, read_run
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError, first_line
from isaaclab_arena.evaluation.rerun import ReplayedEpisode, ReplaySettings, rerun
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome, split_evenly
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.recording.video import FilmThreads, VideoRecorder
from isaaclab_arena.storage import layout, ledger
from isaaclab_arena.storage.commits import CommitLine, read_commits
from isaaclab_arena.storage.episodes import file_with, locate_episodes

# Choose the episodes of a run to film afterwards: by outcome, or by a different outcome in another run.


class Choice(StrEnum):
    """The finished episodes to film."""

    ALL = "all"
    ONE = "one"
    FAILURES = "failures"
    SUCCESSES = "successes"
    REASONS = "reasons"
    DISCORDANT = "discordant"


def episodes_by_outcome(run: Path, jobs: Iterable[str], choice: Choice) -> dict[str, list[int]]:
    """Return the episodes of each job that `choice` selects, ascending."""
    chosen: dict[str, list[int]] = {}
    for job in jobs:
        lines = read_commits(run / job, job).lines
        if choice is Choice.REASONS:
            # For each decisive event three failures, as many as the report shows; no errors.
            groups: dict[str | None, list[int]] = {}
            for line in sorted(lines, key=lambda line: line.episode_index):
                if line.success is False and line.outcome is not Outcome.ERROR:
                    groups.setdefault(line.events and line.events.decisive, []).append(line.episode_index)
            chosen[job] = sorted(index for indices in groups.values() for index in indices[:3])
            continue
        if choice is Choice.ONE:
            # First failure, else first success, else first error.
            lines = sorted(lines, key=lambda line: (line.outcome is Outcome.ERROR, line.success is True))[:1]
        # An error, and an episode without a measured success, count as failures, as for ``--video_episodes failures``.
        chosen[job] = [
            line.episode_index
            for line in lines
            if choice in {Choice.ALL, Choice.ONE} or (line.success is True) == (choice is Choice.SUCCESSES)
        ]
    return chosen


def discordant_episodes(run: Path, jobs: Sequence[str], baseline: str) -> dict[str, list[int]]:
    """Return the episodes that ended differently from those with the same conditions in the baseline."""
    # The baseline is the directory of another run, whose jobs are paired by name, or a job of this run. A single job
    # pairs with a single job. `ConfigError` if there is no baseline, or no job can be paired with it.
    arms = read_run(run).arms
    if (Path(baseline) / layout.RUN_PLAN_FILE).is_file():
        chosen, others = [arms[job] for job in jobs], read_run(Path(baseline)).arms
        pairs = [(arm, others[arm.entry.name]) for arm in chosen if arm.entry.name in others]
        if len(chosen) == len(others) == 1:
            pairs = [(chosen[0], next(iter(others.values())))]
    else:
        other = named_arm(arms, baseline, option="--baseline")
        pairs = [(arms[job], other) for job in jobs if job != baseline]

    # Only jobs of the same task can be compared.
    differences = [differences_of_tasks(*pair) for pair in pairs]
    if all(differences):
        reasons = [
            f"{first.label} is no pair of {second.label}: {', '.join(different)}"
            for (first, second), different in zip(pairs, differences, strict=True)
        ]
        problem = "; ".join([f"no job can be compared with '{baseline}'", *reasons])
        raise ConfigError(Problem(problem, key="--baseline"))

    found: dict[str, set[int]] = {}
    for (first, second), different in zip(pairs, differences, strict=True):
        if different:
            continue
        matched = match(first, second).without_errors()
        is_discordant = np.not_equal(matched.first.success, matched.second.success)
        indices = matched.first.index[is_discordant].tolist()
        found.setdefault(first.entry.name, set()).update(indices)
        # The baseline's own episodes are filmed too, if it is a job of this run.
        if second.directory == first.directory:
            found.setdefault(second.entry.name, set()).update(indices)
    return {job: sorted(found[job]) for job in arms if job in found}


# Film recorded episodes: simulate each again from its start and its actions, and name its film as the run would.


@dataclass(frozen=True, kw_only=True)
class FilmedEpisode:
    """The result of filming one episode."""

    job: str
    episode_index: int
    films: tuple[Path, ...] = ()  # one for each camera
    reason: str | None = None  # why there is no film, None if there is one
    pose_difference: float = 0.0  # largest difference to the recorded poses [m, rad]


Tell = Callable[[FilmedEpisode], None]


def film_episodes(
    run: Path,
    episodes: Mapping[str, Sequence[int]],
    options: VideoOptions,
    settings: ReplaySettings,
    tell: Tell,
    *,
    output_directory: Path | None = None,
) -> None:
    """Film `episodes` (job -> indices) under the names that the run would use, with a contact sheet per job."""
    # The films go to the jobs' directories in `output_directory`, by default the run. `tell` gets each result at once.
    configs = {job.name: job.config for job in ledger.read_run_plan(run).jobs}
    for name, indices in episodes.items():
        directory, config = run / name, configs[name]
        lines = {line.episode_index: line for line in read_commits(directory, name).lines}
        located, problems = locate_episodes(directory, name)
        # The film's name holds the env slot, and the rebuild of a job with several.
        rebuilds: Sequence[range] = ()
        if config.num_rebuilds > 1 and config.num_episodes is not None:
            rebuilds = split_evenly(config.num_episodes, config.num_rebuilds)
        files: dict[int, Path] = {}
        places: dict[int, tuple[int, int | None]] = {}
        for index in indices:
            line, reason = lines.get(index), "it has not finished"
            if line is not None:
                if (file := file_with(located.get(index, ()), index, line.checksum)) is not None:
                    rebuild = next((number for number, own in enumerate(rebuilds) if index in own), None)
                    files[index], places[index] = file, (line.env_id, rebuild)
                    continue
                reason = "; ".join(["there is no recording of it", *problems])
            tell(FilmedEpisode(job=name, episode_index=index, reason=reason))
        if not files:
            continue
        recorder = _Recorder(
            (output_directory or run) / name,
            name,
            options,
            threads=FilmThreads(settings.num_threads),
            places=places,
            lines=lines,
            tell=tell,
        )
        try:
            with closing(recorder):
                rerun(files, settings, recorder.judge, [recorder])
        except StorageError:
            raise
        except ArenaError as error:
            # If one environment cannot be built again, the other jobs are still filmed.
            for index in [index for index in files if index not in recorder.told]:
                tell(FilmedEpisode(job=name, episode_index=index, reason=first_line(error)))


@dataclass(eq=False, kw_only=True)
class _Recorder(VideoRecorder):
    """Films the episodes of one job, and keeps the films of those that are replayed as recorded."""

    lines: Mapping[int, CommitLine]
    tell: Tell
    told: set[int] = field(default_factory=set)  # episodes with a result
    _replayed: dict[int, ReplayedEpisode] = field(default_factory=dict)

    def judge(self, replayed: ReplayedEpisode) -> None:
        """Remember the result of a replay, before the episode's end is observed."""
        self._replayed[replayed.episode_index] = replayed
        if replayed.is_damaged:
            self._told(replayed.episode_index, reason="its recording is damaged")

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Keep the film if the replay equals the recording, with the recorded outcome."""
        index = record.episode.episode_index
        replayed, line = self._replayed.pop(index), self.lines[index]
        film = self.films.get(environment, {}).get(record.env_id)
        films = () if film is None else tuple(file.path for file in film.files.values())
        apart, reason = replayed.pose_difference, None
        if not films:
            reason = "its environment has no such cameras"
        # Poses that are less than 1e-3 [m, rad] apart make the same picture, give or take a pixel.
        elif replayed.difference is not None and (apart is None or apart > 1e-3):
            reason = "; ".join([f"it came out otherwise, {replayed.difference}", *replayed.surroundings])
        if reason is not None:
            if film is not None:
                del self.films[environment][record.env_id]
                film.discard()
            self._told(index, reason=reason)
            return
        # A replayed episode ends with its last action, even if the run cut it off. The film shows the recorded outcome.
        super().on_episode_end(environment, replace(record, outcome=line.outcome, success=line.success))
        self._told(index, films=films, pose_difference=0.0 if replayed.difference is None else apart or 0.0)

    def _told(self, index: int, **result: Any) -> None:
        self.told.add(index)
        self.tell(FilmedEpisode(job=self.job, episode_index=index, **result))
