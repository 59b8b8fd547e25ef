import shutil
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.watching.curve import Score, scores_of
from isaaclab_arena.evaluation.watching.evaluator import best_of_watch, score_again
from isaaclab_arena.evaluation.watching.watcher import Ledger, Outcome, Verdict
from isaaclab_arena.storage.run_plan import RunLock
from tests.evaluation.watching.points import point, write_run_of_checkpoint
from tests.evaluation.watching.trainings import FAILED, Evaluations, save

CHOSEN = scores_of([point(50, 90)])[50]


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    save(tmp_path / "training", 50)
    write_run_of_checkpoint(tmp_path / "watch" / "step_50", 50, {"reach": "ssss"})
    return Checkpoint(step=50, path=tmp_path / "training" / "model_50.pt")


def scoring(*outcomes: Outcome, num_moved: int = 4) -> Evaluations:
    def play(checkpoint, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        moved = dict.fromkeys(range(num_moved), 0.1)
        write_run_of_checkpoint(directory, checkpoint.step, {"reach": "sssf"}, moved=moved)

    return Evaluations(before=play, outcomes=outcomes)


def scored(tmp_path: Path, checkpoint: Checkpoint, evaluations: Evaluations, chosen: Score = CHOSEN, wait=None):
    return score_again(Ledger(tmp_path / "watch"), chosen, checkpoint, evaluations, wait=wait or (lambda: None))


def test_both_scores_are_remembered_and_nothing_is_scored_twice(tmp_path, checkpoint):
    evaluations = scoring()
    for _ in range(2):
        assert scored(tmp_path, checkpoint, evaluations).verdict is Verdict.DONE
    assert evaluations.asked == [50]
    best = best_of_watch(tmp_path / "watch", CHOSEN)
    assert best is not None
    assert (best.chosen, best.fresh.success_rate, best.fresh.scored) == (CHOSEN, 0.75, 4)


@pytest.mark.parametrize(
    ("num_moved", "in_words"),
    [
        (4, "in other episodes"),
        (1, "in other episodes, 3 of them from the same initial conditions"),
        (0, "once more, from the same initial conditions"),
    ],
)
def test_episodes_that_begin_as_those_that_it_was_chosen_by_are_not_called_others(
    tmp_path, checkpoint, num_moved, in_words
):
    scored(tmp_path, checkpoint, scoring(num_moved=num_moved))
    best = best_of_watch(tmp_path / "watch", CHOSEN)
    assert best is not None
    assert (best.alike, best.in_words) == (4 - num_moved, in_words)


def test_a_score_of_an_earlier_best_is_not_that_of_this_one(tmp_path, checkpoint):
    scored(tmp_path, checkpoint, scoring())
    assert best_of_watch(tmp_path / "watch", scores_of([point(50, 91)])[50]) is None


def test_a_run_whose_watcher_has_died_is_waited_for_and_then_gone_on_with(tmp_path, checkpoint):
    run = tmp_path / "watch" / "best_step_50"
    run.mkdir()
    at_work = RunLock(run).hold_alone()
    evaluations = scoring()

    def run_ends() -> None:
        assert evaluations.asked == []
        at_work.release()

    assert scored(tmp_path, checkpoint, evaluations, wait=run_ends).verdict is Verdict.DONE
    assert evaluations.asked == [50]


@pytest.mark.parametrize("outcome", [FAILED, Outcome(verdict=Verdict.INTERRUPTED)], ids=["failed", "interrupted"])
def test_what_did_not_end_is_no_score(tmp_path, checkpoint, outcome):
    assert scored(tmp_path, checkpoint, scoring(outcome)) == outcome
    assert best_of_watch(tmp_path / "watch", CHOSEN) is None


def test_a_checkpoint_that_is_gone_is_told(tmp_path, checkpoint):
    checkpoint.path.unlink()
    assert scored(tmp_path, checkpoint, scoring()).reason == f"{checkpoint.path} is gone"
