"""What a user gets wrong is told in one message, with exit code 2, before anything is simulated or written."""

import json
from pathlib import Path

import pytest

from isaaclab_arena.evaluation import eval_runner, policy_runner
from tests.end_to_end.launching import command, run
from tests.end_to_end.mistakes import GOOD, in_environment, mistaken

MISTAKES = {
    "no jobs": ({}, "jobs: is missing"),
    "empty jobs": ({"jobs": []}, "jobs: lists no job"),
    "unknown key at the top": ({**mistaken(), "job": 1}, "job: unknown key; did you mean 'jobs'?"),
    "unknown key": (mistaken(num_episode=3), "job 'good': num_episode: unknown key; did you mean 'num_episodes'?"),
    "wrong type": (mistaken(num_episodes="10"), "job 'good': num_episodes:"),
    "boolean as number": (mistaken(num_episodes=True), "job 'good': num_episodes:"),
    "steps and episodes": (mistaken(num_steps=3), "num_steps"),
    "no episodes": (mistaken(num_episodes=0), "num_episodes:"),
    "negative steps": (mistaken(num_episodes=..., num_steps=-1), "num_steps:"),
    "no env slots": (in_environment(num_envs=0), "num_envs:"),
    "no length": (mistaken(num_episodes=...), "give num_episodes or num_steps"),
    "slash in name": (mistaken(name="a/b"), "name:"),
    "parent as name": (mistaken(name=".."), "name:"),
    "NUL in name": (mistaken(name="a\0b"), "name:"),
    "long name": (mistaken(name="x" * 300), "name:"),
    "twice the same name": ({"jobs": [GOOD, GOOD]}, "job 'good': name: is taken by an earlier job"),
    "unknown environment": (in_environment(environment="lift_objects"), "did you mean 'lift_object'?"),
    "unknown object": (in_environment(object="cub"), "arena_env_args.object: no object called 'cub'; did you mean"),
    "unknown embodiment": (in_environment(embodiment="pandas"), "did you mean 'panda'?"),
    "unknown option": (in_environment(objekt="cube"), "did you mean 'object'?"),
    "unknown policy": (mistaken(policy_type="zero_actions"), "policy_type: no policy called 'zero_actions'; did"),
    "no such module": (mistaken(policy_type="no_such.module.Policy"), "cannot import 'no_such.module'"),
    "no such class": (mistaken(policy_type="json.Policy"), "'json' has no 'Policy'"),
    "no policy": (mistaken(policy_type="json.JSONDecoder"), "'json.JSONDecoder' is not a policy"),
    "a function": (mistaken(policy_type="os.system"), "'os.system' is not a policy"),
    "unknown policy option": (mistaken(policy_config_dict={"sped": 1}), "policy_config_dict.sped"),
    "cameras": (in_environment(camera_size=8), "must be 16 to 2048 pixels, got 8"),
    "rebuilds": (mistaken(num_rebuilds=2), "num_rebuilds"),
}  # fmt: skip


def evaluate(directory: Path, document: object, *options: object) -> int:
    path = directory / "jobs.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return eval_runner.main(
        ["--eval_jobs_config", str(path), "--output_base_dir", str(directory / "out"), *map(str, options)]
    )


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_job_file_is_named_and_nothing_starts(tmp_path, capfd, mistake):
    document, message = MISTAKES[mistake]
    assert evaluate(tmp_path, document) == 2
    shown = capfd.readouterr().err
    assert "jobs.json: " in shown
    assert message in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()


def test_all_problems_of_a_file_are_told_at_once(tmp_path, capfd):
    jobs = [{**GOOD, "name": "a", "num_episodes": 0}, {**GOOD, "name": "b", "sead": 1}, {**GOOD, "name": "c/d"}]
    assert evaluate(tmp_path, {"jobs": jobs}) == 2
    shown = capfd.readouterr().err
    for part in ("job 'a': num_episodes", "job 'b': sead: unknown key; did you mean 'seed'?", "name: "):
        assert part in shown


@pytest.mark.parametrize("text", ["", "{", '{"jobs": [1,]}', "[]", "42", '"jobs"'])
def test_a_file_that_is_no_job_file_is_refused(tmp_path, capfd, text):
    assert evaluate(tmp_path, text) == 2
    assert "jobs.json: " in capfd.readouterr().err


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_a_missing_file_and_a_directory_are_refused(tmp_path, capfd, path):
    assert eval_runner.main(["--eval_jobs_config", str(tmp_path / path)]) == 2
    assert str(tmp_path / path) in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "cuda:7"], "--device: 'cuda:7' does not exist"),
        (["--device", "gpu"], "'gpu' is not a device"),
        (["--policy_device_id", "99"], "policy_device_id"),
        (["--num_steps", "3", "--num_episodes", "3"], "--num_steps: give either this or --num_episodes"),
        (["--assignment", "round_robbin"], "did you mean 'round_robin'?"),
        (["--num_envz", "3"], "--num_envz: unknown option; did you mean '--num_envs'?"),
        (["--fail_fast", "--continue_on_error"], "contradicts"),
        (["--video_episodes", "some"], "--video_episodes: give all, failures or a number, got 'some'"),
        (["--seed", "-1"], "--seed"),
        (["surplus"], "unexpected argument 'surplus'"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(tmp_path, capfd, options, message):
    assert evaluate(tmp_path, {"jobs": [GOOD]}, *options) == 2
    shown = capfd.readouterr().err
    assert message in shown
    assert not (tmp_path / "out").exists()


def test_an_output_directory_with_something_in_it_is_left_alone(tmp_path, capfd):
    output = tmp_path / "results"
    output.mkdir()
    (output / "thesis.txt").write_text("important")
    assert evaluate(tmp_path, {"jobs": [GOOD]}, "--output_dir", output) == 2
    assert "is not empty" in capfd.readouterr().err
    assert [path.name for path in output.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("kind", ["file", "dangling", "unwritable"])
def test_an_output_directory_that_cannot_be_one_is_refused(tmp_path, capfd, kind):
    output = tmp_path / "results"
    if kind == "file":
        output.write_text("")
    elif kind == "dangling":
        output.symlink_to(tmp_path / "nowhere")
    else:
        output = Path("/proc/results")
    assert evaluate(tmp_path, {"jobs": [GOOD]}, "--output_dir", output) == 2
    assert "--output_dir: " in capfd.readouterr().err


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "0"},
        {"WORLD_SIZE": "2"},
        {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "abc", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
    ],
)
def test_launcher_variables_that_contradict_each_other_are_refused(tmp_path, variables):
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"jobs": [GOOD]}))
    finished = run(command("--eval_jobs_config", path, "--output_dir", tmp_path / "out"), extra=variables)
    assert finished.returncode == 2
    assert "WORLD_SIZE" in finished.stderr or "RANK" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy_type", "scripted", "--num_episodes", "2"], "one environment is needed"),
        (["--policy_type", "scripte", "--num_episodes", "2", "reach"], "--policy_type: no policy called 'scripte'"),
        (["--policy_type", "scripted", "--num_episodes", "2", "reech"], "did you mean 'reach'?"),
        (["--policy_type", "scripted", "--num_episodes", "2", "reach", "--embodimnt", "panda"], "'--embodiment'?"),
        (["--policy_type", "scripted", "reach"], "give num_episodes or num_steps"),
        (["--policy_type", "scripted", "--policy_device_id", "99", "--num_episodes", "2", "reach"], "policy_device_id"),
    ],
)
def test_a_mistake_on_the_policy_runners_command_line_is_named(tmp_path, capfd, arguments, message):
    assert policy_runner.main(["--output_base_dir", str(tmp_path / "out"), *arguments]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
