import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.learning_curve import (
    BEST_FILE,
    Best,
    Evaluated,
    checkpoint_measures,
    points_of,
    points_of_watch,
    scores_of,
)
from isaaclab_arena.storage.disk import json_text, write_text
from tests.evaluation.watching.points import point, write_run_of_checkpoint


@dataclass(frozen=True)
class Watch:
    """The directory of a watch, and how to write its page anew."""

    directory: Path

    def page(self, *options: str) -> str:
        assert main(["report", str(self.directory), *options]) == 0
        return (Path(options[1]) if options else self.directory / "report.html").read_text(encoding="utf-8")


def write_record(directory: Path, record: Evaluated) -> None:
    write_text(directory / "watch" / f"step_{record.step}" / "evaluated.json", json_text(record), overwrite=True)


@pytest.fixture
def watch(tmp_path) -> Watch:
    """A watch of three checkpoints, the last of which could not be evaluated; the run of the first has no page."""
    directory = tmp_path / "watch_go1"
    for step, ends in ((0, "ffff"), (50, "sssf")):
        write_run_of_checkpoint(directory / f"step_{step}", step, {"go1": ends, "flat": "ssff"})
        write_record(directory, Evaluated(step=step, path=f"model_{step}.pt", fingerprint="", is_done=True))
    (directory / "step_50" / "report.html").touch()
    write_record(
        directory, Evaluated(step=100, path="model_100.pt", fingerprint="", tries=1, reason="<it> was refused")
    )
    return Watch(directory)


def test_each_point_of_the_curve_leads_to_the_page_of_its_run(watch):
    html = watch.page()
    assert html.count('<figure class="learning">') == 2
    assert re.findall(r'<a href="([^"#]+)" aria-label="50: (\d) of 4"', html) == [
        ("step_50/report.html", "3"),
        ("step_50/report.html", "2"),
    ]
    assert "step_0/report.html" not in html
    assert 'class="band"' in html
    assert "Step 100 was not evaluated: &lt;it&gt; was refused" in html


@pytest.mark.parametrize(
    ("alike", "name", "advice"),
    [
        (0, "in other episodes", "Quote the score in other episodes."),
        (8, "once more, from the same initial conditions", "it may look too good as well"),
    ],
    ids=["other episodes", "the same starts"],
)
def test_both_scores_of_the_best_are_shown_as_soon_as_there_are_two(watch, alike, name, advice):
    assert "62.5 % [30.6, 86.3]" in watch.page()
    assert name not in watch.page()
    write_best(watch.directory, alike=alike)
    html = watch.page()
    assert "62.5 % [30.6, 86.3]" in html
    assert re.search(rf"{name}.*?37.5 % \[13.7, 69.4\]", html, re.DOTALL)
    assert advice in html


def write_best(directory: Path, *, alike: int) -> None:
    """Score the best checkpoint, that of step 50, again."""
    run = directory / "best_step_50"
    write_run_of_checkpoint(run, 50, {"go1": "ssff", "flat": "sfff"})
    fresh, chosen = scores_of(points_of(run, 50))[50], scores_of(points_of_watch(directory))[50]
    (directory / BEST_FILE).write_text(json_text(Best(chosen=chosen, fresh=fresh, alike=alike)))


def test_services_get_each_job_as_a_series_over_the_steps_and_the_best_marked(watch):
    points = points_of_watch(watch.directory)
    assert {(each.series, each.step) for each in checkpoint_measures(watch.directory, points)} == {
        (job, step) for job in ("go1", "flat") for step in (0, 50)
    }
    write_best(watch.directory, alike=0)
    *_, best = checkpoint_measures(watch.directory, points)
    assert (best.series, best.step) == ("best", 50)
    assert (best.values["success_rate"], best.values["fresh_success_rate"], best.values["episodes"]) == (
        0.625,
        0.375,
        8,
    )
    assert best.values["success_low"] < 0.625 < best.values["success_high"]
    *_, best = checkpoint_measures(watch.directory, [*points, point(0, 0, job="best")])
    assert best.series == "best_", "a job has the name"


def test_a_page_elsewhere_has_no_links_that_lead_nowhere(watch, tmp_path):
    assert "report.html" not in watch.page("--output", str(tmp_path / "mailed.html"))


def test_a_watch_is_reported_alone_and_only_once_something_was_evaluated(watch, tmp_path, capsys):
    assert main(["report", str(watch.directory), str(watch.directory / "step_50")]) == 2
    assert "is a watch, which has a page of its own; name it alone" in capsys.readouterr().err
    write_record(tmp_path / "new", Evaluated(step=0, path="model_0.pt", fingerprint=""))
    assert main(["report", str(tmp_path / "new")]) == 2
    assert "no checkpoint of this watch has been evaluated yet" in capsys.readouterr().err
