"""The shipped GR00T model in one policy server for three ranks, through the program as a user starts it."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.launching import command, run, same_tables, write_jobs

pytestmark = pytest.mark.slow


def job(environment: str, num_envs: int, server: dict | None) -> dict:
    return {
        "name": environment,
        "arena_env_args": {
            "environment": environment,
            "embodiment": "panda",
            "num_envs": num_envs,
            "camera_size": 64,
            "enable_cameras": True,
        },
        "policy_type": "gr00t_closedloop",
        "policy_config_dict": {
            "policy_config_yaml_path": "isaaclab_arena_gr00t/policy/config/panda_closedloop.yaml",
            "model_path": "models/panda_pick_by_colour" if environment == "pick_by_colour" else "models/panda_tabletop",
        },
        "num_episodes": 6,
        **({} if server is None else {"policy_server": server}),
    }


def arguments(directory: Path, name: str, num_envs: int, *options: object, ranks: int, server: dict | None) -> list:
    jobs = [job(environment, num_envs, server) for environment in ("lift_object", "pick_by_colour")]
    path = write_jobs(directory / f"{name}.json", jobs)
    common = ("--eval_jobs_config", path, "--device", "cpu", "--split_jobs", "--output_dir", directory / name)
    return command(*common, *options, ranks=ranks)


@pytest.fixture(scope="module")
def without_server(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("none")
    finished = run(arguments(directory, "none", 3, ranks=1, server=None), timeout_s=900)
    assert finished.returncode == 0, finished.stderr
    return directory / "none"


@pytest.mark.parametrize(("ranks", "num_envs", "scope"), [(1, 2, "run"), (2, 3, "run"), (3, 2, "node")])
def test_the_tables_are_those_without_a_server(without_server, tmp_path, ranks, num_envs, scope):
    finished = run(
        arguments(tmp_path, "shared", num_envs, ranks=ranks, server={"shared": scope}), timeout_s=900, fresh=True
    )
    assert finished.returncode == 0, finished.stderr
    assert same_tables(tmp_path / "shared", without_server)


# Real-time chunking of a shipped GR00T model: its table depends neither on env slots nor on ranks.


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
