"""Two runs compared: which jobs belong together, what is said of them, and the files that say it."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap
from statsmodels.stats.multitest import multipletests

from isaaclab_arena.analysis.arms import UnequalConditions, differences_of_tasks, match, named_arm, read_run
from isaaclab_arena.analysis.comparison import (
    ComparisonReport,
    NotComparableError,
    Question,
    Verdict,
    choose_best,
    compare_pairs,
    compare_runs,
    compare_with_job,
    not_chosen_by,
    verdict_of,
)
from isaaclab_arena.analysis.comparison_files import (
    events_table,
    leaderboard,
    measures_table,
    rates_table,
    sentences,
    write_comparison,
)
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.statistics import (
    Interval,
    PairChances,
    holm,
    mean_interval,
    mean_of_tasks_interval,
    paired_power,
    signed_rank_p,
)
from isaaclab_arena.results.stopping import PairCounts
from tests.analysis.recorded_runs import arm_of, failed_by, run_of, write_all_tables, write_run
from tests.results.evidence import there
from tests.tracking.runs import stopped_run


def test_a_run_is_read_from_its_tables_and_without_them_alike(tmp_path):
    directory = write_run(tmp_path / "run", {"lift": "sfes", "reach": "ff"}, events={1: failed_by("dropped")})
    without = read_run(directory).arms
    write_all_tables(directory)
    from_tables = read_run(directory).arms
    assert list(from_tables) == list(without) == ["lift", "reach"]
    for name, arm in from_tables.items():
        for column, values in vars(arm.episodes).items():
            np.testing.assert_array_equal(values, getattr(without[name].episodes, column))
        assert arm.planned == without[name].planned


def test_tables_that_are_damaged_or_old_are_not_read(tmp_path):
    directory = write_run(tmp_path / "run", {"lift": "sf"})
    write_all_tables(directory)
    whole = (directory / "episodes.parquet").read_bytes()
    (directory / "episodes.parquet").write_bytes(b"PAR1 no longer")
    assert read_run(directory).arms["lift"].episodes.success.tolist() == [1.0, 0.0]
    (directory / "episodes.parquet").write_bytes(whole)
    commits = directory / "lift" / "episode_results_rank0.jsonl"
    commits.write_text("".join(commits.read_text().splitlines(keepends=True)[:1]))
    assert read_run(directory).arms["lift"].episodes.success.tolist() == [1.0]


def test_of_a_job_that_was_stopped_only_the_episodes_of_its_decision_are_there(tmp_path):
    stopped_run(tmp_path)
    without = read_run(tmp_path).arms["new"]
    write_all_tables(tmp_path)
    from_tables = read_run(tmp_path).arms["new"]
    for arm in (from_tables, without):
        assert (arm.planned, arm.num_missing, arm.asked) == (7, 0, ("better",))
        assert arm.episodes.index.tolist() == list(range(7))


def test_what_is_missing_is_counted_and_a_job_that_does_not_measure_success_says_so(tmp_path):
    arms = run_of(tmp_path / "run", {"lift": "ss--f", "a": "uu", "b": "ee", "c": "ef"}).arms
    assert [arm.num_missing for arm in arms.values()] == [2, 0, 0, 0]
    assert [arm.measures_success for arm in arms.values()] == [True, False, False, True]
    with pytest.raises(ConfigError, match=r"--baseline: .*did you mean 'lift'"):
        named_arm(arms, "lifft", option="--baseline")
    with pytest.raises(ConfigError, match="not the output of a run"):
        read_run(tmp_path)


def test_the_films_of_an_episode_are_found(tmp_path):
    arm = arm_of(tmp_path / "run", "ss")
    videos = tmp_path / "run" / "lift" / "videos"
    videos.mkdir()
    for name in (
        "viewport-env0-episode-1.mp4",
        "robot-cam-env0-wrist_cam_rgb-episode-1.mp4",
        "viewport-env1-episode-0.mp4",
    ):
        (videos / name).touch()
    assert [path.name for path in arm.videos[1]] == [
        "robot-cam-env0-wrist_cam_rgb-episode-1.mp4",
        "viewport-env0-episode-1.mp4",
    ]


@pytest.mark.parametrize(
    ("first", "second", "counts", "alone"),
    [
        ("ssfft", "sfsft", (1, 1, 1, 2), (0, 0)),
        # Episodes with an error are pairs that say nothing.
        ("sefs", "ssef", (1, 1, 0, 0), (0, 0)),
        ("ss-s", "sss-sss", (2, 0, 0, 0), (1, 4)),
    ],
)
def test_pairs_are_counted_by_how_both_episodes_came_out(tmp_path, first, second, counts, alone):
    matched = match(arm_of(tmp_path / "a", first), arm_of(tmp_path / "b", second))
    names = ("both", "only_first", "only_second", "neither")
    assert matched.counts == PairCounts(**dict(zip(names, counts, strict=True)))
    assert len(matched) == sum(counts) + sum("e" in pair for pair in zip(first, second, strict=False))
    assert (matched.only_first, matched.only_second) == alone


def test_of_runs_that_go_on_only_the_episodes_before_the_first_gap_count(tmp_path):
    """Later ones are there because they ended soon."""
    first, second = arm_of(tmp_path / "a", "sss-ss"), arm_of(tmp_path / "b", "ssss-s")
    assert match(first, second, prefix_only=True).first.index.tolist() == [0, 1, 2]


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


def test_jobs_of_unequal_tasks_say_what_differs(tmp_path):
    first = arm_of(tmp_path / "a", "s")
    entry = first.entry
    config = dataclasses.replace(entry.config, environment_args={"tolerance_m": 0.02, "backend": "warp"})
    second = dataclasses.replace(first, entry=dataclasses.replace(entry, config=config, object="can"))
    assert differences_of_tasks(first, second) == ("object none and 'can'", "tolerance_m none and 0.02")
    assert differences_of_tasks(first, first) == ()


def arms_of(tmp_path, **jobs: str):
    return {name: [arm] for name, arm in run_of(tmp_path, jobs).arms.items()}


def test_the_best_is_chosen_by_even_episodes_and_scored_by_odd_ones(tmp_path):
    choice = there(choose_best(arms_of(tmp_path / "run", a="sfsfsfsf", b="fsfsfsfs", c="ssssffff")))
    assert (choice.name, choice.chosen_among) == ("a", 3)
    assert (choice.rate_when_chosen, choice.episodes_when_chosen) == (1.0, 4)
    assert (choice.rate, choice.successes, choice.episodes) == (0.0, 0, 4)
    assert "'a' was chosen: the best of 3 over the 4 episodes of even index, 100.0 %" in choice.sentence
    assert "over the 4 of odd index, which nothing was chosen by: 0.0 % [0.0, 49.0]" in choice.sentence


def test_of_equal_policies_the_first_is_chosen_errors_are_no_failures_and_every_task_weighs_the_same(tmp_path):
    easy, hard = arm_of(tmp_path / "easy", "ss" * 20), arm_of(tmp_path / "hard", "ff")
    middling = arm_of(tmp_path / "middling", "ssssff")
    for entries, name, episodes in (
        (arms_of(tmp_path / "1", b="ssff", a="ssff"), "b", 2),
        (arms_of(tmp_path / "2", a="ssefss", b="ssfsss"), "a", 2),
        ({"a": [easy, hard], "b": [middling, middling]}, "b", 6),
    ):
        choice = there(choose_best(entries))
        assert (choice.name, choice.episodes_when_chosen) == (name, episodes)


def test_one_episode_is_too_few_to_choose_and_score(tmp_path):
    assert choose_best(arms_of(tmp_path / "1", a="s", b="f")) is None
    run = run_of(tmp_path / "2", {"a": "s", "b": "f"})
    with pytest.raises(NotComparableError, match="every job needs two that say whether they succeeded"):
        compare_with_job(run, "best", Question())
    assert leaderboard([run], Question()).winner is None


def test_the_first_figure_is_too_good_and_the_second_is_not(tmp_path):
    arm = arm_of(tmp_path / "run", "s" * 40)
    generator, first, second = np.random.default_rng(0), [], []
    for _ in range(200):
        successes = generator.integers(0, 2, (10, 40)).astype(float)
        entries = {
            str(number): [dataclasses.replace(arm, episodes=dataclasses.replace(arm.episodes, success=each))]
            for number, each in enumerate(successes)
        }
        choice = there(choose_best(entries))
        first.append(choice.rate_when_chosen)
        second.append(choice.rate)
    # Ten policies that all succeed in half of the cases; a mean of 200 is known to about 0.008.
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
    with pytest.raises(
        NotComparableError, match=r"has 1 of 3 episodes to go: finish it with .* resume .*; the best is"
    ):
        compare_with_job(run_of(tmp_path / "1", {"a": "ss-", "b": "ssf"}), "best", Question())
    with pytest.raises(NotComparableError, match="does not measure success"):
        compare_with_job(run_of(tmp_path / "2", {"a": "uuu", "b": "ssf"}), "best", Question())
    with pytest.raises(ConfigError, match="--baseline: the best is chosen of jobs that are finished"):
        compare_with_job(run_of(tmp_path / "3", {"a": "ss", "b": "sf"}), "best", Question(), partial=True)


def test_the_first_place_is_scored_again_by_what_nothing_was_chosen_by(tmp_path):
    found = there(leaderboard([run_of(tmp_path / "run", {"a": "sfsfsfsf", "b": "ssssssss"})], Question()).winner)
    assert (found.name, found.rate_when_chosen, found.rate) == ("a", 1.0, 0.0)
    half = not_chosen_by(arm_of(tmp_path / "arm", "sfsfs"))
    assert (half.episodes.index.tolist(), half.planned, half.num_missing) == ([1, 3], 2, 0)


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


def test_lengths_are_compared_over_pairs_times_where_both_succeed_and_progress_where_it_is_measured(tmp_path):
    first, second = arm_of(tmp_path / "a", "ssfs"), arm_of(tmp_path / "b", "sffs")
    first.episodes.length[:] -= 3
    found = compare_pairs(first, second, match(first, second), Question())
    assert found.length is not None
    assert found.time_to_success is not None
    assert (found.length.num_pairs, found.length.mean, found.time_to_success.num_pairs) == (4, -3.0, 2)
    assert found.progress is None
    for arm, values in ((first, (1.0, 1.0, 1.0, 1.0)), (second, (0.5, 0.25, 0.75, 0.5))):
        arm.episodes.metrics[:] = [json.dumps({"progress": value}) for value in values]
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


def test_four_files_are_written_and_written_over(tmp_path):
    report = table_report_of(tmp_path, {"lift_50%": "s" * 8}, {"lift_50%": "f" * 6 + "ss"})
    write_comparison(tmp_path / "new", report)
    table, document, text, latex = sorted(write_comparison(tmp_path / "new", report))
    (row,) = pd.read_csv(table).to_dict(orient="records")
    assert (row["pairs"], row["only_first"], row["difference"], row["verdict"]) == (8, 6, 0.75, "better")
    said = json.loads(document.read_text())
    (task,) = said["tasks"]
    assert said["verdict"] == task["verdict"] == "better"
    assert task["counts"] == {"both": 2, "only_first": 6, "only_second": 0, "neither": 0}
    assert task["exact_p"] == 0.03125
    assert task["discordant_episodes"] == {"candidate": [0, 1, 2, 3, 4, 5], "baseline": []}
    assert task["measures"]["length"]["mean"] == 0.0
    assert "events" not in task
    assert text.read_text().startswith("**better**\n\n| task | pairs |")
    assert "| 8 | 100.0 | 25.0 |" in text.read_text()
    assert r"lift\_50\% & 8 & 100.0" in latex.read_text()
    assert latex.read_text().count(r"\\") == 2


def table_report_of(tmp_path, candidate: dict[str, str], baseline: dict[str, str], **question) -> ComparisonReport:
    return compare_runs(
        run_of(tmp_path / "candidate", candidate), run_of(tmp_path / "baseline", baseline), Question(**question)
    )


def test_a_line_holds_counts_rates_difference_and_verdict(tmp_path):
    table = rates_table(table_report_of(tmp_path, {"lift": "s" * 8}, {"lift": "f" * 6 + "ss"}))
    assert table.iloc[0].to_dict() == {
        "task": "lift",
        "pairs": "8",
        "candidate %": "100.0",
        "baseline %": "25.0",
        "both": "2",
        "only candidate": "6",
        "only baseline": "0",
        "neither": "0",
        "difference [95 %]": "+75.0 [+28.0, +92.9]",
        "mid-p": "0.0156",
        "Holm": "0.0156",
        "verdict": "better",
    }


def test_several_tasks_have_two_lines_for_all_of_them(tmp_path):
    table = rates_table(table_report_of(tmp_path, {"a": "ss", "b": "sf"}, {"a": "sf", "b": "sf"}))
    assert table["task"].tolist() == ["a", "b", "all pairs together", "mean of the tasks"]
    assert table.iloc[2, 1:4].tolist() == ["4 (2 distinct)", "75.0", "50.0"]


def test_the_level_of_the_interval_is_the_one_asked_for_and_measures_have_lines_of_their_own(tmp_path):
    report = table_report_of(tmp_path, {"lift": "sss"}, {"lift": "sff"}, alpha=0.01)
    assert "difference [99 %]" in rates_table(report)
    assert measures_table(report)["measure"].tolist() == ["length", "length where both succeed", "return"]
    assert events_table(report).empty


def test_sentences_tell_which_pairs_differ_and_where_their_films_are(tmp_path):
    report = table_report_of(tmp_path, {"lift": "sssssssf"}, {"lift": "sffffffs"})
    videos = tmp_path / "baseline" / "lift" / "videos"
    videos.mkdir()
    (videos / "viewport-env0-episode-2.mp4").touch()
    told = list(sentences(report))
    assert "lift: only the candidate succeeds in 1, 2, 3, 4, 5 and 1 more" in told
    assert "lift: only the baseline succeeds in 7" in told
    assert f"    episode 2: {videos / 'viewport-env0-episode-2.mp4'}" in told


def test_sentences_tell_what_so_many_pairs_could_show(tmp_path):
    (first,) = [
        line for line in sentences(table_report_of(tmp_path, {"a": "sf" * 20}, {"a": "sf" * 20})) if " pairs " in line
    ]
    assert first.startswith("a: 40 pairs find a difference of ")
    assert first.endswith("no pair differs")


def test_a_sentence_tells_a_return_that_differs_where_success_does_not_decide(tmp_path):
    runs = []
    for name, more in (("old", 0.0), ("new", 1.5)):
        runs.append(read_run(write_run(tmp_path / name, {"lift": "sf" * 6})))
        episodes = runs[-1].arms["lift"].episodes
        better = dataclasses.replace(episodes, episode_return=episodes.episode_return + more + 0.01 * episodes.index)
        arm = dataclasses.replace(runs[-1].arms["lift"], episodes=better if more else episodes)
        runs[-1] = dataclasses.replace(runs[-1], arms={"lift": arm})
    told = [line for line in sentences(compare_runs(runs[1], runs[0], Question())) if "success aside" in line]
    assert len(told) == 1
    assert told[0].startswith("lift: success aside, they differ: return 7.055 against 5.5, +1.555 [+1.53")
    assert told[0].endswith("] (95 %)")


def test_sentences_tell_errors_and_unequal_conditions(tmp_path):
    candidate = run_of(tmp_path / "candidate", {"lift": "sesss"}, moved={3: 0.1})
    baseline = run_of(tmp_path / "baseline", {"lift": "sssssss"})
    told = list(sentences(compare_runs(candidate, baseline, Question())))
    assert any(
        "1 pairs with an error are left out; however they had ended, the difference would be" in line for line in told
    )
    assert "lift: no pairs, because their conditions differ: episodes 3 (cube.x)" in told
    assert "lift: 2 episodes of the baseline have no counterpart" in told


def test_what_happened_is_a_table_of_its_own_and_what_tells_the_two_apart_is_said(tmp_path):
    dropped = dict.fromkeys(range(9), failed_by("dropped")) | {9: failed_by(None)}
    silent = dict.fromkeys(range(10), failed_by(None)) | {3: failed_by("almost")}
    first = run_of(tmp_path / "candidate", {"lift": "f" * 10}, events=dropped)
    second = run_of(tmp_path / "baseline", {"lift": "f" * 9 + "s"}, events=silent)
    report = compare_runs(first, second, Question())
    assert events_table(report).to_numpy().tolist() == [
        ["lift", "dropped", "10", "9", "0", "9", "0", "0.0020", "0.0039"],
        ["lift", "almost", "10", "0", "1", "0", "1", "0.5000", "0.5000"],
    ]
    assert "lift: events that tell candidate and baseline apart: dropped (9 against 0)" in sentences(report)


def test_holms_values_are_those_of_statsmodels_and_what_never_differs_is_found_out():
    p_values = [0.04, 0.001, 0.03, 0.2, 0.001, 0.9]
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])
    assert holm([]) == []
    assert mean_interval([3.0, 3.0, 3.0]) == Interval(low=3.0, high=3.0)
    assert mean_interval([3.0]) is None
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(0.03125)


def test_the_interval_of_a_mean_holds_it_and_is_the_same_each_time():
    values = np.random.default_rng(2).exponential(2.0, 60).tolist()
    interval = there(mean_interval(values))
    assert interval.low < np.mean(values) < interval.high
    assert interval == mean_interval(values)
    # An exponential's tail is on the right, and the interval reaches further to that side.
    assert interval.high - np.mean(values) > np.mean(values) - interval.low


@pytest.mark.parametrize("draw", ["exponential", "standard_normal", "standard_cauchy"])
def test_the_interval_of_many_values_is_that_of_many_resamples(draw):
    values = np.clip(getattr(np.random.default_rng(4), draw)(size=1_000), -30.0, 30.0)
    found, drawn = (
        there(mean_interval(values.tolist())),
        bootstrap((values,), np.mean, n_resamples=20_000, rng=np.random.default_rng(5), batch=1_000),
    )
    standard_error = values.std() / np.sqrt(1_000)
    # So many resamples know an end to about 0.03 standard errors.
    assert found.low == pytest.approx(drawn.confidence_interval.low, abs=0.05 * standard_error)
    assert found.high == pytest.approx(drawn.confidence_interval.high, abs=0.05 * standard_error)


def test_every_task_weighs_the_same_however_many_episodes_it_has():
    outcomes = {"easy": [1.0] * 400, "hard": [0.0, 1.0] * 10}
    interval = there(mean_of_tasks_interval(outcomes))
    assert interval.low < 0.75 < interval.high
    # Only the hard task has a spread: half of 1.96 standard errors of 20 coins.
    assert interval.high - interval.low == pytest.approx(1.96 * np.sqrt(0.25 / 20), abs=0.03)
    assert mean_of_tasks_interval({"easy": [], "hard": [1.0]}) is None


def test_both_ways_of_drawing_resamples_agree():
    generator = np.random.default_rng(3)
    coarse = generator.integers(0, 2, 400).astype(float)
    fine = coarse + generator.normal(0.0, 1e-6, 400)
    first, second = (
        there(mean_of_tasks_interval({"task": coarse.tolist()})),
        there(mean_of_tasks_interval({"task": fine.tolist()})),
    )
    assert (first.low, first.high) == pytest.approx((second.low, second.high), abs=0.006)
