from collections.abc import Iterable
from functools import cache
from itertools import count

import pytest
import torch

from isaaclab_arena.errors import ArenaError, PolicyError, PolicyLostError
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.evaluation.running_episodes import RolloutLimits, Stopwatch
from isaaclab_arena.interfaces.episode import Episode, Outcome
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.fakes import CoinConfig, CoinEnvironment, Notebook, ShrugPolicy


def episodes(number: int, seed: int = 0) -> list[Episode]:
    return [Episode(job="coins", episode_index=index, seed=seed) for index in range(number)]


def toss(index: int, seed: int = 0, rate: float = 0.5) -> bool:
    return Episode(job="coins", episode_index=index, seed=seed).conditions_generator().random() < rate


def run(num_envs: int, planned: int | Iterable[Episode], config: CoinConfig | None = None, policy=None, **options):
    notebook, policy = Notebook(), policy or ShrugPolicy()
    environment = CoinEnvironment(config or CoinConfig(), num_envs)
    asked = episodes(planned) if isinstance(planned, int) else planned
    result = rollout(environment, policy, asked, [notebook], **options)
    return result, notebook, policy


HEADS, TAILS = CoinConfig(success_rate=1.0), CoinConfig(success_rate=0.0)


@cache
def fifty(num_envs: int):
    """A run that several tests look at and none changes."""
    return run(num_envs, 50)


@pytest.mark.parametrize("num_envs", [1, 4, 64])
def test_every_planned_episode_runs_exactly_once(num_envs):
    result, notebook, _ = fifty(num_envs)
    assert sorted(record.episode.episode_index for record in notebook.records) == list(range(50))
    assert (result.finished_episodes, result.cut_episodes) == (50, 0)


def test_the_rate_is_that_of_the_planned_episodes_and_not_of_the_first_to_finish():
    """Successes end at step 10 and failures at 100: the first 50 finishers of 64 env slots would read 90 %."""
    _, notebook, _ = fifty(64)
    successes = sum(bool(record.success) for record in notebook.records)
    assert successes == sum(toss(index) for index in range(50))
    assert 15 <= successes <= 35


@pytest.mark.parametrize("num_envs", [1, 4, 64])
def test_what_an_episode_is_does_not_depend_on_the_batch(num_envs):
    _, notebook, _ = fifty(num_envs)
    by_index = sorted(notebook.records, key=lambda record: record.episode.episode_index)
    alone = CoinEnvironment(CoinConfig(), 1)
    assert [record.conditions for record in by_index] == [
        alone.draw_conditions(episode.conditions_generator()) for episode in episodes(50)
    ]
    won, lost = (True, Outcome.SUCCESS, "terminated", 10), (False, Outcome.TIMEOUT, "time_limit", 100)
    for record in by_index:
        assert (record.success, record.outcome, record.termination, record.length) == (won if record.success else lost)
        assert record.episode_return == record.metrics["clock"] == record.length


def test_diverged_physics_is_an_error_and_never_a_success_and_the_others_go_on():
    _, notebook, _ = run(4, 40, CoinConfig(diverge_every=3))
    errors = [record for record in notebook.records if record.outcome is Outcome.ERROR]
    assert errors
    assert len(notebook.records) == 40
    assert all(record.success is None and record.length == 3 and record.error for record in errors)


def test_a_step_limit_cuts_the_episodes_under_way_and_counts_them():
    endless = (Episode(job="coins", episode_index=index, seed=0) for index in count())
    result, notebook, _ = run(4, endless, limits=RolloutLimits(max_steps=150))
    assert len(notebook.transitions) == 150
    assert result.cut_episodes == 4
    assert result.finished_episodes == len(notebook.records)


def test_no_episode_is_started_on_the_last_step():
    result, notebook, _ = run(1, 5, HEADS, limits=RolloutLimits(max_steps=10))
    assert result.finished_episodes == 1
    assert result.cut_episodes == 0
    assert notebook.lines == ["start 0 in 0", "end 0 in 0"]


def test_env_slots_beyond_the_most_that_are_to_be_used_rest():
    result, notebook, _ = run(8, 12, limits=RolloutLimits(max_envs=3))
    assert result.finished_episodes == 12
    assert {record.env_id for record in notebook.records} == {0, 1, 2}
    assert max(int(transition.running.sum()) for transition in notebook.transitions) == 3


class TenthsOfASecond(Stopwatch):
    """Says that a tenth of a second passes whenever it is looked at, which the loop does once for each step."""

    tenths = 0

    def elapsed_s(self) -> float:
        self.tenths += 1
        return self.tenths / 10


def test_an_episode_that_takes_too_long_is_an_error_and_its_env_slot_takes_the_next_one():
    limits = RolloutLimits(episode_timeout_s=2.5)
    result, notebook, _ = run(4, 20, limits=limits, stopwatch=TenthsOfASecond())
    assert result.finished_episodes == 20
    late = [record for record in notebook.records if record.termination == "episode_timeout"]
    in_time = [record for record in notebook.records if record not in late]
    assert {(record.outcome, record.success) for record in late} == {(Outcome.ERROR, None)}
    assert {record.error for record in late} == {"the episode took longer than 2.5 s, its episode_timeout_s"}
    assert all(15 <= record.length <= 25 for record in late)
    assert {(record.success, record.length) for record in in_time} == {(True, 10)}
    assert sorted(record.episode.episode_index for record in in_time) == [i for i in range(20) if toss(i)]


def test_an_episode_that_ends_in_the_step_that_takes_too_long_has_ended():
    limits = RolloutLimits(episode_timeout_s=0.95)
    _, notebook, _ = run(1, 1, HEADS, limits=limits, stopwatch=TenthsOfASecond())
    assert [record.outcome for record in notebook.records] == [Outcome.SUCCESS]


class Lost(ShrugPolicy):
    """Its server dies at the 15th question, when one of two episodes is in its 15th step, the other in its 5th."""

    def get_action(self, env, observation):
        if self.num_calls == 14:
            raise PolicyLostError("nobody answers")
        return super().get_action(env, observation)


def test_episodes_under_way_when_their_policy_is_lost_are_errors_of_the_length_they_had():
    config, notebook = CoinConfig(success_rate=0.5), Notebook()
    heads, tails = ([index for index in range(20) if toss(index) is wanted] for wanted in (True, False))
    planned = [Episode(job="coins", episode_index=index, seed=0) for index in (heads[0], tails[0], heads[1])]
    with pytest.raises(PolicyLostError, match="nobody answers"):
        rollout(CoinEnvironment(config, 2), Lost(), planned, [notebook])
    ended = [(record.outcome, record.success, record.length, record.termination) for record in notebook.records]
    assert ended == [
        (Outcome.SUCCESS, True, 10, "terminated"),
        (Outcome.ERROR, None, 4, "policy_lost"),
        (Outcome.ERROR, None, 14, "policy_lost"),
    ]
    assert [record.error for record in notebook.records[1:]] == ["the policy was lost: nobody answers"] * 2
    assert [record.metrics["clock"] for record in notebook.records] == [10, 4, 14]


def test_an_episode_that_has_not_made_a_step_when_its_policy_is_lost_was_not_tried():
    config, notebook = CoinConfig(success_rate=1.0, success_step=14), Notebook()
    with pytest.raises(PolicyLostError):
        rollout(CoinEnvironment(config, 2), Lost(), episodes(4), [notebook])
    assert [record.outcome for record in notebook.records] == [Outcome.SUCCESS] * 2


def test_a_stop_request_ends_the_rollout_between_steps():
    asked = iter([False] * 5 + [True])
    result, notebook, _ = run(2, 10, stop_requested=lambda: next(asked))
    assert result.interrupted
    assert len(notebook.transitions) == 5
    assert result.cut_episodes == 2


@pytest.mark.parametrize(("options", "words"), [({}, "call the coin"), ({"language_instruction": "guess"}, "guess")])
def test_the_policy_is_told_of_each_episode_and_the_jobs_words_take_the_place_of_the_tasks(options, words):
    _, _, policy = run(4, 12, **options)
    assert [start.episode.episode_index for start in policy.starts] == list(range(12))
    assert {start.language_instruction for start in policy.starts} == {policy.task_description} == {words}


def test_a_policy_that_has_finished_ends_its_episode():
    class Brief(ShrugPolicy):
        def finished(self):
            return torch.tensor([self.num_calls % 4 == 0])

    _, notebook, _ = run(1, 2, TAILS, Brief())
    assert [(record.length, record.termination) for record in notebook.records] == [(4, "policy_finished")] * 2
    assert {record.outcome for record in notebook.records} == {Outcome.FAILURE}


@pytest.mark.parametrize(
    ("hook", "answer", "told"),
    [
        ("finished", torch.tensor([True]), r"\(1,\)"),
        ("finished", torch.zeros(3), "torch.float32"),
        ("finished", [True, False, False], "list"),
        ("set_task_description", 7, "int"),
    ],
)
def test_a_bad_answer_of_a_hook_is_the_policys_error(hook, answer, told):
    policy = type("Confused", (ShrugPolicy,), {hook: lambda self, *_: answer})()
    with pytest.raises(PolicyError, match=f"{hook} .*{told}"):
        run(3, 3, policy=policy)


def test_what_a_policy_does_to_its_observation_stays_with_it():
    class Vandal(ShrugPolicy):
        def get_action(self, env, observation):
            observation["policy"]["clock"] += 1000
            observation["policy"].pop("heads")
            return super().get_action(env, observation)

    _, notebook, _ = run(1, 1, HEADS, Vandal())
    seen = [transition.observation["policy"] for transition in notebook.transitions]
    assert [int(terms["clock"]) for terms in seen] == list(range(10))
    assert all("heads" in terms for terms in seen)


def test_an_action_is_copied_so_that_a_policy_may_reuse_its_buffer():
    class Reuses(ShrugPolicy):
        buffer = torch.zeros(1, 2)

        def get_action(self, env, observation):
            self.num_calls += 1
            return self.buffer.fill_(self.num_calls)

    _, notebook, _ = run(1, 1, HEADS, Reuses())
    assert [int(transition.action[0, 0]) for transition in notebook.transitions] == list(range(1, 11))


def test_an_environment_that_never_ends_an_episode_is_an_error_and_not_a_hang():
    environment = CoinEnvironment(CoinConfig(success_rate=0.0), 2)
    environment.max_episode_length = 20
    with pytest.raises(ArenaError, match="env slot 0 made 20 steps"):
        rollout(environment, ShrugPolicy(), episodes(2), [])


def test_a_policy_written_for_arena_runs_unchanged():
    """Only `get_action` and `reset` are overridden, and spaces are read through ``env.unwrapped``."""

    class ArenaStyle(PolicyBase):
        def __init__(self, config=None):
            super().__init__(config)
            self.resets = []

        def get_action(self, env, observation):
            return torch.zeros(env.action_space.shape, device=torch.device(env.unwrapped.device))

        def reset(self, env_ids=None):
            self.resets.append(env_ids.tolist() if env_ids is not None else None)

    policy = ArenaStyle.from_dict({})
    run(2, 3, policy=policy)
    assert policy.resets[0] == [0, 1]
    assert len(policy.resets) == 2
