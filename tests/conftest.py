"""What every test can rely on."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch

from tests.preloaded.interpreter import preloaded_python, use
from tests.pretend_gpu import PretendGpu

_LONGEST = (
    "tests/documentation/test_documents.py",
    "tests/gr00t/training/test_finetune.py",
    "tests/training/test_train.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Hear the signals that the parent process ignores, as ``nohup`` and a shell's ``&`` do: many send them."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    # Workers of pytest-xdist are told a terminal that does not exist, and tables would be folded to fit it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    # As in a rank. Workers of pytest-xdist share the cores, and threads that wait for one another there waste them.
    torch.set_num_threads(1)
    if given := getattr(config, "workerinput", None):
        use(given["preloaded_python"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let all workers of pytest-xdist start their programs in one preloaded interpreter."""
    node.workerinput["preloaded_python"] = preloaded_python()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores, and four at most: most tests wait for processes that they start."""
    return min(4, (os.cpu_count() or 1) + 1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes a million objects that stay; looking for garbage among them takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name bytes by their kind: a message may hold the time, and every worker has to find the same names."""
    return "bytes" if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no worker of pytest-xdist is alone with one at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Spell out characters that are none, which some tests let a policy say: reports of workers travel as UTF-8."""
    report = yield
    report.sections = [(title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections]
    return report


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Undo what a command in this process does to logging: in the test, and before in a fixture of its module."""
    _reset_logging()
    yield
    _reset_logging()


def _reset_logging() -> None:
    logger = logging.getLogger("isaaclab_arena")
    for handler in logger.handlers:
        handler.close()
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


@pytest.fixture
def gpu() -> Iterator[PretendGpu]:
    """Pretend that there is a GPU."""
    with PretendGpu() as pretended:
        yield pretended


@pytest.fixture(scope="module")
def quick_python() -> Iterator[None]:
    """Have what is tested in this process start its own processes in the preloaded interpreter."""
    quick = preloaded_python()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", quick)
        yield
