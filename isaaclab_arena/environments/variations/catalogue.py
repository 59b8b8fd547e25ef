"""Everything that may vary in an environment: surfaces, distractors, other words for the task."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import mujoco
import numpy as np

from isaaclab_arena.environments.catalog import OBJECTS
from isaaclab_arena.environments.mdp.task import Task
from isaaclab_arena.environments.objects import ObjectAsset
from isaaclab_arena.environments.variations.disturbances import NO_COMPRESSION
from isaaclab_arena.environments.variations.overrides import SHIFT, TURN
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.interfaces.environment_builder import Sampler, SamplerType, Variation
from isaaclab_arena.interfaces.episode import (
    Conditions,
    ConditionValue,
    Episode,
    draw_uniform,
    number,
    point,
    upright_pose,
)
from isaaclab_arena.sim.backend import (
    ModelChange,
    body_geoms,
    body_mass,
    colour_of,
    is_scalable,
    retextured,
    touching_geoms,
)
from isaaclab_arena.sim.scene import ScenePart, SceneTexture, texture_of

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
        if telling:
            raise _refused(f"'{said}' tells more than '{instruction}' does: {', '.join(telling)}")
        distance = word_distance(instruction, said)
        if distance == 0.0:
            raise _refused(f"'{said}' has the words of '{instruction}'")
        if distance < nearest:
            raise _refused(f"'{said}' is nearer to '{instruction}' than the one before it; order them from near to far")
        nearest = distance


def _refused(message: str) -> ConfigError:
    return ConfigError(Problem(f"paraphrase {message}", key="paraphrases"))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


# Cover the table and the floor with other patterns, mixed into their own texture in steps.

SURFACES: Mapping[str, str] = {"table": "wood", "background": "floor"}
"""Asset of a variation to the material of the scene that it covers."""

_COARSENESS = {"table": 1, "background": 2}
"""The floor repeats its texture on fewer metres."""

TEXTURE, PATTERN = "texture", "pattern"
WHOLE = 5
"""A texture counts in fifths: of so many parts nothing is left of the scene's own."""

_SIZE = 256
_CHARCOAL, _CREAM, _TAN, _VIOLET = (58, 60, 66), (236, 228, 206), (176, 148, 112), (126, 96, 150)
_GREY, _ASH, _TEAL, _ROSE = (150, 152, 156), (206, 208, 210), (84, 142, 140), (206, 160, 166)
_COLOURS = (
    (_CREAM, _TEAL),
    (_CHARCOAL, _GREY),
    (_ASH, _VIOLET),
    (_TAN, _CHARCOAL),
    (_ROSE, _CREAM),
    (_TEAL, _CHARCOAL),
)
NUM_PATTERNS = len(_COLOURS)


def covered(variations: Sequence[Variation]) -> tuple[str, ...]:
    """Return the assets of the surfaces that variations change."""
    return tuple(each.asset for each in variations if each.name == TEXTURE)


def surface_textures(scene: str, assets: Sequence[str]) -> Iterator[SceneTexture]:
    """Yield each mixture of each pattern with each surface's own texture."""
    for asset in assets:
        own = _resized(texture_of(scene, SURFACES[asset])).astype(np.int64)
        for pattern in range(NUM_PATTERNS):
            other = pattern_pixels(pattern, _COARSENESS[asset]).astype(np.int64)
            for parts in range(1, WHOLE + 1):
                # Integer arithmetic, so that textures are the same on every machine.
                pixels = ((WHOLE - parts) * own + parts * other + WHOLE // 2) // WHOLE
                yield SceneTexture(name=_name(asset, pattern, parts), pixels=pixels.astype(np.uint8))


def pattern_pixels(pattern: int, coarseness: int) -> np.ndarray:
    """Return a seamless pattern; coarseness 2 doubles its size. Shape: (256, 256, 3), uint8."""
    y, x = np.mgrid[:_SIZE, :_SIZE] // coarseness
    of_first = (
        (x // 32) % 2 == 0,
        (x // 64 + y // 64) % 2 == 0,
        (x % 64 - 32) ** 2 + (y % 64 - 32) ** 2 > 18**2,
        _scatter(x // 8, y // 8) % 3 > 0,
        (x % 64 < 44) & (y % 64 < 44),
        (_wave(x, 128) + _wave(y, 128)) % 64 < 32,
    )[pattern]
    first, second = _COLOURS[pattern]
    return np.where(of_first[..., None], np.array(first), np.array(second)).astype(np.uint8)


def drawn_patterns(conditions: Conditions, episode: Episode) -> dict[str, ConditionValue]:
    """Draw each covered surface's pattern, independent of its mixture."""
    return {
        f"{asset}.{PATTERN}": int(NUM_PATTERNS * episode.variation_generator(f"{asset}.{PATTERN}").random())
        for asset in SURFACES
        if f"{asset}.{TEXTURE}" in conditions
    }


def surface_changes(model: mujoco.MjModel, conditions: Conditions) -> Iterator[ModelChange]:
    """Yield the model changes of covered surfaces; none for a mixture of 0."""
    for asset, material in SURFACES.items():
        parts = round(number(conditions.get(f"{asset}.{TEXTURE}", 0)))
        if parts > 0:
            pattern = round(number(conditions[f"{asset}.{PATTERN}"]))
            yield retextured(model, material, _name(asset, pattern, parts))


def _name(asset: str, pattern: int, parts: int) -> str:
    return f"{asset}_{TEXTURE}_{pattern}_{parts}"


def _resized(pixels: np.ndarray) -> np.ndarray:
    """Shrink a texture to 256 x 256 by block means."""
    tall, wide = (side // _SIZE for side in pixels.shape[:2])
    blocks = pixels.reshape(_SIZE, tall, _SIZE, wide, 3).astype(np.int64)
    return (blocks.sum(axis=(1, 3)) + tall * wide // 2) // (tall * wide)


def _wave(values: np.ndarray, length: int) -> np.ndarray:
    """Return a triangle wave of whole numbers with period ``length``."""
    return np.abs(values % length - length // 2)


def _scatter(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return hashed whole numbers without a visible order, the same on every machine."""
    mixed = (x * 73856093) ^ (y * 19349663)
    return (mixed * 2654435761 % 2**32) >> 16


# Build the catalogue: every possible variation of an environment, from its task and its compiled model.

ACTION_NOISE = "action.noise"
ACTION_NOISE_SEED = "action.noise_seed"
OBSERVATION_DELAY = "observation.delay"
OBSERVATION_NOISE = "observation.noise"
OBSERVATION_NOISE_SEED = "observation.noise_seed"
PICTURE_NOISE, PICTURE_BLUR, PICTURE_EXPOSURE = "picture.noise", "picture.blur", "picture.exposure"
PICTURE_NOISE_SEED = "picture.noise_seed"
PICTURE_QUALITY = "picture.jpeg_quality"
PARAPHRASE = "instruction.paraphrase"
DISTRACTOR_COUNT = "distractors.count"
TABLE_HEIGHT = "table.height"
LIGHT_DIRECTION, LIGHT_INTENSITY, LIGHT_COLOR = "light.direction", "light.intensity", "light.color"
MAX_DISTRACTORS = 6
MAX_DELAY = 100

Ends: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""The lowest and the highest value of each component."""

_TABLE_TOP = "table_top"
_ON_TABLE = "for it has to be on the table"
_ON_ROBOT = "for no joint goes beyond its limits"
_SAMPLES = 256
_VIEWPORT = "viewport"
_SEEN = {"table": "table", "background": "floor around the table"}
_COLOUR_SPREAD = 0.25
_NOWHERE = (0.0, 0.0, 0.0)
_COLOUR_WORDS = frozenset({"red", "green", "blue", "yellow"})


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The input of a catalogue."""

    model: mujoco.MjModel
    task: Task
    has_distractors: bool  # objects exist that could distract
    # lowest and highest start of the robot's joints [rad]
    joint_position_span: tuple[tuple[float, ...], tuple[float, ...]]
    joint_limits: tuple[tuple[float, ...], tuple[float, ...]]  # of the robot's joints [rad]


def catalogue(scene: Scene) -> tuple[Variation, ...]:
    """Return every variation of an environment, switched off."""
    found: dict[str, Variation] = {}
    for variation in (
        *_starts(scene.task, _table_edges(scene.model)),
        *_objects(scene),
        *_light(scene.model),
        *_cameras(scene.model),
        *_others(scene),
        *_pictures(scene.model),
        *_surfaces(scene.model),
        *_language(scene.task),
    ):
        # The first variation of a key wins: a task's own draw comes before the general ones.
        found.setdefault(variation.key, variation)
    return tuple(found.values())


def object_bodies(model: mujoco.MjModel, task: Task) -> dict[str, str]:
    """Map each loose object's name in recordings to its body."""
    return {
        name: model.body(int(model.jnt_bodyid[model.joint(joint).id])).name
        for name, joint in task.spec.rigid_objects.items()
    }


def _table_edges(model: mujoco.MjModel) -> Ends:
    """Return the lowest and highest x and y of the table [m]."""
    top = model.geom(_TABLE_TOP)
    middle = model.body(int(model.geom_bodyid[top.id])).pos[:2] + top.pos[:2]
    return _within((middle - top.size[:2]).tolist(), (middle + top.size[:2]).tolist())


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


def _starts(task: Task, table: Ends) -> Iterator[Variation]:
    """Yield a variation for each of the task's own draws, which it replaces."""
    seen: dict[str, list[ConditionValue]] = {}
    for draw in _draws(task):
        for key, value in draw.items():
            seen.setdefault(key, []).append(value)
    for key, values in seen.items():
        asset, _, name = key.partition(".")
        if name:
            start = _start(asset, name, values)
            if name == "position" and start.sizes == (2, 3):
                low, high = _around(table, (start.sampler.low, start.sampler.high))
                start = replace(start, lowest=low, highest=high, because=_ON_TABLE)
            yield start
            yield from _moved(asset, name, values[0], _room(table, (start.sampler.low, start.sampler.high)))


def _draws(task: Task) -> list[Mapping[str, ConditionValue]]:
    return [task.draw_conditions(np.random.default_rng([0, index])) for index in range(_SAMPLES)]


def _start(asset: str, name: str, values: Sequence[ConditionValue]) -> Variation:
    if isinstance(values[0], str):
        choices = tuple(sorted({str(value) for value in values}))
        sampler = Sampler(type=SamplerType.CHOICE, choices=choices)
        return Variation(
            asset=asset,
            name=name,
            unit="",
            description=f"replaces the task's own draw of {asset}.{name}",
            sampler=sampler,
            is_drawn_anyway=True,
        )
    # The default range is that of the task's own draws.
    whole = isinstance(values[0], int)
    table = np.array(values, float).reshape(len(values), -1)
    low, high = zip(*(_span(column, whole=whole) for column in table.T), strict=True)
    is_position = name == "position" and len(low) == 3
    unit = "m" if name.endswith("position") else "rad" if name.endswith("yaw") else ""
    return Variation(
        asset=asset,
        name=name,
        unit=unit,
        description=f"replaces the task's own draw of {asset}.{name}",
        sampler=Sampler(low=low, high=high),
        sizes=(2, 3) if is_position else (len(low),),
        integer=whole and len(low) == 1,
        is_drawn_anyway=True,
    )


def _moved(asset: str, name: str, value: ConditionValue, room: Ends) -> Iterator[Variation]:
    """Yield a variation that is added to a drawn start; a position keeps within ``room`` on the table."""
    if name == "position" and isinstance(value, tuple) and len(value) == 3:
        words = f"added to {asset}.position along x and y"
        shift = _variation(asset, SHIFT, "m", words, ((-0.02, -0.02), (0.02, 0.02)), (-0.5, 0.5), nominal=(0.0, 0.0))
        yield replace(shift, lowest=room[0], highest=room[1], because=_ON_TABLE)
    elif name == "yaw":
        words = f"added to {asset}.yaw"
        yield _variation(asset, TURN, "rad", words, (-0.2, 0.2), (-math.pi, math.pi), nominal=0.0)


def _span(values: np.ndarray, *, whole: bool) -> tuple[float, float]:
    """Return the range that the draws suggest: whole centimetres, a full turn, or the single value."""
    low, high = float(values.min()), float(values.max())
    if low == high or whole:
        return low, high
    if high - low > 0.98 * 2 * math.pi and high - low < 2 * math.pi:
        return -math.pi, math.pi
    return math.floor(100 * low) / 100, math.ceil(100 * high) / 100


def _objects(scene: Scene) -> Iterator[Variation]:
    model = scene.model
    for name, body in object_bodies(model, scene.task).items():
        mass = round(body_mass(model, body), 6)
        yield _variation(name, "mass", "kg", "mass", (mass / 2, 2 * mass), (1e-4, 100.0), nominal=mass)
        if is_scalable(model, body):
            words = "factor on its lengths; the mass stays the same"
            yield _variation(name, "size", "", words, (0.9, 1.1), (0.2, 3.0), nominal=1.0)
        touching = touching_geoms(model, body)
        if touching:
            friction = round(float(model.geom_friction[touching[0]][0]), 6)
            words = "coefficient of sliding friction in all its contacts"
            span = _cm(friction / 2), _cm(1.5 * friction)
            yield _variation(name, "friction", "", words, span, (0.0, 10.0), nominal=friction)
        if body_geoms(model, body):
            rgb = colour_of(model, body)[:3]
            colours = (
                tuple(_cm(max(0.0, value - _COLOUR_SPREAD)) for value in rgb),
                tuple(_cm(min(1.0, value + _COLOUR_SPREAD)) for value in rgb),
            )
            # An object named by its colour would be another object in another colour.
            nominal = () if _COLOUR_WORDS & set(name.split("_")) else tuple(map(float, rgb))
            words = "red, green and blue of its main surface"
            yield _variation(name, "color", "", words, colours, (0.0, 1.0), nominal=nominal)


def _light(model: mujoco.MjModel) -> Iterator[Variation]:
    if model.nlight == 0:
        return
    x, y, z = (float(value) for value in model.light_dir[0])
    directions = (_cm(x - 0.4), _cm(y - 0.4), _cm(z)), (_cm(x + 0.4), _cm(y + 0.4), _cm(z))
    words = "direction of sunlight; any length"
    direction = _variation("light", "direction", "", words, directions, (-10.0, 10.0), nominal=(x, y, z))
    yield replace(direction, is_direction=True)
    yield _variation("light", "intensity", "", "factor on every light", (0.5, 1.5), (0.0, 5.0), nominal=1.0)
    words = "factors on red, green and blue of every light"
    yield _variation("light", "color", "", words, ((0.7,) * 3, (1.0,) * 3), (0.0, 5.0), nominal=(1.0,) * 3)


def _cameras(model: mujoco.MjModel) -> Iterator[Variation]:
    for name in camera_assets(model):
        words = "offset from its nominal position, along the axes of its parent"
        yield _variation(name, "position", "m", words, ((-0.02,) * 3, (0.02,) * 3), (-1.0, 1.0), nominal=_NOWHERE)
        words = "rotation vector about its own axes: right, up, backwards"
        turn = (-math.pi, math.pi)
        yield _variation(name, "rotation", "rad", words, ((-0.03,) * 3, (0.03,) * 3), turn, nominal=_NOWHERE)


def camera_assets(model: mujoco.MjModel) -> Mapping[str, str]:
    """Map each policy camera's name in observations to its name in the model."""
    names = [model.camera(index).name for index in range(model.ncam)]
    return {name.rpartition("/")[2]: name for name in names if name != _VIEWPORT}


def _others(scene: Scene) -> Iterator[Variation]:
    words = "start of its joints; replaces the draw around home"
    turn = (-2 * math.pi, 2 * math.pi)
    joints = _variation("robot", "joint_position", "rad", words, scene.joint_position_span, turn, nominal=())
    low, high = _around(scene.joint_limits, scene.joint_position_span)
    yield replace(joints, is_drawn_anyway=True, lowest=low, highest=high, because=_ON_ROBOT)
    num_joints = len(scene.joint_position_span[0])
    words, span = "added to the start of its joints", ((-0.05,) * num_joints, (0.05,) * num_joints)
    shift = _variation("robot", "joint_shift", "rad", words, span, (-math.pi, math.pi), nominal=(0.0,) * num_joints)
    low, high = _room(scene.joint_limits, scene.joint_position_span)
    yield replace(shift, lowest=low, highest=high, because=_ON_ROBOT)
    # A higher table is a lower base of the robot; see `VariedWorld`.
    words = "height of the table above the robot's base"
    yield _variation("table", "height", "m", words, (-0.03, 0.03), (-0.3, 0.3), nominal=0.0)
    if scene.has_distractors:
        words = "number of objects without a part in the task"
        poses = tuple(f"distractor_{n}.{what}" for n in range(1, MAX_DISTRACTORS + 1) for what in ("position", "yaw"))
        count = _variation("distractors", "count", "", words, (1, 3), (0, MAX_DISTRACTORS), nominal=0)
        yield replace(count, integer=True, companions=poses)
    words = "standard deviation of the action noise, as a share of each action's range"
    noise = _variation("action", "noise", "", words, (0.0, 0.005), (0.0, 1.0), nominal=0.0)
    yield replace(noise, companions=(ACTION_NOISE_SEED,))
    words = "age of the observations"
    delay = _variation("observation", "delay", "control steps", words, (0, 3), (0, MAX_DELAY), nominal=0)
    yield replace(delay, integer=True)
    words = "standard deviation of the noise on each observed number, in its own unit"
    noise = _variation("observation", "noise", "", words, (0.0, 0.005), (0.0, 1.0), nominal=0.0)
    yield replace(noise, companions=(OBSERVATION_NOISE_SEED,))


def _pictures(model: mujoco.MjModel) -> Iterator[Variation]:
    if not camera_assets(model):
        return
    words = "standard deviation of the noise on each colour"
    noise = _variation("picture", "noise", "of 255", words, (0.0, 10.0), (0.0, 255.0), nominal=0.0)
    yield replace(noise, companions=(PICTURE_NOISE_SEED,))
    words = "standard deviation of a Gaussian blur"
    yield _variation("picture", "blur", "pixels", words, (0.0, 1.0), (0.0, 20.0), nominal=0.0)
    words = "light on the sensor: 1 is twice as much, -1 half"
    yield _variation("picture", "exposure", "stops", words, (-1.0, 1.0), (-6.0, 6.0), nominal=0.0)
    words = f"quality of pictures that went through JPEG; {NO_COMPRESSION} for none that did"
    nominal = float(NO_COMPRESSION)
    yield replace(_variation("picture", "jpeg_quality", "", words, (50, 95), (1, 100), nominal=nominal), integer=True)


def _surfaces(model: mujoco.MjModel) -> Iterator[Variation]:
    for asset, material in SURFACES.items():
        words = f"how much of another pattern, of {NUM_PATTERNS}, covers the {_SEEN[asset]}"
        texture = _variation(asset, TEXTURE, f"of {WHOLE}", words, (1, WHOLE), (0, WHOLE), nominal=0)
        if any(model.material(index).name == material for index in range(model.nmat)):
            yield replace(texture, integer=True, companions=(f"{asset}.{PATTERN}",))


def _language(task: Task) -> Iterator[Variation]:
    """Yield the paraphrase variation if the task has paraphrases; ConfigError if one reveals more than the task."""
    number_of = 0
    # The words may depend on the draw, such as a colour.
    for told in {task.instruction_for(drawn): task.paraphrases_for(drawn) for drawn in _draws(task)}.items():
        check_paraphrases(*told)
        number_of = len(told[1])
    if number_of > 0:
        words = "which of the task's paraphrases is told, from near its own words to far from them"
        told = _variation("instruction", "paraphrase", "", words, (1, number_of), (0, number_of), nominal=0)
        yield replace(told, integer=True)


def _variation(
    asset: str,
    name: str,
    unit: str,
    description: str,
    span: tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]],
    limits: tuple[float, float],
    *,
    nominal: float | tuple[float, ...],
) -> Variation:
    """Return a uniform variation of one number, or of as many as its ends have."""
    low, high, unchanged = (end if isinstance(end, tuple) else (float(end),) for end in (*span, nominal))
    minimum, maximum = limits
    return Variation(
        asset=asset,
        name=name,
        unit=unit,
        description=description,
        sampler=Sampler(low=low, high=high),
        minimum=minimum,
        maximum=maximum,
        sizes=(len(low),),
        nominal=unchanged,
    )


def _cm(value: float) -> float:
    return round(float(value), 2)


# Choose distractors, objects without a part in the task, and place them in free spots.

_KINDS = ("can", "cylinder", "cube")
_NOT_PLACED_BY_US = ("table", "robot", "distractor")
_LOW, _HIGH = (0.30, -0.42), (0.78, 0.42)
_ROOM_M = 0.05
_TRIES = 200
_FLOOR_M = -0.75
_PARKED_X_M = -1.6


def distractor_kinds(task: Task) -> tuple[ObjectAsset, ...]:
    """Return the kinds of distractors: objects that the instruction cannot mean."""
    said = set(task.spec.instruction.lower().split()) | set(task.spec.rigid_objects)
    kinds = [OBJECTS.get(name) for name in _KINDS]
    return tuple(kind for kind in kinds if not said & {kind.name, *kind.words.lower().split()})


def most_distractors(variations: Sequence[Variation]) -> int:
    """Return the number of distractors that an environment has to hold ready."""
    for variation in variations:
        if variation.key == DISTRACTOR_COUNT:
            return round(max(variation.sampler.numbers))
    return 0


@dataclass(frozen=True, kw_only=True)
class Distractors:
    """The distractors that an environment holds ready; unused ones stand on the floor behind the robot."""

    things: tuple[ObjectAsset, ...]

    @classmethod
    def ready(cls, task: Task, count: int) -> "Distractors":
        """Return ``count`` distractors, alternating between all kinds."""
        kinds = distractor_kinds(task)
        return cls(things=tuple(kinds[index % len(kinds)] for index in range(count)))

    @property
    def names(self) -> tuple[str, ...]:
        """Their names in conditions and recordings."""
        return tuple(f"distractor_{index + 1}" for index in range(len(self.things)))

    @property
    def rigid_objects(self) -> Mapping[str, str]:
        """Name in recordings to free joint."""
        return {name: f"{name}/free" for name in self.names}

    def parts(self) -> tuple[ScenePart, ...]:
        """Return them as parts of a scene, on the floor behind the robot."""
        return tuple(
            ScenePart(prefix=name, asset=thing.asset, position=(_PARKED_X_M, 0.3 * index, _FLOOR_M + thing.half_height))
            for index, (name, thing) in enumerate(zip(self.names, self.things, strict=True))
        )

    def placed(
        self, among: Sequence["Footprint"], conditions: Conditions, generator: np.random.Generator
    ) -> dict[str, ConditionValue]:
        """Draw poses on the table, clear of ``among``; return them with the number that fitted."""
        taken = [footprint.at(conditions) for footprint in among]
        count = round(number(conditions[DISTRACTOR_COUNT]))
        poses: dict[str, ConditionValue] = {}
        num_placed = 0
        for name, thing in zip(self.names[:count], self.things[:count], strict=True):
            spot = _free_spot(taken, thing.footprint_radius, generator)
            if spot is None:
                break
            radius = thing.footprint_radius
            taken.append(Obstacle(x=spot[0], y=spot[1], half_x=radius, half_y=radius))
            poses[f"{name}.position"] = (*spot, thing.half_height)
            poses[f"{name}.yaw"] = float(generator.uniform(-math.pi, math.pi))
            num_placed += 1
        return {DISTRACTOR_COUNT: num_placed, **poses}

    def joint_positions(self, conditions: Conditions) -> dict[str, tuple[float, ...]]:
        """Return the start poses of those in use."""
        return {
            f"{name}/free": upright_pose(point(conditions[f"{name}.position"]), conditions[f"{name}.yaw"])
            for name in self.names
            if f"{name}.position" in conditions
        }


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """An occupied rectangle of the table."""

    x: float  # of its centre [m]
    y: float  # of its centre [m]
    half_x: float  # half its length along x [m]
    half_y: float  # half its length along y [m]


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The area of the table that one of the task's things occupies, in any episode."""

    asset: str  # name in conditions
    place: tuple[float, float]  # position in the model [m], for episodes whose conditions do not set it
    middle: tuple[float, float]  # centre of its rectangle, relative to its origin [m]
    half: tuple[float, float]  # half the lengths along x and y [m]

    def at(self, conditions: Conditions) -> Obstacle:
        """Return the rectangle that it occupies in an episode."""
        x, y = point(conditions.get(f"{self.asset}.position", self.place))[:2]
        return Obstacle(x=x + self.middle[0], y=y + self.middle[1], half_x=self.half[0], half_y=self.half[1])


def footprints(model: mujoco.MjModel, task: Task) -> tuple[Footprint, ...]:
    """Return the footprints of the task's things in a compiled scene."""
    asset_of = {joint.partition("/")[0]: name for name, joint in task.spec.rigid_objects.items()}
    asset_of |= {asset.root_body.partition("/")[0]: name for name, asset in task.spec.articulations.items()}
    found = []
    for index in range(1, model.nbody):
        name = str(model.body(index).name)
        prefix = name.partition("/")[0]
        if int(model.body_parentid[index]) != 0 or prefix.startswith(_NOT_PLACED_BY_US):
            continue
        low, high = _outline(model, name)
        if int(model.body_jntnum[index]) > 0:
            # A movable thing can have any yaw, so its footprint is a square around a circle.
            radius = float(np.sqrt(np.maximum(-low, high) @ np.maximum(-low, high)))
            middle, half = (0.0, 0.0), (radius, radius)
        else:
            middle, half = tuple(((low + high) / 2).tolist()), tuple(((high - low) / 2).tolist())
        x, y, _ = model.body_pos[index].tolist()
        found.append(Footprint(asset=asset_of.get(prefix, prefix), place=(x, y), middle=middle, half=half))
    return tuple(found)


def _outline(model: mujoco.MjModel, body: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounding rectangle of a body from above, relative to its origin [m]. Shapes: (2,), (2,)."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    origin = data.xpos[model.body(body).id][:2]
    low, high = np.zeros(2), np.zeros(2)
    for geom in body_geoms(model, body):
        rotation = data.geom_xmat[geom].reshape(3, 3)
        middle = (data.geom_xpos[geom] + rotation @ model.geom_aabb[geom][:3])[:2] - origin
        half = (np.abs(rotation) @ model.geom_aabb[geom][3:])[:2]
        low, high = np.minimum(low, middle - half), np.maximum(high, middle + half)
    return low, high


def _free_spot(taken: Sequence[Obstacle], radius: float, generator: np.random.Generator) -> tuple[float, float] | None:
    for _ in range(_TRIES):
        x, y = draw_uniform(generator, _LOW, _HIGH)
        if all(_gap(obstacle, x, y) >= radius + _ROOM_M for obstacle in taken):
            return x, y
    return None


def _gap(obstacle: Obstacle, x: float, y: float) -> float:
    """Return the distance of a point from an obstacle [m]."""
    beside_x = max(0.0, abs(x - obstacle.x) - obstacle.half_x)
    beside_y = max(0.0, abs(y - obstacle.y) - obstacle.half_y)
    return math.sqrt(beside_x * beside_x + beside_y * beside_y)
