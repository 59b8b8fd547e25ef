"""Recorded episodes once more: their start and their actions, without the policy, in as many rows as there are."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from isaaclab_arena.errors import ArenaError, first_line
from isaaclab_arena.evaluation.rollout.endings import BROKEN_OFF, ending_of
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, conditions_from_json
from isaaclab_arena.interfaces.observer import Transition
from isaaclab_arena.interfaces.recordable import Restorable, episode_state_of
from isaaclab_arena.recording.episode_arrays import EpisodeArrays, RecordedObservations
from isaaclab_arena.storage import layout
from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.recorded_episode import AttributeValue, RecordedEpisode

_SIMULATOR_PREFIX = f"{layout.INITIAL_STATE}/{layout.SIMULATOR}/"


@dataclass(frozen=True, kw_only=True)
class Reenactment:
    """A recorded episode that was simulated again.

    Attributes:
        recorded: The recording.
        found: What came of it now: the same arrays, and the attributes that say how it ended.
        from_exact_state: Whether it started from the recorded state of the simulator; otherwise from its conditions.
    """

    recorded: RecordedEpisode
    found: RecordedEpisode
    from_exact_state: bool


def reenact(environment: Environment, episodes: Iterable[RecordedEpisode]) -> Iterator[Reenactment]:
    """Simulate recorded episodes again, and yield each as it ends.

    An episode ends when the environment ends it, or with its last recorded action.

    Args:
        environment: Built as the recording says; its rows run the episodes.
        episodes: The recordings, all with the same observations.

    Raises:
        ArenaError: If the actions or the conditions of a recording do not fit the environment.
    """
    stage = _Stage(environment, iter(episodes))
    with torch.no_grad():
        yield from stage.run()


def recorded_observations(episode: RecordedEpisode) -> RecordedObservations:
    """Return which observations a recording holds."""
    groups = {name.partition("/")[0] for name in episode.arrays}
    if any(group == layout.CAMERA_OBSERVATIONS or group.startswith(f"{layout.OBSERVATIONS}_") for group in groups):
        return RecordedObservations.ALL
    return RecordedObservations.STATE if layout.OBSERVATIONS in groups else RecordedObservations.NONE


@dataclass(kw_only=True)
class _Scene:
    """The episode under way in one row."""

    recorded: RecordedEpisode
    actions: torch.Tensor
    from_exact_state: bool
    step: int = 0
    episode_return: float = 0.0


class _Stage:
    """The rows, and which episode is under way in each."""

    def __init__(self, environment: Environment, pending: Iterator[RecordedEpisode]) -> None:
        self._environment = environment
        self._pending = pending
        self._scenes: dict[int, _Scene] = {}
        self._arrays: EpisodeArrays | None = None

    def run(self) -> Iterator[Reenactment]:
        observation = self._start(range(self._environment.num_envs))
        while observation is not None and self._scenes:
            step, ended = self._step(observation)
            observation = step.observation
            for row in ended:
                yield self._end(row, step)
            if ended:
                observation = self._start(ended) or observation

    def _start(self, env_ids: Iterable[int]) -> Observation | None:
        """Start the next recordings in the named rows; return the observation, None if there are none left."""
        environment = self._environment
        given = dict(zip(env_ids, self._pending, strict=False))
        if not given:
            return None
        states = {row: _simulator_state(episode, environment, row) for row, episode in given.items()}
        for row, episode in given.items():
            exactly = bool(states[row]) and isinstance(environment, Restorable)
            self._scenes[row] = _Scene(recorded=episode, actions=self._actions(episode), from_exact_state=exactly)
            if self._arrays is None:
                self._arrays = EpisodeArrays(environment, recorded_observations(episode))
        rows = torch.tensor(list(given), dtype=torch.int64, device=environment.device)
        try:
            conditions = [_conditions(each) for each in given.values()]
            if isinstance(environment, Restorable):
                observation = environment.restore(rows, conditions, [*states.values()])
            else:
                observation = environment.reset(rows, conditions)
        except KeyError as missing:
            raise ArenaError(f"the recorded conditions lack {missing}, which this environment starts from") from missing
        except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
            # Their keys are those that this environment knows, their values may be anything.
            raise ArenaError(f"the recorded start does not fit this environment: {first_line(error)}") from error
        self._kept().start(list(given))
        return observation

    def _step(self, observation: Observation) -> tuple[Step, list[int]]:
        environment, scenes = self._environment, self._scenes
        action = torch.zeros((environment.num_envs, *environment.action_spec.shape), device=environment.device)
        running = torch.zeros(environment.num_envs, dtype=torch.bool, device=environment.device)
        for row, scene in scenes.items():
            action[row] = scene.actions[scene.step]
            running[row] = True
        step = environment.step(action)
        made = Transition(running=running, num_running=len(scenes), observation=observation, action=action, step=step)
        self._kept().append(made)
        over = step.terminated | step.truncated | step.diverged
        ended = []
        for row, scene in scenes.items():
            scene.step += 1
            scene.episode_return += float(step.reward[row])
            if bool(over[row]) or scene.step == len(scene.actions):
                ended.append(row)
        return step, sorted(ended)

    def _end(self, row: int, step: Step) -> Reenactment:
        scene = self._scenes.pop(row)
        found = RecordedEpisode(
            episode_index=scene.recorded.episode_index,
            arrays=self._kept().take(row),
            attributes=_result(scene, step, row),
            env_args=scene.recorded.env_args,
        )
        return Reenactment(recorded=scene.recorded, found=found, from_exact_state=scene.from_exact_state)

    def _kept(self) -> EpisodeArrays:
        if self._arrays is None:
            raise RuntimeError("no episode has started yet")
        return self._arrays

    def _actions(self, episode: RecordedEpisode) -> torch.Tensor:
        actions = episode.arrays.get(layout.ACTIONS)
        wanted = self._environment.action_spec.shape
        if actions is None or actions.ndim != 2 or len(actions) == 0 or actions.shape[1:] != wanted:
            found = "none" if actions is None else f"shape {actions.shape}"
            raise ArenaError(
                f"the actions of {layout.demo_name(episode.episode_index)} have {found}; "
                f"the environment takes (num_steps, action_dim) = (1 or more, {wanted[0]})"
            )
        return torch.as_tensor(actions.astype(np.float32), device=self._environment.device)


def _simulator_state(episode: RecordedEpisode, environment: Environment, row: int) -> Mapping[str, np.ndarray]:
    """Return the recorded state of the simulator, empty if there is none that this environment could take."""
    recorded = {
        name.removeprefix(_SIMULATOR_PREFIX): array
        for name, array in episode.arrays.items()
        if name.startswith(_SIMULATOR_PREFIX)
    }
    own = episode_state_of(environment, row)
    if own.keys() != recorded.keys() or any(own[name].shape != array.shape for name, array in recorded.items()):
        return {}
    return recorded


def _conditions(episode: RecordedEpisode) -> Conditions:
    return conditions_from_json(json.loads(str(episode.attributes.get("conditions", "{}"))))


def _result(scene: _Scene, step: Step, row: int) -> Mapping[str, AttributeValue]:
    recorded = scene.recorded.attributes
    values: dict[str, AttributeValue | None] = {
        "episode_return": scene.episode_return,
        "metrics": json_line({name: float(values[row]) for name, values in step.metrics.items()}),
    }
    over = bool((step.terminated | step.truncated | step.diverged)[row])
    if not over and recorded.get("termination") in BROKEN_OFF:
        # What took too long or was abandoned then need not be now, so only its steps can be compared.
        values |= {name: recorded.get(name) for name in ("outcome", "success", "termination", "error")}
    else:
        ending = ending_of(step, row)
        values |= {
            "outcome": None if ending.outcome is None else str(ending.outcome),
            "success": ending.success,
            "termination": ending.termination,
            "error": ending.error,
        }
    return {name: value for name, value in values.items() if value is not None}
