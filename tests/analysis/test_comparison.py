import json

import pytest

from isaaclab_arena.analysis.arms import match
from isaaclab_arena.analysis.comparison import Question, Verdict, compare_pairs, compare_with_job, verdict_of
from isaaclab_arena.results.statistics import Interval, PairChances, paired_power
from tests.analysis.recorded_runs import arm_of, run_of


def compared(tmp_path, first: str, second: str, **question):
    one, other = arm_of(tmp_path / f"a-{first}", first), arm_of(tmp_path / f"b-{first}", second)
    return compare_pairs(one, other, match(one, other), Question(**question))


def test_a_candidate_that_wins_pairs_is_better_and_one_that_loses_them_worse(tmp_path):
    found = compared(tmp_path, "ssssssss", "ffffffss")
    assert (found.verdict, found.difference, found.mid_p) == (Verdict.BETTER, 0.75, pytest.approx(0.015625))
    assert found.interval.low > 0
    assert compared(tmp_path, "ffffffss", "ssssssss").verdict is Verdict.WORSE


def test_few_pairs_leave_it_undecided_and_say_how_many_would_settle_it(tmp_path):
    found = compared(tmp_path, "sssfsfsf", "ssfffsss")
    assert found.verdict is Verdict.UNDECIDED
    found = compared(tmp_path, "ssssssff", "ssssffff")
    assert found.pairs_needed is not None
    chances = PairChances(only_first=0.25, only_second=0.0)
    assert paired_power(found.pairs_needed, chances) >= 0.8 > paired_power(found.pairs_needed - 8, chances)


def test_what_so_many_pairs_could_have_shown_shrinks_with_their_number(tmp_path):
    few, many = compared(tmp_path, "sf" * 10, "sf" * 10), compared(tmp_path, "sf" * 100, "sf" * 100)
    assert few.detectable is not None
    assert many.detectable is not None
    assert 0.0 < many.detectable < few.detectable < 1.0
    assert compared(tmp_path, "sff", "sff").detectable is None


def test_with_a_margin_the_interval_decides():
    asked = Question(margin=0.05)
    assert verdict_of(0.0, Interval(low=-0.04, high=0.04), 1.0, asked) is Verdict.NO_WORSE
    assert verdict_of(-0.2, Interval(low=-0.3, high=-0.1), 0.0, asked) is Verdict.WORSE
    assert verdict_of(-0.05, Interval(low=-0.1, high=-0.01), 0.01, asked) is Verdict.UNDECIDED
    assert verdict_of(0.0, Interval(low=-0.1, high=0.1), 1.0, asked) is Verdict.UNDECIDED


def test_errors_are_left_out_and_bounded(tmp_path):
    found = compared(tmp_path, "ssef", "sfse")
    assert (found.num_errors, found.counts.total, found.difference) == (2, 2, 0.5)
    assert (found.bounds.low, found.bounds.high) == (-0.25, 0.25)


def test_lengths_are_compared_over_pairs_and_times_to_success_where_both_succeed(tmp_path):
    first, second = arm_of(tmp_path / "a", "ssfs"), arm_of(tmp_path / "b", "sffs")
    first.episodes.length[:] -= 3
    found = compare_pairs(first, second, match(first, second), Question())
    assert found.length is not None
    assert found.time_to_success is not None
    assert (found.length.num_pairs, found.length.mean, found.time_to_success.num_pairs) == (4, -3.0, 2)
    assert found.progress is None


def test_progress_is_compared_where_the_task_measures_it(tmp_path):
    first, second = arm_of(tmp_path / "a", "sss"), arm_of(tmp_path / "b", "fff")
    first.episodes.metrics[:] = [json.dumps({"progress": value}) for value in (1.0, 1.0, 1.0)]
    second.episodes.metrics[:] = [json.dumps({"progress": value}) for value in (0.5, 0.25, 0.75)]
    found = compare_pairs(first, second, match(first, second), Question())
    assert found.progress is not None
    assert (found.progress.first_mean, found.progress.second_mean, found.progress.mean) == (1.0, 0.5, 0.5)


def test_a_family_is_judged_by_adjusted_values(tmp_path):
    others = {f"like it {number}": "ffffffss" for number in range(4)}
    run = run_of(tmp_path / "run", {"old": "ffffffss", "new": "ssssssss", **others})
    new, *_ = compare_with_job(run, "old", Question()).tasks
    assert (new.mid_p, new.adjusted_p) == (pytest.approx(0.015625), pytest.approx(5 * 0.015625))
    assert new.verdict is Verdict.UNDECIDED


def test_jobs_that_never_say_who_succeeded_cannot_be_compared(tmp_path):
    with pytest.raises(ValueError, match="no pair tells a success from a failure"):
        compared(tmp_path, "ee", "ss")


@pytest.mark.parametrize(("name", "value"), [("alpha", 0.0), ("alpha", 1.0), ("margin", -0.1), ("margin", 1.0)])
def test_questions_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be between 0 and 1, got"):
        Question(**{name: value})
