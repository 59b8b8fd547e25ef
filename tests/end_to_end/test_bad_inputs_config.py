"""What a job file can hold that no run can use: one message with file, job and key, on rank 0, and nothing written."""

import json
from pathlib import Path

import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.evaluation import eval_runner
from tests.end_to_end.mistakes import GOOD, in_environment, mistaken

RANK_1 = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}


def text_of(document: object) -> bytes:
    return json.dumps(document).encode()


def named(name: str) -> bytes:
    return text_of(mistaken(name=name))


def with_value(key: str, value: str) -> bytes:
    """Return a job file in which a key has a value that Python's JSON would not write."""
    return text_of(mistaken(**{key: "VALUE"})).replace(b'"VALUE"', value.encode())


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n", "the file is empty"),
    "no JSON": (b"jobs", "not valid JSON at line 1"),
    "a comma too many": (b'{"jobs": [],}', "a comma that nothing follows"),
    "a comment": (b'{"jobs": [] // none\n}', "JSON has no comments"),
    "UTF-16": (text_of(mistaken()).decode().encode("utf-16"), "is UTF-16 or UTF-32; save it as UTF-8"),
    "Latin-1": ('{"jobs": "W\xfcrfel"}'.encode("latin-1"), "is not UTF-8 (byte 11)"),
    "a list": (b"[]", "the top level is []"),
    "a text": (b'"jobs"', 'the top level is "jobs"'),
    "a number": (b"42", "the top level is 42"),
    "no jobs": (b'{"jobs": []}', "jobs: lists no job"),
    "a key twice": (b'{"jobs": [{"name": "a", "name": "b"}]}', "key 'name' appears twice"),
    "NaN": (with_value("num_episodes", "NaN"), "holds NaN, which is no number"),
    "infinity": (with_value("num_episodes", "-Infinity"), "holds -Infinity, which is no number"),
    "a number beyond any": (with_value("num_episodes", "1e999"), "holds inf"),
    "five thousand digits": (with_value("seed", "9" * 5000), "a number with too many digits"),
    "a hundred thousand levels": (b"[" * 100_000, "nested deeper than 64 levels"),
    "half a million levels that end": (b"[" * 500_000 + b"]" * 500_000, "nested deeper than 64 levels"),
}

JOBS: dict[str, tuple[dict, str]] = {
    "a key with a typing error": (mistaken(num_episode=3), "job 'good': num_episode: unknown key; did you mean 'num_e"),
    "no episode": (mistaken(num_episodes=0), "job 'good': num_episodes: must be at least 1, got 0"),
    "fewer than no episodes": (mistaken(num_episodes=-1), "job 'good': num_episodes: must be at least 1, got -1"),
    "half an episode": (mistaken(num_episodes=1.5), "job 'good': num_episodes: 1.5 is not a whole number"),
    "episodes in quotes": (mistaken(num_episodes="10"), "job 'good': num_episodes: \"10\" is not a whole number"),
    "true episodes": (mistaken(num_episodes=True), "job 'good': num_episodes: true is not a whole number"),
    "null episodes": (mistaken(num_episodes=None), "job 'good': num_episodes: is missing"),
    "a billion episodes": (
        mistaken(num_episodes=10**12),
        "job 'good': num_episodes: must be at most 10000000",
    ),
    "no env slots": (in_environment(num_envs=0), "job 'good': arena_env_args.num_envs: must be at least 1, got 0"),
    "too many env slots": (
        in_environment(num_envs=10**9),
        "job 'good': arena_env_args.num_envs: must be at most 1000000, got",
    ),
    "a negative seed": (mistaken(seed=-1), "job 'good': seed: must be at least 0, got -1"),
    "a seed of 64 bits": (
        mistaken(seed=2**63),
        "job 'good': seed: must be at most 9223372036854775807",
    ),
    "a seed of 65 bits": (
        mistaken(seed=2**64),
        "job 'good': seed: must be at most 9223372036854775807",
    ),
    "a broken seed": (mistaken(seed=1.5), "job 'good': seed: 1.5 is not a whole number"),
    "a true seed": (mistaken(seed=True), "job 'good': seed: true is not a whole number"),
    "a seed in words": (mistaken(seed="abc"), "job 'good': seed: \"abc\" is not a whole number"),
    "a name twice": ({"jobs": [GOOD, GOOD]}, "job 'good': name: is taken by an earlier job"),
    "a name in capitals": (
        {"jobs": [GOOD, {**GOOD, "name": "GOOD"}]},
        "job 'GOOD': name: is taken by 'good' where file systems ignore case",
    ),
    "a name composed otherwise": (
        {"jobs": [{**GOOD, "name": "caf\u00e9"}, {**GOOD, "name": "cafe\u0301"}]},
        "name: is taken by 'caf\u00e9'",
    ),
    "an identity that no module has": (in_environment(environment="gym:os:system"), "job 'good': arena_env_args.env"),
    "an extra that is missing": (in_environment(environment="gym:no_such_package:Env-v0"), "cannot be imported"),
}

NAMES = {
    "": "is empty",
    ".": "'.' stands for a directory",
    "..": "'..' stands for a directory",
    "a/b": "holds a slash",
    "/etc/x": "holds a slash",
    "../../x": "holds a slash",
    "a\0b": "holds a control character",
    "x" * 300: "has 300 characters",
    "\u5b57" * 75: "has 225 bytes",
    "\ud800": "surrogate",
    "a\nb": "holds a control character",
    "a\u202eb": "holds a character that turns text around",
}

EVERYTHING = {
    **FILES,
    **{name: (text_of(document), message) for name, (document, message) in JOBS.items()},
    **{f"the name {ascii(name)[:20]}": (named(name), message) for name, message in NAMES.items()},
}


def evaluate(directory: Path, content: bytes) -> int:
    path = directory / "jobs.json"
    path.write_bytes(content)
    return eval_runner.main(["--eval_jobs_config", str(path), "--output_dir", str(directory / "out")])


@pytest.mark.parametrize("wrong", EVERYTHING)
def test_a_job_file_that_no_run_can_use_is_one_message_and_leaves_no_trace(tmp_path, capfd, wrong):
    content, message = EVERYTHING[wrong]
    assert evaluate(tmp_path, content) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("error: ") == 1
    assert len(shown.err.splitlines()) == 1
    assert "jobs.json: " in shown.err
    assert message in shown.err
    assert "Traceback" not in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.json"]


@pytest.mark.parametrize("wrong", ["empty", "a key twice", "no episode", "a name twice", "the name '../../x'"])
def test_rank_1_leaves_it_to_rank_0_to_say_what_is_wrong(tmp_path, capfd, monkeypatch, wrong):
    for name, value in RANK_1.items():
        monkeypatch.setenv(name, value)
    assert evaluate(tmp_path, EVERYTHING[wrong][0]) == 2
    shown = capfd.readouterr()
    assert shown.out + shown.err == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", [0, 2**32, 2**63 - 1])
def test_a_seed_may_have_63_bits(tmp_path, seed):
    assert evaluate(tmp_path, text_of(mistaken(seed=seed, num_episodes=..., num_steps=2))) == 0
    assert pd.read_parquet(tmp_path / "out" / "results.parquet")["seed"].tolist() == [seed]


def test_a_byte_order_mark_is_no_mistake(tmp_path, capsys):
    path = tmp_path / "jobs.json"
    path.write_bytes(b"\xef\xbb\xbf" + text_of(mistaken()))
    assert main(["validate", str(path), "--json"]) == 0
    [told] = json.loads(capsys.readouterr().out)["files"]
    assert told["jobs"] == ["good"]


def test_more_env_slots_than_episodes_are_no_mistake(tmp_path):
    assert evaluate(tmp_path, text_of(in_environment(environment="cartpole", num_envs=64))) == 0
    [job] = json.loads((tmp_path / "out" / "run.json").read_text())["jobs"]
    assert job["config"]["num_envs"] == 64
    assert pd.read_parquet(tmp_path / "out" / "results.parquet")["episodes"].tolist() == [1]


@pytest.mark.parametrize("place", [".", "/"])
def test_a_directory_that_holds_something_already_is_no_output_directory(tmp_path, capfd, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.json").write_bytes(text_of(mistaken()))
    assert eval_runner.main(["--eval_jobs_config", "jobs.json", "--output_dir", place]) == 2
    shown = capfd.readouterr().err
    assert f"--output_dir: '{tmp_path if place == '.' else '/'}' is not empty" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.json"]


def test_saved_conditions_are_found_from_the_job_files_directory_and_not_from_where_the_program_runs(tmp_path, capfd):
    (tmp_path / "conditions.json").write_text("{}")
    assert evaluate(tmp_path, text_of(mistaken(conditions="conditions.json"))) == 2
    shown = capfd.readouterr().err
    assert f"job 'good': conditions: {tmp_path / 'conditions.json'}: holds no saved conditions" in shown
