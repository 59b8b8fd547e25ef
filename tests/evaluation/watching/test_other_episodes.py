import json
import sys
from pathlib import Path
from typing import Any

import pytest

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.condition_sets import ConditionFile, ConditionSet, load_conditions
from isaaclab_arena.evaluation.watch import WatchSettings, run_checkpoint, shift_seeds
from isaaclab_arena.seeding import MAX_SEED
from isaaclab_arena.storage.disk import json_text


def shifted(job: dict[str, Any], defaults: dict[str, Any] | None = None, **document: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {"jobs": [job], "defaults": defaults or {}, **document}
    shift_seeds(whole, 1000)
    return whole


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
    assert shifted(job, defaults) == {"jobs": [job_then], "defaults": defaults_then}


def test_the_seeds_that_all_jobs_sweep_are_others_too():
    sweep = {"arena_env_args.placement_seed": [0], "policy_type": ["rsl_rl"]}
    assert shifted({}, sweep=sweep)["sweep"] == {"arena_env_args.placement_seed": [1000], "policy_type": ["rsl_rl"]}


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
    settings = WatchSettings(training=tmp_path, eval_jobs_config=tmp_path / "jobs.json")
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
