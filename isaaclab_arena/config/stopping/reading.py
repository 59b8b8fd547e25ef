"""Read the comparisons and bars of a job file, and say everything that is wrong with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isaaclab_arena.config.messages import error_message, key_path, shown
from isaaclab_arena.config.names import clashes, name_problem
from isaaclab_arena.config.schema import JobConfig, JobStatus
from isaaclab_arena.config.stopping.questions import Question
from isaaclab_arena.errors import ConfigError, Problem, did_you_mean

_Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
_Fields = TypeVar("_Fields", "_Comparison", "_Bar")
_DECIDES_NO_CONDITIONS = frozenset({"backend"})
_NOT_OF_SUITES = "suites do not stop early: ask isaaclab-arena compare when their episodes are there"


class _Stop(BaseModel):
    """When a question is answered."""

    model_config = ConfigDict(strict=True, extra="forbid")

    alpha: _Share = 0.05
    max_episodes: Annotated[int, Field(ge=1)] | None = None


class _Comparison(BaseModel):
    """The keys of a comparison."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: str
    jobs: Annotated[list[str], Field(min_length=2, max_length=2)]
    margin: _Share | None = None
    stop: _Stop


class _Bar(BaseModel):
    """The keys of a bar."""

    model_config = ConfigDict(strict=True, extra="forbid")

    job: str
    at_least: _Share
    name: str | None = None
    stop: _Stop


@dataclass(frozen=True, kw_only=True)
class QuestionsRead:
    """What a file asks of its jobs.

    Attributes:
        questions: Comparisons, then bars, in order of the file.
        jobs: The jobs; one whose length only its questions say has it now.
    """

    questions: tuple[Question, ...]
    jobs: tuple[JobConfig, ...]


def read_questions(comparisons: Sequence[Any], bars: Sequence[Any], jobs: tuple[JobConfig, ...]) -> QuestionsRead:
    """Check the comparisons and bars of a job file against its jobs.

    Args:
        comparisons: What the file lists as comparisons.
        bars: What it lists as bars.
        jobs: Every job of the file, after its sweeps.

    Raises:
        ConfigError: With every problem of the questions.
    """
    reading = _Reading(jobs)
    for position, block in enumerate(comparisons):
        reading.add_comparison(f"comparisons[{position}]", block)
    for position, block in enumerate(bars):
        reading.add_bar(f"bars[{position}]", block)
    reading.check_names()
    if reading.problems:
        raise ConfigError(reading.problems)
    return QuestionsRead(questions=tuple(reading.questions.values()), jobs=tuple(map(reading.with_length, jobs)))


def about_jobs(problem: Problem) -> bool:
    """Return whether a problem of a question is one of the jobs that it names."""
    key = problem.key or ""
    return key.endswith((".jobs", ".job")) or (key.endswith(".max_episodes") and " job " in problem.message)


class _Reading:
    """One reading of the questions: collects them by key, and problems instead of stopping at the first."""

    def __init__(self, jobs: Sequence[JobConfig]) -> None:
        self.questions: dict[str, Question] = {}
        self.problems: list[Problem] = []
        self._jobs = {job.name: job for job in jobs}
        self._suites = {job.suite.name for job in jobs if job.suite is not None}
        self._names: dict[str, str] = {}

    def add_comparison(self, key: str, block: Any) -> None:
        fields = self._fields(_Comparison, key, block)
        if fields is None:
            return
        names, stop = tuple(fields.jobs), fields.stop
        wrong = [*self._unusable(f"{key}.jobs", names), *_unpaired(f"{key}.jobs", self._known(names))]
        self._add(key, fields.name, names, stop, wrong, margin=fields.margin)

    def add_bar(self, key: str, block: Any) -> None:
        fields = self._fields(_Bar, key, block)
        if fields is None:
            return
        name = f"{fields.job} at least {fields.at_least:g}" if fields.name is None else fields.name
        wrong = list(self._unusable(f"{key}.job", (fields.job,)))
        self._add(key, name, (fields.job,), fields.stop, wrong, at_least=fields.at_least)

    def check_names(self) -> None:
        """Refuse names that are taken, by another question or by a job."""
        keys = {name: key for key, name in self._names.items()}
        for name, earlier in clashes(self._names.values()):
            taken = f"'{name}' is taken" if name == earlier else f"'{name}' is too much like '{earlier}'"
            self.problems.append(Problem(f"{taken} by an earlier question", key=f"{keys[name]}.name"))
        self.problems += [
            Problem(f"'{name}' is the name of a job too; give it another one", key=f"{key}.name")
            for key, name in self._names.items()
            if name in self._jobs
        ]

    def with_length(self, job: JobConfig) -> JobConfig:
        """Return a job with the number of episodes that its questions look at, where it says none itself."""
        asked = [question.max_episodes for question in self.questions.values() if job.name in question.jobs]
        return replace(job, num_episodes=max(asked)) if asked and job.num_episodes is None else job

    def _fields(self, kind: type[_Fields], key: str, block: Any) -> _Fields | None:
        if not isinstance(block, dict):
            self.problems.append(Problem(f"{shown(block)} is not a mapping", key=key))
            return None
        name = block.get("name")
        if isinstance(name, str):
            self._names[key] = name
        try:
            return kind.model_validate(block)
        except ValidationError as invalid:
            known = frozenset({*kind.model_fields, *_Stop.model_fields})
            self.problems += [
                Problem(error_message(error, known), key=f"{key}.{key_path(error)}")
                for error in invalid.errors(include_url=False)
            ]
        return None

    def _add(
        self, key: str, name: str, jobs: tuple[str, ...], stop: _Stop, wrong: list[Problem], **asked: float | None
    ) -> None:
        unsafe = name_problem(name)
        if unsafe is not None:
            wrong.append(Problem(unsafe, key=f"{key}.name"))
        known = self._known(jobs)
        max_episodes, problem = _most_episodes(stop, known)
        if problem is not None and len(known) == len(jobs):
            wrong.append(Problem(problem, key=f"{key}.stop.max_episodes"))
        self._names[key] = name
        self.problems += wrong
        if not wrong:
            self.questions[key] = Question(name=name, jobs=jobs, max_episodes=max_episodes, alpha=stop.alpha, **asked)

    def _known(self, names: Sequence[str]) -> list[JobConfig]:
        return [self._jobs[name] for name in names if name in self._jobs]

    def _unusable(self, key: str, names: Sequence[str]) -> Iterator[Problem]:
        """Yield what is wrong with each of the jobs that a question names."""
        for name in names:
            job = self._jobs.get(name)
            if job is None and name in self._names.values():
                yield Problem(f"'{name}' is a comparison; name the jobs themselves", key=key)
            elif job is None and name in self._suites:
                yield Problem(f"'{name}' is a suite, and {_NOT_OF_SUITES}", key=key)
            elif job is None:
                yield Problem(f"there is no job '{name}'{did_you_mean(name, self._jobs)}", key=key)
            elif job.status is not JobStatus.PENDING:
                yield Problem(f"job '{name}' does not run: its status is '{job.status}'", key=key)
            elif job.suite is not None:
                yield Problem(f"job '{name}' belongs to a suite, and {_NOT_OF_SUITES}", key=key)
            elif job.num_steps is not None:
                yield Problem(f"job '{name}' has num_steps; give it num_episodes instead", key=key)


def _unpaired(key: str, jobs: Sequence[JobConfig]) -> Iterator[Problem]:
    """Yield why two jobs have no episodes that start from the same conditions."""
    if len(jobs) < 2:
        return
    first, second = jobs
    if first.name == second.name:
        yield Problem(f"compares job '{first.name}' with itself", key=key)
        return
    facts = [_facts(job) for job in jobs]
    for name in sorted(facts[0].keys() | facts[1].keys()):
        one, other = (each.get(name) for each in facts)
        if one != other:
            message = f"'{first.name}' and '{second.name}' give no pairs: {name} is {shown(one)} and {shown(other)}"
            yield Problem(message, key=key)
    for job in jobs:
        if job.num_rebuilds > 1:
            yield Problem(f"job '{job.name}' has num_rebuilds {job.num_rebuilds}; compared jobs need 1", key=key)


def _facts(job: JobConfig) -> Mapping[str, Any]:
    """Return what two jobs have to share so that an episode of one starts like that of the other."""
    options = {name: value for name, value in job.environment_args.items() if name not in _DECIDES_NO_CONDITIONS}
    return {
        **options,
        "environment": job.environment,
        "the seed of its conditions": job.seed if job.placement_seed is None else job.placement_seed,
        "variations": dict(job.variations),
        "conditions": job.conditions,
    }


def _most_episodes(stop: _Stop, jobs: Sequence[JobConfig]) -> tuple[int, str | None]:
    """Return how many episodes a question looks at, and what is wrong with that."""
    lengths = {job.name: job.num_episodes for job in jobs if job.num_episodes is not None}
    if stop.max_episodes is None:
        if len(lengths) < len(jobs):
            without = next(job.name for job in jobs if job.num_episodes is None)
            return 0, f"is missing: job '{without}' has no num_episodes; give either"
        if len(set(lengths.values())) > 1:
            told = " and ".join(f"'{name}' has {length} episodes" for name, length in lengths.items())
            return 0, f"is missing: {told}; say how many are compared at most"
        return max(lengths.values(), default=0), None
    for name, length in lengths.items():
        if stop.max_episodes > length:
            return 0, f"{stop.max_episodes} is more than the {length} episodes of job '{name}'"
    return stop.max_episodes, None
