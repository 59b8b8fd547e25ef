"""What docs/users/arena.md says of Isaac Lab Arena's keys is what the programs do."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from isaaclab_arena.cli.main import main
from tests.documentation.arena_page import PAGE, table
from tests.documentation.reading import blocks

JOB = {
    "name": "lift",
    "arena_env_args": {"environment": "lift_object"},
    "policy_type": "scripted",
    "num_episodes": 2,
}
FAILS = {**JOB, "name": "fails", "policy_type": "tests.fakes.ShrugPolicy", "policy_config_dict": {"raise_at": 1}}
STANDS_FOR = {
    "environment": "arena_env_args",
    "policy": "policy_type",
    "rollout_limit": "num_episodes",
    "num_steps": "num_episodes",
}
KEYS = table("Keys")


def job_with(written: str) -> dict[str, Any]:
    """Return the job with more keys, which may stand for some of its own."""
    block = yaml.safe_load(written)
    base = {key: value for key, value in JOB.items() if key not in {STANDS_FOR.get(given) for given in block}}
    inner = base.get("arena_env_args", {}), block.get("arena_env_args", {})
    return {**base, **block, **({"arena_env_args": {**inner[0], **inner[1]}} if any(inner) else {})}


def planned(directory: Path) -> list[dict[str, Any]]:
    """Return what a run makes of its jobs."""
    return [job["config"] for job in json.loads((directory / "run.json").read_text())["jobs"]]


@pytest.fixture(scope="module")
def plans(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What a run makes of the job with every key that is not refused, and with what it is taken as.

    None of them is played: the job before them fails.
    """
    directory = tmp_path_factory.mktemp("keys")
    rows = [row for row in KEYS if row.here != "refused"]
    written = ["{}", *(row.written for row in rows), *(row.equal() for row in rows if row.here == "taken as")]
    jobs = [FAILS, *({**job_with(each), "name": f"lift-{number}"} for number, each in enumerate(written))]
    (directory / "jobs.json").write_text(json.dumps({"jobs": jobs}))
    words = ["--eval_jobs_config", str(directory / "jobs.json"), "--output_dir", str(directory / "out"), "--fail_fast"]
    assert main(["run", *words]) == 1
    found = [{**config, "name": "", "index": 0} for config in planned(directory / "out")[1:]]
    return dict(zip(written, found, strict=True))


@pytest.mark.parametrize("row", KEYS, ids=lambda row: row.written)
def test_a_key_does_what_the_page_says(row, plans, tmp_path, capsys):
    if row.here == "refused":
        (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [job_with(row.written)]}))
        assert main(["validate", "--json", str(tmp_path / "jobs.json")]) == 2
        [problem] = json.loads(capsys.readouterr().out)["problems"]
        [(outer, inner)] = yaml.safe_load(row.written).items()
        assert (problem["job"], problem["key"], problem["message"]) == ("lift", f"{outer}.{next(iter(inner))}", row.how)
    elif row.here == "taken as":
        assert plans[row.written] == plans[row.equal()] != plans["{}"]
    elif row.here == "no effect":
        assert plans[row.written] == plans["{}"]
    else:
        assert row.here == "taken"
        assert plans[row.written] != plans["{}"]


def test_the_experiment_of_the_page_is_the_job_file_beside_it(tmp_path):
    for name, body in zip(("experiment", "jobs"), blocks(PAGE, "yaml"), strict=True):
        (tmp_path / f"{name}.yaml").write_text(body)
        words = ["--eval_jobs_config", str(tmp_path / f"{name}.yaml"), "--output_dir", str(tmp_path / name)]
        assert main(["run", *words, "--limit", "1", "--no_dataset", "--no_report"]) == 0
    assert planned(tmp_path / "experiment") == planned(tmp_path / "jobs")
