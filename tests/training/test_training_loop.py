import signal
from contextlib import closing
from pathlib import Path

import pytest

from isaaclab_arena.evaluation.process import Interruption
from isaaclab_arena.training.training_loop import ClosedLoopEvaluation, Progress, Schedule, run_loop


class CountingTraining:
    """Makes steps that learn nothing, and writes down what it is told to do.

    Args:
        done: What it and others do, in order.
        num_steps: Steps done before.
        leaves: Step to a file that it makes in it.
    """

    evaluation_measure = "success"

    def __init__(self, done: list[str], num_steps: int = 0, *, leaves: dict[int, Path] | None = None) -> None:
        self.num_steps = num_steps
        self._done = done
        self._leaves = leaves or {}

    def step(self, progress: Progress) -> None:
        self.num_steps += 1
        if self.num_steps in self._leaves:
            self._leaves[self.num_steps].touch()

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

    def __init__(self, done: list[str], *, exit_code: int = 0, complete: tuple[int, ...] = ()) -> None:
        self._done = done
        self._exit_code = exit_code
        self._complete = complete

    def is_complete(self, num_steps: int) -> bool:
        return num_steps in self._complete

    def run(self, checkpoint: Path, num_steps: int) -> int:
        self._done.append(f"evaluate {checkpoint.name}")
        return self._exit_code


def interrupted() -> Interruption:
    interruption = Interruption()
    interruption.receive(signal.SIGTERM)
    return interruption


def train(
    tmp_path: Path,
    schedule: Schedule,
    *,
    from_step: int = 0,
    interruption: Interruption | None = None,
    evaluates: bool = True,
    exit_code: int = 0,
    complete: tuple[int, ...] = (),
    stop_in: int | None = None,
) -> tuple[int, list[str]]:
    """Return the exit code of a training, which may find a file that ends it, and what was done meanwhile."""
    done: list[str] = []
    evaluation = PretendEvaluation(done, exit_code=exit_code, complete=complete) if evaluates else None
    with closing(Progress(tmp_path, is_writer=True, after_step=from_step)) as progress:
        stop_file = tmp_path / "stop"
        training = CountingTraining(done, from_step, leaves={} if stop_in is None else {stop_in: stop_file})
        listening = interruption or Interruption()
        told = {"evaluation": evaluation, "progress": progress, "interruption": listening, "stop_file": stop_file}
        return run_loop(training, schedule, **told), done


SCHEDULE = Schedule(max_steps=5, save_every=2, evaluate_every=4)


def test_checkpoints_are_saved_in_intervals_before_evaluations_and_at_the_end(tmp_path):
    code, done = train(tmp_path, SCHEDULE)
    assert code == 0
    assert done == [
        *("save 2", "save 4", "evaluate checkpoint-4", "note 4"),
        *("save 5", "evaluate checkpoint-5", "note 5"),
    ]


def test_without_an_interval_the_last_checkpoint_alone_is_evaluated(tmp_path):
    _, done = train(tmp_path, Schedule(max_steps=3, save_every=3, evaluate_every=None))
    assert done == ["save 3", "evaluate checkpoint-3", "note 3"]


def test_a_signal_ends_training_after_the_step_with_a_checkpoint_and_the_line_that_goes_on(tmp_path, caplog):
    caplog.set_level("INFO")
    assert train(tmp_path, SCHEDULE, interruption=interrupted()) == (143, ["save 1"])
    assert caplog.messages[-1] == "stopped; the last checkpoint is checkpoint-1; go on with: isaaclab-arena resume ."


def test_a_signal_in_the_last_step_changes_nothing_where_nothing_is_evaluated(tmp_path):
    code, done = train(tmp_path, SCHEDULE, from_step=4, interruption=interrupted(), evaluates=False)
    assert (code, done) == (0, ["save 5"])


def test_a_signal_during_an_evaluation_ends_training_and_leaves_the_evaluation_for_later(tmp_path):
    code, done = train(tmp_path, SCHEDULE, exit_code=130)
    assert (code, done) == (130, ["save 2", "save 4", "evaluate checkpoint-4"])
    code, done = train(tmp_path, SCHEDULE, from_step=4)
    assert (code, done[:2]) == (0, ["evaluate checkpoint-4", "note 4"])


def test_an_evaluation_whose_jobs_fail_is_noted_and_training_goes_on(tmp_path):
    code, done = train(tmp_path, SCHEDULE, exit_code=1)
    assert code == 0
    assert done[-3:] == ["save 5", "evaluate checkpoint-5", "note 5"]


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_complete_evaluation_is_not_made_again_and_noted_once(tmp_path, is_noted):
    if is_noted:
        (tmp_path / "progress.csv").write_text("step,measure,value\n4,success_rate,1\n")
    _, done = train(tmp_path, SCHEDULE, from_step=4, complete=(4,))
    assert done.count("note 4") == (0 if is_noted else 1)
    assert "evaluate checkpoint-4" not in done


def test_a_stop_file_ends_training_after_the_step_as_if_it_were_the_last(tmp_path, caplog):
    caplog.set_level("INFO")
    assert train(tmp_path, SCHEDULE, stop_in=3) == (0, ["save 2", "save 3", "evaluate checkpoint-3", "note 3"])
    assert f"ending after 3 steps, because {tmp_path / 'stop'} is there" in caplog.text


def test_a_stop_file_ends_training_that_evaluates_nothing_with_one_checkpoint(tmp_path):
    assert train(tmp_path, SCHEDULE, stop_in=2, evaluates=False) == (0, ["save 2"])
