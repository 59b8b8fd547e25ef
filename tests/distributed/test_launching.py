"""Ranks that this program starts itself."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
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
)
from isaaclab_arena.errors import ConfigError
from tests.end_to_end.launching import ROOT, environment, wait_until
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
        # A launch may set the variable, and the test takes it back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return []


def asked(
    launches: list[Launch], arguments: Sequence[str] = ("reach",), log_directory: Path | None = None, **options
) -> int | None:
    def note(launch: Launch) -> int:
        launches.append(launch)
        return 0

    options = LaunchOptions(**options)
    return launch_if_asked(options, module="prog", arguments=arguments, log_directory=log_directory, start=note)


@pytest.mark.parametrize(
    ("options", "gpus", "shown"),
    [
        ({}, 2, "0,1"),
        ({"gpu_ids": "1"}, 2, "1"),
        ({"gpu_ids": "none"}, 2, ""),
        ({"nproc_per_node": 1}, 2, ""),
        ({"gpu_ids": "all"}, 0, ""),
    ],
)
def test_one_device_starts_nothing_and_this_process_goes_on_with_it(started, monkeypatch, options, gpus, shown):
    show_gpus(monkeypatch, gpus)
    if not options:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert asked(started, **options) is None
    assert started == []
    assert os.environ["CUDA_VISIBLE_DEVICES"] == shown


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        (["--gpu-ids", "1", "0", "--seed", "3", "reach", "--price", "$$5"], ["--seed", "3", "reach", "--price", "$$5"]),
        (["--nproc_per_node", "2", "--seed=3"], ["--seed=3"]),
        (["--nproc-per-node=2", "reach", "--launcher", "torchrunx"], ["reach"]),
        (["--launcher-log-dir", "", "reach", "--launcher_log_dir=logs", "--gpu_ids=all"], ["reach"]),
    ],
)
def test_each_gpu_gets_a_rank_with_the_same_command_line_less_the_option(started, monkeypatch, typed, left):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert asked(started, typed, gpu_ids="1 0") == 0
    assert started[0].num_processes == 2
    assert started[0].variables == {"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}
    assert (started[0].module, started[0].arguments) == ("prog", tuple(left))


@pytest.mark.parametrize(("cores", "most"), [(1, 64), (16, 64), (17, 68)])
def test_a_machine_holds_four_ranks_for_each_core_and_at_least_sixty_four(cores, most, started, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert asked(started, nproc_per_node=most) == 0
    assert [launch.num_processes for launch in started] == [most]
    with pytest.raises(ConfigError, match=f"^--nproc_per_node: {most + 1} .* at most {most} "):
        asked(started, nproc_per_node=most + 1)


def test_the_environment_says_where_logs_go_then_the_option_then_the_program(started, monkeypatch, tmp_path):
    def place(**options) -> Path | None:
        asked(started, nproc_per_node=2, log_directory=tmp_path / "run" / "launcher", **options)
        return started[-1].log_directory if started[-1].wants_files else None

    assert place() == tmp_path / "run" / "launcher"
    assert place(launcher_log_dir=str(tmp_path / "option")) == tmp_path / "option"
    assert place(launcher_log_dir="") is None
    monkeypatch.setenv("TORCHRUNX_LOG_DIR", str(tmp_path / "torchrunx"))
    assert place(launcher_log_dir=str(tmp_path / "option")) == tmp_path / "torchrunx"
    monkeypatch.setenv("ISAACLAB_ARENA_LAUNCHER_LOG_DIR", str(tmp_path / "own"))
    assert place() == tmp_path / "own"
    monkeypatch.setenv("ISAACLAB_ARENA_LAUNCHER_LOG_DIR", "")
    assert place(launcher_log_dir=str(tmp_path / "option")) is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("ISAACLAB_ARENA_LAUNCHER_LOG_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="ISAACLAB_ARENA_LAUNCHER_LOG_DIR: "):
        place()


@pytest.mark.parametrize(
    ("options", "rank", "message"),
    [
        ({"gpu_ids": "0", "nproc_per_node": 2}, None, "--nproc_per_node: excludes --gpu_ids"),
        ({"nproc_per_node": 0}, None, "--nproc_per_node: .* got 0"),
        ({"launcher": "torchrunx"}, None, "--launcher: .* add --gpu_ids"),
        ({"gpu_ids": "2"}, None, "--gpu_ids: GPU 2 .* 0 to 1"),
        ({"gpu_ids": "all", "launcher": "torchrunx"}, None, "--launcher: .*GPL-3.*pip install"),
        ({"gpu_ids": "0 1"}, "0", "--gpu_ids: RANK or LOCAL_RANK .*CUDA_VISIBLE_DEVICES"),
        ({"nproc_per_node": 2}, "0", "--nproc_per_node: RANK or LOCAL_RANK"),
    ],
)
def test_options_that_cannot_be_meant_and_ranks_of_a_rank_are_refused(started, monkeypatch, options, rank, message):
    monkeypatch.setitem(sys.modules, "torchrunx", None)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(ConfigError, match=message):
        launch_if_asked(LaunchOptions(**options), module="prog", arguments=("reach",), log_directory=None)


def run_ranks(what: str, directory: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [*PROGRAM, "--nproc_per_node", "2", *options, what, str(directory)]
    plain = {name: value for name, value in environment().items() if name not in {*LOG_VARIABLES, "OMP_NUM_THREADS"}}
    # The first call also waits for the interpreter that the others are forked from, 42 s on a busy machine.
    return subprocess.run(
        line, cwd=ROOT, env={**plain, **variables}, capture_output=True, text=True, timeout=240, check=False
    )


def test_each_rank_knows_who_it_is_and_what_it_says_is_in_its_file(tmp_path):
    finished = run_ranks("variables", tmp_path)
    assert (finished.returncode, finished.stdout) == (0, "rank 0 on stdout\n"), finished.stderr
    assert finished.stderr == "rank 0 on stderr\n"
    expected = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    (log_directory,) = (tmp_path / "run" / "launcher").iterdir()
    ports = set()
    for rank in range(2):
        seen = json.loads((tmp_path / f"rank{rank}.json").read_text())
        mine = {**expected, "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
        assert mine.items() <= seen["variables"].items()
        assert seen["variables"]["TORCHELASTIC_RUN_ID"]
        assert (seen["device"], seen["visible_gpus"]) == ("cpu", 0)
        assert seen["arguments"] == ["variables", str(tmp_path)]
        lines = (log_directory / f"rank{rank}.log").read_text().splitlines()
        assert sorted(lines) == [f"rank {rank} on stderr", f"rank {rank} on stdout"]
        ports.add(seen["variables"]["MASTER_PORT"])
    assert len(ports) == 1


def test_the_first_failure_is_told_while_the_others_still_wind_down(tmp_path):
    """Rank 0 would go on for a second and a half, and then fail because rank 1 has gone."""
    logs = tmp_path / "logs"
    finished = run_ranks("raise", tmp_path, "--launcher_log_dir", "", TORCHRUNX_LOG_DIR=str(logs))
    assert finished.returncode == 1
    (own_log,) = logs.glob("*/rank1.log")
    report, _, rest = finished.stderr.partition("[rank 1] ValueError: rank 1 has had enough\n")
    assert all(part in report for part in ("rank 1 of 2", "[rank 1] Traceback", str(own_log)))
    assert "Connection" not in report
    assert "RuntimeError" in rest
    assert "has had enough" in own_log.read_text()


@pytest.mark.parametrize(
    ("what", "code", "told"),
    [
        ("killed", 128 + signal.SIGKILL, "rank 1 of 2 was killed by SIGKILL"),
        pytest.param("linger", 1, "[rank 1] ValueError", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_killed_or_does_not_leave_is_named(tmp_path, what, code, told):
    finished = run_ranks(what, tmp_path)
    assert finished.returncode == code
    assert told in finished.stderr


def test_a_mistake_of_the_users_is_told_once_for_all_ranks(tmp_path):
    finished = run_ranks("mistake", tmp_path)
    assert (finished.returncode, finished.stderr) == (2, "error: agent.gamma: must be below 1, got 7\n")


def test_a_launcher_that_is_told_to_stop_or_killed_leaves_no_rank_behind_and_each_can_save(tmp_path):
    codes = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}
    launchers = {}
    for sent in codes:
        (tmp_path / sent.name).mkdir()
        line = [*PROGRAM, "--nproc_per_node", "2", "save", str(tmp_path / sent.name)]
        launchers[sent] = subprocess.Popen(
            line, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    files = [tmp_path / sent.name / f"rank{rank}.pid" for sent in codes for rank in range(2)]
    wait_until(lambda: all(path.exists() and path.read_text() for path in files))
    for sent, launcher in launchers.items():
        launcher.send_signal(sent)
    for sent, launcher in launchers.items():
        _, said = launcher.communicate(timeout=60)
        assert (launcher.returncode, said) == (codes[sent], "")
    wait_until(lambda: all(process_start_ticks(int(path.read_text())) is None for path in files))
    assert len(list(tmp_path.glob("*/rank*.saved"))) == 6


def crash(rank: int, at: int = 0) -> Failure:
    return Failure(rank=rank, message="ValueError: no", text="Traceback\nValueError: no", recorded_ns=at)


CRASH = "[rank 1] Traceback\n[rank 1] ValueError: no\n"


def mistake(rank: int, at: int = 0) -> Failure:
    return Failure(rank=rank, message="gamma: got 1", text="gamma: got 1", recorded_ns=at)


@pytest.mark.parametrize(
    ("ended", "records", "report"),
    [
        ({}, [], None),
        ({0: 0, 1: 0}, [], None),
        ({1: 1}, [crash(1)], f"rank 1 of 2 failed with exit code 1\n{CRASH}"),
        # Of two ranks with last words the first to leave them, and before it one that left none.
        ({0: 1, 1: 1}, [crash(0, at=9), crash(1, at=5)], f"rank 1 of 2 failed with exit code 1\n{CRASH}"),
        ({0: 1, 1: -9}, [crash(0, at=1)], "rank 1 of 2 was killed by SIGKILL\n"),
        ({0: 1, 1: 3}, [crash(0, at=1)], "rank 1 of 2 failed with exit code 3\n"),
        # A crash is told at once, and a mistake when its rank has ended, or another one.
        ({}, [crash(1)], f"rank 1 of 2 failed\n{CRASH}"),
        ({0: 1}, [mistake(1)], "rank 1 of 2 failed\n[rank 1] gamma: got 1\n"),
        ({}, [mistake(1)], None),
        # Rank 0 tells of itself, also of what all have found, unless it could not.
        ({}, [crash(0)], None),
        ({0: 2, 1: 2}, [mistake(1, at=1), mistake(0, at=5)], ""),
        ({0: 1}, [], ""),
        ({0: 1}, [crash(0)], "rank 0 of 2 failed with exit code 1\n"),
        ({0: -9}, [], "rank 0 of 2 was killed by SIGKILL\n"),
        # A rank that ended in good order after a signal was stopped and did not fail.
        ({1: 143}, [], "rank 1 of 2 was ended by SIGTERM\n"),
        ({1: 137}, [], "rank 1 of 2 failed with exit code 137\n"),
    ],
)  # fmt: skip
def test_the_rank_that_failed_first_is_found_and_shows_why(ended, records, report):
    failure = first_failure(ended, records)
    assert (failure and failure.report(world_size=2, log_file=None, unseen_lines=[])) == report


def test_a_report_names_the_file_of_the_output_or_ends_with_its_last_lines():
    killed = first_failure({1: -11}, [])
    assert killed is not None
    assert killed.report(world_size=2, log_file=None, unseen_lines=["Fatal"]).endswith("\n[rank 1] Fatal\n")
    assert "in /logs/rank1.log\n" in killed.report(world_size=2, log_file=Path("/logs/rank1.log"), unseen_lines=[])


def test_a_record_is_read_back_and_knows_whether_it_was_raised_on_purpose(tmp_path, monkeypatch):
    path = tmp_path / "rank1.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert read_failure(path, rank=1) is None
    for error, message, is_expected in (
        (ConfigError("gamma: got 1"), "gamma: got 1", True),
        (ValueError("no"), "ValueError: no", False),
    ):
        with pytest.raises(type(error)), failures_recorded():
            raise error
        record = read_failure(path, rank=1)
        assert record is not None
        assert (record.message, record.is_expected) == (message, is_expected)
        assert str(record.text).startswith("Traceback") is not is_expected
    path.write_text("{torn")
    assert read_failure(path, rank=1) is None


@pytest.mark.parametrize("is_ours", [False, True])
def test_torchruns_report_ends_with_the_last_words_of_the_rank(is_ours, tmp_path, monkeypatch):
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    monkeypatch.setenv("ISAACLAB_ARENA_RUN_DIRECTORY_FILE", str(tmp_path / "run_directory"))
    if not is_ours:
        monkeypatch.delenv("ISAACLAB_ARENA_RUN_DIRECTORY_FILE")
    leave_last_words("job  status\nlift failed\ngo on with: that")
    assert path.exists() is not is_ours, "a launcher of ours needs none"
    if not is_ours:
        report = str(ChildFailedError("eval_runner", {0: ProcessFailure(0, 42, 1, str(path))}))
        assert report.splitlines()[-4:-1] == ["  job  status", "  lift failed", "  go on with: that"]


# What is asked of torchrunx, which is not installed here: a fake with its interface stands in for it.


class FakeLauncher:
    """Calls the function once per worker, one after the other, in this process; or a worker fails."""

    asked: dict[str, Any]

    def __init__(self, **asked: Any) -> None:
        FakeLauncher.asked = asked

    def run(self, function, module, words):
        if words == ("fail",):
            raise RuntimeError({"message": "ValueError: rank 1 has had enough", "extraInfo": {}})
        codes = [function(module, words) for _ in range(self.asked["workers_per_host"])]
        return SimpleNamespace(results={"localhost": codes})


def test_torchrunx_is_told_what_to_start_and_its_ranks_end_as_others_do(monkeypatch, tmp_path, caplog):
    monkeypatch.setitem(sys.modules, "torchrunx", SimpleNamespace(Launcher=FakeLauncher))
    monkeypatch.setitem(sys.modules, "program_of_this_test", SimpleNamespace(main=lambda words: int(words[0])))
    monkeypatch.setattr(sys, "argv", ["test"])
    monkeypatch.setenv("TORCHRUNX_LOG_DIR", "of the user")

    def ended(word: str, **more: Any) -> int:
        variables = {"CUDA_VISIBLE_DEVICES": "1,0"}
        launch = Launch(module="program_of_this_test", arguments=(word,), num_processes=2, variables=variables, **more)
        return run_ranks_over_torchrunx(launch)

    assert ended("0", log_directory=tmp_path) == 0
    asked = FakeLauncher.asked
    assert (asked["hostnames"], asked["workers_per_host"], asked["backend"]) == (["localhost"], 2, None)
    assert asked["extra_env_vars"]["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert asked["extra_env_vars"]["TORCHELASTIC_RUN_ID"]
    assert os.environ["TORCHRUNX_LOG_DIR"] == str(tmp_path)
    assert ended("2", log_directory=tmp_path, wants_files=False) == 2
    assert os.environ["TORCHRUNX_LOG_DIR"] == ""
    assert ended("fail") == 1
    assert "ValueError: rank 1" in caplog.text
