"""Recordings simulated again and compared with themselves: which episodes come out the same, to the last bit."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from isaaclab_arena.errors import ConfigError, Problem, StorageError
from isaaclab_arena.evaluation.plan.job import Job
from isaaclab_arena.evaluation.plan.recorded_environment import recorded_environment_job
from isaaclab_arena.evaluation.process.left_alone import put_back
from isaaclab_arena.evaluation.provenance.rank_provenance import provenance_on
from isaaclab_arena.evaluation.startup.contents import ContentReader
from isaaclab_arena.evaluation.verify.episode_comparison import (
    Difference,
    compared_fields,
    first_difference,
    largest_pose_difference,
)
from isaaclab_arena.evaluation.verify.replay_rollout import Replay, recorded_observations, replay_in
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.interfaces.observer import Observer
from isaaclab_arena.recording.episode_arrays import RecordedObservations
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, changes
from isaaclab_arena.storage.hdf5.episodes import read_env_args, read_episode
from isaaclab_arena.storage.layout import ACTIONS
from isaaclab_arena.storage.provenance import SERVED_MODEL, Provenance
from isaaclab_arena.storage.recorded_episode import RecordedEpisode, checksum


@dataclass(frozen=True, kw_only=True)
class ReplayedEpisode:
    """What came of replaying one episode.

    Attributes:
        episode_index: Which episode.
        num_steps: Control steps that were recorded.
        difference: The first thing that differs, None if nothing does.
        pose_difference: How far recorded positions and angles are apart at most [m, rad]; None where that is unknown.
        is_damaged: Whether the recording's arrays are not what was written; then it was not replayed.
        from_exact_state: Whether it started from the recorded state of the simulator; otherwise from its conditions.
        compared: What was compared: ``states``, ``rewards``, ``obs`` and so on.
        other_provenance: What was other when it was recorded: versions, processor, model.
        contents: What its environment was made of that is another now: a robot's files, a class, a package.
    """

    episode_index: int
    num_steps: int
    difference: Difference | None = None
    pose_difference: float | None = None
    is_damaged: bool = False
    from_exact_state: bool = False
    compared: tuple[str, ...] = ()
    other_provenance: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()

    @property
    def is_bitwise(self) -> bool:
        """Whether every bit that was recorded came out again."""
        return self.difference is None and not self.is_damaged


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How recordings are replayed; none of it changes a bit of what comes out on a CPU.

    Attributes:
        num_envs: Env slots; fewer where there are fewer episodes.
        device: Where it is simulated.
        num_threads: Threads of the physics.
        may_import: Whether code that a recording names may be loaded; see `recorded_environment_job`.
    """

    num_envs: int
    device: torch.device
    num_threads: int
    may_import: bool = False


def replay(
    files: Mapping[int, Path],
    settings: ReplaySettings,
    tell: Callable[[ReplayedEpisode], None],
    observers: Sequence[Observer] = (),
) -> None:
    """Simulate recorded episodes again, without their policy.

    Args:
        files: Which file holds each episode, by index.
        settings: How.
        tell: Called with each episode as it ends.
        observers: Who else looks on; each is told of an end after ``tell``.

    Raises:
        ConfigError: If a recording cannot be read or does not say what its environment was, or there is no such
            environment.
        ArenaError: If a recording does not fit its environment.
    """
    told: dict[Path, Mapping[str, Any]] = {}
    for file in dict.fromkeys(files.values()):
        with _mistakes_of(file):
            told[file] = read_env_args(file)
    # Episodes of one environment are replayed together, whichever files they are in.
    key_of = {file: json.dumps(env_args, sort_keys=True) for file, env_args in told.items()}
    ordered = sorted(files, key=lambda index: (key_of[files[index]], index))
    for _, group in groupby(ordered, key=lambda index: key_of[files[index]]):
        with put_back("an environment"):
            _replay_together({index: files[index] for index in group}, settings, tell, observers)


def _replay_together(
    files: Mapping[int, Path],
    settings: ReplaySettings,
    tell: Callable[[ReplayedEpisode], None],
    observers: Sequence[Observer],
) -> None:
    """Replay the recordings of one environment."""
    job = _environment_job(files, settings)
    contents = ContentReader().environment(job)
    environment = job.build_environment(device=settings.device, num_threads=settings.num_threads)
    damaged: list[ReplayedEpisode] = []
    try:
        now = Provenance(facts={**provenance_on(settings.device).facts, **environment.provenance()})
        replay_in(
            environment, _intact(files, damaged), lambda replayed: tell(_judged(replayed, now, contents)), observers
        )
    finally:
        environment.close()
    for episode in damaged:
        tell(episode)


def _environment_job(files: Mapping[int, Path], settings: ReplaySettings) -> Job:
    index, file = next(iter(files.items()))
    first = _read(file, index)
    return recorded_environment_job(
        first.env_args,
        source=str(file),
        num_envs=min(settings.num_envs, len(files)),
        cameras=recorded_observations(first) is RecordedObservations.ALL,
        may_import=settings.may_import,
    )


def _intact(files: Mapping[int, Path], damaged: list[ReplayedEpisode]) -> Iterator[RecordedEpisode]:
    """Yield the recordings whose arrays are what was written, and put the others into ``damaged``."""
    for index, file in files.items():
        episode = _read(file, index)
        if checksum(episode.arrays) == episode.attributes.get("checksum"):
            yield episode
        else:
            actions = episode.arrays.get(ACTIONS)
            num_steps = 0 if actions is None or actions.ndim == 0 else len(actions)
            damaged.append(ReplayedEpisode(episode_index=index, num_steps=num_steps, is_damaged=True))


def _read(file: Path, index: int) -> RecordedEpisode:
    with _mistakes_of(file):
        return read_episode(file, index)


@contextmanager
def _mistakes_of(file: Path) -> Iterator[None]:
    """Turn what is wrong with a recording that somebody named into a `ConfigError` that names it too."""
    try:
        yield
    except StorageError as error:
        text = str(error)
        raise ConfigError(Problem(text, file=None if str(file) in text else str(file))) from error


def _judged(replayed: Replay, now: Provenance, contents: Mapping[str, str]) -> ReplayedEpisode:
    recorded = replayed.recorded
    known = recorded.contents
    # A policy plays no part here, and conditions come with the recording.
    before = {} if known is None else {**known.environment, SAVED_CONDITIONS: UNKNOWN}
    was = Provenance(facts={name: value for name, value in recorded.provenance.items() if name != SERVED_MODEL})
    return ReplayedEpisode(
        episode_index=recorded.episode_index,
        num_steps=len(recorded.arrays[ACTIONS]),
        difference=first_difference(recorded, replayed.found),
        pose_difference=largest_pose_difference(recorded, replayed.found),
        from_exact_state=replayed.from_exact_state,
        compared=compared_fields(recorded),
        other_provenance=was.told_differences(now),
        contents=() if known is None else tuple(f"{what} {how}" for what, how in changes(before, contents)),
    )
