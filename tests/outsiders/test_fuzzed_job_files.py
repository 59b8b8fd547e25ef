"""Whatever a job file holds, it is read or refused with its name, in bounded time and memory, and nothing runs."""

import json
import resource
import signal
import unicodedata
from pathlib import Path

import pytest

from isaaclab_arena.cli.main import main
from tests.outsiders.job_file_generator import JobFileGenerator

CPU_S = 60
MEMORY_KIB = 1 << 20
MAX_PROBLEMS_SHOWN = 20


class TooLongError(BaseException):
    """A file took more than a minute of processor time; no ``except`` of the program may catch it."""


def _too_long(*_: object) -> None:
    raise TooLongError


def validated(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    """Return the exit code of the command that checks job files, and what it prints and says."""
    before = signal.signal(signal.SIGVTALRM, _too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        code = main(["validate", str(path), "--no_import", *options])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    printed, message = capsys.readouterr()
    return code, printed, message


def check(seed: int, directory: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    """Check one file; return whether it was refused."""
    suffix, content = JobFileGenerator(seed).file()
    path = directory / f"seed{seed}.{suffix}"
    path.write_bytes(content)
    try:
        code, printed, message = validated(path, capsys)
        if code == 0:
            return False
        assert (code, printed) == (2, "")
        lines = message.splitlines()
        if lines[-1].startswith("... and "):
            lines.pop()
            problems = json.loads(validated(path, capsys, "--json")[1])["problems"]
            assert {problem["file"] for problem in problems} == {str(path)}
        assert lines
        assert all(line.startswith(f"{path}: ") for line in lines)
        assert len(message) < 3_000 * (MAX_PROBLEMS_SHOWN + 1)
        assert all(unicodedata.category(character) != "Cc" or character in "\n\t" for character in message)
    except BaseException as error:
        error.add_note(f"the job file of seed {seed} is {path}")
        raise
    return True


def check_all(seeds: range, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = [check(seed, directory, capsys) for seed in seeds]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEMORY_KIB, f"seeds {seeds}"
    # A generator of files that are all wrong at once would test nothing but the first check.
    assert 0.5 < sum(refused) / len(refused) < 0.95


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_a_job_file_drawn_at_random_is_read_or_refused(first, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_all(range(first, first + 100), tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 21_000, 2_000))
def test_thousands_of_job_files_drawn_at_random_are_read_or_refused(first, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check_all(range(first, first + 2_000), tmp_path, capsys)


def test_the_same_seed_gives_the_same_file():
    assert JobFileGenerator(7).file() == JobFileGenerator(7).file()
    assert len({JobFileGenerator(seed).file() for seed in range(50)}) == 50
