"""How often the CPU waits for a GPU in a control step of the loop, counted with a pretended one."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.evaluation.rollout import EpisodeLoop, StartingEpisodes, next_starts
from isaaclab_arena.evaluation.running_episodes import RolloutLimits, Stopwatch
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy
from tests.environments.building import build, episode
from tests.environments.variations.varying import build_varied, everything
from tests.pretend_backend import pretended_environments, there
from tests.pretend_gpu import GPU, PretendGpu

NUM_ENVS = 3
WHICH_ENDED = "evaluation/running_episodes.py"


@pytest.fixture(autouse=True)
def _physics_on_the_gpu(gpu: PretendGpu) -> Iterator[None]:
    with pretended_environments():
        yield


def begun(env: ArenaEnvironment, policy: PolicyBase) -> EpisodeLoop:
    """Return a loop that has made a step: what is made once was made."""
    loop = EpisodeLoop(
        env,
        policy,
        iter([episode(index) for index in range(NUM_ENVS)]),
        [],
        language_instruction=None,
        limits=RolloutLimits(episode_timeout_s=3600.0),
        stopwatch=Stopwatch(),
    )
    loop.reset(range(NUM_ENVS))
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
    return build(name, num_envs=NUM_ENVS, device=GPU, backend="warp", **options)


def test_steps_and_starts_of_episodes_have_one_wait_each_whatever_varies(gpu):
    name = there("lift_object")
    env = build_varied(name, everything(name), num_envs=NUM_ENVS, device=GPU, backend="warp")
    assert places_of_waits(gpu, begun(env, ScriptedPolicy())) == [WHICH_ENDED]
    starting = StartingEpisodes(env, None, may_overlap=True)
    gpu.waits.clear()
    starting.begin(next_starts(env, [0, 2], iter([episode(7), episode(8)])), num_steps=0)
    starting.finish(num_steps=0)
    assert [wait.where.partition(":")[0] for wait in gpu.waits] == ["environments/arena/environment.py"]


class Finishes(ZeroActionPolicy):
    """Has nothing more to do in two env slots from the second step on."""

    is_first = True

    def finished(self) -> torch.Tensor:
        done = torch.tensor([False, True, True]) & (not self.is_first)
        self.is_first = False
        return done


def test_however_many_episodes_end_in_a_step_their_numbers_and_moments_are_read_with_a_wait_each(gpu):
    loop = begun(built(there("lift_object")), Finishes())
    gpu.waits.clear()
    assert make_step(loop) == [1, 2]
    assert [wait.where.partition(":")[0] for wait in gpu.waits] == [
        WHICH_ENDED,
        "distributed/devices.py",
        "distributed/devices.py",
    ]
