"""The start of a run: one rank makes or repairs the directory, and all agree on the work that is left."""

import hashlib
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch

from isaaclab_arena.config.schema import Delays
from isaaclab_arena.distributed.context import RUN_DIRECTORY_FILE, machine_identity
from isaaclab_arena.distributed.devices import default_num_threads, visible_gpu_count
from isaaclab_arena.distributed.launch import leave_for_launcher
from isaaclab_arena.distributed.ranks import Ranks, ranks_of_one
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, refuse
from isaaclab_arena.evaluation import planning, process
from isaaclab_arena.evaluation.job import contents_of_jobs
from isaaclab_arena.evaluation.options import RunOptions
from isaaclab_arena.interfaces.episode import as_ranges
from isaaclab_arena.paths import now
from isaaclab_arena.storage import atomic, layout, ledger, recovery
from isaaclab_arena.storage.commits import read_commits
from isaaclab_arena.storage.contents import Contents, changes, versions
from isaaclab_arena.storage.episodes import locate_episodes


def common_directory(ranks: Ranks, options: RunOptions, made: Path | None, *, delay_s: float = 10.0) -> Path:
    """Return the run's directory under this rank's name for it; `ConfigError` on all ranks if one cannot see it."""
    # `made` is the directory on rank 0, None elsewhere. Call it once in a run: the shared keys exist once. Rank 0
    # puts a file into the directory, and names both.
    host, machine = socket.gethostname(), machine_identity()
    probe = None if made is None else made / ledger.PROBE_PATTERN.replace("*", str(os.getpid()))
    shared = ""
    if probe is not None:
        probe.touch()
        shared = json.dumps([str(made), probe.name, host, machine])
    path, name, home, its_machine = json.loads(ranks.share_from_rank_zero("output_directory", shared))

    # The others look for the file. Only rank 0 knows the name of a dated directory.
    there = Path(path)
    candidates = [there, ledger.named_directory(options.output_base_dir) / there.name]
    if options.output_dir is not None:
        candidates = [ledger.named_directory(options.output_dir)]
    # A network file system may show a new file to other nodes only after seconds.
    deadline = time.monotonic() + (0.0 if machine == its_machine else delay_s)
    seen = made or next((candidate for candidate in candidates if (candidate / name).exists()), None)
    while seen is None and time.monotonic() < deadline:
        time.sleep(0.05)
        seen = next((candidate for candidate in candidates if (candidate / name).exists()), None)

    # Every rank learns all blind ranks, so that all raise the same error.
    own = "" if seen is not None else f"rank {ranks.context.rank} on {host}"
    blind = [each for each in ranks.gather("sight of the directory", own) if each]
    if probe is not None:
        probe.unlink(missing_ok=True)
    if blind or seen is None:
        message = (
            f"rank 0 made {path} on {home}, which {_listed(blind, 8)} cannot see; name a directory on a disk that all "
            "nodes share, or use --cluster ray, which needs none"
        )
        raise ConfigError(message, key="--output_dir")
    return seen


def _listed(names: Sequence[str], most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# Resume a run: find its directory, check that it is the same run, and repair the damage of a crash.

_LOG = logging.getLogger(__name__)


def directory_to_resume(options: RunOptions, plan: ledger.RunPlan) -> Path | None:
    """Return the directory of the run to resume, None if no run has begun there; `ConfigError` if there is no run."""
    # `--resume` may name the directory; it is empty without a value.
    if options.resume or options.output_dir is not None:
        path, option = Path(options.resume or ""), "--resume"
        if not options.resume:
            path, option = ledger.named_directory(options.output_dir or ""), "--output_dir"
            if ledger.holds_no_run(path):
                return None
        if (path / layout.RUN_PLAN_FILE).is_file():
            return path.absolute()
        message = f"'{path}' holds no run to resume, because {layout.RUN_PLAN_FILE} is missing; leave --resume out"
        if not path.is_dir():
            message = f"there is no directory '{path}'"
        elif (path / layout.PLAN_COPY_FILE).is_file():
            message = f"'{path}' has lost its {layout.RUN_PLAN_FILE}; isaaclab-arena recover restores it"
        raise ConfigError(message, key=option)

    # No directory is named: take the newest dated one with the same plan, else the newest that can be resumed.
    base = ledger.named_directory(options.output_base_dir)
    runs = sorted((path.parent for path in base.glob(f"*/{layout.RUN_PLAN_FILE}")), reverse=True)
    if not runs:
        raise ConfigError(f"'{base}' holds no run to resume; name the run's directory", key="--resume")
    able = None
    for run in runs:
        try:
            before = ledger.read_run_plan(run)
        except ConfigError as error:
            # The user may mean a run that cannot be read, so say that it is skipped.
            _LOG.warning("skipping %s: %s", run, error)
            continue
        asked = planning.keeping_num_envs(plan, before)
        revised, differences = planning.resumed_plan(before, asked, has_recorded=lambda _: True)
        if differences:
            continue
        num_envs, wanted = ([job.config.num_envs for job in each.jobs] for each in (before, asked))
        if num_envs == wanted and revised is before:
            return run.absolute()
        able = able or run
    # If none can be resumed, the caller reports the differences of the newest.
    return (able or runs[0]).absolute()


@dataclass(frozen=True, kw_only=True)
class ResumedRun:
    """A run that is resumed."""

    output_directory: Path
    before: ledger.RunPlan  # of the run so far
    plan: ledger.RunPlan  # from now on; the same object if nothing changes
    played_with: Mapping[str, int]  # by job: num_envs of the recorded episodes, if the job has another one now
    has_recorded: Callable[[str], bool]  # by job name


def check_same_run(output_directory: Path, plan: ledger.RunPlan) -> ResumedRun:
    """Return the run of a directory as `plan` resumes it; `ConfigError` if it is another run."""
    before = ledger.read_run_plan(output_directory)
    plan = planning.keeping_num_envs(plan, before)

    @cache
    def has_recorded(name: str) -> bool:
        """Whether a job has an episode, or ended without any. An unreadable file counts as an episode."""
        directory = output_directory / name
        log = read_commits(directory, name)
        files, problems = locate_episodes(directory, name)
        written, _ = ledger.read_job_reports(directory, name, before.run_id)
        has_ended = any(report.status is ledger.ReportedStatus.COMPLETED for report in written)
        return bool(log.lines or log.problems or files or problems or has_ended)

    # Another num_envs is allowed only if it does not change the episodes.
    wanted = {planned.name: planned.config.num_envs for planned in plan.jobs}
    played_with = {
        name: num_envs
        for name, num_envs in ((planned.name, planned.config.num_envs) for planned in before.jobs)
        if not before.settings.get("deterministic")
        if wanted.get(name, num_envs) != num_envs and has_recorded(name)
    }
    revised, differences = planning.resumed_plan(before, plan, has_recorded=has_recorded)
    for name, num_envs in played_with.items():
        written, _ = ledger.read_job_reports(output_directory / name, name, before.run_id)
        only_plan = next((report for report in written if report.reproducible is ledger.Reproducible.PLAN), None)
        if only_plan is not None:
            because = only_plan.plan_because or "nothing promises more"
            message = (
                f"was {num_envs} when the run began, now {wanted[name]}, which would change its episodes: they do not "
                f"repeat bit for bit: {because}"
            )
            differences.append(Problem(message, job=name, key="num_envs"))
    if differences:
        differ = "1 thing differs" if len(differences) == 1 else f"{len(differences)} things differ"
        message = f"is a different run ({differ}); start a new one, or ask for the same again"
        raise ConfigError([Problem(message, file=str(output_directory)), *differences])
    return ResumedRun(
        output_directory=output_directory,
        before=before,
        plan=revised,
        played_with=played_with,
        has_recorded=has_recorded,
    )


def jobs_to_rerun(resumed: ResumedRun, now: ledger.RunPlan, named: Sequence[str]) -> tuple[str, ...]:
    """Return the jobs whose episodes no longer count, because they evaluated something else."""
    # `now` is the requested plan, `named` the jobs of ``--rerun``.
    # A job without recordings continues with its present contents. A job that ``--rerun`` names keeps its episodes if
    # its contents are the same, so the same command can be repeated after an interruption. A job with unknown contents
    # runs again.
    plan, has_recorded = resumed.plan, resumed.has_recorded
    attempts, _ = ledger.read_attempts(resumed.output_directory, plan.run_id)
    before = ledger.contents_in_effect([planned for planned in plan.jobs if planned.is_to_run], attempts)
    wanted = {planned.name: planned.contents for planned in now.jobs if planned.name in before}
    if unsaid := sorted(name for name in wanted if before[name] is None and name not in named):
        _LOG.warning(
            "%s does not record the checkpoint and the code of %s, so changes since then cannot be detected",
            resumed.output_directory,
            _jobs_in_words(unsaid),
        )
    changed: dict[str, list[Problem]] = {}
    for name, present in wanted.items():
        known, found = before[name], []
        if known is not None and present is not None:
            found = [*changes(known.policy, present.policy), *changes(known.environment, present.environment)]
        if problems := [Problem(how, job=name, key=what) for what, how in found]:
            changed[name] = problems

    # Jobs that ``--rerun`` does not name must be the same.
    if refused := [name for name in changed if name not in named and has_recorded(name)]:
        options = " ".join(f"{RERUN} {name}" for name in refused[:_MAX_SHOWN])
        message = (
            f"the policy or environment of {_jobs_in_words(refused)} has changed since these episodes ran; start a "
            f"new run in another directory, or run the episodes again: --resume {options}"
        )
        problems = [each for name in refused for each in changed[name]]
        shown = [Problem(message, file=str(resumed.output_directory)), *problems[:_MAX_SHOWN]]
        if len(problems) > _MAX_SHOWN:
            shown.append(Problem(f"and {len(problems) - _MAX_SHOWN} more differences"))
        raise ConfigError(shown)

    to_rerun = []
    for name in dict.fromkeys(named):
        contents = before.get(name)
        if name in wanted and (contents is None or not contents.is_known or name in changed) and has_recorded(name):
            to_rerun.append(name)
        else:
            _LOG.info("%s: job '%s' is unchanged; its episodes are kept", RERUN, name)
    return tuple(to_rerun)


RERUN = "--rerun"
_MAX_SHOWN = 20


def _jobs_in_words(names: Sequence[str]) -> str:
    listed = _listed([f"'{name}'" for name in names], _MAX_SHOWN)
    return f"job{'s' if len(names) > 1 else ''} {listed}"


def repair_run(
    resumed: ResumedRun, options: RunOptions, *, to_rerun: Sequence[str]
) -> tuple[int, tuple[ledger.JobState, ...]]:
    """Repair a run's directory after a crash. Return the number of the attempt that begins, and the jobs left."""
    # The caller holds the run's lock alone. The episodes of the jobs `to_rerun` do not count any more, but until the
    # attempt is written they do, and this may be repeated after an interruption.
    output_directory, plan = resumed.output_directory, resumed.plan
    grown = {
        after.name: after.config.num_episodes or 0
        for before, after in zip(resumed.before.jobs, plan.jobs, strict=True)
        if before.config.num_episodes != after.config.num_episodes
    }
    for name, num_episodes in grown.items():
        _LOG.info("job '%s' grows to %d episodes", name, num_episodes)
    number = max(ledger.attempt_numbers(output_directory), default=0) + 1
    for name in to_rerun:
        why = f"{RERUN}: its policy or environment has changed"
        for line in recovery.set_job_aside(output_directory / name, name, attempt=number - 1, why=why):
            _LOG.warning("%s", line)
    found = recovery.recover_run(output_directory, plan, retry_errors=options.retry_errors, attempt=number)
    for note in found.notes:
        _LOG.warning("%s", note)

    attempts, _ = ledger.read_attempts(output_directory, plan.run_id)
    batches = ledger.policy_batches_in_effect(output_directory, plan.jobs, attempts)
    finished = {each.job.name: as_ranges(each.finished) for each in found.jobs}
    states = {name: ledger.JobState(job=name, finished=ranges) for name, ranges in finished.items()}

    # A job with reports may have ended on equal errors, so its commits are checked (see `AnswerWatch`).
    answers = planning.answer_watch(output_directory, plan.questions, number, states, options.max_equal_errors)
    answers.suspects.update(each.job.name for each in found.jobs if each.reports)
    left = found.left(answers.needed)

    # Never reuse the number of an attempt whose file is lost: lines, reports and claims carry it.
    number = max([number, *(each.last_attempt + 1 for each in found.jobs)])
    # A job without a recording starts afresh. The settings of its earlier attempts are dropped, because another network
    # may need another batch size.
    fresh = {*to_rerun, *(entry.job for entry in left if not resumed.has_recorded(entry.job))}
    for name in fresh:
        directory = output_directory / name
        if (directory / layout.SETTLED_FILE).exists():
            atomic.move_aside(
                directory / layout.SETTLED_FILE, directory / layout.SET_ASIDE_DIRECTORY / f"attempt_{number - 1}"
            )
    return number, tuple(
        replace(
            entry,
            policy_batch=None if entry.job in fresh else batches.get(entry.job),
            num_episodes=grown.get(entry.job),
            num_envs=resumed.played_with.get(entry.job),
        )
        for entry in left
    )


# Start the ranks of a run: one makes or repairs the directory, and all agree on the work that is left.


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """A run that all ranks have begun."""

    output_directory: Path  # as this rank sees it
    plan: ledger.RunPlan  # as written when the run began
    attempt: ledger.Attempt | None  # None if everything is done and intact
    lock: ledger.RunLock  # held by this rank until it exits


def start_run(
    request: planning.RunRequest, ranks: Ranks, *, devices_to_come: Sequence[str] | None = None
) -> StartedRun:
    """Agree on the plan, make or repair the run's directory, and return the work of this attempt."""
    # `devices_to_come`: of ranks that come later, each with the plan of this process, which alone begins the run; None
    # if the ranks are here. `ConfigError` if they differ, the directory cannot be used or is in use, or there is no
    # such run to resume.
    context, options = ranks.context, request.options
    names = [job.config.name for job in request.jobs]
    unknown = [name for name in dict.fromkeys(options.rerun) if name not in names]
    refuse([Problem(f"there is no job '{name}'{did_you_mean(name, names)}", key=RERUN) for name in unknown])
    # Ranks that come later have the plan of this process, which then agrees with itself.
    meeting = ranks if devices_to_come is None else ranks_of_one(replace(context, world_size=1, local_world_size=1))
    # The hash of the jobs leaves the time limits out, because a resume may change them.
    limits = [(job.config.timeout_s, job.config.episode_timeout_s) for job in request.jobs]
    of_limits = hashlib.sha256(json.dumps(limits).encode()).hexdigest()
    # Besides the options that affect results, those on which each rank acts alone.
    alone = ("lease_s", "fail_fast", "record_camera_video", "record_viewport_video", "video_episodes", "video_fps")
    alone += ("policy_device", "policy_device_id", "max_equal_errors")
    settings = {**options.result_settings(), "assignment": options.mode.name}
    settings |= {name: getattr(options, name) for name in alone}
    shared = {"jobs": request.config_hash, "time limits of jobs": of_limits}
    meeting.agree_on("jobs and options", {**shared, **{f"--{name}": str(value) for name, value in settings.items()}})
    agree_on_versions(meeting, versions())
    devices = meeting.gather("device", str(context.device))
    on_cpu = [str(rank) for rank, device in enumerate(devices) if torch.device(device).type == "cpu"]
    if context.is_rank_zero and 0 < len(on_cpu) < len(devices):
        _LOG.warning(
            "of %d ranks, %s run on the CPU and the others on GPUs, so environments that can use either run on CPUs; "
            "isaaclab-arena doctor shows each node's GPUs, --device cpu uses none",
            len(devices),
            _listed(on_cpu, 5),
        )
    with meeting.keep_waiting():
        # Every checkpoint is read from end to end, which takes a while if they are large. One rank of each node does
        # it: without a shared disk, their files must be equal.
        contents = contents_of_jobs(request.jobs) if context.is_rank_zero or context.local_rank == 0 else {}
    agree_on_contents(meeting, contents)

    # Rank 0 makes or repairs the directory. The others learn its path and the number of the attempt.
    plan = machinery = path = lock = earlier = None
    if context.is_rank_zero:
        run_id = uuid.uuid4().hex
        devices = devices_to_come or devices
        plan = planning.plan_run(request, context.world_size, devices, run_id=run_id, contents=contents)
        machinery = planning.Machinery(
            devices=plan.devices,
            num_threads=options.num_threads or default_num_threads(context.local_world_size),
            num_groups=options.pipeline,
            measures=torch.device(plan.devices[0]).type != "cuda" or visible_gpu_count() > 0,
        )
        earlier = None if options.resume is None else directory_to_resume(options, plan)
        path = earlier or ledger.make_output_directory(
            output_dir=options.output_dir, output_base_dir=options.output_base_dir
        )
        lock = ledger.RunLock(path).hold(alone=True)
    if meeting.context.is_distributed or path is None:
        path = common_directory(meeting, options, path)
    number = ""
    with meeting.keep_waiting():
        if plan is not None and machinery is not None and lock is not None:
            try:
                attempt = begin_attempt(request, plan, path, machinery=machinery, resumes=earlier is not None)
            except BaseException:
                # The caller may try again in this process.
                lock.release()
                raise
            number = "nothing" if attempt is None else str(attempt.number)
            # The logs of the launcher go there too.
            leave_for_launcher(RUN_DIRECTORY_FILE, str(path))
            lock = lock.hold(alone=False)
    number = meeting.share_from_rank_zero("attempt", number)
    lock = lock or ledger.RunLock(path).hold(alone=False)
    # No rank may leave before all of them hold the lock.
    meeting.gather("lock", "held")
    attempt = None if number == "nothing" else ledger.read_attempt(path, int(number))
    return StartedRun(output_directory=path, plan=ledger.read_run_plan(path), attempt=attempt, lock=lock)


def agree_on_versions(ranks: Ranks, versions: Mapping[str, str]) -> None:
    """Refuse nodes with different package versions: an episode's result must not depend on its node."""
    named = {f"the version of {package}": version for package, version in versions.items()}
    ranks.agree_on("versions", named, way_out="install the same version on every node")


def agree_on_contents(ranks: Ranks, contents: Mapping[str, Contents]) -> None:
    """Refuse nodes whose checkpoints, classes or robots differ; empty `contents` on ranks that did not look."""
    merged = named_contents(contents)
    text = json.dumps(merged, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest() if contents else ""
    digests = ranks.gather("contents", digest)
    if {*digests} <= {"", digests[0]}:
        return
    # Only now exchange the long texts: each rank reports its differences from rank 0.
    first: dict[str, str] = json.loads(ranks.share_from_rank_zero("contents of rank 0", text))
    own = [f"{name} {how} here" for name, how in changes(first, merged)] if contents else []
    verdicts = ranks.gather("verdict on the contents", "; ".join(own[:5]))
    other = "is on a node with other files than rank 0"
    others = [f"rank {rank} {other}: {verdict}" for rank, verdict in enumerate(verdicts) if verdict]
    raise ConfigError([Problem(f"{each}; copy the same files to every node") for each in others])


def named_contents(contents: Mapping[str, Contents]) -> dict[str, str]:
    """Map each content that jobs evaluate to its hash, under a name with the job in it."""
    named: dict[str, str] = {}
    for job_name, each in contents.items():
        of_environment = {f"environment: {name}": content for name, content in each.environment.items()}
        named |= {f"job '{job_name}': {name}": content for name, content in {**each.policy, **of_environment}.items()}
    return named


def begin_attempt(
    request: planning.RunRequest, plan: ledger.RunPlan, path: Path, *, machinery: planning.Machinery, resumes: bool
) -> ledger.Attempt | None:
    """Write the plan, or compare it with the one on disk; return the attempt, None if nothing is left."""
    # Only rank 0 calls this, which holds the run's lock alone.
    options = request.options
    number, to_rerun, resumed = 1, (), None
    entries: Sequence[ledger.JobState]
    entries = [ledger.JobState(job=planned.name) for planned in plan.jobs if planned.is_to_run]
    # A resumed run keeps the backends and latencies that were settled before.
    known: dict[str, str] = {}
    measured: dict[str, Delays] = {}
    if resumes:
        resumed = check_same_run(path, plan)
        slots = {planned.name: planned.config.num_envs for planned in resumed.plan.jobs}
        request = replace(request, jobs=planning.with_num_envs(request.jobs, slots, options.fixed_policy_batch()))
        known = {planned.name: planned.backend for planned in resumed.plan.jobs if planned.backend is not None}
        measured = {planned.name: planned.latency for planned in resumed.plan.jobs if planned.latency is not None}
        to_rerun = jobs_to_rerun(resumed, plan, options.rerun)
        # Refuse before the old results are set aside.
        planning.refuse_slow_backends(request.jobs, {name: known.get(name) for name in to_rerun}, machinery)
        number, entries = repair_run(resumed, options, to_rerun=to_rerun)
        if not entries:
            return None
        _LOG.info("resuming %s: %d of %d jobs are unfinished", path, len(entries), len(request.jobs))
        planning.refuse_slow_backends(request.jobs, {entry.job: known.get(entry.job) for entry in entries}, machinery)
    else:
        ledger.clear_unbegun(path)

    # Settle the open choices by measuring on this machine, for the jobs that run. If the watchdog ends this process,
    # the next start clears away a file of this name.
    watchdog = process.Watchdog(path / f".{layout.RUN_PLAN_FILE}.watchdog.tmp")
    guard = partial(watchdog.guard, silence_s=options.build_timeout_s, missing="has not been tried on a GPU in")
    left = {entry.job for entry in entries}
    to_run = [job for job in request.jobs if job.config.name in left]
    settled = planning.settle_backends(to_run, machinery, known=known, watch=guard)
    asked = partial(planning.policy_as_served, options=options, output_directory=path)
    latencies = planning.settle_latencies(to_run, machinery, known=measured, asked=asked, watch=guard)

    # A new run writes them into its plan; a resumed one writes the plan only if it has changed.
    if resumed is None:
        jobs = tuple(
            replace(planned, backend=settled.get(planned.name), latency=latencies.get(planned.name, planned.latency))
            for planned in plan.jobs
        )
        ledger.write_run_plan(path, replace(plan, jobs=jobs))
    elif resumed.plan is not resumed.before:
        ledger.write_run_plan(path, resumed.plan, revises=True)
    contents = {planned.name: planned.contents for planned in plan.jobs}
    chosen = {job.config.name: job.config.num_envs for job in request.jobs if job.config.chooses_num_envs}
    entries = tuple(
        replace(
            entry,
            contents=contents.get(entry.job),
            chosen_num_envs=chosen.get(entry.job),
            is_rerun=entry.job in to_rerun,
            backend=settled.get(entry.job),
            latency=latencies.get(entry.job),
        )
        for entry in entries
    )
    attempt = ledger.Attempt(
        number=number,
        # This start of the program has an id of its own, the whole run that of its first start.
        run_id=plan.run_id,
        run=plan.run_id if resumed is None else resumed.plan.run_id,
        started_at=now(),
        command_line=plan.command_line,
        assignment=options.mode.name,
        assignment_reason=request.assignment_reason,
        world_size=plan.world_size,
        devices=plan.devices,
        versions=plan.versions,
        git_revision=plan.git_revision,
        machine=plan.machine,
        jobs=entries,
        retry_errors=options.retry_errors,
        max_equal_errors=options.max_equal_errors,
    )
    # Before anything runs.
    ledger.write_attempt(path, attempt)
    return attempt
