"""A robot's files lead nowhere but below their directory, however MuJoCo would read their names."""

import re
from pathlib import Path

import mujoco
import pytest
import yaml

import isaaclab_arena as arena
from isaaclab_arena import ConfigError
from tests.environments.six_axis import DESCRIPTION, MJCF

TETRAHEDRON = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
MESH = '<asset><mesh name="m" file="{name}"/></asset><worldbody><geom type="mesh" mesh="m"/></worldbody>'
BODY = '<worldbody><geom size="1"/></worldbody>'

ESCAPES = {
    "a mesh above": MESH.format(name="../outside/m.obj"),
    "a mesh by its absolute path": MESH.format(name="{outside}/m.obj"),
    "a directory of meshes above": '<compiler meshdir="../outside"/>' + MESH.format(name="m.obj"),
    "an absolute directory of meshes": '<compiler meshdir="{outside}"/>' + MESH.format(name="m.obj"),
    "an assets directory": '<compiler assetdir="../outside"/>' + MESH.format(name="m.obj"),
    "a way up inside a directory of meshes": '<compiler meshdir="meshes"/>' + MESH.format(name="../../outside/m.obj"),
    "backward slashes": MESH.format(name="..\\outside\\m.obj"),
    "characters by their numbers": MESH.format(name="&#46;&#46;/outside/m.obj"),
    "single quotes and spaces": MESH.replace('file="{name}"', "file = '{name}'").format(name="../outside/m.obj"),
    "what MuJoCo drops": '<compiler meshdir="../outside" strippath="true"/>' + MESH.format(name="a/b/m.obj"),
    "a link": MESH.format(name="link.obj"),
    "a linked directory": MESH.format(name="linked/m.obj"),
    "an included file": '<include file="../outside/part.xml"/>' + BODY,
    "what an included file includes": '<include file="inner/includes.xml"/>' + BODY,
    "what an included file says of directories": '<include file="inner/directories.xml"/>' + MESH.format(name="m.obj"),
    "an attached model": '<asset><model name="a" file="inner/attached.xml"/></asset>'
    '<worldbody><attach model="a" body="b" prefix="p"/></worldbody>',
    "a texture": '<asset><texture name="t" type="2d" file="../outside/t.png"/></asset>' + BODY,
    "a side of a sky": '<asset><texture type="skybox" fileright="../outside/t.png"/></asset>' + BODY,
    "a height field": '<asset><hfield name="h" file="../outside/t.png" size="1 1 1 1"/></asset>' + BODY,
    "a comment that is none": '<custom><text name="a" data="<!--"/></custom>'
    + MESH.format(name="../outside/m.obj")
    + '<custom><text name="b" data="-->"/></custom>',
    "a name in a name": "<custom><text name=\"file='\" data=\"a\"/></custom>" + MESH.format(name="../outside/m.obj"),
}  # fmt: skip


@pytest.fixture
def directories(tmp_path):
    """A robot's directory, and one beside it with what must not be read."""
    robot, outside = tmp_path / "robot", tmp_path / "outside"
    for directory in (robot / "inner", robot / "meshes", outside):
        directory.mkdir(parents=True)
    (outside / "m.obj").write_text(TETRAHEDRON)
    (outside / "t.png").write_bytes(b"no picture")
    (outside / "part.xml").write_text('<mujoco><worldbody><body name="secret"/></worldbody></mujoco>')
    (robot / "link.obj").symlink_to(outside / "m.obj")
    (robot / "linked").symlink_to(outside)
    (robot / "inner" / "includes.xml").write_text('<mujoco><include file="../outside/part.xml"/></mujoco>')
    (robot / "inner" / "directories.xml").write_text('<mujoco><compiler meshdir="../outside"/></mujoco>')
    attached = MESH.format(name="../../outside/m.obj").replace("<geom", '<body name="b"><geom')
    attached = attached.replace("/></w", "/></body></w")
    (robot / "inner" / "attached.xml").write_text(f"<mujoco>{attached}</mujoco>")
    return robot, outside


@pytest.mark.parametrize("escape", ESCAPES)
def test_every_way_out_of_the_directory_that_mujoco_would_take_is_found(directories, escape):
    robot, outside = directories
    mjcf = robot / "robot.xml"
    mjcf.write_text(f"<mujoco>{ESCAPES[escape].replace('{outside}', str(outside))}</mujoco>")
    if "t.png" not in ESCAPES[escape]:
        mujoco.MjModel.from_xml_path(str(mjcf))
    with pytest.raises(ConfigError, match=re.escape(f"leads to '{outside}/") + r"[\w.]+', which is not below"):
        build(described(robot, "robot.xml"))


def test_files_below_the_directory_are_no_way_out(directories):
    robot, _ = directories
    (robot / "meshes" / "m.obj").write_text(TETRAHEDRON)
    files = '<compiler meshdir="../meshes"/><!-- -- --><include file="more.xml"/>' + MESH.format(name="m.obj")
    (robot / "inner" / "model.xml").write_text(MJCF.replace("</mujoco>", harmless(files) + "</mujoco>"))
    (robot / "inner" / "more.xml").write_text(f"<mujoco>{harmless(BODY)}</mujoco>")
    build(described(robot, "inner/model.xml"))
    with pytest.raises(ConfigError, match=re.escape(f"leads to '{(robot / 'meshes' / 'm.obj').resolve()}', which is")):
        build(described(robot / "inner", "model.xml"))


def test_files_that_include_each_other_are_read_once(directories):
    robot, _ = directories
    (robot / "a.xml").write_text('<mujoco><include file="b.xml"/></mujoco>')
    (robot / "b.xml").write_text('<mujoco><include file="a.xml"/></mujoco>')
    with pytest.raises(ConfigError, match="MuJoCo") as refused:
        build(described(robot, "a.xml"))
    assert "leads to" not in str(refused.value)


def harmless(mjcf: str) -> str:
    """Return MJCF whose shapes touch nothing."""
    return mjcf.replace("<geom ", '<geom contype="0" conaffinity="0" ')


def build(description: Path) -> None:
    """Build an environment with a robot."""
    arena.make("reach", embodiment=str(description), device="cpu").close()


def described(directory: Path, mjcf: str) -> Path:
    """Write the description that `isaaclab-arena new robot` writes, with another MJCF file."""
    values = yaml.safe_load(DESCRIPTION)
    (directory / "robot.yaml").write_text(yaml.safe_dump({**values, "mjcf": mjcf}))
    return directory / "robot.yaml"


@pytest.mark.parametrize("way", ["../outside/robot.xml", "{outside}/robot.xml", "link.xml"])
def test_a_description_whose_mjcf_file_lies_elsewhere_is_refused_with_the_path(directories, way):
    robot, outside = directories
    (outside / "robot.xml").write_text(f"<mujoco>{BODY}</mujoco>")
    (robot / "link.xml").symlink_to(outside / "robot.xml")
    with pytest.raises(ConfigError) as refused:
        build(described(robot, way.replace("{outside}", str(outside))))
    [problem] = refused.value.problems
    assert problem.key == "arena_env_args.embodiment"
    assert problem.message.startswith(f"{robot / 'robot.yaml'}: mjcf: leads to '{outside / 'robot.xml'}'")


def test_a_checkout_of_menagerie_may_lie_anywhere_and_keeps_its_files_below_itself(directories, monkeypatch):
    robot, outside = directories
    (outside / "arm").mkdir()
    (outside / "arm" / "arm.xml").write_text(MJCF)
    monkeypatch.setenv("MENAGERIE_ROOT", str(outside))
    build(described(robot, "../outside/arm/arm.xml"))
    elsewhere = MJCF.replace("<worldbody>", '<include file="../../robot/x.xml"/><worldbody>')
    (outside / "arm" / "arm.xml").write_text(elsewhere)
    (robot / "x.xml").write_text("<mujoco/>")
    with pytest.raises(ConfigError, match="leads to"):
        build(described(robot, "../outside/arm/arm.xml"))
