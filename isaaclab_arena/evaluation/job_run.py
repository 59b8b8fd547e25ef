"""The jobs of a rank, one after the other: build, run its episodes, report."""

import logging
import random
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from isaaclab_arena.config.schema import JobConfig, compared_groups
from isaaclab_arena.distributed.context import DistributedContext
from isaaclab_arena.distributed.devices import default_num_threads
from isaaclab_arena.distributed.ranks import ClaimsLostError
from isaaclab_arena.errors import ConfigError, DamagedFileError, DiskUnusableError, JobTimeoutError
from isaaclab_arena.evaluation.batching import PolicyWrapper
from isaaclab_arena.evaluation.builds import BuiltGroups, GroupBuilder, RankSettings, StartUpClock
from isaaclab_arena.evaluation.heartbeat import RankState, StatusPublisher
from isaaclab_arena.evaluation.job import Job, provenance_on, with_length
from isaaclab_arena.evaluation.latency import QueryTimes, late_groups
from isaaclab_arena.evaluation.planning import AnswerWatch, RunRequest
from isaaclab_arena.evaluation.process import Watchdog, put_back
from isaaclab_arena.evaluation.queues import DynamicQueue, FixedQueue, FixedShare, Task
from isaaclab_arena.evaluation.rollout import EnvGroup, pipelined_rollout, rollout
from isaaclab_arena.evaluation.running_episodes import Phase, RolloutLimits, RolloutResult, Stopwatch
from isaaclab_arena.evaluation.validation import environment_args
from isaaclab_arena.interfaces.environment import Environment
from isaaclab_arena.interfaces.episode import EpisodeRecord, Metric, split_evenly
from isaaclab_arena.interfaces.observer import EpisodeStart, Observer, Transition, WatchedStart
from isaaclab_arena.interfaces.policy import PolicyBase
from isaaclab_arena.interfaces.specs import Observation
from isaaclab_arena.logs import heard_by, plain_text
from isaaclab_arena.paths import now
from isaaclab_arena.policy.replay import MeanActionPolicy
from isaaclab_arena.policy.zero_action_policy import RandomActionPolicy, ZeroActionPolicy
from isaaclab_arena.recording.recorder import EpisodeRecorder, RecordedObservations, recorded_entries
from isaaclab_arena.storage.atomic import storage_errors
from isaaclab_arena.storage.contents import SERVED_MODEL
from isaaclab_arena.storage.episode_file import Compression
from isaaclab_arena.storage.layout import traceback_file_name
from isaaclab_arena.storage.ledger import (
    Attempt,
    JobReport,
    RecordedEntries,
    ReportedStatus,
    Reproducible,
    ServerUsage,
    write_job_report,
)

if TYPE_CHECKING:
    from isaaclab_arena.recording.video import VideoRecorder


# One job under way on a rank: build or reuse its environments and policies, run its episodes, report on it.

_LOG = logging.getLogger(__name__)
_DEAF = ZeroActionPolicy | RandomActionPolicy | MeanActionPolicy


Writers: TypeAlias = "tuple[EpisodeRecorder | None, VideoRecorder | None]"
"""The writers of a job's recordings and films, None until the first environment is built."""


@dataclass(eq=False)
class JobRun:
    """One job under way, and its results so far."""

    job: Job
    directory: Path  # of the job's files
    builder: GroupBuilder
    watchdog: Watchdog
    start_up_clock: StartUpClock
    instructions: "_InstructionWatch"
    stopwatch: Stopwatch = field(default_factory=Stopwatch, init=False)
    results: list[RolloutResult] = field(default_factory=list, init=False)
    _started_at: str = field(default_factory=now, init=False)
    _writers: Writers = field(default=(None, None), init=False)
    _query_times: QueryTimes = field(default_factory=QueryTimes, init=False)
    _num_episodes: int | None = field(default=None, init=False)  # as far as only the policy knows it
    _pictures_drawn: int = field(default=0, init=False)
    _server_usage: ServerUsage | None = field(default=None, init=False)
    _built: BuiltGroups | None = field(default=None, init=False)
    _simulated_by: dict[str, str] | None = field(default=None, init=False)
    _metrics: tuple[Metric, ...] = field(default=(), init=False)
    _entries: dict[str, RecordedEntries] | None = field(default=None, init=False)

    def close_files(self, *, is_whole: bool) -> "Writers | None":
        """Close the job's files. Return those to consolidate, if the job `is_whole` and was not interrupted."""
        self.stopwatch.go_on()
        writers, self._writers = self._writers, (None, None)
        recorder, videos = writers
        with self.stopwatch.measure(Phase.RECORD), ExitStack() as stack:
            # Complete the films of finished episodes. Recorded episodes stay in their own files.
            for writer in (videos, recorder):
                if writer is not None:
                    stack.callback(writer.close)
            if is_whole and recorder is not None and not any(each.interrupted for each in self.results):
                # Release environments and unfinished episodes. Films of finished episodes are still encoded.
                if videos is not None:
                    videos.begin_rebuild(())
                recorder.close()
                stack.pop_all()
                return writers
        return None

    def rebuilds(
        self, task: Task
    ) -> Generator[tuple[JobConfig, Iterable[int], Sequence[EnvGroup], Sequence[Observer]]]:
        """Yield each rebuild that has episodes left: job with its length, episodes, groups, and file writers."""
        # The loop over the rebuilds plays the episodes, and appends to `results` before it takes the next rebuild. An
        # interrupted one is the last. Call `close_files` after the loop.
        job, num_rebuilds, has_run = self.job, self.job.config.num_rebuilds, False
        if not self.results:
            # This package draws from none of these generators, but foreign policies do. Without the seed, the results
            # of a job would depend on the jobs before it, so on the number of ranks.
            torch.manual_seed(job.config.seed)  # noqa: TID251  the one place, for policies from elsewhere
            np.random.seed(job.config.seed % 2**32)  # noqa: TID251  the one place, for policies from elsewhere
            random.seed(job.config.seed)
        for rebuild in range(num_rebuilds):
            # The indices stay None if only the policy knows them.
            indices: Iterable[int] | None = None
            if job.config.num_episodes is not None:
                ahead = task.take(split_evenly(job.config.num_episodes, num_rebuilds)[rebuild])
                first = next(ahead, None)
                if first is None:
                    continue
                indices = chain((first,), ahead)

            groups = self._build(task, again=has_run, rebuild=rebuild)
            has_run = True

            # Some policies hold the number of episodes, so the indices follow only after the build.
            policy = self.instructions.policy = groups[0].policy
            config = with_length(job.config, policy)
            self._num_episodes = config.num_episodes
            if indices is None and config.num_episodes is not None:
                indices = task.take(split_evenly(config.num_episodes, num_rebuilds)[rebuild])
            elif indices is None:
                # A job limited by steps, whose episodes may have no end.
                ends = [] if job.saved_conditions is None else [len(job.saved_conditions)]
                ends += [] if config.max_episodes is None else [config.max_episodes]
                started = sum(result.finished_episodes + result.cut_episodes for result in self.results)
                indices = takewhile(
                    lambda index, policy=policy: not task.is_over() and policy.can_play(index),
                    range(started, min(ends)) if ends else count(started),
                )
            if not self.results:
                # The rank may die at any moment from here on, so the report exists before the first episode.
                write_job_report(self.directory, self.report(ReportedStatus.BEGUN))

            # Count the pictures drawn and the queries to a policy server.
            network = None if self._built is None else self._built.network
            drawn, used = sum(each.environment.pictures_drawn or 0 for each in groups), network and network.usage
            if network is not None:
                network.seen = None
            try:
                yield config, indices, groups, [writer for writer in self._writers if writer is not None]
            finally:
                self._pictures_drawn += sum(each.environment.pictures_drawn or 0 for each in groups) - drawn
                if network is not None and used is not None:
                    self._server_usage = (self._server_usage or ServerUsage()) + (network.usage - used)
            if self.results[-1].interrupted:
                return
        if not self.results:
            # All episodes had finished before. The report still needs to know whether the job is bitwise reproducible.
            self._build(task, again=False, rebuild=None)

    def report(
        self, status: ReportedStatus | None = None, *, error: str | None = None, traceback_file: str | None = None
    ) -> JobReport:
        """Return the job's report. `status` None: failed if there is an `error`, else according to its episodes."""
        interrupted = any(result.interrupted for result in self.results)
        ended = ReportedStatus.INTERRUPTED if interrupted else ReportedStatus.COMPLETED
        settings, stopwatch, built = self.builder.settings, self.stopwatch, self._built
        promise = None
        if built is not None:
            promise = Reproducible.BITWISE if built.plan_because is None else Reproducible.PLAN
        wall_s = stopwatch.elapsed_s()
        return JobReport(
            job=self.job.config.name,
            rank=settings.context.rank,
            attempt=settings.attempt.number,
            run=settings.attempt.run,
            device=str(settings.context.device),
            status=status or (ReportedStatus.FAILED if error else ended),
            started_at=self._started_at,
            ended_at=now(),
            wall_s=wall_s,
            build_s=stopwatch.seconds[Phase.BUILD],
            simulate_s=stopwatch.seconds[Phase.SIMULATE],
            policy_s=stopwatch.seconds[Phase.POLICY],
            render_s=stopwatch.seconds[Phase.RENDER],
            record_s=stopwatch.seconds[Phase.RECORD],
            idle_s=max(0.0, wall_s - sum(stopwatch.seconds.values())),
            start_up=self.start_up_clock.start_up(),
            env_steps=self.start_up_clock.env_steps,
            pictures_drawn=self._pictures_drawn,
            pictures_looked_at=stopwatch.pictures_looked_at,
            num_episodes=self.job.config.num_episodes if self._num_episodes is None else self._num_episodes,
            cut_episodes=sum(result.cut_episodes for result in self.results),
            reproducible=promise,
            plan_because=None if built is None else built.plan_because,
            remarks=self.instructions.remarks,
            policy_batch=None if built is None else built.policy_batch,
            policy_server=self._server_usage,
            query_s=None if self.job.config.latency is None else tuple(self._query_times.kept_s),
            query_pace=self._query_times.pace,
            processor=settings.provenance.get("cpu"),
            device_kind=settings.provenance.get("device"),
            simulated_by=self._simulated_by,
            metrics=self._metrics,
            entries=self._entries,
            error=error,
            traceback_file=traceback_file,
        )

    def _build(self, task: Task, *, again: bool, rebuild: int | None) -> Sequence[EnvGroup]:
        """Return the groups of the job's env slots, and have the job's files begin a `rebuild`, if any."""
        # The previous job's groups are reused if they are equal, unless they are built `again`.
        if again:
            self.builder.clear()
        config, settings = self.job.config, self.builder.settings
        state, silence_s = settings.attempt.state(config.name), settings.options.build_timeout_s
        guarded = self.watchdog.guard(config.name, silence_s=silence_s, missing="has not been built in")
        with guarded, self.stopwatch.measure(Phase.BUILD):
            built = self.builder.build(self.job, self.directory, self.start_up_clock)
        if built.plan_because is not None and self._built is None:
            # The batch size that an earlier start settled may fail on this machine, which deserves a warning.
            level = logging.INFO if state.policy_batch is None else logging.WARNING
            _LOG.log(level, "job '%s': episodes will repeat, but not bit for bit: %s", config.name, built.plan_because)
        if self._built is None:
            # Called once, because it may hash the whole model.
            self._simulated_by = dict(built.groups[0].environment.provenance())
            # An environment of the user's own may call something else ``metrics``.
            declared = built.groups[0].environment.metrics, built.groups[0].policy.traits.metrics
            own = (each for metrics in declared if isinstance(metrics, tuple) for each in metrics)
            self._metrics = tuple(each for each in own if isinstance(each, Metric))
            self._entries = recorded_entries(built.groups[0].environment)
        self._built = built
        # Another num_envs changes the last digits, so earlier and later episodes would not belong to one result.
        if state.num_envs is not None and built.plan_because is not None:
            raise ConfigError(
                f"job '{config.name}' cannot resume with num_envs {config.num_envs}: its episodes ran with "
                f"{state.num_envs}, and do not repeat bit for bit ({built.plan_because}); use {state.num_envs} again"
            )
        groups = built.groups
        if config.latency is not None:
            groups = late_groups(groups, config.latency, self.job.delays, self.job.latencies_ms, self._query_times)
        if rebuild is None:
            return groups

        # The writers of the job's files are made before its first rebuild.
        environments, (recorder, videos) = [group.environment for group in groups], self._writers
        if recorder is None:
            served = {} if built.served_model is None else {SERVED_MODEL: built.served_model}
            facts = {**settings.provenance, **environments[0].provenance(), **served, "policy_type": config.policy_type}
            recorder = EpisodeRecorder(
                self.directory,
                job=config.name,
                rank=settings.context.rank,
                world_size=settings.context.world_size,
                attempt=settings.attempt.number,
                env_args=environment_args(self.job),
                provenance=facts,
                contents=state.contents,
                write_dataset=not settings.options.no_dataset,
                observations=RecordedObservations(settings.options.record_observations),
                compression=Compression(settings.options.compression),
                remote_commit=settings.remote_commit,
            )
            self._writers = recorder, None
            video = settings.options.video_options()
            if video.camera or video.viewport:
                # Encoders load slowly, and only films need them.
                from isaaclab_arena.recording.video import FilmThreads, VideoRecorder  # noqa: PLC0415  see above

                videos = VideoRecorder(self.directory, config.name, video, threads=FilmThreads(settings.num_threads))
                self._writers = recorder, videos
        # The episodes are those of the current round.
        recorder.may_commit = task.still_holds
        recorder.begin_rebuild(environments)
        if videos is not None:
            videos.begin_rebuild(environments, rebuild if config.num_rebuilds > 1 else None)
        return groups


@dataclass(eq=False)
class _InstructionWatch(Observer):
    """Notices that episodes have different instructions, but the policy never reads them."""

    # Isaac Lab Arena's policies read ``task_description``, which is set once for all env slots.
    sees_pictures = False
    config: JobConfig
    is_settled: bool  # nothing is left to notice
    policy: PolicyBase | None = field(default=None, init=False)
    remarks: tuple[str, ...] = field(default=(), init=False)  # for the report; each is logged as well
    _description: str | None = field(default=None, init=False)
    _before_first_step: defaultdict[int, dict[int, EpisodeStart]] = field(
        default_factory=partial(defaultdict, dict), init=False
    )

    def on_episode_start(
        self, environment: Environment, starts: Sequence[EpisodeStart], observation: Observation
    ) -> None:
        del observation
        if not self.is_settled:
            # A policy may read the instruction as late as its first action.
            self._before_first_step[id(environment)].update((start.env_id, start) for start in starts)

    def on_step(self, environment: Environment, transition: Transition) -> None:
        del transition
        starts = list(self._before_first_step.pop(id(environment), {}).values())
        policy = self.policy
        while isinstance(policy, PolicyWrapper):
            policy = policy.asked
        if self.is_settled or policy is None or not starts:
            return
        # A policy whose actions are recorded or drawn follows no instruction.
        self.is_settled = isinstance(policy, _DEAF) or policy.num_episodes() is not None
        self.is_settled |= any(isinstance(start, WatchedStart) and start.instruction_was_read for start in starts)
        if self.is_settled:
            return
        if self._description is None:
            # A policy that overrides set_task_description may follow its own words, the same in every episode.
            answers = "set_task_description" in policy.offers
            self._description = starts[0].language_instruction if answers else environment.task_description
        other = next((each for start in starts if (each := start.language_instruction) != self._description), None)
        if other is None:
            return
        asked = f"one has '{other:.80}', but set_task_description gave '{self._description:.80}' for all"
        remark = f"policy '{self.config.policy_type}' never reads the instructions in start_episodes: {asked}"
        self.remarks, self.is_settled = (remark,), True
        _LOG.warning("job '%s': %s", self.config.name, remark)

    def on_episode_end(self, environment: Environment, record: EpisodeRecord) -> None:
        # An episode may end before its first step.
        self._before_first_step[id(environment)].pop(record.env_id, None)


# Run one job after the other on a rank, and write a report of each, even if it fails.


@dataclass(kw_only=True)
class JobRunner:
    """Runs jobs one after the other on this rank."""

    settings: RankSettings = field(kw_only=False)
    # Called before every step; True ends the job under way.
    stop_requested: Callable[[], bool] = lambda: False
    # Receives the part of a job's start-up in words, None after its first control step.
    on_part: Callable[[str | None], None] = lambda _: None
    # Receives each report after it is written.
    on_report: Callable[[JobReport], None] = lambda _: None

    def __post_init__(self) -> None:
        self._builder = GroupBuilder(self.settings)
        self._open: dict[str, JobRun] = {}
        self._has_run = False
        self._watchdog = Watchdog(
            self.settings.output_directory / "logs" / f"rank{self.settings.context.rank}.watchdog.txt"
        )

    def run(self, work: Job | Task, observers: Sequence[Observer] = ()) -> JobReport:
        """Run a job, this rank's part of it or a round, and write its report. A failed job is reported, not raised."""
        # Raises `DiskUnusableError` and `ClaimsLostError`, because the next job would fail as well; and `StorageError`
        # if a report cannot be written.
        task = FixedShare(job=work) if isinstance(work, Job) else work
        job, name = task.job, task.job.config.name
        interleaved = self.settings.interleaved.get(name, ())
        # The reports of interleaved jobs are written when another job begins.
        for other in [each for each in self._open if each not in interleaved]:
            self._end(self._open.pop(other))
        directory = self.settings.output_directory / name
        with storage_errors("make", directory):
            directory.mkdir(parents=True, exist_ok=True)

        job_run = self._open.pop(name, None)
        if job_run is None:
            # Jobs after the first import nothing.
            import_s = 0.0 if self._has_run and self.settings.import_s is not None else self.settings.import_s
            self._has_run = True
            clock = StartUpClock(name, import_s=import_s, on_part=self.on_part)
            instructions = _InstructionWatch(job.config, is_settled=bool(job.config.language_instruction))
            job_run = JobRun(job, directory, self._builder, self._watchdog, clock, instructions)
        else:
            self.on_part(None)
        with self._catching_failure(name) as failure:
            try:
                self._play(job_run, task, observers)
            except BaseException:
                job_run.close_files(is_whole=False)
                raise
        if not failure and interleaved and not self.stop_requested():
            self._open[name] = job_run
            job_run.stopwatch.rests_since = time.perf_counter()
            return job_run.report()
        return self._end(job_run, failure)

    def _play(self, job_run: JobRun, task: Task, observers: Sequence[Observer]) -> None:
        """Run this rank's episodes of a job."""
        job, stopwatch, watchdog = job_run.job, job_run.stopwatch, self._watchdog
        name, limit_s, stop_requested = job.config.name, job.config.timeout_s, self.stop_requested

        def must_stop() -> bool:
            watchdog.step_finished()
            if limit_s is not None and stopwatch.elapsed_s() > limit_s:
                raise JobTimeoutError(f"job '{name}' took longer than {limit_s:g} s, its timeout_s")
            return stop_requested()

        # A limit of 0 turns the watchdog off. The time limit of an episode is checked only between two steps.
        silence_s, episode_timeout_s = self.settings.options.step_timeout_s, job.config.episode_timeout_s
        if silence_s > 0 and episode_timeout_s is not None:
            silence_s = episode_timeout_s + 60.0
        # An observer that overrides no hook makes the environment draw every picture.
        eager = [Observer()] if self.settings.options.eager_pictures else []
        stopwatch.go_on()
        # Settings that foreign code changes are put down to the parts of the job with code outside this package; to
        # both if none is known to have any.
        own, classes = {"isaaclab_arena", "isaaclab_arena_gr00t"}, (job.policy_class, type(job.builder.own))
        of_policy, of_builder = (each.__module__.partition(".")[0] not in own for each in classes)
        is_foreign = {
            f"policy '{job.config.policy_type}'": of_policy,
            f"environment '{job.config.environment}'": job.builder.loads_code or of_builder,
        }
        foreign = " or ".join([part for part, is_it in is_foreign.items() if is_it] or is_foreign)
        key = job.environment_key + job.policy_key
        with closing(job_run.rebuilds(task)) as rebuilds:
            for config, indices, groups, writers in rebuilds:
                single = partial(rollout, groups[0].environment, groups[0].policy)
                play = single if len(groups) == 1 else partial(pipelined_rollout, groups)
                with watchdog.guard(name, silence_s=silence_s), self._builder.set_by_code.of(foreign, key):
                    result = play(
                        task.announced(indices),
                        [job_run.start_up_clock, *writers, job_run.instructions, *observers, *eager],
                        language_instruction=job.config.language_instruction,
                        limits=RolloutLimits(
                            max_steps=config.num_steps,
                            max_envs=task.max_envs(config.num_envs),
                            episode_timeout_s=episode_timeout_s,
                        ),
                        stop_requested=must_stop,
                        stopwatch=stopwatch,
                    )
                job_run.results.append(result)

    def close(self) -> None:
        """Close environment and policy, and end the interleaved jobs. Raises like `run`."""
        for name in list(self._open):
            self._end(self._open.pop(name))
        self._builder.clear()

    @contextmanager
    def _catching_failure(self, name: str) -> Iterator[list[str]]:
        """Keep an error of a `with` block to its job. The list then holds its line and the traceback file's name."""
        failure: list[str] = []
        try:
            with put_back():
                yield failure
        except (DiskUnusableError, ClaimsLostError):
            # Neither is the job's fault, and the next job would fail as well.
            raise
        except BaseException as raised:  # noqa: BLE001  a failed job must not take the next one down
            failure += self._noted(raised, name)
            # After a failure the environment and the policy may be in any state, so the next job builds its own.
            self._builder.clear()

    def _end(self, job_run: JobRun, failure: Sequence[str] = ()) -> JobReport:
        """End a job, consolidate its files, and write its report."""
        name = job_run.job.config.name
        is_cut_short = name in self.settings.interleaved and self.stop_requested()
        writers = None
        if not failure:
            with self._catching_failure(name) as failure_at_end:
                writers = job_run.close_files(is_whole=not is_cut_short)
            failure = failure_at_end
        error, traceback_file = failure or (None, None)
        report = job_run.report(error=error, traceback_file=traceback_file)
        if is_cut_short and error is None:
            report = replace(report, status=ReportedStatus.INTERRUPTED)
        if writers is not None:
            begin_s, loss, (recorder, videos) = time.perf_counter(), None, writers
            try:
                with nullcontext() if videos is None else closing(videos):
                    if recorder is not None and self.settings.remote_commit is None:
                        loss = recorder.consolidate().loss
                # The undamaged episodes are in the dataset by now.
                if loss is not None:
                    raise DamagedFileError(loss)  # noqa: TRY301  it is reported as any other error
            except DiskUnusableError:
                raise
            except BaseException as raised:  # noqa: BLE001  a failed job must not take the next one down
                error, traceback_file = self._noted(raised, name)
                report = replace(report, status=ReportedStatus.FAILED, error=error, traceback_file=traceback_file)
            # The report was made before the consolidation, so its time is added here.
            took_s = time.perf_counter() - begin_s
            report = replace(report, ended_at=now(), wall_s=report.wall_s + took_s, record_s=report.record_s + took_s)
        write_job_report(self.settings.output_directory / name, report)
        self.on_report(report)
        return report

    def _noted(self, error: BaseException, name: str) -> tuple[str, str]:
        """Write the traceback of the error being handled. Return the error in a line of valid UTF-8, and the file."""
        settings, message = self.settings, "its message cannot be read"
        # The __str__ of a user's exception may fail.
        with suppress(Exception):
            message = str(error)
        line = f"{type(error).__name__}: {message}" if message else type(error).__name__
        line = (line.splitlines() or [""])[0].encode("utf-8", "backslashreplace").decode("utf-8")
        path = settings.output_directory / name / traceback_file_name(settings.context.rank, settings.attempt.number)
        with storage_errors("write", path):
            path.write_text(plain_text(traceback.format_exc(), keep_lines=True), encoding="utf-8")
        _LOG.error("job '%s' failed; its traceback is in %s", name, path)
        _LOG.debug("%s", traceback.format_exc())
        return line, str(path.relative_to(settings.output_directory))


# Run the jobs that a rank takes from its queue, and publish their progress.


def run_jobs(
    queue: FixedQueue | DynamicQueue,
    request: RunRequest,
    attempt: Attempt,
    context: DistributedContext,
    publisher: StatusPublisher,
    stop_requested: Callable[[], bool],
    *,
    answers: AnswerWatch | None = None,  # None if another process watches the jobs for all ranks
    config_hash: str,  # of the plan, not of the request: they may differ in num_envs in a deterministic run
    **own: Any,  # settings of this rank, see `RankSettings`
) -> RankState:
    """Run the jobs of one rank until its queue is empty. Publish and return the final state."""
    options, num_threads = request.options, request.options.num_threads or default_num_threads(context.local_world_size)
    settings = RankSettings(
        context=context,
        options=options,
        output_directory=publisher.output_directory,
        attempt=attempt,
        import_s=request.import_s,
        provenance={**provenance_on(context.device), "config_hash": config_hash},
        interleaved={name: tuple(sorted(group)) for group in compared_groups(request.questions) for name in group},
        **{"num_threads": num_threads, **own},
    )

    def on_report(report: JobReport) -> None:
        if report.status is not ReportedStatus.INTERRUPTED:
            publisher.finish_job(failed=report.status is ReportedStatus.FAILED)
        _LOG.debug("job '%s' %s after %.1f s", report.job, report.status, report.wall_s)

    runner = JobRunner(
        settings,
        stop_requested=stop_requested,
        on_part=publisher.prepare,
        on_report=on_report,
    )
    state = RankState.FINISHED
    try:
        while not stop_requested() and (task := queue.next_job()) is not None:
            config = task.job.config
            publisher.start_job(config.name, num_episodes=task.num_episodes)
            with heard_by(publisher.set_long_work):
                report = runner.run(task, [publisher, *task.observers, *([] if answers is None else [answers])])
            failed = report.status is ReportedStatus.FAILED
            failed = failed or (answers is not None and answers.fails(config.name, config.num_episodes))
            if report.status is not ReportedStatus.INTERRUPTED:
                publisher.leave_job()
                queue.job_ended(task, failed=failed)
            if failed and options.fail_fast:
                state = RankState.FAILED
                break
    finally:
        runner.close()
    # A stop outranks every other state. After answered questions the remaining episodes are not needed.
    if stop_requested():
        state = RankState.INTERRUPTED
    elif request.questions:
        publisher.update(episodes_total=publisher.status.episodes_done)
    publisher.publish(state=state)
    return state
