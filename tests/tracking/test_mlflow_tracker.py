"""Tests of MLflow runs, read back by its own ``search_runs``."""

import json
from pathlib import Path

import pytest

from isaaclab_arena.tracking.trackers import CheckpointMeasures, TrackedSeries
from isaaclab_arena.tracking.watched_run import export_mlflow
from tests.tracking.runs import finished_run, series_run

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


@pytest.fixture(scope="module", params=["database", "file store"])
def client(request, tmp_path_factory):
    """Send a run to the database that is the default, or to the store of files that a user names."""
    directory = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{directory / 'there' / 'mlflow' / 'mlflow.db'}"
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
            patch.delenv(name, raising=False)
        if request.param == "file store":
            uri = (directory / "store").as_uri()
            patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
            patch.setenv("MLFLOW_TRACKING_URI", uri)
        finished_run(directory / "run")
        # What is sent again goes on in the same runs.
        for _ in range(2):
            export_mlflow(directory / "run", directory / "there")
        yield mlflow.MlflowClient(tracking_uri=uri)


def runs(client):
    experiment = client.get_experiment_by_name("isaaclab_arena")
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


def test_each_job_is_one_run_below_that_of_the_whole_with_its_rate(client):
    experiment = client.get_experiment_by_name("isaaclab_arena").experiment_id
    found = runs(client)
    assert len(client.search_runs([experiment])) == 3
    assert set(found) == {"run", "early", "late.v2"}
    early = found["early"]
    assert early.data.tags["mlflow.parentRunId"] == found["run"].info.run_id
    assert (early.info.status, early.data.tags["status"]) == ("FINISHED", "completed")
    assert early.data.params["policy_config_dict.checkpoint_path"] == "runs/model_100.pt"
    assert "hush" not in str(found["late.v2"].data.params)
    rate, _ = client.get_metric_history(early.info.run_id, "success_rate")
    assert (rate.step, rate.value) == (4, pytest.approx(2 / 3))
    assert early.data.metrics["success_low"] < 2 / 3 < early.data.metrics["success_high"]
    [best] = client.search_runs([experiment], filter_string="metrics.success_rate > 0.9")
    assert best.info.run_name == "late.v2"


def test_checkpoints_are_a_curve_and_films_of_failures_and_the_table_are_files(client):
    found = {name: run.info.run_id for name, run in runs(client).items()}
    points = client.get_metric_history(found["run"], "checkpoints/lift_object/success_rate")
    assert {(each.step, each.value) for each in points} == {(100, 2 / 3), (200, 1.0)}
    [film] = client.list_artifacts(found["early"], "films")
    assert film.path == "films/viewport-env1-episode-1.mp4"
    table = json.loads(Path(client.download_artifacts(found["run"], "jobs.json")).read_text())
    assert [row[table["columns"].index("name")] for row in table["data"]] == ["early", "late.v2"]


def test_a_curve_that_is_told_again_has_each_point_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    for steps in ((200,), (100, 200)):
        points = [CheckpointMeasures(series="reach", step=step, values={"success_rate": 0.5}) for step in steps]
        series = TrackedSeries(["mlflow"], record=tmp_path / "told.json")
        series.tell(series_run(tmp_path), points)
    client = mlflow.MlflowClient()
    whole = runs(client)["watch"].info.run_id
    told = client.get_metric_history(whole, "checkpoints/reach/success_rate")
    assert sorted(each.step for each in told) == [100, 200]


def test_an_evaluation_of_more_runs_than_a_page_of_the_store_goes_on_in_the_same_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    asked, search_runs = [], mlflow.MlflowClient.search_runs

    def one_by_one(client, *arguments, max_results=1, **options):
        asked.append(max_results)
        return search_runs(client, *arguments, max_results=1, **options)

    finished_run(tmp_path / "run")
    export_mlflow(tmp_path / "run", tmp_path)
    monkeypatch.setattr(mlflow.MlflowClient, "search_runs", one_by_one)
    export_mlflow(tmp_path / "run", tmp_path)
    monkeypatch.undo()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("isaaclab_arena")
    assert len(client.search_runs([experiment.experiment_id])) == 3
    assert len(asked) == 3, "each page was asked for once, and not for each job"
