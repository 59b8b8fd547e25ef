"""Benchmarks of training."""

import pytest

from benchmarks.training import ranks
from benchmarks.training.evaluation import train
from benchmarks.training.exchange import Options, counted, exchanged, figures
from isaaclab_arena.training import TASKS


@pytest.mark.slow
def test_evaluation_takes_a_share_of_a_training_run():
    words = ("agent.max_iterations=2", "evaluation.num_episodes=4", "evaluation.num_envs=2", "num_envs=4")
    one = train("cartpole", *words)
    assert 0.0 < one.share < 100.0
    assert len(one.evaluations_s) == 1
    assert one.first_s < one.wall_s


def test_collectives_of_an_iteration_are_told_apart_by_what_is_in_them():
    facts = {"num_learning_epochs": 2, "num_mini_batches": 3, "gradient_bytes": 400}
    calls = [["all_reduce", 400, 12], ["all_reduce", 4, 24], ["broadcast", 4, 12]]
    one = exchanged(facts, {"calls": calls}, 2)
    assert (one.mini_batches, one.gradient_calls, one.calls) == (6, 6, 24)
    assert one.sent_bytes == 6 * 400 + 18 * 4
    assert one.least_bytes == 2400
    assert figures(one)[3:] == ("24", "4.0", "2,472", "412", "1.030")


@pytest.mark.usefixtures("quick_python")
def test_two_ranks_exchange_one_gradient_for_each_mini_batch():
    one = counted(Options(num_envs=4), ("agent.num_steps_per_env=8",))
    assert one.gradient_calls == one.mini_batches == 20
    assert 1.0 < one.sent_bytes / one.least_bytes < 1.01


def test_every_task_that_ranks_are_measured_with_ships():
    assert {measured.task for measured in ranks.TASKS} <= set(TASKS.names())
