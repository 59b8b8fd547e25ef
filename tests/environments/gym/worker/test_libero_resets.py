"""A reset of LIBERO is the same whichever resets came before."""

import numpy as np
import pytest

from isaaclab_arena.environments.gym.worker.gymnasium_tasks import ResetSequence
from tests.environments.libero.fake_env_wrapper import ControlEnv


@pytest.fixture
def task(tmp_path):
    (tmp_path / "task.bddl").touch()
    return ControlEnv(bddl_file_name=str(tmp_path / "task.bddl"))


def plain(task: ControlEnv, seed: int, count: int, *, seeds_every_reset: bool) -> list[float]:
    task.seed(seed)
    places = []
    for _ in range(count):
        if seeds_every_reset:
            task.seed(seed)
        task.reset()
        places.append(task.env.cabinet_m)
    return places


@pytest.mark.parametrize("seeds_every_reset", [False, True])
def test_resets_are_those_of_a_plain_loop_in_any_order(task, tmp_path, seeds_every_reset):
    expected = plain(ControlEnv(bddl_file_name=str(tmp_path / "task.bddl")), 7, 6, seeds_every_reset=seeds_every_reset)
    resets = ResetSequence(task, seeds_every_reset=seeds_every_reset)
    for index in (5, 0, 3, 1, 5, 4, 2, 0):
        np.random.uniform(size=index)
        resets.play(7, index)
        assert task.env.cabinet_m == expected[index]
    assert len(set(expected)) == 6


def test_another_seed_is_another_sequence_and_the_first_comes_back(task):
    resets = ResetSequence(task, seeds_every_reset=False)
    places = []
    for seed in (7, 8, 7):
        resets.play(seed, 2)
        places.append(task.env.cabinet_m)
    assert places[0] == places[2] != places[1]
