"""Ranks say how their jobs began; kernels are compiled once, by one of them, for all and for later runs."""

import json

import pytest

from tests.end_to_end.launching import command, run, write_jobs


def test_the_log_of_each_rank_says_how_its_jobs_began(tmp_path):
    jobs = [
        {"name": name, "arena_env_args": {"environment": "cartpole"}, "policy_type": "zero_action", "num_steps": 3}
        for name in ("first", "second", "third")
    ]
    write_jobs(tmp_path / "jobs.json", jobs)
    arguments = ("--eval_jobs_config", tmp_path / "jobs.json", "--output_dir", tmp_path / "out")
    assert run(command(*arguments, ranks=2)).returncode == 0
    told = [
        line.partition("start-up of job ")[2]
        for rank in (0, 1)
        for line in (tmp_path / "out" / "logs" / f"rank{rank}.log").read_text().splitlines()
        if "start-up of job " in line
    ]
    first, third, second = told
    assert first.startswith("'first': imports ")
    assert second.startswith("'second': imports ")
    assert third.startswith("'third': ")
    assert "imports" not in third, "a rank imports once"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_two_ranks_one_compiles_and_a_later_run_compiles_nothing(tmp_path):
    jobs = [
        {
            "name": name,
            "arena_env_args": {"environment": "cartpole", "num_envs": 4, "backend": "warp"},
            "policy_type": "zero_action",
            "num_steps": 5,
        }
        for name in ("one", "other")
    ]
    write_jobs(tmp_path / "jobs.json", jobs)

    def start_ups(out: str) -> list[dict[str, float]]:
        arguments = ("--eval_jobs_config", tmp_path / "jobs.json", "--output_dir", tmp_path / out)
        assert (
            run(
                command(*arguments, ranks=2), timeout_s=280, extra={"WARP_CACHE_PATH": str(tmp_path / "cache")}
            ).returncode
            == 0
        )
        reports = [json.loads(path.read_text()) for path in (tmp_path / out).glob("*/job_report_rank*.json")]
        found = [report["start_up"] for report in reports if report["start_up"] is not None]
        return sorted(found, key=lambda start_up: start_up["compile_s"], reverse=True)

    compiler, waiter = start_ups("first")
    assert compiler["compile_s"] > 1
    assert waiter["compile_s"] < 0.1 * compiler["compile_s"]
    assert waiter["kernel_wait_s"] > 0.5 * compiler["compile_s"]
    for start_up in start_ups("second"):
        assert start_up["compile_s"] == 0
        assert 0 < start_up["kernel_load_s"] < 0.1 * compiler["compile_s"]
