"""Puts off the import of modules that other modules import but do not use."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import typing


@contextlib.contextmanager
def deferred_imports(names: typing.Collection[str]) -> typing.Iterator[None]:
    """Let modules import the named ones, and those below them, without executing them.

    What they import from these is imported when it is used. Modules that are executed already stay as they are.

    Args:
        names: Modules, such as ``lerobot.datasets``.
    """
    finder = _StandInFinder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in list(sys.modules.items()):
            if isinstance(module, _StandIn):
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                vars(sys.modules.get(parent, module)).pop(child, None)


class _StandIn(types.ModuleType):
    """A module that is not executed."""

    def __getattr__(self, name: str) -> typing.Any:
        # The machinery of imports asks for these, and has to be told that they are not there.
        if name.startswith("__"):
            raise AttributeError(name)
        return _Later(self.__name__, name)


class _Later:
    """A function or a class of a module that is executed when it is used."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __call__(self, *args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        return self._itself()(*args, **kwargs)

    def __getattr__(self, name: str) -> typing.Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._itself(), name)

    def __instancecheck__(self, instance: object) -> bool:
        """Return False: of a class that nobody has there are no instances."""
        return False

    def __or__(self, other: object) -> object:
        """Stand in an annotation, as a class can."""
        return self

    __ror__ = __or__

    def _itself(self) -> typing.Any:
        module = importlib.import_module(self._module)
        if isinstance(module, _StandIn):
            message = f"'{self._module}.{self._name}' is needed for the import of another module"
            raise ImportError(message)  # noqa: TRY004  it is an import that fails
        return getattr(module, self._name)


class _StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for some modules, and for those below them."""

    def __init__(self, names: typing.Collection[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """Return how a stand-in is made, None for modules that are not put off."""
        del path, target
        parts = fullname.split(".")
        above = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if above & self._names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the stand-in."""
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing."""
