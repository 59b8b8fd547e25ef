"""The dataset of a job is made at its end, and is part of its report."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.interfaces.specs import VIEWPORT
from isaaclab_arena.storage.episodes import list_episodes
from isaaclab_arena.storage.ledger import JobReport, ReportedStatus, episode_files, read_job_reports
from tests.evaluation.jobs import coin_job as job
from tests.evaluation.jobs import settings
from tests.fakes import CoinBuilder, CoinConfig, CoinEnvironment


def report_on_disk(output_directory: Path, name: str) -> JobReport:
    (report,), problems = read_job_reports(output_directory / name, name)
    assert problems == []
    return report


class FilmedCoins(CoinEnvironment):
    """Coins that are filmed in grey."""

    filmable = (VIEWPORT,)

    def film_later(self, env_ids: Sequence[int], cameras: Sequence[str]) -> list[Callable[[], dict[str, np.ndarray]]]:
        return [lambda: {VIEWPORT: np.full((32, 48, 3), 99, np.uint8)} for _ in env_ids]


def test_dataset_films_and_time_are_in_place_when_the_report_of_a_job_is_written(tmp_path):
    filmed = settings(tmp_path, no_dataset=False, record_viewport_video=True)
    runner = JobRunner(filmed)
    coins = CoinBuilder(FilmedCoins), CoinConfig(success_step=3, failure_step=3)
    report = runner.run(job("first", *coins, num_episodes=3))
    assert report_on_disk(tmp_path, "first") == report
    assert report.status is ReportedStatus.COMPLETED
    assert list_episodes(tmp_path / "first" / "dataset_first.hdf5") == [0, 1, 2]
    assert list(episode_files(tmp_path / "first")) == []
    assert len(list((tmp_path / "first" / "videos").glob("*.mp4"))) == 3
    assert (tmp_path / "first" / "contact_sheet.png").is_file()
    parts = report.build_s + report.simulate_s + report.policy_s + report.render_s + report.record_s + report.idle_s
    assert parts == pytest.approx(report.wall_s, abs=0.01)
    runner.close()


def test_a_dataset_that_cannot_be_made_is_its_own_jobs_failure(tmp_path):
    (tmp_path / "first" / "dataset_first.hdf5").mkdir(parents=True)
    runner = JobRunner(settings(tmp_path, no_dataset=False))
    assert runner.run(job("first")).status is ReportedStatus.FAILED
    assert runner.run(job("second")).status is ReportedStatus.COMPLETED
    runner.close()
    assert report_on_disk(tmp_path, "first").error is not None
    assert len(list(episode_files(tmp_path / "first"))) == 10
    assert (tmp_path / "first" / "traceback_rank0.txt").is_file()
