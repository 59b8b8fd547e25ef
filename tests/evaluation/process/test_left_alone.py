"""What a process shares is afterwards as it was, whatever a policy, an environment or the runner does to it."""

import gc
import importlib
import io
import locale
import logging
import logging.config
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import mujoco
import numpy as np
import pytest
import torch

from isaaclab_arena.errors import PolicyError, StorageError
from isaaclab_arena.evaluation.job_run import JobRunner
from isaaclab_arena.evaluation.policy_server import _SET_BY_NETWORKS, AskedNetwork
from isaaclab_arena.evaluation.process import Watchdog, left_alone, put_back, watch_as_guest, watch_for_interruption
from isaaclab_arena.evaluation.validation import resolve_jobs
from isaaclab_arena.storage.ledger import ReportedStatus
from tests.evaluation.jobs import coin_job, config_of, settings
from tests.fakes import ShrugPolicy

SHARED: dict[str, Callable[[], Any]] = {
    "threads": torch.get_num_threads,
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "determinism": torch.are_deterministic_algorithms_enabled,
    "cudnn": lambda: (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    "precision": torch.get_float32_matmul_precision,
    "gradients": torch.is_grad_enabled,
    "anomalies": torch.is_anomaly_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "attention": torch.backends.cuda.math_sdp_enabled,
    "denormals": lambda: sys.float_info.min / 2,
    "printing": lambda: (str(torch.tensor(1 / 3)), str(np.float64(1) / 3 * np.ones(1))),
    "errors of NumPy": np.geterr,
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "directory": os.getcwd,
    "environment variables": lambda: {name: value for name, value in os.environ.items() if "CACHE_DIR" not in name},
    "path": lambda: list(sys.path),
    "warnings": lambda: [each for each in warnings.filters if each[0] == "error"],
    "garbage": lambda: (gc.isenabled(), gc.get_threshold()),
    "processors": lambda: os.sched_getaffinity(0),
    "sockets": socket.getdefaulttimeout,
    "recursion": sys.getrecursionlimit,
    "hooks": lambda: (sys.excepthook, threading.excepthook),
    "signals": lambda: [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)],
    "standard output": lambda: os.fstat(1).st_ino,
    "Python's streams": lambda: (sys.stdin, sys.stdout, sys.stderr),
    "MuJoCo": lambda: (mujoco.get_mjcb_control(), mujoco.get_mjcb_passive()),
    "disabled levels": lambda: logging.root.manager.disable,
    "disabled loggers": lambda: [logging.getLogger(name).disabled for name in ("isaaclab_arena.some.room", "gr00t")],
    "root logger": lambda: (list(logging.getLogger().handlers), logging.getLogger().level),
    "logger": lambda: (list(logging.getLogger("isaaclab_arena").handlers), logging.getLogger("isaaclab_arena").level),
    "propagation": lambda: logging.getLogger("isaaclab_arena").propagate,
}

GENERATORS: dict[str, Callable[[], Any]] = {
    "random": random.getstate,
    "numpy": lambda: str(np.random.get_state()),
    "torch": lambda: torch.get_rng_state().tolist(),
}


def shared() -> dict[str, Any]:
    return {name: look() for name, look in SHARED.items()}


def meddle(tmp_path: Path) -> None:
    """Change everything that is shared, but for random numbers."""
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(mode=False)
    torch.autograd.set_detect_anomaly(mode=True)
    torch.set_autocast_enabled("cpu", True)
    torch.backends.cuda.enable_math_sdp(enabled=False)
    torch.set_flush_denormal(True)
    torch.set_printoptions(precision=1)
    np.set_printoptions(precision=1)
    np.seterr(all="raise")
    locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8")
    os.chdir(tmp_path)
    os.environ["OMP_NUM_THREADS"] = "7"
    os.environ.pop("PATH", None)
    sys.path.append("nowhere")
    warnings.simplefilter("error")
    gc.disable()
    gc.set_threshold(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    socket.setdefaulttimeout(0.001)
    sys.setrecursionlimit(400)
    sys.excepthook = threading.excepthook = lambda *_: None
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.umask(0o077)
    sys.stdin = sys.stdout = sys.stderr = io.StringIO()
    mujoco.set_mjcb_control(lambda *_: None)
    mujoco.set_mjcb_passive(lambda *_: None)
    logging.getLogger("isaaclab_arena.some.room")
    logging.getLogger("isaaclab_arena").addHandler(logging.NullHandler())
    logging.config.dictConfig({"version": 1, "root": {"level": "ERROR", "handlers": []}})
    logging.disable(logging.CRITICAL)
    # Last, as it can be set on the CPU alone.
    torch.set_default_device("meta")


def mask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


def test_what_a_block_changes_is_put_back_also_by_an_error(tmp_path):
    before = shared(), mask()
    with put_back():
        meddle(tmp_path)
    assert (shared(), mask()) == before
    with suppress(ZeroDivisionError), put_back():
        meddle(tmp_path)
        raise ZeroDivisionError
    assert (shared(), mask()) == before


def test_a_caller_finds_its_random_numbers_and_types_again_and_a_block_finds_those_of_a_program_of_its_own():
    before = {name: look() for name, look in GENERATORS.items()}
    torch.set_default_dtype(torch.float64)
    try:
        with left_alone():
            assert torch.get_default_dtype() == torch.float32
            random.random()
            np.random.rand()
            torch.rand(1)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert {name: look() for name, look in GENERATORS.items()} == before


class Meddling(ShrugPolicy):
    """Does to the process what its job asks for, when it is made."""

    act: ClassVar[Any]
    found: ClassVar[list[dict[str, Any]]]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        type(self).act()

    def get_action(self, env, observation):
        self.found.append({"dtype": torch.get_default_dtype(), "path": list(sys.path), "mark": os.environ.get("MARK")})
        return super().get_action(env, observation)


def meddling(name: str, act: Callable[[], object]) -> type[Meddling]:
    own = {"act": staticmethod(act), "found": [], "__module__": __name__, "__qualname__": name}
    return type(name, (Meddling,), own)


def told(caplog) -> list[str]:
    return [line for line in caplog.messages if "settings of the process" in line]


@pytest.mark.parametrize("fails", [False, True])
def test_the_next_job_finds_the_process_as_it_was(tmp_path, fails):
    def act() -> None:
        meddle(tmp_path)
        if fails:
            raise PolicyError("no weights")

    before = shared()
    runner = JobRunner(settings(tmp_path))
    runner.run(coin_job("first", policy_class=meddling(f"Everything{fails}", act)))
    assert shared() == before
    assert runner.run(coin_job("next")).status is ReportedStatus.COMPLETED


def test_one_line_names_what_was_changed_and_by_which_class_once(tmp_path, caplog):
    def act() -> None:
        torch.set_default_dtype(torch.float64)
        torch.backends.cudnn.benchmark = True
        os.environ["MARK"] = "here"

    runner = JobRunner(settings(tmp_path))
    for name in ("first", "second"):
        runner.run(coin_job(name, policy_class=meddling("Doubling", act)))
    cudnn = torch.backends.cudnn
    others = cudnn.deterministic, cudnn.allow_tf32
    what = "torch's default type (torch.float32 to torch.float64), "
    what += f"cuDNN's settings ({(True, False, *others)} to {(True, True, *others)}), environment variables (MARK)"
    assert told(caplog) == [f"policy 'Doubling' changed settings of the process: {what}; other jobs do not see them"]


@pytest.mark.parametrize(
    ("name", "act", "what"),
    [
        ("Hiding", lambda: logging.disable(logging.CRITICAL), "logging"),
        ("Closing", lambda: os.close(1), "the standard output"),
    ],
)
def test_a_job_that_hides_the_log_or_closes_the_output_is_named_and_leaves_both(
    tmp_path, capfd, caplog, name, act, what
):
    before = os.fstat(1).st_ino
    JobRunner(settings(tmp_path)).run(coin_job(policy_class=meddling(name, act)))
    assert os.fstat(1).st_ino == before
    assert told(caplog) == [f"policy '{name}' changed settings of the process: {what}; other jobs do not see them"]


def test_a_policy_that_is_kept_finds_again_what_it_has_set(tmp_path):
    """It is made once for all jobs that ask for the same, and what it set is part of what it is."""

    def act() -> None:
        torch.set_default_dtype(torch.float64)
        sys.path.insert(0, "beside the policy")
        os.environ["MARK"] = "here"

    kept = meddling("Kept", act)
    runner = JobRunner(settings(tmp_path))
    for name in ("first", "second"):
        runner.run(coin_job(name, policy_class=kept))
        assert torch.get_default_dtype() == torch.float32
    sys.path.append("added meanwhile")
    try:
        runner.run(coin_job("third", policy_class=kept))
    finally:
        sys.path.remove("added meanwhile")
    assert {(found["dtype"], found["path"][0], found["mark"]) for found in kept.found} == {
        (torch.float64, "beside the policy", "here")
    }
    assert kept.found[-1]["path"][-1] == "added meanwhile"


MODULE = """
import torch
from isaaclab_arena.interfaces.policy import PolicyBase
from tests.fakes import ShrugPolicy

torch.set_default_dtype(torch.float64)
seen = []


class Imported(ShrugPolicy):
    def get_action(self, env, observation):
        seen.append(torch.get_default_dtype())
        return super().get_action(env, observation)
"""


def test_what_a_module_sets_when_it_is_imported_reaches_the_jobs_of_its_policy_alone(tmp_path, monkeypatch, caplog):
    # Python takes byte code for current where the file has the same size and second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "sets_on_import.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    config = config_of("cartpole", "sets_on_import.Imported", num_envs=1)
    [job] = resolve_jobs([config])
    assert torch.get_default_dtype() == torch.float32
    assert any(
        line.startswith("policy 'sets_on_import.Imported' changed settings of the process: torch's default type")
        for line in caplog.messages
    )
    same = coin_job(policy_class=job.policy_class)
    same = replace(same, config=config)
    assert JobRunner(settings(tmp_path)).run(same).status is ReportedStatus.COMPLETED
    module = sys.modules["sets_on_import"]
    assert set(module.seen) == {torch.float64}
    assert torch.get_default_dtype() == torch.float32

    (tmp_path / "sets_on_import.py").write_text(MODULE.replace("float64", "float32"))
    importlib.invalidate_caches()
    importlib.reload(module)
    anew = replace(same, policy_class=module.Imported)
    assert JobRunner(settings(tmp_path / "anew")).run(anew).status is ReportedStatus.COMPLETED
    assert set(module.seen) == {torch.float32}


class Doubles:
    """A network that relies on the default type that it has set."""

    about = MappingProxyType[str, str]({})

    def answer(self, entries):
        if torch.get_default_dtype() != torch.float64:
            raise PolicyError("made of float64")
        return entries


def test_a_network_in_a_policy_server_is_asked_with_what_it_has_set_and_others_are_not():
    with put_back(), _SET_BY_NETWORKS.of("policy 'served'", "a network"):
        torch.set_default_dtype(torch.float64)
    assert AskedNetwork(Doubles(), "policy 'served'", "a network").answer({}) == {}
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(PolicyError, match="made of float64"):
        AskedNetwork(Doubles(), "policy 'other'", "another network").answer({})


STUBBORN_LOOP = """
import sys, time
from isaaclab_arena.evaluation.process import watch_for_interruption
with watch_for_interruption() as interruption:
    print("looping", flush=True)
    while not interruption.stop_requested():
        time.sleep(0.01)
    print("stopping", flush=True)
    time.sleep(float(sys.argv[1]))
sys.exit(interruption.exit_code)
"""


@pytest.mark.parametrize(
    ("sent", "exit_code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 128 + signal.SIGUSR1)],
)
def test_one_signal_asks_the_loop_to_stop(sent, exit_code):
    before = signal.getsignal(sent)
    with watch_for_interruption() as interruption:
        assert not interruption.stop_requested()
        assert interruption.exit_code == 0
        os.kill(os.getpid(), sent)
        assert interruption.stop_requested()
        assert interruption.signal_number == sent
        assert interruption.exit_code == exit_code
    assert signal.getsignal(sent) is before


@pytest.mark.parametrize(
    ("first", "then_s", "dawdle_s", "exit_code"),
    [
        # The same signal sent twice is one request; after half a second a second one ends the process at once.
        (signal.SIGTERM, 0.0, 0.3, 143),
        pytest.param(signal.SIGINT, 0.6, 600.0, 143, marks=pytest.mark.slow),
        # A warning before the time limit, and then its end.
        (signal.SIGUSR1, 0.6, 600.0, 143),
    ],
)
def test_a_second_signal_ends_the_process_at_once(first, then_s, dawdle_s, exit_code):
    command = [sys.executable, "-c", STUBBORN_LOOP, str(dawdle_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looping\n"
        process.send_signal(first)
        assert process.stdout.readline() == "stopping\n"
        time.sleep(then_s)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(timeout=60) == exit_code
        finally:
            process.kill()


def test_a_guest_hands_a_second_signal_to_whoever_listened_before():
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with watch_as_guest() as interruption:
            signal.raise_signal(signal.SIGUSR1)
            assert (interruption.signal_number, heard) == (signal.SIGUSR1, [])
            time.sleep(0.6)
            signal.raise_signal(signal.SIGUSR1)
            assert heard == [signal.SIGUSR1]
        signal.raise_signal(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1] * 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_watch_keeps_the_words_of_an_earlier_process_and_leaves_none_itself_also_of_a_job_that_fails(tmp_path):
    path = tmp_path / "watchdog.txt"
    with pytest.raises(ZeroDivisionError), Watchdog(path).guard("lift", silence_s=9.0):
        raise ZeroDivisionError
    with Watchdog(path).guard("lift", silence_s=0.0):
        assert not path.exists(), "any silence is allowed"
    path.write_text("job 'reach' has made no control step for 9 s:\n...\n")
    with Watchdog(path).guard("lift", silence_s=9.0):
        assert "job 'lift'" in path.read_text()
    assert path.read_text() == "job 'reach' has made no control step for 9 s:\n...\n"


def test_last_words_that_cannot_be_written_are_a_storage_error(tmp_path):
    (tmp_path / "logs").write_text("no directory")
    watched = Watchdog(tmp_path / "logs" / "watchdog.txt").guard("lift", silence_s=9.0)
    with pytest.raises(StorageError, match=r"cannot write .*watchdog\.txt"), watched:
        pass
