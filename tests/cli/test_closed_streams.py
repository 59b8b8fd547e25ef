"""Every command without a standard stream, as after ``>&-``, or with one that takes nothing."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import COMMANDS, commands_of_others
from tests.end_to_end.launching import environment, write_jobs
from tests.preloaded.interpreter import preloaded_python

PROGRAM = ["-m", "isaaclab_arena.cli"]
SHORT = {"arena_env_args": {"environment": "cartpole"}, "num_episodes": 2}
JOBS = [
    {"name": "still", "policy_type": "zero_action", **SHORT},
    {"name": "wild", "policy_type": "random_action", **SHORT},
]
TYPED = {
    "run": (["--eval_jobs_config", "jobs.json", "--output_dir", "another", "--no_report"], 0),
    "resume": (["out"], 0),
    "validate": (["jobs.json"], 0),
    "compare": (["out", "--baseline", "still", "--output_dir", "compared"], 4),
    "leaderboard": (["out"], 0),
    "list": (["environments"], 0),
    "report": (["out"], 0),
    "merge": (["out"], 0),
    "replay": (["out/still/dataset_still.hdf5", "--episodes", "0"], 0),
    "recover": (["out"], 2),
    "doctor": (["--json"], 0),
}
"""What is typed after the name of a command, and its exit code; the others show their help."""

HELP = """
import os, sys
from isaaclab_arena.cli.main import main
for name in sys.argv[1:]:
    # The command before has opened what is missing.
    if sys.stdout is not None:
        os.close(sys.stdout.fileno())
        sys.stdout = None
    try:
        code = main([name, "--help"])
    except SystemExit as ended:
        code = ended.code
    sys.stderr.write(f"{name}: {code}\\n")
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """Return a directory with a job file and its run, which began without any stream."""
    path = tmp_path_factory.mktemp("closed")
    write_jobs(path / "jobs.json", JOBS)
    run = [*PROGRAM, "run", "--eval_jobs_config", "jobs.json", "--output_dir", "out"]
    assert typed(path, run, closed=(0, 1, 2), python=sys.executable)[0] == 0
    # It writes what others write, and nothing into its files.
    results = json.loads((path / "out" / "results.json").read_text())
    assert [job["status"] for job in results["jobs"]] == ["completed", "completed"]
    assert (path / "out" / "report.html").read_text().startswith("<!")
    return path


def typed(
    directory: Path, words: Sequence[str], *, closed: Sequence[int], stdout: str = "", python: str | None = None
) -> tuple[int, str]:
    """Have an interpreter, the preloaded one unless another is named, run a program; return exit code and stderr."""
    streams = [*(f"{number}>&-" for number in closed), f">{stdout}" if stdout else ""]
    finished = subprocess.run(
        ["bash", "-c", f'exec "$@" {" ".join(streams)}', "bash", python or preloaded_python(), *words],
        cwd=directory,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    return finished.returncode, finished.stderr


@pytest.mark.parametrize("name", TYPED)
def test_a_command_without_stdin_and_stdout_does_its_work(name, directory):
    words, expected = TYPED[name]
    code, told = typed(directory, [*PROGRAM, name, *words], closed=(0, 1))
    assert (code, "Traceback" in told) == (expected, False), told


def test_every_command_shows_its_help_to_nobody(directory):
    names = [*COMMANDS, *(name for name, _ in commands_of_others())]
    (directory / "help.py").write_text(HELP)
    code, told = typed(directory, ["help.py", *names], closed=(0, 1))
    assert (code, told.splitlines()) == (0, [f"{name}: 0" for name in names])


@pytest.mark.parametrize("words", [(), ("nonsense",), ("validate", "absent.json")])
def test_a_mistake_without_any_stream_has_its_exit_code(words, directory):
    assert typed(directory, [*PROGRAM, *words], closed=(0, 1, 2)) == (2, "")


@pytest.mark.parametrize("module", ["isaaclab_arena.evaluation.eval_runner", "eval_runner"])
def test_a_runner_without_stdout_completes(module, directory, tmp_path):
    words = ["--eval_jobs_config", "jobs.json", "--output_dir", str(tmp_path), "--no_report"]
    code, told = typed(directory, ["-m", module, *words], closed=(0, 1))
    assert (code, "Traceback" in told) == (0, False), told


@pytest.mark.parametrize("words", [("--help",), ("validate", "jobs.json"), ("merge", "out")])
def test_a_stdout_that_takes_nothing_is_told_in_one_line(words, directory):
    told = typed(directory, [*PROGRAM, *words], closed=(), stdout="/dev/full")
    assert told == (1, "cannot write to stdout: No space left on device\n")
