import multiprocessing
import threading

import pytest

from isaaclab_arena.errors import StorageError
from isaaclab_arena.evaluation.scheduling.claims import Claim, ClaimFolder
from isaaclab_arena.evaluation.scheduling.selection import Measured

MEASURED = Measured(episodes=3, env_steps=300, seconds=1.5)


def folder_of(tmp_path, rank: int, run_id: str = "run") -> ClaimFolder:
    return ClaimFolder(tmp_path / "claims", rank=rank, run_id=run_id)


def made(claim: Claim | None) -> Claim:
    assert claim is not None
    return claim


def claim_all(folder: ClaimFolder, pieces: list[str]) -> list[str]:
    return [piece for piece in pieces if folder.claim(piece) is not None]


def claim_all_in_a_process(path, rank: int, pieces: list[str], start, answers) -> None:
    folder = ClaimFolder(path, rank=rank, run_id="run")
    start.wait()
    answers.put(claim_all(folder, pieces))


def test_a_piece_has_one_owner_and_the_others_are_told_who(tmp_path):
    first, second = folder_of(tmp_path, 0), folder_of(tmp_path, 1)
    claim = made(first.claim("j0_p0"))
    assert claim == Claim(piece="j0_p0", generation=1)
    assert second.claim("j0_p0") is None
    assert second.owner(claim) == 0
    assert first.holds(claim)


def test_threads_that_race_for_pieces_get_each_of_them_once(tmp_path):
    pieces = [f"p{number}" for number in range(300)]
    start, won = threading.Barrier(3), [[], [], []]

    def race(rank: int) -> None:
        folder = folder_of(tmp_path, rank)
        start.wait()
        won[rank] = claim_all(folder, pieces)

    threads = [threading.Thread(target=race, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(piece for pieces_won in won for piece in pieces_won) == sorted(pieces)


def test_processes_that_race_for_pieces_get_each_of_them_once(tmp_path):
    pieces = [f"p{number}" for number in range(300)]
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=claim_all_in_a_process, args=(tmp_path / "claims", rank, pieces, start, answers))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    won = answers.get(timeout=60) + answers.get(timeout=60)
    for process in processes:
        process.join(timeout=60)
    assert sorted(won) == sorted(pieces)


def test_only_one_rank_takes_a_piece_over_and_its_owner_sees_that(tmp_path):
    owner, second, third = (folder_of(tmp_path, rank) for rank in range(3))
    lost = made(owner.claim("p"))
    taken = made(second.claim("p", generation=lost.generation + 1))
    assert third.claim("p", generation=lost.generation + 1) is None
    assert not owner.holds(lost)
    assert second.holds(taken)
    assert third.owner(taken) == 1


def test_news_are_told_once(tmp_path):
    mine, other = folder_of(tmp_path, 0), folder_of(tmp_path, 1)
    claim = made(other.claim("p1"))
    other.mark_done(claim, MEASURED)
    other.mark_failed("j7")
    news = mine.news()
    assert news.claims == (claim,)
    assert news.done == ("p1",)
    assert news.failed == ("j7",)
    assert mine.measured("p1") == MEASURED
    taken_over = made(mine.claim("p1", generation=2))
    assert mine.news().claims == (taken_over,)
    assert mine.news().claims == ()


def test_files_of_others_in_the_folder_are_no_claims(tmp_path):
    folder = folder_of(tmp_path, 0)
    for name in (".nfs0001", "p1", "p1.g0", "p1.g1.tmp", "notes.txt", "p1.g-1"):
        (tmp_path / "claims" / name).write_text("{}")
    news = folder.news()
    assert (news.claims, news.done, news.failed) == ((), (), ())


@pytest.mark.parametrize("content", [b"", b'{"rank"', b"[]", b'{"rank": "one", "run_id": "run"}', b"\xff"])
def test_a_claim_whose_maker_died_over_it_has_no_owner(tmp_path, content):
    folder = folder_of(tmp_path, 0)
    claim = made(folder.claim("p1"))
    (tmp_path / "claims" / "p1.g1").write_bytes(content)
    assert folder.owner(claim) is None


def test_a_claim_of_another_start_has_no_owner(tmp_path):
    claim = made(folder_of(tmp_path, 0, run_id="yesterday").claim("p1"))
    assert folder_of(tmp_path, 1).owner(claim) is None


@pytest.mark.parametrize("content", [b"", b'{"episodes": 1}', b'{"episodes": "x", "env_steps": 1, "seconds": 1}'])
def test_a_torn_note_that_a_piece_is_done_measures_nothing(tmp_path, content):
    folder = folder_of(tmp_path, 0)
    (tmp_path / "claims" / "p1.done").write_bytes(content)
    assert folder.news().done == ("p1",)
    assert folder.measured("p1") is None


def test_saying_twice_that_a_piece_is_done_keeps_what_was_said_first(tmp_path):
    folder = folder_of(tmp_path, 0)
    claim = made(folder.claim("p1"))
    folder.mark_done(claim, MEASURED)
    folder.mark_done(claim, Measured(episodes=9, env_steps=9, seconds=9.0))
    assert folder.measured("p1") == MEASURED


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "claims").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot make .*claims"):
        folder_of(tmp_path, 0)
