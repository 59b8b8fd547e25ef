"""Real checkpoints: a few updates of rsl_rl's PPO on noise, saved and exported by rsl_rl itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

NUM_OBSERVATIONS = 12
NUM_ACTIONS = 3
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 0.7}


@dataclasses.dataclass(frozen=True)
class Training:
    """What is left of a training."""

    directory: Path
    runner: Any
    num_observations: int

    @property
    def checkpoint(self) -> Path:
        return self.directory / "model_1.pt"

    def observation(self, batch_size: int, seed: int = 3) -> torch.Tensor:
        """Random observations. Shape: (batch_size, num_observations)."""
        generator = torch.Generator().manual_seed(seed)
        return 2.0 * torch.randn(batch_size, self.num_observations, generator=generator)

    def reference(self) -> Any:
        """Return rsl_rl's own inference policy, from a tensor to a tensor."""
        from tensordict import TensorDict  # noqa: PLC0415

        policy = self.runner.get_inference_policy("cpu")
        policy.reset()

        def act(observation: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return policy(TensorDict({"policy": observation}, batch_size=[len(observation)]))

        act.policy = policy  # pyright: ignore[reportFunctionMemberAccess]
        return act


def exported_torchscript(training: Training) -> Path:
    """Export as rsl_rl does, and return the file."""
    training.runner.export_policy_to_jit(str(training.directory / "exported"))
    return training.directory / "exported" / "policy.pt"


def exported_onnx(training: Training, *, any_batch_size: bool = False) -> Path:
    """Export as mjlab does, which takes a fraction of the time of rsl_rl's own way, and return the file."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    model = training.runner.alg.get_policy().as_onnx(verbose=False).to("cpu").eval()
    names = {"input_names": model.input_names, "output_names": model.output_names}
    # What is remembered has its layers first.
    axes = {name: {int(name[:2] in {"h_", "c_"}): "batch"} for each in names.values() for name in each}
    path = training.directory / f"{training.directory.name}.onnx"
    torch.onnx.export(
        model,
        model.get_dummy_inputs(),
        str(path),
        opset_version=18,
        dynamo=False,
        dynamic_axes=axes if any_batch_size else None,
        **names,
    )
    return path


def trained(
    directory: Path,
    *,
    num_observations: int = NUM_OBSERVATIONS,
    num_actions: int = NUM_ACTIONS,
    agent: dict[str, Any] | None = None,
    iterations: int | None = None,
    **actor: Any,
) -> Training:
    """Train for two updates on noise, and save."""
    pytest.importorskip("rsl_rl")
    from rsl_rl.runners import OnPolicyRunner  # noqa: PLC0415

    torch.manual_seed(1)
    model = {"class_name": "MLPModel", "hidden_dims": (32, 16), "activation": "elu"}
    config: dict[str, Any] = {
        "class_name": "OnPolicyRunner",
        "seed": 1,
        "num_steps_per_env": 8,
        "save_interval": 50,
        "obs_groups": {"actor": ("policy",), "critic": ("policy",)},
        "actor": {**model, "distribution_cfg": dict(GAUSSIAN), **actor},
        "critic": model,
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2, "learning_rate": 0.01},
        **(agent or {}),
    }
    (directory / "params").mkdir(parents=True)
    # Tuples become tags of Python's own, as in the files of mjlab and Isaac Lab.
    (directory / "params" / "agent.yaml").write_text(yaml.dump(config, sort_keys=False))
    environment: Any = _Noise(num_observations, num_actions)
    runner = OnPolicyRunner(environment, config, log_dir=str(directory) if iterations else None, device="cpu")
    runner.learn(iterations or 2)
    if not iterations:
        runner.save(str(directory / "model_1.pt"))
    return Training(directory=directory, runner=runner, num_observations=num_observations)


class _Noise:
    """An environment of rsl_rl's kind that shows noise and pays noise."""

    def __init__(self, num_observations: int, num_actions: int) -> None:
        self.num_envs = 8
        self.num_actions = num_actions
        self.max_episode_length = 20
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.device = "cpu"
        self.cfg: dict[str, Any] = {}
        self._num_observations = num_observations

    def get_observations(self) -> Any:
        from tensordict import TensorDict  # noqa: PLC0415

        noise = 1.0 + 3.0 * torch.randn(self.num_envs, self._num_observations)
        return TensorDict({"policy": noise}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        dones = torch.rand(self.num_envs) < 0.1
        return self.get_observations(), -actions.square().sum(dim=1), dones, {}
