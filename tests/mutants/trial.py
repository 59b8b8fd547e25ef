"""Trying faults: one copy of the tree per process, one fault at a time in it, the tests in a child."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.faults import Fault

_NO_VERDICT = (3, 4, 5)


class Verdict(StrEnum):
    """What the tests said about a fault."""

    NOTICED = "noticed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A fault, what the tests said about it, and how long they took [s]."""

    fault: Fault
    verdict: Verdict
    took_s: float


class Workplace:
    """A copy of the tree, in which one process works."""

    def __init__(self, root: Path, directory: Path, *, timeout_s: float) -> None:
        self._tree = directory / "tree"
        self._scratch = directory / "scratch"
        self._timeout_s = timeout_s
        for name in _files(root):
            (self._tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, self._tree / name)

    def run_tests(self, tests: Iterable[str], *extra: str) -> tuple[int | None, str]:
        """Run test files; return pytest's exit code, None if they took too long, and what they wrote."""
        self._scratch.mkdir(exist_ok=True)
        log = self._scratch / "output"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *extra]
        command += [f"--basetemp={self._scratch / 'tests'}", *tests]
        with log.open("wb") as output:
            child = subprocess.Popen(
                command,
                cwd=self._tree,
                env={**os.environ, "PYTHONPATH": str(self._tree), "TMPDIR": str(self._scratch)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = child.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end_group(child)
        written = log.read_text(errors="replace")
        shutil.rmtree(self._scratch, ignore_errors=True)
        return code, written

    def try_fault(self, fault: Fault) -> Trial:
        """Run a fault's tests with the fault in the copy, and mend the copy.

        Raises:
            RuntimeError: If pytest ran no test, so that nobody knows.
        """
        began = time.monotonic()
        with self._broken_by(fault):
            code, written = self.run_tests(fault.tests, "-x")
        if code in _NO_VERDICT:
            raise RuntimeError(f"pytest ran no test for {fault.file} ({fault.why}):\n{written[-2000:]}")
        verdict = Verdict.TIMED_OUT if code is None else Verdict.NOTICED if code else Verdict.SURVIVED
        return Trial(fault=fault, verdict=verdict, took_s=time.monotonic() - began)

    @contextmanager
    def _broken_by(self, fault: Fault) -> Iterator[None]:
        path = self._tree / fault.file
        sound = path.read_text()
        try:
            _write_source(path, fault.put_into(sound))
            yield
        finally:
            _write_source(path, sound)


def _write_source(path: Path, text: str) -> None:
    """Write a file and forget its compiled form, which Python would take for the new one's if time and size agree."""
    path.write_text(text)
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End a child and what it has started: a fault may leave processes that wait for ever."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _files(root: Path) -> list[str]:
    """Return the files of a tree that are in git or could be, or all of them where there is no git."""
    if not (root / ".git").exists():
        return [str(path.relative_to(root)) for path in root.glob("**/*") if path.is_file()]
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if (root / name).is_file()]


def fails_without_a_fault(root: Path, faults: Iterable[Fault], *, timeout_s: float) -> str | None:
    """Return what the tests write if they fail on the sound tree, where failing would say nothing of a fault."""
    tests = dict.fromkeys(name for fault in faults for name in fault.tests)
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        code, written = Workplace(root, Path(directory), timeout_s=timeout_s * len(tests)).run_tests(tests)
    return None if code == 0 else written


def try_faults(root: Path, faults: Iterable[Fault], *, processes: int, timeout_s: float) -> Iterator[Trial]:
    """Try faults in copies of the tree at ``root``, which is left alone; yield each as it is known."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ThreadPoolExecutor(processes) as pool:
        free: SimpleQueue[Workplace] = SimpleQueue()
        for number in range(processes):
            free.put(Workplace(root, Path(directory) / str(number), timeout_s=timeout_s))

        def try_one(fault: Fault) -> Trial:
            workplace = free.get()
            try:
                return workplace.try_fault(fault)
            finally:
                free.put(workplace)

        tried = [pool.submit(try_one, fault) for fault in faults]
        try:
            for trial in as_completed(tried):
                yield trial.result()
        finally:
            pool.shutdown(cancel_futures=True)
