import pytest

from tests.benchmarks.loading import load


@pytest.mark.slow
@pytest.mark.parametrize("cameras", [False, True])
def test_a_job_leaves_nothing_behind_in_the_process_that_ran_it(cameras):
    memory = load("memory")
    notes = memory.run_jobs(70, cameras=cameras)
    assert memory.growth_kb(notes[30:-1]) < 1000
    assert notes[-1].files == notes[0].files
    assert notes[-1].threads == notes[0].threads
