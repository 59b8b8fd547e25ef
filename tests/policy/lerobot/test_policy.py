from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.rollout.rollout import rollout
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.lerobot.network import LeRobotNetwork
from isaaclab_arena.policy.lerobot.options import LeRobotPolicyCfg
from isaaclab_arena.policy.lerobot.policy import LeRobotPolicy
from isaaclab_arena.testing.drawn_on_demand import DrawnOnDemand
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.fakes_environment import ActionLog
from tests.gr00t.fakes import LimbEnvironment
from tests.policy.lerobot.policies import STATE, options_for, saved


@contextmanager
def made(directory: Path, **options: Any) -> Iterator[LeRobotPolicy]:
    policy = LeRobotPolicy.from_dict(options_for(directory, **options))
    yield policy
    policy.close()


def played(policy: PolicyBase, environment: LimbEnvironment, count: int = 5) -> dict[int, torch.Tensor]:
    """Return the actions of each episode that a policy plays, by its index."""
    log = ActionLog()
    episodes = [Episode(job="limb", episode_index=index, seed=7) for index in range(count)]
    rollout(environment, policy, episodes, [log])
    return log.actions


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    directory = saved(tmp_path_factory.mktemp("policy"), "diffusion", n_obs_steps=2)
    network = LeRobotNetwork(directory, torch.device("cpu"), LeRobotPolicyCfg(**options_for(directory)))
    yield directory, network
    network.close()


class TestConformance(PolicyConformance):
    policy_class = LeRobotPolicy

    @pytest.fixture(autouse=True)
    def use(self, network):
        directory, self.network = network
        self.options = options_for(directory)

    def make(self) -> LeRobotPolicy:
        return LeRobotPolicy(LeRobotPolicyCfg(**self.options), network=self.network)

    def make_environment(self, num_envs: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


@pytest.mark.parametrize("kind", ["act", "diffusion", "unheard_of"])
def test_an_episode_is_the_same_whichever_others_share_its_calls(tmp_path, kind):
    with made(saved(tmp_path / "policy", kind, n_obs_steps=2)) as policy:
        alone = played(policy, LimbEnvironment(1))
        policy.fill_calls_up_to(3)
        together = played(policy, LimbEnvironment(3))
    assert alone.keys() == together.keys() == set(range(5))
    for index, actions in alone.items():
        assert torch.allclose(actions, together[index], atol=1e-6), index


@pytest.mark.parametrize(("num_observations", "n_action_steps", "drawn"), [(1, None, 5), (2, None, 10), (2, 2, 15)])
def test_only_pictures_that_a_query_shows_are_drawn(tmp_path, num_observations, n_action_steps, drawn):
    environment = DrawnOnDemand(LimbEnvironment(1, cameras=("front",)))
    with made(saved(tmp_path, n_obs_steps=num_observations), n_action_steps=n_action_steps) as policy:
        # Nobody else looks at any, and the episode has 14 steps.
        rollout(environment, policy, [Episode(job="limb", episode_index=0, seed=7)], [])
    assert environment.pictures_drawn == drawn


def test_the_history_of_an_episode_begins_with_its_first_observation(tmp_path):
    # The states of the fake count by their age: with one action for each look, every step shows another past.
    with made(saved(tmp_path, n_obs_steps=2, n_action_steps=1)) as policy:
        environment = LimbEnvironment(2)
        (actions, *_) = played(policy, environment, 2).values()
    assert len({round(float(each), 6) for each in actions[:, 0]}) == len(actions)


def test_columns_of_an_action_are_taken_in_order(tmp_path):
    directory = saved(tmp_path)
    with made(directory) as policy:
        whole = played(policy, LimbEnvironment(1), 1)[0][0]
    with made(directory, action_columns=[4, 3, 2, 1, 0]) as policy:
        assert torch.equal(played(policy, LimbEnvironment(1), 1)[0][0], whole.flip(0))


def test_no_more_actions_are_played_than_the_policy_was_saved_with(tmp_path):
    with pytest.raises(ConfigError, match="n_action_steps: is 4, and the policy was saved with 3"):
        LeRobotPolicy.from_dict(options_for(saved(tmp_path), n_action_steps=4))


def test_a_policy_is_known_by_its_files_and_the_packages_of_its_interpreter(tmp_path):
    options = options_for(saved(tmp_path / "policy"))
    sources = LeRobotPolicy.content_sources(options)
    assert sources.files == {"pretrained policy": tmp_path / "policy"}
    assert sources.checkpoint == str(tmp_path / "policy")
    assert sources.stated[f"package lerobot of {options['python']}"] == "0.4.4"


def test_a_misfit_is_refused_without_starting_the_policy(tmp_path):
    options = LeRobotPolicyCfg(**options_for(saved(tmp_path), states={STATE: ("fingers",)}))
    with pytest.raises(ConfigError, match="takes 6 numbers, and fingers are 2"):
        LeRobotPolicy.check_fit(options, LimbEnvironment(1))


def test_an_interpreter_is_a_program_that_would_be_run():
    (problem,) = LeRobotPolicy.foreign_code(LeRobotPolicyCfg(pretrained="policy", python="bin/python"))
    assert problem.key == "python"
    assert LeRobotPolicy.foreign_code(LeRobotPolicyCfg(pretrained="policy")) == ()
