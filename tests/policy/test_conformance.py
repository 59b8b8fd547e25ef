"""Every policy that ships keeps the rules that users' own policies are tested by."""

import pytest

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.policy.random_action import RandomActionPolicy
from isaaclab_arena.policy.replay import ReplayPolicy
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from isaaclab_arena.policy.scripted import ScriptedPolicy
from isaaclab_arena.policy.zero_action_policy import ZeroActionPolicy
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
        return build("lift_object", num_envs=num_envs)


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
