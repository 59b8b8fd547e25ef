"""Define the configuration of a training run: environment, agent, ranks, evaluation and checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isaaclab_arena.config.options import Count, NotNegative, Positive
from isaaclab_arena.models.action_scaling import ActionScaling


def _network() -> dict[str, Any]:
    return {"class_name": "MLPModel", "hidden_dims": [128, 128, 128], "activation": "elu", "obs_normalization": True}


def _actor() -> dict[str, Any]:
    return {**_network(), "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0}}


def _groups() -> dict[str, tuple[str, ...]]:
    return {"actor": ("policy",), "critic": ("policy",)}


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The agent; keys of rsl_rl have the same meaning as there.

    Attributes:
        experiment_name: Directory of the experiment's runs; the task's name by default.
        run_name: Suffix of the name of the run's directory.
        seed: Seed of the run; each rank adds its number to it.
        max_iterations: Number of iterations; each collects samples and learns from them.
        num_steps_per_env: Control steps of an env slot in an iteration.
        save_interval: Iterations between checkpoints.
        init_at_random_ep_len: Whether the first episodes get random lengths, so that not all end at once.
        action_scaling: How the network's output is scaled to an action.
        clip_actions: Limit of the absolute output, None for no limit.
        check_for_nan: Whether to stop at the first NaN.
        torch_compile_mode: Mode of ``torch.compile`` for the networks, None for none.
        logger: ``tensorboard``, ``none``, or a mapping with the ``class_name`` of one of rsl_rl's log writers.
        obs_groups: Groups of observations that the ``actor`` and the ``critic`` see.
        actor: Options of the policy's network, with its ``class_name``.
        critic: Options of the value network, with its ``class_name``.
        algorithm: Options of the algorithm, with its ``class_name``.
    """

    experiment_name: str | None = None
    run_name: str = ""
    seed: NotNegative = 42
    max_iterations: NotNegative = 300
    num_steps_per_env: Count = 24
    save_interval: Count = 50
    init_at_random_ep_len: bool = True
    action_scaling: ActionScaling = ActionScaling.AS_IS
    clip_actions: Positive | None = None
    check_for_nan: bool = True
    torch_compile_mode: str | None = None
    logger: str | dict[str, Any] = "tensorboard"
    obs_groups: dict[str, tuple[str, ...]] = field(default_factory=_groups)
    actor: dict[str, Any] = field(default_factory=_actor)
    critic: dict[str, Any] = field(default_factory=_network)
    algorithm: dict[str, Any] = field(default_factory=lambda: {"class_name": "PPO"})


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """How ranks work together.

    Attributes:
        grad_sync_period: Mini-batches between two exchanges of gradients.
        check_sync_every: Iterations between two checks that all ranks hold the same weights, beside those before the
            first update and before every checkpoint; 0 for no others.
        timeout_s: How long a rank waits for another rank [s].
    """

    grad_sync_period: Count = 1
    check_sync_every: NotNegative = 50
    timeout_s: Positive = 600.0


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The evaluations during training, by the evaluation runner, on all ranks.

    Attributes:
        interval: Iterations between evaluations, 0 for no evaluations. There is one at the end too.
        num_episodes: Episodes of each evaluation, the same ones each time.
        num_envs: Env slots of a rank.
        seed: Seed of their conditions; training uses another one.
        video_episodes: Number of episodes that are filmed.
        env: Options of the environment that differ from training.
        eval_jobs_config: Job file to evaluate with, instead of the task; its rsl_rl policies get the checkpoint, and
            the settings of episodes above have no effect.
    """

    interval: NotNegative = 100
    num_episodes: Count = 100
    num_envs: Count = 50
    seed: NotNegative = 10_000
    video_episodes: NotNegative = 0
    env: dict[str, Any] = field(default_factory=dict)
    eval_jobs_config: str | None = None


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints stay.

    Attributes:
        keep_last: Number of newest checkpoints to keep, besides the best one and the evaluated ones.
        export: Whether to write the policy as TorchScript and ONNX files at the end of a run.
    """

    keep_last: Count = 3
    export: bool = True


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """A whole training run.

    Attributes:
        task: Name of the training task.
        environment: Registered name of the environment.
        num_envs: Env slots of each rank.
        num_envs_total: Env slots of all ranks together, from which ``num_envs`` follows; None if it is not given.
        env: Options of the environment, as a job's ``arena_env_args`` has them.
        variations: Variations of the episodes, as in a job's ``variations``.
        agent: Settings of the agent.
        distributed: How ranks work together.
        evaluation: Settings of the evaluations.
        checkpoints: Which checkpoints stay.
    """

    task: str
    environment: str
    num_envs: Count = 256
    num_envs_total: Count | None = None
    env: Mapping[str, Any] = field(default_factory=dict)
    variations: Mapping[str, Any] = field(default_factory=dict)
    agent: AgentConfig = field(default_factory=AgentConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)

    @property
    def experiment_name(self) -> str:
        """Directory of the experiment's runs."""
        return self.agent.experiment_name or self.task
