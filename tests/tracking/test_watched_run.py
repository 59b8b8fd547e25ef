"""A run that trackers follow."""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isaaclab_arena.cli.main import main
from isaaclab_arena.errors import ArenaError
from isaaclab_arena.results.merge import merge_results, write_tables
from isaaclab_arena.storage.ledger import ReportedStatus, read_run_plan
from isaaclab_arena.tracking.trackers import TrackedSeries
from isaaclab_arena.tracking.watched_run import (
    MAX_FILMS_OF_A_JOB,
    OpenedTracker,
    WatchedRun,
    export_mlflow,
    export_wandb,
)
from tests.results.evidence import commit_lines, planned, report, write_lines, write_plan, write_report
from tests.tracking.runs import NotingTracker, finished_run, points, series_run, stopped_run, write_film


def watched(directory, *trackers) -> WatchedRun:
    opened = [OpenedTracker(f"tracker {number}", lambda each=each: each) for number, each in enumerate(trackers)]
    return WatchedRun(directory, read_run_plan(directory), opened)


def test_each_look_tells_how_a_job_stands_and_only_what_is_new(tmp_path):
    write_plan(tmp_path, planned("lift", num_episodes=5), planned("still", index=1))
    tracker = NotingTracker()
    run = watched(tmp_path, tracker)
    run.look()
    assert (tracker.jobs, tracker.tables) == ([], [])
    write_lines(tmp_path, commit_lines("sf"))
    for _ in range(2):
        run.look()
    write_lines(tmp_path, commit_lines("sst", first=2))
    run.look()
    assert [(each.job, each.episodes) for each in tracker.jobs] == [("lift", 2), ("lift", 5)]
    values = tracker.jobs[1].values
    assert (values["success_rate"], values["failures"], values["timeouts"]) == (pytest.approx(0.6), 1, 1)
    assert values["success_low"] < 0.6 < values["success_high"]


@pytest.mark.parametrize("status", [ReportedStatus.COMPLETED, ReportedStatus.FAILED])
def test_a_row_is_told_when_its_job_has_ended(tmp_path, status):
    write_plan(tmp_path, planned("lift", num_episodes=2), planned("still", index=1, num_episodes=2))
    write_lines(tmp_path, commit_lines("sf"))
    write_lines(tmp_path, commit_lines("s", job="still"))
    tracker = NotingTracker()
    run = watched(tmp_path, tracker)
    write_report(tmp_path, report(status=status))
    run.look()
    [[row]] = tracker.tables
    assert (row["name"], row["status"], row["successes"]) == ("lift", status, 1)


def test_at_its_end_a_run_has_told_its_table_its_curve_and_each_film_of_a_failure_once(tmp_path):
    tracker = NotingTracker()
    run = watched(finished_run(tmp_path), tracker)
    run.look()
    run.finish()
    assert tracker.is_closed
    rows = tracker.tables[-1]
    assert rows[0]["sweep.policy_config_dict.checkpoint_path"] == "runs/model_100.pt"
    write_tables(tmp_path, merge_results(tmp_path))
    table = pd.read_csv(tmp_path / "results.csv")
    numbers = ["episodes", "success_rate", "success_low", "success_high", "mean_length"]
    assert [row["name"] for row in rows] == list(table["name"]) == ["early", "late.v2"]
    told = [[row[name] for name in numbers] for row in rows]
    assert table[numbers].to_numpy(dtype=float) == pytest.approx(np.array(told, dtype=float))
    points = [(each.series, each.step, each.values["success_rate"]) for each in tracker.checkpoints]
    assert points == [("lift_object", 100, pytest.approx(2 / 3)), ("lift_object", 200, 1.0)]
    [film] = tracker.films
    assert (film.job, film.episode_index, film.outcome) == ("early", 1, "failure")


def test_films_that_are_complete_after_their_episodes_are_told_at_the_end_and_few_of_them(tmp_path):
    write_plan(tmp_path, planned("lift", num_episodes=12))
    write_lines(tmp_path, commit_lines("f" * 12))
    tracker = NotingTracker()
    run = watched(tmp_path, tracker)
    run.look()
    for index in range(12):
        write_film(tmp_path, "lift", index, num_frames=1)
    run.finish()
    assert len({film.path.name for film in tracker.films}) == len(tracker.films) == MAX_FILMS_OF_A_JOB
    assert tracker.films[0].path.name == "viewport-env0-episode-0.mp4"


def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on(tmp_path, caplog):
    broken, sound = NotingTracker(broken="no route to host\nand more"), NotingTracker()
    watched(finished_run(tmp_path), broken, sound).finish()
    [warning] = caplog.messages
    assert warning.startswith("tracker 0 gets no")
    assert warning.endswith(": no route to host")
    assert (broken.is_closed, len(sound.jobs), sound.is_closed) == (False, 2, True)


@pytest.mark.parametrize("episodes", [8, 12])
def test_a_job_that_stopped_at_its_answer_is_complete_and_has_the_rate_of_its_row(tmp_path, episodes):
    stopped_run(tmp_path, episodes=episodes)
    tracker = NotingTracker()
    watched(tmp_path, tracker).look()
    [rows] = tracker.tables
    told = [(row["name"], row["status"], row["episodes"], row["decided_at"]) for row in rows]
    assert told == [("new", "completed", 7, 7), ("old", "completed", 7, 7)]
    assert rows[0]["decision"] == "better: new is better than old"
    for row in rows:
        last = [each for each in tracker.jobs if each.job == row["name"]][-1]
        assert (last.episodes, last.values["success_low"]) == (7, row["success_low"])


# What W&B and MLflow are told, by fakes of their surface, where the libraries are not installed.


class Service(ModuleType):
    """A library that is not installed here, with what is used of it."""

    def __init__(self, name: str, **surface: Any) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)
        vars(self).update(surface)


class Wandb:
    """Keeps how a run of W&B was begun, and what is logged in it."""

    url = None
    settings = SimpleNamespace(sync_dir="offline-run")

    def __init__(self, *, has_key: bool, mode: str = "online", error: str | None = None) -> None:
        self.begun, self.axes, self.is_finished = {}, {}, False
        self.history: list[dict[str, Any]] = []
        self._has_key, self._mode, self._error = has_key, mode, error

    def setup(self, settings: Any) -> Any:
        return SimpleNamespace(settings=SimpleNamespace(mode=self._mode, project=None))

    def login(self, *, prompt: bool, verify: bool) -> bool:
        assert not prompt, "a run has no user who types a key"
        assert not verify, "a server that is away must not stop a run"
        return self._has_key

    def init(self, **begun: Any) -> "Wandb":
        if self._error is not None:
            raise RuntimeError(self._error)
        self.begun = begun
        return self

    def define_metric(self, name: str, step_metric: str | None = None, *, hidden: bool = False) -> None:
        self.axes[name] = step_metric

    def log(self, values: dict[str, Any]) -> None:
        self.history.append(values)

    def finish(self) -> None:
        self.is_finished = True

    def module(self) -> Service:
        kept = {"Settings": dict, "Video": lambda path, **said: path, "Table": lambda **said: said}
        return Service("wandb", setup=self.setup, login=self.login, init=self.init, **kept)


class Mlflow:
    """Keeps the runs of an MLflow store, and returns one of them a page."""

    def __init__(self, server: str | None = None) -> None:
        self.server, self.uri = server, ""
        self.runs: dict[str, Any] = {}
        self.num_searches = 0
        self.metrics: list[tuple[str, str, float, int]] = []
        self.files: list[tuple[str, str]] = []
        self.ended: list[str] = []

    def connect(self, tracking_uri: str) -> "Mlflow":
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str, location: str | None) -> str:
        return name

    def search_runs(self, experiments: Sequence[str], *, page_token: str | None = None, **how: Any) -> Any:
        self.num_searches += 1
        found, at = list(self.runs.values()), int(page_token or 0)
        page = type("Page", (list,), {"token": str(at + 1) if at + 1 < len(found) else None})
        return page(found[at : at + 1])

    def create_run(self, experiment: str, *, tags: dict[str, str], run_name: str) -> Any:
        data = SimpleNamespace(tags={**tags, "experiment": experiment}, params={})
        self.runs[run_name] = SimpleNamespace(info=SimpleNamespace(run_id=run_name), data=data)
        return self.runs[run_name]

    def log_param(self, run: str, key: str, value: str) -> None:
        self.runs[run].data.params[key] = value

    def log_metric(self, run: str, name: str, value: float, *, step: int) -> None:
        self.metrics.append((run, name, value, step))

    def log_artifact(self, run: str, path: str, directory: str) -> None:
        self.files.append((run, f"{directory}/{path.rpartition('/')[2]}"))

    def log_dict(self, run: str, table: dict[str, Any], name: str) -> None:
        assert set(table) == {"columns", "data"}
        self.files.append((run, name))

    def set_tag(self, run: str, key: str, value: str) -> None:
        self.runs[run].data.tags[key] = value

    def set_terminated(self, run: str) -> None:
        self.ended.append(run)

    def module(self) -> Service:
        return Service(
            "mlflow",
            is_tracking_uri_set=lambda: self.server is not None,
            get_tracking_uri=lambda: self.server,
            environment_variables=SimpleNamespace(MLFLOW_EXPERIMENT_NAME=SimpleNamespace(get=lambda: None)),
            MlflowClient=self.connect,
        )


@pytest.fixture
def install(monkeypatch):
    def put(module: Service) -> None:
        if importlib.util.find_spec(module.__name__) is not None:
            pytest.skip(f"{module.__name__} itself is installed here, and tested")
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return put


@pytest.mark.parametrize(
    ("has_key", "asked", "mode"),
    [
        (True, "online", "online"),
        (False, "online", "offline"),
        (True, "offline", "offline"),
        (False, "disabled", "disabled"),
    ],
)
def test_wandb_gets_rates_films_and_the_table_and_sends_only_with_a_key(install, tmp_path, has_key, asked, mode):
    service = Wandb(has_key=has_key, mode=asked)
    install(service.module())
    assert export_wandb(finished_run(tmp_path / "run"), tmp_path / "there") == ["wandb sync offline-run"]
    assert (service.begun["mode"], service.begun["id"]) == (mode, "run")
    assert service.begun["resume"] == ("allow" if mode == "online" else None)
    assert "hush" not in str(service.begun)
    told = service.history
    [early] = [line for line in told if "early/success_rate" in line]
    assert (early["early/success_rate"], early["early/episodes"]) == (pytest.approx(2 / 3), 4)
    assert [line["checkpoint_step"] for line in told if "checkpoint_step" in line] == [100, 200]
    [film] = [line["early/films"] for line in told if "early/films" in line]
    assert film.endswith("/viewport-env1-episode-1.mp4")
    assert "success_rate" in told[-1]["jobs"]["columns"]
    assert (service.axes["early/*"], service.is_finished) == ("early/episodes", True)


@pytest.mark.parametrize(("has_key", "resume", "told"), [(True, "allow", [100, 200]), (False, None, [100, 100, 200])])
def test_wandb_goes_on_in_the_run_of_a_watch_with_the_points_that_its_server_does_not_have(
    install, tmp_path, has_key, resume, told
):
    service, ids = Wandb(has_key=has_key), set()
    install(service.module())
    for steps in ((100,), (100, 200)):
        TrackedSeries(["wandb"], record=tmp_path / "told.json").tell(series_run(tmp_path), points(*steps))
        ids.add((service.begun["id"], service.begun["resume"]))
    assert [each for _, each in ids] == [resume]
    assert service.axes["checkpoints/*"] == "checkpoint_step"
    assert [line["checkpoint_step"] for line in service.history] == told


def test_an_export_that_the_service_refuses_is_an_error(install, tmp_path, capsys):
    install(Wandb(has_key=True, error="it is read-only").module())
    with pytest.raises(ArenaError, match=r"wandb .*: it is read-only"):
        export_wandb(finished_run(tmp_path / "run"), tmp_path / "there")
    assert main(["export", str(tmp_path / "run"), "--wandb"]) == 1
    assert "it is read-only" in capsys.readouterr().err


@pytest.mark.parametrize("server", [None, "http://mlflow.example"])
def test_mlflow_gets_a_run_for_each_job_below_that_of_the_whole_and_goes_on_in_them(install, tmp_path, capsys, server):
    service, command = Mlflow(server), ["export", str(finished_run(tmp_path / "run")), "--mlflow"]
    install(service.module())
    assert main([*command, "--output", str(tmp_path / "there")]) == 0
    assert service.uri == (server or f"sqlite:///{tmp_path / 'there' / 'mlflow' / 'mlflow.db'}")
    assert service.uri in capsys.readouterr().out
    assert [run.data.tags.get("mlflow.parentRunId") for run in service.runs.values()] == [None, "run", "run"]
    params = service.runs["early"].data.params
    assert params["policy_config_dict.checkpoint_path"] == "runs/model_100.pt"
    assert params["arena_env_args.environment"] == "lift_object"
    assert "hush" not in str(service.runs)
    assert ("early", "success_rate", pytest.approx(2 / 3), 4) in service.metrics
    assert ("run", "checkpoints/lift_object/success_rate", 1.0, 200) in service.metrics
    assert service.files == [("early", "films/viewport-env1-episode-1.mp4"), ("run", "jobs.json")]
    assert sorted(service.ended) == ["early", "late.v2", "run"]
    assert service.num_searches == 1
    export_mlflow(tmp_path / "run", tmp_path)
    assert len(service.runs) == 3
    assert service.num_searches == 1 + 3
