"""Saved conditions give the same episodes later: to any policy, in any batch, on any number of ranks."""

import json
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main as cli
from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.evaluation.policy_runner import main as policy_runner
from tests.end_to_end.launching import episodes_table, evaluated, job, launched, write_jobs

VARIATIONS = {
    "cube.mass.enabled": True,
    "cube.mass.sampler_cfg.high": 0.3,
    "cube.color.enabled": True,
    "cube.position.enabled": True,
    "table": {"height": {"enabled": True}},
    "distractors": {"count": {"enabled": True, "sampler_cfg": {"choices": [0, 2]}}},
    "action.noise.enabled": True,
    "observation.delay.enabled": True,
}
LIFT = {"environment": "lift_object", "object": "cube"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A directory with ``out``, five varied episodes in four env slots, and their conditions in ``set.json``."""
    directory = tmp_path_factory.mktemp("saved")
    varied = job("lift_object", num_episodes=5, num_envs=4, args=LIFT, name="varied", seed=9, variations=VARIATIONS)
    evaluated(directory / "out", varied, options=("--no_dataset", "--save_conditions", directory / "set.json"))
    return directory


def evaluate(saved: Path, tmp_path: Path, jobs: list[dict], *, ranks: int) -> Path:
    """Run jobs on a copy of the saved conditions that lies elsewhere, beside the job file."""
    shutil.copy(saved / "set.json", tmp_path)
    write_jobs(tmp_path / "out.json", jobs, defaults={"conditions": "set.json", "arena_env_args": LIFT})
    return launched(tmp_path / "out", options=("--no_dataset",), ranks=ranks)


def test_any_policy_on_any_ranks_starts_from_the_same_conditions_and_the_same_one_has_the_same_episodes(
    saved, tmp_path
):
    jobs = [
        {"name": "varied", "policy_type": "scripted", "seed": 9},
        {"name": "still", "policy_type": "zero_action", "num_episodes": 3, "seed": 1},
        {"name": "random", "policy_type": "random_action", "arena_env_args": {"num_envs": 3}},
    ]
    episodes = episodes_table(evaluate(saved, tmp_path, jobs, ranks=2))
    before = episodes_table(saved / "out")
    pd.testing.assert_frame_equal(before, episodes.query("job == 'varied'").reset_index(drop=True))
    for name, number in (("still", 3), ("random", 5)):
        found = episodes[episodes["job"] == name]
        assert list(found["conditions"]) == list(before["conditions"][:number])
        assert list(found["episode_seed"]) == list(before["episode_seed"][:number])


def test_a_finished_run_can_be_saved_later_and_gives_the_same_file(saved, tmp_path):
    assert cli(["merge", str(saved / "out"), "--save_conditions", str(tmp_path / "later.json")]) == 0
    assert (tmp_path / "later.json").read_bytes() == (saved / "set.json").read_bytes()


def test_a_varied_recording_replays_to_the_recorded_outcome(tmp_path):
    arguments = ["--num_episodes", "2", "lift_object", "cube.mass.enabled=true", "action.noise.enabled=true"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert policy_runner(["--policy_type", "scripted", "--output_dir", str(first), *arguments]) == 0
    dataset = first / "lift_object" / "dataset_lift_object.hdf5"
    replay = ["--policy_type", "replay", "--output_dir", str(second), *arguments, "--replay_file_path", str(dataset)]
    assert policy_runner(replay) == 0
    columns = ["outcome", "length", "return", "conditions"]
    recorded, replayed = (episodes_table(each).filter(items=columns) for each in (first, second))
    pd.testing.assert_frame_equal(recorded, replayed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arena_env_args": {"object": "can"}}, "object was 'cube', the job has 'can'"),
        ({"arena_env_args": {"environment": "reach", "object": None}}, "environment was 'lift_object'"),
        ({"num_episodes": 6}, "is 6, but conditions are saved for 5"),
        ({"num_rebuilds": 6}, "is 6, but conditions are saved for 5"),
        ({"variations": VARIATIONS}, "variations: are part of the saved conditions"),
        ({"arena_env_args": {"placement_seed": 3}}, "is 3, but the saved conditions have 9"),
        ({"conditions": "set.json#vared"}, "holds no set 'vared'; did you mean 'varied'?"),
        ({"conditions": "nothing.json"}, "nothing.json: there is no such file"),
    ],
)
def test_what_does_not_fit_the_saved_conditions_is_refused(saved, tmp_path, capsys, changes, message):
    shutil.copy(saved / "set.json", tmp_path)
    block = {"name": "again", "policy_type": "scripted", **changes}
    defaults = {"conditions": "set.json", "arena_env_args": LIFT}
    path = write_jobs(tmp_path / "again.json", [block], defaults=defaults)
    assert main(["--eval_jobs_config", str(path)]) == 2
    assert message in capsys.readouterr().err


FIRST = ("sets", 0, "episodes", 0)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("schema_version",), 2, "no saved conditions of schema version 1"),
        (("sets",), [], "sets"),
        (("sets", 0, "episodes"), [], "sets.0.episodes: "),
        (("sets", 0, "sed"), 3, "unknown key"),
        (("sets", 0, "seed"), ..., "sets.0.seed: is missing"),
        ((*FIRST, "cube.mas"), 1.0, "episode 0: 'cube.mas' is no"),
        ((*FIRST, "cube.size"), 1.0, "'cube.size' is no condition"),
        ((*FIRST, "cube.yaw"), ..., "episode 0: 'cube.yaw' is missing"),
        ((*FIRST, "cube.mass"), True, "episodes.0.cube.mass"),
        ((*FIRST, "cube.mass"), -1.0, "episode 0: 'cube.mass' must be 0.0001 to 100, got -1.0"),
        ((*FIRST, "cube.mass"), "heavy", "episode 0: 'cube.mass' must be a number, got 'heavy'"),
        ((*FIRST, "cube.position"), [1.0], "episode 0: 'cube.position' has 1 numbers"),
        (None, None, "holds 2 sets that fit"),
    ],
)
def test_a_damaged_file_is_refused(saved, tmp_path, capsys, place, value, message):
    document = json.loads((saved / "set.json").read_text())
    if place is None:
        document["sets"] *= 2
    else:
        *above, key = place
        part = reduce(getitem, above, document)
        part.pop(key, None)
        if value is not ...:
            part[key] = value
    (tmp_path / "set.json").write_text(json.dumps(document))
    block = {"name": "again", "policy_type": "scripted", "conditions": "set.json", "arena_env_args": LIFT}
    assert main(["--eval_jobs_config", str(write_jobs(tmp_path / "again.json", [block]))]) == 2
    assert message in capsys.readouterr().err


def test_a_set_may_have_one_episode_and_an_incomplete_job_is_left_out(saved, tmp_path, capsys):
    document = json.loads((saved / "set.json").read_text())
    del document["sets"][0]["episodes"][1:]
    (tmp_path / "set.json").write_text(json.dumps(document))
    one = {"name": "one", "policy_type": "zero_action", "conditions": "set.json", "arena_env_args": LIFT}
    assert cli(["validate", str(write_jobs(tmp_path / "one.json", [one]))]) == 0
    output = Path(shutil.copytree(saved / "out", tmp_path / "out"))
    [commits] = (output / "varied").glob("episode_results_rank*.jsonl")
    lines = commits.read_text().splitlines(keepends=True)
    for number in (4, 0):
        commits.write_text("".join(lines[:number]))
        cli(["merge", str(output), "--save_conditions", str(tmp_path / "again.json")])
        assert "no job is complete" in capsys.readouterr().err


def test_a_file_that_exists_is_not_written_over(saved, capsys):
    arguments = ["--policy_type", "scripted", "--num_episodes", "1", "--save_conditions", str(saved / "set.json")]
    assert policy_runner([*arguments, "reach"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_run_that_goes_on_completes_the_file_that_it_has_begun_and_no_other(tmp_path, capsys):
    jobs, saved = (
        [job(policy="random_action", num_episodes=2, name=name) for name in ("first", "second")],
        tmp_path / "set.json",
    )
    output = evaluated(tmp_path / "out", *jobs, options=("--save_conditions", saved))
    whole = saved.read_text()
    begun = json.loads(whole)
    del begun["sets"][1]
    saved.write_text(json.dumps(begun))
    (output / "second" / "episode_results_rank0.jsonl").write_text("")
    evaluated(output, options=("--resume", "--save_conditions", saved))
    assert saved.read_text() == whole
    capsys.readouterr()
    begun["sets"][0]["seed"] = 77
    saved.write_text(json.dumps(begun))
    evaluated(output, options=("--resume", "--save_conditions", saved), code=2)
    assert "its conditions of job 'first' are not in this run; name another file" in capsys.readouterr().err
    assert json.loads(saved.read_text()) == begun


def test_what_may_vary_is_listed_and_nothing_is_run(capsys, tmp_path):
    arguments = ["--policy_type", "scripted", "--num_episodes", "1", "--list_variations"]
    output = ["--output_dir", str(tmp_path / "out")]
    assert policy_runner([*arguments, *output, "lift_object", "cube.mass.enabled=true"]) == 0
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    listed = {line[0]: line[1] for line in words if "." in line[0]}
    assert (listed["cube.mass"], listed["cube.friction"]) == ("on", "-")
    assert not (tmp_path / "out").exists()
