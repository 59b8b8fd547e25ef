"""A policy in the worker is loaded with what it needs of LeRobot, and plays what LeRobot's own loop would play."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.policy.lerobot_worker import NOTHING, Network, loaded
from tests.policy.lerobot.policies import PICTURE, REMEMBERING, SITE, STATE, saved

SETTINGS = {"threads": torch.get_num_threads(), "deterministic": False}


@pytest.fixture(autouse=True)
def lerobot(monkeypatch) -> Iterator[None]:
    """What stands in for LeRobot, for this test alone."""
    monkeypatch.syspath_prepend(str(SITE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        del sys.modules[name]


def test_a_policy_is_loaded_with_its_processors_on_a_device(tmp_path):
    policy, before, after = loaded(str(saved(tmp_path, "act")), "cpu")
    assert policy.config.type == "act"
    assert policy.config.device == "cpu"
    assert before({"observation.state": 1}) == {"observation.state": 2}
    assert after(4) == 2


def actions(directory: Path) -> np.ndarray:
    """Return the three actions of a query about the last two observations of one entry."""
    shown = {PICTURE: np.zeros((1, 2, 6, 8, 3), np.uint8), STATE: np.array([[[1.0] * 6, [3.0] * 6]], np.float32)}
    return Network(str(directory), "cpu", SETTINGS).actions(shown, ["go"], [1])[0]


def test_the_first_action_is_the_one_after_the_last_observation(tmp_path):
    # The fake's processors double states and halve actions; the last observation counts twice, and a letter is 1.
    base = 2 * 1 + 2 * (2 * 3) + len("go")
    expected = np.tanh((base + np.add.outer(range(3), range(5))) / 10) / 2
    assert np.allclose(actions(saved(tmp_path, n_obs_steps=2)), expected, atol=1e-6)


@pytest.mark.parametrize(("step", "further"), [("unnormalizer_processor", [0, 0]), ("delta_action_processor", [1, 2])])
def test_a_saved_step_that_may_remember_is_asked_about_one_action_after_the_other(tmp_path, step, further):
    plain = actions(saved(tmp_path / "plain", n_obs_steps=2))
    directory = saved(tmp_path / "stepped", n_obs_steps=2)
    (directory / "policy_postprocessor.json").write_text(json.dumps({"steps": [{"registry_name": step}]}))
    stepped = actions(directory) - plain
    assert np.allclose(stepped[1:] - stepped[0], np.array(further)[:, None], atol=1e-6)


def state_of(episode: int, step: int) -> np.ndarray:
    return np.full((1, 1, 6), episode + 0.1 * step, np.float32)


def alone(directory: Path, episode: int) -> list[np.ndarray]:
    """Return the actions of LeRobot's own loop in an episode of five steps."""
    policy, before, after = loaded(str(directory), "cpu")
    torch.manual_seed(10 * episode ^ 1)
    policy.reset()
    actions = []
    for step in range(5):
        torch.manual_seed(10 * episode + step)
        shown = {STATE: torch.from_numpy(state_of(episode, step)[:, 0]), PICTURE: torch.zeros(1, 3, 6, 8)}
        with torch.inference_mode():
            actions.append(after(policy.select_action(before({**shown, "task": ["go"]}))).numpy())
    return actions


@pytest.mark.parametrize("kind", REMEMBERING)
def test_episodes_of_a_policy_that_remembers_take_turns_and_each_is_that_of_lerobots_own_loop(tmp_path, kind):
    directory = saved(tmp_path, kind, **REMEMBERING[kind])
    network, memories, actions = Network(str(directory), "cpu", SETTINGS), [NOTHING, NOTHING], ([], [])
    description = network.description()
    assert (description["num_actions"], description["takes_batches"]) == (1, False)
    for step in range(5):
        for episode in (0, 1):
            shown = {PICTURE: np.zeros((1, 1, 6, 8, 3), np.uint8), STATE: state_of(episode, step)}
            action, memories[episode] = network.next_action(shown, ["go"], [10 * episode + step], memories[episode])
            assert len(memories[episode]) <= description["memory_bytes"]
            actions[episode].append(action[:, 0])
    for episode in (0, 1):
        assert np.array_equal(actions[episode], alone(directory, episode))
    assert not np.array_equal(actions[0], actions[1])


@pytest.mark.parametrize("kind", ["act", "diffusion", "tdmpc"])
def test_a_policy_that_keeps_observations_and_actions_alone_remembers_nothing(tmp_path, kind):
    description = Network(str(saved(tmp_path, kind, n_obs_steps=2)), "cpu", SETTINGS).description()
    assert (description["num_actions"], description["memory_bytes"]) == (3, 0)


@pytest.mark.parametrize("misbehaviour", [None, "tell size"])
def test_instructions_of_several_lengths_are_asked_about_in_calls_of_one_size(tmp_path, misbehaviour):
    directory = saved(tmp_path, "diffusion", misbehaviour=misbehaviour)
    (directory / "policy_preprocessor.json").write_text(
        '{"steps": [{"registry_name": "device_processor"}, {"registry_name": "tokenizer_processor"}]}'
    )
    shown = {PICTURE: np.zeros((3, 1, 6, 8, 3), np.uint8), STATE: np.arange(18, dtype=np.float32).reshape(3, 1, 6)}
    network = Network(str(directory), "cpu", SETTINGS)
    network.description()
    alike = network.actions(shown, ["lift", "drop", "hold"], [1, 2, 3])
    mixed = network.actions(shown, ["lift", "put it down", "hold"], [1, 2, 3])
    assert np.array_equal(mixed[[0, 2]], alike[[0, 2]])
    if misbehaviour is None:
        assert not np.array_equal(mixed[1], alike[1])
    else:
        assert np.all(mixed == 3)
