"""Runs recorded episodes through the loop: each starts from its recorded state, and its actions are the policy."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from isaaclab_arena.errors import ArenaError
from isaaclab_arena.evaluation.rollout.endings import BROKEN_OFF, POLICY_FINISHED
from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, conditions_from_json
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.interfaces.recordable import episode_states_of
from isaaclab_arena.recording.episode_arrays import EpisodeArrays, RecordedObservations
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.recorded_episode import AttributeValue, RecordedEpisode

_SIMULATOR_PREFIX = f"{layout.INITIAL_STATE}/{layout.SIMULATOR}/"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A recorded episode that was simulated again.

    Attributes:
        recorded: The recording.
        found: What came of it now: the same arrays, and the attributes that say how it ended.
        from_exact_state: Whether it started from the recorded state of the simulator; otherwise from its conditions.
    """

    recorded: RecordedEpisode
    found: RecordedEpisode
    from_exact_state: bool


def replay_in(
    environment: Environment,
    recordings: Iterable[RecordedEpisode],
    tell: Callable[[Replay], None],
    observers: Sequence[Observer] = (),
) -> None:
    """Simulate recorded episodes again.

    An episode ends when the environment ends it, or with its last recorded action.

    Args:
        environment: Built as the recordings say; its env slots run the episodes.
        recordings: The recordings, all with the same observations.
        tell: Called with each replay as it ends.
        observers: Who else looks on; each is told of an end after ``tell``.

    Raises:
        ArenaError: If the actions or the conditions of a recording do not fit the environment.
    """
    started: dict[int, RecordedEpisode] = {}
    recordings = iter(recordings)
    first = next(recordings, None)
    if first is None:
        return
    # Nobody reads the instruction, and recorded conditions may not tell it.
    rollout(
        environment,
        RecordedActions(started),
        _episodes(environment, chain((first,), recordings), started),
        [_ReplayObserver(started, tell, environment, recorded_observations(first)), *observers],
        language_instruction=environment.task_description,
    )


def recorded_observations(episode: RecordedEpisode) -> RecordedObservations:
    """Return which observations a recording holds."""
    groups = {name.partition("/")[0] for name in episode.arrays}
    if any(group == layout.CAMERA_OBSERVATIONS or group.startswith(f"{layout.OBSERVATIONS}_") for group in groups):
        return RecordedObservations.ALL
    return RecordedObservations.STATE if layout.OBSERVATIONS in groups else RecordedObservations.NONE


class RecordedActions(PolicyBase[None]):
    """Plays the actions of recordings. An episode is finished with its last action.

    Args:
        recordings: The recordings of the episodes that start, by index.
    """

    traits = PolicyTraits(batch_invariant=True, sees_pictures=False)

    def __init__(self, recordings: Mapping[int, RecordedEpisode]) -> None:
        super().__init__()
        self._recordings = recordings
        self._left: dict[int, list[torch.Tensor]] = {}
        self._finished = torch.zeros(0, dtype=torch.bool)

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Take the actions of the episodes that begin."""
        for start in starts:
            actions = self._recordings[start.episode.episode_index].arrays[layout.ACTIONS]
            self._left[start.env_id] = list(torch.as_tensor(actions.astype(np.float32), device=env.device))[::-1]

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        """Return the next action of each episode, zeros where none is under way. Shape: (num_envs, action_dim)."""
        del observation
        action = torch.zeros((env.num_envs, *env.action_spec.shape), device=env.device)
        for env_id, left in self._left.items():
            action[env_id] = left.pop()
        self._finished = torch.zeros(env.num_envs, dtype=torch.bool)
        self._finished[[env_id for env_id, left in self._left.items() if not left]] = True
        return action

    def finished(self) -> torch.Tensor:
        """Return the env slots whose last action was played. Shape: (num_envs,), bool."""
        return self._finished

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        """Let go of the actions of episodes that have ended."""
        del env
        for env_id in env_ids:
            del self._left[env_id]


class _ReplayObserver(Observer):
    """Keeps the arrays of each episode, and tells of it when it ends."""

    def __init__(
        self,
        recordings: dict[int, RecordedEpisode],
        tell: Callable[[Replay], None],
        environment: Environment,
        observations: RecordedObservations,
    ) -> None:
        self._recordings = recordings
        self._tell = tell
        self._arrays = EpisodeArrays(environment, observations)
        self.sees_pictures = observations is RecordedObservations.ALL

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        del environment, observation
        self._arrays.start([start.env_id for start in starts])

    def on_step(self, environment: Environment, transition: Transition) -> None:
        del environment
        self._arrays.append(transition)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        del environment
        recorded = self._recordings.pop(record.episode.episode_index)
        found = RecordedEpisode(
            episode_index=recorded.episode_index,
            arrays=self._arrays.take(record.env_id),
            attributes=_result(recorded, record),
            env_args=recorded.env_args,
        )
        self._tell(Replay(recorded=recorded, found=found, from_exact_state=bool(record.episode.start_state)))


def _episodes(
    environment: Environment, recordings: Iterable[RecordedEpisode], started: dict[int, RecordedEpisode]
) -> Iterator[Episode]:
    """Yield the episodes of recordings, each when it starts, and put its recording into ``started``."""
    for recording in recordings:
        _check_actions(recording, environment)
        started[recording.episode_index] = recording
        yield Episode(
            job="replay",
            episode_index=recording.episode_index,
            seed=0,
            saved_conditions=conditions_from_json(json.loads(str(recording.attributes.get("conditions", "{}")))),
            start_state=_simulator_state(recording, environment),
        )


def _check_actions(recording: RecordedEpisode, environment: Environment) -> None:
    actions = recording.arrays.get(layout.ACTIONS)
    wanted = environment.action_spec.shape
    if actions is None or actions.ndim != 2 or len(actions) == 0 or actions.shape[1:] != wanted:
        found = "none" if actions is None else f"shape {actions.shape}"
        raise ArenaError(
            f"the actions of {layout.demo_name(recording.episode_index)} have {found}; "
            f"the environment takes (num_steps, action_dim) = (1 or more, {wanted[0]})"
        )


def _simulator_state(recording: RecordedEpisode, environment: Environment) -> Mapping[str, np.ndarray]:
    """Return the recorded state of the simulator, empty if there is none that this environment takes back."""
    recorded = {
        name.removeprefix(_SIMULATOR_PREFIX): array
        for name, array in recording.arrays.items()
        if name.startswith(_SIMULATOR_PREFIX)
    }
    (own,) = episode_states_of(environment, [0])
    fits = own.keys() == recorded.keys() and all(own[name].shape == array.shape for name, array in recorded.items())
    return recorded if fits else {}


def _result(recorded: RecordedEpisode, record: EpisodeRecord) -> Mapping[str, AttributeValue]:
    """Return the attributes that say how an episode ended this time."""
    values: dict[str, AttributeValue | None] = {
        "outcome": None if record.outcome is None else str(record.outcome),
        "success": record.success,
        "termination": record.termination,
        "error": record.error,
    }
    was_broken_off = recorded.attributes.get("termination") in BROKEN_OFF
    if was_broken_off and record.termination == POLICY_FINISHED:
        # What took too long or was abandoned then need not be now, so only its steps can be compared.
        values = {name: recorded.attributes.get(name) for name in values}
    values |= {"episode_return": record.episode_return, "metrics": json_line(record.metrics)}
    return {name: value for name, value in values.items() if value is not None}
