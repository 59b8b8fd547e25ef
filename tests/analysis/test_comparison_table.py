from isaaclab_arena.analysis.comparison import ComparisonReport, Question, compare_runs
from isaaclab_arena.analysis.comparison_files import events_table, measures_table, rates_table, sentences
from tests.analysis.recorded_runs import failed_by, run_of


def report_of(tmp_path, candidate: dict[str, str], baseline: dict[str, str], **question) -> ComparisonReport:
    return compare_runs(
        run_of(tmp_path / "candidate", candidate), run_of(tmp_path / "baseline", baseline), Question(**question)
    )


def test_a_line_holds_counts_rates_difference_and_verdict(tmp_path):
    table = rates_table(report_of(tmp_path, {"lift": "s" * 8}, {"lift": "f" * 6 + "ss"}))
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
    table = rates_table(report_of(tmp_path, {"a": "ss", "b": "sf"}, {"a": "sf", "b": "sf"}))
    assert table["task"].tolist() == ["a", "b", "all pairs together", "mean of the tasks"]
    assert table.iloc[2, 1:4].tolist() == ["4 (2 distinct)", "75.0", "50.0"]


def test_the_level_of_the_interval_is_the_one_asked_for(tmp_path):
    assert "difference [99 %]" in rates_table(report_of(tmp_path, {"a": "ss"}, {"a": "sf"}, alpha=0.01))


def test_lengths_and_returns_have_lines_of_their_own(tmp_path):
    table = measures_table(report_of(tmp_path, {"lift": "sss"}, {"lift": "sff"}))
    assert table["measure"].tolist() == ["length", "length where both succeed", "return"]


def test_sentences_tell_which_pairs_differ_and_where_their_films_are(tmp_path):
    report = report_of(tmp_path, {"lift": "sssssssf"}, {"lift": "sffffffs"})
    videos = tmp_path / "baseline" / "lift" / "videos"
    videos.mkdir()
    (videos / "viewport-env0-episode-2.mp4").touch()
    told = list(sentences(report))
    assert "lift: only the candidate succeeds in 1, 2, 3, 4, 5 and 1 more" in told
    assert "lift: only the baseline succeeds in 7" in told
    assert f"    episode 2: {videos / 'viewport-env0-episode-2.mp4'}" in told


def test_sentences_tell_what_so_many_pairs_could_show(tmp_path):
    (first,) = [
        line for line in sentences(report_of(tmp_path, {"a": "sf" * 20}, {"a": "sf" * 20})) if " pairs " in line
    ]
    assert first.startswith("a: 40 pairs find a difference of ")
    assert first.endswith("no pair differs")


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


def test_runs_that_tell_no_events_have_no_table_of_them(tmp_path):
    assert events_table(report_of(tmp_path, {"a": "ss"}, {"a": "sf"})).empty
