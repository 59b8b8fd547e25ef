"""Let a watch's jobs play episodes by which nothing was chosen, and count those that begin alike all the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isaaclab_arena.config.expansion.checkpoints import STEP
from isaaclab_arena.config.loading import job_over_defaults
from isaaclab_arena.evaluation.plan.condition_sets import ConditionFile, load_conditions
from isaaclab_arena.nested import set_at, value_at
from isaaclab_arena.results.merge import keys_in, merge_results, records
from isaaclab_arena.results.stored import stored_results
from isaaclab_arena.results.swept import PREFIX
from isaaclab_arena.seeding import MAX_SEED
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text

OTHER_SEED = 1_000_003
"""What is added to the seeds of jobs that score the best checkpoint on episodes by which nothing was chosen."""

CONDITIONS = "conditions"
_SEEDS = ("seed", "arena_env_args.placement_seed")
_PLACEMENT_SEED = ("--placement_seed", "--placement-seed")


def shift_seeds(document: dict[str, Any], offset: int) -> None:
    """Add a number to every seed of a job file, those of initial conditions and of sweeps too.

    Args:
        document: The job file, with ``defaults`` and ``jobs`` in today's spelling; it is changed.
        offset: The number.
    """
    for block in (document, document["defaults"], *document["jobs"]):
        for key in _SEEDS:
            change(block, key, lambda seed: _shifted(seed, offset))
    for job in document["jobs"]:
        if job.get("seed", offset) is None:
            del job["seed"]
    if document["defaults"].get("seed") is None:
        document["defaults"]["seed"] = offset


def with_shifted_seed(options: Sequence[str], offset: int) -> tuple[str, ...]:
    """Return options of a command line with a number added to the seed of the initial conditions."""
    words = list(options)
    for position, word in enumerate(words):
        name, is_joined, value = word.partition("=")
        if name in _PLACEMENT_SEED and is_joined and value.isdecimal():
            words[position] = f"{name}={_shifted(int(value), offset)}"
        elif name in _PLACEMENT_SEED and words[position + 1 : position + 2] and words[position + 1].isdecimal():
            words[position + 1] = str(_shifted(int(words[position + 1]), offset))
    return tuple(words)


def change(block: dict[str, Any], key: str, changed: Callable[[Any], Any]) -> None:
    """Change what a block of job keys says of a key, itself and in its sweep.

    Args:
        block: The block.
        key: The key, with dots.
        changed: Returns what stands there instead of a value.
    """
    path = key.split(".")
    if value_at(block, path) is not None:
        set_at(block, path, changed(value_at(block, path)))
    swept = value_at(block, ("sweep", key))
    if isinstance(swept, list):
        block["sweep"][key] = [changed(value) for value in swept]


def take_unused_conditions(document: Mapping[str, Any], directory: Path) -> None:
    """Let jobs with saved conditions begin from those that they have not begun from yet, where there are enough.

    Args:
        document: The job file; its jobs are changed.
        directory: Where the conditions that they get instead are written.

    Raises:
        ConfigError: If a file of conditions cannot be read.
        StorageError: If one cannot be written.
    """
    for number, job in enumerate(document["jobs"]):
        whole = job_over_defaults(document["defaults"], job)
        reference, played = whole.get(CONDITIONS), whole.get("num_episodes")
        if not isinstance(reference, str) or type(played) is not int:
            continue
        sets = [
            replace(each, episodes=each.episodes[played : 2 * played])
            for each in load_conditions(reference, Path())
            if len(each.episodes) >= 2 * played
        ]
        if sets:
            file = directory / f"conditions_{number}.json"
            write_text(file, json_text(ConditionFile(sets=sets)), overwrite=True)
            job[CONDITIONS] = str(file.absolute())


def count_alike(run: Path, other: Path) -> int:
    """Return how many episodes of a run began from initial conditions from which the same job began in another run."""
    before = set(_starts(other))
    return sum(start in before for start in _starts(run))


def _starts(run: Path) -> Iterator[tuple[str, str]]:
    """Yield the job of each episode of a checkpoint and what it began from."""
    results = stored_results(run) or merge_results(run)
    jobs = {line["name"] for line in records(results.jobs) if line.get(PREFIX + STEP) is not None}
    for job, key in zip(results.episodes["job"], keys_in(results.episodes), strict=True):
        if job in jobs:
            yield job, key


def _shifted(seed: Any, offset: int) -> Any:
    """Return another seed; what is no number yet, such as an interpolation, stays."""
    return (seed + offset) % (MAX_SEED + 1) if type(seed) is int else seed
