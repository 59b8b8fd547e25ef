from itertools import pairwise

from isaaclab_arena.evaluation.latency import QueryTimes
from isaaclab_arena.storage.reports import MAX_QUERY_TIMES


def test_a_sample_is_bounded_and_has_queries_of_all_of_a_job():
    times = QueryTimes()
    for number in range(10 * MAX_QUERY_TIMES):
        times.add(float(number))
    kept = times.kept_s
    assert MAX_QUERY_TIMES / 2 <= len(kept) <= MAX_QUERY_TIMES
    assert len({later - earlier for earlier, later in pairwise(kept)}) == 1
    assert (kept[0], kept[-1]) == (0.0, 5104.0)
