"""Series that trackers receive."""

import importlib.util
import json
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.config.schema import TrackerName
from isaaclab_arena.errors import ConfigError
from isaaclab_arena.storage.ledger import read_run_plan
from isaaclab_arena.tracking.trackers import TrackedRun, TrackedSeries, check_trackers, job_keys
from isaaclab_arena.tracking.watched_run import live_tracking
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report
from tests.tracking.runs import NotingTracker, points, series_run

MISSING = [name for name in TrackerName if importlib.util.find_spec(name) is None]


def test_a_tracker_whose_library_is_missing_is_refused_also_in_a_job_file(tmp_path, capsys):
    check_trackers([name for name in TrackerName if name not in MISSING], key="tracking")
    if not MISSING:
        pytest.skip("the libraries of all trackers are installed here")
    with pytest.raises(ConfigError, match=f"tracking.* {MISSING[0]}; .*pip install"):
        check_trackers(MISSING[:1], key="tracking")
    job = {"name": "lift", "policy_type": "scripted", "arena_env_args": {"environment": "lift_object"}}
    document = {"tracking": MISSING[:1], "jobs": [{**job, "num_episodes": 1}]}
    (tmp_path / "jobs.json").write_text(json.dumps(document))
    assert main(["validate", str(tmp_path / "jobs.json")]) == 2
    assert f"jobs.json: tracking: needs the package {MISSING[0]}" in capsys.readouterr().err


def test_in_wandb_a_job_shares_no_key_with_the_table_or_the_checkpoints():
    names = ["lift", "jobs", "jobs_", "checkpoints", "checkpoint_step"]
    keys = job_keys(names)
    assert [keys[name] for name in names] == ["lift", "jobs__", "jobs_", "checkpoints_", "checkpoint_step_"]


class Service:
    """A service with a server, or one whose files are written anew each time."""

    def __init__(self, *, has_server: bool) -> None:
        self.has_server, self.is_away = has_server, False
        self.points: list[tuple[str, int]] = []
        self.run_ids: set[str] = set()

    def open(self, name: str, run: TrackedRun) -> "Telling":
        if self.is_away:
            raise ConnectionError("the server is away")
        self.run_ids.add(run.run_id)
        return Telling(self)


class Telling(NotingTracker):
    """One time that a service is told something."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service, self.keeps_series = service, service.has_server

    def close(self) -> str:
        told = [(each.series, each.step) for each in self.checkpoints]
        self._service.points = self._service.points + told if self.keeps_series else told
        return "here"


RUN = series_run(Path())


def series_in(directory: Path, service: Service, **options) -> TrackedSeries:
    directory.mkdir(exist_ok=True)
    options = {"opened": service.open, **options}
    return TrackedSeries(["tensorboard"], record=directory / "told.json", **options)


def test_a_server_gets_each_point_once_from_watches_that_know_more_and_more(tmp_path):
    service = Service(has_server=True)
    for _ in range(2):
        mine = series_in(tmp_path / "tracking", service)
        for count in range(1, 6):
            mine.tell(RUN, points(*range(count)))
    assert sorted(service.points) == [("reach", step) for step in range(5)]
    assert len(service.run_ids) == 1


@pytest.mark.parametrize(
    ("has_server", "later", "told"),
    [(False, points(150), [100, 150, 200]), (True, [*points(100, rate=0.7), *points(200)], [100, 200, 100])],
    ids=["files have all points in the order of their steps", "a server is told again what was measured anew"],
)
def test_a_later_watch_goes_on_with_the_points_of_an_earlier_one(tmp_path, has_server, later, told):
    service = Service(has_server=has_server)
    for each in (points(200, 100), later):
        series_in(tmp_path / "tracking", service).tell(RUN, each)
    assert service.points == [("reach", step) for step in told]


def test_a_service_that_was_away_gets_everything_when_it_is_back(tmp_path, caplog):
    service = Service(has_server=True)
    series = series_in(tmp_path / "tracking", service)
    service.is_away = True
    series.tell(RUN, points(100))
    assert "server is away" in caplog.text
    service.is_away = False
    series.tell(RUN, points(100, 200))
    assert service.points == [("reach", 100), ("reach", 200)]


def test_a_service_that_does_not_answer_keeps_no_watch_from_going_on(tmp_path, caplog):
    service, answer = Service(has_server=True), threading.Event()

    def open_slowly(name: str, run: TrackedRun) -> Telling:
        answer.wait(60.0)
        return service.open(name, run)

    series = series_in(tmp_path / "tracking", service, longest_wait_s=0.05, opened=open_slowly)
    series.tell(RUN, points(100))
    assert "services have not" in caplog.text
    series.tell(RUN, points(100, 200))
    assert service.points == []
    answer.set()


@pytest.fixture
def run(tmp_path):
    write_plan(tmp_path, planned("lift", num_episodes=4))
    return tmp_path


def following(run, tracker, **settings) -> AbstractContextManager[None]:
    return live_tracking(run, read_run_plan(run), ["wandb"], opened=lambda name, shown: tracker, **settings)


def wait_until(happened) -> None:
    deadline_s = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_results_are_told_while_the_run_goes_on_and_the_last_ones_at_its_end(run):
    tracker = NotingTracker()
    with following(run, tracker, interval_s=0.01):
        write_lines(run, commit_lines("sf"))
        wait_until(lambda: tracker.jobs and tracker.jobs[-1].episodes == 2)
        write_lines(run, commit_lines("ss", first=2))
        write_report(run, report())
    assert (tracker.jobs[-1].episodes, tracker.is_closed) == (4, True)
    assert [row["status"] for row in tracker.tables[-1]] == ["completed"]


def test_a_tracker_that_cannot_be_opened_is_warned_of_once_and_the_run_goes_on(run, caplog):
    def refuse(name, shown):
        raise TimeoutError("nobody answers")

    write_lines(run, commit_lines("sf"))
    with live_tracking(run, read_run_plan(run), ["wandb"], interval_s=0.01, opened=refuse):
        wait_until(lambda: caplog.messages)
        write_lines(run, commit_lines("ss", first=2))
    [warning] = caplog.messages
    assert warning.startswith("wandb gets no")
    assert warning.endswith(": nobody answers")


def test_files_that_cannot_be_read_end_the_tracking_and_not_the_run(run, caplog):
    with following(run, NotingTracker()):
        (run / "run.json").unlink()
    [warning] = caplog.messages
    assert warning.startswith("tracking failed")


def test_the_end_of_a_run_does_not_wait_for_ever(run, caplog):
    answer = threading.Event()

    class Silent(NotingTracker):
        def log_job(self, measures):
            answer.wait(60)

    write_lines(run, commit_lines("sf"))
    with following(run, Silent(), interval_s=0.01, longest_close_s=0.05):
        pass
    answer.set()
    assert "tracking is not" in caplog.messages[0]
