"""mjlab's cartpole, trained by mjlab, as a process that `training_throughput.py` starts with mjlab's own interpreter.

Usage: python benchmarks/training_mjlab.py NUM_ENVS, where mjlab is installed

Says as one line of JSON what it trains. Each line ``<iterations>`` on the standard input makes it do that many
iterations and print, as one line of JSON, what they took. Nothing of this project is imported.
"""

import json
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import mjlab.tasks  # noqa: F401  # pyright: ignore[reportMissingImports]  registers the tasks
from mjlab.envs import ManagerBasedRlEnv  # pyright: ignore[reportMissingImports]
from mjlab.rl import MjlabOnPolicyRunner, RslRlVecEnvWrapper  # pyright: ignore[reportMissingImports]
from mjlab.tasks.registry import load_env_cfg, load_rl_cfg  # pyright: ignore[reportMissingImports]

TASK = "Mjlab-Cartpole-Balance"


def runner_of(num_envs: int) -> Any:
    """Return mjlab's runner of its cartpole, without log files, as its ``train`` builds it for a CPU."""
    env_cfg, agent_cfg = load_env_cfg(TASK), load_rl_cfg(TASK)
    env_cfg.scene.num_envs = num_envs
    env_cfg.seed = agent_cfg.seed
    environment = RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg=env_cfg, device="cpu"), clip_actions=agent_cfg.clip_actions)
    return MjlabOnPolicyRunner(environment, {**asdict(agent_cfg), "logger": "tensorboard"}, None, "cpu")


def facts(runner: Any) -> dict[str, Any]:
    """Return what has to be known to compare this training with another one."""
    environment, cfg = runner.env.unwrapped, runner.cfg
    networks = (runner.alg.actor, runner.alg.critic)
    return {
        "num_envs": runner.env.num_envs,
        "physics_steps": environment.cfg.decimation,
        "physics_dt": environment.cfg.sim.mujoco.timestep,
        "num_steps_per_env": cfg["num_steps_per_env"],
        "hidden_dims": list(cfg["actor"]["hidden_dims"]),
        "num_learning_epochs": runner.alg.num_learning_epochs,
        "num_mini_batches": runner.alg.num_mini_batches,
        "gradient_bytes": sum(4 * one.numel() for network in networks for one in network.parameters()),
        "version": ", ".join(f"{name} {version(name)}" for name in ("mjlab", "rsl-rl-lib", "mujoco-warp", "torch")),
    }


class Stopwatch:
    """What learning takes, without taking samples.

    Attributes:
        learning_cpu_s: CPU time of all updates so far [s].
    """

    def __init__(self, runner: Any) -> None:
        self.learning_cpu_s = 0.0
        self._update = runner.alg.update
        runner.alg.update = self._updated

    def _updated(self) -> Any:
        began = time.process_time()
        losses = self._update()
        self.learning_cpu_s += time.process_time() - began
        return losses


def turn(runner: Any, stopwatch: Stopwatch, iterations: int) -> dict[str, Any]:
    """Do some iterations, and return what they took."""
    stopwatch.learning_cpu_s = 0.0
    cpu, wall = time.process_time(), time.perf_counter()
    runner.learn(iterations)
    return {
        "learning_cpu_s": stopwatch.learning_cpu_s,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "env_steps": iterations * runner.cfg["num_steps_per_env"] * runner.env.num_envs,
    }


def main(num_envs: int) -> None:
    runner = runner_of(num_envs)
    stopwatch = Stopwatch(runner)
    print(json.dumps({"facts": facts(runner)}), flush=True)
    for line in sys.stdin:
        print(json.dumps(turn(runner, stopwatch, int(line))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
