"""What the ranks of a run are called, and how often and how many processes Ray begins."""

from dataclasses import replace

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.cluster.claim_server import Life
from isaaclab_arena.evaluation.options import ClusterOptions
from isaaclab_arena.storage.ledger import AttemptEntry
from tests.evaluation.cluster.test_claim_server import ATTEMPT, ORDERS

ray_engine = pytest.importorskip(
    "isaaclab_arena.evaluation.cluster.ray_engine", reason="needs ray", exc_type=ImportError
)


@pytest.mark.parametrize(
    ("jobs", "life", "name"),
    [
        (["coins"], Life(rank=3), "arena/run/coins/rank 3"),
        (["coins", "dice", "cards"], Life(rank=0), "arena/run/coins, dice, cards/rank 0"),
        (["c" * 50] * 4, Life(rank=0), f"arena/run/{'c' * 50}, {'c' * 50} and 2 more/rank 0"),
        (["coins"], Life(rank=3, number=1), "arena/run/coins/rank 3, life 2"),
    ],
)
def test_a_rank_is_called_by_its_run_its_jobs_and_its_number(jobs, life, name):
    attempt = replace(ATTEMPT, jobs=tuple(AttemptEntry(job=job) for job in jobs))
    assert ray_engine.name_of_rank(replace(ORDERS, attempt=attempt), life) == name


def test_lines_of_a_rank_on_the_screen_begin_with_the_rank():
    assert repr(ray_engine.RankActor(claim_server=None, rank=3)) == "rank 3"


@pytest.mark.parametrize(
    ("num_ranks", "cpus_per_rank", "cores"), [(1, 0.5, 1), (3, 0.5, 2), (2, 1.0, 2), (999, 4.0, 999)]
)
def test_a_cluster_that_starts_with_the_run_has_the_cores_that_its_ranks_can_use(
    monkeypatch, num_ranks, cpus_per_rank, cores
):
    asked: list[int] = []

    def begin(*, num_cpus: int, **_: object) -> None:
        asked.append(num_cpus)
        raise RuntimeError

    monkeypatch.setattr(ray_engine.ray, "init", begin)
    options = ClusterOptions(cluster="ray", ray_address="local", num_ranks=num_ranks, cpus_per_rank=cpus_per_rank)
    with pytest.raises(ConfigError, match="no Ray cluster"), ray_engine.connected(options):
        pass
    assert asked == [min(cores, int(ray_engine.get_num_cpus()))]


@pytest.mark.parametrize("options", [ray_engine.ONCE, ray_engine.CLAIM_SERVER_OPTIONS])
def test_ray_begins_no_actor_anew_and_calls_none_twice(options):
    assert (options["max_restarts"], options["max_task_retries"]) == (0, 0)
