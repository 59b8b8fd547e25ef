"""Where policies written for Isaac Lab Arena are placed."""

import pytest

from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.evaluation.validation import resolve_jobs
from tests.machine import show_gpus
from tests.outsiders.test_policies_written_for_arena import block


@pytest.mark.parametrize(
    ("gpus", "local_rank", "options", "placed"),
    [
        (0, None, {}, "cpu"),
        (0, "1", {}, "cpu"),
        (4, "2", {}, "cuda:2"),
        (4, None, {}, "cuda:0"),
        (4, "2", {"device": "cuda:3"}, "cuda:3"),
    ],
)
@pytest.mark.parametrize("policy", ["NudgePolicy", "ParserPolicy"])
def test_a_gpu_that_only_a_default_names_is_that_of_the_rank(monkeypatch, policy, gpus, local_rank, options, placed):
    show_gpus(monkeypatch, gpus)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    job = read_jobs({"jobs": [block(policy, {"push": 1, **options})]}, source="jobs.json").jobs[0]
    [found] = resolve_jobs([job])
    assert {**found.policy_options, **found.policy_placement}["device"] == placed
    assert found.policy_options.get("device") == options.get("device")


def test_a_gpu_that_a_default_names_by_number_is_left_alone_without_a_launcher(monkeypatch):
    show_gpus(monkeypatch, 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    jobs = read_jobs({"jobs": [block("SecondGpuPolicy")]}, source="jobs.json").jobs
    [found] = resolve_jobs(jobs, device="cpu")
    assert found.policy_placement == {"device": "cuda:1"}
