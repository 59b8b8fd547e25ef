"""How often the CPU waits for a GPU in a control step of the loop, counted with a pretended one."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from isaaclab_arena.environments.arena.environment import ArenaEnvironment
from isaaclab_arena.errors import PolicyError
from isaaclab_arena.evaluation.rollout import EpisodeLoop, StartingEpisodes, next_starts
from isaaclab_arena.evaluation.running_episodes import RolloutLimits, Stopwatch
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from tests.environments.building import ALL_ENVIRONMENTS, build, episode
from tests.environments.variations.varying import build_varied, everything
from tests.pretend_backend import pretended_environments, simulate_with_warp, there
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


CASES = [("lift_object", ZeroActionPolicy), ("lift_object", RandomActionPolicy)]


@pytest.mark.parametrize(("name", "policy"), [*CASES, *((name, ScriptedPolicy) for name in ALL_ENVIRONMENTS)])
def test_a_control_step_waits_once_to_learn_which_env_slots_ended(gpu, name, policy):
    assert places_of_waits(gpu, begun(built(there(name)), policy())) == [WHICH_ENDED]


def varied() -> ArenaEnvironment:
    name = there("lift_object")
    return build_varied(name, everything(name), num_envs=NUM_ENVS, device=GPU, backend="warp")


class LooksAtOne(ZeroActionPolicy):
    """Looks at the pictures of one env slot in every other step, as policies do that play chunks."""

    num_calls = 0

    def pictures_to_see(self, env: Any, starting: Any) -> list[int]:
        del env, starting
        return [1] if self.num_calls % 2 else []

    def get_action(self, env: Any, observation: Any) -> torch.Tensor:
        if self.num_calls % 2:
            assert all(pictures[[1]].device == GPU for pictures in observation["camera_obs"].values())
        self.num_calls += 1
        return super().get_action(env, observation)


def test_with_mujoco_warp_the_same_wait_tells_whether_contacts_had_room_and_pictures_add_none(gpu, monkeypatch):
    simulate_with_warp(monkeypatch)
    loop = begun(built(enable_cameras=True, camera_size=16), LooksAtOne())
    assert [places_of_waits(gpu, loop) for _ in range(3)] == [[WHICH_ENDED]] * 3


@pytest.mark.parametrize("varies", [False, True])
def test_steps_and_starts_of_episodes_have_one_wait_each_whatever_varies(gpu, varies):
    env = varied() if varies else built(there("lift_object"))
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


class TurnsToNaN(ZeroActionPolicy):
    """Says nothing usable in env slot 1 from the second step on."""

    is_first = True

    def get_action(self, env: Any, observation: Any) -> torch.Tensor:
        action = super().get_action(env, observation)
        action[1] += 0.0 if self.is_first else torch.nan
        self.is_first = False
        return action


def test_an_action_that_cannot_be_used_is_refused_with_that_one_wait(gpu):
    loop = begun(built(there("lift_object")), TurnsToNaN())
    with pytest.raises(PolicyError, match="NaN or infinity in env slot 1"):
        make_step(loop)
