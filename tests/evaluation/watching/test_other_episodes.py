import json
from typing import Any

import pytest

from isaaclab_arena.evaluation.condition_sets import ConditionFile, ConditionSet, load_conditions
from isaaclab_arena.evaluation.learning_curve import count_alike, points_of
from isaaclab_arena.evaluation.watch import (
    shift_seeds,
    take_unused_conditions,
    with_shifted_seed,
)
from isaaclab_arena.interfaces.episode import MAX_SEED
from isaaclab_arena.storage.disk import json_text
from tests.evaluation.watching.points import write_run_of_checkpoint


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
def test_the_seed_of_initial_conditions_on_the_command_line_is_another(options, then):
    assert with_shifted_seed(options, 1000) == then


def unused(tmp_path, *, saved: int, **job: Any) -> tuple[str, list[float]]:
    """Return the conditions that a job gets instead of saved ones, and what its episodes start from."""
    places: list[dict[str, Any]] = [{"cube.x": float(number)} for number in range(saved)]
    sets = [ConditionSet(job="lift", environment="lift_object", seed=0, episodes=places)]
    file = tmp_path / "saved.json"
    file.write_text(json_text(ConditionFile(sets=sets)))
    document = {"defaults": {"conditions": f"{file}#lift"}, "jobs": [job]}
    take_unused_conditions(document, tmp_path)
    (found,) = load_conditions(job.get("conditions", str(file)), tmp_path)
    return job.get("conditions", ""), [float(str(each["cube.x"])) for each in found.episodes]


def test_saved_conditions_are_those_that_no_checkpoint_has_begun_from(tmp_path):
    name, places = unused(tmp_path, saved=5, num_episodes=2)
    assert (name, places) == (str(tmp_path / "conditions_0.json"), [2.0, 3.0])
    assert json.loads((tmp_path / "conditions_0.json").read_text())["sets"][0]["job"] == "lift"


@pytest.mark.parametrize("job", [{"num_episodes": 3}, {}], ids=str)
def test_where_there_are_not_enough_or_nobody_says_how_many_are_played_they_stay(tmp_path, job):
    assert unused(tmp_path, saved=5, **job) == ("", [0.0, 1.0, 2.0, 3.0, 4.0])


def test_episodes_that_began_alike_are_counted(tmp_path):
    moved = {0: 0.1, 1: 0.2}
    write_run_of_checkpoint(tmp_path / "before", 50, {"reach": "sss"})
    write_run_of_checkpoint(tmp_path / "same", 50, {"reach": "sff"})
    write_run_of_checkpoint(tmp_path / "partly", 50, {"reach": "sss"}, moved=moved)
    write_run_of_checkpoint(tmp_path / "other", 50, {"reach": "ss"}, moved=moved)
    before = points_of(tmp_path / "before", 50)
    counted = {name: count_alike(points_of(tmp_path / name, 50), before) for name in ("same", "partly", "other")}
    assert counted == {"same": 3, "partly": 1, "other": 0}
