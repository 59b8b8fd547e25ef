"""Every policy that ships keeps the rules that users' own policies are tested by."""

from collections.abc import Sequence

import pytest
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.policy import PolicyCfg, PolicyTraits
from isaaclab_arena.interfaces.policy_traits import announced_pictures
from isaaclab_arena.policy.catalog import ObjectPolicy, function_policy_class
from isaaclab_arena.policy.replay import ReplayPolicy
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.environments.building import build
from tests.fakes_environment import ScriptedEnvironment
from tests.policy.checkpoints import write_checkpoint
from tests.policy.test_replay import recording


class OnThePoint(PolicyConformance):
    """Plays episodes of three coordinates that last 3 to 8 steps."""

    def make_environment(self, num_envs: int) -> Environment:
        return ScriptedEnvironment(num_envs, endings=("timeout",), cameras=True)


class TestZeroAction(OnThePoint):
    policy_class = ZeroActionPolicy


class TestRandomAction(OnThePoint):
    policy_class = RandomActionPolicy


class TestScripted(PolicyConformance):
    policy_class = ScriptedPolicy

    def make_environment(self, num_envs: int) -> Environment:
        return build("lift_object", num_envs=num_envs, enable_cameras=True, camera_size=16)


def follow_the_brightness(observation: Observation, gain: float = 1.0) -> torch.Tensor:
    """Act on every picture, and announce none."""
    brightness = observation["camera_obs"]["front"].float().mean(dim=(1, 2, 3))
    return gain * torch.sin(brightness)[:, None].expand(-1, 3)


class TestFunction(OnThePoint):
    policy_class = function_policy_class(follow_the_brightness)


class LooksEverySecondStep:
    """An object that is no policy, looks at every second picture of an episode and announces those."""

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._seen: dict[int, float] = {}

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        self._steps.update(dict.fromkeys([] if env_ids is None else env_ids.tolist(), 0))

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int]:
        return [*starting, *(env_id for env_id, steps in self._steps.items() if steps % 2 == 0)]

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        action = torch.zeros(env.num_envs, 3)
        for env_id, steps in self._steps.items():
            if steps % 2 == 0:
                self._seen[env_id] = float(observation["camera_obs"]["front"][env_id].float().mean())
            action[env_id] = self._seen[env_id] - 0.1 * steps
            self._steps[env_id] += 1
        return action


class AnObject(ObjectPolicy):
    config_class = PolicyCfg
    traits = PolicyTraits(reproducible=True, batch_invariant=True)

    def __init__(self, config: PolicyCfg | None = None) -> None:
        super().__init__(LooksEverySecondStep())


class TestObject(OnThePoint):
    policy_class = AnObject

    def test_what_the_object_does_not_announce_is_not_drawn(self) -> None:
        environment = self.make_environment(2)
        assert announced_pictures(self.make(), environment, [1]) == [1]
        assert announced_pictures(ObjectPolicy(object()), environment, [1]) is None


class TestReplay(OnThePoint):
    policy_class = ReplayPolicy

    @pytest.fixture(autouse=True)
    def record(self, tmp_path):
        self.options = {"replay_file_path": str(recording(tmp_path, seed=20))}


class TestRslRl(OnThePoint):
    policy_class = RslRlPolicy

    @pytest.fixture(autouse=True, params=[False, True], ids=["feedforward", "recurrent"])
    def train(self, tmp_path, request):
        self.options = {"checkpoint_path": str(write_checkpoint(tmp_path, recurrent=request.param))}
