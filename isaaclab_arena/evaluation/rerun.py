"""Recorded episodes simulated again: compared with themselves to the last bit, and filmed."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch

from isaaclab_arena.errors import ArenaError, ConfigError, Problem, StorageError, first_line
from isaaclab_arena.evaluation import process, running_episodes, validation
from isaaclab_arena.evaluation.job import ContentReader, provenance_on
from isaaclab_arena.evaluation.rollout import rollout
from isaaclab_arena.interfaces.content import UNKNOWN
from isaaclab_arena.interfaces.environment import Environment, Observation
from isaaclab_arena.interfaces.episode import Episode, EpisodeRecord, Outcome, conditions_from_json, split_evenly
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition
from isaaclab_arena.policy.replay import RecordedActions
from isaaclab_arena.recording import VideoOptions
from isaaclab_arena.recording.recorder import EpisodeArrays, RecordedObservations
from isaaclab_arena.recording.video import FilmThreads, VideoRecorder
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


def first_difference(recorded: RecordedEpisode, found: RecordedEpisode) -> Difference | None:
    """Return the first difference between a recording and its repetition, bit for bit; None if there is none."""
    # The order is that of an episode: start state, then observation, action, state and reward of each step, then the
    # length and the result. Fields that only the repetition has are ignored.
    differences = [
        difference
        for name, array in recorded.arrays.items()
        if name != layout.DONES and (difference := _array_difference(name, array, found.arrays.get(name))) is not None
    ]
    if differences:
        # The earliest step decides, and within a step the first event, so that the cause is named and not its effects.
        step_of = {each.field: -1 if each.step is None else each.step for each in differences}
        return min(
            differences,
            key=lambda each: (step_of[each.field], _PLACES.get(each.field.partition("/")[0], 1), each.field),
        )
    before, now = len(recorded.arrays[layout.ACTIONS]), len(found.arrays[layout.ACTIONS])
    if before != now:
        return Difference(field="num_samples", recorded=str(before), found=str(now))
    return result_difference(recorded.attributes, found.attributes)


def result_difference(
    recorded: Mapping[str, AttributeValue | None], found: Mapping[str, AttributeValue | None]
) -> Difference | None:
    """Return the first attribute of the episode's end that differs; an absent attribute counts as None."""
    for name in ("outcome", "success", "termination", "episode_return", "metrics", "error"):
        values: list[Any] = [recorded.get(name), found.get(name)]
        if name == "metrics":
            values = [json.loads(value) if isinstance(value, str) else value for value in values]
        both_nan = all(isinstance(value, float) and math.isnan(value) for value in values)
        if values[0] != values[1] and not both_nan:
            before, now = ("not there" if value is None else str(value) for value in values)
            return Difference(field=name, recorded=before, found=now)
    return None


def _array_difference(name: str, recorded: np.ndarray, found: np.ndarray | None) -> Difference | None:
    """Return the first difference between two recordings of an array, bit for bit; None if there is none."""
    at_start = name.startswith(f"{layout.INITIAL_STATE}/")
    # A difference of another kind exists from the first step on.
    of_kind = partial(Difference, field=name, step=None if at_start else 0, at_start=at_start)
    if found is None:
        return of_kind(recorded="recorded", found="absent")
    if recorded.dtype != found.dtype:
        return of_kind(recorded=str(recorded.dtype), found=str(found.dtype))
    # An array without steps counts as one step.
    whole = at_start or recorded.ndim == 0 or found.ndim == 0
    before, now = (recorded[None], found[None]) if whole else (recorded, found)
    if before.shape[1:] != now.shape[1:]:
        return of_kind(recorded=f"of shape {recorded.shape}", found=f"of shape {found.shape}")

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
        step=None if whole else step,
        at_start=whole,
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
        other = [f"the environment is not the one that was recorded: {each}" for each in self.contents]
        return other + [f"when this was recorded, {each}" for each in self.other_provenance]


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """The settings of a replay. On a CPU none of them changes a bit of the result."""

    num_envs: int  # env slots; fewer if there are fewer episodes
    device: torch.device
    num_threads: int  # of the physics
    may_import: bool = False  # whether code that a recording names may be loaded; see `recorded_environment_job`


_Read = TypeVar("_Read")


def rerun(
    files: Mapping[int, Path],
    settings: ReplaySettings,
    tell: Callable[[ReplayedEpisode], None],
    observers: Sequence[Observer] = (),
) -> None:
    """Simulate recorded episodes again, without their policy. `files`: the file of each episode, by index."""
    # `ConfigError` if a recording cannot be read or names no known environment; `ArenaError` if it does not fit it.
    # `tell` gets each episode before the observers learn of its end.

    def read(reader: Callable[..., _Read], file: Path, *index: int) -> _Read:
        # The user named the recording, so its error is one of the command line.
        try:
            return reader(file, *index)
        except StorageError as error:
            text = str(error)
            raise ConfigError(Problem(text, file=None if str(file) in text else str(file))) from error

    def intact(indices: Sequence[int], damaged: list[ReplayedEpisode]) -> Iterator[RecordedEpisode]:
        for index in indices:
            episode = read(read_episode, files[index], index)
            if checksum(episode.arrays) == episode.attributes.get("checksum"):
                yield episode
            else:
                actions = episode.arrays.get(layout.ACTIONS)
                num_steps = 0 if actions is None or actions.ndim == 0 else len(actions)
                damaged.append(ReplayedEpisode(episode_index=index, num_steps=num_steps, is_damaged=True))

    # Episodes of one environment are replayed together, whichever files they are in.
    env_args = {file: json.dumps(read(read_env_args, file), sort_keys=True) for file in dict.fromkeys(files.values())}
    ordered = sorted(files, key=lambda index: (env_args[files[index]], index))
    for _, group in groupby(ordered, key=lambda index: env_args[files[index]]):
        indices, damaged = list(group), list[ReplayedEpisode]()
        file = files[indices[0]]
        first = read(read_episode, file, indices[0])
        with process.put_back("an environment"):
            job = validation.recorded_environment_job(
                first.env_args,
                source=str(file),
                num_envs=min(settings.num_envs, len(indices)),
                cameras=recorded_observations(first) is RecordedObservations.ALL,
                may_import=settings.may_import,
            )
            # Free its arrays, which may hold pictures, before the replay.
            del first
            contents = ContentReader().environment(job)
            environment = job.build_environment(device=settings.device, num_threads=settings.num_threads)
            with closing(environment):
                now = {**provenance_on(settings.device), **environment.provenance()}
                recordings = intact(indices, damaged)
                # A damaged recording may lack its observations.
                if (whole := next(recordings, None)) is not None:
                    judge = ReplayJudge(environment, recorded_observations(whole), tell, now, contents)
                    replay_in(environment, chain((whole,), recordings), [judge, *observers])
        for episode in damaged:
            tell(episode)


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


class ReplayJudge(Observer):
    """Collects the arrays of each replay, to compare them with the recording at its end."""

    def __init__(
        self,
        environment: Environment,
        observations: RecordedObservations,
        tell: Callable[[ReplayedEpisode], None],
        now: Provenance,
        contents: Mapping[str, str],
    ) -> None:
        self._tell, self._now, self._contents = tell, now, contents
        self._arrays = EpisodeArrays(environment, observations)
        self.sees_pictures = observations is RecordedObservations.ALL

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        """Begin the arrays of the episodes."""
        del environment, observation
        self._arrays.start([start.env_id for start in starts])

    def on_step(self, environment: Environment, transition: Transition) -> None:
        """Add a control step."""
        del environment
        self._arrays.append(transition)

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
            values = {name: recorded.attributes.get(name) for name in values}
        values |= {"episode_return": record.episode_return, "metrics": json_line(record.metrics)}
        found = RecordedEpisode(
            episode_index=recorded.episode_index,
            arrays=self._arrays.take(record.env_id),
            attributes={name: value for name, value in values.items() if value is not None},
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
        changed = () if contents is None else changes(of_environment, self._contents)
        was = {name: value for name, value in recorded.provenance.items() if name != SERVED_MODEL}
        groups = {name.partition("/")[0] for name in recorded.arrays} - {layout.DONES}
        self._tell(
            ReplayedEpisode(
                episode_index=recorded.episode_index,
                num_steps=len(recorded.arrays[layout.ACTIONS]),
                difference=first_difference(recorded, found),
                pose_difference=max(known) if known and len(known) == len(distances) else None,
                from_exact_state=bool(record.episode.start_state),
                compared=tuple(sorted(groups, key=lambda name: (_PLACES.get(name, 1), name))),
                other_provenance=told_changes(was, self._now),
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
        if choice is Choice.REASONS:
            # For each decisive event three failures, as many as the report shows; no errors.
            groups: dict[str | None, list[int]] = {}
            for line in sorted(lines, key=lambda line: line.episode_index):
                if line.success is False and line.outcome is not Outcome.ERROR:
                    groups.setdefault(line.events and line.events.decisive, []).append(line.episode_index)
            chosen[job] = sorted(index for indices in groups.values() for index in indices[:3])
            continue
        if choice is Choice.ONE:
            # First failure, else first success, else first error.
            lines = sorted(lines, key=lambda line: (line.outcome is Outcome.ERROR, line.success is True))[:1]
        # An error, and an episode without a measured success, count as failures, as for ``--video_episodes failures``.
        chosen[job] = [
            line.episode_index
            for line in lines
            if choice in {Choice.ALL, Choice.ONE} or (line.success is True) == (choice is Choice.SUCCESSES)
        ]
    return chosen


def discordant_episodes(run: Path, jobs: Sequence[str], baseline: str) -> dict[str, list[int]]:
    """Return the episodes that ended differently from those with the same conditions in the baseline."""
    # The baseline is the directory of another run, whose jobs are paired by name, or a job of this run. A single job
    # pairs with a single job. `ConfigError` if there is no baseline, or no job can be paired with it.
    from isaaclab_arena.analysis.arms import differences_of_tasks, match, named_arm, read_run  # noqa: PLC0415  pandas

    arms = read_run(run).arms
    if (Path(baseline) / layout.RUN_PLAN_FILE).is_file():
        chosen, others = [arms[job] for job in jobs], read_run(Path(baseline)).arms
        pairs = [(arm, others[arm.entry.name]) for arm in chosen if arm.entry.name in others]
        if len(chosen) == len(others) == 1:
            pairs = [(chosen[0], next(iter(others.values())))]
    else:
        other = named_arm(arms, baseline, option="--baseline")
        pairs = [(arms[job], other) for job in jobs if job != baseline]

    # Only jobs of the same task can be compared.
    differences = [differences_of_tasks(*pair) for pair in pairs]
    if all(differences):
        reasons = [
            f"{first.label} is no pair of {second.label}: {', '.join(different)}"
            for (first, second), different in zip(pairs, differences, strict=True)
        ]
        problem = "; ".join([f"no job can be compared with '{baseline}'", *reasons])
        raise ConfigError(Problem(problem, key="--baseline"))

    found: dict[str, set[int]] = {}
    for (first, second), different in zip(pairs, differences, strict=True):
        if different:
            continue
        matched = match(first, second).without_errors()
        is_discordant = np.not_equal(matched.first.success, matched.second.success)
        indices = matched.first.index[is_discordant].tolist()
        found.setdefault(first.entry.name, set()).update(indices)
        # The baseline's own episodes are filmed too, if it is a job of this run.
        if second.directory == first.directory:
            found.setdefault(second.entry.name, set()).update(indices)
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
        directory, config = run / name, configs[name]
        lines = {line.episode_index: line for line in read_commits(directory, name).lines}
        located, problems = locate_episodes(directory, name)
        # The film's name holds the env slot, and the rebuild of a job with several.
        rebuilds: Sequence[range] = ()
        if config.num_rebuilds > 1 and config.num_episodes is not None:
            rebuilds = split_evenly(config.num_episodes, config.num_rebuilds)
        files: dict[int, Path] = {}
        places: dict[int, tuple[int, int | None]] = {}
        for index in indices:
            line, reason = lines.get(index), "it has not finished"
            if line is not None:
                if (file := file_with(located.get(index, ()), index, line.checksum)) is not None:
                    rebuild = next((number for number, own in enumerate(rebuilds) if index in own), None)
                    files[index], places[index] = file, (line.env_id, rebuild)
                    continue
                reason = "; ".join(["there is no recording of it", *problems])
            tell(FilmedEpisode(job=name, episode_index=index, reason=reason))
        if not files:
            continue
        recorder = _Recorder(
            (output_directory or run) / name,
            name,
            options,
            threads=FilmThreads(settings.num_threads),
            places=places,
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
            for index in [index for index in files if index not in recorder.told]:
                tell(FilmedEpisode(job=name, episode_index=index, reason=first_line(error)))


@dataclass(eq=False, kw_only=True)
class _Recorder(VideoRecorder):
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

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        """Keep the film if the replay equals the recording, with the recorded outcome."""
        index = record.episode.episode_index
        replayed, line = self._replayed.pop(index), self.lines[index]
        film = self.films.get(environment, {}).get(record.env_id)
        films = () if film is None else tuple(file.path for file in film.files.values())
        apart, reason = replayed.pose_difference, None
        if not films:
            reason = "its environment has no such cameras"
        # Poses that are less than 1e-3 [m, rad] apart make the same picture, give or take a pixel.
        elif replayed.difference is not None and (apart is None or apart > 1e-3):
            reason = "; ".join([f"it came out otherwise, {replayed.difference}", *replayed.surroundings])
        if reason is not None:
            if film is not None:
                del self.films[environment][record.env_id]
                film.discard()
            self._told(index, reason=reason)
            return
        # A replayed episode ends with its last action, even if the run cut it off. The film shows the recorded outcome.
        super().on_episode_end(environment, replace(record, outcome=line.outcome, success=line.success))
        self._told(index, films=films, pose_difference=0.0 if replayed.difference is None else apart or 0.0)

    def _told(self, index: int, **result: Any) -> None:
        self.told.add(index)
        self.tell(FilmedEpisode(job=self.job, episode_index=index, **result))
