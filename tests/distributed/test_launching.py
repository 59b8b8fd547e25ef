"""Ranks that this program starts itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from isaaclab_arena.distributed.context import process_start_ticks
from isaaclab_arena.distributed.launch import (
    Failure,
    Launch,
    LaunchOptions,
    failures_recorded,
    first_failure,
    launch_if_asked,
    leave_last_words,
    read_failure,
    run_ranks_over_torchrunx,
    without_launch_options,
)
from isaaclab_arena.errors import ConfigError
from tests.end_to_end.launching import ROOT, environment, patience_s
from tests.machine import show_gpus
from tests.preloaded.interpreter import preloaded_python

# What a program does that is asked to start ranks: decisions in this process, and real ranks over gloo.


PROGRAM = [preloaded_python(), "-m", "tests.distributed.rank_program"]
LOG_VARIABLES = ("TORCHRUNX_LOG_DIR", "ISAACLAB_ARENA_LAUNCHER_LOG_DIR")


@pytest.fixture
def started(monkeypatch) -> list[Launch]:
    """What would be started, on a machine with two GPUs; nothing is."""
    show_gpus(monkeypatch, 2)
    for name in ("CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", *LOG_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return []


def asked(
    arguments: Sequence[str] = ("reach",),
    log_directory: Path | None = None,
    start: Callable[[Launch], int] | None = None,
    **options,
) -> int | None:
    options = LaunchOptions(**options)
    return launch_if_asked(options, module="prog", arguments=arguments, log_directory=log_directory, start=start)


def noting(launches: list[Launch]) -> Callable[[Launch], int]:
    def note(launch: Launch) -> int:
        launches.append(launch)
        return 0

    return note


@pytest.mark.parametrize(
    ("options", "shown"),
    [({}, None), ({"gpu_ids": "1"}, "1"), ({"gpu_ids": "none"}, ""), ({"nproc_per_node": 1}, "")],
)
def test_one_device_starts_nothing_and_this_process_goes_on_with_it(started, monkeypatch, options, shown):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1") if options == {} else None
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = children.read_text()
    assert asked(start=noting(started), **options) is None
    assert started == []
    assert children.read_text() == before
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == ("0,1" if shown is None else shown)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_all_gpus_of_a_machine_without_any_are_one_process_on_the_cpu(started, monkeypatch):
    show_gpus(monkeypatch, 0)
    # The launch sets the variable, and the test takes it back.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert asked(start=noting(started), gpu_ids="all") is None
    assert started == []
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_each_gpu_gets_a_rank_with_the_same_command_line_less_the_option(started, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert asked(["--gpu-ids", "1", "0", "reach", "--price", "$$5"], gpu_ids="1 0", start=noting(started)) == 0
    assert started[0].num_processes == 2
    assert started[0].variables == {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}
    assert (started[0].module, started[0].arguments) == ("prog", ("reach", "--price", "$$5"))


def test_the_environment_says_where_logs_go_then_the_option_then_the_program(started, monkeypatch, tmp_path):
    def place(**options) -> tuple[Path | None, bool]:
        asked(nproc_per_node=2, log_directory=tmp_path / "run" / "launcher", start=noting(started), **options)
        return started[-1].log_directory, started[-1].wants_files

    assert place() == (tmp_path / "run" / "launcher", True)
    assert place(launcher_log_dir=str(tmp_path / "option")) == (tmp_path / "option", True)
    assert place(launcher_log_dir="")[1] is False
    monkeypatch.setenv("TORCHRUNX_LOG_DIR", str(tmp_path / "torchrunx"))
    assert place(launcher_log_dir=str(tmp_path / "option")) == (tmp_path / "torchrunx", True)
    monkeypatch.setenv("ISAACLAB_ARENA_LAUNCHER_LOG_DIR", str(tmp_path / "own"))
    assert place() == (tmp_path / "own", True)
    monkeypatch.setenv("ISAACLAB_ARENA_LAUNCHER_LOG_DIR", "")
    assert place(launcher_log_dir=str(tmp_path / "option"))[1] is False
    (tmp_path / "file").touch()
    monkeypatch.setenv("ISAACLAB_ARENA_LAUNCHER_LOG_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="ISAACLAB_ARENA_LAUNCHER_LOG_DIR: cannot make"):
        place()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_ids": "0", "nproc_per_node": 2}, "--nproc_per_node: excludes --gpu_ids"),
        ({"nproc_per_node": 0}, "--nproc_per_node: must be at least 1, got 0"),
        ({"launcher": "torchrunx"}, "--launcher: has no effect on one rank; add --gpu_ids"),
        ({"gpu_ids": "2"}, "--gpu_ids: GPU 2 does not exist; there are 0 to 1"),
        ({"gpu_ids": "all", "launcher": "torchrunx"}, "--launcher: torchrunx is not installed.*GPL-3.*pip install"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(started, monkeypatch, options, message):
    monkeypatch.setitem(sys.modules, "torchrunx", None)
    with pytest.raises(ConfigError, match=message):
        asked(**options)


@pytest.mark.parametrize("options", [{"gpu_ids": "0 1"}, {"nproc_per_node": 2}])
def test_a_rank_does_not_start_ranks(started, monkeypatch, options):
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match=f"--{next(iter(options))}: RANK or LOCAL_RANK is set.*CUDA_VISIBLE_DEVICES"):
        asked(**options)


def run_ranks(what: str, directory: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [*PROGRAM, "--nproc_per_node", "2", *options, what, str(directory)]
    plain = {name: value for name, value in environment().items() if name not in {*LOG_VARIABLES, "OMP_NUM_THREADS"}}
    # The first call also waits for the interpreter that the others are forked from, 42 s on a busy machine.
    return subprocess.run(
        line, cwd=ROOT, env={**plain, **variables}, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_gpu_starts_nothing_and_is_the_only_one_seen(tmp_path):
    line = [*PROGRAM, "--gpu-ids", "0", "variables", str(tmp_path)]
    finished = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    seen = json.loads((tmp_path / "rank0.json").read_text())
    assert (seen["device"], seen["visible_gpus"], seen["children"]) == ("cuda:0", 1, [])
    assert "RANK" not in seen["variables"]


def test_each_rank_knows_who_it_is_and_what_it_says_is_in_its_file(tmp_path):
    finished = run_ranks("variables", tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert (finished.stdout, finished.stderr) == ("rank 0 on stdout\n", "rank 0 on stderr\n")
    seen = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for rank, each in enumerate(seen):
        variables = each["variables"]
        assert [variables[name] for name in ("RANK", "LOCAL_RANK")] == [str(rank)] * 2
        assert [variables[name] for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")] == ["2", "2"]
        assert variables["CUDA_VISIBLE_DEVICES"] == ""
        assert variables["OMP_NUM_THREADS"] == "1"
        assert variables["MASTER_ADDR"] == "127.0.0.1"
        assert variables["TORCHELASTIC_RUN_ID"]
        assert (each["device"], each["visible_gpus"]) == ("cpu", 0)
        assert each["arguments"] == ["variables", str(tmp_path)]
    assert seen[0]["variables"]["MASTER_PORT"] == seen[1]["variables"]["MASTER_PORT"]
    (log_directory,) = (tmp_path / "run" / "launcher").iterdir()
    for rank in range(2):
        lines = (log_directory / f"rank{rank}.log").read_text().splitlines()
        assert sorted(lines) == [f"rank {rank} on stderr", f"rank {rank} on stdout"]


def test_the_first_failure_is_told_while_the_others_still_wind_down(tmp_path):
    """Rank 0 would go on for a second and a half, and then fail because rank 1 has gone."""
    logs = tmp_path / "logs"
    finished = run_ranks("raise", tmp_path, "--launcher_log_dir", "", TORCHRUNX_LOG_DIR=str(logs))
    assert finished.returncode == 1
    report, _, rest = finished.stderr.partition("[rank 1] ValueError: rank 1 has had enough\n")
    assert "rank 1 of 2 failed" in report
    assert "[rank 1] Traceback (most recent call last):" in report
    assert "Connection" not in report
    assert "RuntimeError" in rest
    (own_log,) = logs.glob("*/rank1.log")
    assert str(own_log) in report
    assert "rank 1 has had enough" in own_log.read_text()


def test_a_rank_that_is_killed_is_named_whatever_the_others_say_about_it(tmp_path):
    finished = run_ranks("killed", tmp_path)
    assert finished.returncode == 128 + signal.SIGKILL
    assert "rank 1 of 2 was killed by SIGKILL" in finished.stderr


def test_a_mistake_of_the_users_is_told_once_for_all_ranks(tmp_path):
    finished = run_ranks("mistake", tmp_path)
    assert finished.returncode == 2
    assert finished.stderr == "error: agent.gamma: must be below 1, got 7\n"


@pytest.mark.slow
def test_a_rank_that_fails_and_does_not_leave_is_ended(tmp_path):
    finished = run_ranks("linger", tmp_path)
    assert finished.returncode == 1
    assert "[rank 1] ValueError: rank 1 stays all the same" in finished.stderr


def test_a_launcher_that_is_told_to_stop_or_killed_leaves_no_rank_behind_and_each_can_save(tmp_path):
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    launchers = {sent: _start_saving(tmp_path / sent.name) for sent in codes}
    pids = [_pid_in(tmp_path / sent.name / f"rank{rank}.pid", within_s=60) for sent in codes for rank in range(2)]
    for sent, launcher in launchers.items():
        launcher.send_signal(sent)
    for sent, launcher in launchers.items():
        _, said = launcher.communicate(timeout=60)
        assert (launcher.returncode, said) == (codes[sent], "")
    deadline = time.monotonic() + patience_s(60)
    while any(process_start_ticks(pid) is not None for pid in pids):
        assert time.monotonic() < deadline, "a rank is still there"
        time.sleep(0.05)
    assert len(list(tmp_path.glob("*/rank*.saved"))) == 6


def _start_saving(directory: Path) -> subprocess.Popen[str]:
    directory.mkdir()
    line = [*PROGRAM, "--nproc_per_node", "2", "save", str(directory)]
    return subprocess.Popen(
        line, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _pid_in(path: Path, *, within_s: float) -> int:
    deadline = time.monotonic() + within_s
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"there is no {path}"
        time.sleep(0.05)
    return int(path.read_text())


@pytest.mark.parametrize(("cores", "most"), [(1, 64), (2, 64), (16, 64), (17, 68), (128, 512)])
def test_a_machine_holds_four_ranks_for_each_core_and_at_least_sixty_four(cores, most, started, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert asked(nproc_per_node=most, start=noting(started)) == 0
    assert [launch.num_processes for launch in started] == [most]
    with pytest.raises(ConfigError, match=f"^--nproc_per_node: {most + 1} ranks .* at most {most} are started$"):
        asked(nproc_per_node=most + 1)


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        (["--gpu-ids", "0", "1", "--seed", "3", "reach"], ["--seed", "3", "reach"]),
        (["--nproc_per_node", "2", "--seed=3"], ["--seed=3"]),
        (["--nproc-per-node=2", "reach", "--launcher", "torchrunx"], ["reach"]),
        (["--launcher-log-dir", "", "reach"], ["reach"]),
        (["--launcher_log_dir=logs", "--gpu_ids=all"], []),
        (["--seed", "3"], ["--seed", "3"]),
    ],
)
def test_ranks_are_started_without_the_options_that_start_them(typed, left):
    assert without_launch_options(typed) == left


def crash(rank: int, at: int = 0, message: str = "ValueError: no") -> Failure:
    return Failure(rank=rank, message=message, text=f"Traceback\n{message}", recorded_ns=at)


def mistake(rank: int, at: int = 0, message: str = "gamma: must be below 1") -> Failure:
    return Failure(rank=rank, message=message, text=message, recorded_ns=at)


@pytest.mark.parametrize(
    ("ended", "records", "rank"),
    [
        ({}, [], None),
        ({0: 0, 1: 0}, [], None),
        ({1: 1}, [], 1),
        ({0: 1, 1: 1}, [crash(0, at=9), crash(1, at=5)], 1),
        ({0: 1, 1: -9}, [crash(0, at=1)], 1),
        ({0: 1, 1: 3}, [crash(0, at=1)], 1),
        ({0: 1}, [mistake(1)], 1),
        ({}, [crash(1)], 1),
        ({}, [mistake(1)], None),
        ({}, [crash(0)], None),
        ({0: 2, 1: 2}, [mistake(1, at=1), mistake(0, at=5)], 0),
    ],
    ids=[
        "nothing yet", "all well", "a code alone", "words left first", "killed without a word", "left without a word",
        "a word from one that has not ended", "a crash is told at once", "a mistake is told when its rank has ended",
        "rank 0 tells of itself", "the same mistake is rank 0's to tell",
    ],
)  # fmt: skip
def test_the_rank_that_failed_first_is_found(ended, records, rank):
    failure = first_failure(ended, records)
    assert (None if failure is None else failure.rank) == rank


def report_of(ended, records, **given) -> str:
    failure = first_failure(ended, records)
    assert failure is not None
    return failure.report(**{"world_size": 2, "log_file": None, "unseen_lines": [], **given})


@pytest.mark.parametrize(
    ("ended", "records", "given", "report"),
    [
        (
            {1: 1},
            [crash(1)],
            {"log_file": Path("/logs/rank1.log")},
            (
                "rank 1 of 2 failed with exit code 1; its output is in /logs/rank1.log\n"
                "[rank 1] Traceback\n[rank 1] ValueError: no\n"
            ),
        ),
        # A rank that ended in good order after a signal was stopped and did not fail.
        ({1: 143}, [], {}, "rank 1 of 2 was ended by SIGTERM\n"),
        ({1: 137}, [], {}, "rank 1 of 2 failed with exit code 137\n"),
        # That of a rank without a word ends with its last lines.
        ({1: -11}, [], {"unseen_lines": ["Fatal"]}, "rank 1 of 2 was killed by SIGSEGV\n[rank 1] Fatal\n"),
        ({1: 2}, [mistake(1)], {}, "rank 1 of 2 failed with exit code 2\n[rank 1] gamma: must be below 1\n"),
        # What rank 0 has said itself is not repeated.
        ({0: 2}, [mistake(0)], {}, ""),
        ({0: 1}, [], {}, ""),
        ({0: 1}, [crash(0)], {}, "rank 0 of 2 failed with exit code 1\n"),
        ({0: -9}, [], {}, "rank 0 of 2 was killed by SIGKILL\n"),
    ],
)
def test_a_report_names_the_rank_and_shows_why_it_failed(ended, records, given, report):
    assert report_of(ended, records, **given) == report


def test_a_record_is_read_back_and_knows_whether_it_was_raised_on_purpose(tmp_path, monkeypatch):
    path = tmp_path / "rank1.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert read_failure(path, rank=1) is None
    with pytest.raises(ConfigError), failures_recorded():
        raise ConfigError("gamma: must be below 1")
    expected = read_failure(path, rank=1)
    with pytest.raises(ValueError, match="could not convert"), failures_recorded():
        float("no")
    unexpected = read_failure(path, rank=1)
    assert expected is not None
    assert unexpected is not None
    assert (expected.message, expected.is_expected) == ("gamma: must be below 1", True)
    assert unexpected.message == "ValueError: could not convert string to float: 'no'"
    assert not unexpected.is_expected
    assert str(unexpected.text).startswith("Traceback")
    path.write_text("{torn")
    assert read_failure(path, rank=1) is None


def test_torchruns_report_ends_with_the_last_words_of_the_rank(tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.delenv("ISAACLAB_ARENA_RUN_DIRECTORY_FILE", raising=False)
    leave_last_words("job  status\nlift failed\ngo on with: that")
    report = str(ChildFailedError("eval_runner", {0: ProcessFailure(0, 42, 1, str(path))}))
    *_, table, first, line, border = report.splitlines()
    assert [table, first, line] == ["  job  status", "  lift failed", "  go on with: that"]
    assert set(border) == {"="}


def test_a_launcher_of_ours_needs_no_last_words(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setenv("ISAACLAB_ARENA_RUN_DIRECTORY_FILE", str(tmp_path / "run_directory"))
    leave_last_words("the table")
    assert not (tmp_path / "error.json").exists()


# What is asked of torchrunx, which is not installed here: a fake with its interface stands in for it.


class FakeLauncher:
    """Calls the function once per worker, one after the other, in this process."""

    asked: dict[str, Any]

    def __init__(self, **asked: Any) -> None:
        FakeLauncher.asked = asked

    def run(self, function, *arguments):
        codes = [function(*arguments) for _ in range(self.asked["workers_per_host"])]
        return SimpleNamespace(results={"localhost": codes})


class BrokenLauncher(FakeLauncher):
    def run(self, function, *arguments):
        raise RuntimeError({"message": "ValueError: rank 1 has had enough", "extraInfo": {}})


@pytest.fixture
def torchrunx(monkeypatch) -> ModuleType:
    """A module of that name; the program that it starts returns the number on its command line."""
    module, program = ModuleType("torchrunx"), ModuleType("program_of_this_test")
    module.Launcher = FakeLauncher  # pyright: ignore[reportAttributeAccessIssue]
    program.main = lambda arguments: int(arguments[0])  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "torchrunx", module)
    monkeypatch.setitem(sys.modules, "program_of_this_test", program)
    monkeypatch.setattr(sys, "argv", ["test"])
    monkeypatch.setenv("TORCHRUNX_LOG_DIR", "of the user")
    return module


def launch_of(code: int, **more: Any) -> Launch:
    variables = {"CUDA_VISIBLE_DEVICES": "1,0"}
    return Launch(module="program_of_this_test", arguments=(str(code),), num_processes=2, variables=variables, **more)


def test_torchrunx_is_told_what_to_start_where_its_logs_go_and_to_leave_the_group_alone(torchrunx, tmp_path):
    assert run_ranks_over_torchrunx(launch_of(0, log_directory=tmp_path)) == 0
    asked = FakeLauncher.asked
    assert (asked["hostnames"], asked["workers_per_host"], asked["backend"]) == (["localhost"], 2, None)
    assert asked["extra_env_vars"]["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert asked["extra_env_vars"]["TORCHELASTIC_RUN_ID"]
    assert os.environ["TORCHRUNX_LOG_DIR"] == str(tmp_path)
    run_ranks_over_torchrunx(launch_of(0, log_directory=tmp_path, wants_files=False))
    assert os.environ["TORCHRUNX_LOG_DIR"] == ""


def test_a_mistake_that_every_rank_finds_keeps_its_exit_code(torchrunx):
    assert run_ranks_over_torchrunx(launch_of(2)) == 2


def test_a_rank_that_fails_is_told_with_what_torchrunx_knows_of_it(torchrunx, monkeypatch, caplog):
    monkeypatch.setattr(torchrunx, "Launcher", BrokenLauncher)
    assert run_ranks_over_torchrunx(launch_of(0)) == 1
    assert "a rank failed: ValueError: rank 1 has had enough" in caplog.text
