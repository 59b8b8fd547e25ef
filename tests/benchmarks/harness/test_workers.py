import os
import subprocess
import sys

import pytest

from benchmarks import ROOT
from benchmarks.harness.workers import Worker, module

PROGRAM = """
from benchmarks.harness.workers import serve
print("a library says hello")
serve({"ready": True}, lambda a, b: {"sum": a + b})
"""


def test_a_worker_answers_each_request_and_ends_with_its_input():
    worker = Worker([sys.executable, "-c", PROGRAM], os.environ)
    assert worker.answer() == {"ready": True}
    worker.ask(1, 2)
    assert worker.answer() == {"sum": 3}
    worker.close()
    with pytest.raises(RuntimeError, match="ended with 0 without an answer"):
        worker.answer()


def test_waiting_processes_load_nothing_heavy_by_the_harness():
    program = "import sys, benchmarks.harness.workers, benchmarks.harness.measure;"
    heavy = "sys.exit(bool({'torch', 'numpy', 'mujoco'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program + heavy], cwd=ROOT, check=False).returncode == 0


def test_a_module_is_run_by_this_interpreter():
    assert module("a.b", "--number", 1) == [sys.executable, "-m", "a.b", "--number", "1"]
