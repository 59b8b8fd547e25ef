import dataclasses

import numpy as np
import pytest

from isaaclab_arena.analysis.comparison import (
    NotComparableError,
    Question,
    choose_best,
    compare_with_job,
    not_chosen_by,
)
from isaaclab_arena.analysis.comparison_files import leaderboard, sentences
from isaaclab_arena.errors import ConfigError
from tests.analysis.recorded_runs import arm_of, run_of


def arms_of(tmp_path, **jobs: str):
    return {name: [arm] for name, arm in run_of(tmp_path, jobs).arms.items()}


def test_the_best_is_chosen_by_even_episodes_and_scored_by_odd_ones(tmp_path):
    choice = choose_best(arms_of(tmp_path / "run", a="sfsfsfsf", b="fsfsfsfs", c="ssssffff"))
    assert choice is not None
    assert (choice.name, choice.chosen_among) == ("a", 3)
    assert (choice.rate_when_chosen, choice.episodes_when_chosen) == (1.0, 4)
    assert (choice.rate, choice.successes, choice.episodes) == (0.0, 0, 4)
    assert "'a' was chosen: the best of 3 over the 4 episodes of even index, 100.0 %" in choice.sentence
    assert "over the 4 of odd index, which nothing was chosen by: 0.0 % [0.0, 49.0]" in choice.sentence


def test_of_equal_policies_the_first_is_chosen(tmp_path):
    choice = choose_best(arms_of(tmp_path / "run", b="ssff", a="ssff"))
    assert choice is not None
    assert choice.name == "b"


def test_errors_are_no_failures_of_the_best(tmp_path):
    choice = choose_best(arms_of(tmp_path / "run", a="ssefss", b="ssfsss"))
    assert choice is not None
    assert (choice.name, choice.episodes_when_chosen) == ("a", 2)


def test_every_task_weighs_the_same(tmp_path):
    easy, hard = arm_of(tmp_path / "easy", "ss" * 20), arm_of(tmp_path / "hard", "ff")
    middling = arm_of(tmp_path / "middling", "ssssff")
    choice = choose_best({"a": [easy, hard], "b": [middling, middling]})
    assert choice is not None
    assert choice.name == "b"


def test_one_episode_is_too_few_to_choose_and_score(tmp_path):
    assert choose_best(arms_of(tmp_path / "1", a="s", b="f")) is None
    run = run_of(tmp_path / "2", {"a": "s", "b": "f"})
    with pytest.raises(NotComparableError, match="every job needs two that say whether they succeeded"):
        compare_with_job(run, "best", Question())
    assert leaderboard([run], Question()).winner is None


def test_the_first_figure_is_too_good_and_the_second_is_not(tmp_path):
    arm = arm_of(tmp_path / "run", "s" * 40)
    generator, first, second = np.random.default_rng(0), [], []
    for _ in range(400):
        successes = generator.integers(0, 2, (10, 40)).astype(float)
        entries = {
            str(number): [dataclasses.replace(arm, episodes=dataclasses.replace(arm.episodes, success=each))]
            for number, each in enumerate(successes)
        }
        choice = choose_best(entries)
        assert choice is not None
        first.append(choice.rate_when_chosen)
        second.append(choice.rate)
    # Ten policies that all succeed in half of the cases; a mean of 400 is known to about 0.006.
    assert np.mean(first) > 0.62
    assert np.mean(second) == pytest.approx(0.5, abs=0.02)


def test_the_best_is_compared_over_the_other_half_alone(tmp_path):
    report = compare_with_job(run_of(tmp_path / "run", {"a": "sfsfsfsf", "b": "fsfsfsfs"}), "best", Question())
    assert report.choice is not None
    assert (report.tasks[0].first.entry.name, report.tasks[0].second.entry.name) == ("b", "a")
    assert (report.tasks[0].counts.total, report.tasks[0].difference) == (4, 1.0)
    assert next(sentences(report)).startswith("'a' was chosen: the best of 2")


def test_a_job_may_be_called_best(tmp_path):
    report = compare_with_job(run_of(tmp_path / "run", {"best": "ff", "b": "ss"}), "best", Question())
    assert report.choice is None
    assert report.tasks[0].counts.total == 2


def test_the_best_is_one_of_jobs_that_are_finished_and_measure_success(tmp_path):
    with pytest.raises(NotComparableError, match="has 1 of 3 episodes to go"):
        compare_with_job(run_of(tmp_path / "1", {"a": "ss-", "b": "ssf"}), "best", Question())
    with pytest.raises(NotComparableError, match="does not measure success"):
        compare_with_job(run_of(tmp_path / "2", {"a": "uuu", "b": "ssf"}), "best", Question())
    with pytest.raises(ConfigError, match="--baseline: the best is chosen of jobs that are finished"):
        compare_with_job(run_of(tmp_path / "3", {"a": "ss", "b": "sf"}), "best", Question(), partial=True)


def test_what_nothing_was_chosen_by_is_planned_too(tmp_path):
    half = not_chosen_by(arm_of(tmp_path / "run", "sfsfs"))
    assert (half.episodes.index.tolist(), half.planned, half.num_missing) == ([1, 3], 2, 0)


def test_the_first_place_is_scored_again(tmp_path):
    found = leaderboard([run_of(tmp_path / "run", {"a": "sfsfsfsf", "b": "ssssssss"})], Question()).winner
    assert found is not None
    assert (found.name, found.rate_when_chosen, found.rate) == ("a", 1.0, 0.0)
