import logging

import numpy as np
import pytest
import torch
import yaml

from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError, PolicyError
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.testing.policy_conformance import PolicyConformance
from isaaclab_arena_gr00t.data.files.layout import DatasetVersion
from isaaclab_arena_gr00t.data.to_lerobot import LeRobotOptions, write_lerobot_dataset
from isaaclab_arena_gr00t.policy.replay_lerobot_policy import ReplayLerobotPolicy
from tests.fakes_environment import ScriptedEnvironment
from tests.gr00t.data.recordings import PANDA_YAML, record, recorded_episode
from tests.policy.playing import play


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
    write_lerobot_dataset(run_directory, directory / "dataset", LeRobotOptions(version=request.param, videos=False))
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
        write_lerobot_dataset(run_directory, directory / "dataset", LeRobotOptions(videos=False))
        cls.options = {"dataset_path": str(directory / "dataset")}

    def make_environment(self, num_envs: int) -> ScriptedEnvironment:
        return ScriptedEnvironment(num_envs, endings=("timeout",))


@pytest.mark.parametrize("num_envs", [1, 2, 8])
def test_each_episode_plays_the_trajectory_of_its_index(dataset, num_envs):
    policy = replay(dataset)
    assert policy.num_episodes() == 3
    actions, records = play(policy, 3, num_envs)
    for number, length in enumerate((3, 2, 3)):
        assert torch.equal(actions[number], torch.from_numpy(three(length) + number))
    assert {record.episode.episode_index: record.length for record in records} == {0: 3, 1: 2, 2: 3}


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


def test_a_single_env_slot_begins_again_while_others_play_on(dataset):
    policy, environment = replay(dataset), ScriptedEnvironment(2)
    starts = [
        EpisodeStart(
            env_id=env_id,
            episode=Episode(job="push", episode_index=env_id * 2, seed=7),
            conditions={},
            language_instruction="",
        )
        for env_id in range(2)
    ]
    policy.start_episodes(environment, starts)
    assert policy.get_action(environment, {})[:, 0].tolist() == [0, 2]
    policy.reset(torch.tensor([0]))
    assert policy.get_action(environment, {})[:, 0].tolist() == pytest.approx([0, 2.3])


def test_an_episode_without_a_trajectory_is_told_with_those_that_exist(dataset):
    policy = replay(dataset)
    assert not policy.can_play(3)
    with pytest.raises(PolicyError, match="has no trajectory 3; it has 0 to 2"):
        play(policy, 4)


def test_an_environment_with_other_actions_is_refused_before_the_first_step(dataset):
    with pytest.raises(ConfigError, match=r"have shape \(3, 3\); the environment takes .* \(1 or more, 8\)"):
        replay(dataset).check_environment(ScriptedEnvironment(1, action_dim=8))


def refused(options):
    job = JobConfig(
        index=0,
        name="a",
        environment="reach",
        policy_type="replay_lerobot",
        policy_config_dict=options,
        num_episodes=1,
    )
    with pytest.raises(ConfigError) as caught:
        resolve_jobs([job], file="jobs.json")
    return list(map(str, caught.value.problems))


def test_a_dataset_of_another_robot_is_told_before_anything_starts(dataset):
    [told] = refused({"dataset_path": str(dataset)})
    assert told.startswith("jobs.json: job 'a': policy_config_dict.dataset_path: the actions of ")
    assert "have shape (3, 3); the environment takes (num_steps, action_dim) = (1 or more, 8)" in told


def test_a_dataset_that_is_not_there_is_told_before_anything_starts(dataset, tmp_path):
    [told] = refused({"dataset_path": str(dataset / "nowhere")})
    assert told.startswith("jobs.json: job 'a': policy_config_dict.dataset_path: ")
    (tmp_path / "policy.yaml").write_text("dataset_path: nowhere\n")
    [told] = refused({"policy_config_yaml_path": str(tmp_path / "policy.yaml")})
    start = (
        f"jobs.json: job 'a': policy_config_dict.policy_config_yaml_path: {tmp_path / 'policy.yaml'}: dataset_path: "
    )
    assert told.startswith(start)
    [told] = refused({"dataset_path": str(dataset), "trajectory_index": 9})
    assert told.endswith("has no trajectory 9; it has 0 to 2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trajectory_index": 9}, "trajectory_index: .* has no trajectory 9; it has 0 to 2"),
        ({"max_steps": 0}, "max_steps: must be at least 1, got 0"),
        ({"device": "gpu"}, "cannot use device 'gpu'"),
        ({"dataset_path": "nowhere"}, "dataset_path: .*there is no LeRobot dataset"),
        ({"trajectory": 1}, "did you mean 'trajectory_index'"),
    ],
)
def test_wrong_options_are_named(dataset, options, message):
    with pytest.raises(ConfigError, match=message):
        ReplayLerobotPolicy.from_dict({"dataset_path": str(dataset), **options})


def test_a_dataset_must_be_named():
    with pytest.raises(ConfigError, match="dataset_path: is missing; give it, or policy_config_yaml_path"):
        ReplayLerobotPolicy.from_dict({})


def test_another_rate_is_told(dataset, monkeypatch):
    lines = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr(logging.getLogger("isaaclab_arena.gr00t"), "handlers", [handler])
    environment = ScriptedEnvironment(1)
    replay(dataset).check_environment(environment)
    assert lines == []
    environment.control_dt = 0.02
    replay(dataset).check_environment(environment)
    assert "has 20 control steps per second, the environment 50" in lines[0]


class TestWithJointFiles:
    """A dataset of others, whose groups go to an environment with joints in another order."""

    ORDER = ("gripper_width", *(f"panda_joint{number}" for number in range(1, 8)))

    @pytest.fixture
    def files(self, tmp_path):
        recording = record(tmp_path / "lift", "lift", [4, 5])
        options = LeRobotOptions(policy_config_yaml_path=PANDA_YAML, videos=False)
        write_lerobot_dataset(recording, tmp_path / "dataset", options)
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
        start = EpisodeStart(
            env_id=0, episode=Episode(job="lift", episode_index=1, seed=7), conditions={}, language_instruction=""
        )
        policy.start_episodes(environment, [start])
        source = recorded_episode(1, 5, "lift").arrays["actions"]
        action = policy.get_action(environment, {})[0]
        assert torch.equal(action, torch.from_numpy(np.concatenate([source[0, 7:], source[0, :7]])))

    def test_an_environment_that_names_other_joints_is_refused(self, files):
        policy = ReplayLerobotPolicy.from_dict({"policy_config_yaml_path": str(files / "replay.yaml")})
        environment = ScriptedEnvironment(1, action_dim=8)
        environment.action_spec = ArraySpec(shape=(8,), names=tuple("abcdefgh"))
        with pytest.raises(ConfigError, match="in the environment it is 'a'"):
            policy.check_environment(environment)

    def test_a_wrong_key_is_told_with_the_file(self, files):
        (files / "replay.yaml").write_text("dataset_pth: dataset\n")
        with pytest.raises(ConfigError, match=r"replay\.yaml.*dataset_pth.*did you mean 'dataset_path'"):
            ReplayLerobotPolicy.from_dict({"policy_config_yaml_path": str(files / "replay.yaml")})
