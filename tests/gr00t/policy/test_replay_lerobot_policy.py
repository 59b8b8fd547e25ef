import dataclasses
import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from pyarrow import parquet

from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.lerobot.layout import DatasetVersion
from isaaclab_arena.lerobot.writing import LeRobotOptions, write_lerobot_dataset
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena_gr00t.convert import model_columns
from isaaclab_arena_gr00t.policy.replay_lerobot_policy import ReplayLerobotPolicy
from tests.fakes_environment import ScriptedEnvironment
from tests.gr00t.data.recordings import PANDA_YAML, record, recorded_episode
from tests.policy.playing import job_of, play, refused, start


def three(length):
    return np.arange(3 * length, dtype=np.float32).reshape(length, 3) / 10


def run_of_three(directory, lengths=(3, 2, 3)):
    for number, length in enumerate(lengths):
        record(directory / f"job{number}", f"job{number}", [length], actions=three(length) + number)
    return directory


@pytest.fixture(scope="module", params=[*DatasetVersion])
def dataset(request, tmp_path_factory):
    """Three trajectories of 3, 2 and 3 steps; the first action of each is its number."""
    directory = tmp_path_factory.mktemp("datasets")
    run_directory = run_of_three(directory / "run")
    write_lerobot_dataset(run_directory, directory / "dataset", LeRobotOptions(version=request.param, no_videos=True))
    return directory / "dataset"


def replay(dataset, **options):
    return ReplayLerobotPolicy.from_dict({"dataset_path": str(dataset), **options})


class TestConformance(PolicyConformance):
    policy_class = ReplayLerobotPolicy

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def trajectories(cls, tmp_path_factory):
        directory = tmp_path_factory.mktemp("conformance")
        run_directory = run_of_three(directory / "run", lengths=(6, 5, 4, 7))
        write_lerobot_dataset(run_directory, directory / "dataset", LeRobotOptions(no_videos=True))
        cls.options = {"dataset_path": str(directory / "dataset")}

    def make_environment(self, num_envs: int) -> ScriptedEnvironment:
        return ScriptedEnvironment(num_envs, endings=("timeout",))


def test_each_episode_plays_the_trajectory_of_its_index(dataset):
    policy = replay(dataset)
    assert policy.num_episodes() == 3
    actions, records = play(policy, 3, num_envs=2)
    for number, length in enumerate((3, 2, 3)):
        assert torch.equal(actions[number], torch.from_numpy(three(length) + number))
    assert {record.episode.episode_index: record.length for record in records} == {0: 3, 1: 2, 2: 3}
    assert not policy.can_play(3)
    with pytest.raises(PolicyError, match="no trajectory 3"):
        play(policy, 4)


def test_one_trajectory_is_played_in_every_episode_and_from_its_start(dataset):
    policy = replay(dataset, trajectory_index=1)
    assert policy.num_episodes() == 1
    assert policy.can_play(17)
    actions, _ = play(policy, 5, num_envs=2)
    assert len(actions) == 5
    assert all(torch.equal(action, torch.from_numpy(three(2) + 1)) for action in actions.values())


def test_max_steps_end_an_episode_before_its_trajectory(dataset):
    _, records = play(replay(dataset, max_steps=2), 3)
    assert {(record.length, record.termination) for record in records} == {(2, "policy_finished")}


def test_trajectories_with_gaps_are_replayed_one_after_the_other(dataset):
    policy = replay(dataset, episodes=[2, 0])
    assert policy.num_episodes() == 2
    assert not policy.can_play(2)
    actions, _ = play(policy, 2)
    assert [int(actions[index][0, 0]) for index in range(2)] == [2, 0]


def test_what_does_not_fit_is_told_before_anything_starts(dataset, tmp_path):
    yaml_file = tmp_path / "policy.yaml"
    yaml_file.write_text("dataset_path: nowhere\n")
    for options, key, says in (
        ({"dataset_path": str(dataset)}, "dataset_path", "shape (3, 3)"),
        ({"policy_config_yaml_path": str(yaml_file)}, "policy_config_yaml_path", f"{yaml_file}: dataset_path: "),
        ({"dataset_path": str(dataset), "trajectory_index": 9}, "trajectory_index", "no trajectory 9"),
    ):
        with refused(f"policy_config_dict.{key}") as problems:
            resolve_jobs([job_of("replay_lerobot", options)], file="jobs.json")
        assert (problems[0].file, problems[0].job) == ("jobs.json", "a")
        assert says in problems[0].message


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"max_steps": 0}, "max_steps"),
        ({"device": "gpu"}, "device"),
        ({"dataset_path": "nowhere"}, "dataset_path"),
        ({"dataset_path": None}, "dataset_path"),
        ({"trajectory": 1}, "trajectory"),
        ({"episodes": [0, 7]}, "episodes"),
        ({"episodes": "present", "trajectory_index": 0}, "trajectory_index"),
    ],
)
def test_wrong_options_are_named(dataset, options, key):
    given = {"dataset_path": str(dataset), **options}
    with refused(key):
        ReplayLerobotPolicy.from_dict({name: value for name, value in given.items() if value is not None})


def test_another_rate_and_actions_in_another_order_of_the_same_names_are_told(dataset, tmp_path):
    environment = ScriptedEnvironment(1)
    connections = replay(dataset).connections(environment)
    assert str(connections) == "action -> action"
    assert connections.doubts(environment) == []
    copy = shutil.copytree(dataset, tmp_path / "copy")
    info = json.loads((copy / "meta/info.json").read_text())
    info["features"]["action"]["names"] = ["lift", "grip", "turn"]
    (copy / "meta/info.json").write_text(json.dumps(info))
    environment.control_dt = 0.02
    environment.action_spec = dataclasses.replace(environment.action_spec, names=("turn", "lift", "grip"))
    rate, order = replay(copy).connections(environment).doubts(environment)
    assert "20 control steps" in rate
    assert "lift, grip, turn" in order


def table_of(dataset):
    """Return the file and the rows of a dataset's only table."""
    table = next(dataset.glob("data/*/*.parquet"))
    return table, parquet.read_table(table)


class TestHeldAgainstTheJob:
    """What a dataset says of itself is compared with its tables, and with the job that replays it."""

    @pytest.fixture
    def lifted(self, tmp_path):
        recording = record(tmp_path / "run/lift_object", "lift_object", [4, 3, 5, 6])
        # As a job with successes alone leaves it: of episodes 0 to 3, those with even numbers succeeded.
        options = LeRobotOptions(version=DatasetVersion.V30, no_videos=True, only_successes=True)
        write_lerobot_dataset(recording, tmp_path / "dataset", options)
        return tmp_path / "dataset"

    @staticmethod
    def job(path, **options):
        changes = {name: options.pop(name) for name in ("environment", "seed", "num_episodes") if name in options}
        changes = {"environment": "lift_object", "seed": 3, "num_episodes": None, **changes}
        (job,) = resolve_jobs([job_of("replay_lerobot", {"dataset_path": str(path), **options}, **changes)])
        return job

    def test_another_environment_seed_or_start_is_told(self, lifted):
        (start,) = self.job(lifted).doubts
        assert "episode 1 starts" in start
        (seed,) = self.job(lifted, seed=4).doubts
        assert "seed 3" in seed
        environment, *_ = self.job(lifted, environment="stack").doubts
        assert "used in 'stack'" in environment
        assert self.job(lifted, trajectory_index=0).doubts == ()

    def test_rows_out_of_order_are_played_in_order(self, lifted):
        table, rows = table_of(lifted)
        parquet.write_table(rows.take(np.random.default_rng(0).permutation(rows.num_rows)), table)
        policy = replay(lifted)
        for number, index in enumerate((0, 2)):
            expected = recorded_episode(index, [4, 3, 5, 6][index], "lift_object").arrays["actions"]
            assert np.array_equal(policy.dataset.columns(number, ["action"])["action"], expected)

    def test_two_rows_of_one_step_are_refused(self, lifted):
        table, rows = table_of(lifted)
        place = rows.column_names.index("frame_index")
        parquet.write_table(rows.set_column(place, "frame_index", pa.array([0] * rows.num_rows)), table)
        with pytest.raises(ConfigError, match="frame_index twice"):
            self.job(lifted)

    def test_an_episode_that_is_in_another_table_than_the_dataset_says_is_found_there_and_told(self, lifted):
        table, rows = table_of(lifted)
        first = np.array(rows["episode_index"]) == 0
        parquet.write_table(rows.filter(pa.array(first)), table)
        parquet.write_table(rows.filter(pa.array(~first)), table.with_name("file-007.parquet"))
        expected = recorded_episode(2, 5, "lift_object").arrays["actions"]
        assert np.array_equal(replay(lifted).dataset.columns(1, ["action"])["action"], expected)
        told, _ = self.job(lifted).doubts
        assert "table for episode" in told

    def test_rows_that_are_nowhere_are_told_before_anything_runs(self, lifted):
        table, rows = table_of(lifted)
        parquet.write_table(rows.slice(0, rows.num_rows - 1), table)
        with pytest.raises(ConfigError, match=r"4 rows.*expected 5"):
            self.job(lifted)
        assert self.job(lifted, num_episodes=1).num_played == 1
        assert self.job(lifted, episodes=[0]).num_played == 1

    def test_a_count_that_is_not_that_of_the_episodes_is_told(self, lifted):
        info = json.loads((lifted / "meta/info.json").read_text())
        (lifted / "meta/info.json").write_text(json.dumps(info | {"total_episodes": 9}))
        told, _ = self.job(lifted).doubts
        assert told.startswith(str(lifted / "meta/info.json"))


class TestWithJointFiles:
    """A dataset of others, whose groups go to an environment with joints in another order."""

    ORDER = ("gripper_width", *(f"panda_joint{number}" for number in range(1, 8)))

    @pytest.fixture
    def files(self, tmp_path):
        recording = record(tmp_path / "lift", "lift", [4, 5])
        options = LeRobotOptions(no_videos=True)
        write_lerobot_dataset(recording, tmp_path / "dataset", options, model_columns(PANDA_YAML))
        for path in (tmp_path / "dataset/meta").glob("arena*"):
            path.unlink()
        joints = yaml.safe_load(PANDA_YAML.with_name("panda_joints.yaml").read_text())
        (tmp_path / "joints.yaml").write_text(yaml.safe_dump(joints["action"]))
        (tmp_path / "order.yaml").write_text(yaml.safe_dump({joint: place for place, joint in enumerate(self.ORDER)}))
        content = {
            "dataset_path": "dataset",
            "policy_joints_config_path": "joints.yaml",
            "action_joints_config_path": "order.yaml",
            "embodiment_tag": "GR1",
            "action_horizon": 16,
        }
        (tmp_path / "replay.yaml").write_text(yaml.safe_dump(content))
        return tmp_path

    @pytest.mark.parametrize("option", ["policy_config_yaml_path", "config_yaml_path"])
    def test_actions_go_to_their_joints_by_name(self, files, option):
        policy = ReplayLerobotPolicy.from_dict({option: str(files / "replay.yaml")})
        environment = ScriptedEnvironment(1, action_dim=8)
        policy.check_environment(environment)
        policy.start_episodes(environment, [start(0, 1)])
        source = recorded_episode(1, 5, "lift").arrays["actions"]
        action = policy.get_action(environment, {})[0]
        assert torch.equal(action, torch.from_numpy(np.concatenate([source[0, 7:], source[0, :7]])))

    def test_an_environment_that_names_other_joints_is_refused(self, files):
        policy = ReplayLerobotPolicy.from_dict({"policy_config_yaml_path": str(files / "replay.yaml")})
        environment = ScriptedEnvironment(1, action_dim=8)
        environment.action_spec = ArraySpec(shape=(8,), names=tuple("abcdefgh"))
        with pytest.raises(ConfigError, match="it is 'a'"):
            policy.check_environment(environment)
