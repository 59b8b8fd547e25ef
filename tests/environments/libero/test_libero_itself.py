"""LIBERO itself, in an interpreter of its own: what a worker makes of it is what a plain loop there gives."""

import numpy as np
import pytest

from tests.environments.libero.installed import LIBERO, files_of
from tests.outsiders import test_libero
from tests.outsiders.test_libero import in_its_interpreter

SUITES = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")

pytestmark = test_libero.pytestmark


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


def test_the_five_suites_have_130_tasks():
    assert sum(len(LIBERO.suites[name]) for name in SUITES) == 130


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_every_task_is_made_and_steps(suite, tmp_path):
    files = {name: files_of(f"{suite}/{name}") for name in LIBERO.suites[suite]}
    observed = in_its_interpreter("libero_all_tasks.py", tmp_path, {"tasks": files})
    assert list(observed) == list(files)
    assert all(np.isfinite(values).all() for values in observed.values())
