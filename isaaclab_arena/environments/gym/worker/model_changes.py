"""Changes of an environment's MuJoCo model for one episode: after its reset, and undone before the next."""

from __future__ import annotations

import importlib
import typing

import numpy as np

if typing.TYPE_CHECKING:
    import gymnasium

GROUPS = frozenset({"world", "robot", "background", "contact", "light"})
"""Assets that are not one thing or camera under MuJoCo's own name."""

_JOINT, _JOINT_IN_PARENT, _HINGE = 0, 1, 3  # of MuJoCo's mjtTrn and mjtJoint
_FOLLOWS_TARGET = (3, 4)  # of mjtCamLight: cameras that turn by themselves


def simulation_of(environment: gymnasium.Env) -> tuple[typing.Any, typing.Any] | None:
    """Return the `mujoco.MjModel` and `mujoco.MjData` behind an environment, None without; a reset may replace them."""
    inner: typing.Any = environment.unwrapped
    task = getattr(inner, "task", None)
    for owner in (inner, task, getattr(task, "env", None), getattr(inner, "_env", None)):
        # robosuite has a `sim` with `_model`, dm_control `physics` with a model's `ptr`.
        held = getattr(owner, "sim", None) or getattr(owner, "physics", None) or owner
        found = []
        for name in ("model", "data"):
            each = getattr(held, name, None)
            found.append(getattr(each, f"_{name}", getattr(each, "ptr", each)))
        if all(type(each).__module__.partition(".")[0] == "mujoco" for each in found):
            return found[0], found[1]
    return None


def offered(environment: gymnasium.Env) -> list[tuple[str, str, list[float]]]:
    """Return asset, name and unchanged value of all that may change; nothing without a model, or a way to see it."""
    found = simulation_of(environment)
    if found is None or _observer(environment.unwrapped) is None:
        return []
    model = found[0]
    told: list[tuple[str, str, list[float]]] = [("world", "mass", [1.0])] if model.body_mass.any() else []
    if model.opt.gravity.any():
        told.append(("world", "gravity", [1.0]))
    if model.geom_contype.any() or model.npair:
        told.append(("contact", "friction", [1.0]))
    told += [("light", "intensity", [1.0]), ("light", "color", [1.0] * 3)]
    for index in range(model.ncam):
        name = model.camera(index).name
        if name and "." not in name:
            told.append((name, "position", [0.0] * 3))
            told += [] if model.cam_mode[index] in _FOLLOWS_TARGET else [(name, "rotation", [0.0] * 3)]
    for asset, bodies in _bodies(model).items():
        mass = round(float(model.body_mass[bodies].sum()), 6)
        if asset not in GROUPS and mass > 0.0:
            told.append((asset, "mass", [mass]))
        if asset != "world" and (model.geom_rgba[bodies[model.geom_bodyid], 3] > 0.0).any():
            told.append((asset, "color", [1.0] * 3))
    hinges = _driven(model)[1]
    return [*told, ("robot", "joint_shift", [0.0] * len(hinges))] if hinges else told


def observed_again(environment: gymnasium.Env) -> typing.Any:
    """Return the observation of the present state, as the environment itself observes it."""
    layers: list[typing.Any] = [environment]
    while layers[-1] is not environment.unwrapped:
        layers.append(layers[-1].env)
    observation = typing.cast(typing.Any, _observer(layers.pop()))()
    for layer in reversed(layers):
        observation = layer.observation(observation) if hasattr(type(layer), "observation") else observation
    return observation


def _observer(inner: typing.Any) -> typing.Callable[[], typing.Any] | None:
    """Return an environment's own function that observes a state, None without."""
    if callable(getattr(inner, "_format_raw_obs", None)):
        # gym-aloha's, around dm_control.
        return lambda: inner._format_raw_obs(inner._env.task.get_observation(inner._env.physics))
    if callable(getattr(inner, "_get_obs", None)):
        # Meta-World shows its last two observations, which are equal at a start.
        return lambda: (inner._get_obs(), inner._get_obs())[1]
    return getattr(inner, "observed_again", None)


class ModelChanges:
    """The changes of one environment's model for its present episode."""

    def __init__(self, environment: gymnasium.Env) -> None:
        self._environment = environment
        self._plain: list[tuple[np.ndarray, np.ndarray]] = []  # changed fields, and copies of their own values

    def undo(self) -> None:
        """Put the model's own values back, bit for bit."""
        for field, own in reversed(self._plain):
            field[...] = own
        self._plain = []

    def apply(self, changes: typing.Mapping[str, typing.Any]) -> None:
        """Change the model by values under the keys of `offered`."""
        if not changes:
            return
        model, data = typing.cast(typing.Any, simulation_of(self._environment))
        groups = _bodies(model)
        for key, value in changes.items():
            asset, _, name = key.partition(".")
            self._change(model, data, groups, asset, name, np.array(value, np.float64))
        importlib.import_module("mujoco").mj_forward(model, data)
        tell = getattr(self._environment.unwrapped, "robot_moved", None)
        if "robot.joint_shift" in changes and tell is not None:
            tell()

    def _change(
        self,
        model: typing.Any,
        data: typing.Any,
        groups: dict[str, np.ndarray],
        asset: str,
        name: str,
        value: np.ndarray,
    ) -> None:
        if name == "gravity":
            self._scale(model.opt.gravity, value)
        elif name == "mass":
            # What MuJoCo derives from masses follows, as if the model had been compiled with them.
            bodies = groups[asset]
            factor = value if asset == "world" else value / model.body_mass[bodies].sum()
            for field in (model.body_mass, model.body_inertia, model.body_subtreemass):
                self._scale(field, factor, bodies)
            self._scale(model.body_invweight0, 1.0 / factor, bodies)
            self._scale(model.dof_invweight0, 1.0 / factor, bodies[model.dof_bodyid])
        elif name == "friction":
            self._scale(model.geom_friction[:, 0], value)
            self._scale(model.pair_friction[:, :2], value)
        elif asset == "light":
            headlight = model.vis.headlight
            for part in ("ambient", "diffuse", "specular"):
                self._scale(getattr(model, f"light_{part}"), value, most=1.0)
                self._scale(getattr(headlight, part), value, most=1.0)
        elif name == "color":
            self._tint(model, groups[asset][model.geom_bodyid], value)
        elif name == "joint_shift":
            # Up to the joints' limits, or as far beyond them as the environment itself starts.
            joints = np.array(_driven(model)[1])
            places, limits = model.jnt_qposadr[joints], model.jnt_range[joints].copy()
            limits[model.jnt_limited[joints] == 0] = -np.inf, np.inf
            start = data.qpos[places]
            data.qpos[places] = np.clip(start + value, np.minimum(start, limits[:, 0]), np.maximum(start, limits[:, 1]))
        else:
            self._move(model, model.camera(asset).id, name, value)

    def _field(self, field: np.ndarray) -> np.ndarray:
        """Return a field of the model after a copy for `undo`."""
        self._plain.append((field, field.copy()))
        return field

    def _scale(self, field: np.ndarray, factor: typing.Any, where: typing.Any = ..., most: float = np.inf) -> None:
        field = self._field(field)
        field[where] = np.minimum(field[where] * factor, most)

    def _tint(self, model: typing.Any, geoms: np.ndarray, factors: np.ndarray) -> None:
        colours, material = self._field(model.geom_rgba), model.geom_matid
        # A geom with MuJoCo's default colour shows that of its material.
        plain = np.array([0.5, 0.5, 0.5, 1.0], np.float32)
        has_own = (material < 0) | (colours != plain).any(axis=1)
        shown = np.where(has_own[:, None], colours, model.mat_rgba[material] if model.nmat else colours)
        shown[:, :3] = np.minimum(shown[:, :3] * factors, 1.0)
        shown[(shown == plain).all(axis=1), 0] = np.nextafter(np.float32(0.5), np.float32(1.0))
        colours[geoms] = shown[geoms]

    def _move(self, model: typing.Any, camera: int, name: str, value: np.ndarray) -> None:
        if name == "position":
            # The last two are those of cameras that follow a body.
            for field in (model.cam_pos, model.cam_pos0, model.cam_poscom0):
                self._field(field)[camera] += value
            return
        mujoco, turn, turned, matrix = importlib.import_module("mujoco"), np.zeros(4), np.zeros(4), np.zeros(9)
        angle = float(np.sqrt((value * value).sum()))
        mujoco.mju_axisAngle2Quat(turn, value / (angle or 1.0), angle)
        mujoco.mju_mulQuat(turned, model.cam_quat[camera], turn)
        self._field(model.cam_quat)[camera] = turned
        mujoco.mju_quat2Mat(matrix, turn)
        own = self._field(model.cam_mat0)
        own[camera] = (own[camera].reshape(3, 3) @ matrix.reshape(3, 3)).reshape(own[camera].shape)


def _driven(model: typing.Any) -> tuple[list[int], list[int]]:
    """Return the joints with an actuator, and the hinges among them: fingers that slide are no start of an arm."""
    kinds, joints = model.actuator_trntype, model.actuator_trnid[:, 0]
    driven = sorted({int(each) for each in joints[(kinds == _JOINT) | (kinds == _JOINT_IN_PARENT)]})
    return driven, [each for each in driven if model.jnt_type[each] == _HINGE]


def _bodies(model: typing.Any) -> dict[str, np.ndarray]:
    """Return masks of bodies, each (nbody,): of all, of what an actuator moves, of what rests, and of each thing."""
    roots = model.body_rootid
    moving, driven = (set(roots[model.jnt_bodyid[joints]].tolist()) for joints in (slice(None), _driven(model)[0]))
    found = {
        "world": np.ones(model.nbody, bool),
        "robot": np.isin(roots, [*driven]),
        "background": ~np.isin(roots, [*moving]),
    }
    for root in sorted(moving - driven):
        name = model.body(root).name
        if name and "." not in name and name not in GROUPS:
            found[name] = roots == root
    return found
