"""Meta-World's experts solve Meta-World's tasks, in its own conditions."""

import pytest

from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.policy.scripted import MetaWorldExpertPolicy
from tests.environments.gym.gym_running import Trace, run

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
