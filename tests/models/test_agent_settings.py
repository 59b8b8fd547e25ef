from pathlib import Path

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.models.network import ActionScaling
from isaaclab_arena.models.rsl_rl_checkpoint import find_agent_file, read_agent_settings

# What mjlab 1.6 writes: yaml.dump of its dataclasses, whose tuples keep a tag of Python's own.
MJLAB = """
seed: 42
num_steps_per_env: 24
obs_groups:
  actor: !!python/tuple
  - actor
  critic: !!python/tuple
  - critic
experiment_name: go1_velocity
wandb_tags: !!python/tuple []
load_checkpoint: model_.*.pt
clip_actions: null
class_name: OnPolicyRunner
actor:
  hidden_dims: !!python/tuple
  - 512
  - 256
  activation: elu
  obs_normalization: true
  cnn_cfg: null
  distribution_cfg:
    class_name: GaussianDistribution
    init_std: 1.0
    std_type: scalar
  rnn_type: null
  class_name: MLPModel
algorithm:
  learning_rate: 0.001
"""
# What Isaac Lab of the time of rsl_rl 3 writes.
ISAAC_LAB = """
seed: 42
device: cuda:0
empirical_normalization: null
obs_groups:
  policy: [policy, extra]
  critic: [policy]
clip_actions: 5
policy:
  class_name: rsl_rl.modules.ActorCriticRecurrent
  init_noise_std: 1.0
  noise_std_type: log
  state_dependent_std: true
  actor_hidden_dims: [128, 128]
  activation: ReLU
  rnn_type: lstm
algorithm:
  class_name: !!python/name:rsl_rl.algorithms.PPO ''
  symmetry_cfg: !!python/object/apply:os.system ["touch {marker}"]
"""


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_agent_settings(path)
    return str(caught.value)


def test_a_file_of_mjlab_is_read(tmp_path):
    settings = read_agent_settings(written(tmp_path / "agent.yaml", MJLAB))
    assert settings.observation_groups == ("actor",)
    assert settings.clip_actions is None
    assert settings.action_scaling is ActionScaling.AS_IS
    network = settings.network
    assert (network.class_name, network.module, network.activation) == ("MLPModel", "", "elu")
    assert network.distribution["class_name"] == "GaussianDistribution"


def test_a_file_of_isaac_lab_is_read_and_nothing_in_it_is_run(tmp_path):
    marker = tmp_path / "marker"
    settings = read_agent_settings(written(tmp_path / "agent.yaml", ISAAC_LAB.replace("{marker}", str(marker))))
    assert not marker.exists()
    assert settings.observation_groups == ("policy", "extra")
    assert settings.clip_actions == 5.0
    network = settings.network
    assert (network.class_name, network.module, network.activation) == (
        "ActorCriticRecurrent",
        "rsl_rl.modules",
        "relu",
    )
    assert network.distribution == {"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log"}


def test_what_this_package_adds_is_read(tmp_path):
    text = "action_scaling: within_bounds\nobservation_terms: {policy: [b, a]}\nactor: {}\n"
    settings = read_agent_settings(written(tmp_path / "agent.yaml", text))
    assert settings.action_scaling is ActionScaling.WITHIN_BOUNDS
    assert settings.observation_terms == {"policy": ("b", "a")}
    assert settings.observation_groups == ("policy",)


def test_a_student_is_shown_its_own_groups(tmp_path):
    text = "student: {class_name: MLPModel}\nobs_groups: {student: [proprio], teacher: [policy]}\n"
    assert read_agent_settings(written(tmp_path / "agent.yaml", text)).observation_groups == ("proprio",)


def test_every_mistake_is_named_with_its_key(tmp_path):
    path = written(tmp_path / "agent.yaml", "action_scaling: wild\nclip_actions: much\nobs_groups: {actor: 3}\n")
    message = refusal(path)
    for key in ("action_scaling", "clip_actions", "obs_groups.actor"):
        assert f"{path}: {key}" in message
    assert "must be a mapping" in refusal(written(path, "- 1\n"))
    assert "no such file" in refusal(tmp_path / "nowhere.yaml")


def test_the_file_is_looked_for_beside_the_checkpoint_and_one_directory_above(tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert find_agent_file(run / "model_1.pt") is None
    agent = written(run / "params" / "agent.yaml", "{}")
    assert find_agent_file(run / "model_1.pt") == agent
    assert find_agent_file(run / "exported" / "policy.onnx") == agent
    assert find_agent_file(run / "a" / "b" / "policy.onnx") is None
    monkeypatch.chdir(run)
    assert find_agent_file(Path("model_1.pt")) == agent
