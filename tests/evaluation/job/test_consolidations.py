import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.evaluation.job_run import Consolidations, JobRunner
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.logs import told
from isaaclab_arena.storage.episodes import list_episodes
from isaaclab_arena.storage.ledger import JobReport, ReportedStatus, episode_files, read_job_reports
from tests.evaluation.jobs import coin_job as job
from tests.evaluation.jobs import settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment, shrugging

TIMEOUT_S = 20.0


def heed_nothing(job, long_work):
    del job, long_work


@pytest.fixture
def consolidations():
    made = Consolidations(heed_nothing)
    yield made
    made.close()


def test_one_job_at_a_time_is_finished_while_others_go_on(consolidations):
    may_end, order = threading.Event(), []

    def finish() -> None:
        assert may_end.wait(TIMEOUT_S)
        order.append("first")

    consolidations.begin("first", finish)
    consolidations.wait("another")
    order.append("the next job")
    threading.Timer(0.05, may_end.set).start()
    consolidations.begin("second", lambda: order.append("second"))
    assert order[:2] == ["the next job", "first"]
    consolidations.wait("second")
    assert order[2:] == ["second"]


@pytest.mark.parametrize("call", ["begin", "wait", "close"])
def test_what_goes_wrong_is_raised_once_by_the_next_call(consolidations, call):
    def finish() -> None:
        raise OSError("the disk is full")

    consolidations.begin("lift", finish)
    calls = {
        "begin": lambda: consolidations.begin("drawer", lambda: None),
        "wait": consolidations.wait,
        "close": consolidations.close,
    }
    with pytest.raises(OSError, match="the disk is full"):
        calls[call]()
    consolidations.close()


def test_how_far_a_job_has_come_is_told_with_its_name():
    said = []
    consolidations = Consolidations(lambda job, work: said.append((job, None if work is None else work.done)))
    consolidations.begin("lift", lambda: list(told("ab", "consolidating", "dataset_lift.hdf5")))
    consolidations.close()
    assert said == [("lift", 0), ("lift", 1), ("lift", 2), ("lift", None)]


class Waits:
    """Listens to long work for ``first``, or draws a picture, no sooner than something has happened."""

    def __init__(self) -> None:
        self.happened = threading.Event()
        self.in_time: list[bool] = []  # whether that came, each time that it was waited for

    def wait(self) -> None:
        self.in_time.append(all(self.in_time) and self.happened.wait(TIMEOUT_S))

    def hear(self, job, long_work):
        if job == "first" and long_work is not None:
            self.wait()

    def draw(self) -> dict[str, np.ndarray]:
        self.wait()
        return {VIEWPORT: np.full((32, 48, 3), 99, np.uint8)}


def recording_runner(output_directory: Path, hear=heed_nothing, **options) -> JobRunner:
    recorded = settings(output_directory, no_dataset=False)
    return JobRunner(recorded, consolidations=Consolidations(hear), **options)


def report_on_disk(output_directory: Path, name: str) -> JobReport:
    (report,), problems = read_job_reports(output_directory / name, name)
    assert problems == []
    return report


def test_the_next_job_begins_while_episodes_of_the_one_before_are_put_into_one_dataset(tmp_path):
    waits, ended = Waits(), []

    def begin(*_) -> None:
        ended_before.append(list(ended))
        waits.happened.set()

    ended_before: list[list[str]] = []
    runner = recording_runner(tmp_path, waits.hear, on_report=lambda report: ended.append(report.job))
    runner.run(job("first"))
    runner.run(job("second", policy_class=shrugging(begin)))
    runner.close()
    assert set(waits.in_time) == {True}
    assert ended_before[0] == []
    assert ended == ["first", "second"]
    for name in ended:
        assert report_on_disk(tmp_path, name).status is ReportedStatus.COMPLETED
        assert list_episodes(tmp_path / name / f"dataset_{name}.hdf5") == list(range(10))
        assert list(episode_files(tmp_path / name)) == []


class FilmedCoins(CoinEnvironment):
    """Coins that are filmed in grey, drawn no sooner than something has happened."""

    filmable = (VIEWPORT,)
    waits: Waits

    def film(self, env_ids: Sequence[int], cameras: Sequence[str]) -> dict[str, np.ndarray]:
        raise AssertionError("this environment can be filmed later")

    def film_later(self, env_ids: Sequence[int], cameras: Sequence[str]) -> list[Callable[[], dict[str, np.ndarray]]]:
        return [self.waits.draw for _ in env_ids]


def test_the_next_job_begins_while_videos_of_the_one_before_are_drawn(tmp_path):
    waits = FilmedCoins.waits = Waits()
    filmed = settings(tmp_path, record_viewport_video=True)
    runner = JobRunner(filmed, consolidations=Consolidations(heed_nothing))
    runner.run(job("first", CoinBuilder(FilmedCoins), CoinConfig(success_step=3, failure_step=3), num_episodes=3))
    runner.run(job("second", policy_class=shrugging(lambda *_: waits.happened.set())))
    runner.close()
    assert set(waits.in_time) == {True}
    assert report_on_disk(tmp_path, "first").status is ReportedStatus.COMPLETED
    assert len(list((tmp_path / "first" / "videos").glob("*.mp4"))) == 3
    assert (tmp_path / "first" / "contact_sheet.png").is_file()


def test_the_time_of_a_job_holds_that_of_its_dataset(tmp_path):
    waits = Waits()
    threading.Timer(0.05, waits.happened.set).start()
    runner = recording_runner(tmp_path, waits.hear)
    before = runner.run(job("first"))
    runner.close()
    report = report_on_disk(tmp_path, "first")
    assert report.record_s - before.record_s == pytest.approx(report.wall_s - before.wall_s)
    assert report.wall_s > before.wall_s
    parts = report.build_s + report.simulate_s + report.policy_s + report.render_s + report.record_s + report.idle_s
    assert parts == pytest.approx(report.wall_s, abs=0.01)
    assert report.ended_at > before.ended_at


def test_a_dataset_that_cannot_be_made_is_its_own_jobs_failure_now_as_without_a_next_job(tmp_path):
    reports = {}
    for name, consolidations in (("beside", Consolidations(heed_nothing)), ("before", None)):
        (tmp_path / name / "first" / "dataset_first.hdf5").mkdir(parents=True)
        recorded = settings(tmp_path / name, no_dataset=False)
        runner = JobRunner(recorded, consolidations=consolidations)
        runner.run(job("first"))
        assert runner.run(job("second")).status is ReportedStatus.COMPLETED
        runner.close()
        reports[name] = report_on_disk(tmp_path / name, "first")
        assert len(list(episode_files(tmp_path / name / "first"))) == 10
        assert (tmp_path / name / "first" / "traceback_rank0.txt").is_file()
    beside, before = reports["beside"], reports["before"]
    assert (beside.status, beside.traceback_file) == (ReportedStatus.FAILED, before.traceback_file)
    assert before.error is not None
    assert beside.error == before.error.replace(str(tmp_path / "before"), str(tmp_path / "beside"))


def test_a_run_that_is_stopped_in_the_next_job_keeps_the_dataset_of_the_one_before(tmp_path):
    waits, stopped = Waits(), []
    stopping = shrugging(lambda *_: stopped.append(True))
    runner = recording_runner(tmp_path, waits.hear, stop_requested=lambda: bool(stopped))
    runner.run(job("first"))
    assert runner.run(job("second", policy_class=stopping)).status is ReportedStatus.INTERRUPTED
    waits.happened.set()
    runner.close()
    assert report_on_disk(tmp_path, "first").status is ReportedStatus.COMPLETED
    assert list_episodes(tmp_path / "first" / "dataset_first.hdf5") == list(range(10))
    assert report_on_disk(tmp_path, "second").status is ReportedStatus.INTERRUPTED


def test_a_job_that_runs_again_waits_for_its_own_dataset(tmp_path):
    ended = []

    def begin(*_) -> None:
        assert ended == [ReportedStatus.COMPLETED]

    runner = recording_runner(tmp_path, on_report=lambda report: ended.append(report.status))
    runner.run(job("first", num_episodes=20))
    runner.run(job("first", policy_class=shrugging(begin), num_episodes=20))
    runner.close()
    assert ended == [ReportedStatus.COMPLETED] * 2


def test_an_environment_does_not_stay_in_memory_until_the_dataset_is_made(tmp_path):
    waits, built, kept = Waits(), [], []

    class Forgetting(CoinBuilder):
        def build(self, config, *, num_envs, device, num_threads):
            environment = super().build(config, num_envs=num_envs, device=device, num_threads=num_threads)
            self.built.clear()
            built.append(weakref.ref(environment))
            return environment

    def look(*_) -> None:
        if not waits.happened.is_set():
            gc.collect()
            kept.append(built[0]())
            waits.happened.set()

    runner = recording_runner(tmp_path, waits.hear)
    runner.run(job("first", builder=Forgetting()))
    runner.run(
        job("second", builder=Forgetting(), policy_class=shrugging(look), environment=CoinConfig(success_step=9))
    )
    runner.close()
    assert set(waits.in_time) == {True}
    assert kept == [None]
