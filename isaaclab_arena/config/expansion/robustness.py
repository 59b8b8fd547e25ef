"""One job with ``robustness`` becomes a benign job, and one per level of each way in which its episodes are changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isaaclab_arena.config.options import error_message, key_path
from isaaclab_arena.config.schema import JobConfig
from isaaclab_arena.errors import ConfigError, Problem

ROBUSTNESS_KEY = "robustness"
AXIS_LABEL, LEVEL_LABEL = "axis", "level"
"""Labels of the jobs that it makes, beside ``robustness``, the name of the job that they come from."""

MAX_LEVEL = 20
_ALL_AXES = "all"

_Level = Annotated[int, Field(ge=1, le=MAX_LEVEL)]


@dataclass(frozen=True, kw_only=True)
class Robustness:
    """The robustness jobs that a job requests."""

    axes: tuple[str, ...] | None = None  # names of axes, None for all of the environment
    levels: tuple[int, ...] = (1, 2, 3, 4, 5)  # levels of each axis, ascending


ArmsOf: TypeAlias = Callable[[JobConfig, Robustness], Sequence[JobConfig]]
"""Makes the jobs of a job that asks for them; raises `ConfigError` with the key within the job."""


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    axes: str | list[str] = _ALL_AXES
    levels: _Level | Annotated[list[_Level], Field(min_length=1)] = 5


def no_arms(job: JobConfig, asked: Robustness) -> Sequence[JobConfig]:
    """Refuse a job with robustness: only some programs take those."""
    del job, asked
    message = "is for runs of a job file: isaaclab-arena run or isaaclab-arena robustness"
    raise ConfigError(Problem(message, key=ROBUSTNESS_KEY))


def read_robustness(value: Any) -> Robustness:
    """Read ``{axes: all, levels: 5}`` or ``{axes: [light], levels: [1, 3]}``; ConfigError lists every problem."""
    try:
        fields = _Fields.model_validate(value)
    except ValidationError as invalid:
        raise ConfigError([_problem(value, error) for error in invalid.errors(include_url=False)]) from invalid
    levels = range(1, fields.levels + 1) if isinstance(fields.levels, int) else sorted(set(fields.levels))
    if fields.axes == _ALL_AXES:
        return Robustness(levels=tuple(levels))
    axes = [fields.axes] if isinstance(fields.axes, str) else fields.axes
    if not axes:
        raise ConfigError(Problem("lists no axis", key=f"{ROBUSTNESS_KEY}.axes"))
    return Robustness(axes=tuple(dict.fromkeys(axes)), levels=tuple(levels))


def written_robustness(axes: str, levels: int | None) -> Mapping[str, Any]:
    """Return a job's ``robustness`` from the command line: axes ``all`` or a,b; `levels` None for the default."""
    names: Any = _ALL_AXES if axes == _ALL_AXES else [name.strip() for name in axes.split(",") if name.strip()]
    return {"axes": names} | ({} if levels is None else {"levels": levels})


def _problem(value: Any, error: Any) -> Problem:
    path = key_path(error).partition(".")[0]
    if path == "levels":
        given = value["levels"]
        return Problem(
            f"must be 1 to {MAX_LEVEL}, or a list of such levels, got {given!r}", key=f"{ROBUSTNESS_KEY}.levels"
        )
    if path == "axes":
        return Problem(f"must be all or a list of axes, got {value['axes']!r}", key=f"{ROBUSTNESS_KEY}.axes")
    message = error_message(error, _Fields.model_fields)
    return Problem(message, key=f"{ROBUSTNESS_KEY}.{path}" if path else ROBUSTNESS_KEY)
