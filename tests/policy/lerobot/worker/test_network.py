"""The network in the worker plays what LeRobot's own loop would play."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from isaaclab_arena.policy.lerobot.worker.network import Network
from tests.policy.lerobot.policies import PICTURE, SITE, STATE, saved

SETTINGS = {"threads": torch.get_num_threads(), "deterministic": False}


@pytest.fixture(autouse=True)
def lerobot(monkeypatch) -> Iterator[None]:
    """What stands in for LeRobot, for this test alone."""
    monkeypatch.syspath_prepend(str(SITE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        del sys.modules[name]


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
