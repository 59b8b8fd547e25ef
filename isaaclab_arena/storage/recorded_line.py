"""Read the attributes of a recorded episode, and compare them with its commit line."""

import dataclasses
from collections.abc import Mapping

from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import COMMIT_ATTRIBUTE
from isaaclab_arena.storage.recorded_episode import AttributeValue
from isaaclab_arena.storage.run.commits import CommitLine, parse_line

_OF_THE_PLACE = frozenset({"dataset_file", "episode_file"})
"""Fields of a line that say where the recording lies, which may change."""

_FIELDS = tuple(field.name for field in dataclasses.fields(CommitLine) if field.name not in _OF_THE_PLACE)


def attributes_of(line: CommitLine) -> dict[str, AttributeValue]:
    """Return the attributes that a commit line gives to the group of its episode; what is not known is left out."""
    values: dict[str, AttributeValue | None] = {
        "job": line.job_name,
        "episode_index": line.episode_index,
        "seed": line.seed,
        "episode_seed": line.episode_seed,
        "placement_seed": line.placement_seed,
        "env_id": line.env_id,
        "success": line.success,
        "outcome": line.outcome,
        "termination": line.termination,
        "episode_return": line.episode_return,
        "language_instruction": line.language_instruction,
        "conditions": json_line(line.variations),
        "metrics": json_line(line.metrics),
        "error": line.error,
        "rank": line.rank,
    }
    return {name: value for name, value in values.items() if value is not None}


def contradiction(line: CommitLine, attributes: Mapping[str, AttributeValue]) -> str | None:
    """Return the first thing that a commit line and its recording do not say alike, None if there is none.

    One of the two was changed after it was written, and nothing here can know which.

    Args:
        line: The commit line.
        attributes: Of the group of its episode. They hold the line too, where `EpisodeRecorder` wrote them.
    """
    text = attributes.get(COMMIT_ATTRIBUTE)
    if text is not None:
        try:
            carried = parse_line(str(text))
        except ValueError:
            return "its recording holds a commit line that is none"
        for name in _FIELDS:
            said, recorded = getattr(line, name), getattr(carried, name)
            if said != recorded:
                return _difference(name, said, recorded)
    for name, said in attributes_of(line).items():
        if name in attributes and attributes[name] != said:
            return _difference(name, said, attributes[name])
    length = attributes.get("num_samples", line.episode_length)
    return None if length == line.episode_length else _difference("episode_length", line.episode_length, length)


def _difference(name: str, said: object, recorded: object) -> str:
    return f"its commit line says {name} {said}, its recording {recorded}"
