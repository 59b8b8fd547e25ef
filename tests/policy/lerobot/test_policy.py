from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.lerobot_network import Description, LeRobotNetwork, LeRobotPolicyCfg
from isaaclab_arena.policy.lerobot_policy import LeRobotPolicy
from isaaclab_arena.testing.environment_conformance import DrawnOnDemand
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from tests.fakes_environment import episodes
from tests.gr00t.fakes import LimbEnvironment
from tests.policy.lerobot.policies import REMEMBERING, STATE, options_for, saved
from tests.policy.playing import actions_of, start


@contextmanager
def made(directory: Path, **options: Any) -> Iterator[LeRobotPolicy]:
    policy = LeRobotPolicy.from_dict(options_for(directory, **options))
    yield policy
    policy.close()


def played(policy: PolicyBase, environment: Environment, count: int = 5) -> dict[int, torch.Tensor]:
    return actions_of(policy, environment, episodes(count))


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


@pytest.mark.parametrize("kind", REMEMBERING)
def test_an_episode_of_a_policy_that_remembers_is_the_same_whichever_others_are_played(tmp_path, kind):
    with made(saved(tmp_path / "policy", kind, **REMEMBERING[kind])) as policy:
        alone, again = (played(policy, LimbEnvironment(1)) for _ in range(2))
        policy.reset()
        # The episodes have several lengths, so an env slot is at its second when others are at their first.
        together = played(policy, LimbEnvironment(3))
        sharing = played(policy.with_own_memory(), LimbEnvironment(2))
    assert len({len(actions) for actions in alone.values()}) > 1
    for index, actions in alone.items():
        assert all(torch.equal(actions, others[index]) for others in (again, together, sharing)), index


def test_a_policy_that_remembers_is_asked_in_every_step_and_never_late(tmp_path):
    options = options_for(saved(tmp_path, **REMEMBERING["act"]))
    with pytest.raises(ConfigError, match=r"pretrained: .*late"):
        LeRobotPolicy.stated_chunks(LeRobotPolicyCfg(**options))
    with made(tmp_path) as policy:
        with pytest.raises(ConfigError, match=r"pretrained: .*late"):
            LatePolicy(policy, Delays(steps=((1, 1),)), Meanwhile.HOLD, QueryTimes())
        plain = played(policy, LimbEnvironment(2))
        waiting = played(LatePolicy(policy, Delays(steps=((1, 1),)), Meanwhile.WAIT, QueryTimes()), LimbEnvironment(2))
    assert all(torch.equal(plain[index], waiting[index]) for index in range(5))


@pytest.mark.parametrize(("settings", "count"), [(REMEMBERING["act"], 2), ({}, 4)], ids=["remembers", "saved with 3"])
def test_no_more_actions_are_played_than_the_policy_gives(tmp_path, settings, count):
    options = options_for(saved(tmp_path, **settings), n_action_steps=count)
    with pytest.raises(ConfigError, match=f"n_action_steps: is {count}"):
        LeRobotPolicy.from_dict(options)
    if settings:
        with pytest.raises(ConfigError, match=f"n_action_steps: is {count}"):
            LeRobotPolicy.check_options(LeRobotPolicyCfg(**options))


def test_how_many_actions_are_known_is_read_before_anything_is_loaded(tmp_path):
    options = options_for(saved(tmp_path), n_action_steps=2)
    stated = LeRobotPolicy.stated_chunks(LeRobotPolicyCfg(**options))
    assert (stated.played, stated.predicted, stated.can_continue) == (2, 3, False)


@pytest.mark.parametrize(
    ("settings", "options", "drawn"),
    [
        ({"n_obs_steps": 1}, {}, 5),
        ({"n_obs_steps": 2}, {}, 10),
        ({"n_obs_steps": 2}, {"n_action_steps": 2}, 15),
        # One that remembers looks in each of the 14 steps, and whether the last one ends the episode is not known.
        (REMEMBERING["act"], {}, 15),
    ],
)
def test_only_pictures_that_a_query_shows_are_drawn(tmp_path, settings, options, drawn):
    environment = DrawnOnDemand(LimbEnvironment(1, cameras=("front",)))
    with made(saved(tmp_path, **settings), **options) as policy:
        rollout(environment, policy, episodes(1), [])
    assert environment.pictures_drawn == drawn


def test_the_history_of_an_episode_begins_with_its_first_observation(tmp_path):
    # The states of the fake count by their age: with one action for each look, every step shows another past.
    with made(saved(tmp_path, n_obs_steps=2, n_action_steps=1)) as policy:
        environment = LimbEnvironment(2)
        (actions, *_) = played(policy, environment, 2).values()
    assert len({round(float(each), 6) for each in actions[:, 0]}) == len(actions)


@pytest.mark.parametrize("num_observations", [1, 2])
def test_answers_that_are_on_time_are_played_as_without_latency(tmp_path, num_observations):
    with made(saved(tmp_path, n_obs_steps=num_observations), n_action_steps=2) as policy:
        plain = played(policy, LimbEnvironment(2))
    with made(tmp_path, n_action_steps=2) as policy:
        late = LatePolicy(policy, Delays(steps=((0, 1),)), Meanwhile.CHUNK, QueryTimes())
        on_time = played(late, DrawnOnDemand(LimbEnvironment(2)))
    assert all(torch.equal(plain[index], on_time[index]) for index in range(5))


def test_columns_of_an_action_are_taken_in_order_and_of_a_chunk_the_first_actions(tmp_path):
    saved(tmp_path)
    found = []
    for options in ({}, {"action_columns": [4, 3, 2, 1, 0]}, {"n_action_steps": 2}):
        with made(tmp_path, **options) as policy:
            found.append(played(policy, LimbEnvironment(1), 1)[0])
    whole, turned, few = found
    assert torch.equal(turned[0], whole[0].flip(0))
    assert torch.equal(few[:2], whole[:2])


class NotedNetwork:
    """Stands for the network of a policy, and notes for which words it was asked in each query."""

    about = asdict(Description(num_actions=3, action_dim=5, takes_batches=True, device_type="cpu"))
    max_batch = 64

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def ask(self, entries, *, slots_per_call) -> dict[str, np.ndarray]:
        self.asked.append(list(entries["words"]))
        return {"actions": np.zeros((len(entries["words"]), 3, 5), np.float32)}

    def close(self) -> None: ...


def test_each_env_slot_is_asked_about_with_the_words_of_its_episode_until_that_ends(tmp_path):
    network: Any = NotedNetwork()
    policy = LeRobotPolicy(LeRobotPolicyCfg(**options_for(saved(tmp_path), n_action_steps=1)), network=network)
    policy.set_task_description("tidy up")
    environment = LimbEnvironment(2)
    observation = environment.reset(torch.arange(2), [environment.draw_conditions(np.random.default_rng(7))] * 2)
    policy.start_episodes(environment, [start(0, 0, "lift"), start(1, 1, "drop")])
    policy.get_action(environment, observation)
    policy.end_episodes(environment, [0])
    policy.get_action(environment, observation)
    assert network.asked == [["lift", "drop"], ["drop"]]


def test_a_policy_is_known_by_its_files_and_the_packages_of_its_interpreter(tmp_path):
    options = options_for(saved(tmp_path / "policy"))
    sources = LeRobotPolicy.content_sources(options)
    assert sources.files == {"pretrained policy": tmp_path / "policy"}
    assert sources.checkpoint == str(tmp_path / "policy")
    assert sources.stated[f"package lerobot of {options['python']}"] == "0.4.4"


def test_a_misfit_is_refused_without_starting_the_policy(tmp_path):
    options = LeRobotPolicyCfg(**options_for(saved(tmp_path), states={STATE: ("fingers",)}))
    with pytest.raises(ConfigError, match=r"6 numbers, .* 2$"):
        LeRobotPolicy.check_fit(options, LimbEnvironment(1))


@pytest.mark.parametrize("fps", [None, 10])
def test_it_is_said_if_the_rate_for_which_a_policy_was_made_is_unknown(tmp_path, caplog, fps):
    options = {} if fps is None else {"fps": fps}
    with made(saved(tmp_path), **options) as policy:
        policy.check_environment(LimbEnvironment(1))
    assert ("steps per second is unknown" in caplog.text) is (fps is None)


def test_an_interpreter_is_a_program_that_would_be_run():
    (problem,) = LeRobotPolicy.foreign_code(LeRobotPolicyCfg(pretrained="policy", python="bin/python"))
    assert problem.key == "python"
    assert LeRobotPolicy.foreign_code(LeRobotPolicyCfg(pretrained="policy")) == ()
