from isaaclab_arena.config.schema import Question, compared_groups


def question(*jobs: str) -> Question:
    return Question(name=" ".join(jobs), jobs=jobs, max_episodes=10)


def test_jobs_that_comparisons_connect_belong_together_and_a_bar_connects_nothing():
    asked = (question("a", "b"), question("c", "d"), question("x"), question("b", "e"))
    assert compared_groups(asked) == (frozenset("abe"), frozenset("cd"))


def test_a_comparison_joins_two_groups_that_were_apart():
    assert compared_groups((question("a", "b"), question("c", "d"), question("b", "c"))) == (frozenset("abcd"),)
