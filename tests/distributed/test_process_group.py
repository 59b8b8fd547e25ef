import socket
import subprocess
import textwrap
import threading
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
"""
START_UP = """
    context = DistributedContext.from_environment()
    with initialise(context, timeout_s=30) as ranks:
        total = torch.tensor([float(context.rank)])
        dist.all_reduce(total)
        shared = ranks.share_from_rank_zero("output_dir", f"directory of rank {context.rank}")
        ranks.agree_on("config_hash", {"config_hash": "same everywhere"})
        try:
            ranks.agree_on("seed", {"seed": str(context.rank)})
        except ConfigError as error:
            verdict = str(error)
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
    return subprocess.Popen(
        [preloaded_python(), str(script), *arguments],
        env=environment(variables),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outputs_of_two(directory: Path, text: str) -> list[tuple[str, str]]:
    """Run a program as two ranks; return what each wrote on stdout and stderr."""
    port, script = free_port(), written(directory, text)
    processes = [start_rank(rank, port, script) for rank in range(2)]
    return [process.communicate(timeout=120) for process in processes]


def test_two_ranks_under_torchrun_join_share_and_agree(tmp_path):
    finished = run([*TORCHRUN, "--standalone", "--nproc_per_node=2", str(written(tmp_path, START_UP))])
    assert finished.returncode == 0, finished.stderr
    lines = sorted(line for line in finished.stdout.splitlines() if line.startswith("RESULT"))
    disagreement = "the ranks do not agree on seed (rank 0: 0, rank 1: 1); start all of them with the same input"
    assert lines == [f"RESULT|{rank}|gloo|1|directory of rank 0|{disagreement}" for rank in range(2)]


def test_a_group_that_was_left_is_not_taken_apart_before_the_process_ends(tmp_path):
    """That waits for the group's threads with Python's lock held, and one of them may wait for the lock."""
    script = """
        with initialise(DistributedContext.from_environment(device="cpu"), timeout_s=30):
            group = weakref.ref(dist.group.WORLD)
            # Neither may leave while the other still joins.
            dist.barrier()
        gc.collect()
        sys.stdout.write(f"left {not dist.is_initialized()}, there {group() is not None}")
    """
    outputs = outputs_of_two(tmp_path, script)
    assert [said for said, _ in outputs] == ["left True, there True"] * 2, outputs


def test_ranks_that_join_twice_hear_nothing_of_the_first_time(tmp_path):
    """A program that evaluates two policies after each other does; the store is the same both times."""
    script = """
        context = DistributedContext.from_environment(device="cpu")
        heard = []
        for directory in ("first", "second"):
            with initialise(context, timeout_s=30) as ranks:
                time.sleep(0.5 * context.is_rank_zero)
                heard.append(ranks.share_from_rank_zero("output_dir", directory))
        # The store ends with rank 0's process, where no launcher holds it.
        time.sleep(2.0 * context.is_rank_zero)
        sys.stdout.write(" ".join(heard))
    """
    outputs = outputs_of_two(tmp_path, script)
    assert [said for said, _ in outputs] == ["first second"] * 2, outputs


def test_a_program_that_follows_another_at_the_same_address_hears_nothing_of_it(tmp_path):
    """A script of srun runs both, and rank 0, which holds the store, writes tables while the others go on."""
    script = """
        context = DistributedContext.from_environment(device="cpu")
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
        context = DistributedContext.from_environment()
        with initialise(context, timeout_s=60) as ranks:
            if context.is_rank_zero:
                raise ConfigError("the output directory is not empty")
            ranks.share_from_rank_zero("output_dir", "")
    """
    outputs = outputs_of_two(tmp_path, script)
    assert "ConfigError: the output directory is not empty" in outputs[0][1]
    assert "PeerStoppedError: ended because of rank 0: the output directory is not empty" in outputs[1][1]


def test_a_missing_rank_and_a_taken_port_are_one_clear_message(monkeypatch, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        context = DistributedContext(rank=0, world_size=2, master_address=f"127.0.0.1:{port}")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(DistributedError, match="the port is taken; choose another"), initialise(context):
            pass
    with (
        pytest.raises(DistributedError, match=r"rank 1 sent no GPU within 1 s; check that all 2 processes"),
        initialise(context, timeout_s=1.0),
    ):
        pass
    assert any("rank 0 of 2 waits for rank 1 to send its GPU, until " in each.getMessage() for each in caplog.records)
    assert not dist.is_initialized()


def test_a_single_process_makes_no_group_and_agrees_with_itself():
    with initialise(DistributedContext()) as ranks:
        assert not dist.is_initialized()
        assert ranks.backend is None
        assert ranks.share_from_rank_zero("output_dir", "here") == "here"
        ranks.agree_on("config_hash", {"config_hash": "abc"})


def test_a_group_that_exists_is_used_and_left_as_it_is():
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        with initialise(DistributedContext()) as ranks:
            assert ranks.backend == "gloo"
            assert ranks.share_from_rank_zero("output_dir", "here") == "here"
        assert dist.is_initialized()
        with (
            pytest.raises(ConfigError, match=r"exists already, with rank 0 of 1, but .* say rank 1 of 2"),
            initialise(DistributedContext(rank=1, world_size=2)),
        ):
            pass
    finally:
        dist.destroy_process_group()


def test_ranks_hear_each_other_in_any_order():
    ranks = ranks_in_threads(3)
    heard: dict[int, str] = {}
    listeners = [
        threading.Thread(target=lambda one=one: heard.update({one.context.rank: one.share_from_rank_zero("name", "?")}))
        for one in ranks[1:]
    ]
    for listener in listeners:
        listener.start()
    ranks[0].share_from_rank_zero("name", "Ada")
    for listener in listeners:
        listener.join()
    assert heard == {1: "Ada", 2: "Ada"}


def test_a_silent_rank_is_named():
    with pytest.raises(DistributedError, match=r"rank 0 sent no output_dir within 0\.1 s"):
        ranks_in_threads(2, timeout_s=0.1)[1].share_from_rank_zero("output_dir", "")


def test_a_rank_that_gave_up_is_quoted():
    giving_up, waiting = ranks_in_threads(2)
    giving_up.give_up("no such job file")
    with pytest.raises(PeerStoppedError, match="ended because of rank 0: no such job file"):
        waiting.agree_on("config_hash", {"config_hash": "abc"})


def test_the_first_value_that_is_not_the_same_everywhere_is_named_with_the_ranks_that_hold_it():
    same = {"jobs": "1f2e", "--assignment": "split", "--policy_batch": "8"}
    others = {"--assignment": "round_robin", "--policy_batch": "16"}
    values = [same, {**same, **others}, same, {**same, **others}]

    def agree(ranks: Ranks, value: dict[str, str]) -> str:
        with pytest.raises(ConfigError) as refused:
            ranks.agree_on("options", value)
        return str(refused.value)

    with ThreadPoolExecutor() as threads:
        told = set(threads.map(agree, ranks_in_threads(4), values))
    held = "ranks 0 2: split, ranks 1 3: round_robin"
    assert told == {f"the ranks do not agree on --assignment ({held}); start all of them with the same input"}


def test_names_can_be_used_again_within_another_undertaking():
    first, second = ranks_in_threads(2)
    for undertaking in ("a", "b"):
        first.within(undertaking).share_from_rank_zero("directory", undertaking)
    assert [second.within(name).share_from_rank_zero("directory", "") for name in ("a", "b")] == ["a", "b"]


def test_a_name_is_used_only_once():
    """A rank that is slow to ask would take the second value for the first."""
    ranks, _ = ranks_in_threads(2)
    ranks.share_from_rank_zero("directory", "a")
    with pytest.raises(ValueError, match="'shared/directory' before; give each message a name of its own"):
        ranks.share_from_rank_zero("directory", "b")
    ranks.within("evaluation").share_from_rank_zero("directory", "a")
    with pytest.raises(ValueError, match="'within/evaluation' before"):
        ranks.within("evaluation")


def test_what_is_too_long_for_one_word_is_shared_in_parts():
    first, second = ranks_in_threads(2)
    text = "ä long plan, " * 100_000
    assert first.share_from_rank_zero("plan", text) == text
    assert second.share_from_rank_zero("plan", "") == text
    assert first.share_from_rank_zero("nothing", "") == second.share_from_rank_zero("nothing", "") == ""


def test_a_rank_that_gave_up_is_quoted_within_an_undertaking_too():
    first, second = ranks_in_threads(2)
    first.give_up("no such file")
    with pytest.raises(PeerStoppedError, match="rank 0: no such file"):
        second.within("a").share_from_rank_zero("directory", "")


@pytest.mark.parametrize(
    ("gpus", "backend", "reason"),
    [
        (["GPU-1", "GPU-2"], "cpu:gloo,cuda:nccl", "a GPU of its own"),
        (["GPU-1", "GPU-1"], "gloo", "share a GPU"),
        (["GPU-1", "no GPU"], "gloo", "not every rank has a GPU"),
        (["no GPU", "no GPU"], "gloo", "not every rank has a GPU"),
        (["no NCCL", "no NCCL"], "gloo", "has no NCCL"),
    ],
)
def test_nccl_is_used_only_where_every_rank_has_a_gpu_of_its_own(gpus, backend, reason):
    assert choose_backend(gpus)[0] == backend
    assert reason in choose_backend(gpus)[1]


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        (["GPU-1"] * 8, "ranks share a GPU (all 8 are on the only one that they see)"),
        (["GPU-1", "GPU-2", "GPU-3", "GPU-4"] * 2, "ranks share a GPU (8 ranks on 4 GPUs, 2 on each)"),
        (["GPU-1", "GPU-2", "GPU-1"], "ranks share a GPU (3 ranks on 2 GPUs, 1 to 2 on each)"),
    ],
)
def test_how_ranks_share_gpus_is_told_in_numbers(gpus, told):
    assert choose_backend(gpus)[1] == told


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [
        (["GPU-1", "GPU-1"], "ranks share a GPU (all 2 are on the only one that they see)"),
        (["GPU-1", "no GPU"], "not every rank has a GPU"),
    ],
)
def test_ranks_that_insist_on_a_gpu_of_their_own_are_refused_where_there_are_too_few(gpus, reason, monkeypatch):
    refusals: dict[int, str] = {}
    named = [SimpleNamespace(uuid=gpu) for gpu in gpus]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: named[device.index])
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)

    def open_one(ranks: Ranks) -> None:
        try:
            process_group._open(ranks, HashStore(), timedelta(seconds=10), "nccl")
        except ConfigError as error:
            refusals[ranks.context.rank] = str(error)

    everybody = ranks_in_threads(2)
    for ranks in everybody:
        rank = ranks.context.rank
        device = torch.device("cpu") if gpus[rank] == "no GPU" else torch.device("cuda", rank)
        ranks.context = replace(ranks.context, device=device)
    threads = [threading.Thread(target=open_one, args=(ranks,)) for ranks in everybody]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refusals == dict.fromkeys((0, 1), f"--process_group: nccl cannot be: {reason}")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_two_ranks_use_nccl_on_two_gpus_and_gloo_on_a_shared_one(tmp_path):
    script = """
        with initialise(DistributedContext.from_environment(device="cuda"), timeout_s=60) as ranks:
            sys.stdout.write(f"{ranks.backend} {ranks.context.device}")
    """
    outputs = outputs_of_two(tmp_path, script)
    devices = [f"cuda:{rank if torch.cuda.device_count() > 1 else 0}" for rank in range(2)]
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.device_count() > 1 else "gloo"
    assert [output[0] for output in outputs] == [f"{backend} {device}" for device in devices]
