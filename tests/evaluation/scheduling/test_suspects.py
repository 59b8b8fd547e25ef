from isaaclab_arena.evaluation.claims import Death, PoisonedEpisode, Suspects

JOB, PIECE = 0, 3


def death(rank: int) -> Death:
    return Death(rank=rank, reason="its node has died")


def test_an_episode_is_poisoned_when_the_third_rank_dies_over_it_alone():
    suspects = Suspects()
    assert suspects.blame([(JOB, PIECE, 6), (JOB, PIECE, 7)], death(0)) is None
    assert suspects.blame([(JOB, PIECE, 7)], death(1)) is None
    poisoned = PoisonedEpisode(job_index=JOB, episode_index=7, deaths=(death(0), death(1), death(2)))
    assert suspects.blame([(JOB, PIECE, 7)], death(2)) == poisoned
    assert suspects.among(JOB, PIECE) == {6}


def test_no_episode_is_poisoned_as_long_as_another_one_may_have_done_it():
    suspects = Suspects()
    for rank in range(5):
        assert suspects.blame([(JOB, PIECE, 6), (JOB, PIECE, 7)], death(rank)) is None
    assert suspects.among(JOB, PIECE) == {6, 7}


def test_an_episode_that_ended_begins_with_a_clean_slate():
    suspects = Suspects()
    for rank in range(2):
        suspects.blame([(JOB, PIECE, 7)], death(rank))
    suspects.clear(JOB, PIECE, {6, 7})
    assert suspects.pieces(JOB) == frozenset()
    assert suspects.blame([(JOB, PIECE, 7)], death(2)) is None


def test_a_rank_that_played_nothing_makes_nothing_suspect():
    suspects = Suspects()
    assert suspects.blame([], death(0)) is None
    assert suspects.pieces(JOB) == frozenset()


def test_pieces_and_jobs_are_kept_apart():
    suspects = Suspects()
    suspects.blame([(0, 1, 4), (1, 2, 4)], death(0))
    assert (suspects.pieces(0), suspects.pieces(1), suspects.among(1, 1)) == ({1}, {2}, frozenset())
