"""A run that asked for it is told of an operation that gives other bits each time, and does not just hear a warning."""

from collections.abc import Iterator

import pytest
import torch

from isaaclab_arena.distributed.devices import calculate_deterministically


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Calculate deterministically, and undo it."""
    cudnn = torch.backends.cudnn
    before = (cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, torch.get_float32_matmul_precision())
    calculate_deterministically({})
    yield
    torch.use_deterministic_algorithms(mode=False)
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32 = before[:3]
    torch.set_float32_matmul_precision(before[3])


def unrepeatable() -> torch.Tensor:
    """Write two numbers to one place, which torch does in no particular order on any device."""
    return torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


def test_an_operation_without_a_deterministic_form_is_done_where_nobody_asked_for_one():
    assert unrepeatable()[1:].tolist() == [0.0, 0.0]


@pytest.mark.usefixtures("deterministic")
def test_an_operation_without_a_deterministic_form_raises():
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        unrepeatable()


@pytest.mark.usefixtures("deterministic")
def test_nothing_that_could_choose_another_way_is_left_on():
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("given", "kept"), [(None, ":4096:8"), (":0:0", ":4096:8"), (":16:8", ":16:8"), (":4096:8", ":4096:8")]
)
def test_deterministic_calculation_is_arranged_before_a_gpu_is_touched(given, kept):
    environ = {} if given is None else {"CUBLAS_WORKSPACE_CONFIG": given}
    touched = torch.cuda.is_initialized()
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )
    try:
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.deterministic = False
        torch.set_float32_matmul_precision("high")
        calculate_deterministically(environ)
        assert environ == {"CUBLAS_WORKSPACE_CONFIG": kept}
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.deterministic
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.benchmark
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.cuda.is_initialized() == touched
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before[1], before[2]
        torch.backends.cudnn.allow_tf32 = before[3]
        torch.set_float32_matmul_precision(before[4])
