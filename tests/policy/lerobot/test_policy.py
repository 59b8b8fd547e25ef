"""Policies of LeRobot, which act in a process of their own."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.logs import ended_in
from isaaclab_arena.policy.lerobot_network import NOTHING, Description, LeRobotNetwork, LeRobotPolicyCfg, versions_there
from isaaclab_arena.policy.lerobot_policy import LeRobotPolicy
from isaaclab_arena.testing.environment_conformance import DrawnOnDemand
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena.workers import stop_kept_workers
from tests.fakes_environment import episodes
from tests.gr00t.fakes import LimbEnvironment
from tests.policy.lerobot.policies import PICTURE, REMEMBERING, STATE, options_for, saved
from tests.policy.playing import actions_of, check_ranks_play_as_one, refused, sharing, start


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
    with pytest.raises(ConfigError, match=r"6 numbers.* 2$"):
        LeRobotPolicy.check_fit(options, LimbEnvironment(1))


@pytest.mark.parametrize("fps", [None, 10])
def test_it_is_said_if_the_rate_for_which_a_policy_was_made_is_unknown(tmp_path, caplog, fps):
    options = {} if fps is None else {"fps": fps}
    with made(saved(tmp_path), **options) as policy:
        policy.check_environment(LimbEnvironment(1))
    assert ("second is unknown" in caplog.text) is (fps is None)


def test_an_interpreter_is_a_program_that_would_be_run():
    (problem,) = LeRobotPolicy.foreign_code(LeRobotPolicyCfg(pretrained="policy", python="bin/python"))
    assert problem.key == "python"
    assert LeRobotPolicy.foreign_code(LeRobotPolicyCfg(pretrained="policy")) == ()


# The process of a policy: what it answers, and what becomes of one that dies, falls silent or answers nonsense.


_QUESTION = {PICTURE: np.full((2, 1, 6, 8, 3), 255, np.uint8), STATE: np.ones((2, 1, 6), np.float32)}


@contextmanager
def network_of(directory: Path, **options: Any) -> Iterator[LeRobotNetwork]:
    network = LeRobotNetwork(directory, torch.device("cpu"), LeRobotPolicyCfg(**options_for(directory, **options)))
    yield network
    network.close()
    network.close()


def asked(network: LeRobotNetwork) -> np.ndarray:
    return ask(network, _QUESTION, ["go", "stop"], [1, 2])["actions"]


def ask(
    network: LeRobotNetwork, shown, words, seeds, *, size: int | None = None, **memories: list[np.ndarray]
) -> dict[str, Any]:
    entries: dict[str, Any] = {f"shown.{name}": part for name, part in shown.items()}
    entries |= {"words": words, "noise_seeds": np.array(seeds), **memories}
    return network.ask(entries, slots_per_call=size or len(words))


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    stop_kept_workers()


def test_answers_go_through_the_saved_processors_and_outlive_a_process_that_dies(tmp_path):
    # The fake's processors double states and halve actions; white is 1, and so is each letter of an instruction.
    base = 2 * 1 + 1 + np.array([2, 4])
    expected = np.tanh((base[:, None, None] + np.add.outer(range(3), range(5))) / 10) / 2
    with network_of(saved(tmp_path, misbehaviour="die once")) as network:
        for _ in range(2):
            assert np.allclose(asked(network), expected, atol=1e-6)
    assert (tmp_path / ".died").exists()


@pytest.mark.parametrize("python", [sys.executable, "/no/such/python"])
def test_an_interpreter_without_lerobot_is_refused(python):
    with refused("python"):
        versions_there(LeRobotPolicyCfg(pretrained="policy", python=python))


def test_a_process_calculates_with_the_threads_and_as_deterministically_as_this_one(tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        with network_of(saved(tmp_path, misbehaviour="tell settings")) as network:
            told = asked(network)
    finally:
        torch.use_deterministic_algorithms(False)
    assert np.all(told == 2 * torch.get_num_threads() + 1)


def test_a_call_that_is_not_full_is_filled_up_and_several_have_the_answers_of_one(tmp_path):
    with network_of(saved(tmp_path / "size", misbehaviour="tell size")) as network:
        sizes = [ask(network, _QUESTION, ["go", "stop"], [1, 2], size=size) for size in (1, 2, 3)]
    assert [set(each["actions"].flatten()) for each in sizes] == [{1}, {2}, {3}]
    shown = {PICTURE: np.zeros((3, 1, 6, 8, 3), np.uint8), STATE: np.arange(18, dtype=np.float32).reshape(3, 1, 6)}
    with network_of(saved(tmp_path / "noise", "diffusion")) as network:
        whole, parts = (ask(network, shown, ["a", "bb", "ccc"], [5, 6, 7], size=size) for size in (None, 2))
    assert np.allclose(whole["actions"], parts["actions"], atol=1e-6)


def steps(directory: Path) -> list[np.ndarray]:
    """Return the actions of two episodes, four steps long."""
    memories, actions = [NOTHING, NOTHING], []
    with network_of(directory) as network:
        for step in range(4):
            acted = ask(network, _QUESTION, ["go", "stop"], [step, 7 * step], memories=memories)
            memories = acted.get("memories", memories)
            actions.append(acted["actions"])
    return actions


@pytest.mark.parametrize("kind", REMEMBERING)
def test_what_a_policy_remembers_is_not_lost_with_its_process(tmp_path, kind):
    settings = REMEMBERING[kind]
    expected = steps(saved(tmp_path / "well", kind, **settings))
    found = steps(saved(tmp_path / "ill", kind, **settings, misbehaviour="die once"))
    assert (tmp_path / "ill" / ".died").exists()
    assert np.array_equal(expected, found)
    assert not np.array_equal(expected[0], expected[1])


def test_a_policy_that_was_written_over_is_not_asked_on_after_its_process_died(tmp_path):
    with network_of(saved(tmp_path, misbehaviour="die once")) as network:
        saved(tmp_path, n_action_steps=2, misbehaviour="die once")
        with pytest.raises(PolicyLostError, match="'num_actions': 3"):
            asked(network)


@pytest.mark.parametrize(
    ("misbehaviour", "error", "told"),
    [
        ("die", PolicyLostError, "lost 2 times .* exit code 3"),
        ("hang", PolicyLostError, r"within 0\.2 s"),
        ("hang once", PolicyLostError, r"within 0\.2 s"),
        ("raise", PolicyError, "ValueError: a tensor"),
        ("nan", PolicyError, "not finite"),
        ("few", PolicyError, r"\(2, 2, 5\); expected \(2, 3, 5\)"),
    ],
)
def test_what_goes_wrong_is_told(tmp_path, misbehaviour, error, told):
    timeout_s = 0.2 if "hang" in misbehaviour else 60.0
    with network_of(saved(tmp_path, misbehaviour=misbehaviour), timeout_s=timeout_s) as network:
        for _ in range(1 if misbehaviour == "hang once" else 2):
            with pytest.raises(error, match=told):
                asked(network)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"read_as": {"type": "vqbet"}}, "vqbet"),
        ({"read_as": {"n_obs_steps": 2}}, "num_observations 2"),
        ({"read_as": {"output_features": {"action": {"shape": [7]}}}}, "action_dim 7"),
        ({"read_as": {"input_features": {STATE: {"type": "STATE", "shape": [6]}}}}, "observation.images"),
        ({"misbehaviour": "no weights"}, "Missing key"),
    ],
)
def test_a_policy_that_lerobot_reads_otherwise_or_cannot_load_is_refused(tmp_path, settings, told):
    with pytest.raises(ConfigError, match=f"pretrained: .*{told}"), network_of(saved(tmp_path, **settings)):
        pass


def test_a_policy_that_starts_too_slowly_is_lost_before_the_process_would_be_ended(tmp_path):
    slow = network_of(saved(tmp_path, misbehaviour="die once, then start slowly"))
    with slow as network, ended_in(lambda: 1.0), pytest.raises(PolicyLostError, match=r"within 0\.5 s"):
        asked(network)


# A policy of LeRobot in a policy server answers as in a rank's own worker, beside other clients.


@pytest.mark.parametrize(
    ("kind", "settings", "options"),
    [
        ("diffusion", {"n_obs_steps": 2}, {"slots_per_call": 4}),
        ("unheard_of", {"n_obs_steps": 2}, {"slots_per_call": 4}),
        *((kind, settings, {}) for kind, settings in REMEMBERING.items()),
    ],
)
def test_ranks_that_share_a_process_play_the_same_bits_as_one_with_its_own(tmp_path, kind, settings, options):
    options = options_for(saved(tmp_path / "policy", kind, **settings), **options)
    with sharing(LeRobotPolicy.from_dict(options), options, num_ranks=3) as ranks:
        check_ranks_play_as_one(LeRobotPolicy.from_dict(options), ranks, LimbEnvironment)


def test_a_memory_that_outgrows_what_a_server_takes_is_refused(tmp_path):
    options = options_for(saved(tmp_path, misbehaviour="grow", **REMEMBERING["act"]))
    alone = LeRobotPolicy.from_dict(options)
    actions_of(alone, LimbEnvironment(1), episodes(1))
    alone.close()
    with sharing(LeRobotPolicy.from_dict(options), options, num_ranks=1) as (policy,):
        with pytest.raises(PolicyError, match=r"memory grows .*policy_server"):
            actions_of(policy, LimbEnvironment(1), episodes(1))
        policy.close()
