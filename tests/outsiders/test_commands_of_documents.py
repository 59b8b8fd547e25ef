"""Commands of the documents, with the servers and the clients of other packages at their other end."""

import http.client
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.documentation.reading import as_arguments, blocks, commands_of
from tests.end_to_end.launching import ROOT, command, free_port, jobs_table, patience_s, run, start, wait_until
from tests.gr00t.policy import test_openpi_own_server
from tests.outsiders import test_vla_eval_model_servers

OPENPI_PYTHON = os.environ.get("OPENPI_PYTHON", "")
VLA_EVAL_PYTHON = os.environ.get("VLA_EVAL_PYTHON", "")

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]


@contextmanager
def openpi_server() -> Iterator[str]:
    with test_openpi_own_server.server("still") as (port, _):
        yield str(port)


@contextmanager
def vla_eval_server() -> Iterator[str]:
    with test_vla_eval_model_servers.server("still") as address:
        yield address.rpartition(":")[2]


def without(python: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not python, reason=f"{package}'s interpreter is missing: make test-benchmarks makes it")


@pytest.mark.parametrize(
    ("page", "server"),
    [
        pytest.param("openpi", openpi_server, marks=without(OPENPI_PYTHON, "openpi")),
        pytest.param("vla_eval", vla_eval_server, marks=without(VLA_EVAL_PYTHON, "vla-eval")),
    ],
)
def test_the_job_of_a_page_runs_with_a_server_of_the_package(
    tmp_path: Path, page: str, server: Callable[[], AbstractContextManager[str]]
):
    document = (ROOT / "docs" / "bring_your_policy" / f"{page}.md").read_text()
    job_file, lines = blocks(document, "yaml")[0], [line for line in commands_of(document) if ".yaml" in line]
    name = job_file.splitlines()[0].removeprefix("# ")
    with server() as port:
        # At the server's port, and in a short while.
        short = job_file.replace("8000", port).replace("num_episodes: 20", "num_steps: 20")
        (tmp_path / name).write_text(short.replace("num_envs: 4", "num_envs: 2"))
        for line in lines:
            done = run(as_arguments(line), timeout_s=patience_s(300), directory=tmp_path)
            assert done.returncode == 0, done.stderr
    [output] = (tmp_path / "outputs").iterdir()
    assert jobs_table(output)["status"].tolist() == ["completed"]


def is_well(port: int) -> bool:
    try:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
        client.request("GET", "/health")
        return client.getresponse().status == 200
    except OSError:
        return False


@without(VLA_EVAL_PYTHON, "vla-eval")
def test_a_policy_that_the_document_serves_acts_for_vla_evals_own_connection(tmp_path: Path):
    document = (ROOT / "docs" / "how_to" / "serving.md").read_text()
    [line] = [line for line in commands_of(document) if line.startswith("isaaclab-arena serve rsl_rl")]
    port = free_port()
    words = [*shlex.split(line)[2:], "--port", str(port)]
    process = start(command(*words, module=["-m", "isaaclab_arena_gr00t.serving.serve"]), tmp_path / "log")
    try:
        wait_until(lambda: is_well(port), timeout_s=patience_s(120.0))
        script = str(Path(__file__).with_name("vla_eval_arrays_client.py"))
        asked = subprocess.run(
            [VLA_EVAL_PYTHON, script, f"ws://127.0.0.1:{port}"], check=True, capture_output=True, text=True, timeout=600
        )
    finally:
        process.terminate()
        process.wait(patience_s(30.0))
    actions = json.loads(asked.stdout.splitlines()[-1])
    # The network remembers nothing, and sees the same in each step.
    assert actions[0] == actions[1] == actions[2]
    assert any(actions[0])
