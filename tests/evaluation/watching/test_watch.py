"""A directory of checkpoints that is followed."""

import csv
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import Question
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.eval_runner import main as run_jobs
from isaaclab_arena.evaluation.learning_curve import (
    BEST_FILE,
    Best,
    Evaluated,
    checkpoint_measures,
    points_of,
    points_of_watch,
    scores_of,
)
from isaaclab_arena.evaluation.watch import Watch, WatchSettings, jobs_of_checkpoint, run_checkpoint
from isaaclab_arena.results.statistics import wilson_interval
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text
from isaaclab_arena.storage.ledger import read_run_plan, write_run_plan
from isaaclab_arena.storage.run_directory import RunLock
from tests.end_to_end.launching import wait_until
from tests.evaluation.watching.points import point, write_run_of_checkpoint
from tests.evaluation.watching.trainings import (
    DONE,
    HEADS,
    INTERRUPTED,
    KILLED,
    CalledBuilder,
    Evaluations,
    KilledError,
    save,
)

# A whole watch: the coins of later checkpoints show heads more often.


COINS = {"environment": "coins", "num_envs": 8}
JOB = {"name": "coins", "arena_env_args": COINS, "num_episodes": 40}
JOB["policy_type"] = "tests.evaluation.watching.trainings:call_heads"
TEN_HEADS = {**JOB, "name": "ten_heads-50", "policy_config_dict": {"heads": 1.0}, "num_episodes": 10}
TEN_HEADS["checkpoints"] = None


@pytest.fixture
def settings(tmp_path) -> Iterator[WatchSettings]:
    save(tmp_path / "training", *HEADS)
    with ENVIRONMENTS.restored_afterwards():
        ENVIRONMENTS.register("coins", CalledBuilder())
        watch = tmp_path / "watch"
        yield WatchSettings(training=tmp_path / "training", eval_jobs_config=Path(), output_dir=watch, once=True)


def tossing(*exit_codes: int, jobs: Sequence[dict[str, Any]] = (JOB,), is_seeded: bool = True) -> Evaluations:
    """Return evaluations that toss 40 coins for each checkpoint; unless `is_seeded`, the same coins once more."""

    def toss(checkpoint, directory: Path, seed_offset: int) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        offset = seed_offset if is_seeded else 0
        settings = WatchSettings(training=checkpoint.path.parent, eval_jobs_config=Path("jobs.json"))
        asked = jobs_of_checkpoint(settings, {"jobs": [*jobs]}, checkpoint, offset)
        job_file = directory.with_suffix(".json")
        job_file.write_text(json.dumps(asked))
        line = ["--eval_jobs_config", str(job_file), "--output_dir", str(directory), "--no_dataset", "--no_report"]
        assert run_jobs(line) == 0

    return Evaluations(play=toss, exit_codes=exit_codes)


def watched(settings: WatchSettings, evaluate: Evaluations) -> tuple[int, list[str]]:
    """Return the exit code of a watch, and what it said."""
    said: list[str] = []
    return Watch(settings=settings, evaluate=evaluate, say=said.append).run(), said


def test_the_curve_has_a_line_and_an_interval_for_every_checkpoint(settings):
    exit_code, said = watched(settings, tossing())
    assert exit_code == 0
    lines = list(csv.DictReader((settings.directory / "curve.csv").open()))
    assert [(line["job"], line["step"], line["scored"]) for line in lines] == [
        ("coins", str(step), "40") for step in HEADS
    ]
    rates = [float(line["success_rate"]) for line in lines]
    assert rates == sorted(rates)
    assert all(float(line["success_low"]) < float(line["success_rate"]) < float(line["success_high"]) for line in lines)
    low, high = (100 * float(lines[0][f"success_{end}"]) for end in ("low", "high"))
    assert said[0] == f"step 0: {100 * rates[0]:.1f} % [{low:.1f}, {high:.1f}] of 40 episodes"
    assert (settings.directory / "curve.md").read_text().count("| coins |") == 3
    assert "<polygon" in (settings.directory / "curve.svg").read_text()
    assert Image.open(settings.directory / "curve.png").size == (1440, 760)


def test_the_best_is_scored_again_in_episodes_by_which_it_was_not_chosen(settings):
    evaluations = tossing()
    _, said = watched(settings, evaluations)
    assert evaluations.asked_again == [100]
    assert "in other episodes" in (settings.directory / "report.html").read_text()
    assert watched(settings, evaluations)[1][-2:] == said[-2:]
    assert evaluations.asked_again == [100], "what was scored again is not scored once more"
    assert said[-2].startswith("the best is step 100: ")
    assert said[-2].endswith("in the episodes that it was chosen by")
    assert said[-1].startswith("  in other episodes: ")


def test_a_best_that_is_scored_in_the_same_episodes_is_not_said_to_be_scored_in_others(settings):
    _, said = watched(settings, tossing(is_seeded=False))
    assert said[-1].startswith("  once more, from the same initial conditions: ")


@pytest.mark.parametrize("key", [{"seed": 3}, {"arena_env_args": {**COINS, "placement_seed": 3}}], ids=str)
def test_seeds_of_the_job_file_do_not_make_the_episodes_the_same(settings, key):
    job = {**JOB, **key}
    _, said = watched(settings, tossing(jobs=[job]))
    assert said[-1].startswith("  in other episodes: ")


def test_a_bar_promotes_what_reaches_it_and_tells_the_training_to_stop(settings):
    settings = replace(settings, bar=0.3, promote=settings.directory / "good", stop_file=settings.directory / "stop")
    evaluate = tossing()
    _, said = watched(settings, evaluate)
    assert evaluate.asked == [0, 50]
    assert "step 50 reached the bar of 30 %" in "\n".join(said)
    assert settings.stop_file is not None
    assert settings.stop_file.read_text().startswith("step 50: ")
    settings.stop_file.unlink()
    evaluate = tossing()
    watched(settings, evaluate)
    assert evaluate.asked == [100]
    told = json.loads((settings.directory / "good" / "promoted.json").read_text())
    assert (told["step"], told["compared_with"], told["verdict"]) == (100, 50, "better")
    assert (settings.directory / "good" / "comparison_100" / "comparison.md").is_file()


def test_an_interrupted_watch_says_so_and_goes_on_where_it_was(settings):
    exit_code, _ = watched(settings, Evaluations(exit_codes=[INTERRUPTED]))
    assert exit_code == 130
    evaluate = tossing()
    assert watched(settings, evaluate)[0] == 0
    assert evaluate.asked == [0, 50, 100]


def test_what_could_not_be_evaluated_is_told_at_the_end(settings):
    evaluate = tossing(DONE, KILLED)
    exit_code, said = watched(settings, evaluate)
    assert exit_code == 1
    assert said[-1] == "step 50 was not evaluated: its process ended with -9"
    lines = list(csv.DictReader((settings.directory / "curve.csv").open()))
    assert [line["step"] for line in lines] == ["0", "100"]


def test_a_baseline_shifts_neither_scores_nor_the_bar_nor_the_comparison(settings):
    settings = replace(settings, bar=0.3, promote=settings.directory / "good")
    alone = watched(replace(settings, output_dir=settings.directory.with_name("alone"), promote=None), tossing())[1]
    _, said = watched(settings, tossing(jobs=[TEN_HEADS, JOB]))
    assert [line for line in said if "promoted" not in line] == alone
    told = json.loads((settings.directory / "good" / "promoted.json").read_text())
    assert (told["step"], told["compared_with"], told["verdict"]) == (100, 50, "better")
    lines = list(csv.DictReader((settings.directory / "curve.csv").open()))
    rates = {(line["job"], line["step"]): line["success_rate"] for line in lines}
    assert [rates["ten_heads-50", str(step)] for step in HEADS] == ["1.0"] * 3
    assert [job for job, _ in rates].count("coins") == 3


# The runner is asked as a person would ask it; here a program of the test stands in its place.


DOCUMENT = {"jobs": [{"name": "reach", "policy_type": "rsl_rl", "arena_env_args": {"environment": "reach"}}]}


def program(ending: str) -> list[str]:
    """Return a program that writes its arguments, and ends as it is told."""
    return [sys.executable, "-c", f"import os, sys; open('asked', 'w').write(' '.join(sys.argv[1:])); {ending}"]


@pytest.fixture
def runner_settings(tmp_path, monkeypatch) -> WatchSettings:
    monkeypatch.chdir(tmp_path)
    save(Path("training"), 50)
    return WatchSettings(
        training=Path("training"), eval_jobs_config=Path("jobs.json"), output_dir=Path("watch"), once=True, poll_s=0.05
    )


def evaluated(runner_settings: WatchSettings, *options: str, ending: str = "sys.exit(0)") -> tuple[int, str]:
    checkpoint = Checkpoint(step=50, path=Path("training/model_50.pt"))
    code = run_checkpoint(runner_settings, DOCUMENT, options, checkpoint, Path("watch/step_50"), runner=program(ending))
    return code, Path("asked").read_text()


def test_the_runner_gets_the_jobs_of_the_checkpoint_and_the_other_options(runner_settings):
    words = "--cluster ray --ray_address head:6379 --num_ranks 4 --gpus_per_rank 0.5"
    asked = f"--eval_jobs_config watch/watch/step_50/jobs.json --output_dir watch/step_50 {words}"
    assert evaluated(runner_settings, *words.split()) == (0, asked)
    (job,) = json.loads(Path("watch/watch/step_50/jobs.json").read_text())["jobs"]
    assert job["policy_config_dict"] == {"checkpoint_path": "training"}
    assert job["checkpoints"]["steps"] == [50]


def test_a_run_that_was_begun_is_gone_on_with(runner_settings):
    Path("watch/step_50").mkdir(parents=True)
    Path("watch/step_50/run.json").touch()
    _, asked = evaluated(runner_settings)
    assert asked == "--eval_jobs_config watch/watch/step_50/jobs.json --resume watch/step_50 --retry_errors"


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


def test_the_evaluation_can_leave_the_processor_to_the_training(runner_settings):
    _, nice = evaluated(replace(runner_settings, nice=7), ending="open('asked', 'w').write(str(os.nice(0)))")
    assert int(nice) >= 7


def test_a_killed_watch_leaves_a_run_that_the_next_one_waits_for(runner_settings, caplog):
    """The program that is asked ends, and leaves one that has all that it was given, as a killed watch does."""

    def killed(checkpoint: Checkpoint, directory: Path, seed_offset: int) -> int:
        evaluated(runner_settings, ending="os.fork() or __import__('time').sleep(2.0)")
        raise KilledError

    with pytest.raises(KilledError):
        Watch(settings=runner_settings, evaluate=killed).run()
    assert not is_free()
    evaluate = partial(run_checkpoint, runner_settings, DOCUMENT, (), runner=program("sys.exit(1)"))
    assert Watch(settings=runner_settings, evaluate=evaluate).run() == 1
    assert caplog.text.count("another watch is at work in watch/watch, or a run of one") == 1
    wait_until(is_free)


def is_free() -> bool:
    with RunLock(Path("watch/watch")) as lock:
        try:
            lock.hold(alone=True)
        except ConfigError:
            return False
    return True


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


def test_a_job_that_a_question_may_end_early_has_the_interval_of_its_table(watch):
    run = watch.directory / "step_50"
    bar = Question(name="bar", jobs=("flat-50",), max_episodes=4, at_least=0.5)
    plan = replace(read_run_plan(run), questions=(bar,))
    (run / "run.json").unlink()
    write_run_plan(run, plan)
    (interval,) = (point.interval for point in points_of(run, 50) if point.job == "flat")
    assert interval != wilson_interval(2, 4)
    assert f"50.0 % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" in watch.page()


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
