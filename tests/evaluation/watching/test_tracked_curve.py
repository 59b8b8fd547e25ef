from pathlib import Path

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.evaluation.watching.curve import scores_of
from isaaclab_arena.evaluation.watching.evaluator import score_again
from isaaclab_arena.evaluation.watching.watch import TrackedCurve
from isaaclab_arena.evaluation.watching.watcher import Ledger
from isaaclab_arena.tracking.trackers import TrackedRun
from tests.evaluation.watching.points import point, write_run_of_checkpoint
from tests.evaluation.watching.trainings import Evaluations, save
from tests.tracking.runs import NotingTracker


def test_each_job_is_a_series_over_the_steps_of_the_checkpoints_and_the_best_is_marked(tmp_path):
    ledger, told, runs = Ledger(tmp_path / "watch_go1"), NotingTracker(), []

    def open_tracker(name: str, run: TrackedRun) -> NotingTracker:
        runs.append((name, run))
        return told

    def play(checkpoint: Checkpoint, directory: Path) -> None:
        write_run_of_checkpoint(directory, checkpoint.step, {"go1": "sssf"}, moved=dict.fromkeys(range(4), 0.1))

    points = [point(step, successes, job=job) for step, successes in ((50, 90), (0, 10)) for job in ("go1", "best")]
    save(tmp_path / "training", 50)
    best = Checkpoint(step=50, path=tmp_path / "training" / "model_50.pt")
    write_run_of_checkpoint(ledger.run_directory(50), 50, {"go1": "ssss"})
    score_again(ledger, scores_of(points)[50], best, Evaluations(before=play), wait=lambda: None)
    TrackedCurve(["wandb"], ledger, Path("training"), open_tracker).tell(points)
    [(name, run)] = runs
    assert (name, run.name, [*run.series]) == ("wandb", "watch_go1", ["best", "go1"])
    assert (run.directory, run.settings) == (tmp_path / "watch_go1" / "logs", {"training": "training"})
    assert [(each.series, each.step) for each in told.checkpoints] == [
        ("best", 0), ("go1", 0), ("best", 50), ("best_", 50), ("go1", 50),
    ]  # fmt: skip
    rate = told.checkpoints[-1].values
    assert (rate["success_rate"], rate["episodes"]) == (0.9, 100)
    assert rate["success_low"] < 0.9 < rate["success_high"]
    assert told.checkpoints[3].values["fresh_success_rate"] == 0.75
