import pytest

from benchmarks.gpu.episodes import Job, Options, evaluated

pytestmark = pytest.mark.usefixtures("quick_python")


def test_a_job_is_evaluated_by_the_runner_itself():
    job = Job(title="cartpole", environment="cartpole", policy_type="zero_action", num_envs=(1,))
    found = evaluated(job, 3, Options(episodes_per_slot=1), None, on_cpu=True)
    assert found.episodes == 3
    assert 0 < found.simulate_s < found.wall_s


def test_a_job_that_fails_says_why():
    job = Job(title="none", environment="no_such_place", policy_type="zero_action", num_envs=(1,))
    with pytest.raises(RuntimeError, match="no_such_place"):
        evaluated(job, 1, Options(), None, on_cpu=True)
