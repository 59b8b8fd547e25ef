"""Pictures that a worker draws."""

import math
from contextlib import nullcontext
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
import pytest
from gymnasium import wrappers

from isaaclab_arena.environments.gym.worker.env_slot import EnvSlot, draw_pictures_of
from isaaclab_arena.environments.gym.worker.gymnasium_tasks import RobosuiteCameras, RobosuiteTask
from isaaclab_arena.environments.gym.worker.rendering import Eye, OwnContexts, Shape, leave_out_unseen
from tests.documentation.reading import blocks
from tests.end_to_end.launching import ROOT
from tests.environments.gym.gym_pictures import PassingOn, Remembering, SeenEnvironment, SparingEnvironment
from tests.environments.gym.worker.robosuite_fakes import PointTask

# Environments that can leave pictures out do so, and what they show is what they show otherwise.

WANTED = (True, False, False, True, True, False, True)


def played(environment: gymnasium.Env, wanted: tuple[bool, ...] = WANTED) -> list[dict[str, np.ndarray]]:
    """Pictures of two episodes of an environment that learns before each step which pictures are needed."""
    slot, shown = EnvSlot(environment, ()), []
    for seed in (1, 2):
        shown.append(slot.reset(seed, pictures=wanted[0])[0])
        for number, is_wanted in enumerate(wanted[1:]):
            action = np.full(environment.action_space.shape or (), 0.1 * number, np.float32)
            shown.append(slot.step(action, pictures=is_wanted)[0])
    return shown


def agree(found: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]], camera: str) -> None:
    """Hold that pictures are where they are wanted, and that all that is there is the same."""
    for some, every, wanted in zip(found, expected, WANTED * 2, strict=True):
        assert some.keys() == (every.keys() if wanted else every.keys() - {camera})
        assert all(np.array_equal(some[name], every[name]) for name in some)


@pytest.mark.parametrize(("maker", "num_drawn"), [(SparingEnvironment, sum(WANTED)), (SeenEnvironment, len(WANTED))])
def test_an_environment_with_the_hook_draws_what_is_wanted_and_one_without_draws_all_and_shows_it(maker, num_drawn):
    environment = maker()
    agree(played(environment), played(maker(), (True,) * len(WANTED)), "front")
    assert environment.drawn == num_drawn


@pytest.mark.parametrize(
    ("environment", "draws_everything"),
    [
        (wrappers.TimeLimit(wrappers.OrderEnforcing(PassingOn(SparingEnvironment())), 20), False),
        (SeenEnvironment(), True),
        (wrappers.TimeLimit(Remembering(SparingEnvironment()), 20), True),
        (wrappers.FrameStackObservation(SparingEnvironment(), 2), True),
    ],
    ids=["gymnasiums_own_layers", "no_hook", "wrapper_that_remembers", "wrapper_that_stacks"],
)
def test_a_wrapper_that_might_keep_pictures_has_all_of_them_drawn(environment: Any, draws_everything):
    assert (draw_pictures_of(environment) is None) is draws_everything
    assert EnvSlot(environment, ()).description()["draws_on_demand"] is not draws_everything


@pytest.mark.parametrize(
    ("options", "trusted", "draws_on_demand"),
    [
        ({}, (), True),
        ({"depth": True}, (), False),
        ({"camera_period_s": 0.1}, (), False),
        ({"reader": True}, (), False),
        ({"reader": True}, ("libero",), False),
        ({"reader": True}, ("tests",), True),
    ],
)
def test_robosuites_cameras_with_depth_a_rate_or_a_reader_of_their_own_are_always_drawn(
    options, trusted, draws_on_demand
):
    reads = options.pop("reader", False)
    task = PointTask(**options)
    if reads:
        task._observables["place"].set_sensor(lambda cache: cache.get("front_image", np.zeros(1)).mean()[None])
    assert RobosuiteCameras(task, ["front_image"], trusted).names == (["front_image"] if draws_on_demand else [])


@pytest.mark.parametrize("hard_reset", [True, False])
def test_robosuites_cameras_draw_what_is_wanted_at_the_moment_at_which_it_would_be_drawn(hard_reset):
    tasks = [PointTask(hard_reset=hard_reset) for _ in range(2)]
    every, some = (RobosuiteTask(task, ["front"]) for task in tasks)
    expected = played(every, (True,) * len(WANTED))
    built = tasks[1].drawn
    agree(played(wrappers.TimeLimit(some, 20)), expected, "front_image")
    # A hard reset tries the new sensor and draws with it.
    resets = 2 * 2 if hard_reset else 2
    assert tasks[1].drawn - built == resets + 2 * sum(WANTED[1:])


@pytest.mark.parametrize("drawn_before", [True, False])
def test_a_camera_that_was_not_read_in_a_step_shows_the_picture_drawn_before_or_is_an_error(drawn_before):
    # At 30 Hz with physics steps of 2 ms, the clock of a camera passes over a step now and then.
    task = PointTask(hard_reset=False)
    slot = EnvSlot(RobosuiteTask(task, ["front"]), ())
    start = slot.reset(1, pictures=True)[0]["front_image"]
    before = slot.step(np.ones(1, np.float32), pictures=drawn_before)[0]
    kept = task._observables["front_image"]
    assert kept.obs.dtype == np.uint8
    assert np.array_equal(kept.obs, start) is not drawn_before
    kept._time, kept._sampled = -1.0, True
    if drawn_before:
        after = slot.step(np.ones(1, np.float32), pictures=True)[0]
        assert np.array_equal(after["front_image"], before["front_image"])
    else:
        with pytest.raises(RuntimeError, match=r"'front_image' .*--eager_pictures"):
            slot.step(np.zeros(1, np.float32), pictures=True)


def test_the_environment_of_the_document_draws_what_is_wanted():
    names: dict[str, Any] = {}
    document = (ROOT / "docs" / "how_to" / "gymnasium.md").read_text()
    exec(blocks(document, "python")[1], names)
    block: Any = names["PushBlock"]()
    slot = EnvSlot(gymnasium.wrappers.TimeLimit(block, 5), ())
    assert slot.description()["draws_on_demand"]
    assert set(slot.reset(1, pictures=False)[0]) == {"place"}
    first = slot.step(np.ones(2, np.float32), pictures=True)[0]
    assert first["front"].shape == (64, 64, 3)
    block.drawn = None
    assert set(slot.step(np.ones(2, np.float32), pictures=False)[0]) == {"place"}


# A renderer that is freed late takes nothing from those that still draw; a stand-in has robosuite's names.


class Context:
    """One of OpenGL's: textures have numbers that are the same in each, and one context is current."""

    current: ClassVar["Context | None"] = None

    def __init__(self) -> None:
        self.textures: set[int] = set()

    def make_current(self) -> None:
        Context.current = self


class Renderer:
    """Draws as robosuite 1.4.0 and 1.5.2 do: in whatever context is current."""

    context_class = Context

    def __init__(self) -> None:
        self.gl_ctx = self.context_class()
        self.gl_ctx.make_current()
        self.gl_ctx.textures.add(1)

    def render(self) -> bool:
        return Context.current is not None and 1 in Context.current.textures

    def __del__(self) -> None:
        if Context.current is not None:
            Context.current.textures.discard(1)
        if Context.current is self.gl_ctx:
            Context.current = None


def test_each_renderer_draws_and_is_freed_in_its_own_context():
    old, new = Renderer(), Renderer()
    del old
    assert not new.render(), "without this, one that is freed late takes the textures of the one that draws"
    own_context = type("OwnContext", (Context,), {})
    own, contexts = type("OwnRenderer", (Renderer,), {"context_class": own_context}), OwnContexts()
    for _ in range(2):
        contexts.keep_apart(own, [own_context])
    first, second, third = own(), own(), own()
    assert first.render()
    assert Context.current is first.gl_ctx
    assert second.render()
    assert Context.current is second.gl_ctx
    del third
    assert Context.current is second.gl_ctx
    assert second.render()
    del second
    assert Context.current is None
    assert first.render()


# Geoms that cannot be seen in a picture are not drawn, and what reflects is drawn in a part of its own.

WORLD = """
<mujoco>
  <asset>{material}</asset>
  <worldbody>
    <light pos="0 0 3" castshadow="{shadow}"/>
    <camera name="above" pos="0 0 2" fovy="60"/>
    <geom name="table" type="box" size="{table} 0.05" pos="0 0 -0.05"/>
    <geom name="mirror" type="box" size="0.1 0.1 0.01" pos="-0.5 0 0.01" {reflects}/>
    <geom name="ball" type="sphere" size="0.1" pos="0.3 0 0.1"/>
    <geom name="below" type="sphere" size="0.2" pos="0 0 -0.5"/>
    <geom name="beside" type="sphere" size="0.1" pos="5 0 0.1"/>
    <geom name="lamp" type="sphere" size="0.05" pos="-1 0 1.9"/>
  </worldbody>
</mujoco>
"""


class SeenRenderer:
    """Has the names of robosuite's, and reads one colour where it draws the whole picture."""

    colour = 0

    def __init__(self, *, table: str = "0.9 0.9", reflects: bool = False, shadow: bool = False) -> None:
        made = '<material name="glass" reflectance="0.5"/>' if reflects else ""
        told = {"material": made, "reflects": 'material="glass"' if reflects else "", "shadow": str(shadow).lower()}
        model = mujoco.MjModel.from_xml_string(WORLD.format(table=table, **told))
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        self.model: Any = type("Model", (), {"_model": model})
        self.data: Any = type("Data", (), {"_data": data})
        self.scn = mujoco.MjvScene(model, maxgeom=20)
        self.cam, self.vopt, self.pert = mujoco.MjvCamera(), mujoco.MjvOption(), mujoco.MjvPerturb()
        self.con: Any = type("Context", (), {"offWidth": 64, "offHeight": 64})
        self.drawn: list[tuple[set[str], bool]] = []

    def shown(self) -> tuple[set[str], bool]:
        """Drawn geoms, and whether mirrors are drawn."""
        none, reflects = int(mujoco.mjtGeom.mjGEOM_NONE), int(mujoco.mjtRndFlag.mjRND_REFLECTION)
        shown = [self.scn.geoms[number] for number in range(self.scn.ngeom)]
        model, kind = self.model._model, int(mujoco.mjtObj.mjOBJ_GEOM)
        names = {mujoco.mj_id2name(model, kind, geom.objid) for geom in shown if int(geom.type) != none}
        return names, bool(self.scn.flags[reflects])

    def render(self, width: int, height: int, camera_id: int | None = None, segmentation: bool = False) -> None:
        del width, height, camera_id, segmentation
        self.drawn.append(({"as robosuite draws it"}, True))

    def read_pixels(self, width: int, height: int, depth: bool = False, segmentation: bool = False) -> Any:
        del depth, segmentation
        return np.full((height, width, 3), self.colour, np.uint8)


WHOLE = ({"as robosuite draws it"}, True)


class Screen:
    """Stands for OpenGL, whose pixels are the number of the part that was drawn last, or all of one colour."""

    def __init__(self, colour: int | None = None) -> None:
        self.colour = colour

    def render(self, renderer, part) -> None:
        del part
        renderer.drawn.append(renderer.shown())

    def read(self, renderer, part) -> np.ndarray:
        return np.full((part[3], part[2], 3), self.colour or len(renderer.drawn), np.uint8)


def sparing(screen: Screen, **own: Any) -> type[SeenRenderer]:
    """Return a class of renderers that leaves out what is not seen."""
    own |= {"render": SeenRenderer.render, "read_pixels": SeenRenderer.read_pixels}
    made = type("Sparing", (SeenRenderer,), own)
    for _ in range(2):
        leave_out_unseen(made, screen)
    return made


@pytest.fixture
def drawn():
    """Parts that a renderer draws of the requested world, and the parts that are read."""
    renderers = sparing(Screen(), cameras_compared=frozenset({0}))

    def draw(camera: int | None = 0, *, width: int = 32, depth: bool = False, **world: Any) -> tuple[list, Any]:
        renderer = renderers(**world)
        renderer.render(width, 32, camera_id=camera)
        return renderer.drawn, renderer.read_pixels(width, 32, depth=depth)

    return draw


SEEN = {"table", "mirror", "ball", "below"}


@pytest.mark.parametrize(
    ("world", "shown", "reflects"),
    [
        ({}, SEEN, False),
        # What lies below a table that fills the picture is hidden.
        ({"table": "2 2"}, SEEN - {"below"}, False),
        ({"shadow": True, "reflects": True}, {*SEEN, "beside", "lamp"}, True),
    ],
)
def test_geoms_that_no_picture_shows_are_left_out_but_where_they_may_cast_shadows(drawn, world, shown, reflects):
    [(names, mirrors)], read = drawn(**world)
    assert names == shown
    assert mirrors or not reflects
    assert not read.any(), "as robosuite reads it"


def test_a_mirror_is_drawn_in_a_part_of_its_own_with_what_may_be_seen_there(drawn):
    parts, read = drawn(reflects=True)
    assert parts[0] == (SEEN, False)
    # The lamp is above the picture, and its image is in the mirror; the ball is in neither.
    assert parts[1] == ({"table", "mirror", "lamp"}, True)
    assert set(np.unique(read)) == {1, 2}
    columns = np.flatnonzero((read == 2).all(axis=2).any(axis=0))
    across = 16 + 16 * np.array([-0.6, -0.4]) / (1.98 * math.tan(math.radians(30)))
    assert columns[0] <= across[0] - 1
    assert columns[-1] >= across[1] + 1
    assert len(columns) < 12


@pytest.mark.parametrize(
    ("asked", "num_parts"), [({"camera": None}, 1), ({"camera": -1}, 1), ({"width": 65}, 1), ({"depth": True}, 3)]
)
def test_what_is_asked_in_another_way_is_drawn_as_robosuite_draws_it(drawn, asked, num_parts):
    parts, read = drawn(**asked, reflects=True)
    assert len(parts) == num_parts
    assert parts[-1] == WHOLE
    assert not read.any(), "as robosuite reads it"


@pytest.mark.parametrize("differs", [False, True])
def test_the_first_picture_of_a_camera_is_drawn_whole_too_and_where_the_two_differ_so_are_all_others(differs):
    renderer = sparing(Screen(colour=2), colour=3 if differs else 2)(reflects=True)
    with pytest.warns(UserWarning, match="all is drawn") if differs else nullcontext():
        for _ in range(2):
            renderer.render(32, 32, camera_id=0)
    whole = [each == WHOLE for each in renderer.drawn]
    assert whole == ([False, False, True, True] if differs else [False, False, True, False, False])


# A box of which a point may be seen is never left out, and few others are kept.

FACE, UPWARDS = np.array([0.0, 0.0, -1.0]), np.eye(3)
"""A rectangle that faces upwards."""


def boxes(number: int) -> tuple[Shape, np.ndarray]:
    """Return boxes all around, and points in them. Shape of the points: (number, 2000, 3)."""
    generator = np.random.default_rng(0)
    axes = np.linalg.qr(generator.normal(size=(number, 3, 3)))[0]
    made = Shape(generator.normal(size=(number, 3)), axes, generator.uniform(0, 0.5, (number, 3)))
    inside = generator.uniform(-1, 1, (number, 2000, 3)) * made.halves[:, None]
    return made, made.centers[:, None] + np.einsum("nij,nkj->nki", axes, inside)


def eye_above() -> Eye:
    """Return an eye that looks down, turned a little."""
    forward = np.array([0.1, 0.2, -1.0]) / np.linalg.norm([0.1, 0.2, -1.0])
    right = np.cross(forward, [0.0, 1.0, 0.0])
    right /= np.linalg.norm(right)
    return Eye(np.array([0.1, -0.2, 1.0]), np.array([right, np.cross(right, forward), forward]), -0.4, 0.5, -0.3, 0.6)


def in_picture(eye: Eye, points: np.ndarray) -> np.ndarray:
    """Points inside the picture, hidden or not."""
    across, upwards, ahead = np.moveaxis((points - eye.place) @ eye.axes.T, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = across / ahead, upwards / ahead
    return (ahead > 0) & (x > eye.left) & (x < eye.right) & (y > eye.bottom) & (y < eye.top)


def through_face(eye: Eye, points: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Points below the rectangle as seen through it."""
    on_face = eye.place + (points - eye.place) * ((FACE - eye.place)[2] / (points - eye.place)[..., 2])[..., None]
    return (points[..., 2] < FACE[2]) & (np.abs((on_face - FACE)[..., :2]) < halves).all(axis=-1)


def test_the_boxes_that_a_picture_shows_are_kept_and_few_others():
    shape, points = boxes(500)
    eye, halves = eye_above(), np.array([0.5, 0.3])
    inside, behind = in_picture(eye, points), eye.through(FACE, UPWARDS, halves)
    assert behind is not None
    for region, seen in (
        (eye.sight(), inside),
        (eye.sight((FACE, UPWARDS[2])), inside & (points[..., 2] > FACE[2])),
        (behind, through_face(eye, points, halves)),
    ):
        shown, kept = seen.any(axis=1), shape.meet(region)
        assert kept[shown].all()
        assert 5 < shown.sum() <= kept.sum() < 1.1 * shown.sum()


def test_a_rectangle_fills_a_picture_where_no_corner_passes_beside_it_and_none_from_below():
    assert eye_above().is_filled_by(FACE, UPWARDS, np.array([2.0, 2.0]))
    assert not eye_above().is_filled_by(FACE, UPWARDS, np.array([2.0, 0.5]))
    below = eye_above()._replace(place=np.array([0.0, 0.0, -1.5]))
    assert not below.is_filled_by(FACE, UPWARDS, np.array([9.0, 9.0]))
    assert below.through(FACE, UPWARDS, np.array([9.0, 9.0])) is None
