"""Writes each episode's arrays to a file, and then the line that commits it."""

import dataclasses
import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import SEED_CONDITION, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.specs import CAMERAS
from isaaclab_arena.nested import leaves
from isaaclab_arena.paths import now
from isaaclab_arena.recording.arrays import EpisodeArrays, RecordedObservations, first_slots
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.dataset import Consolidation, consolidate
from isaaclab_arena.storage.episode_file import Compression, RecordedEpisode, check_compression, checksum
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.ledger import CommitLine, attributes_of, commit_line
from isaaclab_arena.storage.recovery import EpisodeCommits, remove_if_empty

_LOG = logging.getLogger(__name__)

ROBOMIMIC_ENV_TYPE = 2  # Isaac Lab's value in ``env_args``: an environment with Gymnasium's interface


@dataclass(frozen=True, kw_only=True)
class RecordingOptions:
    """Options of recording."""

    write_dataset: bool = True  # False: arrays are not recorded; results of episodes always are
    observations: RecordedObservations = RecordedObservations.STATE
    compression: Compression = Compression.NONE


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """The job whose episodes a recorder writes."""

    name: str
    rank: int  # rank of the recorder
    world_size: int  # number of ranks
    attempt: int  # start of the program on the run, from 1
    # Robomimic's description of the environment: ``env_name``, ``env_kwargs``.
    env_args: Mapping[str, Any] = field(default_factory=dict)
    # Identity of the run: versions, configuration hash, policy.
    provenance: Mapping[str, str] = field(default_factory=dict)
    contents: Contents | None = None  # evaluated contents; None if unknown


HandOver: TypeAlias = Callable[[Path, CommitLine, str, Callable[[Path], object] | None], None]
"""Takes the job's directory, and what `EpisodeCommits.commit` takes."""


class EpisodeRecorder(Observer):
    """Write the episodes of one job, which may have several environments; see `begin_rebuild`."""

    def __init__(
        self,
        job_directory: Path,
        job: RecordedJob,
        options: RecordingOptions,
        *,
        may_commit: Callable[[int], bool] = lambda _: True,
        hand_over: HandOver | None = None,  # gives episodes to another process, which commits them
    ) -> None:
        # An episode's file is renamed into place, and then its line is appended to the commit file. So every committed
        # episode has a complete file, also after a crash. `consolidate` turns the files into one dataset.
        check_compression(options.compression)
        self._directory, self._job, self._options = job_directory, job, options
        self._episodes_directory = job_directory / layout.EPISODES_DIRECTORY
        self.sees_pictures = options.write_dataset and options.observations is RecordedObservations.ALL
        # Whether this rank still owns a finished episode, by index. Other episodes are dropped.
        self._may_commit = may_commit
        self._contents = None if job.contents is None else json_line(job.contents)
        self._dataset_name = layout.dataset_file_name(job.name, job.rank, job.world_size)
        self._commit_file = commits = None if hand_over else EpisodeCommits(job_directory, job.rank)
        self._commit = commits.commit if commits else partial(cast(HandOver, hand_over), job_directory)
        self._started_s: dict[int, float] = {}
        self._first_seen: dict[int, int] = {}
        self._finished_in_env: dict[int, int] = {}
        self._parts: list[Path] = []
        # The arrays of an environment's running episodes, None without recording; and the identity of the run and of
        # the simulated world, as JSON.
        self._underway: dict[Environment, tuple[EpisodeArrays | None, str]] = {}
        self._first_slots: Mapping[Environment, int] = {}

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Keep the initial states of the episodes."""
        if environment not in self._underway:
            observations, is_on = self._options.observations, self._options.write_dataset
            # Called once: it may hash the whole model.
            provenance = json_line({**environment.provenance(), **self._job.provenance})
            self._underway[environment] = EpisodeArrays(environment, observations) if is_on else None, provenance
        first_slot, started_s = self._first_slots.get(environment, 0), time.perf_counter()
        self._started_s.update({first_slot + start.env_id: started_s for start in starts})
        for start in starts:
            # A seed may have no effect, which shows in the first observation. Images may not be rendered yet, and the
            # other terms may leave out what they show.
            is_seed = not start.conditions or SEED_CONDITION in start.conditions
            if is_seed and CAMERAS not in environment.observation_spec:
                crc = 0
                for _, values in leaves(observation):
                    crc = zlib.crc32(values[start.env_id].cpu().contiguous().numpy().tobytes(), crc)
                self._first_seen[first_slot + start.env_id] = crc
        arrays, _ = self._underway[environment]
        if arrays is not None:
            arrays.start([start.env_id for start in starts])

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Keep the observation, the action, the reward and the resulting state."""
        arrays, _ = self._underway[environment]
        if arrays is not None:
            arrays.append(transition)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Write the episode's file, then commit it; drop it if another rank has taken it over."""
        # An episode without steps has no file.
        (underway, provenance), arrays = self._underway[environment], None
        if underway is not None and record.length:
            arrays = underway.take(record.env_id)
        elif underway is not None:
            underway.forget(record.env_id)
        # From here on the slot has its number among all slots of the job.
        record = dataclasses.replace(record, env_id=self._first_slots.get(environment, 0) + record.env_id)
        if not self._may_commit(record.episode.episode_index):
            del self._started_s[record.env_id]
            self._first_seen.pop(record.env_id, None)
            return

        # Only an episode with arrays has a checksum and a file.
        name = layout.episode_file_name(record.episode.episode_index)
        crc = None if arrays is None else checksum(arrays)
        finished = self._finished_in_env.get(record.env_id, 0)
        self._finished_in_env[record.env_id] = finished + 1
        line = commit_line(
            record,
            rank=self._job.rank,
            attempt=self._job.attempt,
            episode_in_env=finished,
            timestamp=now(local=True),
            wall_s=time.perf_counter() - self._started_s.pop(record.env_id),
            dataset_file=None if arrays is None else self._dataset_name,
            episode_file=None if arrays is None else f"{layout.EPISODES_DIRECTORY}/{name}",
            checksum=crc,
            start=self._first_seen.pop(record.env_id, None),
        )
        text = json_line(line)
        if arrays is None:
            self._commit(line, text, None)
            return

        # The recording holds the text of its commit line, too.
        more = {"control_dt": environment.control_dt, "provenance": provenance}
        if self._contents is not None:
            more[layout.CONTENTS_ATTRIBUTE] = self._contents
        env_args = {"type": ROBOMIMIC_ENV_TYPE, **self._job.env_args}
        attributes = attributes_of(line) | more | {layout.COMMIT_ATTRIBUTE: text}
        episode = RecordedEpisode(
            episode_index=line.episode_index, arrays=arrays, attributes=attributes, env_args=env_args
        )
        compression = self._options.compression
        self._commit(line, text, lambda path: write_episode(path, episode, compression, crc=crc))
        self._parts.append(self._episodes_directory / name)

    def begin_rebuild(self, environments: Sequence[Environment]) -> None:
        """Release the previous environments, and number the env slots of the new ones consecutively."""
        self._underway.clear()
        self._first_slots = first_slots(environments)

    def consolidate(self) -> Consolidation:
        """Turn the episode files into ``dataset_<job>….hdf5``, and remove them. They remain on a StorageError."""
        if not self._parts:
            return Consolidation(episode_indices=(), damaged=())
        done = consolidate(self._parts, self._directory / self._dataset_name)
        self._parts = []
        for _, reason in done.damaged:
            _LOG.warning("left out of %s: %s", self._dataset_name, reason)
        remove_if_empty(self._episodes_directory)
        return done

    def close(self) -> None:
        """Close the commit file and drop running episodes; episode files stay in place."""
        if self._commit_file is not None:
            self._commit_file.close()
        self.begin_rebuild(())
