import os

from isaaclab_arena.sim.threads import available_cores, default_num_threads


def test_ranks_of_a_machine_share_its_cores():
    assert default_num_threads() == available_cores()
    assert default_num_threads(2) == max(1, available_cores() // 2)


def test_more_ranks_than_cores_still_get_a_thread_each():
    assert default_num_threads(1000) == 1


def test_only_cores_that_the_process_may_use_are_counted():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
