from isaaclab_arena.training.training_loop import EvaluatedJob
from isaaclab_arena.training.training_run import line_of_iteration, told_of_evaluation


def measures(num_episodes: int, **more: float) -> dict[str, float]:
    known = {"Loss/learning_rate": 1e-3, "Policy/mean_std": 0.6, "Perf/total_fps": 2000.0}
    known |= {"Train/num_episodes": num_episodes}
    if num_episodes:
        known |= {"Train/mean_reward": 12.5, "Train/mean_episode_length": 80.0}
    return {**known, **{f"Train/{name}": value for name, value in more.items()}}


def test_an_iteration_is_told_in_a_line():
    told = line_of_iteration(measures(4, success_rate=0.75), iterations=3, total=10, left_s=3723.4)
    assert told == (
        "iteration 3/10: reward 12.50, length 80, success 75%, std 0.60, lr 1.0e-03, 2,000 steps/s, 1:02:03 left"
    )


def test_what_is_not_known_is_not_told():
    assert line_of_iteration(measures(0), iterations=1, total=10, left_s=61.0) == (
        "iteration 1/10: std 0.60, lr 1.0e-03, 2,000 steps/s, 1:01 left"
    )
    assert "success" not in line_of_iteration(measures(4), iterations=1, total=10, left_s=0.0)


def test_an_evaluation_says_where_success_is_not_measured():
    jobs = {
        "push": EvaluatedJob(episodes=20, success_rate=0.95, mean_return=3.0, mean_length=10.0),
        "swing": EvaluatedJob(episodes=20, success_rate=None, mean_return=-5.0, mean_length=10.0),
        "none": EvaluatedJob(episodes=0, success_rate=None, mean_return=None, mean_length=None),
    }
    measured, told = told_of_evaluation(jobs, iterations=100, evaluation_s=2.0)
    assert told == (
        "iteration 100, evaluated: push: success 95.0% of 20 episodes; swing: success not measured; none: success not "
        "measured"
    )
    assert measured == {
        "Perf/evaluation_time": 2.0,
        "Eval/push/success_rate": 0.95,
        "Eval/push/mean_return": 3.0,
        "Eval/swing/mean_return": -5.0,
    }
