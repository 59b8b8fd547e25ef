"""NaN and infinity in what an environment shows or rewards end that episode as an error, and never the job."""

import pytest
import torch

from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import unsound_slots
from isaaclab_arena.interfaces.environment import Observation, Step
from isaaclab_arena.interfaces.episode import EpisodeRecord, Outcome
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.policy_traits import PolicyTraits
from isaaclab_arena.interfaces.specs import SideBySide
from tests.fakes import Notebook
from tests.fakes_environment import PushPolicy, ScriptedEnvironment, episodes

SPOILED_LENGTHS = (3, 5)


class SpoiledEnvironment(ScriptedEnvironment):
    """The same, without saying so, of which episodes of `SPOILED_LENGTHS` show NaN or infinity, or earn it.

    Args:
        num_envs: Number of env slots.
        spoiled: ``start``, ``step`` (the second) or ``reward`` (of the second step).
        number: What is shown or earned there.
    """

    def __init__(self, num_envs: int, spoiled: str, number: float = torch.nan) -> None:
        super().__init__(num_envs, endings=("success", "failure", "timeout"))
        self._spoiled, self._number = spoiled, number

    def step(self, action: torch.Tensor) -> Step:
        step = super().step(action)
        if self._spoiled == "reward":
            step.reward[self._spoils_at(2)] = self._number
        return step

    def _observe(self) -> Observation:
        observation = super()._observe()
        clock = {"start": 0, "step": 2}.get(self._spoiled)
        observation["policy"]["position"][self._spoils_at(clock), 1] = self._number
        return observation

    def _spoils_at(self, clock: int | None) -> torch.Tensor:
        is_spoiled = torch.tensor([int(length) in SPOILED_LENGTHS for length in self._length])
        return is_spoiled & (self._clock == (-1 if clock is None else clock))


class StrictPolicy(PolicyBase[None]):
    """Refuses to look at NaN in any env slot."""

    traits = PolicyTraits(reproducible=True, batch_invariant=True)

    def get_action(self, env, observation):
        assert all(bool(torch.isfinite(part).all()) for part in observation["policy"].values())
        return observation["policy"]["position"].clamp(-1.0, 1.0)


def played(environment: ScriptedEnvironment, policy: PolicyBase) -> dict[int, EpisodeRecord]:
    notebook = Notebook()
    rollout(environment, policy, episodes(24), [notebook])
    return {record.episode.episode_index: record for record in notebook.records}


@pytest.mark.parametrize("policy", [PushPolicy(), StrictPolicy()], ids=["blind", "sees"])
@pytest.mark.parametrize(
    ("spoiled", "length", "error"),
    [
        ("start", 0, "at the reset, observation 'position' holds NaN or infinity"),
        ("step", 2, "observation 'position' holds NaN or infinity"),
        ("reward", 2, "the reward is nan"),
    ],
)
def test_such_an_episode_is_an_error_that_names_the_entry_whether_or_not_the_policy_looks(
    policy, spoiled, length, error
):
    found = played(SpoiledEnvironment(3, spoiled), policy)
    sound = played(SpoiledEnvironment(3, "nothing"), policy)
    assert sorted(found) == list(range(24))
    errors = {index for index, record in sound.items() if record.conditions["script.length"] in SPOILED_LENGTHS}
    assert {index for index, record in found.items() if record.outcome is Outcome.ERROR} == errors
    assert {(found[index].error, found[index].length, found[index].success) for index in errors} == {
        (error, length, None)
    }
    for index in found.keys() - errors:
        assert (found[index].outcome, found[index].length) == (sound[index].outcome, sound[index].length)
        assert found[index].episode_return == sound[index].episode_return


def test_infinity_is_such_a_number_too():
    found = played(SpoiledEnvironment(2, "step", -torch.inf), PushPolicy())
    assert {record.termination for record in found.values() if record.outcome is Outcome.ERROR} == {"diverged"}


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
def test_it_is_found_in_terms_that_lie_side_by_side_and_in_any_group_but_that_of_pictures(number):
    together = torch.full((3, 4), 3e38)
    together[1, 2] = number
    terms = SideBySide(together, {"a": 2, "b": 2})
    shown: list[Observation] = [
        {"policy": terms},
        {"policy": {"a": torch.zeros(3, 1)}, "privileged": {"deep": {"b": together.reshape(3, 2, 2)}}},
        {"policy": {"a": together.to(torch.bfloat16)}},
    ]
    for observation in shown:
        found = unsound_slots(observation, torch.zeros(3))
        assert found is not None
        assert found.tolist() == [False, True, False]
    assert unsound_slots({"camera_obs": {"depth": together}, "policy": {"a": torch.full((3, 2), 3e38)}}) is None
