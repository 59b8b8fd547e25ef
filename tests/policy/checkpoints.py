"""Checkpoints made by hand, with the names and the layout of rsl_rl, for tests that do without it."""

from pathlib import Path
from typing import Any

import torch
import yaml

HIDDEN = 16


def write_checkpoint(
    directory: Path,
    *,
    num_inputs: int = 3,
    num_actions: int = 3,
    name: str = "model_1.pt",
    recurrent: bool = False,
    seed: int = 5,
    **agent: Any,
) -> Path:
    """Write the checkpoint of a random network and, if there is none yet, the configuration that goes with it."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return 0.4 * torch.randn(*shape, generator=generator)

    first = HIDDEN if recurrent else num_inputs
    state = {
        "distribution.std_param": torch.full((num_actions,), 0.3),
        "mlp.0.weight": drawn(HIDDEN, first), "mlp.0.bias": drawn(HIDDEN),
        "mlp.2.weight": drawn(num_actions, HIDDEN), "mlp.2.bias": drawn(num_actions),
        "obs_normalizer._mean": drawn(1, num_inputs), "obs_normalizer._std": 1 + drawn(1, num_inputs).abs(),
    }  # fmt: skip
    if recurrent:
        state |= {
            "rnn.rnn.weight_ih_l0": drawn(3 * HIDDEN, num_inputs), "rnn.rnn.bias_ih_l0": drawn(3 * HIDDEN),
            "rnn.rnn.weight_hh_l0": drawn(3 * HIDDEN, HIDDEN), "rnn.rnn.bias_hh_l0": drawn(3 * HIDDEN),
        }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    torch.save({"actor_state_dict": state, "critic_state_dict": {}, "iter": 1, "infos": None}, directory / name)
    config = {
        "class_name": "OnPolicyRunner",
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {"class_name": "RNNModel" if recurrent else "MLPModel", "activation": "tanh"},
        **agent,
    }
    if not (directory / "params" / "agent.yaml").exists():
        (directory / "params").mkdir(exist_ok=True)
        (directory / "params" / "agent.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return directory / name


def expected_mean(checkpoint: Path, observation: torch.Tensor) -> torch.Tensor:
    """Output of the network of `write_checkpoint` without a GRU, computed layer by layer."""
    state = torch.load(checkpoint, weights_only=True)["actor_state_dict"]
    seen = (observation - state["obs_normalizer._mean"]) / (state["obs_normalizer._std"] + 0.01)
    hidden = torch.tanh(seen @ state["mlp.0.weight"].T + state["mlp.0.bias"])
    return hidden @ state["mlp.2.weight"].T + state["mlp.2.bias"]


def write_torchscript(path: Path, num_inputs: int, num_actions: int) -> Path:
    """Write a TorchScript file that gives half the sum of what it takes, for every action."""
    path.parent.mkdir(parents=True, exist_ok=True)
    linear = torch.nn.Linear(num_inputs, num_actions, bias=False)
    torch.nn.init.constant_(linear.weight, 0.5)
    torch.jit.save(torch.jit.trace(linear, torch.zeros(1, num_inputs)), str(path))
    return path
