"""What was derived from the files of a run's ranks: whether its tables are up to date, and its last verification."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from isaaclab_arena.errors import StorageError
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text, read_json, read_versioned
from isaaclab_arena.storage.layout import VERIFICATION_FILE
from isaaclab_arena.storage.reports import sizes_of_sources

RESULTS_FILE = "results.json"
"""The table that is written last."""


def tables_are_current(output_directory: Path) -> bool:
    """Whether the tables exist and no rank has written an episode or a report since."""
    try:
        document = read_json(output_directory / RESULTS_FILE)
    except StorageError:
        return False
    return isinstance(document, dict) and document.get("sources") == sizes_of_sources(output_directory)


# ``verification.json``: the result of the last ``isaaclab-arena verify`` on a run.

_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class EpisodeVerification:
    """The result of one episode's rerun."""

    job: str
    episode_index: int
    is_same: bool  # no compared value differs
    is_bitwise: bool  # the same, and its recording was compared to the last bit
    verdict: str  # in words, such as ``differs first at control step 17: states/...``


@dataclass(frozen=True, kw_only=True)
class RunVerification:
    """The result of a verification."""

    verified_at: str  # start, ISO 8601 with time zone
    sources: Mapping[str, int]  # commit files and reports at that time, with their sizes [bytes]
    num_episodes: int  # finished episodes whose files were checked
    problems: tuple[str, ...]  # defects of the run's files
    episodes: tuple[EpisodeVerification, ...]  # episodes that ran again
    is_sound: bool  # the files are whole and no episode differs
    schema_version: int = _SCHEMA_VERSION

    def in_words(self) -> str:
        """Return the result as one sentence."""

        def named(episodes: list[EpisodeVerification], most: int = 12) -> str:
            by_job: dict[str, list[str]] = {}
            for each in episodes[:most]:
                by_job.setdefault(each.job, []).append(str(each.episode_index))
            jobs = [f"{job} {', '.join(indices)}" for job, indices in by_job.items()]
            return "; ".join([*jobs, *(["…"] if len(episodes) > most else [])])

        findings = [f"the files of {self.num_episodes:,} episodes are whole"]
        if self.problems:
            first, *others = self.problems
            findings = [f"wrong with the files: {first}" + (f", and {len(others)} more" if others else "")]
        bitwise = [each for each in self.episodes if each.is_bitwise]
        ended = [each for each in self.episodes if each.is_same and not each.is_bitwise]
        if not self.episodes:
            findings.append("no episode ran again")
        if bitwise:
            number = f"{len(bitwise)} of {len(self.episodes)}"
            findings.append(f"{number} episodes ran again bitwise the same ({named(bitwise)})")
        if ended:
            findings.append(f"{len(ended)} ended the same ({named(ended)})")
        findings += [f"{each.job} {each.episode_index} {each.verdict}" for each in self.episodes if not each.is_same]
        return "; ".join(findings)


def write_verification(output_directory: Path, verification: RunVerification) -> None:
    """Write ``verification.json`` atomically, over an earlier one."""
    write_text(output_directory / VERIFICATION_FILE, json_text(verification), overwrite=True)


def read_verification(output_directory: Path) -> RunVerification | None:
    """Return the last verification, None if the run was never verified. ConfigError if the file is damaged."""
    path = output_directory / VERIFICATION_FILE
    return read_versioned(path, RunVerification, _SCHEMA_VERSION) if path.is_file() else None
