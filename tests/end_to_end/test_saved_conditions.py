"""Saved conditions give the same episodes later: to any policy, in any batch, on any number of ranks."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main as cli
from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.evaluation.policy_runner import main as policy_runner
from tests.end_to_end.launching import command, episodes_table, run, write_jobs

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
    job = {"name": "varied", "policy_type": "scripted", "num_episodes": 5, "seed": 9, "variations": VARIATIONS}
    jobs = write_jobs(directory / "jobs.json", [{**job, "arena_env_args": {**LIFT, "num_envs": 4}}])
    arguments = ["--eval_jobs_config", str(jobs), "--output_dir", str(directory / "out"), "--no_dataset"]
    assert main([*arguments, "--save_conditions", str(directory / "set.json")]) == 0
    return directory


def evaluate(saved: Path, tmp_path: Path, jobs: list[dict], *, ranks: int = 1) -> Path:
    """Run jobs on a copy of the saved conditions that lies elsewhere, beside the job file."""
    shutil.copy(saved / "set.json", tmp_path)
    path = write_jobs(tmp_path / "again.json", jobs, defaults={"conditions": "set.json", "arena_env_args": LIFT})
    arguments = ["--eval_jobs_config", str(path), "--output_dir", str(tmp_path / "out"), "--no_dataset"]
    if ranks == 1:
        assert main(arguments) == 0
    else:
        finished = run(command(*arguments, ranks=ranks))
        assert finished.returncode == 0, finished.stderr
    return tmp_path / "out"


def test_the_same_policy_has_the_same_episodes_in_another_batch(saved, tmp_path):
    again = evaluate(saved, tmp_path, [{"name": "varied", "policy_type": "scripted", "seed": 9}])
    pd.testing.assert_frame_equal(episodes_table(saved / "out"), episodes_table(again))


def test_other_policies_on_two_ranks_start_from_the_same_conditions(saved, tmp_path):
    jobs = [
        {"name": "still", "policy_type": "zero_action", "num_episodes": 3, "seed": 1},
        {"name": "random", "policy_type": "random_action", "arena_env_args": {"num_envs": 3}},
    ]
    episodes = episodes_table(evaluate(saved, tmp_path, jobs, ranks=2))
    before = episodes_table(saved / "out")
    for job, number in (("still", 3), ("random", 5)):
        found = episodes[episodes["job"] == job]
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
    pd.testing.assert_frame_equal(
        episodes_table(first).filter(items=columns), episodes_table(second).filter(items=columns)
    )


@pytest.mark.parametrize(
    ("job", "message"),
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
def test_what_does_not_fit_the_saved_conditions_is_refused(saved, tmp_path, capsys, job, message):
    shutil.copy(saved / "set.json", tmp_path)
    block = {"name": "again", "policy_type": "scripted", **job}
    defaults = {"conditions": "set.json", "arena_env_args": LIFT}
    path = write_jobs(tmp_path / "again.json", [block], defaults=defaults)
    assert main(["--eval_jobs_config", str(path)]) == 2
    assert message in capsys.readouterr().err


def _episode_with(key, value):
    """Return a change of a saved document that gives its first episode a value."""
    return lambda document: document["sets"][0]["episodes"][0].update({key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(schema_version=2), "no saved conditions of schema version 1"),
        (lambda document: document.update(sets=[]), "sets"),
        (lambda document: document["sets"][0].update(episodes=[]), "sets.0.episodes: "),
        (lambda document: document["sets"][0].update(sed=3), "unknown key"),
        (lambda document: document["sets"][0].pop("seed"), "sets.0.seed: is missing"),
        (lambda document: document["sets"][0]["episodes"][0].update({"cube.mass": True}), "episodes.0.cube.mass"),
        (lambda document: document["sets"][0]["episodes"][1].update({"cube.mas": 1.0}), "episode 1: 'cube.mas' is no"),
        (lambda document: document["sets"][0]["episodes"][1].update({"cube.size": 1.0}), "'cube.size' is no condition"),
        (lambda document: document["sets"][0]["episodes"][2].pop("cube.yaw"), "episode 2: 'cube.yaw' is missing"),
        (lambda document: document["sets"].append(document["sets"][0]), "holds 2 sets that fit"),
        (_episode_with("cube.mass", -1.0), "episode 0: 'cube.mass' must be 0.0001 to 100, got -1.0"),
        (_episode_with("cube.mass", "heavy"), "episode 0: 'cube.mass' must be a number, got 'heavy'"),
        (_episode_with("cube.position", [1.0]), "episode 0: 'cube.position' has 1 numbers"),
    ],
)
def test_a_damaged_file_is_refused(saved, tmp_path, capsys, change, message):
    document = json.loads((saved / "set.json").read_text())
    change(document)
    (tmp_path / "set.json").write_text(json.dumps(document))
    block = {"name": "again", "policy_type": "scripted", "conditions": "set.json", "arena_env_args": LIFT}
    assert main(["--eval_jobs_config", str(write_jobs(tmp_path / "again.json", [block]))]) == 2
    assert message in capsys.readouterr().err


def test_a_set_may_have_one_episode_and_an_incomplete_job_is_left_out(saved, tmp_path, capsys):
    document = json.loads((saved / "set.json").read_text())
    del document["sets"][0]["episodes"][1:]
    (tmp_path / "set.json").write_text(json.dumps(document))
    job = {"name": "one", "policy_type": "zero_action", "conditions": "set.json", "arena_env_args": LIFT}
    assert cli(["validate", str(write_jobs(tmp_path / "one.json", [job]))]) == 0
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
    blocks = [
        {"name": name, "policy_type": "random_action", "num_episodes": 2, "arena_env_args": {"environment": "reach"}}
        for name in ("first", "second")
    ]
    jobs, saved = write_jobs(tmp_path / "jobs.json", blocks), tmp_path / "set.json"
    arguments = ["--eval_jobs_config", str(jobs), "--save_conditions", str(saved)]
    assert main([*arguments, "--output_dir", str(tmp_path / "out")]) == 0
    whole = saved.read_text()
    begun = json.loads(whole)
    del begun["sets"][1]
    saved.write_text(json.dumps(begun))
    next((tmp_path / "out" / "second").glob("episode_results_rank0.jsonl")).write_text("")
    assert main([*arguments, "--resume", str(tmp_path / "out")]) == 0
    assert saved.read_text() == whole
    capsys.readouterr()
    begun["sets"][0]["seed"] = 77
    saved.write_text(json.dumps(begun))
    assert main([*arguments, "--resume", str(tmp_path / "out")]) == 2
    assert "its conditions of job 'first' are not in this run; name another file" in capsys.readouterr().err
    assert json.loads(saved.read_text()) == begun


def test_what_may_vary_is_listed_and_nothing_is_run(capsys, tmp_path):
    arguments = ["--policy_type", "scripted", "--num_episodes", "1", "--list_variations"]
    output = ["--output_dir", str(tmp_path / "out")]
    assert policy_runner([*arguments, *output, "lift_object", "cube.mass.enabled=true"]) == 0
    listed = {
        line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines() if "." in line.split()[0]
    }
    assert (listed["cube.mass"], listed["cube.friction"]) == ("on", "-")
    assert not (tmp_path / "out").exists()
