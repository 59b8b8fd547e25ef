import pytest

from benchmarks.success.models import PAGES, SWAPPED, jobs_document


@pytest.mark.parametrize("page", PAGES)
def test_every_job_that_is_to_reach_something_is_run(page):
    names = {job["name"] for job in jobs_document(PAGES[page], 3)["jobs"]}
    assert set(PAGES[page].wanted) <= names


def test_the_other_colour_is_told_in_the_job_that_is_otherwise_the_same():
    jobs = {job.pop("name"): job for job in jobs_document(PAGES["gr00t_success"], 3)["jobs"]}
    policy = jobs[SWAPPED].pop("policy_type")
    assert policy.endswith(".SwappedColours")
    assert jobs[SWAPPED] == jobs["colour"]
