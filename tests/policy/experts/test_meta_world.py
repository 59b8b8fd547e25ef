"""Meta-World's experts solve Meta-World's tasks, in its own conditions."""

import pytest
import torch

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.scripted import MetaWorldExpertCfg, MetaWorldExpertPolicy
from tests.environments.gym.gym_running import Trace, build, run

pytest.importorskip("metaworld", reason="Meta-World is not installed; docs/how_to/metaworld.md says how")


@pytest.mark.parametrize("task", ["reach-v3", "door-open-v3", "drawer-close-v3"])
def test_the_expert_solves_its_task(task):
    records = run(f"metaworld:{task}", num_envs=2, num_episodes=4, policy=MetaWorldExpertPolicy())
    assert [record.outcome for record in records.values()] == [Outcome.SUCCESS] * 4
    assert len({record.conditions["gym.seed"] for record in records.values()}) == 4


def test_episodes_are_the_same_bits_for_any_number_of_env_slots():
    traces = [Trace(), Trace()]
    for num_envs, trace in zip((1, 4), traces, strict=True):
        run("metaworld:pick-place-v3", num_envs=num_envs, policy=MetaWorldExpertPolicy(), observer=trace)
    assert len(traces[0].steps) == 6
    assert traces[0].steps == traces[1].steps
    assert len({steps[0] for steps in traces[0].steps.values()}) == 6


def test_the_expert_sees_nothing_but_the_observation():
    environment = build("metaworld:reach-v3")
    observation = environment.reset(torch.tensor([0]), [{"gym.seed": 5}])
    policy = MetaWorldExpertPolicy(MetaWorldExpertCfg(task="reach-v3"))

    class Blindfold:
        device = torch.device("cpu")
        task_name = "reach-v3"
        expert_actions = environment.expert_actions

    seen = policy.get_action(environment, observation)
    assert torch.equal(policy.get_action(Blindfold(), observation), seen)  # pyright: ignore[reportArgumentType]


def test_an_environment_without_expert_is_told():
    with pytest.raises(ConfigError, match="no expert for 'CartPole-v1'"):
        run("gym:CartPole-v1", policy=MetaWorldExpertPolicy())


def test_an_unknown_task_is_told_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"no expert for 'reach-v2'; it has some for .*reach-v3"):
        run("metaworld:reach-v3", policy=MetaWorldExpertPolicy(MetaWorldExpertCfg(task="reach-v2")))
