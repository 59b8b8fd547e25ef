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


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_is_read_from_its_tables_and_without_them_alike(tmp_path, is_stopped):
    if is_stopped:
        stopped_run(tmp_path)
    else:
        write_run(tmp_path, {"lift": "sfes", "new": "ff"}, events={1: failed_by("dropped")})
    without = read_run(tmp_path).arms
    write_all_tables(tmp_path)
    from_tables = read_run(tmp_path).arms
    assert list(from_tables) == list(without)
    for name, arm in from_tables.items():
        for column, values in vars(arm.episodes).items():
            np.testing.assert_array_equal(values, getattr(without[name].episodes, column))
        assert arm.planned == without[name].planned
    if is_stopped:
        # Only the episodes of its decision are there.
        arm = from_tables["new"]
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


PAIRS = {
    "all": ("ssfft", "sfsft", {}, (1, 1, 1, 2), (0, 0), [0, 1, 2, 3, 4]),
    # Episodes with an error are pairs that say nothing.
    "errors": ("sefs", "ssef", {}, (1, 1, 0, 0), (0, 0), [0, 1, 2, 3]),
    "alone": ("ss-s", "sss-sss", {}, (2, 0, 0, 0), (1, 4), [0, 1]),
    # Of runs that go on, later ones are there because they ended soon.
    "going on": ("sss-ss", "ssss-s", {"prefix_only": True}, (3, 0, 0, 0), None, [0, 1, 2]),
}


@pytest.mark.parametrize(("first", "second", "how", "counts", "alone", "indices"), PAIRS.values(), ids=PAIRS)
def test_pairs_are_counted_by_how_both_episodes_came_out(tmp_path, first, second, how, counts, alone, indices):
    matched = match(arm_of(tmp_path / "a", first), arm_of(tmp_path / "b", second), **how)
    names = ("both", "only_first", "only_second", "neither")
    assert matched.counts == PairCounts(**dict(zip(names, counts, strict=True)))
    assert matched.first.index.tolist() == indices
    assert alone in (None, (matched.only_first, matched.only_second))


@pytest.mark.parametrize(
    ("first", "second", "indices", "names"),
    [
        ({}, {"moved": {1: 0.51}}, [0, 2], ("cube.x",)),
        ({"told": False}, {"told": False}, [0, 1, 2], None),
        # Without conditions the seed of the episode stands for them.
        ({"told": False}, {"told": False, "first_seed": 1}, [], ("episode_seed",)),
    ],
)
def test_episodes_of_the_same_index_that_started_elsewhere_are_no_pair(tmp_path, first, second, indices, names):
    matched = match(arm_of(tmp_path / "a", "sss", **first), arm_of(tmp_path / "b", "fff", **second))
    assert matched.first.index.tolist() == indices
    unequal = [UnequalConditions(episode_index=index, names=names) for index in range(3) if index not in indices]
    assert list(matched.unequal) == unequal


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
    run = run_of(tmp_path / "run", {"a": "sfsfsfsf", "b": "fsfsfsfs", "c": "ssssffff"})
    choice = there(choose_best({name: [arm] for name, arm in run.arms.items()}))
    assert (choice.name, choice.chosen_among) == ("a", 3)
    assert (choice.rate_when_chosen, choice.episodes_when_chosen) == (1.0, 4)
    assert (choice.rate, choice.successes, choice.episodes) == (0.0, 0, 4)
    for words in ("'a' was chosen: the best of 3 over the 4 episodes of even index", ": 0.0 % [0.0, 49.0]"):
        assert words in choice.sentence
    report = compare_with_job(run, "best", Question())
    assert next(sentences(report)).startswith("'a' was chosen: the best of 3")
    found = [(each.first.entry.name, each.second.entry.name, each.counts.total) for each in report.tasks]
    assert found == [("b", "a", 4), ("c", "a", 4)]
    assert report.tasks[0].difference == 1.0
    # A job may be called so.
    report = compare_with_job(run_of(tmp_path / "named", {"best": "ff", "b": "ss"}), "best", Question())
    assert (report.choice, report.tasks[0].counts.total) == (None, 2)


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


@pytest.mark.parametrize(
    ("jobs", "how", "words"),
    [
        ({"a": "ss-", "b": "ssf"}, {}, "1 of 3 episodes to go: .* resume .*; the best is"),
        ({"a": "uuu", "b": "ssf"}, {}, "does not measure success"),
        ({"a": "ss", "b": "sf"}, {"partial": True}, "--baseline: the best is"),
        ({"a": "s", "b": "f"}, {}, "every job needs two"),
    ],
)
def test_the_best_is_one_of_jobs_that_are_finished_and_measure_success_often(tmp_path, jobs, how, words):
    run = run_of(tmp_path, jobs)
    with pytest.raises((NotComparableError, ConfigError), match=words):
        compare_with_job(run, "best", Question(), **how)


def test_the_first_place_is_scored_again_by_what_nothing_was_chosen_by(tmp_path):
    found = there(leaderboard([run_of(tmp_path / "run", {"a": "sfsfsfsf", "b": "ssssssss"})], Question()).winner)
    assert (found.name, found.rate_when_chosen, found.rate) == ("a", 1.0, 0.0)
    assert leaderboard([run_of(tmp_path / "few", {"a": "s", "b": "f"})], Question()).winner is None
    half = not_chosen_by(arm_of(tmp_path / "arm", "sfsfs"))
    assert (half.episodes.index.tolist(), half.planned, half.num_missing) == ([1, 3], 2, 0)


def compared(tmp_path, first: str, second: str, **question):
    one, other = arm_of(tmp_path / f"a-{first}", first), arm_of(tmp_path / f"b-{first}", second)
    return compare_pairs(one, other, match(one, other), Question(**question))


@pytest.mark.parametrize(
    ("first", "second", "verdict", "difference"),
    [
        ("ssssssss", "ffffffss", Verdict.BETTER, 0.75),
        ("ffffffss", "ssssssss", Verdict.WORSE, -0.75),
        ("sssfsfsf", "ssfffsss", Verdict.UNDECIDED, 0.0),
        ("ssssssff", "ssssffff", Verdict.UNDECIDED, 0.25),
    ],
)
def test_who_wins_pairs_is_better_and_few_say_how_many_would_settle_it(tmp_path, first, second, verdict, difference):
    found = compared(tmp_path, first, second)
    assert (found.verdict, found.difference) == (verdict, difference)
    assert (found.interval.low > 0) is (verdict is Verdict.BETTER)
    if abs(difference) == 0.75:
        assert found.mid_p == pytest.approx(0.015625)
    if difference == 0.25:
        needed, chances = there(found.pairs_needed), PairChances(only_first=0.25, only_second=0.0)
        assert paired_power(needed, chances) >= 0.8 > paired_power(needed - 8, chances)


def test_jobs_that_never_say_who_succeeded_cannot_be_compared(tmp_path):
    with pytest.raises(ValueError, match="no pair tells"):
        compared(tmp_path, "ee", "ss")


def test_what_so_many_pairs_could_have_shown_shrinks_with_their_number(tmp_path):
    few, many = (there(compared(tmp_path, "sf" * number, "sf" * number).detectable) for number in (10, 100))
    assert 0.0 < many < few < 1.0
    assert compared(tmp_path, "sff", "sff").detectable is None


@pytest.mark.parametrize(
    ("difference", "low", "high", "p_value", "verdict"),
    [
        (0.0, -0.04, 0.04, 1.0, Verdict.NO_WORSE),
        (-0.2, -0.3, -0.1, 0.0, Verdict.WORSE),
        (-0.05, -0.1, -0.01, 0.01, Verdict.UNDECIDED),
        (0.0, -0.1, 0.1, 1.0, Verdict.UNDECIDED),
    ],
)
def test_with_a_margin_the_interval_decides(difference, low, high, p_value, verdict):
    assert verdict_of(difference, Interval(low=low, high=high), p_value, Question(margin=0.05)) is verdict


def test_errors_are_left_out_and_bounded(tmp_path):
    found = compared(tmp_path, "ssef", "sfse")
    assert (found.num_errors, found.counts.total, found.difference) == (2, 2, 0.5)
    assert (found.bounds.low, found.bounds.high) == (-0.25, 0.25)


def test_lengths_are_compared_over_pairs_times_where_both_succeed_and_progress_where_it_is_measured(tmp_path):
    first, second = arm_of(tmp_path / "a", "ssfs"), arm_of(tmp_path / "b", "sffs")
    first.episodes.length[:] -= 3
    found = compare_pairs(first, second, match(first, second), Question())
    length, time = there(found.length), there(found.time_to_success)
    assert (length.num_pairs, length.mean, time.num_pairs, found.progress) == (4, -3.0, 2, None)
    for arm, values in ((first, (1.0, 1.0, 1.0, 1.0)), (second, (0.5, 0.25, 0.75, 0.5))):
        arm.episodes.metrics[:] = [json.dumps({"progress": value}) for value in values]
    progress = there(compare_pairs(first, second, match(first, second), Question()).progress)
    assert (progress.first_mean, progress.second_mean, progress.mean) == (1.0, 0.5, 0.5)


def test_a_family_is_judged_by_adjusted_values(tmp_path):
    others = {f"like it {number}": "ffffffss" for number in range(4)}
    run = run_of(tmp_path / "run", {"old": "ffffffss", "new": "ssssssss", **others})
    new, *_ = compare_with_job(run, "old", Question()).tasks
    assert (new.mid_p, new.adjusted_p) == (pytest.approx(0.015625), pytest.approx(5 * 0.015625))
    assert new.verdict is Verdict.UNDECIDED


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
    assert (task["exact_p"], task["measures"]["length"]["mean"]) == (0.03125, 0.0)
    assert task["discordant_episodes"] == {"candidate": [0, 1, 2, 3, 4, 5], "baseline": []}
    assert "events" not in task
    cells = ["8", "100.0", "25.0", "2", "6", "0", "0", "+75.0 [+28.0, +92.9]", "0.0156", "0.0156", "better"]
    assert text.read_text().startswith("**better**\n\n| task | pairs |")
    assert f" | {' | '.join(cells)} |" in text.read_text()
    assert rates_table(report).iloc[0].tolist()[1:] == cells
    assert r"lift\_50\% & 8 & 100.0" in latex.read_text()
    assert latex.read_text().count(r"\\") == 2


def test_several_tasks_have_two_lines_for_all_of_them_and_measures_lines_of_their_own(tmp_path):
    report = table_report_of(tmp_path, {"a": "ss", "b": "sf"}, {"a": "sf", "b": "sf"}, alpha=0.01)
    table = rates_table(report)
    assert table["task"].tolist() == ["a", "b", "all pairs together", "mean of the tasks"]
    assert table.iloc[2, 1:4].tolist() == ["4 (2 distinct)", "75.0", "50.0"]
    assert "difference [99 %]" in table
    assert set(measures_table(report)["measure"]) == {"length", "length where both succeed", "return"}
    assert events_table(report).empty


def table_report_of(tmp_path, candidate: dict[str, str], baseline: dict[str, str], **question) -> ComparisonReport:
    return compare_runs(
        run_of(tmp_path / "candidate", candidate), run_of(tmp_path / "baseline", baseline), Question(**question)
    )


SENTENCES = {
    "discordant": ("sssssssf", "sffffffs", {}, "only the candidate succeeds in 1, 2, 3, 4, 5 and 1 more"),
    "other": ("sssssssf", "sffffffs", {}, "only the baseline succeeds in 7"),
    "film": ("sssssssf", "sffffffs", {}, "/viewport-env0-episode-2.mp4"),
    "power": ("sf" * 20, "sf" * 20, {}, "lift: 40 pairs find a difference of "),
    "alike": ("sf" * 20, "sf" * 20, {}, "no pair differs"),
    "errors": ("sesss", "sssssss", {"moved": {3: 0.1}}, "1 pairs with an error are left out"),
    "unequal": ("sesss", "sssssss", {"moved": {3: 0.1}}, "their conditions differ: episodes 3 (cube.x)"),
    "alone": ("sesss", "sssssss", {"moved": {3: 0.1}}, "2 episodes of the baseline have no counterpart"),
}


@pytest.mark.parametrize(("candidate", "baseline", "how", "words"), SENTENCES.values(), ids=SENTENCES)
def test_sentences_tell_pairs_films_power_errors_and_unequal_conditions(tmp_path, candidate, baseline, how, words):
    first = run_of(tmp_path / "candidate", {"lift": candidate}, **how)
    second = write_run(tmp_path / "baseline", {"lift": baseline})
    (second / "lift" / "videos").mkdir()
    (second / "lift" / "videos" / "viewport-env0-episode-2.mp4").touch()
    assert any(words in line for line in sentences(compare_runs(first, read_run(second), Question())))


def test_a_sentence_tells_a_return_that_differs_where_success_does_not_decide(tmp_path):
    new, old = (run_of(tmp_path / name, {"lift": "sf" * 6}) for name in ("new", "old"))
    episodes = new.arms["lift"].episodes
    episodes.episode_return[:] += 1.5 + 0.01 * episodes.index
    [told] = [line for line in sentences(compare_runs(new, old, Question())) if "success aside" in line]
    assert ": return 7.055 against 5.5, +1.555 [+1.53" in told


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
    assert any(line.endswith(": dropped (9 against 0)") for line in sentences(report))


def test_holms_values_are_those_of_statsmodels_and_what_never_differs_is_found_out():
    p_values = [0.04, 0.001, 0.03, 0.2, 0.001, 0.9]
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])
    assert holm([]) == []
    assert mean_interval([3.0, 3.0, 3.0]) == Interval(low=3.0, high=3.0)
    assert mean_interval([3.0]) is None
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == pytest.approx(0.03125)


@pytest.mark.parametrize("draw", ["exponential", "standard_normal", "standard_cauchy"])
def test_the_interval_of_many_values_is_that_of_many_resamples(draw):
    values = np.clip(getattr(np.random.default_rng(4), draw)(size=1_000), -30.0, 30.0)
    found, random = there(mean_interval(values.tolist())), np.random.default_rng(5)
    drawn = bootstrap((values,), np.mean, n_resamples=20_000, rng=random, batch=1_000).confidence_interval
    # So many resamples know an end to about 0.03 standard errors.
    near = 0.05 * values.std() / np.sqrt(1_000)
    assert (found.low, found.high) == (pytest.approx(drawn.low, abs=near), pytest.approx(drawn.high, abs=near))


def test_every_task_weighs_the_same_however_many_episodes_it_has():
    outcomes = {"easy": [1.0] * 400, "hard": [0.0, 1.0] * 10}
    interval = there(mean_of_tasks_interval(outcomes))
    assert interval.low < 0.75 < interval.high
    # Only the hard task has a spread: half of 1.96 standard errors of 20 coins.
    assert interval.high - interval.low == pytest.approx(1.96 * np.sqrt(0.25 / 20), abs=0.03)
    assert mean_of_tasks_interval({"easy": [], "hard": [1.0]}) is None
