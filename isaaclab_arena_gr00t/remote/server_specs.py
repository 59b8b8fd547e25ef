"""Compare what a server declares of itself with what it is shown and what the environment takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from isaaclab_arena.errors import Problem

_PICTURE = "rgb_hwc_uint8"
_LANGUAGE = "language"


def spec_problems(
    action_spec: Mapping[str, Any],
    observation_spec: Mapping[str, Any],
    *,
    num_pictures: int,
    num_states: int,
    action_dim: int | None,
) -> list[Problem]:
    """Return where the hello of a vla-eval model server contradicts that.

    Names are not compared: servers call a picture ``image`` whatever its key, and take the first one. Some declare only
    a part of their action, so an action that is declared too small is no problem.

    Args:
        action_spec: The parts of the server's action; ``dims`` of each are its numbers, 0 where it does not say.
        observation_spec: What the server wants to be shown; ``format`` of each says what it is.
        num_pictures: Pictures that it is shown.
        num_states: Arrays that it is shown.
        action_dim: Numbers of the environment's action, None where the job chooses some of the server's.
    """
    formats = {str(name): _entry(part, "format", "") for name, part in observation_spec.items()}
    pictures = [name for name, form in formats.items() if form == _PICTURE]
    states = [name for name, form in formats.items() if form not in (_PICTURE, _LANGUAGE)]
    dims = [_entry(part, "dims", 0) for part in action_spec.values()]
    problems = []
    if len(pictures) > num_pictures:
        message = f"the server wants {len(pictures)} pictures ({_listed(pictures)}), and is shown {num_pictures}"
        problems.append(Problem(message, key="images"))
    if states and not num_states:
        problems.append(Problem(f"the server wants {_listed(states)}, and is shown pictures alone", key="states"))
    if action_dim is not None and all(dims) and sum(dims) > action_dim:
        parts = _listed(list(action_spec))
        message = (
            f"the server's action has {sum(dims)} numbers ({parts}), the environment's {action_dim}; say which to take"
        )
        problems.append(Problem(message, key="action_columns"))
    return problems


def metadata_problems(
    metadata: Mapping[str, Any],
    *,
    expected: Mapping[str, Any],
    image_size: Sequence[int] | None,
    num_steps: int,
    action_dim: int,
    columns: Sequence[int] | None,
) -> list[Problem]:
    """Return where an openpi server's metadata contradicts that.

    openpi prescribes no names. Compared are those that the job gives, and those that servers are known to use.

    Args:
        metadata: What the server said of itself.
        expected: What the job wants it to say.
        image_size: Height and width of the pictures that it is shown, None for no pictures.
        num_steps: Steps that are played of an answer.
        action_dim: Numbers of the environment's action.
        columns: Which numbers of the server's action they are, None if both are the same.
    """
    problems = [
        Problem(f"the server says {metadata.get(name)!r:.100}, {value!r:.100} is due", key=f"server_metadata.{name}")
        for name, value in expected.items()
        if _plain(metadata.get(name)) != _plain(value)
    ]
    resolution, horizon, dims = (metadata.get(name) for name in ("image_resolution", "action_horizon", "action_dim"))
    if image_size is not None and isinstance(resolution, (list, tuple)) and list(resolution) != list(image_size):
        message = f"the server wants pictures of {list(resolution)!r:.100}, and is shown {list(image_size)}"
        problems.append(Problem(message, key="image_size"))
    if type(horizon) is int and num_steps > horizon:
        message = f"the server answers with {horizon} steps, {num_steps} are to be played"
        problems.append(Problem(message, key="action_chunk_length"))
    if type(dims) is int and (dims != action_dim if columns is None else dims <= max(columns)):
        wanted = (
            f"the environment's {action_dim}; say which to take" if columns is None else f"no column {max(columns)}"
        )
        message = f"the server's action has {dims} numbers, {wanted}"
        problems.append(Problem(message, key="action_columns"))
    return problems


def _plain(value: Any) -> Any:
    """Return lists for tuples, which travel as lists."""
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _entry(part: object, name: str, default: Any) -> Any:
    value = part.get(name) if isinstance(part, Mapping) else None
    return value if type(value) is type(default) else default


def _listed(names: list[Any]) -> str:
    return f"{', '.join(map(repr, names[:8]))}{', …' if names[8:] else ''}"[:200]
