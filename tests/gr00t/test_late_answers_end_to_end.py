"""Real-time chunking of a shipped GR00T model: its table depends neither on env slots nor on ranks."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, run, same_tables, write_jobs
from tests.gr00t.test_policy_server_end_to_end import job

pytestmark = pytest.mark.slow


def table_of(directory: Path, name: str, num_envs: int, *, ranks: int = 1) -> Path:
    """Evaluate with late answers, for any number of env slots in queries of one size; return the output directory."""
    late = {**job("lift_object", num_envs, None), "latency": {"steps": [1, 3], "meanwhile": "rtc"}}
    jobs, output = write_jobs(directory / f"{name}.json", [late]), directory / name
    options = ("--device", "cpu", "--deterministic", "--policy_batch", 4, "--split_jobs")
    words = command("--eval_jobs_config", jobs, "--output_dir", output, *options, ranks=ranks)
    finished = run(words, timeout_s=900)
    assert finished.returncode == 0, finished.stderr
    return output


def test_chunks_that_go_on_from_each_other_are_the_same_for_any_env_slots_and_ranks(tmp_path):
    one = table_of(tmp_path, "one", 2)
    (found,) = json.loads((one / "results.json").read_text())["jobs"]
    assert (found["episodes"], found["reproducible"]) == (6, "bitwise")
    assert found["stale_action_share"] > 0
    assert same_tables(table_of(tmp_path, "wide", 4), one)
    assert same_tables(table_of(tmp_path, "ranks", 3, ranks=2), one)
