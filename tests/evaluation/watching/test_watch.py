"""A directory of checkpoints that is followed."""

import csv
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from isaaclab_arena.checkpoints import Checkpoint, checkpoint_file
from isaaclab_arena.cli.main import main
from isaaclab_arena.cli.watch import (
    OTHER_SEED,
    Watch,
    WatchOptions,
    content_of,
    jobs_of_checkpoint,
    promote,
    run_checkpoint,
    shift_seeds,
)
from isaaclab_arena.config.loading import read_jobs
from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.evaluation.eval_runner import main as run_jobs
from isaaclab_arena.evaluation.job import ConditionFile, ConditionSet, load_conditions
from isaaclab_arena.evaluation.learning_curve import (
    BEST_FILE,
    Best,
    Evaluated,
    best_of,
    points_of,
    points_of_watch,
    scores_of,
)
from isaaclab_arena.interfaces.episode import MAX_SEED
from isaaclab_arena.models import find_agent_file
from isaaclab_arena.results.statistics import wilson_interval
from isaaclab_arena.storage.atomic import json_text, write_text
from tests.checkpoints.written import lerobot, write
from tests.evaluation.watching.trainings import (
    ARCHIVE,
    HEADS,
    CalledEnvironment,
    Evaluations,
    point,
    save,
    write_run_of_checkpoint,
)
from tests.fakes import CoinBuilder

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


AGENT = "actor: {class_name: MLPModel}\n"


@dataclass(frozen=True)
class Promotion:
    """Promotes checkpoints of a training into a directory."""

    training: Path
    directory: Path

    def record(self, step: int, path: Path | None = None) -> Evaluated:
        path = path or self.training / f"model_{step}.pt"
        return Evaluated(step=step, path=str(path), fingerprint="", content=content_of(path), is_done=True)

    def act(self, step: int, successes: int, record: Evaluated | None = None) -> Path | None:
        score = scores_of([point(step, successes)])[step]
        watch = self.training.parent / "watch"
        return promote(self.directory, score, record or self.record(step), watch, ["reach"])

    def told(self) -> dict[str, object]:
        return json.loads((self.directory / "promoted.json").read_text())

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


@pytest.fixture
def promotion(tmp_path) -> Promotion:
    """Promotions of a training that saved three checkpoints and its settings."""
    save(tmp_path / "training", 50, 100, 150)
    (tmp_path / "training" / "params").mkdir()
    (tmp_path / "training" / "params" / "agent.yaml").write_text(AGENT)
    return Promotion(training=tmp_path / "training", directory=tmp_path / "good")


def test_a_promoted_checkpoint_is_copied_with_what_it_takes_to_load_it(promotion):
    target = promotion.act(50, 95)
    assert target == promotion.directory / "step_50" / "model_50.pt"
    assert target.read_bytes() == ARCHIVE
    agent = find_agent_file(target)
    assert agent is not None
    assert (agent.parent.parent, agent.read_text()) == (target.parent, AGENT)
    assert checkpoint_file(str(target.parent), None) == target, "its directory is one of a training"
    told = promotion.told()
    assert (told["step"], told["name"], told["success_rate"]) == (50, "step_50/model_50.pt", 0.95)
    assert (told["episodes"], told["distinct_conditions"]) == (100, 100)


def test_only_a_better_one_takes_its_place(promotion, caplog):
    promotion.act(50, 95)
    assert promotion.act(100, 95) is None
    assert promotion.act(50, 99) is None
    assert promotion.act(150, 96) == promotion.directory / "step_150" / "model_150.pt"
    told = promotion.told()
    assert (told["step"], told["compared_with"], told["verdict"]) == (150, 50, None)
    assert "steps 50 and 150 cannot be compared" in caplog.text
    assert promotion.names() == ["promoted.json", "step_150", "step_50"]


CHANGES: dict[str, Callable[[Path], object]] = {
    "weights": lambda training: save(training, 50, content=ARCHIVE[:-1] + b"?"),
    "settings": lambda training: (training / "params" / "agent.yaml").write_text("actor: {class_name: RNNModel}\n"),
    "no settings": lambda training: shutil.rmtree(training / "params"),
    "no file": lambda training: (training / "model_50.pt").unlink(),
}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
def test_what_is_not_what_was_evaluated_is_not_promoted(promotion, caplog, changed):
    evaluated = promotion.record(50)
    changed(promotion.training)
    assert promotion.act(50, 95, evaluated) is None

    assert "step 50 is not promoted" in caplog.text
    assert not promotion.directory.exists() or promotion.names() == []


def test_a_directory_is_promoted_whole_a_network_with_its_tensors_and_nothing_of_an_earlier_copy_stays(promotion):
    (promotion.directory / "step_50").mkdir(parents=True)
    (promotion.directory / "step_50" / "model_49.pt").touch()
    for name in ("policy_50.onnx", "policy_50.onnx.data"):
        (promotion.training / name).write_bytes(b"graph")
    target = promotion.act(50, 95, promotion.record(50, promotion.training / "policy_50.onnx"))
    assert target is not None
    assert sorted(path.name for path in target.parent.iterdir()) == ["params", "policy_50.onnx", "policy_50.onnx.data"]
    write(promotion.training.parent, lerobot(0))
    source = promotion.training.parent / "checkpoints" / "000100" / "pretrained_model"
    target = promotion.act(100, 99, promotion.record(100, source))
    assert target == promotion.directory / "step_100"
    assert sorted(path.name for path in target.iterdir()) == sorted(path.name for path in source.iterdir())
    assert promotion.told()["name"] == "step_100"


def test_every_job_weighs_the_same_in_the_score_a_baseline_nothing_and_of_equal_steps_the_earlier_is_the_best():
    jobs = [point(50, 10, 10), point(50, 0, 90, job="push")]
    score = scores_of(jobs)[50]
    assert (score.success_rate, score.scored, score.distinct) == (0.5, 100, 100)
    assert score.interval == wilson_interval(10, 100)
    same = [replace(each, episodes=jobs[0].episodes) for each in jobs]
    assert scores_of(same)[50].distinct == 10, "episodes of the same conditions"
    baseline = point(50, 90, 90, job="scripted", is_baseline=True)
    assert (scores_of([*jobs, baseline]), scores_of([baseline])) == ({50: score}, {})
    best = best_of(scores_of([point(150, 90), point(50, 80), point(100, 90)]))
    assert best is not None
    assert (best.step, best_of({})) == (100, None)
    quicker = replace(point(150, 90), reward_per_step=0.1)
    assert best_of(scores_of([quicker, point(100, 90)])) == scores_of([quicker])[150], "as in a training"


@pytest.mark.parametrize(
    ("job", "defaults", "job_then", "defaults_then"),
    [
        ({}, {}, {}, {"seed": 1000}),
        ({"seed": 7}, {}, {"seed": 1007}, {"seed": 1000}),
        ({}, {"seed": 7}, {}, {"seed": 1007}),
        ({"seed": None}, {"seed": 7}, {}, {"seed": 1007}),
        ({"seed": MAX_SEED}, {"seed": None}, {"seed": 999}, {"seed": 1000}),
        ({"seed": "${variables.seed}"}, {}, {"seed": "${variables.seed}"}, {"seed": 1000}),
        (
            {"arena_env_args": {"placement_seed": 3}},
            {"arena_env_args": {"placement_seed": 4}},
            {"arena_env_args": {"placement_seed": 1003}},
            {"arena_env_args": {"placement_seed": 1004}, "seed": 1000},
        ),
        ({"sweep": {"seed": [1, 2]}}, {}, {"sweep": {"seed": [1001, 1002]}}, {"seed": 1000}),
    ],
    ids=["none", "job", "defaults", "taken away", "beyond the last", "interpolated", "conditions", "swept"],
)
def test_every_seed_of_a_job_file_is_another(job, defaults, job_then, defaults_then):
    sweep = {"arena_env_args.placement_seed": [0], "policy_type": ["rsl_rl"]}
    document = {"jobs": [job], "defaults": defaults, "sweep": sweep}
    shift_seeds(document, 1000)
    shifted = sweep | {"arena_env_args.placement_seed": [1000]}
    assert document == {"jobs": [job_then], "defaults": defaults_then, "sweep": shifted}


@pytest.mark.parametrize(
    ("options", "then"),
    [
        (("--placement_seed", "7", "--seed", "3"), ("--placement_seed", "1007", "--seed", "3")),
        (("--device", "cpu", "--placement-seed=0"), ("--device", "cpu", "--placement-seed=1000")),
        (("--placement_seed",), ("--placement_seed",)),
    ],
    ids=" ".join,
)
def test_the_seed_of_initial_conditions_on_the_command_line_is_another(tmp_path, options, then):
    _, asked = run_again(tmp_path, {"jobs": [{}]}, *options)
    assert tuple(asked[-len(then) :]) == then


def run_again(tmp_path, document: dict[str, Any], *options: str) -> tuple[dict[str, Any], list[str]]:
    """Score a checkpoint in other episodes; return its job file, and the arguments of the runner."""
    settings = WatchOptions(training=tmp_path, eval_jobs_config=tmp_path / "jobs.json")
    writes = f"import json, sys; open({str(tmp_path / 'asked')!r}, 'w').write(json.dumps(sys.argv[1:]))"
    checkpoint = Checkpoint(step=50, path=tmp_path / "model_50.pt")
    directory = tmp_path / "best_step_50"
    run_checkpoint(
        settings, document, options, checkpoint, directory, 1000, runner=[sys.executable, "-S", "-c", writes]
    )
    made = json.loads((tmp_path / "watch" / "best_step_50" / "jobs.json").read_text())
    return made, json.loads((tmp_path / "asked").read_text())


def unused(tmp_path, *, saved: int, **job: Any) -> tuple[str, list[float]]:
    """Return the conditions that a job gets instead of saved ones, and what its episodes start from."""
    places: list[dict[str, Any]] = [{"cube.x": float(number)} for number in range(saved)]
    sets = [ConditionSet(job="lift", environment="lift_object", seed=0, episodes=places)]
    file = tmp_path / "saved.json"
    file.write_text(json_text(ConditionFile(sets=sets)))
    made, _ = run_again(tmp_path, {"defaults": {"conditions": f"{file}#lift"}, "jobs": [job]})
    name = made["jobs"][0].get("conditions", "")
    (found,) = load_conditions(name or str(file), tmp_path)
    return name, [float(str(each["cube.x"])) for each in found.episodes]


def test_saved_conditions_are_those_that_no_checkpoint_has_begun_from(tmp_path):
    name, places = unused(tmp_path, saved=5, num_episodes=2)
    assert (name, places) == (str(tmp_path / "watch" / "best_step_50" / "conditions_0.json"), [2.0, 3.0])
    assert json.loads(Path(name).read_text())["sets"][0]["job"] == "lift"


@pytest.mark.parametrize("job", [{"num_episodes": 3}, {}], ids=str)
def test_where_there_are_not_enough_or_nobody_says_how_many_are_played_they_stay(tmp_path, job):
    assert unused(tmp_path, saved=5, **job) == ("", [0.0, 1.0, 2.0, 3.0, 4.0])


REACH = {"name": "reach", "policy_type": "rsl_rl", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}


@pytest.fixture
def training(tmp_path):
    save(tmp_path / "go1", 0, 50)
    return tmp_path / "go1"


def jobs_of(training, *jobs, step=50, name="model_50.pt", seed_offset=0, directory=Path(), pattern=None):
    settings = WatchOptions(training=training, eval_jobs_config=directory / "jobs.json", pattern=pattern)
    checkpoint = Checkpoint(step=step, path=training / name)
    made = jobs_of_checkpoint(settings, {"jobs": list(jobs)}, checkpoint, seed_offset)
    return read_jobs(made, source="jobs.json").jobs


def test_every_job_is_asked_of_that_checkpoint_by_the_option_that_it_names_unless_it_wants_none(training):
    named = {**REACH, "seed": 7, "policy_config_dict": {"model_path": "anything", "speed": 2}}
    scripted = {**REACH, "name": "scripted", "policy_type": "scripted", "checkpoints": None}
    first, second, third = jobs_of(training, REACH, {**named, "name": "named"}, scripted, seed_offset=OTHER_SEED)
    path = str(training / "model_50.pt")
    assert (first.name, first.policy_config_dict) == ("reach-50", {"checkpoint_path": path})
    assert (first.swept, first.seed, second.seed) == ({"checkpoint_step": 50}, OTHER_SEED, OTHER_SEED + 7)
    assert second.policy_config_dict == {"model_path": path, "speed": 2}
    assert (third.name, dict(third.policy_config_dict)) == ("scripted", {})


def test_saved_conditions_are_found_from_the_directory_of_the_job_file(training):
    asked = {**REACH, "conditions": "saved.json#reach"}
    (job,) = jobs_of(training, asked, directory=training)
    assert job.conditions == f"{training / 'saved.json'}#reach"
    (job,) = jobs_of(training, {**asked, "conditions": "/saved/all.json"}, directory=training)
    assert job.conditions == "/saved/all.json"
