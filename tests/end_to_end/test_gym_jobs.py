"""Jobs in environments made elsewhere keep the promises of every other job."""

import json
from pathlib import Path
from typing import Any

import h5py
import pytest

from isaaclab_arena.evaluation.eval_runner import main
from tests.end_to_end.launching import evaluated, job, results_of, run_of
from tests.environments.gym.gym_fakes import ID
from tests.environments.gym.gym_running import IN_WORKERS

COLUMNS = ("episodes", "successes", "errors", "missing", "mean_length", "mean_return", "reproducible", "status")


def in_gym(name: str, environment: str = f"gym:{ID}", *, num_envs: int = 2, policy="random_action", **args):
    return job(environment, policy, 8, num_envs=num_envs, name=name, args=args)


def measured(output: Path) -> dict[str, tuple]:
    return {each["name"]: tuple(each[column] for column in COLUMNS) for each in results_of(output)["jobs"]}


def test_the_table_is_the_same_for_any_number_of_env_slots_and_in_workers(tmp_path):
    places = {"one": {"num_envs": 1}, "three": {"num_envs": 3}, "workers": IN_WORKERS}
    jobs = [in_gym(name, success_key="success", **place) for name, place in places.items()]
    found = measured(evaluated(tmp_path / "out", *jobs))
    assert len(set(found.values())) == 1
    told = dict(zip(COLUMNS, found["one"], strict=True))
    assert (told["episodes"], told["reproducible"]) == (8, "bitwise")
    assert 0 < told["successes"] < 8


def test_success_that_is_not_measured_leaves_its_cells_empty_and_errors_say_what_happened(tmp_path):
    broken = {"misbehaviour": "raise", "only_odd": True}
    jobs = [
        in_gym("reacher", "gym:Reacher-v5", metric_keys=["reward_dist"]),
        in_gym("broken", success_key="success", make_kwargs=broken),
    ]
    output = evaluated(tmp_path / "out", *jobs)
    reacher, told = results_of(output)["jobs"]
    assert (reacher["episodes"], reacher["successes"], reacher["mean_length"]) == (8, None, 50)
    lines = (output / "broken" / "episode_results_rank0.jsonl").read_text().splitlines()
    errors = [line for line in map(json.loads, lines) if line["outcome"] == "error"]
    assert (told["episodes"], told["missing"]) == (8, 0)
    assert told["errors"] == len(errors) > 0
    assert {line["error"] for line in errors} == {"OSError: the floor gave way"}


def test_pictures_and_numbers_are_recorded_and_episodes_are_filmed(tmp_path):
    seen = in_gym("seen", make_kwargs={"picture": True, "render_mode": "rgb_array"})
    options = ("--record_observations", "all", "--record_viewport_video", "--video_episodes", 2)
    output = evaluated(tmp_path / "out", seen, options=options)
    with h5py.File(output / "seen" / "dataset_seen.hdf5") as dataset:
        episode: Any = dataset["data/demo_0"]
        length = len(episode["actions"])
        assert episode["camera_obs/eye.front"].shape == (length, 4, 5, 3)
        assert episode["obs/numbers"][:, 1].tolist() == list(range(length))
        assert json.loads(episode.attrs["provenance"])["environment"] == f"gym:{ID}"
    assert len(list((output / "seen").rglob("*.mp4"))) == 2


def test_a_recording_played_again_gives_the_recorded_outcomes(tmp_path):
    first = evaluated(tmp_path / "out", in_gym("first", "gym:CartPole-v1", success_reward_threshold=20))
    replay = in_gym("first", "gym:CartPole-v1", policy="replay", num_envs=3, success_reward_threshold=20)
    replay["policy_config_dict"] = {"replay_file_path": str(first / "first" / "dataset_first.hdf5")}
    assert measured(evaluated(tmp_path / "again", replay)) == measured(first)


@pytest.mark.parametrize("name", ["gym:CartPol-v1", "gym:Reacher-v5"])
def test_mistakes_are_told_before_anything_starts(tmp_path, capsys, name):
    arguments = run_of(tmp_path / "out", in_gym("wrong", name, sucess_key="success"))
    assert main(arguments[arguments.index("--eval_jobs_config") :]) == 2
    assert "did you mean 'success_key'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("place", [{}, IN_WORKERS], ids=["here", "in_workers"])
@pytest.mark.parametrize("identifier", ["Fake/Seen-v0", "Fake/Sparing-v0"])
def test_results_are_the_same_bytes_whether_or_not_every_picture_is_drawn(tmp_path, identifier, place):
    policy, environment = "tests.environments.gym.looking.LooksNowAndThen", "gym:tests.environments.gym.gym_pictures:"
    seen = in_gym("seen", environment + identifier, num_envs=3, policy=policy, success_key="near", **place)
    lazy, eager = (
        evaluated(tmp_path / name, seen, options=options)
        for name, options in (("lazily", ()), ("eagerly", ("--eager_pictures",)))
    )
    for table in ("results.csv", "episodes.csv"):
        assert (lazy / table).read_bytes() == (eager / table).read_bytes()
    reports = [json.loads((each / "seen" / "job_report_rank0.json").read_text()) for each in (lazy, eager)]
    (drawn, looked_at), (all_drawn, as_many) = ((r["pictures_drawn"], r["pictures_looked_at"]) for r in reports)
    assert looked_at == as_many < all_drawn / 2
    assert drawn == (looked_at if "Sparing" in identifier else all_drawn)
