"""Checkpoints of rsl_rl and of its relatives."""

import dataclasses
import io
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.models import (
    ActionScaling,
    AgentSettings,
    PolicyNetwork,
    checkpoint_file,
    find_agent_file,
    forgotten,
    load_network,
    read_agent_settings,
)
from tests.models.trainings import GAUSSIAN, NUM_OBSERVATIONS, Training, trained

# Networks of real checkpoints give the bits that rsl_rl itself gives.


CPU = torch.device("cpu")
LSTM = {"class_name": "RNNModel", "rnn_type": "lstm", "rnn_hidden_dim": 24, "rnn_num_layers": 2}
GRU = {"class_name": "RNNModel", "rnn_type": "gru", "rnn_hidden_dim": 24, "rnn_num_layers": 1}
KINDS = {
    "plain": {},
    "normalised": {"obs_normalization": True},
    "log_std": {"distribution_cfg": {**GAUSSIAN, "std_type": "log"}, "activation": "tanh"},
    "heteroscedastic": {"distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution", "init_std": 0.5}},
    "heteroscedastic_log": {
        "distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log"}
    },
    "beta": {"distribution_cfg": {"class_name": "BetaDistribution", "action_range": (-2.0, 0.5)}},
    "lstm": {**LSTM, "obs_normalization": True},
    "gru": {**GRU, "distribution_cfg": {"class_name": "BetaDistribution"}},
}


def load(training: Training) -> PolicyNetwork:
    settings = read_agent_settings(training.directory / "params" / "agent.yaml")
    return load_network(training.checkpoint, settings, CPU)


def refusal(path: Path, settings: AgentSettings | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_network(path, settings or AgentSettings(actor={}), CPU)
    return str(caught.value)


@pytest.fixture(scope="module")
def training_of(tmp_path_factory) -> Callable[[str], Training]:
    """Trains each kind once."""
    return cache(lambda kind: trained(tmp_path_factory.mktemp(kind), **KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_answers_with_the_bits_of_rsl_rl(training_of, kind):
    training = training_of(kind)
    generator = torch.get_rng_state()
    network, reference = load(training), training.reference()
    assert torch.equal(torch.get_rng_state(), generator), "the generator of the process is left alone"
    assert network.num_inputs == NUM_OBSERVATIONS
    for batch_size in (1, 5, 64):
        reference.policy.reset()
        memory = network.new_memory(batch_size)
        observation: Any = None
        answer: Any = None
        for step in range(4):
            observation = training.observation(batch_size, seed=step)
            answer = network.answer(observation, memory)
            memory = answer.memory
            assert torch.equal(answer.mean, reference(observation))
    assert network.knows_std is (kind not in {"beta", "gru"})
    if network.knows_std and kind not in {"normalised", "lstm"}:
        reference.policy.distribution.update(reference.policy.mlp(observation))
        assert answer.std is not None
        assert torch.equal(answer.std, reference.policy.output_std.detach())


ACTIVATIONS = ["elu", "selu", "relu", "crelu", "lrelu", "tanh", "sigmoid", "softplus", "gelu", "swish", "mish"]


@pytest.mark.parametrize("activation", [*ACTIVATIONS, "identity"])
def test_every_activation_is_the_one_that_rsl_rl_means(tmp_path, activation):
    training = trained(tmp_path, activation=activation)
    observation = training.observation(16)
    assert torch.equal(load(training).answer(observation, ()).mean, training.reference()(observation))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_an_env_slot_that_starts_an_episode_has_forgotten_and_the_others_have_not(training_of, kind):
    training = training_of(kind)
    network, reference = load(training), training.reference()
    observation = training.observation(4)
    memory = network.answer(observation, network.new_memory(4)).memory
    before = [part.clone() for part in memory]
    reference(observation)
    reference.policy.reset(torch.tensor([0, 1, 0, 1]))
    anew = network.answer(observation, forgotten(memory, torch.tensor([1, 3]))).mean
    assert torch.equal(anew, reference(observation))
    first = network.answer(observation, network.new_memory(4)).mean
    assert [torch.equal(anew[env_id], first[env_id]) for env_id in range(2)] == [False, True]
    assert all(torch.equal(old, new) for old, new in zip(before, memory, strict=True))


def renamed(state: dict[str, torch.Tensor], names: dict[str, str]) -> dict[str, torch.Tensor]:
    new = {}
    for key, tensor in state.items():
        old = next((name for name in names if key.startswith(name)), None)
        new[key if old is None else names[old] + key.removeprefix(old)] = tensor
    return new


VERSION_3 = {"mlp.": "actor.", "obs_normalizer.": "actor_obs_normalizer.", "rnn.rnn.": "memory_a.rnn.",
             "distribution.std_param": "std", "distribution.log_std_param": "log_std"}  # fmt: skip
STUDENT_3 = {"mlp.": "student.", "obs_normalizer.": "student_obs_normalizer.", "rnn.rnn.": "memory_s.rnn.",
             "distribution.std_param": "std"}  # fmt: skip


@pytest.mark.parametrize("kind", ["normalised", "log_std", "heteroscedastic", "lstm"])
@pytest.mark.parametrize("version", ["2", "3", "3_student", "4", "5_student"])
def test_checkpoints_of_older_versions_and_of_students_are_read(tmp_path, training_of, kind, version):
    training = training_of(kind)
    saved = torch.load(training.checkpoint, weights_only=True)
    state = saved.pop("actor_state_dict")
    critic = {f"critic.{name}": tensor for name, tensor in saved.pop("critic_state_dict").items()}
    if version == "2":
        normalizer = {k.partition(".")[2]: state.pop(k) for k in list(state) if k.startswith("obs_normalizer.")}
        saved["model_state_dict"] = {**renamed(state, VERSION_3), **critic}
        if normalizer:
            saved["obs_norm_state_dict"] = normalizer
    elif version == "3":
        saved["model_state_dict"] = {**renamed(state, VERSION_3), **critic}
    elif version == "3_student":
        teacher = {f"teacher.{name.removeprefix('mlp.')}": tensor for name, tensor in state.items() if "mlp" in name}
        saved["model_state_dict"] = {**renamed(state, STUDENT_3), **teacher}
    elif version == "4":
        saved["actor_state_dict"] = renamed(state, {"distribution.std_param": "std", "distribution.log": "log"})
        saved["actor_state_dict"] = renamed(saved["actor_state_dict"], {"log_std_param": "log_std"})
    else:
        saved["student_state_dict"] = state
    torch.save(saved, tmp_path / "model_2.pt")
    recurrent = kind == "lstm"
    block = {"activation": "tanh" if kind == "log_std" else "elu", "state_dependent_std": kind == "heteroscedastic"}
    classes = {
        "2": ("policy", "ActorCritic"),
        "3": ("policy", "ActorCritic"),
        "3_student": ("policy", "StudentTeacher"),
        "4": ("actor", "RNNModel" if recurrent else "MLPModel"),
        "5_student": ("student", "rsl_rl.models:MLPModel"),
    }
    key, class_name = classes[version]
    block["class_name"] = class_name + ("Recurrent" if recurrent and key == "policy" else "")
    settings = dataclasses.replace(AgentSettings(), **{key: block})
    network = load_network(tmp_path / "model_2.pt", settings, CPU)
    observation = training.observation(7)
    assert torch.equal(network.answer(observation, network.new_memory(7)).mean, training.reference()(observation))


@pytest.fixture
def checkpoint(tmp_path) -> tuple[Path, dict]:
    """A checkpoint made by hand, and what it holds."""
    tensors = {
        "mlp.0.weight": torch.ones(4, 6), "mlp.0.bias": torch.zeros(4),
        "mlp.2.weight": torch.ones(2, 4), "mlp.2.bias": torch.zeros(2),
        "distribution.std_param": torch.ones(2),
    }  # fmt: skip
    return tmp_path / "model_0.pt", {"actor_state_dict": tensors, "iter": 0, "infos": None}


def zipped(method: int, **files: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return stream.getvalue()


def saved(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no checkpoint"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "git lfs pull"),
        (b"Version https://git-lfs.github.com/spec/v1", "no checkpoint"),
        (saved([1, 2]), "a list"),
        (saved({"model": {}, "epoch": 3}), "model, epoch"),
        (saved({"actor_state_dict": {}, "infos": Path("/")}), "could run code"),
        (saved({"actor_state_dict": {"mlp.0.weight": torch.ones(64, 6)}, "iter": 0})[:-700], "no checkpoint"),
        (zipped(8, data="{}" * 1000, _stable_baselines3_version="2.3.0"), "a model of Stable-Baselines3; "),
        (zipped(0, **{"exported/archive_format": "pt2"}), "torch.export (.pt2)"),
    ],
    ids=["empty", "pointer", "text", "list", "other keys", "code", "cut off", "Stable-Baselines3", "torch.export"],
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content, told):
    path = tmp_path / "model_0.zip"
    path.write_bytes(content)
    assert told in refusal(path)


WEIGHTS = {"0.weight": torch.ones(2, 3), "0.bias": torch.zeros(2)}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"model": {"a2c_network.mu.weight": torch.ones(2)}, "epoch": 3}, ["of rl_games; "]),
        ({"policy": WEIGHTS, "value": {}, "optimizer": {}}, ["of skrl; "]),
        (WEIGHTS, ["(0.weight, 0.bias)"]),
        ({"model_state_dict": WEIGHTS, "epoch": 3}, ["(0.weight, 0.bias)"]),
        ({"actor": WEIGHTS}, ["holds actor; ", "torch.jit.trace(actor, torch.zeros(2,"]),
    ],
    ids=["rl_games", "skrl", "weights", "weights_and_epoch", "cleanrl"],
)
def test_a_checkpoint_of_another_library_is_named_with_the_way_out(tmp_path, content, told):
    torch.save(content, tmp_path / "model_0.pt")
    message = refusal(tmp_path / "model_0.pt")
    assert all(words in message for words in (*told, "trace its actor"))
    with pytest.raises(ConfigError) as caught:
        load_network(tmp_path / "model_0.pt", None, CPU)
    assert told[0] in str(caught.value), "whether or not a configuration of rsl_rl is beside it"


@pytest.mark.parametrize(
    ("changes", "block", "message"),
    [
        ({"cnns.camera.0.weight": torch.ones(1)}, {}, "(cnns.camera.0.weight)"),
        ({"mlp.2.weight": torch.ones(2, 5)}, {}, "4 numbers meet 5"),
        ({"obs_normalizer._mean": torch.ones(1, 9), "obs_normalizer._std": torch.ones(1, 9)}, {}, "9 numbers meet 6"),
        ({"mlp.3.weight": torch.ones(2, 2), "mlp.3.bias": torch.ones(2)}, {}, "[0, 2, 3]"),
        ({"rnn.rnn.weight_hh_l0": torch.ones(8, 4)}, {}, "neither an LSTM nor a GRU"),
        ({"obs_normalizer.scale": torch.ones(1)}, {}, "EmpiricalNormalization"),
        (
            {"mlp.2.weight": torch.ones(3, 4), "mlp.2.bias": torch.ones(3)},
            {"distribution_cfg": {"class_name": "BetaDistribution"}},
            "two for each action",
        ),
        ({}, {"class_name": "CNNModel"}, "class 'CNNModel'"),
        ({}, {"class_name": "my_lab.networks:Wonder"}, "class 'my_lab.networks.Wonder'"),
        ({}, {"class_name": "my_lab.MLPModel"}, "class 'my_lab.MLPModel'"),
        ({}, {"class_name": ".networks.MLPModel"}, "class '.networks.MLPModel'"),
        ({}, {"activation": "snake"}, "'snake'"),
        ({}, {"distribution_cfg": {"class_name": "Cauchy"}}, "'Cauchy'"),
        ({}, {"distribution_cfg": {"class_name": "BetaDistribution", "action_range": "wide"}}, "pair of numbers"),
    ],
)
def test_tensors_and_settings_that_make_no_network_are_refused(checkpoint, changes, block, message):
    path, content = checkpoint
    content["actor_state_dict"] |= changes
    torch.save(content, path)
    assert message in refusal(path, AgentSettings(actor=block))


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


def test_a_file_of_mjlab_is_read(tmp_path):
    settings = read_agent_settings(written(tmp_path / "agent.yaml", MJLAB))
    assert settings.observation_groups == ("actor",)
    assert settings.clip_actions is None
    assert settings.action_scaling is ActionScaling.AS_IS
    class_path, activation, distribution = settings.network
    assert (class_path, activation, distribution["class_name"]) == ("MLPModel", "elu", "GaussianDistribution")


def test_a_file_of_isaac_lab_is_read_and_nothing_in_it_is_run(tmp_path):
    marker = tmp_path / "marker"
    settings = read_agent_settings(written(tmp_path / "agent.yaml", ISAAC_LAB.replace("{marker}", str(marker))))
    assert not marker.exists()
    assert (settings.observation_groups, settings.clip_actions) == (("policy", "extra"), 5.0)
    distribution = {"class_name": "HeteroscedasticGaussianDistribution", "std_type": "log"}
    assert settings.network == ("rsl_rl.modules.ActorCriticRecurrent", "relu", distribution)


def test_what_this_package_adds_and_the_groups_of_a_student_are_read(tmp_path):
    text = "action_scaling: within_bounds\nobservation_terms: {policy: [b, a]}\nactor: {}\n"
    settings = read_agent_settings(written(tmp_path / "agent.yaml", text))
    assert settings.action_scaling is ActionScaling.WITHIN_BOUNDS
    assert (settings.observation_terms, settings.observation_groups) == ({"policy": ("b", "a")}, ("policy",))
    text = "student: {class_name: MLPModel}\nobs_groups: {student: [proprio], teacher: [policy]}\n"
    assert read_agent_settings(written(tmp_path / "agent.yaml", text)).observation_groups == ("proprio",)


def test_every_mistake_is_named_with_its_key(tmp_path):
    path = written(tmp_path / "agent.yaml", "action_scaling: wild\nclip_actions: much\nobs_groups: {actor: 3}\n")
    with pytest.raises(ConfigError) as caught:
        read_agent_settings(path)
    assert {problem.key for problem in caught.value.problems} == {"action_scaling", "clip_actions", "obs_groups.actor"}
    for file, told in ((written(path, "- 1\n"), "a mapping"), (tmp_path / "nowhere.yaml", "no such file")):
        with pytest.raises(ConfigError, match=told):
            read_agent_settings(file)


def test_the_file_is_looked_for_beside_the_checkpoint_and_one_directory_above(tmp_path, monkeypatch):
    run = tmp_path / "run"
    assert find_agent_file(run / "model_1.pt") is None
    agent = written(run / "params" / "agent.yaml", "{}")
    assert find_agent_file(run / "model_1.pt") == agent
    assert find_agent_file(run / "exported" / "policy.onnx") == agent
    assert find_agent_file(run / "a" / "b" / "policy.onnx") is None
    monkeypatch.chdir(run)
    assert find_agent_file(Path("model_1.pt")) == agent


@pytest.fixture
def directory(tmp_path):
    for name in ("model_9.pt", "model_100.pt", "model_20.pt", "model_best.pt", "model_x.pt", "events.out"):
        (tmp_path / name).touch()
    return tmp_path


def directory_refusal(path, choice=None) -> str:
    with pytest.raises(ConfigError) as caught:
        checkpoint_file(str(path), choice)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "choice", "expected"),
    [
        ("", None, "model_best.pt"),
        ("", "best", "model_best.pt"),
        ("", "latest", "model_100.pt"),
        ("", 20, "model_20.pt"),
        ("", "9", "model_9.pt"),
        ("model_9.pt", None, "model_9.pt"),
    ],
)
def test_a_directory_has_a_best_a_latest_and_numbers_and_a_file_is_taken_as_it_is(directory, name, choice, expected):
    assert checkpoint_file(str(directory / name), choice) == directory / expected


@pytest.mark.parametrize(
    ("name", "choice", "told"),
    [
        ("", 3, "there is no model_3.pt"),
        ("", "best", "9, 20, 100"),
        ("", "newest", "best, latest"),
        ("", -1, "best, latest"),
        ("", True, "best, latest"),
        ("model_9.pt", "latest", ""),
    ],
)
def test_a_choice_that_is_none_of_these_is_refused(directory, name, choice, told):
    (directory / "model_best.pt").unlink()
    assert checkpoint_file(str(directory), None) == directory / "model_100.pt"
    message = directory_refusal(directory / name, choice)
    assert message.startswith("checkpoint: ")
    assert told in message


def test_a_directory_without_checkpoints_says_what_it_holds(tmp_path):
    assert directory_refusal(tmp_path).startswith(f"checkpoint_path: '{tmp_path}'")
    assert "does not exist" in directory_refusal(tmp_path / "nowhere")
    (tmp_path / "policy.onnx").touch()
    assert directory_refusal(tmp_path).endswith(": policy.onnx")
    for run in ("2026-01-01_10-00-00", "2026-01-02_10-00-00"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "model_0.pt").touch()
    assert directory_refusal(tmp_path).endswith("2026-01-02_10-00-00")
