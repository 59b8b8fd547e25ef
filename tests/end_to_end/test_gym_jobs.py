"""Jobs in environments made elsewhere keep the promises of every other job."""

import json
from typing import Any

import h5py
import pytest

from isaaclab_arena.evaluation.eval_runner import main
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_running import IN_WORKERS

COLUMNS = ("episodes", "successes", "errors", "missing", "mean_length", "mean_return", "reproducible", "status")


def evaluate(tmp_path, *jobs) -> dict[str, dict]:
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    main(["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out")])
    jobs = json.loads((tmp_path / "out" / "results.json").read_text())["jobs"]
    return {job["name"]: job for job in jobs}


def job(name: str, environment: str = f"gym:{ID}", *, num_envs: int = 2, policy_type="random_action", **options):
    return {
        "name": name,
        "arena_env_args": {"environment": environment, "num_envs": num_envs, **options},
        "policy_type": policy_type,
        "num_episodes": 8,
    }


def test_the_table_is_the_same_for_any_number_of_env_slots_and_in_workers(tmp_path):
    jobs = evaluate(
        tmp_path,
        job("one", num_envs=1, success_key="success"),
        job("three", num_envs=3, success_key="success"),
        job("workers", num_envs=2, success_key="success", **IN_WORKERS),
    )
    measured = [[job[column] for column in COLUMNS] for job in jobs.values()]
    assert measured[0] == measured[1] == measured[2]
    assert jobs["one"]["episodes"] == 8
    assert 0 < jobs["one"]["successes"] < 8
    assert jobs["one"]["reproducible"] == "bitwise"


def test_success_that_is_not_measured_leaves_its_cells_empty(tmp_path):
    jobs = evaluate(tmp_path, job("reacher", "gym:Reacher-v5", metric_keys=["reward_dist"]))
    assert jobs["reacher"]["episodes"] == 8
    assert jobs["reacher"]["successes"] is None
    assert jobs["reacher"]["mean_length"] == 50


def test_errors_of_an_environment_are_counted_and_say_what_happened(tmp_path):
    broken = {"misbehaviour": "raise", "only_odd": True}
    jobs = evaluate(tmp_path, job("broken", success_key="success", make_kwargs=broken))
    lines = (tmp_path / "out" / "broken" / "episode_results_rank0.jsonl").read_text().splitlines()
    errors = [line for line in map(json.loads, lines) if line["outcome"] == "error"]
    assert jobs["broken"]["episodes"] == 8
    assert jobs["broken"]["missing"] == 0
    assert jobs["broken"]["errors"] == len(errors) > 0
    assert {line["error"] for line in errors} == {"OSError: the floor gave way"}


def test_pictures_and_numbers_are_recorded(tmp_path):
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job("seen", make_kwargs={"picture": True})]}))
    arguments = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out")]
    assert main([*arguments, "--record_observations", "all"]) == 0
    with h5py.File(tmp_path / "out" / "seen" / "dataset_seen.hdf5") as dataset:
        episode: Any = dataset["data/demo_0"]
        length = len(episode["actions"])
        assert episode["camera_obs/eye.front"].shape == (length, 4, 5, 3)
        assert episode["obs/numbers"][:, 1].tolist() == list(range(length))
        provenance = json.loads(episode.attrs["provenance"])
    assert provenance["environment"] == f"gym:{ID}"


def test_episodes_are_filmed(tmp_path):
    wanted = {"picture": True, "render_mode": "rgb_array"}
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job("film", make_kwargs=wanted)]}))
    arguments = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out")]
    assert main([*arguments, "--record_viewport_video", "--video_episodes", "2"]) == 0
    assert len(list((tmp_path / "out" / "film").rglob("*.mp4"))) == 2


def test_a_recording_played_again_gives_the_recorded_outcomes(tmp_path):
    evaluate(tmp_path, job("first", "gym:CartPole-v1", success_reward_threshold=20))
    (tmp_path / "again").mkdir()
    replay = job("again", "gym:CartPole-v1", policy_type="replay", num_envs=3, success_reward_threshold=20)
    replay["policy_config_dict"] = {"replay_file_path": str(tmp_path / "out" / "first" / "dataset_first.hdf5")}
    again = evaluate(tmp_path / "again", replay)["again"]
    first = json.loads((tmp_path / "out" / "results.json").read_text())["jobs"][0]
    assert [again[column] for column in COLUMNS] == [first[column] for column in COLUMNS]


@pytest.mark.parametrize("name", ["gym:CartPol-v1", "gym:Reacher-v5"])
def test_mistakes_are_told_before_anything_starts(tmp_path, capsys, name):
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job("wrong", name, sucess_key="success")]}))
    arguments = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "did you mean 'success_key'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", [{}, IN_WORKERS], ids=["here", "in_workers"])
@pytest.mark.parametrize("identifier", ["Fake/Seen-v0", "Fake/Sparing-v0"])
def test_results_are_the_same_bytes_whether_or_not_every_picture_is_drawn(tmp_path, identifier, place):
    looks = {"policy_type": "tests.environments.gym.looking.LooksNowAndThen", "success_key": "near"}
    seen = job("seen", f"gym:tests.environments.gym.gym_pictures:{identifier}", num_envs=3, **looks, **place)
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [seen]}))
    pictures = {}
    for name, options in (("lazily", []), ("eagerly", ["--eager_pictures"])):
        arguments = ["--eval_jobs_config", str(tmp_path / "jobs.json"), "--output_dir", str(tmp_path / name)]
        assert main([*arguments, *options]) == 0
        report = json.loads((tmp_path / name / "seen" / "job_report_rank0.json").read_text())
        pictures[name] = (report["pictures_drawn"], report["pictures_looked_at"])
    for table in ("results.csv", "episodes.csv"):
        assert (tmp_path / "lazily" / table).read_bytes() == (tmp_path / "eagerly" / table).read_bytes()
    (drawn, looked_at), (all_drawn, looked_at_too) = pictures["lazily"], pictures["eagerly"]
    assert looked_at == looked_at_too < all_drawn / 2
    assert drawn == (looked_at if "Sparing" in identifier else all_drawn)
