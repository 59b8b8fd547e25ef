"""What users get wrong is one message with file, job and key, before anything is simulated or written."""

import json
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation import eval_runner, policy_runner
from tests.end_to_end.launching import RANK_VARIABLES, command, run, write_jobs
from tests.end_to_end.mistakes import GOOD, in_environment, mistaken
from tests.machine import be_a_rank

FILES = {
    "empty": (b"", "the file is empty"),
    "no JSON": (b"jobs", "not valid JSON at line 1"),
    "UTF-16": (json.dumps(mistaken()).encode("utf-16"), "is UTF-16 or UTF-32; save it as UTF-8"),
    "a list": (b"[]", "the top level is []"),
    "a key twice": (b'{"jobs": [{"name": "a", "name": "b"}]}', "key 'name' appears twice"),
    "NaN": (b'{"jobs": [{"num_episodes": NaN}]}', "holds NaN, which is no number"),
    "half a million levels": (b"[" * 500_000 + b"]" * 500_000, "nested deeper than 64 levels"),
    "no jobs": (b"{}", "jobs: is missing"),
    "empty jobs": (b'{"jobs": []}', "jobs: lists no job"),
}
"""One of each kind; `tests/config` has them all."""

JOBS = {
    "unknown key at the top": ({**mistaken(), "job": 1}, "job: unknown key; did you mean 'jobs'?"),
    "unknown key": (mistaken(num_episode=3), "job 'good': num_episode: unknown key; did you mean 'num_episodes'?"),
    "wrong type": (mistaken(num_episodes="10"), "job 'good': num_episodes: \"10\" is not a whole number"),
    "steps and episodes": (mistaken(num_steps=3), "num_steps: "),
    "no length": (mistaken(num_episodes=...), "give num_episodes or num_steps"),
    "rebuilds": (mistaken(num_rebuilds=2), "num_rebuilds: "),
    "twice the same name": ({"jobs": [GOOD, GOOD]}, "job 'good': name: is taken by an earlier job"),
    "a name composed otherwise": (
        {"jobs": [{**GOOD, "name": "caf\u00e9"}, {**GOOD, "name": "cafe\u0301"}]}, "name: is taken by 'caf\u00e9'"
    ),
    "no env slots": (in_environment(num_envs=0), "job 'good': arena_env_args.num_envs: must be at least 1, got 0"),
    "unknown environment": (in_environment(environment="lift_objects"), "did you mean 'lift_object'?"),
    "no module": (in_environment(environment="gym:os:system"), "job 'good': arena_env_args.environment: "),
    "a missing package": (in_environment(environment="gym:no_such_package:Env-v0"), "cannot be imported"),
    "unknown object": (in_environment(object="cub"), "arena_env_args.object: no object called 'cub'; did you mean"),
    "unknown embodiment": (in_environment(embodiment="pandas"), "did you mean 'panda'?"),
    "unknown option": (in_environment(objekt="cube"), "did you mean 'object'?"),
    "cameras": (in_environment(camera_size=8), "must be 16 to 2048 pixels, got 8"),
    "unknown policy": (mistaken(policy_type="zero_actions"), "policy_type: no policy called 'zero_actions'; did"),
    "no such module": (mistaken(policy_type="no_such.module.Policy"), "cannot import 'no_such.module'"),
    "no such class": (mistaken(policy_type="json.Policy"), "'json' has no 'Policy'"),
    "no policy": (mistaken(policy_type="json.JSONDecoder"), "'json.JSONDecoder' is not a policy"),
    "unknown policy option": (mistaken(policy_config_dict={"sped": 1}), "policy_config_dict.sped"),
}  # fmt: skip

NAMES = {
    "": "is empty",
    "..": "'..' stands for a directory",
    "a/b": "holds a slash",
    "a\0b": "holds a control character",
    "a\nb": "holds a control character",
    "a\u202eb": "holds a character that turns text around",
    "\ud800": "surrogate",
    " a": "begins or ends with a space",
    "-a": "begins with '-'",
    "logs": "is the name of a file that every run writes",
    "x" * 300: "has 300 characters",
    "\u5b57" * 75: "has 225 bytes",
}

OF_NAMES = {f"the name {ascii(name)[:20]}": (mistaken(name=name), message) for name, message in NAMES.items()}
MISTAKES = {**FILES, **JOBS, **OF_NAMES}


def evaluate(directory: Path, document: dict | bytes, *options: object) -> int:
    path = directory / "jobs.json"
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    words = map(str, options or ("--output_dir", directory / "out"))
    return eval_runner.main(["--eval_jobs_config", str(path), *words])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_job_file_is_named_and_nothing_starts(tmp_path, capfd, mistake):
    document, message = MISTAKES[mistake]
    assert evaluate(tmp_path, document) == 2
    shown = capfd.readouterr()
    [line] = shown.err.splitlines()
    assert shown.out == ""
    assert line.startswith("error: ")
    assert "jobs.json: " in line
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.json"]


@pytest.mark.parametrize("mistake", ["empty", "wrong type"])
def test_rank_1_leaves_it_to_rank_0_to_name_a_mistake(tmp_path, capfd, monkeypatch, mistake):
    be_a_rank(monkeypatch, 0, local_rank=1, ranks=2)
    assert evaluate(tmp_path, MISTAKES[mistake][0]) == 2
    assert "".join(capfd.readouterr()) == ""
    assert not (tmp_path / "out").exists()


def test_all_problems_of_a_file_are_told_at_once(tmp_path, capfd):
    jobs = [{**GOOD, "name": "a", "num_episodes": 0}, {**GOOD, "name": "b", "sead": 1}, {**GOOD, "name": "c/d"}]
    assert evaluate(tmp_path, {"jobs": jobs}) == 2
    shown = capfd.readouterr().err
    for part in ("job 'a': num_episodes", "job 'b': sead: ", "name: "):
        assert part in shown


def keys_of_problems(path: Path, document: dict, capsys) -> list[str]:
    """Return the keys that `validate` finds something wrong with."""
    path.write_text(json.dumps(document))
    code = main(["validate", "--json", str(path)])
    found = [problem["key"] for problem in json.loads(capsys.readouterr().out)["problems"]]
    assert code == (2 if found else 0)
    return found


def with_field(key: str, value: object) -> dict:
    """Return a job file with a value at a key of its job."""
    if key.startswith("arena_env_args."):
        return mistaken(arena_env_args={"environment": "reach", key.partition(".")[2]: value})
    other = {"num_steps": {"num_episodes": ...}, "num_rebuilds": {"num_episodes": 5}}.get(key, {})
    return mistaken(**{**other, key: value})


LIMITS = {
    "num_episodes": (0, 1, 10_000_000, 10_000_001),
    "num_steps": (0, 1, 10_000_000, 10_000_001),
    "num_rebuilds": (0, 1, 5, 6),
    "seed": (-1, 0, 2**63 - 1, 2**63),
    "timeout_s": (0, 1e-9, 100_000_000, 100_000_001),
    "episode_timeout_s": (0, 1e-9, 100_000_000, 100_000_001),
    "arena_env_args.num_envs": (0, 1, 1_000_000, 1_000_001),
    "arena_env_args.placement_seed": (-1, 0, 2**63 - 1, 2**63),
    "name": ("a" * 81, "a" * 80, "\u5b57" * 66 + "aa", "\u5b57" * 67),
}
"""Of each field a value below what it may be, the least, the most, and one above."""


@pytest.mark.parametrize("key", LIMITS)
def test_a_field_of_a_job_may_reach_its_limits_and_not_pass_them(tmp_path, capsys, key):
    for value, is_right in zip(LIMITS[key], (False, True, True, False), strict=True):
        found = keys_of_problems(tmp_path / "jobs.json", with_field(key, value), capsys)
        assert (key not in found) == is_right, value


def test_a_file_has_at_most_a_hundred_thousand_jobs(tmp_path, capsys):
    sweep = {"seed": [*range(10)], "num_episodes": [*range(1, 11)], "policy_config_dict.a": [*range(1001)]}
    assert keys_of_problems(tmp_path / "jobs.json", mistaken(sweep=sweep), capsys) == ["sweep"]


VALUES = {"text": "x", "number": 0.5, "true": True, "list": [], "mapping": {}, "null": None}
TAKES = {
    "name": {"text"},
    "arena_env_args": {"mapping", "list"},
    "policy_type": {"text"},
    "policy_config_dict": {"mapping", "list", "null"},
    "num_episodes": {"null"},
    "num_steps": {"null"},
    "num_rebuilds": {"null"},
    "language_instruction": {"text", "null"},
    "variations": {"mapping", "null"},
    "conditions": {"text", "null"},
    "seed": {"null"},
    "timeout_s": {"number", "null"},
    "episode_timeout_s": {"number", "null"},
    "status": {"null"},
    "sweep": {"mapping", "null"},
    "arena_env_args.environment": {"text"},
    "arena_env_args.num_envs": {"null"},
    "arena_env_args.enable_cameras": {"true", "null"},
    "arena_env_args.placement_seed": {"null"},
    "arena_env_args.env_spacing": {"number", "null"},
}
"""Which of these values each field may have. A number of things is whole, so it has none but null."""


@pytest.mark.parametrize("key", TAKES)
def test_a_field_of_another_type_is_told_with_its_key(tmp_path, capsys, key):
    for kind in VALUES.keys() - TAKES[key]:
        found = keys_of_problems(tmp_path / "jobs.json", with_field(key, VALUES[kind]), capsys)
        assert any(each.startswith(key) for each in found), kind


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_a_missing_file_and_a_directory_are_refused(tmp_path, capfd, path):
    assert eval_runner.main(["--eval_jobs_config", str(tmp_path / path)]) == 2
    assert str(tmp_path / path) in capfd.readouterr().err


PLAY = ["--policy_type", "scripted", "--num_episodes", "2"]
COMMAND_LINES = [
    (eval_runner, ["--device", "cuda:7"], "--device: 'cuda:7' does not exist"),
    (eval_runner, ["--device", "gpu"], "'gpu' is not a device"),
    (eval_runner, ["--policy_device_id", "99"], "policy_device_id"),
    (eval_runner, ["--num_steps", "3", "--num_episodes", "3"], "--num_steps: give either this or --num_episodes"),
    (eval_runner, ["--assignment", "round_robbin"], "did you mean 'round_robin'?"),
    (eval_runner, ["--num_envz", "3"], "--num_envz: unknown option; did you mean '--num_envs'?"),
    (eval_runner, ["--fail_fast", "--continue_on_error"], "contradicts"),
    (eval_runner, ["--video_episodes", "some"], "--video_episodes: give all, failures or a number, got 'some'"),
    (eval_runner, ["--seed", "-1"], "--seed"),
    (eval_runner, ["surplus"], "unexpected argument 'surplus'"),
    (policy_runner, PLAY, "one environment is needed"),
    (policy_runner, ["--policy_type", "scripte", "reach"], "--policy_type: no policy called 'scripte'"),
    (policy_runner, [*PLAY, "reech"], "did you mean 'reach'?"),
    (policy_runner, [*PLAY, "reach", "--embodimnt", "panda"], "'--embodiment'?"),
    (policy_runner, ["--policy_type", "scripted", "reach"], "give num_episodes or num_steps"),
    (policy_runner, [*PLAY, "--policy_device_id", "99", "reach"], "policy_device_id"),
]


@pytest.mark.parametrize(("program", "options", "message"), COMMAND_LINES)
def test_a_mistake_on_a_runners_command_line_is_named(tmp_path, capfd, program, options, message):
    jobs = ["--eval_jobs_config", str(write_jobs(tmp_path / "jobs.json", [GOOD]))] if program is eval_runner else []
    assert program.main(["--output_base_dir", str(tmp_path / "out"), *jobs, *options]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["full", "file", "dangling", "/proc/results", ".", "/"])
def test_an_output_directory_that_cannot_be_one_is_refused_and_left_alone(tmp_path, capfd, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    output = tmp_path / "results"
    if kind == "full":
        output.mkdir()
        (output / "thesis.txt").write_text("important")
    elif kind == "file":
        output.write_text("")
    elif kind == "dangling":
        output.symlink_to(tmp_path / "nowhere")
    else:
        output = Path(kind)
    before = [path for path in tmp_path.rglob("*") if path.name != "jobs.json"]
    assert evaluate(tmp_path, mistaken(), "--output_dir", output) == 2
    shown = capfd.readouterr().err
    assert "--output_dir: " in shown
    assert ("is not empty" in shown) == (kind in ("full", ".", "/"))
    assert [path for path in tmp_path.rglob("*") if path.name != "jobs.json"] == before


RANKS = {
    "RANK alone": ("0", None, None, "LOCAL_RANK and WORLD_SIZE not set"),
    "WORLD_SIZE alone": (None, None, "2", "RANK and LOCAL_RANK not set"),
    "words": ("abc", "0", "2", "RANK='abc'"),
    "a negative number": ("0", "-1", "2", "LOCAL_RANK='-1'"),
    "spaces": ("0", "0", " 4 ", "WORLD_SIZE=' 4 '"),
    "a leading zero": ("0", "0", "08", "WORLD_SIZE='08'"),
    "a rank too many": ("2", "1", "2", "RANK must be below WORLD_SIZE"),
    "nobody to meet": ("0", "0", "2", "MASTER_ADDR and MASTER_PORT must be"),
}


@pytest.mark.parametrize("wrong", RANKS)
def test_variables_of_a_launcher_that_contradict_each_other_are_one_message(tmp_path, capfd, monkeypatch, wrong):
    *values, message = RANKS[wrong]
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in zip(("RANK", "LOCAL_RANK", "WORLD_SIZE"), values, strict=True):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert evaluate(tmp_path, mistaken()) == 2
    shown = capfd.readouterr().err
    assert shown.count("error: ") == 1
    assert message in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_renderer_that_does_not_exist_is_one_message(tmp_path):
    path = write_jobs(tmp_path / "jobs.json", [GOOD])
    finished = run(
        command("--eval_jobs_config", path, "--output_dir", tmp_path / "out"), extra={"MUJOCO_GL": "nonsense"}
    )
    assert finished.returncode == 2
    assert "environment 'lift_object' cannot be loaded: RuntimeError: invalid value" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_neither_locale_nor_time_zone_nor_hash_seed_changes_what_a_run_is(tmp_path):
    job = {**GOOD, "name": "W\u00fcrfel \u5b57", "arena_env_args": {"environment": "reach"}}
    path = write_jobs(tmp_path / "jobs.json", [job])
    odd = {"LC_ALL": "C", "TZ": "Nowhere/Odd", "MUJOCO_GL": "disabled"}
    for seed in ("1", "2"):
        arguments = command("--eval_jobs_config", path, "--output_dir", tmp_path / seed)
        finished = run(arguments, extra={**odd, "PYTHONHASHSEED": seed})
        assert finished.returncode == 0, finished.stderr
        assert (tmp_path / seed / job["name"]).is_dir()
    one, other = (json.loads((tmp_path / seed / "run.json").read_text("utf-8"))["config_hash"] for seed in ("1", "2"))
    assert one == other
    assert (tmp_path / "1" / "results.csv").read_bytes() == (tmp_path / "2" / "results.csv").read_bytes()


def test_the_largest_seed_and_more_env_slots_than_episodes_are_no_mistakes(tmp_path):
    job = {"arena_env_args": {"environment": "cartpole", "num_envs": 64}, "seed": 2**63 - 1}
    assert evaluate(tmp_path, mistaken(**job)) == 0
    [told] = pd.read_parquet(tmp_path / "out" / "results.parquet").to_dict("records")
    assert (told["episodes"], told["seed"]) == (1, 2**63 - 1)
