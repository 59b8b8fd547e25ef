"""Measure how often the models in models/ solve their tasks, and what becomes of that without the right words.

Usage: python benchmarks/gr00t_success.py [--episodes 200] [--output FILE]
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from success_table import write_success_table

from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.observer import EpisodeStart
from isaaclab_arena_gr00t.policy.gr00t_closedloop_policy import Gr00tClosedloopPolicy

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "jobs" / "gr00t_evaluation.json"
RESULTS = Path(__file__).parent / "results" / "gr00t_success.md"
LOWEST, HIGHEST_WITHOUT_WORDS = 80, 60
NOTES = """\
The jobs of jobs/gr00t_evaluation.json, seed 0, from cameras, joints and the instruction alone. In `colour-not-named` \
the instruction is "pick up the cube"; in `colour-swapped` the model is told the other colour, and success is still to \
lift the cube that the task means."""
WITHOUT_WORDS = ("colour-not-named", "colour-swapped")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure.

    Attributes:
        episodes: Episodes per row of the table.
        output: Where the table goes.
    """

    episodes: int = 200
    output: Path = RESULTS


class SwappedColours(Gr00tClosedloopPolicy):
    """Tells the model the other colour."""

    name = "gr00t_closedloop with the other colour"

    def start_episodes(self, env: Environment, starts: Sequence[EpisodeStart]) -> None:
        """Begin episodes whose instruction names red instead of blue, and blue instead of red."""
        told = [
            dataclasses.replace(start, language_instruction=swapped(start.language_instruction)) for start in starts
        ]
        super().start_episodes(env, told)


def swapped(instruction: str) -> str:
    """Return the instruction with red and blue exchanged."""
    other = {"red": "blue", "blue": "red"}
    return " ".join(other.get(word, word) for word in instruction.split(" "))


def jobs(episodes: int) -> dict[str, Any]:
    """Return the jobs of the file, and one more in which the model is told the other colour."""
    document = json.loads(JOBS.read_text(encoding="utf-8"))
    document["defaults"]["num_episodes"] = episodes
    named = {job["name"]: job for job in document["jobs"]}
    document["jobs"].append(
        {**named["colour"], "name": "colour-swapped", "policy_type": "gr00t_success.SwappedColours"}
    )
    return document


def main(options: Options) -> None:
    document = jobs(options.episodes)
    write_success_table(
        document,
        options.output,
        title="How often the models in this repository solve their tasks",
        command=f"python benchmarks/gr00t_success.py --episodes {options.episodes}",
        notes=NOTES,
        wanted={
            job["name"]: f"at most {HIGHEST_WITHOUT_WORDS} %"
            if job["name"] in WITHOUT_WORDS
            else f"at least {LOWEST} %"
            for job in document["jobs"]
        },
    )


if __name__ == "__main__":
    main(tyro.cli(Options))
