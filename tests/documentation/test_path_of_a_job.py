"""The path from `jobs.json` to `results.csv` that docs/concepts/architecture.md shows is the one that a run takes."""

import importlib
import json
import re
import sys
import threading
from functools import reduce
from pathlib import Path

import pytest

from isaaclab_arena.evaluation.eval_runner import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
PATH = re.findall(r"^\| `([a-z0-9_/]+\.py)` \| `([A-Za-z_.]+)` \| .+ \|$", PAGE, re.MULTILINE)
MOST_FILES = 60
JOB = {
    "name": "balance",
    "arena_env_args": {"environment": "cartpole", "num_envs": 2},
    "policy_type": "zero_action",
    "num_episodes": 2,
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Every function of the package that a run of one job calls, in the order of first calls."""
    directory = tmp_path_factory.mktemp("path")
    job_file = directory / "jobs.json"
    job_file.write_text(json.dumps({"jobs": [JOB]}))
    seen: dict[tuple[str, str], None] = {}

    def note(frame, event, _):
        if event == "call":
            seen.setdefault((frame.f_code.co_filename, frame.f_code.co_qualname))

    before = sys.getprofile()
    # A dataset is made in a thread of its own.
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        code = main(["--eval_jobs_config", str(job_file), "--output_dir", str(directory / "run"), "--device", "cpu"])
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert code == 0
    assert (directory / "run" / "results.csv").is_file()
    return list(seen)


def called(file: str, name: str) -> tuple[str, str]:
    """Return what the profiler says of a function that the page names, as Python finds it."""
    module = importlib.import_module(f"isaaclab_arena.{file.removesuffix('.py').replace('/', '.')}")
    function = reduce(getattr, name.split("."), module)
    code = getattr(function, "__wrapped__", function).__code__
    return code.co_filename, code.co_qualname


def test_a_run_calls_what_the_page_names_in_its_order(calls):
    places = [calls.index(called(file, name)) for file, name in PATH]
    assert len(PATH) > 30
    assert places == sorted(places)


def test_the_path_is_short():
    assert len({file for file, _ in PATH}) <= MOST_FILES
