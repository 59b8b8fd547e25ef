"""What ``isaaclab-arena export --robomimic`` writes, met as robomimic meets it, and by robomimic itself where it is."""

import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.results import read_episode
from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT, evaluated, job
from tests.outsiders.robomimic_reader import environment_metadata, gym_registry, loaded

JOINTS = {"action_mode": "joint_position"}
VARIED = {"action.noise.enabled": True, "observation.delay.enabled": True}
JOBS = [
    job("reach", "scripted", 4, num_envs=4, args=JOINTS, name="reach", seed=9, variations=VARIED),
    job("gym:Pendulum-v1", "random_action", 2, num_envs=1, args={"max_episode_length": 5}, name="pendulum"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    output = evaluated(tmp_path_factory.mktemp("robomimic") / "out", *JOBS)
    assert main(["export", str(output), "--robomimic"]) == 0
    return output


def exported(run: Path) -> Path:
    return run.with_name("out_robomimic")


@pytest.fixture
def reach(run) -> Path:
    return exported(run) / "reach.hdf5"


def test_the_default_loader_finds_all_that_it_reads(run, reach):
    demonstrations = loaded(reach, ["robot_joint_pos", "eef_pos", "flat"])
    assert list(demonstrations) == ["demo_0", "demo_1", "demo_2", "demo_3"]
    assert list(loaded(reach, ["flat"], mask="train")) == ["demo_1", "demo_2", "demo_3"]
    assert list(loaded(reach, ["flat"], mask="valid")) == ["demo_0"]
    assert list(loaded(reach, ["flat"], mask="successful")) == list(demonstrations)
    source = read_episode(run / "reach" / "dataset_reach.hdf5", 2).arrays
    np.testing.assert_array_equal(demonstrations["demo_2"]["obs/eef_pos"], source["obs/eef_pos"])
    assert demonstrations["demo_2"]["dones"][-1] == 1
    # Actions are shares of their bounds.
    assert 0.1 < max(np.abs(arrays["actions"]).max() for arrays in demonstrations.values()) <= 1


@pytest.mark.parametrize("name", ["reach", "pendulum"])
def test_the_environment_of_a_file_plays_its_actions_as_they_were_recorded(run, name):
    path = exported(run) / f"{name}.hdf5"
    metadata = environment_metadata(path)
    assert metadata["type"] == 2
    demo = loaded(path, ["flat"])["demo_0"]
    with h5py.File(path) as file:
        seed, success = (file["data/demo_0"].attrs.get(name) for name in ("seed", "success"))
    with gym_registry() as gym:
        env = gym.make(metadata["env_name"], **metadata["env_kwargs"], lang=None)
        observation, done = env.reset(seed=int(str(seed))), False
        for step, action in enumerate(demo["actions"]):
            assert not done
            # Bounds are applied and taken off again in single precision.
            np.testing.assert_allclose(observation, demo["obs/flat"][step], atol=1e-4)
            observation, _, done, _ = env.step(action)
        assert done
        assert env.unwrapped._check_success() == {"task": bool(success)}
        env.close()


def test_only_the_jobs_that_are_asked_for_go_where_they_are_wanted(run, tmp_path, capsys):
    assert main(["export", str(run), "--robomimic", "--job", "reach", "--output", str(tmp_path / "one")]) == 0
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["reach.hdf5"]
    assert "4 episodes (train 3, valid 1, successful 4" in capsys.readouterr().out
    assert main(["export", str(run / "reach"), "--robomimic", "--output", str(tmp_path / "of_a_job")]) == 0
    assert (tmp_path / "of_a_job" / "reach.hdf5").is_file()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "give the one format to write: --arena or --robomimic"),
        (["--arena", "--job", "reach"], "--job: is for --robomimic and --rerun alone"),
        (
            ["--robomimic", "--job", "raech", "--output", "elsewhere"],
            "the run has no job 'raech'; did you mean 'reach'",
        ),
        (["--robomimic"], "out_robomimic' is not empty"),
    ],
)
def test_mistakes_are_told(run, capsys, options, told):
    assert main(["export", str(run), *options]) == 2
    assert told in capsys.readouterr().err


def test_episodes_that_ended_in_an_error_are_left_out(run, tmp_path, capsys):
    source = tmp_path / "dataset_reach.hdf5"
    source.write_bytes((run / "reach" / "dataset_reach.hdf5").read_bytes())
    with h5py.File(source, "r+") as file:
        file["data/demo_1"].attrs["outcome"] = "error"
    assert main(["export", str(source), "--robomimic"]) == 0
    assert "1 that ended in an error left out" in capsys.readouterr().out
    assert "demo_1" not in loaded(tmp_path / "dataset_reach.hdf5_robomimic" / "reach.hdf5", ["flat"])


def test_robomimic_itself_loads_the_file_learns_from_it_and_builds_its_environment(reach):
    reason = "needs robomimic and gym, which share no environment with this program's tests"
    robomimic = pytest.importorskip("robomimic", reason=reason)
    pytest.importorskip("gym", reason=reason)
    torch = pytest.importorskip("torch")
    algorithms, configs, datasets, environments, files, observations = (
        pytest.importorskip(f"robomimic.{name}", reason=reason)
        for name in ("algo", "config", "utils.dataset", "utils.env_utils", "utils.file_utils", "utils.obs_utils")
    )
    config = configs.config_factory("bc")
    with config.values_unlocked():
        config.observation.modalities.obs.low_dim = ["flat"]
    observations.initialize_obs_utils_with_config(config)
    later = robomimic.__version__ >= "0.5"
    more = {"action_keys": ("actions",), "action_config": {"actions": {"normalization": None}}} if later else {}
    dataset = datasets.SequenceDataset(
        hdf5_path=str(reach), obs_keys=("flat",), dataset_keys=("actions", "rewards", "dones"), **more
    )
    assert dataset.n_demos == 4
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=32)))
    flat_size, action_size = dataset[0]["obs"]["flat"].shape[-1], dataset[0]["actions"].shape[-1]
    model = algorithms.algo_factory(
        "bc", config, obs_key_shapes={"flat": [flat_size]}, ac_dim=action_size, device=torch.device("cpu")
    )
    model.set_train()
    ready = model.postprocess_batch_for_training(model.process_batch_for_training(batch), obs_normalization_stats=None)
    losses = [float(model.train_on_batch(ready, epoch=0)["losses"]["action_loss"]) for _ in range(20)]
    assert losses[-1] < losses[0]
    env = environments.create_env_from_metadata(files.get_env_metadata_from_dataset(str(reach)))
    assert env.reset()["flat"].shape == (flat_size,)
    assert env.step(np.zeros(action_size))[0]["flat"].shape == (flat_size,)
    assert env.is_success() == {"task": False}


def test_what_the_document_shows_works(run, tmp_path, monkeypatch):
    text = (ROOT / "docs" / "reference" / "recordings.md").read_text()
    (command,) = (body for body in blocks(text, "bash") if "--robomimic" in body)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "first").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.replace("lift-cube-scripted", "reach"))
    assert main([*words[1:], "--output", "exported"]) == 0
    assert (tmp_path / "exported" / "reach.hdf5").is_file()
