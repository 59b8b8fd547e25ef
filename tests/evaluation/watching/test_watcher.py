"""Each checkpoint is evaluated once, whole; the best is scored again."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import BEST_RULE
from isaaclab_arena.cli.watch import Watch, WatchOptions
from isaaclab_arena.evaluation.learning_curve import points_of_watch, read_records
from isaaclab_arena.storage.ledger import RunLock
from isaaclab_arena.tracking.trackers import TrackedRun, Tracker, open_tracker
from tests.evaluation.watching.trainings import (
    ARCHIVE,
    DONE,
    INTERRUPTED,
    KILLED,
    REFUSED,
    UNFINISHED,
    Evaluations,
    KilledError,
    played,
    save,
)
from tests.tracking.runs import NotingTracker


@dataclass
class Watching:
    """Watches a training; time passes only while the watch sleeps."""

    directory: Path  # where the training and the watch are
    # What happens while the watch sleeps, in order; after it, a watch without an end is killed.
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    seconds: float = 0.0
    opened: Callable[[str, TrackedRun], Tracker] = open_tracker  # a service that shows the curve

    @property
    def training(self) -> Path:
        return self.directory / "training"

    @property
    def done(self) -> list[int]:
        return [step for step, record in read_records(self.directory / "watch").items() if record.is_done]

    def run(self, evaluations: Evaluations, **settings) -> int | None:
        """Return the exit code of a watch, None if it goes on."""
        whole = {"poll_s": 1.0, "quiet_s": 0.0, "once": not {"until", "once"} & {*settings}, **settings}
        watched = WatchOptions(
            training=self.training, eval_jobs_config=Path(), output_dir=self.directory / "watch", **whole
        )
        watch = Watch(
            settings=watched,
            evaluate=evaluations,
            say=self.said.append,
            sleep=self.sleep,
            now=lambda: self.seconds,
            opened=self.opened,
        )
        try:
            return watch.run()
        except KilledError:
            return None

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if not self.meanwhile:
            raise KilledError
        self.meanwhile.pop(0)()


@pytest.fixture
def watching(tmp_path) -> Watching:
    save(tmp_path / "training", 100, 0, 50)
    return Watching(tmp_path)


def test_every_checkpoint_is_evaluated_once_in_the_order_of_its_step(watching):
    evaluations = Evaluations()
    watching.meanwhile = [lambda: save(watching.training, 150), lambda: None]
    assert watching.run(evaluations, once=False) is None
    assert watching.run(evaluations) == 0
    assert evaluations.asked == watching.done == [0, 50, 100, 150]


def test_a_training_that_begins_later_is_waited_for_and_nothing_is_found_in_silence(watching, caplog):
    caplog.set_level("INFO")
    watching.directory /= "later"
    watching.directory.mkdir()
    assert watching.run(Evaluations()) == 1
    assert watching.said == [f"no checkpoint in {watching.training} matches; --pattern finds other names"]
    watching.meanwhile = [lambda: None, lambda: save(watching.training, 50), lambda: save(watching.training, 100)]
    assert watching.run(Evaluations(), until="100") == 0
    assert watching.done == [50, 100]
    assert [line for line in caplog.messages if "checkpoints in" in line] == [
        f"waiting for checkpoints in {watching.training}, which does not exist yet",
        f"waiting for more checkpoints in {watching.training}",
    ]


def test_a_checkpoint_that_is_half_written_waits_and_each_reason_is_logged_once(watching, caplog):
    caplog.set_level("INFO")
    save(watching.training, 50, content=b"")
    parts = [ARCHIVE[:-20], ARCHIVE[:-20], ARCHIVE]
    watching.meanwhile = [lambda part=part: save(watching.training, 50, content=part) for part in parts]
    watching.meanwhile += [lambda: None] * 15
    evaluations = Evaluations()
    assert watching.run(evaluations, until="100", quiet_s=10.0) == 0
    assert (evaluations.asked, watching.done) == ([0, 100, 50], [0, 50, 100])
    told = [line.partition("model_50.pt: ")[2] for line in caplog.messages if "model_50.pt: " in line]
    assert told[0] == "it is empty"
    assert sum("is not complete" in line for line in told) == 1
    assert sum("has not changed" in line for line in told) <= 2


def test_what_failed_is_tried_again_later_and_is_never_called_done(watching, caplog):

    evaluations = Evaluations(exit_codes=[KILLED, DONE, DONE, DONE, UNFINISHED])
    assert watching.run(evaluations) == 1
    assert watching.done == [50, 100] == [each.step for each in points_of_watch(watching.directory / "watch")]

    assert "tried again in 60 s" in caplog.text

    assert watching.said[-1].endswith("ended with -9")

    # Each failure doubles the time until the next try, also those of an earlier watch.
    times: list[float] = []
    evaluations = Evaluations(
        exit_codes=[UNFINISHED, KILLED, INTERRUPTED], play=lambda *asked: times.append(watching.seconds)
    )
    watching.meanwhile = [lambda: None] * 400
    assert watching.run(evaluations, once=False) == 130
    assert times == [0.0, 120.0, 360.0]
    assert watching.done == [50, 100]


def test_what_changed_while_it_was_evaluated_is_evaluated_anew(watching):
    def play(checkpoint, directory, seed_offset):
        is_first = not (directory / "run.json").exists() and evaluations.asked == [0]
        assert is_first or evaluations.asked != [0, 50, 100, 0] or not directory.exists(), "its episodes are forgotten"
        played(checkpoint, directory)
        if is_first:
            save(watching.training, 0)

    evaluations = Evaluations(play=play)
    assert watching.run(evaluations) == 1

    assert "it changed" in watching.said[-1]
    assert watching.run(evaluations) == 0
    assert evaluations.asked == [0, 50, 100, 0]


@pytest.mark.parametrize(
    ("there", "later", "settings", "asked"),
    [
        ([150, 200, 250], [], {"every": 100, "until": "200"}, [0, 100, 200]),
        ([], [150], {"until": "iteration=150"}, [0, 50, 100, 150]),
        # A thousand iterations of RSL-RL end with the checkpoint 999, which is evaluated whatever `every` says.
        ([950], [999], {"every": 100, "until": "1000"}, [0, 100, 999]),
    ],
)
def test_only_multiples_up_to_the_last_step_are_evaluated_which_is_waited_for(watching, there, later, settings, asked):
    save(watching.training, *there)
    watching.meanwhile = [lambda: None, lambda: save(watching.training, *later)]
    evaluations = Evaluations()
    assert watching.run(evaluations, **settings) == 0
    assert evaluations.asked == watching.done == asked


def test_a_training_that_is_over_before_the_step_that_is_waited_for_ends_the_watch(watching):
    (watching.training / "params").mkdir()
    (watching.training / "params" / "agent.yaml").write_text("max_iterations: 100\nsave_interval: 50\n")
    (watching.training / "params" / "train.yaml").write_text("task: reach\n")
    assert watching.run(Evaluations(), until="1000") == 0
    assert watching.done == [0, 50, 100]
    assert watching.run(Evaluations(), once=False) is None, "it may go on, and no end is asked"


def test_where_not_even_one_checkpoint_is_let_in_the_job_file_is_wrong(watching):
    evaluations = Evaluations(exit_codes=[REFUSED])
    assert (watching.run(evaluations), evaluations.asked) == (2, [0])
    evaluations = Evaluations(exit_codes=[DONE, REFUSED])
    assert (watching.run(evaluations), evaluations.asked) == (1, [0, 50, 100])
    job_file = watching.directory / "watch" / "watch" / "step_50" / "jobs.json"
    assert watching.said[-1].endswith(f"it was refused; isaaclab-arena validate {job_file} says why")


def test_what_was_refused_is_tried_again_only_once_it_changes(watching, caplog):
    watching.meanwhile = [lambda: None] * 400
    evaluations = Evaluations(exit_codes=[DONE, REFUSED])
    assert watching.run(evaluations, until="100") == 1
    assert (evaluations.asked, watching.seconds) == ([0, 50, 100], 0.0)
    assert "it is tried again once it changes" in caplog.text
    watching.meanwhile = [lambda: None] * 100 + [lambda: save(watching.training, 50), lambda: None]
    evaluations = Evaluations(exit_codes=[REFUSED])
    assert watching.run(evaluations, once=False) is None
    assert (evaluations.asked, watching.done) == ([50, 50], [0, 50, 100])


@pytest.mark.parametrize("run", ["step_0", "best_step_0"])
def test_a_run_in_which_ranks_of_a_killed_runner_are_at_work_waits(watching, run):
    (watching.directory / "watch" / run).mkdir(parents=True)
    lock = RunLock(watching.directory / "watch" / run).hold(alone=False)
    at_work: dict[str, bool] = {}

    def play(checkpoint, directory, seed_offset):
        at_work[directory.name] = lock.descriptor >= 0
        played(checkpoint, directory)

    watching.meanwhile = [lambda: None, lock.release]
    assert watching.run(Evaluations(play=play), until="100") == 0
    order = ["step_50", "step_100", "step_0"] if run == "step_0" else ["step_0", "step_50", "step_100"]
    assert [*at_work] == [*order, "best_step_0"]
    assert (at_work[run], at_work["step_100"], watching.meanwhile) == (False, True, [])


@pytest.mark.parametrize(
    ("num_alike", "in_words"),
    [
        (0, "in other episodes"),
        (3, "in other episodes, 3 of them from the same initial conditions"),
        (4, "again, from the same initial conditions"),
    ],
)
def test_both_scores_of_the_best_are_remembered_and_nothing_is_scored_twice(watching, num_alike, in_words):
    def play(checkpoint, directory, seed_offset):
        ends = {0: "ffff", 50: "ssss", 100: "sssf"}[checkpoint.step]
        moved = dict.fromkeys(range(4 - num_alike), 0.1)
        played(checkpoint, directory, "sssf" if seed_offset else ends, moved=moved if seed_offset else None)

    evaluations = Evaluations(play=play)
    for _ in range(2 if num_alike == 3 else 1):
        assert watching.run(evaluations) == 0
        assert evaluations.asked_again == [50]
        path, watch = watching.training / "model_50.pt", watching.directory / "watch"
        chosen = "100.0 % [51.0, 100.0] of 4 episodes in the episodes that selected it"
        assert watching.said[-3:] == [
            f"the best is step 50, {path} ({BEST_RULE}): {chosen}",
            f"  {in_words}: 75.0 % [30.1, 95.4] of 4 episodes",
            f"curve in {watch / 'curve.png'}, page in {watch / 'report.html'}",
        ]


def test_a_score_of_an_earlier_best_is_not_that_of_this_one(watching):
    assert watching.run(Evaluations(play=lambda checkpoint, directory, seed: played(checkpoint, directory, "sf"))) == 0
    save(watching.training, 150)
    evaluations = Evaluations()
    assert watching.run(evaluations) == 0
    assert (evaluations.asked, evaluations.asked_again) == ([150], [150])


def test_services_get_one_run_for_the_whole_watch(watching):
    told = NotingTracker()
    watching.opened = lambda name, run: runs.append((name, run)) or told
    runs: list[tuple[str, TrackedRun]] = []
    watching.run(Evaluations(), tracking=("wandb",))
    points = {(each.series, each.step): each.values for each in told.checkpoints}
    assert [*points] == [("reach", 0), ("reach", 50), ("reach", 100), ("best", 0)]
    assert points["best", 0]["again_success_rate"] == 1.0
    assert len({run.run_id for _, run in runs}) == 1
    name, run = runs[-1]
    assert (name, run.name, [*run.series]) == ("wandb", "watch", ["reach"])
    assert (run.directory, run.settings) == (
        watching.directory / "watch" / "logs",
        {"training": str(watching.training)},
    )
    assert (watching.directory / "watch" / "watch" / "tracking" / "told.json").is_file()
