"""An episode is the same whatever it shares a batch with."""

from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.evaluation.eval_runner import main
from tests.end_to_end.launching import episodes_table, jobs_table, write_jobs

TASKS = ["reach", "lift_object", "pick_and_place", "open_drawer"]


def evaluate(directory: Path, num_envs: int) -> Path:
    jobs = [
        {
            "name": f"{task}-{policy}",
            "arena_env_args": {"environment": task, "num_envs": num_envs},
            "policy_type": policy,
            "num_episodes": 6,
            "seed": 11,
        }
        for task in TASKS
        for policy in ("scripted", "random_action")
        # Random motion is long; once is enough to show that a policy's own noise follows the episode.
        if policy == "scripted" or task == "reach"
    ]
    output = directory / f"envs{num_envs}"
    arguments = ["--eval_jobs_config", str(write_jobs(directory / f"{num_envs}.json", jobs))]
    assert main([*arguments, "--output_dir", str(output)]) == 0
    return output


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory) -> Path:
    return evaluate(tmp_path_factory.mktemp("slots"), 1)


@pytest.mark.parametrize("num_envs", [4, 16])
def test_episodes_are_the_same_bits_for_any_number_of_environments(one_slot, tmp_path, num_envs):
    """Conditions, outcomes, returns and the checksums of every recorded array."""
    together, alone = evaluate(tmp_path, num_envs), one_slot
    pd.testing.assert_frame_equal(episodes_table(together), episodes_table(alone))
    pd.testing.assert_frame_equal(jobs_table(together), jobs_table(alone))


def test_two_policies_see_the_same_conditions(one_slot):
    episodes = pd.read_parquet(one_slot / "episodes.parquet")
    reach = episodes[episodes["environment"] == "reach"]
    by_policy = {policy: list(group["conditions"]) for policy, group in reach.groupby("policy")}
    assert len(by_policy) == 2
    assert by_policy["scripted"] == by_policy["random_action"]
