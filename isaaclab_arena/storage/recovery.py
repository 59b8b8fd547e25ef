"""The recovery of a run's directory after a crash: its diagnosis, its repairs, and the rest of the work."""

import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import TypeAlias

from isaaclab_arena.config.schema import RESERVED_NAMES
from isaaclab_arena.errors import ConfigError, DamagedFileError, Problem, StorageError
from isaaclab_arena.interfaces.episode import Outcome, as_ranges, contain
from isaaclab_arena.logs import told
from isaaclab_arena.paths import not_a_plain_file
from isaaclab_arena.storage import atomic, layout, ledger
from isaaclab_arena.storage.commits import CommitLine, CommitLog, CommitWriter, contradiction, parse_line, read_commits
from isaaclab_arena.storage.dataset import consolidate, make_dataset
from isaaclab_arena.storage.episode_file import AttributeValue, parsed_mapping
from isaaclab_arena.storage.episodes import examine_episodes, in_words, list_episodes, read_attributes, read_checksums
from isaaclab_arena.storage.ledger import JobReport, JobResultStatus, job_standing, read_job_reports

# Set episodes aside in ``set_aside/`` of the job, and clean up after dead processes: temporary files, and episode files
# outside a dataset.
#
# Each function may be interrupted at any point and called again. Nothing is lost, and nothing is kept twice.

_LOG = logging.getLogger(__name__)
_LINES_AND_REPORTS = (layout.COMMIT_FILE_PATTERN, layout.JOB_REPORT_PATTERN, layout.JOB_BEGUN_PATTERN)
_TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
"""Names that `atomic.temporary_path` and the ranks' status files give: ``.<name>.<host>.<pid>.tmp``, host or not."""


def keep_episode_aside(dataset: Path, episode_index: int, directory: Path) -> None:
    """Copy an intact episode of a dataset into a file of its own in a directory."""
    name = layout.episode_file_name(episode_index)
    checksum = read_attributes(dataset, episode_index).get("checksum")
    for kept in takewhile(Path.exists, atomic.names_aside(directory, name)):
        with suppress(DamagedFileError):
            if read_attributes(kept, episode_index).get("checksum") == checksum:
                return
    make_dataset([(episode_index, dataset)], atomic.free_name(directory, name))


def consolidate_leftovers(job_directory: Path, job: str) -> tuple[list[str], str | None]:
    """Copy committed episodes that still have files of their own into the datasets that their lines name."""
    # Return notes for the user, and the finished episodes that lost their recording with the remedy, None without any.
    #
    # All ranks of the run must have ended. The files come from ranks that died while others finished the job.
    files = list(ledger.episode_files(job_directory))
    lines = {line.episode_index: line for line in read_commits(job_directory, job).lines}
    parts: defaultdict[str, list[Path]] = defaultdict(list)
    notes: list[str] = []
    # Only a file whose checksum matches its commit line may enter a dataset.
    for path, index in told(files, "checking", f"job '{job}'"):
        line = lines.get(index)
        if line is not None and line.checksum is not None:
            with suppress(DamagedFileError):
                if read_checksums(path, [index]) == [line.checksum]:
                    parts[dataset_named_by(line)].append(path)
                    continue
        notes.append(f"job '{job}': {path} does not match a commit line; it stays where it is")
    notes += consolidate_parts(job_directory, job, parts)
    recorded = {index for path in ledger.datasets(job_directory, job) for index in list_episodes(path)}
    # An error stands without its recording; see `Diagnosis.lost`.
    counted = {
        index for index, line in lines.items() if line.checksum is not None and line.outcome is not Outcome.ERROR
    }
    lost = sorted(counted - recorded)
    loss = f"the recordings of {in_words(lost)} are damaged or gone; resume to run them again"
    return notes, loss if lost else None


def consolidate_parts(job_directory: Path, job: str, parts: Mapping[str, Sequence[Path]]) -> Iterator[str]:
    """Copy episode files into datasets (`parts`: dataset name to files), remove them, and yield notes."""
    for name, paths in parts.items():
        # On a StorageError the episode files are still there.
        with atomic.storage_errors("bring episodes into", job_directory / name):
            done = consolidate(sorted(paths), job_directory / name)
        yield from (f"job '{job}': left out of {name}: {reason}" for _, reason in done.damaged)
        yield f"job '{job}': brought {len(paths) - len(done.damaged)} recorded episodes into {name}"
    atomic.remove_if_empty(job_directory / layout.EPISODES_DIRECTORY)


@dataclass(frozen=True, kw_only=True)
class RecordedCopy:
    """One recording of one episode."""

    episode_index: int
    path: Path  # file of the episode, or dataset that contains it
    checksum: int | None  # CRC-32 of its arrays; None if they are damaged
    damage: str | None = None  # None if it is intact
    contradiction: str | None = None  # disagreement with the commit line of these arrays; see `contradiction`
    # Empty if its arrays have a commit line, or if it is damaged.
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    @property
    def is_part(self) -> bool:
        """Whether the recording is a file of its own, outside a dataset."""
        return self.path.parent.name == layout.EPISODES_DIRECTORY


JobRecordings: TypeAlias = tuple[Mapping[int, Sequence[RecordedCopy]], Sequence[tuple[Path, str]]]
"""The recordings of each episode by index, datasets first; and files that are no datasets by content, with reasons."""


def read_recordings(job_directory: Path, job: str, lines: Iterable[CommitLine]) -> JobRecordings:
    """Compare every recorded array of a job with its checksum and commit line. StorageError if a file is unreadable."""
    copies: defaultdict[int, list[RecordedCopy]] = defaultdict(list)
    unreadable: list[tuple[Path, str]] = []
    by_index = {line.episode_index: line for line in lines}
    try:
        held: list[tuple[Path, list[int]]] = []
        for path in ledger.datasets(job_directory, job):
            try:
                held.append((path, list_episodes(path)))
            except DamagedFileError as error:
                unreadable.append((path, str(error)))
        parts = [(path, [index]) for path, index in ledger.episode_files(job_directory)]
        for path, indices in chain(held, told(parts, "checking", f"job '{job}'")):
            try:
                examined = examine_episodes(path, indices)
            except DamagedFileError as error:
                examined = [str(error)] * len(indices)
            for index, found in zip(indices, examined, strict=True):
                line, copy = by_index.get(index), RecordedCopy(episode_index=index, path=path, checksum=None)
                if isinstance(found, str):
                    copy = replace(copy, damage=found)
                elif line is not None and line.checksum == found["checksum"]:
                    copy = replace(copy, checksum=line.checksum, contradiction=contradiction(line, found))
                else:
                    copy = replace(copy, checksum=int(found["checksum"]), attributes=found)
                copies[index].append(copy)
    except StorageError as error:
        way_out = "if that persists, move the file away, and its episodes run again"
        raise StorageError(f"{error}; {way_out}") from error
    return copies, unreadable


def recorded_config_hash(provenance: AttributeValue | None) -> str | None:
    """Return the hash of the run's resolved jobs from a recording's provenance, None if it has none."""
    try:
        said = parsed_mapping(provenance, "the provenance").get("config_hash")
    except DamagedFileError:
        return None
    return said if isinstance(said, str) else None


# Diagnose a job: decide the repairs of its commit lines and its recordings. This writes nothing.
#
# An episode is finished if a line commits it and its recording matches that line, or if recording was off. An episode
# with an error is finished even if its recording is lost, because a second try would favour policies that fail by
# chance. A recording without a line is adopted if it carries the commit line that its writer had prepared.


def runs_again(line: CommitLine, attempts: Sequence[ledger.Attempt], *, retry_errors: bool) -> bool:
    """Whether a finished episode runs again, because this or an unfinished earlier attempt retries errors."""
    return line.outcome is Outcome.ERROR and (
        retry_errors
        or any(
            each.retry_errors and each.number > line.attempt and not contain(state.finished, line.episode_index)
            for each in attempts
            if (state := each.states.get(line.job)) is not None
        )
    )


@dataclass(kw_only=True)
class Diagnosis:
    """A job by its files: the repairs that they need, and the rest of its work."""

    job: ledger.PlanEntry  # with its number of episodes, as far as any file says
    config_hash: str = ""  # hash of the run's resolved jobs
    runs_again: Callable[[CommitLine], bool] = lambda _: False  # an episode that ended in an error
    reports: Sequence[JobReport] = ()
    last_attempt: int = 0  # last attempt that worked on the job, as far as its files say
    finished: set[int] = field(default_factory=set)  # episodes that must not run again
    is_whole: bool = True  # every committed episode still counts
    # Episodes whose commit lines are no longer true, or that are not planned.
    withdrawn: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)  # finished episodes with an error whose recordings are lost
    adopted: list[CommitLine] = field(default_factory=list)  # lines to commit for recordings without one
    # Recordings to remove, with the reason; None for a duplicate, which need not be kept.
    discarded: list[tuple[RecordedCopy, str | None]] = field(default_factory=list)
    # Episode files to copy, by name of the dataset.
    consolidated: defaultdict[str, list[Path]] = field(default_factory=lambda: defaultdict(list))
    # Files whose content does not match their names, with the reason.
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    has_stray_lines: bool = False  # commit files hold lines that are torn, malformed or of another job

    def left(self, needed: int | None = None) -> ledger.JobState | None:
        """Return the rest of the job, None if nothing is left. `needed` is its required number of episodes or None."""
        status, planned, missing = job_standing(self.job, self.finished, self.reports, needed=needed)
        is_lacking = planned is None and not self.is_whole
        if status in (JobResultStatus.SKIPPED, JobResultStatus.COMPLETED) and not is_lacking:
            return None
        # A job that has all needed episodes runs none of the others, but still owes its report.
        is_decided = needed is not None and planned is not None and not missing
        finished = range(planned or 0) if is_decided else self.finished
        return ledger.JobState(job=self.job.name, finished=as_ranges(finished))


def diagnose(diagnosis: Diagnosis, log: CommitLog, recordings: JobRecordings) -> None:
    """Compare the commit lines of a job with its `read_recordings`, and note the repairs."""
    copies, unreadable = recordings
    diagnosis.unreadable += unreadable
    num_episodes = diagnosis.job.config.num_episodes
    lines = {line.episode_index: line for line in log.lines}
    for index in sorted(lines.keys() | copies.keys()):
        line, found = lines.get(index), copies.get(index, [])
        if num_episodes is None or index < num_episodes:
            _diagnose(diagnosis, line, found, unequal=index in log.unequal_episodes)
            continue
        diagnosis.withdrawn.update({index} & lines.keys())
        diagnosis.discarded += [(copy, "the plan has no such episode") for copy in found]
    diagnosis.is_whole = diagnosis.finished >= lines.keys()


def dataset_named_by(line: CommitLine) -> str:
    """Return the dataset's file name for a commit line. Lines without a valid one get the default of their rank."""
    name = line.dataset_file or ""
    return name if layout.is_dataset_of(line.job, name) else layout.dataset_file_name(line.job, line.rank, 1)


def _diagnose(diagnosis: Diagnosis, line: CommitLine | None, copies: Sequence[RecordedCopy], *, unequal: bool) -> None:
    """Decide about one planned episode."""
    # A line without a checksum was committed with recording off, so there is nothing to compare.
    if line is not None and line.checksum is None:
        if not diagnosis.runs_again(line):
            diagnosis.finished.add(line.episode_index)
        return
    flaws = [(copy, copy.damage or copy.contradiction) for copy in copies]
    diagnosis.discarded += [(copy, flaw) for copy, flaw in flaws if flaw is not None]
    intact = [copy for copy, flaw in flaws if flaw is None]
    is_recorded = line is not None and any(copy.checksum == line.checksum for copy in intact)
    # A carried line counts before the committed one: it is only adopted if that one is missing, unrecorded or an error.
    adopted, reasons = _adoptable(diagnosis, line, intact, is_recorded=is_recorded)
    counted = adopted or (line if line is not None and is_recorded and not diagnosis.runs_again(line) else None)
    diagnosis.adopted += filter(None, [adopted])

    # The recording of the line is gone. The line of an error stands without it, until a later line replaces it. Any
    # other line counts until it is removed.
    if line is not None and not is_recorded:
        is_doubtful = any(copy.contradiction is not None for copy in copies)
        if line.outcome is not Outcome.ERROR or (is_doubtful and adopted is None):
            diagnosis.withdrawn.add(line.episode_index)
        elif adopted is None and not diagnosis.runs_again(line):
            diagnosis.lost.add(line.episode_index)
            diagnosis.finished.add(line.episode_index)

    if counted is not None:
        diagnosis.finished.add(counted.episode_index)
        # Keep one recording in the dataset that the line names, or have the episode's file copied there.
        same = [copy for copy in intact if copy.checksum == counted.checksum]
        parts, in_datasets = [copy.path for copy in same if copy.is_part], [copy for copy in same if not copy.is_part]
        name = dataset_named_by(counted)
        if parts:
            diagnosis.consolidated[name] += parts
        has_home = bool(parts) or any(copy.path.name == name for copy in in_datasets)
        surplus = [copy for copy in in_datasets if copy.path.name != name] if has_home else in_datasets[1:]
        diagnosis.discarded += [(copy, None) for copy in surplus]
    for copy in intact:
        is_kept = counted is not None and copy.checksum == counted.checksum
        # Two ranks committed different results of one episode. Both are kept for the user to inspect.
        is_evidence = unequal and adopted is None and not copy.is_part
        if is_kept or is_evidence:
            continue
        if line is None or copy.checksum != line.checksum:
            reason = "it does not match its commit line"
        elif adopted is None:
            reason = "it ended in an error and runs again"
        else:
            reason = "a later attempt took the place of its error"
        diagnosis.discarded.append((copy, reasons.get(copy.path) or reason))


def _adoptable(
    diagnosis: Diagnosis, line: CommitLine | None, intact: Sequence[RecordedCopy], *, is_recorded: bool
) -> tuple[CommitLine | None, Mapping[Path, str]]:
    """Return the earliest adoptable line of an episode's recordings, and the reasons against the others by file."""
    job, reasons = diagnosis.job, dict[Path, str]()
    candidates: list[CommitLine] = []
    if line is not None and line.outcome is not Outcome.ERROR and is_recorded:
        return None, reasons
    for copy in intact:
        if line is not None and copy.checksum == line.checksum:
            continue
        said, wanted = copy.attributes, (job.name, job.config.seed, copy.episode_index)
        found = (said.get("job"), said.get("seed"), said.get("episode_index"))
        try:
            carried = parse_line(str(said.get(layout.COMMIT_ATTRIBUTE, "")))
        except ValueError:
            carried = None
        if found != wanted:
            reason = f"it is of another plan: its job, seed and index are {found}, not {wanted}"
        elif recorded_config_hash(said.get("provenance")) != diagnosis.config_hash:
            reason = "it is of another plan: its configuration has another hash"
        elif carried is None:
            reason = "no line commits it, and it carries none"
        elif (carried.job, carried.seed, carried.episode_index, carried.checksum) != (*wanted, copy.checksum):
            reason = "no line commits it, and the one that it carries is of another episode"
        elif line is not None and line.outcome is Outcome.ERROR and carried.attempt <= line.attempt:
            continue
        elif diagnosis.runs_again(carried):
            reason = "it ended in an error and runs again"
        else:
            candidates.append(carried)
            continue
        reasons[copy.path] = reason
    # The content decides, not the file name.
    return min(candidates, key=lambda each: (each.attempt, each.timestamp, each.checksum or 0), default=None), reasons


def repair_job(job_directory: Path, diagnosis: Diagnosis) -> list[str]:
    """Repair the files of a job, and return the repairs, one sentence each. A clean diagnosis writes nothing."""
    job, seed, aside = diagnosis.job.name, diagnosis.job.config.seed, job_directory / layout.SET_ASIDE_DIRECTORY
    notes: list[str] = []
    # Withdrawn lines are removed before their recordings, and adopted episodes are committed after the discarded ones
    # have moved. Each step leaves a state that the next recovery can continue from.
    #
    # A commit file keeps the lines of this job and run. If it loses whole lines, it is also kept aside unchanged.
    is_untidy = bool(diagnosis.withdrawn) or diagnosis.has_stray_lines
    for path in sorted(job_directory.glob(layout.COMMIT_FILE_PATTERN)) if is_untidy else ():
        with atomic.storage_errors("read", path):
            *lines, torn = path.read_bytes().split(b"\n")
        kept = []
        for text in lines:
            with suppress(ValueError):
                line = parse_line(text)
                if line.job == job and line.seed == seed and line.episode_index not in diagnosis.withdrawn:
                    kept.append(text)
        if len(kept) < len(lines):
            atomic.keep_aside(path, aside)
            notes.append(f"removed {len(lines) - len(kept)} lines from {path.name}; the original is in {aside.name}")
        if torn or len(kept) < len(lines):
            atomic.write_bytes(path, b"".join(text + b"\n" for text in kept), overwrite=True)

    if runs_again := diagnosis.withdrawn - diagnosis.finished:
        episodes = in_words(sorted(runs_again))
        notes.append(f"{episodes} had a commit line but no matching recording, and will run again")
    if diagnosis.lost:
        stands = "the error still counts; --retry_errors runs it again"
        notes.append(f"{in_words(diagnosis.lost)} ended in an error, and the recording is lost; {stands}")

    for path, reason in diagnosis.unreadable:
        notes.append(f"set aside {path.name}: {reason}")
        atomic.move_aside(path, aside)
    notes += _discard(diagnosis.discarded, aside)
    if diagnosis.adopted:
        adopted = in_words(line.episode_index for line in diagnosis.adopted)
        notes.append(f"adopted {adopted}: recorded, but not committed")
        with closing(CommitWriter(job_directory, rank=0)) as writer:
            for line in diagnosis.adopted:
                writer.write(line)
    consolidated = consolidate_parts(job_directory, job, diagnosis.consolidated)
    return [*(f"job '{job}': {note}" for note in notes), *consolidated]


def set_job_aside(job_directory: Path, job: str, *, attempt: int, why: str) -> list[str]:
    """Move all files of a job to ``set_aside/attempt_<attempt>``, so that it can start over. Return the repairs."""
    parts = [path for path, _ in ledger.episode_files(job_directory)]
    # Commit lines and reports move last, because they mark the job as begun.
    lines = sorted(path for pattern in _LINES_AND_REPORTS for path in job_directory.glob(pattern))
    files = [*parts, *ledger.datasets(job_directory, job), *lines, *job_directory.glob(layout.SERVED_MODEL_FILE)]
    if not files:
        return []
    directory = job_directory / layout.SET_ASIDE_DIRECTORY / f"attempt_{attempt}"
    for path in files:
        atomic.move_aside(path, directory)
    atomic.remove_if_empty(job_directory / layout.EPISODES_DIRECTORY)
    return [f"job '{job}': {why}; it starts again, the old files are in {directory}"]


def _discard(discarded: Sequence[tuple[RecordedCopy, str | None]], aside: Path) -> Iterator[str]:
    """Remove recordings from the datasets and the episode files. Yield a note for each of the first ones."""
    # Group by dataset, so that each dataset is rewritten only once.
    by_dataset: defaultdict[Path, list[tuple[RecordedCopy, str | None]]] = defaultdict(list)
    for copy, reason in discarded:
        if not copy.is_part:
            by_dataset[copy.path].append((copy, reason))
    for dataset, dropped in by_dataset.items():
        if any(copy.damage is not None for copy, _ in dropped):
            # A damaged recording cannot be copied, but a user may still read parts of it.
            atomic.keep_aside(dataset, aside)
        else:
            for copy, reason in dropped:
                if reason is not None:
                    keep_episode_aside(dataset, copy.episode_index, aside)
        remaining = sorted({*list_episodes(dataset)} - {copy.episode_index for copy, _ in dropped})
        if remaining:
            # The remaining episodes must be intact. Their chunks are copied without recompression.
            make_dataset([(index, dataset) for index in remaining], dataset, overwrite=True)
        else:
            with atomic.storage_errors("remove", dataset):
                dataset.unlink()
    for copy, _ in discarded:
        if copy.is_part:
            atomic.move_aside(copy.path, aside)

    most_notes = 20
    for copy, reason in discarded[:most_notes]:
        what = f"episode {copy.episode_index} of {copy.path.name}"
        yield f"removed {what}: it is recorded elsewhere too" if reason is None else f"set aside {what}: {reason}"
    if len(discarded) > most_notes:
        yield f"set aside {len(discarded) - most_notes} more recordings of episodes"
    atomic.remove_if_empty(aside.parent / layout.EPISODES_DIRECTORY)


def recover_plan(output_directory: Path) -> ledger.RunPlan:
    """Restore ``run.json`` from its copy; ConfigError if it is intact, the copy is lost too, or the run is at work."""
    if not output_directory.is_dir():
        raise ConfigError(Problem(f"there is no directory '{output_directory}'"))
    with ledger.RunLock(output_directory).hold(alone=True):
        try:
            ledger.read_run_plan(output_directory)
        except ConfigError:
            plan = ledger.read_plan_copy(output_directory)
        else:
            message = f"holds a whole {layout.RUN_PLAN_FILE}: nothing is lost"
            raise ConfigError(Problem(message, file=str(output_directory)))
        path = output_directory / layout.RUN_PLAN_FILE
        if path.exists():
            # A damaged file may still tell a user something.
            atomic.move_aside(path, output_directory / layout.SET_ASIDE_DIRECTORY)
        ledger.write_run_plan(output_directory, plan)
    return plan


# Recover a run's directory after a crash: check every file, repair what is possible, and list the rest of the work.
#
# Each job is checked before any of its files is written, so an intact job is unchanged. Only paths that are not files
# are moved before. A repair may be interrupted at any point: the next recovery completes it with the same final state.


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The state of a run after its recovery."""

    jobs: tuple[Diagnosis, ...]  # in the plan's order, with the files repaired
    notes: tuple[str, ...]  # findings and repairs, for the user

    def left(self, needed: Callable[[str], int | None] = lambda _: None) -> tuple[ledger.JobState, ...]:
        """Return the unfinished jobs. `needed` maps a job's name to its required number of episodes, None for all."""
        left = (job.left(needed(job.job.name)) for job in self.jobs if job.left() is not None)
        return tuple(entry for entry in left if entry is not None)


def recover_run(output_directory: Path, plan: ledger.RunPlan, *, retry_errors: bool, attempt: int) -> Recovery:
    """Check and repair every file of a run, for the new attempt number `attempt`."""
    # No other process may work on the run. Files that may hold user data are moved into ``set_aside/``, never deleted.
    notes = []
    written = [output_directory / name for name in sorted(RESERVED_NAMES) if "." in name]
    logs = sorted((output_directory / "logs").glob("*"))
    for path in (*written, *logs, output_directory / layout.PLAN_COPY_FILE):
        # A directory or pipe may occupy the name of a table, page or log. A link to a file elsewhere belongs to the
        # user: it is written through or replaced.
        why = not_a_plain_file(path) if os.path.lexists(path) else None
        if why is not None:
            notes.append(f"set aside {path}: {why}")
            atomic.move_aside(path, output_directory / layout.SET_ASIDE_DIRECTORY)
    # All processes of the run are dead, and so their temporary files are of no use.
    owners = {"the run": [output_directory / name for name in ("", "logs", layout.ATTEMPTS_DIRECTORY)]}
    below = ("", layout.EPISODES_DIRECTORY, layout.VIDEOS_DIRECTORY, layout.SET_ASIDE_DIRECTORY)
    owners |= {f"job '{job.name}'": [output_directory / job.name / name for name in below] for job in plan.jobs}
    removed: Counter[str] = Counter()
    for owner, directory in ((owner, directory) for owner, own in owners.items() for directory in own):
        if not directory.is_dir():
            continue
        with atomic.storage_errors("read", directory):
            temporary = sorted(path for path in directory.iterdir() if _TEMPORARY.fullmatch(path.name))
        for path in temporary:
            with atomic.storage_errors("remove", path):
                if path.is_symlink() or not path.is_dir():
                    path.unlink(missing_ok=True)
                    removed[owner] += 1
    notes += [f"{owner}: removed {number} temporary files of dead processes" for owner, number in removed.items()]
    begun, damaged = ledger.read_attempts(output_directory, plan.run_id)
    notes += damaged
    jobs = []
    for job in told(plan.jobs, "checking", str(output_directory), unit="jobs"):
        retries = partial(runs_again, attempts=begun, retry_errors=retry_errors)
        diagnosis = Diagnosis(job=job, config_hash=plan.config_hash, runs_again=retries)
        repaired, done = _repaired(output_directory / job.name, diagnosis, attempt=attempt, run=plan.run_id)
        jobs.append(repaired)
        notes += done
    return Recovery(jobs=tuple(jobs), notes=tuple(notes))


def _repaired(directory: Path, diagnosis: Diagnosis, *, attempt: int, run: str) -> tuple[Diagnosis, list[str]]:
    """Diagnose a job and repair its files. Return the diagnosis that holds afterwards, and the notes for the user."""
    job = diagnosis.job
    if not job.is_to_run:
        return diagnosis, []
    # A directory or pipe may occupy the name of a file. It moves first; all else stays until after the diagnosis.
    set_aside = []
    patterns = (*_LINES_AND_REPORTS, layout.SETTLED_FILE, layout.SERVED_MODEL_FILE)
    named = [path for pattern in patterns for path in sorted(directory.glob(pattern))]
    for path in [*named, *ledger.datasets(directory, job.name), *(path for path, _ in ledger.episode_files(directory))]:
        try:
            atomic.check_plain(path)
        except DamagedFileError as error:
            set_aside.append(f"job '{job.name}': set aside {path.name}: {error}")
            atomic.move_aside(path, directory / layout.SET_ASIDE_DIRECTORY)

    log = read_commits(directory, job.name, seed=job.config.seed, skip_unreadable=False)
    reports, unread = read_job_reports(directory, job.name, run, skip_unreadable=False)
    notes = list(log.problems)
    torn = "its last line was torn when its process died; that episode was not committed"
    notes += [f"{path}: {torn}" for path in log.torn]
    if job.config.num_episodes is None:
        said = (report.num_episodes for report in reports if report.num_episodes is not None)
        diagnosis.job = replace(job, config=replace(job.config, num_episodes=next(said, None)))
    diagnose(diagnosis, log, read_recordings(directory, job.name, log.lines))
    diagnosis.unreadable += unread
    diagnosis.has_stray_lines = bool(notes)
    notes = [*set_aside, *notes]
    diagnosis.reports = reports
    diagnosis.last_attempt = max((each.attempt for each in (*log.lines, *reports)), default=0)

    # The episodes of a job that steps limit depend on its end, so a partial result is useless. If the policy decides
    # the number of episodes, the job reports that number after its first step.
    is_limited_by_steps = job.config.num_episodes is None and (
        job.config.num_steps is not None
        or any(report.num_episodes is None and report.env_steps > 0 for report in reports)
    )
    if is_limited_by_steps and diagnosis.left() is not None:
        why = "it is limited by steps and did not come to its end"
        return Diagnosis(job=job), [*notes, *set_job_aside(directory, job.name, attempt=attempt - 1, why=why)]
    return diagnosis, [*notes, *repair_job(directory, diagnosis)]
