"""A checkout of LIBERO and its assets."""

import pytest

from isaaclab_arena.environments.libero import LiberoCheckout, missing_assets
from isaaclab_arena.errors import ConfigError
from tests.environments.libero.checkouts import SUITES, list_suites

# A checkout of LIBERO says which suites and tasks there are, and where the files of a task lie.


def refused(checkout, name: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        LiberoCheckout(checkout).task(name or "")
    return str(caught.value)


def test_suites_and_tasks_are_those_of_its_own_list_which_is_not_run(checkout):
    found = LiberoCheckout(checkout)
    assert {suite: list(names) for suite, names in found.suites.items()} == SUITES
    (found.inside / "benchmark" / "libero_suite_task_map.py").write_text("libero_task_map = print('run')")
    assert "lists no tasks" in refused(checkout)
    (found.inside / "init_files").rename(checkout / "elsewhere")
    assert "libero/libero/init_files" in refused(checkout)


def test_a_task_is_known_by_its_index_and_by_its_name(checkout):
    by_index = LiberoCheckout(checkout).task("libero_spatial/1")
    assert by_index == LiberoCheckout(checkout).task(f"libero_spatial/{by_index.name}")
    assert by_index.instruction == "pick up the bowl next to the ramekin"
    assert by_index.described_in.is_file()
    assert by_index.init_states_file.is_file()
    # The scene is no part of the instruction, whether its number has one digit or two.
    words = [LiberoCheckout(checkout).task(f"libero_90/{index}").instruction for index in (0, 1)]
    assert words == ["close the top drawer", "pick up the book"]
    # In a suite of LIBERO-PRO it is that of the description, as LIBERO reads it.
    list_suites(checkout, {"libero_spatial_task": [by_index.name]})
    described = by_index.described_in.parents[1] / "libero_spatial_task" / by_index.described_in.name
    described.parent.mkdir()
    described.write_text("(:language Take the\n Other bowl)")
    assert LiberoCheckout(checkout).task("libero_spatial_task/0").instruction == "take the other bowl"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("libero_spatal/0", "'libero_spatial'?"),
        ("libero_spatial", "libero:libero_spatial/0"),
        ("libero_spatial/2", "tasks 0 to 1"),
        ("libero_90/STUDY_SCENE4_pick_up_the_bok", "'STUDY_SCENE4_pick_up_the_book'?"),
    ],
)
def test_what_does_not_exist_is_told_with_a_suggestion(checkout, name, message):
    assert message in refused(checkout, name)


def test_a_task_that_libero_plus_changed_has_the_states_of_its_own_or_of_the_task_itself(checkout):
    inside = checkout / "libero" / "libero"
    base = SUITES["libero_spatial"][0]
    names = [f"{base}{ending}" for ending in ("_table_3", "_view_0_0_100_0_0_initstate_2", "_add_1", "_language_2")]
    list_suites(checkout, {"libero_spatial": names})
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


# The files that a task needs are found through its description, and those that a checkout lacks are named.

DESCRIPTION = """(define (problem LIBERO_Tabletop) (:fixtures main_table - table cabinet_1 - cabinet)
  (:objects bowl_1 bowl_2 - bowl))"""
FILES = {
    "assets/cabinets/cabinet.xml": '<mujoco><compiler meshdir="cabinet"/><mesh file="door.stl"/></mujoco>',
    "assets/cabinets/cabinet/door.stl": "",
    "assets/scanned/bowl/bowl.xml": '<mujoco><include file="../looks.xml"/></mujoco>',
    "assets/scanned/looks.xml": '<mujoco><asset><texture file="bowl/paint.png"/></asset></mujoco>',
    "assets/scanned/bowl/paint.png": "",
    "assets/scenes/table.xml": "<mujoco/>",
    "assets/textures/oak.png": "",
    "assets/scenes/table_of_marble.xml": "<mujoco/>",
    "assets/new_objects/clock/MJCF/clock.xml": "<mujoco/>",
    "assets/custom/red_sticker/red_sticker.xml": "<mujoco/>",
    "assets/scanned/red_sticker/red_sticker.xml": "<mujoco/>",
    "envs/problems/tabletop.py": """
class LIBERO_Tabletop(Domain):
    settings = {"scene_xml": "scenes/table.xml", "floor_style": "wood"}

class LIBERO_Tabletop_of_Marble(LIBERO_Tabletop):
    settings = {"scene_xml": "scenes/table_of_marble.xml"}
""",
    "envs/objects/custom.py": """
class AlarmClock_1(Custom):
    path = os.path.join(root, f"assets/new_objects/clock/MJCF/clock.xml")

class RedSticker(Custom):
    path = str(pathlib.Path(get_libero_path("assets")) / "custom" / "red_sticker" / "red_sticker.xml")
""",
    "envs/arenas/style.py": 'FLOOR_STYLE = {"wood": "oak.png", "stone": "stone.png"}',
}
NEEDED = [
    "cabinet/door.stl",
    "bowl/bowl.xml",
    "scanned/looks.xml",
    "bowl/paint.png",
    "scenes/table.xml",
    "textures/oak.png",
]
CHANGED = """(define (problem LIBERO_tabletop_of_marble) (:fixtures main_table - table)
  (:objects alarm_clock__1_1 - alarm_clock__1 red_sticker_1 - red_sticker))"""


@pytest.fixture
def inside(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_whole_checkout_lacks_nothing_and_what_no_task_needs_does_not_count(inside):
    assert missing_assets(inside, inside / "assets", DESCRIPTION) == []


@pytest.mark.parametrize("ending", NEEDED)
def test_each_file_that_the_task_needs_is_missed(inside, ending):
    [name] = [name for name in FILES if name.endswith(ending)]
    (inside / name).unlink()
    assert [path.name for path in missing_assets(inside, inside / "assets", DESCRIPTION)] == [(inside / name).name]


def test_classes_of_libero_plus_name_their_models_and_inherit_styles_and_other_classes_do_not_count(inside):
    assert missing_assets(inside, inside / "assets", CHANGED) == []
    needed = [
        "assets/custom/red_sticker/red_sticker.xml",
        "assets/new_objects/clock/MJCF/clock.xml",
        "assets/scenes/table_of_marble.xml",
        "assets/textures/oak.png",
    ]
    for name in (*needed, "assets/scenes/table.xml"):
        (inside / name).unlink()
    assert missing_assets(inside, inside / "assets", CHANGED) == [inside / name for name in needed]
