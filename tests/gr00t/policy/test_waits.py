"""How often the CPU waits for a GPU when a GR00T model is asked, counted with a pretended one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.interfaces.environment import Observation
from isaaclab_arena.nested import with_leaves
from isaaclab_arena_gr00t.config import ClosedloopPolicyArgs, Modality
from isaaclab_arena_gr00t.policy.closedloop import ClosedloopPolicy
from isaaclab_arena_gr00t.policy.openpi_remote_policy import OpenpiRemotePolicy
from tests.fakes_environment import episodes
from tests.gr00t.fakes import (
    DIMENSIONS,
    HORIZON,
    MODALITIES,
    FakeModality,
    LimbEnvironment,
    LimbPolicy,
    write_policy_yaml,
)
from tests.gr00t.policy.test_openpi_remote_policy import Pi, conversation, policy_at, talking
from tests.pretend_gpu import GPU, PretendGpu

NUM_ENVS, CHUNK = 3, 4
LOOKS_BACK: Mapping[str, Modality] = {
    **MODALITIES,
    "video": FakeModality(delta_indices=[-2, 0], modality_keys=["ego", "aside"]),
    "state": FakeModality(delta_indices=[-1, 0], modality_keys=["arm", "leg", "hand"]),
}


class LimbsOnGpu(LimbEnvironment):
    """Limbs whose observations are on the pretended GPU."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.device = GPU

    def observe(self) -> Observation:
        return with_leaves(self._observe(), lambda part: part.to(GPU))


class TakesTensors(LimbPolicy):
    """Notes where what it is asked about is, and answers with zeros."""

    @property
    def _takes_tensors(self) -> bool:
        return True

    def answer(self, observation: dict[str, Any], noise_seeds: list[int]) -> dict[str, np.ndarray]:
        return {
            key: np.zeros((len(noise_seeds), HORIZON, size), np.float32) for key, size in DIMENSIONS["action"].items()
        }


class TakesArrays(TakesTensors):
    """As a model of another package, which knows arrays alone."""

    @property
    def _takes_tensors(self) -> bool:
        return False


class LooksBack(TakesTensors):
    """Is shown earlier steps too."""

    modalities = LOOKS_BACK


def waits_of_calls(gpu: PretendGpu, directory: Path, policy_class: type[LimbPolicy]) -> tuple[list[int], LimbPolicy]:
    """Number of CPU waits in each call of a policy from the second chunk on, and the policy."""
    policy = policy_class(ClosedloopPolicyArgs(policy_config_yaml_path=write_policy_yaml(directory)))
    return waits_of(gpu, policy), policy


def waits_of(gpu: PretendGpu, policy: ClosedloopPolicy[Any] | OpenpiRemotePolicy) -> list[int]:
    """Number of CPU waits in each call from the second chunk on."""
    env = LimbsOnGpu(NUM_ENVS)
    conditions = [env.draw_conditions(each.conditions_generator()) for each in episodes(NUM_ENVS)]
    env.reset(torch.arange(NUM_ENVS), conditions)
    policy.set_task_description("move")
    waits = []
    for _ in range(3 * CHUNK):
        seen = env.observe()
        gpu.waits.clear()
        assert policy.get_action(env, seen).device == GPU
        policy.pictures_to_see(env, ())
        waits.append(len(gpu.waits))
    return waits[CHUNK:]


@pytest.mark.parametrize("policy_class", [TakesTensors, LooksBack])
def test_nothing_waits_until_a_model_on_the_gpu_has_answered(gpu, tmp_path, policy_class):
    waits, policy = waits_of_calls(gpu, tmp_path, policy_class)
    assert waits == [0] * 2 * CHUNK
    asked = policy.queries[-1].observation
    assert {part.device for group in ("video", "state") for part in asked[group].values()} == {GPU}


def test_a_model_that_knows_arrays_alone_waits_once_for_all_of_them_when_it_is_asked(gpu, tmp_path):
    waits, policy = waits_of_calls(gpu, tmp_path, TakesArrays)
    asked = policy.queries[-1].observation
    num_arrays = sum(isinstance(part, np.ndarray) for group in ("video", "state") for part in asked[group].values())
    assert (num_arrays, waits) == (5, 2 * [1, *[0] * (CHUNK - 1)])


def test_a_policy_server_waits_once_for_each_request_and_never_to_learn_whose_chunk_is_used_up(gpu):
    with talking(conversation(Pi())) as port:
        policy = policy_at(port, action_chunk_length=CHUNK)
        waits = waits_of(gpu, policy)
        policy.close()
    assert waits == 2 * [NUM_ENVS, *[0] * (CHUNK - 1)]


def test_arrays_and_tensors_hold_the_same_bits(gpu, tmp_path):
    (_, arrays), (_, tensors) = (waits_of_calls(gpu, tmp_path, each) for each in (TakesArrays, TakesTensors))
    for one, other in zip(arrays.queries, tensors.queries, strict=True):
        for group in ("video", "state"):
            for key, part in one.observation[group].items():
                np.testing.assert_array_equal(part, other.observation[group][key].cpu().numpy())
