"""Runs in which policies of known skill are compared, in this process."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from isaaclab_arena.config.schema import Question
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.evaluation.job import Job
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.episode import Conditions
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.results.merge import MergedResults, merge_results
from tests.evaluation.jobs import coin_job, execute, request_of
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment

CONTEXT = DistributedContext.from_environment(device="cpu", visible_gpus=0)
ASKED = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=200)


class ContestEnvironment(CoinEnvironment):
    """Each episode draws how hard it is, 0 to 1. The action says how skilled the policy is: its rate of success.

    An episode that succeeds ends after 10 steps, one that fails after 100. So those that end first are successes.
    """

    def __init__(self, config: CoinConfig, num_envs: int) -> None:
        super().__init__(config, num_envs)
        self._hardness = torch.zeros(num_envs)

    def draw_conditions(self, generator: np.random.Generator) -> Conditions:
        return {"coin.heads": 0, "coin.number": int(generator.integers(1_000_000)), "hardness": generator.random()}

    def reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> Observation:
        self._hardness[env_ids] = torch.tensor([float(str(each["hardness"])) for each in conditions])
        return super().reset(env_ids, conditions)

    def step(self, action: torch.Tensor) -> Step:
        self._heads = self._hardness < action[:, 0]
        return super().step(action)


@dataclass(frozen=True)
class SkilledCfg:
    skill: float = 0.5


class SkilledPolicy(PolicyBase[SkilledCfg]):
    """Succeeds in as many episodes as its skill says."""

    name = "skilled"
    traits = PolicyTraits(reproducible=True, batch_invariant=True)
    config_class = SkilledCfg

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return torch.full((env.num_envs, 2), self.config.skill)


def contestant(name: str, skill: float, *, index: int, builder: CoinBuilder | None = None, **config) -> Job:
    """Return a job whose true rate of success is known, of 200 episodes on 4 env slots unless told otherwise."""
    policy_class = config.pop("policy_class", SkilledPolicy)
    job = coin_job(
        name,
        builder or CoinBuilder(ContestEnvironment),
        config.pop("environment", None),
        policy_class,
        index,
        **{"num_episodes": 200, "labels": {"skill": str(skill)}, **config},
    )
    job.policy_options["skill"] = skill  # pyright: ignore[reportIndexIssue]  a dict of this job alone
    return job


def contest(
    directory: Path, jobs: Sequence[Job], questions: Sequence[Question], *, code: int = 0, **options
) -> MergedResults:
    """Run jobs that a run asks something of, and return what came out."""
    request = request_of(*jobs, questions=questions, output_dir=str(directory), no_dataset=True, **options)
    assert execute(request, CONTEXT) == code
    return merge_results(directory)


def new_and_old(new: float = 0.9, old: float = 0.6, **config) -> list[Job]:
    """Return two jobs of the same environment."""
    builder = config.pop("builder", None) or CoinBuilder(ContestEnvironment)
    return [
        contestant(name, skill, index=index, builder=builder, **config)
        for index, (name, skill) in enumerate({"new": new, "old": old}.items())
    ]
