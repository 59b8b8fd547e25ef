"""The runners starting their own ranks, compared with the same ranks under torchrun."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, run, same_tables, write_jobs

JOB = {"name": "reach", "arena_env_args": {"environment": "reach", "num_envs": 3}, "policy_type": "scripted"}


def test_ranks_give_the_same_tables_whoever_starts_them(tmp_path):
    """Ranks that the runner starts share a job that would leave one idle; torchrun's keep Isaac Lab Arena's rule."""
    path = write_jobs(tmp_path / "jobs.json", [{**JOB, "num_episodes": 5}])
    base = tmp_path / "outputs"
    under_torchrun = run(command("--eval_jobs_config", path, "--output_dir", tmp_path / "torchrun", ranks=2))
    assert under_torchrun.returncode == 0, under_torchrun.stderr
    assert "without a job: rank 1; with --assignment split" in under_torchrun.stderr
    by_itself = run(command(path, "--output_base_dir", base, "--nproc_per_node", 2))
    assert by_itself.returncode == 0, by_itself.stderr
    (output,) = base.iterdir()
    assert same_tables(output, tmp_path / "torchrun")
    assert by_itself.stdout.count("results in") == 1
    assert f"results in {output}" in by_itself.stdout
    (shown_by_rank_0,) = (output / "launcher").glob("*/rank0.log")
    assert f"results in {output}" in shown_by_rank_0.read_text()

    begun = [json.loads((each / "attempts/attempt_1.json").read_text()) for each in (output, tmp_path / "torchrun")]
    assert [each["assignment"] for each in begun] == ["split", "round_robin"]
    assert {each["assignment_reason"] for each in begun} == {"without a job: rank 1"}


def test_a_job_file_that_is_not_there_leaves_no_directory_and_one_message(tmp_path):
    base = tmp_path / "outputs"
    finished = run(
        command("--eval_jobs_config", tmp_path / "gone.json", "--output_base_dir", base, "--nproc_per_node", 2)
    )
    assert finished.returncode == 2
    assert finished.stderr.count("gone.json") == 1
    assert not Path(base).exists()


@pytest.mark.slow
def test_the_ranks_of_the_policy_runner_share_its_episodes(tmp_path):
    """Each episode runs once, on one of the ranks: five in all, not five on each."""
    output = tmp_path / "out"
    options = ("--policy_type", "zero_action", "--num_episodes", 5, "--nproc_per_node", 2, "--device", "cpu")
    module = ["-m", "isaaclab_arena.evaluation.policy_runner"]
    finished = run(command(*options, "--output_dir", output, "reach", module=module))
    assert finished.returncode == 0, finished.stderr
    lines = {
        path.name: path.read_text().splitlines() for path in (output / "reach").glob("episode_results_rank*.jsonl")
    }
    assert sorted(map(len, lines.values())) == [2, 3]
    assert sorted(json.loads(line)["episode_index"] for own in lines.values() for line in own) == [0, 1, 2, 3, 4]
