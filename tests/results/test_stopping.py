"""Rules that end a job when its answer is known."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import beta

from isaaclab_arena.config.schema import Question
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.planning import AnswerWatch
from isaaclab_arena.interfaces.episode import POLICY_LOST
from isaaclab_arena.results.merge import merge_results
from isaaclab_arena.results.rows import JobEvidence, JobResultStatus
from isaaclab_arena.results.stopping import (
    Answer,
    Answering,
    BlockCounts,
    PairCounts,
    RateCounts,
    Verdict,
    answers_of,
    anytime_interval,
    decided,
    error_streak,
    in_words,
    log_e_value_of_blocks,
    log_e_value_of_difference,
    log_e_value_of_equality,
    log_e_value_of_rate,
    needed_episodes,
    nothing_but_errors,
)
from isaaclab_arena.storage.commits import CommitLine, CommitLog
from isaaclab_arena.storage.ledger import ReportedStatus, write_attempt
from tests.results.evidence import (
    attempt,
    commit_lines,
    job_row,
    planned,
    report,
    summary,
    write_lines,
    write_plan,
    write_report,
)

BETTER = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=500)


def arm(successes, conditions: Callable[[int], str] = str) -> dict[int, CommitLine]:
    lines = commit_lines("".join({True: "s", False: "f", None: "e"}[success] for success in successes))
    return {at: replace(line, conditions={"cube.at": conditions(at)}) for at, line in enumerate(lines)}


def arms(new_rate: float, old_rate: float, *, seed: int = 0, number: int = 500):
    generator = np.random.default_rng(seed)
    drawn = generator.random((2, number))
    return {"new": arm((drawn[0] < new_rate).tolist()), "old": arm((drawn[1] < old_rate).tolist())}


def the_answer(question, finished):
    return answers_of([question], finished)[0]


WON = {"new": arm([True] * 50), "old": arm([False] * 50)}


def test_the_first_prefix_with_enough_evidence_decides():
    answer = the_answer(BETTER, WON)
    # Eight wins of eight give an e-value of 50.3, seven give 26.8, six 14.7, and 20 are needed.
    assert (answer.verdict, answer.episodes) == (Verdict.BETTER, 7)
    assert answer.counts == PairCounts(both=0, only_first=7, only_second=0, neither=0)
    assert the_answer(replace(BETTER, jobs=("old", "new")), WON).verdict is Verdict.WORSE
    # Two questions share alpha: 40 are needed.
    assert [each.episodes for each in answers_of([replace(BETTER, name=name) for name in "ab"], WON)] == [8, 8]


def test_an_episode_that_has_not_finished_holds_up_those_after_it_and_the_most_episodes_end_it():
    gap = {**WON, "old": {index: line for index, line in WON["old"].items() if index != 3}}
    answer = the_answer(BETTER, gap)
    assert (answer.verdict, answer.episodes) == (None, 3)
    answer = the_answer(replace(BETTER, max_episodes=5), WON)
    assert (answer.verdict, answer.episodes, answer.is_final) == (None, 5, True)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("order", range(3))
def test_the_order_in_which_episodes_end_changes_nothing(order, repeats):
    rates = (0.9, 0.6) if repeats == 1 else (0.9, 0.4)
    finished = {
        job: {index: replace(each, conditions={"cube.at": index // repeats}) for index, each in own.items()}
        for job, own in arms(*rates).items()
    }
    whole, answering = the_answer(BETTER, finished), Answering(BETTER, num_questions=1)
    growing: dict[str, dict[int, CommitLine]] = {"new": {}, "old": {}}
    ends = [(name, index) for name in growing for index in range(500)]
    random.Random(order).shuffle(ends)
    for name, index in ends:
        growing[name][index] = finished[name][index]
        answering.look(growing)
    assert answering.answer == whole
    assert whole.verdict is Verdict.BETTER
    assert whole.repeated == whole.episodes - math.ceil(whole.episodes / repeats)


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
        interval = anytime_interval(answer.counts)
        assert interval.low > 0.8 if verdict is Verdict.REACHED else interval.high < 0.8


def test_at_the_end_holms_later_steps_need_less_but_not_before():
    finished = {**WON, "third": arm([True] * 43 + [False] * 7)}
    questions = [BETTER, replace(BETTER, name="late", jobs=("new", "third"), max_episodes=50)]
    first, late = answers_of(questions, finished)
    assert (first.verdict, first.is_late) == (Verdict.BETTER, False)
    # Seven wins give 26.8: too little for two questions, enough for the one that is left.
    assert (late.verdict, late.is_late, late.episodes) == (Verdict.BETTER, True, 50)
    # Eight wins give 50: enough for the two that are left, and then seven are for the last one.
    more = [*questions, replace(questions[1], name="later", jobs=("new", "fourth"))]
    finished["fourth"] = arm([True] * 42 + [False] * 8)
    assert [each.is_late for each in answers_of(more, finished)] == [False, True, True]
    still_going = answers_of([questions[0], replace(questions[1], max_episodes=60)], finished)
    assert still_going[1].verdict is None


def test_a_job_needs_the_longest_of_its_questions_and_all_of_them():
    finished = {**WON, "third": arm([True] * 50)}
    questions = [BETTER, replace(BETTER, name="b", jobs=("new", "third"), max_episodes=50)]
    answers = answers_of(questions, finished)
    assert [needed_episodes(job, answers) for job in ("new", "old", "third", "unasked")] == [50, 8, 50, None]
    open_answers = answers_of([questions[0], replace(questions[1], max_episodes=60)], finished)
    assert [needed_episodes(job, open_answers) for job in ("new", "old")] == [None, 8]


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


@pytest.mark.parametrize(
    ("differs", "verdict", "episodes", "repeated"),
    [(None, None, 40, 39), (3, Verdict.BETTER, 7, 0), (20, Verdict.BETTER, 21, 0)],
)
def test_episodes_that_begin_and_go_alike_are_bet_on_once_until_one_goes_otherwise(
    differs, verdict, episodes, repeated
):
    finished = {job: arm([job == "new"] * 40) for job in ("new", "old")}
    for job, own in finished.items():
        for index, each in own.items():
            same = {"start": 5, "length": 10, "episode_return": 0.0}
            own[index] = replace(each, **same, metrics={"went": job == "new" and index == differs})
    answer = the_answer(BETTER, finished)
    assert (answer.verdict, answer.episodes, answer.repeated) == (verdict, episodes, repeated)
    assert answer.counts == PairCounts(both=0, only_first=episodes - repeated, only_second=0, neither=0)


def wealth(chance: float, wins: int, losses: int, rate: float) -> float:
    """Jeffreys' prior times what the outcomes are worth against a coin of some rate."""
    prior = chance**-0.5 * (1.0 - chance) ** -0.5 / beta(0.5, 0.5)
    return prior * (chance / rate) ** wins * ((1.0 - chance) / (1.0 - rate)) ** losses


@pytest.mark.parametrize(("wins", "losses"), [(1, 0), (3, 1), (9, 2), (2, 9)])
def test_an_e_value_is_the_wealth_of_a_mixture_of_bets(wins, losses):
    whole, _ = quad(wealth, 0.0, 1.0, args=(wins, losses, 0.5))
    counts = PairCounts(both=3, only_first=wins, only_second=losses, neither=1)
    assert log_e_value_of_equality(counts) == pytest.approx(math.log(whole), abs=1e-6)


def test_a_fair_game_makes_nobody_rich_however_often_one_looks():
    generator, false_stops = np.random.default_rng(1), 0
    for stream in generator.integers(0, 2, size=(400, 200)):
        wins = np.cumsum(stream).tolist()
        looks = [PairCounts(both=3, only_first=won, only_second=at - won, neither=1) for at, won in enumerate(wins, 1)]
        false_stops += any(log_e_value_of_equality(each) >= math.log(20.0) for each in looks)
    assert false_stops / 400 <= 0.05


def test_at_the_ends_of_the_interval_the_evidence_is_just_enough():
    interval = anytime_interval(RateCounts(successes=18, trials=20))
    for rate in (interval.low, interval.high):
        whole, _ = quad(wealth, 0.0, 1.0, args=(18, 2, rate))
        assert whole == pytest.approx(20.0, rel=1e-4)
    assert (
        anytime_interval(RateCounts(successes=0, trials=0)).low,
        anytime_interval(RateCounts(successes=0, trials=0)).high,
    ) == (0.0, 1.0)
    assert (
        anytime_interval(RateCounts(successes=0, trials=20)).low,
        anytime_interval(RateCounts(successes=20, trials=20)).high,
    ) == (0.0, 1.0)
    assert log_e_value_of_rate(RateCounts(successes=1, trials=1), 0.0) == math.inf
    assert log_e_value_of_rate(RateCounts(successes=0, trials=0), 0.0) == 0.0


SUITE = Question(name="suites", jobs=("new-a", "new-b", "old-a", "old-b"), arms=("new", "old"), max_episodes=50)
SUITE = replace(SUITE, are_apart=True)
RACE = Question(name="race", jobs=("good", "fair", "bad"), selects_best=True, max_episodes=200)


def played(rates: dict[str, float], *, seed: int = 0, number: int = 200) -> dict[str, dict[int, CommitLine]]:
    """Return episodes in which the same draw decides for all jobs."""
    drawn = np.random.default_rng(seed).random(number)
    return {job: arm((drawn < rate).tolist()) for job, rate in rates.items()}


@pytest.mark.parametrize(("wins", "losses"), [(1, 0), (3, 1), (9, 2), (2, 9), (0, 0)])
def test_blocks_of_one_task_are_worth_as_much_as_its_episodes(wins, losses):
    pairs = PairCounts(both=1, only_first=wins, only_second=losses, neither=4)
    blocks = BlockCounts(tasks=1, is_paired=True, sums=((-1, losses), (0, 5), (1, wins)))
    assert log_e_value_of_blocks(blocks, 0.0) == pytest.approx(log_e_value_of_equality(pairs), abs=1e-9)
    alone = BlockCounts(tasks=1, is_paired=False, sums=((0, losses), (1, wins)))
    rates = RateCounts(successes=wins, trials=wins + losses)
    assert log_e_value_of_blocks(alone, 0.3) == pytest.approx(log_e_value_of_rate(rates, 0.3), abs=1e-9)
    many, few = anytime_interval(alone), anytime_interval(rates)
    assert (many.low, many.high) == pytest.approx((few.low, few.high))


@pytest.mark.parametrize("is_shared", [False, True])
def test_tasks_with_unequal_rates_seldom_differ_by_luck_even_if_a_seed_decides_for_all(is_shared):
    """The mean rates are equal, those of the tasks differ by up to 100 points."""
    generator, rates = np.random.default_rng(2), np.array([[0.0, 0.2, 0.5, 1.0], [0.9, 0.4, 0.4, 0.0]])
    false_stops = 0
    for _ in range(100):
        success = generator.random((30, 1, 1 if is_shared else 4)) < rates
        ahead = (success[:, 0].astype(int) - success[:, 1]).tolist()
        blocks = BlockCounts(tasks=4, is_paired=True)
        looks = (blocks := blocks.with_block(each, apart=not is_shared) for each in ahead)
        false_stops += any(log_e_value_of_blocks(each, 0.0) >= math.log(20.0) for each in looks)
    assert false_stops / 100 <= 0.05


def test_suites_are_decided_by_the_blocks_that_all_their_tasks_have_finished():
    rates = {"new-a": 0.9, "new-b": 0.7, "old-a": 0.4, "old-b": 0.6}
    finished = played(rates)
    answer = the_answer(SUITE, finished)
    assert answer.verdict is Verdict.BETTER
    assert isinstance(answer.counts, BlockCounts)
    # Each task has conditions of its own, so each of its episodes is a bet.
    assert sum(number for _, number in answer.counts.sums) == 2 * answer.episodes < 100
    # If tasks share a seed, or conditions in one environment, they may depend on each other: a block is one bet.
    seeded = {job: {at: replace(line, conditions={}) for at, line in own.items()} for job, own in finished.items()}
    for question, lines in ((SUITE, seeded), (replace(SUITE, are_apart=False), finished)):
        alike = the_answer(question, lines)
        assert isinstance(alike.counts, BlockCounts)
        assert sum(number for _, number in alike.counts.sums) == alike.episodes >= answer.episodes
    assert "new is better than old over 2 tasks" in in_words(answer)
    assert needed_episodes("old-b", [answer]) == answer.episodes
    # A block lacks an episode of one task, so it decides nothing, and an error leaves out the whole block.
    gap = {**finished, "old-b": {index: line for index, line in finished["old-b"].items() if index != 3}}
    assert the_answer(SUITE, gap).episodes == 3
    failed = {**finished, "old-b": arm([None, *[False] * 199])}
    assert (the_answer(SUITE, failed).left_out, the_answer(SUITE, failed).verdict) == (1, Verdict.BETTER)
    # Conditions of one task that were bet on before leave out the block, too.
    repeated = {job: arm([job < "o"] * 50, lambda index: str(index % 2)) for job in ("new-b", "old-b")}
    assert the_answer(SUITE, {**finished, **repeated}).repeated == 48


def test_a_margin_and_a_bar_hold_for_the_mean_of_tasks():
    finished = played({"new-a": 0.9, "new-b": 0.6, "old-a": 0.9, "old-b": 0.55})
    margin = the_answer(replace(SUITE, margin=0.3, max_episodes=200), finished)
    assert (margin.verdict, in_words(margin).count("over 2 tasks")) == (Verdict.NO_WORSE, 1)
    bar = Question(name="bar", jobs=("new-a", "new-b"), arms=("new",), max_episodes=200, at_least=0.5)
    assert the_answer(bar, finished).verdict is Verdict.REACHED
    assert the_answer(replace(bar, at_least=0.95), finished).verdict is Verdict.MISSED


@pytest.mark.parametrize("arms", [(), ("new",)])
def test_an_interval_ends_a_bar_at_the_first_episode_that_makes_it_narrow_enough(arms):
    jobs = ("new-a", "new-b") if arms else ("new-a",)
    question = Question(name="width", jobs=jobs, arms=arms, max_episodes=1000, half_width=0.1)
    finished = played({"new-a": 0.9, "new-b": 0.6}, number=1000)
    answer = the_answer(question, finished)
    assert (answer.verdict, answer.episodes < 300) == (Verdict.NARROW, True)
    earlier = the_answer(replace(question, max_episodes=answer.episodes - 1), finished)
    widths = []
    for each in (answer, earlier):
        assert not isinstance(each.counts, PairCounts)
        interval = anytime_interval(each.counts)
        widths.append(interval.high - interval.low)
        assert f"succeeds in {100 * interval.low:.1f} to {100 * interval.high:.1f} %" in in_words(each)
    assert widths[0] <= 0.2 < widths[1]
    assert earlier.verdict is None


def test_an_interval_holds_the_rate_although_its_own_width_ended_the_run():
    generator, held, question = np.random.default_rng(3), 0, Question(name="w", jobs=("a",), max_episodes=10**6)
    narrow = Answer(
        question=replace(question, half_width=0.15), episodes=0, counts=RateCounts(successes=0, trials=0),
        log_e_value=0.0, needed_log_e_value=math.log(20.0),
    )  # fmt: skip
    for _ in range(100):
        wins = np.cumsum(generator.random(400) < 0.8).tolist()
        looks = (decided(replace(narrow, counts=RateCounts(successes=w, trials=n))) for n, w in enumerate(wins, 1))
        counts = next(each.counts for each in looks if each.verdict is Verdict.NARROW)
        assert isinstance(counts, RateCounts)
        interval = anytime_interval(counts)
        held += interval.low <= 0.8 <= interval.high
    assert held / 100 >= 0.95


@pytest.mark.parametrize("order", range(3))
def test_a_race_leaves_out_a_job_as_soon_as_another_is_better_and_names_the_last_one(order):
    finished = played({"good": 0.9, "fair": 0.6, "bad": 0.1}, seed=order)
    answer = the_answer(RACE, finished)
    assert (answer.verdict, answer.left) == (Verdict.BEST, ("good",))
    (first, early), (second, late) = answer.out
    assert (first, second, early < late == answer.episodes < 100) == ("bad", "fair", True)
    assert [needed_episodes(job, [answer]) for job in RACE.jobs] == [late, late, early]
    played_episodes = 2 * late + early
    assert in_words(answer) == (
        f"race: decided after {late} of 200, with {played_episodes} of 600 episodes in all: good is the best of 3"
    )
    # The job that is out needs no later episode, and the order in which episodes end changes nothing.
    growing, answering = {job: dict[int, CommitLine]() for job in RACE.jobs}, Answering(RACE, num_questions=1)
    ends = [(job, index) for job in RACE.jobs for index in range(early if job == "bad" else 200)]
    random.Random(order).shuffle(ends)
    for job, index in ends:
        growing[job][index] = finished[job][index]
        answering.look(growing)
    assert answering.answer == answer


def test_a_race_of_equals_names_those_that_may_be_the_best_and_an_error_stops_no_other():
    finished = played({"good": 0.8, "fair": 0.8, "bad": 0.1})
    answer = the_answer(RACE, {**finished, "fair": {**finished["fair"], 3: arm([None] * 4)[3]}})
    assert (answer.verdict, answer.left, answer.left_out) == (None, ("good", "fair"), 1)
    assert in_words(answer).endswith("the best is one of good, fair")
    assert in_words(answer).startswith("race: undecided after 200 of 200")


def test_races_and_intervals_keep_their_share_of_alpha_when_tests_are_decided_late():
    finished = {**WON, "third": arm([True] * 43 + [False] * 7)}
    late = replace(BETTER, name="late", jobs=("new", "third"), max_episodes=50)
    narrow = Question(name="narrow", jobs=("new",), max_episodes=5, half_width=0.1)
    assert [each.verdict for each in answers_of([late], finished)] == [Verdict.BETTER]
    assert [each.verdict for each in answers_of([late, narrow], finished)] == [None, None]


def with_errors(*errors: str) -> list[CommitLine]:
    return [replace(line, error=error) for line, error in zip(commit_lines("e" * len(errors)), errors, strict=True)]


LOST = [replace(line, termination=POLICY_LOST) for line in commit_lines("eee")]


@pytest.mark.parametrize(
    ("lines", "most", "ends"),
    [
        (commit_lines("seee"), 3, "3 episodes in"),
        (commit_lines("eesees"), 3, None),
        (commit_lines("ee-e"), 3, None),
        (commit_lines("eeee"), 5, None),
        (commit_lines("se"), 1, "1 episodes in"),
        (commit_lines("eeee"), 0, None),
        ([], 3, None),
        # Numbers make no other error, and words do.
        (with_errors("took 3.1 s", "took 12.7 s", "took 0.5 s"), 3, ": took 0.5 s"),
        (with_errors("no renderer", "no disk", "no renderer"), 2, None),
        # Env slots that lost their policy together are no row.
        (LOST, 2, None),
    ],
)
def test_equal_errors_in_a_row_by_index_end_a_job(lines, most, ends):
    found = error_streak(lines, most)
    assert found is None if ends is None else ends in str(found)


def test_a_job_of_nothing_but_errors_names_the_commonest():
    several = nothing_but_errors(with_errors("no disk", "no renderer 7", "no renderer 8", "no renderer 9"))
    assert str(several).startswith("all 4 episodes ended")
    assert str(several).endswith(": no renderer 7")
    assert str(nothing_but_errors(commit_lines("e"))).endswith(": the physics diverged")
    assert nothing_but_errors(commit_lines("eese")) is nothing_but_errors([]) is None


@pytest.mark.parametrize(
    ("outcomes", "job", "status"),
    [
        ("e" * 10, {}, JobResultStatus.FAILED),
        ("e" * 9, {}, JobResultStatus.INTERRUPTED),
        ("e" * 9 + "f", {}, JobResultStatus.COMPLETED),
        ("", {"num_steps": 9, "num_episodes": None}, JobResultStatus.COMPLETED),
    ],
)
def test_a_job_of_nothing_but_errors_has_failed_once_all_of_them_are_there(outcomes, job, status):
    evidence = JobEvidence(job=planned(**job), log=CommitLog(lines=tuple(commit_lines(outcomes))), reports=[report()])
    assert evidence.status is status
    if status is JobResultStatus.FAILED:
        assert job_row(evidence)["error"] == nothing_but_errors(evidence.log.lines)
        # An exception of a rank is named before the errors of episodes.
        raised = report(status=ReportedStatus.FAILED, error="ValueError: no", traceback_file="lift/traceback.txt")
        assert job_row(replace(evidence, reports=[raised]))["error"] == "ValueError: no"


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 0, "sseeeeesssss")],
        [(0, 0, "sseee"), (1, 5, "eesssss")],
        [(0, 0, "sse"), (1, 3, "ee"), (2, 5, "ee"), (0, 7, "sssss")],
        [(1, 2, "eeeee")],
    ],
    ids=["one rank", "split", "pieces", "nothing else"],
)
def test_the_same_row_fails_a_job_whichever_ranks_played_it(tmp_path, parts):
    """Of each part its rank, its first episode, and how they ended."""
    write_plan(tmp_path, planned(num_episodes=12), world_size=3)
    write_attempt(tmp_path, attempt(run_id="run", max_equal_errors=5))
    for rank, first, outcomes in parts:
        write_lines(tmp_path, commit_lines(outcomes, rank=rank, first=first))
        write_report(tmp_path, report(rank=rank, num_episodes=12))
    merged = merge_results(tmp_path)
    (job,) = merged.jobs.to_dict("records")
    assert (job["status"], merged.complete) == ("failed", False)
    assert job["error"].startswith("5 episodes in")
    assert f": {job['error']} (resume with --retry_errors" in summary(tmp_path, 200)


def watching(directory, *questions: Question, most: int = 0, suspects: int = 0, **said) -> AnswerWatch:
    """Watch a run, one of whose ranks has seen an error."""
    watch = AnswerWatch(directory, questions, max_equal_errors=most, **said)
    watch.suspects["lift"] += suspects
    return watch


def test_a_job_is_looked_at_where_it_has_errors_or_before_it_begins(tmp_path):
    write_lines(tmp_path, commit_lines("eeee"))
    watch = watching(tmp_path, most=2)
    assert not watch.is_over("lift", now=True)
    assert not watch.fails("lift", 4)
    assert watching(tmp_path, most=4).checked_is_over("lift")
    assert not watching(tmp_path, most=4, runs_again=lambda _: True).checked_is_over("lift")
    watch = watching(tmp_path, suspects=1)
    assert [watch.fails("lift", number) for number in (5, 4, None)] == [False, True, True]


ASKED = Question(name="new-vs-old", jobs=("new", "old"), max_episodes=20)


def write(directory, new: str, old: str, *, rank: int = 0, first: int = 0) -> None:
    write_lines(directory, commit_lines(new, job="new", rank=rank, first=first))
    write_lines(directory, commit_lines(old, job="old", rank=rank, first=first))


def test_what_several_ranks_commit_is_put_together_now_and_then_unless_asked_for_now(tmp_path):
    now_s = [0.0]
    watch = watching(tmp_path, ASKED, clock=lambda: now_s[0])
    assert not watch.is_over("new")
    write(tmp_path, "sss", "fff", rank=1, first=4)
    assert watch.look(now=True)[0].episodes == 0
    write(tmp_path, "ssss", "ffff")
    assert not watch.is_over("new")
    now_s[0] = 1.0
    assert [watch.is_over(job) for job in ("new", "old", "other")] == [True, True, False]
    (answer,) = watch.look(now=True)
    assert (answer.verdict, answer.episodes) == (Verdict.BETTER, 7)


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    watch = watching(tmp_path, ASKED)
    write(tmp_path, "s" * 7, "f" * 6)
    path = write_lines(tmp_path, commit_lines("f", job="old", rank=1, first=6))
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    assert not watch.is_over("new", now=True)
    path.write_bytes(whole)
    assert watch.is_over("new", now=True)


@pytest.mark.parametrize("runs_again", [False, True])
def test_an_error_that_runs_again_does_not_count_until_it_has(tmp_path, runs_again):
    watch = watching(tmp_path, ASKED, runs_again=lambda line: runs_again and line.success is None)
    write(tmp_path, "sesssssss", "fffffffff")
    assert watch.look(now=True)[0].episodes == (1 if runs_again else 8)
    write_lines(tmp_path, [replace(line, attempt=2) for line in commit_lines("s", job="new", rank=1, first=1)])
    assert watch.look(now=True)[0].episodes == 7


def test_a_job_that_does_not_measure_success_is_told_before_its_next_episode(tmp_path):
    write(tmp_path, "uuu", "fff")
    watch = watching(tmp_path, ASKED)
    with pytest.raises(ConfigError, match="'new'"):
        watch.checked_is_over("new")
    assert not watch.is_over("new")
    assert not watching(tmp_path).checked_is_over("new")
