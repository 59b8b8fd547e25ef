"""Starting the program as a user does, in processes of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from isaaclab_arena.evaluation import eval_runner
from tests.preloaded.interpreter import preloaded_python

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
EVAL_RUNNER = ["-m", "isaaclab_arena.evaluation.eval_runner"]
RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def command(*arguments: object, ranks: int = 1, module: Sequence[str] = EVAL_RUNNER) -> list[str]:
    """Return the command line that runs a module on a number of ranks, without torchrun for one."""
    launcher = [sys.executable] if ranks == 1 else [*TORCHRUN, "--standalone", f"--nproc_per_node={ranks}"]
    return [*launcher, *module, *map(str, arguments)]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment variables without those of a launcher, and with the checkout on the path."""
    plain = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    # Where packages are found by this variable, programs need them too.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**plain, "PYTHONPATH": os.pathsep.join(paths), **(extra or {})}


def run(
    arguments: Sequence[str],
    *,
    timeout_s: float = 120,
    extra: Mapping[str, str] | None = None,
    directory: Path = ROOT,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in the project's root or another directory.

    Python is the preloaded one, unless it has to be a fresh one: whose process is that of the program itself.
    """
    return subprocess.run(
        arguments if fresh else _quick(arguments),
        cwd=directory,
        env=environment(extra),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(
    arguments: Sequence[str], log: Path, *, extra: Mapping[str, str] | None = None, fresh: bool = False
) -> subprocess.Popen[bytes]:
    """Start a command as `run` does and let it run, its output going to a file."""
    with log.open("wb") as stream:
        return subprocess.Popen(
            arguments if fresh else _quick(arguments),
            cwd=ROOT,
            env=environment(extra),
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _quick(arguments: Sequence[str]) -> list[str]:
    """Return a command with the preloaded interpreter in place of this one, which takes two seconds to begin."""
    return [preloaded_python() if word == sys.executable else word for word in arguments]


def patience_s(seconds: float) -> float:
    """Return a time limit for work of some seconds [s], longer if more processes run than there are cores."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Wait for something to come true, and fail if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


def free_port() -> int:
    """Return the number of a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def job(
    environment: str = "reach",
    policy: str = "scripted",
    num_episodes: int | None = 3,
    *,
    num_envs: int = 2,
    name: str = "a",
    options: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Return a job: options are those of the policy, args those of the environment, and keys go into the job."""
    return {
        "name": name,
        "arena_env_args": {"environment": environment, "num_envs": num_envs, **(args or {})},
        "policy_type": policy,
        "policy_config_dict": dict(options or {}),
        **({} if num_episodes is None else {"num_episodes": num_episodes}),
        **keys,
    }  # fmt: skip


def write_jobs(path: Path, jobs: Sequence[Mapping[str, Any]], **top_level: Any) -> Path:
    """Write a job file."""
    path.write_text(json.dumps({**top_level, "jobs": list(jobs)}))
    return path


def evaluated(output: Path, *jobs: Mapping[str, Any], options: Sequence[object] = (), code: int = 0) -> Path:
    """Run jobs in this process, which ends with a code, and return the output directory; its job file lies beside."""
    path = write_jobs(output.with_suffix(".json"), jobs) if jobs else output.with_suffix(".json")
    assert eval_runner.main(["--eval_jobs_config", str(path), "--output_dir", str(output), *map(str, options)]) == code
    return output


def run_of(output: Path, *jobs: Mapping[str, Any], options: Sequence[object] = (), ranks: int = 1) -> list[str]:
    """Return the command of a run, with the job file beside its directory; without jobs one that was written before."""
    path = write_jobs(output.with_suffix(".json"), jobs) if jobs else output.with_suffix(".json")
    return command("--eval_jobs_config", path, "--output_dir", output, *options, ranks=ranks)


def launched(
    output: Path, *jobs: Mapping[str, Any], options: Sequence[object] = (), ranks: int = 1, **how: Any
) -> Path:
    """Run jobs in processes of their own and return the output directory; see `run_of` and `run`."""
    finished = run(run_of(output, *jobs, options=options, ranks=ranks), **{"timeout_s": patience_s(120), **how})
    assert finished.returncode == 0, finished.stderr
    return output


def start_rank(
    line: Sequence[str], log: Path, *, rank: int, ranks: int, port: int, **variables: int
) -> subprocess.Popen[bytes]:
    """Start a rank as `srun` does, without torchrun: unlike there nobody ends the others when one of them dies."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return start(line, log, extra={name: str(value) for name, value in {**numbers, **variables}.items()})


@contextmanager
def ranks_of(output: Path, *jobs: Mapping[str, Any], options: Sequence[object] = (), ranks: int = 2) -> Iterator[Any]:
    """Start ranks by hand that claim their work, and kill those that are left; each logs beside the directory."""
    line, port = run_of(output, *jobs, options=("--assignment", "dynamic", *options)), free_port()
    logs = [output.with_name(f"rank{rank}.log") for rank in range(ranks)]
    processes = [start_rank(line, log, rank=rank, ranks=ranks, port=port) for rank, log in enumerate(logs)]
    try:
        yield processes
    finally:
        for process in processes:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that `start` started, with all that it started, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def committed(output: Path, job: str = "*", rank: int | str = "") -> Counter[tuple[str, int]]:
    """Count the whole commit lines of each episode, by job and index, of one rank or of all."""
    found: Counter[tuple[str, int]] = Counter()
    for path in output.glob(f"{job}/episode_results_rank{rank}*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                written = json.loads(line)
                found[written["job_name"], written["episode_index"]] += 1
            except (ValueError, TypeError, KeyError):
                continue
    return found


def results_of(output: Path) -> dict[str, Any]:
    """Return the document with all results."""
    return json.loads((output / "results.json").read_text())


def jobs_table(output_directory: Path) -> pd.DataFrame:
    """Return the merged table, which holds neither times nor places."""
    return pd.read_parquet(output_directory / "results.parquet")


def episodes_table(output_directory: Path) -> pd.DataFrame:
    """Return the table of episodes, likewise."""
    return pd.read_parquet(output_directory / "episodes.parquet")


def same_tables(one: Path, other: Path) -> bool:
    """Whether two runs gave the same tables, byte for byte."""
    names = [f"{table}.{kind}" for table in ("results", "episodes") for kind in ("csv", "parquet")]
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
