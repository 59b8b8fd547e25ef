"""Tests of the contract `Environment`, one per rule, that a test class of your own environment inherits."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from typing import Any, ClassVar, TypeAlias
from unittest import SkipTest

import numpy as np
import torch

from isaaclab_arena import nested
from isaaclab_arena.errors import ConfigError, UnannouncedPictureError
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.environment_builder import EnvironmentWrapper
from isaaclab_arena.interfaces.episode import Conditions, Episode, Metric, conditions_from_json
from isaaclab_arena.interfaces.specs import CAMERAS, ArraySpec, DrawnPictures

# Requirements, episodes and actions, which follow from nothing else: the tests and the runner's probe play with them.

SEED = 20

Trace: TypeAlias = list[dict[str, bytes]]
"""What an episode showed, step by step: name to bytes."""


def require(condition: object, message: str) -> None:
    """Raise an AssertionError with a message unless a condition holds."""
    if not condition:
        raise AssertionError(message)


def episode(index: int) -> Episode:
    """Return an episode of the job that conformance tests play."""
    return Episode(job="conformance", episode_index=index, seed=SEED)


def conditions_of(environment: Environment, index: int) -> Conditions:
    """Return the start conditions of an episode, drawn as the loop draws them."""
    drawn = environment.draw_conditions(episode(index).conditions_generator())
    return environment.vary_conditions(drawn, episode(index))


def start(environment: Environment, episodes: Mapping[int, int]) -> Observation:
    """Start episodes (env slot to the index of its episode), and return the observation."""
    conditions = [conditions_of(environment, episodes[slot]) for slot in sorted(episodes)]
    return environment.reset(torch.tensor(sorted(episodes), dtype=torch.int64, device=environment.device), conditions)


def action_of(environment: Environment, episodes: Mapping[int, int], step: int) -> torch.Tensor:
    """Return an action that depends on episode and step alone, zero elsewhere: (num_envs, action_dim), float32."""
    # A number without bounds is within -1 to 1.
    spec = environment.action_spec
    low = np.full(spec.shape, -1.0) if spec.low is None else np.maximum(spec.low, -1e3)
    high = np.full(spec.shape, 1.0) if spec.high is None else np.minimum(spec.high, 1e3)
    action = np.zeros((environment.num_envs, *spec.shape), np.float32)
    for slot, index in episodes.items():
        action[slot] = np.random.default_rng([SEED, index, step]).uniform(low, high)
    return torch.from_numpy(action).to(environment.device)


def ended(step: Step) -> torch.Tensor:
    """Return the mask of env slots whose episode ended. Shape: (num_envs,), bool."""
    return step.terminated | step.truncated | step.diverged


def leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of a nested dict."""
    return (("/".join(path), value) for path, value in nested.leaves(tree))


def shown_in(observation: Observation, slot: int) -> dict[str, bytes]:
    """Return the bytes that an observation shows of one env slot, by path."""
    return {path: bits(value[slot]) for path, value in leaves(observation)}


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def trace(environment: Environment, slot: int, episodes: Mapping[int, int], num_steps: int) -> Trace:
    """Start and play episodes until the one in `slot` ends, at most `num_steps` steps, and return its trace."""
    return continued(environment, slot, episodes, [shown_in(start(environment, episodes), slot)], num_steps)


def continued(
    environment: Environment,
    slot: int,
    episodes: Mapping[int, int],
    shown: Trace,
    num_steps: int,
    *,
    first_step: int = 0,
) -> Trace:
    """Play episodes on until the one in `slot` ends, and return its trace, which begins with `shown`."""
    shown = list(shown)
    for number in range(first_step, num_steps):
        step = environment.step(action_of(environment, episodes, number))
        masks = (step.terminated, step.truncated, step.diverged, step.reward)
        outcome = {"outcome": b"".join(bits(each[slot]) for each in masks)}
        shown.append({**shown_in(step.observation, slot), **outcome})
        if bool(ended(step)[slot]):
            break
    return shown


def difference(expected: Trace, found: Trace) -> str:
    """Return the first difference of two traces in words, empty if there is none."""
    for number, (one, other) in enumerate(zip(expected, found, strict=False)):
        for name in one:
            if one[name] != other.get(name):
                return f"'{name}' differs {f'in step {number}' if number else 'at the start'}"
    return (
        "" if len(expected) == len(found) else f"one ends after {len(expected) - 1} steps, one after {len(found) - 1}"
    )


class DrawnOnDemand(EnvironmentWrapper):
    """Another environment, as one that draws pictures on demand: a policy or an observer sees what was announced."""

    # Recorded episodes are not started again.
    restore = None

    def __init__(self, real: Environment) -> None:
        # The group ``camera_obs`` of the real environment holds nothing but tensors.
        super().__init__(real)
        self._drawn = DrawnPictures(real.num_envs)
        self._kept: dict[str, torch.Tensor] = {}

    @property
    def pictures_drawn(self) -> int:
        """See `Environment.pictures_drawn`."""
        return self._drawn.num_drawn

    def draw_pictures_of(self, env_ids: Sequence[int] | None) -> None:
        """See `Environment.draw_pictures_of`."""
        self._drawn.announced = env_ids

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        """See `Environment.reset`."""
        return self._shown(self.real.reset(env_ids, conditions), env_ids.tolist())

    def step(self, action: torch.Tensor) -> Step:
        """See `Environment.step`."""
        step = self.real.step(action)
        return replace(step, observation=self._shown(step.observation, range(self.num_envs)))

    def close(self) -> None:
        """See `Environment.close`."""
        self.real.close()

    def _shown(self, observation: Observation, moved: Sequence[int]) -> Observation:
        drawn = self._drawn
        drawn.outdated[list(moved)] = True
        due = np.flatnonzero(drawn.named() & drawn.outdated).tolist()
        for name, pictures in observation[CAMERAS].items():
            kept = self._kept.setdefault(name, torch.zeros_like(pictures))
            kept[due] = pictures[due]
        drawn.outdated[due] = False
        drawn.num_drawn += len(due) * len(self._kept)
        return {**observation, CAMERAS: drawn.shown(self._kept, self.device)}


class PictureConformance(ABC):
    """The rules of pictures on demand and of films; derive from `EnvironmentConformance`.

    Attributes:
        num_steps: Control steps for which a test plays an episode at most.
    """

    num_steps: ClassVar[int] = 20

    @abstractmethod
    def make(self, num_envs: int) -> Environment:
        """Return a new environment with so many env slots, in none of which an episode has started."""

    def test_pictures_on_demand_are_those_that_are_always_drawn(self) -> None:
        """`draw_pictures_of`: announced env slots show the same, and the others no picture of another time."""
        with closing(self.make(2)) as every, closing(self.make(2)) as some:
            if some.pictures_drawn is None or CAMERAS not in some.observation_spec:
                raise SkipTest("a picture on demand is not offered")
            episodes = {0: 0, 1: 1}
            some.draw_pictures_of([0])
            self._check_pictures(start(every, episodes), start(some, episodes), [0])
            for number, announced in zip(range(self.num_steps), cycle([[], [1], [0, 1]]), strict=False):
                action = action_of(every, episodes, number)
                some.draw_pictures_of(announced)
                expected, found = every.step(action), some.step(action)
                self._check_pictures(expected.observation, found.observation, announced)
                if bool(ended(expected).any()):
                    break

    def test_films_are_pictures_and_change_nothing(self) -> None:
        """`film` returns uint8 pictures of the given env slots and cameras.

        What `film_later` returns draws the same pictures, also after steps.
        """
        with closing(self.make(2)) as environment:
            if not environment.filmable:
                raise SkipTest("a film is not offered")
            expected = trace(environment, 0, {0: 0}, 2)
            start(environment, {0: 0, 1: 1})
            pictures = environment.film([1], environment.filmable)
            require(set(pictures) == set(environment.filmable), f"film returned {sorted(pictures)}")
            for name, picture in pictures.items():
                is_picture = picture.dtype == np.uint8 and picture.ndim == 4 and picture.shape[::3] == (1, 3)
                require(is_picture, f"the film of '{name}' has shape {picture.shape} and type {picture.dtype}")
            if environment.reproducible:
                why = difference(expected, trace(environment, 0, {0: 0}, 2))
                require(not why, f"filming changes the episode: {why}")
            try:
                environment.film([0], ["no such camera"])
            except (KeyError, ConfigError):
                pass
            else:
                raise AssertionError("film accepts a camera that is not in filmable; it must raise KeyError")

            start(environment, {0: 0, 1: 1})
            drawing = environment.film_later([1, 0], environment.filmable)
            filmed = environment.film([1, 0], environment.filmable)
            trace(environment, 1, {0: 2, 1: 3}, 2)
            for number, draw in enumerate(drawing):
                pictures = draw()
                require(set(pictures) == set(filmed), f"{sorted(pictures)} are drawn, {sorted(filmed)} filmed")
                for name, picture in pictures.items():
                    same = np.array_equal(picture, filmed[name][number])
                    require(same, f"what is drawn later of '{name}' is not what film showed at that moment")

    @staticmethod
    def _check_pictures(expected: Observation, found: Observation, announced: Sequence[int]) -> None:
        for name, pictures in expected[CAMERAS].items():
            for env_id in range(2):
                try:
                    same = torch.equal(found[CAMERAS][name][env_id], pictures[env_id])
                except UnannouncedPictureError:
                    require(env_id not in announced, f"'{name}' of env slot {env_id} was announced and is not there")
                    continue
                require(same, f"'{name}' of env slot {env_id} is not what it shows if everything is drawn")


class EnvironmentConformance(PictureConformance):
    """The rules that every `Environment` keeps, and those of its offers.

    Derive a class whose name begins with ``Test`` and define `make`; pytest then runs each rule as a test::

        class TestMine(EnvironmentConformance):
            def make(self, num_envs):
                return MyEnvironment(num_envs)

    Attributes:
        num_steps: Control steps for which a test plays an episode at most. Rules about the end of an episode are
            tested only on an environment whose episodes end within them.
    """

    def test_specs_describe_the_environment(self) -> None:
        """Sizes are positive, and the bounds and names of an action are as many as its numbers."""
        with closing(self.make(2)) as environment:
            require(environment.num_envs == 2, f"num_envs is {environment.num_envs}, and 2 were asked for")
            require(environment.control_dt > 0, f"control_dt is {environment.control_dt} s")
            length = environment.max_episode_length
            require(length >= 1, f"max_episode_length is {length}")
            spec = environment.action_spec
            require(len(spec.shape) == 1, f"the shape of an action is {spec.shape}, not (action_dim,)")
            for name in ("low", "high", "names"):
                values = getattr(spec, name)
                require(values is None or len(values) == spec.shape[0], f"action_spec.{name} does not fit {spec.shape}")
            low, high = spec.low or (-np.inf,), spec.high or (np.inf,)
            require(np.all(np.array(low) <= np.array(high)), "action_spec.low lies above action_spec.high")

    def test_conditions_follow_from_the_generator_alone(self) -> None:
        """The same generator gives the same conditions after any earlier draws."""
        with closing(self.make(1)) as environment, closing(self.make(2)) as other:
            first = conditions_of(environment, 0)
            conditions_of(environment, 1)
            require(conditions_of(environment, 0) == first, "conditions depend on what was drawn before")
            require(conditions_of(other, 0) == first, "conditions depend on num_envs")

    def test_conditions_survive_a_json_file(self) -> None:
        """Conditions are plain values: numbers, words and tuples of numbers."""
        with closing(self.make(1)) as environment:
            conditions = dict(conditions_of(environment, 0))
            read = dict(conditions_from_json(json.loads(json.dumps(conditions))))
            require(read == conditions, f"conditions change in a JSON file: {conditions} becomes {read}")

    def test_instructions_are_words(self) -> None:
        """A policy gets an instruction in every episode."""
        with closing(self.make(1)) as environment:
            words = environment.instruction(conditions_of(environment, 0))
            require(isinstance(words, str) and words, f"the instruction is {words!r}")

    def test_observations_are_as_specified(self) -> None:
        """Observations have the groups, terms, shapes and types of ``observation_spec``, after resets and steps."""
        with closing(self.make(2)) as environment:
            self._check_observation(environment, start(environment, {0: 0, 1: 1}))
            step = environment.step(action_of(environment, {0: 0, 1: 1}, 0))
            self._check_observation(environment, step.observation)
            sound = ~step.diverged
            for path, value in leaves(step.observation):
                finite = torch.isfinite(value.float()).flatten(1).all(dim=1)
                require(
                    bool(finite[sound].all()), f"'{path}' holds NaN or infinity in an env slot that has not diverged"
                )

    def test_steps_have_the_shapes_of_the_contract(self) -> None:
        """Rewards and metrics are float32, masks bool, all of shape (num_envs,)."""
        with closing(self.make(2)) as environment:
            start(environment, {0: 0, 1: 1})
            step = environment.step(action_of(environment, {0: 0, 1: 1}, 0))
            numbers = {"reward": step.reward, **step.metrics}
            # An environment may call something else ``metrics``.
            declared = environment.metrics if isinstance(environment.metrics, tuple) else ()
            lacking = {each.name for each in declared if isinstance(each, Metric)} - step.metrics.keys()
            require(not lacking, f"a step has no {', '.join(sorted(lacking))}, which `metrics` declares")
            masks = {name: getattr(step, name) for name in ("terminated", "truncated", "success", "diverged")}
            if step.success is None:
                del masks["success"]
            for named, dtype in ((numbers, torch.float32), (masks, torch.bool)):
                for name, value in named.items():
                    found = (tuple(value.shape), value.dtype)
                    require(found == ((2,), dtype), f"'{name}' has shape and type {found}, not {((2,), dtype)}")

    def test_a_step_leaves_the_action_as_it_is(self) -> None:
        """The action belongs to the caller, who records it."""
        with closing(self.make(1)) as environment:
            start(environment, {0: 0})
            action = action_of(environment, {0: 0}, 0)
            before = action.clone()
            environment.step(action)
            require(torch.equal(before, action), "step changed the action that it was given")

    def test_env_slots_rest_until_they_are_reset(self) -> None:
        """Without a running episode an env slot keeps its observation, gets reward 0 and is False in every mask."""
        with closing(self.make(2)) as environment:
            resting = shown_in(start(environment, {0: 0}), 1)
            for number in range(self.num_steps):
                step = environment.step(action_of(environment, {0: 0}, number))
                self._check_rest(step, 1, resting)
                if bool(ended(step)[0]):
                    break
            else:
                return
            terminal = shown_in(step.observation, 0)
            for number in range(2):
                self._check_rest(environment.step(action_of(environment, {0: 1}, number)), 0, terminal)

    def test_actions_of_resting_env_slots_are_ignored(self) -> None:
        """An env slot without an episode may be given anything, also NaN."""
        with closing(self.make(2)) as environment:
            expected = trace(environment, 0, {0: 0}, 3)
        with closing(self.make(2)) as environment:
            shown = [shown_in(start(environment, {0: 0}), 0)]
            action = action_of(environment, {0: 0}, 0)
            action[1] = torch.nan
            step = environment.step(action)
            found = [*shown, shown_in(step.observation, 0)]
        message = "an action in a resting env slot changes another one"
        require(found[0] == expected[0] and found[1].items() <= expected[1].items(), message)

    def test_a_reset_leaves_other_env_slots_untouched(self) -> None:
        """Resetting one env slot changes nothing that is observed of another, now or later."""
        with closing(self.make(2)) as environment:
            expected = trace(environment, 0, {0: 0, 1: 1}, self.num_steps)
        with closing(self.make(2)) as environment:
            shown = trace(environment, 0, {0: 0, 1: 1}, 1)
            if len(expected) == len(shown):
                return
            after = shown_in(start(environment, {1: 2}), 0)
            require(after.items() <= shown[-1].items(), "a reset of env slot 1 changes what is observed of env slot 0")
            if environment.reproducible:
                found = continued(environment, 0, {0: 0, 1: 2}, shown, self.num_steps, first_step=1)
                why = difference(expected, found)
                require(not why, f"a reset of env slot 1 changes the episode in env slot 0: {why}")

    def test_an_episode_follows_from_its_conditions_and_actions(self) -> None:
        """A reproducible episode is the same in any env slot, among any neighbours and after any other episode."""
        with closing(self.make(1)) as environment:
            if not environment.reproducible:
                raise SkipTest("the environment does not say that it is reproducible")
            expected = trace(environment, 0, {0: 0}, self.num_steps)
        with closing(self.make(3)) as environment:
            trace(environment, 2, {0: 3, 2: 4}, 2)
            why = difference(expected, trace(environment, 2, {0: 1, 1: 2, 2: 0}, self.num_steps))
            require(not why, f"the same conditions and actions give another episode in another env slot: {why}")

    def test_the_time_limit_truncates(self) -> None:
        """No episode is longer than ``max_episode_length``, and one that the limit ends is truncated."""
        with closing(self.make(1)) as environment:
            limit = environment.max_episode_length
            if limit > self.num_steps:
                raise SkipTest(f"an episode may last {limit} steps, and num_steps is {self.num_steps}")
            start(environment, {0: 0})
            for number in range(limit):
                step = environment.step(action_of(environment, {0: 0}, number))
                if bool(ended(step)[0]):
                    return
            raise AssertionError(f"the episode goes on after max_episode_length, {limit} steps")

    def test_returned_tensors_stay_as_they_are(self) -> None:
        """An environment that says ``returns_own_tensors`` never changes a tensor that it has returned."""
        with closing(self.make(1)) as environment:
            if not environment.returns_own_tensors:
                raise SkipTest("the environment does not say that it returns tensors of its own")
            observation = start(environment, {0: 0})
            step = environment.step(action_of(environment, {0: 0}, 0))
            returned = [*leaves(observation), *leaves(step.observation), ("reward", step.reward), *step.metrics.items()]
            before = [bits(value) for _, value in returned]
            environment.step(action_of(environment, {0: 0}, 1))
            start(environment, {0: 1})
            for (path, value), was in zip(returned, before, strict=True):
                require(bits(value) == was, f"'{path}' changed after it was returned")

    def test_closing_twice_is_allowed(self) -> None:
        """`close` may be called more than once."""
        environment = self.make(1)
        environment.close()
        environment.close()

    def test_a_recorded_state_has_all_env_slots_and_stays_as_it_is(self) -> None:
        """`state` is a copy, whose tensors have one entry per env slot."""
        with closing(self.make(2)) as environment:
            start(environment, {0: 0, 1: 1})
            shown = environment.state()
            if shown is None:
                raise SkipTest("the state is not offered")
            state = dict(leaves(shown))
            before = {path: bits(value) for path, value in state.items()}
            environment.step(action_of(environment, {0: 0, 1: 1}, 0))
            for path, value in state.items():
                require(len(value) == 2, f"'{path}' of the state has {len(value)} entries for 2 env slots")
                require(bits(value) == before[path], f"'{path}' of the state is no copy: a step changed it")

    def test_the_parts_of_a_state_make_the_state(self) -> None:
        """`state_of` makes of copies of `state_parts` what `state` returned."""
        with closing(self.make(2)) as environment:
            start(environment, {0: 0, 1: 1})
            if not environment.state_parts():
                raise SkipTest("the state is not offered in parts")
            expected = {path: value.cpu().numpy() for path, value in leaves(environment.state() or {})}
            parts = torch.cat(tuple(environment.state_parts()), dim=1).cpu().numpy()
            environment.step(action_of(environment, {0: 0, 1: 1}, 0))
            found = {path: np.asarray(value) for path, value in leaves(environment.state_of(parts))}
            require(found.keys() == expected.keys(), f"state_of has {sorted(found)}, state has {sorted(expected)}")
            for path, value in expected.items():
                require(
                    np.array_equal(found[path], value, equal_nan=True), f"'{path}' differs between state_of and state"
                )

    def test_a_recorded_episode_starts_again_exactly(self) -> None:
        """`restore` from `episode_states` gives the same episode, in another env slot too."""
        with closing(self.make(2)) as environment:
            shown = [shown_in(start(environment, {0: 0}), 0)]
            kept = {name: np.array(value) for name, value in environment.episode_states([0])[0].items()}
            if not kept:
                raise SkipTest("a start from a recorded state is not offered")
            expected = continued(environment, 0, {0: 0}, shown, self.num_steps)
        with closing(self.make(2)) as environment:
            trace(environment, 1, {1: 3}, 2)
            conditions = [conditions_of(environment, 0)]
            env_ids = torch.tensor([1], device=environment.device)
            again = [shown_in(environment.restore(env_ids, conditions, [kept]), 1)]
            why = difference(expected, continued(environment, 1, {1: 0}, again, self.num_steps))
            require(not why, f"a restored episode is another one: {why}")

    def test_a_snapshot_brings_everything_back(self) -> None:
        """After `restore_snapshot` everything goes on as it did after `snapshot`, to the last bit."""
        with closing(self.make(2)) as environment, closing(self.make(2)) as other:
            episodes = {0: 0, 1: 1}
            shown = trace(environment, 0, episodes, 2)
            # An environment without `restore_snapshot` may call something else ``snapshot``.
            is_offered = type(environment).restore_snapshot is not Environment.restore_snapshot
            snapshot = environment.snapshot() if is_offered else None
            if snapshot is None:
                raise SkipTest("a snapshot is not offered")
            kept = {name: tensor.clone() for name, tensor in snapshot.items()}
            expected = continued(environment, 0, episodes, shown[-1:], self.num_steps, first_step=2)
            for each in (environment, other):
                again = shown_in(each.restore_snapshot({name: tensor.clone() for name, tensor in kept.items()}), 0)
                message = "the observation after restore_snapshot is not the last one before snapshot"
                require(again.items() <= expected[0].items(), message)
                found = continued(each, 0, episodes, expected[:1], self.num_steps, first_step=2)
                why = difference(expected, found)
                require(not why, f"after restore_snapshot the episode goes on otherwise: {why}")
            changed = [name for name, tensor in snapshot.items() if not torch.equal(tensor.cpu(), kept[name].cpu())]
            require(not changed, f"steps changed the snapshot: {', '.join(changed)}")

    @staticmethod
    def _check_observation(environment: Environment, observation: Observation) -> None:
        specs: Mapping[str, ArraySpec] = dict(leaves(environment.observation_spec))
        found: Mapping[str, Any] = dict(leaves(observation))
        require(found.keys() == specs.keys(), f"{sorted(found)} are observed, {sorted(specs)} are specified")
        for path, spec in specs.items():
            value = found[path]
            shape = (environment.num_envs, *spec.shape)
            fits = tuple(value.shape) == shape and value.dtype is spec.dtype and value.device == environment.device
            seen = f"{tuple(value.shape)}, {value.dtype} on {value.device}"
            require(fits, f"'{path}' is {seen}; the spec says {shape}, {spec.dtype} on {environment.device}")

    @staticmethod
    def _check_rest(step: Any, slot: int, resting: dict[str, bytes]) -> None:
        moved = [path for path, value in shown_in(step.observation, slot).items() if value != resting[path]]
        require(not moved, f"a step changes what is observed of a resting env slot: {', '.join(moved)}")
        require(float(step.reward[slot]) == 0.0, f"a resting env slot gets reward {float(step.reward[slot])}")
        for name in ("terminated", "truncated", "success", "diverged"):
            mask = getattr(step, name)
            require(mask is None or not bool(mask[slot]), f"'{name}' is True in a resting env slot")
