"""A directory of checkpoints that is followed."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.cli.main import main
from isaaclab_arena.cli.watch import Watch, WatchOptions, jobs_of_checkpoint, run_checkpoint
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.eval_runner import main as run_jobs
from isaaclab_arena.evaluation.learning_curve import (
    BEST_FILE,
    Best,
    Evaluated,
    points_of,
    points_of_watch,
    scores_of,
)
from isaaclab_arena.storage.atomic import json_text, write_text
from tests.evaluation.watching.trainings import (
    HEADS,
    CalledEnvironment,
    Evaluations,
    save,
    write_run_of_checkpoint,
)
from tests.fakes import CoinBuilder

# A whole watch: the coins of later checkpoints show heads more often.


COINS = {"environment": "coins", "num_envs": 8}
JOB = {"name": "coins", "arena_env_args": COINS, "num_episodes": 40}
JOB["policy_type"] = "tests.evaluation.watching.trainings:call_heads"
TEN_HEADS = {**JOB, "name": "ten_heads-50", "policy_config_dict": {"heads": 1.0}, "num_episodes": 10}
TEN_HEADS["checkpoints"] = None


@dataclass(frozen=True)
class Story:
    """What came of a training that was watched three times: until the bar was reached, after it, and once more."""

    settings: WatchOptions
    asked: list[list[int]]
    said: list[list[str]]


def toss(checkpoint: Checkpoint, directory: Path, seed_offset: int) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    settings = WatchOptions(training=checkpoint.path.parent, eval_jobs_config=Path("jobs.json"))
    asked = jobs_of_checkpoint(settings, {"jobs": [TEN_HEADS, JOB]}, checkpoint, seed_offset)
    job_file = directory.with_suffix(".json")
    job_file.write_text(json.dumps(asked))
    line = ["--eval_jobs_config", str(job_file), "--output_dir", str(directory), "--no_dataset", "--no_report"]
    assert run_jobs(line) == 0


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("story")
    watch, stop = directory / "watch", directory / "watch" / "stop"
    save(directory / "training", *HEADS)
    plain = WatchOptions(training=directory / "training", eval_jobs_config=Path(), output_dir=watch, once=True)
    story = Story(replace(plain, bar=0.3, promote=watch / "good", stop_file=stop), [], [])
    with ENVIRONMENTS.restored_afterwards():
        ENVIRONMENTS.register("coins", CoinBuilder(CalledEnvironment))
        for _ in range(3):
            evaluate, said = Evaluations(play=toss), list[str]()
            assert Watch(settings=story.settings, evaluate=evaluate, say=said.append).run() == 0
            story.asked.append([*evaluate.asked, *evaluate.asked_again])
            story.said.append(said)
            if len(story.said) == 1:
                assert stop.read_text().startswith("step 50: ")
                stop.unlink()
        yield story


def test_the_curve_has_a_line_and_an_interval_for_every_checkpoint_and_baselines_beside_them(story):
    directory = story.settings.directory
    lines = list(csv.DictReader((directory / "curve.csv").open()))
    assert [line["success_rate"] for line in lines if line["job"] == "ten_heads-50"] == ["1.0"] * 3
    coins = [line for line in lines if line["job"] == "coins"]
    assert [(line["step"], line["scored"]) for line in coins] == [(str(step), "40") for step in HEADS]
    low, rate, high = ([float(line[key]) for line in coins] for key in ("success_low", "success_rate", "success_high"))
    assert rate == sorted(rate)
    assert all(each[0] < each[1] < each[2] for each in zip(low, rate, high, strict=True))
    said = f"step 0: {100 * rate[0]:.1f} % [{100 * low[0]:.1f}, {100 * high[0]:.1f}] of 40 episodes"
    assert story.said[0][0] == said, "a baseline is no part of a score"
    assert (directory / "curve.md").read_text().count("| coins |") == 3
    assert "<polygon" in (directory / "curve.svg").read_text()
    assert Image.open(directory / "curve.png").size == (1440, 760)


def test_a_bar_promotes_what_reaches_it_ends_the_watch_and_no_baseline_shifts_it(story):
    assert story.asked[0] == [0, 50, 50], "the best so far is scored again"
    assert any(line.startswith("step 50 reached the bar of 30 %") for line in story.said[0])
    good = story.settings.directory / "good"
    told = json.loads((good / "promoted.json").read_text())
    assert (told["step"], told["compared_with"], told["verdict"]) == (100, 50, "better")
    assert (good / "comparison_100" / "comparison.md").is_file()


def test_the_best_is_scored_once_again_in_episodes_by_which_it_was_not_chosen(story):
    assert story.asked[1:] == [[100, 100], []]
    best, again, shown = story.said[1][-3:]
    assert best.startswith("the best is step 100, ")
    assert again.startswith("  in other episodes: ")
    assert story.said[2][-3:] == [best, again, shown]
    assert "in other episodes" in (story.settings.directory / "report.html").read_text()


# The runner is asked as a person would ask it; here a program of the test stands in its place.


DOCUMENT = {"jobs": [{"name": "reach", "policy_type": "rsl_rl", "arena_env_args": {"environment": "reach"}}]}


def program(ending: str) -> list[str]:
    """Return a program that writes its arguments, and ends as it is told."""
    return [sys.executable, "-c", f"import os, sys; open('asked', 'w').write(' '.join(sys.argv[1:])); {ending}"]


@pytest.fixture
def runner_settings(tmp_path, monkeypatch) -> WatchOptions:
    monkeypatch.chdir(tmp_path)
    save(Path("training"), 50)
    return WatchOptions(
        training=Path("training"), eval_jobs_config=Path("jobs.json"), output_dir=Path("watch"), once=True, poll_s=0.05
    )


def evaluated(runner_settings: WatchOptions, *options: str, ending: str = "sys.exit(0)") -> tuple[int, str]:
    checkpoint = Checkpoint(step=50, path=Path("training/model_50.pt"))
    code = run_checkpoint(runner_settings, DOCUMENT, options, checkpoint, Path("watch/step_50"), runner=program(ending))
    return code, Path("asked").read_text()


def test_the_runner_gets_the_jobs_of_the_checkpoint_and_other_options_and_goes_on_with_what_was_begun(runner_settings):
    jobs = "--eval_jobs_config watch/watch/step_50/jobs.json"
    words = "--cluster ray --ray_address head:6379 --num_ranks 4 --gpus_per_rank 0.5"
    assert evaluated(runner_settings, *words.split()) == (0, f"{jobs} --output_dir watch/step_50 {words}")
    (job,) = json.loads(Path("watch/watch/step_50/jobs.json").read_text())["jobs"]
    assert (job["policy_config_dict"], job["checkpoints"]["steps"]) == ({"checkpoint_path": "training"}, [50])
    Path("watch/step_50").mkdir(parents=True)
    Path("watch/step_50/run.json").touch()
    assert evaluated(runner_settings)[1] == f"{jobs} --resume watch/step_50 --retry_errors"


@pytest.mark.parametrize(
    ("ending", "exit_code", "told"),
    [
        ("sys.exit(1)", 1, "step 50 was not evaluated: not every job has all its episodes"),
        ("sys.exit(2)", 2, ""),
        ("sys.exit(130)", 130, ""),
        ("os.kill(os.getpid(), 15)", 130, ""),
        ("os.kill(os.getpid(), 9)", 1, "step 50 was not evaluated: its process ended with -9"),
    ],
)
def test_the_exit_code_of_the_runner_decides(runner_settings, capsys, ending, exit_code, told):
    evaluate = partial(run_checkpoint, runner_settings, DOCUMENT, (), runner=program(ending))
    assert Watch(settings=runner_settings, evaluate=evaluate).run() == exit_code
    assert told in capsys.readouterr().out


@dataclass(frozen=True)
class PageWatch:
    """The directory of a watch, and how to write its page anew."""

    directory: Path

    def page(self, *options: str) -> str:
        assert main(["report", str(self.directory), *options]) == 0
        return (Path(options[1]) if options else self.directory / "report.html").read_text(encoding="utf-8")


def write_record(directory: Path, record: Evaluated) -> None:
    write_text(directory / "watch" / f"step_{record.step}" / "evaluated.json", json_text(record), overwrite=True)


@pytest.fixture
def watch(tmp_path) -> PageWatch:
    """A watch of three checkpoints, the last of which could not be evaluated; the run of the first has no page."""
    directory = tmp_path / "watch_go1"
    for step, ends in ((0, "ffff"), (50, "sssf")):
        write_run_of_checkpoint(directory / f"step_{step}", step, {"go1": ends, "flat": "ssff"})
        write_record(directory, Evaluated(step=step, path=f"model_{step}.pt", fingerprint="", is_done=True))
    (directory / "step_50" / "report.html").touch()
    write_record(
        directory, Evaluated(step=100, path="model_100.pt", fingerprint="", tries=1, reason="<it> was refused")
    )
    return PageWatch(directory)


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
        (8, "again, from the same initial conditions", "it may look too good as well"),
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
