"""What runs in the preloaded interpreter cannot tell it from the usual one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.launching import environment, patience_s, wait_until
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


def a_program(directory: Path, text: str) -> list[str]:
    (directory / "eval_runner.py").write_text(text)
    return ["-m", "eval_runner"]


def run(
    directory: Path,
    text: str,
    *words: str,
    python: str | None = None,
    asked_for: Callable[[Path, str], list[str]] = a_program,
    **options,
) -> subprocess.CompletedProcess[str]:
    command = [python or preloaded_python(), *asked_for(directory, text), *words]
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False, timeout=patience_s(60),
        **{"env": environment({"PYTHONPATH": ""}), **options},
    )  # fmt: skip


def started(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen([preloaded_python(), *a_program(directory, WAITING)], cwd=directory)
    wait_until(lambda: (directory / "pid").is_file() and (directory / "pid").read_text() != "")
    return process, int((directory / "pid").read_text())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def a_script(directory: Path, text: str) -> list[str]:
    (directory / "scripts").mkdir(exist_ok=True)
    (directory / "scripts" / "neighbour.py").write_text("")
    (directory / "scripts" / "program.py").write_text(f"import neighbour\n{text}")
    return ["scripts/program.py"]


def a_directory(directory: Path, text: str) -> list[str]:
    (directory / "parts").mkdir(exist_ok=True)
    (directory / "parts" / "neighbour.py").write_text("")
    (directory / "parts" / "__main__.py").write_text(f"import neighbour\n{text}")
    return [str(directory / "parts")]


@pytest.mark.parametrize("asked_for", [a_program, a_script, a_directory])
def test_a_program_has_what_it_would_have_had(tmp_path, asked_for):
    variables = {"PYTHONPATH": "", "MINE": "yes", "TMPDIR": str(tmp_path)}
    options = {"input": "some text", "env": environment(variables), "umask": 0o27}
    quick, usual = (
        run(tmp_path, TELLING, "--one", "two words", python=python, asked_for=asked_for, **options)
        for python in (preloaded_python(), sys.executable)
    )
    told, expected = json.loads(quick.stdout), json.loads(usual.stdout)
    assert told.pop("loaded")
    assert not expected.pop("loaded")
    assert told == expected
    assert (quick.stderr, quick.returncode) == (usual.stderr, usual.returncode)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 / 0",
        "raise SystemExit(3)",
        "raise SystemExit('a reason')",
        "raise KeyboardInterrupt",
        "import os; os._exit(9)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.abort()",
    ],
)
def test_it_ends_as_it_would_have_ended(tmp_path, text):
    quick, usual = (run(tmp_path, text, python=python) for python in (preloaded_python(), sys.executable))
    assert quick.returncode == usual.returncode
    assert quick.stderr.splitlines()[-1:] == usual.stderr.splitlines()[-1:]


def test_what_is_registered_for_the_end_happens(tmp_path):
    text = "import atexit, threading, time\natexit.register(print, 'last')\n"
    text += "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\nprint('main')\n"
    assert run(tmp_path, text).stdout.split() == ["main", "thread", "last"]


def test_a_signal_that_its_process_is_sent_is_heard(tmp_path):
    process, _ = started(tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 41


def test_when_its_process_is_killed_it_is_gone(tmp_path):
    process, pid = started(tmp_path)
    process.kill()
    process.wait(timeout=60)
    wait_until(lambda: not is_running(pid))


def test_when_it_is_killed_its_process_ended_by_that_signal(tmp_path):
    process, pid = started(tmp_path)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL


def test_when_who_started_it_is_killed_it_has_another_parent(tmp_path):
    program = [preloaded_python(), *a_program(tmp_path, WAITING)]
    starter = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({program!r})"], cwd=tmp_path, start_new_session=True
    )
    wait_until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text() != "")
    pid = int((tmp_path / "pid").read_text())
    parent = parent_of(pid)
    starter.kill()
    starter.wait(timeout=60)
    wait_until(lambda: parent_of(pid) != parent)
    os.kill(pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("words", [["-c", "import sys; print('torch' in sys.modules)"], ["-m", "json.tool", "--help"]])
def test_anything_else_runs_in_the_usual_interpreter(words):
    quick, usual = (
        subprocess.run([python, *words], capture_output=True, text=True, check=True)
        for python in (preloaded_python(), sys.executable)
    )
    assert quick.stdout == usual.stdout
