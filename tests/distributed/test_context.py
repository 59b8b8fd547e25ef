import re

import pytest
import torch

from isaaclab_arena.distributed.context import DistributedContext, variables_of_child, variables_of_worker
from isaaclab_arena.errors import ConfigError

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in TORCHRUN.items() if name not in names}


def test_without_a_launcher_there_is_one_process():
    context = DistributedContext.from_environment({}, visible_gpus=0)
    assert (context.rank, context.local_rank, context.world_size, context.local_world_size) == (0, 0, 1, 1)
    assert context.device == torch.device("cpu")
    assert not context.is_distributed
    assert context.is_rank_zero
    assert not context.launched_by_torchrun


@pytest.mark.parametrize("rank", range(6))
def test_a_task_that_slurm_gives_one_gpu_has_that_one_whatever_its_local_rank(rank):
    environ = {
        "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
    }  # fmt: skip
    context = DistributedContext.from_environment(environ, visible_gpus=1)
    assert (context.rank, context.local_rank) == (rank, rank % 2)
    assert (context.world_size, context.local_world_size) == (6, 2)
    assert (context.master_address, str(context.device)) == ("node1:29500", "cuda:0")


def test_torchruns_variables_are_read():
    context = DistributedContext.from_environment(TORCHRUN, visible_gpus=4)
    assert (context.rank, context.local_rank, context.world_size, context.local_world_size) == (5, 1, 8, 4)
    assert context.device == torch.device("cuda", 1)
    assert context.master_address == "node0:29500"
    assert context.attempt == "2"
    assert context.launched_by_torchrun


@pytest.mark.parametrize(
    "environ",
    [{"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}, {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}],
)
def test_a_world_of_one_needs_nothing_else(environ):
    context = DistributedContext.from_environment(environ, visible_gpus=0)
    assert not context.is_distributed
    assert context.master_address is None


def test_all_ranks_are_on_this_machine_where_the_launcher_does_not_say():
    assert DistributedContext.from_environment(without("LOCAL_WORLD_SIZE"), visible_gpus=0).local_world_size == 8


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE"])
def test_a_missing_variable_is_named(name):
    with pytest.raises(ConfigError, match=f"{name} not set.*seen: "):
        DistributedContext.from_environment(without(name), visible_gpus=0)


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
@pytest.mark.parametrize("text", ["abc", "-1", " 4 ", "04", "", "1.0", "+1", "\uff11", "9" * 5000, "1\n"])
def test_only_plain_whole_numbers_are_accepted(name, text):
    with pytest.raises(ConfigError, match=name):
        DistributedContext.from_environment({**TORCHRUN, name: text}, visible_gpus=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": "8"}, "RANK must be below WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK must be below"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE must be from 1"),
        ({"LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE must be from 1"),
        ({"WORLD_SIZE": "1", "RANK": "1"}, "RANK must be below WORLD_SIZE"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT must be from 1 to 65535"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT must be from 1 to 65535"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR must be set too"),
    ],
)
def test_contradictions_are_refused_with_the_variables_seen(changes, message):
    environ = {**TORCHRUN, **changes}
    with pytest.raises(ConfigError, match=message) as caught:
        DistributedContext.from_environment(environ, visible_gpus=0)
    for name in ("RANK", "WORLD_SIZE"):
        assert re.search(rf"\b{name}='{environ[name]}'", str(caught.value))


def test_several_ranks_need_an_address():
    with pytest.raises(ConfigError, match="MASTER_ADDR and MASTER_PORT must be set too"):
        DistributedContext.from_environment(without("MASTER_ADDR", "MASTER_PORT"), visible_gpus=0)


@pytest.mark.parametrize("own", [{}, {"PYTHONPATH": "mine:yours"}])
def test_a_worker_of_another_interpreter_looks_for_modules_where_the_user_said_and_nowhere_else(own):
    plain = {"HOME": "/home/me", **own}
    child = variables_of_child(["", "/site-packages"], plain)
    assert child["PYTHONPATH"] == ".:/site-packages"
    grandchild = variables_of_child(["/elsewhere"], child)
    for variables in (plain, child, grandchild):
        assert variables_of_worker(variables) == plain
