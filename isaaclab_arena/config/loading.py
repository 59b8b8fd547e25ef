"""A job file as frozen jobs: its blocks, defaults, sweeps and comparisons, with every problem at once."""

import hashlib
import itertools
import json
import math
import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from isaaclab_arena.config import schema
from isaaclab_arena.config.arena import as_jobs, in_own_keys, in_words_of_the_file
from isaaclab_arena.config.documents import read_document
from isaaclab_arena.config.expansion import suites as expansion
from isaaclab_arena.config.options import parse_tokens, shown, wrong_numbers
from isaaclab_arena.config.schema import JOB_KEYS, JobConfig, JobDefaults, JobsFile, Question, TrackerName, respelt
from isaaclab_arena.errors import (
    ConfigError,
    Problem,
    did_you_mean,
    first_line,
    placed,
    problems_at,
    problems_into,
    refuse,
    shortened,
)
from isaaclab_arena.nested import leaves, not_finite, overlaid, set_at, value_at, with_leaves
from isaaclab_arena.paths import expanded
from isaaclab_arena.registry import Registry

# Blocks of job keys as in the file: translate old spellings, and merge one block over another.


def modernised(block: Mapping[str, Any], directory: Path = Path()) -> tuple[dict[str, Any], list[Problem]]:
    """Return a block of a job or of ``defaults`` in the current spelling, and its problems."""
    # Old spellings are ``policy_args``, token lists instead of mappings, and Arena's later keys. A file of the policy's
    # options is replaced by what it holds; its path starts from `directory`, or else from the working directory.
    modern = dict(block)
    problems: list[Problem] = []
    if "policy_args" in modern:
        old = modern.pop("policy_args")
        if modern.get("policy_config_dict") is not None and old is not None:
            problems.append(Problem("is the old name of policy_config_dict; give one of them", key="policy_args"))
        elif old is not None:
            modern["policy_config_dict"] = old
    named = modern.get("policy_config_dict")
    if isinstance(named, str) and "${" not in named:
        beside, modern["policy_config_dict"] = directory / named, {}
        try:
            modern["policy_config_dict"] = options_in_file(beside if beside.exists() else named)
        except ConfigError as error:
            # The job file is named beside these problems, so their message names the file of options.
            wrong = (
                replace(each, message=f"{shown(named)}, a file of options: {each.message}") for each in error.problems
            )
            problems += placed(wrong, key="policy_config_dict")
    modern, wrong = _without_tokens(modern)
    problems += wrong
    modern, wrong = in_own_keys(modern)
    return modern, problems + wrong


def _without_tokens(block: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return a block whose lists of command-line tokens are mappings, and its problems."""
    modern, problems = dict(block), list[Problem]()
    for key in ("arena_env_args", "policy_config_dict"):
        tokens = modern.get(key)
        if not isinstance(tokens, list):
            continue
        with problems_into(problems, below=key):
            for token in tokens:
                if not isinstance(token, str):
                    raise ConfigError(f"the token {shown(token)} is not a text; put it in quotes")
            positionals, options = parse_tokens(tokens)
            if positionals and key == "policy_config_dict":
                raise ConfigError(f"{positionals[0]!r} belongs to no option; options are written --name value")
            if len(positionals) > 1:
                raise ConfigError(f"takes one environment, got {' and '.join(map(repr, positionals))}")
            if positionals and "environment" in options:
                raise ConfigError(f"names the environment twice, {positionals[0]!r} and --environment")
            modern[key] = ({"environment": positionals[0]} if positionals else {}) | options
        if modern[key] is tokens:
            del modern[key]
    return modern, problems


def options_in_file(path: str | Path) -> dict[str, Any]:
    """Return the options of a policy in a file; ConfigError if it cannot be read or is not a mapping."""
    document = read_document(path)
    if not isinstance(document, dict):
        raise ConfigError("holds no mapping of the policy's options", file=str(path))
    return expanded(document)


def job_over_defaults(defaults: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a job over the file's defaults; a length of its own replaces either length of the defaults."""
    lengths = {"num_steps", "num_episodes"}
    if any(job.get(key) is not None for key in lengths):
        defaults = {key: value for key, value in defaults.items() if key not in lengths}
    return overlaid(defaults, job, none_removes=True)


# The ``${...}`` of a job file, resolved with OmegaConf within a budget; no other module uses OmegaConf.

MAX_LOOK_UPS = 1_000
LOOK_UPS_PER_JOB = 100
MAX_VALUES = 1_000_000
MAX_CHARACTERS = 64 * 2**20

_INDEPENDENT_REFERENCE = re.compile(r"\$\{(?!job\b)[A-Za-z_][\w.\[\]]*\}")
_CHARACTERS_PER_LOOK_UP = 1_000
_COUNTING = threading.RLock()  # a resolver of the program may load another job file
_COUNTED = ("_resolve_node_interpolation", "_evaluate_custom_resolver")


class _SpentError(ValueError):
    """The budget of a file is spent."""


class OmegaConfInterpolation:
    """Resolves ``${...}`` with OmegaConf, within a budget; OmegaConf is slow, so it gets only strings with one."""

    def __init__(
        self,
        *,
        variables: dict[str, Any],
        defaults: dict[str, Any],
        jobs: list[Any],
        shared: dict[str, Any],
    ) -> None:
        # The problems of ``variables``, ``defaults`` and ``shared``.
        self.problems: list[Problem] = []
        # A few references that each name two others double at every level. So a budget limits look-ups, with more for
        # every job, and the values and characters that replace references. It is counted, not timed, so that it is the
        # same everywhere. It cannot be reckoned from the text alone: a key's name, or a whole reference, may itself be
        # the result of ``${oc.env:…}``, ``${oc.decode:…}`` or ``${oc.create:…}``.
        self._spent: str | None = None  # the exceeded limit and the remedy
        self._max_look_ups = MAX_LOOK_UPS
        self._look_ups = self._values = self._characters = 0
        self._seen: set[str] = set()
        blocks = {}
        for key, block in (("variables", variables), ("defaults", defaults), ("shared", shared)):
            blocks[key], found = self._well_formed(block)
            self.problems += [replace(problem, key=f"{key}.{problem.key}") for problem in found]
        self._root = OmegaConf.create(blocks)
        self._jobs = jobs
        self._independent: dict[str, Any] = {}

    def resolve(self, tree: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
        """Return the resolved tree and its problems; ConfigError, with ``key``, once the file's budget is spent."""
        # Most trees have no interpolation, and need no copy.
        if next(_interpolated(tree), None) is None:
            return tree, []
        self._max_look_ups += LOOK_UPS_PER_JOB
        resolved, problems = self._well_formed(tree)
        # References read the unresolved copy, so that the order of resolution does not matter.
        source = with_leaves(resolved, lambda leaf: leaf, into_lists=True)
        self._root["job"] = None
        with self._counting():
            for path, text in _interpolated(source):
                key = ".".join(map(str, path))
                try:
                    value = self._value(source, path, text)
                    if not_finite(value):
                        message = f"{shown(text)} becomes a number that is not finite"
                        problems.append(Problem(message, key=key))
                    set_at(resolved, path, value)
                except (OmegaConfBaseException, ValueError, KeyError, RecursionError) as error:
                    if self._spent is not None:
                        raise ConfigError(f"{shown(text)} {self._spent}", key=key) from error
                    message = f"{shown(text)} cannot be resolved: {first_line(error)}"
                    problems.append(Problem(message, key=key))
                    _leave_out(resolved, path)
        return resolved, problems

    def _value(self, tree: dict[str, Any], path: tuple[str | int, ...], text: str) -> Any:
        if "${jobs" in text and "jobs" not in self._root:
            self._root["jobs"] = self._well_formed(self._jobs)[0]
        if "${" in _INDEPENDENT_REFERENCE.sub("", text):
            if self._root["job"] is None:
                self._root["job"] = tree
            parent: Any = self._root["job"]
            for part in path[:-1]:
                parent = parent[part]
            # A reference that depends on the job needs the whole tree; others are resolved once for all jobs.
            return _plain(parent[path[-1]])
        if text not in self._independent:
            self._root["value"] = text
            try:
                self._independent[text] = _plain(self._root["value"])
            except OmegaConfBaseException as error:
                # A reference that fails in thousands of jobs is resolved once.
                self._independent[text] = error
        value = self._independent[text]
        if isinstance(value, OmegaConfBaseException):
            raise value.with_traceback(None)
        self._take(0, value)
        return with_leaves(value, lambda leaf: leaf, into_lists=True)

    def _well_formed(self, tree: Any) -> tuple[Any, list[Problem]]:
        """Return a copy without the strings that break OmegaConf's grammar, and their problems."""
        copied = with_leaves(tree, lambda leaf: leaf, into_lists=True)
        problems = []
        for path, text in _interpolated(tree):
            key = ".".join(map(str, path))
            if text not in self._seen:
                self._seen.add(text)
                try:
                    self._take(text.count("${") + len(text) // _CHARACTERS_PER_LOOK_UP)
                except _SpentError as error:
                    raise ConfigError(f"{shown(text)} {self._spent}", key=key) from error
            if not _is_well_formed(text):
                problems.append(Problem(f"{shown(text)} is no well-formed interpolation", key=key))
                _leave_out(copied, path)
        return copied, problems

    def _take(self, look_ups: int, *replacing: Any) -> None:
        """Count look-ups, and the values and characters that replace a reference; _SpentError if there are too many."""
        self._look_ups += look_ups
        is_over = look_ups > 0 and self._look_ups > self._max_look_ups
        limit = f"{self._max_look_ups} look-ups of other keys" if is_over else None
        # A value is plain, or a node of OmegaConf; its whole content counts.
        pending = [*replacing]
        while pending and limit is None:
            value = pending.pop()
            if isinstance(value, DictConfig | ListConfig):
                value = value.__dict__["_content"]
            elif isinstance(value, Node):
                value = value._value()  # its text before resolution
            self._values += 1
            if isinstance(value, str):
                self._characters += len(value)
            elif isinstance(value, dict | list):
                pending.extend(value.values() if isinstance(value, dict) else value)
            if self._values > MAX_VALUES:
                limit = f"{MAX_VALUES} values in the places of references"
            elif self._characters > MAX_CHARACTERS:
                limit = f"{MAX_CHARACTERS} characters in the places of references"
        if limit is not None:
            self._spent = (
                f"makes the interpolations of this file need more than {limit}; keys that name others, which name "
                "others, multiply: write the value out, or name fewer keys"
            )
            raise _SpentError(self._spent)

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count the look-ups of OmegaConf in the block; it has no hook for that, so two of its methods are wrapped."""
        thread = threading.get_ident()
        with _COUNTING:
            originals = {name: getattr(Container, name) for name in _COUNTED}
            try:
                for name, original in originals.items():

                    def count(*args: Any, original: Any = original, **kwargs: Any) -> Any:
                        # The program may use OmegaConf itself, in other threads.
                        if threading.get_ident() != thread:
                            return original(*args, **kwargs)
                        self._take(1)
                        found = original(*args, **kwargs)
                        self._take(0, found)
                        return found

                    setattr(Container, name, count)
                yield
            finally:
                for name, original in originals.items():
                    setattr(Container, name, original)


@lru_cache(maxsize=10_000)
def _is_well_formed(text: str) -> bool:
    try:
        OmegaConf.create({"value": text})
    except GrammarParseError:
        return False
    return True


def _leave_out(tree: Any, path: Sequence[str | int]) -> None:
    """Remove the value at a path, with the list that holds it, so that the rest can be checked."""
    keys = list(itertools.takewhile(lambda part: isinstance(part, str), path))
    inner = value_at(tree, keys[:-1])
    if keys and isinstance(inner, dict):
        inner.pop(keys[-1], None)


def _plain(value: Any) -> Any:
    # OmegaConf's own conversion looks a node up only once and then copies it, so copies would multiply uncounted.
    if isinstance(value, DictConfig):
        return {key: _plain(value[key]) for key in value}
    return [_plain(item) for item in value] if isinstance(value, ListConfig) else value


def _interpolated(value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for path, text in leaves(value, into_lists=True):
        if isinstance(text, str) and "${" in text:
            yield path, text


# From the blocks of a job file to its jobs: defaults, sweeps and checks, with every problem at once.

_TOP_KEYS = frozenset({"jobs", "defaults", "sweep", "variables", "comparisons", "bars", "tracking"})
_DEFAULT_KEYS = JOB_KEYS - {"name", "sweep"}
_NOTHING = object()


def tracker_problems(names: Any, *, key: str) -> list[Problem]:
    """Return the problems of a list of trackers, which the user gave as `key`."""
    if not isinstance(names, Sequence) or isinstance(names, str):
        return [Problem(f"{shown(names)} is not a list such as [wandb]", key=key)]
    return [
        Problem(f"there is no tracker {shown(name)}{did_you_mean(str(name), TrackerName)}", key=key)
        for name in names
        if name not in list(TrackerName)
    ]


class Reading:
    """One reading of a job file: collects jobs, and collects problems instead of stopping at the first."""

    def __init__(
        self,
        document: Any,
        command_line: JobDefaults,
        suites: Registry,
        arms: expansion.ArmsOf,
        *,
        of_file: Sequence[Problem] = (),  # found before
        shared: dict[str, Any],
        directory: Path,  # base of relative paths
    ) -> None:
        # Check the blocks of the file, where a wrong one counts as empty. ConfigError if it lists no jobs.
        if not isinstance(document, dict):
            raise ConfigError(f"the top level is {shown(document)}, not a mapping with the key 'jobs'")
        given, document = document, respelt(document, _TOP_KEYS)[0]
        # A file with unknown keys only, none of them a typing mistake, is another kind of file.
        hints = {key: did_you_mean(key, _TOP_KEYS) for key in given if key not in _TOP_KEYS}
        if hints and not document:
            keys = ", ".join(map(shortened, list(given)[:8]))
            is_job = "policy_type" in given
            way_out = "put this job into a list under the key 'jobs'" if is_job else "it lists no 'jobs'"
            raise ConfigError(f"is no job file: {way_out}; its keys are {keys}")
        self._of_top = [Problem(f"unknown key{hint}", key=key) for key, hint in hints.items()]
        jobs = document.get("jobs")
        if "jobs" not in document:
            self._of_top.append(Problem("is missing; it lists the jobs", key="jobs"))
        elif not isinstance(jobs, list):
            self._of_top.append(Problem(f"{shown(jobs)} is not a list", key="jobs"))
        elif not jobs:
            self._of_top.append(Problem("lists no job", key="jobs"))
        blocks: dict[str, Any] = {}
        lists, mappings = ("comparisons", "bars"), ("defaults", "sweep", "variables")
        for key, kind in {**dict.fromkeys(mappings, dict), **dict.fromkeys(lists, list)}.items():
            blocks[key] = document.get(key) or kind()
            if not isinstance(blocks[key], kind):
                message = f"{shown(blocks[key])} is not a {'mapping' if kind is dict else 'list'}"
                self._of_top.append(Problem(message, key=key))
                blocks[key] = kind()
        tracking = document.get("tracking") or []
        wrong = tracker_problems(tracking, key="tracking")
        self._of_top += wrong
        if not isinstance(jobs, list) or not jobs:
            raise ConfigError(self._of_top)
        self._blocks: list[Any] = jobs
        self._sweep: dict[str, Any] = blocks["sweep"]  # of every job
        self.comparisons: list[Any] = blocks["comparisons"]
        self.bars: list[Any] = blocks["bars"]  # success rates that jobs must reach
        self.tracking = () if wrong else tuple(map(TrackerName, tracking))  # they log results while the jobs run

        self._command_line, self._suites, self._arms = command_line, suites, arms
        self._modernised = partial(modernised, directory=directory)
        self._interpolation = OmegaConfInterpolation(
            variables=blocks["variables"], defaults=blocks["defaults"], jobs=jobs, shared=shared
        )
        self._problems: dict[Problem, None] = {}
        # The keys of the problems of each job, and of the file itself under None.
        self._wrong: defaultdict[str | None, list[str]] = defaultdict(list)
        self._add(self._interpolation.problems)
        self._add(of_file)
        if blocks["defaults"].pop("sweep", None) is not None:
            self._add([Problem("belongs to the top level of the file or to a job", key="defaults.sweep")])
        known, unknown = respelt(blocks["defaults"], _DEFAULT_KEYS)
        self._defaults, problems = self._modernised(known)
        self._add([*unknown, *problems], below="defaults.")

    def jobs(self) -> tuple[tuple[JobConfig, ...], list[Problem]]:
        """Return every readable job, and every problem; ConfigError if an error prevents reading the jobs after it."""
        jobs: list[JobConfig] = []
        names: list[Any] = []
        controls: dict[int, Any] = {}  # by index of the job that asks for them
        for position, block in enumerate(self._blocks):
            if not isinstance(block, dict):
                self._add([Problem(f"{shown(block)} is not a mapping")], job=f"jobs[{position}]")
                continue
            label = _label(block.get("name"), f"jobs[{position}]")
            # A block becomes several jobs: by its sweep, its checkpoints, its suite's tasks and its arms.
            for entry, swept in self._expanded(block, label, room=expansion.MAX_JOBS - len(names)):
                # A problem that all jobs of a suite share is reported once, with the label of the entry.
                own_label = _label(entry.get("name"), label)
                of_suite = []
                with self._collecting(own_label):
                    of_suite = list(expansion.expand_suite(entry, self._suites, room=expansion.MAX_JOBS - len(names)))
                for of_task, member in of_suite:
                    asked = of_task.pop(expansion.ROBUSTNESS_KEY, None)
                    of_controls = of_task.pop(expansion.CONTROLS_KEY, None)
                    job, found = schema.read_job(of_task, index=len(jobs), label=own_label, defaults=self._command_line)
                    # A key that has been refused already is not reported as missing too.
                    news = (
                        problem
                        for problem in found
                        if problem.message != "is missing"
                        or not any(
                            key.removeprefix("sweep.").startswith(problem.key or "")
                            for key in self._wrong[None] + self._wrong[label] + self._wrong[problem.job]
                        )
                    )
                    self._add(self._blamed(news, block))
                    if job is None:
                        names.append(of_task.get("name"))
                        continue
                    # A job without its sweep may lack a key that the sweep gives it.
                    is_whole = not any(key.startswith("sweep") for key in self._wrong[label])
                    job = job if is_whole else replace(job, name=label)
                    job = replace(job, swept=swept, suite=member) if swept or member else job
                    asked = self._command_line.robustness if asked is None else asked
                    arms: Sequence[JobConfig] = [job]
                    if asked is not None and not found:
                        arms = []
                        with self._collecting(own_label):
                            arms = self._arms(job, expansion.read_robustness(asked))
                    if of_controls is not None and asked is not None:
                        both = Problem("excludes robustness; give each a job of its own", key=expansion.CONTROLS_KEY)
                        self._add([both], job=own_label)
                    elif of_controls is not None and not found:
                        controls[len(jobs)] = of_controls
                    names += [of_task.get("name")] if found else [arm.name for arm in arms]
                    jobs += [replace(arm, index=len(jobs) + number) for number, arm in enumerate(arms)]
        self._add_controls(jobs, names, controls)
        # Names clash on disk or to the eye, so all names are compared after all expansions.
        for name, earlier in schema.clashes(name for name in names if _label(name, "")):
            if name == earlier:
                taken = "is taken by an earlier job"
            elif schema.folded(name) == schema.folded(earlier):
                taken = f"is taken by '{earlier}' where file systems ignore case"
            else:
                taken = f"looks like '{earlier}', but is {name!a}; give it a name that cannot be mistaken for it"
            self._add([Problem(taken, key="name")], job=name)
        return tuple(jobs), [*self._of_top, *self._problems]

    def _add_controls(self, jobs: list[JobConfig], names: list[Any], asked: Mapping[int, Any]) -> None:
        """Add the controls of jobs, and their names, after all jobs: one control needs the words of others."""
        in_file = tuple(jobs)
        for position, value in asked.items():
            job = in_file[position]
            with self._collecting(job.name):
                wanted = expansion.read_controls(value)
                after = [*in_file[position + 1 :], *in_file[:position]]
                suite = job.suite and job.suite.name
                others = [each for each in after if (each.suite and each.suite.name) == suite]
                jobs[position], *arms = self._arms(job, expansion.Controls(names=wanted, others=others))
                names += [arm.name for arm in arms]
                jobs += [replace(arm, index=len(jobs) + number) for number, arm in enumerate(arms)]

    def _add(self, problems: Iterable[Problem], *, job: str | None = None, below: str = "") -> None:
        for problem in problems:
            key = f"{below}{problem.key}" if below else problem.key
            self._problems[replace(problem, job=job or problem.job, key=key)] = None
            self._wrong[job or problem.job].append(key or "")

    @contextmanager
    def _collecting(self, job: str) -> Iterator[None]:
        """Add the problems of a ``with`` block, and go on after it."""
        try:
            yield
        except ConfigError as error:
            self._add(error.problems, job=job)

    def _expanded(
        self, block: dict[str, Any], label: str, *, room: int
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield each job of a block, with the values that the sweep gave it."""
        known, unknown = respelt({key: value for key, value in block.items() if key != "sweep"}, JOB_KEYS)
        own, problems = self._modernised(known)
        problems = [*unknown, *problems]
        template = job_over_defaults(self._defaults, own)
        sweep: dict[str, Any] = {}
        own_sweep = block.get("sweep", {})
        if isinstance(own_sweep, dict):
            sweep, wrong = self._interpolated(overlaid(self._sweep, own_sweep, none_removes=True), label)
            self._add(wrong, job=label, below="sweep.")
        elif own_sweep is not None:
            self._add([Problem(f"{shown(own_sweep)} is not a mapping", key="sweep")], job=label)
        self._add(problems, job=label)
        problems = expansion.sweep_problems(template, sweep, JOB_KEYS)
        self._add(problems, job=label)
        wrong_keys = {problem.key for problem in problems}
        sweep = {key: values for key, values in sweep.items() if f"sweep.{key}" not in wrong_keys}
        # A sweep that is too large must not be expanded.
        if (num_jobs := math.prod(len(values) for values in sweep.values())) > room:
            message = f"makes {num_jobs} jobs; a file may have {expansion.MAX_JOBS} in all"
            self._add([Problem(message, key="sweep")], job=label)
            return
        for combination in expansion.expand(template, sweep):
            resolved, wrong = self._interpolated(combination, label)
            self._add(self._blamed((replace(problem, job=label) for problem in wrong), block))
            modern, problems = self._modernised(resolved)
            self._add(problems, job=label)
            swept = {key: value_at(resolved, key.split(".")) for key in sweep}
            of_checkpoints = []
            with self._collecting(_label(modern.get("name"), label)):
                of_checkpoints = list(expansion.expand_checkpoints(modern, room=room))
            for own, step in of_checkpoints:
                yield own, swept | step

    def _interpolated(self, tree: dict[str, Any], label: str) -> tuple[dict[str, Any], list[Problem]]:
        with self._collecting(label):
            return self._interpolation.resolve(tree)
        # The same error would occur in the jobs after this one.
        raise ConfigError(tuple(self._problems))

    def _blamed(self, problems: Iterable[Problem], block: dict[str, Any]) -> Iterator[Problem]:
        """Yield the problems of a job; those of the defaults without its name, so that they are reported once."""
        for problem in problems:
            path = (problem.key or "").split(".")
            is_own = value_at(self._modernised(block)[0], path, otherwise=_NOTHING) is not _NOTHING
            if is_own or value_at(self._defaults, path, otherwise=_NOTHING) is _NOTHING:
                yield problem
            else:
                yield replace(problem, job=None, key=f"defaults.{problem.key}")


def _label(name: object, otherwise: str) -> str:
    return name if isinstance(name, str) and schema.name_problem(name) is None else otherwise


NO_SUITES = Registry("suite", {}, entry_point_group="isaaclab_arena.suites")
"""The suites of installed packages only."""


def load_jobs_file(
    path: str | Path,
    defaults: JobDefaults | None = None,
    *,
    overrides: Sequence[str] = (),
    suites: Registry = NO_SUITES,
    arms: expansion.ArmsOf = expansion.no_arms,
) -> JobsFile:
    """Read a job file or an experiment of Isaac Lab Arena, JSON or YAML; see `read_jobs`."""
    document = read_document(path)
    return read_jobs(document, source=str(path), defaults=defaults, overrides=overrides, suites=suites, arms=arms)


def read_jobs(
    document: Any,
    *,
    source: str,
    defaults: JobDefaults | None = None,
    overrides: Sequence[str] = (),
    suites: Registry = NO_SUITES,
    arms: expansion.ArmsOf = expansion.no_arms,
) -> JobsFile:
    """Return all readable jobs of a document, and its problems; ConfigError if it cannot be read to its end."""
    # The document has the key ``jobs`` or, for an experiment, ``runs``; docs/reference/jobs.md describes both.
    # ``source`` names it in messages. ``overrides`` sets keys of an experiment, such as ``runs.lift.num_rebuilds=2``.
    # ``suites`` finds suites by name, ``arms`` makes the jobs of one with robustness. Problems are not raised here:
    # `resolve_jobs` checks the readable jobs too, then raises all; `JobsFile.jobs` raises those of the file alone.
    defaults = defaults or JobDefaults()
    refuse(wrong_numbers(defaults))
    if defaults.num_steps is not None and defaults.num_episodes is not None:
        raise ConfigError("excludes --num_episodes; give one of them", key="--num_steps")
    document = expanded(document)
    is_experiment = isinstance(document, dict) and "runs" in document
    if is_experiment or _has_tokens(document):
        # A file in a form of Isaac Lab Arena's keeps its meaning there: one env slot for a job that names no number.
        defaults = replace(defaults, num_envs=defaults.num_envs or 1)
    with problems_at(file=source):
        document, shared, of_file = as_jobs(document, JOB_KEYS, overrides)

    try:
        directory = Path(source).parent
        reading = Reading(document, defaults, suites, arms, of_file=of_file, shared=shared, directory=directory)
        jobs, problems = reading.jobs()
    except ConfigError as error:
        raise ConfigError(in_words_of_the_file(error.problems, source, is_experiment=is_experiment)) from error

    questions: tuple[Question, ...] = ()
    of_questions: list[Problem] = []
    with problems_into(of_questions):
        questions, jobs = schema.read_questions(reading.comparisons, reading.bars, jobs)
    # A question about an unreadable job has a problem that is not reported. Jobs of a sweep begin with its name.
    unread = {
        "" if each.job is None or each.job.startswith("jobs[") else each.job
        for each in problems
        if each.key != "tracking"
    }
    for each in of_questions:
        key = each.key or ""
        is_about_jobs = key.endswith((".jobs", ".job")) or (key.endswith(".max_episodes") and " job " in each.message)
        if not is_about_jobs or not any(f"'{name}" in each.message for name in unread):
            problems.append(each)

    reported = in_words_of_the_file(problems, source, is_experiment=is_experiment)
    return JobsFile(
        path=source,
        readable_jobs=jobs,
        config_hash="" if reported else hash_jobs(jobs, questions),
        questions=questions,
        tracking=reading.tracking,
        problems=reported,
    )


def _has_tokens(document: Any) -> bool:
    """Whether a job spells its environment as command-line tokens, as Isaac Lab Arena's first job files do."""
    jobs = document.get("jobs") if isinstance(document, dict) else None
    blocks = [each for each in jobs if isinstance(each, dict)] if isinstance(jobs, list) else []
    return any(isinstance(block.get("arena_env_args"), list) for block in blocks)


def limited(jobs_file: JobsFile, limit: int | None) -> JobsFile:
    """Return the file's jobs with at most `limit` episodes each, for a trial; unchanged if None."""
    if limit is None:
        return jobs_file
    # A job with fewer episodes keeps them, and one with a limit of steps ends at the first of both. The hash differs
    # from the file's.
    jobs = tuple(
        replace(
            job,
            num_episodes=None if job.num_episodes is None else min(job.num_episodes, limit),
            max_episodes=limit if job.num_episodes is None else job.max_episodes,
            num_rebuilds=min(job.num_rebuilds, limit),
        )
        for job in jobs_file.readable_jobs
    )
    questions = tuple(replace(each, max_episodes=min(each.max_episodes, limit)) for each in jobs_file.questions)
    digest = hashlib.sha256(f"{hash_jobs(jobs, questions)} limited to {limit}".encode()).hexdigest()
    return replace(jobs_file, readable_jobs=jobs, questions=questions, config_hash=digest[:16])


def limit_in_words(limit: int) -> str:
    """Describe the effect of `limited`, for a line below a table."""
    return f"limited to {limit} episode{'s' if limit > 1 else ''} a job"


def hash_jobs(jobs: tuple[JobConfig, ...], questions: tuple[Question, ...] = ()) -> str:
    """Return 16 hexadecimal digits, equal for equal jobs and questions in the same order."""
    # Keys without influence on a result are left out: time limits, labels and the like. So is ``max_episodes``, which
    # only `limited` sets; it changes the hash itself.
    left_out = schema.WITHOUT_RESULT | {"max_episodes", "latency"}
    names = [field.name for field in fields(JobConfig) if field.name not in left_out]
    plain = [{name: getattr(job, name) for name in names} for job in jobs]
    for job, values in zip(jobs, plain, strict=True):
        # A job without the key keeps the hash that it had before the key existed.
        if job.latency is not None:
            values["latency"] = asdict(job.latency)
    # So does a question.
    later = {"half_width": None, "selects_best": False, "arms": (), "are_apart": False}
    plain += [
        {key: value for key, value in asdict(each).items() if key not in later or later[key] != value}
        for each in questions
    ]
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("utf-8", errors="surrogatepass")).hexdigest()[:16]
