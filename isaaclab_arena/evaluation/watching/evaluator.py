"""The evaluation of one checkpoint in a process of its own, and the fresh score of the best."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isaaclab_arena.checkpoints import Checkpoint
from isaaclab_arena.config.expansion.sweeps import CHECKPOINTS_KEY, OPTIONS, ROBUSTNESS_KEY, STEP
from isaaclab_arena.config.loading import job_over_defaults, modernised
from isaaclab_arena.config.options import shown
from isaaclab_arena.errors import ConfigError, Problem
from isaaclab_arena.evaluation.condition_sets import ConditionFile, load_conditions
from isaaclab_arena.evaluation.watching.curve import Score, points_of, scores_of
from isaaclab_arena.evaluation.watching.watcher import Evaluate, Ledger, Outcome, Verdict, runner_directory
from isaaclab_arena.nested import set_at, value_at
from isaaclab_arena.results.merge import PREFIX, keys_in, merge_results, records, stored_results
from isaaclab_arena.seeding import MAX_SEED
from isaaclab_arena.storage.atomic import write_text
from isaaclab_arena.storage.json_values import json_text, read_versioned
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.run_plan import RunLock

# Give a watch's jobs episodes that chose no checkpoint, and count those with the same start conditions.

OTHER_SEED = 1_000_003
"""Added to the seeds of jobs that score the best checkpoint, so that other episodes score it than chose it."""

CONDITIONS = "conditions"
_SEEDS = ("seed", "arena_env_args.placement_seed")
_PLACEMENT_SEED = ("--placement_seed", "--placement-seed")


def shift_seeds(document: dict[str, Any], offset: int) -> None:
    """Add `offset` to every seed of a job file in place, including those of conditions and sweeps."""
    for block in (document, document["defaults"], *document["jobs"]):
        for key in _SEEDS:
            change(block, key, lambda seed: _shifted(seed, offset))
    # An explicit null counts as no seed: the job takes the default seed, which is `offset` if there is none.
    for job in document["jobs"]:
        if job.get("seed", offset) is None:
            del job["seed"]
    if document["defaults"].get("seed") is None:
        document["defaults"]["seed"] = offset


def with_shifted_seed(options: Sequence[str], offset: int) -> tuple[str, ...]:
    """Return command-line options with `offset` added to the seed of the initial conditions."""
    words = list(options)
    for position, word in enumerate(words):
        name, is_joined, value = word.partition("=")
        if name in _PLACEMENT_SEED and is_joined and value.isdecimal():
            words[position] = f"{name}={_shifted(int(value), offset)}"
        elif name in _PLACEMENT_SEED and words[position + 1 : position + 2] and words[position + 1].isdecimal():
            words[position + 1] = str(_shifted(int(words[position + 1]), offset))
    return tuple(words)


def change(block: dict[str, Any], key: str, changed: Callable[[Any], Any]) -> None:
    """Replace the value of a dotted key in a block of job keys, and the values in its sweep."""
    path = key.split(".")
    if value_at(block, path) is not None:
        set_at(block, path, changed(value_at(block, path)))
    swept = value_at(block, ("sweep", key))
    if isinstance(swept, list):
        block["sweep"][key] = [changed(value) for value in swept]


def take_unused_conditions(document: Mapping[str, Any], directory: Path) -> None:
    """Let jobs with saved conditions use the next ones in their files, if there are enough."""
    # The jobs of the document are changed; their new conditions are written below `directory`.
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
    """Count the episodes of a run with start conditions that the same job had in the other run."""
    before = set(_starts(other))
    return sum(start in before for start in _starts(run))


def _starts(run: Path) -> Iterator[tuple[str, str]]:
    """Yield the job and the start conditions of each episode of a checkpoint, without baselines."""
    results = stored_results(run) or merge_results(run)
    jobs = {line["name"] for line in records(results.jobs) if line.get(PREFIX + STEP) is not None}
    for job, key in zip(results.episodes["job"], keys_in(results.episodes), strict=True):
        if job in jobs:
            yield job, key


def _shifted(seed: Any, offset: int) -> Any:
    """Return another seed; a value that is not a number yet, such as an interpolation, stays."""
    return (seed + offset) % (MAX_SEED + 1) if type(seed) is int else seed


# Make the job file of one checkpoint from the job file of a watch.


def robustness_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return a problem for each block of a watch's job file that asks for robustness."""
    jobs = document.get("jobs")
    blocks = {"defaults": document.get("defaults"), **{f"jobs[{n}]": job for n, job in enumerate(jobs or ())}}
    return [
        Problem(
            "would let changed episodes choose the best checkpoint, and curves be of arms; "
            "watch without it, then run isaaclab-arena robustness with the best",
            key=f"{where}.{ROBUSTNESS_KEY}",
        )
        for where, block in blocks.items()
        if isinstance(block, dict) and block.get(ROBUSTNESS_KEY) is not None
    ]


def jobs_of_checkpoint(
    document: Mapping[str, Any],
    checkpoint: Checkpoint,
    *,
    training: Path,
    pattern: str | None = None,
    seed_offset: int = 0,
    directory: Path = Path(),
) -> dict[str, Any]:
    """Return the watch's jobs for one checkpoint; a job with `checkpoints: null` stays as it is."""
    # `training`: directory of the training; `pattern`: glob below it, None for the usual names. Relative paths of saved
    # conditions start from `directory`. `ConfigError` if the document's jobs or options are malformed.
    listed = document.get("jobs")
    if not isinstance(listed, list) or not all(isinstance(job, dict) for job in listed):
        raise ConfigError(Problem(f"{shown(listed)} is no list of jobs", key="jobs"))
    defaults = _modern(document.get("defaults") or {})
    jobs = [_modern(job) for job in listed]
    for job in jobs:
        if CHECKPOINTS_KEY in job and job[CHECKPOINTS_KEY] is None:
            continue
        options = job.setdefault("policy_config_dict", {})
        known = [name for name in OPTIONS if name in options or name in (defaults.get("policy_config_dict") or {})]
        if known:
            option = known[0]
        elif checkpoint.path.is_file():
            option = "checkpoint_path"
        else:
            option = "pretrained" if checkpoint.path.name == "pretrained_model" else "model_path"
        options[option] = str(training)
        job[CHECKPOINTS_KEY] = {"steps": [checkpoint.step], "pattern": pattern}
    made = {**deepcopy(dict(document)), "defaults": defaults, "jobs": jobs}

    def rooted(reference: Any) -> Any:
        # An interpolation must be absolute itself.
        is_path = isinstance(reference, str) and "${" not in reference
        return str(directory.absolute() / reference) if is_path else reference

    for block in (made, defaults, *jobs):
        change(block, CONDITIONS, rooted)
    if seed_offset:
        shift_seeds(made, seed_offset)
    return made


def _modern(block: Any) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise ConfigError(Problem(f"{shown(block)} is not a mapping", key="defaults"))
    modern, problems = modernised(deepcopy(block))
    if problems:
        raise ConfigError(problems)
    if not isinstance(modern.get("policy_config_dict", {}), dict):
        raise ConfigError(Problem(f"{shown(modern['policy_config_dict'])} is no mapping", key="policy_config_dict"))
    return modern


# Evaluate one checkpoint by the runner of job files, in a process of its own.

_RUNNER = "isaaclab_arena.evaluation.eval_runner"
_INTERRUPTED = (-2, -15, 130, 143)
_REFUSED = 2


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Runs the jobs of a watch for one checkpoint."""

    document: Mapping[str, Any]  # job file of the watch
    training: Path  # directory of the training
    pattern: str | None = None  # glob of checkpoints below it, None for the usual names
    options: Sequence[str] = ()  # of the runner, such as `--device` and its value
    nice: int = 0  # lowers the priority against the training, 0 to 19
    # Added to every seed; if not 0, unused saved conditions are taken too, if there are enough.
    seed_offset: int = 0
    directory: Path = Path()  # base of relative paths of saved conditions

    def __call__(self, checkpoint: Checkpoint, directory: Path) -> Outcome:
        """Evaluate a checkpoint in a directory, or resume an evaluation there."""
        jobs = jobs_of_checkpoint(
            self.document,
            checkpoint,
            training=self.training,
            pattern=self.pattern,
            seed_offset=self.seed_offset,
            directory=self.directory,
        )
        job_file = directory.parent / "watch" / directory.name / "jobs.json"
        job_file.parent.mkdir(parents=True, exist_ok=True)
        if self.seed_offset:
            take_unused_conditions(jobs, job_file.parent)
        write_text(job_file, json_text(jobs), overwrite=True)
        begun = (directory / RUN_PLAN_FILE).is_file()
        command = [
            *(["nice", "-n", str(self.nice)] if self.nice else []),
            *self.runner(),
            "--eval_jobs_config",
            str(job_file),
            *(["--resume", str(directory), "--retry_errors"] if begun else ["--output_dir", str(directory)]),
            *with_shifted_seed(self.options, self.seed_offset),
        ]

        # The runner holds the lock of its checkpoint even if this process is killed.
        lock_directory = runner_directory(directory)
        lock_directory.mkdir(parents=True, exist_ok=True)
        with RunLock(lock_directory) as lock:
            lock.hold_alone()
            exit_code = subprocess.run(command, check=False, pass_fds=(lock.descriptor,)).returncode  # noqa: S603 - our own program

        if exit_code in _INTERRUPTED:
            return Outcome(verdict=Verdict.INTERRUPTED)
        if exit_code == 0:
            return Outcome(verdict=Verdict.DONE)
        if exit_code == _REFUSED:
            return Outcome(verdict=Verdict.REFUSED, reason="it was refused; the message stands above")
        unfinished = "not every job has all its episodes; its table says why"
        reason = unfinished if exit_code == 1 else f"its process ended with {exit_code}"
        return Outcome(verdict=Verdict.FAILED, reason=reason)

    def runner(self) -> list[str]:
        """Return the beginning of the command line: the program that runs job files."""
        return [sys.executable, "-m", _RUNNER]


# Score the best checkpoint of a watch again, in episodes that did not choose it, and store both scores.

_BEST = "best.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best checkpoint of a watch and its scores."""

    # In the episodes that chose it: the maximum over many checkpoints is biased upwards.
    chosen: Score
    fresh: Score  # in other episodes
    # Fresh episodes with start conditions that chose it: those of a file or of a benchmark's fixed list.
    alike: int = 0
    schema_version: int = _SCHEMA_VERSION

    @property
    def in_words(self) -> str:
        """The episodes of the fresh score, in words."""
        if self.alike == 0:
            return "in other episodes"
        if self.alike >= self.fresh.scored:
            return "once more, from the same initial conditions"
        return f"in other episodes, {self.alike} of them from the same initial conditions"


def fresh_run(directory: Path, step: int) -> Path:
    """Return the directory of the run that scores the best checkpoint again, below that of the watch."""
    return directory / f"best_step_{step}"


def best_of_watch(directory: Path, chosen: Score) -> Best | None:
    """Return both scores of the best checkpoint, None if `chosen` was not scored again yet."""
    path = directory / _BEST
    found = read_versioned(path, Best, _SCHEMA_VERSION) if path.is_file() else None
    # The file may hold the scores of an earlier best checkpoint.
    return found if found is not None and found.chosen == chosen else None


def score_again(
    ledger: Ledger, chosen: Score, checkpoint: Checkpoint, evaluate_again: Evaluate, *, wait: Callable[[], None]
) -> Outcome:
    """Score the best checkpoint in other episodes and write `best.json`, unless that is done."""
    # `wait` pauses while another watcher scores it, or the run of a dead watcher goes on.
    directory = fresh_run(ledger.directory, chosen.step)
    while best_of_watch(ledger.directory, chosen) is None:
        if not checkpoint.path.exists():
            return Outcome(verdict=Verdict.FAILED, reason=f"{checkpoint.path} is gone")
        with ledger.held(directory.name) as is_mine:
            if is_mine:
                outcome = evaluate_again(checkpoint, directory)
                if outcome.verdict is not Verdict.DONE:
                    return outcome
                fresh = scores_of(points_of(directory, chosen.step)).get(chosen.step)
                if fresh is None:
                    return Outcome(verdict=Verdict.FAILED, reason="of no episode is known whether it succeeded")
                alike = count_alike(directory, ledger.run_directory(chosen.step))
                best = Best(chosen=chosen, fresh=fresh, alike=alike)
                write_text(ledger.directory / _BEST, json_text(best), overwrite=True)
                return outcome
        wait()
    return Outcome(verdict=Verdict.DONE)
