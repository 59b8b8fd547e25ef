"""Readers announce the pictures that they look at, and see no others."""

from collections.abc import Sequence

import pytest
import torch

from isaaclab_arena.errors import ArenaError, PolicyError, UnannouncedPictureError
from isaaclab_arena.evaluation.batching import on_fixed_batch
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer
from isaaclab_arena.interfaces.policy import PolicyBase, PolicyTraits
from isaaclab_arena.interfaces.specs import Pictures
from isaaclab_arena.testing.environment_conformance import DrawnOnDemand
from tests.fakes_environment import ActionLog, BlindLog, PushPolicy, ScriptedEnvironment, episodes


class Looks(PolicyBase[None]):
    """Looks at every picture and says nothing."""

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        brightness = observation["camera_obs"]["front"].float().mean(dim=(1, 2, 3))
        return torch.sin(brightness)[:, None].expand(-1, 3)


class LooksEverySecondStep(PolicyBase[None]):
    """Looks at an env slot in every second step of its episode, and announces that."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[int, int] = {}
        self._seen: dict[int, float] = {}

    def start_episodes(self, env, starts) -> None:
        self._steps.update({start.env_id: 0 for start in starts})

    def end_episodes(self, env, env_ids) -> None:
        for env_id in env_ids:
            del self._steps[env_id]

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        action = torch.zeros(env.num_envs, 3)
        for env_id, steps in self._steps.items():
            if steps % 2 == 0:
                self._seen[env_id] = float(observation["camera_obs"]["front"][env_id].float().mean())
            action[env_id] = self._seen[env_id] - 0.1 * steps
            self._steps[env_id] += 1
        return action

    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        return [*starting, *(env_id for env_id, steps in self._steps.items() if steps % 2 == 0)]


class LooksAnyway(LooksEverySecondStep):
    def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
        return starting


class NeverLooks(PushPolicy):
    traits = PolicyTraits(sees_pictures=False)


def played(policy: PolicyBase, *, num_envs: int = 3, lazily: bool = True, watches: Sequence[Observer] = ()):
    """Return the actions of nine episodes, and how many pictures were drawn on demand."""
    real, log = ScriptedEnvironment(num_envs, cameras=True), BlindLog()
    environment = DrawnOnDemand(real) if lazily else real
    rollout(environment, policy, episodes(9), [log, *watches])
    return log.actions, environment.pictures_drawn if isinstance(environment, DrawnOnDemand) else 0


def assert_same(found, expected) -> None:
    assert all(torch.equal(found[index], expected[index]) for index in range(9))


def test_actions_are_those_that_every_picture_gives_and_half_of_them_are_drawn():
    expected, _ = played(LooksEverySecondStep(), lazily=False)
    found, drawn = played(LooksEverySecondStep())
    assert_same(found, expected)
    # The last step of an episode of even length leads to a picture that is looked at by none, which only shows then.
    assert drawn == sum(len(actions) // 2 + 1 for actions in expected.values())
    for batch in (3, 8):
        found, drawn = played(on_fixed_batch(LooksEverySecondStep(), batch))
        assert_same(found, expected)
        assert drawn < sum(map(len, expected.values()))


@pytest.mark.parametrize(
    ("policy", "batch", "watches"),
    [
        (LooksAnyway, None, []),
        (LooksAnyway, None, [Observer()]),
        (LooksAnyway, None, [ActionLog()]),
        (LooksAnyway, 8, []),
    ],
)
def test_a_policy_that_looks_without_a_word_is_named_whatever_else_watches_or_fills_its_batch(policy, batch, watches):
    with pytest.raises(UnannouncedPictureError, match=f"{policy.__name__} looks at 'front'"):
        played(on_fixed_batch(policy(), batch), watches=watches)


class LooksAtPictures(LooksEverySecondStep):
    """Says that it announces pictures, and keeps the form in which it gets them."""

    traits = PolicyTraits(pictures="announced")
    pictures_to_see = LooksEverySecondStep.pictures_to_see
    shown: tuple[Pictures, ...] = ()

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        self.shown += (observation["camera_obs"]["front"],)
        return super().get_action(env, observation)


@pytest.mark.parametrize("lazily", [True, False])
def test_a_class_that_says_that_it_announces_gets_pictures_in_every_step(lazily):
    policy = LooksAtPictures()
    assert_same(played(policy, lazily=lazily)[0], played(LooksEverySecondStep(), lazily=False)[0])
    # The first steps of all three episodes are seen, the second ones only if every picture is drawn anyway.
    assert [each.env_ids for each in policy.shown[:2]] == [(0, 1, 2), () if lazily else (0, 1, 2)]


@pytest.mark.parametrize("base", [PolicyBase, LooksAnyway, NeverLooks, LooksAtPictures])
def test_a_class_that_acts_otherwise_than_its_base_sees_all_whatever_its_base_announced(base):
    policy = type("LooksAnew", (base,), {"get_action": Looks.get_action})
    assert policy.traits.pictures == "all"
    assert_same(played(policy())[0], played(Looks(), lazily=False)[0])


class Peeks(Observer):
    """Looks without a word."""

    sees_pictures = False

    def on_step(self, environment, transition) -> None:
        float(transition.step.observation["camera_obs"]["front"].float().mean())


def test_an_observer_that_looks_at_what_it_did_not_name_is_named():
    with pytest.raises(UnannouncedPictureError, match="Peeks looks at 'front'"):
        played(NeverLooks(), watches=[Peeks()])


@pytest.mark.parametrize("wrong", [[3], "front", [[0, 1], [2]]])
def test_an_announcement_that_names_no_env_slots_is_refused_and_the_policys_comes_first(wrong):
    class Wrong(Looks):
        get_action = Looks.get_action

        def pictures_to_see(self, env: Environment, starting: Sequence[int]) -> Sequence[int] | None:
            return wrong

    class Watching(Observer):
        def pictures_to_see(self, environment: Environment, starting: Sequence[EpisodeStart]) -> Sequence[int] | None:
            return wrong

    with pytest.raises(PolicyError, match=r"Wrong\.pictures_to_see .* below 3"):
        played(Wrong(), watches=[Watching()])
    with pytest.raises(ArenaError, match=r"Watching\.pictures_to_see .* below 3"):
        played(NeverLooks(), watches=[Watching()])
