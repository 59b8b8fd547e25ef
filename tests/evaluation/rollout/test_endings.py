"""How episodes start and end."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch

from isaaclab_arena.errors import PolicyLostError
from isaaclab_arena.evaluation.rollout import EnvGroup, pipelined_rollout, rollout
from isaaclab_arena.evaluation.running_episodes import Ending, RolloutLimits, ending_of
from isaaclab_arena.interfaces.environment import Observation, Step
from isaaclab_arena.interfaces.environment_builder import Background
from isaaclab_arena.interfaces.episode import Conditions, Outcome
from tests.fakes import Notebook
from tests.fakes_environment import ActionLog, PushPolicy, ScriptedEnvironment, episodes


class Elsewhere(ScriptedEnvironment, Background):
    """Says that its resets are made in other processes, and notes in `said` what it is asked for, in order."""

    steps_while_starting = 2

    def __init__(self, num_envs: int, *, endings: Sequence[str] = ("success", "failure", "timeout")) -> None:
        super().__init__(num_envs, endings=endings)
        self.said: list[tuple[str, list[int]]] = []
        self._begun: dict[int, Conditions] = {}

    @property
    def background(self) -> Background:
        return self

    def begin_step(self, action) -> None:
        self._action = action

    def finish_step(self) -> Step:
        return self.step(self._action)

    def begin_reset(self, env_ids: torch.Tensor, conditions: Sequence[Conditions]) -> None:
        self.said.append(("begin", env_ids.tolist()))
        assert not self._begun.keys() & set(env_ids.tolist())
        self._begun.update(zip(env_ids.tolist(), conditions, strict=True))

    def finish_reset(self, env_ids: Sequence[int]) -> Observation:
        self.said.append(("finish", list(env_ids)))
        conditions = [self._begun.pop(env_id) for env_id in env_ids]
        return ScriptedEnvironment.reset(self, torch.tensor(env_ids), conditions)

    def step(self, action):
        self.said.append(("step", []))
        return super().step(action)

    @property
    def starting(self) -> list[int]:
        return sorted(self._begun)


class Lasting(Elsewhere):
    """The same, whose episodes take 3, 8, 3, 8 … steps."""

    def draw_conditions(self, generator) -> Conditions:
        return {**super().draw_conditions(generator), "script.ending": "timeout"}

    def vary_conditions(self, conditions, episode) -> Conditions:
        return {**conditions, "script.length": 8 if episode.episode_index % 2 else 3}


def played(environment, number: int = 12, **options) -> tuple[dict[int, torch.Tensor], list]:
    log, notebook = ActionLog(), Notebook()
    rollout(environment, PushPolicy(), episodes(number), [log, notebook], **options)
    return log.actions, sorted(notebook.records, key=lambda record: record.episode.episode_index)


@pytest.mark.parametrize(("num_envs", "steps"), [(1, 2), (2, 1), (5, 2), (5, 30)])
def test_episodes_are_the_same_whatever_is_stepped_while_they_start(num_envs, steps):
    environment = Elsewhere(num_envs)
    environment.steps_while_starting = steps
    actions, records = played(environment)
    expected_actions, expected = played(ScriptedEnvironment(1, endings=("success", "failure", "timeout")))
    assert [record.episode.episode_index for record in records] == list(range(12))
    assert [(record.outcome, record.length) for record in records] == [(each.outcome, each.length) for each in expected]
    assert all(torch.equal(actions[index], expected_actions[index]) for index in range(12))
    assert environment.starting == []


def test_others_make_the_same_number_of_steps_however_long_a_reset_takes_then_it_is_waited_for():
    environment = Lasting(2)
    rollout(environment, PushPolicy(), episodes(3), [])
    step = ("step", [])
    begun, waited = environment.said.index(("begin", [0])), environment.said.index(("finish", [0]))
    assert environment.said[: begun + 1] == [("begin", [0, 1]), ("finish", [0, 1]), *[step] * 3, ("begin", [0])]
    assert environment.said[begun + 1 : waited + 1] == [step, step, ("finish", [0])]


def test_nothing_is_begun_early_where_steps_are_counted():
    environment = Lasting(2)
    rollout(environment, PushPolicy(), episodes(40), [], limits=RolloutLimits(max_steps=12))
    assert {said for said, _ in environment.said} == {"step"}


class Leaves(PushPolicy):
    """Is gone in the fifth step."""

    num_asked = 0

    def get_action(self, env, observation):
        self.num_asked += 1
        if self.num_asked == 5:
            raise PolicyLostError("the server is gone")
        return super().get_action(env, observation)


def test_whoever_stops_waits_for_resets_that_were_begun():
    environment, asked = Lasting(2), iter([False] * 4 + [True])
    result = rollout(environment, PushPolicy(), episodes(4), [], stop_requested=lambda: next(asked))
    assert result.interrupted
    assert (result.finished_episodes, result.cut_episodes) == (1, 1)
    assert environment.said[-1] == ("finish", [0])


@pytest.mark.parametrize("groups", [1, 2])
def test_a_policy_that_is_lost_leaves_no_reset_unanswered(groups):
    environments = [Lasting(2) for _ in range(groups)]
    pairs = [EnvGroup(environment=each, policy=Leaves()) for each in environments]
    play = partial(rollout, environments[0], pairs[0].policy) if groups == 1 else partial(pipelined_rollout, pairs)
    with pytest.raises(PolicyLostError):
        play(episodes(9), [])
    assert [environment.starting for environment in environments] == [[]] * groups


def step(*, terminated: bool, truncated: bool, success: bool | None, diverged: bool, **more) -> Step:
    """Return a step of one env slot."""
    return Step(
        observation={},
        reward=torch.ones(1),
        terminated=torch.tensor([terminated]),
        truncated=torch.tensor([truncated]),
        success=None if success is None else torch.tensor([success]),
        diverged=torch.tensor([diverged]),
        **more,
    )


# What a step says, and what that makes of the episode that ended with it: outcome, success, termination.
ENDINGS = [
    # terminated, truncated, success
    ((False, False, False), (Outcome.FAILURE, False, "policy_finished")),
    ((False, False, True), (Outcome.SUCCESS, True, "policy_finished")),
    ((False, False, None), (None, None, "policy_finished")),
    ((False, True, False), (Outcome.TIMEOUT, False, "time_limit")),
    ((False, True, True), (Outcome.SUCCESS, True, "time_limit")),
    ((False, True, None), (Outcome.TIMEOUT, None, "time_limit")),
    ((True, False, False), (Outcome.FAILURE, False, "terminated")),
    ((True, False, True), (Outcome.SUCCESS, True, "terminated")),
    ((True, False, None), (None, None, "terminated")),
    ((True, True, False), (Outcome.FAILURE, False, "terminated")),
    ((True, True, True), (Outcome.SUCCESS, True, "terminated")),
    ((True, True, None), (None, None, "terminated")),
]


@pytest.mark.parametrize(("said", "made"), ENDINGS)
def test_reasons_that_coincide_have_an_order_and_diverged_physics_comes_before_everything(said, made):
    """What the task says comes before the time limit, and that before a policy that has finished."""
    terminated, truncated, success = said
    usual = {"terminated": terminated, "truncated": truncated, "success": success}
    outcome, succeeded, termination = made
    assert ending_of(step(**usual, diverged=False), 0) == Ending(
        outcome=outcome, success=succeeded, termination=termination, error=None
    )
    broken = Ending(outcome=Outcome.ERROR, success=None, termination="diverged", error="the physics diverged")
    assert ending_of(step(**usual, diverged=True), 0) == broken
    told = step(**usual, diverged=True, errors={0: "it fell apart"})
    assert ending_of(told, 0) == replace(broken, error="it fell apart")
