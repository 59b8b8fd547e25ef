"""The files that a task needs are found through its description, and those that a checkout lacks are named."""

import pytest

from isaaclab_arena.environments.libero.assets import missing_assets

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
    "envs/problems/libero_tabletop.py": 'scene = "scenes/table.xml"; styles = {"floor_style": "wood"}',
    "envs/arenas/style.py": 'FLOOR_STYLE = {"wood": "oak.png", "stone": "stone.png"}',
}
NEEDED = [name for name in FILES if not name.startswith("envs")]


@pytest.fixture
def inside(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_whole_checkout_lacks_nothing_and_what_no_task_needs_does_not_count(inside):
    assert missing_assets(inside, DESCRIPTION) == []


@pytest.mark.parametrize("name", [name for name in NEEDED if not name.endswith("cabinet.xml")])
def test_each_file_that_the_task_needs_is_missed(inside, name):
    (inside / name).unlink()
    [missing] = missing_assets(inside, DESCRIPTION)
    assert missing.name == (inside / name).name
