"""Numbers of env slots among all of a job's, for a job that has several environments."""

from collections.abc import Sequence
from itertools import accumulate

from isaaclab_arena.interfaces.environment import Environment


class SlotNumbers:
    """Numbers the env slots of several environments through, from 0.

    Args:
        environments: The environments, in order. The env slots of any other one keep their numbers.
    """

    def __init__(self, environments: Sequence[Environment] = ()) -> None:
        sizes = accumulate((environment.num_envs for environment in environments), initial=0)
        self._first = dict(zip(environments, sizes, strict=False))

    def of(self, environment: Environment, env_id: int) -> int:
        """Return the number of an environment's env slot."""
        return self._first.get(environment, 0) + env_id
