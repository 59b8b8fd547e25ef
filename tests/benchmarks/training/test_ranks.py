from benchmarks.training import ranks
from isaaclab_arena.training import TASKS


def test_every_task_that_ranks_are_measured_with_ships():
    assert {measured.task for measured in ranks.TASKS} <= set(TASKS.names())
