import math

from isaaclab_arena.training.closed_loop import EvaluatedJob
from isaaclab_arena.training.learner import Iteration
from isaaclab_arena.training.training_run import (
    line_of_evaluation,
    line_of_iteration,
    measures_of_evaluation,
    measures_of_iteration,
)
from isaaclab_arena.training.vec_env import EpisodeStatistics


def iteration(num_episodes: int, success_rate: float) -> Iteration:
    known = math.nan if num_episodes == 0 else 1.0
    episodes = EpisodeStatistics(
        num_episodes=num_episodes,
        mean_return=12.5 * known,
        mean_length=80 * known,
        success_rate=success_rate,
        lost_rate=0.0 * known,
        metrics={"distance": 0.25 * known},
    )
    return Iteration(
        losses={"value": 0.5},
        episodes=episodes,
        env_steps=3000,
        collect_s=1.0,
        learn_s=0.5,
        learning_rate=1e-3,
        action_std=0.6,
    )


def test_an_iteration_is_told_in_a_line():
    told = line_of_iteration(iteration(4, 0.75), iterations=3, total=10, left_s=3723.4)
    assert told == (
        "iteration 3/10: reward 12.50, length 80, success 75%, std 0.60, lr 1.0e-03, 2,000 steps/s, 1:02:03 left"
    )


def test_what_is_not_known_is_not_told():
    assert line_of_iteration(iteration(0, math.nan), iterations=1, total=10, left_s=61.0) == (
        "iteration 1/10: std 0.60, lr 1.0e-03, 2,000 steps/s, 1:01 left"
    )
    assert "success" not in line_of_iteration(iteration(4, math.nan), iterations=1, total=10, left_s=0.0)
    measures = measures_of_iteration(iteration(0, math.nan), env_steps=9000)
    assert {name for name in measures if name.startswith(("Train", "Metrics"))} == {"Train/num_episodes"}
    assert (measures["Perf/total_fps"], measures["Perf/total_steps"]) == (2000, 9000)


def test_an_evaluation_says_where_success_is_not_measured():
    jobs = {
        "push": EvaluatedJob(episodes=20, success_rate=0.95, mean_return=3.0, mean_length=10.0),
        "swing": EvaluatedJob(episodes=20, success_rate=None, mean_return=-5.0, mean_length=10.0),
        "none": EvaluatedJob(episodes=0, success_rate=None, mean_return=None, mean_length=None),
    }
    assert line_of_evaluation(jobs, iterations=100) == (
        "iteration 100, evaluated: push: success 95.0% of 20 episodes; swing: success not measured; none: success not "
        "measured"
    )
    assert measures_of_evaluation(jobs, evaluation_s=2.0) == {
        "Perf/evaluation_time": 2.0,
        "Eval/push/success_rate": 0.95,
        "Eval/push/mean_return": 3.0,
        "Eval/swing/mean_return": -5.0,
    }
