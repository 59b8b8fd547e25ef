import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from isaaclab_arena.config.schema import Question
from isaaclab_arena.results.statistics import rate_interval
from isaaclab_arena.results.stopping import (
    Answering,
    FinishedEpisode,
    PairCounts,
    RateCounts,
    Verdict,
    answers_of,
    log_e_value_of_difference,
    needed_episodes,
)

BETTER = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=500)


def arm(successes, conditions: Callable[[int], str] = str) -> dict[int, FinishedEpisode]:
    return {index: FinishedEpisode(success, conditions(index)) for index, success in enumerate(successes)}


def arms(new_rate: float, old_rate: float, *, seed: int = 0, number: int = 500):
    generator = np.random.default_rng(seed)
    drawn = generator.random((2, number))
    return {"new": arm((drawn[0] < new_rate).tolist()), "old": arm((drawn[1] < old_rate).tolist())}


def the_answer(question, finished):
    return answers_of([question], finished)[0]


def test_the_first_prefix_with_enough_evidence_decides():
    finished = {"new": arm([True] * 50), "old": arm([False] * 50)}
    answer = the_answer(BETTER, finished)
    # Eight wins of eight give an e-value of 50, seven give 26.8, six 14.7, and 20 are needed.
    assert (answer.verdict, answer.episodes) == (Verdict.BETTER, 7)
    assert answer.counts == PairCounts(both=0, only_first=7, only_second=0, neither=0)
    assert the_answer(replace(BETTER, jobs=("old", "new")), finished).verdict is Verdict.WORSE


@pytest.mark.parametrize("order", range(5))
def test_the_order_in_which_episodes_end_changes_nothing(order):
    finished = arms(0.9, 0.6)
    whole = the_answer(BETTER, finished)
    answering = Answering(BETTER, num_questions=1)
    growing: dict[str, dict[int, FinishedEpisode]] = {"new": {}, "old": {}}
    ends = [(name, index) for name in growing for index in range(500)]
    random.Random(order).shuffle(ends)
    for name, index in ends:
        growing[name][index] = finished[name][index]
        answering.look(growing)
    assert answering.answer == whole
    assert whole.verdict is Verdict.BETTER


def test_an_episode_that_has_not_finished_holds_up_those_after_it():
    finished = {"new": arm([True] * 50), "old": arm([False] * 50)}
    del finished["old"][3]
    answer = the_answer(BETTER, finished)
    assert (answer.verdict, answer.episodes) == (None, 3)


def test_errors_and_unequal_conditions_are_no_pairs_and_are_counted():
    new = arm([True, None, *[True] * 48])
    old = arm([False] * 50, conditions=lambda index: "other" if index == 2 else str(index))
    answer = the_answer(BETTER, {"new": new, "old": old})
    assert (answer.left_out, answer.unequal) == (1, (2,))
    assert (answer.verdict, answer.episodes) == (Verdict.BETTER, 9)


def test_a_margin_is_decided_at_the_first_episode_whose_evidence_is_enough():
    question = replace(BETTER, margin=0.1)
    for finished, verdict in ((arms(0.8, 0.75), Verdict.NO_WORSE), (arms(0.5, 0.8), Verdict.WORSE)):
        answer = the_answer(question, finished)
        assert answer.verdict is verdict
        assert isinstance(answer.counts, PairCounts)
        assert log_e_value_of_difference(answer.counts, -0.1) >= math.log(20)
        before = {name: {index: each[index] for index in range(answer.episodes - 1)} for name, each in finished.items()}
        earlier = the_answer(question, before)
        assert isinstance(earlier.counts, PairCounts)
        assert earlier.verdict is None
        assert log_e_value_of_difference(earlier.counts, -0.1) < math.log(20)


def test_a_bar_is_decided_where_the_anytime_interval_leaves_it():
    question = Question(name="bar", jobs=("new",), max_episodes=500, at_least=0.8)
    for rate, verdict in ((0.95, Verdict.REACHED), (0.5, Verdict.MISSED)):
        answer = the_answer(question, arms(rate, 0.5))
        assert answer.verdict is verdict
        assert isinstance(answer.counts, RateCounts)
        interval = rate_interval(answer.counts.successes, answer.counts.trials, alpha=0.05)
        assert interval.low > 0.8 if verdict is Verdict.REACHED else interval.high < 0.8


def test_nothing_is_looked_at_beyond_the_most_episodes():
    answer = the_answer(replace(BETTER, max_episodes=5), {"new": arm([True] * 50), "old": arm([False] * 50)})
    assert (answer.verdict, answer.episodes, answer.is_final) == (None, 5, True)


def test_several_questions_share_alpha():
    finished = {"new": arm([True] * 50), "old": arm([False] * 50)}
    questions = [replace(BETTER, name=name) for name in "ab"]
    # Eight wins give 50.3, which is more than 2 / 0.05.
    assert [answer.episodes for answer in answers_of(questions, finished)] == [8, 8]


def test_at_the_end_holms_later_steps_need_less_but_not_before():
    finished = {"new": arm([True] * 50), "old": arm([False] * 50), "third": arm([True] * 43 + [False] * 7)}
    questions = [BETTER, replace(BETTER, name="late", jobs=("new", "third"), max_episodes=50)]
    first, late = answers_of(questions, finished)
    assert first.verdict is Verdict.BETTER
    assert not first.is_late
    # Seven wins give 26.8: too little for two questions, enough for the one that is left.
    assert (late.verdict, late.is_late, late.episodes) == (Verdict.BETTER, True, 50)
    still_going = answers_of([questions[0], replace(questions[1], max_episodes=60)], finished)
    assert still_going[1].verdict is None


def test_a_job_needs_the_longest_of_its_questions_and_all_of_them():
    finished = {"new": arm([True] * 50), "old": arm([False] * 50), "third": arm([True] * 50)}
    questions = [BETTER, replace(BETTER, name="b", jobs=("new", "third"), max_episodes=50)]
    answers = answers_of(questions, finished)
    assert [needed_episodes(job, answers) for job in ("new", "old", "third", "unasked")] == [50, 8, 50, None]
    open_answers = answers_of([questions[0], replace(questions[1], max_episodes=60)], finished)
    assert [needed_episodes(job, open_answers) for job in ("new", "old")] == [None, 8]


def test_two_equal_policies_are_told_apart_seldom_however_often_one_looks():
    verdicts = [the_answer(BETTER, arms(0.7, 0.7, seed=seed, number=300)).verdict for seed in range(100)]
    assert sum(verdict is not None for verdict in verdicts) <= 5


def test_a_start_that_is_played_again_is_not_bet_on_again():
    """Two saved starts, each played twenty times: seven wins would decide, and there are only two."""
    finished = {job: arm([job == "new"] * 40, lambda index: str(index % 2)) for job in ("new", "old")}
    answer = the_answer(BETTER, finished)
    assert (answer.verdict, answer.episodes, answer.repeated) == (None, 40, 38)
    assert answer.counts == PairCounts(both=0, only_first=2, only_second=0, neither=0)
    bar = Question(name="bar", jobs=("new",), max_episodes=500, at_least=0.5)
    assert the_answer(bar, finished).counts == RateCounts(successes=2, trials=2)


def test_the_first_episode_of_a_start_that_says_anything_is_the_one_that_is_bet_on():
    new = arm([None, True, True, False], lambda index: str(index % 2))
    answer = the_answer(BETTER, {"new": new, "old": arm([False] * 4, lambda index: str(index % 2))})
    assert answer.counts == PairCounts(both=0, only_first=2, only_second=0, neither=0)
    assert (answer.left_out, answer.repeated) == (1, 1)


@pytest.mark.parametrize("order", range(3))
def test_repeats_change_nothing_about_the_order_in_which_episodes_end(order):
    finished = {job: arm(each.success for each in own.values()) for job, own in arms(0.9, 0.4).items()}
    finished = {
        job: {index: replace(each, conditions=str(index // 3)) for index, each in own.items()}
        for job, own in finished.items()
    }
    whole, answering = the_answer(BETTER, finished), Answering(BETTER, num_questions=1)
    growing: dict[str, dict[int, FinishedEpisode]] = {"new": {}, "old": {}}
    ends = [(name, index) for name in growing for index in range(500)]
    random.Random(order).shuffle(ends)
    for name, index in ends:
        growing[name][index] = finished[name][index]
        answering.look(growing)
    assert answering.answer == whole
    assert whole.verdict is Verdict.BETTER
    assert whole.repeated > whole.episodes // 2


def began_alike(successes, *, went: Callable[[int], object]) -> dict[int, FinishedEpisode]:
    found = arm(successes)
    return {index: replace(each, start=5, went=went(index)) for index, each in found.items()}


def test_episodes_that_begin_and_go_alike_under_other_seeds_are_bet_on_once():
    finished = {job: began_alike([job == "new"] * 40, went=lambda _: "alike") for job in ("new", "old")}
    answer = the_answer(BETTER, finished)
    assert (answer.verdict, answer.repeated) == (None, 39)
    assert answer.counts == PairCounts(both=0, only_first=1, only_second=0, neither=0)


def test_as_soon_as_one_goes_otherwise_all_of_them_count():
    for differs in (3, 20):
        finished = {
            "new": began_alike([True] * 40, went=lambda index, at=differs: index == at),
            "old": began_alike([False] * 40, went=lambda _: "alike"),
        }
        answer = the_answer(BETTER, finished)
        assert (answer.verdict, answer.episodes) == (Verdict.BETTER, max(7, differs + 1))
        assert answer.counts == PairCounts(both=0, only_first=answer.episodes, only_second=0, neither=0)
        assert answer.repeated == 0
