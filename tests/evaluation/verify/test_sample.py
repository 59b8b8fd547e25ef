from dataclasses import replace

import pytest

from isaaclab_arena.evaluation.verification import draw_sample, prepare_sample
from isaaclab_arena.storage.ledger import write_run_plan
from tests.storage.recovery.crashed_runs import plan, planned

FINISHED = {"long": list(range(1000)), "short": [4, 7], "none": [], "other": list(range(5, 50))}


def test_a_sample_is_spread_over_the_jobs():
    sample = draw_sample(FINISHED, 8, seed=0)
    assert {job: len(episodes) for job, episodes in sample.items()} == {"long": 3, "short": 2, "other": 3}
    assert all(set(episodes) <= set(FINISHED[job]) for job, episodes in sample.items())
    assert all(list(episodes) == sorted(set(episodes)) for episodes in sample.values())


def test_no_more_is_drawn_than_there_is():
    assert draw_sample({"a": [1, 2], "b": []}, 100, seed=0) == {"a": (1, 2)}
    assert draw_sample(FINISHED, 0, seed=0) == {}
    assert draw_sample({}, 3, seed=0) == {}


def test_fewer_episodes_than_jobs_come_from_jobs_drawn_at_random():
    jobs = {f"job{number}": list(range(9)) for number in range(20)}
    first, second = (draw_sample(jobs, 5, seed=seed) for seed in (1, 2))
    assert len(first) == len(second) == 5
    assert first.keys() != second.keys()
    assert draw_sample(jobs, 5, seed=1) == first


@pytest.mark.parametrize(("num_envs", "batch", "again"), [(1, None, 3), (2, None, 1), (64, None, 1), (1, 2, 2)])
def test_a_sample_has_another_number_of_env_slots_that_fits_the_fixed_batch(tmp_path, num_envs, batch, again):
    settings = {} if batch is None else {"deterministic": True, "policy_batch": batch}
    begun = replace(plan(planned(num_envs=num_envs)), settings=settings)
    for name in ("run", "again"):
        (tmp_path / name).mkdir()
    write_run_plan(tmp_path / "run", begun)
    made = prepare_sample(tmp_path / "run", tmp_path / "again", {"lift": [0]}, num_envs=None, num_ranks=1)
    assert [job.config.num_envs for job in made.jobs] == [again]
