"""From the blocks of a job file to its jobs: defaults, sweeps and checks, with every problem at once."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isaaclab_arena.config.expansion.checkpoints import expand_checkpoints
from isaaclab_arena.config.expansion.robustness import KEY as ROBUSTNESS
from isaaclab_arena.config.expansion.robustness import ArmsOf, read_robustness
from isaaclab_arena.config.expansion.suites import expand_suite
from isaaclab_arena.config.expansion.sweeps import MAX_JOBS, expand, num_combinations, sweep_problems
from isaaclab_arena.config.interpolation import OmegaConfInterpolation
from isaaclab_arena.config.job_blocks import job_over_defaults, modernised
from isaaclab_arena.config.job_fields import JOB_KEYS, read_job
from isaaclab_arena.config.messages import shown
from isaaclab_arena.config.names import clashes, folded, name_problem
from isaaclab_arena.config.schema import JobConfig, JobDefaults, SuiteMember, TrackerName
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean, shortened
from isaaclab_arena.nested import overlaid, value_at
from isaaclab_arena.registry import Registry

_TOP_KEYS = frozenset({"jobs", "defaults", "sweep", "variables", "comparisons", "bars", "tracking"})
_DEFAULT_KEYS = JOB_KEYS - {"name", "sweep"}
_NOTHING = object()


@dataclass(frozen=True, kw_only=True)
class TopLevel:
    """The blocks of a job file.

    Attributes:
        jobs: What is listed as jobs.
        defaults: Keys that lie under every job.
        sweep: The sweep of every job.
        variables: Values for interpolation.
        comparisons: What is listed as comparisons of jobs.
        bars: What is listed as rates that jobs have to reach.
        tracking: Where results are logged while the jobs run.
    """

    jobs: list[Any]
    defaults: dict[str, Any]
    sweep: dict[str, Any]
    variables: dict[str, Any]
    comparisons: list[Any]
    bars: list[Any]
    tracking: tuple[TrackerName, ...] = ()


def checked_top_level(document: Any) -> tuple[TopLevel, list[Problem]]:
    """Return the blocks of a job file, those that are wrong empty, and what is wrong with them.

    Raises:
        ConfigError: If it lists no jobs.
    """
    if not isinstance(document, dict):
        raise ConfigError(Problem(f"the top level is {shown(document)}, not a mapping with the key 'jobs'"))
    hints = {key: did_you_mean(key, _TOP_KEYS) for key in document if key not in _TOP_KEYS}
    if hints and len(hints) == len(document) and not any("did you mean" in hint for hint in hints.values()):
        keys = ", ".join(map(shortened, list(document)[:8]))
        way_out = "put this job into a list under the key 'jobs'" if "policy_type" in document else "it lists no 'jobs'"
        raise ConfigError(Problem(f"is no job file: {way_out}; its keys are {keys}"))
    problems = [Problem(f"unknown key{hint}", key=key) for key, hint in hints.items()]
    jobs = document.get("jobs")
    if "jobs" not in document:
        problems.append(Problem("is missing; it lists the jobs", key="jobs"))
    elif not isinstance(jobs, list):
        problems.append(Problem(f"{shown(jobs)} is not a list", key="jobs"))
    elif not jobs:
        problems.append(Problem("lists no job", key="jobs"))
    blocks = {key: document.get(key) or {} for key in ("defaults", "sweep", "variables")}
    lists = {key: document.get(key) or [] for key in ("comparisons", "bars")}
    for given, kind, word in ((blocks, dict, "mapping"), (lists, list, "list")):
        for key, value in given.items():
            if not isinstance(value, kind):
                problems.append(Problem(f"{shown(value)} is not a {word}", key=key))
                given[key] = kind()
    tracking = document.get("tracking") or []
    wrong = tracker_problems(tracking, key="tracking")
    problems += wrong
    if not isinstance(jobs, list) or not jobs:
        raise ConfigError(problems)
    top = TopLevel(
        jobs=jobs,
        comparisons=lists["comparisons"],
        bars=lists["bars"],
        tracking=() if wrong else tuple(map(TrackerName, tracking)),
        **blocks,
    )
    return top, problems


def tracker_problems(names: Any, *, key: str) -> list[Problem]:
    """Return what is wrong with a list of trackers.

    Args:
        names: What was given.
        key: What it was given as.
    """
    if not isinstance(names, Sequence) or isinstance(names, str):
        return [Problem(f"{shown(names)} is not a list such as [wandb]", key=key)]
    return [
        Problem(f"there is no tracker {shown(name)}{did_you_mean(str(name), TrackerName)}", key=key)
        for name in names
        if name not in list(TrackerName)
    ]


class Reading:
    """One reading of a job file: collects jobs, and problems instead of stopping at the first."""

    def __init__(
        self,
        top: TopLevel,
        command_line: JobDefaults,
        interpolation: OmegaConfInterpolation,
        suites: Registry,
        arms: ArmsOf,
    ) -> None:
        self._top = top
        self._suites = suites
        self._arms = arms
        self._command_line = command_line
        self._interpolation = interpolation
        self._problems: dict[Problem, None] = {}
        # The keys of the problems of each job, of the file's under None.
        self._wrong: defaultdict[str | None, list[str]] = defaultdict(list)
        self._add(interpolation.problems)
        self._defaults = self._read_defaults()

    def jobs(self) -> tuple[tuple[JobConfig, ...], list[Problem]]:
        """Return every job as far as it can be read, and every problem of every job.

        Raises:
            ConfigError: If the jobs after one cannot be read at all.
        """
        jobs: list[JobConfig] = []
        names: list[Any] = []
        for position, block in enumerate(self._top.jobs):
            if not isinstance(block, dict):
                self._add([Problem(f"{shown(block)} is not a mapping")], job=f"jobs[{position}]")
                continue
            label = _label(block.get("name"), f"jobs[{position}]")
            for entry, swept in self._expanded(block, label, room=MAX_JOBS - len(names)):
                for of_task, member in self._of_suite(entry, label, room=MAX_JOBS - len(names)):
                    asked = of_task.pop(ROBUSTNESS, None)
                    # What is wrong with all jobs of a suite is told once, of its entry.
                    own_label = _label(entry.get("name"), label)
                    job, found = read_job(of_task, index=len(jobs), label=own_label, defaults=self._command_line)
                    self._add(self._blamed(filter(self._is_news, found), block))
                    if job is None:
                        names.append(of_task.get("name"))
                        continue
                    job = replace(job, swept=swept, suite=member) if swept or member else job
                    for arm in [job] if found else self._of_robustness(job, asked, own_label):
                        names.append(of_task.get("name") if found else arm.name)
                        jobs.append(replace(arm, index=len(jobs)))
        for name, earlier in clashes(name for name in names if _label(name, "")):
            self._add([Problem(_taken(name, earlier), key="name")], job=name)
        return tuple(jobs), list(self._problems)

    def _add(self, problems: Iterable[Problem], *, job: str | None = None, below: str = "") -> None:
        for problem in problems:
            key = f"{below}{problem.key}" if below else problem.key
            self._problems[replace(problem, job=job or problem.job, key=key)] = None
            self._wrong[job or problem.job].append(key or "")

    def _is_news(self, problem: Problem) -> bool:
        """Return whether a problem is more than that something is missing which was refused already."""
        told = (*self._wrong[None], *self._wrong[problem.job])
        return problem.message != "is missing" or not any(key.startswith(problem.key or "") for key in told)

    def _read_defaults(self) -> dict[str, Any]:
        unknown = [key for key in self._top.defaults if key not in _DEFAULT_KEYS]
        for key in unknown:
            reason = f"unknown key{did_you_mean(key, _DEFAULT_KEYS)}"
            if key == "sweep":
                reason = "belongs to the top level of the file or to a job"
            self._add([Problem(reason, key=f"defaults.{key}")])
        known = {key: value for key, value in self._top.defaults.items() if key not in unknown}
        block, problems = modernised(known)
        self._add(problems, below="defaults.")
        return block

    def _expanded(
        self, block: dict[str, Any], label: str, *, room: int
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield each job of a block, with the values that the sweep gave it."""
        own, problems = modernised({key: value for key, value in block.items() if key != "sweep"})
        template = job_over_defaults(self._defaults, own)
        sweep = self._sweep(block, label)
        self._add(problems, job=label)
        problems = sweep_problems(template, sweep, JOB_KEYS)
        if not problems and num_combinations(sweep) > room:
            message = f"makes {num_combinations(sweep)} jobs; a file may have {MAX_JOBS} in all"
            problems.append(Problem(message, key="sweep"))
        self._add(problems, job=label)
        if problems:
            return
        for combination in expand(template, sweep):
            resolved = self._resolved(combination, label, block)
            if resolved is not None:
                modern, problems = modernised(resolved)
                self._add(problems, job=label)
                swept = {key: value_at(resolved, key.split(".")) for key in sweep}
                for own, step in self._of_checkpoints(modern, label, room=room):
                    yield own, swept | step

    def _of_robustness(self, job: JobConfig, asked: Any, label: str) -> Sequence[JobConfig]:
        """Return the arms of a job that asks for its robustness, or the one job that it is."""
        asked = self._command_line.robustness if asked is None else asked
        if asked is None:
            return [job]
        try:
            return self._arms(job, read_robustness(asked))
        except ConfigError as error:
            self._add(error.problems, job=label)
            return []

    def _of_suite(
        self, entry: dict[str, Any], label: str, *, room: int
    ) -> list[tuple[dict[str, Any], SuiteMember | None]]:
        """Return the jobs of an entry: one per task of its suite, or the one that it is."""
        try:
            return list(expand_suite(entry, self._suites, room=room))
        except ConfigError as error:
            self._add(error.problems, job=_label(entry.get("name"), label))
            return []

    def _of_checkpoints(
        self, entry: dict[str, Any], label: str, *, room: int
    ) -> list[tuple[dict[str, Any], dict[str, int | None]]]:
        """Return the jobs of an entry: one per checkpoint that it names, or the one that it is."""
        try:
            return list(expand_checkpoints(entry, room=room))
        except ConfigError as error:
            self._add(error.problems, job=_label(entry.get("name"), label))
            return []

    def _sweep(self, block: dict[str, Any], label: str) -> dict[str, Any]:
        own = block.get("sweep", {})
        if own is None:
            return {}
        if not isinstance(own, dict):
            self._add([Problem(f"{shown(own)} is not a mapping", key="sweep")], job=label)
            return {}
        resolved, problems = self._interpolated(overlaid(self._top.sweep, own, none_removes=True), label)
        self._add(problems, job=label, below="sweep.")
        return {} if problems else resolved

    def _resolved(self, tree: dict[str, Any], label: str, block: dict[str, Any]) -> dict[str, Any] | None:
        resolved, problems = self._interpolated(tree, label)
        self._add(self._blamed((replace(problem, job=label) for problem in problems), block))
        return None if problems else resolved

    def _interpolated(self, tree: dict[str, Any], label: str) -> tuple[dict[str, Any], list[Problem]]:
        try:
            return self._interpolation.resolve(tree)
        except ConfigError as error:
            # The jobs after this one cannot be resolved either.
            self._add(error.problems, job=label)
            raise ConfigError(tuple(self._problems)) from error

    def _blamed(self, problems: Iterable[Problem], block: dict[str, Any]) -> Iterator[Problem]:
        """Yield problems of a job; those of the defaults without its name, to be told once and not a thousand times."""
        for problem in problems:
            path = (problem.key or "").split(".")
            is_own = value_at(modernised(block)[0], path, otherwise=_NOTHING) is not _NOTHING
            if is_own or value_at(self._defaults, path, otherwise=_NOTHING) is _NOTHING:
                yield problem
            else:
                yield replace(problem, job=None, key=f"defaults.{problem.key}")


def _taken(name: str, earlier: str) -> str:
    if name == earlier:
        return "is taken by an earlier job"
    if folded(name) == folded(earlier):
        return f"is taken by '{earlier}' where file systems ignore case"
    return f"looks like '{earlier}', but is {name!a}; give it a name that nobody takes for that one"


def _label(name: object, otherwise: str) -> str:
    return name if isinstance(name, str) and name_problem(name) is None else otherwise
