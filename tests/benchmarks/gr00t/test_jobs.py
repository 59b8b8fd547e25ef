import pytest

from benchmarks.gr00t.jobs import ZERO, JobSize, run_job


@pytest.mark.usefixtures("quick_python")
def test_a_job_that_fails_stops_the_benchmark_and_is_told(tmp_path):
    size = JobSize(environment="no_such_task", num_envs=1, episodes_per_slot=1)
    with pytest.raises(RuntimeError, match="no_such_task"):
        run_job(tmp_path / "failing", "", size, ZERO, "cpu")
