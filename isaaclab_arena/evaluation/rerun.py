"""Recorded episodes simulated again: compared with themselves to the last bit, and filmed."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from isaaclab_arena.config.options import UNKNOWN
from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError, first_line
from isaaclab_arena.evaluation import process, running_episodes, validation
from isaaclab_arena.evaluation.job import ContentReader, provenance_on
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome, conditions_from_json, split_evenly
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.policy.replay import RecordedActions
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.recording.recorder import EpisodeArrays, RecordedObservations
from isaaclab_arena.recording.video import FilmThreads, VideoRecorder
from isaaclab_arena.results.statistics import most_typical_first
from isaaclab_arena.storage import layout, ledger
from isaaclab_arena.storage.atomic import json_line
from isaaclab_arena.storage.commits import CommitLine, read_commits
from isaaclab_arena.storage.contents import SAVED_CONDITIONS, SERVED_MODEL, Provenance, changes, told_changes
from isaaclab_arena.storage.episode_file import AttributeValue, RecordedEpisode, checksum
from isaaclab_arena.storage.episodes import file_with, locate_episodes, read_env_args, read_episode

# Find the first control step and field in which two recordings of one episode differ, to the last bit.


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The first field in which an episode differs from its recording."""

    # Path of the array, such as `states/rigid_object/cube/root_pose`, or name of the attribute.
    field: str
    recorded: str  # value in the recording, in words
    found: str  # value now, in words
    step: int | None = None  # control step from 0; None at the start and for the result
    at_start: bool = False  # whether it is part of the start state
    # Largest absolute difference of the field's numbers at that step; None if they cannot be compared.
    max_abs: float | None = None

    def __str__(self) -> str:
        """Describe the place, the field and the size of the difference."""
        where = "at the end" if self.step is None else f"at control step {self.step}"
        size = f"was {self.recorded}, is now {self.found}" if self.max_abs is None else f"by {self.max_abs:.3g}"
        return f"{'at the start' if self.at_start else where}: {self.field} {size}"


_PLACES = {layout.INITIAL_STATE: 0, layout.ACTIONS: 2, layout.STATES: 3, layout.REWARDS: 4}
"""The position of a group of arrays within a control step, 1 for any other group."""

_OF_START = ("episode_seed", "conditions", "language_instruction")
_OF_END = ("num_samples", "outcome", "success", "termination", "episode_return", "metrics", "error")


def first_difference(recorded: RecordedEpisode, found: RecordedEpisode) -> Difference | None:
    """Return the first difference between an episode and its repetition, bit for bit; None if there is none."""
    # The earliest step decides, and within a step the first event, so that the cause is named and not its effects:
    # start state, observation, action, state, reward. Fields that only the repetition has are ignored.
    differences = [
        difference
        for name, array in recorded.arrays.items()
        if name != layout.DONES and (difference := _array_difference(name, array, found.arrays.get(name))) is not None
    ]
    if differences:
        return min(
            differences,
            key=lambda each: (
                -1 if each.step is None else each.step,
                _PLACES.get(each.field.partition("/")[0], 1),
                each.field,
            ),
        )

    # Then the attributes: those of the start, the length and the result. An absent one counts as None.
    sides = [
        {**each.attributes, "num_samples": len(each.arrays[layout.ACTIONS])} if each.arrays else each.attributes
        for each in (recorded, found)
    ]
    for name in (*_OF_START, *_OF_END):
        values: list[Any] = [side.get(name) for side in sides]
        if name == "metrics":
            values = [json.loads(value) if isinstance(value, str) else value for value in values]
        both_nan = all(isinstance(value, float) and math.isnan(value) for value in values)
        if values[0] != values[1] and not both_nan:
            before, now = ("not there" if value is None else str(value) for value in values)
            return Difference(field=name, recorded=before, found=now, at_start=name in _OF_START)
    return None


def _array_difference(name: str, recorded: np.ndarray, found: np.ndarray | None) -> Difference | None:
    """Return the first difference between two recordings of an array, bit for bit; None if there is none."""
    # An array of the start, or without steps, counts as one step.
    at_start = name.startswith(f"{layout.INITIAL_STATE}/") or recorded.ndim == 0
    before, now = (array if array is None or not at_start else array[None] for array in (recorded, found))
    kind, kind_now = (
        "absent" if array is None else f"{array.dtype} of shape {array.shape[1:] if array.ndim else 'one number'}"
        for array in (before, now)
    )
    if before is None or now is None or kind != kind_now:
        # A difference of kind exists from the first step on.
        return Difference(field=name, recorded=kind, found=kind_now, step=None if at_start else 0, at_start=at_start)

    # Find the first control step that is not equal to the last bit.
    length = min(len(before), len(now))
    if before[:length].size == 0:
        return None
    rows, rows_now = (np.ascontiguousarray(each[:length]).reshape(length, -1).view(np.uint8) for each in (before, now))
    unequal = (rows != rows_now).any(axis=1)
    if not unequal.any():
        return None
    step = int(unequal.argmax())
    told, told_now = (
        np.array2string(each[step].reshape(-1), precision=6, threshold=8, edgeitems=4) for each in (before, now)
    )
    return Difference(
        field=name,
        recorded=told,
        found=told_now,
        step=None if at_start else step,
        at_start=at_start,
        max_abs=_largest_difference(before[step], now[step]),
    )


def _largest_difference(recorded: np.ndarray, found: np.ndarray | None) -> float | None:
    """Return the largest absolute difference of two arrays; None if they cannot be compared."""
    if found is None or found.shape != recorded.shape or recorded.dtype.kind not in "fiub":
        return None
    before, now = (np.atleast_1d(values).astype(np.float64) for values in (recorded, found))
    with np.errstate(invalid="ignore"):
        distance = np.abs(before - now)
    # If only one of two numbers is NaN or infinite, their distance is undefined.
    distance[np.isnan(before) & np.isnan(now) | (before == now)] = 0.0
    return None if np.isnan(distance).any() else float(distance.max(initial=0.0))


# Simulate recorded episodes again: each starts from its recorded state, and a policy plays its actions.


@dataclass(frozen=True, kw_only=True)
class ReplayedEpisode:
    """The result of the replay of one episode."""

    episode_index: int
    num_steps: int  # recorded control steps
    difference: Difference | None = None  # the first one, if any
    pose_difference: float | None = None  # largest distance of poses [m, rad], if known
    is_damaged: bool = False  # arrays do not match their checksum; not replayed
    from_exact_state: bool = False  # from the simulator's recorded state, not from the conditions
    compared: tuple[str, ...] = ()  # groups: `states`, `rewards`, `obs` etc.
    other_provenance: tuple[str, ...] = ()  # versions, processor and other facts that have changed
    contents: tuple[str, ...] = ()  # files, classes or packages of the environment that have changed

    @property
    def surroundings(self) -> list[str]:
        """What has changed around the episode, in words."""
        other = [f"the environment has changed since the recording: {each}" for each in self.contents]
        return other + [f"changed since the recording: {each}" for each in self.other_provenance]


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """The settings of a replay. On a CPU none of them changes a bit of the result."""

    num_envs: int  # env slots; fewer if there are fewer episodes
    device: torch.device
    num_threads: int  # of the physics
    may_import: bool = False  # whether code that a recording names may be loaded; see `recorded_environment_job`


def rerun(
    files: Mapping[int, Path],
    settings: ReplaySettings,
    tell: Callable[[ReplayedEpisode], None],
    observers: Sequence[Observer] = (),
) -> None:
    """Simulate recorded episodes again, without their policy. `files`: the file of each episode, by index."""
    # `ConfigError` if a recording cannot be read or names no known environment; `ArenaError` if it does not fit it.
    # `tell` gets each episode before the observers learn of its end.

    @contextmanager
    def named_by_user(file: Path) -> Iterator[None]:
        # The user named the recording, so its error is one of the command line.
        try:
            yield
        except StorageError as error:
            text = str(error)
            raise ConfigError(Problem(text, file=None if str(file) in text else str(file))) from error

    def intact(indices: Iterable[int]) -> Iterator[RecordedEpisode]:
        for index in indices:
            with named_by_user(files[index]):
                episode = read_episode(files[index], index)
            if checksum(episode.arrays) == episode.attributes.get("checksum"):
                yield episode
            else:
                num_steps = len(np.atleast_1d(episode.arrays.get(layout.ACTIONS, ())))
                tell(ReplayedEpisode(episode_index=index, num_steps=num_steps, is_damaged=True))

    # Episodes of one environment are replayed together, whichever files they are in.
    env_args: dict[Path, str] = {}
    for file in dict.fromkeys(files.values()):
        with named_by_user(file):
            env_args[file] = json.dumps(read_env_args(file), sort_keys=True)
    ordered = sorted(files, key=lambda index: (env_args[files[index]], index))
    for _, group in groupby(ordered, key=lambda index: env_args[files[index]]):
        indices = list(group)
        recordings = intact(indices)
        if (first := next(recordings, None)) is None:
            continue
        observations = recorded_observations(first)
        with process.put_back("an environment"):
            job = validation.recorded_environment_job(
                first.env_args,
                source=str(files[first.episode_index]),
                num_envs=min(settings.num_envs, len(indices)),
                cameras=observations is RecordedObservations.ALL,
                may_import=settings.may_import,
            )
            contents = ContentReader().environment(job)
            environment = job.build_environment(device=settings.device, num_threads=settings.num_threads)
            with closing(environment):
                now = {**provenance_on(settings.device), **environment.provenance()}
                judge = ReplayJudge(EpisodeArrays(environment, observations), tell, now, contents)
                replay_in(environment, chain((first,), recordings), [judge, *observers])


def recorded_observations(episode: RecordedEpisode) -> RecordedObservations:
    """Return the kind of observations that a recording holds."""
    groups = {name.partition("/")[0] for name in episode.arrays}
    if any(group == layout.CAMERA_OBSERVATIONS or group.startswith(f"{layout.OBSERVATIONS}_") for group in groups):
        return RecordedObservations.ALL
    return RecordedObservations.STATE if layout.OBSERVATIONS in groups else RecordedObservations.NONE


@dataclass(frozen=True, kw_only=True)
class _Again(Episode):
    """A recorded episode, to be played from its recording."""

    recording: RecordedEpisode = field(compare=False, repr=False)


def replay_in(environment: Environment, recordings: Iterable[RecordedEpisode], observers: Sequence[Observer]) -> None:
    """Play recordings, each until the environment ends it or its actions end; `ArenaError` if one does not fit."""
    prefix, wanted = f"{layout.INITIAL_STATE}/{layout.SIMULATOR}/", environment.action_spec.shape

    def episodes() -> Iterator[_Again]:
        for recording in recordings:
            actions = recording.arrays.get(layout.ACTIONS)
            if actions is None or actions.ndim != 2 or len(actions) == 0 or actions.shape[1:] != wanted:
                found = "none" if actions is None else f"shape {actions.shape}"
                raise ArenaError(
                    f"the actions of {layout.demo_name(recording.episode_index)} have {found}; "
                    f"the environment takes (num_steps, action_dim) = (1 or more, {wanted[0]})"
                )
            conditions = conditions_from_json(json.loads(str(recording.attributes.get("conditions", "{}"))))
            # The simulator's recorded state, empty if this environment cannot restore it.
            state = {
                name.removeprefix(prefix): array for name, array in recording.arrays.items() if name.startswith(prefix)
            }
            (own,) = environment.episode_states([0])
            if own.keys() != state.keys() or any(own[name].shape != array.shape for name, array in state.items()):
                state = {}
            yield _Again(
                job="replay",
                episode_index=recording.episode_index,
                seed=0,
                saved_conditions=conditions,
                start_state=state,
                recording=recording,
            )

    # The policy does not read the instruction, and recorded conditions may lack it.
    instruction = environment.task_description
    rollout(environment, _AsRecorded(), episodes(), observers, language_instruction=instruction)


class _AsRecorded(RecordedActions[None]):
    """Plays the actions of each recording in its own episode."""

    def _sequence(self, env: Environment, episode: Episode) -> np.ndarray:
        del env
        return cast(_Again, episode).recording.arrays[layout.ACTIONS].astype(np.float32)


@dataclass(eq=False)
class ReplayJudge(Observer):
    """Collects the arrays of each replay, to compare them with the recording at its end."""

    arrays: EpisodeArrays
    tell: Callable[[ReplayedEpisode], None]
    now: Provenance  # of this replay
    contents: Mapping[str, str]  # of its environment

    def __post_init__(self) -> None:
        self.sees_pictures = self.arrays.observations is RecordedObservations.ALL

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Begin the arrays of the episodes."""
        del environment, observation
        self.arrays.start([start.env_id for start in starts])

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Add a control step."""
        del environment
        self.arrays.append(transition)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Compare the replay with its recording, and tell the result."""
        del environment
        recorded = cast(_Again, record.episode).recording
        values: dict[str, AttributeValue | None] = {
            "outcome": None if record.outcome is None else str(record.outcome),
            "success": record.success,
            "termination": record.termination,
            "error": record.error,
        }
        was_broken_off = recorded.attributes.get("termination") in running_episodes.BROKEN_OFF
        if was_broken_off and record.termination == running_episodes.POLICY_FINISHED:
            # The recorded end did not follow from the actions (`BROKEN_OFF`), so only the steps can be compared.
            values = {}
        values |= {"episode_return": record.episode_return, "metrics": json_line(record.metrics)}
        # The start comes from the recording.
        attributes = {**recorded.attributes, **values}
        found = RecordedEpisode(
            episode_index=recorded.episode_index,
            arrays=self.arrays.take(record.env_id),
            attributes={name: value for name, value in attributes.items() if value is not None},
            env_args=recorded.env_args,
        )

        # The largest distance of positions and angles, if all can be compared.
        distances = [
            _largest_difference(before, found.arrays.get(name))
            for name, before in recorded.arrays.items()
            if name.startswith(f"{layout.STATES}/") and name.endswith(("/joint_position", "/root_pose"))
        ]
        known = [distance for distance in distances if distance is not None]

        # A replay has no policy, and its conditions come from the recording.
        contents = recorded.contents
        of_environment = {} if contents is None else {**contents.environment, SAVED_CONDITIONS: UNKNOWN}
        changed = () if contents is None else changes(of_environment, self.contents)
        was = {name: value for name, value in recorded.provenance.items() if name != SERVED_MODEL}
        groups = {name.partition("/")[0] for name in recorded.arrays} - {layout.DONES}
        self.tell(
            ReplayedEpisode(
                episode_index=recorded.episode_index,
                num_steps=len(recorded.arrays[layout.ACTIONS]),
                difference=first_difference(recorded, found),
                pose_difference=max(known) if known and len(known) == len(distances) else None,
                from_exact_state=bool(record.episode.start_state),
                compared=tuple(sorted(groups, key=lambda name: (_PLACES.get(name, 1), name))),
                other_provenance=told_changes(was, self.now),
                contents=tuple(f"{what} {how}" for what, how in changed),
            )
        )


# Choose the episodes of a run to film afterwards: by outcome, or by a different outcome in another run.


class Choice(StrEnum):
    """The finished episodes to film."""

    ALL = "all"
    ONE = "one"
    FAILURES = "failures"
    SUCCESSES = "successes"
    REASONS = "reasons"
    DISCORDANT = "discordant"


def episodes_by_outcome(run: Path, jobs: Iterable[str], choice: Choice) -> dict[str, list[int]]:
    """Return the episodes of each job that `choice` selects, ascending."""
    chosen: dict[str, list[int]] = {}
    for job in jobs:
        lines = read_commits(run / job, job).lines
        # An error, and an episode without a measured success, count as failures, as for ``--video_episodes failures``.
        if choice is Choice.SUCCESSES:
            lines = [line for line in lines if line.success is True]
        elif choice is Choice.FAILURES:
            lines = [line for line in lines if line.success is not True]
        elif choice is Choice.ONE:
            # First failure, else first success, else first error.
            lines = sorted(lines, key=lambda line: (line.outcome is Outcome.ERROR, line.success is True))[:1]
        elif choice is Choice.REASONS:
            # For each decisive event the three most typical failures, as the report shows them; no errors.
            groups: defaultdict[str | None, list[CommitLine]] = defaultdict(list)
            for line in lines:
                if line.success is False and line.outcome is not Outcome.ERROR:
                    groups[line.events and line.events.decisive].append(line)
            lines = [each for event, own in groups.items() for each in _most_typical(event, own)[:3]]
        chosen[job] = sorted(line.episode_index for line in lines)
    return chosen


def _most_typical(event: str | None, failures: Sequence[CommitLine]) -> list[CommitLine]:
    """Return failures that `event` decided, those first in which it came nearest to its median moment."""
    moments = [
        each.events.seen.get(event, (each.length,))[0] if each.events and event else each.length for each in failures
    ]
    return [failures[at] for at in most_typical_first(moments)]


def discordant_episodes(run: Path, jobs: Sequence[str], baseline: str) -> dict[str, list[int]]:
    """Return the episodes that ended differently from those with the same conditions in the baseline."""
    # The baseline is the directory of another run, whose jobs are paired by name, or a job of this run. A single job
    # pairs with a single job. `ConfigError` if there is no baseline, or no job can be paired with it.
    from isaaclab_arena.analysis.arms import differences_of_tasks, match, named_arm, read_run  # noqa: PLC0415  pandas

    arms = read_run(run).arms
    if (Path(baseline) / layout.RUN_PLAN_FILE).is_file():
        others = read_run(Path(baseline)).arms
        pairs = [(arms[job], others[job]) for job in jobs if job in others]
        if len(jobs) == len(others) == 1:
            pairs = [(arms[jobs[0]], next(iter(others.values())))]
    else:
        other = named_arm(arms, baseline, option="--baseline")
        pairs = [(arms[job], other) for job in jobs if job != baseline]

    # Only jobs of the same task can be compared.
    found: dict[str, set[int]] = {}
    problems = [f"no job can be compared with '{baseline}'"]
    for first, second in pairs:
        if different := differences_of_tasks(first, second):
            problems.append(f"{first.label} cannot be paired with {second.label}: {', '.join(different)}")
            continue
        matched = match(first, second).without_errors()
        indices = matched.first.index[np.not_equal(matched.first.success, matched.second.success)].tolist()
        # The baseline's own episodes are filmed too, if it is a job of this run.
        for arm in (first, second) if second.directory == first.directory else (first,):
            found.setdefault(arm.entry.name, set()).update(indices)
    if not found:
        raise ConfigError(Problem("; ".join(problems), key="--baseline"))
    return {job: sorted(found[job]) for job in arms if job in found}


# Film recorded episodes: simulate each again from its start and its actions, and name its film as the run would.


@dataclass(frozen=True, kw_only=True)
class FilmedEpisode:
    """The result of filming one episode."""

    job: str
    episode_index: int
    films: tuple[Path, ...] = ()  # one for each camera
    reason: str | None = None  # why there is no film, None if there is one
    pose_difference: float = 0.0  # largest difference to the recorded poses [m, rad]


def film_episodes(
    run: Path,
    episodes: Mapping[str, Sequence[int]],
    options: VideoOptions,
    settings: ReplaySettings,
    tell: Callable[[FilmedEpisode], None],
    *,
    output_directory: Path | None = None,
) -> None:
    """Film `episodes` (job -> indices) under the names that the run would use, with a contact sheet per job."""
    # The films go to the jobs' directories in `output_directory`, by default the run. `tell` gets each result at once.
    configs = {job.name: job.config for job in ledger.read_run_plan(run).jobs}
    for name, indices in episodes.items():
        lines = {line.episode_index: line for line in read_commits(run / name, name).lines}
        located, problems = locate_episodes(run / name, name)
        files: dict[int, Path] = {}
        for index in indices:
            line = lines.get(index)
            file = None if line is None else file_with(located.get(index, ()), index, line.checksum)
            if file is not None:
                files[index] = file
                continue
            reason = "it has not finished" if line is None else "; ".join(["there is no recording of it", *problems])
            tell(FilmedEpisode(job=name, episode_index=index, reason=reason))
        if not files:
            continue

        # The film's name holds the env slot, and the rebuild of a job with several.
        config = configs[name]
        num_rebuilds = config.num_rebuilds if config.num_episodes is not None else 1
        rebuilds = split_evenly(config.num_episodes or 0, num_rebuilds) if num_rebuilds > 1 else ()
        rebuild_of = {index: number for number, own in enumerate(rebuilds) for index in own}
        recorder = _FilmsOfRecordings(
            (output_directory or run) / name,
            name,
            options,
            threads=FilmThreads(settings.num_threads),
            places={index: (lines[index].env_id, rebuild_of.get(index)) for index in files},
            lines=lines,
            tell=tell,
        )
        try:
            with closing(recorder):
                rerun(files, settings, recorder.judge, [recorder])
        except StorageError:
            raise
        except ArenaError as error:
            # If one environment cannot be built again, the other jobs are still filmed.
            for index in files.keys() - recorder.told:
                tell(FilmedEpisode(job=name, episode_index=index, reason=first_line(error)))


@dataclass(eq=False, kw_only=True)
class _FilmsOfRecordings(VideoRecorder):
    """Films the episodes of one job, and keeps the films of those that are replayed as recorded."""

    lines: Mapping[int, CommitLine]
    tell: Callable[[FilmedEpisode], None]
    told: set[int] = field(default_factory=set)  # episodes with a result
    _replayed: dict[int, ReplayedEpisode] = field(default_factory=dict)

    def judge(self, replayed: ReplayedEpisode) -> None:
        """Remember the result of a replay, before the episode's end is observed."""
        self._replayed[replayed.episode_index] = replayed
        if replayed.is_damaged:
            self._told(replayed.episode_index, reason="its recording is damaged")

    def shown(self, record: EpisodeRecord, films: Sequence[Path]) -> EpisodeRecord | None:
        """Keep the films if the replay equals the recording, and show the recorded outcome."""
        index = record.episode.episode_index
        replayed, line = self._replayed.pop(index), self.lines[index]
        apart = replayed.pose_difference
        # Poses that are less than 1e-3 [m, rad] apart make the same picture, give or take a pixel.
        if not films:
            self._told(index, reason="its environment has no such cameras")
        elif replayed.difference is not None and (apart is None or apart > 1e-3):
            reason = "; ".join([f"it differs from the recording, {replayed.difference}", *replayed.surroundings])
            self._told(index, reason=reason)
        else:
            self._told(index, films=tuple(films), pose_difference=0.0 if replayed.difference is None else apart or 0.0)
            # A replayed episode ends with its last action, even if the run cut it off.
            return replace(record, outcome=line.outcome, success=line.success)
        return None

    def _told(self, index: int, **result: Any) -> None:
        self.told.add(index)
        self.tell(FilmedEpisode(job=self.job, episode_index=index, **result))
