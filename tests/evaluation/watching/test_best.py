import json
from dataclasses import replace

import pytest

from isaaclab_arena.evaluation.watching.best import best_of, promote, scores_of
from isaaclab_arena.evaluation.watching.ledger import Evaluated, Ledger
from isaaclab_arena.results.statistics import wilson_interval
from tests.evaluation.watching.points import point
from tests.evaluation.watching.trainings import ARCHIVE, save


def test_every_job_weighs_the_same_in_the_score():
    score = scores_of([point(50, 10, 10), point(50, 0, 90, job="push")])[50]
    assert (score.success_rate, score.scored) == (0.5, 100)
    assert score.interval == wilson_interval(10, 100)


def test_a_baseline_is_no_part_of_a_score():
    with_baseline = [point(50, 10, 20), point(50, 90, 90, job="scripted", is_baseline=True)]
    assert scores_of(with_baseline) == scores_of(with_baseline[:1])
    assert scores_of(with_baseline[1:]) == {}


def test_of_equal_checkpoints_the_earlier_is_the_best():
    best = best_of(scores_of([point(150, 90), point(50, 80), point(100, 90)]))
    assert best is not None
    assert best.step == 100
    assert best_of({}) is None


@pytest.fixture
def promoted(tmp_path):
    """Promotes a checkpoint with so many successes of 100, and returns where it lies."""
    save(tmp_path / "training", 50, 100, 150)

    def act(step: int, successes: int):
        path = str(tmp_path / "training" / f"model_{step}.pt")
        record = Evaluated(step=step, path=path, fingerprint="", is_done=True)
        score = scores_of([point(step, successes)])[step]
        return promote(tmp_path / "good", score, record, Ledger(tmp_path / "watch"), jobs=["reach"])

    return act


def test_a_promoted_checkpoint_is_copied_with_what_is_known_of_it(promoted, tmp_path):
    target = promoted(50, 95)
    assert target == tmp_path / "good" / "step_50.pt"
    assert target.read_bytes() == ARCHIVE
    told = json.loads((tmp_path / "good" / "promoted.json").read_text())
    assert (told["step"], told["name"], told["success_rate"]) == (50, "step_50.pt", 0.95)


def test_only_a_better_one_takes_its_place(promoted, tmp_path, caplog):
    promoted(50, 95)
    assert promoted(100, 95) is None
    assert promoted(50, 99) is None
    assert promoted(150, 96) == tmp_path / "good" / "step_150.pt"
    told = json.loads((tmp_path / "good" / "promoted.json").read_text())
    assert (told["step"], told["compared_with"], told["verdict"]) == (150, 50, None)
    assert "steps 50 and 150 cannot be compared" in caplog.text
    assert sorted(path.name for path in (tmp_path / "good").iterdir()) == ["promoted.json", "step_150.pt", "step_50.pt"]


def test_a_directory_is_promoted_whole(tmp_path):
    source = tmp_path / "checkpoint-7"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"weights")
    record = Evaluated(step=7, path=str(source), fingerprint="", is_done=True)
    score = replace(scores_of([point(7, 99)])[7])
    target = promote(tmp_path / "good", score, record, Ledger(tmp_path / "watch"), jobs=["reach"])
    assert target is not None
    assert (target / "model.safetensors").read_bytes() == b"weights"
