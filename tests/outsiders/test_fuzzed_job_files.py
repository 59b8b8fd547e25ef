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


def seeds(first: int, end: int, at_once: int, *marks: pytest.MarkDecorator) -> list:
    return [pytest.param(range(seed, seed + at_once), marks=marks, id=str(seed)) for seed in range(first, end, at_once)]


@pytest.mark.parametrize("seeds", [*seeds(0, 100, 100), *seeds(1_000, 21_000, 2_000, pytest.mark.slow)])
def test_a_job_file_drawn_at_random_is_read_or_refused(seeds, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = [check(seed, tmp_path, capsys) for seed in seeds]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB
    # A generator of files that are all wrong at once would test nothing but the first check.
    assert 0.5 < sum(refused) / len(refused) < 0.95


def test_a_seed_gives_one_file_and_others_other_files():
    assert JobFileGenerator(7).file() == JobFileGenerator(7).file()
    assert len({JobFileGenerator(seed).file() for seed in range(50)}) == 50
