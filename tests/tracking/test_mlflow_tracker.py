"""Tests of MLflow runs, read back by its own ``search_runs``."""

import json
from pathlib import Path

import pytest

from isaaclab_arena.tracking.watched_run import export_mlflow
from tests.tracking.runs import finished_run

mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


@pytest.fixture(autouse=True)
def _nobodys_store(monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def runs(client):
    experiment = client.get_experiment_by_name("isaaclab_arena")
    found = client.search_runs([experiment.experiment_id])
    named = {run.info.run_name: run for run in found}
    assert len(named) == len(found)
    return named


@pytest.mark.parametrize("store", ["database", "file store"])
def test_each_job_is_one_run_below_that_of_the_whole_with_rate_films_and_table(tmp_path, monkeypatch, store):
    uri = f"sqlite:///{tmp_path / 'there' / 'mlflow' / 'mlflow.db'}"
    if store == "file store":
        uri = (tmp_path / "store").as_uri()
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    # What is sent again goes on in the same runs.
    finished_run(tmp_path / "run")
    for _ in range(2):
        export_mlflow(tmp_path / "run", tmp_path / "there")
    client = mlflow.MlflowClient(tracking_uri=uri)
    found = runs(client)
    assert set(found) == {"run", "early", "late.v2"}
    early, whole = found["early"], found["run"].info.run_id
    assert early.data.tags["mlflow.parentRunId"] == whole
    assert (early.info.status, early.data.tags["status"]) == ("FINISHED", "completed")
    assert early.data.params["policy_config_dict.checkpoint_path"] == "runs/model_100.pt"
    assert "hush" not in str(found["late.v2"].data.params)
    rate, _ = client.get_metric_history(early.info.run_id, "success_rate")
    assert (rate.step, rate.value) == (4, pytest.approx(2 / 3))
    assert early.data.metrics["success_low"] < 2 / 3 < early.data.metrics["success_high"]
    points = client.get_metric_history(whole, "checkpoints/lift_object/success_rate")
    assert {(each.step, each.value) for each in points} == {(100, 2 / 3), (200, 1.0)}
    [film] = client.list_artifacts(early.info.run_id, "films")
    assert film.path == "films/viewport-env1-episode-1.mp4"
    table = json.loads(Path(client.download_artifacts(whole, "jobs.json")).read_text())
    assert [row[table["columns"].index("name")] for row in table["data"]] == ["early", "late.v2"]
