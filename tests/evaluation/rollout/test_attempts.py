"""Steps are tried before the room for contacts is known, and made again unnoticed if there was none."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.rollout import (
    EnvGroup,
    EpisodeLoop,
    StartingEpisodes,
    next_starts,
    pipelined_rollout,
    rollout,
)
from isaaclab_arena.evaluation.running_episodes import RolloutLimits, Stopwatch
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.observer import Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.nested import leaves
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from isaaclab_arena.sim.backends import make_backend
from isaaclab_arena.sim.warp_backend import BufferSizes, WarpBackend, with_more_room
from tests.environments.building import build, episode
from tests.environments.variations.varying import build_varied, everything
from tests.fakes import Notebook
from tests.fakes_environment import BoldPolicy, ScriptedEnvironment, episodes
from tests.pretend_backend import pretended_environments, there
from tests.pretend_gpu import GPU, PretendGpu

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


NUM_SLOTS = 3
WHICH_ENDED = "evaluation/running_episodes.py"


@pytest.fixture
def _physics_on_the_gpu(gpu: PretendGpu) -> Iterator[None]:
    with pretended_environments():
        yield


def begun(env: ArenaEnvironment, policy: PolicyBase) -> EpisodeLoop:
    """Return a loop that has made a step: what is made once was made."""
    loop = EpisodeLoop(
        env,
        policy,
        iter([episode(index) for index in range(NUM_SLOTS)]),
        [],
        language_instruction=None,
        limits=RolloutLimits(episode_timeout_s=3600.0),
        stopwatch=Stopwatch(),
    )
    loop.reset(range(NUM_SLOTS))
    assert make_step(loop) == []
    return loop


def make_step(loop: EpisodeLoop) -> Sequence[int]:
    answer = loop.act()
    return loop.finish_step(answer, loop.environment.try_step(answer.action))


def places_of_waits(gpu: PretendGpu, loop: EpisodeLoop) -> list[str]:
    """Return the files that make the CPU wait in a control step, in order."""
    gpu.waits.clear()
    assert make_step(loop) == []
    return [wait.where.partition(":")[0] for wait in gpu.waits]


def built(name: str = "lift_object", **options: Any) -> ArenaEnvironment:
    return build(name, num_envs=NUM_SLOTS, device=GPU, backend="warp", **options)


@pytest.mark.usefixtures("_physics_on_the_gpu")
def test_steps_and_starts_of_episodes_have_one_wait_each_whatever_varies(gpu):
    name = there("lift_object")
    env = build_varied(name, everything(name), num_envs=NUM_SLOTS, device=GPU, backend="warp")
    assert places_of_waits(gpu, begun(env, ScriptedPolicy())) == [WHICH_ENDED]
    starting = StartingEpisodes(env, None, may_overlap=True)
    gpu.waits.clear()
    starting.begin(next_starts(env, [0, 2], iter([episode(7), episode(8)])), num_steps=0)
    starting.finish(num_steps=0)
    assert [wait.where.partition(":")[0] for wait in gpu.waits] == ["environments/variations/senses.py"]


class Finishes(ZeroActionPolicy):
    """Has nothing more to do in two env slots from the second step on."""

    is_first = True

    def finished(self) -> torch.Tensor:
        done = torch.tensor([False, True, True]) & (not self.is_first)
        self.is_first = False
        return done


@pytest.mark.usefixtures("_physics_on_the_gpu")
def test_however_many_episodes_end_in_a_step_their_numbers_and_moments_are_read_with_a_wait_each(gpu):
    loop = begun(built(there("lift_object")), Finishes())
    gpu.waits.clear()
    assert make_step(loop) == [1, 2]
    assert [wait.where.partition(":")[0] for wait in gpu.waits] == [
        WHICH_ENDED,
        "distributed/devices.py",
        "distributed/devices.py",
    ]
