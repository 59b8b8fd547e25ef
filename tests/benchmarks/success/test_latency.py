import pytest

from benchmarks.harness.measure import command_line
from benchmarks.success.latency import MODELS, Options, jobs_document, lines
from isaaclab_arena.config.loading import read_jobs


@pytest.mark.parametrize("models", ["gr00t", "trained"])
def test_every_model_is_asked_with_every_latency_in_every_way_that_it_can_bridge(models):
    jobs = read_jobs(jobs_document(Options(models=models, steps=(2, 0), episodes=3)), source="jobs.json").jobs
    said = [(job.name.rsplit("-", 2)[0], job.latency) for job in jobs]
    asked = [(name, str(latency.meanwhile), latency.steps) for name, latency in said if latency]
    names, meanwhile = MODELS[models].names, MODELS[models].meanwhile
    # Without latency all ways are one, and the order is the one that was asked for.
    late = [(name, way, (2, 2)) for name in names for way in meanwhile]
    assert asked == [*late, *((name, "hold", (0, 0)) for name in names)]
    assert {job.num_episodes for job in jobs} == {3}


def result(name: str, status: str = "completed") -> dict[str, object]:
    counts = {"successes": 150, "episodes": 200, "stale_action_share": 0.25, "queries_per_s": 2.5}
    return {"name": name, "status": status, "latency": f"{name[-1]} control steps", **counts}


def test_the_page_has_the_jobs_that_have_finished_by_model_way_and_latency():
    jobs = [result("push-cube-hold-2"), result("cartpole-hold-4", "interrupted"), result("cartpole-hold-0")]
    told = lines(jobs, MODELS["trained"])
    assert [line[:3] for line in told] == [
        ("cartpole", "any", "0 control steps"),
        ("push-cube", "hold", "2 control steps"),
    ]
    assert told[0][3:] == ("150/200", "75.0 % [68.6, 80.5]", "25 %", "2.50")


def test_where_a_run_is_kept_is_no_part_of_the_command_on_the_page(tmp_path):
    options = Options(steps=(0, 2), run=tmp_path, finished_only=True, output=tmp_path / "page.md")
    assert command_line(options) == "python -m benchmarks.success.latency --steps 0 2"
