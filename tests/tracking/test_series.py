"""A curve that one process after the other goes on with: services have each point once."""

import threading
from pathlib import Path

from isaaclab_arena.tracking.trackers import CheckpointMeasures, TrackedRun, TrackedSeries
from tests.tracking.runs import NotingTracker


class Service:
    """A service with a server, or one whose files are written anew each time.

    Attributes:
        points: Series and step of each point that it shows, in the order in which it was told.
        run_ids: Under which it was told of runs.
        fails: Whether it is away.
    """

    def __init__(self, *, has_server: bool) -> None:
        self.has_server = has_server
        self.points: list[tuple[str, int]] = []
        self.run_ids: set[str] = set()
        self.fails = False

    def open(self, name: str, run: TrackedRun) -> "Telling":
        del name
        if self.fails:
            raise ConnectionError("the server is away")
        self.run_ids.add(run.run_id)
        return Telling(self)


class Telling(NotingTracker):
    """One time that a service is told something."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self.keeps_series = service.has_server

    def close(self) -> str:
        told = [(each.series, each.step) for each in self.checkpoints]
        self._service.points = self._service.points + told if self.keeps_series else told
        return "here"


def series_in(directory: Path, service: Service, **options) -> TrackedSeries:
    directory.mkdir(exist_ok=True)
    options = {"opened": service.open, **options}
    return TrackedSeries(["tensorboard"], record=directory / "told.json", **options)


def points(*steps: int, rate: float = 0.5) -> list[CheckpointMeasures]:
    return [CheckpointMeasures(series="reach", step=step, values={"success_rate": rate}) for step in steps]


RUN = TrackedRun(run_id="", name="watch", directory=Path(), settings={}, jobs={}, series=["reach"])


def test_a_server_gets_each_point_once_from_watches_that_know_more_and_more(tmp_path):
    service = Service(has_server=True)
    for _ in range(2):
        mine = series_in(tmp_path / "tracking", service)
        for count in range(1, 6):
            mine.tell(RUN, points(*range(count)))
    assert sorted(service.points) == [("reach", step) for step in range(5)]
    assert len(service.run_ids) == 1


def test_files_have_all_points_in_the_order_of_their_steps_also_of_an_earlier_watch(tmp_path):
    service = Service(has_server=False)
    series_in(tmp_path / "tracking", service).tell(RUN, points(200, 100))
    series_in(tmp_path / "tracking", service).tell(RUN, points(150))
    assert service.points == [("reach", 100), ("reach", 150), ("reach", 200)]


def test_a_point_that_was_measured_anew_is_told_again(tmp_path):
    service = Service(has_server=True)
    series_in(tmp_path / "tracking", service).tell(RUN, points(100, 200))
    series_in(tmp_path / "tracking", service).tell(RUN, [*points(100, rate=0.7), *points(200)])
    assert service.points == [("reach", 100), ("reach", 200), ("reach", 100)]


def test_a_service_that_was_away_gets_everything_when_it_is_back(tmp_path, caplog):
    service = Service(has_server=True)
    series = series_in(tmp_path / "tracking", service)
    service.fails = True
    series.tell(RUN, points(100))
    assert "tensorboard has not taken the curve, and the watch goes on: the server is away" in caplog.text
    service.fails = False
    series.tell(RUN, points(100, 200))
    assert service.points == [("reach", 100), ("reach", 200)]


def test_a_service_that_does_not_answer_keeps_no_watch_from_going_on(tmp_path, caplog):
    service, answer = Service(has_server=True), threading.Event()

    def open_slowly(name: str, run: TrackedRun) -> Telling:
        answer.wait(60.0)
        return service.open(name, run)

    series = series_in(tmp_path / "tracking", service, longest_wait_s=0.05, opened=open_slowly)
    series.tell(RUN, points(100))
    assert "services have not taken the curve" in caplog.text
    series.tell(RUN, points(100, 200))
    assert service.points == []
    answer.set()
