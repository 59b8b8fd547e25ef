"""Late answers: what the robot does meanwhile, what that costs, and that nothing but the episode decides it."""

import numpy as np
import pytest
import torch

from isaaclab_arena.config.schema import Delays, Meanwhile
from isaaclab_arena.evaluation.latency import LatePolicy, QueryTimes, held
from isaaclab_arena.evaluation.rollout import EnvGroup, StartingEpisodes, next_starts, pipelined_rollout, rollout
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.evaluation.latency.plants import (
    GAIN,
    POLE,
    CommittedChunks,
    ConstantChunks,
    NoisyChunks,
    Proportional,
    UnstablePlant,
)
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, PushPolicy, ScriptedEnvironment, episodes

UP_TO_TWO = Delays(steps=((0, 1), (1, 2), (2, 1)))


class Still(ScriptedEnvironment):
    """The scripted environment with an action that keeps the point where it is."""

    hold_action = (0.0, 0.0, None)


class InSome(PushPolicy):
    """Pushes less with every question, and can be asked about some env slots."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: dict[int, int] = {}

    def start_episodes(self, env, starts):
        self.questions.update({start.env_id: 0 for start in starts})

    def get_action(self, env, observation):
        return self.act_in_some(env, observation, range(env.num_envs))

    def act_in_some(self, env, observation, env_ids):
        action = super().get_action(env, observation)
        for env_id in env_ids:
            self.questions[env_id] = self.questions.get(env_id, 0) + 1
            action[env_id] /= self.questions[env_id]
        return action


def late(policy: PolicyBase, delays: Delays | int, meanwhile: Meanwhile) -> LatePolicy:
    every = delays if isinstance(delays, Delays) else Delays(steps=((delays, 1),))
    return LatePolicy(policy, every, meanwhile, QueryTimes())


def success_of(policy: PolicyBase, hold_action, delay: int, meanwhile: Meanwhile) -> list[bool | None]:
    notebook = Notebook()
    rollout(UnstablePlant(4, hold_action), late(policy, delay, meanwhile), episodes(8), [notebook])
    return [record.success for record in notebook.records]


def radius(*lines: tuple[float, float]) -> float:
    return float(np.abs(np.linalg.eigvals(np.array(lines))).max())


def multiplier(meanwhile: Meanwhile, delay: int, *, holds_last: bool) -> float:
    """Return by how much the plant grows from one query to the next, as control theory says."""
    grown = sum(POLE**step for step in range(delay))
    if meanwhile in (Meanwhile.CHUNK, Meanwhile.RTC):
        # A constant action that was chosen a query before, for as many steps as the next one takes. It makes no
        # difference whether the actions that were played meanwhile are dropped of a chunk, or given to it as committed.
        return radius((POLE**delay, -GAIN * grown), (1.0, 0.0)) if delay else abs(POLE - GAIN)
    # One action in every delay + 1 steps; before it the last one, or nothing.
    return radius((POLE ** (delay + 1) - GAIN, -GAIN * POLE * grown if holds_last else 0.0), (1.0, 0.0))


@pytest.mark.parametrize(
    ("policy", "hold_action", "meanwhile"),
    [
        (Proportional, (0.0,), Meanwhile.HOLD),
        (Proportional, "last", Meanwhile.HOLD),
        (ConstantChunks, None, Meanwhile.CHUNK),
        (CommittedChunks, None, Meanwhile.RTC),
    ],
)
def test_an_unstable_plant_is_lost_exactly_where_its_delay_margin_ends(policy, hold_action, meanwhile):
    factors = [multiplier(meanwhile, delay, holds_last=hold_action == "last") for delay in range(6)]
    assert factors[0] < 1 < factors[-1]
    for delay, factor in enumerate(factors):
        assert success_of(policy(), hold_action, delay, meanwhile) == [factor < 1] * 8, (delay, factor)


def test_while_the_world_waits_success_does_not_depend_on_latency():
    assert success_of(Proportional(), None, 5, Meanwhile.WAIT) == [True] * 8


def actions(policy: PolicyBase, num_envs: int, first: int = 0) -> dict[int, torch.Tensor]:
    log = ActionLog()
    rollout(Still(num_envs, endings=("timeout",), cameras=True), policy, episodes(20)[first:], [log])
    return log.actions


@pytest.mark.parametrize(
    ("meanwhile", "policy"),
    [
        *((meanwhile, NoisyChunks) for meanwhile in Meanwhile),
        *((Meanwhile.HOLD, policy) for policy in (PushPolicy, InSome)),
    ],
)
def test_what_an_episode_does_depends_on_nothing_but_the_episode(meanwhile, policy):
    alone = actions(late(policy(), UP_TO_TWO, meanwhile), 1)
    together = actions(late(policy(), UP_TO_TWO, meanwhile), 7)
    # A run that was killed goes on with the episodes that are missing.
    resumed = actions(late(policy(), UP_TO_TWO, meanwhile), 3, first=13)
    assert all(torch.equal(alone[index], together[index]) for index in range(20))
    assert all(torch.equal(alone[index], resumed[index]) for index in range(13, 20))


def test_groups_of_env_slots_that_take_turns_change_nothing():
    def returns(num_groups: int) -> dict[int, float]:
        notebook = Notebook()
        groups = [
            EnvGroup(
                environment=Still(3, endings=("timeout",), cameras=True),
                policy=late(NoisyChunks(), UP_TO_TWO, Meanwhile.RTC),
            )
            for _ in range(num_groups)
        ]
        pipelined_rollout(groups, episodes(20), [notebook])
        return {record.episode.episode_index: record.episode_return for record in notebook.records}

    assert returns(1) == returns(2)


@pytest.mark.parametrize("policy", [NoisyChunks, PushPolicy, InSome])
@pytest.mark.parametrize(("delay", "meanwhile"), [(2, "wait"), *((0, meanwhile) for meanwhile in Meanwhile)])
def test_answers_that_are_on_time_are_those_without_latency(policy, delay, meanwhile):
    plain, on_time = actions(policy(), 4), actions(late(policy(), delay, Meanwhile(meanwhile)), 4)
    assert all(torch.equal(plain[index], on_time[index]) for index in range(20))


def test_a_robot_that_holds_still_repeats_the_elements_that_its_environment_says():
    done = actions(late(NoisyChunks(), 2, Meanwhile.HOLD), 2)
    waits = [episode[3:5] for episode in done.values() if len(episode) >= 5]
    before = [episode[2] for episode in done.values() if len(episode) >= 5]
    assert waits
    assert all(bool((each[:, :2] == 0).all()) for each in waits)
    assert all(bool((each[:, 2] == last[2]).all()) for each, last in zip(waits, before, strict=True))


class Counting(NoisyChunks):
    """Answers with the step of its query and the place in the chunk."""

    def chunks(self, env, observation, env_ids, going_on=None):
        steps = observation["policy"]["clock"][list(env_ids)].float()
        places = torch.arange(float(self.PREDICTED))
        return torch.stack([steps.expand(-1, self.PREDICTED), places.expand(len(steps), -1), steps + places], dim=2)


def test_a_robot_that_goes_on_leaves_out_the_actions_that_are_late():
    done = actions(late(Counting(), 2, Meanwhile.CHUNK), 3)
    longest = max(done.values(), key=len)
    # Three actions of each chunk are played. A query is made two steps before they are used up.
    assert longest[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 4, 4]
    # Each action is played in the step that it was predicted for.
    assert all(episode[:, 2].tolist() == list(range(len(episode))) for episode in done.values())


def test_a_robot_that_waits_plays_every_action_of_its_chunk():
    longest = max(actions(late(Counting(), 2, Meanwhile.HOLD), 3).values(), key=len)
    assert longest[:, 2].tolist() == [0, 1, 2, 2, 2, 3, 4, 5]


def test_what_was_committed_is_played_to_the_last_bit():
    class Free(NoisyChunks):
        """Is asked to go on from actions, and answers with others."""

        def chunks(self, env, observation, env_ids, going_on=None):
            given.append(going_on)
            answer = super().chunks(env, observation, env_ids)
            answers.append(answer)
            return answer

    given, answers = [], []
    done = actions(late(Free(), Delays(steps=((1, 1), (2, 1))), Meanwhile.RTC), 1)
    assert all(int((each.weights == 1).sum()) in (0, 2) for each in given)
    # The second query is made in step 1. Two actions are committed then, though the answer may be there after one.
    assert all(torch.equal(action, due) for action, due in zip(done[0][:3], answers[0][0], strict=False))
    assert not torch.equal(answers[1][0, 1], answers[0][0, 2])


def test_pictures_are_announced_exactly_where_a_query_looks_next():
    policy, environment = NoisyChunks(), Still(3, endings=("timeout",), cameras=True)
    waits = late(policy, UP_TO_TWO, Meanwhile.RTC)
    starts = next_starts(environment, range(3), iter(episodes(3)))
    starting = StartingEpisodes(environment, None, may_overlap=False)
    starting.begin(starts, num_steps=0)
    begun = starting.finish(num_steps=0)
    assert begun is not None
    _, observation = begun
    waits.start_episodes(environment, starts)
    for _ in range(8):
        announced, policy.asked = waits.pictures_to_see(environment, ()), []
        action = waits.get_action(environment, observation)
        assert policy.asked == ([tuple(announced)] if announced else [])
        observation = environment.step(action).observation


def test_an_episode_tells_how_stale_its_actions_were_and_how_often_it_asked():
    notebook = Notebook()
    rollout(UnstablePlant(2, (0.0,)), late(Proportional(), 2, Meanwhile.HOLD), episodes(2), [notebook])
    for record in notebook.records:
        # The first answer is waited for, then 2 of 3 steps wait for the next one.
        assert record.metrics == {"latency.stale_share": 40 / 60, "latency.queries_per_s": 21 / 3.0}


def test_while_the_world_waits_an_episode_has_no_metrics_of_its_own():
    notebook = Notebook()
    rollout(UnstablePlant(2, None), late(Proportional(), 2, Meanwhile.WAIT), episodes(2), [notebook])
    assert [record.metrics for record in notebook.records] == [{}, {}]


def test_what_is_held_is_what_the_environment_declares():
    last = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert torch.equal(held("last", last), last)
    assert torch.equal(held((0.0, None), last), torch.tensor([[0.0, 2.0], [0.0, 4.0]]))
