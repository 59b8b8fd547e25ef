"""Compare two policies in pairs: both meet the same episodes, so that luck with the episodes does not count.

python examples/compare_two_policies.py
"""

from collections.abc import Callable, Mapping

import pandas as pd
import torch
from scipy.stats import binomtest

import isaaclab_arena as arena

EPISODES = 40


def goes_to_the_marker(step_m: float) -> Callable[[Mapping[str, Mapping[str, torch.Tensor]]], torch.Tensor]:
    """Return a policy that goes straight to the marker, a step at a time [m]; a plain function is enough."""

    def act(observation: Mapping[str, Mapping[str, torch.Tensor]]) -> torch.Tensor:
        state = observation["policy"]
        step = (state["target_pos"] - state["eef_pos"]).clamp(-step_m, step_m)
        return torch.cat((step, torch.zeros(len(step), 4)), dim=1)

    return act


def solved(step_m: float) -> pd.Series:
    """Return for every episode, by its index, whether it was solved."""
    results = arena.evaluate(
        environment="reach",
        policy=goes_to_the_marker(step_m),
        num_episodes=EPISODES,
        num_envs=8,
        seed=0,  # the same seed: the same episodes
        action_mode="ee_delta",
        name=f"step-{step_m}",
    )
    print(results)
    episodes = results.episodes
    return pd.Series((episodes["outcome"] == "success").to_numpy(), index=episodes["episode_index"])


def main() -> pd.DataFrame:
    """Evaluate both, and show how many episodes only one of them solves, and how likely that is by chance."""
    quick, slow = solved(0.04), solved(0.0015)
    table = pd.crosstab(quick.rename("quick"), slow.rename("slow"))
    only_quick, only_slow = int((quick & ~slow).sum()), int((~quick & slow).sum())
    print(table)
    if only_quick + only_slow:
        chance = binomtest(only_quick, only_quick + only_slow).pvalue
        print(
            f"only the quick one solves {only_quick}, only the slow one {only_slow}: p = {chance:.2g} (McNemar, exact)"
        )
    return table


if __name__ == "__main__":
    main()
