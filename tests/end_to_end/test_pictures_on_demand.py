"""A policy that looks now and then comes to the same bytes whether or not the other pictures are drawn."""

import json
from pathlib import Path

import pytest

from isaaclab_arena.results import read_episode
from tests.end_to_end.launching import end, evaluated, job, launched, run_of, start, wait_until
from tests.gr00t.panda_checkpoint import save_panda_checkpoint, write_panda_yaml

EAGERLY = "--eager_pictures"


@pytest.fixture(scope="module")
def yaml(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("checkpoint")
    save_panda_checkpoint(directory / "checkpoint")
    return write_panda_yaml(directory / "panda.yaml")


def looking(yaml: str, num_envs: int = 3) -> dict:
    args, options = {"enable_cameras": True, "camera_size": 32}, {"policy_config_yaml_path": yaml}
    return job("reach", "gr00t_closedloop", 4, num_envs=num_envs, args=args, options=options)


def tables(output: Path) -> list[bytes]:
    return [(output / name).read_bytes() for name in ("results.csv", "episodes.csv")]


def played(output: Path, yaml: str, *options: str, num_envs: int = 3) -> Path:
    return evaluated(output, looking(yaml, num_envs), options=("--device", "cpu", *options))


@pytest.mark.slow
def test_a_chunked_policy_comes_to_the_same_bytes_and_few_pictures_are_drawn(yaml, tmp_path):
    eager, lazy = played(tmp_path / "eager", yaml, EAGERLY), played(tmp_path / "lazy", yaml)
    assert tables(lazy) == tables(eager)
    reports = [json.loads((each / "a" / "job_report_rank0.json").read_text()) for each in (lazy, eager)]
    drawn, all_drawn = (report["pictures_drawn"] for report in reports)
    assert {report["pictures_looked_at"] for report in reports} == {drawn}
    # Of five steps of a chunk the first is looked at.
    assert all_drawn / 5 <= drawn <= all_drawn / 4.5


OPTIONS = {
    "none": (),
    "recorded": ("--record_observations", "all"),
    "filmed": ("--record_camera_video", "--video_episodes", "2"),
    "pipeline": ("--pipeline", "2"),
    "deterministic": ("--deterministic",),
}


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_bytes_are_the_same_with_every_option(yaml, tmp_path, num_envs, options):
    runs = [
        played(tmp_path / name, yaml, *drawn, *OPTIONS[options], num_envs=num_envs)
        for name, drawn in (("eager", (EAGERLY,)), ("lazy", ()))
    ]
    assert tables(runs[0]) == tables(runs[1])
    recorded = [read_episode(output / "a" / "dataset_a.hdf5", 2).arrays for output in runs]
    eagerly, lazily = ({name: array.tobytes() for name, array in arrays.items()} for arrays in recorded)
    assert eagerly == lazily
    films = [sorted(each.name for each in (output / "a").glob("videos/*")) for output in runs]
    assert films[0] == films[1]


@pytest.mark.slow
def test_the_bytes_are_the_same_on_two_ranks_and_after_an_interruption(yaml, tmp_path):
    eagerly = tables(played(tmp_path / "eager", yaml, EAGERLY))
    options = ("--device", "cpu", "--split_jobs")
    assert tables(launched(tmp_path / "shared", looking(yaml), options=options, ranks=2, timeout_s=280)) == eagerly
    killed = tmp_path / "killed"
    process = start(run_of(killed, looking(yaml), options=("--device", "cpu")), tmp_path / "log", fresh=True)
    wait_until(lambda: any(killed.glob("a/episodes/*.h5")), timeout_s=200)
    end(process)
    assert not (killed / "results.csv").exists()
    assert tables(played(killed, yaml, "--resume")) == eagerly
