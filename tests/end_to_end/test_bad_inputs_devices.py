"""What the variables of a launcher, a GPU, a locale or a renderer can say wrong."""

import json

import pytest

from isaaclab_arena.evaluation import eval_runner
from tests.end_to_end.launching import command, run, write_jobs
from tests.end_to_end.mistakes import GOOD

SHORT = {
    "name": "W\u00fcrfel \u5b57",
    "arena_env_args": {"environment": "reach"},
    "policy_type": "zero_action",
    "num_steps": 3,
}
PEERS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}
RANKS = {
    "RANK alone": ({"RANK": "0"}, "LOCAL_RANK and WORLD_SIZE not set"),
    "WORLD_SIZE alone": ({"WORLD_SIZE": "2"}, "RANK and LOCAL_RANK not set"),
    "words": ({"RANK": "abc", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK='abc'"),
    "a negative number": ({"RANK": "0", "LOCAL_RANK": "-1", "WORLD_SIZE": "2"}, "LOCAL_RANK='-1'"),
    "spaces": ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": " 4 "}, "WORLD_SIZE=' 4 '"),
    "a leading zero": ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "08"}, "WORLD_SIZE='08'"),
    "a rank too many": ({"RANK": "2", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "RANK must be below WORLD_SIZE"),
    "nobody to meet": ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR and MASTER_PORT must be"),
    "no port": ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", **PEERS, "MASTER_PORT": "99999"}, "1 to 65535"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", RANKS)
def test_variables_of_a_launcher_that_contradict_each_other_are_one_message(tmp_path, capfd, monkeypatch, wrong):
    variables, message = RANKS[wrong]
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", *PEERS):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = write_jobs(tmp_path / "jobs.json", [GOOD])
    assert eval_runner.main(["--eval_jobs_config", str(path), "--output_dir", str(tmp_path / "out")]) == 2
    shown = capfd.readouterr().err
    assert shown.count("error: ") == 1
    assert message in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()


def test_a_renderer_that_does_not_exist_is_one_message(tmp_path):
    path = write_jobs(tmp_path / "jobs.json", [GOOD])
    arguments = command("--eval_jobs_config", path, "--output_dir", tmp_path / "out")
    finished = run(arguments, extra={"MUJOCO_GL": "nonsense"})
    assert finished.returncode == 2
    assert "environment 'lift_object' cannot be loaded: RuntimeError: invalid value" in finished.stderr
    assert "MUJOCO_GL: nonsense" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "out").exists()


def test_neither_locale_nor_time_zone_nor_hash_seed_changes_what_a_run_is(tmp_path):
    path = write_jobs(tmp_path / "jobs.json", [SHORT])
    odd = {"LC_ALL": "C", "TZ": "Nowhere/Odd", "MUJOCO_GL": "disabled"}
    hashes = set()
    for seed in ("1", "2"):
        output = tmp_path / seed
        arguments = command("--eval_jobs_config", path, "--output_dir", output)
        finished = run(arguments, extra={**odd, "PYTHONHASHSEED": seed})
        assert finished.returncode == 0, finished.stderr
        assert (output / SHORT["name"]).is_dir()
        hashes.add(json.loads((output / "run.json").read_text(encoding="utf-8"))["config_hash"])
    assert len(hashes) == 1
    assert (tmp_path / "1" / "results.csv").read_bytes() == (tmp_path / "2" / "results.csv").read_bytes()


def test_ranks_without_a_job_end_well(tmp_path):
    path = write_jobs(tmp_path / "jobs.json", [SHORT])
    finished = run(command("--eval_jobs_config", path, "--output_dir", tmp_path / "out", ranks=2))
    assert finished.returncode == 0, finished.stderr
    assert json.loads((tmp_path / "out" / "results.json").read_text())["complete"] is True
