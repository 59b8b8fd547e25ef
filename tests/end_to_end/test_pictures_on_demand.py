"""A policy that looks now and then comes to the same bytes whether or not the other pictures are drawn."""

import json
import time
from pathlib import Path

import pytest

from isaaclab_arena.evaluation.eval_runner import main
from isaaclab_arena.results import read_episode
from tests.end_to_end.launching import command, run, start, write_jobs
from tests.gr00t.panda_checkpoint import save_panda_checkpoint, write_panda_yaml

TABLES = ("results.csv", "episodes.csv")
EAGERLY = "--eager_pictures"


@pytest.fixture(scope="module")
def yaml(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("checkpoint")
    save_panda_checkpoint(directory / "checkpoint")
    return write_panda_yaml(directory / "panda.yaml")


def arguments(output: Path, yaml: str, *options: str, num_envs: int) -> list[str]:
    job = {
        "name": "a",
        "arena_env_args": {"environment": "reach", "num_envs": num_envs, "enable_cameras": True, "camera_size": 32},
        "policy_type": "gr00t_closedloop",
        "policy_config_dict": {"policy_config_yaml_path": yaml},
        "num_episodes": 4,
    }
    path = write_jobs(output.parent / "jobs.json", [job])
    return ["--eval_jobs_config", str(path), "--output_dir", str(output), "--device", "cpu", *options]


def evaluated(output: Path, yaml: str, *options: str, num_envs: int = 3) -> dict[str, bytes]:
    """Evaluate the job, and return its tables."""
    assert main(arguments(output, yaml, *options, num_envs=num_envs)) == 0
    return {name: (output / name).read_bytes() for name in TABLES}


def pictures(output: Path) -> tuple[int, int]:
    report = json.loads((output / "a" / "job_report_rank0.json").read_text())
    return report["pictures_drawn"], report["pictures_looked_at"]


def test_a_chunked_policy_comes_to_the_same_bytes_and_few_pictures_are_drawn(yaml, tmp_path):
    eagerly = evaluated(tmp_path / "eager", yaml, EAGERLY)
    assert evaluated(tmp_path / "lazy", yaml) == eagerly
    (drawn, looked_at), (all_drawn, as_many) = pictures(tmp_path / "lazy"), pictures(tmp_path / "eager")
    assert drawn == looked_at == as_many
    # Of five steps of a chunk the first is looked at.
    assert all_drawn / 5 <= drawn <= all_drawn / 4.5


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--record_observations", "all"),
        ("--record_camera_video", "--video_episodes", "2"),
        ("--pipeline", "2"),
        ("--deterministic",),
    ],
)
def test_the_bytes_are_the_same_with_every_option(yaml, tmp_path, num_envs, options):
    eagerly = evaluated(tmp_path / "eager", yaml, EAGERLY, *options, num_envs=num_envs)
    assert evaluated(tmp_path / "lazy", yaml, *options, num_envs=num_envs) == eagerly
    if "all" in options:
        recorded = [read_episode(tmp_path / each / "a" / "dataset_a.hdf5", 2).arrays for each in ("eager", "lazy")]
        assert {name: array.tobytes() for name, array in recorded[0].items()} == {
            name: array.tobytes() for name, array in recorded[1].items()
        }
    films = [sorted(each.name for each in (tmp_path / name / "a").glob("videos/*")) for name in ("eager", "lazy")]
    assert films[0] == films[1]


@pytest.mark.slow
def test_the_bytes_are_the_same_on_two_ranks(yaml, tmp_path):
    eagerly = evaluated(tmp_path / "eager", yaml, EAGERLY)
    options = arguments(tmp_path / "shared", yaml, "--split_jobs", num_envs=3)
    finished = run(command(*options, ranks=2), timeout_s=280)
    assert finished.returncode == 0, finished.stderr
    assert {name: (tmp_path / "shared" / name).read_bytes() for name in TABLES} == eagerly


@pytest.mark.slow
def test_the_bytes_are_the_same_after_an_interruption(yaml, tmp_path):
    eagerly = evaluated(tmp_path / "eager", yaml, EAGERLY, num_envs=1)
    options = arguments(tmp_path / "killed", yaml, num_envs=1)
    process = start(command(*options), tmp_path / "log", fresh=True)
    deadline = time.monotonic() + 200
    while not list((tmp_path / "killed").glob("a/episodes/*.h5")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "results.csv").exists()
    assert evaluated(tmp_path / "killed", yaml, "--resume", num_envs=1) == eagerly
