"""The observer that writes episodes: arrays into a file per episode, then the line that commits it."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.recording.step_buffer import StepBuffer, flatten
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.commits import CommitContext, CommitWriter, commit_row
from isaaclab_arena.storage.consolidation import Consolidation, consolidate
from isaaclab_arena.storage.hdf5 import check_compression, write_episode
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.recorded_episode import AttributeValue, Compression, RecordedEpisode

logger = logging.getLogger(__name__)

EXPECTED_STEPS = 1000
"""Control steps for which there is room at first; more is made for longer episodes."""

ROBOMIMIC_ENV_TYPE = 2
"""What Isaac Lab writes into ``env_args``: an environment with Gymnasium's interface."""


class RecordedObservations(StrEnum):
    """Which observations a recording holds: none, group ``policy``, or every group, images too."""

    NONE = "none"
    STATE = "state"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """What is recorded, and how.

    Attributes:
        write_dataset: Whether arrays are recorded at all; results of episodes always are.
        observations: Which observations are recorded.
        compression: How arrays are compressed.
    """

    write_dataset: bool = True
    observations: RecordedObservations = RecordedObservations.STATE
    compression: Compression = Compression.NONE


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """Whose episodes a recorder writes.

    Attributes:
        name: Name of the job.
        rank: The rank that runs it.
        world_size: Number of ranks.
        env_args: Describes the environment, for robomimic: ``env_name``, ``env_kwargs``.
        provenance: What identifies the run: versions, configuration hash, policy.
    """

    name: str
    rank: int
    world_size: int
    env_args: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Underway:
    """An episode that has started: when, and from which state."""

    started_s: float
    initial_state: Mapping[str, np.ndarray]


class EpisodeRecorder(Observer):
    """Writes the episodes of one job.

    An episode's file is put in place by renaming it, then its line is appended to the commit file; so whatever
    happens, an episode that has a line has a whole file. `consolidate` turns the files into one dataset.

    Args:
        job_directory: Folder of the job.
        job: Whose episodes these are.
        options: What is recorded.

    Raises:
        ConfigError: If the compression is not installed.
        StorageError: If nothing can be written there.
    """

    def __init__(self, job_directory: Path, job: RecordedJob, options: RecordingOptions) -> None:
        check_compression(options.compression)
        self._directory = job_directory
        self._job = job
        self._options = options
        self._dataset_name = layout.dataset_file_name(job.name, job.rank, job.world_size)
        self._commits = CommitWriter(job_directory, job.rank)
        self._underway: dict[int, _Underway] = {}
        self._finished_in_env: dict[int, int] = {}
        self._parts: list[Path] = []
        self._environment: Environment | None = None
        self._buffer = StepBuffer(0, 0)
        self._provenance = ""

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Keep the state that the episodes start from."""
        del observation
        if environment is not self._environment:
            self._environment = environment
            # Asked once: it may hash the whole model.
            self._provenance = json_line({**environment.provenance(), **self._job.provenance})
            self._buffer = StepBuffer(environment.num_envs, min(environment.max_episode_length, EXPECTED_STEPS))
        started_s = time.perf_counter()
        rows = [start.env_id for start in starts]
        states = initial_arrays(environment, rows) if self._options.write_dataset else {}
        for row in rows:
            self._underway[row] = _Underway(started_s=started_s, initial_state=states.get(row, {}))
        self._buffer.start(rows)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Keep what the policy saw and did, what it got for it, and the state that came of it."""
        if self._options.write_dataset:
            arrays = step_arrays(environment, transition, self._options.observations)
            self._buffer.append(transition.running, dict(arrays))

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Write the episode's file, then commit it."""
        underway = self._underway.pop(record.env_id)
        episode_file, crc = None, None
        if self._options.write_dataset:
            episode_file = f"{layout.EPISODES_FOLDER}/{layout.episode_file_name(record.episode.episode_index)}"
            path = self._directory / episode_file
            crc = write_episode(path, self._recorded(environment, record, underway), self._options.compression)
            self._parts.append(path)
        finished = self._finished_in_env.get(record.env_id, 0)
        self._finished_in_env[record.env_id] = finished + 1
        context = CommitContext(
            rank=self._job.rank,
            episode_in_env=finished,
            timestamp=datetime.now(UTC).astimezone().isoformat(timespec="milliseconds"),
            wall_s=time.perf_counter() - underway.started_s,
            dataset_file=self._dataset_name if self._options.write_dataset else None,
            episode_file=episode_file,
            checksum=crc,
        )
        self._commits.write(commit_row(record, context))

    def consolidate(self) -> Consolidation:
        """Turn the episode files written so far into ``dataset_<job>….hdf5``, and remove them.

        Raises:
            StorageError: If it cannot be written; the episode files are still there.
        """
        if not self._parts:
            return Consolidation(episode_indices=(), damaged=())
        done = consolidate(sorted(self._parts), self._directory / self._dataset_name)
        self._parts = []
        for _, reason in done.damaged:
            logger.warning("left out of %s: %s", self._dataset_name, reason)
        folder = self._directory / layout.EPISODES_FOLDER
        if not any(folder.iterdir()):
            folder.rmdir()
        return done

    def close(self) -> None:
        """Close the commit file; episodes under way are forgotten, episode files stay as they are."""
        self._commits.close()

    def _recorded(self, environment: Environment, record: EpisodeRecord, underway: _Underway) -> RecordedEpisode:
        arrays = {**self._buffer.take(record.env_id), **underway.initial_state}
        dones = np.zeros(len(arrays[layout.ACTIONS]), np.uint8)
        dones[-1:] = 1
        arrays[layout.DONES] = dones
        return RecordedEpisode(
            episode_index=record.episode.episode_index,
            arrays=arrays,
            attributes=_attributes(record)
            | {"rank": self._job.rank, "control_dt": environment.control_dt, "provenance": self._provenance},
            env_args={"type": ROBOMIMIC_ENV_TYPE, **self._job.env_args},
        )


def step_arrays(
    environment: Environment, transition: Transition, observations: RecordedObservations
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what is recorded of a control step: path and value of all rows. Shape of each: (num_envs, ...).

    Args:
        environment: The environment, after the step.
        transition: The step.
        observations: Which observations are recorded.
    """
    yield layout.ACTIONS, transition.action.to(torch.float32)
    yield layout.REWARDS, transition.step.reward
    yield from flatten(environment.state(), layout.STATES)
    for group, terms in transition.observation.items():
        if observations is RecordedObservations.ALL or (
            observations is RecordedObservations.STATE and group == "policy"
        ):
            yield from flatten(terms, observation_path(group))


def initial_arrays(environment: Environment, env_ids: Sequence[int]) -> dict[int, dict[str, np.ndarray]]:
    """Return what is recorded of the state that rows start from, by row: path and value, copied.

    Args:
        environment: The environment, after the reset of these rows.
        env_ids: The rows.
    """
    states = {path: tensor.cpu().numpy() for path, tensor in flatten(environment.state(), layout.INITIAL_STATE)}
    arrays: dict[int, dict[str, np.ndarray]] = {}
    for row in env_ids:
        arrays[row] = {path: values[row : row + 1].copy() for path, values in states.items()}
        for name, array in environment.episode_state(row).items():
            arrays[row][f"{layout.INITIAL_STATE}/{layout.SIMULATOR}/{name}"] = np.asarray(array)
    return arrays


def observation_path(group: str) -> str:
    """Return where a group of observations lies: ``policy`` in ``obs``, as Isaac Lab has it, others beside it."""
    if group == "policy":
        return layout.OBSERVATIONS
    return group if group == layout.CAMERA_OBSERVATIONS else f"{layout.OBSERVATIONS}_{group}"


def _attributes(record: EpisodeRecord) -> dict[str, AttributeValue]:
    """Return the attributes of an episode's group; what is not known is left out."""
    episode = record.episode
    values: dict[str, AttributeValue | None] = {
        "job": episode.job,
        "episode_index": episode.episode_index,
        "seed": episode.seed,
        "episode_seed": episode.episode_seed,
        "placement_seed": episode.conditions_seed,
        "env_id": record.env_id,
        "success": record.success,
        "outcome": None if record.outcome is None else str(record.outcome),
        "termination": record.termination,
        "episode_return": record.episode_return,
        "language_instruction": record.language_instruction,
        "conditions": json_line(record.conditions),
        "metrics": json_line(record.metrics),
        "error": record.error,
    }
    return {name: value for name, value in values.items() if value is not None}
