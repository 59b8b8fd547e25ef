import pytest

from benchmarks.success.latency import MODELS, Options, jobs_document
from isaaclab_arena.config.loading import read_jobs


@pytest.mark.parametrize("models", ["gr00t", "trained"])
def test_every_model_is_asked_with_every_latency_in_every_way_that_it_can_bridge(models):
    jobs = read_jobs(jobs_document(Options(models=models, steps=(0, 2), episodes=3)), source="jobs.json").jobs
    said = [(job.name.rsplit("-", 2)[0], job.latency) for job in jobs]
    bridged = {(name, str(latency.meanwhile), latency.steps) for name, latency in said if latency}
    names, meanwhile = MODELS[models].names, MODELS[models].meanwhile
    assert bridged == {(name, way, (steps, steps)) for name in names for way in meanwhile for steps in (0, 2)}
    assert {job.num_episodes for job in jobs} == {3}
