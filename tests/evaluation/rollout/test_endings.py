"""How an episode ended where several reasons come together, in every combination of them."""

from itertools import product

import pytest
import torch

from isaaclab_arena.environments.arena.environment import TableEnvironment
from isaaclab_arena.environments.mdp.task import Verdict
from isaaclab_arena.evaluation.running_episodes import Ending, PolicyAnswer, RunningEpisodes, ending_of
from isaaclab_arena.interfaces.environment import Step
from isaaclab_arena.interfaces.episode import Episode, Outcome
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena.interfaces.specs import ArraySpec
from tests.environments.building import build, hold_still, start

BOTH = (False, True)


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
def test_reasons_that_coincide_have_an_order(said, made):
    """What the task says comes before the time limit, and that before a policy that has finished."""
    terminated, truncated, success = said
    ending = ending_of(step(terminated=terminated, truncated=truncated, success=success, diverged=False), 0)
    assert (ending.outcome, ending.success, ending.termination) == made
    assert ending.error is None


@pytest.mark.parametrize(("terminated", "truncated", "success"), list(product(BOTH, BOTH, (*BOTH, None))))
def test_diverged_physics_comes_before_everything(terminated, truncated, success):
    broken = step(terminated=terminated, truncated=truncated, success=success, diverged=True)
    assert ending_of(broken, 0) == Ending(
        outcome=Outcome.ERROR, success=None, termination="diverged", error="the physics diverged"
    )


def test_an_error_says_what_the_environment_says_of_that_env_slot():
    broken = step(terminated=False, truncated=False, success=False, diverged=True, errors={0: "it fell apart"})
    assert ending_of(broken, 0).error == "it fell apart"


def under_way(num_envs: int = 1) -> RunningEpisodes:
    running = RunningEpisodes(num_envs, torch.device("cpu"), ArraySpec(shape=(1,)))
    starts = [
        EpisodeStart(
            env_id=env_id,
            episode=Episode(job="j", episode_index=env_id, seed=0),
            conditions={},
            language_instruction="",
        )
        for env_id in range(num_envs)
    ]
    running.begin(starts, now_s=0.0)
    return running


def test_episodes_that_nothing_repeats_are_errors():
    running = under_way()
    assert running.late(now_s=2.5, limit_s=2.5) == {}
    out_of_time = running.late(now_s=2.6, limit_s=2.5)[0]
    assert (out_of_time.outcome, out_of_time.termination) == (Outcome.ERROR, "episode_timeout")
    assert out_of_time.success is None


def answered(*, finished: bool | None) -> PolicyAnswer:
    """Answers of a policy for one env slot."""
    done = None if finished is None else torch.tensor([finished])
    return PolicyAnswer(action=torch.zeros(1, 1), finished=done, unusable=torch.tensor([False]))


@pytest.mark.parametrize(("terminated", "truncated", "diverged", "finished"), list(product(BOTH, repeat=4)))
def test_any_reason_ends_an_episode_and_none_leaves_it(terminated, truncated, diverged, finished):
    running = under_way()
    last = step(terminated=terminated, truncated=truncated, success=False, diverged=diverged)
    over = running.over(answered(finished=finished), last, max_length=10)
    assert bool(over) is (terminated or truncated or diverged or finished)


def test_an_env_slot_that_rests_does_not_end_again():
    running = under_way()
    last = step(terminated=True, truncated=False, success=True, diverged=False)
    over = running.over(answered(finished=None), last, max_length=10)
    running.count(last)
    (record,) = running.end(over or {})
    assert (record.length, record.episode_return, record.success) == (1, 1.0, True)
    assert running.over(answered(finished=True), last, max_length=10) == {}
    assert (running.num_running, running.num_finished) == (0, 1)


def test_an_episode_may_end_on_the_last_step_it_has_and_not_after():
    running = under_way()
    on = step(terminated=False, truncated=False, success=False, diverged=False)
    for _ in range(2):
        assert running.over(answered(finished=None), on, max_length=3) == {}
        running.count(on)
    assert list(running.over(answered(finished=True), on, max_length=3) or {}) == [0]
    with pytest.raises(Exception, match="made 3 steps, its max_episode_length, and was not truncated"):
        running.over(answered(finished=None), on, max_length=3)


# The task says solved or lost, on the last step that there is or before it: terminated, truncated, success.
IN_THE_ENVIRONMENT = [
    ((False, False, False), (False, False, False)),
    ((False, False, True), (False, True, False)),
    ((False, True, False), (True, False, False)),
    ((False, True, True), (True, False, False)),
    ((True, False, False), (True, False, True)),
    ((True, False, True), (True, False, True)),
    ((True, True, False), (True, False, True)),
    ((True, True, True), (True, False, True)),
]


def say(env: TableEnvironment, *, solved: bool, lost: bool) -> None:
    """Let the task of an environment say something, whatever happens."""
    verdict = Verdict(reward=torch.ones(1), success=torch.tensor([solved]), lost=torch.tensor([lost]))
    env.task.judge = lambda backend, running: verdict


@pytest.mark.parametrize(("said", "made"), IN_THE_ENVIRONMENT)
@pytest.mark.parametrize("diverges", BOTH)
def test_success_and_loss_on_the_last_step_are_what_the_task_says_and_no_time_out(said, made, diverges):
    solved, lost, on_the_last_step = said
    env = build("reach")
    start(env)
    env.max_episode_length = 3 if on_the_last_step else 4
    say(env, solved=False, lost=False)
    before = [env.step(hold_still(env)) for _ in range(2)]
    assert not any(bool(step.terminated | step.truncated) for step in before)
    say(env, solved=solved, lost=lost)
    if diverges:
        env.backend.qpos[0] = torch.nan
    last = env.step(hold_still(env))
    assert last.success is not None
    told = (bool(last.terminated), bool(last.truncated), bool(last.success))
    assert told == ((False, False, False) if diverges else made)
    assert bool(last.diverged) is diverges
    assert float(last.reward) == (0.0 if diverges else 1.0)
    if diverges or made[0] or made[1]:
        after = env.step(hold_still(env))
        assert not bool(after.terminated | after.truncated | after.diverged)
