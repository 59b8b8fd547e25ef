import dataclasses

from isaaclab_arena.analysis.arms import UnequalConditions, differences_of_tasks, match
from isaaclab_arena.results.stopping import PairCounts
from tests.analysis.recorded_runs import arm_of


def test_pairs_are_counted_by_how_both_episodes_came_out(tmp_path):
    matched = match(arm_of(tmp_path / "a", "ssfft"), arm_of(tmp_path / "b", "sfsft"))
    assert matched.counts == PairCounts(both=1, only_first=1, only_second=1, neither=2)


def test_episodes_of_the_same_index_that_started_elsewhere_are_no_pair(tmp_path):
    first = arm_of(tmp_path / "a", "sss")
    second = arm_of(tmp_path / "b", "fff", moved={1: 0.51})
    matched = match(first, second)
    assert matched.first.index.tolist() == [0, 2]
    assert matched.unequal == (UnequalConditions(episode_index=1, names=("cube.x",)),)


def test_without_conditions_the_seed_of_the_episode_stands_for_them(tmp_path):
    first, second = (arm_of(tmp_path / name, "sss", told=False) for name in ("a", "b"))
    assert len(match(first, second)) == 3
    matched = match(first, arm_of(tmp_path / "c", "sss", told=False, first_seed=1))
    assert len(matched) == 0
    assert matched.unequal[0].names == ("episode_seed",)


def test_episodes_with_an_error_are_pairs_that_say_nothing(tmp_path):
    matched = match(arm_of(tmp_path / "a", "sefs"), arm_of(tmp_path / "b", "ssef"))
    assert len(matched) == 4
    assert matched.counts == PairCounts(both=1, only_first=1, only_second=0, neither=0)


def test_episodes_that_one_job_alone_has_are_counted(tmp_path):
    matched = match(arm_of(tmp_path / "a", "ss-s"), arm_of(tmp_path / "b", "sss-sss"))
    assert (len(matched), matched.only_first, matched.only_second) == (2, 1, 4)


def test_of_runs_that_go_on_only_the_episodes_before_the_first_gap_count(tmp_path):
    """Later ones are there because they ended soon."""
    first, second = arm_of(tmp_path / "a", "sss-ss"), arm_of(tmp_path / "b", "ssss-s")
    assert match(first, second, prefix_only=True).first.index.tolist() == [0, 1, 2]


def test_jobs_of_unequal_tasks_say_what_differs(tmp_path):
    first = arm_of(tmp_path / "a", "s")
    entry = first.entry
    config = dataclasses.replace(entry.config, environment_args={"tolerance_m": 0.02, "backend": "warp"})
    second = dataclasses.replace(first, entry=dataclasses.replace(entry, config=config, object="can"))
    assert differences_of_tasks(first, second) == ("object none and 'can'", "tolerance_m none and 0.02")
    assert differences_of_tasks(first, first) == ()
