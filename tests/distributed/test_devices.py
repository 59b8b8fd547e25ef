"""The device of each rank, and what it shares."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from isaaclab_arena.distributed.devices import (
    check_device_exists,
    check_policy_device,
    choose_opengl,
    choose_rank_device,
    cpu_holds_for_policy,
    describe_variables,
    draw_on,
    gpu_of_rank,
    joined_gpu_ids,
    on_cpu,
    parse_count,
    resolve_policy_device,
    select_gpus,
    set_up_torch,
)
from isaaclab_arena.errors import ConfigError
from tests.pretend_gpu import GPU


def chosen(requested, *, local_rank=0, ranks=1, gpus=0, **environ):
    return choose_rank_device(
        requested, local_rank=local_rank, local_world_size=ranks, visible_gpus=gpus, environ=environ
    )


def device_of(requested, **given):
    return str(chosen(requested, **given)[0])


@pytest.mark.parametrize(
    ("requested", "local_rank", "ranks", "gpus", "expected", "told"),
    [
        (None, 0, 1, 0, "cpu", "no CUDA device is visible"),
        (None, 0, 1, 4, "cuda:0", "LOCAL_RANK is 0"),
        ("cpu", 0, 1, 4, "cpu", "asked for"),
        ("cuda", 0, 1, 4, "cuda:0", "asked for"),
        ("cuda:3", 0, 1, 4, "cuda:3", "asked for"),
        (None, 1, 2, 2, "cuda:1", "LOCAL_RANK is 1"),
        ("cuda", 1, 2, 2, "cuda:1", "LOCAL_RANK is 1"),
        ("cuda:1", 1, 2, 2, "cuda:1", "LOCAL_RANK is 1"),
        ("cuda:0", 1, 2, 2, "cuda:1", "precedence over --device cuda:0"),
        # The only visible GPU is number zero whatever the local rank.
        (None, 3, 4, 1, "cuda:0", "the only visible GPU"),
        ("cuda", 3, 4, 1, "cuda:0", "the only visible GPU"),
        # Ranks on the CPU need no GPU.
        ("cpu", 7, 8, 2, "cpu", "asked for"),
        (None, 7, 8, 0, "cpu", "no CUDA device is visible"),
        ("cuda", 5, 8, 4, "cuda:1", "LOCAL_RANK is 5, and 8 ranks share 4 GPUs"),
    ],
)
def test_a_rank_gets_its_device_and_is_told_why(requested, local_rank, ranks, gpus, expected, told):
    device, reason = chosen(requested, local_rank=local_rank, ranks=ranks, gpus=gpus)
    assert str(device) == expected
    assert told in reason


@pytest.mark.parametrize("requested", [None, "cuda", "cuda:0"])
def test_ranks_that_share_a_machine_each_get_their_own_gpu(requested):
    devices = [device_of(requested, local_rank=rank, ranks=3, gpus=4) for rank in range(3)]
    assert devices == ["cuda:0", "cuda:1", "cuda:2"]


def test_more_ranks_than_gpus_share_them_evenly_and_the_first_ones_keep_theirs():
    shares = [device_of(None, local_rank=rank, ranks=8, gpus=4) for rank in range(8)]
    assert shares == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"] * 2


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


@pytest.mark.parametrize(
    ("requested", "given", "message"),
    [
        (None, {"local_rank": 2, "ranks": 3, "gpus": 2}, "LOCAL_RANK is 2 but only 2 GPUs are visible"),
        ("cuda:9", {"gpus": 4}, "--device: 'cuda:9' does not exist; this process can use cpu and cuda:0 to cuda:3$"),
        ("cuda:9", {"local_rank": 1, "ranks": 2, "gpus": 4}, "--device: 'cuda:9' does not exist; .* cuda:0 to cuda:3$"),
        ("cuda:1", {"gpus": 1}, "--device: 'cuda:1' does not exist; .*cpu and cuda:0$"),
    ],
)
def test_a_gpu_that_does_not_exist_is_an_error_that_names_those_that_do(requested, given, message):
    with pytest.raises(ConfigError, match=message):
        device_of(requested, **given)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mask", ["", "-1", "7", "GPU-8a6f0f3c-0000-0000-0000-000000000000", "MIG-1/2/3"])
def test_a_gpu_that_is_hidden_is_an_error_that_says_why(mask, ranks):
    with pytest.raises(ConfigError, match=f"'cuda' does not exist.*use cpu.*CUDA_VISIBLE_DEVICES is '{mask}'"):
        device_of("cuda", ranks=ranks, gpus=0, CUDA_VISIBLE_DEVICES=mask)


def test_a_policy_shares_the_gpu_that_its_rank_simulates_on():
    for rank in range(8):
        environ = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "8"}
        assert str(resolve_policy_device(environ=environ, visible_gpus=4)) == device_of(
            None, local_rank=rank, ranks=8, gpus=4
        )


NAMES = ("policy_device_id", "policy_device", "yaml_policy_device")
FIVE_OF_SIX = {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "6"}


@pytest.mark.parametrize(
    ("environ", "gpus", "named", "expected"),
    [
        # The local rank decides before anything else, and by the rules of its rank.
        ({"LOCAL_RANK": "2"}, 4, dict(zip(NAMES, (3, "cuda:0", "cpu"), strict=True)), "cuda:2"),
        ({"LOCAL_RANK": "2"}, 0, {"policy_device_id": 3}, "cpu"),
        ({"LOCAL_RANK": "2"}, 1, {}, "cuda:0"),
        # An explicit CPU holds under a launcher too.
        (FIVE_OF_SIX, 4, {"policy_device": "cpu"}, "cpu"),
        ({"LOCAL_RANK": "1"}, 4, {"policy_device_id": 0, "policy_device": "cpu"}, "cuda:1"),
        # Without a launcher the most explicit one wins.
        ({}, 2, dict(zip(NAMES, (1, "cpu", "cpu"), strict=True)), "cuda:1"),
        ({}, 2, {"policy_device_id": 0, "policy_device": "cuda:1"}, "cuda:0"),
        ({}, 2, {"policy_device": "cpu", "yaml_policy_device": "cuda"}, "cpu"),
        ({}, 2, {"yaml_policy_device": "cuda"}, "cuda:0"),
        ({}, 2, {}, "cuda:0"),
        ({}, 0, {}, "cpu"),
    ],
)
def test_a_policy_gets_the_device_of_its_rank_or_the_most_explicit_one(environ, gpus, named, expected):
    assert str(resolve_policy_device(environ=environ, visible_gpus=gpus, **named)) == expected


@pytest.mark.parametrize(
    ("environ", "gpus", "named", "message"),
    [
        ({"LOCAL_RANK": "2"}, 2, {}, "LOCAL_RANK is 2 but only 2 GPUs"),
        ({"LOCAL_RANK": " 2"}, 4, {}, "LOCAL_RANK=' 2'"),
        (FIVE_OF_SIX, 4, {"yaml_policy_device": "cpu"}, "LOCAL_RANK is 5 but only 4 GPUs"),
        ({}, 0, {"policy_device_id": 0}, "policy_device_id: 'cuda:0' does not exist; no CUDA device is visible"),
        ({}, 0, {"yaml_policy_device": "cuda"}, "policy_device: 'cuda' does not exist"),
        *(
            ({}, 4, {"policy_device_id": each}, "policy_device_id: .* is not a GPU index")
            for each in (-1, True, 1.0, "1")
        ),
    ],
)
def test_a_policy_without_a_device_is_refused(environ, gpus, named, message):
    with pytest.raises(ConfigError, match=message):
        resolve_policy_device(environ=environ, visible_gpus=gpus, **named)


@pytest.mark.parametrize("environ", [{}, {"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}])
@pytest.mark.parametrize("gpus", [0, 2])
def test_a_policy_device_that_does_not_exist_is_refused_for_any_number_of_ranks(environ, gpus):
    several: tuple[dict[str, Any], ...] = ({"policy_device_id": 2}, {"policy_device": "cuda:2"})
    for named in several:
        with pytest.raises(ConfigError, match=r"policy_device(_id)?: 'cuda:2' does not exist"):
            check_policy_device(environ=environ, visible_gpus=gpus, **named)


@pytest.mark.parametrize(
    ("environ", "gpus", "named", "overruled"),
    [
        ({}, 4, {"policy_device_id": 3}, None),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, 4, {"policy_device_id": 3}, "policy_device_id 3"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}, 4, {"policy_device": "cuda:0"}, "policy_device 'cuda:0'"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, 4, {"policy_device": "cuda:0"}, None),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, 4, {"policy_device": "cuda:1"}, "policy_device 'cuda:1'"),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}, 1, {"policy_device": "cuda:0"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 2, {"policy_device": "cuda"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 2, {"policy_device": "cpu"}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 2, {}, None),
        (
            {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            2,
            {"policy_device_id": 1, "policy_device": "cpu"},
            "policy_device_id 1",
        ),
    ],
)
def test_a_named_gpu_that_the_launcher_overrules_is_told(environ, gpus, named, overruled):
    assert check_policy_device(environ=environ, visible_gpus=gpus, **named) == overruled


def test_the_cpu_is_for_the_policy_too_only_where_a_launcher_would_choose_a_gpu():
    assert cpu_holds_for_policy("cpu", {"LOCAL_RANK": "0"})
    assert not cpu_holds_for_policy("cpu", {})
    assert not cpu_holds_for_policy("cuda", {"LOCAL_RANK": "0"})
    assert not cpu_holds_for_policy(None, {"LOCAL_RANK": "0"})


def test_an_index_too_large_for_torch_does_not_become_another_gpu():
    for index in (128, 256, 9999):
        with pytest.raises(ConfigError, match=f"'cuda:{index}' does not exist; this process can use cpu and cuda:0 to"):
            check_device_exists(f"cuda:{index}", visible_gpus=4, option="--device", environ={})
        with pytest.raises(ConfigError, match=f"policy_device_id: 'cuda:{index}' does not exist"):
            resolve_policy_device(policy_device_id=index, environ={}, visible_gpus=4)
    with pytest.raises(ConfigError, match="--device: 'cuda:10000' is not a device"):
        check_device_exists("cuda:10000", visible_gpus=4, option="--device", environ={})


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:01", "CPU", "", "cuda:1 ", "mps", "cuda:\uff11"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(ConfigError, match="is not a device; use cpu, cuda or"):
        check_device_exists(name, visible_gpus=8, option="--device")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("10", 10), ("999999999", 999_999_999)])
def test_variables_count_from_zero(text, number):
    assert parse_count("RANK", text) == number


@pytest.mark.parametrize("text", ["", "00", "01", "-1", "+1", "1 ", "1_0", "1.0", "1000000000", "\uff11"])
def test_what_counts_nothing_is_refused_with_its_name(text):
    with pytest.raises(ConfigError, match=r"environment variable RANK=.* is not a whole number from 0"):
        parse_count("RANK", text)


@pytest.mark.parametrize(
    ("text", "mask", "visible", "ids"),
    [
        *((text, None, 4, ("0", "1")) for text in ("0 1", "0,1", "[0, 1]")),
        ("3 0", None, 4, ("3", "0")),
        ("2", None, 4, ("2",)),
        ("all", None, 4, ("0", "1", "2", "3")),
        *((text, None, 4, ()) for text in ("none", "None", "", "[]")),
        # Indices count the GPUs that the mask shows.
        ("0 2", "4,6,7", 3, ("4", "7")),
        ("all", "4,6,7", 3, ("4", "6", "7")),
        ("1", "GPU-5ebe9087,GPU-3f4c", 2, ("GPU-3f4c",)),
        ("1,0", "MIG-b6b2,MIG-7a01", 2, ("MIG-7a01", "MIG-b6b2")),
        ("all", " 5 , ,6,", 2, ("5", "6")),
        ("all", "2,9", 1, ("2",)),
    ],
)
def test_every_spelling_chooses_its_gpus_in_the_order_given(text, mask, visible, ids):
    assert select_gpus(text, mask=mask, visible_gpus=visible) == (ids, None)


@pytest.mark.parametrize(
    ("text", "mask", "told"),
    [
        *((text, mask, "on the CPU") for text in ("all", "0 1") for mask in ("", " , ", "-1")),
        ("all", None, "no GPU is visible"),
    ],
)
def test_where_no_gpu_is_visible_one_process_runs_on_the_cpu_and_says_so(text, mask, told):
    ids, note = select_gpus(text, mask=mask, visible_gpus=0)
    assert ids == ()
    assert told in (note or "")


@pytest.mark.parametrize(
    ("text", "mask", "visible", "message"),
    [
        ("0", None, 0, "GPU 0 does not exist; no GPU is visible here"),
        ("1", None, 1, "GPU 1 does not exist; there is 0$"),
        ("0 5 4", "2,3", 2, r"GPUs 5, 4 do not exist; there are 0 to 1 \(CUDA_VISIBLE_DEVICES is '2,3'\)"),
        ("1 0 1", None, 2, "GPU 1 is named twice"),
        ("gpu0", None, 2, "'gpu0' is not a GPU index"),
        ("-1", None, 2, "'-1' is not a GPU index"),
        ("0 all", None, 2, "'all' is not a GPU index"),
        ("\u0661", None, 2, "'\u0661' is not a GPU index"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_says_what_exists(text, mask, visible, message):
    with pytest.raises(ConfigError, match=f"--gpu_ids: {message}"):
        select_gpus(text, mask=mask, visible_gpus=visible)


@pytest.mark.parametrize(
    ("typed", "joined"),
    [
        (["--gpu-ids", "0", "1", "--seed", "3"], ["--gpu_ids=0 1", "--seed", "3"]),
        (["--gpu_ids", "0", "1", "lift_object"], ["--gpu_ids=0 1", "lift_object"]),
        (["--gpu-ids", "[0,", "1]", "agent.gamma=1"], ["--gpu_ids=[0, 1]", "agent.gamma=1"]),
        (["--gpu-ids=0", "1"], ["--gpu_ids=0 1"]),
        (["--gpu-ids", "all", "reach"], ["--gpu_ids=all", "reach"]),
        (["--gpu-ids", "None"], ["--gpu_ids=none"]),
        (["--gpu-ids", ""], ["--gpu_ids="]),
        (["--gpu-ids", "-1"], ["--gpu_ids=-1"]),
        (["reach", "--seed", "0", "1"], ["reach", "--seed", "0", "1"]),
    ],
)
def test_the_option_takes_its_indices_and_no_other_word(typed, joined):
    assert joined_gpu_ids(typed) == joined


@pytest.mark.parametrize("typed", [["--gpu-ids"], ["--gpu-ids", "--seed", "3"]])
def test_the_option_without_any_is_refused(typed):
    with pytest.raises(ConfigError, match="--gpu_ids: give indices such as 0 1, all or none"):
        joined_gpu_ids(typed)


def test_what_a_process_sees_is_told():
    environ = {"MUJOCO_GL": "egl", "OTHER": "", "CUDA_VISIBLE_DEVICES": "2,3"}
    assert describe_variables(environ) == {
        "CUDA_VISIBLE_DEVICES": "'2,3'",
        "MUJOCO_GL": "'egl'",
        "MUJOCO_EGL_DEVICE_ID": "none",
        "OMP_NUM_THREADS": "none",
    }


def visible(devices: str) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": devices}


@pytest.mark.parametrize(
    ("egl", "device", "environ", "expected"),
    [
        ([0, 1, None], "cuda:1", {}, {"MUJOCO_EGL_DEVICE_ID": "1"}),
        ([None, 1, 0], "cuda:0", {}, {"MUJOCO_EGL_DEVICE_ID": "2"}),
        ([1, 0], "cuda", {}, {"MUJOCO_EGL_DEVICE_ID": "1"}),
        ([0, 1], "cuda:1", {"MUJOCO_EGL_DEVICE_ID": "0"}, {"MUJOCO_EGL_DEVICE_ID": "0"}),
        ([0, 1], "cpu", {}, {}),
        ([None, None], "cuda:0", {}, {}),
        ([], "cuda:0", {}, {}),
        ([0], "cuda:0", visible("1"), {**visible("1,-1,0"), "MUJOCO_EGL_DEVICE_ID": "0"}),
        ([1, 0], "cuda:0", visible("2,3"), {**visible("2,3,-1,1"), "MUJOCO_EGL_DEVICE_ID": "1"}),
        ([1, 0], "cuda:0", visible("0,1"), {**visible("0,1"), "MUJOCO_EGL_DEVICE_ID": "1"}),
        ([0], "cuda:0", visible("GPU-5a"), {**visible("GPU-5a,-1,0"), "MUJOCO_EGL_DEVICE_ID": "0"}),
        ([None], "cuda:0", visible("1"), visible("1")),
        ([0], "cpu", visible("1"), visible("1")),
    ],
)
def test_opengl_draws_on_the_gpu_of_the_rank(egl, device, environ, expected):
    draw_on(torch.device(device), environ, egl_gpus=lambda: egl)
    assert environ == expected
    before = dict(environ)
    draw_on(torch.device(device), environ, egl_gpus=lambda: egl)
    assert environ == before


@pytest.mark.gpu
def test_a_process_sees_no_other_gpus_where_egl_counts_them_otherwise():
    environ = {**os.environ, **visible(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0])}
    draw_on(torch.device("cuda", 0), environ, egl_gpus=lambda: [*[None] * 7, 0])
    assert environ["CUDA_VISIBLE_DEVICES"].endswith(",-1,7")
    program = "import torch; print(torch.cuda.device_count(), torch.ones(2, device='cuda:0').sum().item())"
    run = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "2.0"]


def test_without_egl_no_gpu_is_chosen_for_opengl_and_osmesa_draws():
    def missing():
        raise OSError("cannot be loaded")

    environ: dict[str, str] = {}
    draw_on(torch.device("cuda", 0), environ, egl_gpus=missing)
    assert environ == {}
    choice = choose_opengl(torch.device("cuda", 0), {}, {}, missing, lambda wanted: f"lib{wanted}.so")
    assert choice.name == "osmesa"


# What OpenGL draws with is what the user says, else the rank's GPU, else the CPU.


@pytest.mark.parametrize(
    ("device", "egl", "libraries", "environ", "name"),
    [
        ("cuda:1", [None, 0, 1], {"OSMesa"}, {}, "egl"),
        ("cuda", [0], set(), {}, "egl"),
        ("cuda:1", [None, 0], {"OSMesa"}, {}, "osmesa"),
        ("cpu", [0], {"OSMesa"}, {}, "osmesa"),
        ("cpu", [0], set(), {}, None),
        ("cuda:0", [0], {"OSMesa"}, {"MUJOCO_GL": "glfw"}, "glfw"),
    ],
)
def test_egl_draws_on_the_ranks_gpu_and_osmesa_where_it_has_none(device, egl, libraries, environ, name):
    choice = choose_opengl(
        torch.device(device), {}, environ, lambda: egl, lambda wanted: wanted if wanted in libraries else None
    )
    assert choice.name == name
    assert choice.variables == ({} if name is None else {"MUJOCO_GL": name})


def test_where_nothing_draws_the_way_out_is_told():
    choice = choose_opengl(torch.device("cpu"), {}, {}, list, lambda wanted: None)
    assert "install libosmesa6, or set MUJOCO_GL" in choice.reason


def test_what_a_job_gives_its_workers_counts_more_than_what_this_process_has():
    choice = choose_opengl(torch.device("cpu"), {"MUJOCO_GL": "egl"}, {"MUJOCO_GL": "glfw"})
    assert choice.name == "egl"


@pytest.mark.parametrize(("file", "lacks"), [(None, True), ("libOSMesa.so.8", False)])
def test_a_choice_whose_library_is_missing_says_so(file, lacks):
    choice = choose_opengl(torch.device("cpu"), {}, {"MUJOCO_GL": "osmesa"}, list, lambda wanted: file)
    assert choice.lacks_library == lacks


def test_one_thread_unless_told_otherwise():
    before = torch.get_num_threads()
    try:
        set_up_torch(None)
        assert torch.get_num_threads() == 1
        set_up_torch(2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# A run that asked for it is told of an operation that gives other bits each time, and does not just hear a warning.


@pytest.fixture
def deterministic() -> Iterator[Callable[[dict[str, str]], None]]:
    """Return what arranges deterministic calculation, and undo it."""
    cudnn = torch.backends.cudnn
    before = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision())
    num_threads = torch.get_num_threads()
    yield lambda environ: set_up_torch(None, deterministic=True, environ=environ)
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(mode=False)
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before[:3]
    torch.set_float32_matmul_precision(before[3])


def unrepeatable() -> torch.Tensor:
    """Write two numbers to one place, which torch does in no particular order on any device."""
    return torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_an_operation_without_a_deterministic_form_is_done_where_nobody_asked_for_one():
    assert unrepeatable()[1:].tolist() == [0.0, 0.0]


def test_an_operation_without_a_deterministic_form_raises(deterministic):
    deterministic({})
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        unrepeatable()


@pytest.mark.parametrize(
    ("given", "kept"), [(None, ":4096:8"), (":0:0", ":4096:8"), (":16:8", ":16:8"), (":4096:8", ":4096:8")]
)
def test_deterministic_calculation_is_arranged_before_a_gpu_is_touched(given, kept, deterministic):
    environ = {} if given is None else {"CUBLAS_WORKSPACE_CONFIG": given}
    cudnn: Any = torch.backends.cudnn
    touched = torch.cuda.is_initialized()
    cudnn.benchmark = cudnn.allow_tf32 = True
    cudnn.deterministic = False
    torch.set_float32_matmul_precision("high")
    deterministic(environ)
    assert environ == {"CUBLAS_WORKSPACE_CONFIG": kept}
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (True, False, False)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.cuda.is_initialized() == touched


# Tensors of a device are read in one copy, bit for bit.


TENSORS = (
    torch.tensor([True, False, True]),
    torch.tensor([[1.5, torch.nan, -0.0]], dtype=torch.float64),
    torch.zeros((2, 0), dtype=torch.int64),
    torch.arange(5, dtype=torch.uint8),
    torch.tensor(2.5),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.tensor([-(2**62)], dtype=torch.int64),
)


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, tensor.contiguous().numpy().tobytes()


def test_tensors_of_all_types_are_read_with_one_wait(gpu):
    away = [tensor.to(GPU) for tensor in TENSORS]
    gpu.waits.clear()
    here = on_cpu(away)
    assert len(gpu.waits) == 1
    assert list(map(bits, here)) == list(map(bits, TENSORS))


def test_what_is_on_the_cpu_is_returned_as_it_is_and_nothing_waits(gpu):
    assert all(one is other for one, other in zip(on_cpu(TENSORS), TENSORS, strict=True))
    first, last = torch.ones(3), torch.zeros(2)
    read = on_cpu([first, torch.tensor([4.0]).to(GPU), last])
    assert read[0] is first
    assert read[1].tolist() == [4.0]
    assert read[2] is last


def test_copies_are_tensors_of_their_own(gpu):
    away = torch.ones(3).to(GPU)
    first, second = on_cpu([away, away + 0])
    first += 1
    assert second.tolist() == away.tolist() == [1.0] * 3


@pytest.mark.parametrize("tensors", [(), TENSORS[:1]])
def test_few_tensors_are_tensors_too(gpu, tensors):
    assert len(on_cpu([tensor.to(GPU) for tensor in tensors])) == len(tensors)
