import pytest

from benchmarks.gpu.episodes import GR00T, JOBS, Job, Options, evaluated, evaluation, median
from benchmarks.gpu.results import Evaluation

pytestmark = pytest.mark.usefixtures("quick_python")
TOOK = {"wall_s": 12.0, "build_s": 2.0, "simulate_s": 6.0, "policy_s": 2.0, "render_s": 0.0, "record_s": 1.0}


def test_what_a_job_took_is_read_from_the_runners_table():
    found = evaluation([{"name": "job", "episodes": 40, "env_steps": 9, **TOOK}])
    assert found.per_s == pytest.approx(4.0)
    assert found.per_s_with_build == pytest.approx(40 / 12)
    assert found.share("simulate") == pytest.approx(0.6)


def test_of_several_evaluations_the_one_in_the_middle_counts():
    found = [Evaluation(episodes=number, **TOOK) for number in (30, 10, 20)]
    assert median(found).episodes == 20


def test_a_job_is_evaluated_by_the_runner_itself():
    job = Job(title="cartpole", environment="cartpole", policy_type="zero_action", num_envs=(1,))
    found = evaluated(job, 3, Options(episodes_per_slot=1), None, on_cpu=True)
    assert found.episodes == 3
    assert 0 < found.simulate_s < found.wall_s


def test_a_job_that_fails_says_why():
    job = Job(title="none", environment="no_such_place", policy_type="zero_action", num_envs=(1,))
    with pytest.raises(RuntimeError, match="no_such_place"):
        evaluated(job, 1, Options(), None, on_cpu=True)


def test_the_jobs_are_zero_action_networks_and_gr00t_with_cameras():
    policies = {job.policy_type for job in JOBS.values()}
    assert policies == {"zero_action", "rsl_rl", "gr00t_closedloop"}
    assert JOBS[GR00T].arguments["enable_cameras"]
