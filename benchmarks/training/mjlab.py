"""Train mjlab's cartpole with mjlab, as a process that `throughput` starts with mjlab's own interpreter.

Usage: python -m benchmarks.training.mjlab NUM_ENVS, where mjlab is installed

Prints the facts of its training as one line of JSON. For each line ``<iterations>`` on the standard input it does that
many iterations and prints their time as one line of JSON. It imports nothing that mjlab's interpreter may lack.
"""

import sys
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import mjlab.tasks  # noqa: F401  # pyright: ignore[reportMissingImports]  registers the tasks
from mjlab.envs import ManagerBasedRlEnv  # pyright: ignore[reportMissingImports]
from mjlab.rl import MjlabOnPolicyRunner, RslRlVecEnvWrapper  # pyright: ignore[reportMissingImports]
from mjlab.tasks.registry import load_env_cfg, load_rl_cfg  # pyright: ignore[reportMissingImports]

from benchmarks.harness.workers import serve
from benchmarks.training.processes import LearningStopwatch

TASK = "Mjlab-Cartpole-Balance"


def facts(runner: Any) -> dict[str, Any]:
    """Return the facts for a comparison with another training."""
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


def main(num_envs: int) -> None:
    """Do iterations for each line."""
    # mjlab's runner of its cartpole, without log files, as its ``train`` builds it for a CPU.
    env_cfg, agent_cfg = load_env_cfg(TASK), load_rl_cfg(TASK)
    env_cfg.scene.num_envs = num_envs
    env_cfg.seed = agent_cfg.seed
    environment = RslRlVecEnvWrapper(ManagerBasedRlEnv(cfg=env_cfg, device="cpu"), clip_actions=agent_cfg.clip_actions)
    runner: Any = MjlabOnPolicyRunner(environment, {**asdict(agent_cfg), "logger": "tensorboard"}, None, "cpu")
    stopwatch = LearningStopwatch(runner.alg)
    steps = runner.cfg["num_steps_per_env"] * num_envs

    def respond(iterations: int) -> dict[str, Any]:
        return {**stopwatch.turn(lambda: runner.learn(iterations)), "env_steps": iterations * steps}

    serve({"facts": facts(runner)}, respond)


if __name__ == "__main__":
    main(int(sys.argv[1]))
