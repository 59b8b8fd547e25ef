"""Watch a training: evaluate its checkpoints as they appear, show the curve, promote the good ones, score the best."""

import hashlib
import logging
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import tyro

from isaaclab_arena.analysis.comparison import Question, compare_directories
from isaaclab_arena.analysis.comparison_files import write_comparison
from isaaclab_arena.checkpoints import BEST_RULE, Checkpoint, Readiness, find_checkpoints, last_checkpoint, look_at
from isaaclab_arena.config import documents, loading
from isaaclab_arena.config.command_line import misspelt, read_some
from isaaclab_arena.config.expansion.suites import CHECKPOINTS_KEY, CONTROLS_KEY, OPTIONS, ROBUSTNESS_KEY
from isaaclab_arena.config.options import Amount, Count, Positive, Share, shown, wrong_numbers
from isaaclab_arena.config.schema import MAX_SEED
from isaaclab_arena.environments.catalog import SUITES
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError, problems_into, refuse
from isaaclab_arena.evaluation import learning_curve as curve
from isaaclab_arena.evaluation.eval_runner import read_options
from isaaclab_arena.evaluation.job import save_unplayed
from isaaclab_arena.logs import set_up_console_logging
from isaaclab_arena.models import files_of_checkpoint
from isaaclab_arena.nested import set_at, value_at
from isaaclab_arena.report.writing import REPORT_FILE
from isaaclab_arena.storage.atomic import json_text, read_versioned, storage_errors, temporary_path, write_text
from isaaclab_arena.storage.contents import content_hash
from isaaclab_arena.storage.layout import RUN_PLAN_FILE
from isaaclab_arena.storage.ledger import RunLock, is_in_use
from isaaclab_arena.tracking.trackers import TrackedRun, TrackedSeries, Tracker, check_trackers, open_tracker

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """Evaluate the checkpoints of a training as they appear: TRAINING JOBS [OPTIONS].

    More options are those of `isaaclab-arena run`, such as --device cpu, --nproc_per_node 2, or --cluster ray
    --num_ranks 16 --gpus_per_rank 1.
    """

    training: tyro.conf.Positional[Path]
    """Directory of a training by rsl_rl, LeRobot, GR00T or this package; it may appear later."""
    eval_jobs_config: Path = Path()
    """JOBS, a job file; its policies get each checkpoint in turn."""
    output_dir: Path | None = None
    """Directory of the watch, outputs/watch_<training> by default. A second watch of it waits for the first."""
    pattern: str | None = None
    """Glob of the checkpoints below TRAINING, such as "policy_*.onnx"; by default the usual names."""
    every: Count = 1
    """Evaluate only steps that are multiples of this number, and the last checkpoint of a finished training."""
    until: str | None = None
    """End with this step, 1000 or iteration=1000, or earlier with the training. Without it the watch goes on until
    you stop it."""
    once: bool = False
    """End after the checkpoints that exist now."""
    poll_s: Positive = 10.0
    """Time between two looks for checkpoints [s]."""
    quiet_s: Amount = 30.0
    """Time without a change after which a checkpoint counts as complete, if its writer leaves no sign of it [s]."""
    bar: Share | None = None
    """Success rate that the lower end of a checkpoint's interval must reach, such as 0.9."""
    promote: Path | None = None
    """Directory for copies of the checkpoints that reach the bar, with their comparison."""
    stop_file: Path | None = None
    """End if this file exists. The watch writes it if the bar is reached, for the training to see."""
    tracking: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Log the curve to wandb, tensorboard or mlflow as one run, besides the trackers of the job file; may be given
    several times."""

    @property
    def directory(self) -> Path:
        """The directory of the watch."""
        return self.output_dir or Path("outputs") / f"watch_{self.training.resolve().name}"

    @property
    def last_step(self) -> int | None:
        """The step that `until` names, None without one or if it names none."""
        end = re.fullmatch(r"(?:\w+=)?(\d{1,12})", self.until or "")
        return None if end is None else int(end[1])


# Make the job file of one checkpoint from the job file of a watch.

_NO_ARMS = (
    "would let changed episodes choose the best checkpoint, and curves be of arms; watch without it, then run "
    "isaaclab-arena robustness or controls with the best"
)
_NOT_THE_RUNNERS = {
    "--resume": "is the watch's own",
    "--output_base_dir": "is the watch's own",
    "--robustness": _NO_ARMS,
    "--robustness_levels": _NO_ARMS,
}
"""The options of a run that a watch cannot pass on to the runner."""


def jobs_of_checkpoint(
    settings: WatchOptions, document: Mapping[str, Any], checkpoint: Checkpoint, seed_offset: int = 0
) -> dict[str, Any]:
    """Return the watch's jobs for one checkpoint; a job with `checkpoints: null` stays as it is."""
    # Relative paths of saved conditions start from the job file's directory. `ConfigError`: malformed jobs or options.
    listed, default = document.get("jobs"), document.get("defaults") or {}
    if not isinstance(listed, list) or not all(isinstance(job, dict) for job in listed):
        raise ConfigError(Problem(f"{shown(listed)} is no list of jobs", key="jobs"))
    if not isinstance(default, dict):
        raise ConfigError(Problem(f"{shown(default)} is not a mapping", key="defaults"))
    blocks = []
    for where, block in {"defaults": default, **{f"jobs[{n}]": job for n, job in enumerate(listed)}}.items():
        modern, problems = loading.modernised(deepcopy(block), settings.eval_jobs_config.parent)
        refuse(problems)
        if key := next((each for each in (ROBUSTNESS_KEY, CONTROLS_KEY) if modern.get(each) is not None), None):
            raise ConfigError(_NO_ARMS, key=f"{where}.{key}")
        if not isinstance(options := modern.get("policy_config_dict", {}), dict):
            raise ConfigError(Problem(f"{shown(options)} is no mapping", key="policy_config_dict"))
        blocks.append(modern)
    defaults, *jobs = blocks
    for job in jobs:
        if CHECKPOINTS_KEY in job and job[CHECKPOINTS_KEY] is None:
            continue
        options = job.setdefault("policy_config_dict", {})
        named = {**options, **(defaults.get("policy_config_dict") or {})}
        usual = {"pretrained_model": "pretrained"}.get(checkpoint.path.name, "model_path")
        usual = "checkpoint_path" if checkpoint.path.is_file() else usual
        options[next((name for name in OPTIONS if name in named), usual)] = str(settings.training)
        job[CHECKPOINTS_KEY] = {"steps": [checkpoint.step], "pattern": settings.pattern}
    made = {**deepcopy(dict(document)), "defaults": defaults, "jobs": jobs}
    base = settings.eval_jobs_config.parent.absolute()
    for block in (made, defaults, *jobs):
        # An interpolation must be absolute itself.
        _change(block, "conditions", lambda path: str(base / path) if type(path) is str and "${" not in path else path)
    if seed_offset:
        shift_seeds(made, seed_offset)
    return made


def _change(block: dict[str, Any], key: str, changed: Callable[[Any], Any]) -> None:
    """Replace the value of a dotted key in a block of job keys, and the values in its sweep."""
    path = key.split(".")
    if value_at(block, path) is not None:
        set_at(block, path, changed(value_at(block, path)))
    if isinstance(swept := value_at(block, ("sweep", key)), list):
        block["sweep"][key] = [changed(value) for value in swept]


OTHER_SEED = 1_000_003
"""Added to the seeds of jobs that score the best checkpoint, so that other episodes score it than chose it."""


def shift_seeds(document: dict[str, Any], offset: int) -> None:
    """Add `offset` to every seed of a job file in place, including those of conditions and sweeps."""
    # A value that is not a number yet, such as an interpolation, stays.
    for block in (document, document["defaults"], *document["jobs"]):
        for key in ("seed", "arena_env_args.placement_seed"):
            _change(block, key, lambda seed: (seed + offset) % (MAX_SEED + 1) if type(seed) is int else seed)
    # An explicit null counts as no seed: the job takes the default seed, which is `offset` if there is none.
    for job in document["jobs"]:
        if job.get("seed", offset) is None:
            del job["seed"]
    if document["defaults"].get("seed") is None:
        document["defaults"]["seed"] = offset


# Evaluate one checkpoint by the runner of job files, in a process of its own.

INTERRUPTED = 130
_REFUSED = 2
_INTERRUPTED = (-2, -15, INTERRUPTED, 143)


def run_checkpoint(
    settings: WatchOptions,
    document: Mapping[str, Any],
    runner_options: Sequence[str],
    checkpoint: Checkpoint,
    directory: Path,
    seed_offset: int = 0,
    *,
    runner: Sequence[str] = (sys.executable, "-m", "isaaclab_arena.evaluation.eval_runner"),
) -> int:
    """Evaluate a checkpoint in a directory, or resume its run there. Return the exit code of the runner."""
    made = jobs_of_checkpoint(settings, document, checkpoint, seed_offset)
    job_file = directory.parent / "watch" / directory.name / "jobs.json"

    # Other seeds do not change saved conditions, so other episodes take the next ones in their files, if these suffice.
    for number, job in enumerate(made["jobs"] if seed_offset else ()):
        whole = loading.job_over_defaults(made["defaults"], job)
        reference, played = whole.get("conditions"), whole.get("num_episodes")
        file = job_file.with_name(f"conditions_{number}.json")
        if isinstance(reference, str) and type(played) is int and save_unplayed(reference, played, file):
            job["conditions"] = str(file.absolute())
    write_text(job_file, json_text(made), overwrite=True)

    # The seed of the initial conditions on the command line is another one too.
    names, options = ("--placement_seed", "--placement-seed"), []
    for before, word in zip(("", *runner_options), runner_options, strict=False):
        name, is_joined, value = ("", "", word) if before in names else word.partition("=")
        is_seed = value.isdecimal() and (before in names or name in names)
        options.append(f"{name}{is_joined}{(int(value) + seed_offset) % (MAX_SEED + 1)}" if is_seed else word)
    is_begun = (directory / RUN_PLAN_FILE).is_file()
    goes_on = ["--resume", str(directory), "--retry_errors"] if is_begun else ["--output_dir", str(directory)]
    command = [*runner, "--eval_jobs_config", str(job_file), *goes_on, *options]
    return subprocess.run(command, check=False, close_fds=False).returncode  # noqa: S603 - our own program


# Promote the checkpoints of a watch that reach a bar: copy their evaluated files, and those needed to load them.


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """The checkpoint that was promoted last."""

    step: int
    source: str  # path where it was found
    name: str  # path for a policy, below the directory of promoted checkpoints
    success_rate: float  # mean of the jobs' rates
    success_low: float  # lower end of the interval of all episodes together
    success_high: float  # upper end
    episodes: int | None = None  # with measured success
    distinct_conditions: int | None = None  # of these episodes
    compared_with: int | None = None  # step of the previous one, None for the first
    verdict: str | None = None  # of that comparison; None if there is none
    schema_version: int = curve.SCHEMA_VERSION


def promote(home: Path, score: curve.Score, record: curve.Evaluated, watch: Path, names: Sequence[str]) -> Path | None:
    """Copy a checkpoint that reached the bar, if it beats the one before. Return the path of the copy, else None."""
    # A copy `step_<n>` is complete or absent, with `params/agent.yaml` if there is one. Beside it lie `promoted.json`
    # about the last promotion, and `comparison_<step>/` with the paired comparison with the one before.
    told = home / "promoted.json"
    before = read_versioned(told, Promoted, curve.SCHEMA_VERSION) if told.is_file() else None
    if before is not None and (before.step == score.step or before.success_rate >= score.success_rate):
        return None

    # Check the copy, not the source, which may change at any time.
    source, copies = Path(record.path), home / f"step_{score.step}"
    temporary, name = temporary_path(copies), source.name if source.is_file() else ""
    target, copy = copies / name, temporary / name
    try:
        with storage_errors("copy", copies):
            shutil.rmtree(temporary, ignore_errors=True)
            with suppress(FileNotFoundError):
                for place, path in files_of_checkpoint(source).items():
                    (temporary / place).parent.mkdir(parents=True, exist_ok=True)
                    (shutil.copytree if path.is_dir() else shutil.copy2)(path, temporary / place)
            # A record of an earlier version has the fingerprint only.
            found = look_at(source).fingerprint if record.content is None else content_of(copy)
            if not copy.exists() or found != (record.content or record.fingerprint):
                _LOG.warning("step %d is not promoted: %s is not what was evaluated any more", score.step, record.path)
                return None
            shutil.rmtree(copies, ignore_errors=True)
            temporary.replace(copies)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

    # Compare with the checkpoint promoted before. A comparison that fails does not prevent the promotion.
    verdict = None
    if before is not None:
        renamed = {f"{job}-{before.step}": f"{job}-{score.step}" for job in names}
        runs = [watch / f"step_{step}" for step in (before.step, score.step)]
        try:
            report = compare_directories(runs, Question(), names=renamed)
            write_comparison(home / f"comparison_{score.step}", report)
            verdict = str(report.verdict)
        except ArenaError as error:
            _LOG.warning("steps %d and %d cannot be compared: %s", before.step, score.step, error)
    promoted = Promoted(
        step=score.step,
        source=record.path,
        name=target.relative_to(home).as_posix(),
        success_rate=score.success_rate,
        success_low=score.interval.low,
        success_high=score.interval.high,
        episodes=score.scored,
        distinct_conditions=score.distinct,
        compared_with=None if before is None else before.step,
        verdict=verdict,
    )
    write_text(told, json_text(promoted), overwrite=True)
    return target


def content_of(checkpoint: Path) -> str:
    """Return a hash of a checkpoint file or directory and of the files needed to load it."""
    files = files_of_checkpoint(checkpoint).items()
    hashes = {"checkpoint" if path == checkpoint else str(place): content_hash(path) for place, path in files}
    return hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()


# The watch itself: wait for checkpoints that are complete, evaluate each once, and show the outcome.

_FIRST_WAIT_S, _LONGEST_WAIT_S = 60.0, 3_600.0
"""The time before a failed evaluation is tried again, which doubles with each failure."""
_TRIES_AT_END = 3


@dataclass(kw_only=True)
class Watch:
    """A watch of a training; a second one of the same directory waits until the first has ended."""

    settings: WatchOptions
    # Evaluates a checkpoint in a directory, with an offset of all seeds, and returns the exit code of the runner.
    evaluate: Callable[[Checkpoint, Path, int], int]
    say: Callable[[str], None] = print  # shows a line
    sleep: Callable[[float], None] = time.sleep  # [s]
    now: Callable[[], float] = time.monotonic  # [s]
    opened: Callable[[str, TrackedRun], Tracker] = open_tracker  # opens a service that shows the curve
    _records: dict[int, curve.Evaluated] = field(default_factory=dict, init=False)  # in the order of steps
    _points: dict[int, list[curve.Point]] = field(default_factory=dict, init=False)
    _last: Checkpoint | None = field(default=None, init=False)  # of the training, once it is over
    # Time of the next try [s], by step and fingerprint: a file that was refused is tried again once it changes.
    _not_before: dict[tuple[int, str], float] = field(default_factory=dict, init=False)
    _waits: dict[int, str] = field(default_factory=dict, init=False)  # by step: why it cannot be evaluated yet

    def __post_init__(self) -> None:
        self._directory = self.settings.directory
        self._readiness = Readiness(self.settings.quiet_s, now=self.now)
        told = self._directory / "watch" / "tracking" / "told.json"
        self._tracked = TrackedSeries(self.settings.tracking, record=told, opened=self.opened)

    def run(self) -> int:
        """Watch to the end. Return 0 if all checkpoints were evaluated, else 1; 2 if refused; 130 if interrupted."""
        # Wait until no other watch and no run of a killed one is at work.
        place = self._directory / "watch"
        with storage_errors("make", place):
            place.mkdir(parents=True, exist_ok=True)
        with RunLock(place) as lock:
            for looks in count():
                with suppress(ConfigError):
                    lock.hold(alone=True)
                    break
                if looks == 0:
                    _LOG.warning("another watch is at work in %s, or a run of one: this one waits for its end", place)
                self.sleep(self.settings.poll_s)
            # The runner inherits the lock, and so holds it even if this process is killed.
            os.set_inheritable(lock.descriptor, True)  # noqa: FBT003 - takes no keywords
            write_text(place / curve.TRAINING_FILE, str(self.settings.training.absolute()), overwrite=True)
            self._records = curve.read_records(self._directory)
            if exit_code := self._follow() or self._score_again():
                return exit_code
            self._show()
            if self._all_points:
                self.say(f"curve in {self._directory / 'curve.png'}, page in {self._directory / REPORT_FILE}")
            records = [each for each in self._records.values() if self._wants(each.step) and not each.is_done]
            left = {each.step: each.reason or "its evaluation did not end" for each in records} | self._waits
            for step in sorted(left):
                self.say(f"step {step} was not evaluated: {left[step]}")
            return int(bool(left))

    def _follow(self) -> int:
        """Evaluate checkpoints until the end; return 0, or the exit code if the watch ends before."""
        settings, until, began_s, is_idle = self.settings, self.settings.last_step, self.now(), False
        while True:
            # One evaluation takes long, so look for new checkpoints before each.
            found = find_checkpoints(settings.training, settings.pattern)
            self._last = last_checkpoint(found, until)
            wanted = [each for each in found if self._wants(each.step) and (until is None or each.step <= until)]
            ready = next((each for each in wanted if self._is_ready(each)), None)
            exit_code = 0 if ready is None else self._evaluated(ready)
            if exit_code in _INTERRUPTED:
                return INTERRUPTED
            done = [step for step, each in self._records.items() if each.is_done and self._wants(step)]
            # One checkpoint may be damaged; if none was ever accepted, the job file is wrong.
            if exit_code == _REFUSED and not done:
                return _REFUSED

            new = [step for step in done if step not in self._points]
            for step in new:
                self._points[step] = curve.points_of(self._directory / f"step_{step}", step)
                score = curve.scores_of(self._points[step]).get(step)
                self.say(f"step {step}: {score.in_words if score else 'its jobs measure no success'}")
            if new:
                self._show()
                self._reach_bar()
            if settings.stop_file is not None and settings.stop_file.exists():
                self._waits = {}
                return 0

            # The watch ends if it has an end, the training has reached it, and no checkpoint is left to try.
            if ready is None:
                refused = {step for (step, _), due in self._not_before.items() if due == math.inf}
                tried = {each.step for each in self._records.values() if each.is_done or each.tries >= _TRIES_AT_END}
                are_over = (refused | tried).issuperset(each.step for each in wanted)
                is_reached = self._last is not None or any(until is not None and each.step >= until for each in found)
                is_quiet = not self._waits or self.now() - began_s >= settings.quiet_s
                if settings.once and not wanted and not self._records:
                    self.say(f"no checkpoint in {settings.training} matches; --pattern finds other names")
                    return 1
                if (settings.once and is_quiet) or (until is not None and is_reached and are_over):
                    return 0
                if not is_idle:
                    later = "" if settings.training.is_dir() else ", which does not exist yet"
                    _LOG.info("waiting for %scheckpoints in %s%s", "more " * bool(found), settings.training, later)
                self.sleep(settings.poll_s)
            is_idle = ready is None

    @property
    def _all_points(self) -> list[curve.Point]:
        return [point for step in sorted(self._points) for point in self._points[step]]

    def _wants(self, step: int) -> bool:
        return step % self.settings.every == 0 or (self._last is not None and step == self._last.step)

    def _is_ready(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint is complete, not evaluated yet, and due for a try."""
        step, path, record = checkpoint.step, checkpoint.path, self._records.get(checkpoint.step)
        if record is not None and record.is_done:
            return False
        why_not = self._readiness.why_not(path)
        if why_not is None and is_in_use(self._directory / f"step_{step}"):
            why_not = "an earlier evaluation of it is still at work"
        # Reasons that differ in their numbers only are logged once.
        before = self._waits.pop(step, "")
        if why_not is not None:
            self._waits[step] = why_not
            if re.sub(r"\d+", "", why_not) != re.sub(r"\d+", "", before):
                _LOG.info("waiting for %s: %s", path, why_not)
            return False
        return self.now() >= self._not_before.get((step, self._readiness.fingerprint(path)), 0.0)

    def _evaluated(self, checkpoint: Checkpoint) -> int:
        """Evaluate a checkpoint, and keep a record of it; return the exit code."""
        path, step, before = checkpoint.path, checkpoint.step, self._records.get(checkpoint.step)
        fingerprint, run = self._readiness.fingerprint(path), self._directory / f"step_{step}"
        if before is not None and before.fingerprint != fingerprint:
            # The episodes so far belong to other weights.
            shutil.rmtree(run, ignore_errors=True)
        tries = 0 if before is None else before.tries

        def recorded(**outcome: Any) -> None:
            known = {"step": step, "path": str(path), "fingerprint": fingerprint, "tries": tries}
            record, place = curve.Evaluated(**known | outcome), self._directory / "watch" / f"step_{step}"
            write_text(place / "evaluated.json", json_text(record), overwrite=True)
            self._records = dict(sorted({**self._records, step: record}.items()))

        recorded()
        exit_code = self.evaluate(checkpoint, run, 0)
        if exit_code in _INTERRUPTED:
            return exit_code

        # The weights may have changed meanwhile. The fingerprint is taken after the hash, and empty if they are gone.
        content = None
        with suppress(StorageError):
            content = content_of(path)
        self._readiness.why_not(path)
        now, reason = self._readiness.fingerprint(path), _reason(exit_code, run)
        if now not in ("", fingerprint):
            exit_code, reason = 1, "it changed while it was evaluated"
        if reason is None:
            recorded(is_done=True, content=content if now else None)
            return exit_code
        recorded(tries=tries + 1, reason=reason)
        # Complete files that were refused are of another policy, say; time does not change that.
        wait_s = math.inf if exit_code == _REFUSED else min(_FIRST_WAIT_S * 2**tries, _LONGEST_WAIT_S)
        self._not_before[step, now] = self.now() + wait_s
        again = "once it changes" if exit_code == _REFUSED else f"in {wait_s:.0f} s"
        _LOG.warning("%s failed: %s; it is tried again %s", path, reason, again)
        return exit_code

    def _show(self) -> None:
        points = self._all_points
        if not points:
            return
        curve.write_curve(self._directory, points)
        curve.write_watch_page(self._directory, points)
        # Files of services without a server are in the logs.
        name, logs, series = self._directory.resolve().name, self._directory / "logs", {point.job for point in points}
        about = {"training": str(self.settings.training)}
        run = TrackedRun(run_id="", name=name, directory=logs, settings=about, jobs={}, series=sorted(series))
        self._tracked.tell(run, curve.checkpoint_measures(self._directory, points))

    def _reach_bar(self) -> None:
        """Promote each checkpoint that reaches the bar, and tell the training to stop."""
        settings, points = self.settings, self._all_points
        names = list(dict.fromkeys(point.job for point in points if not point.is_baseline))
        for step, score in curve.scores_of(points).items():
            if settings.bar is None or score.interval.low < settings.bar:
                continue
            record = self._records[step]
            if settings.promote is not None and Path(record.path).exists():
                target = promote(settings.promote, score, record, self._directory, names)
                if target is not None:
                    self.say(f"step {step} was promoted: {target}")
            if settings.stop_file is not None and not settings.stop_file.exists():
                write_text(settings.stop_file, f"step {step}: {score.in_words}\n", overwrite=True)
                self.say(f"step {step} reached the bar of {100 * settings.bar:g} %: {settings.stop_file}")

    def _score_again(self) -> int:
        """Score the best checkpoint in episodes that did not choose it, unless that is done; 0, or 130 if stopped."""
        chosen = curve.best_of(curve.scores_of(self._all_points))
        if chosen is None:
            return 0
        best, reason = curve.best_of_watch(self._directory, chosen), None
        checkpoint = Checkpoint(step=chosen.step, path=Path(self._records[chosen.step].path))
        if best is None and not checkpoint.path.exists():
            reason = f"{checkpoint.path} is gone"
        elif best is None:
            run = self._directory / f"best_step_{chosen.step}"
            while is_in_use(run):
                self.sleep(self.settings.poll_s)
            exit_code = self.evaluate(checkpoint, run, OTHER_SEED)
            if exit_code in _INTERRUPTED:
                return INTERRUPTED
            points, reason = [], _reason(exit_code, run)
            if reason is None:
                points, reason = curve.points_of(run, chosen.step), "of no episode is known whether it succeeded"
            fresh = curve.scores_of(points).get(chosen.step)
            if fresh is not None:
                # Baselines did not choose it.
                starts, others = (
                    [(each.job, key) for each in own if not each.is_baseline for key in each.episodes.conditions]
                    for own in (points, self._points[chosen.step])
                )
                known = set(others)
                best = curve.Best(chosen=chosen, fresh=fresh, alike=sum(start in known for start in starts))
                write_text(self._directory / curve.BEST_FILE, json_text(best), overwrite=True)
        where = f"step {chosen.step}, {checkpoint.path} ({BEST_RULE})"
        self.say(f"the best is {where}: {chosen.in_words} in the episodes that selected it")
        again = f"in others it could not be scored: {reason}"
        self.say(f"  {again if best is None else f'{best.in_words}: {best.fresh.in_words}'}")
        return 0


def _reason(exit_code: int, run: Path) -> str | None:
    """Return the reason why the evaluation of a run failed, by the exit code of the runner; None if it did not."""
    refused = f"it was refused; isaaclab-arena validate {run.parent / 'watch' / run.name / 'jobs.json'} says why"
    reasons = {0: None, 1: "not every job has all its episodes; its table says why", _REFUSED: refused}
    return reasons.get(exit_code, f"its process ended with {exit_code}")


# The command ``isaaclab-arena watch``.


def main(argv: Sequence[str]) -> int:
    """Watch a training, and return the exit code; ConfigError if an option, the training or the job file is wrong."""
    options, others = read_some(WatchOptions, argv, program="isaaclab-arena watch")
    if options.eval_jobs_config == Path():
        if not others or others[0].startswith("-"):
            refuse(misspelt(others, ["eval_jobs_config"]))
            raise ConfigError("is missing; type: isaaclab-arena watch TRAINING jobs.json", key="JOBS")
        options = replace(options, eval_jobs_config=Path(others.pop(0)))
    # Check everything before the first wait: a mistake must not appear hours later.
    document = documents.read_document(options.eval_jobs_config)
    if not isinstance(document, dict):
        raise ConfigError("holds no jobs", file=str(options.eval_jobs_config))
    given = {"--" + word.lstrip("-").partition("=")[0].replace("-", "_") for word in others if word.startswith("--")}
    no_bar = "needs --bar, which says what a checkpoint has to reach"
    may_appear = not options.training.exists() and options.training.absolute().parent.is_dir() and not options.once
    no_step = f"must be a step, such as 1000 or iteration=1000, got {options.until!r}"
    mistakes = [
        ("TRAINING", not may_appear and not options.training.is_dir(), f"'{options.training}' is no directory"),
        *((name, name in given, message) for name, message in _NOT_THE_RUNNERS.items()),
        ("--until", options.until is not None and options.last_step is None, no_step),
        ("--promote", options.promote and options.bar is None, no_bar),
    ]
    problems = [Problem(message, key=key) for key, is_wrong, message in mistakes if is_wrong]
    with problems_into(problems):
        jobs_of_checkpoint(options, document, Checkpoint(step=0, path=options.training))
        # The files of a checkpoint are not there yet, but all keys of the jobs are.
        jobs = [{key: value for key, value in job.items() if key != CHECKPOINTS_KEY} for job in document["jobs"]]
        whole = deepcopy({**document, "jobs": jobs})
        problems += loading.read_jobs(whole, source=str(options.eval_jobs_config), suites=SUITES).problems
    with problems_into(problems):
        runner_words = ("--eval_jobs_config", str(options.eval_jobs_config), *others)
        read_options(runner_words, "isaaclab-arena watch")[0].check_cluster()
    named = document.pop("tracking", None) or []
    problems += loading.tracker_problems(options.tracking, key="--tracking")
    refuse([*wrong_numbers(options), *problems, *loading.tracker_problems(named, key="tracking")])
    options = replace(options, tracking=(*named, *options.tracking))
    check_trackers(options.tracking, key="--tracking")

    set_up_console_logging(0)
    code = INTERRUPTED
    with suppress(KeyboardInterrupt):
        code = Watch(settings=options, evaluate=partial(run_checkpoint, options, document, others)).run()
    if code == INTERRUPTED:
        _LOG.info("interrupted; the same command continues; see isaaclab-arena status %s", options.directory)
    return code
