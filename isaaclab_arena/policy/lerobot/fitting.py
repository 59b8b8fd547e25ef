"""Find what a policy of LeRobot is shown in an environment, and what does not fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from isaaclab_arena.errors import ConfigError, Problem, did_you_mean
from isaaclab_arena.interfaces.connections import Connections, set_entries
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.pictures import CAMERAS, CAMERAS_OFF, no_camera, picture_layout
from isaaclab_arena.interfaces.specs import ArraySpec
from isaaclab_arena.policy.lerobot.options import LeRobotPolicyCfg
from isaaclab_arena.policy.lerobot.pretrained import Features, TrainingData

_STATES = "policy"
_PICTURE_PREFIXES = ("observation.images.", "observation.")
_MOST_RATES_APART = 0.01


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a policy is shown.

    Attributes:
        cameras: Camera of each picture.
        in_colours: The pictures that a camera does not show as the policy sees them, in colours.
        terms: Observations of the group ``policy``, in order, of each other input.
    """

    cameras: Mapping[str, str]
    terms: Mapping[str, tuple[str, ...]]
    in_colours: frozenset[str] = frozenset()

    def connections(
        self, options: LeRobotPolicyCfg, data: TrainingData, env: Environment, notes: Sequence[str] = ()
    ) -> Connections:
        """Return what a policy is shown of an environment, what its action sets, and what its files say against that.

        Args:
            options: Options of the job.
            data: What the dataset of its training says.
            env: The environment.
            notes: What else they say, one sentence each.
        """
        names, columns = data.action_names, options.action_columns
        if names is not None and columns is not None:
            names = tuple(names[column] for column in columns) if max(columns) < len(names) else None
        orders = [
            f"its training's dataset forms {name} of {' + '.join(data.terms[name])}, the job of {' + '.join(terms)}"
            for name, terms in self.terms.items()
            if data.terms.get(name, terms) != terms
        ]
        return Connections(
            pictures=self.cameras,
            states={name: " + ".join(terms) for name, terms in self.terms.items()},
            actions=set_entries(env, columns),
            source=options.pretrained,
            action_names=names,
            notes=(*notes, *orders),
        )


def fitted(features: Features, data: TrainingData, options: LeRobotPolicyCfg, env: Environment) -> Inputs:
    """Return what a policy is shown of an environment.

    Args:
        features: What the policy takes and gives.
        data: What the dataset of its training says.
        options: Options of the job.
        env: The environment; only its specs are read.

    Raises:
        ConfigError: With everything that does not fit.
    """
    spec: Any = env.observation_spec
    pictures, states = _Pictures(spec.get(CAMERAS, {}), options.images), _States(spec.get(_STATES, {}), options, data)
    problems = [
        *_unknown("images", options.images, features.pictures),
        *_unknown("states", options.states, features.states),
        *pictures.problems(features),
        *states.problems(features),
        *_action_problems(features.action_dim, options, env),
        *_rate_problems(options.fps or data.fps, env),
    ]
    if problems:
        raise ConfigError(problems)
    return Inputs(
        cameras={name: pictures.camera(name) for name in features.pictures},
        terms={name: states.terms(name, size) for name, size in features.states.items()},
        in_colours=frozenset(
            name for name, shape in features.pictures.items() if pictures.specs[pictures.camera(name)].shape != shape
        ),
    )


@dataclass(frozen=True)
class _Pictures:
    """The cameras of an environment, and which of them a job names."""

    specs: Mapping[str, ArraySpec]
    named: Mapping[str, str]

    def camera(self, name: str) -> str:
        """Return the camera for a picture: the one that is named, that of the same name, or the only one."""
        if name in self.named:
            return self.named[name]
        prefix = next((each for each in _PICTURE_PREFIXES if name.startswith(each)), "")
        own = name.removeprefix(prefix)
        return next(iter(self.specs)) if own == "image" and len(self.specs) == 1 else own

    def problems(self, features: Features) -> list[Problem]:
        if features.pictures and not self.specs:
            names = ", ".join(features.pictures)
            return [Problem(f"the policy looks at {names}, and {CAMERAS_OFF}")]
        return [problem for name, shape in features.pictures.items() for problem in self._problems_of(name, shape)]

    def _problems_of(self, name: str, shape: tuple[int, int, int]) -> list[Problem]:
        camera = self.camera(name)
        if camera not in self.specs:
            return [Problem(no_camera(camera, self.specs), key=f"images.{name}")]
        spec = self.specs[camera]
        if spec.shape == shape:
            return []
        try:
            found = picture_layout(spec.shape, spec.dtype).shape
        except ValueError as reason:
            return [Problem(f"camera '{camera}' {reason}", key=f"images.{name}")]
        if found == shape:
            return []
        message = (
            f"the policy looks at {_size(shape)}, and camera '{camera}' gives {_size(found)}; give the environment's "
            "cameras that size"
        )
        return [Problem(message, key=f"images.{name}")]


@dataclass(frozen=True)
class _States:
    """The observations of an environment that are no pictures, and which of them a job or a dataset names."""

    specs: Mapping[str, ArraySpec]
    options: LeRobotPolicyCfg
    data: TrainingData

    def terms(self, name: str, size: int) -> tuple[str, ...]:
        """Return the observations that form an input: those that are named, or the only one of its size."""
        named = self.options.states.get(name) or self.data.terms.get(name)
        if named is not None:
            return tuple(named)
        alike = [term for term, spec in self.specs.items() if prod(spec.shape) == size]
        return tuple(alike) if len(alike) == 1 else ()

    def problems(self, features: Features) -> list[Problem]:
        return [problem for name, size in features.states.items() for problem in self._problems_of(name, size)]

    def _problems_of(self, name: str, size: int) -> list[Problem]:
        terms, key = self.terms(name, size), f"states.{name}"
        if not terms:
            sizes = ", ".join(f"{term} {prod(spec.shape)}" for term, spec in self.specs.items())
            return [
                Problem(
                    f"is missing: say which observations form its {size} numbers, in order; there are {sizes}", key=key
                )
            ]
        missing = [term for term in terms if term not in self.specs]
        if missing:
            return [
                Problem(f"the environment has no observation '{term}'{did_you_mean(term, self.specs)}", key=key)
                for term in missing
            ]
        found = sum(prod(self.specs[term].shape) for term in terms)
        if found == size:
            return []
        return [Problem(f"the policy takes {size} numbers, and {' + '.join(terms)} are {found}", key=key)]


def _unknown(option: str, named: Mapping[str, Any], known: Mapping[str, Any]) -> list[Problem]:
    return [
        Problem(f"the policy has no such input{did_you_mean(name, known)}", key=f"{option}.{name}")
        for name in named
        if name not in known
    ]


def _action_problems(action_dim: int, options: LeRobotPolicyCfg, env: Environment) -> list[Problem]:
    (taken,) = env.action_spec.shape
    columns = options.action_columns
    if columns is None:
        if taken == action_dim:
            return []
        message = (
            f"the policy's action has {action_dim} numbers, the environment's {taken}: it is another robot's, or "
            "action_columns says which of them to take"
        )
        return [Problem(message)]
    if len(columns) != taken:
        return [Problem(f"names {len(columns)} numbers, the environment's action has {taken}", key="action_columns")]
    if not all(0 <= column < action_dim for column in columns):
        return [Problem(f"must be 0 to {action_dim - 1}, the numbers of the policy's action", key="action_columns")]
    return []


def _rate_problems(fps: float | None, env: Environment) -> list[Problem]:
    rate = 1 / env.control_dt
    if fps is None or abs(fps - rate) <= _MOST_RATES_APART * rate:
        return []
    message = (
        f"the policy is made for {fps:g} control steps per second, and the environment makes {rate:g}; if that is "
        f"meant, say fps: {rate:g}"
    )
    return [Problem(message, key="fps")]


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
