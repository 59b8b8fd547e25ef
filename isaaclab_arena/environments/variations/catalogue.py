"""Everything that may vary in an environment: surfaces, distractors, other words for the task."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import mujoco
import numpy as np

from isaaclab_arena.environments.catalog import OBJECTS, ObjectAsset
from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.environments.variations.senses import uniform_variation
from isaaclab_arena.errors import ConfigError, EnvironmentBuildError, Problem
from isaaclab_arena.interfaces.environment_builder import Sampler, SamplerType, Variation
from isaaclab_arena.interfaces.episode import Conditions, ConditionValue, draw_uniform, number, point, upright_pose
from isaaclab_arena.sim import backend
from isaaclab_arena.sim.scene import ASSETS, Robot, ScenePart

# Check paraphrases of a task: their distance from its own words, and that they reveal nothing but the task.

TELLTALES = frozenset(
    (
        *("level", "levels", "axis", "axes", "paraphrase", "paraphrased", "rewrite", "variation", "variant"),
        *("robustness", "benign", "perturbation", "perturbed", "difficulty", "episode"),
        *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        *("first", "second", "third", "fourth", "fifth"),
    )
)
"""Words by which a policy could know that its words were changed, or how far."""

_WORD = re.compile(r"[^\W_]+")


def word_distance(one: str, other: str) -> float:
    """Return the share of two texts' words that only one of them has, 0 to 1."""
    ours, theirs = _words(one), _words(other)
    return 1.0 - len(ours & theirs) / len(ours | theirs)


def check_paraphrases(instruction: str, paraphrases: Sequence[str]) -> None:
    """Raise ConfigError for a paraphrase with extra information, without own words, or out of order."""
    # Paraphrases go from near to far. A number or a telltale word would reveal the variation to the policy.
    nearest = 0.0
    for said in paraphrases:
        telling = sorted((_words(said) - _words(instruction)) & TELLTALES | set(re.findall(r"\d+", said)))
        distance, wrong = word_distance(instruction, said), ""
        if telling:
            wrong = f"tells more than '{instruction}' does: {', '.join(telling)}"
        elif distance == 0.0:
            wrong = f"has the words of '{instruction}'"
        elif distance < nearest:
            wrong = f"is nearer to '{instruction}' than the one before it; order them from near to far"
        if wrong:
            raise ConfigError(Problem(f"paraphrase '{said}' {wrong}", key="paraphrases"))
        nearest = distance


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


# Cover the table and the floor with other patterns, mixed into their own texture in steps.

SURFACES: Mapping[str, str] = {"table": "wood", "background": "floor"}
"""Asset of a variation to the material of the scene that it covers."""

_COARSENESS = {"table": 1, "background": 2}  # the floor repeats its texture on fewer metres
WHOLE = 5  # a texture counts in fifths: of so many parts nothing is left of the scene's own
_SIZE = 256
_CHARCOAL, _CREAM, _TAN, _VIOLET = (58, 60, 66), (236, 228, 206), (176, 148, 112), (126, 96, 150)
_GREY, _ASH, _TEAL, _ROSE = (150, 152, 156), (206, 208, 210), (84, 142, 140), (206, 160, 166)
_COLOURS = (
    *((_CREAM, _TEAL), (_CHARCOAL, _GREY), (_ASH, _VIOLET)),
    *((_TAN, _CHARCOAL), (_ROSE, _CREAM), (_TEAL, _CHARCOAL)),
)
NUM_PATTERNS = len(_COLOURS)


def surface_textures(scene: str, variations: Sequence[Variation]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and pixels of each mixture of each pattern with the texture of each surface that variations change."""
    # Integer arithmetic, so that textures are the same on every machine.
    for asset in (each.asset for each in variations if each.name == "texture"):
        # The scene's own texture is shrunk to the size of the patterns by block means.
        model = mujoco.MjModel.from_xml_path(str(ASSETS / scene))
        texture = int(model.mat_texid[model.material(SURFACES[asset]).id, int(mujoco.mjtTextureRole.mjTEXROLE_RGB)])
        height, width, first = (int(each[texture]) for each in (model.tex_height, model.tex_width, model.tex_adr))
        tall, wide = height // _SIZE, width // _SIZE
        blocks = (
            model.tex_data[first : first + 3 * height * width].reshape(_SIZE, tall, _SIZE, wide, 3).astype(np.int64)
        )
        own = (blocks.sum(axis=(1, 3)) + tall * wide // 2) // (tall * wide)
        for pattern in range(NUM_PATTERNS):
            other = pattern_pixels(pattern, _COARSENESS[asset]).astype(np.int64)
            for parts in range(1, WHOLE + 1):
                pixels = ((WHOLE - parts) * own + parts * other + WHOLE // 2) // WHOLE
                yield f"{asset}_texture_{pattern}_{parts}", pixels.astype(np.uint8)


def pattern_pixels(pattern: int, coarseness: int) -> np.ndarray:
    """Return a seamless pattern; coarseness 2 doubles its size. Shape: (256, 256, 3), uint8."""
    y, x = np.mgrid[:_SIZE, :_SIZE] // coarseness
    # Hashed whole numbers without a visible order, and triangle waves, both the same on every machine.
    scattered = (((x // 8 * 73856093) ^ (y // 8 * 19349663)) * 2654435761 % 2**32) >> 16
    waves = np.abs(x % 128 - 64) + np.abs(y % 128 - 64)
    of_first = (
        (x // 32) % 2 == 0,
        (x // 64 + y // 64) % 2 == 0,
        (x % 64 - 32) ** 2 + (y % 64 - 32) ** 2 > 18**2,
        scattered % 3 > 0,
        (x % 64 < 44) & (y % 64 < 44),
        waves % 64 < 32,
    )[pattern]
    first, second = _COLOURS[pattern]
    return np.where(of_first[..., None], np.array(first), np.array(second)).astype(np.uint8)


MAX_DISTRACTORS = 6
START_NOISE_RAD = 0.02  # of the draw of the robot's joints around home

Ends: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]  # the lowest and the highest value of each component
_ON_TABLE = "for it has to be on the table"
_ON_ROBOT = "for no joint goes beyond its limits"


def catalogue(model: mujoco.MjModel, task: Task, robot: Robot) -> tuple[Variation, ...]:
    """Return every variation of an environment, switched off."""
    # A job turns some on, and `VariedWorld` draws, applies and records them.
    found: dict[str, Variation] = {}
    draws = [task.draw_conditions(np.random.default_rng([0, index])) for index in range(256)]
    for variation in (
        *_starts(model, draws),
        *_objects(model, task),
        *_scene(model, robot, has_distractors=bool(distractor_kinds(task))),
    ):
        # The first variation of a key wins: a task's own draw comes before the general ones.
        found.setdefault(variation.key, variation)
    for variation in task.spec.variations:
        if variation.key in found:
            raise EnvironmentBuildError(f"task '{task.spec.name}': there is a variation '{variation.key}' already")
        found[variation.key] = variation

    # The task in other words, which may depend on the draw, such as a colour.
    num_paraphrases = 0
    for told in {task.instruction_for(drawn): task.paraphrases_for(drawn) for drawn in draws}.items():
        check_paraphrases(*told)
        num_paraphrases = len(told[1])
    if num_paraphrases > 0:
        words = "the task's paraphrase that the policy gets, from close to its own words to far from them"
        span, limits = (1, num_paraphrases), (0, num_paraphrases)
        paraphrase = uniform_variation("instruction", "paraphrase", "", words, span, limits, 0, integer=True)
        found.setdefault(paraphrase.key, paraphrase)
    return tuple(found.values())


def object_bodies(model: mujoco.MjModel, task: Task) -> dict[str, str]:
    """Map each loose object's name in recordings to its body."""
    return {
        name: model.body(int(model.jnt_bodyid[model.joint(joint).id])).name
        for name, joint in task.spec.rigid_objects.items()
    }


def _within(low: Sequence[float], high: Sequence[float]) -> Ends:
    """Round ends inwards to four digits."""
    return tuple(math.ceil(1e4 * end) / 1e4 for end in low), tuple(math.floor(1e4 * end) / 1e4 for end in high)


def _room(ends: Ends, drawn: Ends) -> Ends:
    """Return the largest shifts down and up that keep ``drawn`` within ``ends``; 0 if there is no room."""
    low, high = (
        [edge - end for edge, end in zip(edges, ends, strict=False)] for edges, ends in zip(ends, drawn, strict=True)
    )
    return _within([min(0.0, end) for end in low], [max(0.0, end) for end in high])


def _around(ends: Ends, drawn: Ends) -> Ends:
    """Return ends, widened where the task's own draws exceed them, as around a home at a joint's limit."""
    low, high = _within(*ends)
    lowest, highest = drawn
    return tuple(map(min, zip(low, lowest, strict=False))), tuple(map(max, zip(high, highest, strict=False)))


def _starts(model: mujoco.MjModel, draws: Sequence[Conditions]) -> Iterator[Variation]:
    """Yield a variation for each of the task's own draws, which it replaces, and shifts of drawn positions and yaws."""
    # The lowest and highest x and y of the table [m].
    top = model.geom("table_top")
    middle = model.body(int(model.geom_bodyid[top.id])).pos[:2] + top.pos[:2]
    table = _within((middle - top.size[:2]).tolist(), (middle + top.size[:2]).tolist())

    seen: dict[str, list[ConditionValue]] = {}
    for draw in draws:
        for key, value in draw.items():
            seen.setdefault(key, []).append(value)
    for key, values in seen.items():
        asset, _, name = key.partition(".")
        if not name:
            continue
        words = f"replaces the task's own draw of {key}"
        replaces: dict[str, Any] = {"asset": asset, "name": name, "description": words, "is_drawn_anyway": True}
        if isinstance(values[0], str):
            choices = tuple(sorted({str(value) for value in values}))
            yield Variation(unit="", sampler=Sampler(type=SamplerType.CHOICE, choices=choices), **replaces)
        else:
            # The default range is that of the task's own draws: whole centimetres, a full turn, or the single value.
            whole, low, high = isinstance(values[0], int), (), ()
            for column in np.array(values, float).reshape(len(values), -1).T:
                least, most = float(column.min()), float(column.max())
                if least != most and not whole:
                    is_turn = most - least > 0.98 * 2 * math.pi and most - least < 2 * math.pi
                    cm = math.floor(100 * least) / 100, math.ceil(100 * most) / 100
                    least, most = (-math.pi, math.pi) if is_turn else cm
                low, high = (*low, least), (*high, most)
            start = Variation(
                unit="m" if name.endswith("position") else "rad" if name.endswith("yaw") else "",
                sampler=Sampler(low=low, high=high),
                sizes=(len(low),),
                integer=whole and len(low) == 1,
                **replaces,
            )
            is_position = name == "position" and len(low) == 3
            if is_position:
                lowest, highest = _around(table, (low, high))
                start = replace(start, sizes=(2, 3), lowest=lowest, highest=highest, because=_ON_TABLE)
            yield start
            if is_position:
                words, span = f"added to {asset}.position along x and y", ((-0.02, -0.02), (0.02, 0.02))
                shift = uniform_variation(asset, "shift", "m", words, span, (-0.5, 0.5), (0.0, 0.0))
                lowest, highest = _room(table, (low, high))
                yield replace(shift, lowest=lowest, highest=highest, because=_ON_TABLE)
        if name == "yaw":
            yield uniform_variation(
                asset, "turn", "rad", f"added to {asset}.yaw", (-0.2, 0.2), (-math.pi, math.pi), 0.0
            )


def _objects(model: mujoco.MjModel, task: Task) -> Iterator[Variation]:
    for name, body in object_bodies(model, task).items():
        mass = round(backend.body_mass(model, body), 6)
        yield uniform_variation(name, "mass", "kg", "mass", (mass / 2, 2 * mass), (1e-4, 100.0), mass)
        # The size of a primitive geom is a number of the model; meshes are not scalable.
        geoms = backend.body_geoms(model, body)
        if (model.geom_type[[*geoms]] != int(mujoco.mjtGeom.mjGEOM_MESH)).all():
            words = "factor on its lengths; the mass stays the same"
            yield uniform_variation(name, "size", "", words, (0.9, 1.1), (0.2, 3.0), 1.0)
        touching = [index for index in geoms if model.geom_contype[index] or model.geom_conaffinity[index]]
        if touching:
            friction = round(float(model.geom_friction[touching[0]][0]), 6)
            words = "coefficient of sliding friction in all its contacts"
            span = _cm(friction / 2), _cm(1.5 * friction)
            yield uniform_variation(name, "friction", "", words, span, (0.0, 10.0), friction)
        if geoms:
            material = int(model.geom_matid[geoms[0]])
            rgb = (model.geom_rgba[geoms[0]] if material < 0 else model.mat_rgba[material]).tolist()[:3]
            colours = (
                tuple(_cm(max(0.0, value - 0.25)) for value in rgb),
                tuple(_cm(min(1.0, value + 0.25)) for value in rgb),
            )
            # An object named by its colour would be another object in another colour.
            is_named_so = {"red", "green", "blue", "yellow"} & set(name.split("_"))
            nominal = () if is_named_so else tuple(map(float, rgb))
            words = "red, green and blue of its main surface"
            yield uniform_variation(name, "color", "", words, colours, (0.0, 1.0), nominal)


def camera_assets(model: mujoco.MjModel) -> Mapping[str, str]:
    """Map each policy camera's name in observations to its name in the model."""
    names = [model.camera(index).name for index in range(model.ncam)]
    return {name.rpartition("/")[2]: name for name in names if name != "viewport"}


def _scene(model: mujoco.MjModel, robot: Robot, *, has_distractors: bool) -> Iterator[Variation]:
    """Yield the variations of light, cameras, robot, table and distractors, then of the senses and the surfaces."""
    # `VariedWorld` knows these by their keys. A new one that changes the model needs ``changes``, as a task's own does.
    if model.nlight > 0:
        x, y, z = (float(value) for value in model.light_dir[0])
        directions = (_cm(x - 0.4), _cm(y - 0.4), _cm(z)), (_cm(x + 0.4), _cm(y + 0.4), _cm(z))
        words = "direction of sunlight; any length"
        yield uniform_variation(
            "light", "direction", "", words, directions, (-10.0, 10.0), (x, y, z), is_direction=True
        )
        yield uniform_variation("light", "intensity", "", "factor on every light", (0.5, 1.5), (0.0, 5.0), 1.0)
        words = "factors on red, green and blue of every light"
        yield uniform_variation("light", "color", "", words, ((0.7,) * 3, (1.0,) * 3), (0.0, 5.0), (1.0,) * 3)
    nowhere = (0.0, 0.0, 0.0)
    for name in camera_assets(model):
        words = "offset from its nominal position, along the axes of its parent"
        yield uniform_variation(name, "position", "m", words, ((-0.02,) * 3, (0.02,) * 3), (-1.0, 1.0), nowhere)
        words, turn = "rotation vector about its own axes: right, up, backwards", (-math.pi, math.pi)
        yield uniform_variation(name, "rotation", "rad", words, ((-0.03,) * 3, (0.03,) * 3), turn, nowhere)

    # The start of the robot's joints is drawn in `TableEnvironment.draw_conditions`.
    limits = robot.joint_low, robot.joint_high
    low, high = ([round(value + noise, 6) for value in robot.home] for noise in (-START_NOISE_RAD, START_NOISE_RAD))
    span = tuple(low), tuple(high)
    words, turn = "start of its joints; replaces the draw around home", (-2 * math.pi, 2 * math.pi)
    joints = uniform_variation("robot", "joint_position", "rad", words, span, turn, ())
    low, high = _around(limits, span)
    yield replace(joints, is_drawn_anyway=True, lowest=low, highest=high, because=_ON_ROBOT)
    words, nowhere = "added to the start of its joints", (0.0,) * len(span[0])
    ends = tuple(-0.05 for _ in nowhere), tuple(0.05 for _ in nowhere)
    shift = uniform_variation("robot", "joint_shift", "rad", words, ends, (-math.pi, math.pi), nowhere)
    low, high = _room(limits, span)
    yield replace(shift, lowest=low, highest=high, because=_ON_ROBOT)

    # A higher table is a lower base of the robot; see `VariedWorld`.
    words = "height of the table above the robot's base"
    yield uniform_variation("table", "height", "m", words, (-0.03, 0.03), (-0.3, 0.3), 0.0)
    if has_distractors:
        words = "number of objects without a part in the task"
        poses = tuple(f"distractor_{n}.{what}" for n in range(1, MAX_DISTRACTORS + 1) for what in ("position", "yaw"))
        count = uniform_variation("distractors", "count", "", words, (1, 3), (0, MAX_DISTRACTORS), 0, integer=True)
        yield replace(count, companions=poses)

    for asset, material in SURFACES.items():
        where = {"table": "table", "background": "floor around the table"}[asset]
        words = f"how much of another pattern, of {NUM_PATTERNS}, covers the {where}"
        if any(model.material(index).name == material for index in range(model.nmat)):
            yield uniform_variation(asset, "texture", f"of {WHOLE}", words, (1, WHOLE), (0, WHOLE), 0, integer=True)


def _cm(value: float) -> float:
    return round(float(value), 2)


# Choose distractors, objects without a part in the task, and place them in free spots.


def distractor_kinds(task: Task) -> tuple[ObjectAsset, ...]:
    """Return the kinds of distractors: objects that the instruction cannot mean."""
    said = set(task.spec.instruction.lower().split()) | set(task.spec.rigid_objects)
    kinds = [OBJECTS.get(name) for name in ("can", "cylinder", "cube")]
    return tuple(kind for kind in kinds if not said & {kind.name, *kind.words.lower().split()})


@dataclass(frozen=True, kw_only=True)
class Distractors:
    """The distractors that an environment holds ready; unused ones stand on the floor behind the robot."""

    things: Mapping[str, ObjectAsset]  # by their names in conditions and recordings

    @classmethod
    def ready(cls, task: Task, variations: Sequence[Variation]) -> "Distractors":
        """Return as many distractors as variations can ask for, alternating between all kinds."""
        counts = (max(each.sampler.span[1]) for each in variations if each.key == "distractors.count")
        kinds, indices = distractor_kinds(task), range(round(next(counts, 0)))
        return cls(things={f"distractor_{index + 1}": kinds[index % len(kinds)] for index in indices})

    def parts(self) -> tuple[ScenePart, ...]:
        """Return them as parts of a scene, on the floor behind the robot."""
        return tuple(
            ScenePart(prefix=name, asset=thing.asset, position=(-1.6, 0.3 * index, -0.75 + thing.half_height))
            for index, (name, thing) in enumerate(self.things.items())
        )

    def placed(
        self, among: Sequence["Footprint"], conditions: Conditions, generator: np.random.Generator
    ) -> dict[str, ConditionValue]:
        """Draw poses on the table, 5 cm clear of ``among``; return them with the number that fitted."""
        # The occupied rectangles of the table: centre, and half the lengths along x and y [m].
        taken = []
        for footprint in among:
            x, y = point(conditions.get(f"{footprint.asset}.position", footprint.place))[:2]
            taken.append((x + footprint.middle[0], y + footprint.middle[1], *footprint.half))
        count = round(number(conditions["distractors.count"]))
        poses: dict[str, ConditionValue] = {}
        num_placed = 0
        for name, thing in list(self.things.items())[:count]:
            radius = thing.footprint_radius
            for _ in range(200):
                x, y = draw_uniform(generator, (0.30, -0.42), (0.78, 0.42))
                gaps = [(max(0.0, abs(x - at_x) - a), max(0.0, abs(y - at_y) - b)) for at_x, at_y, a, b in taken]
                if all(math.sqrt(dx * dx + dy * dy) >= radius + 0.05 for dx, dy in gaps):
                    break
            else:
                # The table is full.
                break
            taken.append((x, y, radius, radius))
            poses[f"{name}.position"] = (x, y, thing.half_height)
            poses[f"{name}.yaw"] = float(generator.uniform(-math.pi, math.pi))
            num_placed += 1
        return {"distractors.count": num_placed, **poses}

    def joint_positions(self, conditions: Conditions) -> dict[str, tuple[float, ...]]:
        """Return the start poses of those in use."""
        return {
            f"{name}/free": upright_pose(point(conditions[f"{name}.position"]), conditions[f"{name}.yaw"])
            for name in self.things
            if f"{name}.position" in conditions
        }


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The area of the table that one of the task's things occupies, in any episode."""

    asset: str  # name in conditions
    place: tuple[float, float]  # position in the model [m], for episodes whose conditions do not set it
    middle: tuple[float, float]  # centre of its rectangle, relative to its origin [m]
    half: tuple[float, float]  # half the lengths along x and y [m]


def footprints(model: mujoco.MjModel, task: Task) -> tuple[Footprint, ...]:
    """Return the footprints of the task's things in a compiled scene."""
    asset_of = {joint.partition("/")[0]: name for name, joint in task.spec.rigid_objects.items()}
    asset_of |= {asset.root_body.partition("/")[0]: name for name, asset in task.spec.articulations.items()}
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    found = []
    for index in range(1, model.nbody):
        name = str(model.body(index).name)
        prefix = name.partition("/")[0]
        # Table, robot and distractors are no things of the task.
        if int(model.body_parentid[index]) != 0 or prefix.startswith(("table", "robot", "distractor")):
            continue
        # The bounding rectangle of the body from above, relative to its origin [m].
        origin, low, high = data.xpos[index][:2], np.zeros(2), np.zeros(2)
        for geom in backend.body_geoms(model, name):
            rotation = data.geom_xmat[geom].reshape(3, 3)
            centre = (data.geom_xpos[geom] + rotation @ model.geom_aabb[geom][:3])[:2] - origin
            reach = (np.abs(rotation) @ model.geom_aabb[geom][3:])[:2]
            low, high = np.minimum(low, centre - reach), np.maximum(high, centre + reach)
        if int(model.body_jntnum[index]) > 0:
            # A movable thing can have any yaw, so its footprint is a square around a circle.
            radius = float(np.sqrt(np.maximum(-low, high) @ np.maximum(-low, high)))
            middle, half = (0.0, 0.0), (radius, radius)
        else:
            middle, half = tuple(((low + high) / 2).tolist()), tuple(((high - low) / 2).tolist())
        x, y, _ = model.body_pos[index].tolist()
        found.append(Footprint(asset=asset_of.get(prefix, prefix), place=(x, y), middle=middle, half=half))
    return tuple(found)
