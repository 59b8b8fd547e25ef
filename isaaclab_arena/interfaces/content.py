"""The sources of a policy or an environment besides this package: files, classes, packages, servers."""

import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNKNOWN = "unknown"
"""The identity of content that counts and cannot be known."""

_ENDINGS = ("_path", "_file")
_SECRETS = ("token", "secret", "password", "api_key")
_CHECKPOINTS = ("checkpoint_path", "model_path")


@dataclass(frozen=True, kw_only=True)
class ContentSources:
    """The places of everything that determines a policy or an environment. To list them reads nothing.

    Attributes:
        files: Files and directories by their role, such as ``checkpoint_path model_300.pt``.
        modules: Modules that are imported already and whose source counts, with their imports from beside them.
        packages: Import names of installed packages.
        stated: Facts that are known without reading a file, such as the version that another interpreter has.
        unknown: Content that counts and cannot be known here, such as ``server localhost:5555``.
        checkpoint: Name of the checkpoint in tables; None for a policy without one.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    modules: Sequence[str] = ()
    packages: Sequence[str] = ()
    stated: Mapping[str, str] = field(default_factory=dict)
    unknown: Sequence[str] = ()
    checkpoint: str | None = None


def sources_in_options(options: Mapping[str, Any]) -> ContentSources:
    """Return the files and directories that options ending in ``_path`` or ``_file`` name, those that exist."""
    # A secret is left out: its hash would be written into the output of a run.
    files = {
        f"{name} {Path(value).name}": Path(value)
        for name, value in options.items()
        if name.endswith(_ENDINGS) and not holds_secret(name)
        if isinstance(value, str) and value and os.path.exists(Path(value))  # noqa: PTH110  pathlib raises if it is too long
    }
    named = (options.get(name) for name in _CHECKPOINTS)
    return ContentSources(files=files, checkpoint=next((name for name in named if isinstance(name, str)), None))


def holds_secret(name: str) -> bool:
    """Whether an option holds a secret, by its name; it is never written or sent."""
    return any(word in name.lower() for word in _SECRETS)
