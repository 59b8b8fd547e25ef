"""Whatever a job file holds, it is read or refused with its name, in bounded time and memory, and nothing runs."""

import resource
import signal
import unicodedata
from pathlib import Path

import pytest

from isaaclab_arena import ConfigError
from isaaclab_arena.config.loading import load_jobs_file
from isaaclab_arena.errors import MAX_PROBLEMS_SHOWN
from isaaclab_arena.evaluation.plan.validation import resolve_jobs
from isaaclab_arena.logs import plain_text
from tests.outsiders.job_file_generator import JobFileGenerator

CPU_S = 60
MEMORY_KIB = 1 << 20


class TooLongError(BaseException):
    """A file took more than a minute of processor time; no ``except`` of the program may catch it."""


def _too_long(*_: object) -> None:
    raise TooLongError


def read_and_resolve(path: Path) -> str | None:
    """Return what a job file is refused with, None where it is not."""
    before = signal.signal(signal.SIGVTALRM, _too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        jobs = load_jobs_file(path)
        resolve_jobs(jobs.jobs, file=jobs.path, may_import=False)
    except ConfigError as error:
        return "\n".join([str(error), *("a problem without a file" for each in error.problems if each.file is None)])
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return None


def check(seed: int, directory: Path) -> bool:
    """Check one file; return whether it was refused."""
    suffix, content = JobFileGenerator(seed).file()
    path = directory / f"seed{seed}.{suffix}"
    path.write_bytes(content)
    try:
        message = read_and_resolve(path)
    except BaseException as error:
        error.add_note(f"the job file of seed {seed} is {path}")
        raise
    if message is None:
        return False
    lines = message.splitlines()
    assert str(path) in lines[0], f"seed {seed}: {message}"
    assert lines[-1] != "a problem without a file", f"seed {seed}: {message}"
    assert len(message) < 3_000 * (MAX_PROBLEMS_SHOWN + 1), f"seed {seed}"
    shown = plain_text(message, keep_lines=True)
    assert all(unicodedata.category(character) != "Cc" or character in "\n\t" for character in shown), f"seed {seed}"
    return True


def check_all(seeds: range, directory: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = [check(seed, directory) for seed in seeds]
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < MEMORY_KIB, f"seeds {seeds}"
    # A generator of files that are all wrong at once would test nothing but the first check.
    assert 0.5 < sum(refused) / len(refused) < 0.95


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_a_job_file_drawn_at_random_is_read_or_refused(first, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_all(range(first, first + 100), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 21_000, 2_000))
def test_thousands_of_job_files_drawn_at_random_are_read_or_refused(first, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_all(range(first, first + 2_000), tmp_path)


def test_the_same_seed_gives_the_same_file():
    assert JobFileGenerator(7).file() == JobFileGenerator(7).file()
    assert len({JobFileGenerator(seed).file() for seed in range(50)}) == 50
