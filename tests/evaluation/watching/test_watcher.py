"""Each checkpoint is evaluated once, whole, by whichever watcher comes first."""

import random
import threading
from collections import Counter

import pytest

from isaaclab_arena.evaluation.watching.watcher import Outcome, Pass, Verdict, content_of
from tests.evaluation.watching.trainings import ARCHIVE, DONE, FAILED, Clock, Evaluations, KilledError, save, watcher_of


@pytest.fixture
def training(tmp_path):
    save(tmp_path / "training", 100, 0, 50)
    return tmp_path / "training"


def passes(watcher, most: int = 20) -> list[Pass]:
    """Let a watcher look until nothing is left to do."""
    led_to = []
    while len(led_to) < most and (not led_to or led_to[-1] is Pass.EVALUATED):
        led_to.append(watcher.one_pass())
    return led_to


def test_every_checkpoint_is_evaluated_once_in_the_order_of_its_step(tmp_path, training):
    evaluations = Evaluations()
    watcher = watcher_of(tmp_path, evaluations)
    assert passes(watcher)[-1] is Pass.NOTHING_TO_DO
    save(training, 150)
    passes(watcher)
    assert evaluations.asked == [0, 50, 100, 150]
    assert [record.step for record in watcher.done()] == [0, 50, 100, 150]


def test_a_watcher_that_begins_later_knows_what_is_done(tmp_path, training):
    passes(watcher_of(tmp_path, Evaluations()))
    save(training, 150)
    evaluations = Evaluations()
    passes(watcher_of(tmp_path, evaluations))
    assert evaluations.asked == [150]


def test_a_checkpoint_that_is_half_written_waits(tmp_path, training):
    save(training, 50, content=ARCHIVE[:-20])
    evaluations = Evaluations()
    watcher = watcher_of(tmp_path, evaluations)
    passes(watcher)
    assert evaluations.asked == [0, 100]
    save(training, 50)
    passes(watcher)
    assert evaluations.asked == [0, 100, 50]


def test_what_failed_is_tried_again_later_and_is_never_called_done(tmp_path, training, caplog):
    clock, evaluations = Clock(), Evaluations(outcomes=[FAILED, DONE, DONE, FAILED])
    watcher = watcher_of(tmp_path, evaluations, now=clock, retry_s=60.0)
    passes(watcher)
    assert [record.step for record in watcher.done()] == [50, 100]
    assert "model_0.pt failed: its process ended with -9; it is tried again in 60 s" in caplog.text
    clock.seconds = 61.0
    passes(watcher)
    assert [(record.step, record.tries) for record in watcher.unfinished()] == [(0, 2)]
    clock.seconds += 119.0
    passes(watcher)
    assert evaluations.asked == [0, 50, 100, 0]
    clock.seconds += 2.0
    passes(watcher)
    assert evaluations.asked == [0, 50, 100, 0, 0]
    assert watcher.unfinished() == ()


def test_what_changed_while_it_was_evaluated_is_evaluated_anew(tmp_path, training):
    clock = Clock()

    def replace_once(checkpoint, directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"result_{len(evaluations.asked)}").touch()
        if evaluations.asked == [0]:
            save(training, 0)

    evaluations = Evaluations(before=replace_once)
    watcher = watcher_of(tmp_path, evaluations, now=clock)
    passes(watcher)
    assert [(record.step, record.reason) for record in watcher.unfinished()] == [
        (0, "it changed while it was evaluated")
    ]
    clock.seconds = 1000.0
    passes(watcher)
    assert evaluations.asked == [0, 50, 100, 0]
    assert [path.name for path in watcher.ledger.run_directory(0).iterdir()] == ["result_4"]


def test_a_checkpoint_that_is_removed_while_it_is_evaluated_was_evaluated(tmp_path, training):
    evaluations = Evaluations(before=lambda checkpoint, directory: checkpoint.path.unlink())
    watcher = watcher_of(tmp_path, evaluations)
    passes(watcher)
    assert [(record.step, record.content) for record in watcher.done()] == [(0, None), (50, None), (100, None)]


def test_what_was_evaluated_is_known_by_its_content(tmp_path, training):
    watcher = watcher_of(tmp_path, Evaluations())
    passes(watcher)
    assert {record.content for record in watcher.done()} == {content_of(training / "model_50.pt")}


def test_only_multiples_up_to_the_last_step_are_evaluated_and_then_the_watch_ends(tmp_path, training):
    save(training, 150, 200, 250)
    evaluations = Evaluations()
    watcher = watcher_of(tmp_path, evaluations, every=100, until=200)
    assert passes(watcher)[-1] is Pass.REACHED_END
    assert evaluations.asked == [0, 100, 200]


def test_the_end_waits_for_the_last_step(tmp_path, training):
    watcher = watcher_of(tmp_path, Evaluations(), until=150)
    assert passes(watcher)[-1] is Pass.NOTHING_TO_DO
    save(training, 150)
    assert passes(watcher)[-1] is Pass.REACHED_END


def test_checkpoints_of_other_names_have_an_end_too(tmp_path):
    (tmp_path / "training").mkdir()
    evaluations, clock = Evaluations(), Clock()
    watcher = watcher_of(tmp_path, evaluations, now=clock, pattern="policy_*.onnx", until=20)
    for step in (10, 20):
        (tmp_path / "training" / f"policy_{step}.onnx").write_bytes(b"graph")
        assert passes(watcher)[-1] is Pass.NOTHING_TO_DO
        clock.seconds += 60.0
    assert passes(watcher)[-1] is Pass.REACHED_END
    assert evaluations.asked == [10, 20]


def test_a_thousand_iterations_of_rsl_rl_end_with_the_checkpoint_999_which_is_evaluated_whatever_every_says(
    tmp_path, training
):
    evaluations = Evaluations()
    watcher = watcher_of(tmp_path, evaluations, every=100, until=1000)
    save(training, 950)
    assert passes(watcher)[-1] is Pass.NOTHING_TO_DO
    save(training, 999)
    assert passes(watcher)[-1] is Pass.REACHED_END
    assert evaluations.asked == [0, 100, 999]
    assert [record.step for record in watcher.done()] == [0, 100, 999]


def test_a_training_that_is_over_before_the_step_that_is_waited_for_ends_the_watch(tmp_path, training):
    (training / "params").mkdir()
    (training / "params" / "agent.yaml").write_text("max_iterations: 100\nsave_interval: 50\n")
    (training / "params" / "train.yaml").write_text("task: reach\n")
    evaluations = Evaluations()
    assert passes(watcher_of(tmp_path, evaluations, until=1000))[-1] is Pass.REACHED_END
    assert evaluations.asked == [0, 50, 100]
    assert passes(watcher_of(tmp_path, Evaluations()))[-1] is Pass.NOTHING_TO_DO, "it may go on, and no end is asked"


def test_a_checkpoint_that_always_fails_does_not_keep_the_watch_from_its_end(tmp_path, training):
    clock, evaluations = Clock(), Evaluations(outcomes=[DONE, DONE, FAILED, FAILED, FAILED])
    watcher = watcher_of(tmp_path, evaluations, now=clock, until=100)
    while passes(watcher)[-1] is not Pass.REACHED_END:
        clock.seconds += 1000.0
    assert evaluations.asked == [0, 50, 100, 100, 100]
    assert [record.step for record in watcher.unfinished()] == [100]


def test_where_not_even_one_checkpoint_is_let_in_the_job_file_is_wrong(tmp_path, training):
    refused = Outcome(verdict=Verdict.REFUSED, reason="it was refused")
    assert watcher_of(tmp_path, Evaluations(outcomes=[refused])).one_pass() is Pass.REFUSED
    watcher = watcher_of(tmp_path, Evaluations(outcomes=[DONE, refused]))
    assert passes(watcher)[-1] is Pass.NOTHING_TO_DO


def test_two_watchers_that_are_killed_again_and_again_evaluate_each_of_fifty_once(tmp_path):
    save(tmp_path / "training", *range(50))
    chance, lock, finished = random.Random(0), threading.Lock(), Counter[int]()

    def maybe_killed(checkpoint, directory):
        with lock:
            if chance.random() < 0.3:
                raise KilledError
            finished[checkpoint.step] += 1

    def watch() -> None:
        while True:
            watcher = watcher_of(tmp_path, Evaluations(before=maybe_killed))
            try:
                while watcher.one_pass() is Pass.EVALUATED:
                    pass
            except KilledError:
                continue
            if len(watcher.done()) == 50:
                return

    watchers = [threading.Thread(target=watch, daemon=True) for _ in range(2)]
    for each in watchers:
        each.start()
    for each in watchers:
        each.join(timeout=100.0)
    assert finished == Counter(range(50))
