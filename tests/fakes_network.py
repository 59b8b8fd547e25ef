"""Policies with a small network, whose last digits change with the size of the batch it is asked on."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from isaaclab_arena.evaluation.policy_server import Batcher
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyCfg, PolicyTraits
from isaaclab_arena.interfaces.policy_traits import Entries, Network, NetworkElsewhere


class NetworkPolicy(PolicyBase[PolicyCfg]):
    """Moves the arm about as a random network makes of what it sees."""

    config_class = PolicyCfg
    traits = PolicyTraits(reproducible=True)

    def __init__(self, config: PolicyCfg | None = None) -> None:
        super().__init__(config)
        self._networks: dict[tuple[int, int], torch.nn.Module] = {}

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        seen = torch.cat([term.flatten(1).float() for term in observation["policy"].values()], dim=1)
        low, high = (torch.tensor(bound, device=seen.device) for bound in (env.action_spec.low, env.action_spec.high))
        network = self._made(seen.shape[1], env.action_spec.shape[0]).to(seen.device)
        return low + (high - low) * torch.sigmoid(network(seen))

    def _made(self, num_inputs: int, num_outputs: int) -> torch.nn.Module:
        # Two jobs that follow each other share the policy, and may differ in what there is to see.
        sizes = (num_inputs, num_outputs)
        if sizes not in self._networks:
            generator = torch.Generator().manual_seed(5)
            linear = [torch.nn.Linear(*each) for each in ((num_inputs, 256), (256, 256), (256, num_outputs))]
            for parameter in (parameter for layer in linear for parameter in layer.parameters()):
                torch.nn.init.normal_(parameter, std=0.2, generator=generator)
            self._networks[sizes] = torch.nn.Sequential(
                linear[0], torch.nn.Tanh(), linear[1], torch.nn.Tanh(), linear[2]
            )
        return self._networks[sizes]


class RandomNetwork:
    """A network whose last digits change with the size of a call; each call's number of entries is noted."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self._first = torch.randn(5, 256, generator=generator) * 0.3
        self._second = torch.randn(256, 2, generator=generator) * 0.3
        self.calls: list[int] = []
        self.about = {"slots_per_call": None, "num_actions": 2}

    @torch.no_grad()
    def answer(self, entries: Entries) -> dict[str, np.ndarray]:
        numbers, words = np.asarray(entries["numbers"]), entries["words"]
        self.calls.append(len(numbers))
        noise = [np.random.default_rng(int(seed)).standard_normal(2) for seed in np.asarray(entries["seed"])]
        told = [[len(text)] for text in words]
        seen = torch.from_numpy(np.concatenate([numbers, told, noise], axis=1).astype(np.float32))
        return {"action": torch.tanh(torch.tanh(seen @ self._first) @ self._second).numpy()}


class ServablePolicy(PolicyBase[PolicyCfg]):
    """Acts on what it sees, on a sum of what it has seen in the episode, and on noise of the episode's own stream."""

    config_class = PolicyCfg
    traits = PolicyTraits(reproducible=True, serves_any_num_envs=True)

    def __init__(self, config: PolicyCfg | None = None, *, served: NetworkElsewhere | None = None) -> None:
        super().__init__(config)
        self._served = served
        self._own = RandomNetwork() if served is None else None
        self._slots = 8
        self._sums: dict[int, float] = {}
        self._streams: dict[int, np.random.Generator] = {}
        self._words: dict[int, str] = {}

    def network(self) -> RandomNetwork:
        return self._own or RandomNetwork()

    @classmethod
    def asking(cls, options: Mapping[str, object], network: NetworkElsewhere) -> "ServablePolicy":
        del options
        return cls(served=network)

    def slots_per_call(self, num_envs: int) -> int | None:
        del num_envs
        return 8

    def fill_calls_up_to(self, num_slots: int | None) -> None:
        self._slots = num_slots or 8

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        for start in starts:
            self._sums[start.env_id] = 0.0
            self._streams[start.env_id] = start.episode.policy_generator()
            self._words[start.env_id] = start.language_instruction

    def end_episodes(self, env: Environment, env_ids: Sequence[int]) -> None:
        for env_id in env_ids:
            self._sums.pop(env_id)

    def reset(self, env_ids: torch.Tensor | None = None) -> None:
        if env_ids is None:
            self._sums = {}

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        seen = torch.cat([term.flatten(1).float() for term in observation["policy"].values()], dim=1).sum(dim=1)
        asked = sorted(self._sums)
        for env_id in asked:
            self._sums[env_id] += float(seen[env_id])
        entries = {
            "numbers": np.array([[float(seen[env_id]), self._sums[env_id]] for env_id in asked], np.float32),
            "seed": np.array([self._streams[env_id].integers(2**40) for env_id in asked], np.int64),
            "words": [self._words[env_id] for env_id in asked],
        }
        action = torch.zeros(env.num_envs, *env.action_spec.shape)
        action[asked, :2] = torch.from_numpy(self._asked(entries)["action"])
        return action

    def close(self) -> None:
        if self._served is not None:
            self._served.close()

    def _asked(self, entries: Entries) -> dict[str, np.ndarray]:
        if self._served is not None:
            return self._served.ask(entries, slots_per_call=self._slots)
        alone = Batcher(self.network(), max_batch=64, max_wait_s=0.0)
        answers = alone.ask(entries, slots_per_call=self._slots).answers
        alone.close()
        return answers


class Desk:
    """A policy server without the processes; see `NetworkElsewhere`."""

    max_batch = 64

    def __init__(self, batcher: Batcher, network: Network) -> None:
        self._batcher, self.about = batcher, network.about
        batcher.count(1)

    def ask(self, entries: Entries, *, slots_per_call: int) -> dict[str, np.ndarray]:
        return self._batcher.ask(entries, slots_per_call=slots_per_call).answers

    def close(self) -> None:
        self._batcher.count(-1)
