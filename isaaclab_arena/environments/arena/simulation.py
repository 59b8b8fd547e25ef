"""Make the simulation that an environment's options ask for."""

from dataclasses import dataclass, replace
from typing import Any

from isaaclab_arena.sim.backends import BackendChoice


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Options of every environment that is simulated here.

    Attributes:
        backend: What simulates it: ``mujoco`` on the CPU, ``warp`` on the rank's device, or the faster one.
    """

    backend: BackendChoice = "auto"


def on_the_cpu(config: Any) -> Any:
    """Return the same options with the simulation on the CPU."""
    return replace(config, backend="mujoco") if isinstance(config, SimulationOptions) else config


def backend_choice(config: object) -> BackendChoice:
    """Return what is to simulate an environment: MuJoCo for options of another kind, where nobody can say it."""
    return config.backend if isinstance(config, SimulationOptions) else "mujoco"
