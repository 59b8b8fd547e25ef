"""The share of action entries at or beyond their bounds is that of what the policy answered, whoever clips it later."""

import pytest
import torch

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes
from isaaclab_arena.evaluation.rollout import EnvGroup, pipelined_rollout, rollout
from isaaclab_arena.interfaces.environment import Environment, Observation, Step
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.specs import ArraySpec
from tests.environments.building import build
from tests.environments.building import episode as arena_episode
from tests.environments.gym.gym_running import IN_WORKERS, run
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, PushPolicy, ScriptedEnvironment, SolvedEnvironment, episodes


class Same(PolicyBase[None]):
    """Answers the same in every step."""

    def __init__(self, *action: float) -> None:
        super().__init__()
        self.action = action

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return torch.tensor([self.action]).repeat(env.num_envs, 1)


class Bold(PushPolicy):
    """Asks for up to three times what the environment of these tests takes."""

    def get_action(self, env: Environment, observation: Observation) -> torch.Tensor:
        return 3 * super().get_action(env, observation)


class InPlace(ScriptedEnvironment):
    """Clips the tensor that it is given."""

    def step(self, action: torch.Tensor) -> Step:
        return super().step(action.clamp_(-0.5, 0.5))


class SecondTry(ScriptedEnvironment):
    """Makes no step at the first try."""

    def try_step(self, action: torch.Tensor) -> Step:
        self._action = action
        none = torch.zeros(self.num_envs, dtype=torch.bool)
        return Step(
            observation=self._observe(),
            reward=torch.zeros(self.num_envs),
            terminated=none,
            truncated=none,
            success=none,
            diverged=none,
            made=none,
        )

    def step(self, action: torch.Tensor) -> Step:
        raise AssertionError("it is tried")

    def step_again(self) -> Step:
        return super().step(self._action)


def shares(environment: ScriptedEnvironment, policy: PolicyBase, number: int = 10, *more) -> dict[int, float | None]:
    notebook = Notebook()
    rollout(environment, policy, episodes(number), [notebook, *more])
    return {record.episode.episode_index: record.saturated_action_share for record in notebook.records}


def bounded(low: tuple[float, ...] | None, high: tuple[float, ...] | None) -> ScriptedEnvironment:
    environment = ScriptedEnvironment(2)
    environment.action_spec = ArraySpec(shape=(3,), low=low, high=high)
    return environment


@pytest.mark.parametrize(
    ("action", "share"),
    [
        ((0.0, 0.0, 0.0), 0.0),
        ((-1.0, 0.0, 2.0), 2 / 3),
        ((-7.0, 9.0, 1.99), 2 / 3),
        # What single precision makes of a bound is that bound.
        ((2 - 2e-7, -1 + 1e-7, 0.0), 2 / 3),
    ],
)
def test_entries_at_and_beyond_their_bounds_count(action, share):
    """The bounds are -1 and 2."""
    assert set(shares(ScriptedEnvironment(3), Same(*action)).values()) == {share}


def test_entries_without_a_bound_and_those_with_one_value_do_not_count():
    inf = float("inf")
    action = Same(5.0, 5.0, 5.0)
    assert set(shares(bounded(None, None), action).values()) == {None}
    assert set(shares(bounded((-inf, 5.0, -inf), (inf, 5.0, inf)), action).values()) == {None}
    assert set(shares(bounded(None, (inf, 1.0, 9.0)), action).values()) == {0.5}
    assert set(shares(bounded((5.0, -inf, 0.0), (inf, 1.0, 9.0)), action).values()) == {2 / 3}


def test_a_bound_of_zero_and_one_far_from_zero_count_too():
    inf = float("inf")
    spec = bounded((0.0, 1000.0, -inf), (inf, 1000.001, 1e6))
    assert set(shares(spec, Same(0.0, 1000.0, 1e6)).values()) == {1.0}
    assert set(shares(spec, Same(0.1, 1000.0005, 1e5)).values()) == {0.0}


def test_an_episode_has_the_share_of_its_own_steps():
    log = ActionLog()
    found = shares(ScriptedEnvironment(4), Bold(), 40, log)
    expected = {index: float(((action <= -1) | (action >= 2)).double().mean()) for index, action in log.actions.items()}
    assert found == pytest.approx(expected)
    assert len(set(found.values())) > 5


def test_the_share_is_the_same_for_any_env_slots_and_groups():
    alone = shares(ScriptedEnvironment(1), Bold(), 30)
    assert shares(ScriptedEnvironment(7), Bold(), 30) == alone
    notebook = Notebook()
    groups = [EnvGroup(environment=ScriptedEnvironment(size), policy=Bold()) for size in (3, 2)]
    pipelined_rollout(groups, episodes(30), [notebook])
    assert {each.episode.episode_index: each.saturated_action_share for each in notebook.records} == alone


def test_an_environment_that_clips_the_tensor_it_is_given_changes_nothing():
    assert set(shares(InPlace(2), Same(2.0, 0.0, 0.0)).values()) == {1 / 3}


def test_a_step_that_is_made_again_counts_once():
    assert shares(SecondTry(3), Bold()) == shares(ScriptedEnvironment(3), Bold())


def test_an_episode_without_a_step_has_no_share():
    notebook = Notebook()
    rollout(SolvedEnvironment(2), Bold(), episodes(30), [notebook])
    told = {(record.length == 0, record.saturated_action_share is None) for record in notebook.records}
    assert told == {(True, True), (False, False)}


def test_late_answers_count_as_what_the_environment_gets():
    late = LatePolicy(Same(2.0, 2.0, 0.0), Delays(steps=((1, 1),)), Meanwhile.HOLD, QueryTimes())
    environment = ScriptedEnvironment(2)
    environment.hold_action = (0.0, 0.0, 0.0)
    log = ActionLog()
    found = shares(environment, late, 10, log)
    expected = {index: float((action >= 2).double().mean()) for index, action in log.actions.items()}
    assert found == pytest.approx(expected)
    assert max(each for each in expected.values()) < 2 / 3


def test_a_robot_of_this_package_is_at_the_bounds_of_its_joints():
    environment = build("lift_object", num_envs=2)
    low, high = environment.action_spec.low, environment.action_spec.high
    assert low is not None
    assert high is not None
    notebook = Notebook()
    middle = [(least + most) / 2 for least, most in zip(low, high, strict=True)]
    beyond = Same(low[0] - 0.1, high[1] + 0.1, *middle[2:])
    rollout(environment, beyond, [arena_episode(0), arena_episode(1)], [notebook])
    assert {record.saturated_action_share for record in notebook.records} == {2 / len(low)}


@pytest.mark.parametrize("place", [{}, IN_WORKERS], ids=["here", "in_workers"])
@pytest.mark.parametrize(
    ("name", "action", "share"),
    [
        ("gym:tests.environments.gym.gym_fakes:Fake/Draw-v0", (1.0, 0.5), 0.5),
        # Pushing left or right is a choice between two, and none of these is more than it takes.
        ("gym:CartPole-v1", (1.0,), 0.0),
        ("gym:CartPole-v1", (7.0,), 1.0),
        ("gym:tests.environments.gym.gym_fakes:Fake/HalfBounded-v0", (9.0, 1.0, 9.0), 0.5),
    ],
)
def test_an_environment_made_elsewhere_counts_by_its_space(name, action, share, place):
    records = run(name, num_envs=2, num_episodes=3, policy=Same(*action), max_episode_length=5, **place)
    assert {record.saturated_action_share for record in records.values()} == {share}
