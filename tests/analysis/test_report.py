"""The page and the table that a comparison writes."""

import dataclasses
import io
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from isaaclab_arena.analysis.arms import ReadRun
from isaaclab_arena.analysis.comparison import NotComparableError, Question, Verdict, compare_runs, compare_with_job
from isaaclab_arena.analysis.comparison_files import leaderboard
from isaaclab_arena.analysis.picture import Dot, Line, Picture, Words, png, svg
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.results.statistics import mean_rate_interval
from isaaclab_arena.storage.contents import Contents
from tests.analysis.recorded_runs import run_of


def runs(tmp_path, candidate: dict[str, str], baseline: dict[str, str], **how: Any) -> tuple[ReadRun, ReadRun]:
    return run_of(tmp_path / "candidate", candidate, **how), run_of(tmp_path / "baseline", baseline)


def test_jobs_of_the_same_name_are_compared_as_one_family(tmp_path):
    report = compare_runs(
        *runs(tmp_path, {"lift": "s" * 8, "new": "s", "reach": "sf" * 4}, {"lift": "f" * 8, "reach": "sf" * 4}),
        Question(),
    )
    assert [each.first.entry.name for each in report.tasks] == ["lift", "reach"]
    assert [each.verdict for each in report.tasks] == [Verdict.BETTER, Verdict.UNDECIDED]
    assert report.verdict is Verdict.BETTER
    assert report.together is not None
    assert report.together.counts.total == 16
    assert report.together.difference == report.together.mean_of_tasks == 0.5


OLD = {"old:0": "sf" * 4, "old:1": "ffff", "old:2": "ss"}
NEW = {"new:0": "s" * 8, "new:1": "ssss", "new:3": "ss"}


SAME, UNSURE = {"lift": "s" * 200, "reach": "s" * 200}, {"lift": "s" * 200, "reach": "s" * 10 + "f" * 5}


@pytest.mark.parametrize(
    ("candidate", "baseline", "margin", "verdict"),
    [
        ({"lift": "s" * 9, "reach": "f" * 9}, {"lift": "f" * 9, "reach": "s" * 9}, None, Verdict.WORSE),
        (SAME, SAME, 0.05, Verdict.NO_WORSE),
        (UNSURE, UNSURE, 0.05, Verdict.UNDECIDED),
    ],
)
def test_one_task_that_is_worse_or_unsure_decides_the_verdict(tmp_path, candidate, baseline, margin, verdict):
    assert compare_runs(*runs(tmp_path, candidate, baseline), Question(margin=margin)).verdict is verdict


def test_jobs_may_be_named_to_belong_together(tmp_path):
    candidate, baseline = runs(tmp_path, {"new": "ss"}, {"old": "sf", "a": "s", "b": "s"})
    report = compare_runs(candidate, baseline, Question(), names={"old": "new"})
    assert report.tasks[0].counts.total == 2
    with pytest.raises(ConfigError, match="no job 'lift'"):
        compare_runs(candidate, baseline, Question(), names={"old": "lift"})


REFUSED = {
    "other names": ({"new": "ss"}, {"old": "sf"}, {}, "no job of the same name; .* --map OLD=NEW"),
    "not finished": ({"lift": "ss-s"}, {"lift": "sfff"}, {}, "lift has 1 of 4 episodes to go: .* resume "),
    "other starts": ({"lift": "ss"}, {"lift": "ss"}, {"moved": {0: 0.1, 1: 0.2}}, r"2 differ in cube\.x"),
    "no success": ({"lift": "uu"}, {"lift": "uu"}, {}, "neither measures success; mean return .* over 2 pairs"),
    "other suites": ({**NEW, "third:0": "s" * 8}, OLD, {}, "no job of the same name"),
    "another protocol": (
        NEW,
        OLD,
        {"environment_args": {"protocol": "strict"}},
        "not the same task: protocol 'strict'",
    ),
}


@pytest.mark.parametrize(("candidate", "baseline", "how", "words"), REFUSED.values(), ids=REFUSED)
def test_runs_that_cannot_be_compared_are_refused_and_say_why(tmp_path, candidate, baseline, how, words):
    with pytest.raises(NotComparableError, match=words):
        compare_runs(*runs(tmp_path, candidate, baseline, **how), Question())


def test_what_there_is_of_runs_is_compared_where_that_will_do_and_a_job_without_success_is_left_out(tmp_path):
    candidate, baseline = runs(tmp_path, {"lift": "ss-s", "reach": "uu", "a": "s"}, {"lift": "sfff", "reach": "uu"})
    report = compare_runs(candidate, baseline, Question(), partial=True)
    assert report.notes[0] == "only the candidate has 'a'"
    assert [(each.first.entry.name, each.counts.total) for each in report.tasks] == [("lift", 2)]
    assert "neither measures success" in report.refused[0].reason


def test_a_job_is_the_baseline_of_the_others_of_its_task(tmp_path):
    report = compare_with_job(run_of(tmp_path / "run", {"old": "sf", "a": "ss", "b": "ff"}), "old", Question())
    assert [each.first.entry.name for each in report.tasks] == ["a", "b"]
    with pytest.raises(NotComparableError, match="no other job"):
        compare_with_job(run_of(tmp_path / "alone", {"old": "sf"}), "old", Question())


def changed(run: ReadRun, **said: Any) -> ReadRun:
    """Return a run of one job of which something else is said."""
    return dataclasses.replace(run, arms={"lift": dataclasses.replace(run.arms["lift"], **said)})


def test_the_same_policy_on_both_sides_and_versions_that_differ_are_told(tmp_path):
    candidate, baseline = runs(tmp_path, {"lift": "ss"}, {"lift": "ss"})
    assert compare_runs(candidate, baseline, Question()).notes == ()
    contents = Contents(policy={"checkpoint": "1.0"})
    report = compare_runs(changed(candidate, contents=contents), changed(baseline, contents=contents), Question())
    [note] = report.notes
    assert "same policy" in note
    plan = dataclasses.replace(candidate.plan, versions={"torch": "3.0"})
    [note] = compare_runs(changed(candidate, provenance=plan.provenance), baseline, Question()).notes
    assert note == "torch was None for the baseline and 3.0 for the candidate"


def pairs(report) -> list[tuple[str, str]]:
    return [(each.first.entry.name, each.second.entry.name) for each in report.tasks]


def test_a_suite_of_a_run_is_judged_by_another_task_by_task(tmp_path):
    run = run_of(tmp_path / "run", {**OLD, **NEW, "lift": "s" * 8, "outside:0": "s" * 8})
    report = compare_with_job(run, "old", Question())
    assert pairs(report) == [("new:0", "old:0"), ("new:1", "old:1")]
    assert report.together is not None
    assert report.together.counts.total == 12
    assert report.together.mean_of_tasks == 0.75
    with pytest.raises(ConfigError, match="no job 'odl'"):
        compare_with_job(run, "odl", Question())
    with pytest.raises(NotComparableError, match="nothing can be compared"):
        compare_with_job(run_of(tmp_path / "alone", OLD), "old", Question())


def test_the_only_suites_of_two_runs_are_compared_and_others_by_their_names(tmp_path):
    assert pairs(compare_runs(*runs(tmp_path / "1", NEW, OLD), Question())) == [("new:0", "old:0"), ("new:1", "old:1")]
    two = runs(tmp_path / "2", {**NEW, "third:0": "s" * 8}, OLD)
    assert pairs(compare_runs(*two, Question(), names={"old": "third"})) == [("third:0", "old:0")]


SVG = "{http://www.w3.org/2000/svg}"


def picture(*marks: Line | Dot | Words) -> Picture:
    return Picture(width=60, height=40, marks=marks, description="what <it> shows")


def pixels(drawn: Picture, scale: int = 1) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png(drawn, scale=scale))))


def test_an_svg_holds_every_mark_and_says_what_it_shows():
    marks = (
        Line(points=((1, 2), (3, 4)), colour="#ff0000", width=2),
        Dot(centre=(9, 10), radius=3, colour="#0000ff"),
        Words(at=(11, 12), text="a < b & c", colour="#000000", anchor="end"),
    )
    document = ET.fromstring(svg(picture(*marks)))
    assert (document.get("width"), document.get("height")) == ("60", "40")
    assert pixels(picture(), scale=2).shape == (80, 120, 3)
    title, ground, line, dot, words = document
    assert (title.text, ground.get("fill")) == ("what <it> shows", "#ffffff")
    assert (line.tag, line.get("points"), line.get("stroke")) == (f"{SVG}polyline", "1.0,2.0 3.0,4.0", "#ff0000")
    assert (dot.tag, dot.get("cx"), dot.get("r")) == (f"{SVG}circle", "9.0", "3")
    assert (words.tag, words.text, words.get("text-anchor")) == (f"{SVG}text", "a < b & c", "end")


@pytest.mark.parametrize(
    ("mark", "inside", "outside"),
    [
        (Line(points=((5, 20), (55, 20)), colour="#ff0000", width=4), (20, 30), (30, 30)),
        (Dot(centre=(30, 20), radius=5, colour="#ff0000"), (20, 30), (20, 40)),
    ],
)
def test_a_png_shows_a_mark_where_it_is(mark, inside, outside):
    shown = pixels(picture(mark))
    assert shown[inside].tolist() == [255, 0, 0]
    assert shown[outside].tolist() == [255, 255, 255]


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
    equal = leaderboard([run_of(tmp_path / "equal", {"a": "sf", "b": "fs", "c": "ff"})], Question())
    assert [place.rank for place in equal.places] == [1, 1, 3]


RANKED = {
    "unfinished": ([{"a": "ss", "b": "s-"}], {}, "b has 1 episodes to go"),
    "unmeasured": ([{"a": "ss", "b": "uu"}], {}, "b does not measure success"),
    "other jobs": ([{"a": "ss"}, {"b": "ss"}], {}, "no job that all"),
    "other starts": ([{"a": "ss"}, {"a": "ss"}], {"moved": {0: 0.1, 1: 0.1}}, "the same conditions"),
    "other tasks": ([{"a:0": "s", "b:1": "s"}], {}, "no task that all"),
}


@pytest.mark.parametrize(("jobs", "how", "words"), RANKED.values(), ids=RANKED)
def test_policies_that_cannot_be_ranked_are_refused(tmp_path, jobs, how, words):
    compared = [run_of(tmp_path / str(at), each, **(how if at else {})) for at, each in enumerate(jobs)]
    with pytest.raises(NotComparableError, match=words):
        leaderboard(compared, Question())


def test_suites_of_a_run_are_policies_ordered_by_the_mean_of_their_tasks(tmp_path):
    suites = {"bad:0": "f" * 9, "bad:1": "sf" * 5, "good:0": "s" * 9, "good:1": "s" * 10, "good:2": "f"}
    found = leaderboard([run_of(tmp_path / "run", suites)], Question())
    assert found.tasks == ("0", "1")
    assert [(place.name, place.mean_rate, place.episodes) for place in found.places] == [
        ("good", 1.0, 19),
        ("bad", 0.25, 19),
    ]
    assert found.places[1].mean_interval == mean_rate_interval([(0, 9), (5, 10)])
