"""What simulates an environment, as its options say."""

from dataclasses import dataclass

from isaaclab_arena.sim.backends import BackendChoice


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Options of every environment that is simulated here.

    Attributes:
        backend: What simulates it: ``mujoco`` on the CPU, ``warp`` on the rank's device, or the faster one.
    """

    backend: BackendChoice = "auto"


def backend_choice(config: object) -> BackendChoice:
    """Return what is to simulate an environment, ``auto`` for options of another kind."""
    return config.backend if isinstance(config, SimulationOptions) else "auto"
