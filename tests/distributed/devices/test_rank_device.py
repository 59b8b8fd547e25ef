import pytest

from isaaclab_arena.distributed.devices import choose_rank_device, gpu_of_rank, resolve_policy_device
from isaaclab_arena.errors import ConfigError


def device_of(requested, *, local_rank=0, ranks=1, gpus=0, **environ):
    choice = choose_rank_device(
        requested, local_rank=local_rank, local_world_size=ranks, visible_gpus=gpus, environ=environ
    )
    return str(choice.device)


@pytest.mark.parametrize(
    ("requested", "gpus", "expected"),
    [
        (None, 0, "cpu"),
        (None, 4, "cuda:0"),
        ("cpu", 4, "cpu"),
        ("cuda", 4, "cuda:0"),
        ("cuda:3", 4, "cuda:3"),
    ],
)
def test_a_process_alone_gets_what_it_asks_for(requested, gpus, expected):
    assert device_of(requested, gpus=gpus) == expected


@pytest.mark.parametrize("requested", [None, "cuda", "cuda:0"])
def test_ranks_that_share_a_machine_each_get_their_own_gpu(requested):
    devices = [device_of(requested, local_rank=rank, ranks=3, gpus=4) for rank in range(3)]
    assert devices == ["cuda:0", "cuda:1", "cuda:2"]


def test_a_request_that_is_overruled_is_mentioned():
    choice = choose_rank_device("cuda:0", local_rank=1, local_world_size=2, visible_gpus=2)
    assert "precedence over --device cuda:0" in choice.reason


def test_the_only_visible_gpu_is_number_zero_whatever_the_local_rank():
    assert device_of(None, local_rank=3, ranks=4, gpus=1) == "cuda:0"
    assert device_of("cuda", local_rank=3, ranks=4, gpus=1) == "cuda:0"


def test_a_rank_beyond_the_gpus_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match="LOCAL_RANK is 2 but only 2 GPUs are visible"):
        device_of(None, local_rank=2, ranks=3, gpus=2)


def test_more_ranks_than_gpus_share_them_evenly_and_the_first_ones_keep_theirs():
    shares = [device_of(None, local_rank=rank, ranks=8, gpus=4) for rank in range(8)]
    assert shares == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"] * 2
    choice = choose_rank_device("cuda", local_rank=5, local_world_size=8, visible_gpus=4)
    assert choice.reason == "LOCAL_RANK is 5, and 8 ranks share 4 GPUs"


@pytest.mark.parametrize("local_rank", range(6))
def test_every_rank_refuses_gpus_that_cannot_be_shared_evenly_and_names_both_numbers(local_rank):
    with pytest.raises(ConfigError) as refused:
        device_of(None, local_rank=local_rank, ranks=6, gpus=4)
    message = str(refused.value)
    assert f"LOCAL_RANK is {local_rank} but" in message if local_rank > 3 else "6 ranks are on this machine" in message
    assert "only 4 GPUs are visible (cuda:0 to cuda:3)" in message
    assert "6 ranks cannot share them evenly; start 4 processes on this machine or a multiple of that" in message


def test_without_the_number_of_ranks_only_those_beyond_the_gpus_are_refused():
    assert str(gpu_of_rank(3, local_world_size=None, visible_gpus=4)) == "cuda:3"
    with pytest.raises(ConfigError, match=r"LOCAL_RANK is 4 but only 4 GPUs are visible \(cuda:0 to cuda:3\); start 4"):
        gpu_of_rank(4, local_world_size=None, visible_gpus=4)


def test_fewer_ranks_than_gpus_have_one_each():
    assert [device_of(None, local_rank=rank, ranks=3, gpus=8) for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_gpu_that_does_not_exist_is_refused_with_a_launcher_as_without(ranks):
    with pytest.raises(ConfigError, match=r"--device: 'cuda:9' does not exist; this process can use cpu and cuda:0 to"):
        device_of("cuda:9", local_rank=ranks - 1, ranks=ranks, gpus=4)


def test_why_a_device_was_chosen_is_told():
    assert choose_rank_device("cpu", local_rank=0, local_world_size=1, visible_gpus=4).reason == "asked for"
    assert choose_rank_device("cuda:1", local_rank=0, local_world_size=1, visible_gpus=4).reason == "asked for"
    assert choose_rank_device(None, local_rank=1, local_world_size=2, visible_gpus=2).reason == "LOCAL_RANK is 1"
    assert choose_rank_device("cuda", local_rank=1, local_world_size=2, visible_gpus=2).reason == "LOCAL_RANK is 1"
    assert choose_rank_device("cuda:1", local_rank=1, local_world_size=2, visible_gpus=2).reason == "LOCAL_RANK is 1"
    assert choose_rank_device(None, local_rank=1, local_world_size=2, visible_gpus=1).reason == "the only visible GPU"
    assert choose_rank_device(None, local_rank=1, local_world_size=2, visible_gpus=0).reason == (
        "no CUDA device is visible"
    )


def test_ranks_on_the_cpu_need_no_gpu():
    assert device_of("cpu", local_rank=7, ranks=8, gpus=2) == "cpu"
    assert device_of(None, local_rank=7, ranks=8, gpus=0) == "cpu"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mask", ["", "-1"])
def test_a_gpu_that_is_hidden_is_an_error_that_says_why(mask, ranks):
    with pytest.raises(ConfigError, match=f"'cuda' does not exist.*use cpu.*CUDA_VISIBLE_DEVICES is '{mask}'"):
        device_of("cuda", ranks=ranks, gpus=0, CUDA_VISIBLE_DEVICES=mask)


def test_a_gpu_that_does_not_exist_is_an_error_that_names_those_that_do():
    with pytest.raises(ConfigError, match=r"--device: 'cuda:2' does not exist; .*cpu and cuda:0 to cuda:1"):
        device_of("cuda:2", gpus=2)
    with pytest.raises(ConfigError, match=r"cpu and cuda:0$"):
        device_of("cuda:1", gpus=1)


def test_a_policy_shares_the_gpu_that_its_rank_simulates_on():
    for rank in range(8):
        environ = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "8"}
        assert str(resolve_policy_device(environ=environ, visible_gpus=4)) == device_of(
            None, local_rank=rank, ranks=8, gpus=4
        )


@pytest.mark.parametrize("mask", ["", "-1", "7", "GPU-8a6f0f3c-0000-0000-0000-000000000000", "MIG-1/2/3"])
def test_a_gpu_that_a_mask_hides_is_told_with_the_mask(mask):
    with pytest.raises(ConfigError, match=f"'cuda' does not exist.*CUDA_VISIBLE_DEVICES is '{mask}'"):
        choose_rank_device(
            "cuda", local_rank=0, local_world_size=1, visible_gpus=0, environ={"CUDA_VISIBLE_DEVICES": mask}
        )
