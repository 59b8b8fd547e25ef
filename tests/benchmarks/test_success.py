"""Benchmarks of success rates."""

from typing import Any

import numpy as np
import pytest

from benchmarks.success.engines import Engine, paired, pairs_table
from benchmarks.success.latency import MODELS, lines
from benchmarks.success.models import PAGES
from benchmarks.success.models import jobs_document as models_jobs_document
from isaaclab_arena.analysis.arms import Arm, EpisodeColumns

# The table of engines counts what changes from one version of MuJoCo to another, episode by episode.


def engine(version: str, success: list[float], lengths: list[int]) -> Engine:
    number = len(success)
    nothing: Any = None
    episodes = EpisodeColumns(
        index=np.arange(number),
        drawn=np.array([str(index) for index in range(number)], object),
        began=np.array([str(index) for index in range(number)], object),
        success=np.array(success),
        length=np.array(lengths),
        episode_return=np.zeros(number),
        conditions=np.array([f'{{"gym.seed": {index}}}' for index in range(number)], object),
        metrics=np.array(["{}"] * number, object),
        events=np.full(number, None),
    )
    arm = Arm(directory=nothing, entry=nothing, contents=nothing, provenance=nothing, episodes=episodes, planned=number)
    return Engine(version=version, packages="numpy 2", arms={"lift": arm})


FOUND = {
    "robosuite": [
        engine("3.3.2", [1, 1, 1, 0, 1], [10, 10, 10, 20, 10]),
        engine("3.9.0", [1, 0, 0, 1, 1], [10, 20, 20, 15, 11]),
    ]
}


def test_pairs_say_which_version_alone_solved_them_and_whose_length_is_another():
    counts, changed = paired(FOUND["robosuite"][0], FOUND["robosuite"][1])
    assert (counts.both, counts.only_first, counts.only_second, counts.neither) == (2, 2, 1, 0)
    assert changed == 0.8
    last = str(pairs_table(FOUND)).splitlines()[-1]
    assert last.startswith("| robosuite | 3.3.2, 3.9.0 | -20.0 points [")
    assert last.endswith("| 5 | 3 | 2 | 1 | 80 % |")


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


@pytest.mark.parametrize("page", PAGES)
def test_every_job_that_is_to_reach_something_is_run(page):
    names = {job["name"] for job in models_jobs_document(PAGES[page], 3)["jobs"]}
    assert set(PAGES[page].wanted) <= names
