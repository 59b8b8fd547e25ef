"""Start ranks as processes of this machine with torch's elastic launcher, watch them, and stop them together.

torch's own agent reports a failure only when the last rank has ended, which may be half a minute later, and always
exits with 1. So this module checks the ranks before torch collects them.
"""

import logging
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

# torch.distributed has this name too, but only at run time, where a type checker does not see it.
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing import SignalException, SubprocessContext

from isaaclab_arena.distributed.context import variables_of_rank
from isaaclab_arena.distributed.launching.failures import Failure, first_failure
from isaaclab_arena.distributed.launching.launch_options import Launch
from isaaclab_arena.distributed.launching.launcher_messages import read_failure, read_run_directory
from isaaclab_arena.distributed.launching.rank_output import RankOutput

_POLL_INTERVAL_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_GRACES_S = (30, 5)
_SAME_MISTAKE_S = 5.0
_HANGS_AFTER_S = 10.0


def run_ranks(launch: Launch) -> int:
    """Start the ranks, show what rank 0 shows, and wait until all have ended or one has failed.

    As soon as the first rank fails, it is named on stderr with the reason; the others get SIGTERM and 30 s. SIGINT,
    SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 are passed on, and ranks get 30 s to act on them; a second signal cuts that
    short.

    Returns:
        0 if every rank returned 0; the exit code of the rank that failed first, 128 + the number of a signal that
        killed it; 128 + the number of a signal that this process was sent.
    """
    _silence_torch()
    with tempfile.TemporaryDirectory(prefix="isaaclab_arena_launch_") as directory:
        # The launcher holds the store, as torchrun does. So no other program can take the port, and any rank may start
        # first.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        output = RankOutput(
            launch.num_processes,
            find_directory=_place_of_logs(launch, Path(directory)),
            wants_files=launch.wants_files,
        )
        return _RankProcesses(launch, output, directory=Path(directory), port=store.port).run()


class _RankProcesses:
    def __init__(self, launch: Launch, output: RankOutput, *, directory: Path, port: int) -> None:
        self._launch = launch
        self._output = output
        self._directory = directory
        self._run_id = uuid.uuid4().hex
        self._ended: dict[int, int] = {}
        self._first_failed_at: float | None = None
        self._reported: Failure | None = None
        self._reported_at = 0.0
        ranks = range(launch.num_processes)
        self._processes = SubprocessContext(
            name="rank",
            entrypoint=sys.executable,
            args=dict.fromkeys(ranks, ("-u", "-m", launch.module, *launch.arguments)),
            envs={rank: self._variables(rank, port) for rank in ranks},
            logs_specs=output,
        )

    def run(self) -> int:
        self._output.start()
        try:
            with _signals_that_raise() as listen:
                try:
                    self._processes.start()
                    listen()
                    code = self._watch()
                except SignalException as stop:
                    code = self._stop(stop.sigval)
        finally:
            self._output.finish()
        return code

    def _variables(self, rank: int, port: int) -> dict[str, str]:
        world_size = self._launch.num_processes
        own = variables_of_rank(rank, world_size=world_size, port=port, run_id=self._run_id, directory=self._directory)
        return {**own, **self._launch.variables}

    def _watch(self) -> int:
        """Wait until all ranks have ended, or one has failed and the others were stopped; return the exit code."""
        while True:
            self._look()
            self._report_first_failure()
            self._end_what_hangs()
            if not self._is_waiting_for_same_mistake():
                result = self._processes.wait(0)
                if result is not None:
                    break
            time.sleep(_POLL_INTERVAL_S)
        codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
        if not codes:
            return 0
        if self._reported is None:
            # Not every system can report a process before it is collected.
            self._ended = codes
            self._report_first_failure(insist=True)
        return self._exit_code(codes)

    def _exit_code(self, codes: Mapping[int, int]) -> int:
        """Return the exit code of the rank that failed first; 1 if it failed and then had to be killed."""
        if self._reported is None:
            return _as_exit_code(next(iter(codes.values())))
        ended_by_force = self._reported.exit_code is None and codes.get(self._reported.rank, -1) < 0
        return 1 if ended_by_force else _as_exit_code(codes[self._reported.rank])

    def _look(self) -> None:
        """Note which ranks have ended, without collecting their processes; torch does that."""
        if not hasattr(os, "waitid"):
            return
        for rank, pid in self._processes.pids().items():
            if rank in self._ended:
                continue
            # A rank that torch has collected ended well, because torch stops all ranks when one fails.
            with suppress(ChildProcessError):
                state = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if state is not None:
                    exited = state.si_code == os.CLD_EXITED
                    self._ended[rank] = state.si_status if exited else -state.si_status
        if self._first_failed_at is None and any(self._ended.values()):
            self._first_failed_at = time.monotonic()

    def _is_waiting_for_same_mistake(self) -> bool:
        """Whether to wait until rank 0 finds the same mistake in the command, so that it is reported once."""
        if self._first_failed_at is None or 0 in self._ended:
            return False
        codes = {code for code in self._ended.values() if code}
        return codes == {2} and time.monotonic() - self._first_failed_at < _SAME_MISTAKE_S

    def _report_first_failure(self, *, insist: bool = False) -> None:
        if self._reported is not None or (self._is_waiting_for_same_mistake() and not insist):
            return
        ranks = range(self._launch.num_processes)
        records = [read_failure(self._directory / f"rank{rank}.json", rank=rank) for rank in ranks]
        failure = first_failure(self._ended, [record for record in records if record is not None])
        if failure is None:
            return
        self._reported, self._reported_at = failure, time.monotonic()
        report = failure.report(
            world_size=self._launch.num_processes,
            log_file=self._output.file_of(failure.rank),
            unseen_lines=self._output.last_unseen_lines(failure.rank),
        )
        if report:
            _say(report)

    def _end_what_hangs(self) -> None:
        """Kill a rank that has failed but does not exit, because some libraries wait for their peers for ever."""
        failure = self._reported
        if failure is None or failure.rank in self._ended:
            return
        if time.monotonic() - self._reported_at > _HANGS_AFTER_S:
            with suppress(ProcessLookupError):
                os.kill(self._processes.pids()[failure.rank], signal.SIGKILL)

    def _stop(self, number: signal.Signals) -> int:
        """Pass a signal on, and wait for the ranks to end; a second signal shortens the wait."""
        code = 128 + number
        for grace_s in _GRACES_S:
            try:
                self._processes.close(death_sig=number, timeout=grace_s)
            except SignalException as again:
                number = again.sigval
            else:
                return code
        with suppress(SignalException):
            self._processes.close(death_sig=signal.SIGKILL, timeout=1)
        return code


def _place_of_logs(launch: Launch, directory: Path) -> Callable[[], Path | None]:
    def find() -> Path | None:
        if launch.log_directory is None:
            announced = read_run_directory(directory / "run_directory")
            return None if announced is None else announced / "launcher"
        if launch.waits_for_run and not launch.log_directory.parent.is_dir():
            return None
        return launch.log_directory

    return find


def _as_exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


@contextmanager
def _signals_that_raise() -> Iterator[Callable[[], None]]:
    """Yield a function that makes signals raise `SignalException`; call it after torch has set its own handlers.

    Ignored signals stay ignored, because nohup relies on this to let a run outlive its terminal. The earlier handlers
    are restored at the end.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def listen() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler == signal.SIG_IGN else _raise)

    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    del frame
    name = signal.Signals(number)
    raise SignalException(f"got {name.name}", name)


def _silence_torch() -> None:
    # This module reports ended ranks itself, earlier than torch and in one place.
    logger = logging.getLogger("torch.distributed.elastic")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False


def _say(text: str) -> None:
    # The process may have no stderr, or its reader may be gone.
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()
