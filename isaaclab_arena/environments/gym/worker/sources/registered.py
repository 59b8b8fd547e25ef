"""Environments of Gymnasium's registry: ``Ant-v5``, ``my_package.my_module:MyTask-v0``."""

from __future__ import annotations

import importlib

import gymnasium


def find(name: str, make_kwargs: dict) -> dict[str, object]:
    """Return an environment's limit and its deciding modules; LookupError if it is unknown, else ImportError."""
    del make_kwargs
    module, _, identifier = name.rpartition(":")
    if module:
        _import(module)
    try:
        spec = gymnasium.spec(identifier)
    except gymnasium.error.NamespaceNotFound as error:
        raise LookupError(
            f"{error} The module that registers it stands before a colon: my_package:{identifier}"
        ) from error
    except gymnasium.error.Error as error:
        raise LookupError(str(error)) from error
    if spec.entry_point is None:
        raise LookupError(f"'{identifier}' exists as a vector environment only, and single ones are needed")
    # The import of the environment's own module reveals a missing package at the job's check.
    made_by = spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else spec.entry_point.__module__
    _import(made_by)
    return {"max_episode_length": spec.max_episode_steps, "modules": [name for name in (module, made_by) if name]}


def make(name: str, make_kwargs: dict, max_episode_length: int | None) -> gymnasium.Env:
    """Return a new environment; Gymnasium first imports the module in front of its id."""
    return gymnasium.make(name, max_episode_steps=max_episode_length, disable_env_checker=True, **make_kwargs)


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        raise
    except (Exception, SystemExit) as error:
        raise ImportError(f"{module}: {type(error).__name__}: {error}") from error
