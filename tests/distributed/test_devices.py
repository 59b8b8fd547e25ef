"""The device of each rank, and what it shares."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from isaaclab_arena.distributed.devices import (
    check_device_exists,
    check_policy_device,
    choose_opengl,
    choose_rank_device,
    cpu_holds_for_policy,
    draw_on,
    joined_gpu_ids,
    on_cpu,
    parse_count,
    resolve_policy_device,
    select_gpus,
    set_up_torch,
)
from isaaclab_arena.errors import ConfigError
from tests.pretend_gpu import GPU


def device_of(requested: str | None, local_rank: int, ranks: int, gpus: int, **environ: str) -> tuple[str, str]:
    """Device of a rank, and the reason."""
    device, reason = choose_rank_device(
        requested, local_rank=local_rank, local_world_size=ranks, visible_gpus=gpus, environ=environ
    )
    return str(device), reason


@pytest.mark.parametrize(
    ("requested", "local_rank", "ranks", "gpus", "expected", "told"),
    [
        (None, 0, 1, 0, "cpu", "no CUDA"),
        (None, 0, 1, 4, "cuda:0", "LOCAL_RANK is 0"),
        ("cuda:3", 0, 1, 4, "cuda:3", "asked for"),
        ("cuda", 1, 2, 2, "cuda:1", "LOCAL_RANK is 1"),
        ("cuda:0", 1, 2, 2, "cuda:1", "--device cuda:0"),
        # The only visible GPU is number zero whatever the local rank, and ranks on the CPU need none.
        (None, 3, 4, 1, "cuda:0", "only visible GPU"),
        ("cpu", 7, 8, 2, "cpu", "asked for"),
        ("cuda", 5, 8, 4, "cuda:1", "8 ranks share"),
    ],
)
def test_a_rank_gets_its_device_and_is_told_why(requested, local_rank, ranks, gpus, expected, told):
    device, reason = device_of(requested, local_rank, ranks, gpus)
    assert device == expected
    assert told in reason


@pytest.mark.parametrize("requested", [None, "cuda", "cuda:0"])
def test_ranks_that_share_a_machine_each_get_their_own_gpu(requested):
    assert [device_of(requested, rank, 3, 4)[0] for rank in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]
    shares = [device_of(requested, rank, 8, 4)[0] for rank in range(8)]
    assert shares == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"] * 2


@pytest.mark.parametrize("local_rank", [0, 3, 4, 5])
def test_every_rank_refuses_gpus_that_cannot_be_shared_evenly_and_names_both_numbers(local_rank):
    with pytest.raises(ConfigError) as refused:
        device_of(None, local_rank, 6, 4)
    assert (f"LOCAL_RANK is {local_rank}" in str(refused.value)) == (local_rank > 3)
    assert all(part in str(refused.value) for part in ("6 ranks", "4 GPUs", "start 4"))


@pytest.mark.parametrize(("gpus", "named"), [(4, "cuda:0 to cuda:3$"), (1, "cpu and cuda:0$"), (0, "use cpu$")])
@pytest.mark.parametrize("requested", ["cuda:4", "cuda:256"])
def test_a_gpu_that_does_not_exist_is_an_error_that_names_those_that_do(requested, gpus, named):
    # An index too large for torch does not become another GPU.
    with pytest.raises(ConfigError, match=f"--device: '{requested}' .*{named}"):
        device_of(requested, 0, 1, gpus)
    with pytest.raises(ConfigError, match=f"policy_device_id: '{requested}'"):
        resolve_policy_device(policy_device_id=int(requested[5:]), environ={}, visible_gpus=gpus)
    for mask in ("", "-1", "GPU-8a6f0f3c"):
        with pytest.raises(ConfigError, match=f"'{requested}' .*CUDA_VISIBLE_DEVICES is '{mask}'"):
            device_of(requested, 0, 1, gpus, CUDA_VISIBLE_DEVICES=mask)


NAMES = ("policy_device_id", "policy_device", "yaml_policy_device")
FIVE_OF_SIX = {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "6"}


@pytest.mark.parametrize(
    ("environ", "gpus", "named", "expected"),
    [
        # The local rank decides before anything else, and by the rules of its rank.
        ({"LOCAL_RANK": "2"}, 4, dict(zip(NAMES, (3, "cuda:0", "cpu"), strict=True)), "cuda:2"),
        ({"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}, 4, {}, "cuda:1"),
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
        ({"LOCAL_RANK": "2"}, 2, {}, "LOCAL_RANK is 2"),
        ({"LOCAL_RANK": " 2"}, 4, {}, "LOCAL_RANK=' 2'"),
        (FIVE_OF_SIX, 4, {"yaml_policy_device": "cpu"}, "LOCAL_RANK is 5"),
        ({}, 0, {"yaml_policy_device": "cuda"}, "policy_device: 'cuda'"),
        *(({}, 4, {"policy_device_id": each}, "policy_device_id: ") for each in (-1, True, 1.0, "1")),
    ],
)
def test_a_policy_without_a_device_is_refused(environ, gpus, named, message):
    with pytest.raises(ConfigError, match=message):
        resolve_policy_device(environ=environ, visible_gpus=gpus, **named)


@pytest.mark.parametrize("environ", [{}, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}])
@pytest.mark.parametrize("named", [{"policy_device_id": 2}, {"policy_device": "cuda:2"}])
def test_a_policy_device_that_does_not_exist_is_refused_for_any_number_of_ranks(environ, named):
    with pytest.raises(ConfigError, match=r"policy_device(_id)?: 'cuda:2'"):
        check_policy_device(environ=environ, visible_gpus=2, **named)


@pytest.mark.parametrize(
    ("ranks", "gpus", "named", "overruled"),
    [
        (None, 4, {"policy_device_id": 3}, None),
        (4, 4, {"policy_device_id": 3}, "policy_device_id 3"),
        (4, 4, {"policy_device": "cuda:0"}, "policy_device 'cuda:0'"),
        (1, 4, {"policy_device": "cuda:0"}, None),
        (1, 4, {"policy_device": "cuda:1"}, "policy_device 'cuda:1'"),
        (4, 1, {"policy_device": "cuda:0"}, None),
        (2, 2, {"policy_device": "cuda"}, None),
        (2, 2, {"policy_device": "cpu"}, None),
        (2, 2, {}, None),
        (2, 2, {"policy_device_id": 1, "policy_device": "cpu"}, "policy_device_id 1"),
    ],
)
def test_a_named_gpu_that_the_launcher_overrules_is_told(ranks, gpus, named, overruled):
    environ = {} if ranks is None else {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(ranks)}
    assert check_policy_device(environ=environ, visible_gpus=gpus, **named) == overruled


def test_the_cpu_is_for_the_policy_too_only_where_a_launcher_would_choose_a_gpu():
    assert cpu_holds_for_policy("cpu", {"LOCAL_RANK": "0"})
    assert not cpu_holds_for_policy("cpu", {})
    assert not cpu_holds_for_policy("cuda", {"LOCAL_RANK": "0"})
    assert not cpu_holds_for_policy(None, {"LOCAL_RANK": "0"})


@pytest.mark.parametrize("name", ["cuda:", "cuda:-1", "cuda:01", "cuda:10000", "CPU", "", "cuda:1 ", "cuda:\uff11"])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(ConfigError, match=f"--device: '{name}' is not"):
        check_device_exists(name, visible_gpus=8, option="--device")


def test_variables_count_from_zero_without_signs_or_blanks():
    assert [parse_count("RANK", text) for text in ("0", "7", "10", "999999999")] == [0, 7, 10, 999_999_999]
    for text in ("", "00", "01", "-1", "+1", "1 ", "1_0", "1.0", "1000000000", "\uff11"):
        with pytest.raises(ConfigError, match="RANK="):
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
    ("text", "mask"), [*((text, mask) for text in ("all", "0 1") for mask in ("", " , ", "-1")), ("all", None)]
)
def test_where_no_gpu_is_visible_one_process_runs_on_the_cpu_and_says_so(text, mask):
    ids, note = select_gpus(text, mask=mask, visible_gpus=0)
    assert ids == ()
    assert "on the CPU" in str(note)


@pytest.mark.parametrize(
    ("text", "mask", "visible", "message"),
    [
        ("0", None, 0, "GPU 0 .* no GPU is visible"),
        ("1", None, 1, "GPU 1 .* there is 0$"),
        ("0 5 4", "2,3", 2, r"GPUs 5, 4 .* 0 to 1 \(CUDA_VISIBLE_DEVICES is '2,3'\)"),
        ("1 0 1", None, 2, "GPU 1 is named twice"),
        *((text, None, 2, f"'{text.split()[-1]}' is not") for text in ("gpu0", "-1", "0 all", "\u0661")),
    ],
)
def test_what_cannot_be_meant_is_refused_and_says_what_exists(text, mask, visible, message):
    with pytest.raises(ConfigError, match=f"--gpu_ids: {message}"):
        select_gpus(text, mask=mask, visible_gpus=visible)


@pytest.mark.parametrize(
    ("typed", "joined"),
    [
        (["--gpu-ids", "0", "1", "--seed", "3"], ["--gpu_ids=0 1", "--seed", "3"]),
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
    with pytest.raises(ConfigError, match="--gpu_ids: "):
        joined_gpu_ids(typed)


@pytest.mark.parametrize(
    ("egl", "device", "number", "visible", "shown"),
    [
        ([0, 1, None], "cuda:1", "1", None, None),
        ([None, 1, 0], "cuda:0", "2", None, None),
        ([1, 0], "cuda", "1", None, None),
        ([0, 1], "cpu", None, None, None),
        ([], "cuda:0", None, None, None),
        ([0], "cuda:0", "0", "1", "1,-1,0"),
        ([1, 0], "cuda:0", "1", "2,3", "2,3,-1,1"),
        ([1, 0], "cuda:0", "1", "0,1", "0,1"),
        ([0], "cuda:0", "0", "GPU-5a", "GPU-5a,-1,0"),
        ([None], "cuda:0", None, "1", "1"),
        ([0], "cpu", None, "1", "1"),
    ],
)
def test_opengl_draws_on_the_gpu_of_the_rank(egl, device, number, visible, shown):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    # Once more changes nothing, nor does another order of devices: what is chosen stays.
    for devices in (egl, egl, egl[::-1] if number else egl):
        draw_on(torch.device(device), environ, egl_gpus=lambda devices=devices: devices)
        assert (environ.get("MUJOCO_EGL_DEVICE_ID"), environ.get("CUDA_VISIBLE_DEVICES")) == (number, shown)


@pytest.mark.gpu
def test_a_process_sees_no_other_gpus_where_egl_counts_them_otherwise():
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    draw_on(torch.device("cuda", 0), environ, egl_gpus=lambda: [*[None] * 7, 0])
    assert environ["CUDA_VISIBLE_DEVICES"].endswith(",-1,7")
    program = "import torch; print(torch.cuda.device_count(), torch.ones(2, device='cuda:0').sum().item())"
    run = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["1", "2.0"]


def missing() -> list[int | None]:
    raise OSError


@pytest.mark.parametrize(
    ("device", "egl", "libraries", "environ", "name"),
    [
        ("cuda:1", lambda: [None, 0, 1], {"OSMesa"}, {}, "egl"),
        ("cuda", lambda: [0], set(), {}, "egl"),
        ("cuda:1", lambda: [None, 0], {"OSMesa"}, {}, "osmesa"),
        ("cuda:0", missing, {"OSMesa"}, {}, "osmesa"),
        ("cpu", lambda: [0], {"OSMesa"}, {}, "osmesa"),
        ("cpu", lambda: [0], set(), {}, None),
        ("cuda:0", lambda: [0], {"OSMesa"}, {"MUJOCO_GL": "glfw"}, "glfw"),
        ("cpu", missing, {"OSMesa"}, {"MUJOCO_GL": "osmesa"}, "osmesa"),
        ("cpu", missing, set(), {"MUJOCO_GL": "osmesa"}, "osmesa"),
    ],
)
def test_egl_draws_on_the_ranks_gpu_and_osmesa_where_it_has_none(device, egl, libraries, environ, name):
    find = libraries.intersection
    choice = choose_opengl(torch.device(device), {}, environ, egl, lambda wanted: wanted if find([wanted]) else None)
    assert choice.name == name
    assert choice.variables == ({} if name is None else {"MUJOCO_GL": name})
    assert choice.lacks_library == (name == "osmesa" and not libraries)
    assert name is not None or "libosmesa6" in choice.reason


def test_what_a_job_gives_its_workers_counts_more_than_what_this_process_has():
    assert choose_opengl(torch.device("cpu"), {"MUJOCO_GL": "egl"}, {"MUJOCO_GL": "glfw"}).name == "egl"


# What OpenGL draws with is what the user says, else the rank's GPU, else the CPU.


@pytest.fixture
def as_it_was() -> Iterator[None]:
    """Undo what sets up torch."""
    cudnn = torch.backends.cudnn
    before = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision())
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(mode=False)
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before[:3]
    torch.set_float32_matmul_precision(before[3])


@pytest.mark.parametrize(
    ("threads", "given", "kept"), [(None, None, ":4096:8"), (2, ":0:0", ":4096:8"), (None, ":16:8", ":16:8")]
)
@pytest.mark.usefixtures("as_it_was")
def test_deterministic_calculation_is_arranged_before_a_gpu_is_touched(threads, given, kept):
    environ = {} if given is None else {"CUBLAS_WORKSPACE_CONFIG": given}
    cudnn: Any = torch.backends.cudnn
    touched = torch.cuda.is_initialized()
    cudnn.benchmark = cudnn.allow_tf32 = True
    cudnn.deterministic = False
    torch.set_float32_matmul_precision("high")
    set_up_torch(threads, deterministic=True, environ=environ)
    assert environ == {"CUBLAS_WORKSPACE_CONFIG": kept}
    assert torch.get_num_threads() == (threads or 1)
    assert (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32) == (True, False, False)
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.cuda.is_initialized() == touched
    # Two numbers are written to one place, which torch does in no particular order on any device.
    with pytest.raises(RuntimeError, match="put_"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


# A run that asked for it is told of an operation that gives other bits each time, and does not just hear a warning.


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


def test_what_is_on_the_cpu_is_returned_as_it_is_and_copies_are_tensors_of_their_own(gpu):
    assert on_cpu([]) == []
    first, away, last = torch.ones(3), torch.tensor([4.0]).to(GPU), torch.zeros(2)
    read = on_cpu([first, away, last, away + 0])
    assert (read[0] is first, read[2] is last) == (True, True)
    read[1].add_(1)
    assert [read[1].tolist(), read[3].tolist(), away.tolist()] == [[5.0], [4.0], [4.0]]
