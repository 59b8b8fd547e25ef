"""What runs in the preloaded interpreter cannot tell it from the usual one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isaaclab_arena.distributed.context import process_start_ticks
from tests.end_to_end.launching import environment, wait_until
from tests.preloaded.interpreter import preloaded_python

pytestmark = pytest.mark.skipif(preloaded_python() == sys.executable, reason="Linux only")

TELLING = """
import json, os, sys, tempfile
told = {"words": sys.argv[1:], "file": sys.argv[0], "variable": os.environ.get("MINE"), "directory": os.getcwd(),
        "read": sys.stdin.read(),
        "first": sys.path[0],
        "temporary": tempfile.gettempdir(), "name": __name__, "umask": os.umask(0), "loaded": "torch" in sys.modules,
        "descriptors": len(os.listdir("/proc/self/fd"))}
json.dump(told, sys.stdout)
print("to the other stream", file=sys.stderr)
"""
WAITING = """
import os, pathlib, signal, sys, time
pathlib.Path("pid").write_text(str(os.getpid()))
try:
    while True:
        time.sleep(0.01)
except KeyboardInterrupt:
    sys.exit(41)
"""


ENDING_LATE = """
import atexit, threading, time
atexit.register(print, "last")
print("main")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
"""


def a_program(directory: Path, text: str) -> list[str]:
    (directory / "eval_runner.py").write_text(text)
    return ["-m", "eval_runner"]


def a_script(directory: Path, text: str, name: str = "program.py") -> list[str]:
    (directory / "parts").mkdir(exist_ok=True)
    (directory / "parts" / "neighbour.py").write_text("")
    (directory / "parts" / name).write_text(f"import neighbour\n{text}")
    return [f"parts/{name}"]


def a_directory(directory: Path, text: str) -> list[str]:
    a_script(directory, text, "__main__.py")
    return [str(directory / "parts")]


def run(python: str, program: list[str], directory: Path, **options) -> subprocess.CompletedProcess[str]:
    options = {"env": environment({"PYTHONPATH": ""}), **options}
    return subprocess.run(
        [python, *program], cwd=directory, capture_output=True, text=True, check=False, timeout=60, **options
    )


@pytest.mark.parametrize("asked_for", [a_program, a_script, a_directory])
def test_a_program_has_what_it_would_have_had(tmp_path, asked_for):
    variables = {"PYTHONPATH": "", "MINE": "yes", "TMPDIR": str(tmp_path)}
    options = {"input": "some text", "env": environment(variables), "umask": 0o27}
    program = [*asked_for(tmp_path, TELLING), "--one", "two words"]
    quick, usual = (run(python, program, tmp_path, **options) for python in (preloaded_python(), sys.executable))
    told, expected = json.loads(quick.stdout), json.loads(usual.stdout)
    assert (told.pop("loaded"), expected.pop("loaded")) == (True, False)
    assert told == expected
    assert (quick.stderr, quick.returncode) == (usual.stderr, usual.returncode)


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "raise SystemExit('a reason')",
        "raise KeyboardInterrupt",
        "import os; os._exit(9)",
        "import os; os.kill(os.getpid(), 9)",
        ENDING_LATE,
    ],
)
def test_it_ends_as_it_would_have_ended(tmp_path, text):
    program = a_program(tmp_path, text)
    quick, usual = (run(python, program, tmp_path) for python in (preloaded_python(), sys.executable))
    assert (quick.returncode, quick.stdout) == (usual.returncode, usual.stdout)
    assert quick.stderr.splitlines()[-1:] == usual.stderr.splitlines()[-1:]


def started(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    (directory / "pid").unlink(missing_ok=True)
    process = subprocess.Popen([preloaded_python(), *a_program(directory, WAITING)], cwd=directory)
    wait_until(lambda: (directory / "pid").is_file() and (directory / "pid").read_text() != "")
    return process, int((directory / "pid").read_text())


def test_a_signal_that_its_process_is_sent_is_heard_and_one_that_kills_either_ends_the_other(tmp_path):
    process, _ = started(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 41
    process, pid = started(tmp_path)
    process.kill()
    process.wait(timeout=60)
    wait_until(lambda: process_start_ticks(pid) is None)
    process, pid = started(tmp_path)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL


def test_anything_else_runs_in_the_usual_interpreter(tmp_path):
    words = ["-c", "import sys; print('torch' in sys.modules)"]
    quick, usual = (run(python, words, tmp_path) for python in (preloaded_python(), sys.executable))
    assert (quick.stdout, usual.stdout) == ("False\n", "False\n")
