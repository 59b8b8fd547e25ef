"""Read what the ranks of a run have written so far, and tell trackers what is new."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isaaclab_arena.errors import first_line
from isaaclab_arena.interfaces.content import holds_secret
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.results.console import job_settings
from isaaclab_arena.results.freshness import sizes_of_sources
from isaaclab_arena.results.merge import answers_in, as_answered, merge_results, read_evidence, records
from isaaclab_arena.results.rows import JobEvidence, answer_cells, distinct_cells, job_row, repeats_in_words
from isaaclab_arena.results.stopping import Answer
from isaaclab_arena.storage.commits import CommitLog, JobResultStatus, read_commits
from isaaclab_arena.storage.layout import job_directory
from isaaclab_arena.storage.run_plan import PlanEntry, RunPlan, contents_in_effect, read_attempts, times_rerun
from isaaclab_arena.storage.videos import videos_of_job
from isaaclab_arena.tracking.checkpoint_steps import checkpoint_step, series_name
from isaaclab_arena.tracking.tracker import CheckpointMeasures, FailureFilm, JobMeasures, TrackedRun, Tracker

MAX_FILMS_OF_A_JOB = 8
"""So many videos of failures of a job are sent; they are what takes time and space."""

_MEASURES = (
    *("success_rate", "success_low", "success_high", "mean_length", "mean_return"),
    *("failures", "timeouts", "errors", "distinct_conditions"),
)
_ENDED = {JobResultStatus.COMPLETED, JobResultStatus.FAILED}
_FAILED = {Outcome.FAILURE, Outcome.TIMEOUT, Outcome.ERROR}
_LOG = logging.getLogger(__name__)


class OpenedTracker:
    """A tracker that opens when it is first told something. Its first failure is warned of, and ends it.

    Args:
        name: What messages call it.
        opened: Makes the tracker.

    Attributes:
        failure: What went wrong, None as long as nothing has.
        place: Where the results are, once it is closed.
    """

    def __init__(self, name: str, opened: Callable[[], Tracker]) -> None:
        self.name = name
        self.failure: str | None = None
        self.place: str | None = None
        self._opened = opened
        self._tracker: Tracker | None = None

    def tell(self, say: Callable[[Tracker], None]) -> None:
        """Tell it something, unless it has failed."""
        if self.failure is not None:
            return
        try:
            self._tracker = self._tracker or self._opened()
            say(self._tracker)
        except Exception as error:  # noqa: BLE001  a service's library may fail in any way, and no run ends for it
            self.failure = first_line(error)
            _LOG.warning("%s gets no more results of this run, which goes on: %s", self.name, self.failure)

    def open(self) -> None:
        """Open it now, which may take seconds."""
        self.tell(lambda _: None)

    def close(self) -> None:
        """Finish, and keep where the results are."""

        def finish(tracker: Tracker) -> None:
            self.place = tracker.close()

        self.tell(finish)


class WatchedRun:
    """A run whose files are read again and again, and what is new in them.

    Args:
        output_directory: The run's directory.
        plan: What the run set out to do.
        trackers: Those that are told of it.
    """

    def __init__(self, output_directory: Path, plan: RunPlan, trackers: Sequence[OpenedTracker]) -> None:
        self._output_directory = output_directory
        self._plan = plan
        self._jobs = {job.name: job for job in plan.jobs}
        self._trackers = trackers
        attempts, _ = read_attempts(output_directory, plan.run_id)
        self._contents = contents_in_effect(plan.jobs, attempts)
        self._times_rerun = times_rerun(attempts)
        self._sizes: Mapping[str, int] = {}
        self._logs: dict[str, CommitLog] = {}
        self._answers: tuple[Answer, ...] = ()
        self._told: dict[str, JobMeasures] = {}
        self._curves: dict[str, CheckpointMeasures] = {}
        self._failed: dict[str, dict[int, Outcome]] = {}
        self._filmed: dict[str, set[Path]] = {}
        self._rows: dict[str, dict[str, Any]] = {}

    def look(self) -> None:
        """Read the files that have grown since the last look, and tell the trackers what they say."""
        rows = dict(self._rows)
        self._look_at_what_has_grown()
        if rows != self._rows:
            self._tell_table([self._rows[name] for name in self._jobs if name in self._rows])

    def finish(self) -> None:
        """Look once more, tell the trackers the final table, and close them."""
        self._look_at_what_has_grown()
        for name in self._failed:
            # The last films are complete after the last commit line.
            self._tell_films(name)
        rows = records(merge_results(self._output_directory).jobs)
        for row in rows:
            # Where jobs stop as soon as a question is answered, the table alone knows which episodes count.
            self._tell_row(self._jobs[str(row["name"])], row)
        self._tell_table(rows)
        for tracker in self._trackers:
            tracker.close()

    def _look_at_what_has_grown(self) -> None:
        sizes = sizes_of_sources(self._output_directory)
        changed = {file.partition("/")[0] for file, size in sizes.items() if self._sizes.get(file) != size}
        self._sizes = sizes
        grown = changed & self._jobs.keys()
        for name in grown:
            seed = self._jobs[name].config.seed
            self._logs[name] = read_commits(job_directory(self._output_directory, name), name, seed=seed)
        self._answers = answers_in(self._plan, self._logs) if grown else self._answers
        # The episodes of one job may be what answers the question that another one waits for.
        asked = {job for answer in self._answers if grown & {*answer.question.jobs} for job in answer.question.jobs}
        for name, job in self._jobs.items():
            if name in grown | (asked & self._logs.keys()):
                self._look_at(job)

    def _look_at(self, job: PlanEntry) -> None:
        evidence = self._evidence(job)
        row = job_row(evidence) | (answer_cells(evidence) if self._answers else {})
        self._failed[job.name] = {
            line.episode_index: line.outcome for line in evidence.lines if line.outcome and line.outcome in _FAILED
        }
        self._tell_films(job.name)
        self._tell_row(job, row | distinct_cells(evidence))
        if row["status"] in _ENDED:
            self._rows[job.name] = row

    def _evidence(self, job: PlanEntry) -> JobEvidence:
        log = self._logs[job.name]
        read = read_evidence(self._output_directory, job, [], run=self._plan.run_id, same_conditions=True, commits=log)
        evidence = as_answered(read, log, self._answers)
        return replace(evidence, contents=self._contents[job.name], times_rerun=self._times_rerun[job.name])

    def _tell(self, say: Callable[[Tracker], None]) -> None:
        for tracker in self._trackers:
            tracker.tell(say)

    def _tell_row(self, job: PlanEntry, row: Mapping[str, Any]) -> None:
        """Tell what is known of a job, and of its checkpoint once it has ended, unless it has been told."""
        values = {name: float(row[name]) for name in _MEASURES if row.get(name) is not None}
        if repeats_in_words(row) is None:
            values.pop("distinct_conditions", None)
        measures = JobMeasures(job=job.name, episodes=int(row["episodes"]), values=values)
        if measures.episodes and self._told.get(job.name) != measures:
            self._told[job.name] = measures
            self._tell(lambda tracker: tracker.log_job(measures))
        if row["status"] in _ENDED:
            self._tell_checkpoint(job, values)

    def _tell_table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._tell(lambda tracker: tracker.log_table(rows))

    def _tell_checkpoint(self, job: PlanEntry, values: Mapping[str, float]) -> None:
        found = checkpoint_step(job.config.swept)
        if found is not None:
            key, step = found
            series = series_name(job.config.environment, job.config.swept, key)
            measures = CheckpointMeasures(series=series, step=step, values=values)
            if self._curves.get(job.name) != measures:
                self._curves[job.name] = measures
                self._tell(lambda tracker: tracker.log_checkpoint(measures))

    def _tell_films(self, job: str) -> None:
        filmed, failed = self._filmed.setdefault(job, set()), self._failed[job]
        for said, path in videos_of_job(self._output_directory, job) if failed else ():
            if said.episode_index not in failed or path in filmed or len(filmed) >= MAX_FILMS_OF_A_JOB:
                continue
            filmed.add(path)
            outcome = str(failed[said.episode_index])
            film = FailureFilm(job=job, episode_index=said.episode_index, outcome=outcome, path=path)
            self._tell(lambda tracker, film=film: tracker.log_film(film))


def tracked_run(output_directory: Path, plan: RunPlan, directory: Path) -> TrackedRun:
    """Return a run as services show it.

    Args:
        output_directory: The run's directory, after which it is called.
        plan: What it set out to do.
        directory: Where files of services lie that run on no server.
    """
    return TrackedRun(
        run_id=plan.run_id,
        name=output_directory.resolve().name,
        directory=directory,
        settings={
            "config_hash": plan.config_hash,
            "source_file": plan.source_file,
            "created_at": plan.created_at,
            "git_revision": plan.git_revision,
            "world_size": plan.world_size,
            "devices": ", ".join(plan.devices),
            "cpu": plan.machine.cpu,
            "versions": dict(plan.versions),
            "options": dict(plan.settings),
        },
        jobs={job.name: _without_secrets(job_settings(job)) for job in plan.jobs if job.is_to_run},
    )


def _without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if not holds_secret(key)}
