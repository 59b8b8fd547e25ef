"""How workers that hold env slots are run."""

import sys
from dataclasses import dataclass, field

from isaaclab_arena.config.options import Count, NotNegative, Positive
from isaaclab_arena.paths import given_path


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How workers are run.

    Attributes:
        python: Interpreter in which the environment runs, in worker processes; this process by default.
        environment_variables: What the workers have beside this process's variables.
        envs_per_worker: Env slots in each worker process.
        steps_per_message: Steps that a worker makes at once at most, where a policy has planned its actions.
        steps_while_starting: Control steps that other env slots make before the reset of one is waited for.
        start_timeout_s: How long a worker may take to make or reset an environment [s].
        step_timeout_s: How long a worker may take for a step of an environment [s].
    """

    python: str | None = None
    environment_variables: dict[str, str] = field(default_factory=dict)
    envs_per_worker: Count = 1
    steps_per_message: Count = 1
    steps_while_starting: NotNegative = 0
    start_timeout_s: Positive = 300.0
    step_timeout_s: Positive = 60.0

    @property
    def interpreter(self) -> str:
        """Their interpreter, that of this process by default."""
        return str(given_path(self.python or sys.executable))
