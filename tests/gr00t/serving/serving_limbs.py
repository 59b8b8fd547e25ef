"""Policies of the limb environment behind servers of each protocol in this process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from arena_wire.messages import WireLimits
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.serving import HostedPolicy, PolicyHost
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.environment_builder import EnvironmentBuilder
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.serve import ListenOptions, OpenpiTalks, ServedJob, VlaEvalTalks, WebsocketServer, mapping_of
from isaaclab_arena_gr00t.serving.gr00t import Gr00tServer
from tests.fakes import Notebook
from tests.gr00t.fakes import LimbEnvironment

SEED = 7
LIMITS = WireLimits(max_message_bytes=100_000)


@dataclass(frozen=True)
class LimbConfig:
    """Options of the environment: none."""


class LimbBuilder(EnvironmentBuilder):
    """Builds `LimbEnvironment` the way a registered environment is built."""

    config_class = LimbConfig

    def check(self, config: Any) -> None: ...

    def build(self, config: Any, *, num_envs: int, device: torch.device, num_threads: int) -> LimbEnvironment:
        return LimbEnvironment(num_envs)


class LookPolicy(PolicyBase[None]):
    """Acts by what an env slot shows and by its words, and remembers nothing."""

    name = "look"
    traits = PolicyTraits(reproducible=True, batch_invariant=True)

    def __init__(self) -> None:
        super().__init__()
        self.words: dict[int, str] = {}

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        self.words.update({start.env_id: start.language_instruction for start in starts})

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return self.act_in_some(env, observation, range(env.num_envs))

    def act_in_some(self, env: Environment, observation: Observation, env_ids: Sequence[int]) -> torch.Tensor:
        action = torch.zeros(env.num_envs, 5)
        for env_id in self.words.keys() & set(env_ids):
            action[env_id] = torch.from_numpy(self.act(env_id, observation))
        return action

    def act(self, env_id: int, observation: Observation) -> np.ndarray:
        return np.sin(np.arange(5) + self.shown(env_id, observation))

    def shown(self, env_id: int, observation: Observation) -> float:
        shown = sum(float(values[env_id].double().sum()) for values in observation["policy"].values())
        seen = sum(float(values[env_id].double().mean()) / 255 for values in observation["camera_obs"].values())
        return shown + seen + len(self.words[env_id])


class WalkPolicy(LookPolicy):
    """Walks at random from where the joints are, and remembers how far it went."""

    name = "walk"

    def __init__(self) -> None:
        super().__init__()
        self.noise: dict[int, np.random.Generator] = {}
        self.gone: dict[int, np.ndarray] = {}

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        super().start_episodes(env, starts)
        for start in starts:
            self.noise[start.env_id] = start.episode.policy_generator()
            self.gone[start.env_id] = np.zeros(5)

    def act(self, env_id: int, observation: Observation) -> np.ndarray:
        self.gone[env_id] += self.noise[env_id].normal(size=5) + self.shown(env_id, observation)
        return np.sin(self.gone[env_id])


class StridePolicy(LookPolicy):
    """Looks at every third step, and knows until then what it does."""

    name = "stride"

    def __init__(self) -> None:
        super().__init__()
        self.ahead: dict[int, list[np.ndarray]] = {}

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        super().start_episodes(env, starts)
        self.ahead.update({start.env_id: [] for start in starts})

    def act(self, env_id: int, observation: Observation) -> np.ndarray:
        if not self.ahead[env_id]:
            first = super().act(env_id, observation)
            self.ahead[env_id] = [first, first / 2, first / 4]
        return self.ahead[env_id].pop(0)

    def planned(self, env_id: int) -> torch.Tensor:
        return torch.from_numpy(np.reshape(self.ahead[env_id], (-1, 5)))


def actions(policy: PolicyBase, num_envs: int) -> list[list]:
    """Return the actions of each step of a rollout of 6 episodes."""
    notebook, environment = Notebook(), LimbEnvironment(num_envs)
    policy.check_environment(environment)
    episodes = [Episode(job="limbs", episode_index=index, seed=SEED) for index in range(6)]
    try:
        rollout(environment, policy, episodes, [notebook])
    finally:
        policy.close()
    assert len(notebook.records) == 6
    return [transition.action[transition.running].tolist() for transition in notebook.transitions]


def limb_job(policy_class: type[PolicyBase] = WalkPolicy) -> Job:
    config = JobConfig(
        index=0, name="limbs", environment="limbs", environment_args={}, policy_type="walk", num_envs=2, seed=SEED,
        num_episodes=1,
    )  # fmt: skip
    return Job(
        config=config,
        builder=LimbBuilder(),
        environment_config=LimbConfig(),
        policy_class=policy_class,
        policy_options={},
    )


@contextmanager
def served(
    num_slots: int = 4,
    *,
    policy_class: type[PolicyBase] = WalkPolicy,
    images: dict[str, str] | None = None,
    states: dict[str, Sequence[str]] | None = None,
) -> Iterator[tuple[ServedJob, PolicyHost]]:
    """Yield a served job and its host."""
    policy = HostedPolicy(
        limb_job(policy_class), num_slots, shown=lambda spec: mapping_of(spec, images, states).shown()
    )
    host = PolicyHost(policy)
    mapping = mapping_of(policy.environment.observation_spec, images, states)
    try:
        yield ServedJob(policy=policy, mapping=mapping, contents={}), host
    finally:
        host.close()


@contextmanager
def running(server: Any) -> Iterator[int]:
    """Run a server for the length of a ``with`` block, and yield its port."""
    server.start()
    try:
        yield server.port
    finally:
        server.close()


@contextmanager
def serving(
    protocol: str,
    policy_class: type[PolicyBase] = WalkPolicy,
    num_slots: int = 4,
    *,
    token: str | None = None,
    **names: Any,
) -> Iterator[int]:
    """Serve a policy by a protocol for the length of a ``with`` block, and yield the port."""
    with served(num_slots, policy_class=policy_class, **names) as (job, host):
        listen = ListenOptions(port=0, api_token=token, max_message_bytes=LIMITS.max_message_bytes)
        if protocol == "gr00t":
            host.close()
            server: Any = Gr00tServer(job, listen, max_batch=8, max_wait_ms=2.0)
        else:
            talks = (
                VlaEvalTalks(job, LIMITS) if protocol == "vla_eval" else OpenpiTalks(job, LIMITS, prompt_key="prompt")
            )
            server = WebsocketServer(host, talks, listen, job.stated)
        with running(server) as port:
            yield port
