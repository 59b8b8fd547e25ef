"""What a recording says of its episode beside its arrays, and whether the episode's commit line says the same."""

import dataclasses
from collections.abc import Mapping

from isaaclab_arena.storage.json_values import json_line
from isaaclab_arena.storage.layout import COMMIT_ATTRIBUTE
from isaaclab_arena.storage.recorded_episode import AttributeValue
from isaaclab_arena.storage.run.commits import CommitRow, parse_row

_OF_THE_PLACE = frozenset({"dataset_file", "episode_file"})
"""Fields of a line that say where the recording lies, which may change."""

_FIELDS = tuple(field.name for field in dataclasses.fields(CommitRow) if field.name not in _OF_THE_PLACE)


def attributes_of(row: CommitRow) -> dict[str, AttributeValue]:
    """Return the attributes that a commit line gives to the group of its episode; what is not known is left out."""
    values: dict[str, AttributeValue | None] = {
        "job": row.job_name,
        "episode_index": row.episode_index,
        "seed": row.seed,
        "episode_seed": row.episode_seed,
        "placement_seed": row.placement_seed,
        "env_id": row.env_id,
        "success": row.success,
        "outcome": row.outcome,
        "termination": row.termination,
        "episode_return": row.episode_return,
        "language_instruction": row.language_instruction,
        "conditions": json_line(row.variations),
        "metrics": json_line(row.metrics),
        "error": row.error,
        "rank": row.rank,
    }
    return {name: value for name, value in values.items() if value is not None}


def contradiction(row: CommitRow, attributes: Mapping[str, AttributeValue]) -> str | None:
    """Return the first thing that a commit line and its recording do not say alike, None if there is none.

    One of the two was changed after it was written, and nothing here can know which.

    Args:
        row: The commit line.
        attributes: Of the group of its episode. They hold the line too, where `EpisodeRecorder` wrote them.
    """
    line = attributes.get(COMMIT_ATTRIBUTE)
    if line is not None:
        try:
            carried = parse_row(str(line))
        except ValueError:
            return "its recording holds a commit line that is none"
        for name in _FIELDS:
            said, recorded = getattr(row, name), getattr(carried, name)
            if said != recorded:
                return _difference(name, said, recorded)
    for name, said in attributes_of(row).items():
        if name in attributes and attributes[name] != said:
            return _difference(name, said, attributes[name])
    length = attributes.get("num_samples", row.episode_length)
    return None if length == row.episode_length else _difference("episode_length", row.episode_length, length)


def _difference(name: str, said: object, recorded: object) -> str:
    return f"its commit line says {name} {said}, its recording {recorded}"
