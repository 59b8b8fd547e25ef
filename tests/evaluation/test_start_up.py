from concurrent.futures import ThreadPoolExecutor

import pytest

from isaaclab_arena.errors import ConfigError
from isaaclab_arena.evaluation.output_directory import clear_unbegun, holds_no_run
from isaaclab_arena.evaluation.start_up import agree_on_versions
from tests.distributed.threads import ranks_in_threads


def agree(*versions: dict[str, str]) -> None:
    with ThreadPoolExecutor() as threads:
        for verdict in threads.map(agree_on_versions, ranks_in_threads(len(versions)), versions):
            assert verdict is None


def test_ranks_with_the_same_packages_agree():
    agree({"mujoco": "4.0.0", "torch": "2.13.0"}, {"torch": "2.13.0", "mujoco": "4.0.0"})


@pytest.mark.parametrize("other", [{"mujoco": "4.0.1"}, {}])
def test_a_rank_with_another_version_is_named(other):
    with pytest.raises(ConfigError, match=r"different versions of mujoco \(rank 0: 4\.0\.0, rank 1: "):
        agree({"mujoco": "4.0.0"}, other)


def test_a_folder_in_which_ranks_only_looked_for_each_other_is_empty(tmp_path):
    (tmp_path / ".seen_by_all.4711.tmp").touch()
    assert holds_no_run(tmp_path)
    clear_unbegun(tmp_path)
    assert list(tmp_path.iterdir()) == []
