"""Find the recorded episodes for a dataset: those of a file, of a job, or of all jobs of a run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.paths import given_path
from isaaclab_arena.storage.episodes import (
    ArrayPlace,
    find_recordings,
    index_episodes,
    locate_arrays,
    read_all_attributes,
)
from isaaclab_arena.storage.layout import ACTIONS, EPISODES_DIRECTORY, demo_name

DATASET_OPTION = "--dataset"


@dataclass(frozen=True, kw_only=True)
class SourceEpisode:
    """A recorded episode."""

    file: Path
    episode_index: int  # in the recording
    instruction: str
    control_dt: float | None  # time between two control steps [s], None if not recorded

    @property
    def name(self) -> str:
        """Name of the episode in messages."""
        return f"{self.file}: {demo_name(self.episode_index)}"


def find_episodes(dataset: Path, *, only_successes: bool, default_instruction: str = "") -> list[SourceEpisode]:
    """Return the episodes of a recording, pattern, job or run; ConfigError if there are none or without instruction."""
    found: list[SourceEpisode] = []
    num_recorded = 0
    for files in jobs_of(dataset):
        places = index_episodes(files, key=DATASET_OPTION)
        num_recorded += len(places)
        of_job: list[SourceEpisode] = []
        for file in dict.fromkeys(places.values()):
            # Read the attributes of a file's episodes at once, because opening a file is slow.
            indices = [index for index, place in places.items() if place == file]
            for index, attributes in zip(indices, read_all_attributes(file, indices), strict=True):
                if only_successes and attributes.get("success") is not True:
                    continue
                # Foreign recordings may hold any value; a microsecond to a quarter of an hour is a plausible step.
                control_dt = attributes.get("control_dt")
                if not (isinstance(control_dt, int | float) and 1e-6 <= control_dt <= 1e3):
                    control_dt = None
                instruction = attributes.get("language_instruction")
                of_job.append(
                    SourceEpisode(
                        file=file,
                        episode_index=index,
                        instruction=(instruction if isinstance(instruction, str) else "") or default_instruction,
                        control_dt=None if control_dt is None else float(control_dt),
                    )
                )
        found += sorted(of_job, key=lambda episode: episode.episode_index)
    if not found:
        reason = f"none of its {num_recorded} episodes succeeded" if num_recorded else "it holds no episodes"
        raise ConfigError(Problem(f"'{dataset}' gives no episode: {reason}", key=DATASET_OPTION))

    # Every episode of a dataset needs an instruction.
    silent = [episode for episode in found if not episode.instruction]
    if silent:
        message = (
            f"{silent[0].name} and {len(silent) - 1} others have no instruction; give one with --language_instruction"
        )
        raise ConfigError(Problem(message, key=DATASET_OPTION))
    return found


def frames_per_second(episodes: Iterable[SourceEpisode]) -> int:
    """Return the number of control steps per second; ConfigError if unknown, not whole, or different among episodes."""
    found: dict[float | None, SourceEpisode] = {}
    for episode in episodes:
        found.setdefault(episode.control_dt, episode)
    if len(found) > 1:
        first, second = list(found)[:2]
        message = (
            f"{found[first].name} has control steps of {first} s, {found[second].name} of {second} s; "
            "a dataset has one rate"
        )
        raise ConfigError(Problem(message, key=DATASET_OPTION))
    ((control_dt, episode),) = found.items()
    if control_dt is None:
        message = f"{episode.name} does not say how long a control step is; give --fps"
        raise ConfigError(Problem(message, key=DATASET_OPTION))
    # LeRobot's rate is a whole number; a rounded one would shift all timestamps.
    rate = 1 / control_dt
    if round(rate) < 1 or abs(rate - round(rate)) > 1e-6 * rate:
        message = f"{episode.name} has {rate:.6g} control steps per second, and LeRobot takes whole numbers; give --fps"
        raise ConfigError(Problem(message, key=DATASET_OPTION))
    return round(rate)


def check_shapes(episode: SourceEpisode, wanted: Mapping[str, ArrayPlace]) -> None:
    """Refuse an episode whose arrays differ from those `wanted` (the first episode's): ConfigError."""
    arrays = locate_arrays(episode.file, episode.episode_index)
    num_steps = next(iter(arrays[ACTIONS].shape), 0) if ACTIONS in arrays else 0
    if num_steps == 0:
        raise ConfigError(Problem(f"{episode.name} has no control step", key=DATASET_OPTION))
    for path, first in wanted.items():
        due, found = (num_steps, *first.shape[1:]), arrays.get(path)
        if found is None:
            has = "is missing"
        elif found.shape != due:
            has = f"has shape {found.shape}"
        # Only pictures must keep their type; numbers are converted.
        elif first.dtype == np.uint8 != found.dtype:
            has = f"holds {found.dtype}, and no pictures"
        else:
            continue
        message = f"{episode.name}: '{path}' {has}; {due} is due, as in the first episode"
        raise ConfigError(Problem(message, key=DATASET_OPTION))


def jobs_of(dataset: Path) -> Iterator[Sequence[Path]]:
    """Yield the recordings of each job; ConfigError if there is none."""
    directory = given_path(dataset)
    below = sorted(path for path in directory.glob("*") if path.is_dir()) if directory.is_dir() else []
    files: dict[Path, list[Path]] = {}
    for job in [directory, *below]:
        try:
            recordings = find_recordings(str(job), key=DATASET_OPTION)
        except ConfigError:
            continue
        for file in recordings:
            owner = file.parent.parent if file.parent.name == EPISODES_DIRECTORY else file.parent
            # If a job's directory was given as a run, its directory of episodes looks like that of a job.
            known = files.setdefault(owner, [])
            if file not in known:
                known.append(file)
    if not files:
        raise ConfigError(Problem(f"no recording at '{dataset}', nor in its directories", key=DATASET_OPTION))
    yield from files.values()
