import signal
from contextlib import closing
from pathlib import Path

import pytest

from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.training.training_loop import ClosedLoopEvaluation, Progress, Schedule, run_loop


class CountingTraining:
    """Makes steps that learn nothing, and writes down what it is told to do; may leave a file in one of them."""

    evaluation_measure = "success"

    def __init__(self, done: list[str], num_steps: int, leaves: tuple[int | None, Path]) -> None:
        self.num_steps = num_steps
        self._done = done
        self._leaves_in, self._left = leaves

    def step(self, progress: Progress) -> None:
        self.num_steps += 1
        if self.num_steps == self._leaves_in:
            self._left.touch()

    def save(self) -> None:
        self._done.append(f"save {self.num_steps}")

    def checkpoint(self, num_steps: int) -> Path:
        return Path(f"checkpoint-{num_steps}")

    def note_evaluation(
        self, evaluation: ClosedLoopEvaluation, progress: Progress, *, exit_code: int, evaluation_s: float
    ) -> None:
        self._done.append(f"note {self.num_steps}")
        progress.write(self.num_steps, {"success_rate": 1.0})


class PretendEvaluation(ClosedLoopEvaluation):
    """Evaluates nothing, and writes down what it is asked for."""

    def __init__(self, done: list[str], exit_code: int, complete: int) -> None:
        self._done, self._exit_code, self._complete = done, exit_code, complete

    def is_complete(self, num_steps: int) -> bool:
        return num_steps == self._complete

    def run(self, checkpoint: Path, num_steps: int) -> int:
        self._done.append(f"evaluate {checkpoint.name}")
        return self._exit_code


def train(
    tmp_path: Path,
    schedule: Schedule,
    *,
    from_step: int = 0,
    is_told_to_stop: bool = False,
    evaluates: bool = True,
    exit_code: int = 0,
    complete: int = -1,
    stop_in: int | None = None,
) -> tuple[int, list[str]]:
    """Return the exit code of a training, which may find a file that ends it, and what was done meanwhile."""
    done: list[str] = []
    evaluation = PretendEvaluation(done, exit_code, complete) if evaluates else None
    interruption = Interruption()
    if is_told_to_stop:
        interruption.receive(signal.SIGTERM)
    with closing(Progress(tmp_path, is_writer=True, after_step=from_step)) as progress:
        stop_file = tmp_path / "stop"
        training = CountingTraining(done, from_step, (stop_in, stop_file))
        told = {"evaluation": evaluation, "progress": progress, "interruption": interruption, "stop_file": stop_file}
        return run_loop(training, schedule, **told), done


SCHEDULE = Schedule(max_steps=5, save_every=2, evaluate_every=4)
WITHOUT_AN_INTERVAL = Schedule(max_steps=3, save_every=3, evaluate_every=None)
ALL_DONE = ["save 4", "evaluate checkpoint-4", "note 4", "save 5", "evaluate checkpoint-5", "note 5"]


@pytest.mark.parametrize(
    ("schedule", "given", "code", "done"),
    [
        (SCHEDULE, {}, 0, ["save 2", *ALL_DONE]),
        (WITHOUT_AN_INTERVAL, {}, 0, ["save 3", "evaluate checkpoint-3", "note 3"]),
        # A signal ends training after the step, and is too late in the last one.
        (SCHEDULE, {"is_told_to_stop": True}, 143, ["save 1"]),
        (SCHEDULE, {"is_told_to_stop": True, "from_step": 4, "evaluates": False}, 0, ["save 5"]),
        # An evaluation that a signal ends is made up for later, and one whose jobs fail is noted.
        (SCHEDULE, {"exit_code": 130}, 130, ["save 2", "save 4", "evaluate checkpoint-4"]),
        (SCHEDULE, {"from_step": 4}, 0, ALL_DONE[1:]),
        (SCHEDULE, {"exit_code": 1}, 0, ["save 2", *ALL_DONE]),
        (SCHEDULE, {"from_step": 4, "complete": 4}, 0, ALL_DONE[2:]),
        # After the step in which a stop file is found training ends as it would have after the last one.
        (SCHEDULE, {"stop_in": 3}, 0, ["save 2", "save 3", "evaluate checkpoint-3", "note 3"]),
        (SCHEDULE, {"stop_in": 2, "evaluates": False}, 0, ["save 2"]),
    ],
)
def test_checkpoints_are_saved_in_intervals_before_evaluations_and_at_the_end(tmp_path, schedule, given, code, done):
    assert train(tmp_path, schedule, **given) == (code, done)


def test_a_complete_evaluation_is_noted_once(tmp_path):
    (tmp_path / "progress.csv").write_text("step,measure,value\n4,success_rate,1\n")
    assert train(tmp_path, SCHEDULE, from_step=4, complete=4) == (0, ALL_DONE[3:])


def test_a_training_that_ends_early_says_why_and_how_it_goes_on(tmp_path, caplog):
    caplog.set_level("INFO")
    train(tmp_path, SCHEDULE, is_told_to_stop=True)
    assert caplog.messages[-1].endswith("continue with: isaaclab-arena resume .")
    train(tmp_path, SCHEDULE, stop_in=3)
    assert str(tmp_path / "stop") in caplog.text
