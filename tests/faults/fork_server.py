"""Runs the small run in forked children of a process that has loaded everything already: milliseconds, not seconds.

Reads one request per line from stdin, and answers each with one line on stdout. `ForkServer` is the other end.
"""

import dataclasses
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from tests.end_to_end.launching import ROOT, environment
from tests.faults.clock import set_clock_back_now_and_then
from tests.faults.file_operations import Effect, Fault, FaultyFiles
from tests.faults.system_trouble import SystemTrouble, trouble_variables

LAUNCHER_PATIENCE_S = 20.0
_NOTE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run went: each rank's exit code, the operation that its fault met (or nothing), and all their output."""

    exit_codes: tuple[int, ...]
    met: tuple[str, ...]
    output: str

    @property
    def exit_code(self) -> int:
        """What a launcher would say: 0, or the code of the first rank that failed."""
        return next((code for code in self.exit_codes if code), 0)


class ForkServer:
    """Starts the server, and asks it for runs."""

    def __init__(self, log: Path) -> None:
        self._log = log
        preloaded = trouble_variables(log.parent)
        self.has_trouble = preloaded is not None
        with log.with_suffix(".server").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.fork_server"],
                cwd=ROOT,
                env=environment({"OMP_NUM_THREADS": "1", **(preloaded or {})}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def run(
        self,
        arguments: Sequence[object],
        *,
        directory: Path,
        diary: Path,
        faults: Mapping[int, Fault] | None = None,
        ranks: int = 1,
        commands: int = 1,
        clock_jumps: bool = False,
        trouble: SystemTrouble | None = None,
        survive: bool = False,
    ) -> Ended:
        """Run the evaluation runner to its end, with faults by rank.

        Several ``commands`` start at once, each as a rank 0. Ranks that ``survive`` go on when one has died, which
        torchrun would end. ``trouble`` is what the system refuses to every rank; only where `has_trouble`.
        """
        request = {
            "arguments": [*map(str, arguments)],
            "directory": str(directory),
            "diary": str(diary),
            "log": str(self._log),
            "ranks": ranks,
            "commands": commands,
            "clock_jumps": clock_jumps,
            "survive": survive,
            "trouble": {} if trouble is None else trouble.variables,
            "faults": {rank: dataclasses.asdict(fault) for rank, fault in (faults or {}).items()},
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._log.with_suffix(".server").read_text()
        ended = {name: tuple(values) for name, values in json.loads(line).items()}
        return Ended(**ended, output=self._log.read_text(errors="replace"))


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _load_everything()
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), file=answers, flush=True)


def _load_everything() -> None:
    """Do a whole run here, after which everything is loaded that a run needs."""
    from tests.faults import small_run  # noqa: PLC0415  only the server needs it

    # Neither changes while the server lives, and a run asks for both more than once.
    os.chdir("/")
    metadata.version = cache(metadata.version)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        jobs = small_run.write_small_jobs(directory / "jobs.json")
        os.environ[small_run.DIARY] = str(directory / "diary")
        if small_run.main(["--eval_jobs_config", str(jobs), "--output_dir", f"{name}/out"]):
            raise SystemExit("an undisturbed run fails")


def _run(request: Mapping[str, Any]) -> dict[str, Any]:
    ranks, processes = request["ranks"], request["ranks"] * request["commands"]
    variables, store = _launcher(ranks)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    notes = [mmap.mmap(-1, _NOTE_BYTES) for _ in range(processes)]
    children: dict[int, int] = {}
    for rank in range(processes):
        pid = os.fork()
        if pid == 0:
            own = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) if ranks > 1 else {}
            _be_rank(rank, request, {**variables, **own}, notes[rank], log)
        children[pid] = rank
    os.close(log)
    codes = _wait(children, belong_together=ranks > 1 and not request["survive"])
    del store
    return {
        "exit_codes": [codes[rank] for rank in range(processes)],
        "met": [note[:].rstrip(b"\0").decode() for note in notes],
    }


def _launcher(ranks: int) -> tuple[dict[str, str], object]:
    """Return the variables that torchrun gives to every rank, and the store that it keeps for them."""
    if ranks == 1:
        return {}, None
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415  only the server needs it

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return {
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": "faults",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }, store


def _be_rank(rank: int, request: Mapping[str, Any], variables: Mapping[str, str], note: mmap.mmap, log: int) -> None:
    """Run as one rank in this forked child, which never returns."""
    from tests.faults import small_run  # noqa: PLC0415

    code = 70
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(variables, **{small_run.DIARY: request["diary"]}, **request["trouble"])
        if request["clock_jumps"]:
            set_clock_back_now_and_then()
        fault = request["faults"].get(str(rank))

        def remember(operation: str) -> None:
            text = operation.encode()[:_NOTE_BYTES]
            note[: len(text)] = text

        if fault is not None:
            FaultyFiles(request["directory"], Fault(**{**fault, "effect": Effect(fault["effect"])}), remember).install()
        code = small_run.main(request["arguments"])
    except BaseException:  # noqa: BLE001  as the interpreter would
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(children: Mapping[int, int], *, belong_together: bool) -> dict[int, int]:
    """Wait for all ranks the way torchrun does: when one fails the others are told to stop, then made to."""
    codes: dict[int, int] = {}
    left = dict(children)
    deadline = None
    while left:
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[left.pop(pid)] = os.waitstatus_to_exitcode(status)
        if belong_together and deadline is None and any(codes.values()):
            deadline = time.monotonic() + LAUNCHER_PATIENCE_S
            for pid in left:
                os.kill(pid, signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return codes


if __name__ == "__main__":
    _serve()
