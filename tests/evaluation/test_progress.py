import dataclasses
import io
import logging
import re
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from isaaclab_arena.evaluation.builds import StartUpClock, StartUpPart
from isaaclab_arena.evaluation.heartbeat import (
    RankFate,
    RankReport,
    RankState,
    RankStatus,
    RankWatch,
    StatusPublisher,
    fraction_done,
    in_a_thread,
    keep_showing,
    progress_line,
    progress_table,
    read_rank_status,
    time_left_s,
)
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.episode import Episode
from isaaclab_arena.logs import LongWork, heard_by
from isaaclab_arena.storage.dataset import consolidate
from tests.end_to_end.launching import wait_until
from tests.fakes import CoinConfig, CoinEnvironment, Notebook, ShrugPolicy
from tests.storage.recordings import write_parts


def report_of(rank: int, *, fate: RankFate = RankFate.WORKING, alive: bool = True, **changes) -> RankReport:
    status = dataclasses.replace(RankStatus(rank=rank, run_id="run"), **{"state": RankState.RUNNING, **changes})
    return RankReport(rank=rank, fate=fate, status=status, alive=alive)


def rendered(reports, elapsed_s: float = 60.0, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(progress_table(reports, elapsed_s=elapsed_s))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_steps_and_episodes_of_a_rollout_are_counted_exactly(tmp_path):
    environment = CoinEnvironment(CoinConfig(diverge_every=4), 6)
    episodes = [Episode(job="coins", episode_index=index, seed=0) for index in range(20)]
    of_rank = RankStatus(rank=0, run_id="run", episodes_total=20)
    with StatusPublisher(tmp_path, of_rank) as publisher:
        rollout(environment, ShrugPolicy(), episodes, [publisher, notebook := Notebook()])
    status = publisher.status
    assert status.env_steps == sum(record.length for record in notebook.records)
    assert status.episodes_done == 20
    assert status.errors > 0
    assert status.scored == 20 - status.errors
    assert 0 < status.successes < status.scored


def test_the_table_shows_every_rank_and_the_whole():
    reports = [
        report_of(0, jobs_done=1, jobs_total=3, episodes_done=50, episodes_total=100, current_job="lift[bold]_cube",
                  job_successes=25, job_scored=40, successes=50, scored=50, errors=2, steps_per_s=12_345.6),
        report_of(1, fate=RankFate.DEAD, alive=False, jobs_total=2, episodes_total=50, current_job="drawer",
                  steps_per_s=99.0),
        RankReport(rank=2, fate=RankFate.WORKING, status=None, alive=True),
    ]  # fmt: skip
    text = rendered(reports)
    for expected in ("1/3", "lift[bold]_cube", "50/100", "62%", "12,346", "dead in drawer", "has not started yet"):
        assert expected in text
    assert "33%, 1:00 elapsed, 2:00 left" in text
    assert "jobs 1/5, episodes 50, success of lift[bold]_cube 62%, 12,346 steps/s" in text


def test_each_job_under_way_has_its_own_success_over_all_ranks_that_run_it():
    rates = (("lift", 1, 4), ("reach", 4, 4), ("lift", 2, 2), ("push", 0, 1), ("stack", 1, 2), ("drawer", 0, 0))
    reports = [
        report_of(rank, current_job=job, job_successes=successes, job_scored=scored)
        for rank, (job, successes, scored) in enumerate(rates)
    ]
    assert "success of lift 50%, of reach 100%, of push 0%, and 1 more," in progress_line(reports, elapsed_s=1.0)
    shares = [line.split()[-3] for line in rendered(reports, width=200).splitlines()[3:]]
    assert shares == ["25%", "100%", "100%", "0%", "50%", "-"]


def test_a_rank_that_comes_back_to_a_job_goes_on_counting_its_successes(tmp_path):
    publisher = StatusPublisher(tmp_path, RankStatus(rank=0, run_id="run"))
    (tmp_path / "logs").mkdir()
    for job, seed in (("coins", 0), ("others", 5), ("coins", 9)):
        publisher.start_job(job, num_episodes=4)
        episodes = [Episode(job=job, episode_index=index, seed=seed) for index in range(4)]
        rollout(CoinEnvironment(CoinConfig(), 2), ShrugPolicy(), episodes, [publisher])
        publisher.leave_job()
    status = publisher.status
    assert (status.job_scored, status.scored) == (8, 12)
    assert 0 < status.job_successes < status.successes


def test_the_bar_has_room_on_a_terminal_of_80_columns():
    reports = [report_of(0, jobs_done=1, jobs_total=3, episodes_done=50, episodes_total=100, current_job="lift_cube",
                         steps_per_s=12_345.6)]  # fmt: skip
    lines = rendered(reports, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    # Without colours only what is done is drawn, which is half of the bar.
    assert sum(lines[0].count(part) for part in "━╸╺") >= 25
    assert "50%, 1:00 elapsed, 1:00 left" in lines[0]


def test_a_run_whose_model_is_being_loaded_says_so_and_promises_no_time():
    """160 of 168 episodes took ten seconds, but the eight that are left need a model that takes longer to load."""
    loading = report_of(0, jobs_done=8, jobs_total=9, episodes_done=160, episodes_total=168, current_job="colour-gr00t",
                        preparing="loading the policy", job_episodes_total=8)  # fmt: skip
    assert time_left_s([loading], 10.0) is None
    line = progress_line([loading], elapsed_s=10.0)
    assert "left" not in line
    assert line.endswith("0:10 elapsed, colour-gr00t: loading the policy")
    assert "colour-gr00t: loading the policy" in rendered([loading])


def test_the_time_left_follows_the_pace_of_the_job_that_is_under_way():
    slow: dict[str, Any] = {"episodes_total": 168, "job_episodes_total": 8}
    assert time_left_s([report_of(0, current_job="slow", episodes_done=160, **slow)], 15.0) is None, (
        "its pace is not known yet"
    )
    under_way = report_of(0, current_job="slow", episodes_done=162, job_episodes_done=2, job_stepping_s=20.0, **slow)
    assert time_left_s([under_way], 35.0) == pytest.approx(60.0)
    behind = report_of(1, current_job="fast", episodes_done=10, episodes_total=100, job_episodes_total=20,
                       job_episodes_done=10, job_stepping_s=5.0)  # fmt: skip
    assert time_left_s([under_way, behind], 35.0) == pytest.approx(5.0 + 80 * 3.5)


def test_a_rank_tells_what_it_does_before_its_first_step_and_how_long_it_has_stepped_since(tmp_path):
    publisher = StatusPublisher(tmp_path, RankStatus(rank=0, run_id="run", episodes_total=3))
    told: list[str | None] = []

    def tell(doing: str | None) -> None:
        told.append(doing)
        publisher.prepare(doing)

    (tmp_path / "logs").mkdir()
    publisher.start_job("coins", num_episodes=3)
    clock = StartUpClock("coins", import_s=None, on_part=tell)
    assert publisher.status.preparing == "building the environment"
    clock.finish(StartUpPart.ENVIRONMENT)
    clock.finish(StartUpPart.POLICY)
    environment = CoinEnvironment(CoinConfig(), 3)
    episodes = [Episode(job="coins", episode_index=index, seed=0) for index in range(3)]
    rollout(environment, ShrugPolicy(), episodes, [clock, publisher])
    assert told == [
        "building the environment",
        "loading the policy",
        "starting its first episodes",
        "making its first step",
        None,
    ]
    assert publisher.status.preparing is None
    assert (publisher.status.job_episodes_done, publisher.status.job_episodes_total) == (3, 3)


@pytest.mark.parametrize(
    ("reports", "done"),
    [
        ([report_of(0, episodes_done=3, episodes_total=4, jobs_total=9)], 0.75),
        ([report_of(0, jobs_done=1, jobs_total=4)], 0.25),
        ([report_of(0, episodes_done=9, episodes_total=4)], 1.0),
        ([], 0.0),
    ],
)
def test_work_is_measured_in_episodes_or_else_in_jobs(reports, done):
    assert fraction_done(reports) == done


WHOLE: dict[str, Any] = {"jobs_total": 1, "episodes_done": 12_000, "episodes_total": 12_000, "current_job": "lift"}
CONSOLIDATING: dict[str, Any] = {"long_work": "consolidating", "long_work_total": 100}
LOST = [
    report_of(0, fate=RankFate.FINISHED, jobs_done=2, jobs_total=2),
    report_of(1, fate=RankFate.DEAD, alive=False, jobs_total=2),
    report_of(2, fate=RankFate.FAILED, alive=False, jobs_total=1, jobs_done=1),
]
SOME_CONSOLIDATE = [
    report_of(0, long_work_done=10, **CONSOLIDATING),
    report_of(1, long_work_done=30, **CONSOLIDATING, steps_per_s=40.0),
    report_of(2, steps_per_s=7.0, current_job="drawer"),
    report_of(3, fate=RankFate.DEAD, alive=False, long_work_done=99, **CONSOLIDATING),
]


@pytest.mark.parametrize(
    ("reports", "elapsed_s", "line"),
    [
        # An idle run says nothing about the time left.
        ([report_of(0, jobs_total=2)], 5.0, "0%, jobs 0/2, episodes 0, 0 steps/s, 0:05 elapsed"),
        (LOST, 4000.0, "60%, jobs 3/5, episodes 0, 0 steps/s, 1:06:40 elapsed, lost ranks: 1, 2"),
        (
            [report_of(0, **WHOLE, long_work="consolidating", long_work_done=3_400, long_work_total=12_000)],
            60.0,
            "99%, jobs 0/1, episodes 12000, consolidating 3,400 of 12,000 episodes, 1:00 elapsed",
        ),
        (
            SOME_CONSOLIDATE,
            1.0,
            "0%, episodes 0, 7 steps/s, consolidating 40 of 200 episodes, 0:01 elapsed, lost ranks: 3",
        ),
    ],
)
def test_the_line_says_how_far_a_run_is_what_its_ranks_do_and_which_are_lost(reports, elapsed_s, line):
    assert progress_line(reports, elapsed_s=elapsed_s) == line


def test_a_rank_that_consolidates_tells_it_instead_of_its_steps():
    state: dict[str, Any] = {"current_job": "lift", "long_work": "consolidating", "long_work_done": 3}
    reports = [report_of(0, **state, long_work_total=5, episodes_done=9, episodes_total=9)]
    # Its last job still lacks its dataset, so not everything is done.
    assert "99%, episodes 9, consolidating 3 of 5 episodes" in progress_line(reports, elapsed_s=1.0)
    assert re.search(r"lift: consolidating 3 of .*$", rendered(reports).rstrip())
    assert "100%" not in rendered(reports)


def test_what_a_job_consolidates_at_its_end_reaches_the_status_of_its_rank(tmp_path):
    publisher = StatusPublisher(tmp_path, RankStatus(rank=0, run_id="run"))
    (tmp_path / "logs").mkdir()
    parts = write_parts(tmp_path / "episodes", range(5))
    seen: list[RankStatus | None] = []

    def hear(work: LongWork | None) -> None:
        publisher.set_long_work(work)
        publisher.publish(state=RankState.FINISHED)
        seen.append(read_rank_status(tmp_path, 0))

    with heard_by(hear):
        consolidate(parts, tmp_path / "dataset_lift.hdf5")
    told = [(each.long_work, each.long_work_done, each.long_work_total) for each in seen if each is not None]
    assert told[:6] == [("consolidating", number, 5) for number in range(6)]
    assert told[-1] == (None, 0, 0)


def test_without_a_terminal_there_is_a_line_now_and_then(caplog, monkeypatch):
    # Other tests may have set up console logging, which keeps records from pytest's handler.
    monkeypatch.setattr(logging.getLogger("isaaclab_arena"), "propagate", True)
    caplog.set_level(logging.INFO, logger="isaaclab_arena")
    console = Console(file=io.StringIO())
    show = partial(keep_showing, lambda: [report_of(0, jobs_total=2)], console=console, line_interval_s=0.05)
    with in_a_thread(show, name="progress"):
        wait_until(lambda: len(caplog.records) >= 2)
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.startswith("0%, jobs 0/2") for line in lines)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_on_a_terminal_log_lines_go_through_the_display_and_nothing_of_it_stays(tmp_path):
    publisher = StatusPublisher(tmp_path, RankStatus(rank=0, run_id="run", jobs_total=1))
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    own_stream = io.StringIO()
    handler = logging.StreamHandler(own_stream)
    logger = logging.getLogger("isaaclab_arena")
    logger.addHandler(handler)
    try:
        show = partial(keep_showing, RankWatch(tmp_path, world_size=1, run_id="run").look, console=console)
        with publisher, in_a_thread(show, name="progress"):
            logger.warning("a job has failed")
            publisher.start_job("lift")
            publisher.leave_job()
            publisher.finish_job()
            publisher.publish(state=RankState.FINISHED)
        assert handler.stream is own_stream
    finally:
        logger.removeHandler(handler)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "a job has failed" in text
    assert "a job has failed" not in own_stream.getvalue()
    assert "finished" in text
    assert "100%" in text
    # Every line of the display is erased: the bar, the counts, the heading and one rank.
    assert text.rpartition("finished")[2].count("\x1b[2K") >= 4
