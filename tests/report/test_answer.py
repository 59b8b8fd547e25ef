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
from isaaclab_arena.report.answer import Finding, JobsCompared, PairOnPage, compared_jobs, evidence_curve, findings
from isaaclab_arena.report.writing import page_of
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.stopping import Answering, PairCounts, log_e_value_of_difference, log_e_value_of_equality
from isaaclab_arena.storage.ledger import ReportedStatus, read_run_plan, write_run_plan
from tests.analysis.recorded_runs import write_run
from tests.results.evidence import commit_lines, report, write_report
from tests.tracking.runs import stopped_run

QUESTION = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=100)


def curve_of(directory, new: str, old: str, question: Question | None = None, *, num_questions: int = 1, **how):
    arms = read_run(write_run(directory, {"new": new, "old": old}, **how)).arms
    answer = None if question is None else Answering(question, num_questions=num_questions).answer
    return evidence_curve(arms["new"], arms["old"], answer, num_questions=num_questions)


def counted(wins: int, losses: int, alike: int = 0) -> PairCounts:
    return PairCounts(both=alike, only_first=wins, only_second=losses, neither=0)


@pytest.mark.parametrize(
    ("new", "old", "starts", "counts"),
    [("s" * 14 + "sfsf", "f" * 14 + "sffs", None, counted(15, 1)), ("s" * 40, "f" * 40, 13, counted(13, 0))],
)
def test_evidence_ends_at_the_e_value_of_all_starts(tmp_path, new, old, starts, counts):
    curve = curve_of(tmp_path / "run", new, old, starts=starts)
    assert (curve.points[0], curve.points[-1][0]) == ((0, 0.0), len(new))
    assert curve.points[-1][1] == pytest.approx(log_e_value_of_equality(counts) / math.log(10))
    assert curve.line.startswith("0.00,")


@pytest.mark.parametrize(
    ("question", "number", "needed", "bar"),
    [
        (None, 1, "20", "0.05, the default"),
        (QUESTION, 2, "40", "0.05, shared by 2 questions"),
        (dataclasses.replace(QUESTION, alpha=0.01), 1, "100", "0.01, for one question"),
    ],
)
def test_the_questions_of_a_run_share_the_level_that_decides(tmp_path, question, number, needed, bar):
    curve = curve_of(tmp_path / "run", "ss", "ff", question, num_questions=number)
    assert (curve.needed, curve.bar) == (needed, f"alpha {bar}")


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


NEW, OLD = "s" * 14 + "sfsf", "f" * 14 + "sffs"


def compared_in(*runs: Path, answers: list[Any] | None = None) -> JobsCompared:
    """Compare all jobs of runs, which stand on the page in their order."""
    read = [read_run(run) for run in runs]
    names = [(number, name) for number, each in enumerate(read) for name in each.arms]
    return compared_jobs(read, {key: at for at, key in enumerate(names)}, *([] if answers is None else [answers]))


def pairs_of(directory: Path, **jobs: str) -> tuple[PairOnPage, ...]:
    return compared_in(write_run(directory, jobs)).pairs


def test_a_pair_says_what_compare_says_and_what_is_no_pair_is_left_out(tmp_path: Path):
    (pair,) = pairs_of(tmp_path / "run", old=OLD, new=NEW)
    (task,) = compare_with_job(read_run(tmp_path / "run"), "old", ComparisonQuestion()).tasks
    assert (pair.first, pair.second, pair.verdict) == (1, 0, str(task.verdict))
    assert (pair.difference, pair.interval, pair.mid_p) == (task.difference, task.interval, task.mid_p)
    assert (pair.discordant, pair.episodes) == ((*range(14), 16, 17), None)
    assert pairs_of(tmp_path / "other", old="ee", new="sf") == ()
    old = write_run(tmp_path / "old", {"lift": "ssff"})
    (pair,) = compared_in(old, write_run(tmp_path / "new", {"lift": "sfsf"}, moved={2: 0.9})).pairs
    assert (pair.episodes, pair.discordant) == ((0, 1, 3), (1,))


DAMAGED = {"sound": {}, "no task": 1, "no candidate": {"candidate": {}}} | {
    "no run": {"candidate": {"run": "\0", "job": "new"}}
}


@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_a_comparison_that_lies_there_decides_what_is_shown_as_far_as_it_is_sound(tmp_path: Path, damaged: Any):
    run = write_run(tmp_path / "run", {"old": OLD, "new": NEW, "other": OLD})
    write_comparison(run, compare_with_job(read_run(run), "old", ComparisonQuestion()))
    document = json.loads((run / "comparison.json").read_text())
    document["tasks"][0] = document["tasks"][0] | damaged if isinstance(damaged, dict) else damaged
    (run / "comparison.json").write_text(json.dumps(document))
    verdicts = {(pair.first, pair.second): pair.verdict for pair in compared_in(run).pairs}
    assert verdicts == ({(1, 0): "better"} if damaged == {} else {}) | {(2, 0): "undecided"}


@pytest.mark.parametrize("content", ["", "[]", '{"tasks": [1]}', '{"tasks": [{"candidate": {}}]}'])
def test_a_damaged_comparison_says_nothing(tmp_path: Path, content: str):
    run = write_run(tmp_path / "run", {"old": OLD, "new": NEW})
    (run / "comparison.json").write_text(content)
    assert len(compared_in(run).pairs) == 1


def test_a_run_that_asked_shows_what_it_asked_also_beside_a_comparison_made_the_other_way_round(tmp_path: Path):
    stopped_run(tmp_path)
    answers = [merge_results(tmp_path).answers]
    names = {(0, "old"): 0, (0, "new"): 1}
    (pair,) = compared_jobs([read_run(tmp_path)], names, answers).pairs
    assert (pair.first, pair.second, pair.verdict, pair.could_stop) == (1, 0, "better", ("new", "old"))
    assert pair.evidence is not None
    assert str(pair.evidence.answer).startswith("better: decided after 7 of 12")
    assert pairs_of(tmp_path / "other", old=OLD, new=NEW)[0].could_stop == ()
    write_comparison(tmp_path, compare_with_job(read_run(tmp_path), "new", ComparisonQuestion()))
    (pair,) = compared_jobs([read_run(tmp_path)], names, answers).pairs
    assert (pair.first, pair.second, pair.verdict) == (0, 1, "worse")
    assert pair.evidence is not None
    assert pair.evidence.answer is not None


def test_pairs_that_repeat_conditions_are_those_that_compare_counts(tmp_path: Path):
    run = write_run(tmp_path / "run", {"old": "f" * 40, "new": "s" * 40}, starts=2)
    (pair,) = compared_in(run).pairs
    (task,) = compare_with_job(read_run(run), "old", ComparisonQuestion()).tasks
    assert (pair.distinct, pair.mid_p, pair.interval) == (2, task.mid_p, task.interval)


def shown(*runs: Path, **how: Any) -> tuple[Finding, ...]:
    return page_of({run: merge_results(run) for run in runs}, embedded_bytes=0, **how).findings


def answer_of(directory: Path, jobs: dict[str, str], **how: Any) -> tuple[Finding, ...]:
    return shown(write_run(directory, jobs, **how))


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
    (task,) = compare_with_job(read_run(tmp_path / "run"), "old", ComparisonQuestion()).tasks
    needed = task.pairs_needed
    assert needed is not None
    assert found.claim == "Not decided: new or old"
    for words in (f"about {needed:,} episodes", f"{needed - 20:,} more than", f"set num_episodes to {needed}"):
        assert words in found.way_out


ANSWERS = {
    "alike": ({"old": "ssff", "new": "ssff"}, {}, -1, "Not decided", "Every episode has the same outcome"),
    "even": ({"old": "sfss", "new": "fsss"}, {}, -1, "Not decided", "Each alone succeeded in 1"),
    "interrupted": ({"old": OLD, "new": "s--s"}, {}, 0, "The run was interrupted in new", ""),
    "not finished": ({"old": OLD, "new": "s--s"}, {}, 1, "Not finished: new or old", "in 1 episodes"),
    "way out": ({"old": OLD, "new": "s--s"}, {}, 1, "Not finished", "Finish the run"),
    "a rate": ({"lift": "sssf"}, {}, 0, "lift succeeds in 75.0 % [30.1, 95.4]", ""),
    "alone": ({"lift": "sssf"}, {}, 1, "", "evaluate another policy"),
    "a suite": ({"mine:0": "ss", "yours:1": "sf"}, {}, 0, "mine: mean of its tasks 100.0 %", ""),
    "other tasks": ({"mine:0": "ss", "yours:1": "sf"}, {}, 2, "No two jobs can be compared", ""),
    "other starts": ({"old": OLD, "new": NEW}, {"own_starts": True}, 1, "", "no two episodes started"),
    "named": ({"old": OLD, "new": NEW}, {"own_starts": True}, 1, "", "cube.x"),
}


@pytest.mark.parametrize(("jobs", "how", "place", "claim", "words"), ANSWERS.values(), ids=ANSWERS)
def test_a_page_says_what_its_jobs_tell_and_what_is_missing(tmp_path: Path, jobs, how, place, claim, words):
    found = answer_of(tmp_path / "run", jobs, **how)[place]
    assert found.claim.startswith(claim)
    assert words in f"{found.figures} {found.way_out}"


def test_every_two_jobs_of_a_task_are_compared_as_one_family_and_the_most_telling_come_first(tmp_path: Path):
    pairs = pairs_of(tmp_path / "run", middle="sf" * 6, worst="f" * 12, best="s" * 12)
    assert [(pair.first, pair.second) for pair in pairs] == [(2, 1), (1, 0), (2, 0)]
    assert [pair.adjusted_p for pair in pairs] == sorted(pair.adjusted_p for pair in pairs)
    assert pairs[0].adjusted_p == pytest.approx(3 * pairs[0].mid_p)
    report = compare_with_job(read_run(tmp_path / "run"), "worst", ComparisonQuestion())
    with_worst = sorted(pair.mid_p for pair in pairs if 1 in (pair.first, pair.second))
    assert with_worst == pytest.approx(sorted(each.mid_p for each in report.tasks))
    # Of many jobs each is compared with the first.
    many = pairs_of(tmp_path / "many", **{f"job{number}": "sf" * 4 for number in range(8)})
    assert sorted((pair.first, pair.second) for pair in many) == [(number, 0) for number in range(1, 8)]


def test_jobs_under_several_seeds_are_compared_with_those_of_their_own_seed(tmp_path: Path):
    names = ("a0", "a1", "a2")
    old, new = (write_run(tmp_path / each, dict.fromkeys(names, each), own_starts=True) for each in (OLD, NEW))
    compared = compared_in(old, new)
    pairs = sorted((pair.first, pair.second, pair.family) for pair in compared.pairs)
    assert pairs == [(3, 0, 1), (4, 1, 1), (5, 2, 1)]
    assert (compared.alone, compared.missing) == ((), ())


BROKEN = {
    "----": ("The run failed in broken", "ValueError: 14 features, not 9. 4 of 8 episodes are there.", ""),
    "eeee": ("The run failed in broken", "8 of 8 episodes are there.", " --retry_errors"),
    "s---": ("The run was interrupted in broken", "5 of 8 episodes are there.", ""),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_run_that_failed_or_was_interrupted_says_so_first_with_the_line_that_resumes_it(tmp_path: Path, broken: str):
    claim, figures, options = BROKEN[broken]
    run = write_run(tmp_path / "a run", {"good": "sssf", "broken": broken})
    if broken == "----":
        error = "ValueError: 14 features, not 9\nand more"
        write_report(run, report("broken", status=ReportedStatus.FAILED, error=error))
    plan = dataclasses.replace(read_run_plan(run), command_line=("isaaclab_arena.evaluation.eval_runner", "jobs.json"))
    write_run_plan(run, plan, revises=True)
    found, *others = shown(run)
    assert (found.claim, found.command) == (claim, f"isaaclab-arena resume '{run}'{options}")
    assert found.figures.endswith(figures)
    assert not any("compare" in each.claim for each in others)


def test_one_policy_alone_has_its_rate_over_all_jobs_and_its_worst_and_best_one(tmp_path: Path):
    outcomes = {"a": "sssf", "b": "ffff"}
    whole, missing = shown(*(write_run(tmp_path / name, {name: outcomes[name]}, object=name) for name in "ab"))
    assert whole.claim == "zero_action succeeds in 37.5 % [13.7, 69.4]"
    assert "from 0.0 % [0.0, 49.0] in b: b to 75.0 % [30.1, 95.4] in a: a." in whole.figures
    assert missing.claim == "No two jobs can be compared"


def test_one_policy_under_several_seeds_repeats_itself_and_is_no_rival(tmp_path: Path):
    runs = [
        write_run(tmp_path / name, {"lift": outcomes}, moved=dict.fromkeys(range(4), 10.0 * seed), seed=seed)
        for seed, (name, outcomes) in enumerate({"a": "sssf", "b": "ffff"}.items())
    ]
    whole, missing = shown(*runs)
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
    claims = {found.claim for found in shown(fast, slow, bad)[:2]}
    assert claims == {f"{name}: {name} is better than bad: bad" for name in ("fast", "slow")}


def test_two_policies_that_meet_on_several_tasks_have_one_answer_over_all_of_them(tmp_path: Path):
    old = write_run(tmp_path / "old", {"mine:0": OLD, "mine:1": "sf" * 9}, policy_type="zero_action")
    new = write_run(tmp_path / "new", {"mine:0": NEW, "mine:1": "ss" * 9}, policy_type="random_action")
    whole, *tasks = shown(old, new)
    together = compare_directories([old, new], ComparisonQuestion()).together
    assert together is not None
    assert whole.claim == "random_action is better than zero_action over 2 tasks"
    assert f"{100 * together.difference:+.1f} points" in whole.figures
    assert f"p = {together.mid_p:.2g}" in whole.figures
    assert len(tasks) == 2


@pytest.mark.parametrize(("running", "more"), [(False, ()), (True, ("The run is in progress",))])
def test_a_run_that_asked_answers_with_its_evidence_which_holds_at_every_look(tmp_path: Path, running, more):
    stopped_run(tmp_path)
    page = page_of({tmp_path: merge_results(tmp_path)}, embedded_bytes=0, running=running)
    found, *others = page.findings
    assert found.claim == "new is better than old"
    assert "decided after 7 of 12" in found.figures
    assert "McNemar" not in found.figures
    assert not running or ([each.claim for each in others], page.compared.pairs) == ([*more], ())


@pytest.mark.parametrize(("outcomes", "claim"), [("s" * 40, "lift succeeds in"), ("sf", "Not decided: whether")])
def test_a_run_that_asked_for_a_bar_answers_whether_it_is_reached(outcomes: str, claim: str):
    bar = Question(name="bar", jobs=("lift",), max_episodes=40, at_least=0.5)
    finished = {"lift": {line.episode_index: line for line in commit_lines(outcomes)}}
    (found,) = findings(JobsCompared(), [], answers=[Answering(bar, num_questions=1).look(finished)])
    assert found.claim.startswith(claim)
    assert "e = " in found.figures
