"""NCCL that fails on one rank, on all, or hangs: the run goes on over gloo, with one warning that says why."""

import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from isaaclab_arena.distributed.ranks import try_together
from tests.distributed.test_process_group import start_rank
from tests.distributed.threads import ranks_in_threads
from tests.end_to_end.launching import free_port

NO_SPACE = (
    "Error while creating shared memory segment /dev/shm/nccl-Xy (size 9637888), error: No space left on device (28)"
)
NCCL_ERROR = f"""NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled system error
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
{NO_SPACE}
Exception raised from checkNCCL at NCCLUtils.cpp:94 (most recent call first):
frame #0: c10::Error::Error + 0x96"""

RANK = f"""
    import sys, time, torch, torch.distributed as dist
    from isaaclab_arena.distributed import ranks as process_group
    from isaaclab_arena.distributed.context import DistributedContext
    from isaaclab_arena.errors import ArenaError
    from isaaclab_arena.logs import set_up_console_logging
    context = DistributedContext.from_environment(device="cpu")
    set_up_console_logging(context.rank)
    real, does = process_group.open_group, sys.argv[1].split(",")[context.rank]
    def pretended(backend, context, store, timeout):
        if backend == "gloo":
            real(backend, context, store, timeout)
        elif does == "fails":
            # As torch does, which has counted the group by then.
            dist.distributed_c10d._world.group_count += 1
            raise RuntimeError({NCCL_ERROR!r})
        elif does == "hangs":
            time.sleep(600)
        elif does == "works":
            from torch.testing._internal.distributed.fake_pg import FakeStore
            dist.init_process_group("fake", store=FakeStore(), rank=context.rank, world_size=context.world_size)
    process_group.open_group = pretended
    process_group.gpu_name = lambda device: f"GPU-{{context.rank}}"
    process_group._NCCL_TIMEOUT_S = 4.0
    try:
        with process_group.initialise(context, timeout_s=60, process_group=sys.argv[2]) as ranks:
            word = torch.tensor([float(context.rank)])
            dist.all_reduce(word)
            sys.stdout.write(f"{{ranks.backend}} {{word.item():g}}")
    except ArenaError as error:
        sys.stdout.write(f"{{type(error).__name__}}: {{error}}")
"""


def start(directory: Path, does: str, wanted: str = "auto") -> list[tuple[str, str]]:
    """Start one rank for each word, and return what each wrote on stdout and stderr."""
    words, port = does.split(","), free_port()
    (directory / "rank.py").write_text(textwrap.dedent(RANK))
    processes = [
        start_rank(rank, port, directory / "rank.py", does, wanted, world_size=len(words)) for rank in range(len(words))
    ]
    return [process.communicate(timeout=120) for process in processes]


def test_where_nccl_fails_all_ranks_go_on_over_gloo_with_one_warning(tmp_path):
    said = start(tmp_path, "works,fails,hangs")
    assert [out for out, _ in said] == ["gloo 3"] * 3
    (warning,) = [line for _, err in said for line in err.splitlines() if "NCCL fails on" in line]
    assert warning.startswith(f"[rank 0] NCCL fails on rank 1: {NO_SPACE}; ")
    assert ("/dev/shm" in warning, "--process_group gloo" in warning) == (True, True)
    assert "could not reach the other ranks" not in "".join(err for _, err in said)


def test_who_insists_on_nccl_is_told_why_it_fails_on_every_rank(tmp_path):
    for out, _ in start(tmp_path, "works,fails", "nccl"):
        assert out.startswith(f"DistributedError: NCCL fails on rank 1: {NO_SPACE}; ")


def verdicts(*speaks: Callable[[], object], limit_s: float = 20.0) -> list[str | None]:
    """Conclusion of each rank; ranks are threads here."""
    with ThreadPoolExecutor() as threads:
        listen = partial(try_together, limit_s=limit_s)
        return list(threads.map(listen, ranks_in_threads(len(speaks), timeout_s=60.0), speaks))


def works() -> None:
    pass


def failing(message: str = NCCL_ERROR, *, after_s: float = 0.0) -> Callable[[], None]:
    def fail() -> None:
        time.sleep(after_s)
        raise RuntimeError(message)

    return fail


def test_a_failure_on_one_rank_is_a_failure_on_all_and_nccls_own_last_line_is_kept():
    assert verdicts(works, works, works) == [None] * 3
    assert verdicts(works, works, failing()) == [f"rank 2: {NO_SPACE}"] * 3
    for message, line in (("one line", "one line"), ("several\n\nlines\n", "lines"), ("", "RuntimeError")):
        assert verdicts(works, failing(message)) == [f"rank 1: {line}"] * 2
    late = failing("Last error:\nno route", after_s=0.5)
    assert verdicts(late, failing()) == ["rank 0: no route"] * 2, "it heard of a failure and still says its own"


def test_a_rank_that_hangs_alone_is_named_and_not_one_that_hangs_because_another_failed():
    released = threading.Event()
    try:
        assert verdicts(released.wait, failing()) == [f"rank 1: {NO_SPACE}"] * 2
        assert verdicts(works, released.wait, limit_s=0.3) == ["rank 1: no answer within 0.3 s"] * 2
    finally:
        released.set()
