import pytest

from benchmarks.runs.many_episodes import measure


@pytest.mark.slow
def test_memory_does_not_grow_with_the_episodes_of_a_job():
    few, many = (measure(num_jobs=1, num_episodes=number, num_envs=64) for number in (1_000, 10_000))
    assert many.late_mb - many.halfway_mb < 2
    assert many.late_mb - few.late_mb < 10


@pytest.mark.slow
def test_memory_and_time_of_a_job_do_not_grow_with_the_number_of_jobs():
    few, many = (measure(num_jobs=number, num_episodes=1, num_envs=1) for number in (250, 1_000))
    # The plan, and what is known of each job, may cost a few kilobytes.
    assert many.late_mb - few.late_mb < 15
    assert many.cpu_s - few.cpu_s < 3.5 * few.cpu_s
