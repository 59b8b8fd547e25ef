"""Jobs that MuJoCo-Warp simulates give the results that MuJoCo gives."""

import numpy as np
import pytest

from isaaclab_arena.evaluation.eval_runner import main
from tests.end_to_end.launching import episodes_table, write_jobs

EVERYTHING = {
    "cube": {name: {"enabled": True} for name in ("mass", "size", "friction", "color")},
    "light": {name: {"enabled": True} for name in ("direction", "intensity")},
    "table.height.enabled": True,
    "distractors.count.enabled": True,
    "observation.delay.enabled": True,
}


@pytest.mark.slow
def test_episodes_in_which_everything_varies_come_out_the_same_on_both(tmp_path):
    jobs = [
        {
            "name": backend,
            "arena_env_args": {"environment": "lift_object", "num_envs": 5, "backend": backend},
            "policy_type": "scripted",
            "variations": EVERYTHING,
            "num_episodes": 10,
        }
        for backend in ("mujoco", "warp")
    ]
    write_jobs(tmp_path / "jobs.json", jobs)
    assert main(["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out")]) == 0
    table = episodes_table(tmp_path / "out")
    on_mujoco, on_warp = (table[table["job"] == job].reset_index(drop=True) for job in ("mujoco", "warp"))
    assert on_warp["outcome"].tolist() == on_mujoco["outcome"].tolist()
    assert on_warp["conditions"].tolist() == on_mujoco["conditions"].tolist()
    np.testing.assert_allclose(on_warp["length"], on_mujoco["length"], atol=2)
    np.testing.assert_allclose(on_warp["return"], on_mujoco["return"], rtol=0.05)
