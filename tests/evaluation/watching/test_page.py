import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation.watching.curve import scores_of
from isaaclab_arena.evaluation.watching.evaluator import score_again
from isaaclab_arena.evaluation.watching.watch import points_of_watch
from isaaclab_arena.evaluation.watching.watcher import Evaluated, Ledger
from tests.evaluation.watching.points import write_run_of_checkpoint
from tests.evaluation.watching.trainings import Evaluations


@dataclass(frozen=True)
class Watch:
    """The directory of a watch, and how to write its page anew."""

    directory: Path

    def page(self, *options: str) -> str:
        assert main(["report", str(self.directory), *options]) == 0
        return (Path(options[1]) if options else self.directory / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def watch(tmp_path) -> Watch:
    """A watch of three checkpoints, the last of which could not be evaluated; the run of the first has no page."""
    directory = tmp_path / "watch_go1"
    ledger = Ledger(directory)
    for step, ends in ((0, "ffff"), (50, "sssf")):
        write_run_of_checkpoint(ledger.run_directory(step), step, {"go1": ends, "flat": "ssff"})
        ledger.write(Evaluated(step=step, path=f"model_{step}.pt", fingerprint="", is_done=True))
    (directory / "step_50" / "report.html").touch()
    ledger.write(Evaluated(step=100, path="model_100.pt", fingerprint="", tries=1, reason="<it> was refused"))
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
    ("moved", "name", "advice"),
    [
        (dict.fromkeys(range(4), 0.1), "in other episodes", "Quote the score in other episodes."),
        ({}, "once more, from the same initial conditions", "it may look too good as well"),
    ],
    ids=["other episodes", "the same starts"],
)
def test_both_scores_of_the_best_are_shown_as_soon_as_there_are_two(watch, tmp_path, moved, name, advice):
    assert "62.5 % [30.6, 86.3]" in watch.page()
    assert name not in watch.page()

    def play(checkpoint: Checkpoint, directory: Path) -> None:
        write_run_of_checkpoint(directory, 50, {"go1": "ssff", "flat": "sfff"}, moved=moved)

    chosen = scores_of(points_of_watch(watch.directory))[50]
    (tmp_path / "model_50.pt").touch()
    best = Checkpoint(step=50, path=tmp_path / "model_50.pt")
    score_again(Ledger(watch.directory), chosen, best, Evaluations(before=play), wait=lambda: None)
    html = watch.page()
    assert "62.5 % [30.6, 86.3]" in html
    assert re.search(rf"{name}.*?37.5 % \[13.7, 69.4\]", html, re.DOTALL)
    assert advice in html


def test_a_page_elsewhere_has_no_links_that_lead_nowhere(watch, tmp_path):
    assert "report.html" not in watch.page("--output", str(tmp_path / "mailed.html"))


def test_a_watch_is_reported_alone_and_only_once_something_was_evaluated(watch, tmp_path, capsys):
    assert main(["report", str(watch.directory), str(watch.directory / "step_50")]) == 2
    assert "is a watch, which has a page of its own; name it alone" in capsys.readouterr().err
    Ledger(tmp_path / "new").write(Evaluated(step=0, path="model_0.pt", fingerprint=""))
    assert main(["report", str(tmp_path / "new")]) == 2
    assert "no checkpoint of this watch has been evaluated yet" in capsys.readouterr().err
