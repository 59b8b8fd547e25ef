"""Names looked up on demand: of classes, of other packages' entry points, and of a package's own exports."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Self

from isaaclab_arena.errors import MAX_NAME_CHARACTERS, ConfigError, Problem, did_you_mean

# Packages whose names load where they are defined, when they are first used.


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that offers names of other modules.

    Args:
        package: `__name__` of the package.
        homes: Public name to the module that defines it.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})


# Look up classes by name on demand; other packages add names through entry points.


class Registry:
    """A table from names to objects.

    The built-in entries are ``"module:attribute"`` strings, so making the table imports nothing; an object is
    imported when it is first asked for. Other packages add entries through an entry-point group, or at run time
    with `register`.

    Args:
        kind: What an entry is, in one word, for messages: ``policy``.
        builtin: Name to ``"module:attribute"``.
        entry_point_group: Group in which other packages declare entries, for example ``isaaclab_arena.policies``.
        schemes: Prefix to the ``"module:function"`` that makes an entry of what follows the prefix and a colon, for
            names without number such as ``gym:Ant-v5``.
        lookalikes: Pattern of names that lack their prefix, to the name that is meant, such as ``gym:{}``; the last one
            that matches counts.
    """

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str],
        entry_point_group: str,
        schemes: Mapping[str, str] | None = None,
        lookalikes: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.entry_point_group = entry_point_group
        self._builtin = dict(builtin)
        self._schemes = dict(schemes or {})
        self._lookalikes = dict(lookalikes or {})
        self._registered: dict[str, Any] = {}
        self._entry_points: dict[str, metadata.EntryPoint] | None = None

    def names(self) -> list[str]:
        """Return every known name, sorted; those of schemes are not among them."""
        return sorted({*self._builtin, *self._registered, *self._plugins()})

    def __contains__(self, name: str) -> bool:
        return self.is_listed(name) or self._scheme(name) is not None

    def patterns(self) -> list[str]:
        """Return what names of schemes look like, ``gym:...``; `get` takes them for names too."""
        return [f"{prefix}:..." for prefix in self._schemes]

    def maker(self, pattern: str) -> Callable[[str], Any]:
        """Return what makes the entries of a scheme, given one of `patterns`, importing it."""
        return imported(self._schemes[pattern.partition(":")[0]])

    def is_listed(self, name: str) -> bool:
        """Whether a name is one of `names`: built in, registered, or of an installed package."""
        return name in self._registered or name in self._builtin or name in self._plugins()

    def get(self, name: str) -> Any:
        """Return the object that ``name`` stands for, importing it if need be.

        Raises:
            ConfigError: If the name is unknown, or if the module behind it cannot be imported.
        """
        if name in self._registered:
            return self._registered[name]
        if name in self._builtin:
            try:
                return imported(self._builtin[name])
            except Exception as error:  # such as MuJoCo's own, about a variable of the environment that it reads
                raise ConfigError(f"{self.kind} '{name}' cannot be loaded: {type(error).__name__}: {error}") from error
        plugins = self._plugins()
        scheme = self._scheme(name)
        if name not in plugins and scheme is not None:
            return imported(self._schemes[scheme])(name.removeprefix(f"{scheme}:"))
        if name not in plugins:
            hint = did_you_mean(name, [*self.names(), *self.patterns()])
            for pattern, meant in self._lookalikes.items():
                if len(name) <= MAX_NAME_CHARACTERS and re.fullmatch(pattern, name):
                    hint = f"; did you mean '{meant.format(name)}'?"
            raise ConfigError(f"no {self.kind} called '{name}'{hint}")
        try:
            return plugins[name].load()
        except (Exception, SystemExit) as error:  # importing runs another package's code, which may fail in any way
            raise ConfigError(
                f"{self.kind} '{name}' comes from '{plugins[name].value}', which cannot be imported: "
                f"{type(error).__name__}: {error}"
            ) from error

    def register(self, name: str, entry: Any) -> None:
        """Add an entry for the life of this process; a class whose module is loaded anew takes its own place.

        Raises:
            ValueError: If the name is taken by another object.
        """
        if name in self and _origin(self._registered.get(name)) != _origin(entry):
            raise ValueError(f"a {self.kind} called '{name}' is registered already")
        self._registered[name] = entry

    @contextmanager
    def restored_afterwards(self) -> Iterator[Self]:
        """Look for installed packages anew, and forget at the end of a ``with`` block what was registered in it."""
        before = dict(self._registered), self._entry_points
        self._entry_points = None
        try:
            yield self
        finally:
            self._registered, self._entry_points = before

    def _scheme(self, name: str) -> str | None:
        prefix, colon, _ = name.partition(":")
        return prefix if colon and prefix in self._schemes else None

    def _plugins(self) -> dict[str, metadata.EntryPoint]:
        if self._entry_points is None:
            found = metadata.entry_points(group=self.entry_point_group)
            self._entry_points = {point.name: point for point in found}
        return self._entry_points


def imported(target: str) -> Any:
    """Return what ``"module:attribute"`` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def optional_library(module: str, *, key: str) -> Any:
    """Return a library that an extra of this package installs, whose name is also that of the extra.

    Args:
        module: Its name.
        key: The option or the key of a file that asks for it, for the message.

    Raises:
        ConfigError: If it is not installed.
    """
    check_optional_library(module, key=key)
    return importlib.import_module(module)


def check_optional_library(module: str, *, key: str) -> None:
    """Refuse a library that is not installed, without loading it; see `optional_library`."""
    if importlib.util.find_spec(module) is None:
        message = f"needs the package {module}; install it with: pip install 'isaaclab-arena-mujoco[{module}]'"
        raise ConfigError(Problem(message, key=key))


def _origin(entry: Any) -> Any:
    """Return what stays the same when the module that defines something is loaded anew: for a class, where it is."""
    return (entry.__module__, entry.__qualname__) if isinstance(entry, type) else entry
