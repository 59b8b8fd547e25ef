from isaaclab_arena.config.schema import Question
from isaaclab_arena.evaluation.planning import home_index, jobs_taking_turns, round_size, rounds_of
from isaaclab_arena.interfaces.episode import count_episodes
from tests.evaluation.jobs import coin_job

JOBS = [coin_job(f"job{index}", index=index, num_envs=index + 1) for index in range(4)]
QUESTIONS = (
    Question(name="q", jobs=("job3", "job1"), max_episodes=10),
    Question(name="b", jobs=("job0",), max_episodes=9),
)


def test_compared_jobs_take_turns_and_go_where_the_first_of_them_goes():
    turns = jobs_taking_turns(JOBS, QUESTIONS)
    assert turns == {1: (1, 3), 3: (1, 3)}
    assert [home_index(index, turns) for index in range(4)] == [0, 1, 2, 1]


def test_a_round_has_an_episode_for_every_env_slot_of_the_ranks_that_share_it():
    assert round_size(JOBS[1:3], num_ranks=2) == 6


def test_rounds_go_by_the_index_so_that_an_arm_that_lags_behind_catches_up_first():
    rounds = rounds_of(((2, 5), (9, 14)), 4)
    assert rounds == {0: ((2, 4),), 1: ((4, 5),), 2: ((9, 12),), 3: ((12, 14),)}
    assert sum(map(count_episodes, rounds.values())) == 8
    assert rounds_of((), 4) == {}
    assert rounds_of(((0, 2), (3, 4)), 4) == {0: ((0, 2), (3, 4))}
