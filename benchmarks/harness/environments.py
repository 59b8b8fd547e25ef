"""Build environments, run episodes in them, and keep their outcomes."""

from collections.abc import Mapping
from typing import Any

import torch

from isaaclab_arena.environments.catalog import ENVIRONMENTS
from isaaclab_arena.environments.variations.overrides import enabled_variations
from isaaclab_arena.environments.variations.senses import build_varied, offered_variations
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome
from isaaclab_arena.interfaces.observer import Observer, Transition
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.policy.catalog import resolve_policy_class
from isaaclab_arena.results.statistics import wilson_interval

CPU = torch.device("cpu")


def build(
    name: str,
    num_envs: int,
    *,
    device: torch.device = CPU,
    num_threads: int = 1,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Build a registered environment, with the variations of some settings if there are any."""
    builder = ENVIRONMENTS.get(name)
    config = builder.config_class(**options)
    builder.check(config)
    variations = () if settings is None else enabled_variations(offered_variations(builder, config), settings)
    size = {"num_envs": num_envs, "num_threads": num_threads}
    return build_varied(builder, config, variations=variations, device=device, **size)


def make_policy(policy_type: str, options: Mapping[str, Any] | None = None) -> PolicyBase:
    """Return a policy by its registered name."""
    return resolve_policy_class(policy_type).from_dict(dict(options or {}))


def episodes(number: int, seed: int = 0) -> list[Episode]:
    """Return the first episodes of a job."""
    return [Episode(job="benchmark", episode_index=index, seed=seed) for index in range(number)]


class Tally(Observer):
    """Keeps the records of finished episodes, and counts the slots that run."""

    sees_pictures = False

    def __init__(self) -> None:
        self.records: list[EpisodeRecord] = []
        # Steps of env slots in which an episode ran, and of all env slots.
        self.busy = self.steps = 0

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Count the slots that made this step."""
        self.busy += int(transition.running.sum())
        self.steps += environment.num_envs

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Keep the record."""
        del environment
        self.records.append(record)

    def count(self, outcome: Outcome) -> int:
        """Return the number of episodes with an outcome."""
        return sum(record.outcome is outcome for record in self.records)

    @property
    def successes(self) -> tuple[str, str]:
        """Successes over episodes, and their rate with its interval."""
        solved = self.count(Outcome.SUCCESS)
        return f"{solved}/{len(self.records)}", success_rate(solved, len(self.records))

    @property
    def of_expert(self) -> tuple[str, str, str, str]:
        """Successes, their rate, timeouts and errors, and the mean number of steps to success, in words."""
        lengths = [record.length for record in self.records if record.success]
        others = f"{self.count(Outcome.TIMEOUT)}/{self.count(Outcome.ERROR)}"
        return (*self.successes, others, f"{sum(lengths) / len(lengths):.0f}" if lengths else "")

    @property
    def lengths(self) -> str:
        """Smallest, largest and mean number of steps of an episode, in words."""
        lengths = [record.length for record in self.records]
        return f"{min(lengths)} to {max(lengths)}, mean {sum(lengths) / len(lengths):.0f}"


def tally(environment: Environment, policy: PolicyBase, num_episodes: int, seed: int = 0) -> Tally:
    """Run episodes, and return their outcomes."""
    found = Tally()
    rollout(environment, policy, episodes(num_episodes, seed), [found])
    assert len(found.records) == num_episodes
    return found


def success_rate(successes: int, number: int) -> str:
    """Return a success rate with its Wilson interval: ``97.5 % [94.3, 98.9]``."""
    interval = wilson_interval(successes, number)
    low, high = (interval.low, interval.high) if interval else (0.0, 1.0)
    return f"{100 * successes / number:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
