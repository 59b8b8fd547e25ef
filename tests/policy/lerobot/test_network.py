"""The process of a policy: what it answers, and what becomes of one that dies, falls silent or answers nonsense."""

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena.errors import ConfigError, PolicyError, PolicyLostError
from isaaclab_arena.logs import ended_in
from isaaclab_arena.policy.lerobot_network import NOTHING, LeRobotNetwork, LeRobotPolicyCfg, versions_there
from isaaclab_arena.workers import _KEPT, stop_kept_workers
from tests.policy.lerobot.policies import PICTURE, REMEMBERING, STATE, options_for, saved

_QUESTION = {PICTURE: np.full((2, 1, 6, 8, 3), 255, np.uint8), STATE: np.ones((2, 1, 6), np.float32)}


def network_of(directory: Path, **options: Any) -> LeRobotNetwork:
    return LeRobotNetwork(directory, torch.device("cpu"), LeRobotPolicyCfg(**options_for(directory, **options)))


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


def test_answers_go_through_the_saved_processors(tmp_path):
    network = network_of(saved(tmp_path))
    # The fake's processors double states and halve actions; white is 1, and so is each letter of an instruction.
    base = 2 * 1 + 1 + np.array([2, 4])
    expected = np.tanh((base[:, None, None] + np.add.outer(range(3), range(5))) / 10) / 2
    assert np.allclose(asked(network), expected, atol=1e-6)
    network.close()
    network.close()


def test_the_process_that_told_its_versions_is_the_policys(tmp_path):
    options = LeRobotPolicyCfg(**options_for(saved(tmp_path)))
    versions_there(options)
    [told] = _KEPT
    network = network_of(tmp_path)
    assert network._worker is not None
    assert network._worker.pid == told.worker.pid
    assert not _KEPT
    asked(network)
    network.close()


def test_a_process_calculates_with_the_threads_and_as_deterministically_as_this_one(tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        network = network_of(saved(tmp_path, misbehaviour="tell settings"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert np.all(asked(network) == 2 * torch.get_num_threads() + 1)
    network.close()


def test_a_query_of_several_calls_of_one_size_has_the_answers_of_one_call(tmp_path):
    network = network_of(saved(tmp_path, "diffusion"))
    shown = {PICTURE: np.zeros((3, 1, 6, 8, 3), np.uint8), STATE: np.arange(18, dtype=np.float32).reshape(3, 1, 6)}
    whole, parts = (ask(network, shown, ["a", "bb", "ccc"], [5, 6, 7], size=size) for size in (None, 2))
    assert np.allclose(whole["actions"], parts["actions"], atol=1e-6)
    network.close()


def test_a_call_that_is_not_full_is_filled_up(tmp_path):
    network = network_of(saved(tmp_path, misbehaviour="tell size"))
    sizes = [ask(network, _QUESTION, ["go", "stop"], [1, 2], size=size) for size in (1, 2, 3)]
    assert [set(each["actions"].flatten()) for each in sizes] == [{1}, {2}, {3}]
    network.close()


def test_a_policy_that_fell_silent_is_not_asked_again_in_silence(tmp_path):
    network = network_of(saved(tmp_path, misbehaviour="hang once"), timeout_s=0.5)
    with pytest.raises(PolicyLostError, match=r"did not answer within 0\.5 s"):
        asked(network)
    network.close()


def test_a_policy_that_dies_between_two_answers_costs_nothing(tmp_path):
    expected = asked(network_of(saved(tmp_path / "well")))
    network = network_of(saved(tmp_path / "ill", misbehaviour="die once"))
    for _ in range(2):
        assert np.array_equal(asked(network), expected)
    assert (tmp_path / "ill" / ".died").exists()
    network.close()


def steps(network: LeRobotNetwork) -> list[np.ndarray]:
    """Return the actions of two episodes, four steps long."""
    memories, actions = [NOTHING, NOTHING], []
    for step in range(4):
        acted = ask(network, _QUESTION, ["go", "stop"], [step, 7 * step], memories=memories)
        memories = acted.get("memories", memories)
        actions.append(acted["actions"])
    network.close()
    return actions


@pytest.mark.parametrize("kind", REMEMBERING)
def test_what_a_policy_remembers_is_not_lost_with_its_process(tmp_path, kind):
    settings = REMEMBERING[kind]
    expected = steps(network_of(saved(tmp_path / "well", kind, **settings)))
    assert np.array_equal(
        expected, steps(network_of(saved(tmp_path / "ill", kind, **settings, misbehaviour="die once")))
    )
    assert (tmp_path / "ill" / ".died").exists()
    assert not np.array_equal(expected[0], expected[1])


def test_a_policy_that_was_written_over_is_not_asked_on_after_its_process_died(tmp_path):
    network = network_of(saved(tmp_path, misbehaviour="die once"))
    saved(tmp_path, n_action_steps=2, misbehaviour="die once")
    with pytest.raises(PolicyLostError, match=r"came back as another one: it stated .*'num_actions': 3"):
        asked(network)
    network.close()


@pytest.mark.parametrize(
    ("misbehaviour", "error", "message"),
    [
        ("die", PolicyLostError, "was lost 2 times over one query: the worker died with exit code 3"),
        ("hang", PolicyLostError, r"is lost: the worker did not answer within 0\.5 s"),
        ("raise", PolicyError, "failed: ValueError: a tensor is on the wrong shelf"),
        ("nan", PolicyError, "answered with actions that are not finite"),
        ("few", PolicyError, r"answered with actions of shape \(2, 2, 5\); due is \(2, 3, 5\)"),
    ],
)
def test_what_goes_wrong_is_told(tmp_path, misbehaviour, error, message):
    timeout_s = 0.5 if misbehaviour == "hang" else 60.0
    network = network_of(saved(tmp_path, misbehaviour=misbehaviour), timeout_s=timeout_s)
    for _ in range(2):
        with pytest.raises(error, match=message):
            asked(network)
    network.close()


def test_weights_that_do_not_fit_are_refused_in_lerobots_words(tmp_path):
    with pytest.raises(ConfigError, match=r"pretrained: LeRobot in .* cannot load .*: RuntimeError: Missing key"):
        network_of(saved(tmp_path, misbehaviour="no weights"))


@pytest.mark.parametrize(
    ("read_as", "message"),
    [
        ({"type": "vqbet"}, "was loaded with type vqbet, and config.json says act"),
        ({"n_obs_steps": 2}, "was loaded with num_observations 2, and config.json says 1"),
        ({"output_features": {"action": {"shape": [7]}}}, "was loaded with action_dim 7, and config.json says 5"),
        ({"input_features": {STATE: {"type": "STATE", "shape": [6]}}}, r"was loaded with inputs .*observation.images"),
    ],
)
def test_a_policy_that_lerobot_reads_otherwise_than_its_configuration_says_is_refused(tmp_path, read_as, message):
    with pytest.raises(ConfigError, match=f"pretrained: .*{message}"):
        network_of(saved(tmp_path, read_as=read_as))


def test_a_policy_that_starts_too_slowly_is_lost_before_the_process_would_be_ended(tmp_path):
    network = network_of(saved(tmp_path, misbehaviour="die once, then start slowly"))
    with ended_in(lambda: 4.0), pytest.raises(PolicyLostError, match=r"did not answer within 2 s"):
        asked(network)
    network.close()


def test_an_interpreter_says_what_it_has(tmp_path):
    found = versions_there(LeRobotPolicyCfg(**options_for(tmp_path)))
    assert found["lerobot"] == "0.4.4"
    assert found["torch"] == version("torch")


def test_an_interpreter_without_lerobot_is_refused():
    with pytest.raises(ConfigError, match=r"python: .*has no LeRobot; name an interpreter that has it"):
        versions_there(LeRobotPolicyCfg(pretrained="policy", python=sys.executable))


def test_an_interpreter_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="python: '/no/such/python' cannot be asked: cannot start"):
        versions_there(LeRobotPolicyCfg(pretrained="policy", python="/no/such/python"))
