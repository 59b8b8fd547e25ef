"""One rank that learns: its environment, algorithm, networks and samples."""

import contextlib
import hashlib
import inspect
import io
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

import torch
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from rsl_rl.env import VecEnv
from rsl_rl.utils import check_nan, resolve_callable
from tensordict import TensorDict

from isaaclab_arena.config import loading, schema
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import gather_from_ranks, sum_over_ranks
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, did_you_mean, first_line, refuse
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions, Episode
from isaaclab_arena.interfaces.specs import CAMERAS
from isaaclab_arena.models import ActionScaler
from isaaclab_arena.nested import leaves, value_at
from isaaclab_arena.policy.rsl_rl import flattened
from isaaclab_arena.training.algorithms import GRPO, PPO, set_learning_rate
from isaaclab_arena.training.checkpoints import networks_of
from isaaclab_arena.training.config import OWN_INFOS, TrainingConfig

# The environment under training as rsl_rl expects it, with the starts of its episodes and their measures.

_FIXED = ("episodes", "return", "length", "measured", "success", "lost")


class EpisodeCounter:
    """Adds up the episodes of one rank's env slots."""

    def __init__(self, num_envs: int, device: torch.device) -> None:
        # Names of the environment's further metrics, the same on every rank and in the same order; None before a step.
        self.metrics: tuple[str, ...] | None = None
        # Sum of rewards and number of control steps of the episode under way. Shapes: (num_envs,), float64.
        self.returns = torch.zeros(num_envs, dtype=torch.float64, device=device)
        self.lengths = torch.zeros_like(self.returns)
        # Sums over the episodes that ended since `take`, in the order of `_FIXED`; then for each metric the number of
        # episodes that have it, and their sum.
        self.sums = self.returns.new_zeros(len(_FIXED))

    def begin(self, metrics: tuple[str, ...]) -> None:
        """Count from nothing, with these metrics."""
        self.metrics = metrics
        self.sums = self.returns.new_zeros(len(_FIXED) + 2 * len(metrics))

    def add(self, step: Step, ended: torch.Tensor, cut: torch.Tensor) -> None:
        """Count a control step. Masks of shape (num_envs,): `ended` episodes, and those `cut` and not counted."""
        if self.metrics is None:
            self.begin(tuple(step.metrics))
        # An env slot that broke down may hold NaN, and NaN times zero is NaN.
        self.returns += torch.where(step.diverged, 0.0, step.reward)
        self.lengths += 1
        sound = ended & ~step.diverged
        success = torch.zeros_like(ended) if step.success is None else step.success & sound
        lost = ended & (step.terminated | step.diverged) & ~success
        measured = torch.zeros_like(ended) if step.success is None else ended
        counted = [
            ended,
            torch.where(ended, self.returns, 0.0),
            torch.where(ended, self.lengths, 0.0),
            measured,
            success,
            lost,
        ]
        for name in self.metrics or ():
            known = sound & ~step.metrics[name].isnan()
            counted += [known, torch.where(known, step.metrics[name], 0.0)]
        self.sums += torch.stack([values.to(torch.float64) for values in counted]).sum(dim=1)
        begins = ended | cut
        self.returns[begins] = 0
        self.lengths[begins] = 0

    def take(self) -> torch.Tensor:
        """Return the sums over the episodes that ended on this rank since the last call, and reset them."""
        taken = self.sums.clone()
        self.sums.zero_()
        return taken

    def measures(self, sums: torch.Tensor) -> dict[str, float]:
        """Return the measures of episodes from the sums of one or more ranks, without means of nothing."""
        episodes, returns, length, measured, success, lost, *others = sums.tolist()
        of_metrics = zip(self.metrics or (), others[0::2], others[1::2], strict=True)
        # Success may not be measured. Episodes whose physics broke down are lost and have no metrics.
        means = {
            "Train/mean_reward": (returns, episodes),
            "Train/mean_episode_length": (length, episodes),
            "Train/success_rate": (success, measured),
            "Train/lost_rate": (lost, episodes),
            **{f"Metrics/{name}": (total, known) for name, known, total in of_metrics},
        }
        return {
            "Train/num_episodes": round(episodes),
            **{name: total / count for name, (total, count) in means.items() if count},
        }


_NUM_DRAWN, _SUMS = "training/num_drawn", "training/sums"


class TrainingEnvironment(VecEnv):
    """All env slots of one rank, for rsl_rl's algorithms.

    Attributes:
        group_size: Number of env slots that begin alike with `restart`.
        num_drawn: Number of episodes whose start conditions have been drawn, in the order in which they began.
        counter: Counts the episodes.
    """

    def __init__(self, environment: Environment, *, seed: int, scaler: ActionScaler, cfg: Mapping[str, Any]) -> None:
        # An env slot whose episode is over starts the next one within the same step, as rsl_rl expects. Episodes that
        # succeed or reach the time limit are ``time_outs``: the critic estimates the value of the future. Lost
        # episodes, and those whose physics broke down, have no value from then on.
        # ``seed`` is the run's plus the rank. ``cfg`` describes the environment for rsl_rl's log writers.
        # rsl_rl's random network distillation reads the ``step_dt`` of ``unwrapped``.
        self.environment = self.unwrapped = environment
        self.num_envs = environment.num_envs
        self.num_actions = environment.action_spec.shape[0]
        self.max_episode_length = environment.max_episode_length
        self.device = environment.device
        self.cfg = dict(cfg)
        # The terms of each group, in the order in which the vector holds them.
        self.observation_terms = {
            group: tuple(terms)
            for group, terms in environment.observation_spec.items()
            if group != CAMERAS and isinstance(terms, Mapping)
        }
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long, device=self.device)
        self._began_late = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self.counter = EpisodeCounter(self.num_envs, self.device)
        self.group_size = 1
        self.num_drawn = 0
        self._seed = seed
        self._scaler = scaler
        self._all_env_ids = torch.arange(self.num_envs, device=self.device)
        self._observation = self._flat(self._reset(self._all_env_ids, self.next_conditions(self.num_envs)))

    def next_conditions(self, count: int) -> list[Conditions]:
        """Return the start conditions of the next `count` episodes, all different."""
        first, self.num_drawn = self.num_drawn, self.num_drawn + count
        starts = []
        for index in range(first, first + count):
            episode = Episode(job="training", episode_index=index, seed=self._seed)
            conditions = self.environment.draw_conditions(episode.conditions_generator())
            starts.append(self.environment.vary_conditions(conditions, episode))
        return starts

    def get_observations(self) -> TensorDict:
        """Return the observation of all env slots: for each group, vectors of shape (num_envs, size)."""
        return self._observation

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step with the network's output (num_envs, action_dim), and start the next episode in env slots that ended."""
        # The observations are those of the new episode in env slots that restarted. Rewards, dones and ``time_outs``
        # have shape (num_envs,).
        self.environment.draw_pictures_of(())
        step = self.environment.step(self._scaler(actions))
        self.episode_length_buf += 1
        over = step.terminated | step.truncated | step.diverged
        # Env slots that began as if in the middle of an episode are cut by this count, and are not whole episodes.
        cut = ~over & (self.episode_length_buf >= self.max_episode_length)
        ended = over | cut
        self.counter.add(step, over & ~self._began_late, cut | (over & self._began_late))
        self._began_late &= ~ended
        succeeded = torch.zeros_like(over) if step.success is None else step.success
        # The mask `ended` is needed, because an environment may report success and continue the episode.
        time_outs = ended & (cut | step.truncated | succeeded) & ~step.diverged

        env_ids = ended.nonzero()[:, 0]
        observation = step.observation
        if env_ids.numel():
            observation = self._reset(env_ids, self.next_conditions(env_ids.numel()))
            self.episode_length_buf[env_ids] = 0
        self._observation = self._flat(observation)
        return self._observation, step.reward, ended, {"time_outs": time_outs}

    def begin_in_the_middle(self) -> None:
        """Let each env slot's first episode end as if it had begun some time ago, so that not all end at once."""
        lengths = self.episode_length_buf
        lengths.copy_(torch.randint_like(lengths, high=self.max_episode_length))
        self._began_late = lengths > 0

    def restart(self) -> TensorDict:
        """Start a new episode in every env slot, equal within groups, and return the observation."""
        drawn = self.next_conditions(self.num_envs // self.group_size)
        grouped = [conditions for conditions in drawn for _ in range(self.group_size)]
        self._observation = self._flat(self._reset(self._all_env_ids, grouped))
        for kept in (self.episode_length_buf, self._began_late, self.counter.returns, self.counter.lengths):
            kept.zero_()
        return self._observation

    def snapshot(self) -> dict[str, torch.Tensor] | None:
        """Return the state that decides the future of all env slots, None if the environment cannot provide it."""
        snapshot = self.environment.snapshot()
        if snapshot is None:
            return None
        own = {name: value.clone() for name, value in self._kept().items()}
        return {**snapshot, **own, _NUM_DRAWN: torch.tensor(self.num_drawn)}

    def restore_snapshot(self, snapshot: Mapping[str, torch.Tensor], *, metrics: tuple[str, ...]) -> None:
        """Restore the state of all env slots from `snapshot`; `metrics` are the names of `EpisodeCounter`."""
        theirs = {name: value for name, value in snapshot.items() if not name.startswith("training/")}
        self.environment.draw_pictures_of(())
        self._observation = self._flat(self.environment.restore_snapshot(theirs))
        self.num_drawn = int(snapshot[_NUM_DRAWN])
        if _SUMS in snapshot:
            self.counter.begin(metrics)
        for name, value in self._kept().items():
            # Checkpoints of before have other sums, which are 0 between iterations.
            if name != _SUMS or value.shape == snapshot[name].shape:
                value.copy_(snapshot[name])

    def _kept(self) -> dict[str, torch.Tensor]:
        """Return the tensors that a snapshot holds beside the environment's."""
        counter = self.counter
        counted = {"training/returns": counter.returns, "training/lengths": counter.lengths, _SUMS: counter.sums}
        return {
            **({} if counter.metrics is None else counted),
            "training/episode_length": self.episode_length_buf,
            "training/began_late": self._began_late,
        }

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()

    def _reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        # No network here sees pictures, so none is drawn with the next observation.
        self.environment.draw_pictures_of(())
        return self.environment.reset(env_ids, conditions)

    def _flat(self, observation: Observation) -> TensorDict:
        vectors = {
            group: flattened(observation[group], terms, num_envs=self.num_envs, device=self.device)
            for group, terms in self.observation_terms.items()
        }
        return TensorDict(vectors, batch_size=[self.num_envs], device=self.device)


# Compare the learned state of the ranks.


class OutOfSyncError(ArenaError):
    """Ranks that must hold the same weights do not, so their training is worthless from here on."""


def check_synchrony(state: Mapping[str, Any]) -> None:
    """Compare a state with the other ranks'; OutOfSyncError on all ranks if any tensor differs."""
    digests = named_digests(state)
    # Compare names first: digests of different tensors cannot be compared.
    of_names = int.from_bytes(hashlib.sha256(" ".join(digests).encode()).digest()[:8], "big") >> 1
    names = torch.stack(gather_from_ranks(torch.tensor([of_names], dtype=torch.int64)))
    if others := differences(["names"], names).get("names"):
        raise OutOfSyncError(
            f"the ranks do not learn with the same tensors: rank {others} has other ones than most, as if it had begun "
            "in another way; start all ranks with the same command"
        )
    held = torch.stack(gather_from_ranks(torch.tensor(list(digests.values()), dtype=torch.int64)))
    if found := differences(list(digests), held):
        told = "; ".join(f"{tensor} of rank {others}" for tensor, others in list(found.items())[:5])
        more = f"; and {len(found) - 5} more tensors" if len(found) > 5 else ""
        raise OutOfSyncError(
            f"the ranks have drifted apart: {told}{more} differ from the others; go on from the last checkpoint with "
            "--resume, and look for code that changes weights on some ranks only"
        )


def named_digests(state: Mapping[str, Any]) -> dict[str, int]:
    """Return a 63-bit digest of each tensor and number of a state, by its dotted name."""
    digests = {}
    for path, value in leaves(state, into_lists=True):
        if isinstance(value, torch.Tensor):
            content = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        elif isinstance(value, int | float):
            content = repr(value).encode()
        else:
            continue
        digests[".".join(map(str, path))] = int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1
    return digests


def differences(names: list[str], held: torch.Tensor) -> dict[str, str]:
    """Map tensors that differ to their ranks in words, from digests of shape (world_size, num_tensors), int64."""
    found = {}
    for name, digests in zip(names, held.T.tolist(), strict=True):
        # The majority counts as right; in a tie, the lower rank.
        common = max(dict.fromkeys(digests), key=digests.count)
        if ranks := [str(rank) for rank, digest in enumerate(digests) if digest != common]:
            found[name] = ", ".join(ranks)
    return found


# Check the settings of rsl_rl's algorithm and networks, and build them.

_LOG = logging.getLogger(__name__)
_OWN_ALGORITHMS: Mapping[str, type] = {"PPO": PPO, "GRPO": GRPO}
_CLASS_NAME = "class_name"
_MADE_HERE = {
    "algorithm": {
        *("self", "actor", "critic", "storage", "device", "multi_gpu_cfg", "world_size", "grad_sync_period"),
        "max_iterations",
    },
    "actor": {"self", "obs", "obs_groups", "obs_set", "output_dim"},
    "critic": {"self", "obs", "obs_groups", "obs_set", "output_dim"},
}
"""Arguments of the classes that this module sets, not the user."""


def check_agent(config: TrainingConfig) -> None:
    """Refuse unknown classes, unknown options and sizes that do not fit; ConfigError lists every problem."""
    agent = config.agent
    problems = []
    for role in _MADE_HERE:
        problems += [Problem(str(each.message), key=f"agent.{role}.{each.key}") for each in _wrong_options(role, agent)]
    if not isinstance(agent.actor.get("distribution_cfg"), Mapping):
        distribution = "{class_name: GaussianDistribution, init_std: 1.0}"
        message = f"a policy that learns draws its actions; give one, as {distribution}"
        problems.append(Problem(message, key="agent.actor.distribution_cfg"))
    refuse([*problems, *_wrong_numbers(config), *_wrong_sizes(config)])


def build_algorithm(config: TrainingConfig, environment: TrainingEnvironment, context: DistributedContext) -> Any:
    """Build the algorithm, its networks and storage on the rank's device; ConfigError if the agent is wrong."""
    # `check_agent` has accepted the configuration. Observation groups and class constructors can still refuse it.
    agent = config.agent
    algorithm_class = _class_of(agent.algorithm, "algorithm")
    parameters = _taken_by(algorithm_class) or {}
    # The trainer sets these, if the algorithm takes them.
    of_the_run = {"grad_sync_period": config.distributed.grad_sync_period, "max_iterations": agent.max_iterations}
    algorithm = {
        **agent.algorithm,
        _CLASS_NAME: algorithm_class,
        **{name: value for name, value in of_the_run.items() if name in parameters},
    }
    ranks = {"global_rank": context.rank, "local_rank": context.local_rank, "world_size": context.world_size}
    settings = {
        "algorithm": algorithm,
        "actor": dict(agent.actor),
        "critic": dict(agent.critic),
        "obs_groups": {role: list(groups) for role, groups in agent.obs_groups.items()},
        "num_steps_per_env": agent.num_steps_per_env,
        "torch_compile_mode": agent.torch_compile_mode,
        "multi_gpu": ranks if context.is_distributed else None,
    }
    observation = environment.get_observations()
    known = [str(name) for name in observation.keys()]  # noqa: SIM118  a TensorDict iterates over entries
    refuse(
        [
            Problem(f"the environment has no group '{name}'{did_you_mean(name, known)}", key=f"agent.obs_groups.{role}")
            for role, names in settings["obs_groups"].items()
            for name in names
            if name not in known
        ]
    )

    # rsl_rl prints and warns while it builds: its output goes to the log, and its warnings are dropped.
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            built = algorithm_class.construct_algorithm(observation, environment, settings, str(context.device))
        except (TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise ConfigError(f"the agent cannot be built: {first_line(error)}", key="agent") from error
    _LOG.debug("%s", printed.getvalue().strip())
    return built


def learned_state(algorithm: Any) -> dict[str, Any]:
    """Return the state that is equal on all ranks: weights, normalisers, optimiser, learning rate."""
    return {**algorithm.save(), "learning_rate": float(algorithm.learning_rate)}


def _class_of(options: Mapping[str, Any], role: str) -> Any:
    name = options[_CLASS_NAME]
    if role == "algorithm" and name in _OWN_ALGORITHMS:
        return _OWN_ALGORITHMS[name]
    try:
        return resolve_callable(name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        known = ", ".join(_OWN_ALGORITHMS) if role == "algorithm" else "MLPModel, RNNModel"
        message = f"there is no '{name}' ({first_line(error)}); use {known}, or module.path:Class"
        raise ConfigError(message, key=_CLASS_NAME) from error


def _wrong_options(role: str, agent: Any) -> Iterator[Problem]:
    options = getattr(agent, role)
    try:
        found = _class_of(options, role)
    except ConfigError as error:
        yield from error.problems
        return
    # A class that takes any keyword is not checked. Otherwise each option must exist and fit its type hint.
    parameters = _taken_by(found)
    if parameters is None:
        return
    parameters = {name: hint for name, hint in parameters.items() if name not in _MADE_HERE[role]}
    for name, value in options.items():
        if name == _CLASS_NAME:
            continue
        if name not in parameters:
            yield Problem(f"{options[_CLASS_NAME]} has no such option{did_you_mean(name, parameters)}", key=name)
            continue
        hint = parameters[name]
        try:
            # A type without a pydantic schema gives no constraint on the value.
            with contextlib.suppress(PydanticUserError):
                TypeAdapter(hint).validate_python(value, strict=False)
        except ValidationError:
            told = str(hint).replace("<class '", "").replace("'>", "")
            yield Problem(f"must be {told}, got {value!r}", key=name)


def _taken_by(found: Callable[..., Any]) -> dict[str, Any] | None:
    """Map the arguments of a class to their types, `Any` for an unknown one; None if it takes any argument."""
    taken: dict[str, Any] = {}
    for each in found.__mro__ if isinstance(found, type) else (found,):
        function = each.__dict__.get("__init__") if isinstance(each, type) else each
        if function is None:
            continue
        hints: dict[str, Any] = {}
        with contextlib.suppress(NameError, TypeError, AttributeError):
            hints = get_type_hints(function)
        parameters = inspect.signature(function).parameters.values()
        named = [one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        taken = {name: hints.get(name, Any) for name in named} | taken
        if not any(one.kind is one.VAR_KEYWORD for one in parameters):
            return taken
    return None


def _wrong_numbers(config: TrainingConfig) -> Iterator[Problem]:
    options = config.agent.algorithm
    for name, lowest in (("num_mini_batches", 1), ("num_learning_epochs", 1), ("group_size", 2)):
        value = options.get(name)
        if value is not None and not (_is_count(value) and value >= lowest):
            yield Problem(f"must be a whole number from {lowest}, got {value!r}", key=f"agent.algorithm.{name}")
    for name in ("gamma", "lam"):
        value = options.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
            yield Problem(f"must be from 0 to 1, got {value!r}", key=f"agent.algorithm.{name}")
    schedules = ("adaptive", "fixed", "linear")
    schedule = options.get("schedule", "adaptive")
    if options[_CLASS_NAME] in _OWN_ALGORITHMS and schedule not in schedules:
        message = f"there is no '{schedule}'{did_you_mean(str(schedule), schedules)}"
        yield Problem(message, key="agent.algorithm.schedule")
    for role in ("actor", "critic"):
        sizes = getattr(config.agent, role).get("hidden_dims", [1])
        if not isinstance(sizes, list | tuple) or not sizes or not all(_is_count(size) for size in sizes):
            yield Problem(f"must be sizes of layers, at least one, got {sizes!r}", key=f"agent.{role}.hidden_dims")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _wrong_sizes(config: TrainingConfig) -> Iterator[Problem]:
    parts = config.agent.algorithm.get("num_mini_batches", 4)
    num_envs, steps = config.num_envs, config.agent.num_steps_per_env
    samples, what = num_envs * steps, f"{num_envs} env slots x {steps} steps = {num_envs * steps} samples"
    for role in ("actor", "critic"):
        # `_wrong_options` reports a class that does not exist.
        with contextlib.suppress(ConfigError):
            # A recurrent network needs whole episodes of an env slot, so rsl_rl divides the env slots.
            if getattr(_class_of(getattr(config.agent, role), "network"), "is_recurrent", False):
                samples, what = num_envs, f"{num_envs} env slots of a recurrent policy"
    if _is_count(parts) and samples % parts:
        nearest = [number for number in range(1, samples + 1) if samples % number == 0]
        below = max((number for number in nearest if number < parts), default=1)
        above = min((number for number in nearest if number > parts), default=below)
        yield Problem(
            f"{what} do not divide into {parts} mini-batches, and {samples % parts} would never be learned from; use "
            f"{below} or {above}",
            key="agent.algorithm.num_mini_batches",
        )
    group_size = config.agent.algorithm.get("group_size", 0)
    if _is_count(group_size) and num_envs % group_size:
        nearest = [number for number in range(2, num_envs + 1) if num_envs % number == 0]
        shown = " or ".join(map(str, sorted(nearest, key=lambda number: abs(number - group_size))[:2]))
        yield Problem(
            f"{num_envs} env slots do not divide into groups of {group_size}; use {shown}",
            key="agent.algorithm.group_size",
        )


# Build the environment under training as a job does, and collect samples on one rank and learn from them, with a state
# that training resumes from bit for bit.


def jobs_file(
    config: TrainingConfig, *, num_envs: int, env: Mapping[str, Any], policy_type: str, **keys: Any
) -> schema.JobsFile:
    """Return the file of one job on the environment under training, with other `keys` on top."""
    environment = {"environment": config.environment, "num_envs": num_envs, **env}
    job = {"name": config.task, "arena_env_args": environment, "policy_type": policy_type, "num_episodes": 1, **keys}
    return loading.read_jobs({"jobs": [job]}, source="training task")


def environment_job(config: TrainingConfig) -> Job:
    """Return the job of the training environment, checked like every job; ConfigError lists every problem."""
    variations = dict(config.variations)
    try:
        file = jobs_file(
            config, num_envs=config.num_envs, env=config.env, policy_type="zero_action", variations=variations
        )
        (job,) = resolve_jobs(file.jobs)
    except ConfigError as error:
        # The user wrote a training configuration, so problems name its keys.
        problems = []
        for problem in error.problems:
            key = problem.key or ""
            for in_job, in_training in (("arena_env_args.environment", "environment"), ("arena_env_args", "env")):
                if key == in_job or key.startswith(f"{in_job}."):
                    key = in_training + key.removeprefix(in_job)
                    break
            problems.append(Problem(problem.message, key=key or None))
        raise ConfigError(problems) from error
    return job


class DivergedError(ArenaError):
    """The training has reached NaN. Other settings may help."""


class Learner:
    """One rank's env slots, copy of the networks and random numbers."""

    def __init__(self, config: TrainingConfig, context: DistributedContext, *, num_threads: int) -> None:
        self._config = config
        self._context = context
        # Iterations, and control steps of all env slots of all ranks, of the whole training and of each iteration. With
        # several ranks, the process group exists already.
        self.iterations = self.env_steps = 0
        self._env_steps = config.num_envs * config.agent.num_steps_per_env * context.world_size
        seed = config.agent.seed + context.rank
        environment = environment_job(config).build_environment(device=context.device, num_threads=num_threads)
        self.environment = TrainingEnvironment(
            environment,
            seed=seed,
            scaler=ActionScaler(
                environment.action_spec,
                config.agent.action_scaling,
                clip=config.agent.clip_actions,
                device=environment.device,
            ),
            cfg={"environment": config.environment, "num_envs": config.num_envs, **config.env},
        )
        # rsl_rl draws first weights, actions and mini-batches from torch's own generators.
        torch.manual_seed(seed)  # noqa: TID251  rsl_rl draws from the global generator
        self.algorithm: Any = build_algorithm(config, self.environment, context)
        self._first_learning_rate = float(self.algorithm.learning_rate)
        self._curiosity: Any = getattr(self.algorithm, "rnd", None)
        self.environment.group_size = getattr(self.algorithm, "group_size", 1)
        self._restarts = getattr(self.algorithm, "restarts_episodes", False)
        if config.agent.init_at_random_ep_len and not self._restarts:
            self.environment.begin_in_the_middle()
        self.algorithm.train_mode()
        # Ranks build networks from different seeds, so rank 0's weights go to all.
        if context.is_distributed:
            self.algorithm.broadcast_parameters()

    def iterate(self) -> dict[str, float]:
        """Collect samples on all ranks and learn; return the measures, without NaN. DivergedError on NaN."""
        # Every rank calls it, and all get the same but for the times, which are each rank's own [s].
        algorithm = self.algorithm
        way_out = "go on from the last checkpoint with --resume and a smaller agent.learning_rate or agent.clip_actions"
        diverged = f"iteration {{}}: {{}}; {way_out}".format
        if isinstance(algorithm, PPO | GRPO) and algorithm.schedule == "linear":
            # The learning rate falls from iteration to iteration, to zero after the last.
            share = max(0.0, 1 - self.iterations / max(1, self._config.agent.max_iterations))
            set_learning_rate(algorithm, self._first_learning_rate * share)
        began = time.perf_counter()
        try:
            self._collect()
            collected = time.perf_counter()
            own_losses = algorithm.update()
            # Mean losses and episodes of all ranks, with one message.
            counter = self.environment.counter
            own = torch.cat((torch.tensor(list(own_losses.values()), dtype=torch.float64), counter.take().cpu()))
            total = sum_over_ranks(own)
        except (ValueError, RuntimeError) as error:
            # Messages of rsl_rl and torch about NaN or a negative deviation.
            if not any(words in str(error) for words in ("NaN values", "normal expects", "Expected parameter")):
                raise
            raise DivergedError(diverged(self.iterations, first_line(error))) from error
        means = total[: len(own_losses)] / self._context.world_size
        losses = dict(zip(own_losses, means.tolist(), strict=True))
        self.iterations += 1
        self.env_steps += self._env_steps
        learned = time.perf_counter()

        # Losses are means over all ranks, so all ranks stop at the same NaN.
        if wrong := [name for name, value in losses.items() if math.isnan(value)]:
            raise DivergedError(diverged(self.iterations, f"the loss {' and '.join(wrong)} is NaN"))
        policy = algorithm.get_policy()
        has_std = getattr(policy, "distribution", None) is not None
        measures = {
            **{f"Loss/{name}": value for name, value in losses.items()},
            "Loss/learning_rate": float(algorithm.learning_rate),
            "Policy/mean_std": policy.output_std.mean().item() if has_std else math.nan,
            "Perf/total_fps": self._env_steps / (learned - began),
            "Perf/collection_time": collected - began,
            "Perf/learning_time": learned - collected,
            "Perf/total_steps": self.env_steps,
            **counter.measures(total[len(own_losses) :]),
        }
        return {name: value for name, value in measures.items() if not math.isnan(value)}

    def rank_state(self) -> dict[str, Any]:
        """Return this rank's own state for resuming: random numbers, env slots, recurrent memory."""
        state: dict[str, Any] = {"torch_rng": torch.get_rng_state()}
        if self._context.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self._context.device)
        memory = {role: network.get_hidden_state() for role, network in networks_of(self.algorithm).items()}  # type: ignore[operator]
        state["memory"] = {role: value for role, value in memory.items() if value is not None}
        if self._curiosity is not None and self._curiosity.reward_normalization:
            state["curiosity_returns"] = self._curiosity.reward_normalizer.disc_avg.avg
        if (snapshot := self.environment.snapshot()) is not None:
            state["environment"] = {name: value.cpu() for name, value in snapshot.items()}
            state["metrics"] = list(self.environment.counter.metrics or ())
        return state

    def load(self, learned: Mapping[str, Any], rank_state: Mapping[str, Any] | None) -> bool:
        """Restore a checkpoint; True if training continues exactly as without a stop. ConfigError for a misfit."""
        # ``learned`` is rsl_rl's state, with ``iter``, the iterations done. ``rank_state`` is from `rank_state` of the
        # same rank among as many ranks, None to begin new episodes.
        try:
            self.algorithm.load(dict(learned), None, strict=True)
        except (RuntimeError, ValueError, KeyError) as error:
            raise ConfigError(
                "the checkpoint is of another algorithm or other networks than are asked for now "
                f"({first_line(error)}); leave agent.algorithm, agent.actor, agent.critic and the environment as they "
                "were"
            ) from error
        self.iterations = int(learned["iter"])
        if self._curiosity is not None:
            # rsl_rl's schedule of the curiosity weight counts steps, and no checkpoint keeps the count.
            self._curiosity.update_counter = self.iterations * self._config.agent.num_steps_per_env
        # Skip the episode starts that were drawn before, so that they do not repeat.
        self.environment.num_drawn += self.iterations * self._config.num_envs * self._config.agent.num_steps_per_env
        # Checkpoints of other trainers do not record these.
        own = value_at(learned, ("infos", OWN_INFOS))
        self.env_steps = int(value_at(own, ("env_steps",)) or self.iterations * self._env_steps)
        # Use the configured learning rate if it differs from the one that the checkpoint began with.
        before = value_at(own, ("config", "agent", "algorithm", "learning_rate"))
        now = self._config.agent.algorithm.get("learning_rate")
        if isinstance(before, float) and now is not None and now != before:
            set_learning_rate(self.algorithm, now)
            _LOG.info("the learning rate goes on from %g", now)

        snapshot = None if rank_state is None else rank_state.get("environment")
        num_envs = self._config.num_envs
        if rank_state is None or snapshot is None or len(snapshot["training/episode_length"]) != num_envs:
            return False
        self.environment.restore_snapshot(snapshot, metrics=tuple(rank_state["metrics"]))
        for role, network in networks_of(self.algorithm).items():
            if (memory := rank_state["memory"].get(role)) is not None:
                device = self._context.device
                moved = (
                    memory.to(device) if isinstance(memory, torch.Tensor) else tuple(part.to(device) for part in memory)
                )
                network.reset(hidden_state=moved)  # type: ignore[operator]
        returns = rank_state.get("curiosity_returns")
        if returns is not None and self._curiosity is not None:
            self._curiosity.reward_normalizer.disc_avg.avg = returns.to(self._context.device)
        # Restore random numbers last, because building and loading draw some too.
        torch.set_rng_state(rank_state["torch_rng"])
        if "cuda_rng" in rank_state and self._context.device.type == "cuda":
            torch.cuda.set_rng_state(rank_state["cuda_rng"], self._context.device)
        return True

    @torch.no_grad()
    def _collect(self) -> None:
        environment, algorithm, device = self.environment, self.algorithm, self._context.device
        observation = environment.restart() if self._restarts else environment.get_observations()
        for _ in range(self._config.agent.num_steps_per_env):
            actions = algorithm.act(observation.to(device))
            observation, rewards, dones, extras = environment.step(actions.to(environment.device))
            if self._config.agent.check_for_nan:
                check_nan(observation, rewards, dones)
            observation = observation.to(device)
            algorithm.process_env_step(observation, rewards.to(device), dones.to(device), extras)
        algorithm.compute_returns(observation)
