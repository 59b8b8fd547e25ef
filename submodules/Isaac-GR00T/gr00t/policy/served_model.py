"""Describe the served model for clients, which record it."""

import hashlib
from importlib import metadata
from pathlib import Path

_LOADED = {".safetensors", ".json"}
_DISTRIBUTION = "gr00t-small"


def describe_model(model_path: str) -> dict[str, str]:
    """Return a checkpoint's name, one hash of its loaded files, and this package's version; OSError if unreadable."""
    directory = Path(model_path)
    # A path that is no directory, such as a name on the hub, has no hash.
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.suffix in _LOADED and path.is_file():
            with path.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{path.name} {content}\n".encode())
    try:
        version = metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        version = "unknown"
    content = {"model_sha256": digest.hexdigest()} if directory.is_dir() else {}
    return {"model": directory.resolve().name, **content, "package": f"{_DISTRIBUTION} {version}"}
