import dataclasses
import math

import numpy as np
import pytest

from isaaclab_arena.analysis.arms import Arm
from isaaclab_arena.analysis.decision_replay import replay_decision
from isaaclab_arena.config.schema import Question
from isaaclab_arena.results.stopping import Answering, FinishedEpisode, Verdict
from tests.analysis.recorded_runs import arm_of

QUESTION = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=1_000)


def arms_of(tmp_path, *outcomes: str) -> list[Arm]:
    return [arm_of(tmp_path / str(number), each) for number, each in enumerate(outcomes)]


def drawn(tmp_path, *rates: float, episodes: int = 120, seed: int = 0) -> list[Arm]:
    generator = np.random.default_rng(seed)
    letters = ["".join(np.where(generator.random(episodes) < rate, "s", "f")) for rate in rates]
    return arms_of(tmp_path, *letters)


@pytest.mark.parametrize(
    ("question", "rates"),
    [
        (QUESTION, (0.9, 0.5)),
        (QUESTION, (0.5, 0.9)),
        (dataclasses.replace(QUESTION, margin=0.2), (0.9, 0.7)),
        (dataclasses.replace(QUESTION, margin=0.1), (0.3, 0.9)),
        (Question(name="bar", jobs=("new",), max_episodes=500, at_least=0.5), (0.8,)),
        (Question(name="bar", jobs=("new",), max_episodes=500, at_least=0.9), (0.5,)),
    ],
)
def test_the_decision_is_the_one_that_the_run_takes(question, rates, tmp_path):
    arms = drawn(tmp_path, *rates)
    finished = {
        job: {
            index: FinishedEpisode(success=bool(success), conditions=str(index))
            for index, success in enumerate(arm.episodes.success)
        }
        for job, arm in zip(question.jobs, arms, strict=True)
    }
    answer = Answering(question, num_questions=2).look(finished)
    found = replay_decision(question, arms, num_questions=2, num_orders=3)
    assert answer.verdict is not None
    assert found.decision is not None
    assert (found.decision.episodes, found.decision.verdict) == (answer.episodes, answer.verdict)
    assert found.decision.log_e_value == pytest.approx(answer.log_e_value)
    assert found.needed_log_e_value == pytest.approx(answer.needed_log_e_value)
    assert found.log_e_values[answer.episodes - 1] == pytest.approx(answer.log_e_value)


def test_evidence_is_given_after_every_episode(tmp_path):
    found = replay_decision(QUESTION, arms_of(tmp_path, "ssss", "ffss"), num_orders=1)
    # One win: B(3/2, 1/2) / B(1/2, 1/2) * 2 = 1; two: 3/2; pairs that come out the same add nothing.
    assert np.exp(found.log_e_values) == pytest.approx([1.0, 1.5, 1.5, 1.5])
    assert found.decision is None
    assert (found.reordered, dict(found.verdicts), found.quantile(0.5)) == ((), {}, None)


def test_errors_and_unequal_conditions_say_nothing(tmp_path):
    first = arm_of(tmp_path / "first", "sess", moved={3: 0.9})
    found = replay_decision(QUESTION, [first, arm_of(tmp_path / "second", "ffff")], num_orders=1)
    assert found.left_out == 2
    assert np.exp(found.log_e_values) == pytest.approx([1.0, 1.0, 1.5, 1.5])


def test_no_more_is_looked_at_than_was_asked_for_and_than_is_there_without_a_gap(tmp_path):
    arms = arms_of(tmp_path, "ssssss", "fff-ff")
    assert replay_decision(QUESTION, arms, num_orders=1).num_episodes == 3
    assert replay_decision(dataclasses.replace(QUESTION, max_episodes=2), arms, num_orders=1).num_episodes == 2


def test_other_orders_decide_earlier_and_later_but_nearly_always_alike(tmp_path):
    found = replay_decision(QUESTION, drawn(tmp_path, 0.9, 0.6), num_orders=200)
    stops = [decision.episodes for decision in found.reordered]
    assert len(set(stops)) > 20
    assert found.verdicts[Verdict.BETTER] > 190
    low, middle, high = (found.quantile(share) for share in (0.1, 0.5, 0.9))
    assert low is not None
    assert middle is not None
    assert high is not None
    assert low < middle < high
    assert np.mean(np.array(stops) <= middle) >= 0.5
    again = replay_decision(QUESTION, drawn(tmp_path / "again", 0.9, 0.6), num_orders=200)
    assert again.reordered == found.reordered


def test_all_orders_of_equal_episodes_decide_at_once(tmp_path):
    found = replay_decision(QUESTION, arms_of(tmp_path, "s" * 30, "f" * 30), num_orders=5)
    assert found.decision is not None
    assert {decision.episodes for decision in found.reordered} == {found.decision.episodes}
    assert found.decision.log_e_value >= math.log(20.0)
    assert found.quantile(1.0) == found.decision.episodes
