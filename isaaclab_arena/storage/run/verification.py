"""``verification.json``: what ``isaaclab-arena verify`` found when it last looked at a run."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import VERIFICATION_FILE

SCHEMA_VERSION = 1
_MOST_NAMED = 12


@dataclass(frozen=True, kw_only=True)
class EpisodeVerification:
    """What came of an episode that ran again.

    Attributes:
        job: Its job.
        episode_index: Which episode.
        is_same: Whether nothing that was compared differs.
        is_bitwise: Whether it is the same and its recording was compared, to the last bit.
        verdict: The same in words, such as ``differs first at control step 17: states/...``.
    """

    job: str
    episode_index: int
    is_same: bool
    is_bitwise: bool
    verdict: str


@dataclass(frozen=True, kw_only=True)
class RunVerification:
    """What a verification found.

    Attributes:
        verified_at: When it began, ISO 8601 with time zone.
        sources: The commit files and reports that the run then had, and how long each was [bytes].
        num_episodes: How many finished episodes had their files checked.
        problems: What is wrong with the files of the run.
        episodes: What came of the episodes that ran again.
        is_sound: Whether the files are whole and nothing differs.
        schema_version: Version of this layout.
    """

    verified_at: str
    sources: Mapping[str, int]
    num_episodes: int
    problems: tuple[str, ...]
    episodes: tuple[EpisodeVerification, ...]
    is_sound: bool
    schema_version: int = SCHEMA_VERSION

    def in_words(self) -> str:
        """Return what was found, in a sentence."""
        return "; ".join(self._findings())

    def _findings(self) -> Iterator[str]:
        if self.problems:
            first, *others = self.problems
            yield f"wrong with the files: {first}" + (f", and {len(others)} more" if others else "")
        else:
            yield f"the files of {self.num_episodes:,} episodes are whole"
        bitwise = [each for each in self.episodes if each.is_bitwise]
        ended = [each for each in self.episodes if each.is_same and not each.is_bitwise]
        if not self.episodes:
            yield "no episode ran again"
        if bitwise:
            yield f"{len(bitwise)} of {len(self.episodes)} episodes ran again bitwise the same ({_named(bitwise)})"
        if ended:
            yield f"{len(ended)} ended the same ({_named(ended)})"
        yield from (f"{each.job} {each.episode_index} {each.verdict}" for each in self.episodes if not each.is_same)


def write_verification(output_directory: Path, verification: RunVerification) -> None:
    """Write ``verification.json``, complete or not at all, over an earlier one.

    Raises:
        StorageError: If it cannot be written.
    """
    write_text(output_directory / VERIFICATION_FILE, json_text(verification), overwrite=True)


def read_verification(output_directory: Path) -> RunVerification | None:
    """Return what was found last, None if nobody has looked.

    Raises:
        ConfigError: If the file is damaged.
        StorageError: If it cannot be read.
    """
    path = output_directory / VERIFICATION_FILE
    return read_versioned(path, RunVerification, SCHEMA_VERSION) if path.is_file() else None


def _named(episodes: list[EpisodeVerification]) -> str:
    by_job: dict[str, list[str]] = {}
    for each in episodes[:_MOST_NAMED]:
        by_job.setdefault(each.job, []).append(str(each.episode_index))
    named = [f"{job} {', '.join(indices)}" for job, indices in by_job.items()]
    return "; ".join([*named, *(["…"] if len(episodes) > _MOST_NAMED else [])])
