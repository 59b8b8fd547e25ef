"""Tests of the contract `PolicyBase`, one per rule, that a test class of your own policy inherits."""

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np
import torch

from isaaclab_arena.errors import ConfigError, UnannouncedPictureError
from isaaclab_arena.interfaces.environment import Environment, EpisodeStart, Observation
from isaaclab_arena.interfaces.policy import PolicyBase, announced_pictures, shown_to
from isaaclab_arena.interfaces.policy_options import declared_options
from isaaclab_arena.interfaces.specs import CAMERAS, Pictures
from isaaclab_arena.nested import with_leaves
from isaaclab_arena.testing.environment_conformance import (
    DrawnOnDemand,
    bits,
    conditions_of,
    ended,
    episode,
    leaves,
    require,
    start,
)

_STEPS_BEFORE_AGAIN = 2


class PolicyConformance(ABC):
    """The rules that every `PolicyBase` keeps, and the promises of its ``traits``.

    Derive a class whose name begins with ``Test`` and say what the policy is and where it acts; pytest then runs each
    rule as a test::

        class TestMine(PolicyConformance):
            policy_class = MyPolicy
            options = {"amplitude": 0.2}

            def make_environment(self, num_envs):
                return MyEnvironment(num_envs)

    Attributes:
        policy_class: The class.
        options: The ``policy_config_dict`` of a job; a fixture of the class may set ``self.options``.
        num_steps: Control steps for which a test plays an episode at most.
        answers_alike: Whether the policy is made here with a server that gives the same answer to the same question.
            Then it keeps the rules of a reproducible policy, which its ``traits`` cannot promise for every server.
    """

    policy_class: ClassVar[type[PolicyBase[Any]]]
    options: Mapping[str, Any] = MappingProxyType({})
    num_steps: ClassVar[int] = 6
    answers_alike: ClassVar[bool] = False

    def make(self) -> PolicyBase[Any]:
        """Return a new policy."""
        return self.policy_class.from_dict(self.options)

    @abstractmethod
    def make_environment(self, num_envs: int) -> Environment:
        """Return a new environment with so many env slots, in which the policy can act."""

    def test_unknown_options_are_refused(self) -> None:
        """A mistyped option is an error, and not ignored."""
        if "from_dict" not in self.policy_class.offers and declared_options(self.policy_class).names is None:
            raise SkipTest("the policy does not say which options it has")
        try:
            self.policy_class.from_dict({**self.options, "no_such_option": 1}).close()
        except (ConfigError, TypeError, KeyError, ValueError):
            return
        raise AssertionError("the policy takes an option that it does not have")

    def test_actions_fit_the_environment(self) -> None:
        """An action has shape (num_envs, action_dim) and no NaN or infinity."""
        with self._playing(2) as (policy, environment):
            for action in _played(policy, environment, {0: 0, 1: 1}, self.num_steps):
                require(torch.isfinite(action.float()).all(), "the action holds NaN or infinity")

    def test_observations_stay_as_they_are(self) -> None:
        """A policy never changes what it is shown, which is recorded."""
        with self._playing(2) as (policy, environment):
            observation = _begun(policy, environment, {0: 0, 1: 1})
            before = {path: bits(value) for path, value in leaves(observation)}
            policy.get_action(environment, shown_to(policy, environment, observation))
            changed = [path for path, value in leaves(observation) if bits(value) != before[path]]
            require(not changed, f"get_action changes what it is shown: {', '.join(changed)}")

    def test_finished_names_env_slots(self) -> None:
        """`finished` returns a mask of shape (num_envs,), or None."""
        with self._playing(2) as (policy, environment):
            policy.get_action(environment, shown_to(policy, environment, _begun(policy, environment, {0: 0, 1: 1})))
            finished = policy.finished()
            if finished is not None:
                found = (tuple(finished.shape), finished.dtype)
                require(found == ((2,), torch.bool), f"finished() has shape and type {found}, not {((2,), torch.bool)}")

    def test_a_policy_with_a_length_says_it(self) -> None:
        """A policy that `has_length` states the number of control steps or episodes of a run."""
        policy = self.make()
        try:
            if policy.has_length():
                lengths = (policy.length(), policy.num_episodes())
                known = any(isinstance(length, int) and length > 0 for length in lengths)
                require(known, f"the policy has_length(), and length() and num_episodes() are {lengths}")
        finally:
            policy.close()

    def test_an_episode_is_played_alike_after_any_other(self) -> None:
        """A reproducible policy carries nothing from one episode or job into the next."""
        expected, found = self._reproduced(), self._reproduced(before={0: 2, 1: 3})
        _require_alike(expected, found, "the same episode is played otherwise after another one")

    def test_noise_comes_from_the_episode(self) -> None:
        """A reproducible policy draws nothing from the process-wide generators."""
        expected, found = self._reproduced(seed=0), self._reproduced(seed=1)
        _require_alike(expected, found, "actions depend on the process-wide generators of random numbers")

    def test_an_episode_leaves_its_neighbours_alone(self) -> None:
        """An episode that begins in one env slot makes a reproducible policy forget nothing of another."""
        expected, found = self._reproduced(), self._reproduced(again={1: 2})
        message = "an episode that begins in env slot 1 changes the action in env slot 0"
        _require_alike(expected, found, message, to_the_bit=False)

    def test_an_episode_begins_afresh_in_a_used_env_slot(self) -> None:
        """A reproducible policy forgets the episode before it in the same env slot."""
        expected, found = self._reproduced({0: 0, 1: 2}), self._reproduced(again={1: 2})
        message = "an episode is played otherwise after another one in its env slot"
        _require_alike(expected, found[_STEPS_BEFORE_AGAIN:], message, slot=1, to_the_bit=False)

    def test_env_slots_do_not_influence_each_other(self) -> None:
        """A batch-invariant policy answers the same bits in any env slot, among any number of neighbours."""
        with self._playing(1) as (policy, _):
            self._need(policy.traits.batch_invariant, "batch_invariant")
        expected, found = self._reproduced({0: 0}), self._reproduced({0: 1, 1: 2, 2: 0})
        _require_alike(expected, found, "an action depends on the env slot or its neighbours", found_in=2)

    def test_one_object_serves_any_num_envs(self) -> None:
        """A policy that says so acts in environments of other sizes, one after the other."""
        with self._playing(2) as (policy, environment):
            self._need(policy.traits.serves_any_num_envs, "serves_any_num_envs")
            _played(policy, environment, {0: 0, 1: 1}, 2)
            for num_envs in (3, 1):
                with contextlib.closing(self.make_environment(num_envs)) as other:
                    _played(policy, other, {0: 0}, 2)

    def test_a_shared_network_has_a_memory_for_each(self) -> None:
        """`with_own_memory`: the episodes of one of two policies do not change those of the other."""
        expected = self._reproduced()
        with self._playing(2) as (policy, environment), contextlib.closing(self.make_environment(2)) as other:
            sharing = policy.with_own_memory()
            if sharing is None:
                raise SkipTest("the policy does not share its network")
            playing = _steps(policy, environment, {0: 0, 1: 1}, self.num_steps)
            found = [next(playing)]
            _played(sharing, other, {0: 2, 1: 3}, 2)
            found += playing
            sharing.close()
        _require_alike(expected, found, "a policy that shares the network changes what the first one does")

    def test_env_slots_that_wait_keep_their_memory(self) -> None:
        """`act_in_some`: two env slots act in turns as they do together."""
        with self._playing(2) as (policy, environment), contextlib.closing(self.make()) as waiting, torch.no_grad():
            self._need(policy.traits.reproducible or self.answers_alike, "reproducible")
            if "act_in_some" not in policy.offers:
                raise SkipTest("the policy cannot act in some env slots while others wait")

            # Both env slots act together.
            observation = _begun(policy, environment, {0: 0, 1: 1})
            shown, expected = [], []
            for _ in range(self.num_steps):
                shown.append(with_leaves(observation, torch.clone))
                seen = shown_to(policy, environment, observation)
                expected.append(torch.as_tensor(policy.get_action(environment, seen)).clone())
                step = environment.step(expected[-1].to(environment.device, torch.float32))
                observation = step.observation
                if bool(ended(step)[[0, 1]].any()):
                    break

            # Each acts alone, while the others wait and show zeros.
            _begun(waiting, environment, {0: 0, 1: 1})
            found: dict[int, list[torch.Tensor]] = {0: [], 1: []}
            for observation in shown:
                for slot, actions in found.items():
                    others = torch.tensor([1 - slot], device=environment.device)
                    seen = with_leaves(observation, lambda values, others=others: values.index_fill(0, others, 0))
                    seen = shown_to(waiting, environment, seen)
                    actions.append(torch.as_tensor(waiting.act_in_some(environment, seen, [slot])))
            for slot, actions in found.items():
                message = "an env slot does not go on after another where it was"
                _require_alike(expected, actions, message, slot=slot, to_the_bit=False)

    def test_it_announces_the_pictures_that_it_looks_at(self) -> None:
        """`pictures_to_see` and ``traits.pictures``: pictures that were not announced change no action."""
        with self._playing(2) as (policy, environment):
            if CAMERAS not in environment.observation_spec:
                raise SkipTest("the environment shows no pictures")
            expected = _played(policy, environment, {0: 0, 1: 1}, self.num_steps, again={1: 2})
        with self._playing(2) as (policy, environment):
            try:
                found = _played(policy, DrawnOnDemand(environment), {0: 0, 1: 1}, self.num_steps, again={1: 2})
            except (UnannouncedPictureError, AttributeError) as error:
                if isinstance(error, AttributeError) and not isinstance(error.obj, Pictures):
                    raise
                raise AssertionError(f"the policy looks at a picture that it has not announced: {error}") from error
            self._need(policy.traits.reproducible, "reproducible")
            for slot in (0, 1):
                _require_alike(expected, found, "actions differ where only announced pictures are drawn", slot=slot)

    def test_closing_twice_is_allowed(self) -> None:
        """`close` may be called more than once."""
        policy = self.make()
        policy.close()
        policy.close()

    @contextlib.contextmanager
    def _playing(self, num_envs: int) -> Iterator[tuple[PolicyBase[Any], Environment]]:
        environment = self.make_environment(num_envs)
        policy = self.make()
        try:
            yield policy, environment
        finally:
            policy.close()
            environment.close()

    def _reproduced(
        self,
        episodes: Mapping[int, int] = MappingProxyType({0: 0, 1: 1}),
        *,
        before: Mapping[int, int] | None = None,
        again: Mapping[int, int] | None = None,
        seed: int | None = None,
    ) -> list[torch.Tensor]:
        """Return the actions of episodes (env slot to index) that a new reproducible policy plays."""
        # ``before``: episodes of which it plays two steps first. ``again``: see `_steps`. ``seed``: that of the
        # process-wide generators while it plays; what builds it may seed them itself.
        forked = torch.random.fork_rng(enabled=seed is not None)
        with self._playing(len(episodes)) as (policy, environment), forked:
            kept = random.getstate(), np.random.get_state()
            if seed is not None:
                random.seed(seed)
                np.random.seed(seed)  # noqa: TID251
                torch.manual_seed(seed)  # noqa: TID251
            try:
                self._need(policy.traits.reproducible or self.answers_alike, "reproducible")
                if before is not None:
                    _played(policy, environment, before, 2)
                return _played(policy, environment, episodes, self.num_steps, again)
            finally:
                if seed is not None:
                    random.setstate(kept[0])
                    np.random.set_state(kept[1])

    @staticmethod
    def _need(promised: object, name: str) -> None:
        if not promised:
            raise SkipTest(f"the policy does not say that it is {name}")


def _begun(policy: PolicyBase[Any], environment: Environment, episodes: Mapping[int, int]) -> Observation:
    """Begin a job as the loop does, and return the first observation."""
    policy.check_environment(environment)
    policy.set_task_description(environment.task_description)
    policy.reset()
    _announce(policy, environment, sorted(episodes))
    observation = start(environment, episodes)
    policy.start_episodes(environment, _starts(environment, episodes))
    return observation


def _starts(environment: Environment, episodes: Mapping[int, int]) -> Sequence[EpisodeStart]:
    drawn = {slot: conditions_of(environment, index) for slot, index in sorted(episodes.items())}
    return [
        EpisodeStart(
            env_id=slot,
            episode=episode(episodes[slot]),
            conditions=conditions,
            language_instruction=environment.instruction(conditions),
        )
        for slot, conditions in drawn.items()
    ]


def _steps(
    policy: PolicyBase[Any],
    environment: Environment,
    episodes: Mapping[int, int],
    num_steps: int,
    again: Mapping[int, int] | None = None,
) -> Iterator[torch.Tensor]:
    """Play episodes until one of them ends, and yield the action of each step. Shape: (num_envs, action_dim)."""
    # Episodes are env slot to index; those of ``again`` begin after `_STEPS_BEFORE_AGAIN` steps.
    observation = _begun(policy, environment, episodes)
    for number in range(num_steps):
        if again is not None and number == _STEPS_BEFORE_AGAIN:
            _announce(policy, environment, sorted(again))
            observation = environment.reset(
                torch.tensor(sorted(again), device=environment.device),
                [conditions_of(environment, again[slot]) for slot in sorted(again)],
            )
            policy.end_episodes(environment, sorted(again))
            policy.start_episodes(environment, _starts(environment, again))
        action = torch.as_tensor(policy.get_action(environment, shown_to(policy, environment, observation)))
        shape = (environment.num_envs, *environment.action_spec.shape)
        require(tuple(action.shape) == shape, f"the action has shape {tuple(action.shape)}, not {shape}")
        yield action.clone()
        _announce(policy, environment, ())
        step = environment.step(action.to(environment.device, torch.float32))
        observation = step.observation
        if bool(ended(step)[list(episodes)].any()):
            return


def _announce(policy: PolicyBase[Any], environment: Environment, starting: Sequence[int]) -> None:
    """Announce the pictures that a policy reads next, in an environment that draws nothing else."""
    if isinstance(environment, DrawnOnDemand):
        environment.draw_pictures_of(announced_pictures(policy, environment, starting))


def _played(
    policy: PolicyBase[Any],
    environment: Environment,
    episodes: Mapping[int, int],
    num_steps: int,
    again: Mapping[int, int] | None = None,
) -> list[torch.Tensor]:
    with torch.no_grad():
        return list(_steps(policy, environment, episodes, num_steps, again))


def _require_alike(
    expected: Sequence[torch.Tensor],
    found: Sequence[torch.Tensor],
    message: str,
    *,
    slot: int = 0,
    found_in: int | None = None,
    to_the_bit: bool = True,
) -> None:
    """Compare the actions in an env slot with those found in it, or in another one, until either ends."""
    for number, (actions, others) in enumerate(zip(expected, found, strict=False)):
        one, other = actions[slot], others[slot if found_in is None else found_in]
        # The last digits of a network may depend on its neighbours; its behaviour must not.
        close = bits(one) == bits(other) if to_the_bit else torch.allclose(one.float(), other.float(), 1e-3, 1e-3)
        require(close, f"{message}, first at step {number}")
