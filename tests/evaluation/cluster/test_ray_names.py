"""What Ray's dashboard and the screen call the ranks of a run."""

from dataclasses import replace

import pytest

from isaaclab_arena.evaluation.cluster.messages import Life
from isaaclab_arena.storage.run.attempts import AttemptEntry
from tests.evaluation.cluster.test_claim_keeper import ATTEMPT
from tests.evaluation.cluster.test_crew import ORDERS

ray_engine = pytest.importorskip(
    "isaaclab_arena.evaluation.cluster.ray_engine", reason="needs ray", exc_type=ImportError
)


@pytest.mark.parametrize(
    ("jobs", "life", "name"),
    [
        (["coins"], Life(rank=3), "arena/run/coins/rank 3"),
        (["coins", "dice", "cards"], Life(rank=0), "arena/run/coins and 2 more/rank 0"),
        (["coins"], Life(rank=3, number=1), "arena/run/coins/rank 3, life 2"),
    ],
)
def test_a_rank_is_called_by_its_run_its_jobs_and_its_number(jobs, life, name):
    attempt = replace(ATTEMPT, jobs=tuple(AttemptEntry(job=job) for job in jobs))
    assert ray_engine.name_of_rank(replace(ORDERS, attempt=attempt), life) == name


def test_lines_of_a_rank_on_the_screen_begin_with_the_rank():
    assert repr(ray_engine.RankActor(keeper=None, rank=3)) == "rank 3"
