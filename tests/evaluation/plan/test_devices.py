"""On a GPU episodes are played, judged and recorded as they are on the CPU, by every policy that needs no server."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.replay import ReplayPolicy, ReplayPolicyCfg
from isaaclab_arena.policy.rsl_rl import RslRlPolicy, RslRlPolicyCfg, load_trained
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy
from isaaclab_arena.recording.recorder import EpisodeRecorder, RecordedObservations
from isaaclab_arena.storage.episodes import list_episodes, read_episode
from tests.environments.building import ALL_ENVIRONMENTS, CPU, FLOOR_ENVIRONMENTS, build, build_on_the_floor, episode
from tests.pretend_backend import pretended_environments, there
from tests.pretend_gpu import GPU, PretendGpu

MODELS = Path(__file__).parents[3] / "models"
NUM_ENVS, NUM_EPISODES, EPISODE_STEPS = 2, 3, 2

Recording = Mapping[int, Mapping[str, np.ndarray]]


@pytest.fixture(autouse=True)
def _physics_on_the_gpu(gpu: PretendGpu) -> Iterator[None]:
    with pretended_environments():
        yield


def recorded(directory: Path, name: str, policy: PolicyBase, device: torch.device, **options: Any) -> Recording:
    """Play short episodes, more than there are env slots, and return what was recorded."""
    builds = build if name in ALL_ENVIRONMENTS else build_on_the_floor
    backend = {"backend": "mujoco" if device == CPU else "warp"}
    env = builds(there(name), num_envs=NUM_ENVS, device=device, **{**backend, **options})
    env.max_episode_length = EPISODE_STEPS
    job, seen = f"{name}-{device.type}", RecordedObservations.ALL
    recorder = EpisodeRecorder(directory, job=job, rank=0, world_size=1, attempt=1, observations=seen)
    policy.check_environment(env)
    done = rollout(env, policy, [episode(index) for index in range(NUM_EPISODES)], [recorder])
    assert done.finished_episodes == NUM_EPISODES
    recorder.consolidate()
    recorder.close()
    dataset = directory / f"dataset_{job}.hdf5"
    return {index: read_episode(dataset, index).arrays for index in list_episodes(dataset)}


def assert_the_same(played: Recording, expected: Recording) -> None:
    assert played.keys() == expected.keys() == set(range(NUM_EPISODES))
    for index, arrays in expected.items():
        assert played[index].keys() == arrays.keys()
        for path, array in arrays.items():
            np.testing.assert_array_equal(played[index][path], array, err_msg=path)


def assert_alike(directory: Path, name: str, make: Callable[[], PolicyBase], **options: Any) -> None:
    assert_the_same(*(recorded(directory, name, make(), device, **options) for device in (GPU, CPU)))


@pytest.mark.parametrize("name", FLOOR_ENVIRONMENTS)
def test_random_actions_move_machines_there_as_they_do_here(tmp_path, name):
    assert_alike(tmp_path, name, RandomActionPolicy)


@pytest.mark.parametrize("kept_on", [GPU, CPU])
def test_what_was_recorded_on_the_cpu_is_played_again_on_a_gpu(tmp_path, kept_on):
    expected = recorded(tmp_path, "reach", ScriptedPolicy(), CPU)
    again = ReplayPolicy(
        ReplayPolicyCfg(replay_file_path=str(tmp_path / "dataset_reach-cpu.hdf5"), device=str(kept_on))
    )
    assert_the_same(recorded(tmp_path, "reach", again, GPU), expected)


@pytest.mark.parametrize(("name", "network_on", "stochastic"), [("cartpole", GPU, True), ("cartpole", CPU, False)])
def test_a_trained_network_acts_there_as_it_does_here(tmp_path, name, network_on, stochastic):
    def policy(device: torch.device) -> PolicyBase:
        config = RslRlPolicyCfg(checkpoint_path=str(MODELS / name), stochastic=stochastic)
        made = RslRlPolicy(config, trained=load_trained(config, device))
        made.device = device
        return made

    expected = recorded(tmp_path, name, policy(CPU), CPU)
    assert_the_same(recorded(tmp_path, name, policy(network_on), GPU), expected)
