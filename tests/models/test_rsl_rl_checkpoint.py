"""Checkpoints of rsl_rl and of its relatives."""

import dataclasses
import io
import sys
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.checkpoints import checkpoint_file
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.models import (
    ActionScaler,
    ActionScaling,
    AgentSettings,
    OnnxNetwork,
    PolicyNetwork,
    TorchScriptNetwork,
    forgotten,
    is_torchscript,
    load_network,
    read_agent_settings,
)
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from tests.fakes_environment import ScriptedEnvironment
from tests.models.trainings import (
    GAUSSIAN,
    NUM_ACTIONS,
    NUM_OBSERVATIONS,
    Training,
    exported_onnx,
    exported_torchscript,
    trained,
)
from tests.policy.checkpoints import write_checkpoint, write_torchscript
from tests.policy.playing import check_ranks_play_as_one, sharing

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
    assert torch.equal(torch.get_rng_state(), generator)
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
    assert told[0] in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "block", "message"),
    [
        ({"cnns.camera.0.weight": torch.ones(1)}, {}, "(cnns.camera.0.weight)"),
        ({"mlp.2.weight": torch.ones(2, 5)}, {}, "4 numbers meet 5"),
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
obs_groups:
  actor: !!python/tuple
  - actor
  critic: !!python/tuple
  - critic
wandb_tags: !!python/tuple []
clip_actions: null
class_name: OnPolicyRunner
actor:
  hidden_dims: !!python/tuple
  - 512
  - 256
  activation: elu
  obs_normalization: true
  distribution_cfg:
    class_name: GaussianDistribution
    init_std: 1.0
    std_type: scalar
  class_name: MLPModel
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
        # What is refused, and what is told of it.
        ("", 3, "checkpoint: there is no model_3.pt"),
        ("", "newest", "checkpoint: must be best, latest"),
        ("", -1, "checkpoint: must be best, latest"),
        ("", True, "checkpoint: must be best, latest"),
        ("model_9.pt", "latest", "checkpoint: "),
    ],
)
def test_a_directory_has_a_best_a_latest_and_numbers_and_a_file_is_taken_as_it_is(tmp_path, name, choice, expected):
    for each in ("model_9.pt", "model_100.pt", "model_20.pt", "model_best.pt", "model_x.pt", "events.out"):
        (tmp_path / each).touch()
    if expected.startswith("checkpoint"):
        assert directory_refusal(tmp_path / name, choice).startswith(expected)
    else:
        assert checkpoint_file(str(tmp_path / name), choice) == tmp_path / expected


def test_a_directory_without_a_best_has_its_latest(tmp_path):
    for each in ("model_9.pt", "model_100.pt"):
        (tmp_path / each).touch()
    assert checkpoint_file(str(tmp_path), None) == tmp_path / "model_100.pt"
    assert "9, 100" in directory_refusal(tmp_path, "best")


def test_a_directory_without_checkpoints_says_what_it_holds(tmp_path):
    assert directory_refusal(tmp_path).startswith(f"checkpoint_path: '{tmp_path}'")
    assert "does not exist" in directory_refusal(tmp_path / "nowhere")
    (tmp_path / "policy.onnx").touch()
    assert directory_refusal(tmp_path).endswith(": policy.onnx")
    for run in ("2026-01-01_10-00-00", "2026-01-02_10-00-00"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "model_0.pt").touch()
    assert directory_refusal(tmp_path).endswith("2026-01-02_10-00-00")


# Networks of trained policies.


# Networks that rsl_rl exported answer as the checkpoint does, each batch entry with a memory of its own.


def check_answers(network: PolicyNetwork, training: Training) -> None:
    reference = training.reference()
    memory = network.new_memory(5)
    for step in range(4):
        observation = training.observation(5, seed=step)
        before = [part.clone() for part in memory]
        asked_with = memory
        if step == 2:
            asked_with = forgotten(memory, torch.tensor([0, 3]))
            reference.policy.reset(torch.tensor([1, 0, 0, 1, 0]))
        answer = network.answer(observation, asked_with)
        assert all(torch.equal(old, new) for old, new in zip(before, memory, strict=True))
        memory = answer.memory
        torch.testing.assert_close(answer.mean, reference(observation), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", ["normalised", "beta", "heteroscedastic", "lstm", "gru"])
def test_an_exported_network_answers_as_the_checkpoint_does(tmp_path, training_of, kind):
    training = training_of(kind)
    check_answers(load(training), training)
    for any_batch_size in (False, True):
        check_answers(OnnxNetwork(exported_onnx(training, any_batch_size=any_batch_size)), training)
    path = exported_torchscript(training)
    network = TorchScriptNetwork(path, CPU)
    assert network.num_inputs == NUM_OBSERVATIONS
    check_answers(network, training)
    if kind == "normalised":
        (tmp_path / "text.pt").write_text("no archive")
        found = [is_torchscript(each) for each in (path, training.checkpoint, tmp_path / "text.pt")]
        assert found == [True, False, False]


class OfOneRow(torch.nn.Module):
    """A network as it is traced for a single environment."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, NUM_ACTIONS)

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        return self.linear(seen.reshape(4)).reshape(1, NUM_ACTIONS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_that_was_traced_for_one_row_is_asked_row_by_row(tmp_path):
    model = OfOneRow()
    torch.jit.save(torch.jit.trace(model, torch.zeros(1, 4)), str(tmp_path / "one.pt"))
    network = TorchScriptNetwork(tmp_path / "one.pt", CPU)
    seen = torch.arange(12.0).reshape(3, 4)
    for rows in (seen, seen[:1]):
        torch.testing.assert_close(network.answer(rows, ()).mean, model.linear(rows).detach())
    with pytest.raises(RuntimeError, match="size 5"):
        TorchScriptNetwork(tmp_path / "one.pt", CPU).answer(torch.zeros(3, 5), ())


def onnx_file(path: Path, model: torch.nn.Module, *examples: torch.Tensor, **options: Any) -> Path:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch.onnx.export(model, examples, str(path), opset_version=18, dynamo=False, **options)
    return path


class Remembering(torch.nn.Module):
    def forward(self, seen: torch.Tensor, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return seen + memory[0], memory + 1.0


class Sum(torch.nn.Module):
    def forward(self, *parts: torch.Tensor) -> torch.Tensor:
        return torch.stack(parts).sum(dim=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "shapes", "told"),
    [
        (Sum, [(1, 4), (1, 4)], "one vector"),
        (lambda: torch.nn.Linear(4, 2), [(8, 4)], "batch of 8;"),
        (Remembering, [(1, 4), (1, 5, 4)], "batch of 5;"),
    ],
)
def test_an_onnx_file_that_wants_something_else_is_refused(tmp_path, make, shapes, told):
    path = onnx_file(tmp_path / "policy.onnx", make(), *map(torch.zeros, shapes))
    with pytest.raises(ConfigError, match=told):
        OnnxNetwork(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_the_joints_and_observations_that_an_onnx_file_names_are_known(tmp_path):
    path = onnx_file(tmp_path / "policy.onnx", torch.nn.Linear(4, 2), torch.zeros(1, 4))
    assert OnnxNetwork(path).stated_actions is None
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    # As mjlab and Isaac Lab write it.
    onnx.helper.set_model_props(model, {"joint_names": "hip,knee", "observation_names": "joint_pos, command"})
    onnx.save(model, path)
    network = OnnxNetwork(path)
    assert (network.stated_actions, network.stated_terms) == (("hip", "knee"), ("joint_pos", "command"))


def test_files_that_are_none_are_refused_and_without_onnxruntime_it_is_said_what_to_install(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    (tmp_path / "policy").write_text("no archive")
    with pytest.raises(ConfigError, match="as ONNX"):
        OnnxNetwork(tmp_path / "policy")
    with pytest.raises(ConfigError, match="as TorchScript"):
        TorchScriptNetwork(tmp_path / "policy", CPU)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"isaaclab-arena-mujoco\[onnx\]"):
        OnnxNetwork(tmp_path / "policy")


SPEC = ArraySpec(shape=(3,), low=(-2.0, 0.0, -torch.inf), high=(2.0, 1.0, torch.inf))
OUTPUT = torch.tensor([[-1.0, 0.0, 5.0], [0.5, 9.0, -9.0]])


@pytest.mark.parametrize(
    ("spec", "scaling", "clip", "expected"),
    [
        (SPEC, ActionScaling.WITHIN_BOUNDS, None, [[-2.0, 0.5, 5.0], [1.0, 1.0, -9.0]]),
        (SPEC, ActionScaling.AS_IS, None, OUTPUT.tolist()),
        (SPEC, ActionScaling.AS_IS, 4.0, [[-1.0, 0.0, 4.0], [0.5, 4.0, -4.0]]),
        *((ArraySpec(shape=(3,)), scaling, None, OUTPUT.tolist()) for scaling in ActionScaling),
    ],
)
def test_outputs_are_shares_of_the_bounds_or_stay_as_they_are(spec, scaling, clip, expected):
    assert ActionScaler(spec, scaling, clip=clip, device=CPU)(OUTPUT).tolist() == expected


def test_an_action_gives_back_the_output_that_it_came_from_and_beyond_its_bounds_the_bound():
    scaler = ActionScaler(SPEC, ActionScaling.WITHIN_BOUNDS, device=CPU)
    assert scaler.output_of(scaler(OUTPUT)).tolist() == [[-1.0, 0.0, 5.0], [0.5, 1.0, -9.0]]
    assert scaler.output_of(torch.tensor([-7.0, 3.0, 9.0])).tolist() == [-1.0, 1.0, 9.0]


# A network of this package in a policy server answers as in the rank's own process, beside other clients.


def options_of_a_checkpoint(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_checkpoint(directory))}


def drawn_from_a_recurrent_one(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_checkpoint(directory, recurrent=True)), "stochastic": True}


def exported(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_torchscript(directory / "policy.pt", 3, 3))}


@pytest.mark.parametrize("make_options", [options_of_a_checkpoint, drawn_from_a_recurrent_one, exported])
def test_ranks_that_share_a_network_play_the_same_bits_as_one_with_its_own(
    tmp_path, make_options: Callable[[Path], dict[str, Any]]
):
    options = {**make_options(tmp_path), "policy_device": "cpu"}
    with sharing(RslRlPolicy.from_dict(options), options, 3) as ranks:
        alone, *on_ranks = (on_fixed_batch(each, 4) for each in (RslRlPolicy.from_dict(options), *ranks))
        check_ranks_play_as_one(alone, on_ranks, partial(ScriptedEnvironment, endings=("timeout",)))
