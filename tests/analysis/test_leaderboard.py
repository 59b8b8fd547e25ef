import pytest

from isaaclab_arena.analysis.comparison import NotComparableError, Question
from isaaclab_arena.analysis.comparison_files import leaderboard
from isaaclab_arena.results.statistics import mean_rate_interval
from tests.analysis.recorded_runs import run_of


def test_runs_are_ordered_by_the_mean_of_the_tasks_that_all_of_them_have(tmp_path):
    # Three quarters of all its episodes succeed, but only one of its two tasks does.
    uneven = run_of(tmp_path / "uneven", {"easy": "s" * 30, "hard": "f" * 10})
    even = run_of(tmp_path / "even", {"easy": "s" * 21 + "f" * 9, "hard": "s" * 7 + "fff", "other": "f"})
    found = leaderboard([uneven, even], Question())
    assert found.tasks == ("easy", "hard")
    assert [(place.name, place.rank, place.mean_rate) for place in found.places] == [
        (str(tmp_path / "even"), 1, pytest.approx(0.7)),
        (str(tmp_path / "uneven"), 2, pytest.approx(0.5)),
    ]


def test_jobs_of_one_run_are_policies_and_those_that_cannot_be_told_apart_are_named(tmp_path):
    run = run_of(tmp_path / "run", {"bad": "f" * 20, "good": "s" * 20, "as-good": "f" + "s" * 19})
    found = leaderboard([run], Question())
    assert [(place.name, place.rank, place.like) for place in found.places] == [
        ("good", 1, ("as-good",)),
        ("as-good", 2, ("good",)),
        ("bad", 3, ()),
    ]
    assert found.num_comparisons == 3


def test_equal_policies_share_a_rank(tmp_path):
    found = leaderboard([run_of(tmp_path / "run", {"a": "sf", "b": "fs", "c": "ff"})], Question())
    assert [place.rank for place in found.places] == [1, 1, 3]


@pytest.mark.parametrize(
    ("jobs", "reason"),
    [
        ({"a": "ss", "b": "s-"}, "b has 1 episodes to go"),
        ({"a": "ss", "b": "uu"}, "b does not measure success"),
    ],
)
def test_policies_that_cannot_be_compared_are_refused(jobs, reason, tmp_path):
    with pytest.raises(NotComparableError, match=reason):
        leaderboard([run_of(tmp_path / "run", jobs)], Question())


def test_runs_without_a_common_job_and_episodes_without_a_pair_are_refused(tmp_path):
    one, other = run_of(tmp_path / "1", {"a": "ss"}), run_of(tmp_path / "2", {"b": "ss"})
    with pytest.raises(NotComparableError, match="no job that all of them have"):
        leaderboard([one, other], Question())
    moved = run_of(tmp_path / "3", {"a": "ss"}, moved={0: 0.1, 1: 0.1})
    with pytest.raises(NotComparableError, match="no two episodes that started from the same conditions"):
        leaderboard([one, moved], Question())


def test_suites_of_a_run_are_policies_ordered_by_the_mean_of_their_tasks(tmp_path):
    suites = {"bad:0": "f" * 9, "bad:1": "sf" * 5, "good:0": "s" * 9, "good:1": "s" * 10, "good:2": "f"}
    found = leaderboard([run_of(tmp_path / "run", suites)], Question())
    assert found.tasks == ("0", "1")
    assert [(place.name, place.mean_rate, place.episodes) for place in found.places] == [
        ("good", 1.0, 19),
        ("bad", 0.25, 19),
    ]
    assert found.places[1].mean_interval == mean_rate_interval([(0, 9), (5, 10)])
    with pytest.raises(NotComparableError, match="no task that all of them have"):
        leaderboard([run_of(tmp_path / "other", {"a:0": "s", "b:1": "s"})], Question())


def test_runs_of_one_suite_each_are_ordered_whatever_their_jobs_are_called(tmp_path):
    one, other = (run_of(tmp_path / name, {f"{name}:0": outcomes}) for name, outcomes in {"a": "sf", "b": "ss"}.items())
    found = leaderboard([one, other], Question())
    assert [place.name for place in found.places] == [str(tmp_path / "b"), str(tmp_path / "a")]
    assert found.tasks == ("0",)
