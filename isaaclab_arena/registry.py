"""Names looked up on demand: of classes, of other packages' entry points, and of a package's own exports."""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any, Self

from isaaclab_arena.errors import MAX_NAME_CHARACTERS, ConfigError, did_you_mean


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, whose names are imported when they are first used."""
    # `homes` maps modules below this package to the names that they define.
    modules = {name: f"isaaclab_arena.{home}" for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *modules})


def constants(module: str, *names: str) -> dict[str, str]:
    """Return entries of a `Registry` for constants of a module: a name in lower case for each."""
    return {name: f"{module}:{name.upper()}" for name in names}


class Registry:
    """A table from names to objects, which are imported on first use; other packages add entries."""

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, str],
        entry_point_group: str,
        schemes: Mapping[str, str] | None = None,
        lookalikes: Mapping[str, str] | None = None,
    ) -> None:
        # An entry is a ``"module:attribute"`` text, so making the table imports nothing. Other packages add entries
        # through the entry-point group, or at run time with `register`.
        # ``schemes`` maps a prefix to the ``"module:function"`` that makes an entry from the rest of a name such as
        # ``gym:Ant-v5``. ``lookalikes`` maps a pattern of names without prefix to the intended name, such as
        # ``gym:{}``; the last match counts.
        self.kind = kind
        self.entry_point_group = entry_point_group
        self._builtin = dict(builtin)
        self.schemes = dict(schemes or {})
        self._lookalikes = dict(lookalikes or {})
        self._registered: dict[str, Any] = {}
        self._entry_points: dict[str, metadata.EntryPoint] | None = None

    def names(self) -> list[str]:
        """Return every known name, sorted, without those of schemes."""
        return sorted({*self._builtin, *self._registered, *self._plugins()})

    def __contains__(self, name: str) -> bool:
        prefix, colon, _ = name.partition(":")
        return self.is_listed(name) or bool(colon and prefix in self.schemes)

    def patterns(self) -> list[str]:
        """Return the patterns of scheme names, ``gym:...``, which `get` accepts too."""
        return [f"{prefix}:..." for prefix in self.schemes]

    def is_listed(self, name: str) -> bool:
        """True if a name is one of `names`: built in, registered, or of an installed package."""
        return name in self._registered or name in self._builtin or name in self._plugins()

    def get(self, name: str) -> Any:
        """Return the object of a name, importing it on first use; ConfigError if unknown or not importable."""
        if name in self._registered:
            return self._registered[name]
        if name in self._builtin:
            try:
                return imported(self._builtin[name])
            except Exception as error:  # such as MuJoCo's own, about a variable of the environment that it reads
                reason = f"{type(error).__name__}: {error}{_way_to_install(error)}"
                raise ConfigError(f"{self.kind} '{name}' cannot be loaded: {reason}") from error
        # A package's own entry takes precedence over a scheme with the same prefix.
        plugins = self._plugins()
        prefix, colon, rest = name.partition(":")
        if name not in plugins and colon and prefix in self.schemes:
            return imported(self.schemes[prefix])(rest)
        if name not in plugins:
            hint = did_you_mean(name, [*self.names(), *self.patterns()])
            for pattern, meant in self._lookalikes.items():
                if len(name) <= MAX_NAME_CHARACTERS and re.fullmatch(pattern, name):
                    hint = f"; did you mean '{meant.format(name)}'?"
            if "did you mean" not in hint:
                hint += f"; a package adds its own by an entry point {self.entry_point_group}"
            raise ConfigError(f"no {self.kind} called '{name}'{hint}")
        try:
            return plugins[name].load()
        except (Exception, SystemExit) as error:  # importing runs another package's code, which may fail in any way
            raise ConfigError(
                f"{self.kind} '{name}' comes from '{plugins[name].value}', which cannot be imported: "
                f"{type(error).__name__}: {error}{_way_to_install(error)}"
            ) from error

    def register(self, name: str, entry: Any) -> None:
        """Add an entry for this process; ValueError if the name is taken. A reloaded class replaces itself."""
        # A class is known by its module and name, which survive a reload of the module.
        before, now = (
            (each.__module__, each.__qualname__) if isinstance(each, type) else each
            for each in (self._registered.get(name), entry)
        )
        if name in self and before != now:
            raise ValueError(f"a {self.kind} called '{name}' is registered already")
        self._registered[name] = entry

    @contextmanager
    def restored_afterwards(self) -> Iterator[Self]:
        """Search installed packages again, and drop at the end of a ``with`` block the entries registered in it."""
        before = dict(self._registered), self._entry_points
        self._entry_points = None
        try:
            yield self
        finally:
            self._registered, self._entry_points = before

    def _plugins(self) -> dict[str, metadata.EntryPoint]:
        if self._entry_points is None:
            found = metadata.entry_points(group=self.entry_point_group)
            self._entry_points = {point.name: point for point in found}
        return self._entry_points


def imported(target: str) -> Any:
    """Import the object that ``"module:attribute"`` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def optional_library(module: str, *, key: str) -> Any:
    """Import the library of an extra with the same name; ConfigError, at option `key`, if it is not installed."""
    check_optional_library(module, key=key)
    return importlib.import_module(module)


_EXTRAS = {"msgpack": "remote", "websockets": "remote"}
"""The extra of each library that one of another name brings."""


def _way_to_install(error: BaseException) -> str:
    """Return the command for an extra's library that an import lacks, empty for any other error."""
    extra = _EXTRAS.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    return "" if extra is None else f"; install it with: pip install 'isaaclab-arena-mujoco[{extra}]'"


def check_optional_library(module: str, *, key: str) -> None:
    """Refuse a library that is not installed, without loading it; see `optional_library`."""
    if importlib.util.find_spec(module) is None:
        message = f"needs the package {module}; install it with: pip install 'isaaclab-arena-mujoco[{module}]'"
        raise ConfigError(message, key=key)
