"""A whole watch: the coins of later checkpoints show heads more often."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.eval_runner import main as run_jobs
from isaaclab_arena.evaluation.watch import Watch, WatchSettings, jobs_of_checkpoint
from tests.evaluation.watching.trainings import DONE, HEADS, INTERRUPTED, KILLED, CalledBuilder, Evaluations, save

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
