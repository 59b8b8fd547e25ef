"""How far a run is, from its files: while it goes on, after it has ended, and from another machine."""

import dataclasses
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from isaaclab_arena.checkpoints import BEST_RULE
from isaaclab_arena.cli.main import main
from isaaclab_arena.config.expansion.suites import STEP
from isaaclab_arena.evaluation.heartbeat import (
    RankFate,
    RankState,
    RankStatus,
    reports_from_files,
    write_rank_status,
)
from isaaclab_arena.evaluation.learning_curve import Evaluated
from isaaclab_arena.storage.atomic import json_text, write_text
from isaaclab_arena.storage.ledger import ReportedStatus, RunLock, write_attempt
from tests.analysis.recorded_runs import write_run
from tests.evaluation.watching.trainings import save
from tests.results.evidence import attempt, commit_lines, report, write_lines, write_report

GONE = 2**22 + 1
"""A number that no process has."""


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def beat(directory: Path, rank: int = 0, **changes) -> RankStatus:
    """Write the status of a rank of the first start; without changes that of this process, which works."""
    usual = {"state": RankState.RUNNING, "updated_at": ago(0), "beat": 7}
    status = RankStatus(rank=rank, run_id="run1", **{**usual, **changes})
    write_rank_status(directory, status)
    return status


@pytest.fixture
def run(tmp_path) -> Path:
    """A run of two ranks that is under way: one job done, one at 4 of 10 episodes, one not started."""
    jobs = {"lift": "ssssssssff", "push": "sffe------", "stack": "----------"}
    directory = write_run(tmp_path / "run", jobs)
    (directory / "logs").mkdir()
    write_attempt(directory, attempt(world_size=2, devices=("cpu", "cpu"), started_at=ago(300)))
    beat(directory, 0, current_job="push", job_episodes_total=10, job_episodes_done=4, job_stepping_s=100.0,
         episodes_done=14, episodes_total=20, jobs_done=1, jobs_total=2, steps_per_s=1_234.5)  # fmt: skip
    beat(directory, 1, state=RankState.FINISHED, exited=True)
    return directory


def status(directory: Path, capsys, code: int) -> dict:
    assert main(["status", str(directory), "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_run_under_way_shows_jobs_ranks_rates_and_the_time_left(run, capsys):
    found = status(run, capsys, 1)
    assert (found["state"], found["attempt"], found["episodes"], found["planned"]) == ("running", 1, 14, 30)
    assert found["fraction_done"] == pytest.approx(14 / 30)
    assert found["elapsed_s"] == pytest.approx(300.0, abs=2.0)
    assert found["time_left_s"] == pytest.approx(6 * 100.0 / 4)
    states = {job["name"]: (job["state"], job["episodes"], job["ranks"]) for job in found["jobs"]}
    assert states == {"lift": ("completed", 10, []), "push": ("running", 4, [0]), "stack": ("not started", 0, [])}
    lift, push, stack = found["jobs"]
    assert (lift["successes"], lift["scored"], lift["success_rate"]) == (8, 10, 0.8)
    assert lift["success_low"] == pytest.approx(0.4902, abs=1e-4)
    assert (push["successes"], push["scored"], push["errors"]) == (1, 3, 1)
    assert stack["success_rate"] is None
    assert [(rank["rank"], rank["state"], rank["job"]) for rank in found["ranks"]] == [
        (0, "working", "push"),
        (1, "finished", None),
    ]
    # An error of an episode is wrong, and a run that goes on needs no way out.
    assert found["wrong"] == ["job 'push': 1 episode ended in an error: the physics diverged"]
    assert found["way_out"] is None


def test_people_read_the_same_as_lines(run, capsys):
    assert main(["status", str(run)]) == 1
    text = capsys.readouterr().out
    first = text.splitlines()[0]
    times = r"5:0\d elapsed, about 2:30 left, began .* UTC"
    assert re.fullmatch(rf"{re.escape(str(run))}: running, 47%, 14 of 30 episodes, {times}", first)
    assert re.search(r"^lift +completed +10 +80\.0 \[49\.0, 94\.3\] +0 +-$", text, re.MULTILINE)
    assert re.search(r"^push +running +4/10 .* +1 +0$", text, re.MULTILINE)
    assert re.search(r"^ *0 \S+ +push +14 +0 +1,234 +0:0\d ago$", text, re.MULTILINE)
    assert "problem: job 'push': 1 episode ended in an error: the physics diverged" in text


def test_a_rank_that_died_and_what_is_left_are_named_with_the_way_to_go_on(run, capsys):
    beat(run, 0, current_job="push", pid=GONE, start_ticks=1)
    found = status(run, capsys, 1)
    assert (found["state"], found["time_left_s"]) == ("interrupted", None)
    dead, error, missing, not_begun = found["wrong"]
    assert re.match(r"rank 0 on \S+: dead in push; its last sign was at [\d:]{8} UTC; .*rank0\.log says more", dead)
    assert "ended in an error" in error
    assert missing.startswith("missing: job 'push' on rank 0 lacks 6 episodes (4, 5, 6")
    assert not_begun == "1 job was not started: stack"
    assert found["way_out"] == f"isaaclab-arena resume {run}"


def test_a_rank_on_this_machine_is_called_silent_although_its_process_exists(run, capsys):
    write_rank_status(run, dataclasses.replace(beat(run, 0, current_job="push"), updated_at=ago(95)))
    (run / "logs" / "rank1.status.json").unlink()
    found = status(run, capsys, 1)
    assert (found["state"], found["ranks"][1]["state"]) == ("running", "not started")
    assert found["ranks"][0]["silent_s"] >= 95
    silent, not_started, *_ = found["wrong"]
    assert re.match(r"rank 0 on \S+ has been silent for 1:3\d; its last sign", silent)
    assert not_started.startswith("rank 1 has not started")


def test_of_a_later_start_statuses_of_an_earlier_one_do_not_count(run, capsys):
    write_attempt(run, attempt(2, started_at=ago(10)))
    write_rank_status(run, RankStatus(rank=0, run_id="run2", updated_at=ago(0), current_job="stack"))
    found = status(run, capsys, 1)
    assert (found["attempt"], found["elapsed_s"]) == (2, pytest.approx(10.0, abs=2.0))
    assert [job["state"] for job in found["jobs"]] == ["completed", "started", "running"]


def test_a_run_that_no_rank_has_begun_says_so(tmp_path, capsys):
    directory = write_run(tmp_path / "run", {"lift": "---"})
    write_attempt(directory, attempt())
    found = status(directory, capsys, 1)
    assert (found["state"], found["way_out"]) == ("starting", None)
    assert found["wrong"][0].startswith("no rank has started")


def test_a_finished_run_has_nothing_wrong_and_is_named_for_its_parent(tmp_path, capsys):
    _, directory = (write_run(tmp_path / name, {"lift": "ssf"}) for name in ("2026-01-01", "2026-01-02"))
    found = status(directory, capsys, 0)
    assert (found["state"], found["fraction_done"], found["wrong"], found["way_out"]) == ("finished", 1.0, [], None)
    assert main(["status", str(directory)]) == 0
    assert capsys.readouterr().out.startswith(f"{directory}: finished, 100%, 3 of 3 episodes, began ")
    assert main(["status", str(tmp_path)]) == 2
    assert f"did you mean '{directory}'?" in capsys.readouterr().err


def elsewhere(directory: Path, silent_s: float, pause=lambda _: None) -> tuple[RankFate, float]:
    """Judge rank 0, which wrote its status so long ago on another machine."""
    written = beat(directory, 0, machine="another/0/0", pid=GONE, start_ticks=1)
    write_rank_status(directory, dataclasses.replace(written, updated_at=ago(silent_s)))
    first, _ = reports_from_files(directory, world_size=2, run_id="run1", pause=pause)
    return first.fate, first.silent_s


def test_a_rank_on_another_machine_is_judged_by_its_time_and_by_new_beats(run):
    assert elsewhere(run, 5.0) == (RankFate.WORKING, pytest.approx(5.0, abs=2.0))
    assert elsewhere(run, 500.0) == (RankFate.DEAD, pytest.approx(500.0, abs=2.0))
    # Its clock is far behind, and it is at work: there is a new beat after a few seconds.
    waited = []

    def beats(seconds: float) -> None:
        waited.append(seconds)
        written = beat(run, 0, machine="another/0/0", pid=GONE, start_ticks=1)
        write_rank_status(run, dataclasses.replace(written, updated_at=ago(496.0), beat=11))

    assert elsewhere(run, 500.0, beats) == (RankFate.WORKING, 0.0)
    assert waited == [6.0]


def test_errors_are_counted_by_their_reason_without_numbers_and_a_failed_job_is_named(tmp_path, capsys):
    directory = write_run(tmp_path / "run", {"lift": "-" * 9})
    texts = ("lost 10.0.0.1:5000", "lost 10.0.0.2:5001", "no grip\nat length", "lost 10.0.0.3:5002")
    lines = [dataclasses.replace(line, error=text) for line, text in zip(commit_lines("eeee"), texts, strict=True)]
    write_lines(directory, lines)
    write_report(directory, report(status=ReportedStatus.FAILED, error="the server is gone", traceback_file="t.txt"))
    assert status(directory, capsys, 1)["wrong"] == [
        "job 'lift' failed on rank 0: the server is gone (traceback in t.txt)",
        "job 'lift': 3 episodes ended in an error: lost 10.0.0.1:5000",
        "job 'lift': 1 episode ended in an error: no grip",
    ]


def test_a_watch_shows_its_checkpoints_and_the_run_under_way(tmp_path, run, capsys):
    watch = tmp_path / "watch_of_training"
    for step, is_done in ((50, True), (100, False)):
        record = Evaluated(step=step, path=f"model_{step}.pt", fingerprint="", is_done=is_done)
        write_text(watch / "watch" / f"step_{step}" / "evaluated.json", json_text(record))
    write_run(watch / "step_50", {"lift-50": "ssf"}, swept={STEP: 50})
    run.rename(watch / "step_100")
    found = status(watch, capsys, 1)
    assert [(step["step"], step["is_done"]) for step in found["steps"]] == [(50, True), (100, False)]
    assert found["run"]["state"] == "running"
    assert main(["status", str(watch)]) == 1
    text = capsys.readouterr().out
    assert re.search(r"^ *50 +done +66\.7 % \[20\.8, 93\.9\]", text, re.MULTILINE)
    assert re.search(r"^ *100 +started", text, re.MULTILINE)
    assert "step_100: running, 47%" in text


@pytest.fixture
def training(tmp_path) -> Path:
    """A training after 3 of 10 iterations, each of 2 s, and one evaluation of 4 s; its last line is half-written."""
    directory = tmp_path / "training"
    (directory / "params").mkdir(parents=True)
    (directory / "params" / "train.yaml").write_text("task: reach\nagent: {max_iterations: 10}\n")
    measures = ("Perf/collection_time,1.5", "Perf/learning_time,0.5")
    lines = [f"{step},{each}" for step in (1, 2, 3) for each in (*measures, f"Perf/total_fps,{step}00")]
    lines = ["step,measure,value", *lines, "3,Perf/evaluation_time,4.0", "4,Perf/col"]
    (directory / "progress.csv").write_text("\n".join(lines))
    save(directory, 0, 2)
    return directory


def test_a_training_shows_its_iteration_rate_last_checkpoint_and_time_left(training, capsys):
    with RunLock(training).hold(alone=True):
        found = status(training, capsys, 0)
    figures = [found[name] for name in ("state", "iteration", "max_iterations", "steps_per_s", "last_checkpoint")]
    assert figures == ["running", 3, 10, 300, str(training / "model_2.pt")]
    assert found["time_left_s"] == pytest.approx((3 * 2.0 + 4.0) / 3 * 7)
    assert found["way_out"] is None
    (training / "model_best.pt").touch()
    assert main(["status", str(training)]) == 1
    first, *others = capsys.readouterr().out.splitlines()
    said = rf"{re.escape(str(training))}: interrupted, iteration 3 of 10, 300 steps/s, last seen 0:0\d ago"
    assert re.fullmatch(said, first)
    assert others == [
        f"last checkpoint: {training / 'model_2.pt'}",
        f"best checkpoint: {training / 'model_best.pt'} ({BEST_RULE})",
        f"continue with: isaaclab-arena resume {training}",
    ]
    # A watch that waits shows its training.
    watch = training.with_name("watch_of_training")
    write_text(watch / "watch" / "training.txt", str(training))
    assert main(["status", str(watch)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"{watch}: ended, 0 checkpoints evaluated"
    assert second.startswith(f"{training}: interrupted, iteration 3 of 10")


def test_of_very_many_jobs_those_that_need_a_look_are_shown_first(tmp_path, capsys):
    jobs = {f"job{index}": "s" for index in range(200)}
    directory = write_run(tmp_path / "run", {**jobs, "last": "s-"})
    assert main(["status", str(directory)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[3:5]] == ["last", "job0"]
    assert "... and 1 jobs more; --json has all" in lines
