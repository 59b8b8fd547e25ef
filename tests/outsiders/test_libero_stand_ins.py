"""What stands in for files that checkouts of LIBERO and its variants lack is what MuJoCo and LIBERO read."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from tests.environments.libero.libero_plus_stand_ins import stand_in
from tests.outsiders.libero_pro_files import in_another_room, with_changed_places, with_other_goal
from tests.outsiders.libero_stand_ins import main

MODEL = """<mujoco>
  <asset>
    <texture name="t" type="2d" file="texture.png"/>
    <material name="m" texture="t"/>
    <mesh name="bowl" file="visual/bowl_vis.msh"/>
    <mesh name="mug" file="mug.obj"/>
  </asset>
  <worldbody>
    <geom type="mesh" mesh="bowl" material="m"/>
    <geom type="mesh" mesh="mug"/>
  </worldbody>
</mujoco>"""


def test_a_checkout_with_stand_ins_builds_and_is_as_large_as_its_collision_meshes(tmp_path):
    thing = tmp_path / "checkout" / "bowl"
    thing.mkdir(parents=True)
    (thing / "bowl.xml").write_text(MODEL)
    (thing / "bowl_col.obj").write_text("v 0 0 0\nv 0.2 0 0\nv 0.2 0.4 0\nv 0 0 0.6\nf 1 2 3\n")
    missing = ["bowl/texture.png", "bowl/visual/bowl_vis.msh", "bowl/mug.obj", "bowl.zip", ""]
    main(tmp_path / "checkout", missing, tmp_path / "copy")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "copy" / "bowl" / "bowl.xml"))
    assert np.allclose(sorted(model.geom_aabb[0, 3:]), [0.1, 0.2, 0.3])
    assert model.tex_width[0] == 8
    assert not (thing / "texture.png").exists()


@pytest.mark.parametrize("name", ["bowl/bowl.xml", "scene/collision/wall.obj"])
def test_nothing_stands_in_for_what_physics_needs(tmp_path, name):
    (tmp_path / "checkout").mkdir()
    with pytest.raises(ValueError, match="nothing can stand in for it"):
        main(tmp_path / "checkout", [name], tmp_path / "copy")


def test_a_scene_of_liberoplus_becomes_the_one_that_it_was_made_from_and_an_object_a_box(tmp_path):
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "libero_study_base_style.xml").write_text('<mujoco file="../wall.png"/>')
    scene = stand_in(Path("scenes/lights/study_light_7.xml"), tmp_path)
    assert scene == b'<mujoco file="../../wall.png"/>'
    model = mujoco.MjModel.from_xml_string(stand_in(Path("new_objects/clock/clock.xml"), tmp_path).decode())
    assert model.ngeom == 1
    with pytest.raises(ValueError, match="nothing can stand in for it"):
        stand_in(Path("scenes/cave.xml"), tmp_path)


DESCRIPTION = """(define (problem LIBERO_Study_Tabletop_Manipulation)
  (:language pick up the book)
  (:fixtures
    study_table - study_table
  )
  (:obj_of_interest
    book_1
  )
  (:init
    (On book_1 study_table_left_region)
    (On mug_1 study_table_right_region)
  )
  (:goal
    (And (Up book_1))
  )
)
"""


def test_files_of_liberopro_say_what_its_lists_say():
    goals = {"Take the mug": {"goal": "(And (Up mug_1))", "obj_of_interest": ["mug_1", "book_1"]}, "Rest": {}}
    other = with_other_goal(DESCRIPTION, goals)
    assert "(:language Take the mug)" in other
    assert "(:goal\n    (And (Up mug_1))\n  )" in other
    assert "(:obj_of_interest\n    mug_1\n    book_1\n  )" in other
    swapped = with_changed_places(DESCRIPTION, {"book_1": ["mug_1", "plate_1"]})
    assert "(On book_1 study_table_right_region)\n    (On mug_1 study_table_left_region)" in swapped
    elsewhere = in_another_room(DESCRIPTION, ["take the book", "get it"])
    assert "(problem LIBERO_Tabletop_Manipulation)\n  (:language take the book)" in elsewhere
    assert "    main_table - table\n" in elsewhere
    assert "study" not in elsewhere
