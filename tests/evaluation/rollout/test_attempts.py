"""Steps are tried before the room for contacts is known, and made again unnoticed if there was none."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.rollout import EnvGroup, pipelined_rollout, rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.observer import Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.nested import leaves
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.sim.backends import make_backend
from isaaclab_arena.sim.warp_backend import BufferSizes, WarpBackend, with_more_room
from tests.environments.building import build, episode
from tests.environments.variations.varying import build_varied, everything
from tests.fakes import Notebook
from tests.fakes_environment import BoldPolicy, ScriptedEnvironment, episodes

NUM_ENVS, NUM_STEPS = 2, 4


class Cramped(WarpBackend):
    """Has no room for contacts in every third step that is tried, and counts the tries that made no step."""

    num_tries = num_failed = 0

    def step(self, moved: torch.Tensor, num_substeps: int, *, may_fail: bool = False) -> torch.Tensor:
        self.num_tries += may_fail
        if may_fail and self.num_tries % 3 == 0:
            self.sizes = BufferSizes(contacts=1, constraints=1)
            self.launcher.forget_graphs()
            self._data = with_more_room(self.model, self._data, self.sizes)
        made = super().step(moved, num_substeps, may_fail=may_fail)
        self.num_failed += bool((moved & ~made).any())
        return made


@pytest.fixture(autouse=True)
def _cramped_environments() -> Iterator[None]:
    with ENVIRONMENTS.restored_afterwards():
        for name in ("lift_object", "track_motion"):
            roomy = ENVIRONMENTS.get(name)
            cramped = replace(roomy, make_backend=partial(make_backend, on_gpu=Cramped))
            ENVIRONMENTS.register(f"cramped_{name}", cramped)
        yield


class Seen(Observer):
    """Keeps all that observers and policies are shown, as bytes."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, bytes]] = []

    def on_episode_start(self, environment: Environment, starts: Sequence[Any], observation: Observation) -> None:
        self._keep(observation)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        step = transition.step
        self._keep(step.observation)
        masks = {"success": step.success, "terminated": step.terminated, "truncated": step.truncated}
        self._keep({**masks, "reward": step.reward, "diverged": step.diverged, "running": transition.running})
        self._keep(step.metrics)
        assert isinstance(environment, ArenaEnvironment)
        self._keep(environment.state())

    def _keep(self, tree: Any) -> None:
        self.shown += [("/".join(keys), value.contiguous().numpy().tobytes()) for keys, value in leaves(tree)]


def played(env: ArenaEnvironment, policy: PolicyBase) -> list[tuple[str, bytes]]:
    """Observations of a few steps."""
    seen = Seen()
    rollout(env, policy, map(episode, range(NUM_ENVS)), [seen], limits=RolloutLimits(max_steps=NUM_STEPS))
    return seen.shown


def num_failed(env: ArenaEnvironment) -> int:
    assert isinstance(env.backend, Cramped)
    return env.backend.num_failed


def varied(name: str, **options: Any) -> ArenaEnvironment:
    return build_varied(name, everything(name), **options)


@pytest.mark.parametrize(
    ("name", "make"), [("lift_object", varied), pytest.param("track_motion", build, marks=pytest.mark.slow)]
)
def test_a_run_that_has_to_make_room_shows_the_same_bits_as_one_that_has_it(
    name: str, make: Callable[..., ArenaEnvironment]
):
    roomy, cramped = (make(each, num_envs=NUM_ENVS, backend="warp") for each in (name, f"cramped_{name}"))
    policy = ScriptedPolicy if name == "lift_object" else RandomActionPolicy
    assert played(cramped, policy()) == played(roomy, policy())
    assert num_failed(cramped) == 1


class Tries(ScriptedEnvironment):
    """Fails at first in every step."""

    def try_step(self, action: torch.Tensor) -> Step:
        self._action = action
        nothing = torch.zeros_like(self._running)
        return Step(
            observation=self._observe(),
            reward=torch.full_like(self._position[:, 0], torch.nan),
            terminated=nothing,
            truncated=nothing,
            success=nothing,
            diverged=nothing,
            made=nothing,
        )

    def step_again(self) -> Step:
        return super().step(self._action)


@pytest.mark.parametrize("sizes", [(3,), (2, 1)])
def test_observers_are_shown_no_step_that_was_not_made(sizes: tuple[int, ...]):
    notebooks = Notebook(), Notebook()
    for environment, notebook in zip((ScriptedEnvironment, Tries), notebooks, strict=True):
        groups = [EnvGroup(environment=environment(size), policy=BoldPolicy()) for size in sizes]
        pipelined_rollout(groups, episodes(9), [notebook])
    assert notebooks[0].lines == notebooks[1].lines
    assert repr(notebooks[0].records) == repr(notebooks[1].records)
    assert any(record.saturated_action_share for record in notebooks[0].records)
