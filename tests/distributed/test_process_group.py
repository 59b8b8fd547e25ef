import re
import socket
import subprocess
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from isaaclab_arena.distributed import ranks as process_group
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.ranks import DistributedError, PeerStoppedError, Ranks, choose_backend, initialise
from isaaclab_arena.errors import ConfigError
from tests.distributed.threads import ranks_in_threads
from tests.end_to_end.launching import ROOT, TORCHRUN, environment, free_port, run
from tests.preloaded.interpreter import preloaded_python

IMPORTS = """
    import gc, sys, time, weakref, torch, torch.distributed as dist
    from pathlib import Path
    from isaaclab_arena.distributed.context import DistributedContext
    from isaaclab_arena.distributed.ranks import initialise
    from isaaclab_arena.errors import ConfigError
    context = DistributedContext.from_environment(device=None if "cuda" in sys.argv else "cpu")
"""
START_UP = """
    with initialise(context, timeout_s=30) as ranks:
        total = torch.tensor([float(context.rank)])
        dist.all_reduce(total)
        shared = ranks.share_from_rank_zero("output_dir", f"directory of rank {context.rank}")
        ranks.agree_on("config_hash", {"config_hash": "same everywhere"})
        try:
            ranks.agree_on("seed", {"seed": str(context.rank)})
        except ConfigError as error:
            verdict = str(error).partition(";")[0]
        line = f"RESULT|{context.rank}|{ranks.backend}|{total.item():g}|{shared}|{verdict}\\n"
    sys.stdout.write(line if not dist.is_initialized() else "still there")
"""


def written(directory: Path, text: str) -> Path:
    """Write a program of a rank into a directory, and return its file."""
    script = directory / "rank.py"
    script.write_text(textwrap.dedent(IMPORTS) + textwrap.dedent(text))
    return script


def start_rank(rank: int, port: int, script: Path, *arguments: str, world_size: int = 2) -> subprocess.Popen[str]:
    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    options = {"env": environment(variables), "cwd": ROOT, "text": True}
    line = [preloaded_python(), str(script), *arguments]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def outputs_of_two(directory: Path, text: str, *arguments: str) -> list[tuple[str, str]]:
    """Run a program as two ranks; return what each wrote on stdout and stderr."""
    port, script = free_port(), written(directory, text)
    processes = [start_rank(rank, port, script, *arguments) for rank in range(2)]
    return [process.communicate(timeout=120) for process in processes]


def test_two_ranks_under_torchrun_join_share_and_agree(tmp_path):
    finished = run([*TORCHRUN, "--standalone", "--nproc_per_node=2", str(written(tmp_path, START_UP))])
    assert finished.returncode == 0, finished.stderr
    lines = sorted(line for line in finished.stdout.splitlines() if line.startswith("RESULT"))
    disagreement = "the ranks do not agree on seed (rank 0: 0, rank 1: 1)"
    assert lines == [f"RESULT|{rank}|gloo|1|directory of rank 0|{disagreement}" for rank in range(2)]


def test_ranks_that_join_twice_hear_nothing_of_the_first_time_whose_group_stays_in_memory(tmp_path):
    """A program that evaluates two policies after each other does; the store is the same both times.

    Taking a group apart waits for its threads with Python's lock held, and one of them may wait for the lock.
    """
    script = """
        heard, groups = [], []
        for directory in ("first", "second"):
            with initialise(context, timeout_s=30) as ranks:
                time.sleep(0.5 * context.is_rank_zero)
                heard.append(ranks.share_from_rank_zero("output_dir", directory))
                groups.append(weakref.ref(dist.group.WORLD))
                dist.barrier()
        gc.collect()
        # The store ends with rank 0's process, where no launcher holds it.
        time.sleep(2.0 * context.is_rank_zero)
        sys.stdout.write(f"{heard} {dist.is_initialized()} {None in [group() for group in groups]}")
    """
    outputs = outputs_of_two(tmp_path, script)
    assert [said for said, _ in outputs] == ["['first', 'second'] False False"] * 2, outputs


def test_a_program_that_follows_another_at_the_same_address_hears_nothing_of_it(tmp_path):
    """A script of srun runs both, and rank 0, which holds the store, writes tables while the others go on."""
    script = """
        name, other = sys.argv[1:]
        with initialise(context, timeout_s=60) as ranks:
            sys.stdout.write(ranks.share_from_rank_zero("output_dir", name))
        if name == "second" and not context.is_rank_zero:
            Path(other).touch()
        while context.is_rank_zero and not Path(other).exists():
            time.sleep(0.05)
    """
    port, file, others_end = free_port(), written(tmp_path, script), tmp_path / "the other has waited"
    first = [start_rank(rank, port, file, "first", str(others_end)) for rank in range(2)]
    assert first[1].communicate(timeout=120)[0] == "first"
    heard = tmp_path / "the follower has heard the leader"
    follower = start_rank(1, port, file, "second", str(heard))
    with pytest.raises(subprocess.TimeoutExpired):
        follower.communicate(timeout=8)
    others_end.touch()
    assert first[0].communicate(timeout=120)[0] == "first"
    leader = start_rank(0, port, file, "second", str(heard))
    outputs = [each.communicate(timeout=120) for each in (leader, follower)]
    assert [said for said, _ in outputs] == ["second"] * 2, outputs


def test_a_rank_that_gives_up_in_start_up_takes_the_others_along_at_once(tmp_path):
    script = """
        with initialise(context, timeout_s=60) as ranks:
            if context.is_rank_zero:
                raise ConfigError("no such file")
            ranks.share_from_rank_zero("output_dir", "")
    """
    outputs = outputs_of_two(tmp_path, script)
    assert "ConfigError: no such file" in outputs[0][1]
    assert re.search("PeerStoppedError: .* rank 0: no such file", outputs[1][1])


def test_a_missing_rank_and_a_taken_port_are_named(monkeypatch, caplog):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        context = DistributedContext(rank=0, world_size=2, master_address=f"127.0.0.1:{port}")
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(DistributedError, match="port is taken"), initialise(context):
            pass
    with pytest.raises(DistributedError, match=r"rank 1 .* 1 s"), initialise(context, timeout_s=1.0):
        pass
    assert "waits for rank 1" in caplog.text
    assert not dist.is_initialized()


def test_a_single_process_makes_no_group_and_uses_one_that_exists_and_leaves_it():
    with initialise(DistributedContext()) as ranks:
        assert (dist.is_initialized(), ranks.backend) == (False, None)
        assert ranks.share_from_rank_zero("output_dir", "here") == "here"
        ranks.agree_on("config_hash", {"config_hash": "abc"})
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with initialise(DistributedContext()) as ranks:
            assert ranks.backend == "gloo"
            assert ranks.share_from_rank_zero("output_dir", "here") == "here"
        assert dist.is_initialized()
        other = DistributedContext(rank=1, world_size=2)
        with pytest.raises(ConfigError, match=r"rank 0 of 1, .* rank 1 of 2"), initialise(other):
            pass
    finally:
        dist.destroy_process_group()


def test_a_silent_rank_is_named_and_one_that_gave_up_is_quoted_within_an_undertaking_too():
    with pytest.raises(DistributedError, match=r"rank 0 .* output_dir .* 0\.1 s"):
        ranks_in_threads(2, timeout_s=0.1)[1].share_from_rank_zero("output_dir", "")
    giving_up, waiting = ranks_in_threads(2)
    giving_up.give_up("no such job file")
    for ranks in (waiting, waiting.within("a")):
        with pytest.raises(PeerStoppedError, match="rank 0: no such job file"):
            ranks.agree_on("config_hash", {"config_hash": "abc"})


def test_the_first_value_that_is_not_the_same_everywhere_is_named_with_the_ranks_that_hold_it():
    same = {"jobs": "1f2e", "--assignment": "split", "--policy_batch": "8"}
    others = {**same, "--assignment": "round_robin", "--policy_batch": "16"}

    def agree(ranks: Ranks, value: dict[str, str]) -> str:
        with pytest.raises(ConfigError) as refused:
            ranks.agree_on("options", value)
        return str(refused.value)

    with ThreadPoolExecutor() as threads:
        (told,) = set(threads.map(agree, ranks_in_threads(4), [same, others, same, others]))
    assert "--assignment (ranks 0 2: split, ranks 1 3: round_robin)" in told


def test_a_name_is_used_only_once_and_again_within_another_undertaking():
    """A rank that is slow to ask would take the second value for the first."""
    first, second = ranks_in_threads(2)
    for undertaking in ("a", "b"):
        first.within(undertaking).share_from_rank_zero("directory", undertaking)
    assert [second.within(name).share_from_rank_zero("directory", "") for name in ("a", "b")] == ["a", "b"]
    first.share_from_rank_zero("directory", "a")
    with pytest.raises(ValueError, match="'shared/directory'"):
        first.share_from_rank_zero("directory", "b")
    with pytest.raises(ValueError, match="'within/a'"):
        first.within("a")


def test_what_is_too_long_for_one_word_is_shared_in_parts():
    first, second = ranks_in_threads(2)
    text = "ä long plan, " * 100_000
    assert first.share_from_rank_zero("plan", text) == text
    assert second.share_from_rank_zero("plan", "") == text
    assert first.share_from_rank_zero("nothing", "") == second.share_from_rank_zero("nothing", "") == ""


@pytest.mark.parametrize(
    ("gpus", "backend", "reason"),
    [
        (["GPU-1", "GPU-2"], "cpu:gloo,cuda:nccl", "a GPU of its own"),
        (["GPU-1", "no GPU"], "gloo", "not every rank"),
        (["no GPU", "no GPU"], "gloo", "not every rank"),
        (["no NCCL", "no NCCL"], "gloo", "has no NCCL"),
        (["GPU-1"] * 8, "gloo", "(all 8 are on the only one that they see)"),
        (["GPU-1", "GPU-2", "GPU-3", "GPU-4"] * 2, "gloo", "(8 ranks on 4 GPUs, 2 on each)"),
        (["GPU-1", "GPU-2", "GPU-1"], "gloo", "(3 ranks on 2 GPUs, 1 to 2 on each)"),
    ],
)
def test_nccl_is_used_only_where_every_rank_has_a_gpu_of_its_own(gpus, backend, reason):
    assert choose_backend(gpus)[0] == backend
    assert reason in choose_backend(gpus)[1]


@pytest.mark.parametrize(("gpus", "reason"), [(["GPU-1", "GPU-1"], "all 2 are"), (["GPU-1", "no GPU"], "not every")])
def test_ranks_that_insist_on_a_gpu_of_their_own_are_refused_where_there_are_too_few(gpus, reason, monkeypatch):
    named = [SimpleNamespace(uuid=gpu) for gpu in gpus]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: named[device.index])
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)

    def open_one(ranks: Ranks, gpu: str) -> str:
        device = torch.device("cpu") if gpu == "no GPU" else torch.device("cuda", ranks.context.rank)
        ranks.context = replace(ranks.context, device=device)
        with pytest.raises(ConfigError) as refused:
            process_group._open(ranks, HashStore(), timedelta(seconds=10), "nccl")
        return str(refused.value)

    with ThreadPoolExecutor() as threads:
        (told,) = set(threads.map(open_one, ranks_in_threads(2), gpus))
    assert told.startswith("--process_group: nccl")
    assert reason in told


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_ranks_use_nccl_on_two_gpus_and_gloo_on_a_shared_one(tmp_path):
    script = """
        with initialise(context, timeout_s=60) as ranks:
            sys.stdout.write(f"{ranks.backend} {ranks.context.device}")
    """
    said = [said for said, _ in outputs_of_two(tmp_path, script, "cuda")]
    several = ["cpu:gloo,cuda:nccl cuda:0", "cpu:gloo,cuda:nccl cuda:1"]
    assert said == (several if torch.cuda.device_count() > 1 else ["gloo cuda:0"] * 2)
