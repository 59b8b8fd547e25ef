"""The answer of a page: pairs of jobs, their verdicts, their evidence, and sentences that say which is better."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.analysis.arms import read_run
from isaaclab_arena.analysis.comparison import Question as ComparisonQuestion
from isaaclab_arena.analysis.comparison import compare_directories, compare_with_job
from isaaclab_arena.analysis.comparison_files import write_comparison
from isaaclab_arena.config.schema import Question
from isaaclab_arena.report.answer import (
    EvidenceCurve,
    Finding,
    JobsCompared,
    PairOnPage,
    compared_jobs,
    evidence_curve,
    findings,
)
from isaaclab_arena.report.writing import page_of
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.stopping import Answering, PairCounts, log_e_value_of_difference, log_e_value_of_equality
from isaaclab_arena.storage.ledger import ReportedStatus, read_run_plan, write_run_plan
from tests.analysis.recorded_runs import write_run
from tests.results.evidence import commit_lines, report, write_report
from tests.tracking.runs import stopped_run

QUESTION = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=100)


def curve_of(
    directory, new: str, old: str, question: Question | None = None, *, num_questions: int = 1
) -> EvidenceCurve:
    arms = read_run(write_run(directory, {"new": new, "old": old})).arms
    answer = None if question is None else Answering(question, num_questions=num_questions).answer
    return evidence_curve(arms["new"], arms["old"], answer, num_questions=num_questions)


def counted(wins: int, losses: int, alike: int = 0) -> PairCounts:
    return PairCounts(both=alike, only_first=wins, only_second=losses, neither=0)


def test_evidence_ends_at_the_e_value_of_all_episodes(tmp_path):
    curve = curve_of(tmp_path / "run", "s" * 14 + "sfsf", "f" * 14 + "sffs")
    assert curve.points[0] == (0, 0.0)
    assert curve.points[-1][0] == 18
    assert curve.points[-1][1] == pytest.approx(log_e_value_of_equality(counted(15, 1)) / math.log(10))
    assert curve.line.startswith("0.00,")


def test_the_questions_of_a_run_share_the_level_that_decides(tmp_path):
    alone = curve_of(tmp_path / "1", "ss", "ff")
    assert (alone.needed, alone.bar) == ("20", "alpha 0.05, the default")
    two = curve_of(tmp_path / "2", "ss", "ff", QUESTION, num_questions=2)
    assert (two.needed, two.bar) == ("40", "alpha 0.05, shared by 2 questions")
    strict = curve_of(tmp_path / "3", "ss", "ff", dataclasses.replace(QUESTION, alpha=0.01))
    assert (strict.needed, strict.bar) == ("100", "alpha 0.01, for one question")


@pytest.mark.parametrize("jobs", [("new", "old"), ("old", "new")])
def test_with_a_margin_the_evidence_is_that_of_the_question_whichever_job_is_shown_first(tmp_path, jobs):
    asked = dataclasses.replace(QUESTION, jobs=jobs, margin=0.05)
    curve = curve_of(tmp_path / "run", "ssss", "sffs", asked)
    expected = log_e_value_of_difference(counted(2, 0, 2) if jobs[0] == "new" else counted(0, 2, 2), -0.05)
    assert curve.points[-1][1] == pytest.approx(expected / math.log(10))
    assert curve.against == f"{jobs[0]} is 5 points worse than {jobs[1]}"


def test_what_decides_lies_in_the_picture_and_evidence_beyond_what_a_number_holds_is_a_power_of_ten(tmp_path):
    curve = curve_of(tmp_path / "little", "s", "f", QUESTION, num_questions=1_000)
    at_zero = float(curve.line.split()[0].partition(",")[2])
    assert 0 < curve.limit < at_zero < 100
    assert curve_of(tmp_path / "much", "s" * 2_000, "f" * 2_000).e_value == "10^600"
    assert curve_of(tmp_path / "none", "sf", "sf").e_value == "1"


def test_there_is_one_bet_for_each_start(tmp_path):
    run = read_run(write_run(tmp_path / "run", {"new": "s" * 40, "old": "f" * 40}, starts=13))
    curve = evidence_curve(run.arms["new"], run.arms["old"], None, num_questions=1)
    assert curve.points[-1][1] == pytest.approx(log_e_value_of_equality(counted(13, 0)) / math.log(10))


NEW, OLD = "s" * 14 + "sfsf", "f" * 14 + "sffs"


def evidence_of(pair: PairOnPage) -> EvidenceCurve:
    assert pair.evidence is not None
    return pair.evidence


def pairs_of(directory: Path, **jobs: str) -> tuple[PairOnPage, ...]:
    run = write_run(directory, jobs)
    return compared_jobs([read_run(run)], {(0, name): number for number, name in enumerate(jobs)}).pairs


def test_a_pair_says_what_compare_says_and_jobs_without_one_are_left_out(tmp_path: Path):
    (pair,) = pairs_of(tmp_path / "run", old=OLD, new=NEW)
    (task,) = compare_with_job(read_run(tmp_path / "run"), "old", ComparisonQuestion()).tasks
    assert (pair.first, pair.second, pair.verdict) == (1, 0, str(task.verdict))
    assert (pair.difference, pair.interval, pair.mid_p) == (task.difference, task.interval, task.mid_p)
    assert pair.discordant == (*range(14), 16, 17)
    assert pairs_of(tmp_path / "other", old="ee", new="sf") == ()


def test_episodes_that_started_from_other_conditions_are_no_pairs(tmp_path: Path):
    old = write_run(tmp_path / "old", {"lift": "ssff"})
    new = write_run(tmp_path / "new", {"lift": "sfsf"}, moved={2: 0.9})
    positions = {(0, "lift"): 0, (1, "lift"): 1}
    (pair,) = compared_jobs([read_run(old), read_run(new)], positions).pairs
    assert pair.episodes == (0, 1, 3)
    assert pair.discordant == (1,)
    (alike,) = pairs_of(tmp_path / "run", old=OLD, new=NEW)
    assert alike.episodes is None


def test_a_comparison_that_lies_there_decides_what_is_shown_and_its_verdict(tmp_path: Path):
    run = write_run(tmp_path / "run", {"old": OLD, "new": NEW, "other": OLD})
    report = compare_with_job(read_run(run), "old", ComparisonQuestion())
    write_comparison(run, report)
    positions = {(0, "old"): 0, (0, "new"): 1, (0, "other"): 2}
    verdicts = {(pair.first, pair.second): pair.verdict for pair in compared_jobs([read_run(run)], positions).pairs}
    assert verdicts == {(1, 0): "better", (2, 0): "undecided"}


@pytest.mark.parametrize("content", ["", "[]", '{"tasks": [1]}', '{"tasks": [{"candidate": {}}]}'])
def test_a_damaged_comparison_says_nothing(tmp_path: Path, content: str):
    run = write_run(tmp_path / "run", {"old": OLD, "new": NEW})
    (run / "comparison.json").write_text(content)
    assert len(compared_jobs([read_run(run)], {(0, "old"): 0, (0, "new"): 1}).pairs) == 1


@pytest.mark.parametrize("damaged", [1, {"candidate": {}}, {"candidate": {"run": "\0", "job": "new"}}])
def test_a_damaged_task_of_a_comparison_leaves_the_verdicts_of_the_others(tmp_path: Path, damaged: object):
    run = write_run(tmp_path / "run", {"old": OLD, "new": NEW, "other": OLD})
    write_comparison(run, compare_with_job(read_run(run), "old", ComparisonQuestion()))
    document = json.loads((run / "comparison.json").read_text())
    document["tasks"][0] = document["tasks"][0] | damaged if isinstance(damaged, dict) else damaged
    (run / "comparison.json").write_text(json.dumps(document))
    positions = {(0, "old"): 0, (0, "new"): 1, (0, "other"): 2}
    assert [(pair.first, pair.verdict) for pair in compared_jobs([read_run(run)], positions).pairs] == [
        (2, "undecided")
    ]


def test_a_run_that_asked_shows_what_it_asked_also_beside_a_comparison_made_the_other_way_round(tmp_path: Path):
    stopped_run(tmp_path)
    answers = [merge_results(tmp_path).answers]
    (pair,) = compared_jobs([read_run(tmp_path)], {(0, "old"): 0, (0, "new"): 1}, answers).pairs
    assert (pair.first, pair.second, pair.verdict, pair.could_stop) == (1, 0, "better", ("new", "old"))
    assert str(evidence_of(pair).answer).startswith("better: decided after 7 of 12")
    assert pairs_of(tmp_path / "other", old=OLD, new=NEW)[0].could_stop == ()
    write_comparison(tmp_path, compare_with_job(read_run(tmp_path), "new", ComparisonQuestion()))
    (pair,) = compared_jobs([read_run(tmp_path)], {(0, "old"): 0, (0, "new"): 1}, answers).pairs
    assert (pair.first, pair.second, pair.verdict) == (0, 1, "worse")
    assert evidence_of(pair).answer is not None


def test_pairs_that_repeat_conditions_are_those_that_compare_counts(tmp_path: Path):
    run = read_run(write_run(tmp_path / "run", {"old": "f" * 40, "new": "s" * 40}, starts=2))
    (pair,) = compared_jobs([run], {(0, "old"): 0, (0, "new"): 1}).pairs
    (task,) = compare_with_job(run, "old", ComparisonQuestion()).tasks
    assert (pair.distinct, pair.mid_p, pair.interval) == (2, task.mid_p, task.interval)
    assert 10 ** evidence_of(pair).points[-1][1] < float(evidence_of(pair).needed)


# The answer in sentences.


def answer_of(directory: Path, jobs: dict[str, str], **how: Any) -> tuple[Finding, ...]:
    run = write_run(directory, jobs, **how)
    return page_of({run: merge_results(run)}, embedded_bytes=0).findings


def test_the_better_policy_stands_first_with_by_how_much_and_how_surely(tmp_path: Path):
    (found,) = answer_of(tmp_path / "run", {"new": OLD, "old": NEW})
    (task,) = compare_with_job(read_run(tmp_path / "run"), "new", ComparisonQuestion()).tasks
    assert found.claim == "old is better than new"
    rates = " against ".join(f"{100 * rate:.1f} %" for rate in task.rates)
    low, high = 100 * task.interval.low, 100 * task.interval.high
    assert found.figures == (
        f"{rates} in 18 episodes with the same start: {100 * task.difference:+.1f} points [{low:+.1f}, {high:+.1f}], "
        f"p = {task.adjusted_p:.2g} (McNemar mid-p)."
    )
    assert found.way_out == ""
    turned, *_ = answer_of(tmp_path / "turned", {"new": NEW, "old": OLD})
    assert (turned.claim, turned.figures) == ("new is better than old", found.figures)


def test_two_jobs_that_are_not_told_apart_say_how_many_more_episodes_would_do_it(tmp_path: Path):
    (found,) = answer_of(tmp_path / "run", {"old": "ssffs" * 4, "new": "sssfs" * 3 + "ffsfs"})
    report = compare_with_job(read_run(tmp_path / "run"), "old", ComparisonQuestion())
    (needed,) = [each.pairs_needed for each in report.tasks]
    assert found.claim == "Not decided: new or old"
    assert needed is not None
    assert f"about {needed:,} episodes" in found.way_out
    assert f"{needed - 20:,} more than there are: set num_episodes to {needed} and resume the run" in found.way_out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [("ssff", "ssff", "Every episode has the same outcome"), ("sfss", "fsss", "Each alone succeeded in 1")],
)
def test_two_jobs_of_which_nothing_speaks_for_either_say_so(tmp_path: Path, old: str, new: str, said: str):
    (found,) = answer_of(tmp_path / "run", {"old": old, "new": new})
    assert found.claim.startswith("Not decided")
    assert found.way_out.startswith(said)


def test_every_two_jobs_of_a_task_are_compared_as_one_family_and_the_most_telling_come_first(tmp_path: Path):
    worst, middle, best = "f" * 12, "sf" * 6, "s" * 12
    pairs = pairs_of(tmp_path / "run", middle=middle, worst=worst, best=best)
    assert [(pair.first, pair.second) for pair in pairs] == [(2, 1), (1, 0), (2, 0)]
    assert [pair.adjusted_p for pair in pairs] == sorted(pair.adjusted_p for pair in pairs)
    assert pairs[0].adjusted_p == pytest.approx(3 * pairs[0].mid_p)
    report = compare_with_job(read_run(tmp_path / "run"), "worst", ComparisonQuestion())
    with_worst = sorted(pair.mid_p for pair in pairs if 1 in (pair.first, pair.second))
    assert with_worst == pytest.approx(sorted(each.mid_p for each in report.tasks))


def test_of_many_jobs_of_a_task_each_is_compared_with_the_first(tmp_path: Path):
    pairs = pairs_of(tmp_path / "run", **{f"job{number}": "sf" * 4 for number in range(8)})
    assert sorted((pair.first, pair.second) for pair in pairs) == [(number, 0) for number in range(1, 8)]


def test_jobs_under_several_seeds_are_compared_with_those_of_their_own_seed(tmp_path: Path):
    jobs = {"a0": OLD, "a1": OLD, "a2": OLD}
    old = write_run(tmp_path / "old", jobs, own_starts=True)
    new = write_run(tmp_path / "new", dict.fromkeys(jobs, NEW), own_starts=True)
    positions = {(run, name): 3 * run + number for run in range(2) for number, name in enumerate(jobs)}
    compared = compared_jobs([read_run(old), read_run(new)], positions)
    assert sorted((pair.first, pair.second, pair.family) for pair in compared.pairs) == [
        (3, 0, 1),
        (4, 1, 1),
        (5, 2, 1),
    ]
    assert (compared.alone, compared.missing) == ((), ())


def test_a_job_that_is_not_finished_has_no_verdict_and_the_answer_says_what_to_do(tmp_path: Path):
    stopped, found = answer_of(tmp_path / "run", {"old": OLD, "new": "s" * 14 + "--ss"})
    assert stopped.claim == "The run was interrupted in new"
    assert found.claim == "Not finished: new or old"
    assert "in 14 episodes" in found.figures
    assert found.way_out == "Finish the run to have an answer."


@pytest.mark.parametrize(
    ("broken", "claim", "figures", "options"),
    [
        ("----", "The run failed in broken", "ValueError: 14 features, not 9. 4 of 8 episodes are there.", ""),
        ("eeee", "The run failed in broken", "8 of 8 episodes are there.", " --retry_errors"),
        ("s---", "The run was interrupted in broken", "5 of 8 episodes are there.", ""),
    ],
)
def test_a_run_that_failed_or_was_interrupted_says_so_first_with_the_line_that_resumes_it(
    tmp_path: Path, broken: str, claim: str, figures: str, options: str
):
    run = write_run(tmp_path / "a run", {"good": "sssf", "broken": broken})
    if broken == "----":
        error = "ValueError: 14 features, not 9\nand more"
        write_report(run, report("broken", status=ReportedStatus.FAILED, error=error))
    plan = dataclasses.replace(read_run_plan(run), command_line=("isaaclab_arena.evaluation.eval_runner", "jobs.json"))
    write_run_plan(run, plan, revises=True)
    found, *others = page_of({run: merge_results(run)}, embedded_bytes=0).findings
    assert (found.claim, found.command) == (claim, f"isaaclab-arena resume '{run}'{options}")
    assert found.figures.endswith(figures)
    assert not any("compare" in each.claim for each in others)


def test_a_page_without_a_pair_says_what_is_missing(tmp_path: Path):
    rate, alone = answer_of(tmp_path / "one", {"lift": "sssf"})
    assert rate.claim == "lift succeeds in 75.0 % [30.1, 95.4]"
    assert "evaluate another policy" in alone.way_out
    (mine, _, other_tasks) = answer_of(tmp_path / "tasks", {"mine:0": "ss", "yours:1": "sf"})
    assert mine.claim.startswith("mine: mean of its tasks 100.0 %")
    assert other_tasks.claim == "No two jobs can be compared"
    _, apart = answer_of(tmp_path / "starts", {"old": OLD, "new": NEW}, own_starts=True)
    assert "no two episodes started from the same conditions" in apart.figures
    assert "cube.x" in apart.figures


def test_one_policy_alone_has_its_rate_over_all_jobs_and_its_worst_and_best_one(tmp_path: Path):
    first, second = (
        write_run(tmp_path / name, {name: "sssf" if name == "a" else "ffff"}, object=name) for name in "ab"
    )
    page = page_of({run: merge_results(run) for run in (first, second)}, embedded_bytes=0)
    whole, missing = page.findings
    assert whole.claim == "zero_action succeeds in 37.5 % [13.7, 69.4]"
    assert "from 0.0 % [0.0, 49.0] in b: b to 75.0 % [30.1, 95.4] in a: a." in whole.figures
    assert missing.claim == "No two jobs can be compared"


def test_one_policy_under_several_seeds_repeats_itself_and_is_no_rival(tmp_path: Path):
    runs = {}
    for seed, (name, outcomes) in enumerate({"a": "sssf", "b": "ffff"}.items()):
        run = write_run(tmp_path / name, {"lift": outcomes}, moved=dict.fromkeys(range(4), 10.0 * seed))
        merged = merge_results(run)
        (entry,) = merged.plan.jobs
        entry = dataclasses.replace(entry, config=dataclasses.replace(entry.config, seed=seed))
        plan = dataclasses.replace(merged.plan, jobs=(entry,))
        runs[run] = dataclasses.replace(merged, plan=plan, jobs=merged.jobs.assign(seed=seed))
    whole, missing = page_of(runs, embedded_bytes=0).findings
    assert "3 of 8 episodes" in whole.figures
    assert "Over 2 seeds, from 0.0 % [0.0, 49.0] in b: lift to 75.0 %" in whole.figures
    assert missing.claim == "Nothing to compare it with"


def test_an_undecided_pair_says_that_length_or_return_differs_surely(tmp_path: Path):
    run = write_run(tmp_path / "run", {"old": "ssff" * 3, "new": "ssff" * 3})
    merged = merge_results(run)
    faster = merged.episodes["length"].where(merged.episodes["job"] == "old", merged.episodes["length"] // 2)
    merged = dataclasses.replace(merged, episodes=merged.episodes.assign(length=faster))
    (found,) = page_of({run: merged}, embedded_bytes=0).findings
    assert found.claim.startswith("Not decided")
    assert "Success aside, they differ: length 7.5 against 15.5, -8 [" in found.figures
    assert "return" not in found.figures


def test_options_of_one_policy_are_not_pooled_over_one_task(tmp_path: Path):
    fast, slow = (write_run(tmp_path / name, {name: "s" * 9}) for name in ("fast", "slow"))
    bad = write_run(tmp_path / "bad", {"bad": "f" * 9}, policy_type="random_action")
    page = page_of({run: merge_results(run) for run in (fast, slow, bad)}, embedded_bytes=0)
    assert {found.claim for found in page.findings[:2]} == {
        "fast: fast is better than bad: bad",
        "slow: slow is better than bad: bad",
    }


def test_two_policies_that_meet_on_several_tasks_have_one_answer_over_all_of_them(tmp_path: Path):
    old = write_run(tmp_path / "old", {"mine:0": OLD, "mine:1": "sf" * 9}, policy_type="zero_action")
    new = write_run(tmp_path / "new", {"mine:0": NEW, "mine:1": "ss" * 9}, policy_type="random_action")
    page = page_of({run: merge_results(run) for run in (old, new)}, embedded_bytes=0)
    whole, *tasks = page.findings
    assert whole.claim == "random_action is better than zero_action over 2 tasks"
    report = compare_directories([old, new], ComparisonQuestion())
    assert report.together is not None
    assert f"{100 * report.together.difference:+.1f} points" in whole.figures
    assert f"p = {report.together.mid_p:.2g}" in whole.figures
    assert len(tasks) == 2


def test_a_run_that_asked_answers_with_its_evidence_which_holds_at_every_look(tmp_path: Path):
    stopped_run(tmp_path)
    found, *_ = page_of({tmp_path: merge_results(tmp_path)}, embedded_bytes=0).findings
    assert found.claim == "new is better than old"
    assert "decided after 7 of 12" in found.figures
    assert "McNemar" not in found.figures


@pytest.mark.parametrize(
    ("outcomes", "claim"),
    [("s" * 40, "lift succeeds in more than 50 %"), ("sf", "Not decided: whether lift succeeds in more than 50 %")],
)
def test_a_run_that_asked_for_a_bar_answers_whether_it_is_reached(outcomes: str, claim: str):
    bar = Question(name="bar", jobs=("lift",), max_episodes=40, at_least=0.5)
    finished = {"lift": {line.episode_index: line for line in commit_lines(outcomes)}}
    (found,) = findings(JobsCompared(), [], answers=[Answering(bar, num_questions=1).look(finished)])
    assert found.claim == claim
    assert "e = " in found.figures


def test_while_a_run_goes_on_it_answers_what_it_asked_and_compares_nothing(tmp_path: Path):
    stopped_run(tmp_path)
    page = page_of({tmp_path: merge_results(tmp_path)}, embedded_bytes=0, running=True)
    assert [found.claim for found in page.findings] == ["new is better than old", "The run is in progress"]
    assert "decided after 7 of 12" in page.findings[0].figures
    assert page.compared.pairs == ()
