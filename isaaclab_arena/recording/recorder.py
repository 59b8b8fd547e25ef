"""Record episodes: keep their arrays in a ring of memory, write each one's to a file, then the line that commits it."""

import dataclasses
import logging
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from isaaclab_arena.distributed.devices import on_cpu
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import SEED_CONDITION, EpisodeRecord
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.specs import CAMERAS, SideBySide, StateTree
from isaaclab_arena.nested import leaves, value_at
from isaaclab_arena.paths import now
from isaaclab_arena.storage import atomic, layout
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.commits import CommitLine, CommitWriter, attributes_of, commit_line, line_text
from isaaclab_arena.storage.contents import Contents
from isaaclab_arena.storage.dataset import Consolidation, consolidate
from isaaclab_arena.storage.episode_file import Compression, RecordedEpisode, check_compression, checksum
from isaaclab_arena.storage.episodes import write_episode
from isaaclab_arena.storage.ledger import RecordedEntries

# The arrays of the episodes under way, in a ring of memory.


class StepRing:
    """Ring buffer of the control steps of all env slots, back to the start of the oldest running episode."""

    def __init__(self, num_envs: int, capacity: int) -> None:
        # A step is stored as a few packs: values of one dtype side by side. One copy per tensor would cost more than
        # the physics. The episode of an env slot is every step from its start until `take`.
        self._num_envs = num_envs
        # Expected length of the longest episode [control steps]. The buffer grows if an episode is longer.
        self.capacity = max(1, capacity)
        # The packs. Shape of each: (capacity, num_envs, width). The system backs only touched pages, so a large
        # capacity costs nothing for short episodes. In deterministic mode PyTorch would fill new tensors with NaN.
        self._arrays: list[np.ndarray] = []
        self._next = 0
        self._origin = 0
        self._first: dict[int, int] = {}
        self._room_until = 0

    def start(self, env_ids: Iterable[int]) -> None:
        """Begin an episode in the env slots with the next step."""
        self._first.update(dict.fromkeys(env_ids, self._next))

    def append(self, packs: Sequence[Sequence[torch.Tensor]], num_steps: int = 1) -> None:
        """Append control steps: for each pack, the tensors of one step after the other, each (num_envs, ...)."""
        # Flattened and side by side, (num_envs, num_steps * width) per pack.
        flat = [[each if each.ndim == 2 else each.reshape(len(each), -1) for each in tensors] for tensors in packs]
        joined = on_cpu([each[0] if len(each) == 1 else torch.cat(each, dim=1) for each in flat])
        values = [
            each.numpy().reshape(len(each), num_steps, each.shape[1] // num_steps).swapaxes(0, 1) for each in joined
        ]
        # The number of packs, their widths and their dtypes are fixed by the first call.
        if not self._arrays:
            shape = self.capacity, self._num_envs
            self._arrays = [np.empty((*shape, each.shape[2]), each.dtype) for each in values]
        if self._next + num_steps > self._room_until:
            self._make_room(num_steps)
        position = (self._next - self._origin) % self.capacity
        self._next += num_steps
        for array, steps in zip(self._arrays, values, strict=True):
            # The steps may wrap around the end of the buffer.
            before_the_end = array[position : position + num_steps]
            before_the_end[:] = steps[: len(before_the_end)]
            if len(before_the_end) < num_steps:
                array[: num_steps - len(before_the_end)] = steps[len(before_the_end) :]

    def take(self, env_id: int) -> list[np.ndarray]:
        """End an env slot's episode and return one array per pack, (length, width). Later steps may overwrite it."""
        first = self._first.pop(env_id)
        position, length = (first - self._origin) % self.capacity, self._next - first
        taken = []
        for array in self._arrays:
            steps = array[position : position + length, env_id]
            # The steps may wrap around the end of the buffer.
            if len(steps) < length:
                steps = np.concatenate((steps, array[: length - len(steps), env_id]))
            taken.append(steps)
        return taken

    def _make_room(self, num_steps: int) -> None:
        """Double the buffer until the next steps overwrite no step of a running episode."""
        oldest = min(self._first.values(), default=self._next)
        while self._next + num_steps - oldest > self.capacity:
            turn = (self._next - self._origin) % self.capacity
            for number, before in enumerate(self._arrays):
                doubled = self._arrays[number] = np.empty((2 * len(before), *before.shape[1:]), before.dtype)
                doubled[: len(before) - turn] = before[turn:]
                doubled[len(before) - turn : len(before)] = before[:turn]
            self._origin = self._next - self.capacity
            self.capacity *= 2
        self._room_until = oldest + self.capacity


_PARTS = "parts"

HELD_STEPS = 32
"""Control steps whose tensors are copied at once if no other code changes them. Each copy from a GPU waits for it, and
on a CPU one copy of many steps takes less time than many copies."""

HELD_OBJECTS = 350
"""Most objects of the steps that are copied at once: Python looks for garbage after 700 new ones, and now and then
looks through all objects."""

HELD_BYTES = 1 << 26  # most memory of the steps that are copied at once [bytes]
EXPECTED_STEPS = 1000  # control steps that the buffer holds at first; it grows for longer episodes


class RecordedObservations(StrEnum):
    """The recorded observations: none, group ``policy``, or every group including images."""

    NONE = "none"
    STATE = "state"
    ALL = "all"


@dataclass(kw_only=True)
class _TensorPack:
    """The tensors of a step that lie side by side."""

    numbers: list[int] = field(default_factory=list)  # among the tensors of the step
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of their arrays, in the order of the columns


class EpisodeArrays:
    """Keep the arrays of an environment's running episodes until they are taken."""

    def __init__(self, environment: Environment, observations: RecordedObservations) -> None:
        self._environment, self.observations = environment, observations
        self._ring = StepRing(environment.num_envs, min(environment.max_episode_length, EXPECTED_STEPS))
        self._state_parts = tuple(environment.state_parts())
        self._held: list[list[torch.Tensor]] = []
        self._max_held = 1
        self._initial: dict[int, dict[str, np.ndarray]] = {}
        self._terms: dict[tuple[str, ...], list[str]] = {}
        self._together: set[tuple[str, ...]] = set()
        self._packs: list[_TensorPack] = []

    def start(self, env_ids: Sequence[int]) -> None:
        """Begin an episode in the env slots, which were just reset."""
        self._copy_held()
        # The initial states, or their parts in a single copy if the environment has parts.
        whole = dict(self._state(layout.INITIAL_STATE))
        read = on_cpu([tensor[list(env_ids)] for tensor in whole.values()])
        states = {path: values.numpy() for path, values in zip(whole, read, strict=True)}
        simulator_states = self._environment.episode_states(env_ids)
        for number, (env_id, own) in enumerate(zip(env_ids, simulator_states, strict=True)):
            initial = {name: values[number : number + 1].copy() for name, values in states.items()}
            for name, array in own.items():
                initial[f"{layout.INITIAL_STATE}/{layout.SIMULATOR}/{name}"] = np.asarray(array)
            self._initial[env_id] = initial
        self._ring.start(env_ids)

    def append(self, transition: Transition) -> None:
        """Keep one control step; its action must not change afterwards."""
        if not self._packs:
            self._lay_out(transition)
        self._held.append(self._tensors(transition))
        if len(self._held) >= self._max_held:
            self._copy_held()

    def take(self, env_id: int) -> dict[str, np.ndarray]:
        """End an env slot's episode and return its arrays by path, with ``dones``. Shape of each: (num_steps, ...)."""
        # The initial state is below ``initial_state``, with shape (1, ...).
        initial = self._initial.pop(env_id)
        self._copy_held()
        packs = self._ring.take(env_id)
        arrays: dict[str, np.ndarray] = {}
        for pack, steps in zip(self._packs, packs, strict=True):
            stop = 0
            for name, shape in pack.shapes.items():
                start, stop = stop, stop + math.prod(shape)
                arrays[name] = steps[:, start:stop].copy().reshape(len(steps), *shape)
        # The states of an episode follow from their parts at its start and after each step.
        if self._state_parts:
            parts = np.concatenate((initial.pop(_PARTS), arrays.pop(_PARTS)))
            for path, values in flatten(self._environment.state_of(parts), ""):
                whole = np.ascontiguousarray(values)
                arrays[layout.INITIAL_STATE + path] = whole[:1]
                arrays[layout.STATES + path] = whole[1:]
        arrays |= initial
        arrays[layout.DONES] = np.zeros(len(packs[0]), np.uint8)
        arrays[layout.DONES][-1:] = 1
        return arrays

    def forget(self, env_id: int) -> None:
        """End an env slot's episode without steps, and drop it."""
        del self._initial[env_id]
        self._copy_held()
        self._ring.take(env_id)

    def _copy_held(self) -> None:
        """Copy the held tensors of the last steps."""
        if self._held:
            packs = [[tensors[number] for tensors in self._held for number in pack.numbers] for pack in self._packs]
            self._ring.append(packs, len(self._held))
            self._held.clear()

    def _state(self, prefix: str) -> Iterable[tuple[str, torch.Tensor]]:
        """Return copies of the parts of the state side by side, or else the state by path."""
        if self._state_parts:
            return [(_PARTS, torch.cat(self._state_parts, dim=1))]
        return flatten(self._environment.state() or {}, prefix)

    def _tensors(self, transition: Transition) -> list[torch.Tensor]:
        """Return the tensors to keep of a step, always in the same order; see `_lay_out`."""
        action = transition.action
        tensors = [action if action.dtype is torch.float32 else action.to(torch.float32), transition.step.reward]
        for path, names in self._terms.items():
            terms: Any = transition.observation
            for key in path:
                terms = terms[key]
            if path not in self._together:
                tensors += [terms[name] for name in names]
            elif isinstance(terms, SideBySide):
                tensors.append(terms.together)
            else:
                tensors.append(torch.cat([terms[name] for name in names], dim=1))
        return [*tensors, *(tensor for _, tensor in self._state(layout.STATES))]

    def _lay_out(self, transition: Transition) -> None:
        """Decide the layout: vectors of one dtype share a pack; images are large enough for a pack of their own."""
        seen = transition.observation
        kept = {RecordedObservations.ALL: {*seen}, RecordedObservations.STATE: {"policy"}}.get(self.observations, ())
        for keys, _ in leaves({group: terms for group, terms in seen.items() if group in kept}):
            *path, name = keys
            self._terms.setdefault(tuple(path), []).append(name)
        self._together = {path for path in self._terms if isinstance(value_at(seen, path), SideBySide)}

        # The named arrays in each of the tensors.
        tensors = self._tensors(transition)
        arrays_of = [{layout.ACTIONS: transition.action}, {layout.REWARDS: transition.step.reward}]
        places = {"policy": layout.OBSERVATIONS, layout.CAMERA_OBSERVATIONS: layout.CAMERA_OBSERVATIONS}
        for path, names in self._terms.items():
            # Group ``policy`` is in ``obs``, as in Isaac Lab, and others are beside it.
            group, *keys = path
            above, terms = places.get(group, f"{layout.OBSERVATIONS}_{group}"), value_at(seen, path)
            named = {"/".join((above, *keys, name)): terms[name] for name in names}
            arrays_of += [named] if path in self._together else [{name: term} for name, term in named.items()]
        arrays_of += [{name: part} for name, part in self._state(layout.STATES)]

        # The arrays lie side by side in their packs.
        packs: dict[object, _TensorPack] = {}
        for number, (tensor, arrays) in enumerate(zip(tensors, arrays_of, strict=True)):
            pack = packs.setdefault(tensor.dtype if tensor.ndim <= 2 else number, _TensorPack())
            pack.numbers.append(number)
            pack.shapes |= {name: tuple(array.shape[1:]) for name, array in arrays.items()}
        self._packs = [*packs.values()]

        # Tensors may wait only if the environment never reuses their memory. The parts of its state are copies.
        owns = self._environment.returns_own_tensors and (self._state_parts or not self._environment.state())
        if owns and all(tensor.ndim <= 2 for tensor in tensors):
            step_bytes = sum(tensor.nbytes for tensor in tensors)
            self._max_held = max(1, min(HELD_STEPS, HELD_OBJECTS // (len(tensors) + 1), HELD_BYTES // step_bytes))


def flatten(tree: Observation | StateTree, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of a nested dict: ``states/rigid_object/cube/root_pose``."""
    for keys, value in leaves(tree):
        yield "/".join((prefix, *keys)), value


def recorded_entries(environment: Environment) -> dict[str, RecordedEntries]:
    """Return names, units and bounds of the entries of actions and of the group ``policy``, by path in a recording."""
    declared = [((layout.ACTIONS,), environment.action_spec)]
    declared += [
        ((layout.OBSERVATIONS, *keys), spec) for keys, spec in leaves(environment.observation_spec.get("policy", {}))
    ]
    entries = {}
    for keys, spec in declared:
        low, high = (
            bound if bound is None else tuple(float(each) if math.isfinite(each) else None for each in bound)
            for bound in (spec.low, spec.high)
        )
        if len(spec.shape) == 1 and any(each is not None for each in (spec.names, spec.unit, low, high)):
            entries["/".join(keys)] = RecordedEntries(names=spec.names, unit=spec.unit, low=low, high=high)
    return entries


_LOG = logging.getLogger(__name__)

ROBOMIMIC_ENV_TYPE = 2  # Isaac Lab's value in ``env_args``: an environment with Gymnasium's interface


RemoteCommit: TypeAlias = Callable[[Path, CommitLine, str, Callable[[Path], object] | None], None]
"""Takes the job's directory, and the arguments of `CommitWriter.commit`."""


@dataclass(eq=False)
class EpisodeRecorder(Observer):
    """Write the episodes of one job, which may have several environments; see `begin_rebuild`."""

    directory: Path  # of the job
    _: dataclasses.KW_ONLY
    job: str
    rank: int  # rank of the recorder
    world_size: int  # number of ranks
    attempt: int  # start of the program on the run, from 1
    # Robomimic's description of the environment: ``env_name``, ``env_kwargs``.
    env_args: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)  # of the run: versions, configuration hash, policy
    contents: Contents | None = None  # evaluated contents; None if unknown
    write_dataset: bool = True  # False: arrays are not recorded; results of episodes always are
    observations: RecordedObservations = RecordedObservations.STATE
    compression: Compression = Compression.NONE
    # Whether this rank still owns a finished episode, by index. Other episodes are dropped.
    may_commit: Callable[[int], bool] = lambda _: True
    remote_commit: RemoteCommit | None = None  # gives episodes to another process, which commits them

    def __post_init__(self) -> None:
        # An episode's file is renamed into place, and then its line is appended to the commit file. So every committed
        # episode has a complete file, also after a crash. `consolidate` turns the files into one dataset.
        check_compression(self.compression)
        self.sees_pictures = self.write_dataset and self.observations is RecordedObservations.ALL
        self._contents = None if self.contents is None else json_line(self.contents)
        self._dataset_name = layout.dataset_file_name(self.job, self.rank, self.world_size)
        self._commit_file = commits = None if self.remote_commit else CommitWriter(self.directory, self.rank)
        self._commit = commits.commit if commits else partial(cast(RemoteCommit, self.remote_commit), self.directory)
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
            # Called once: it may hash the whole model.
            provenance = json_line({**environment.provenance(), **self.provenance})
            arrays = EpisodeArrays(environment, self.observations) if self.write_dataset else None
            self._underway[environment] = arrays, provenance
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
        if not self.may_commit(record.episode.episode_index):
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
            rank=self.rank,
            attempt=self.attempt,
            episode_in_env=finished,
            timestamp=now(local=True),
            wall_s=time.perf_counter() - self._started_s.pop(record.env_id),
            dataset_file=None if arrays is None else self._dataset_name,
            episode_file=None if arrays is None else f"{layout.EPISODES_DIRECTORY}/{name}",
            checksum=crc,
            start=self._first_seen.pop(record.env_id, None),
        )
        text = line_text(line)
        if arrays is None:
            self._commit(line, text, None)
            return

        # The recording holds the text of its commit line, too.
        more = {"control_dt": environment.control_dt, "provenance": provenance}
        if self._contents is not None:
            more[layout.CONTENTS_ATTRIBUTE] = self._contents
        env_args = {"type": ROBOMIMIC_ENV_TYPE, **self.env_args}
        attributes = attributes_of(line) | more | {layout.COMMIT_ATTRIBUTE: text}
        episode = RecordedEpisode(
            episode_index=line.episode_index, arrays=arrays, attributes=attributes, env_args=env_args
        )
        compression = self.compression
        self._commit(line, text, lambda path: write_episode(path, episode, compression, crc=crc))
        self._parts.append(self.directory / layout.EPISODES_DIRECTORY / name)

    def begin_rebuild(self, environments: Sequence[Environment]) -> None:
        """Release the previous environments, and number the env slots of the new ones consecutively."""
        self._underway.clear()
        sizes = accumulate((environment.num_envs for environment in environments), initial=0)
        self._first_slots = dict(zip(environments, sizes, strict=False))

    def consolidate(self) -> Consolidation:
        """Turn the episode files into ``dataset_<job>….hdf5``, and remove them. They remain on a StorageError."""
        if not self._parts:
            return Consolidation(episode_indices=(), damaged=())
        done = consolidate(self._parts, self.directory / self._dataset_name)
        self._parts = []
        for _, reason in done.damaged:
            _LOG.warning("left out of %s: %s", self._dataset_name, reason)
        atomic.remove_if_empty(self.directory / layout.EPISODES_DIRECTORY)
        return done

    def close(self) -> None:
        """Close the commit file and drop running episodes; episode files stay in place."""
        if self._commit_file is not None:
            self._commit_file.close()
        self.begin_rebuild(())
