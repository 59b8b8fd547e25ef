"""The files that a task needs are found through its description, and those that a checkout lacks are named."""

import pytest

from isaaclab_arena.environments.libero import missing_assets

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
    "envs/problems/tabletop.py": """
class LIBERO_Tabletop(Domain):
    settings = {"scene_xml": "scenes/table.xml", "floor_style": "wood"}

class LIBERO_Tabletop_of_Marble(LIBERO_Tabletop):
    settings = {"scene_xml": "scenes/table_of_marble.xml"}
""",
    "envs/objects/custom.py": """
class AlarmClock_1(Custom):
    path = os.path.join(root, f"assets/new_objects/clock/MJCF/clock.xml")
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
  (:objects alarm_clock__1_1 - alarm_clock__1))"""


@pytest.fixture
def inside(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_whole_checkout_lacks_nothing_and_what_no_task_needs_does_not_count(inside):
    assert missing_assets(inside, DESCRIPTION) == []


@pytest.mark.parametrize("ending", NEEDED)
def test_each_file_that_the_task_needs_is_missed(inside, ending):
    [name] = [name for name in FILES if name.endswith(ending)]
    (inside / name).unlink()
    assert [path.name for path in missing_assets(inside, DESCRIPTION)] == [(inside / name).name]


def test_classes_of_libero_plus_name_their_models_and_inherit_styles_and_other_classes_do_not_count(inside):
    assert missing_assets(inside, CHANGED) == []
    needed = ["assets/new_objects/clock/MJCF/clock.xml", "assets/scenes/table_of_marble.xml", "assets/textures/oak.png"]
    for name in (*needed, "assets/scenes/table.xml"):
        (inside / name).unlink()
    assert missing_assets(inside, CHANGED) == [inside / name for name in needed]
