"""A checkout of LIBERO says which suites and tasks there are, and where the files of a task lie."""

import json

import pytest

from isaaclab_arena.environments.gym.worker.answers import commit_at
from isaaclab_arena.environments.libero import LiberoCheckout
from isaaclab_arena.errors import ConfigError
from tests.environments.libero.checkouts import SUITES


def refused(checkout, name: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        LiberoCheckout(checkout).task(name or "")
    return str(caught.value)


def test_suites_and_tasks_are_those_of_its_own_list_which_is_not_run(checkout):
    found = LiberoCheckout(checkout)
    assert {suite: list(names) for suite, names in found.suites.items()} == SUITES
    (found.inside / "benchmark" / "libero_suite_task_map.py").write_text("libero_task_map = print('run')")
    assert "lists no tasks" in refused(checkout)


def test_a_task_is_known_by_its_index_and_by_its_name(checkout):
    by_index = LiberoCheckout(checkout).task("libero_spatial/1")
    assert by_index == LiberoCheckout(checkout).task(f"libero_spatial/{by_index.name}")
    assert by_index.instruction == "pick up the bowl next to the ramekin"
    assert by_index.described_in.is_file()
    assert by_index.init_states_file.is_file()


@pytest.mark.parametrize(
    ("index", "words"), [(0, "close the top drawer"), (1, "pick up the book")], ids=["two digits", "one digit"]
)
def test_the_scene_is_no_part_of_the_instruction(checkout, index, words):
    assert LiberoCheckout(checkout).task(f"libero_90/{index}").instruction == words


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("libero_spatal/0", "no suite 'libero_spatal'; did you mean 'libero_spatial'?"),
        ("libero_spatial", "'libero_spatial' names no task: libero:libero_spatial/0 is the first of 2"),
        ("libero_spatial/2", "suite 'libero_spatial' has tasks 0 to 1, and no task 2"),
        ("libero_90/STUDY_SCENE4_pick_up_the_bok", "did you mean 'STUDY_SCENE4_pick_up_the_book'?"),
    ],
)
def test_what_does_not_exist_is_told_with_a_suggestion(checkout, name, message):
    assert message in refused(checkout, name)


def test_what_is_no_checkout_is_told_by_what_it_lacks(checkout, tmp_path):
    assert f"'{tmp_path}' is no checkout of LIBERO: it has no libero/libero/benchmark" in refused(tmp_path)
    (checkout / "libero" / "libero" / "init_files").rename(tmp_path / "elsewhere")
    assert "it has no libero/libero/init_files" in refused(checkout)


def test_a_task_that_libero_plus_changed_has_the_states_of_its_own_or_of_the_task_itself(checkout):
    inside = checkout / "libero" / "libero"
    base = SUITES["libero_spatial"][0]
    names = [f"{base}{ending}" for ending in ("_table_3", "_view_0_0_100_0_0_initstate_2", "_add_1", "_language_2")]
    (inside / "benchmark" / "libero_suite_task_map.py").write_text(
        f"libero_task_map = {json.dumps({'libero_spatial': names})}"
    )
    (inside / "init_files" / "libero_newobj" / "libero_spatial").mkdir(parents=True)
    own = inside / "init_files" / "libero_newobj" / "libero_spatial" / f"{names[2]}.pruned_init"
    own.touch()
    (inside / "bddl_files" / "libero_spatial" / f"{names[3]}.bddl").write_text("(define (:language  Take\n it now))")
    table, view, added, words = (LiberoCheckout(checkout).task(f"libero_spatial/{index}") for index in range(4))
    base_states = inside / "init_files" / "libero_spatial" / f"{base}.pruned_init"
    assert [each.init_states_file for each in (table, view, words)] == [base_states] * 3
    assert added.init_states_file == own
    assert (view.described_in.stem, view.bddl_file.stem) == (base, names[1])
    assert words.instruction == "take it now"


def test_a_suite_of_libero_pro_has_the_words_of_its_descriptions_as_libero_reads_them(checkout):
    inside = checkout / "libero" / "libero"
    name = SUITES["libero_spatial"][0]
    (inside / "benchmark" / "libero_suite_task_map.py").write_text(
        f"libero_task_map = {json.dumps({'libero_spatial_task': [name]})}"
    )
    (inside / "bddl_files" / "libero_spatial_task").mkdir()
    (inside / "bddl_files" / "libero_spatial_task" / f"{name}.bddl").write_text("(:language Take the\n Other bowl)")
    assert LiberoCheckout(checkout).task("libero_spatial_task/0").instruction == "take the other bowl"


def test_the_revision_is_where_the_checkout_stands(checkout):
    assert commit_at(LiberoCheckout(checkout).root) is None
    (checkout / ".git" / "refs").mkdir(parents=True)
    (checkout / ".git" / "HEAD").write_text("ref: refs/master\n")
    (checkout / ".git" / "refs" / "master").write_text("8f1084e\n")
    assert commit_at(LiberoCheckout(checkout).root) == "8f1084e"
    (checkout / ".git" / "refs" / "master").unlink()
    (checkout / ".git" / "packed-refs").write_text("# pack-refs\na4cd6c1 refs/master\n")
    assert commit_at(LiberoCheckout(checkout).root) == "a4cd6c1"
