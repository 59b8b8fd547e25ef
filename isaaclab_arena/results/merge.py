"""One table of all jobs and one of all episodes, from what is on disk, and their files."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyarrow import ArrowException
from pyarrow.parquet import read_schema

from isaaclab_arena.errors import DamagedFileError, StorageError, first_line
from isaaclab_arena.garbage import without_collecting
from isaaclab_arena.interfaces.episode import Outcome
from isaaclab_arena.logs import plain_text
from isaaclab_arena.results.columns import (
    ACTION_COLUMNS,
    BENCHMARK_COLUMNS,
    DISTINCT_COLUMNS,
    EPISODE_COLUMNS,
    EPISODE_TIMING_COLUMNS,
    EVENT_EPISODE_COLUMNS,
    EVENT_JOB_COLUMNS,
    JOB_COLUMNS,
    JOB_TIMING_COLUMNS,
    LATENCY_JOB_COLUMNS,
    LATENCY_JOB_TIMING_COLUMNS,
    PICTURE_COLUMNS,
    QUESTION_EPISODE_COLUMNS,
    QUESTION_JOB_COLUMNS,
    QUESTION_JOB_TIMING_COLUMNS,
    SERVER_JOB_TIMING_COLUMNS,
    START_COLUMNS,
    SUITE_COLUMNS,
)
from isaaclab_arena.results.freshness import RESULTS_FILE, sizes_of_sources, tables_are_current
from isaaclab_arena.results.rows import (
    JobEvidence,
    answer_cells,
    distinct_cells,
    episode_row,
    job_row,
    latency_cells,
    mean_over_steps,
    score_cells,
    server_cells,
    simulation_cells,
    suite_rows,
)
from isaaclab_arena.results.statistics import ScoredEpisodes, together
from isaaclab_arena.results.stopping import (
    Answer,
    alike_starts,
    answers_of,
    condition_key,
    finished_episode,
    in_words,
    needed_episodes,
)
from isaaclab_arena.storage.atomic import check_plain, read_whole, storage_errors, write_bytes
from isaaclab_arena.storage.commits import (
    CommitLog,
    JobResultStatus,
    ReportedStatus,
    read_commits,
    read_job_reports,
)
from isaaclab_arena.storage.contents import Provenance
from isaaclab_arena.storage.json_values import json_line, json_text, plain, read_json
from isaaclab_arena.storage.layout import EPISODE_FILE_PATTERN, EPISODES_DIRECTORY, job_directory
from isaaclab_arena.storage.run_plan import (
    INSTEAD_OF_ATTEMPT,
    Attempt,
    PlanEntry,
    RunPlan,
    attempt_numbers,
    attempt_path,
    contents_in_effect,
    read_attempts,
    read_run_plan,
    times_rerun,
)

PREFIX = "sweep."
"""Prefix of the columns of swept keys in the table of jobs, because a job's name may not contain them."""

# One table of all jobs and one of all episodes, from the files on disk alone.
#
# A merge needs no memory of the run: commit lines and reports of every rank are files, and planned episodes without a
# file are listed as missing. A repeated merge gives the same tables.


@dataclass(frozen=True, kw_only=True)
class MissingEpisodes:
    """The unfinished planned episodes of a job."""

    job: str
    rank: int | None  # assigned rank
    status: JobResultStatus  # state of the job
    episode_indices: tuple[int, ...]  # empty if the plan was never known


@dataclass(frozen=True, kw_only=True)
class MergedResults:
    """The results of a run.

    Attributes:
        plan: The plan of the run.
        jobs: One row per job, in order of the plan, with the columns `JOB_COLUMNS`, `JOB_TIMING_COLUMNS` and one
            column per swept key.
        episodes: One row per finished episode, by job and index, with the columns `EPISODE_COLUMNS`
            and `EPISODE_TIMING_COLUMNS`.
        missing: Incomplete jobs, in order of the plan.
        problems: Unreadable files and lines, and episodes that were committed with different results.
        complete: Whether every job except skipped ones completed with all of its episodes.
        sources: The files that were read, with their sizes [bytes].
        answers: The answers to the run's questions so far, in order of the plan.
        suites: One row per suite, in order of the plan, with the columns of `suite_rows`.
        remarks: Observations of the ranks that the tables do not show, one line each.
    """

    plan: RunPlan
    jobs: pd.DataFrame
    suites: pd.DataFrame
    episodes: pd.DataFrame
    missing: tuple[MissingEpisodes, ...]
    problems: tuple[str, ...]
    complete: bool
    sources: Mapping[str, int]
    answers: tuple[Answer, ...] = ()
    remarks: tuple[str, ...] = ()


# Garbage collection would take a quarter of the time: a million small objects without cycles.
@without_collecting()
def merge_results(output_directory: Path) -> MergedResults:
    """Read the files of all ranks of a run, and return its results.

    Args:
        output_directory: The directory that holds ``run.json``.

    Raises:
        ConfigError: If the directory is not the output of a run.
    """
    plan = read_run_plan(output_directory)
    # Take the sizes before any read, so that later additions of the ranks mark the tables as old.
    sources = sizes_of_sources(output_directory)
    attempts, problems = read_attempts(output_directory, plan.run_id)
    changes = changes_between(plan, attempts)
    problems += changes
    jobs = sorted(plan.jobs, key=lambda job: job.config.index)
    contents, reruns = contents_in_effect(jobs, attempts), times_rerun(attempts)
    logs = {
        job.name: read_commits(job_directory(output_directory, job.name), job.name, seed=job.config.seed)
        for job in jobs
    }

    # The plan holds the same facts as the file of the first attempt. If no attempt has a file, the version of the
    # program wrote none.
    known, named = {1, *(attempt.number for attempt in attempts)}, set(attempt_numbers(output_directory))
    lost = {line.attempt for log in logs.values() for line in log.lines if named} - known - named
    problems += [
        f"{attempt_path(output_directory, number)}: is missing; {INSTEAD_OF_ATTEMPT}" for number in sorted(lost)
    ]
    unread = (named | lost) - known

    # Answers need the episodes of all jobs, so they come before the evidence of each job.
    answers, evidence = answers_in(plan, logs), []
    for job in jobs:
        commits = logs[job.name]
        read = read_evidence(
            output_directory, job, problems, run=plan.run_id, same_conditions=not changes, commits=commits
        )
        read = replace(
            read,
            told={line.episode_index: json_line(line.variations) for line in commits.lines},
            contents=contents[job.name],
            times_rerun=reruns[job.name],
            max_equal_errors=attempts[-1].max_equal_errors if attempts else 0,
        )
        read = _with_recorded_provenance(read, plan, output_directory, unread)
        evidence.append(as_answered(read, commits, answers))

    # Questions may have stopped a job, so missing episodes are determined after the answers.
    missing = tuple(
        MissingEpisodes(
            job=each.job.name,
            rank=each.job.rank,
            status=each.standing.status,
            episode_indices=each.standing.missing,
        )
        for each in evidence
        if each.standing.status not in (JobResultStatus.SKIPPED, JobResultStatus.COMPLETED)
    )
    remarks = (
        f"job '{each.job.name}': {remark}" for each in evidence for report in each.reports for remark in report.remarks
    )
    suites, suite_columns = suite_rows(evidence)
    return MergedResults(
        plan=plan,
        jobs=_job_table(plan, jobs, evidence),
        suites=typed_table(suites, suite_columns),
        episodes=_episode_table(plan, evidence, logs),
        missing=missing,
        problems=tuple(problems),
        complete=not missing,
        sources=sources,
        answers=answers,
        remarks=tuple(dict.fromkeys(remarks)),
    )


def answers_in(plan: RunPlan, logs: Mapping[str, CommitLog]) -> tuple[Answer, ...]:
    """Return the answers to the questions of a run. A job without a log has no finished episode."""
    asked = {job for question in plan.questions for job in question.jobs}
    finished = {
        job: {line.episode_index: finished_episode(line) for line in log.lines}
        for job, log in logs.items()
        if job in asked
    }
    return answers_of(plan.questions, finished)


def _job_table(plan: RunPlan, jobs: Sequence[PlanEntry], evidence: Sequence[JobEvidence]) -> pd.DataFrame:
    """Return the table of jobs, with optional columns if some job has a value for them."""
    # A column per swept key, such as ``sweep.seed``, in order of the job file; empty for a job that does not sweep it.
    # It is boolean, integer or float if all its values are; otherwise it is text, with lists and mappings as JSON.
    swept: dict[str, Any] = {}
    for key in dict.fromkeys(key for job in jobs for key in job.config.swept):
        values = [job.config.swept.get(key) for job in jobs]
        given = [value for value in values if value is not None]
        # A seed may have more bits than a numeric column holds exactly.
        is_exact = all(not isinstance(value, int) or abs(value) < 2**53 for value in given)
        kinds = (("boolean", (bool,)), ("Int64", (int,)), ("Float64", (int, float)))
        fitting = [kind for kind, types in kinds if is_exact and all(type(value) in types for value in given)]
        if given and fitting:
            swept[PREFIX + plain_text(key)] = pd.array(values, dtype=fitting[0])
        else:
            texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
            swept[PREFIX + plain_text(key)] = pd.array(texts, dtype="string")

    columns, own = JOB_COLUMNS | JOB_TIMING_COLUMNS, {}
    # Rows of jobs name the simulation only for environments of other packages.
    simulation = [simulation_cells([each]) for each in evidence]
    simulation = [cells if "environment_sha256" in cells else {} for cells in simulation]
    if any(simulation):
        own |= BENCHMARK_COLUMNS
    if any(job.config.policy_server is not None for job in jobs):
        own |= SERVER_JOB_TIMING_COLUMNS
    if any(job.config.latency is not None for job in jobs):
        own |= LATENCY_JOB_COLUMNS | LATENCY_JOB_TIMING_COLUMNS
    if plan.questions:
        own |= QUESTION_JOB_COLUMNS | QUESTION_JOB_TIMING_COLUMNS
    if any(line.events is not None for each in evidence for line in each.lines):
        own |= EVENT_JOB_COLUMNS
    if not all(each.scored.are_distinct for each in evidence):
        own |= DISTINCT_COLUMNS
    if any(line.saturated_action_share is not None for each in evidence for line in each.lines):
        own |= ACTION_COLUMNS
    if not own:
        return typed_table(map(job_row, evidence), columns).assign(**swept)
    rows = (
        {
            **job_row(each),
            **simulated,
            **server_cells(each),
            **latency_cells(each),
            **answer_cells(each),
            **score_cells(each),
            **distinct_cells(each),
            "saturated_action_share": mean_over_steps(
                (line.saturated_action_share, line.episode_length) for line in each.lines
            ),
        }
        for each, simulated in zip(evidence, simulation, strict=True)
    )
    table = typed_table(rows, columns | own)
    return table[[*columns]].assign(**swept, **{name: table[name] for name in own})


def _episode_table(plan: RunPlan, evidence: Sequence[JobEvidence], logs: Mapping[str, CommitLog]) -> pd.DataFrame:
    """Return the table of episodes, with optional columns if some episode has a value for them."""
    columns = EPISODE_COLUMNS | EPISODE_TIMING_COLUMNS | (QUESTION_EPISODE_COLUMNS if plan.questions else {})
    if any(line.events is not None for log in logs.values() for line in log.lines):
        columns |= EVENT_EPISODE_COLUMNS
    starts = {job: alike_starts(log.lines) for job, log in logs.items()}
    if any(start is not None for own in starts.values() for start in own):
        columns |= START_COLUMNS
    if any(line.saturated_action_share is not None for log in logs.values() for line in log.lines):
        columns |= ACTION_COLUMNS
    rows = (
        {
            **episode_row(each.job, line, each.told[line.episode_index]),
            "beyond_decision": each.needed is not None and line.episode_index >= each.needed,
            "start": start,
            "saturated_action_share": line.saturated_action_share,
            "progress": None if line.events is None else line.events.progress,
            "decisive_event": None if line.events is None else line.events.decisive,
            "events": None if line.events is None else json_line(line.events.seen),
        }
        for each in evidence
        for line, start in zip(logs[each.job.name].lines, starts[each.job.name], strict=True)
    )
    return typed_table(rows, columns)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts, with None for an empty cell."""
    return [
        {str(name): None if pd.isna(value) else value for name, value in row.items()}
        for row in table.to_dict(orient="records")
    ]


def scored_by_job(merged: MergedResults) -> dict[str, ScoredEpisodes]:
    """Map each job of the plan to its scored episodes, including those beyond a decision."""
    scored = {job.name: together([]) for job in merged.plan.jobs}
    return scored | {str(name): scored_in(pd.DataFrame(own)) for name, own in merged.episodes.groupby("job")}


def scored_in(episodes: pd.DataFrame) -> ScoredEpisodes:
    """Return the scored episodes among a job's rows of the table of episodes."""
    is_error = (episodes["outcome"] == Outcome.ERROR).fillna(value=False)
    kept = pd.DataFrame(episodes[episodes["success"].notna() & ~is_error])
    return ScoredEpisodes(success=np.array(kept["success"], float), conditions=keys_in(kept))


def keys_in(episodes: pd.DataFrame) -> list[str]:
    """Return the `condition_key` of each row of the table of episodes."""
    columns = [name for name in ("environment", "object", "conditions", "episode_seed", "start") if name in episodes]
    return list(map(condition_key, *(episodes[name].to_numpy(object, na_value=None) for name in columns)))


def changes_between(plan: RunPlan, attempts: Sequence[Attempt]) -> list[str]:
    """Return one line for each version or kind of machine that a later attempt changed."""
    # The plan holds the same facts as the first attempt, whose file may be unreadable.
    first = attempts[0] if attempts and attempts[0].number == 1 else plan
    return [
        f"attempt {later.number} ran with {change.name} {change.now}, the first one with {change.before}; "
        "results may differ in their last digits"
        for later in attempts
        if later.number > 1
        for change in first.provenance.differences(later.provenance)
    ]


def _with_recorded_provenance(
    evidence: JobEvidence, plan: RunPlan, output_directory: Path, unread: Set[int]
) -> JobEvidence:
    """Return the evidence of a job whose attempts in `unread` are lost, from the provenance of its recordings."""
    if not unread:
        return evidence
    from isaaclab_arena.storage.recordings import recorded_without_arrays  # noqa: PLC0415  loads h5py, for damaged runs

    # Every recording holds the provenance of its attempt, so one recorded episode per lost attempt is enough.
    directory = job_directory(output_directory, evidence.job.name)
    for number in sorted(unread & {line.attempt for line in evidence.lines}):
        lines = (line for line in evidence.lines if line.attempt == number and line.checksum is not None)
        checksums = {line.episode_index: line.checksum for line in lines}
        recorded = recorded_without_arrays(directory, evidence.job.name, checksums)
        if recorded is None:
            evidence = replace(evidence, unknown_attempts=(*evidence.unknown_attempts, number))
            continue
        differs = plan.provenance.told_differences(Provenance(facts=recorded.provenance))
        evidence = replace(
            evidence,
            same_conditions=evidence.same_conditions and not differs,
            contents=recorded.contents or evidence.contents,
        )
    return evidence


def read_evidence(
    output_directory: Path,
    job: PlanEntry,
    problems: list[str],
    *,
    run: str,
    same_conditions: bool,
    commits: CommitLog | None = None,
) -> JobEvidence:
    """Return the evidence in the files of a job, without attempts and answers. Append defects to `problems`."""
    directory = job_directory(output_directory, job.name)
    commits = commits or read_commits(directory, job.name, seed=job.config.seed)
    reports, unread = read_job_reports(directory, job.name, run)
    problems += [*commits.problems, *(problem for _, problem in unread)]
    problems += [
        f"job '{job.name}': episode {index} was committed more than once, with different results; the first counts"
        for index in commits.unequal_episodes
    ]
    return JobEvidence(
        job=job,
        lines=commits.lines,
        reports=reports,
        # Listed only if it matters, because the directory may hold very many files.
        has_parts=not any(report.status is ReportedStatus.COMPLETED for report in reports)
        and any((directory / EPISODES_DIRECTORY).glob(EPISODE_FILE_PATTERN)),
        unequal_episodes=bool(commits.unequal_episodes),
        retried_episodes=len(commits.retried_episodes),
        same_conditions=same_conditions,
    )


def as_answered(evidence: JobEvidence, commits: CommitLog, answers: Sequence[Answer]) -> JobEvidence:
    """Return the evidence that counts: if answers stopped the job, only the episodes that they needed."""
    own = [answer for answer in answers if evidence.job.name in answer.question.jobs]
    needed = needed_episodes(evidence.job.name, own)
    if needed is None:
        return replace(evidence, answers=own)
    lines = [line for line in evidence.lines if line.episode_index < needed]
    return replace(
        evidence,
        lines=lines,
        unequal_episodes=any(index < needed for index in commits.unequal_episodes),
        retried_episodes=sum(index < needed for index in commits.retried_episodes),
        answers=own,
        needed=needed,
        beyond=len(evidence.lines) - len(lines),
    )


def typed_table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Return a table with columns of fixed types, also without rows."""
    # There may be very many rows, so each is released as soon as its values are taken.
    values = list(zip(*(tuple(map(row.get, columns)) for row in rows), strict=True)) or [()] * len(columns)
    # Fixed types give a column without values the same type in every run.
    typed = (pd.array(list(column), dtype=kind) for column, kind in zip(values, columns.values(), strict=True))
    return pd.DataFrame(dict(zip(columns, typed, strict=True)))


# The merged results as files: CSV for users, Parquet for programs, JSON for both. All can be rebuilt.
#
# Results are separate from times and places. They are equal, byte for byte, however often a run was interrupted and on
# any number of ranks, so ``cmp`` can compare two runs.

SCHEMA_VERSION = 1
TABLES = ("results", "suites", "episodes", "timing", "episode_timing")
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def write_tables(output_directory: Path, merged: MergedResults) -> tuple[Path, ...]:
    """Write the tables as CSV and Parquet, then ``results.json``, over earlier ones; return the paths."""
    # Each file is replaced atomically. Rows follow the plan, then the episode index.
    paths = []
    for name, content in _contents(merged):
        paths.append(output_directory / name)
        write_bytes(paths[-1], content, overwrite=True)
    return tuple(paths)


def stale_tables(output_directory: Path, merged: MergedResults) -> list[Path]:
    """Return the tables that are missing or differ from a merge now, and from one of an earlier version."""
    stale = _unlike(output_directory, merged)
    # Earlier versions had no picture columns; tables that differ only by these empty columns are current.
    if stale and bool(merged.jobs[[*PICTURE_COLUMNS]].isna().to_numpy().all()):
        earlier = replace(merged, jobs=merged.jobs.drop(columns=[*PICTURE_COLUMNS]))
        return [path for path in _unlike(output_directory, earlier) if path in stale]
    return stale


def _unlike(output_directory: Path, merged: MergedResults) -> list[Path]:
    """Return the result files that are missing or have other content."""
    unlike = []
    for name, content in _contents(merged):
        path, found = output_directory / name, None
        with suppress(StorageError):
            found = read_whole(path)
        if found is not None and name == RESULTS_FILE:
            # Earlier versions named datasets on other nodes in this line, which was empty on shared disks.
            found = found.replace(b'  "elsewhere": [],\n', b"", 1)
        is_like = found == content
        # Another version of the library writes the same table in other bytes.
        if found is not None and not is_like and path.suffix == ".parquet":
            # pyarrow raises these for content that is not Parquet.
            with suppress(OSError, ValueError):
                is_like = pd.read_parquet(BytesIO(found)).equals(pd.read_parquet(BytesIO(content)))
        if not is_like:
            unlike.append(path)
    return unlike


def results_document(merged: MergedResults) -> dict[str, Any]:
    """Return the content of ``results.json``: the jobs, missing episodes, and sources."""
    answers = [
        {
            **asdict(answer.question),
            "verdict": answer.verdict,
            "in_words": in_words(answer),
            "episodes": answer.episodes,
            "counts": asdict(answer.counts),
            "log_e_value": answer.log_e_value,
            "needed_log_e_value": answer.needed_log_e_value,
            "by_later_step": answer.is_late,
            "left_out": answer.left_out,
            **({"repeated": answer.repeated} if answer.repeated else {}),
            "unequal": answer.unequal,
        }
        for answer in merged.answers
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": merged.plan.run_id,
        "config_hash": merged.plan.config_hash,
        "complete": merged.complete,
        "jobs": records(merged.jobs),
        **({"suites": records(merged.suites)} if len(merged.suites) else {}),
        "missing": merged.missing,
        "problems": merged.problems,
        **({"answers": answers} if answers else {}),
        "sources": merged.sources,
    }


def _contents(merged: MergedResults) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each result file, in write order."""
    jobs, episodes = merged.jobs, merged.episodes
    swept = [name for name in jobs.columns if name.startswith(PREFIX)]
    timing = JOB_TIMING_COLUMNS | SERVER_JOB_TIMING_COLUMNS | LATENCY_JOB_TIMING_COLUMNS | QUESTION_JOB_TIMING_COLUMNS
    own = BENCHMARK_COLUMNS | LATENCY_JOB_COLUMNS | QUESTION_JOB_COLUMNS | DISTINCT_COLUMNS | ACTION_COLUMNS
    of_episodes = QUESTION_EPISODE_COLUMNS | START_COLUMNS | ACTION_COLUMNS
    tables = {
        "results": jobs[[*JOB_COLUMNS, *swept, *(name for name in own if name in jobs)]],
        "episodes": episodes[[*EPISODE_COLUMNS, *(name for name in of_episodes if name in episodes)]],
        "timing": jobs[["name", *(name for name in timing if name in jobs)]],
        "episode_timing": episodes[["job", "episode_index", *EPISODE_TIMING_COLUMNS]],
    }
    if len(merged.suites):
        tables["suites"] = merged.suites
    # A user may compare these CSV files by ``cmp`` with those of a version without events, so events are in Parquet
    # only.
    events = {
        "results": {column: jobs[column] for column in EVENT_JOB_COLUMNS if column in jobs},
        "episodes": {column: episodes[column] for column in EVENT_EPISODE_COLUMNS if column in episodes},
    }
    for name in (each for each in TABLES if each in tables):
        table = pd.DataFrame(tables[name])
        yield f"{name}.csv", csv_text(table).encode()
        yield f"{name}.parquet", table.assign(**events.get(name, {})).to_parquet(index=False)
    yield RESULTS_FILE, json_text(results_document(merged)).encode()


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV in which no text acts as a formula or a terminal control sequence."""
    # Text that would be a formula is prefixed with an apostrophe.
    harmless = {}
    for name in map(str, table.select_dtypes(["string", "object"])):
        values = pd.Series(table[name])
        texts = [text for text in values.unique() if isinstance(text, str)]
        # Almost no column has such a text, and a table of episodes has many rows, so check all texts at once.
        joined = "".join(texts)
        if joined.isascii() and joined.isprintable() and not any(text.startswith(FORMULA_STARTS) for text in texts):
            continue
        changed = {text: made for text in texts if (made := harmless_text(text)) != text}
        if changed:
            harmless[name] = values.map(lambda value, own=changed: own.get(value, value), na_action="ignore")
    return table.assign(**harmless).to_csv(index=False)


def harmless_text(text: str) -> str:
    """Return text that a spreadsheet does not treat as a formula, without terminal control sequences."""
    plain = plain_text(text, keep_lines=True)
    return f"'{plain}" if plain.startswith(FORMULA_STARTS) else plain


# Read the results of a run from its own tables, in a third of the time of another merge.


def stored_results(output_directory: Path) -> MergedResults | None:
    """Return the same as `merge_results` from current tables. None if only a merge can give it."""
    plan = read_run_plan(output_directory)
    # Only a merge has the answers to questions, and the episodes behind old tables.
    if plan.questions or not tables_are_current(output_directory):
        return None
    try:
        return _read(output_directory, plan)
    except (StorageError, ValueError, KeyError, TypeError):
        # Tables can be rebuilt, so a damaged one only leads to a merge.
        return None


def read_table(path: Path, columns: Sequence[str] | None = None, *, optional: Sequence[str] = ()) -> pd.DataFrame:
    """Read a table of a run from its Parquet file. None reads all columns; `optional` ones may be missing."""
    check_plain(path)
    with storage_errors("read", path):
        try:
            there = set(read_schema(path).names) if optional else set()
            wanted = None if columns is None else [*columns, *(name for name in optional if name in there)]
            return pd.read_parquet(path, columns=wanted)
        except (ArrowException, ValueError, KeyError) as error:
            raise DamagedFileError(f"cannot read {path}: {first_line(error)}") from error


def table_of(plan: RunPlan, output_directory: Path) -> Mapping[str, Any]:
    """Return the content of ``results.json``. DamagedFileError if it belongs to another run."""
    document = read_json(output_directory / RESULTS_FILE)
    if document["run_id"] != plan.run_id:
        raise DamagedFileError(f"{output_directory / RESULTS_FILE} is of another run")
    return document


def check_episodes(jobs: Sequence[Mapping[str, Any]], episodes: pd.DataFrame, output_directory: Path) -> None:
    """Check a table of episodes against the jobs of ``results.json``. DamagedFileError if they disagree."""
    # Compared: the jobs, their seed and number of episodes, and mean length and return without errors.
    if "beyond_decision" in episodes:
        episodes = pd.DataFrame(episodes[~episodes["beyond_decision"].astype(bool)])
    by_job = {str(job): own for job, own in episodes.groupby("job")}
    for job in jobs:
        own = by_job.pop(job["name"], episodes.iloc[:0])
        kept = own[(own["outcome"] != Outcome.ERROR).fillna(value=True)]
        same_seed = bool((own["seed"] == job["seed"]).all())
        said = [job["episodes"], job["mean_length"], job["mean_return"]]
        found = [len(own), kept["length"].mean(), kept["return"].mean()]
        numbers = (pd.array(each, "Float64").to_numpy(float, na_value=np.nan) for each in (said, found))
        if not (same_seed and np.allclose(*numbers, equal_nan=True)):
            raise DamagedFileError(
                f"the table of episodes in {output_directory} does not hold those of '{job['name']}'"
            )
    if by_job:
        raise DamagedFileError(f"the table of episodes in {output_directory} holds job '{min(by_job)}'")


def _read(output_directory: Path, plan: RunPlan) -> MergedResults:
    """Read the tables of a run. DamagedFileError if they disagree."""
    document = table_of(plan, output_directory)
    results, timing, episodes, episode_timing = (
        read_table(output_directory / f"{name}.parquet") for name in ("results", "timing", "episodes", "episode_timing")
    )

    def there(table: pd.DataFrame, *columns: Iterable[str]) -> pd.DataFrame:
        """Return the given columns that a table has; optional columns exist only if they have a value."""
        return pd.DataFrame(table[[name for names in columns for name in names if name in table]])

    # Join the two stored tables of jobs into one, with the columns in their original order.
    parts = [
        results[[*JOB_COLUMNS]],
        timing[[*JOB_TIMING_COLUMNS]],
        results[[name for name in results.columns if name.startswith(PREFIX)]],
        there(results, BENCHMARK_COLUMNS, LATENCY_JOB_COLUMNS),
        there(timing, SERVER_JOB_TIMING_COLUMNS, LATENCY_JOB_TIMING_COLUMNS),
        there(results, EVENT_JOB_COLUMNS, DISTINCT_COLUMNS, ACTION_COLUMNS),
    ]
    jobs = pd.concat(parts, axis="columns")
    # JSON and Parquet must agree, so that a single edited file does not change the results silently.
    if plain(records(jobs)) != document["jobs"]:
        raise DamagedFileError(f"the tables of jobs do not hold what {RESULTS_FILE} does")
    check_episodes(document["jobs"], episodes, output_directory)
    parts = [
        episodes[[*EPISODE_COLUMNS]],
        episode_timing[[*EPISODE_TIMING_COLUMNS]],
        there(episodes, EVENT_EPISODE_COLUMNS, START_COLUMNS, ACTION_COLUMNS),
    ]
    # A run without suites has no such table; an existing file is a leftover.
    has_suites = "suites" in document
    suites = read_table(output_directory / "suites.parquet") if has_suites else typed_table((), SUITE_COLUMNS)
    of_suites = [suites[[*SUITE_COLUMNS]], there(suites, BENCHMARK_COLUMNS, DISTINCT_COLUMNS, ACTION_COLUMNS)]
    return MergedResults(
        plan=plan,
        jobs=jobs,
        suites=pd.concat(of_suites, axis="columns"),
        episodes=pd.concat(parts, axis="columns"),
        missing=tuple(
            MissingEpisodes(
                job=each["job"],
                rank=each["rank"],
                status=JobResultStatus(each["status"]),
                episode_indices=tuple(each["episode_indices"]),
            )
            for each in document["missing"]
        ),
        problems=tuple(document["problems"]),
        complete=document["complete"],
        sources=document["sources"],
    )
