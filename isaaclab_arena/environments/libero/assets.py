"""Finds which files of meshes and textures a task of LIBERO needs, and which of them a checkout lacks."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

_SECTIONS = re.compile(r"\(:(objects|fixtures)\b([^)]*)\)")
_CATEGORY = re.compile(r"-\s+([\w-]+)")
_PROBLEM = re.compile(r"\(\s*problem\s+(\w+)")
_SCENE = re.compile(r"[\"'](scenes/[\w/-]+\.xml)[\"']")
_STYLE = re.compile(r"[\"'](?:floor|wall)_style[\"']\s*:\s*[\"']([\w-]+)[\"']")


def missing_assets(inside: Path, description: str) -> list[Path]:
    """Return the files that a task's scene and objects refer to and that are not there, in order of their names.

    Args:
        inside: LIBERO's inner package.
        description: What the task's file says, in BDDL.
    """
    seen: set[Path] = set()
    for path in _named_by(inside, description):
        _add_with_references(path, seen)
    return sorted(path for path in seen if not path.is_file())


def _named_by(inside: Path, description: str) -> Iterator[Path]:
    """Yield the models and textures that the description names, as LIBERO's classes find them."""
    assets = inside / "assets"
    for section, text in _SECTIONS.findall(description):
        for category in _CATEGORY.findall(text):
            models = [*assets.glob(f"*/{category}.xml"), *assets.glob(f"*/{category}/{category}.xml")]
            # Some fixtures are part of the scene; every object has a model of its own.
            yield from models or ([assets / f"{category}.xml"] if section == "objects" else [])
    problem = _PROBLEM.search(description)
    source = inside / "envs" / "problems" / f"{problem.group(1).lower()}.py" if problem else inside
    if not source.is_file():
        return
    text = source.read_text()
    yield from (assets / scene for scene in _SCENE.findall(text))
    styles = inside / "envs" / "arenas" / "style.py"
    known = styles.read_text() if styles.is_file() else ""
    for style in _STYLE.findall(text):
        yield from (
            assets / "textures" / name for name in re.findall(rf"\"{re.escape(style)}\":\s*\"([^\"]+)\"", known)
        )


def _add_with_references(path: Path, seen: set[Path]) -> None:
    """Add a file, and if it is a model all that it refers to."""
    if path in seen:
        return
    seen.add(path)
    if path.suffix != ".xml" or not path.is_file():
        return
    root = ET.parse(path).getroot()  # noqa: S314  a file of the checkout, which is run anyway
    compiler = root.find("compiler")
    directories = {} if compiler is None else {"mesh": compiler.get("meshdir"), "texture": compiler.get("texturedir")}
    for element in root.iter():
        name = element.get("file")
        if name:
            below = path.parent / (directories.get(element.tag) or "")
            _add_with_references(Path(re.sub(r"[^/]+/\.\./", "", str(below / name))), seen)
