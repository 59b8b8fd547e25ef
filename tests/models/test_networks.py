"""Networks of trained policies."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from isaaclab_arena.errors import ConfigError, PolicyLostError
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.evaluation.policy_server import Batcher
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.models import (
    ActionScaler,
    ActionScaling,
    OnnxNetwork,
    PolicyNetwork,
    TorchScriptNetwork,
    forgotten,
    is_torchscript,
)
from isaaclab_arena.policy.rsl_rl import RslRlPolicy
from tests.fakes_environment import ActionLog, ScriptedEnvironment, episodes
from tests.fakes_network import Desk
from tests.models.trainings import NUM_ACTIONS, NUM_OBSERVATIONS, Training, exported_onnx, exported_torchscript, trained
from tests.policy.checkpoints import write_checkpoint, write_torchscript

# Networks that rsl_rl exported answer as the checkpoint does, each batch entry with a memory of its own.


CPU = torch.device("cpu")
RECURRENT = {"class_name": "RNNModel", "rnn_hidden_dim": 8, "rnn_num_layers": 2, "obs_normalization": True}
KINDS = {
    "normalised": {"obs_normalization": True},
    "beta": {"distribution_cfg": {"class_name": "BetaDistribution"}},
    "heteroscedastic": {"distribution_cfg": {"class_name": "HeteroscedasticGaussianDistribution"}},
    "lstm": {**RECURRENT, "rnn_type": "lstm"},
    "gru": {**RECURRENT, "rnn_type": "gru"},
}


def check_answers(network: PolicyNetwork, training: Training) -> None:
    reference = training.reference()
    memory = network.new_memory(5)
    for step in range(4):
        observation = training.observation(5, seed=step)
        if step == 2:
            memory = forgotten(memory, torch.tensor([0, 3]))
            reference.policy.reset(torch.tensor([1, 0, 0, 1, 0]))
        before = [part.clone() for part in memory]
        answer = network.answer(observation, memory)
        assert all(torch.equal(old, new) for old, new in zip(before, memory, strict=True))
        memory = answer.memory
        torch.testing.assert_close(answer.mean, reference(observation), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_network_answers_as_the_checkpoint_does(tmp_path, kind: str):
    training = trained(tmp_path, **KINDS[kind])
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


# rsl_rl's own way takes many seconds.
@pytest.mark.slow
def test_the_onnx_file_of_rsl_rls_own_export_is_read(tmp_path):
    pytest.importorskip("onnxruntime")
    training = trained(tmp_path, obs_normalization=True)
    training.runner.export_policy_to_onnx(str(tmp_path / "exported"))
    check_answers(OnnxNetwork(tmp_path / "exported" / "policy.onnx"), training)


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_memory_for_one_batch_entry_is_asked_entry_by_entry(tmp_path):
    network = OnnxNetwork(
        onnx_file(
            tmp_path / "one.onnx",
            Remembering(),
            torch.zeros(1, 4),
            torch.zeros(1, 1, 4),
            input_names=["obs", "h_in"],
            output_names=["actions", "h_out"],
            dynamic_axes={"obs": {0: "batch"}},
        )
    )
    answer = network.answer(torch.ones(3, 4), (torch.tensor([0.0, 1.0, 2.0])[None, :, None].expand(1, 3, 4),))
    assert answer.mean[:, 0].tolist() == [1.0, 2.0, 3.0]


def test_files_that_are_none_are_refused_and_without_onnxruntime_it_is_said_what_to_install(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    (tmp_path / "policy").write_text("no archive and no graph")
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


def played(policy: RslRlPolicy, indices: tuple[int, ...], num_envs: int) -> dict[int, bytes]:
    log = ActionLog()
    wanted = [each for each in episodes(6) if each.episode_index in indices]
    rollout(ScriptedEnvironment(num_envs, endings=("timeout",)), on_fixed_batch(policy, 4), wanted, [log])
    policy.close()
    return {index: actions.numpy().tobytes() for index, actions in log.actions.items()}


def checkpoint(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_checkpoint(directory))}


def drawn_from_a_recurrent_one(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_checkpoint(directory, recurrent=True)), "stochastic": True}


def exported(directory: Path) -> dict[str, Any]:
    return {"checkpoint_path": str(write_torchscript(directory / "policy.pt", 3, 3))}


@pytest.mark.parametrize("make_options", [checkpoint, drawn_from_a_recurrent_one, exported])
def test_ranks_that_share_a_network_play_the_same_bits_as_one_with_its_own(
    tmp_path, make_options: Callable[[Path], dict[str, Any]]
):
    options = {**make_options(tmp_path), "policy_device": "cpu"}
    alone = played(RslRlPolicy.from_dict(options), (0, 1, 2, 3, 4, 5), num_envs=3)
    assert len({*alone.values()}) == 6

    network = RslRlPolicy.from_dict(options).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.02)
    ranks = [RslRlPolicy.asking(options, Desk(batcher, network)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool, torch.no_grad():
        parts = list(pool.map(played, ranks, [(0, 3), (1, 4), (2, 5)], [2, 1, 2]))
    assert {index: actions for part in parts for index, actions in part.items()} == alone
    assert batcher.num_askers == 0
    batcher.close()


def test_a_server_that_is_lost_while_a_policy_meets_its_environment_is_no_misfit(tmp_path):
    class Gone(Desk):
        def ask(self, entries, *, slots_per_call):
            raise PolicyLostError("the server is gone")

    options = checkpoint(tmp_path)
    network = RslRlPolicy.from_dict(options).network()
    batcher = Batcher(network, max_batch=64, max_wait_s=0.0)
    with pytest.raises(PolicyLostError, match="gone"):
        RslRlPolicy.asking(options, Gone(batcher, network)).check_environment(ScriptedEnvironment(1))
    batcher.close()
