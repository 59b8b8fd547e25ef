import pytest

from isaaclab_arena.distributed.launch import without_launch_options


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        (["--gpu-ids", "0", "1", "--seed", "3", "reach"], ["--seed", "3", "reach"]),
        (["--nproc_per_node", "2", "--seed=3"], ["--seed=3"]),
        (["--nproc-per-node=2", "reach", "--launcher", "torchrunx"], ["reach"]),
        (["--launcher-log-dir", "", "reach"], ["reach"]),
        (["--launcher_log_dir=logs", "--gpu_ids=all"], []),
        (["--seed", "3"], ["--seed", "3"]),
    ],
)
def test_ranks_are_started_without_the_options_that_start_them(typed, left):
    assert without_launch_options(typed) == left
