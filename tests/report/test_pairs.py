from pathlib import Path

import pytest

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.comparison import Question, compare_with_job
from isaaclab_arena.analysis.comparison_files import write_comparison
from isaaclab_arena.report.writing import PairOnPage, pairs_on_page
from isaaclab_arena.results.merge import merge_results
from tests.analysis.recorded_runs import write_run
from tests.tracking.runs import stopped_run

NEW, OLD = "s" * 14 + "sfsf", "f" * 14 + "sffs"


def pairs_of(directory: Path, **jobs: str) -> tuple[PairOnPage, ...]:
    run = write_run(directory, jobs)
    return pairs_on_page([read_run(run)], {(0, name): number for number, name in enumerate(jobs)})


def test_a_pair_says_what_compare_says(tmp_path: Path):
    (pair,) = pairs_of(tmp_path / "run", old=OLD, new=NEW)
    (task,) = compare_with_job(read_run(tmp_path / "run"), "old", Question()).tasks
    assert (pair.first, pair.second) == (1, 0)
    assert pair.difference == task.difference
    assert pair.interval == task.interval
    assert pair.mid_p == task.mid_p
    assert pair.verdict is None


def test_the_episodes_that_came_out_differently_are_named(tmp_path: Path):
    (pair,) = pairs_of(tmp_path / "run", old=OLD, new=NEW)
    assert pair.discordant == (*range(14), 16, 17)


def test_episodes_that_started_from_other_conditions_are_no_pairs(tmp_path: Path):
    old = write_run(tmp_path / "old", {"lift": "ssff"})
    new = write_run(tmp_path / "new", {"lift": "sfsf"}, moved={2: 0.9})
    positions = {(0, "lift"): 0, (1, "lift"): 1}
    (pair,) = pairs_on_page([read_run(old), read_run(new)], positions)
    assert pair.episodes == (0, 1, 3)
    assert pair.discordant == (1,)
    (alike,) = pairs_of(tmp_path / "run", old=OLD, new=NEW)
    assert alike.episodes is None


def test_a_comparison_that_lies_there_decides_what_is_shown_and_its_verdict(tmp_path: Path):
    run = write_run(tmp_path / "run", {"old": OLD, "new": NEW, "other": OLD})
    report = compare_with_job(read_run(run), "old", Question())
    write_comparison(run, report)
    positions = {(0, "old"): 0, (0, "new"): 1, (0, "other"): 2}
    verdicts = {(pair.first, pair.second): pair.verdict for pair in pairs_on_page([read_run(run)], positions)}
    assert verdicts == {(1, 0): "better", (2, 0): "undecided"}


@pytest.mark.parametrize("content", ["", "[]", '{"tasks": [1]}', '{"tasks": [{"candidate": {}}]}'])
def test_a_damaged_comparison_says_nothing(tmp_path: Path, content: str):
    run = write_run(tmp_path / "run", {"old": OLD, "new": NEW})
    (run / "comparison.json").write_text(content)
    assert len(pairs_on_page([read_run(run)], {(0, "old"): 0, (0, "new"): 1})) == 1


def test_jobs_without_a_pair_are_left_out(tmp_path: Path):
    assert pairs_of(tmp_path / "run", old="ee", new="sf") == ()


def test_a_run_that_asked_shows_what_it_asked_and_that_it_could_stop_early(tmp_path: Path):
    stopped_run(tmp_path)
    merged = merge_results(tmp_path)
    (pair,) = pairs_on_page([read_run(tmp_path)], {(0, "old"): 0, (0, "new"): 1}, [merged.answers])
    assert (pair.first, pair.second) == (1, 0)
    assert pair.verdict == "better"
    assert pair.could_stop == ("new", "old")
    assert pair.evidence.answer == "better: decided after 7 of 12: new is better than old (e = 26.8)"
    assert pairs_of(tmp_path / "other", old=OLD, new=NEW)[0].could_stop == ()


def test_a_comparison_made_the_other_way_round_is_shown_once_with_the_evidence_of_the_run(tmp_path: Path):
    stopped_run(tmp_path)
    write_comparison(tmp_path, compare_with_job(read_run(tmp_path), "new", Question()))
    (pair,) = pairs_on_page([read_run(tmp_path)], {(0, "old"): 0, (0, "new"): 1}, [merge_results(tmp_path).answers])
    assert (pair.first, pair.second, pair.verdict) == (0, 1, "worse")
    assert pair.evidence.answer is not None


def test_pairs_that_repeat_conditions_are_those_that_compare_counts(tmp_path: Path):
    run = read_run(write_run(tmp_path / "run", {"old": "f" * 40, "new": "s" * 40}, starts=2))
    (pair,) = pairs_on_page([run], {(0, "old"): 0, (0, "new"): 1})
    (task,) = compare_with_job(run, "old", Question()).tasks
    assert (pair.distinct, pair.mid_p, pair.interval) == (2, task.mid_p, task.interval)
    assert 10 ** pair.evidence.points[-1][1] < float(pair.evidence.needed)
