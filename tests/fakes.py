"""Fakes that replace mocks: small environments and policies whose right answers are known by construction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from isaaclab_arena.interfaces.environment import Environment, Observation, StateTree, Step
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits
from isaaclab_arena.interfaces.specs import ArraySpec


@dataclass(frozen=True)
class CoinConfig:
    """Options of `CoinEnvironment`."""

    success_rate: float = 0.5
    success_step: int = 10
    failure_step: int = 100
    diverge_every: int = 0
    measures_success: bool = True
    fail_to_build: bool = False


class CoinEnvironment(Environment):
    """Each episode tosses a coin in its conditions: heads succeeds early, tails runs into the time limit.

    What the policy does changes nothing, so the true success rate is known. ``observation["policy"]["clock"]`` counts
    the steps of the env slot, ``reward`` is 1 per step.
    """

    def __init__(self, config: CoinConfig, num_envs: int) -> None:
        self.num_envs = num_envs
        self.device = torch.device("cpu")
        self.action_spec = ArraySpec(shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
        self.observation_spec = {"policy": {"clock": ArraySpec(shape=(1,)), "heads": ArraySpec(shape=(1,))}}
        self.task_description = "call the coin"
        self.max_episode_length = config.failure_step
        self.control_dt = 0.1
        self.num_draws = 0
        self.closed = False
        self._config = config
        self._clock = torch.zeros(num_envs)
        self._heads = torch.zeros(num_envs, dtype=torch.bool)
        self._diverges = torch.zeros(num_envs, dtype=torch.bool)
        self._running = torch.zeros(num_envs, dtype=torch.bool)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        toss, number = generator.random(), int(generator.integers(1_000_000))
        self.num_draws += 1
        return {"coin.heads": int(toss < self._config.success_rate), "coin.number": number}

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        every = self._config.diverge_every
        for env_id, condition in zip(env_ids.tolist(), conditions, strict=True):
            self._clock[env_id] = 0
            self._heads[env_id] = bool(condition["coin.heads"])
            self._diverges[env_id] = bool(every) and int(str(condition["coin.number"])) % every == 0
            self._running[env_id] = True
        return self._observe()

    def step(self, action: torch.Tensor) -> Step:
        running = self._running.clone()
        self._clock += running
        diverged = running & self._diverges & (self._clock == 3)
        success = running & self._heads & (self._clock >= self._config.success_step)
        success &= self._config.measures_success
        truncated = running & (self._clock >= self._config.failure_step)
        self._running &= ~(success | truncated | diverged)
        return Step(
            observation=self._observe(),
            reward=running.float(),
            terminated=success,
            truncated=truncated,
            success=success if self._config.measures_success else None,
            diverged=diverged,
            metrics={"clock": self._clock.clone()},
        )

    def state(self) -> StateTree:
        pose = torch.zeros(self.num_envs, 7)
        pose[:, 0] = self._clock
        return {"rigid_object": {"coin": {"root_pose": pose, "root_velocity": torch.zeros(self.num_envs, 6)}}}

    def close(self) -> None:
        self.closed = True

    def _observe(self) -> Observation:
        return {"policy": {"clock": self._clock[:, None].clone(), "heads": self._heads[:, None].float()}}


class CoinBuilder(EnvironmentBuilder):
    """Builds `CoinEnvironment`, or what a test makes of it, the way a registered environment is built."""

    config_class = CoinConfig

    def __init__(self, make: Callable[[CoinConfig, int], CoinEnvironment] = CoinEnvironment) -> None:
        self.make = make
        self.built: list[CoinEnvironment] = []

    def check(self, config: CoinConfig) -> None: ...

    def build(self, config: CoinConfig, *, num_envs: int, device: torch.device, num_threads: int) -> CoinEnvironment:
        if config.fail_to_build:
            raise RuntimeError("the mint is closed")
        environment = self.make(config, num_envs)
        self.built.append(environment)
        return environment


def named_coin_builder(name: str) -> CoinBuilder:
    """Return a builder for any name of a scheme."""
    del name
    return CoinBuilder()


@dataclass(frozen=True)
class ShrugCfg(PolicyCfg):
    """Options of `ShrugPolicy`."""

    raise_at: int = -1
    action: str = "zeros"


class ShrugPolicy(PolicyBase[ShrugCfg]):
    """Does nothing, and remembers how it was called. ``raise_at`` and ``action`` make it misbehave."""

    name = "shrug"
    config_class = ShrugCfg

    def __init__(self, config: ShrugCfg | None = None) -> None:
        super().__init__(config)
        self.starts: list[EpisodeStart] = []
        self.num_calls = 0
        self.closed = False

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self.starts.extend(starts)

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        self.num_calls += 1
        config = self.config or ShrugCfg()
        if self.num_calls == config.raise_at:
            raise ValueError("I would rather not")
        action = torch.zeros(env.num_envs, *env.action_spec.shape)
        misbehaviour: dict[str, Callable[[], object]] = {
            "zeros": lambda: action,
            "nan": lambda: action.fill_(float("nan")),
            "wrong_shape": lambda: action[:, :1],
            "list": action.tolist,
        }
        return misbehaviour[config.action]()  # pyright: ignore[reportReturnType]  it may misbehave on purpose

    def close(self) -> None:
        self.closed = True


def shrugging(act: Callable[[Environment, Observation], object] = lambda *_: None, **own: object) -> type[ShrugPolicy]:
    """Return a class of its own of policies that do something before they shrug, with some attributes."""

    def get_action(self: ShrugPolicy, env: Environment, observation: Observation) -> torch.Tensor:
        act(env, observation)
        return ShrugPolicy.get_action(self, env, observation)

    name = f"Shrugging{next(_NUMBERS)}"
    return type(name, (ShrugPolicy,), {"get_action": get_action, "__module__": __name__, "__qualname__": name, **own})


_NUMBERS = count()


class SurePolicy(ShrugPolicy):
    """Does the same in every env slot, whatever the others hold."""

    traits = PolicyTraits(reproducible=True, batch_invariant=True)


class RepeatablePolicy(ShrugPolicy):
    """Promises that its actions follow from what it sees, which a probe on each size of batch has to show."""

    traits = PolicyTraits(reproducible=True)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Notebook(Observer):
    """Writes down what an observer is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.records = []
        self.transitions = []

    def on_episode_start(self, environment, starts, observation) -> None:
        self.lines += [f"start {start.episode.episode_index} in {start.env_id}" for start in starts]

    def on_step(self, environment, transition) -> None:
        self.transitions.append(transition)

    def on_episode_end(self, environment, record) -> None:
        self.lines.append(f"end {record.episode.episode_index} in {record.env_id}")
        self.records.append(record)
