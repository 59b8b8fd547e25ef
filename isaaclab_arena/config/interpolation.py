"""The ``${...}`` of a job file, resolved with OmegaConf within a budget; no other module uses OmegaConf."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

from omegaconf import Container, DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from isaaclab_arena.config.options import shown
from isaaclab_arena.errors import ConfigError, Problem, first_line
from isaaclab_arena.nested import leaves, not_finite, set_at, with_leaves

MAX_LOOK_UPS = 1_000
LOOK_UPS_PER_JOB = 100
MAX_VALUES = 1_000_000
MAX_CHARACTERS = 64 * 2**20

_INDEPENDENT_REFERENCE = re.compile(r"\$\{(?!job\b)[A-Za-z_][\w.\[\]]*\}")
_CHARACTERS_PER_LOOK_UP = 1_000
_COUNTING = threading.Lock()
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
        shared: dict[str, Any] | None = None,
    ) -> None:
        # The problems of ``variables``, ``defaults`` and ``shared``.
        self.problems: list[Problem] = []
        # A few references that each name two others double at every level. So a budget limits look-ups, with more for
        # every job, and the values and characters that replace references. It is counted, not timed, so that it is the
        # same everywhere.
        self._spent: str | None = None  # the exceeded limit and the remedy
        self._max_look_ups = MAX_LOOK_UPS
        self._look_ups = self._values = self._characters = 0
        self._seen: set[str] = set()
        blocks = {}
        for key, block in (("variables", variables), ("defaults", defaults), ("shared", shared or {})):
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
        source = _copied(resolved)
        self._root["job"] = None
        with self._counting():
            for path, text in _interpolated(source):
                try:
                    value = self._value(source, path, text)
                    if not_finite(value):
                        message = f"{shown(text)} becomes a number that is not finite"
                        problems.append(Problem(message, key=_dotted(path)))
                    set_at(resolved, path, value)
                except (OmegaConfBaseException, ValueError, KeyError, RecursionError) as error:
                    self._refuse_spent(_dotted(path), text)
                    message = f"{shown(text)} cannot be resolved: {first_line(error)}"
                    problems.append(Problem(message, key=_dotted(path)))
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
        self._take_extent(value)
        return _copied(value)

    def _well_formed(self, tree: Any) -> tuple[Any, list[Problem]]:
        """Return a copy without the strings that break OmegaConf's grammar, and their problems."""
        copied = _copied(tree)
        problems = []
        for path, text in _interpolated(tree):
            if text not in self._seen:
                self._seen.add(text)
                try:
                    self._take_look_ups(text.count("${") + len(text) // _CHARACTERS_PER_LOOK_UP)
                except _SpentError:
                    self._refuse_spent(_dotted(path), text)
            if not _is_well_formed(text):
                problems.append(Problem(f"{shown(text)} is no well-formed interpolation", key=_dotted(path)))
                set_at(copied, path, None)
        return copied, problems

    def _refuse_spent(self, key: str, text: str) -> None:
        if self._spent is not None:
            raise ConfigError(f"{shown(text)} {self._spent}", key=key)

    def _take_look_ups(self, count: int) -> None:
        """Count look-ups; _SpentError if there are too many."""
        self._look_ups += count
        if self._look_ups > self._max_look_ups:
            self._end(f"{self._max_look_ups} look-ups of other keys")

    def _take_extent(self, value: Any) -> None:
        """Count the values and characters that replace a reference; _SpentError if there are too many."""
        # The value is plain, or a node of OmegaConf; its whole content counts.
        pending = [value]
        while pending:
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
                self._end(f"{MAX_VALUES} values in the places of references")
            if self._characters > MAX_CHARACTERS:
                self._end(f"{MAX_CHARACTERS} characters in the places of references")

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Count the look-ups of OmegaConf in the block; it has no hook for that, so two of its methods are wrapped."""
        thread = threading.get_ident()

        def counted(original: Any) -> Any:
            def count(*args: Any, **kwargs: Any) -> Any:
                # The program may use OmegaConf itself, in other threads.
                if threading.get_ident() != thread:
                    return original(*args, **kwargs)
                self._take_look_ups(1)
                found = original(*args, **kwargs)
                self._take_extent(found)
                return found

            return count

        with _COUNTING:
            originals = {name: getattr(Container, name) for name in _COUNTED}
            try:
                for name, original in originals.items():
                    setattr(Container, name, counted(original))
                yield
            finally:
                for name, original in originals.items():
                    setattr(Container, name, original)

    def _end(self, limit: str) -> None:
        self._spent = (
            f"makes the interpolations of this file need more than {limit}; keys that name others, which name others, "
            "multiply: write the value out, or name fewer keys"
        )
        raise _SpentError(self._spent)


@lru_cache(maxsize=10_000)
def _is_well_formed(text: str) -> bool:
    try:
        OmegaConf.create({"value": text})
    except GrammarParseError:
        return False
    return True


def _plain(value: Any) -> Any:
    # OmegaConf's own conversion looks a node up only once and then copies it, so copies would multiply uncounted.
    if isinstance(value, DictConfig):
        return {key: _plain(value[key]) for key in value}
    return [_plain(item) for item in value] if isinstance(value, ListConfig) else value


def _interpolated(value: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for path, text in leaves(value, into_lists=True):
        if isinstance(text, str) and "${" in text:
            yield path, text


def _copied(value: Any) -> Any:
    return with_leaves(value, lambda leaf: leaf, into_lists=True)


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))
